//! Links: rows of one process to another, over a connection that delays and breaks, while either process is killed.
//!
//! A gateway reads files that grow, and a link takes its rows to the cloud. The cloud writes files, and its epochs say
//! how much of these is final. In the end the final rows must be those that the gateway has read: with `exactly_once`
//! each once and in order, with `at_least_once` in order except that some come again.
//!
//! Real: both flows with their checkpoints and restarts, the link's sink with its spools and their logs, the sessions,
//! the link's source with its accounts. Simulated: the clock; two disks; the connection, whose end each side notices by
//! itself; which task runs next, and when a spool is written.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_connectors::connector::{ConnectorContext, ConnectorError, Connectors, SinkSpec, SourceSpec};
use rivulet_connectors::links::{Links, Machine};
use rivulet_dataflow::stage::sink_instances;
use rivulet_dataflow::{Clock, ManualClock, PartitionState, Sink, Snapshot, Source};
use rivulet_runtime::{FlowLimits, FlowParts, Partition, Workers};
use rivulet_sql::QueryPlan;
use rivulet_storage::Disk;
use rivulet_wire::Hello;

use crate::disk::{Crash, Lies, SimulatedDisk};
use crate::flows::{
    Growing, KEYS, Part, READINGS, Row, Running, SINK, START_US, STEP_US, final_rows, key, place_of, planned, restore,
};
use crate::ways::{Carried, Ways};
use crate::{Counts, Outcome};

/// What the gateway sends.
const SENT: &str = "SELECT key, v, v * 2 AS twice, ts FROM readings";

/// What the cloud does with it.
const RECEIVED: &str = "CREATE SOURCE up (key BIGINT NOT NULL, v BIGINT NOT NULL, twice BIGINT NOT NULL, ts TIMESTAMP) \
                        FROM 'link:readings'; SELECT key, v, twice, ts FROM up";

/// How long a round takes, and how many tasks of each side run in one at most.
const ROUND_US: i64 = 3_000;
const ROUND_RUNS: u8 = 8;

/// At the end, the rounds from one checkpoint to the next, and until everything has to be done.
const CHECKPOINT_ROUNDS: usize = 12;
const ROUNDS_MAX: usize = 20_000;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that dials and sends.
    Gateway,
    /// The one that receives.
    Cloud,
}

impl Side {
    const ALL: [Self; 2] = [Self::Gateway, Self::Cloud];

    fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Cloud => "cloud",
        }
    }
}

/// A simulation of a link.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// The seed that it was made from.
    pub seed: u64,
    /// Whether each row is to come exactly once.
    pub is_exact: bool,
    /// The number of files that the gateway reads, and of its streams at first.
    pub partitions: usize,
    /// Whether the gateway has another number of streams after a crash. Then order is not kept.
    pub moves: bool,
    /// The size of the buffers of the link.
    pub buffer_bytes: u32,
    /// The steps, in order.
    pub steps: Vec<LinkStep>,
}

/// A step of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStep {
    /// A file of the gateway gets more rows.
    Grow {
        /// Which file.
        partition: usize,
        /// How many rows.
        rows: u8,
    },
    /// Tasks run.
    Run {
        /// Of which process.
        side: Side,
        /// Chooses among the ready tasks.
        choose: u16,
        /// How many tasks run.
        times: u8,
    },
    /// Time passes.
    Tick {
        /// Milliseconds.
        by_ms: u16,
    },
    /// The spools are written.
    Keep {
        /// Whether what else is known of them is saved too.
        saves: bool,
    },
    /// The gateway connects, if it is not connected.
    Dial,
    /// A process receives some of what is under way to it, and sends.
    Carry {
        /// Which process.
        side: Side,
        /// How many bytes of each connection it receives at most.
        bytes: u16,
    },
    /// A process notices that its connections have ended.
    Cut {
        /// Which process.
        side: Side,
        /// Whether what it has sent is lost too.
        loses: bool,
    },
    /// Everything goes on for some rounds.
    Rounds {
        /// How many.
        rounds: u8,
    },
    /// The tasks of a process stop to run, or go on. Its connections are worked all the same.
    Idle {
        /// Which process.
        side: Side,
        /// Whether they stop.
        is_idle: bool,
    },
    /// A checkpoint begins.
    Checkpoint {
        /// Of which process.
        side: Side,
    },
    /// The checkpoint is written, if all tasks have reached its barrier.
    Finish {
        /// Of which process.
        side: Side,
    },
    /// The checkpoint is abandoned.
    GiveUp {
        /// Of which process.
        side: Side,
    },
    /// A disk is full, or has room again.
    Disk {
        /// Of which process.
        side: Side,
        /// Whether it is full.
        is_full: bool,
    },
    /// The gateway's disk cannot be read, or can be again.
    Reads {
        /// Whether reads fail.
        fail: bool,
    },
    /// A query stops, and begins again from its checkpoint.
    Stop {
        /// Of which process.
        side: Side,
        /// Whether its process ends too.
        is_whole: bool,
    },
    /// A process ends after this number of disk operations.
    Crash {
        /// Which process.
        side: Side,
        /// How it ends.
        crash: Crash,
        /// The number of operations; 0 ends it at once.
        operations: u16,
        /// The number of streams of the gateway after that, if it may change.
        instances: u8,
    },
}

impl LinkPlan {
    /// Makes the plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x117c);
        let partitions = random.random_range(1..3);
        let is_exact = random.random_bool(0.6);
        let moves = random.random_bool(0.2);
        let buffer_bytes = [1, 500, 1 << 20][random.random_range(0..3)];
        let has_disk_faults = random.random_bool(0.3);
        let side = |random: &mut StdRng| if random.random_bool(0.5) { Side::Gateway } else { Side::Cloud };
        let step = |random: &mut StdRng| match random.random_range(0..100) {
            0..12 => LinkStep::Grow { partition: random.random_range(0..partitions), rows: random.random_range(1..16) },
            12..34 => LinkStep::Run { side: side(random), choose: random.random(), times: random.random_range(1..6) },
            34..38 => LinkStep::Tick { by_ms: [1, 5, 1_500][random.random_range(0..3)] },
            38 => LinkStep::Tick { by_ms: 25_000 },
            39..46 => LinkStep::Keep { saves: random.random_bool(0.5) },
            46..49 => LinkStep::Dial,
            49..65 => LinkStep::Carry { side: side(random), bytes: [60, 900, u16::MAX][random.random_range(0..3)] },
            65..67 => LinkStep::Cut { side: side(random), loses: random.random_bool(0.5) },
            67..75 => LinkStep::Rounds { rounds: random.random_range(1..8) },
            75..78 => LinkStep::Idle { side: side(random), is_idle: random.random_bool(0.5) },
            78..83 => LinkStep::Checkpoint { side: side(random) },
            83..91 => LinkStep::Finish { side: side(random) },
            91 => LinkStep::GiveUp { side: side(random) },
            92 if has_disk_faults => LinkStep::Disk { side: side(random), is_full: random.random_bool(0.4) },
            93 if has_disk_faults => LinkStep::Reads { fail: random.random_bool(0.4) },
            94 => LinkStep::Stop { side: side(random), is_whole: random.random_bool(0.5) },
            95..99 => LinkStep::Crash {
                side: side(random),
                crash: if random.random_bool(0.6) { Crash::Power } else { Crash::Process },
                operations: [0, 3, 12][random.random_range(0..3)] + random.random_range(0..6),
                instances: random.random_range(1..3),
            },
            _ => LinkStep::Dial,
        };
        let steps = (0..random.random_range(30..300)).map(|_| step(&mut random)).collect();
        Self { seed, is_exact, partitions, moves, buffer_bytes, steps }
    }
}

/// A process, or what is left of it.
struct Process {
    disk: SimulatedDisk,
    /// Its links, while it lives.
    links: Option<Arc<Links>>,
    running: Option<Running>,
    /// Whether its tasks do not run.
    is_idle: bool,
    crash: Crash,
}

struct LinkWorld {
    plan: LinkPlan,
    queries: [QueryPlan; 2],
    processes: [Process; 2],
    clock: Arc<ManualClock>,
    /// Gives numbers that no process has had.
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    sources: Vec<Growing>,
    ways: Ways,
    /// The gateway is known by this number to the cloud.
    run: u64,
    /// The number of streams of the gateway.
    instances: usize,
    next_part: u64,
    next_checkpoint: u64,
    history: String,
    counts: Counts,
}

/// Runs a plan.
pub fn run(plan: &LinkPlan) -> Outcome {
    let mut world = match LinkWorld::new(plan) {
        Ok(world) => world,
        Err(failure) => return Outcome { history: String::new(), counts: Counts::default(), failure: Some(failure) },
    };
    let failure = crate::failure_of(|| world.run());
    for Process { disk, .. } in &world.processes {
        let (faults, disk_operations) = (disk.faults(), disk.operations());
        world.counts += Counts { faults, disk_operations, ..Counts::default() };
    }
    Outcome { history: std::mem::take(&mut world.history), counts: world.counts, failure }
}

impl LinkWorld {
    fn new(plan: &LinkPlan) -> Result<Self, String> {
        let next = AtomicU64::new(1);
        let process = |side: Side| Process {
            disk: SimulatedDisk::new(plan.seed ^ ((side as u64) << 63), Lies::default()),
            links: None,
            running: None,
            is_idle: false,
            crash: Crash::Process,
        };
        Ok(Self {
            queries: [planned(&format!("{READINGS} {SENT}"))?, planned(RECEIVED)?],
            processes: Side::ALL.map(process),
            clock: Arc::new(ManualClock::new(START_US)),
            random: Arc::new(move || next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            sources: (0..plan.partitions).map(|_| Growing::default()).collect(),
            plan: plan.clone(),
            ways: Ways::default(),
            run: 0,
            instances: plan.partitions,
            next_part: 0,
            next_checkpoint: 1,
            history: String::new(),
            counts: Counts::default(),
        })
    }

    fn note(&mut self, text: &str) {
        let _ = writeln!(self.history, "{text}");
    }

    fn run(&mut self) -> Result<(), String> {
        for Process { disk, .. } in &self.processes {
            disk.make_folder(Path::new(SINK)).map_err(|error| error.to_string())?;
        }
        for place in 0..self.plan.steps.len() {
            let step = self.plan.steps[place];
            self.counts.steps += 1;
            self.step(step)?;
            self.look()?;
        }
        self.run_until_idle()
    }

    /// Ends processes whose disk has gone off, and queries that have failed because theirs is full.
    fn look(&mut self) -> Result<(), String> {
        for side in Side::ALL {
            let process = &self.processes[side as usize];
            if process.disk.is_off() {
                let crash = process.crash;
                self.end_process(side, crash);
            }
            let process = &self.processes[side as usize];
            let Some(running) = process.running.as_ref().filter(|running| running.flow.ended().is_some()) else {
                continue;
            };
            if let Some(Err(error)) = running.flow.wait(Duration::ZERO) {
                let line = format!("the query of the {} fails: {error}", side.name());
                if !process.disk.is_sick() {
                    return Err(line);
                }
                self.note(&line);
                self.processes[side as usize].running = None;
            }
        }
        Ok(())
    }

    fn end_process(&mut self, side: Side, crash: Crash) {
        match crash {
            Crash::Power => self.counts.power_losses += 1,
            Crash::Process => self.counts.kills += 1,
        }
        let process = &mut self.processes[side as usize];
        process.disk.go_off_after(0);
        process.running = None;
        self.ways.leave(side as usize);
        let process = &mut self.processes[side as usize];
        process.links = None;
        process.disk.after_crash(crash);
        let how = match crash {
            Crash::Power => "loses its power",
            Crash::Process => "is killed",
        };
        self.note(&format!("-- the {} {how}", side.name()));
    }

    /// Starts a process, if it does not live, and its query from its newest epoch, if it does not run.
    fn start(&mut self, side: Side) -> Result<(), String> {
        if self.processes[side as usize].running.is_some() {
            return Ok(());
        }
        let outcome = self.open(side);
        let process = &mut self.processes[side as usize];
        match outcome {
            Ok(running) => {
                let line = format!("the {} goes on behind {:?}", side.name(), running.epochs.newest());
                process.running = Some(running);
                self.counts.starts += 1;
                self.note(&line);
            }
            Err(_) if process.disk.is_off() => {
                let crash = process.crash;
                self.end_process(side, crash);
            }
            Err(error) if process.disk.is_sick() => self.note(&format!("the {} does not start: {error}", side.name())),
            Err(error) => return Err(format!("the {} does not start: {error}", side.name())),
        }
        Ok(())
    }

    fn open(&mut self, side: Side) -> Result<Running, String> {
        let (disk, clock, random) = (self.processes[side as usize].disk.clone(), self.clock.clone(), &self.random);
        let links = self.processes[side as usize].links.get_or_insert_with(|| {
            let machine = Machine { disk: Arc::new(disk.clone()), clock, random: random.clone(), is_stepped: true };
            Arc::new(Links::on(machine, side.name(), Some("spools".into()), None))
        });
        let host = ConnectorContext {
            links: Some((links.clone(), String::new())),
            server: side.name().into(),
            query: "q".into(),
            makes_checkpoints: Arc::new(AtomicBool::new(true)),
            ..ConnectorContext::default()
        };
        let (epochs, restored) = restore(&disk)?;
        let (snapshot, stated) = restored.unzip();
        let stated = stated.unwrap_or_default();
        let (sources, sinks, files, final_before) = match side {
            Side::Gateway => {
                let sources = self.growing(snapshot.as_ref())?;
                (sources.0, self.sinks(host, sources.1, stated)?, Vec::new(), Vec::new())
            }
            Side::Cloud => {
                let sources = self.received(host, snapshot.as_ref())?;
                let part = Part::create(&disk, self.next_part)?;
                self.next_part += 1;
                let name = part.name.clone();
                let sinks: Vec<Box<dyn Sink>> = vec![Box::new(part)];
                (sources, sinks, vec![name], stated)
            }
        };
        let workers = Workers::stepped(self.clock.clone());
        let flow = workers.start_flow(FlowParts {
            name: "q".into(),
            dataflow: self.queries[side as usize].dataflow.clone(),
            sources: vec![sources],
            sinks: vec![sinks],
            parallelism: if side == Side::Gateway { self.instances } else { 1 },
            limits: FlowLimits { rows_max: 16, bytes_max: 1 << 20, batch_rows: 4 },
            letters: None,
            tap: None,
            restored: snapshot,
        });
        let flow = flow.map_err(|error| error.to_string())?;
        Ok(Running { workers, flow, epochs, final_before, files, under_way: None })
    }

    /// A partition of the source of a query, which goes on from a state.
    fn partition(&self, side: Side, source: Box<dyn Source>, state: Option<&PartitionState>) -> Partition {
        Partition {
            event_time_column: self.queries[side as usize].sources[0].event_time,
            newest_us: state.and_then(|state| state.newest_us),
            ..Partition::from(source)
        }
    }

    /// The files of the gateway, and how many they are.
    fn growing(&self, snapshot: Option<&Snapshot>) -> Result<(Vec<Partition>, usize), String> {
        let columns = &self.queries[Side::Gateway as usize].sources[0].columns;
        let open = |place: (usize, usize), state: Option<&PartitionState>| {
            self.partition(Side::Gateway, self.sources[place.0].reader(place, columns), state)
        };
        let files: Vec<Partition> = match snapshot {
            None => (0..self.plan.partitions).map(|partition| open((partition, 0), None)).collect(),
            Some(snapshot) => {
                let states = snapshot.sources[0].iter();
                states.map(|state| Ok(open(place_of(state)?, Some(state)))).collect::<Result<_, String>>()?
            }
        };
        let count = files.len();
        Ok((files, count))
    }

    /// The instances of the link's sink.
    fn sinks(
        &mut self,
        host: ConnectorContext,
        partitions: usize,
        stated: Vec<String>,
    ) -> Result<Vec<Box<dyn Sink>>, String> {
        if !self.ways.is_worked(Side::Gateway as usize) {
            // The sinks before have taken along what dials.
            self.ways.leave(Side::Gateway as usize);
            self.run = (self.random)();
        }
        let query = &self.queries[Side::Gateway as usize];
        let instances = sink_instances(&query.dataflow, &[partitions], self.instances)[0];
        let buffer_bytes = self.plan.buffer_bytes.to_string();
        let options = [
            ("delivery", if self.plan.is_exact { "exactly_once" } else { "at_least_once" }),
            ("buffer_bytes", buffer_bytes.as_str()),
            ("compression", "none"),
            ("flush", "2 ms"),
            ("spool_bytes_max", "1 MiB"),
        ];
        let spec = SinkSpec {
            connector: "link".into(),
            address: "cloud:7117/readings".into(),
            format: None,
            schema: query.output.schema.clone(),
            changes: false,
            key: None,
            options: options.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            host,
            checkpoints: Some(stated),
            output: None,
        };
        let open = |instance: usize| Connectors::OWN.open_sink(&spec, instance, instances);
        (0..instances).map(open).collect::<Result<_, ConnectorError>>().map_err(|error| error.to_string())
    }

    /// The link's source.
    fn received(&self, host: ConnectorContext, snapshot: Option<&Snapshot>) -> Result<Vec<Partition>, String> {
        let planned = &self.queries[Side::Cloud as usize].sources[0];
        let states = snapshot.map(|snapshot| snapshot.sources[0].as_slice());
        let spec = SourceSpec {
            connector: "link".into(),
            address: "readings".into(),
            format: None,
            schema: planned.declaration.declared.clone(),
            columns: planned.asked.clone(),
            event_time_column: None,
            has_computed_time: false,
            options: Vec::new(),
            host,
            resume: states.map(|states| states.iter().map(|state| state.position.clone()).collect()),
        };
        let opened = Connectors::OWN.open_source(&spec, 1).map_err(|error| error.to_string())?;
        let state = states.and_then(|states| states.first());
        Ok(opened.into_iter().map(|source| self.partition(Side::Cloud, source, state)).collect())
    }

    fn step(&mut self, step: LinkStep) -> Result<(), String> {
        match step {
            LinkStep::Grow { partition, rows } => {
                let mut times = self.sources[partition].times.lock();
                for _ in 0..rows {
                    let row = times.len() as i64;
                    times.push(START_US + row * STEP_US);
                }
                drop(times);
                self.counts.events += u64::from(rows);
                self.note(&format!("file {partition} gets {rows} rows"));
            }
            LinkStep::Run { side, choose, times } => {
                self.start(side)?;
                self.run_tasks(side, choose, times);
            }
            LinkStep::Tick { by_ms } => {
                self.pass(1_000 * i64::from(by_ms));
                self.note(&format!("{by_ms} ms pass"));
            }
            LinkStep::Keep { saves } => {
                self.start(Side::Gateway)?;
                self.keep(saves);
            }
            LinkStep::Dial => {
                self.start(Side::Gateway)?;
                self.start(Side::Cloud)?;
                self.dial();
            }
            LinkStep::Carry { side, bytes } => self.carry(side, bytes.into()),
            LinkStep::Cut { side, loses } => {
                self.ways.leave(side as usize);
                if loses {
                    self.ways.lose(side as usize);
                }
                self.note(&format!("the {} loses its connections", side.name()));
            }
            LinkStep::Rounds { rounds } => {
                for _ in 0..rounds {
                    self.round(false)?;
                }
            }
            LinkStep::Idle { side, is_idle } => self.processes[side as usize].is_idle = is_idle,
            LinkStep::Checkpoint { side } => {
                self.start(side)?;
                self.begin_checkpoint(side);
            }
            LinkStep::Finish { side } => self.finish(side)?,
            LinkStep::GiveUp { side } => {
                if self.processes[side as usize].running.as_mut().is_some_and(Running::give_up) {
                    self.note(&format!("the {} gives its checkpoint up", side.name()));
                }
            }
            LinkStep::Disk { side, is_full } => self.processes[side as usize].disk.set_full(is_full),
            LinkStep::Reads { fail } => self.processes[Side::Gateway as usize].disk.fail_to_read(fail),
            LinkStep::Stop { side, is_whole } => {
                self.processes[side as usize].running = None;
                if is_whole {
                    self.ways.leave(side as usize);
                    self.processes[side as usize].links = None;
                    self.counts.stops += 1;
                }
                let what = if is_whole { "" } else { "query of the " };
                self.note(&format!("the {what}{} stops", side.name()));
            }
            LinkStep::Crash { side, crash, operations, instances } => {
                if side == Side::Gateway && self.plan.moves {
                    self.instances = instances.into();
                }
                self.processes[side as usize].crash = crash;
                match operations {
                    0 => self.end_process(side, crash),
                    operations => self.processes[side as usize].disk.go_off_after(operations.into()),
                }
            }
        }
        Ok(())
    }

    fn run_tasks(&mut self, side: Side, choose: u16, times: u8) {
        let process = &self.processes[side as usize];
        if let Some(running) = process.running.as_ref().filter(|_| !process.is_idle) {
            let ran = running.run(choose, times);
            self.note(&format!("{ran} tasks of the {} run", side.name()));
        }
    }

    /// Time passes.
    fn pass(&mut self, by_us: i64) {
        self.clock.advance_us(by_us);
        let running = self.processes.iter().filter_map(|process| process.running.as_ref());
        running.for_each(|running| running.workers.keep_time_once());
    }

    fn keep(&mut self, saves: bool) {
        if let Some(links) = &self.processes[Side::Gateway as usize].links {
            links.keep_once(saves);
            self.note(if saves { "spools are written and saved" } else { "spools are written" });
        }
    }

    fn dial(&mut self) {
        let [gateway, cloud] = &self.processes;
        if self.ways.has(Side::Gateway as usize) || gateway.running.is_none() || cloud.links.is_none() {
            return;
        }
        let hello = Hello { name: Side::Gateway.name().into(), run: self.run, token: None };
        self.ways.dial([Side::Gateway as usize, Side::Cloud as usize], &hello, self.clock.steady_us());
        self.note("the gateway connects");
    }

    /// A process receives at most so many bytes of each connection, and sends.
    fn carry(&mut self, side: Side, bytes_max: usize) {
        let Process { links, disk, .. } = &self.processes[side as usize];
        // What a process says when its disk has gone off does not leave it.
        let off = || disk.is_off();
        let carried = self.ways.carry((side as usize, bytes_max), links.as_ref(), self.clock.steady_us(), off);
        for Carried { came, sent, end } in carried {
            if came > 0 || sent > 0 {
                self.note(&format!("the {} receives {came} bytes and sends {sent}", side.name()));
            }
            if let Some(why) = end {
                self.counts.disconnects += 1;
                self.note(&format!("a connection of the {} ends: {why}", side.name()));
            }
        }
    }

    fn begin_checkpoint(&mut self, side: Side) {
        let number = self.next_checkpoint;
        self.next_checkpoint += 1;
        if self.processes[side as usize].running.as_mut().is_some_and(|running| running.begin_checkpoint(number)) {
            self.note(&format!("checkpoint {number} of the {} begins", side.name()));
        }
    }

    /// Writes the checkpoint in progress of a process, if all tasks have reached its barrier.
    fn finish(&mut self, side: Side) -> Result<(), String> {
        let Process { disk, running, .. } = &mut self.processes[side as usize];
        let Some(running) = running else { return Ok(()) };
        if let Some(line) = running.finish(disk, &mut self.counts)? {
            self.note(&format!("{}: {line}", side.name()));
        }
        Ok(())
    }

    /// Everything goes on a bit.
    fn round(&mut self, saves: bool) -> Result<(), String> {
        self.pass(ROUND_US);
        for side in Side::ALL {
            self.run_tasks(side, 0, ROUND_RUNS);
            self.look()?;
            self.carry(side, usize::MAX);
            self.look()?;
            self.finish(side)?;
            self.look()?;
        }
        self.keep(saves);
        self.look()
    }

    fn run_until_idle(&mut self) -> Result<(), String> {
        self.note("-- nothing fails any more, and the files end");
        for process in &mut self.processes {
            process.disk.stay_on();
            process.disk.set_full(false);
            process.disk.fail_to_read(false);
            process.is_idle = false;
        }
        self.sources.iter().for_each(|source| source.has_ended.store(true, Ordering::Relaxed));
        for round in 0..ROUNDS_MAX {
            for side in Side::ALL {
                self.start(side)?;
                if round % CHECKPOINT_ROUNDS == 0 {
                    self.begin_checkpoint(side);
                }
            }
            self.dial();
            self.round(true)?;
            // It ends when all that it has sent is final.
            let gateway = self.processes[Side::Gateway as usize].running.as_ref();
            if gateway.is_some_and(|running| running.flow.ended().is_some()) {
                return self.check();
            }
        }
        Err("it does not come to its end".into())
    }

    /// Checks the final rows. A loss of power takes none of those that the gateway does not keep any more.
    fn check(&mut self) -> Result<(), String> {
        self.end_process(Side::Cloud, Crash::Power);
        let disk = &self.processes[Side::Cloud as usize].disk;
        let (_, restored) = restore(disk)?;
        let parts = restored.map(|(_, parts)| parts).unwrap_or_default();
        let found = final_rows(disk, &parts)?;
        self.counts.results += found.len() as u64;
        let mut of_files: Vec<Vec<i64>> = vec![Vec::new(); self.plan.partitions];
        for row in found {
            let (number, place) = (row[1], (row[0] - 7 * row[1]).rem_euclid(KEYS));
            let expected: Row = [key(place, number), number, 2 * number, START_US + number * STEP_US];
            let of_file = of_files.get_mut(place as usize).filter(|_| row == expected);
            of_file.ok_or_else(|| format!("{row:?} is a row of no file"))?.push(number);
        }
        for (file, mut found) in of_files.into_iter().enumerate() {
            let rows = self.sources[file].times.lock().len() as i64;
            let come = found.len();
            if self.plan.moves {
                found.sort_unstable();
            }
            if !self.plan.is_exact {
                // Without those that come again.
                let mut last = -1;
                found.retain(|number| {
                    let is_new = *number > last;
                    last = last.max(*number);
                    is_new
                });
            }
            if !found.iter().copied().eq(0..rows) {
                let missing = (0..rows).find(|number| !found.contains(number));
                let wrong = found.iter().zip(0_i64..).find(|(number, place)| **number != *place);
                return Err(format!(
                    "file {file} has {rows} rows, and {come} came: missing {missing:?}, and wrong at first {wrong:?}"
                ));
            }
        }
        Ok(())
    }
}
