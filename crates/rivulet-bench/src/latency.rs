//! Latencies as a histogram of fixed size, from one microsecond to a thousand seconds, with an error of at most one
//! percent.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is recorded exactly, in microseconds; longer ones count as this long.
const LATENCY_US_MAX: u64 = 1_000_000_000;

/// A histogram of latencies in microseconds. It takes about 25 KB, however many latencies it has, and can be merged.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    histogram: Histogram<u64>,
}

/// A summary of a histogram, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The number of recorded latencies; if it is 0, all else is 0.
    pub count: u64,
    /// Half of them were at most this long.
    pub us_p50: u64,
    /// 90 % were at most this long.
    pub us_p90: u64,
    /// 95 % were at most this long.
    pub us_p95: u64,
    /// 99 % were at most this long.
    pub us_p99: u64,
    /// 99.9 % were at most this long.
    pub us_p999: u64,
    /// The longest.
    pub us_max: u64,
    /// The mean.
    pub us_mean: f64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 2).expect("the bounds are valid");
        Self { histogram }
    }
}

impl LatencyHistogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one latency. Negative ones (of clocks that disagree) count as 0.
    #[inline]
    pub fn record_us(&mut self, latency_us: i64) {
        self.histogram.saturating_record(latency_us.max(0).unsigned_abs().min(LATENCY_US_MAX));
    }

    /// Adds the content of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("histograms have one shape");
    }

    /// The number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency that this percentage (0 to 100) of the recorded ones do not exceed, in microseconds; 0 if there is
    /// none.
    pub fn percentile_us(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent)
    }

    /// Percentiles, maximum and mean.
    pub fn summary(&self) -> LatencySummary {
        if self.histogram.is_empty() {
            return LatencySummary::default();
        }
        LatencySummary {
            count: self.count(),
            us_p50: self.percentile_us(50.0),
            us_p90: self.percentile_us(90.0),
            us_p95: self.percentile_us(95.0),
            us_p99: self.percentile_us(99.0),
            us_p999: self.percentile_us(99.9),
            us_max: self.histogram.max(),
            us_mean: self.histogram.mean(),
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.histogram.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_one_percent_over_the_whole_range() {
        for scale in [1.0, 1e3, 1e5] {
            let mut histogram = LatencyHistogram::new();
            (1..=1000).for_each(|step| histogram.record_us((f64::from(step) * scale) as i64));
            for percent in [50.0, 90.0, 99.0] {
                let exact = percent * 10.0 * scale;
                let found = histogram.percentile_us(percent) as f64;
                assert!((found / exact - 1.0).abs() < 0.016, "{found} instead of {exact}");
            }
        }
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut one, mut other, mut both) =
            (LatencyHistogram::new(), LatencyHistogram::new(), LatencyHistogram::new());
        for step in 0..1000_i64 {
            let (low, high) = (step * 3, step * step);
            one.record_us(low);
            other.record_us(high);
            both.record_us(low);
            both.record_us(high);
        }
        one.merge(&other);
        assert_eq!(one.summary(), both.summary());
        one.clear();
        assert_eq!(one.summary(), LatencySummary::default());
    }

    #[test]
    fn what_lies_outside_is_counted_at_the_ends() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_us(-5);
        histogram.record_us(i64::MAX);
        assert_eq!(histogram.count(), 2);
        assert!(histogram.summary().us_max >= LATENCY_US_MAX * 99 / 100);
        assert_eq!(histogram.percentile_us(50.0), 0);
    }
}
