//! Nine kinds of simulated sensors, after the data sets of the Pluto evaluation. Their statistics are like the real
//! ones. Each has a state of a few bytes and takes tens of nanoseconds for a reading, so that a million of them fit
//! into one process.
//!
//! Values are per event, for one event a second on average; in a stream with a higher rate the simulated time passes
//! faster. Where the description of a data set says "0.1 % fire episodes", one event in a thousand belongs to such an
//! episode.
//!
//! The form of a payload: `{"ts":1763712345678.901,"value":20.81}`, with `ts` in milliseconds since the Unix epoch with
//! three decimals.

mod body;
mod climate;
mod position;
mod power;

use crate::digits::{write_fixed, write_integer, write_milliseconds};
use crate::random::Random;

pub use body::{HeartRate, Motion};
pub use climate::{Humidity, SoilMoisture, Temperature};
#[cfg(test)]
pub(crate) use position::random_place_in_beijing;
pub(crate) use position::random_place_in_porto;
pub use position::{HerdPosition, PersonPosition, TaxiPosition};
pub use power::Power;

/// The kinds of streams; the numbers are those of the evaluation (s1 to s9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamType {
    /// s1: room temperature.
    Temperature,
    /// s2: relative humidity indoors.
    Humidity,
    /// s3: heart rate of a person with changing activities.
    HeartRate,
    /// s4: acceleration at a person's chest.
    Motion,
    /// s5: position of a person in Beijing.
    PersonPosition,
    /// s6: position of a taxi in Porto.
    TaxiPosition,
    /// s7: positions of a herd in Victoria and of its dog, in turn.
    HerdPosition,
    /// s8: water content of soil.
    SoilMoisture,
    /// s9: electric power of a household.
    Power,
}

impl StreamType {
    /// Every kind, s1 first.
    pub const ALL: [Self; 9] = [
        Self::Temperature,
        Self::Humidity,
        Self::HeartRate,
        Self::Motion,
        Self::PersonPosition,
        Self::TaxiPosition,
        Self::HerdPosition,
        Self::SoilMoisture,
        Self::Power,
    ];
}

/// One simulated sensor: the state between two readings.
#[derive(Clone, Copy, Debug)]
pub enum Stream {
    /// s1
    Temperature(Temperature),
    /// s2
    Humidity(Humidity),
    /// s3
    HeartRate(HeartRate),
    /// s4
    Motion(Motion),
    /// s5
    PersonPosition(PersonPosition),
    /// s6
    TaxiPosition(TaxiPosition),
    /// s7
    HerdPosition(HerdPosition),
    /// s8
    SoilMoisture(SoilMoisture),
    /// s9
    Power(Power),
}

// A generator holds one for each query. A person's position is the largest; most kinds take half of that.
const _: () = assert!(size_of::<Stream>() <= 28);

impl Stream {
    /// Makes a sensor of this kind, at a random point of its life.
    pub fn new(stream_type: StreamType, random: &mut Random) -> Self {
        match stream_type {
            StreamType::Temperature => Self::Temperature(Temperature::new(random)),
            StreamType::Humidity => Self::Humidity(Humidity::new(random)),
            StreamType::HeartRate => Self::HeartRate(HeartRate::new(random)),
            StreamType::Motion => Self::Motion(Motion::new(random)),
            StreamType::PersonPosition => Self::PersonPosition(PersonPosition::new(random)),
            StreamType::TaxiPosition => Self::TaxiPosition(TaxiPosition::new(random)),
            StreamType::HerdPosition => Self::HerdPosition(HerdPosition::new(random)),
            StreamType::SoilMoisture => Self::SoilMoisture(SoilMoisture::new(random)),
            StreamType::Power => Self::Power(Power::new(random)),
        }
    }

    /// Returns the next reading.
    pub fn next(&mut self, random: &mut Random) -> Reading {
        self.next_with_episodes(random, 1.0)
    }

    /// Returns the next reading. Rare episodes (a fire, an arrhythmia, hours without motion, rain) begin
    /// `episode_factor` times as often as usual, because a demonstration cannot wait for a fire.
    #[inline]
    pub fn next_with_episodes(&mut self, random: &mut Random, episode_factor: f32) -> Reading {
        match self {
            Self::Temperature(stream) => stream.next(random, episode_factor),
            Self::Humidity(stream) => stream.next(random),
            Self::HeartRate(stream) => stream.next(random, episode_factor),
            Self::Motion(stream) => stream.next(random, episode_factor),
            Self::PersonPosition(stream) => stream.next(random),
            Self::TaxiPosition(stream) => stream.next(random),
            Self::HerdPosition(stream) => stream.next(random),
            Self::SoilMoisture(stream) => stream.next(random, episode_factor),
            Self::Power(stream) => stream.next(random),
        }
    }
}

/// The reading of a sensor at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// Degrees Celsius, in hundredths.
    Temperature(f32),
    /// Percent of relative humidity, in tenths.
    Humidity(f32),
    /// Beats per minute.
    HeartRate(u16),
    /// Acceleration along three axes, including gravity, in m/s2.
    Motion([f32; 3]),
    /// A person's position.
    PersonPosition {
        /// Degrees north.
        latitude: f64,
        /// Degrees east.
        longitude: f64,
        /// Metres above the sea.
        altitude: f32,
    },
    /// A taxi's position.
    TaxiPosition {
        /// Degrees north.
        latitude: f64,
        /// Degrees east.
        longitude: f64,
        /// Metres a second.
        speed: f32,
        /// Whether it drives; otherwise it stands.
        moving: bool,
    },
    /// The position of a herd's dog, or of one of its animals.
    HerdPosition {
        /// Whether it is the position of the dog.
        is_dog: bool,
        /// Degrees north.
        latitude: f64,
        /// Degrees east.
        longitude: f64,
    },
    /// Volume of water in a volume of soil, m3/m3.
    SoilMoisture(f32),
    /// Active power and voltage.
    Power {
        /// Kilowatts.
        kilowatts: f32,
        /// Volts.
        volts: f32,
    },
}

impl Reading {
    /// The kind of its stream.
    pub fn stream_type(&self) -> StreamType {
        match self {
            Self::Temperature(_) => StreamType::Temperature,
            Self::Humidity(_) => StreamType::Humidity,
            Self::HeartRate(_) => StreamType::HeartRate,
            Self::Motion(_) => StreamType::Motion,
            Self::PersonPosition { .. } => StreamType::PersonPosition,
            Self::TaxiPosition { .. } => StreamType::TaxiPosition,
            Self::HerdPosition { .. } => StreamType::HerdPosition,
            Self::SoilMoisture(_) => StreamType::SoilMoisture,
            Self::Power { .. } => StreamType::Power,
        }
    }

    /// Appends the payload: a JSON object with `ts` (from `time_us`, microseconds since the epoch) and the reading's
    /// fields. At most [`PAYLOAD_BYTES_MAX`] bytes.
    #[inline]
    pub fn write_json(&self, time_us: i64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"ts\":");
        write_milliseconds(time_us, out);
        let mut field = |name: &[u8], value: f64, decimals: u32| {
            out.extend_from_slice(name);
            write_fixed(value, decimals, out);
        };
        match *self {
            Self::Temperature(celsius) => field(b",\"value\":", celsius.into(), 2),
            Self::Humidity(percent) => field(b",\"value\":", percent.into(), 1),
            Self::HeartRate(beats_per_minute) => {
                out.extend_from_slice(b",\"bpm\":");
                write_integer(beats_per_minute.into(), out);
            }
            Self::Motion([x, y, z]) => {
                field(b",\"ax\":", x.into(), 3);
                field(b",\"ay\":", y.into(), 3);
                field(b",\"az\":", z.into(), 3);
            }
            Self::PersonPosition { latitude, longitude, altitude } => {
                field(b",\"lat\":", latitude, 6);
                field(b",\"lon\":", longitude, 6);
                field(b",\"alt\":", altitude.into(), 1);
            }
            Self::TaxiPosition { latitude, longitude, speed, moving } => {
                field(b",\"lat\":", latitude, 6);
                field(b",\"lon\":", longitude, 6);
                field(b",\"speed\":", speed.into(), 1);
                out.extend_from_slice(if moving { b",\"status\":\"moving\"" } else { b",\"status\":\"stopped\"" });
            }
            Self::HerdPosition { latitude, longitude, .. } => {
                field(b",\"lat\":", latitude, 6);
                field(b",\"lon\":", longitude, 6);
            }
            Self::SoilMoisture(share) => field(b",\"value\":", share.into(), 4),
            Self::Power { kilowatts, volts } => {
                field(b",\"kw\":", kilowatts.into(), 3);
                field(b",\"volt\":", volts.into(), 2);
            }
        }
        out.push(b'}');
    }
}

/// The longest payload that [`Reading::write_json`] writes, in bytes, with room to spare.
pub const PAYLOAD_BYTES_MAX: usize = 160;

/// A first-order autoregressive step: the next deviation from the mean of a process with stationary standard deviation
/// `deviation` and correlation `phi` from one event to the next.
#[inline]
fn autoregressive(current: f32, phi: f32, deviation: f32, random: &mut Random) -> f32 {
    phi * current + (1.0 - phi * phi).sqrt() * deviation * random.normal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_json_with_time_and_fields() {
        let mut random = Random::new(4);
        let fields: [&[&str]; 9] = [
            &["value"],
            &["value"],
            &["bpm"],
            &["ax", "ay", "az"],
            &["lat", "lon", "alt"],
            &["lat", "lon", "speed"],
            &["lat", "lon"],
            &["value"],
            &["kw", "volt"],
        ];
        for (stream_type, fields) in StreamType::ALL.into_iter().zip(fields) {
            let mut stream = Stream::new(stream_type, &mut random);
            for _ in 0..1000 {
                let reading = stream.next(&mut random);
                assert_eq!(reading.stream_type(), stream_type);
                let mut payload = Vec::new();
                reading.write_json(1_763_712_345_678_901, &mut payload);
                assert!(payload.len() <= PAYLOAD_BYTES_MAX);
                let value: serde_json::Value = serde_json::from_slice(&payload).unwrap();
                assert_eq!(value["ts"].as_f64(), Some(1_763_712_345_678.901));
                for field in fields {
                    assert!(value[field].is_number(), "{field} in {value}");
                }
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_readings() {
        let readings = |seed| {
            let mut random = Random::new(seed);
            let mut streams = StreamType::ALL.map(|stream_type| Stream::new(stream_type, &mut random));
            (0..900).map(|event| streams[event % 9].next(&mut random)).collect::<Vec<_>>()
        };
        assert_eq!(readings(5), readings(5));
        assert_ne!(readings(5), readings(6));
    }
}
