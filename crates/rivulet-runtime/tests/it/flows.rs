//! Big queries as parallel tasks: results do not depend on how many there are, nothing grows, nothing is lost, errors
//! end them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt16Array, UInt32Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use parking_lot::Mutex;
use rivulet_dataflow::stage::sink_instances;
use rivulet_dataflow::{
    Address, Batch, Clock, Context, Dataflow, Description, EdgeKind, Element, KeyHash, ManualClock, Operator,
    OperatorError, OperatorFactory, Polled, Reason, Refusals, Sink, SinkError, Source, SourceError, StateError,
    StateFrame, StateSelection, Work, hash_keys,
};
use rivulet_runtime::{Budget, Flow, FlowLimits, FlowParts, Numa, Partition, Topology, WorkerSettings, Workers};

/// A deadline for what is over in milliseconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Goes on evenly from a fixed moment.
pub(crate) struct RunningClock(pub(crate) Instant);

impl Clock for RunningClock {
    fn now_us(&self) -> i64 {
        self.steady_us() + 1_700_000_000_000_000
    }

    fn steady_us(&self) -> i64 {
        self.0.elapsed().as_micros() as i64
    }
}

pub(crate) fn workers(threads: usize) -> Workers {
    let settings = WorkerSettings { threads, ..WorkerSettings::default() };
    Workers::start(settings, Arc::new(RunningClock(Instant::now()))).unwrap()
}

pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("key", DataType::Int64, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Microsecond, None), false),
    ]))
}

/// Rows `first..first + rows` of a stream: the key is the number modulo 100, the time the number.
pub(crate) fn rows(first: i64, rows: i64) -> RecordBatch {
    let numbers = first..first + rows;
    let keys: Int64Array = numbers.clone().map(|number| number % 100).collect();
    RecordBatch::try_new(schema(), vec![Arc::new(keys), Arc::new(TimestampMicrosecondArray::from_iter_values(numbers))])
        .unwrap()
}

/// Gives rows `next..end`, then ends, fails, or says that it has nothing any more.
pub(crate) struct Numbers {
    pub(crate) next: i64,
    pub(crate) end: i64,
    pub(crate) then: Then,
    pub(crate) polled: Arc<AtomicUsize>,
}

#[derive(Clone, Copy)]
pub(crate) enum Then {
    End,
    Fail,
    Silence,
}

impl Source for Numbers {
    fn poll(&mut self, rows_max: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        let count = (self.end - self.next).min(rows_max as i64);
        if count == 0 {
            return match self.then {
                Then::End => Ok(Polled::End),
                Then::Fail => Err(SourceError("the device is gone\nhint: look for it".into())),
                Then::Silence => Ok(Polled::Nothing(Duration::from_millis(1))),
            };
        }
        self.polled.fetch_add(count as usize, Ordering::Relaxed);
        let columns = rows(self.next, count);
        self.next += count;
        Ok(Polled::Rows { columns, retracts: None, arrival_us: now_us })
    }

    fn position(&mut self) -> Option<String> {
        Some(format!("{} {}", self.next, self.end))
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.next as u64, self.end as u64))
    }
}

pub(crate) fn numbers(range: std::ops::Range<i64>, then: Then) -> Partition {
    let source = Numbers { next: range.start, end: range.end, then, polled: Arc::default() };
    let source: Box<dyn Source> = Box::new(source);
    Partition { event_time_column: Some(1), idle_timeout_us: Some(20_000), ..Partition::from(source) }
}

/// Counts rows by key, and emits key and count at the end, or when a watermark reaches `emits_at_us`.
#[derive(Clone)]
pub(crate) struct CountByKey {
    pub(crate) emits_at_us: i64,
}

impl OperatorFactory for CountByKey {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(Counting { counts: BTreeMap::new(), emits_at_us: self.emits_at_us, watermark_us: i64::MIN })
    }

    fn describe(&self) -> Description {
        Description { operator: "count by key".into(), ..Description::default() }
    }

    fn state(&self) -> Option<Address> {
        Some(Address::of("counting"))
    }
}

pub(crate) struct Counting {
    counts: BTreeMap<i64, i64>,
    emits_at_us: i64,
    watermark_us: i64,
}

impl Operator for Counting {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => {
                for (row, &key) in batch.column(0).as_primitive::<Int64Type>().values().iter().enumerate() {
                    let time_us = batch.event_time_us[row];
                    assert!(time_us >= self.watermark_us, "{time_us} overtakes the watermark {}", self.watermark_us);
                    *self.counts.entry(key).or_default() += 1;
                }
            }
            Element::Watermark(watermark_us) => {
                assert!(watermark_us > self.watermark_us, "time goes on");
                self.watermark_us = watermark_us;
                if watermark_us >= self.emits_at_us {
                    self.emit(context);
                }
            }
            Element::End => self.emit(context),
            _ => {}
        }
        Ok(())
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        let hashes: Vec<KeyHash> = {
            let keys: ArrayRef = Arc::new(self.counts.keys().copied().collect::<Int64Array>());
            let mut hashes = Vec::new();
            hash_keys(&[keys], self.counts.len(), &mut hashes)?;
            hashes.into_iter().map(KeyHash::of_hash).collect()
        };
        let schema = Schema::new(vec![
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
            Field::new("key", DataType::Int64, false),
            Field::new("count", DataType::Int64, false),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from_value(0, hashes.len())),
            Arc::new(hashes.iter().map(|hash| hash.bits()).collect::<UInt16Array>()),
            Arc::new(self.counts.keys().copied().collect::<Int64Array>()),
            Arc::new(self.counts.values().copied().collect::<Int64Array>()),
        ];
        StateFrame::new("counting", 1, RecordBatch::try_new(Arc::new(schema), columns)?).select(selection).map(Some)
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        frame.expect("counting", 1)?;
        let values = |column: usize| frame.rows.column(column).as_primitive::<Int64Type>().values().to_vec();
        self.counts = values(2).into_iter().zip(values(3)).collect();
        Ok(())
    }
}

impl Counting {
    fn emit(&mut self, context: &mut Context<'_>) {
        let counts = std::mem::take(&mut self.counts);
        let rows = counts.len();
        let keys: Int64Array = counts.keys().copied().collect();
        let values = TimestampMicrosecondArray::from_iter_values(counts.values().copied());
        let columns = RecordBatch::try_new(schema(), vec![Arc::new(keys), Arc::new(values)]).unwrap();
        // They are of the time at which they were due, as those of a window, however far the watermark has leapt.
        let due_us = self.watermark_us.clamp(0, self.emits_at_us.max(0));
        let (times, arrivals) = (vec![due_us; rows], vec![context.now_us; rows]);
        context.emit(Batch::new(vec![0; rows].into(), times.into(), arrivals.into(), columns));
    }
}

/// Collects rows; has room only as long as `open` says so.
#[derive(Clone, Default)]
pub(crate) struct Collected {
    pub(crate) rows: Arc<Mutex<Vec<(i64, i64)>>>,
    pub(crate) finished: Arc<AtomicUsize>,
    pub(crate) closed: Arc<AtomicBool>,
    pub(crate) fails: bool,
}

impl Sink for Collected {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if self.fails {
            return Err(SinkError("the disk is full".into()));
        }
        let (keys, values) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1));
        let values = values.as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
        self.rows.lock().extend(keys.values().iter().copied().zip(values.values().iter().copied()));
        Ok(())
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn has_room(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }
}

/// Sources, counted by key, to a sink.
pub(crate) fn counting(sources: Vec<Partition>, parallelism: usize, sink: &Collected, emits_at_us: i64) -> FlowParts {
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let count = dataflow.then(source, EdgeKind::Hash(vec![0]), Arc::new(CountByKey { emits_at_us }), schema());
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(count, end, 0, EdgeKind::Forward);
    parts(dataflow, vec![sources], parallelism, sink)
}

pub(crate) fn parts(
    dataflow: Dataflow,
    sources: Vec<Vec<Partition>>,
    parallelism: usize,
    sink: &Collected,
) -> FlowParts {
    let partitions: Vec<usize> = sources.iter().map(Vec::len).collect();
    let sinks = sink_instances(&dataflow, &partitions, parallelism)
        .into_iter()
        .map(|instances| (0..instances).map(|_| Box::new(sink.clone()) as Box<dyn Sink>).collect());
    FlowParts {
        name: "test".into(),
        sinks: sinks.collect(),
        dataflow,
        sources,
        parallelism,
        limits: FlowLimits { rows_max: 4_000, bytes_max: 1 << 20, batch_rows: 1_000 },
        letters: None,
        tap: None,
        restored: None,
    }
}

pub(crate) fn finish(flow: &Flow) {
    flow.wait(PATIENCE).expect("it comes to its end").unwrap();
}

#[test]
fn results_are_the_same_at_any_parallelism() {
    for (threads, parallelism, partitions) in [(1, 1, 1), (2, 2, 2), (2, 4, 3), (3, 3, 1)] {
        let workers = workers(threads);
        let sink = Collected::default();
        let share = 90_000 / partitions;
        let sources = (0..partitions).map(|part| numbers(part * share..(part + 1) * share, Then::End)).collect();
        let flow = workers.start_flow(counting(sources, parallelism, &sink, i64::MAX)).unwrap();
        finish(&flow);
        let mut rows = sink.rows.lock().clone();
        rows.sort_unstable();
        assert_eq!(rows, (0..100).map(|key| (key, 900)).collect::<Vec<_>>(), "parallelism {parallelism}");
        let report = flow.report();
        assert_eq!((report.rows_in, report.rows_out), (90_000, 100));
        assert_eq!(sink.finished.load(Ordering::Relaxed), parallelism, "each instance of the sink is finished once");
        let counted: u64 = report.tasks.iter().flat_map(|task| &task.operators).map(|one| one.rows_in).sum();
        assert_eq!(counted, 90_000);
        workers.stop();
    }
}

#[test]
fn two_readers_of_one_stream_see_all_of_it_and_come_together_again() {
    let workers = workers(2);
    let sink = Collected::default();
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let counts: [_; 2] = [0, 1].map(|_| {
        dataflow.then(source, EdgeKind::Hash(vec![0]), Arc::new(CountByKey { emits_at_us: i64::MAX }), schema())
    });
    let all = dataflow.add(Work::Operator(Arc::new(CountByKey { emits_at_us: i64::MAX })), schema());
    counts.iter().for_each(|&count| dataflow.connect(count, all, 0, EdgeKind::Gather));
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(all, end, 0, EdgeKind::Forward);
    let flow = workers
        .start_flow(parts(dataflow, vec![vec![numbers(0..50_000, Then::End), numbers(0..50_000, Then::End)]], 2, &sink))
        .unwrap();
    finish(&flow);
    // Each key comes once from each of the two.
    assert_eq!(*sink.rows.lock(), (0..100).map(|key| (key, 2)).collect::<Vec<_>>());
    workers.stop();
}

#[test]
fn every_instance_gets_all_rows_of_a_broadcast() {
    for (parallelism, partitions) in [(1, 1), (2, 1), (2, 2), (3, 2), (2, 4)] {
        let workers = workers(2);
        let sink = Collected::default();
        let mut dataflow = Dataflow::default();
        let source = dataflow.add(Work::Source(0), schema());
        let count = Arc::new(CountByKey { emits_at_us: i64::MAX });
        let counted = dataflow.then(source, EdgeKind::Broadcast, count, schema());
        let end = dataflow.add(Work::Sink(0), schema());
        dataflow.connect(counted, end, 0, EdgeKind::Forward);
        let share = 80_000 / partitions;
        let sources = (0..partitions).map(|part| numbers(part * share..(part + 1) * share, Then::End)).collect();
        let flow = workers.start_flow(parts(dataflow, vec![sources], parallelism, &sink)).unwrap();
        finish(&flow);
        let mut rows = sink.rows.lock().clone();
        rows.sort_unstable();
        let expected: Vec<(i64, i64)> = (0..100).flat_map(|key| vec![(key, 800); parallelism]).collect();
        assert_eq!(rows, expected, "parallelism {parallelism}, {partitions} partitions");
        workers.stop();
    }
}

/// Rows `spacing_us` apart up to `end_us`, which notes by how many of its batches it was ahead of another when it was
/// asked.
struct Spaced {
    spacing_us: i64,
    next_us: i64,
    end_us: i64,
    place: usize,
    reached_us: Arc<[AtomicI64; 2]>,
    batches_ahead_max: Arc<AtomicI64>,
}

impl Source for Spaced {
    fn poll(&mut self, rows_max: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        let batch_us = self.spacing_us * rows_max as i64;
        let other_us = self.reached_us[1 - self.place].load(Ordering::SeqCst);
        if other_us != i64::MAX && self.next_us > batch_us {
            self.batches_ahead_max.fetch_max((self.next_us - other_us) / batch_us, Ordering::SeqCst);
        }
        if self.next_us >= self.end_us {
            self.reached_us[self.place].store(i64::MAX, Ordering::SeqCst);
            return Ok(Polled::End);
        }
        let times = (0..rows_max as i64).map(|row| self.next_us + row * self.spacing_us);
        let times = TimestampMicrosecondArray::from_iter_values(times);
        let keys = Int64Array::from_value(0, rows_max);
        self.next_us += batch_us;
        self.reached_us[self.place].store(self.next_us, Ordering::SeqCst);
        let columns = RecordBatch::try_new(schema(), vec![Arc::new(keys), Arc::new(times)]).unwrap();
        Ok(Polled::Rows { columns, retracts: None, arrival_us: now_us })
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.next_us as u64, self.end_us as u64))
    }
}

#[test]
fn sources_with_an_end_stay_near_each_other_in_time() {
    for threads in [1, 2] {
        let workers = workers(threads);
        let sink = Collected::default();
        let reached_us = Arc::new([AtomicI64::new(0), AtomicI64::new(0)]);
        let ahead: [Arc<AtomicI64>; 2] = Default::default();
        // 60 batches of the one cover as much time as 3,000 of the other.
        let sources = [100_000, 2_000].iter().zip(&ahead).enumerate().map(|(place, (&spacing_us, ahead))| {
            let source = Spaced {
                spacing_us,
                next_us: 0,
                end_us: 6_000_000_000,
                place,
                reached_us: reached_us.clone(),
                batches_ahead_max: ahead.clone(),
            };
            let source: Box<dyn Source> = Box::new(source);
            let event_time_column = Some(1);
            vec![Partition {
                source,
                event_time_column,
                lateness_us: 0,
                idle_timeout_us: None,
                future_limit_us: None,
                newest_us: None,
            }]
        });
        let mut dataflow = Dataflow::default();
        let streams = [0, 1].map(|source| dataflow.add(Work::Source(source), schema()));
        let all = dataflow.add(Work::Operator(Arc::new(CountByKey { emits_at_us: i64::MAX })), schema());
        streams.iter().for_each(|&stream| dataflow.connect(stream, all, 0, EdgeKind::Gather));
        let end = dataflow.add(Work::Sink(0), schema());
        dataflow.connect(all, end, 0, EdgeKind::Forward);
        let flow = workers.start_flow(parts(dataflow, sources.collect(), 1, &sink)).unwrap();
        finish(&flow);
        assert_eq!(*sink.rows.lock(), [(0, 3_060_000)]);
        let ahead = ahead.map(|ahead| ahead.load(Ordering::SeqCst));
        assert!(ahead[0] <= 6, "with {threads} threads the sparse source was {} batches ahead", ahead[0]);
        assert!(ahead[1] <= 6, "with {threads} threads the dense source was {} batches ahead", ahead[1]);
        workers.stop();
    }
}

#[test]
fn a_sink_without_room_stops_the_source_and_nothing_is_lost() {
    let workers = workers(2);
    let sink = Collected::default();
    sink.closed.store(true, Ordering::Release);
    let polled = Arc::<AtomicUsize>::default();
    let source = Numbers { next: 0, end: 200_000, then: Then::End, polled: polled.clone() };
    let partition = Partition { event_time_column: Some(1), ..Partition::from(Box::new(source) as Box<dyn Source>) };
    let mut dataflow = Dataflow::default();
    let node = dataflow.add(Work::Source(0), schema());
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(node, end, 0, EdgeKind::Hash(vec![0]));
    let flow = workers.start_flow(parts(dataflow, vec![vec![partition]], 2, &sink)).unwrap();
    assert!(flow.wait(Duration::from_millis(300)).is_none(), "it waits");
    let stopped_at = polled.load(Ordering::Relaxed);
    // Two inboxes of 4,000 rows, and what was under way.
    assert!((4_000..=11_000).contains(&stopped_at), "{stopped_at} rows were read");
    assert!(flow.report().tasks.iter().all(|task| task.waiting_rows_max <= 6_000), "{:?}", flow.report().tasks);
    sink.closed.store(false, Ordering::Release);
    finish(&flow);
    let mut rows: Vec<i64> = sink.rows.lock().iter().map(|row| row.1).collect();
    rows.sort_unstable();
    assert!(rows.iter().copied().eq(0..200_000));
    workers.stop();
}

#[test]
fn a_source_or_sink_that_fails_ends_the_query_with_its_words() {
    let workers = workers(2);
    let sink = Collected::default();
    let flow = workers.start_flow(counting(vec![numbers(0..5_000, Then::Fail)], 2, &sink, i64::MAX)).unwrap();
    let error = flow.wait(PATIENCE).unwrap().unwrap_err();
    assert!(error.to_string().contains("the device is gone\nhint:"), "{error}");
    assert_eq!(sink.finished.load(Ordering::Relaxed), 0, "nothing is made final");
    let sink = Collected { fails: true, ..Collected::default() };
    let flow = workers.start_flow(counting(vec![numbers(0..5_000, Then::End)], 2, &sink, i64::MAX)).unwrap();
    assert_eq!(flow.wait(PATIENCE).unwrap().unwrap_err().to_string(), "the disk is full");
    workers.stop();
}

#[test]
fn a_silent_partition_steps_aside() {
    let workers = workers(2);
    let sink = Collected::default();
    let sources = vec![numbers(0..0, Then::Silence), numbers(0..1_000, Then::Silence)];
    let flow = workers.start_flow(counting(sources, 2, &sink, 999)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while sink.rows.lock().len() < 100 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(sink.rows.lock().len(), 100, "the watermark of the other one counts");
    flow.stop(true);
    finish(&flow);
    workers.stop();
}

/// Holds back rows until their pane of 1,000 has passed, the end, or silence, and gives them its last time, as who
/// counts beforehand does.
struct Holding(Vec<Batch>);

impl Operator for Holding {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) => self.0.push(batch),
            Element::Watermark(watermark_us) if watermark_us < 999 => {}
            _ => {
                for mut batch in self.0.drain(..) {
                    let last_us = |time_us: &i64| time_us - time_us % 1_000 + 999;
                    batch.event_time_us = batch.event_time_us.iter().map(last_us).collect();
                    context.emit(batch);
                }
            }
        }
        Ok(())
    }
}

struct Holds;

impl OperatorFactory for Holds {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(Holding(Vec::new()))
    }

    fn describe(&self) -> Description {
        Description { operator: "hold".into(), ..Description::default() }
    }

    fn state(&self) -> Option<Address> {
        Some(Address::of("holding"))
    }
}

#[test]
fn what_is_held_back_before_a_silence_is_not_left_behind() {
    let workers = workers(2);
    let sink = Collected::default();
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let holds = dataflow.then(source, EdgeKind::Forward, Arc::new(Holds), schema());
    let counts = Arc::new(CountByKey { emits_at_us: 1_999 });
    let count = dataflow.then(holds, EdgeKind::Hash(vec![0]), counts, schema());
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(count, end, 0, EdgeKind::Forward);
    // The first one falls silent before its pane is over; the other one goes on, and its watermark counts then.
    let sources = vec![numbers(0..500, Then::Silence), numbers(0..2_000, Then::Silence)];
    let flow = workers.start_flow(parts(dataflow, vec![sources], 2, &sink)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while sink.rows.lock().len() < 100 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let counted: i64 = sink.rows.lock().iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 2_500);
    flow.stop(true);
    finish(&flow);
    workers.stop();
}

#[test]
fn who_stops_a_query_says_what_becomes_of_what_is_open() {
    let workers = workers(2);
    for drains in [true, false] {
        let sink = Collected::default();
        let flow = workers.start_flow(counting(vec![numbers(0..1_000, Then::Silence)], 2, &sink, i64::MAX)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while flow.report().rows_in < 1_000 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(flow.report().progress, Some((1_000, 1_000)));
        flow.stop(drains);
        finish(&flow);
        assert_eq!(sink.rows.lock().len(), if drains { 100 } else { 0 });
        assert_eq!(sink.finished.load(Ordering::Relaxed), 2);
    }
    workers.stop();
}

/// Panics on the first row.
struct Broken;

impl Operator for Broken {
    fn process(&mut self, element: Element, _: &mut Context<'_>) -> Result<(), OperatorError> {
        assert!(!matches!(element, Element::Batch(_)), "no rows, please");
        Ok(())
    }
}

struct BreaksDown;

impl OperatorFactory for BreaksDown {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(Broken)
    }

    fn describe(&self) -> Description {
        Description::default()
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

#[test]
fn an_operator_that_panics_ends_its_query_and_no_other() {
    let workers = workers(2);
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let broken = dataflow.then(source, EdgeKind::Forward, Arc::new(BreaksDown), schema());
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(broken, end, 0, EdgeKind::Forward);
    let (sink, other_sink) = (Collected::default(), Collected::default());
    let flow = workers.start_flow(parts(dataflow, vec![vec![numbers(0..10, Then::End)]], 1, &sink)).unwrap();
    let other = workers.start_flow(counting(vec![numbers(0..10_000, Then::End)], 2, &other_sink, i64::MAX)).unwrap();
    let error = flow.wait(PATIENCE).unwrap().unwrap_err().to_string();
    assert!(error.contains("defect") && error.contains("no rows, please"), "{error}");
    finish(&other);
    assert_eq!(other_sink.rows.lock().len(), 100);
    assert_eq!(other.report().refused[Reason::Internal as usize], 0);
    workers.stop();
}

#[test]
fn a_paused_flow_asks_for_nothing_and_goes_on_where_it_was() {
    let workers = workers(2);
    let sink = Collected::default();
    let polled: Arc<AtomicUsize> = Arc::default();
    let source = || {
        let source = Numbers { next: 0, end: i64::MAX, then: Then::End, polled: polled.clone() };
        Partition { event_time_column: Some(1), ..Partition::from(Box::new(source) as Box<dyn Source>) }
    };
    let flow = workers.start_flow(counting(vec![source(), source()], 2, &sink, i64::MAX)).unwrap();
    for _ in 0..20 {
        let wait_for_more = |before: usize| {
            let deadline = Instant::now() + PATIENCE;
            while polled.load(Ordering::Relaxed) == before {
                assert!(Instant::now() < deadline, "it does not go on");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for_more(polled.load(Ordering::Relaxed));
        flow.pause();
        assert!(flow.is_paused());
        // What is under way comes to its end; from then on nothing happens.
        let deadline = Instant::now() + PATIENCE;
        let mut before = polled.load(Ordering::Relaxed);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = polled.load(Ordering::Relaxed);
            if now == before {
                break;
            }
            assert!(Instant::now() < deadline, "it is still asked");
            before = now;
        }
        flow.resume();
        wait_for_more(before);
    }
    flow.pause();
    flow.stop(true);
    finish(&flow);
    let rows: i64 = sink.rows.lock().iter().map(|(_, count)| count).sum();
    assert_eq!(
        rows,
        polled.load(Ordering::Relaxed) as i64,
        "a flow that is paused can be stopped, and nothing is lost"
    );
}

/// Gives each batch a hundred times, one at a time: when it comes, or all of them with the watermark or the end behind
/// them.
#[derive(Clone, Default)]
pub(crate) struct Repeats {
    waits: bool,
    pub(crate) given: Arc<AtomicUsize>,
}

struct Repeating {
    plan: Repeats,
    batches: VecDeque<(Batch, usize)>,
    gives: bool,
}

pub(crate) const TIMES: usize = 100;

impl OperatorFactory for Repeats {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(Repeating { plan: self.clone(), batches: VecDeque::new(), gives: false })
    }

    fn describe(&self) -> Description {
        Description { operator: "repeat".into(), ..Description::default() }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}

impl Operator for Repeating {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        assert!(!self.has_more(), "nothing comes before it has given all");
        self.gives = match element {
            Element::Batch(batch) => {
                self.batches.push_back((batch, TIMES));
                !self.plan.waits
            }
            _ => true,
        };
        if self.gives { self.go_on(context) } else { Ok(()) }
    }

    fn has_more(&self) -> bool {
        self.gives && !self.batches.is_empty()
    }

    fn go_on(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        let Some((batch, left)) = self.batches.front_mut() else { return Ok(()) };
        self.plan.given.fetch_add(batch.rows(), Ordering::Relaxed);
        context.emit(batch.clone());
        *left -= 1;
        if *left == 0 {
            self.batches.pop_front();
        }
        Ok(())
    }
}

/// Sources, each batch a hundred times, to a sink.
pub(crate) fn repeating(sources: Vec<Partition>, parallelism: usize, sink: &Collected, repeats: &Repeats) -> FlowParts {
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let many = dataflow.then(source, EdgeKind::Hash(vec![0]), Arc::new(repeats.clone()), schema());
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(many, end, 0, EdgeKind::Gather);
    parts(dataflow, vec![sources], parallelism, sink)
}

#[test]
fn what_becomes_very_many_rows_waits_for_room() {
    const ROWS: i64 = 10_000;
    for waits in [false, true] {
        let workers = workers(2);
        let repeats = Repeats { waits, ..Repeats::default() };
        let sink = Collected::default();
        sink.closed.store(true, Ordering::Release);
        let sources = vec![numbers(0..ROWS / 2, Then::End), numbers(ROWS / 2..ROWS, Then::End)];
        let flow = workers.start_flow(repeating(sources, 2, &sink, &repeats)).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while repeats.given.load(Ordering::Relaxed) == 0 {
            assert!(Instant::now() < deadline, "nothing comes out");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(200));
        let given = repeats.given.load(Ordering::Relaxed);
        assert!(given < 20_000, "{given} rows are in hand");
        sink.closed.store(false, Ordering::Release);
        finish(&flow);
        assert_eq!(sink.rows.lock().len(), ROWS as usize * TIMES);
        workers.stop();
    }
}

/// Always has rows; says whether it is paused.
struct Listens {
    next: i64,
    is_paused: Arc<AtomicBool>,
}

impl Source for Listens {
    fn poll(&mut self, rows_max: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        self.next += rows_max as i64;
        Ok(Polled::Rows { columns: rows(self.next, rows_max as i64), retracts: None, arrival_us: now_us })
    }

    fn set_paused(&mut self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
    }
}

#[test]
fn a_pause_reaches_sources_also_where_nothing_moves() {
    let workers = workers(2);
    for parallelism in [1, 2] {
        let sink = Collected::default();
        sink.closed.store(true, Ordering::Release);
        let is_paused: Arc<AtomicBool> = Arc::default();
        let source: Box<dyn Source> = Box::new(Listens { next: 0, is_paused: is_paused.clone() });
        let mut dataflow = Dataflow::default();
        let source_node = dataflow.add(Work::Source(0), schema());
        let end = dataflow.add(Work::Sink(0), schema());
        let edge = if parallelism == 1 { EdgeKind::Forward } else { EdgeKind::RoundRobin };
        dataflow.connect(source_node, end, 0, edge);
        let flow =
            workers.start_flow(parts(dataflow, vec![vec![Partition::from(source)]], parallelism, &sink)).unwrap();
        // Until the queue in front of the sink is full, where there is one.
        std::thread::sleep(Duration::from_millis(100));
        for wanted in [true, false] {
            if wanted {
                flow.pause()
            } else {
                flow.resume()
            }
            let deadline = Instant::now() + PATIENCE;
            while is_paused.load(Ordering::Acquire) != wanted {
                assert!(Instant::now() < deadline, "the source was not told, at parallelism {parallelism}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(flow);
    }
    workers.stop();
}

/// Writes until it has written so many rows, and then waits until it may go on.
struct Sticks {
    rows_left: usize,
    may_go_on: Arc<AtomicBool>,
    is_stuck: Arc<AtomicBool>,
}

impl Sink for Sticks {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.rows_left = self.rows_left.saturating_sub(batch.rows());
        let deadline = Instant::now() + PATIENCE;
        while self.rows_left == 0 && !self.may_go_on.load(Ordering::Acquire) && Instant::now() < deadline {
            self.is_stuck.store(true, Ordering::Release);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

#[test]
fn figures_stay_what_they_were_while_a_task_takes_its_time() {
    let workers = workers(1);
    let [may_go_on, is_stuck]: [Arc<AtomicBool>; 2] = Default::default();
    let sink = Sticks { rows_left: 50_000, may_go_on: may_go_on.clone(), is_stuck: is_stuck.clone() };
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(source, end, 0, EdgeKind::RoundRobin);
    let mut parts = parts(dataflow, vec![vec![numbers(0..80_000, Then::End)]], 1, &Collected::default());
    parts.sinks = vec![vec![Box::new(sink)]];
    let flow = workers.start_flow(parts).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !is_stuck.load(Ordering::Acquire) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    let report = flow.report();
    assert!(report.latency_us.count() > 0, "what was written is not forgotten");
    assert!(report.progress.is_none_or(|(done, all)| done <= all));
    let during = flow.report();
    assert_eq!((during.watermark_us, during.refused), (report.watermark_us, report.refused));
    assert!(during.watermark_us.is_some(), "it is as far as it was when it was last looked at");
    may_go_on.store(true, Ordering::Release);
    finish(&flow);
    workers.stop();
}

/// Has nothing, soon for an hour at a time; says when it is dropped.
struct Held {
    asked: usize,
    is_closed: Arc<AtomicBool>,
}

impl Source for Held {
    fn poll(&mut self, _: usize, _: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        self.asked += 1;
        Ok(Polled::Nothing(if self.asked < 50 { Duration::from_millis(1) } else { Duration::from_secs(3600) }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

#[test]
fn a_flow_that_fails_lets_go_of_its_sources() {
    let workers = workers(2);
    let sink = Collected { fails: true, ..Collected::default() };
    let is_closed: Arc<AtomicBool> = Arc::default();
    let held = Held { asked: 0, is_closed: is_closed.clone() };
    let held = Partition { idle_timeout_us: Some(1_000), ..Partition::from(Box::new(held) as Box<dyn Source>) };
    let sources = vec![numbers(0..1_000, Then::Silence), held];
    let flow = workers.start_flow(counting(sources, 2, &sink, 500)).unwrap();
    assert_eq!(flow.wait(PATIENCE).expect("it fails").unwrap_err().0, "the disk is full");
    let deadline = Instant::now() + PATIENCE;
    while !is_closed.load(Ordering::Acquire) {
        assert!(Instant::now() < deadline, "it is still open, though nobody asks it");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(flow.report().rows_in, 1_000, "what was counted stays");
}

/// Two nodes of two cores; that of the second node may not be there, and its workers run on any then.
fn two_nodes() -> Topology {
    let folder = std::path::Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
        .join("tests/topologies/emulated_two_nodes");
    Topology::read(&folder, &(0..4).collect())
}

#[test]
fn a_flow_stays_on_a_node_as_long_as_it_has_room() {
    for (numa, parallelism, expected) in
        [(Numa::Auto, 2, vec![0]), (Numa::Auto, 4, vec![0, 1]), (Numa::Off, 4, Vec::new())]
    {
        let settings = WorkerSettings { threads: 4, numa, ..WorkerSettings::default() };
        let workers = Workers::start_on(settings, Arc::new(RunningClock(Instant::now())), two_nodes()).unwrap();
        let sink = Collected::default();
        let sources = || (0..4).map(|part| numbers(part * 1_000..(part + 1) * 1_000, Then::End)).collect();
        let flow = workers.start_flow(counting(sources(), parallelism, &sink, i64::MAX)).unwrap();
        finish(&flow);
        let report = flow.report();
        let mut nodes: Vec<usize> = report.tasks.iter().filter_map(|task| task.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes, expected, "{numa:?}, {parallelism}");
        let status = workers.status();
        for task in &report.tasks {
            let worker = task.worker.expect("tasks belong to workers");
            assert_eq!(status[worker].node, task.node);
            let same = report.tasks.iter().filter(|other| other.instance == task.instance);
            assert!(
                same.into_iter().all(|other| other.worker == task.worker),
                "stages meet where they have the same number"
            );
        }
        assert_eq!(
            status.iter().filter(|worker| worker.core.is_some()).count(),
            if numa == Numa::Auto { 4 } else { 0 }
        );
        // A second flow takes the node that the first one leaves free.
        if parallelism == 2 {
            let other = workers.start_flow(counting(sources(), 2, &sink, i64::MAX)).unwrap();
            finish(&other);
            assert!(other.report().tasks.iter().all(|task| task.node == Some(1)));
        }
        let mut rows = sink.rows.lock().clone();
        rows.truncate(100);
        assert!(rows.iter().all(|(_, count)| *count == 40), "results do not depend on it");
    }
}

#[test]
fn a_turn_takes_no_more_rows_than_its_budget() {
    let workers = Workers::stepped(Arc::new(RunningClock(Instant::now())));
    let sink = Collected::default();
    let flow = workers.start_flow(counting(vec![numbers(0..1_000, Then::End)], 1, &sink, i64::MAX)).unwrap();
    let taken = || flow.report().tasks.iter().map(|task| task.rows_in).collect::<Vec<_>>();
    let (mut before, mut turns) = (taken(), 0);
    assert_eq!(before.len(), 2, "the source, and the count with the sink");
    while flow.ended().is_none() {
        // What one turn sends, the next ones take in parts, and the other way round.
        let (choice, events) = [(0, 50), (1, 1), (1, 7), (0, 1), (1, 30)][turns % 5];
        if !workers.run_one_within(|ready| choice % ready, Budget { events, time: Duration::MAX }) {
            workers.keep_time_once();
        }
        let now = taken();
        let more: u64 = now.iter().zip(&before).map(|(now, before)| now - before).sum();
        assert!(more <= events as u64, "{more} instead of {events}");
        (before, turns) = (now, turns + 1);
        assert!(turns < 100_000, "it comes to no end: {before:?}");
    }
    assert_eq!(before, [1_000, 1_000]);
    let rows = sink.rows.lock();
    assert!(rows.len() == 100 && rows.iter().all(|(_, count)| *count == 10), "{rows:?}");
}

/// Moves on at each look.
struct Ticking(AtomicI64);

impl Clock for Ticking {
    fn now_us(&self) -> i64 {
        self.0.load(Ordering::Relaxed) + 1_700_000_000_000_000
    }

    fn steady_us(&self) -> i64 {
        self.0.fetch_add(300, Ordering::Relaxed)
    }
}

/// Has one more row whenever it is asked.
struct Scraps(i64);

impl Source for Scraps {
    fn poll(&mut self, _: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        self.0 += 1;
        Ok(Polled::Rows { columns: rows(self.0, 1), retracts: None, arrival_us: now_us })
    }
}

#[test]
fn a_source_that_has_caught_up_makes_way_and_one_with_more_reads_on() {
    let more = Numbers { next: 0, end: 10_000, then: Then::End, polled: Arc::default() };
    let sources: [(Box<dyn Source>, _); 2] = [(Box::new(Scraps(0)), 1..=6), (Box::new(more), 2_000..=10_000)];
    for (source, expected) in sources {
        let workers = Workers::stepped(Arc::new(Ticking(AtomicI64::new(0))));
        let partition = Partition { event_time_column: Some(1), ..Partition::from(source) };
        let flow = workers.start_flow(counting(vec![partition], 1, &Collected::default(), i64::MAX)).unwrap();
        let read = || flow.report().tasks[0].rows_in;
        let budget = Budget { events: usize::MAX, time: Duration::from_millis(20) };
        let turns = (0..10).take_while(|_| read() == 0 && workers.run_one_within(|_| 0, budget)).count();
        assert!(expected.contains(&read()), "{} in one turn, the {turns}. of all", read());
    }
}

/// Gives so many rows at a time, whatever it is asked for.
struct AtATime(usize, Box<dyn Source>);

impl Source for AtATime {
    fn poll(&mut self, _: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError> {
        self.1.poll(self.0, now_us, refusals)
    }
}

fn at_a_time(rows: usize, of: Partition) -> Partition {
    Partition { source: Box::new(AtATime(rows, of.source)), ..of }
}

/// Runs the flows of stepped workers for so many seconds, in steps of 5 ms, and once more without any time.
fn pass(workers: &Workers, clock: &ManualClock, seconds: i64) {
    for _ in 0..seconds * 200 {
        clock.advance_us(5_000);
        workers.keep_time_once();
        while workers.run_one(|_| 0, Duration::from_millis(20)) {}
    }
    while workers.run_one(|_| 0, Duration::from_millis(20)) {}
}

/// Rows that each task with a source has read, in order.
fn read(flow: &Flow) -> Vec<u64> {
    flow.report().tasks.iter().filter(|task| !task.has_queue).map(|task| task.rows_in).collect()
}

#[test]
fn a_throttle_only_rises_ends_by_itself_and_gives_each_source_its_turn() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let workers = Workers::stepped(clock.clone());
    let sink = Collected::default();
    let sources = vec![numbers(0..60_000, Then::End), at_a_time(3, numbers(0..60_000, Then::End))];
    let flow = workers.start_flow(counting(sources, 2, &sink, i64::MAX)).unwrap();
    let mut before = 0;
    for rows_per_s in [1_000.0, 500.0] {
        flow.throttle(Some(rows_per_s));
        for second in 0..4 {
            pass(&workers, &clock, 1);
            let now: u64 = read(&flow).iter().sum();
            // The mean of the second is 1.19 times its begin.
            let (more, wanted) = ((now - before) as f64, rows_per_s * 1.19 * 1.4_f64.powi(second));
            assert!((0.9..=1.1).contains(&(more / wanted)), "{more} of {wanted}");
            before = now;
        }
    }
    // The one that gives three rows at a time has a turn after each of the other, which reads the rows of 50 ms.
    assert!(read(&flow).iter().all(|rows| *rows > 8 * 15 * 3), "each has its turn: {:?}", read(&flow));
    pass(&workers, &clock, 2);
    assert_eq!(read(&flow), [60_000, 60_000], "it has ended");
    finish(&flow);
}

#[test]
fn a_throttle_that_ends_ends_the_waits_and_none_is_longer_than_a_second() {
    let clock = Arc::new(ManualClock::new(1_000_000));
    let workers = Workers::stepped(clock.clone());
    let sink = Collected::default();
    let sources = vec![at_a_time(100, numbers(0..40_000, Then::End))];
    let flow = workers.start_flow(counting(sources, 1, &sink, i64::MAX)).unwrap();
    // What it gives at a time would have it wait for 100 s.
    flow.throttle(Some(1.0));
    pass(&workers, &clock, 3);
    let few = read(&flow)[0];
    assert!((300..=500).contains(&few), "{few} rows in 3 s");
    flow.throttle(None);
    pass(&workers, &clock, 0);
    assert_eq!(read(&flow), [40_000], "no time has passed");
    finish(&flow);
    assert_eq!(sink.rows.lock().iter().map(|(_, count)| count).sum::<i64>(), 40_000);
}
