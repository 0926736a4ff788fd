//! Flows that are killed and go on from their last checkpoint: nothing is lost, nothing comes twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use parking_lot::Mutex;
use proptest::prelude::*;
use rivulet_dataflow::stage::sink_instances;
use rivulet_dataflow::{
    Batch, CollectedState, Dataflow, EdgeKind, Polled, Refusals, Sink, SinkError, Snapshot, Source, SourceError,
    TransactionalSink, Work,
};
use rivulet_runtime::flow::checkpoint::CheckpointError;
use rivulet_runtime::{Flow, FlowParts, Partition, Workers};

use crate::flows::{Collected, CountByKey, Numbers, PATIENCE, RunningClock, Then, numbers, parts, schema, workers};

type Rows = Vec<(i64, i64)>;

/// A file that only grows. What it was told to prepare is its length.
#[derive(Clone, Default)]
struct Growing {
    rows: Arc<Mutex<Rows>>,
    /// How often it has yet to say that it is not ready.
    delays: usize,
    /// The checkpoints that it was told to make final.
    commits: Arc<Mutex<Vec<u64>>>,
    /// How often it has yet to say that it is still at a commit.
    committing: usize,
    waits: bool,
    /// Whether it has prepared and not made final what it had, and whether anything was written then.
    is_prepared: bool,
    wrote_prepared: Arc<AtomicBool>,
}

impl Sink for Growing {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        if self.is_prepared {
            self.wrote_prepared.store(true, Ordering::Relaxed);
        }
        let keys = batch.column(0).as_primitive::<Int64Type>().values();
        let counts = batch.column(1).as_primitive::<TimestampMicrosecondType>().values();
        self.rows.lock().extend(keys.iter().copied().zip(counts.iter().copied()));
        Ok(())
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        Some(self)
    }
}

impl TransactionalSink for Growing {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        self.delays = if self.delays == 0 { 2 } else { self.delays - 1 };
        self.is_prepared = self.waits && self.delays == 0;
        Ok((self.delays == 0).then(|| self.rows.lock().len().to_string()))
    }

    fn commit(&mut self, epoch: u64) -> Result<bool, SinkError> {
        if self.committing == 0 {
            self.commits.lock().push(epoch);
            self.committing = 3;
        }
        self.committing -= 1;
        self.is_prepared &= self.committing > 0;
        Ok(self.committing == 0)
    }

    fn waits_for_commit(&self) -> bool {
        self.waits
    }
}

/// For who does not go on from there.
fn nowhere() -> Arc<CollectedState> {
    Arc::default()
}

/// The row of each number comes once, later ones later; those of partition 0 come to an end early.
fn fresh(partitions: i64, rows: i64) -> Vec<Partition> {
    let share = rows / partitions;
    let range = |part: i64| part * share..if part + 1 == partitions { rows } else { (part + 1) * share };
    (0..partitions).map(|part| numbers(range(part), Then::End)).collect()
}

/// Partitions that go on where they were.
fn resumed(snapshot: &Snapshot) -> Vec<Partition> {
    let of_source = snapshot.sources[0].iter().map(|state| {
        let position = state.position.as_ref().expect("numbers can be read again");
        let (next, end) = position.split_once(' ').unwrap();
        let (next, end) = (next.parse().unwrap(), end.parse().unwrap());
        let source: Box<dyn Source> = Box::new(Numbers { next, end, then: Then::End, polled: Arc::default() });
        Partition { event_time_column: Some(1), newest_us: state.newest_us, ..Partition::from(source) }
    });
    of_source.collect()
}

/// Rows, counted by key at every watermark, to files in turn.
fn dataflow() -> Dataflow {
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let count = Arc::new(CountByKey { emits_at_us: 20_000 });
    let counted = dataflow.then(source, EdgeKind::Hash(vec![0]), count, schema());
    let end = dataflow.add(Work::Sink(0), schema());
    dataflow.connect(counted, end, 0, EdgeKind::RoundRobin);
    dataflow
}

fn start(
    workers: &Workers,
    sources: Vec<Partition>,
    parallelism: usize,
    waits: bool,
    restored: Option<Snapshot>,
) -> (Flow, Vec<Growing>) {
    let dataflow = dataflow();
    let instances = sink_instances(&dataflow, &[sources.len()], parallelism)[0];
    let files: Vec<Growing> = (0..instances).map(|_| Growing { waits, ..Growing::default() }).collect();
    let sinks = vec![files.iter().map(|file| Box::new(file.clone()) as Box<dyn Sink>).collect()];
    let parts = parts(dataflow, vec![sources], parallelism, &Collected::default());
    (workers.start_flow(FlowParts { sinks, restored, ..parts }).unwrap(), files)
}

/// How many rows of each key were counted.
fn sums(rows: &[(i64, i64)]) -> Vec<i64> {
    let mut sums = vec![0; 100];
    rows.iter().for_each(|&(key, count)| sums[key as usize] += count);
    sums
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_flow_that_is_killed_goes_on_from_its_last_checkpoint(
        runs in prop::collection::vec((1..4usize, prop::collection::vec(0..4_000u64, 0..3)), 0..6),
        last in 1..4usize,
        partitions in 1..4i64,
        waits in any::<bool>(),
    ) {
        const ROWS: i64 = 60_000;
        let workers = workers(2);
        let mut snapshot: Option<Snapshot> = None;
        // What is final of earlier runs, as of the last checkpoint.
        let mut kept: Rows = Vec::new();
        let mut number = 0;
        for (parallelism, pauses) in runs {
            let sources = snapshot.as_ref().map_or_else(|| fresh(partitions, ROWS), resumed);
            let (flow, files) = start(&workers, sources, parallelism, waits, snapshot.clone());
            let (before, mut was_given_up) = (kept.clone(), false);
            for pause_us in pauses {
                std::thread::sleep(Duration::from_micros(pause_us));
                number += 1;
                let state = Arc::new(CollectedState::default());
                let mut taken = match flow.checkpoint(number, PATIENCE, state.clone()) {
                    Ok(taken) => taken,
                    Err(CheckpointError::Ending) => {
                        was_given_up = true;
                        break;
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                };
                taken.state = state.take_all();
                flow.committed(number);
                kept.clone_from(&before);
                for (at, file) in files.iter().enumerate() {
                    let rows = file.rows.lock();
                    // Those that have come to their end have written all there is.
                    let length = taken.sinks[0].get(at).map_or(rows.len(), |length| length.parse().unwrap());
                    kept.extend_from_slice(&rows[..length]);
                }
                snapshot = Some(taken);
            }
            // Killed, wherever it is.
            drop(flow);
            prop_assert!(was_given_up || !files.iter().any(|file| file.wrote_prepared.load(Ordering::Relaxed)));
        }
        let sources = snapshot.as_ref().map_or_else(|| fresh(partitions, ROWS), resumed);
        let (flow, files) = start(&workers, sources, last, waits, snapshot);
        flow.wait(PATIENCE).expect("it comes to its end").unwrap();
        files.iter().for_each(|file| kept.extend_from_slice(&file.rows.lock()));
        workers.stop();
        prop_assert_eq!(sums(&kept), vec![ROWS / 100; 100]);
    }
}

#[test]
fn sources_rest_until_a_sink_that_waits_has_committed() {
    let workers = workers(2);
    let (flow, files) = start(&workers, vec![numbers(0..100_000_000, Then::End)], 2, true, None);
    flow.checkpoint(1, PATIENCE, nowhere()).unwrap();
    let read = flow.report().rows_in;
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(flow.report().rows_in, read, "sources rest");
    assert_eq!(flow.checkpoint(2, PATIENCE, nowhere()), Err(CheckpointError::Busy));
    flow.committed(1);
    assert!(flow.wait_committed(PATIENCE));
    let deadline = Instant::now() + PATIENCE;
    while flow.report().rows_in == read && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(flow.report().rows_in > read, "they go on");
    assert!(files.iter().all(|file| *file.commits.lock() == [1]));
    drop(flow);
    workers.stop();
}

/// Takes several questions for everything that it is asked to do.
#[derive(Clone, Default)]
struct Slow {
    asked: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
}

impl Slow {
    fn ask(&self) -> bool {
        let is_done = self.asked.fetch_add(1, Ordering::Relaxed) % 4 == 3;
        self.done.fetch_add(usize::from(is_done), Ordering::Relaxed);
        is_done
    }
}

impl Sink for Slow {
    fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        Ok(self.ask())
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        Some(self)
    }
}

impl TransactionalSink for Slow {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        Ok(self.ask().then(String::new))
    }

    fn commit(&mut self, _: u64) -> Result<bool, SinkError> {
        Ok(self.ask())
    }

    fn waits_for_commit(&self) -> bool {
        true
    }
}

#[test]
fn a_sink_that_takes_its_time_is_asked_once_a_run() {
    let workers = Workers::stepped(Arc::new(RunningClock(Instant::now())));
    let sink = Slow::default();
    let parts = parts(dataflow(), vec![vec![numbers(0..1_000, Then::Silence)]], 1, &Collected::default());
    let sinks = vec![vec![Box::new(sink.clone()) as Box<dyn Sink>]];
    let flow = workers.start_flow(FlowParts { sinks, ..parts }).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let run_until = |is_over: &dyn Fn() -> bool| {
        while !is_over() {
            assert!(Instant::now() < deadline, "it does not go on");
            let before = sink.asked.load(Ordering::Relaxed);
            if !workers.run_one(|_| 0, PATIENCE) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(sink.asked.load(Ordering::Relaxed) - before <= 1, "it is asked twice in a row");
            workers.keep_time_once();
        }
    };
    run_until(&|| flow.report().rows_in == 1_000);
    flow.begin_checkpoint(1, nowhere()).unwrap();
    run_until(&|| flow.look_at_checkpoint().inspect(|taken| assert!(taken.is_ok())).is_some());
    flow.committed(1);
    run_until(&|| flow.is_committed());
    flow.stop(true);
    run_until(&|| flow.ended().is_some());
    assert_eq!(sink.done.load(Ordering::Relaxed), 3, "it has prepared, committed and finished");
}

/// Tasks that let go of what they have, because all is over, look as those that have come to the end of their input.
#[test]
fn a_flow_that_fails_at_a_barrier_gives_no_snapshot() {
    let workers = Workers::stepped(Arc::new(RunningClock(Instant::now())));
    let source = vec![vec![numbers(0..1_000, Then::Silence)]];
    let flow = workers.start_flow(parts(dataflow(), source, 1, &Collected::default())).unwrap();
    while workers.run_one(|_| 0, PATIENCE) {}
    flow.begin_checkpoint(1, nowhere()).unwrap();
    flow.cancel();
    while workers.run_one(|_| 0, PATIENCE) {}
    assert_eq!(flow.look_at_checkpoint(), Some(Err(CheckpointError::Ending)));
}

/// Says when it begins to make a checkpoint final, and when that is done.
struct Told {
    place: usize,
    asked: usize,
    log: Arc<Mutex<Vec<(usize, bool)>>>,
}

impl Sink for Told {
    fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
        Ok(())
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        Some(self)
    }
}

impl TransactionalSink for Told {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        Ok(Some(String::new()))
    }

    fn commit(&mut self, _: u64) -> Result<bool, SinkError> {
        self.asked += 1;
        let is_done = self.asked.is_multiple_of(4);
        if self.asked % 4 == 1 || is_done {
            self.log.lock().push((self.place, is_done));
        }
        Ok(is_done)
    }
}

#[test]
fn what_is_refused_is_final_behind_the_results() {
    let workers = workers(2);
    let mut dataflow = Dataflow::default();
    let source = dataflow.add(Work::Source(0), schema());
    let ends = [0, 1].map(|place| dataflow.add(Work::Sink(place), schema()));
    ends.into_iter().for_each(|end| dataflow.connect(source, end, 0, EdgeKind::RoundRobin));
    let log = Arc::<Mutex<Vec<(usize, bool)>>>::default();
    let instances = sink_instances(&dataflow, &[1], 2);
    let sinks = instances.iter().enumerate().map(|(place, &instances)| {
        (0..instances).map(|_| Box::new(Told { place, asked: 0, log: log.clone() }) as Box<dyn Sink>).collect()
    });
    let sinks: Vec<Vec<Box<dyn Sink>>> = sinks.collect();
    let parts = parts(dataflow, vec![vec![numbers(0..100_000_000, Then::End)]], 2, &Collected::default());
    let flow = workers.start_flow(FlowParts { sinks, ..parts }).unwrap();
    for number in 1..=3 {
        flow.checkpoint(number, PATIENCE, nowhere()).unwrap();
        flow.committed(number);
        assert!(flow.wait_committed(PATIENCE));
        let told = std::mem::take(&mut *log.lock());
        assert_eq!(told.len(), 2 * instances.iter().sum::<usize>(), "{told:?}");
        let first = told.iter().position(|(place, _)| *place == 1).unwrap();
        assert!(
            told[..first].ends_with(&[(0, true)]) && told[first..].iter().all(|(place, _)| *place == 1),
            "{told:?}"
        );
    }
    drop(flow);
    workers.stop();
}

/// A source that never answers, as a device that hangs within a driver.
struct Stuck {
    is_asked: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
}

impl Source for Stuck {
    fn poll(&mut self, _: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        self.is_asked.store(true, Ordering::Release);
        while !self.goes_on.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Polled::Rows { columns: RecordBatch::new_empty(schema()), retracts: None, arrival_us: now_us })
    }
}

#[test]
fn who_does_not_come_to_the_barrier_is_named_and_holds_up_nobody_for_ever() {
    let workers = workers(3);
    let (is_asked, goes_on) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let stuck: Box<dyn Source> = Box::new(Stuck { is_asked: is_asked.clone(), goes_on: goes_on.clone() });
    let sources = vec![Partition::from(stuck), numbers(0..100_000_000, Then::End)];
    let (flow, _) = start(&workers, sources, 2, false, None);
    let deadline = Instant::now() + PATIENCE;
    while !is_asked.load(Ordering::Acquire) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    // What is to panic must not leave it stuck.
    let outcome = flow.checkpoint(1, Duration::from_millis(50), nowhere());
    goes_on.store(true, Ordering::Release);
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("task 1 of stage 1"), "{error}");
    // Another attempt at the same one: who has captured its state for the first has to do so again.
    let snapshot = flow.checkpoint(1, PATIENCE, nowhere()).unwrap();
    assert_eq!(snapshot.sources[0].len(), 2);
    flow.committed(1);
    assert!(flow.wait_committed(PATIENCE));
    drop(flow);
    workers.stop();
}

#[test]
fn only_the_checkpoint_that_was_made_last_is_committed() {
    let workers = workers(2);
    let (flow, files) = start(&workers, vec![numbers(0..100_000_000, Then::End)], 2, false, None);
    let all_have = |commits: &[u64]| files.iter().all(|file| *file.commits.lock() == commits);
    flow.checkpoint(7, PATIENCE, nowhere()).unwrap();
    flow.committed(6);
    assert!(flow.wait_committed(PATIENCE));
    assert!(all_have(&[]));
    flow.committed(7);
    assert!(flow.wait_committed(PATIENCE));
    assert!(all_have(&[7]), "sinks know the checkpoint, not the barrier");
    drop(flow);
    workers.stop();
}
