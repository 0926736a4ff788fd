//! Slow physical quantities: room temperature, humidity, soil moisture. All are autoregressive around a mean.

use std::f32::consts::TAU;

use super::reading::{Reading, autoregressive};
use crate::random::Random;

/// Room temperature (after the REFIT smart homes): autoregressive around 20.8 degrees, with a daily wave, and fires.
#[derive(Clone, Copy, Debug)]
pub struct Temperature {
    /// Deviation from the mean, degrees.
    deviation: f32,
    /// The degrees that a fire has added.
    excess: f32,
    /// Time of day as a share of 2^32; a day has 86400 events.
    day: u32,
    /// The number of events for which the fire continues.
    fire_events: u8,
}

/// How many events a fire burns.
const FIRE_EVENTS: u8 = 30;
/// The degrees that each of them adds.
const FIRE_STEP: f32 = 1.5;
/// The share of events that belong to a fire.
const FIRE_SHARE: f32 = 0.001;

impl Temperature {
    const MEAN: f32 = 20.8;
    const PHI: f32 = 0.9995;
    const DAY_STEP: u32 = (u32::MAX as u64 / 86_400) as u32;

    /// Makes a thermometer at a random time of day.
    pub fn new(random: &mut Random) -> Self {
        Self { deviation: random.normal(), excess: 0.0, day: random.bits() as u32, fire_events: 0 }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random, episode_factor: f32) -> Reading {
        self.deviation = autoregressive(self.deviation, Self::PHI, 1.0, random);
        self.day = self.day.wrapping_add(Self::DAY_STEP);
        if self.fire_events > 0 {
            self.fire_events -= 1;
            self.excess += FIRE_STEP;
        } else {
            // After the fire, the room cools to normal within a minute.
            self.excess = if self.excess > 0.05 { self.excess * 0.9 } else { 0.0 };
            let begins = FIRE_SHARE / f32::from(FIRE_EVENTS) * episode_factor;
            if self.excess == 0.0 && random.chance(begins.into()) {
                self.fire_events = FIRE_EVENTS;
            }
        }
        let wave = 1.5 * (self.day as f32 * (TAU / u32::MAX as f32)).sin();
        Reading::Temperature((Self::MEAN + self.deviation + wave).clamp(5.0, 40.0) + self.excess)
    }
}

/// Relative humidity indoors (after REFIT): each home has its own mean between 28 and 60 percent.
#[derive(Clone, Copy, Debug)]
pub struct Humidity {
    mean: f32,
    deviation: f32,
}

impl Humidity {
    const PHI: f32 = 0.9995;
    const DEVIATION: f32 = 4.0;

    /// Makes a hygrometer in a random home.
    pub fn new(random: &mut Random) -> Self {
        Self { mean: random.between(28.0, 60.0) as f32, deviation: Self::DEVIATION * random.normal() }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random) -> Reading {
        self.deviation = autoregressive(self.deviation, Self::PHI, Self::DEVIATION, random);
        Reading::Humidity((self.mean + self.deviation).clamp(15.0, 95.0))
    }
}

/// Water in the soil (after SoilSCAPE): the soil dries slowly towards 0.08, and rain raises the value at once.
#[derive(Clone, Copy, Debug)]
pub struct SoilMoisture {
    share: f32,
}

/// The probability that it rains at an event.
const RAIN: f32 = 1e-4;

impl SoilMoisture {
    const DRY: f32 = 0.08;
    const PHI: f32 = 0.9999;
    const DEVIATION: f32 = 0.01;

    /// Makes a probe in a field where it rained some time ago.
    pub fn new(random: &mut Random) -> Self {
        Self { share: Self::DRY + random.between(0.0, 0.25) as f32 }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random, episode_factor: f32) -> Reading {
        self.share = Self::DRY + autoregressive(self.share - Self::DRY, Self::PHI, Self::DEVIATION, random);
        if random.chance((RAIN * episode_factor).into()) {
            self.share += random.between(0.05, 0.25) as f32;
        }
        self.share = self.share.clamp(0.02, 0.55);
        Reading::SoilMoisture(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::{Stream, StreamType};

    /// Mean and standard deviation over many streams, each sampled at several moments.
    fn moments(stream_type: StreamType, value: impl Fn(Reading) -> f32) -> (f32, f32) {
        let mut random = Random::new(11);
        let values: Vec<f32> = (0..2000)
            .flat_map(|_| {
                let mut stream = Stream::new(stream_type, &mut random);
                (0..100).map(|_| value(stream.next(&mut random))).collect::<Vec<_>>()
            })
            .collect();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32;
        (mean, variance.sqrt())
    }

    #[test]
    fn temperature_is_around_twenty_one_degrees() {
        // A deviation of 1.0 and a wave of amplitude 1.5 (deviation 1.06) give 1.46, and fires a little more.
        let (mean, deviation) = moments(StreamType::Temperature, |reading| match reading {
            Reading::Temperature(celsius) => celsius,
            other => panic!("{other:?}"),
        });
        assert!((20.5..21.2).contains(&mean), "{mean}");
        assert!((1.3..2.1).contains(&deviation), "{deviation}");
    }

    #[test]
    fn temperature_moves_in_small_steps_except_in_fires() {
        let mut random = Random::new(12);
        let mut temperature = Temperature::new(&mut random);
        let (mut before, mut burning, mut steps) = (None, 0u32, Vec::new());
        let events = 300_000;
        for _ in 0..events {
            let Reading::Temperature(celsius) = temperature.next(&mut random, 1.0) else { unreachable!() };
            burning += u32::from(temperature.fire_events > 0);
            match before {
                Some(before) if temperature.excess == 0.0 => steps.push(celsius - before),
                _ => {}
            }
            before = (temperature.excess == 0.0).then_some(celsius);
        }
        let deviation = (steps.iter().map(|step| step * step).sum::<f32>() / steps.len() as f32).sqrt();
        assert!((0.028..0.036).contains(&deviation), "{deviation}");
        let share = burning as f32 / events as f32;
        assert!((0.0002..0.004).contains(&share), "{share}");
    }

    #[test]
    fn a_fire_raises_the_temperature_by_45_degrees() {
        let mut random = Random::new(13);
        let mut temperature = Temperature::new(&mut random);
        temperature.fire_events = FIRE_EVENTS;
        let mut hottest = 0.0_f32;
        for _ in 0..FIRE_EVENTS {
            let Reading::Temperature(celsius) = temperature.next(&mut random, 0.0) else { unreachable!() };
            hottest = hottest.max(celsius);
        }
        assert!((55.0..75.0).contains(&hottest), "{hottest}");
    }

    #[test]
    fn humidity_spreads_over_homes() {
        // Means are uniform over 28 to 60 (deviation 9.2), and values within a home have a deviation of 4.
        let (mean, deviation) = moments(StreamType::Humidity, |reading| match reading {
            Reading::Humidity(percent) => percent,
            other => panic!("{other:?}"),
        });
        assert!((43.0..45.0).contains(&mean), "{mean}");
        assert!((9.4..10.8).contains(&deviation), "{deviation}");
    }

    #[test]
    fn soil_stays_in_range_and_rain_makes_it_wet() {
        let mut random = Random::new(14);
        let mut soil = SoilMoisture::new(&mut random);
        let (mut before, mut rains) = (0.08, 0);
        for _ in 0..200_000 {
            let Reading::SoilMoisture(share) = soil.next(&mut random, 1.0) else { unreachable!() };
            assert!((0.02..=0.55).contains(&share));
            rains += i32::from(share - before > 0.04);
            before = share;
        }
        assert!((8..40).contains(&rains), "{rains}");
    }
}
