//! A person's body (after PAMAP2): the current activity decides how the heart beats and how the chest moves.

use super::reading::{Reading, autoregressive};
use crate::random::Random;

/// An activity of a person, with its mean heart rate and strength of motion.
struct Activity {
    beats_per_minute: f32,
    /// The standard deviation of the acceleration along an axis, in m/s2.
    shaking: f32,
}

/// Lying, sitting, standing, walking, running, cycling.
const ACTIVITIES: [Activity; 6] = [
    Activity { beats_per_minute: 65.0, shaking: 0.05 },
    Activity { beats_per_minute: 72.0, shaking: 0.15 },
    Activity { beats_per_minute: 82.0, shaking: 0.3 },
    Activity { beats_per_minute: 105.0, shaking: 2.5 },
    Activity { beats_per_minute: 150.0, shaking: 6.0 },
    Activity { beats_per_minute: 128.0, shaking: 2.0 },
];

/// How many events an activity lasts on average (geometrically distributed).
const ACTIVITY_EVENTS: f64 = 120.0;

/// The number of one of [`ACTIVITIES`].
#[derive(Clone, Copy, Debug)]
struct Doing(u8);

impl Doing {
    fn new(random: &mut Random) -> Self {
        Self(random.below(ACTIVITIES.len() as u64) as u8)
    }

    /// Changes to another activity now and then.
    #[inline]
    fn next(&mut self, random: &mut Random) -> &'static Activity {
        if random.chance(1.0 / ACTIVITY_EVENTS) {
            let others = ACTIVITIES.len() as u64 - 1;
            self.0 = ((u64::from(self.0) + 1 + random.below(others)) % ACTIVITIES.len() as u64) as u8;
        }
        &ACTIVITIES[usize::from(self.0)]
    }
}

/// Heart rate: the activity's mean, autoregressive noise, and bursts of arrhythmia.
#[derive(Clone, Copy, Debug)]
pub struct HeartRate {
    deviation: f32,
    doing: Doing,
    burst_events: u8,
}

/// How many events a burst of arrhythmia lasts.
const BURST_EVENTS: u8 = 10;
/// How many more beats per minute the heart has in a burst.
const BURST_BEATS: f32 = 60.0;
/// The share of events that belong to a burst.
const BURST_SHARE: f32 = 0.01;

impl HeartRate {
    const PHI: f32 = 0.98;
    const DEVIATION: f32 = 4.0;

    /// Makes the heart of a person with a random activity.
    pub fn new(random: &mut Random) -> Self {
        Self { deviation: Self::DEVIATION * random.normal(), doing: Doing::new(random), burst_events: 0 }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random, episode_factor: f32) -> Reading {
        let activity = self.doing.next(random);
        self.deviation = autoregressive(self.deviation, Self::PHI, Self::DEVIATION, random);
        if self.burst_events > 0 {
            self.burst_events -= 1;
        } else if random.chance((BURST_SHARE / f32::from(BURST_EVENTS) * episode_factor).into()) {
            self.burst_events = BURST_EVENTS;
        }
        let burst = if self.burst_events > 0 { BURST_BEATS } else { 0.0 };
        Reading::HeartRate((activity.beats_per_minute + self.deviation + burst).clamp(45.0, 200.0).round() as u16)
    }
}

/// Acceleration at the chest: gravity, and noise as strong as the activity, sometimes without any motion.
#[derive(Clone, Copy, Debug)]
pub struct Motion {
    doing: Doing,
    still_events: u8,
}

/// How many events an episode without motion lasts.
const STILL_EVENTS: u8 = 60;
/// The share of events that belong to such an episode.
const STILL_SHARE: f32 = 0.005;
/// Noise of the sensor alone, m/s2.
const STILL_SHAKING: f32 = 0.02;
/// The sensor's range, m/s2.
const RANGE: f32 = 39.0;
const GRAVITY: f32 = 9.81;

impl Motion {
    /// Makes the chest of a person with a random activity.
    pub fn new(random: &mut Random) -> Self {
        Self { doing: Doing::new(random), still_events: 0 }
    }

    #[inline]
    pub(super) fn next(&mut self, random: &mut Random, episode_factor: f32) -> Reading {
        let activity = self.doing.next(random);
        if self.still_events > 0 {
            self.still_events -= 1;
        } else if random.chance((STILL_SHARE / f32::from(STILL_EVENTS) * episode_factor).into()) {
            self.still_events = STILL_EVENTS;
        }
        let shaking = if self.still_events > 0 { STILL_SHAKING } else { activity.shaking };
        let mut axis = |mean: f32| (mean + shaking * random.normal()).clamp(-RANGE, RANGE);
        Reading::Motion([axis(0.0), axis(0.0), axis(GRAVITY)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heart_rate_follows_the_activities() {
        let mut random = Random::new(21);
        let mut sums = [(0.0_f64, 0_u32); ACTIVITIES.len()];
        let (mut changes, mut bursts) = (0_u32, 0_u32);
        let mut heart = HeartRate::new(&mut random);
        let events = 400_000;
        for _ in 0..events {
            let before = heart.doing.0;
            let Reading::HeartRate(beats_per_minute) = heart.next(&mut random, 1.0) else { unreachable!() };
            assert!((45..=200).contains(&beats_per_minute));
            changes += u32::from(heart.doing.0 != before);
            if heart.burst_events > 0 {
                bursts += 1;
            } else {
                let (sum, count) = &mut sums[usize::from(heart.doing.0)];
                *sum += f64::from(beats_per_minute);
                *count += 1;
            }
        }
        for (activity, (sum, count)) in ACTIVITIES.iter().zip(sums) {
            let share = f64::from(count) / f64::from(events);
            assert!((0.1..0.24).contains(&share), "every activity has about a sixth of the time: {share}");
            assert!((sum / f64::from(count) - f64::from(activity.beats_per_minute)).abs() < 1.0);
        }
        let dwell = f64::from(events) / f64::from(changes);
        assert!((110.0..130.0).contains(&dwell), "{dwell}");
        let share = f64::from(bursts) / f64::from(events);
        assert!((0.007..0.013).contains(&share), "{share}");
    }

    #[test]
    fn motion_is_as_strong_as_the_activity() {
        let mut random = Random::new(22);
        let mut motion = Motion::new(&mut random);
        let mut squares = [(0.0_f32, 0_u32); ACTIVITIES.len()];
        let (mut still, mut gravity) = (0_u32, 0.0_f64);
        let events = 400_000;
        for _ in 0..events {
            let Reading::Motion([x, y, z]) = motion.next(&mut random, 1.0) else { unreachable!() };
            assert!([x, y, z].iter().all(|axis| axis.abs() <= RANGE));
            gravity += f64::from(z);
            if motion.still_events > 0 {
                still += 1;
            } else {
                let (sum, count) = &mut squares[usize::from(motion.doing.0)];
                *sum += x * x + y * y;
                *count += 2;
            }
        }
        for (activity, (sum, count)) in ACTIVITIES.iter().zip(squares) {
            let deviation = (sum / count as f32).sqrt();
            assert!((deviation / activity.shaking - 1.0).abs() < 0.05, "{deviation} for {}", activity.shaking);
        }
        assert!((gravity / f64::from(events) - 9.81).abs() < 0.05);
        let share = f64::from(still) / f64::from(events);
        assert!((0.002..0.009).contains(&share), "{share}");
    }
}
