//! When events are created: one Poisson process for each query, independent of each other, drawn as one process.
//!
//! The superposition of N Poisson processes of rate r is a Poisson process of rate N r, in which each event belongs to
//! a uniformly chosen process. The schedule is fixed before anything is sent and never waits for the receiver. An event
//! that is sent late keeps its intended time, so that a stalled receiver sees its stall in every latency (no
//! coordinated omission).

use std::time::Duration;

use crate::random::Random;

/// An event of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it is created, in microseconds since the start.
    pub offset_us: i64,
    /// The query it is for.
    pub query: u32,
}

/// A schedule: an iterator over its events in order of time.
#[derive(Clone, Debug)]
pub struct PoissonArrivals {
    random: Random,
    queries: u32,
    gap_us_mean: f64,
    now_us: f64,
    end_us: f64,
}

impl PoissonArrivals {
    /// Makes a schedule for queries `0..queries`, with `rate_per_query` events a second for each on average, for
    /// `duration`. Without queries, or with a rate that is not positive and finite, there are no events.
    pub fn new(queries: u32, rate_per_query: f64, duration: Duration, seed: u64) -> Self {
        let rate = f64::from(queries) * rate_per_query;
        let has_events = rate > 0.0 && rate.is_finite();
        Self {
            random: Random::new(seed),
            queries,
            gap_us_mean: if has_events { 1e6 / rate } else { 0.0 },
            now_us: 0.0,
            end_us: if has_events { duration.as_secs_f64() * 1e6 } else { 0.0 },
        }
    }
}

impl Iterator for PoissonArrivals {
    type Item = Arrival;

    #[inline]
    fn next(&mut self) -> Option<Arrival> {
        if self.now_us >= self.end_us {
            return None;
        }
        self.now_us += self.random.exponential(self.gap_us_mean);
        if self.now_us >= self.end_us {
            return None;
        }
        Some(Arrival { offset_us: self.now_us as i64, query: self.random.below(self.queries.into()) as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_of_each_query_are_exponential() {
        let arrivals: Vec<Arrival> = PoissonArrivals::new(50, 2.0, Duration::from_secs(2000), 61).collect();
        let count = arrivals.len() as f64;
        // 50 queries at 2 a second for 2000 s: 200,000 with a deviation of 447.
        assert!((count - 200_000.0).abs() < 2500.0, "{count}");
        assert!(arrivals.windows(2).all(|pair| pair[0].offset_us <= pair[1].offset_us));

        for query in [0, 17, 49] {
            let times: Vec<i64> = arrivals.iter().filter(|a| a.query == query).map(|a| a.offset_us).collect();
            let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            // The standard deviation of an exponential distribution is its mean, and a share of 1/e lies above the
            // mean.
            assert!((mean - 0.5).abs() < 0.04, "{mean}");
            assert!((variance.sqrt() - 0.5).abs() < 0.06, "{variance}");
            let above = gaps.iter().filter(|&&gap| gap > 0.5).count() as f64 / gaps.len() as f64;
            assert!((above - 0.368).abs() < 0.04, "{above}");
        }
    }

    #[test]
    fn the_rate_is_a_parameter() {
        for rate in [1.0, 10.0, 1000.0] {
            let count = PoissonArrivals::new(10, rate, Duration::from_secs(10), 62).count() as f64;
            assert!((count / (100.0 * rate) - 1.0).abs() < 0.35, "{count} at {rate}");
        }
    }

    #[test]
    fn nothing_comes_from_no_queries_or_no_rate() {
        for (queries, rate) in [(0, 1.0), (10, 0.0), (10, -1.0), (10, f64::NAN), (10, f64::INFINITY)] {
            assert_eq!(PoissonArrivals::new(queries, rate, Duration::from_secs(10), 1).next(), None);
        }
    }
}
