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

/// Applications by name: the file of each, in `examples/`, is called so too.
macro_rules! applications {
    ($($name:literal reads $stream:ident at $before:literal $behind:literal
        $(joins $second:literal, $all_seconds:literal)?: $parameters:expr;)+) => {
        [$(BaseApplication {
            name: $name,
            script: include_str!(concat!("../../../examples/", $name, ".sql")),
            stream_type: StreamType::$stream,
            topic: ($before, $behind),
            second_topic: [$(Some(($second, $all_seconds)),)? None][0],
            parameters: $parameters,
        }),+]
    };
}

/// Every base application.
pub static BASE_APPLICATIONS: [BaseApplication; 19] = applications! {
    "ac_control" reads Temperature at "home/" "/temperature": |number, _, random, out| {
        out.text("home", number);
        out.decimal("target", random.between(18.0, 28.0), 2);
    };
    "abnormal_heart_rate" reads HeartRate at "patient/" "/heart_rate": |number, _, random, out| {
        out.text("patient", number);
        out.decimal("threshold", random.between(100.0, 150.0), 1);
    };
    "fire_alarm" reads Temperature at "home/" "/temperature": |number, _, random, out| {
        out.text("home", number);
        out.decimal("slope", random.between(0.2, 1.0), 3);
        out.decimal("noise", 1.0, 1);
    };
    "electricity_warning" reads Power at "home/" "/power": |number, _, random, out| {
        out.text("home", number);
        out.interval_seconds("span", [300, 600, 1800][random.below(3) as usize]);
        out.decimal("limit_kwh", random.between(0.05, 1.0), 3);
    };
    "elderly_care" reads Motion at "person/" "/motion": |number, _, random, out| {
        out.text("person", number);
        out.interval_seconds("span", [60, 120, 300][random.below(3) as usize]);
    };
    "child_mood" reads HeartRate at "child/" "/heart_rate": |number, _, random, out| {
        let lowest = random.between(100.0, 140.0);
        out.text("child", number);
        out.decimal("lowest", lowest, 1);
        out.decimal("highest", lowest + 60.0, 1);
    };
    "medication_management" reads Temperature at "cabinet/" "/temperature": |number, _, random, out| {
        let lowest = random.between(2.0, 15.0);
        out.text("cabinet", number);
        out.decimal("lowest", lowest, 1);
        out.decimal("highest", lowest + random.between(5.0, 15.0), 1);
    };
    "soil_moisture" reads SoilMoisture at "field/" "/soil_moisture": |number, _, random, out| {
        let lowest = random.between(0.08, 0.2);
        out.text("field", number);
        out.decimal("lowest", lowest, 3);
        out.decimal("highest", lowest + 0.2, 3);
    };
    "moisture_removal" reads Humidity at "home/" "/humidity": |number, _, random, out| {
        out.text("home", number);
        out.decimal("humidity_max", random.between(40.0, 70.0), 1);
    };
    "green_house" reads Temperature at "greenhouse/" "/temperature": |number, _, random, out| {
        out.text("greenhouse", number);
        out.decimal("deviations", random.between(2.0, 4.0), 2);
    };
    "lightbulb_control" reads TaxiPosition at "car/" "/position": |number, _, random, out| {
        let (latitude, longitude) = random_place_in_porto(random);
        out.text("car", number);
        out.decimal("home_lat", latitude, 6);
        out.decimal("home_lon", longitude, 6);
        out.decimal("distance", random.between(100.0, 1000.0), 0);
    };
    "remote_child_care" reads PersonPosition at "child/" "/position": |number, stream, random, out| {
        let Stream::PersonPosition(person) = stream else { unreachable!("this application is fed by persons") };
        let (home, work) = (person.home(), person.work());
        out.text("child", number);
        out.decimal("home_lat", home.0, 6);
        out.decimal("home_lon", home.1, 6);
        out.decimal("school_lat", work.0, 6);
        out.decimal("school_lon", work.1, 6);
        out.decimal("distance", random.between(100.0, 1000.0), 0);
    };
    "gas_station" reads TaxiPosition at "car/" "/position": |number, _, random, out| {
        out.text("car", number);
        out.decimal("lowest", random.between(1.3, 1.7), 3);
        out.decimal("radius", random.between(500.0, 3000.0), 0);
    };
    "parking_lots" reads TaxiPosition at "car/" "/position": |number, _, random, out| {
        out.text("car", number);
        out.decimal("slow", random.between(1.0, 3.0), 2);
    };
    "animal_care" reads HerdPosition at "herd/" "/dog" joins "/animal/1", "/animal/+": |number, _, random, out| {
        out.text("herd", number);
        out.decimal("distance", random.between(200.0, 2000.0), 0);
    };
    "points_of_interest" reads PersonPosition at "walker/" "/position": |number, _, random, out| {
        out.text("walker", number);
        out.decimal("most", (1 + random.below(10)) as f64, 0);
    };
    "temperature_limit" reads Temperature at "plant/" "/temperature": |number, _, random, out| {
        out.text("plant", number);
        out.decimal("highest", random.between(18.0, 28.0), 1);
    };
    "temperature_profile" reads Temperature at "plant/" "/temperature": |number, _, random, out| {
        out.text("plant", number);
        out.decimal("often", (1 + random.below(10)) as f64, 0);
    };
    "device_readings" reads Temperature at "devices/readings" "": |number, _, _, out| out.text("device", number);
};

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
