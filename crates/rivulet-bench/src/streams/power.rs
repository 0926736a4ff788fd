//! Electric power of a household (after the UCI individual household data set): a base load or an active one, and in
//! addition appliances that run for a while; the voltage varies a little.
//!
//! The shares and strengths are fitted to two days of the real series: median 0.68, mean 1.01, 95th percentile 3.0,
//! maximum 5.8 kW; voltage 241.04 with deviation 2.58.

use super::reading::{Reading, autoregressive};
use crate::random::Random;

/// A household's meter.
#[derive(Clone, Copy, Debug)]
pub struct Power {
    /// Deviation of the voltage from its mean, volts.
    volts_deviation: f32,
    /// The power of the running appliance, in kilowatts; only meaningful while `appliance_events` is not 0.
    appliance_kilowatts: f32,
    /// Deviation of the power, as a share of the load.
    load_deviation: f32,
    appliance_events: u16,
    active: bool,
}

const BASE_KILOWATTS: f32 = 0.3;
const ACTIVE_KILOWATTS: f32 = 1.4;
/// The share of time in which the household is active, and how long that lasts on average.
const ACTIVE_SHARE: f64 = 0.45;
const ACTIVE_EVENTS: f64 = 900.0;
/// The share of time in which an appliance runs, and the least and greatest number of events for which it runs.
const APPLIANCE_SHARE: f64 = 0.1;
const APPLIANCE_EVENTS: (u64, u64) = (60, 240);

impl Power {
    const VOLTS_MEAN: f32 = 241.04;
    const VOLTS_DEVIATION: f32 = 2.58;

    /// Makes the meter of a household at a random time of day.
    pub fn new(random: &mut Random) -> Self {
        let mut power = Self {
            volts_deviation: Self::VOLTS_DEVIATION * random.normal(),
            appliance_kilowatts: 0.0,
            load_deviation: random.normal(),
            appliance_events: 0,
            active: random.chance(ACTIVE_SHARE),
        };
        if random.chance(APPLIANCE_SHARE) {
            power.start_appliance(random);
            power.appliance_events = 1 + random.below(power.appliance_events.into()) as u16;
        }
        power
    }

    fn start_appliance(&mut self, random: &mut Random) {
        let (least, most) = APPLIANCE_EVENTS;
        self.appliance_events = (least + random.below(most - least + 1)) as u16;
        self.appliance_kilowatts = random.between(1.0, 3.8) as f32;
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random) -> Reading {
        const TO_BASE: f64 = 1.0 / ACTIVE_EVENTS;
        const TO_ACTIVE: f64 = TO_BASE * ACTIVE_SHARE / (1.0 - ACTIVE_SHARE);
        const APPLIANCE_MEAN_EVENTS: f64 = (APPLIANCE_EVENTS.0 + APPLIANCE_EVENTS.1) as f64 / 2.0;
        const APPLIANCE_STARTS: f64 = APPLIANCE_SHARE / (1.0 - APPLIANCE_SHARE) / APPLIANCE_MEAN_EVENTS;

        if random.chance(if self.active { TO_BASE } else { TO_ACTIVE }) {
            self.active = !self.active;
        }
        if self.appliance_events > 0 {
            self.appliance_events -= 1;
        } else if random.chance(APPLIANCE_STARTS) {
            self.start_appliance(random);
        }
        self.load_deviation = autoregressive(self.load_deviation, 0.98, 1.0, random);
        self.volts_deviation = autoregressive(self.volts_deviation, 0.995, Self::VOLTS_DEVIATION, random);
        let load = if self.active { ACTIVE_KILOWATTS } else { BASE_KILOWATTS };
        let appliance = if self.appliance_events > 0 { self.appliance_kilowatts } else { 0.0 };
        Reading::Power {
            kilowatts: (load * (1.0 + 0.3 * self.load_deviation) + appliance).clamp(0.076, 11.1),
            volts: (Self::VOLTS_MEAN + self.volts_deviation).clamp(223.0, 254.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_has_the_statistics_of_the_measured_household() {
        let mut random = Random::new(31);
        let (mut kilowatts, mut volts) = (Vec::new(), Vec::new());
        for _ in 0..1000 {
            let mut power = Power::new(&mut random);
            for _ in 0..100 {
                let Reading::Power { kilowatts: k, volts: v } = power.next(&mut random) else { unreachable!() };
                kilowatts.push(k);
                volts.push(v);
            }
        }
        kilowatts.sort_by(f32::total_cmp);
        let count = kilowatts.len();
        let mean = kilowatts.iter().sum::<f32>() / count as f32;
        let (median, high) = (kilowatts[count / 2], kilowatts[count * 95 / 100]);
        assert!((0.9..1.15).contains(&mean), "mean {mean}");
        assert!((0.35..1.1).contains(&median), "median {median}");
        assert!((2.5..3.6).contains(&high), "95th percentile {high}");
        assert!((4.0..8.0).contains(&kilowatts[count - 1]), "maximum {}", kilowatts[count - 1]);
        assert!(kilowatts[0] >= 0.076);

        let mean = volts.iter().sum::<f32>() / count as f32;
        let deviation = (volts.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / count as f32).sqrt();
        assert!((240.6..241.5).contains(&mean), "{mean}");
        assert!((2.3..2.8).contains(&deviation), "{deviation}");
    }
}
