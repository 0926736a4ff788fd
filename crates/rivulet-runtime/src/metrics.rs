//! The counters of a group, and the histogram of latencies.

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::TimestampMicrosecondType;
use rivulet_dataflow::{InputIndex, Reason};

/// Counters of one group since it was created.
#[derive(Clone, Debug, Default)]
pub struct GroupMetrics {
    /// Events taken from the inbox.
    pub events: u64,
    /// The same by input, with equal queries counted once; inputs behind the last one with events are left out.
    pub inputs: Vec<u64>,
    /// Batches processed.
    pub batches: u64,
    /// How often a worker ran a task of the group.
    pub activations: u64,
    /// How long the oldest event of each batch waited for a worker, in all, microseconds.
    pub waiting_us: u64,
    /// The largest batch, in events.
    pub batch_events_max: u64,
    /// Rows handed to the sink.
    pub results: u64,
    /// Rows refused, by [`Reason`].
    pub refused: [u64; Reason::ALL.len()],
    /// Time spent running, microseconds.
    pub busy_us: u64,
    /// From arrival in the engine to the end of processing, microseconds, for each event.
    pub processing_latency_us: Histogram,
    /// From the event's own time to the end of processing, microseconds, for events whose clock agrees with the
    /// engine's.
    pub event_latency_us: Histogram,
    /// Events whose own time differs from the engine's clock by more than an hour. They are processed normally but left
    /// out of the latency, where one device with a wrong clock would hide all others.
    pub clock_differs: u64,
}

/// The largest difference between an event's time and the engine's clock that counts for the latency.
const CLOCK_DIFFERENCE_MAX_US: u64 = 3_600_000_000;

impl GroupMetrics {
    /// Records the latency of processed events, from their arrival and, where they have any, from their own times.
    pub(crate) fn record_latencies(&mut self, arrival_us: &[i64], event_times: Option<&ArrayRef>, end_us: i64) {
        for &arrival_us in arrival_us {
            self.processing_latency_us.record(end_us - arrival_us);
        }
        if let Some(times) = event_times {
            for &time_us in times.as_primitive::<TimestampMicrosecondType>().values() {
                self.record_event_latency(end_us, time_us);
            }
        }
    }

    /// Records the latency of an event from its own time.
    pub(crate) fn record_event_latency(&mut self, now_us: i64, time_us: i64) {
        if now_us.abs_diff(time_us) <= CLOCK_DIFFERENCE_MAX_US {
            self.event_latency_us.record(now_us - time_us);
        } else {
            self.clock_differs += 1;
        }
    }

    /// Counts events by input: `inputs` has the input of each event, or is empty if all came by the first.
    pub(crate) fn count_inputs(&mut self, events: u64, inputs: &[InputIndex]) {
        if self.inputs.is_empty() {
            self.inputs.push(0);
        }
        if inputs.is_empty() {
            self.inputs[0] += events;
        }
        for &input in inputs {
            let input = usize::from(input);
            if input >= self.inputs.len() {
                self.inputs.resize(input + 1, 0);
            }
            self.inputs[input] += 1;
        }
    }

    /// Adds the counters of another group.
    pub fn merge(&mut self, other: &Self) {
        self.events += other.events;
        self.inputs.resize(self.inputs.len().max(other.inputs.len()), 0);
        for (mine, theirs) in self.inputs.iter_mut().zip(&other.inputs) {
            *mine += theirs;
        }
        self.batches += other.batches;
        self.activations += other.activations;
        self.waiting_us += other.waiting_us;
        self.clock_differs += other.clock_differs;
        self.batch_events_max = self.batch_events_max.max(other.batch_events_max);
        self.results += other.results;
        for (mine, theirs) in self.refused.iter_mut().zip(other.refused) {
            *mine += theirs;
        }
        self.busy_us += other.busy_us;
        self.processing_latency_us.merge(&other.processing_latency_us);
        self.event_latency_us.merge(&other.event_latency_us);
    }
}

/// Bits of the parts into which each doubling is divided: a value is known to 1/16, about 6 %.
const PARTS_BITS: u32 = 4;
const PARTS: u64 = 1 << PARTS_BITS;
/// Values from 2^36 us (19 hours) on share the last bucket.
const BUCKETS: usize = ((36 - PARTS_BITS) as usize + 1) << PARTS_BITS;

/// A histogram of microseconds whose buckets grow with the value. A record costs two instructions and one increment;
/// histograms are merged by adding. It holds the buckets from the lowest to the highest one ever hit, some hundred
/// bytes.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// The index of the first bucket in `counts`.
    first: usize,
    counts: Vec<u64>,
    count: u64,
    sum_us: u64,
    max_us: u64,
}

impl Histogram {
    /// Records one value; a negative one (clocks differ) counts as zero.
    #[inline]
    pub fn record(&mut self, value_us: i64) {
        let value = value_us.max(0) as u64;
        let bucket = Self::bucket(value);
        match self.counts.get_mut(bucket.wrapping_sub(self.first)) {
            Some(count) => *count += 1,
            None => *self.count_mut(bucket) += 1,
        }
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(value);
        self.max_us = self.max_us.max(value);
    }

    /// The count of a bucket; the bucket is added if it is missing.
    #[cold]
    fn count_mut(&mut self, bucket: usize) -> &mut u64 {
        if self.counts.is_empty() {
            self.first = bucket;
        }
        if bucket < self.first {
            self.counts.splice(0..0, std::iter::repeat_n(0, self.first - bucket));
            self.first = bucket;
        }
        let place = bucket - self.first;
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        &mut self.counts[place]
    }

    /// The buckets in ascending order, from the lowest to the highest one hit: upper bound and count.
    fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.counts.iter().enumerate().map(|(place, count)| (Self::bucket_max(self.first + place), *count))
    }

    fn bucket(value: u64) -> usize {
        if value < PARTS {
            return value as usize;
        }
        let octave = value.ilog2() - PARTS_BITS;
        let index = ((u64::from(octave) + 1) << PARTS_BITS) + ((value >> octave) & (PARTS - 1));
        (index as usize).min(BUCKETS - 1)
    }

    /// The largest value of a bucket.
    fn bucket_max(index: usize) -> u64 {
        let (octave, part) = ((index as u64) >> PARTS_BITS, index as u64 & (PARTS - 1));
        if octave == 0 { part } else { ((PARTS + part + 1) << (octave - 1)) - 1 }
    }

    /// The number of values recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of the values, microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// The largest value, microseconds.
    pub fn max_us(&self) -> u64 {
        self.max_us
    }

    /// The value at the fraction `quantile` (0 to 1) of all values, microseconds; at most 1/16 too high. 0 if nothing
    /// was recorded.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = ((quantile.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket_max, count) in self.buckets() {
            seen += count;
            if seen >= rank {
                return bucket_max.min(self.max_us);
            }
        }
        self.max_us
    }

    /// How many values are at most `bound_us`, to the precision of the buckets.
    pub fn count_up_to(&self, bound_us: u64) -> u64 {
        self.buckets().take_while(|(bucket_max, _)| *bucket_max <= bound_us).map(|(_, count)| count).sum()
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (place, &count) in other.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            *self.count_mut(other.first + place) += count;
        }
        self.count += other.count;
        self.sum_us += other.sum_us;
        self.max_us = self.max_us.max(other.max_us);
    }

    /// The values recorded since `earlier`, an older copy of this histogram. The maximum stays that of all values. If
    /// this is a sum of histograms, and one has left it since, the result is too small.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        for (place, &count) in earlier.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let left = difference.count_mut(earlier.first + place);
            *left = left.saturating_sub(count);
        }
        difference.count = difference.counts.iter().sum();
        difference.sum_us = difference.sum_us.saturating_sub(earlier.sum_us);
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_tight() {
        let mut last = None;
        for value in (0..200_000u64).chain([1 << 30, (1 << 35) + 12_345]) {
            let bucket = Histogram::bucket(value);
            assert!(Histogram::bucket_max(bucket) >= value);
            assert!(Histogram::bucket_max(bucket) <= value + value / 16 + 1, "{value}");
            if let Some((last_value, last_bucket)) = last
                && value == last_value + 1
            {
                assert!(bucket == last_bucket || bucket == last_bucket + 1);
            }
            last = Some((value, bucket));
        }
    }

    #[test]
    fn quantiles_and_merge() {
        let (mut low, mut high) = (Histogram::default(), Histogram::default());
        (1..=900).for_each(|_| low.record(100));
        (1..=100).for_each(|_| high.record(1_000_000));
        high.record(-5);
        low.merge(&high);
        assert_eq!(low.count(), 1001);
        assert!((100..=106).contains(&low.quantile_us(0.5)));
        assert_eq!(low.quantile_us(0.99), 1_000_000);
        assert_eq!(low.quantile_us(0.0), 0);
        assert_eq!(Histogram::default().quantile_us(0.5), 0);
        let difference = low.since(&high);
        assert_eq!((difference.count(), difference.quantile_us(1.0)), (900, 103));
        assert_eq!(difference.count_up_to(1000), 900);
    }

    #[test]
    fn huge_values_share_the_last_bucket() {
        let mut histogram = Histogram::default();
        histogram.record(i64::MAX);
        assert_eq!(histogram.quantile_us(0.5), Histogram::bucket_max(BUCKETS - 1));
    }
}
