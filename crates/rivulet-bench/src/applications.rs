//! The base applications of the workload: the scripts in `examples/`, the stream that feeds each, and the distribution
//! of their queries' parameters.
//!
//! They are the fifteen applications of the Pluto evaluation, one of which joins two streams, and the points of
//! interest of MIST. The last three are not from an evaluation. In two of them a single query may need more than one
//! worker, once without state and once with state by key. In the other one all queries read one topic, and each takes
//! the events of its own device.

use crate::digits::{write_fixed, write_integer};
use crate::random::Random;
use crate::streams::{Stream, StreamType, random_place_in_porto};

/// An application that queries are made of.
#[derive(Debug)]
pub struct BaseApplication {
    /// Its name in its script.
    pub name: &'static str,
    /// The whole file in `examples/`, comments included.
    pub script: &'static str,
    /// The kind of stream that feeds it.
    pub stream_type: StreamType,
    /// The parts of its input topic before and after the parameter with the device. If there is no part after it, the
    /// first part is the topic of all its queries, and the field `device` of an event names the device.
    topic: (&'static str, &'static str),
    /// For an application with two inputs: the part behind the parameter in the topic of the second input, as it is
    /// published and as it is subscribed to for all queries.
    second_topic: Option<(&'static str, &'static str)>,
    /// Writes the parameters of one query.
    parameters: fn(u64, &Stream, &mut Random, &mut Parameters<'_>),
}

/// The applications of a run that names none: the four of every demonstration.
pub const DEFAULT_APPLICATIONS: [&str; 4] = ["ac_control", "abnormal_heart_rate", "fire_alarm", "electricity_warning"];

/// The fifteen of the Pluto evaluation, in its order.
pub const EVALUATION_APPLICATIONS: [&str; 15] = [
    "ac_control",
    "abnormal_heart_rate",
    "remote_child_care",
    "elderly_care",
    "lightbulb_control",
    "child_mood",
    "medication_management",
    "fire_alarm",
    "soil_moisture",
    "moisture_removal",
    "green_house",
    "gas_station",
    "parking_lots",
    "electricity_warning",
    "animal_care",
];

/// The application whose queries share one topic.
pub const SHARED_TOPIC_APPLICATION: &str = "device_readings";

/// Every base application.
pub static BASE_APPLICATIONS: [BaseApplication; 19] = [
    BaseApplication {
        name: "ac_control",
        script: include_str!("../../../examples/ac_control.sql"),
        stream_type: StreamType::Temperature,
        topic: ("home/", "/temperature"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("home", number);
            out.decimal("target", random.between(18.0, 28.0), 2);
        },
    },
    BaseApplication {
        name: "abnormal_heart_rate",
        script: include_str!("../../../examples/abnormal_heart_rate.sql"),
        stream_type: StreamType::HeartRate,
        topic: ("patient/", "/heart_rate"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("patient", number);
            out.decimal("threshold", random.between(100.0, 150.0), 1);
        },
    },
    BaseApplication {
        name: "fire_alarm",
        script: include_str!("../../../examples/fire_alarm.sql"),
        stream_type: StreamType::Temperature,
        topic: ("home/", "/temperature"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("home", number);
            out.decimal("slope", random.between(0.2, 1.0), 3);
            out.decimal("noise", 1.0, 1);
        },
    },
    BaseApplication {
        name: "electricity_warning",
        script: include_str!("../../../examples/electricity_warning.sql"),
        stream_type: StreamType::Power,
        topic: ("home/", "/power"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("home", number);
            out.interval_seconds("span", [300, 600, 1800][random.below(3) as usize]);
            out.decimal("limit_kwh", random.between(0.05, 1.0), 3);
        },
    },
    BaseApplication {
        name: "elderly_care",
        script: include_str!("../../../examples/elderly_care.sql"),
        stream_type: StreamType::Motion,
        topic: ("person/", "/motion"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("person", number);
            out.interval_seconds("span", [60, 120, 300][random.below(3) as usize]);
        },
    },
    BaseApplication {
        name: "child_mood",
        script: include_str!("../../../examples/child_mood.sql"),
        stream_type: StreamType::HeartRate,
        topic: ("child/", "/heart_rate"),
        second_topic: None,
        parameters: |number, _, random, out| {
            let lowest = random.between(100.0, 140.0);
            out.text("child", number);
            out.decimal("lowest", lowest, 1);
            out.decimal("highest", lowest + 60.0, 1);
        },
    },
    BaseApplication {
        name: "medication_management",
        script: include_str!("../../../examples/medication_management.sql"),
        stream_type: StreamType::Temperature,
        topic: ("cabinet/", "/temperature"),
        second_topic: None,
        parameters: |number, _, random, out| {
            let lowest = random.between(2.0, 15.0);
            out.text("cabinet", number);
            out.decimal("lowest", lowest, 1);
            out.decimal("highest", lowest + random.between(5.0, 15.0), 1);
        },
    },
    BaseApplication {
        name: "soil_moisture",
        script: include_str!("../../../examples/soil_moisture.sql"),
        stream_type: StreamType::SoilMoisture,
        topic: ("field/", "/soil_moisture"),
        second_topic: None,
        parameters: |number, _, random, out| {
            let lowest = random.between(0.08, 0.2);
            out.text("field", number);
            out.decimal("lowest", lowest, 3);
            out.decimal("highest", lowest + 0.2, 3);
        },
    },
    BaseApplication {
        name: "moisture_removal",
        script: include_str!("../../../examples/moisture_removal.sql"),
        stream_type: StreamType::Humidity,
        topic: ("home/", "/humidity"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("home", number);
            out.decimal("humidity_max", random.between(40.0, 70.0), 1);
        },
    },
    BaseApplication {
        name: "green_house",
        script: include_str!("../../../examples/green_house.sql"),
        stream_type: StreamType::Temperature,
        topic: ("greenhouse/", "/temperature"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("greenhouse", number);
            out.decimal("deviations", random.between(2.0, 4.0), 2);
        },
    },
    BaseApplication {
        name: "lightbulb_control",
        script: include_str!("../../../examples/lightbulb_control.sql"),
        stream_type: StreamType::TaxiPosition,
        topic: ("car/", "/position"),
        second_topic: None,
        parameters: |number, _, random, out| {
            let (latitude, longitude) = random_place_in_porto(random);
            out.text("car", number);
            out.decimal("home_lat", latitude, 6);
            out.decimal("home_lon", longitude, 6);
            out.decimal("distance", random.between(100.0, 1000.0), 0);
        },
    },
    BaseApplication {
        name: "remote_child_care",
        script: include_str!("../../../examples/remote_child_care.sql"),
        stream_type: StreamType::PersonPosition,
        topic: ("child/", "/position"),
        second_topic: None,
        parameters: |number, stream, random, out| {
            let Stream::PersonPosition(person) = stream else { unreachable!("this application is fed by persons") };
            let (home, work) = (person.home(), person.work());
            out.text("child", number);
            out.decimal("home_lat", home.0, 6);
            out.decimal("home_lon", home.1, 6);
            out.decimal("school_lat", work.0, 6);
            out.decimal("school_lon", work.1, 6);
            out.decimal("distance", random.between(100.0, 1000.0), 0);
        },
    },
    BaseApplication {
        name: "gas_station",
        script: include_str!("../../../examples/gas_station.sql"),
        stream_type: StreamType::TaxiPosition,
        topic: ("car/", "/position"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("car", number);
            out.decimal("lowest", random.between(1.3, 1.7), 3);
            out.decimal("radius", random.between(500.0, 3000.0), 0);
        },
    },
    BaseApplication {
        name: "parking_lots",
        script: include_str!("../../../examples/parking_lots.sql"),
        stream_type: StreamType::TaxiPosition,
        topic: ("car/", "/position"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("car", number);
            out.decimal("slow", random.between(1.0, 3.0), 2);
        },
    },
    BaseApplication {
        name: "animal_care",
        script: include_str!("../../../examples/animal_care.sql"),
        stream_type: StreamType::HerdPosition,
        topic: ("herd/", "/dog"),
        second_topic: Some(("/animal/1", "/animal/+")),
        parameters: |number, _, random, out| {
            out.text("herd", number);
            out.decimal("distance", random.between(200.0, 2000.0), 0);
        },
    },
    BaseApplication {
        name: "points_of_interest",
        script: include_str!("../../../examples/points_of_interest.sql"),
        stream_type: StreamType::PersonPosition,
        topic: ("walker/", "/position"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("walker", number);
            out.decimal("most", (1 + random.below(10)) as f64, 0);
        },
    },
    BaseApplication {
        name: "temperature_limit",
        script: include_str!("../../../examples/temperature_limit.sql"),
        stream_type: StreamType::Temperature,
        topic: ("plant/", "/temperature"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("plant", number);
            out.decimal("highest", random.between(18.0, 28.0), 1);
        },
    },
    BaseApplication {
        name: "temperature_profile",
        script: include_str!("../../../examples/temperature_profile.sql"),
        stream_type: StreamType::Temperature,
        topic: ("plant/", "/temperature"),
        second_topic: None,
        parameters: |number, _, random, out| {
            out.text("plant", number);
            out.decimal("often", (1 + random.below(10)) as f64, 0);
        },
    },
    BaseApplication {
        name: SHARED_TOPIC_APPLICATION,
        script: include_str!("../../../examples/device_readings.sql"),
        stream_type: StreamType::Temperature,
        topic: ("devices/readings", ""),
        second_topic: None,
        parameters: |number, _, _, out| out.text("device", number),
    },
];

/// Returns the base application with this name.
pub fn base_application(name: &str) -> Option<&'static BaseApplication> {
    BASE_APPLICATIONS.iter().find(|application| application.name == name)
}

impl BaseApplication {
    /// The statement alone: from `CREATE APPLICATION` to its semicolon.
    pub fn statement(&self) -> &'static str {
        const BEGIN: &str = "\nCREATE APPLICATION ";
        let start = self.script.find(BEGIN).expect("an example creates an application") + 1;
        let length = self.script[start..].find(';').expect("a statement ends") + 1;
        &self.script[start..start + length]
    }

    /// The statement with another name. That makes it another application.
    pub fn statement_named(&self, name: &str) -> String {
        self.statement().replacen(self.name, name, 1)
    }

    /// Whether all its queries read one topic.
    pub fn shares_topic(&self) -> bool {
        self.topic.1.is_empty()
    }

    /// The filters that match the input topics of all its queries, one for each input, for example
    /// `home/+/temperature`.
    pub fn input_filters(&self) -> impl Iterator<Item = String> + use<> {
        let (before, after) = self.topic;
        let first = if self.shares_topic() { before.into() } else { format!("{before}+{after}") };
        let second = self.second_topic.map(|(_, after)| format!("{before}+{after}"));
        std::iter::once(first).chain(second)
    }

    /// Appends the topic of the second input of query `number`, if there is one.
    pub fn write_second_topic(&self, number: u64, out: &mut Vec<u8>) {
        if let Some((after, _)) = self.second_topic {
            out.extend_from_slice(self.topic.0.as_bytes());
            write_integer(number, out);
            out.extend_from_slice(after.as_bytes());
        }
    }

    /// Appends the topic of the first input of query `number`, for example `home/42/temperature`.
    pub fn write_input_topic(&self, number: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(self.topic.0.as_bytes());
        if self.shares_topic() {
            return;
        }
        write_integer(number, out);
        out.extend_from_slice(self.topic.1.as_bytes());
    }

    /// Appends the parameters of query `number` as a JSON object; `stream` is the sensor that feeds the query.
    pub(crate) fn write_parameters(&self, number: u64, stream: &Stream, random: &mut Random, out: &mut Vec<u8>) {
        out.push(b'{');
        (self.parameters)(number, stream, random, &mut Parameters { out, is_first: true });
        out.push(b'}');
    }
}

/// Writes the members of a JSON object of parameters.
struct Parameters<'a> {
    out: &'a mut Vec<u8>,
    is_first: bool,
}

impl Parameters<'_> {
    fn name(&mut self, name: &str) {
        if !self.is_first {
            self.out.push(b',');
        }
        self.is_first = false;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Writes a TEXT parameter: a number in quotes.
    fn text(&mut self, name: &str, number: u64) {
        self.name(name);
        self.out.push(b'"');
        write_integer(number, self.out);
        self.out.push(b'"');
    }

    /// Writes a DOUBLE parameter.
    fn decimal(&mut self, name: &str, value: f64, decimals: u32) {
        self.name(name);
        write_fixed(value, decimals, self.out);
    }

    /// Writes an INTERVAL parameter, as text: `"300 seconds"`.
    fn interval_seconds(&mut self, name: &str, seconds: u64) {
        self.name(name);
        self.out.push(b'"');
        write_integer(seconds, self.out);
        self.out.extend_from_slice(b" seconds\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_table_agree() {
        for application in &BASE_APPLICATIONS {
            let statement = application.statement();
            assert!(statement.starts_with(&format!("CREATE APPLICATION {}", application.name)), "{statement}");
            let (before, after) = application.topic;
            let from = statement.split("FROM 'mqtt:").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
            assert!(from.starts_with(before) && from.ends_with(after), "{from}");
            let second = statement.split("FROM 'mqtt:").nth(2).and_then(|rest| rest.split('\'').next());
            assert_eq!(second.is_some(), application.second_topic.is_some(), "{statement}");
            if let Some((second, (event, filter))) = second.zip(application.second_topic) {
                assert!(second.starts_with(before) && second.ends_with(filter), "{second}");
                let same_levels =
                    event.split('/').zip(filter.split('/')).all(|(one, other)| one == other || other == "+");
                assert!(same_levels && event.matches('/').count() == filter.matches('/').count(), "{event}");
            }
            if application.shares_topic() {
                assert_eq!(from, before);
                continue;
            }
            let parameter = &from[before.len()..from.len() - after.len()];
            assert!(statement.contains(&format!("({} TEXT", &parameter[1..parameter.len() - 1])), "{parameter}");
            assert!(application.script.contains("\n-- CREATE QUERY "), "{} shows a use", application.name);
            assert!(application.script.lines().all(|line| line.len() <= 120));
        }
        for name in DEFAULT_APPLICATIONS.into_iter().chain(EVALUATION_APPLICATIONS) {
            assert!(base_application(name).is_some());
        }
    }

    #[test]
    fn statements_use_every_parameter_that_queries_give() {
        let mut random = Random::new(51);
        for application in &BASE_APPLICATIONS {
            let stream = Stream::new(application.stream_type, &mut random);
            let mut json = Vec::new();
            application.write_parameters(42, &stream, &mut random, &mut json);
            let parameters: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&json).unwrap();
            for name in parameters.keys() {
                let used = [format!("${name}"), format!("{{{name}}}")];
                assert!(used.iter().any(|use_| application.statement().contains(use_)), "{name} is not used");
            }
        }
    }

    #[test]
    fn a_copy_differs_in_its_name_alone() {
        let copy = base_application("ac_control").unwrap().statement_named("ac_control_17");
        assert!(copy.starts_with("CREATE APPLICATION ac_control_17 (home TEXT"));
        assert_eq!(copy.matches("ac_control").count(), 1);
    }
}
