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
mod reading;

use crate::random::Random;

pub use body::{HeartRate, Motion};
pub use climate::{Humidity, SoilMoisture, Temperature};
#[cfg(test)]
pub(crate) use position::random_place_in_beijing;
pub(crate) use position::random_place_in_porto;
pub use position::{HerdPosition, PersonPosition, TaxiPosition};
pub use power::Power;
pub use reading::{PAYLOAD_BYTES_MAX, Reading, StreamType};

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
