//! Big queries: real flows of planned SQL, whose tasks run in any order, with checkpoints as epochs on the simulated
//! disk, and restarts at another parallelism.
//!
//! Their sources are files that grow. Their sinks write files, and an epoch says how much of these is final. In the end
//! the final rows must be those that a loop over all rows gives, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_dataflow::stage::sink_instances;
use rivulet_dataflow::{
    Batch, Clock, CollectedState, ManualClock, PartitionState, Polled, Refusals, Sink, SinkError, Snapshot, Source,
    SourceError, StateFrame, TransactionalSink,
};
use rivulet_runtime::flow::checkpoint::CheckpointError;
use rivulet_runtime::{Flow, FlowLimits, FlowParts, Partition, Workers};
use rivulet_sql::{PlannedSource, QueryPlan, Scope, Statement, parse_script, plan_query};
use rivulet_storage::{Disk, DiskFile, Epoch, EpochSettings, Epochs, Piece, Store};
use serde_json::json;

use crate::disk::{Crash, Lies, SimulatedDisk};
use crate::objects::Objects;
use crate::{Counts, Outcome};

pub(crate) const START_US: i64 = 1_766_275_200_000_000;
pub(crate) const STEP_US: i64 = 500_000;
const WINDOW_US: i64 = 10_000_000;
pub(crate) const KEYS: i64 = 5;

/// How far the times of rows between two silences lie apart at most, and how far a row may be behind.
const SPREAD_US: i64 = 50_000_000;
const LATENESS_US: i64 = 60_000_000;

/// After how long a silence time follows the clock. The ticks of a plan are far shorter in all.
const IDLE_TIMEOUT_US: i64 = 2_000_000;

/// The steps of a silence, which together close all windows.
const SILENCE_STEPS: usize = 70;
const SILENCE_STEP_US: i64 = 1_300_000;

/// The bounds of inboxes.
pub(crate) const LIMITS: FlowLimits = FlowLimits { rows_max: 16, bytes_max: 1 << 20, batch_rows: 4 };

/// The most tasks that run in a step of a silence.
const RUNS_MAX: usize = 1_000;

/// The most rounds at the end until everything has to be done.
const ROUNDS_MAX: usize = 20_000;

/// A row of a result.
pub(crate) type Row = [i64; 4];

/// What a flow computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Sums by key in windows.
    Windows,
    /// Rows that pass a condition.
    Rows,
    /// Sums in windows over the results of windows, which the clock closes too.
    WindowsOverWindows,
    /// The same over two kinds of windows over one stream.
    WindowsOverBoth,
    /// The highest sums of each window, which the clock closes too.
    Highest,
    /// Two kinds of windows over one stream, joined. Only with bursts.
    Joined,
}

impl FlowKind {
    fn sql(self) -> &'static str {
        match self {
            Self::Windows => {
                "SELECT key, count(*) AS c, sum(v) AS s, window_start AS w FROM readings GROUP BY key, tumble(ts, INTERVAL '10 seconds')"
            }
            Self::Rows => "SELECT key, v, v * 2 AS twice, ts FROM readings WHERE v % 3 <> 0",
            Self::WindowsOverWindows => {
                "SELECT key % 2 AS half, count(*) AS c, sum(s) AS s, window_start AS w FROM TABLE(TUMBLE(TABLE (\
                 SELECT key, sum(v) AS s, window_time AS t \
                 FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '5 seconds')) \
                 GROUP BY key, window_start, window_end, window_time), DESCRIPTOR(t), INTERVAL '10 seconds')) \
                 GROUP BY key % 2, window_start, window_end"
            }
            Self::WindowsOverBoth => {
                "SELECT key % 2 AS half, count(*) AS c, sum(s) AS s, window_start AS w FROM TABLE(TUMBLE(TABLE (\
                 SELECT key, sum(v) AS s, window_time AS t \
                 FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '5 seconds')) \
                 GROUP BY key, window_start, window_end, window_time \
                 UNION ALL SELECT key, max(v) AS s, window_time AS t \
                 FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '10 seconds')) \
                 GROUP BY key, window_start, window_end, window_time), DESCRIPTOR(t), INTERVAL '10 seconds')) \
                 GROUP BY key % 2, window_start, window_end"
            }
            Self::Highest => {
                "SELECT window_start AS w, CAST(place AS BIGINT) AS place, key, s FROM (\
                 SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY s DESC, key) AS place \
                 FROM (SELECT key, sum(v) AS s, window_start, window_end \
                 FROM readings GROUP BY key, tumble(ts, INTERVAL '10 seconds'))) WHERE place <= 2"
            }
            Self::Joined => {
                "SELECT sums.key, c, m, sums.window_start AS w FROM (\
                 SELECT key, count(*) AS c, window_start, window_end \
                 FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '10 seconds')) \
                 GROUP BY key, window_start, window_end) AS sums \
                 JOIN (SELECT key, max(v) AS m, window_start, window_end \
                 FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '10 seconds')) WHERE v % 3 <> 0 \
                 GROUP BY key, window_start, window_end) AS highest \
                 ON sums.key = highest.key AND sums.window_start = highest.window_start \
                 AND sums.window_end = highest.window_end"
            }
        }
    }

    /// The statements that declare the source and run the query, with options at its end.
    pub(crate) fn script(self, options: &str) -> String {
        format!("{READINGS} {} {options}", self.sql())
    }

    /// Whether the source has silences, in which time follows the clock.
    pub(crate) fn has_silences(self) -> bool {
        !matches!(self, Self::Windows | Self::Rows | Self::Joined)
    }

    /// Returns the expected result, sorted, if each partition has rows of these times.
    fn expected(self, times: &[Vec<i64>]) -> Vec<Row> {
        let all = times.iter().zip(0_i64..).flat_map(|(times, partition)| {
            times.iter().zip(0_i64..).map(move |(&time_us, row)| (key(partition, row), row, time_us))
        });
        let all: Vec<(i64, i64, i64)> = all.collect();
        let windows = |window_us: i64| {
            let mut windows: BTreeMap<(i64, i64), Sum> = BTreeMap::new();
            for &(key, v, at_us) in &all {
                let of_window = windows.entry((at_us - at_us % window_us, key)).or_default();
                *of_window = Sum { count: of_window.count + 1, sum: of_window.sum + v, max: of_window.max.max(v) };
            }
            windows
        };
        let over = |inner: &mut dyn Iterator<Item = (i64, i64, i64)>| -> Vec<Row> {
            let mut outer: BTreeMap<(i64, i64), (i64, i64)> = BTreeMap::new();
            for (start_us, key, value) in inner {
                let of_window = outer.entry((key % 2, start_us - start_us % WINDOW_US)).or_default();
                *of_window = (of_window.0 + 1, of_window.1 + value);
            }
            outer.into_iter().map(|((half, window), (count, sum))| [half, count, sum, window]).collect()
        };
        let sums = |window_us| windows(window_us).into_iter().map(|((start_us, key), of)| (start_us, key, of.sum));
        let mut expected: Vec<Row> = match self {
            Self::Rows => {
                let kept = all.iter().filter(|(_, v, _)| v % 3 != 0);
                kept.map(|&(key, v, at_us)| [key, v, v * 2, at_us]).collect()
            }
            Self::Windows => {
                let windows = windows(WINDOW_US).into_iter();
                windows.map(|((start_us, key), of)| [key, of.count, of.sum, start_us]).collect()
            }
            Self::Joined => {
                let mut windows = BTreeMap::<(i64, i64), (i64, Option<i64>)>::new();
                for &(key, v, at_us) in &all {
                    let (count, highest) = windows.entry((at_us - at_us % WINDOW_US, key)).or_default();
                    *count += 1;
                    *highest = (*highest).max((v % 3 != 0).then_some(v));
                }
                let both = windows.into_iter();
                both.filter_map(|((start_us, key), (count, highest))| Some([key, count, highest?, start_us])).collect()
            }
            Self::WindowsOverWindows => over(&mut sums(WINDOW_US / 2)),
            Self::WindowsOverBoth => {
                let highest = windows(WINDOW_US).into_iter().map(|((start_us, key), of)| (start_us, key, of.max));
                over(&mut sums(WINDOW_US / 2).chain(highest))
            }
            Self::Highest => {
                let mut by_window: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
                sums(WINDOW_US)
                    .for_each(|(start_us, key, sum)| by_window.entry(start_us).or_default().push((-sum, key)));
                let highest = by_window.into_iter().flat_map(|(start_us, mut sums)| {
                    sums.sort_unstable();
                    sums.into_iter().zip(1..=2).map(move |((sum, key), place)| [start_us, place, key, -sum])
                });
                highest.collect()
            }
        };
        expected.sort_unstable();
        expected
    }
}

/// What is known of the rows of a key in a window.
#[derive(Clone, Copy, Default)]
struct Sum {
    count: i64,
    sum: i64,
    max: i64,
}

/// The key of a row of a partition.
pub(crate) fn key(partition: i64, row: i64) -> i64 {
    (row * 7 + partition) % KEYS
}

/// A simulation of a flow.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// The seed that it was made from.
    pub seed: u64,
    /// What is computed.
    pub kind: FlowKind,
    /// The number of files that are read.
    pub partitions: usize,
    /// The steps, in order.
    pub steps: Vec<FlowStep>,
}

/// A step of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowStep {
    /// A file gets more rows.
    Grow {
        /// Which file.
        partition: usize,
        /// How many rows.
        rows: u8,
    },
    /// Tasks run.
    Run {
        /// Chooses among the ready tasks.
        choose: u16,
        /// How many tasks run.
        times: u8,
    },
    /// Time passes.
    Tick,
    /// Nothing comes for so long that the clock closes all windows.
    Silence {
        /// Chooses among the ready tasks.
        choose: u16,
    },
    /// A checkpoint begins.
    Checkpoint,
    /// The checkpoint is written, if all tasks have reached its barrier.
    Finish,
    /// The checkpoint is abandoned.
    GiveUp,
    /// The disk is full, or has room again.
    Disk {
        /// Whether it is full.
        is_full: bool,
    },
    /// The process ends after this number of disk operations, and the flow restarts at another parallelism.
    Crash {
        /// How it ends.
        crash: Crash,
        /// The number of operations; 0 ends it at once.
        operations: u16,
        /// The number of instances after the restart.
        parallelism: u8,
    },
}

impl FlowPlan {
    /// Makes the plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0xf10f);
        let partitions = random.random_range(1..4);
        let has_disk_faults = random.random_bool(0.3);
        let kind = match random.random_range(0..100) {
            0..40 => FlowKind::Windows,
            40..55 => FlowKind::Rows,
            55..75 => FlowKind::WindowsOverWindows,
            75..85 => FlowKind::WindowsOverBoth,
            _ => FlowKind::Highest,
        };
        let step = |random: &mut StdRng| match random.random_range(0..100) {
            0..20 => FlowStep::Grow { partition: random.random_range(0..partitions), rows: random.random_range(1..30) },
            20..70 => FlowStep::Run { choose: random.random(), times: random.random_range(1..8) },
            70..76 => FlowStep::Tick,
            76..83 => FlowStep::Checkpoint,
            83..86 if kind.has_silences() => FlowStep::Silence { choose: random.random() },
            83..93 => FlowStep::Finish,
            93 => FlowStep::GiveUp,
            94 if has_disk_faults => FlowStep::Disk { is_full: random.random_bool(0.4) },
            95..98 => FlowStep::Crash {
                crash: if random.random_bool(0.6) { Crash::Power } else { Crash::Process },
                operations: [0, 3, 12][random.random_range(0..3)] + random.random_range(0..6),
                parallelism: random.random_range(1..4),
            },
            _ => FlowStep::Finish,
        };
        let steps = (0..random.random_range(20..300)).map(|_| step(&mut random)).collect();
        Self { seed, kind, partitions, steps }
    }
}

/// A file that grows.
#[derive(Clone, Default)]
pub(crate) struct Growing {
    /// The times of its rows.
    pub(crate) times: Arc<Mutex<Vec<i64>>>,
    /// How many of these the process that runs has read.
    read: Arc<AtomicUsize>,
    pub(crate) has_ended: Arc<AtomicBool>,
}

impl Growing {
    /// Reads some of its columns from this row on, as the partition with this number.
    pub(crate) fn reader(&self, (partition, next): (usize, usize), columns: &[usize]) -> Box<dyn Source> {
        Box::new(Reader { file: self.clone(), partition: partition as i64, next, columns: columns.to_vec() })
    }
}

/// The number of a partition, and its next row.
pub(crate) fn place_of(state: &PartitionState) -> Result<(usize, usize), String> {
    let position = state.position.as_deref().and_then(|position| position.split_once(' '));
    let (partition, next) = position.ok_or("a partition without position")?;
    partition.parse().ok().zip(next.parse().ok()).ok_or_else(|| "a position that makes no sense".into())
}

/// Reads a growing file.
struct Reader {
    file: Growing,
    partition: i64,
    next: usize,
    columns: Vec<usize>,
}

impl Source for Reader {
    fn poll(&mut self, rows_max: usize, now_us: i64, _: &mut Refusals) -> Result<Polled, SourceError> {
        let times = self.file.times.lock();
        let rows = times.len().saturating_sub(self.next).min(rows_max);
        self.file.read.store(self.next + rows, Ordering::Relaxed);
        if rows == 0 {
            return Ok(match self.file.has_ended.load(Ordering::Relaxed) {
                true => Polled::End,
                false => Polled::Nothing(Duration::from_millis(1)),
            });
        }
        let read = self.next..self.next + rows;
        let numbers = read.start as i64..read.end as i64;
        let columns: [ArrayRef; 3] = [
            Arc::new(Int64Array::from_iter_values(numbers.clone().map(|row| key(self.partition, row)))),
            Arc::new(Int64Array::from_iter_values(numbers)),
            Arc::new(TimestampMicrosecondArray::from(times[read].to_vec())),
        ];
        self.next += rows;
        let read = self.columns.iter().map(|&column| (["key", "v", "ts"][column], columns[column].clone()));
        let columns = RecordBatch::try_from_iter(read).map_err(|error| SourceError(error.to_string()))?;
        Ok(Polled::Rows { columns, retracts: None, arrival_us: now_us })
    }

    fn position(&mut self) -> Option<String> {
        Some(format!("{} {}", self.partition, self.next))
    }
}

/// A file of a sink. The part of it that an epoch names is final.
pub(crate) struct Part {
    file: Box<dyn DiskFile>,
    pub(crate) name: String,
    rows: u64,
}

/// The folder of these files.
pub(crate) const SINK: &str = "sink";

impl Part {
    /// Creates the file with this number.
    pub(crate) fn create(disk: &SimulatedDisk, number: u64) -> Result<Self, String> {
        let name = format!("{SINK}/{number}");
        let file = disk.create(Path::new(&name)).map_err(|error| error.to_string())?;
        disk.sync_folder(Path::new(SINK)).map_err(|error| error.to_string())?;
        Ok(Self { file, name, rows: 0 })
    }
}

/// The first rows of a file of a sink.
fn rows_of(disk: &SimulatedDisk, file: &str, rows_max: usize) -> Result<Vec<Row>, String> {
    let bytes = disk.read(Path::new(file)).map_err(|error| error.to_string())?;
    let rows = bytes.chunks_exact(ROW_BYTES).take(rows_max).map(|row| -> Row {
        std::array::from_fn(|place| {
            let number = row[place * 8..].first_chunk::<8>().copied().unwrap_or_default();
            i64::from_le_bytes(number)
        })
    });
    Ok(rows.collect())
}

/// The rows that are final, in the order in which they were written.
pub(crate) fn final_rows(disk: &SimulatedDisk, parts: &[String]) -> Result<Vec<Row>, String> {
    let mut all = Vec::new();
    for part in parts {
        let (file, rows) = part.split_once(' ').ok_or("a part without rows")?;
        let rows: usize = rows.parse().map_err(|_| "a part without rows")?;
        let found = rows_of(disk, file, rows)?;
        if found.len() != rows {
            return Err(format!("{file} was final with {rows} rows and has {}", found.len()));
        }
        all.extend(found);
    }
    Ok(all)
}

/// The bytes of a row in a file.
const ROW_BYTES: usize = 32;

fn sink_error(error: std::io::Error) -> SinkError {
    SinkError(error.to_string())
}

impl Sink for Part {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let columns: Vec<Vec<i64>> = (0..4)
            .map(|column| match batch.column(column) {
                numbers if numbers.data_type().is_integer() => numbers.as_primitive::<Int64Type>().values().to_vec(),
                times => times.as_primitive::<TimestampMicrosecondType>().values().to_vec(),
            })
            .collect();
        let bytes: Vec<u8> = (0..batch.rows())
            .flat_map(|row| columns.iter().flat_map(move |column| column[row].to_le_bytes()))
            .collect();
        self.file.write_at(&bytes, self.rows * ROW_BYTES as u64).map_err(sink_error)?;
        self.rows += batch.rows() as u64;
        Ok(())
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        Some(self)
    }
}

impl TransactionalSink for Part {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        self.file.sync().map_err(sink_error)?;
        Ok(Some(format!("{} {}", self.name, self.rows)))
    }
}

/// A running flow.
pub(crate) struct Running {
    pub(crate) workers: Workers,
    pub(crate) flow: Flow,
    pub(crate) epochs: Epochs,
    /// The files that were final when it started.
    pub(crate) final_before: Vec<String>,
    /// The names of its own files.
    pub(crate) files: Vec<String>,
    /// The checkpoint in progress: its number and the state collected so far.
    pub(crate) under_way: Option<(u64, Arc<CollectedState>)>,
}

impl Running {
    /// Runs some of the ready tasks; returns how many.
    pub(crate) fn run(&self, choose: u16, times: u8) -> u8 {
        let run_one = |turn: u8| {
            let choose = usize::from(choose) + usize::from(turn);
            self.workers.run_one(|ready| choose % ready, Duration::ZERO)
        };
        (0..times).map(|turn| u8::from(run_one(turn))).sum()
    }

    /// Begins the checkpoint with this number, unless one is in progress; returns whether it has begun.
    pub(crate) fn begin_checkpoint(&mut self, number: u64) -> bool {
        let state = Arc::new(CollectedState::default());
        let begins = self.under_way.is_none() && self.flow.begin_checkpoint(number, state.clone()).is_ok();
        if begins {
            self.under_way = Some((number, state));
        }
        begins
    }

    /// Abandons the checkpoint in progress; returns whether there was one.
    pub(crate) fn give_up(&mut self) -> bool {
        let was_under_way = self.under_way.take().is_some();
        if was_under_way {
            self.flow.abandon_checkpoint();
        }
        was_under_way
    }

    /// Writes the checkpoint in progress, if all tasks have reached its barrier. Returns what has become of it.
    pub(crate) fn finish(&mut self, disk: &SimulatedDisk, counts: &mut Counts) -> Result<Option<String>, String> {
        let Some((number, state)) = self.under_way.clone() else { return Ok(None) };
        let Some(outcome) = self.flow.look_at_checkpoint() else { return Ok(None) };
        self.under_way = None;
        let mut snapshot = match outcome {
            Ok(snapshot) => snapshot,
            Err(CheckpointError::Ending) => return Ok(Some("the query is coming to its end".into())),
            Err(error) if disk.is_sick() || disk.is_off() => return Ok(Some(format!("no checkpoint: {error}"))),
            Err(error) => return Err(format!("no checkpoint: {error}")),
        };
        snapshot.state = state.take_all();
        match self.epochs.commit(epoch_of(&snapshot, &self.final_before)?) {
            Ok(committed) => {
                self.flow.committed(number);
                counts.checkpoints += 1;
                Ok(Some(format!("checkpoint {number} is epoch {}", committed.epoch)))
            }
            Err(_) if disk.is_sick() || disk.is_off() => {
                self.flow.give_up();
                counts.checkpoints_failed += 1;
                Ok(Some("a checkpoint fails".into()))
            }
            Err(error) => Err(format!("a checkpoint fails: {error}")),
        }
    }
}

/// What an epoch has of a query, and what was saved beside it.
pub(crate) type SavedQuery = (Snapshot, Vec<String>);

/// Opens files where they were.
pub(crate) type OpensFiles =
    Arc<dyn Fn(&PlannedSource, &[PartitionState]) -> Result<Vec<Partition>, String> + Send + Sync>;

/// Opens the epochs of a query. Returns the state that the newest one has, and what sinks have stated so far.
pub(crate) fn restore(disk: &SimulatedDisk) -> Result<(Epochs, Option<SavedQuery>), String> {
    let text = |error: rivulet_storage::StorageError| error.to_string();
    let folder = Path::new("checkpoints");
    disk.make_folder(folder).map_err(|error| error.to_string())?;
    let root = Some((Arc::new(disk.clone()) as Arc<_>, folder.to_owned()));
    let store = Store::over(Arc::new(Objects::new(disk.clone(), folder)), root, "checkpoints".into());
    let store = Arc::new(store.map_err(text)?);
    let epochs = Epochs::open(store, "queries/1", EpochSettings { retained: 2 }).map_err(text)?;
    let restored = epochs.restore().map_err(text)?.as_ref().map(read_snapshot).transpose()?;
    Ok((epochs, restored))
}

/// A process with a query, its disk, and the files that it reads.
pub(crate) struct FlowWorld {
    plan: FlowPlan,
    pub(crate) query: QueryPlan,
    pub(crate) disk: SimulatedDisk,
    pub(crate) clock: Arc<ManualClock>,
    sources: Vec<Growing>,
    pub(crate) running: Option<Running>,
    parallelism: usize,
    /// The number of silences so far, and the earliest time of rows since the last one.
    silences: i64,
    begun_us: i64,
    crash: Crash,
    next_part: u64,
    next_checkpoint: u64,
    pub(crate) history: String,
    pub(crate) counts: Counts,
}

/// Runs a plan.
pub fn run(plan: &FlowPlan) -> Outcome {
    let mut world = match FlowWorld::new(plan, &plan.kind.script("")) {
        Ok(world) => world,
        Err(failure) => return Outcome { history: String::new(), counts: Counts::default(), failure: Some(failure) },
    };
    let failure = crate::failure_of(|| world.run());
    world.counts.faults = world.disk.faults();
    world.counts.disk_operations = world.disk.operations();
    Outcome { history: std::mem::take(&mut world.history), counts: world.counts, failure }
}

/// The growing files as a source.
pub(crate) const READINGS: &str = "CREATE SOURCE readings (key BIGINT NOT NULL, v BIGINT NOT NULL, \
                                   ts TIMESTAMP EVENT TIME) FROM 'simulated:readings';";

/// Plans the query of a script.
pub(crate) fn planned(script: &str) -> Result<QueryPlan, String> {
    let mut scope = Scope::new();
    let mut last = None;
    for (statement, _) in parse_script(script).map_err(|error| error.render(script))? {
        let done = match statement {
            Statement::CreateSource(create) => create.declare(|_, _| None).and_then(|source| scope.add_source(source)),
            Statement::RunQuery(query) => plan_query(&query, &scope).map(|plan| last = Some(plan)),
            other => return Err(format!("not a statement of big queries: {other:?}")),
        };
        done.map_err(|error| error.render(script))?;
    }
    last.ok_or_else(|| "there is no query".into())
}

impl FlowWorld {
    /// A process whose query has this text.
    pub(crate) fn new(plan: &FlowPlan, script: &str) -> Result<Self, String> {
        Ok(Self {
            query: planned(script)?,
            disk: SimulatedDisk::new(plan.seed, Lies::default()),
            clock: Arc::new(ManualClock::new(START_US)),
            sources: (0..plan.partitions).map(|_| Growing::default()).collect(),
            plan: plan.clone(),
            running: None,
            parallelism: 2,
            silences: 0,
            begun_us: START_US,
            crash: Crash::Process,
            next_part: 0,
            next_checkpoint: 1,
            history: String::new(),
            counts: Counts::default(),
        })
    }

    pub(crate) fn note(&mut self, text: &str) {
        let _ = writeln!(self.history, "{text}");
    }

    /// Makes the folder of the sink.
    pub(crate) fn begin(&self) -> Result<(), String> {
        self.disk.make_folder(Path::new(SINK)).map_err(|error| error.to_string())
    }

    fn run(&mut self) -> Result<(), String> {
        self.begin()?;
        for place in 0..self.plan.steps.len() {
            let step = self.plan.steps[place];
            self.counts.steps += 1;
            self.step(step)?;
            self.look()?;
        }
        self.run_until_idle()
    }

    pub(crate) fn look(&mut self) -> Result<(), String> {
        if self.disk.is_off() {
            self.end_process(self.crash);
        }
        let Some(running) = &self.running else { return Ok(()) };
        if let Some(Err(error)) = running.flow.wait(Duration::ZERO) {
            if !self.disk.is_sick() {
                return Err(format!("the query fails: {error}"));
            }
            self.note(&format!("the query fails: {error}"));
            self.running = None;
        }
        Ok(())
    }

    pub(crate) fn end_process(&mut self, crash: Crash) {
        match crash {
            Crash::Power => self.counts.power_losses += 1,
            Crash::Process => self.counts.kills += 1,
        }
        self.disk.go_off_after(0);
        self.running = None;
        self.disk.after_crash(crash);
        self.note(match crash {
            Crash::Power => "-- the power is lost",
            Crash::Process => "-- the process is killed",
        });
    }

    /// Starts the flow from its newest epoch.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        if self.running.is_some() {
            return Ok(());
        }
        match self.open() {
            Ok(running) => {
                self.counts.starts += 1;
                let line =
                    format!("the query goes on behind {:?} in {} instances", running.epochs.newest(), self.parallelism);
                self.note(&line);
                self.running = Some(running);
                Ok(())
            }
            Err(_) if self.disk.is_off() => {
                self.end_process(self.crash);
                Ok(())
            }
            Err(error) if self.disk.is_sick() => {
                self.note(&format!("the query does not start: {error}"));
                Ok(())
            }
            Err(error) => Err(format!("the query does not start: {error}")),
        }
    }

    /// Opens files where they were.
    pub(crate) fn opens(&self) -> OpensFiles {
        let (sources, kind) = (self.sources.clone(), self.plan.kind);
        Arc::new(move |planned: &PlannedSource, states: &[PartitionState]| {
            let open = |state: &PartitionState| {
                let place = place_of(state)?;
                Ok(Partition {
                    event_time_column: planned.event_time,
                    lateness_us: if kind.has_silences() { LATENESS_US } else { 0 },
                    idle_timeout_us: kind.has_silences().then_some(IDLE_TIMEOUT_US),
                    newest_us: state.newest_us,
                    ..Partition::from(sources[place.0].reader(place, &planned.columns))
                })
            };
            states.iter().map(open).collect()
        })
    }

    fn open(&mut self) -> Result<Running, String> {
        let (epochs, restored) = restore(&self.disk)?;
        let (snapshot, final_before) = restored.unzip();
        let begin =
            |partition| PartitionState { position: Some(format!("{partition} 0")), ..PartitionState::default() };
        let sources = match &snapshot {
            None => self.opens()(&self.query.sources[0], &(0..self.plan.partitions).map(begin).collect::<Vec<_>>()),
            Some(snapshot) => self.opens()(&self.query.sources[0], &snapshot.sources[0]),
        }?;
        let instances = sink_instances(&self.query.dataflow, &[sources.len()], self.parallelism)[0];
        let mut files = Vec::new();
        let mut parts: Vec<Box<dyn Sink>> = Vec::new();
        for _ in 0..instances {
            let part = Part::create(&self.disk, self.next_part)?;
            self.next_part += 1;
            files.push(part.name.clone());
            parts.push(Box::new(part));
        }
        let workers = Workers::stepped(self.clock.clone());
        let flow = workers.start_flow(FlowParts {
            name: "q".into(),
            dataflow: self.query.dataflow.clone(),
            sources: vec![sources],
            sinks: vec![parts],
            parallelism: self.parallelism,
            limits: LIMITS,
            letters: None,
            tap: None,
            restored: snapshot,
        });
        let flow = flow.map_err(|error| error.to_string())?;
        let final_before = final_before.unwrap_or_default();
        Ok(Running { workers, flow, epochs, final_before, files, under_way: None })
    }

    pub(crate) fn step(&mut self, step: FlowStep) -> Result<(), String> {
        if let FlowStep::Silence { choose } = step {
            return self.silence(&mut |world| world.running.as_ref().is_some_and(|running| run_all(running, choose)));
        }
        match step {
            FlowStep::Grow { partition, rows } => {
                let mut times = self.sources[partition].times.lock();
                for _ in 0..rows {
                    let row = times.len() as i64;
                    times.push(match self.plan.kind.has_silences() {
                        true => self.begun_us + row * 7 * STEP_US % SPREAD_US,
                        false => START_US + row * STEP_US,
                    });
                }
                drop(times);
                self.counts.events += u64::from(rows);
                self.note(&format!("file {partition} gets {rows} rows"));
                return Ok(());
            }
            FlowStep::Disk { is_full } => self.disk.set_full(is_full),
            FlowStep::Crash { crash, operations, parallelism } => {
                self.crash = crash;
                self.parallelism = parallelism.into();
                match operations {
                    0 => self.end_process(crash),
                    operations => self.disk.go_off_after(operations.into()),
                }
                return Ok(());
            }
            _ => {}
        }
        self.start()?;
        let Some(running) = &mut self.running else { return Ok(()) };
        match step {
            FlowStep::Run { choose, times } => {
                let ran = running.run(choose, times);
                self.note(&format!("{ran} tasks run"));
            }
            FlowStep::Tick => self.pass(1_000),
            FlowStep::Checkpoint if running.under_way.is_none() => {
                let number = self.next_checkpoint;
                self.next_checkpoint += 1;
                if running.begin_checkpoint(number) {
                    self.note(&format!("checkpoint {number} begins"));
                }
            }
            FlowStep::Finish => return self.finish(),
            FlowStep::GiveUp if running.give_up() => self.note("the checkpoint is given up"),
            _ => {}
        }
        Ok(())
    }

    /// Nothing comes for so long that the clock closes all windows. `settle` lets everything run until nothing is left
    /// to do, and returns whether that is so.
    pub(crate) fn silence(&mut self, settle: &mut dyn FnMut(&mut Self) -> bool) -> Result<(), String> {
        self.start()?;
        // What is unread now would be late behind the silence.
        let is_read = |source: &Growing| source.read.load(Ordering::Relaxed) == source.times.lock().len();
        if !settle(self) || !self.sources.iter().all(is_read) {
            return Ok(());
        }
        for _ in 0..SILENCE_STEPS {
            self.pass(SILENCE_STEP_US);
            settle(self);
        }
        self.silences += 1;
        self.begun_us = self.clock.now_us() + self.silences * SPREAD_US;
        self.note("silence");
        Ok(())
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, by_us: i64) {
        self.clock.advance_us(by_us);
        self.running.iter().for_each(|running| running.workers.keep_time_once());
    }

    /// Writes the checkpoint in progress, if all tasks have reached its barrier.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let Some(running) = &mut self.running else { return Ok(()) };
        if let Some(line) = running.finish(&self.disk, &mut self.counts)? {
            self.note(&line);
        }
        Ok(())
    }

    /// From now on, nothing fails any more, and the files end.
    pub(crate) fn come_to_an_end(&mut self) {
        self.note("-- nothing fails any more, and the files end");
        self.disk.stay_on();
        self.disk.set_full(false);
        self.sources.iter().for_each(|source| source.has_ended.store(true, Ordering::Relaxed));
    }

    fn run_until_idle(&mut self) -> Result<(), String> {
        self.come_to_an_end();
        for _ in 0..ROUNDS_MAX {
            self.start()?;
            self.finish()?;
            self.look()?;
            let Some(running) = &self.running else { continue };
            if let Some(Ok(())) = running.flow.wait(Duration::ZERO) {
                return self.check();
            }
            self.pass(1_000);
            self.running.iter().for_each(|running| _ = running.workers.run_one(|_| 0, Duration::ZERO));
        }
        Err("it does not come to its end".into())
    }

    /// Checks all final rows, and what the last run has written behind them.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let Some(running) = &self.running else { return Err("nothing runs".into()) };
        let mut found = final_rows(&self.disk, &running.final_before)?;
        for file in &running.files {
            found.extend(rows_of(&self.disk, file, usize::MAX)?);
        }
        found.sort_unstable();
        self.counts.results += found.len() as u64;
        let times: Vec<Vec<i64>> = self.sources.iter().map(|source| source.times.lock().clone()).collect();
        let expected = self.plan.kind.expected(&times);
        if found == expected {
            return Ok(());
        }
        let missing = expected.iter().find(|row| found.binary_search(row).is_err());
        let extra = found.iter().find(|row| expected.binary_search(row).is_err());
        let double = found.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        Err(format!(
            "{} rows and not {}: missing {missing:?}, too much {extra:?}, twice {double:?}",
            found.len(),
            expected.len()
        ))
    }
}

/// Runs tasks in an order of `choose` until none is ready. Returns whether that is so.
pub(crate) fn run_all(running: &Running, choose: u16) -> bool {
    let mut random = StdRng::seed_from_u64(choose.into());
    (0..RUNS_MAX).any(|_| !running.workers.run_one(|ready| random.random_range(0..ready), Duration::ZERO))
}

/// Returns the epoch that saves a flow.
fn epoch_of(snapshot: &Snapshot, final_before: &[String]) -> Result<Epoch, String> {
    let sources: Vec<_> = snapshot.sources[0].iter().map(|state| json!([state.position, state.newest_us])).collect();
    let reached: Vec<_> = snapshot.reached_us.iter().map(|(node, reached_us)| json!([node, reached_us])).collect();
    let is_final: Vec<&String> = final_before.iter().chain(&snapshot.sinks[0]).collect();
    let mut pieces = Vec::new();
    for (node, frames) in &snapshot.state {
        let all = StateFrame::concat(frames).map_err(|error| error.to_string())?;
        if let Some(frame) = all {
            let bytes = frame.to_bytes().map_err(|error| error.to_string())?;
            pieces.push(Piece::whole(node.to_string(), bytes));
        }
    }
    let has = |node: &usize| snapshot.state.contains_key(node);
    let dropped = (0..100_usize).filter(|node| !has(node)).map(|node| node.to_string()).collect();
    let note = json!({"sources": sources, "reached": reached, "ended": snapshot.ended, "final": is_final});
    Ok(Epoch { note, pieces, dropped })
}

fn read_snapshot(restored: &rivulet_storage::Restored) -> Result<(Snapshot, Vec<String>), String> {
    let note = &restored.note;
    let list = |key: &str| note[key].as_array().cloned().unwrap_or_default();
    let partition = |state: &serde_json::Value| PartitionState {
        position: state[0].as_str().map(str::to_owned),
        newest_us: state[1].as_i64(),
    };
    let node = |value: &serde_json::Value| value.as_u64().map(|node| node as usize);
    let mut state = BTreeMap::new();
    for (name, pieces) in &restored.pieces {
        let node: usize = name.parse().map_err(|_| "a piece without node")?;
        for bytes in pieces {
            let frame = StateFrame::from_bytes(bytes).map_err(|error| error.to_string())?;
            state.entry(node).or_insert_with(Vec::new).push(frame);
        }
    }
    let snapshot = Snapshot {
        sources: vec![list("sources").iter().map(partition).collect()],
        begins: BTreeSet::new(),
        sinks: Vec::new(),
        state,
        reached_us: list("reached").iter().filter_map(|pair| node(&pair[0]).zip(pair[1].as_i64())).collect(),
        ended: list("ended").iter().filter_map(node).collect(),
    };
    Ok((snapshot, list("final").iter().filter_map(|part| part.as_str().map(str::to_owned)).collect()))
}
