//! When event number n happens: rates that are constant, or change in repeating steps.

use std::time::Duration;

/// How the rate changes over time. The second rate is `factor` times the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RateShape {
    /// The first rate for ever.
    Constant,
    /// Half of the period the first rate, half of it the second.
    Square {
        /// The second rate as a multiple of the first.
        factor: f64,
        /// After how long it repeats.
        period: Duration,
    },
    /// From the first rate to the second and back along a cosine, in ten steps.
    Sine {
        /// The second rate as a multiple of the first.
        factor: f64,
        /// After how long it repeats.
        period: Duration,
    },
    /// Four fifths of the period the first rate, then a fifth the second.
    Bursty {
        /// The second rate as a multiple of the first.
        factor: f64,
        /// After how long it repeats.
        period: Duration,
    },
    /// The first rate, with one burst.
    Burst {
        /// The rate during the burst as a multiple of the first.
        factor: f64,
        /// When the burst begins.
        start: Duration,
        /// How long it lasts.
        length: Duration,
    },
}

/// cos(2 pi i / 10), rounded in the same way on every machine.
const COSINES: [f64; 10] = [
    1.0,
    0.809_016_994_374_947_5,
    0.309_016_994_374_947_45,
    -0.309_016_994_374_947_45,
    -0.809_016_994_374_947_5,
    -1.0,
    -0.809_016_994_374_947_5,
    -0.309_016_994_374_947_45,
    0.309_016_994_374_947_45,
    0.809_016_994_374_947_5,
];

/// The times of all events, relative to the first.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// The steps, one after the other; at least one.
    steps: Vec<Step>,
    /// After how many events the steps repeat; `None` if the last step lasts for ever.
    repeats_after: Option<Repeat>,
    /// Events wait for the next multiple of this time; 0 if they do not.
    burst_us: i64,
}

#[derive(Clone, Copy, Debug)]
struct Repeat {
    events: u64,
    time_us: i64,
}

/// A time in which events are equally far apart.
#[derive(Clone, Copy, Debug)]
struct Step {
    first_event: u64,
    start_us: i64,
    delay_us: f64,
}

impl Schedule {
    /// Makes a schedule with `rate` events per second, which is finite and above 0, changed as `shape` says.
    pub(super) fn new(rate: f64, shape: RateShape) -> Self {
        let micros = |duration: Duration| duration.as_micros() as i64;
        let mut lengths = Lengths::default();
        match shape {
            RateShape::Constant => {
                return Self { steps: vec![Step::from(0, 0, rate)], repeats_after: None, burst_us: 0 };
            }
            RateShape::Square { factor, period } => {
                lengths.push(micros(period) / 2, rate);
                lengths.push(micros(period) / 2, rate * factor);
            }
            RateShape::Sine { factor, period } => {
                let (middle, swing) = (rate * (1.0 + factor) / 2.0, rate * (1.0 - factor) / 2.0);
                COSINES.iter().for_each(|cosine| lengths.push(micros(period) / 10, middle + swing * cosine));
            }
            RateShape::Bursty { factor, period } => {
                lengths.push(micros(period) / 5 * 4, rate);
                lengths.push(micros(period) / 5, rate * factor);
            }
            RateShape::Burst { factor, start, length } => {
                lengths.push(micros(start), rate);
                lengths.push(micros(length), rate * factor);
                lengths.steps.push(Step::from(lengths.events, lengths.time_us, rate));
                return Self { steps: lengths.steps, repeats_after: None, burst_us: 0 };
            }
        }
        let repeat = Repeat { events: lengths.events.max(1), time_us: lengths.time_us };
        Self { steps: lengths.steps, repeats_after: Some(repeat), burst_us: 0 }
    }

    /// The same events in bursts: each comes at the end of its stretch of time.
    pub(super) fn in_bursts(self, burst: Duration) -> Self {
        Self { burst_us: burst.as_micros() as i64, ..self }
    }

    /// When event `number` happens, in microseconds after event 0.
    #[inline]
    pub(super) fn offset_us(&self, number: u64) -> i64 {
        let (number, base_us) = match self.repeats_after {
            None => (number, 0),
            Some(repeat) => (number % repeat.events, (number / repeat.events) as i64 * repeat.time_us),
        };
        let step = self.steps.iter().rev().find(|step| step.first_event <= number).unwrap_or(&self.steps[0]);
        let offset_us = base_us + step.start_us + ((number - step.first_event) as f64 * step.delay_us) as i64;
        match self.burst_us {
            0 => offset_us,
            burst_us => offset_us.saturating_add(burst_us - 1) / burst_us * burst_us,
        }
    }

    /// How many events happen until `offset_us`, including that moment.
    pub(super) fn events_until(&self, offset_us: i64) -> u64 {
        if offset_us < 0 {
            return 0;
        }
        // Times grow with numbers, so bisection finds the first later event; the estimate only limits the range.
        let mut high = 1u64;
        while high < u64::MAX / 2 && self.offset_us(high) <= offset_us {
            high *= 2;
        }
        let mut low = high / 2;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.offset_us(middle) <= offset_us { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// Steps of given lengths, and their sums.
#[derive(Default)]
struct Lengths {
    steps: Vec<Step>,
    events: u64,
    time_us: i64,
}

impl Lengths {
    fn push(&mut self, length_us: i64, rate: f64) {
        let events = (length_us as f64 * rate / 1e6) as u64;
        if events > 0 {
            self.steps.push(Step::from(self.events, self.time_us, rate));
        } else if self.steps.is_empty() {
            // The first step has no event: then event 0 is that of the next one.
            self.steps.push(Step::from(0, length_us, rate));
        }
        self.events += events;
        self.time_us += length_us;
    }
}

impl Step {
    fn from(first_event: u64, start_us: i64, rate: f64) -> Self {
        Self { first_event, start_us, delay_us: 1e6 / rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn shapes() -> [RateShape; 5] {
        [
            RateShape::Constant,
            RateShape::Square { factor: 3.0, period: MINUTE },
            RateShape::Sine { factor: 0.5, period: MINUTE },
            RateShape::Bursty { factor: 5.0, period: MINUTE },
            RateShape::Burst { factor: 5.0, start: Duration::from_secs(20), length: Duration::from_secs(10) },
        ]
    }

    #[test]
    fn times_never_go_back_and_their_inverse_fits() {
        for shape in shapes() {
            for rate in [0.3, 7.0, 1_000.0] {
                let schedule = Schedule::new(rate, shape);
                let mut before = 0;
                for number in 0..5_000 {
                    let offset_us = schedule.offset_us(number);
                    assert!(offset_us >= before, "{shape:?} at {rate}: event {number}");
                    before = offset_us;
                    let until = schedule.events_until(offset_us);
                    assert!(until > number, "{shape:?} at {rate}: event {number} of {until}");
                    assert!(schedule.offset_us(until) > offset_us);
                }
            }
        }
    }

    #[test]
    fn the_shapes_have_their_rates() {
        let in_second = |schedule: &Schedule, second: i64| {
            schedule.events_until((second + 1) * 1_000_000 - 1) - schedule.events_until(second * 1_000_000 - 1)
        };
        let rates = |shape, seconds: &[i64]| {
            let schedule = Schedule::new(100.0, shape);
            seconds.iter().map(|&second| in_second(&schedule, second)).collect::<Vec<_>>()
        };
        let [constant, square, sine, bursty, burst] = shapes();
        assert_eq!(rates(constant, &[0, 1_000]), [100, 100]);
        assert_eq!(rates(square, &[0, 29, 30, 59, 60, 90]), [100, 100, 300, 300, 100, 300]);
        assert_eq!(rates(bursty, &[0, 47, 48, 59, 60, 108]), [100, 100, 500, 500, 100, 500]);
        assert_eq!(rates(burst, &[0, 19, 20, 29, 30, 1_000]), [100, 100, 500, 500, 100, 100]);
        assert_eq!(rates(sine, &[0, 31, 62]), [100, 50, 100]);
    }

    #[test]
    fn bursts_have_the_events_of_the_time_before_them() {
        let schedule = Schedule::new(1_000.0, RateShape::Constant).in_bursts(Duration::from_millis(100));
        assert_eq!(
            [0, 1, 100, 101, 200].map(|number| schedule.offset_us(number)),
            [0, 100_000, 100_000, 200_000, 200_000]
        );
        assert_eq!([0, 99_999, 100_000, 250_000].map(|offset_us| schedule.events_until(offset_us)), [1, 1, 101, 201]);
    }

    #[test]
    fn a_constant_rate_is_a_product() {
        let schedule = Schedule::new(10_000.0, RateShape::Constant);
        assert_eq!(
            [0, 1, 10_000, 123_456_789].map(|number| schedule.offset_us(number)),
            [0, 100, 1_000_000, 12_345_678_900]
        );
    }
}
