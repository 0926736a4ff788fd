//! The kinds of streams, and a reading of each.

use crate::digits::{write_fixed, write_integer, write_milliseconds};
use crate::random::Random;

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
pub(super) fn autoregressive(current: f32, phi: f32, deviation: f32, random: &mut Random) -> f32 {
    phi * current + (1.0 - phi * phi).sqrt() * deviation * random.normal()
}
