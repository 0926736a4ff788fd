//! The sources of a task: the partitions that it polls, and their watermarks.
//!
//! What must hold: a row that is no further behind the newest row of its own partition than the lateness allows is
//! never late, however many partitions a task has and in whichever order they are read, as long as they are there from
//! the start and none becomes idle. A step costs the same for one partition and, nearly, for thousands.

use std::collections::BTreeSet;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use arrow::compute::is_not_null;
use arrow::datatypes::TimestampMicrosecondType;
use rivulet_dataflow::times::span;
use rivulet_dataflow::{Batch, PartitionState, Polled, Reason, Refusals, Refused, Slot, Source};

use super::idleness::SourceTime;

/// In which steps time follows the clock while all partitions are silent, microseconds. Each step wakes all tasks of
/// the query.
const CLOCK_STEP_US: i64 = 200_000;

/// A partition of a source, and the meaning of its rows' times.
pub struct Partition {
    /// Gives the rows.
    pub source: Box<dyn Source>,
    /// Which of its columns is the event time (`Timestamp(Microsecond)`); without one, the arrival time serves.
    pub event_time_column: Option<usize>,
    /// How far behind the newest row of the partition a row may be without being late, microseconds.
    pub lateness_us: i64,
    /// After how long a silence other partitions stop waiting for this one, microseconds; `None` for never. When all
    /// are silent for that long, time follows the clock.
    pub idle_timeout_us: Option<i64>,
    /// How far ahead of its arrival a row's time may be, microseconds; a row further ahead is refused. `None` for any
    /// time.
    pub future_limit_us: Option<i64>,
    /// The time of its newest row so far, microseconds since the epoch; `None` before the first.
    pub newest_us: Option<i64>,
}

impl Partition {
    /// A partition of another source with the same settings.
    fn beside(&self, source: Box<dyn Source>) -> Self {
        Self { source, newest_us: None, ..*self }
    }
}

/// A partition that never becomes idle, whose rows have no event time.
impl From<Box<dyn Source>> for Partition {
    fn from(source: Box<dyn Source>) -> Self {
        Self {
            source,
            event_time_column: None,
            lateness_us: 0,
            idle_timeout_us: None,
            future_limit_us: None,
            newest_us: None,
        }
    }
}

/// All partitions that a task reads.
pub(super) struct Reader {
    /// The partitions by index; one that has ended leaves `None`.
    partitions: Vec<Option<Open>>,
    /// Indices of ended partitions, to be used again by partitions found later.
    free: Vec<usize>,
    /// Partitions that may have rows, by their newest time: the first is furthest behind.
    ready: BTreeSet<(i64, usize)>,
    /// Partitions without rows at present, by the time at which they are polled again.
    waiting: BTreeSet<(i64, usize)>,
    /// The watermarks of partitions that are waited for, and of idle ones; `i64::MIN` before the first.
    waited_for: BTreeSet<(i64, usize)>,
    aside: BTreeSet<(i64, usize)>,
    /// The highest watermark so far.
    reached_us: Option<i64>,
    /// The largest lateness of a partition.
    lateness_us: i64,
    /// Since when no partition had rows, and how long that was when a partition was last found idle.
    silent_since_us: Option<i64>,
    silence_us: i64,
    /// The progress of ended partitions: done and in all; `None` if one of them did not know.
    ended: Option<(u64, u64)>,
    /// Zeros, of which batches take as many slots as they need: there is one query.
    zeros: ScalarBuffer<Slot>,
    /// How much event time the last batch covered, microseconds.
    batch_us: i64,
    /// The number of open partitions that are unbounded or have no event times.
    unaligned: usize,
    is_paused: bool,
}

struct Open {
    partition: Partition,
    /// The time of its newest row; `i64::MIN` before the first.
    newest_us: i64,
    /// Since when each poll has answered that there are no rows. Time without polls does not count as silence.
    silent_since_us: Option<i64>,
    is_aside: bool,
    /// Whether the partition itself asked not to be waited for, rather than being found silent.
    says_aside: bool,
    /// Whether the partition is bounded and has event times.
    is_aligned: bool,
}

/// The result of a poll.
pub(super) enum Read {
    /// Rows.
    Rows(Batch),
    /// No rows, but poll again at once: some were refused, or a partition has just ended.
    Again,
    /// No partition has rows before this time, microseconds since the epoch.
    Nothing(i64),
    /// All partitions have ended.
    End,
}

impl Reader {
    pub(super) fn new(partitions: Vec<Partition>) -> Self {
        let mut reader = Self {
            partitions: Vec::with_capacity(partitions.len()),
            free: Vec::new(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            waited_for: BTreeSet::new(),
            aside: BTreeSet::new(),
            reached_us: None,
            lateness_us: 0,
            silent_since_us: None,
            silence_us: 0,
            ended: Some((0, 0)),
            zeros: vec![].into(),
            batch_us: 0,
            unaligned: 0,
            is_paused: false,
        };
        partitions.into_iter().for_each(|partition| reader.add(partition));
        reader
    }

    /// Adds a partition. If its time is unknown, all partitions wait for its first row.
    fn add(&mut self, partition: Partition) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.partitions.push(None);
            self.partitions.len() - 1
        });
        let is_aligned = partition.event_time_column.is_some() && partition.source.is_bounded();
        self.unaligned += usize::from(!is_aligned);
        self.lateness_us = self.lateness_us.max(partition.lateness_us);
        let newest_us = partition.newest_us.unwrap_or(i64::MIN);
        let open = Open { partition, newest_us, silent_since_us: None, is_aside: false, says_aside: false, is_aligned };
        self.ready.insert((newest_us, place));
        self.waited_for.insert((open.watermark_us(), place));
        self.partitions[place] = Some(open);
    }

    /// Tells the partitions whether they are polled at present.
    pub(super) fn set_paused(&mut self, is_paused: bool) {
        if std::mem::replace(&mut self.is_paused, is_paused) != is_paused {
            self.end_silence();
            for open in self.partitions.iter_mut().flatten() {
                open.silent_since_us = None;
                open.partition.source.set_paused(is_paused);
            }
        }
    }

    /// Whether rows wait in a partition that nobody could read again.
    pub(super) fn holds_rows(&self) -> bool {
        self.partitions.iter().flatten().any(|open| open.partition.source.holds_rows())
    }

    /// Polls the partition that is furthest behind among those that may have rows, so that the times of all stay close
    /// together. `now_us` is the arrival time of rows; `steady_us` measures silence.
    pub(super) fn poll(
        &mut self,
        rows_max: usize,
        (now_us, steady_us): (i64, i64),
        refusals: &mut Refusals,
    ) -> Result<Read, String> {
        while let Some(&(until_us, place)) = self.waiting.first()
            && until_us <= now_us
        {
            self.waiting.pop_first();
            let newest_us = self.partitions[place].as_ref().map_or(i64::MIN, |open| open.newest_us);
            self.ready.insert((newest_us, place));
        }
        let Some(&(newest_us, place)) = self.ready.first() else {
            return Ok(self.waiting.first().map_or(Read::End, |&(until_us, _)| Read::Nothing(until_us)));
        };
        let open = self.partitions[place].as_mut().expect("who may have something is open");
        let polled = open.partition.source.poll(rows_max, now_us, refusals).map_err(|error| error.0)?;
        let found = open.partition.source.found().into_iter().map(|source| open.partition.beside(source));
        found.collect::<Vec<_>>().into_iter().for_each(|partition| self.add(partition));
        match polled {
            Polled::Rows { columns, .. } if columns.num_rows() == 0 => Ok(Read::Again),
            Polled::Rows { columns, retracts, arrival_us } => {
                self.take(place, (columns, retracts), arrival_us, refusals)
            }
            Polled::Nothing(wait) if wait.is_zero() => {
                self.partitions[place].as_mut().expect("it was asked").silent_since_us = None;
                self.end_silence();
                Ok(Read::Again)
            }
            Polled::Nothing(wait) | Polled::Aside(wait) => {
                let says_aside = matches!(polled, Polled::Aside(_));
                let open = self.partitions[place].as_mut().expect("it was asked");
                if std::mem::replace(&mut open.says_aside, says_aside) && !says_aside {
                    self.come_back(place);
                }
                let open = self.partitions[place].as_mut().expect("it was asked");
                let since_us = *open.silent_since_us.get_or_insert(steady_us);
                let timeout_us = open.partition.idle_timeout_us;
                let is_idle = timeout_us.is_some_and(|after| steady_us - since_us >= after);
                if says_aside || is_idle {
                    self.step_aside(place);
                }
                let all_since_us = *self.silent_since_us.get_or_insert(steady_us);
                if is_idle {
                    self.silence_us = (steady_us - all_since_us) / CLOCK_STEP_US * CLOCK_STEP_US;
                }
                let wait_us = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
                self.ready.remove(&(newest_us, place));
                self.waiting.insert((now_us.saturating_add(wait_us), place));
                Ok(Read::Again)
            }
            Polled::End => {
                self.ready.remove(&(newest_us, place));
                let ended = self.partitions[place].take().expect("it was asked");
                self.unaligned -= usize::from(!ended.is_aligned);
                self.waited_for.remove(&(ended.watermark_us(), place));
                self.aside.remove(&(ended.watermark_us(), place));
                let progress = ended.partition.source.progress();
                self.ended = self.ended.zip(progress).map(|((done, all), (more, of))| (done + more, all + of));
                self.free.push(place);
                Ok(Read::Again)
            }
        }
    }

    /// The time of the partition that is furthest behind, if all are bounded and have event times. `None` otherwise,
    /// and when no partition is waited for.
    pub(super) fn time_us(&self) -> Option<i64> {
        let &(lowest_us, place) = self.waited_for.first().filter(|_| self.unaligned == 0)?;
        let open = self.partitions[place].as_ref()?;
        Some(lowest_us.saturating_add(open.partition.lateness_us))
    }

    /// The largest lateness of a partition, microseconds.
    pub(super) fn lateness_us(&self) -> i64 {
        self.lateness_us
    }

    /// How much event time the last batch covered, microseconds.
    pub(super) fn batch_us(&self) -> i64 {
        self.batch_us
    }

    /// Takes rows of a partition, and sets its time to that of the newest.
    fn take(
        &mut self,
        place: usize,
        rows: (RecordBatch, Option<BooleanBuffer>),
        arrival_us: i64,
        refusals: &mut Refusals,
    ) -> Result<Read, String> {
        let open = self.partitions[place].as_mut().expect("rows come from what is open");
        open.silent_since_us = None;
        open.says_aside = false;
        (self.silent_since_us, self.silence_us) = (None, 0);
        let Some(batch) = open.to_batch(rows, arrival_us, &mut self.zeros, refusals)? else {
            return Ok(Read::Again);
        };
        let (before_us, watermark_before_us) = (open.newest_us, open.watermark_us());
        open.newest_us = batch.event_time_us.iter().copied().fold(before_us, i64::max);
        if std::mem::take(&mut open.is_aside) {
            self.aside.remove(&(watermark_before_us, place));
        } else {
            self.waited_for.remove(&(watermark_before_us, place));
        }
        self.waited_for.insert((open.watermark_us(), place));
        if before_us != i64::MIN {
            self.batch_us = open.newest_us.saturating_sub(before_us);
        }
        if open.newest_us != before_us {
            self.ready.remove(&(before_us, place));
            self.ready.insert((open.newest_us, place));
        }
        Ok(Read::Rows(batch))
    }

    /// Ends the silence of all: rows have come, or the partitions were not polled.
    fn end_silence(&mut self) {
        (self.silent_since_us, self.silence_us) = (None, 0);
    }

    /// Makes a partition idle: nothing waits for it until it has rows again.
    fn step_aside(&mut self, place: usize) {
        let Some(open) = self.partitions[place].as_mut().filter(|open| !open.is_aside) else { return };
        open.is_aside = true;
        self.waited_for.remove(&(open.watermark_us(), place));
        self.aside.insert((open.watermark_us(), place));
    }

    /// Ends the idleness of a partition: its rows are waited for, and its silence begins anew.
    fn come_back(&mut self, place: usize) {
        let Some(open) = self.partitions[place].as_mut().filter(|open| open.is_aside) else { return };
        (open.is_aside, open.silent_since_us) = (false, None);
        self.aside.remove(&(open.watermark_us(), place));
        self.waited_for.insert((open.watermark_us(), place));
    }

    /// How far the partitions have come, with the lateness: the one furthest behind of those that are waited for.
    pub(super) fn reached(&self) -> SourceTime {
        let time_us = |watermark_us: i64, silence_us: i64| match watermark_us {
            i64::MIN => i64::MIN,
            watermark_us => watermark_us.saturating_add(self.lateness_us).saturating_add(silence_us),
        };
        match (self.waited_for.first(), self.aside.last()) {
            (Some(&(lowest_us, _)), _) => SourceTime::Active(time_us(lowest_us, 0)),
            // If all are idle, nothing holds up the furthest one, and time follows the clock.
            (None, Some(&(furthest_us, _))) => SourceTime::Idle(time_us(furthest_us, self.silence_us)),
            (None, None) => SourceTime::Ended,
        }
    }

    /// The watermark of all partitions, if it has risen. If all are idle, it follows `others_us`, the time of other
    /// sources.
    pub(super) fn advanced(&mut self, others_us: Option<i64>) -> Option<i64> {
        let watermark_us = self.risen(others_us)?;
        self.reached_us = Some(watermark_us);
        self.reached_us
    }

    /// Whether the time of other sources raises the watermark of these, which are idle.
    pub(super) fn lags(&self, others_us: Option<i64>) -> bool {
        others_us.is_some() && self.risen(others_us).is_some()
    }

    fn risen(&self, others_us: Option<i64>) -> Option<i64> {
        let time_us = match self.reached() {
            SourceTime::Active(time_us) => time_us,
            SourceTime::Idle(time_us) => time_us.max(others_us.unwrap_or(i64::MIN)),
            SourceTime::Ended => return None,
        };
        let watermark_us = time_us.saturating_sub(self.lateness_us);
        let is_higher = self.reached_us.is_none_or(|reached_us| watermark_us > reached_us);
        (time_us != i64::MIN && is_higher).then_some(watermark_us)
    }

    /// The position of each open partition.
    pub(super) fn positions(&mut self) -> Vec<PartitionState> {
        let open = self.partitions.iter_mut().flatten();
        open.map(|open| PartitionState {
            position: open.partition.source.position(),
            newest_us: (open.newest_us != i64::MIN).then_some(open.newest_us),
        })
        .collect()
    }

    /// The checkpoint that has these positions is durable.
    pub(super) fn confirm(&mut self) {
        self.partitions.iter_mut().flatten().for_each(|open| open.partition.source.confirm());
    }

    /// Whether all open partitions are idle.
    pub(super) fn is_idle(&self) -> bool {
        self.waited_for.is_empty() && !self.aside.is_empty()
    }

    /// How much is read and how much there is, if every partition knows its end.
    pub(super) fn progress(&self) -> Option<(u64, u64)> {
        self.partitions.iter().flatten().try_fold(self.ended?, |(done, all), open| {
            let (more_done, more) = open.partition.source.progress()?;
            Some((done + more_done, all + more))
        })
    }
}

impl Open {
    /// Rows with earlier times are late; `i64::MIN` before the first row.
    fn watermark_us(&self) -> i64 {
        self.newest_us.saturating_sub(self.partition.lateness_us)
    }

    /// Turns rows, and the marks of those that retract others, into a batch with times; `None` if no row has a valid
    /// time.
    fn to_batch(
        &self,
        (columns, retracts): (RecordBatch, Option<BooleanBuffer>),
        arrival_us: i64,
        zeros: &mut ScalarBuffer<Slot>,
        refusals: &mut Refusals,
    ) -> Result<Option<Batch>, String> {
        let mut batch = self.batch_of(columns, arrival_us, zeros)?.with_retracts(retracts);
        if let Some(time) = self.partition.event_time_column
            && batch.column(time).null_count() > 0
        {
            refuse_without_time(&batch, time, refusals);
            let keep = is_not_null(batch.column(time)).map_err(|error| error.to_string())?;
            batch = batch.filter(&keep).map_err(|error| error.to_string())?;
        }
        if batch.is_empty() {
            return Ok(None);
        }
        refusals.note_times(None, &batch.event_time_us, arrival_us);
        let limit_us = self.partition.future_limit_us.unwrap_or(i64::MAX);
        let latest_us = arrival_us.saturating_add(limit_us);
        if batch.event_time_us.iter().all(|&time_us| time_us <= latest_us) {
            return Ok(Some(batch));
        }
        let keep: BooleanArray = batch.event_time_us.iter().map(|&time_us| Some(time_us <= latest_us)).collect();
        refuse_future(&batch, &keep, limit_us, refusals);
        let kept = batch.filter(&keep).map_err(|error| error.to_string())?;
        Ok((!kept.is_empty()).then_some(kept))
    }

    fn batch_of(&self, columns: RecordBatch, arrival_us: i64, zeros: &mut ScalarBuffer<Slot>) -> Result<Batch, String> {
        let rows = columns.num_rows();
        if zeros.len() < rows {
            *zeros = vec![0; rows.next_power_of_two()].into();
        }
        let arrivals: ScalarBuffer<i64> = vec![arrival_us; rows].into();
        let times = match self.partition.event_time_column.map(|time| times_of(columns.column(time))) {
            Some(times) => times?,
            None => arrivals.clone(),
        };
        Ok(Batch::new(zeros.slice(0, rows), times, arrivals, columns))
    }
}

fn times_of(column: &ArrayRef) -> Result<ScalarBuffer<i64>, String> {
    let times = column.as_primitive_opt::<TimestampMicrosecondType>();
    times.map(|times| times.values().clone()).ok_or_else(|| {
        format!("the event time column has the type {}, which is not a timestamp in microseconds", column.data_type())
    })
}

/// Refuses the rows without a time.
fn refuse_without_time(batch: &Batch, time: usize, refusals: &mut Refusals) {
    for row in (0..batch.rows()).filter(|&row| batch.column(time).is_null(row)) {
        let arrival_us = batch.arrival_us[row];
        refusals.refuse(0, Reason::Decode, arrival_us, || {
            let times = ScalarBuffer::from(vec![arrival_us]);
            let row = Batch { event_time_us: times, ..batch.slice(row, 1) };
            ("the event time is missing".to_owned(), Refused::Row(Box::new(row)))
        });
    }
}

/// Refuses the rows whose times are too far in the future.
fn refuse_future(batch: &Batch, keep: &BooleanArray, limit_us: i64, refusals: &mut Refusals) {
    for row in (0..batch.rows()).filter(|&row| !keep.value(row)) {
        refusals.refuse(0, Reason::Future, batch.arrival_us[row], || {
            let ahead_us = batch.event_time_us[row].saturating_sub(batch.arrival_us[row]);
            let detail = format!(
                "the event time is {} after the arrival, and {} are allowed\nhint: check the device's clock, or raise future_limit",
                span(ahead_us),
                span(limit_us)
            );
            (detail, Refused::Row(Box::new(batch.slice(row, 1))))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    use arrow::array::TimestampMicrosecondArray;
    use proptest::prelude::*;
    use rivulet_dataflow::SourceError;

    use super::*;

    /// A source that gives prepared answers, and new sources at the end.
    struct Told {
        answers: VecDeque<Polled>,
        found: Vec<Box<dyn Source>>,
    }

    impl Source for Told {
        fn poll(&mut self, _: usize, _: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
            Ok(self.answers.pop_front().unwrap_or(Polled::End))
        }

        fn found(&mut self) -> Vec<Box<dyn Source>> {
            if self.answers.is_empty() { std::mem::take(&mut self.found) } else { Vec::new() }
        }
    }

    fn rows(times: &[i64]) -> Polled {
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(times.to_vec()));
        Polled::Rows { columns: RecordBatch::try_from_iter([("ts", times)]).unwrap(), retracts: None, arrival_us: 0 }
    }

    fn told(answers: Vec<Polled>) -> Box<dyn Source> {
        Box::new(Told { answers: answers.into(), found: Vec::new() })
    }

    fn partition(source: Box<dyn Source>, lateness_us: i64) -> Partition {
        Partition { event_time_column: Some(0), lateness_us, ..Partition::from(source) }
    }

    /// All rows, each with the watermark in force when it came.
    fn drain(reader: &mut Reader, refusals: &mut Refusals) -> Vec<(i64, Option<i64>)> {
        let (mut rows, mut now_us) = (Vec::new(), 0);
        loop {
            let before_us = reader.reached_us;
            match reader.poll(9, (now_us, now_us), refusals).unwrap() {
                Read::Rows(batch) => rows.extend(batch.event_time_us.iter().map(|&time_us| (time_us, before_us))),
                Read::Again => {}
                Read::Nothing(until_us) => now_us = until_us,
                Read::End => return rows,
            }
            let advanced = reader.advanced(None);
            assert!(advanced.is_none_or(|after_us| before_us.is_none_or(|before_us| before_us < after_us)));
        }
    }

    proptest! {
        #[test]
        fn rows_within_the_lateness_of_their_partition_are_never_late(
            // For each partition and batch, how far its times lie beyond those of the batch before.
            partitions in prop::collection::vec((0_i64..1000, prop::collection::vec(
                prop::collection::vec((0_i64..20, 0_i64..=5), 0..4), 0..12)), 1..7),
        ) {
            let mut all = Vec::new();
            let sources = partitions.into_iter().map(|(begin, batches)| {
                let mut clock = begin;
                let answers = batches.into_iter().map(|batch| {
                    let times: Vec<i64> = batch.into_iter().map(|(step, behind)| { clock += step; clock - behind }).collect();
                    all.extend_from_slice(&times);
                    if times.is_empty() { Polled::Nothing(Duration::from_micros(2)) } else { rows(&times) }
                });
                partition(told(answers.collect()), 5)
            });
            let mut reader = Reader::new(sources.collect());
            let drained = drain(&mut reader, &mut Refusals::new(0));
            for &(time_us, watermark_us) in &drained {
                prop_assert!(watermark_us.is_none_or(|watermark_us| time_us >= watermark_us), "{time_us} at {watermark_us:?}");
            }
            let mut drained: Vec<i64> = drained.into_iter().map(|(time_us, _)| time_us).collect();
            drained.sort_unstable();
            all.sort_unstable();
            prop_assert_eq!(drained, all);
        }
    }

    #[test]
    fn who_is_furthest_behind_is_asked_first_and_counts() {
        let times = |begin: i64| (0..4).map(|step| rows(&[begin + 10 * step])).collect();
        let mut reader = Reader::new([0, 5, 100].map(|begin| partition(told(times(begin)), 0)).into());
        let drained: Vec<i64> =
            drain(&mut reader, &mut Refusals::new(0)).into_iter().map(|(time_us, _)| time_us).collect();
        // One batch of each, and then by their times.
        assert_eq!(drained, [0, 5, 100, 10, 15, 20, 25, 30, 35, 110, 120, 130]);
        assert_eq!((reader.reached_us, reader.progress()), (Some(130), None));
    }

    #[test]
    fn who_stands_aside_holds_nobody_up() {
        let aside = || Polled::Aside(Duration::from_micros(1000));
        let partitions = vec![
            partition(told(vec![aside(), aside(), rows(&[50])]), 0),
            partition(told((0..9).map(|step| rows(&[10 * step])).collect()), 0),
        ];
        let mut reader = Reader::new(partitions);
        let refusals = &mut Refusals::new(0);
        assert!(matches!(reader.poll(9, (0, 0), refusals).unwrap(), Read::Again));
        assert!(!reader.is_idle() && reader.advanced(None).is_none(), "the other is waited for");
        assert!(matches!(reader.poll(9, (0, 0), refusals).unwrap(), Read::Rows(_)));
        assert_eq!(reader.advanced(None), Some(0));
        drain(&mut reader, refusals);
        assert_eq!(reader.reached_us, Some(80));
    }

    #[test]
    fn who_stood_aside_is_waited_for_as_soon_as_something_is_expected_of_it() {
        let wait = |us| Duration::from_micros(us);
        let back = vec![Polled::Aside(wait(1)), Polled::Nothing(wait(1)), Polled::Nothing(wait(9)), rows(&[3, 4])];
        let told = |answers| partition(told(answers), 0);
        let mut reader = Reader::new(vec![told(back), told((0..9).map(|step| rows(&[10 * step])).collect())]);
        let refusals = &mut Refusals::new(0);
        assert!(matches!(reader.poll(9, (0, 0), refusals).unwrap(), Read::Again), "it stands aside");
        assert!(matches!(reader.poll(9, (0, 0), refusals).unwrap(), Read::Rows(_)));
        assert_eq!(reader.advanced(None), Some(0));
        assert!(
            matches!(reader.poll(9, (1, 1), refusals).unwrap(), Read::Again),
            "it is there again, and has nothing yet"
        );
        for _ in 0..8 {
            assert!(matches!(reader.poll(9, (1, 1), refusals).unwrap(), Read::Rows(_)));
            assert_eq!(reader.advanced(None), None, "its rows are waited for");
        }
    }

    #[test]
    fn only_who_was_asked_and_had_nothing_was_silent() {
        let wait = |us| Duration::from_micros(us);
        let answers = vec![
            Polled::Nothing(wait(1)),
            Polled::Nothing(wait(1)),
            // All its rows were refused.
            Polled::Nothing(wait(0)),
            Polled::Nothing(wait(1)),
            Polled::Nothing(wait(1)),
        ];
        let slow = Partition { idle_timeout_us: Some(10), ..partition(told(answers), 0) };
        let mut reader = Reader::new(vec![slow]);
        let refusals = &mut Refusals::new(0);
        let mut poll = |reader: &mut Reader, now_us| {
            assert!(matches!(reader.poll(9, (now_us, now_us), refusals).unwrap(), Read::Again));
            reader.is_idle()
        };
        assert!(!poll(&mut reader, 0));
        reader.set_paused(true);
        reader.set_paused(false);
        assert!(!poll(&mut reader, 20), "the pause was no silence");
        assert!(!poll(&mut reader, 25));
        assert!(!poll(&mut reader, 30), "rows that were refused are no silence either");
        assert!(poll(&mut reader, 40));
    }

    #[test]
    fn where_all_are_silent_time_goes_on_by_the_clock() {
        let silence = || (0..20).map(|_| Polled::Nothing(Duration::from_micros(1)));
        let answers = [rows(&[1_000_000])].into_iter().chain(silence()).chain([rows(&[1_500_000])]).collect();
        let silent = Partition { idle_timeout_us: Some(500_000), ..partition(told(answers), 300_000) };
        let mut reader = Reader::new(vec![silent]);
        let refusals = &mut Refusals::new(0);
        let mut at = |reader: &mut Reader, now_us| {
            reader.poll(9, (now_us, now_us), refusals).unwrap();
            reader.advanced(None);
            reader.reached_us
        };
        assert_eq!(at(&mut reader, 0), Some(700_000), "the newest row less the lateness");
        assert_eq!(at(&mut reader, 10), Some(700_000));
        assert_eq!(at(&mut reader, 450_000), Some(700_000), "not silent for long enough");
        assert_eq!(at(&mut reader, 500_010), Some(1_100_000), "by whole steps of the clock");
        assert_eq!(at(&mut reader, 550_000), Some(1_100_000));
        assert_eq!(at(&mut reader, 2_000_010), Some(2_700_000));
        reader.set_paused(true);
        reader.set_paused(false);
        assert_eq!(at(&mut reader, 9_000_000), Some(2_700_000), "a pause is no silence");
    }

    #[test]
    fn a_clock_that_is_set_forward_makes_no_silence() {
        let silence = || (0..9).map(|_| Polled::Nothing(Duration::from_micros(1)));
        let silent = Partition {
            idle_timeout_us: Some(500_000),
            ..partition(told([rows(&[1_000_000])].into_iter().chain(silence()).collect()), 300_000)
        };
        let mut reader = Reader::new(vec![silent]);
        let refusals = &mut Refusals::new(0);
        let mut at = |reader: &mut Reader, now_us, steady_us| {
            reader.poll(9, (now_us, steady_us), refusals).unwrap();
            reader.advanced(None);
            (reader.reached_us, reader.is_idle())
        };
        const YEAR_US: i64 = 31_536_000_000_000;
        assert_eq!(at(&mut reader, 0, 0), (Some(700_000), false));
        assert_eq!(at(&mut reader, 10, 10), (Some(700_000), false));
        assert_eq!(at(&mut reader, YEAR_US, 400_000), (Some(700_000), false));
        assert!(at(&mut reader, YEAR_US + 200_000, 600_000).1);
    }

    #[test]
    fn what_is_found_is_read_beside_the_others() {
        let found = || told(vec![rows(&[3, 4])]);
        let folder = Told { answers: [Polled::Aside(Duration::from_micros(9))].into(), found: vec![found(), found()] };
        let mut reader = Reader::new(vec![partition(Box::new(folder), 0)]);
        let drained = drain(&mut reader, &mut Refusals::new(0));
        assert_eq!(drained, [(3, None), (4, None), (3, None), (4, None)]);
        assert_eq!((reader.partitions.len(), reader.free.len()), (3, 3));
    }

    #[test]
    fn times_far_ahead_of_their_arrival_are_refused_and_not_believed() {
        let far =
            Partition { future_limit_us: Some(300), ..partition(told(vec![rows(&[1, 301, 300]), rows(&[2])]), 0) };
        let mut refusals = Refusals::new(9);
        let mut reader = Reader::new(vec![far]);
        let drained = drain(&mut reader, &mut refusals);
        assert_eq!(drained, [(1, None), (300, None), (2, Some(300))]);
        assert_eq!(refusals.counted(Reason::Future), 1);
        assert!(refusals.records()[0].detail.contains("hint: check the device's clock"));
    }
}
