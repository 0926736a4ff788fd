//! A generator as a source: its schedule says which events are due, and its maker makes the rows.

use std::time::Duration;

use arrow::array::RecordBatch;
use rivulet_dataflow::{Polled, Refusals, Source, SourceError};

use super::schedule::Schedule;
use super::walk::{Part, Walk};

/// Rows that are made at once: enough for vectorised operators, and few enough to stay in the cache.
const ROWS_MAX: usize = 4_096;

/// The longest time between two polls of a generator, so that it soon notices if the clock was set.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The shortest time between two polls: a generator that is polled for each event would spend its time being polled.
const PAUSE_MIN: Duration = Duration::from_micros(500);

/// Makes the rows of events.
pub(super) trait Maker: Send {
    /// Makes the rows of these events, in this order.
    fn make(&mut self, numbers: &[u64]) -> Result<RecordBatch, SourceError>;
}

/// A partition of a generated stream.
pub(super) struct GeneratedSource<M> {
    walk: Walk,
    maker: M,
    /// When positions are due; without it, they are made as fast as they are taken.
    pace: Option<Pace>,
    numbers: Vec<u64>,
}

/// When positions are due.
pub(super) struct Pace {
    schedule: Schedule,
    /// When position 0 was due, in microseconds since the epoch; set by the first poll.
    started_us: Option<i64>,
}

impl Pace {
    pub(super) fn new(schedule: Schedule, started_us: Option<i64>) -> Self {
        Self { schedule, started_us }
    }
}

impl<M: Maker> GeneratedSource<M> {
    pub(super) fn new(walk: Walk, maker: M, pace: Option<Pace>) -> Self {
        Self { walk, maker, pace, numbers: Vec::with_capacity(ROWS_MAX) }
    }
}

impl<M: Maker> Source for GeneratedSource<M> {
    fn poll(&mut self, rows_max: usize, now_us: i64, _refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let rows_max = rows_max.clamp(1, ROWS_MAX);
        let Some(pace) = &mut self.pace else {
            if self.walk.fill(rows_max, u64::MAX, &mut self.numbers).is_none() {
                return Ok(Polled::End);
            }
            return Ok(Polled::Rows { columns: self.maker.make(&self.numbers)?, retracts: None, arrival_us: now_us });
        };
        let started_us = *pace.started_us.get_or_insert(now_us);
        let due = pace.schedule.events_until(now_us - started_us);
        match self.walk.fill(rows_max, due, &mut self.numbers) {
            // Their arrival time is that of the first event in the schedule, however late they are polled: a stalled
            // engine cannot hide its stall.
            Some(first) => {
                let arrival_us = started_us + pace.schedule.offset_us(first);
                Ok(Polled::Rows { columns: self.maker.make(&self.numbers)?, retracts: None, arrival_us })
            }
            None if self.walk.is_done() => Ok(Polled::End),
            None => {
                let wait_us = started_us + pace.schedule.offset_us(self.walk.next()) - now_us;
                let wait = Duration::from_micros(u64::try_from(wait_us).unwrap_or(0));
                Ok(Polled::Nothing(wait.clamp(PAUSE_MIN, PAUSE_MAX)))
            }
        }
    }

    fn position(&mut self) -> Option<String> {
        let Part { partition, partitions, .. } = self.walk.part();
        let (next, block_end) = self.walk.place();
        let started_us = self.pace.as_ref().and_then(|pace| pace.started_us);
        serde_json::to_string(&(partition, partitions, next, block_end, started_us)).ok()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        let (done, of) = self.walk.progress();
        (of < u64::MAX).then_some((done, of))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::UInt64Array;

    use super::super::schedule::RateShape;
    use super::super::walk::Pattern;
    use super::*;

    struct Numbers;

    impl Maker for Numbers {
        fn make(&mut self, numbers: &[u64]) -> Result<RecordBatch, SourceError> {
            let column = Arc::new(UInt64Array::from(numbers.to_vec()));
            RecordBatch::try_from_iter([("number", column as _)]).map_err(|error| SourceError(error.to_string()))
        }
    }

    fn source(events: u64, pattern: Pattern, rate: Option<f64>) -> GeneratedSource<Numbers> {
        let walk = Walk::new(Part { events, disorder: 1, block: 1_000, partition: 0, partitions: 1, pattern });
        let pace = rate.map(|rate| Pace::new(Schedule::new(rate, RateShape::Constant), None));
        GeneratedSource::new(walk, Numbers, pace)
    }

    #[test]
    fn a_paced_source_gives_what_is_due_with_the_time_at_which_it_was() {
        let mut source = source(30, Pattern::ALL, Some(1_000.0));
        let mut refusals = Refusals::new(0);
        let mut poll = |now_us| match source.poll(100, now_us, &mut refusals).unwrap() {
            Polled::Rows { columns, arrival_us, .. } => (columns.num_rows(), arrival_us),
            Polled::Nothing(wait) | Polled::Aside(wait) => (0, wait.as_micros() as i64),
            Polled::End => (0, -1),
        };
        assert_eq!(poll(5_000_000), (1, 5_000_000));
        assert_eq!(poll(5_000_100), (0, 900));
        assert_eq!(poll(5_000_900), (0, 500));
        assert_eq!(poll(5_010_000), (10, 5_001_000));
        assert_eq!(poll(6_000_000), (19, 5_011_000));
        assert_eq!(poll(6_000_001), (0, -1));
    }

    #[test]
    fn without_a_rate_it_gives_all_there_is() {
        let mut source = source(10_000, Pattern { cycle: 50, first: 4, count: 46 }, None);
        let mut refusals = Refusals::new(0);
        let mut rows = 0;
        while let Polled::Rows { columns, arrival_us, .. } = source.poll(usize::MAX, 7, &mut refusals).unwrap() {
            assert!(columns.num_rows() <= ROWS_MAX && arrival_us == 7);
            rows += columns.num_rows();
        }
        assert_eq!((rows, source.progress()), (9_200, Some((10_000, 10_000))));
    }
}
