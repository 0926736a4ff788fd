//! Bursts: a big query whose tasks move to two burst workers and back, while workers are killed, freeze, or answer late,
//! connections break, and the server crashes.
//!
//! The query, its files and its checks are those of [`flows`](crate::flows): in the end the final rows must be those
//! that a loop over all rows gives, each once. The query fails only if a worker was lost. In the end no worker has a
//! task left.
//!
//! Real: the flow with its hosts and guests, checkpoints and restarts; the roster, the workers, their pipes and
//! sessions. Simulated: the clock; the disk; the connections; which task of which process runs next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet::burst::columns;
use rivulet::burst::message::Hold;
use rivulet::burst::roster::Roster;
use rivulet::burst::worker::{Me, PlannedQuery, ServerClock, Worker};
use rivulet_connectors::links::{Links, Machine, Target};
use rivulet_connectors::reach::AllowedHosts;
use rivulet_dataflow::{Clock, Element, PartitionState};
use rivulet_runtime::{MoveStep, Pipe, PipeError, Word, Workers};
use rivulet_sql::PlannedSource;
use rivulet_wire::Hello;

use crate::flows::{FlowKind, FlowPlan, FlowStep, FlowWorld, LIMITS, planned};
use crate::ways::{Carried, Ways};
use crate::{Counts, Outcome};

/// The server's number among the processes. Those of the workers follow.
const SERVER: usize = 0;
const WORKERS: usize = 2;

/// A worker without a connection for longer than this is lost, and so is one that does not answer. In all the time that
/// a plan takes, no row comes too late.
const LOST_AFTER_US: i64 = 60_000;
const ANSWER_MAX_US: i64 = 150_000;

/// State moves in parts of so many rows.
const PART_ROWS: usize = 2;

/// How long a round takes, and how many tasks of each process run in one at most.
const ROUND_US: i64 = 1_000;
const ROUND_RUNS: u8 = 8;

/// The most rounds until nothing is left to do, at the end and before a silence.
const ROUNDS_MAX: usize = 20_000;
const SETTLING_MAX: usize = 2_000;

/// The rounds before a silence, in which what was held up goes on.
const SILENT_ROUNDS: usize = 40;

/// The most rounds behind the end of the query until no worker has a task.
const FAREWELL_ROUNDS: usize = 1_000;

/// A simulation of bursts.
#[derive(Clone, Debug)]
pub struct BurstPlan {
    /// The query. It has no steps.
    pub flow: FlowPlan,
    /// The steps, in order.
    pub steps: Vec<BurstStep>,
}

/// How a worker works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As it should.
    #[default]
    Normal,
    /// Its tasks do not run, and it hears nothing. Its connection is worked all the same.
    Late,
    /// Nothing of it runs.
    Frozen,
}

/// A step of a simulation. Processes have numbers: 0 is the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstStep {
    /// What happens to a query without bursts too.
    Flow(FlowStep),
    /// A task is to move to a worker.
    Redirect {
        /// Chooses the task, and the worker.
        choose: u16,
    },
    /// A task that is away is to come home.
    Back {
        /// Chooses the task.
        choose: u16,
    },
    /// Tasks of a worker run.
    Work {
        /// Which process.
        side: usize,
        /// Chooses among the ready tasks.
        choose: u16,
        /// How many tasks run.
        times: u8,
    },
    /// A process receives some of what is under way to it, sends, and does what it heard.
    Carry {
        /// Which process.
        side: usize,
        /// How many bytes of each connection it receives at most.
        bytes: u16,
    },
    /// A process notices that its connections have ended.
    Cut {
        /// Which process.
        side: usize,
        /// Whether what it has sent is lost too.
        loses: bool,
    },
    /// What a process has received last comes once more.
    Replay {
        /// Which process.
        side: usize,
    },
    /// A worker connects, if it is not connected. It starts, if it does not live.
    Dial {
        /// Which process.
        side: usize,
    },
    /// A worker is killed.
    Kill {
        /// Which process.
        side: usize,
    },
    /// A worker freezes, is late, or works as it should.
    Turn {
        /// Which process.
        side: usize,
        /// How it works from now on.
        pace: Pace,
    },
    /// Time passes.
    Pass {
        /// Milliseconds.
        by_ms: u16,
    },
    /// The query is paused, or goes on.
    Pause {
        /// Whether it is paused.
        is_paused: bool,
    },
    /// Everything goes on for some rounds.
    Rounds {
        /// How many.
        rounds: u8,
    },
}

/// Something that is wrong on purpose with the pipes of the server, to test that it is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstDefect {
    /// The first part of a state is lost, and is not missed.
    StateIsLost,
    /// An element is lost.
    ElementIsLost,
    /// What a lost worker has sent and nobody has taken is taken from the next one.
    AnswersOutliveTheLoss,
    /// A barrier comes back before the last batch in front of it.
    EchoIsEarly,
}

impl BurstDefect {
    /// All defects.
    pub const ALL: [Self; 4] = [Self::StateIsLost, Self::ElementIsLost, Self::AnswersOutliveTheLoss, Self::EchoIsEarly];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::StateIsLost => "state-is-lost",
            Self::ElementIsLost => "element-is-lost",
            Self::AnswersOutliveTheLoss => "answers-outlive-the-loss",
            Self::EchoIsEarly => "echo-is-early",
        }
    }
}

impl BurstPlan {
    /// Makes the plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0xb0057);
        let mut flow = FlowPlan { seed, ..FlowPlan::new(random.random()) };
        if !flow.kind.has_silences() && random.random_bool(0.3) {
            flow.kind = FlowKind::Joined;
        }
        let is_calm = random.random_bool(0.3);
        let step = |random: &mut StdRng| {
            let (side, choose) = (random.random_range(1..=WORKERS), random.random());
            let any = random.random_range(0..=WORKERS);
            match random.random_range(0..100) {
                0..20 => BurstStep::Redirect { choose },
                20..26 => BurstStep::Back { choose },
                26..42 => BurstStep::Work { side, choose, times: random.random_range(1..6) },
                42..56 => BurstStep::Carry { side: any, bytes: [60, 900, u16::MAX][random.random_range(0..3)] },
                56..78 => BurstStep::Rounds { rounds: random.random_range(1..8) },
                78..82 => BurstStep::Dial { side },
                82..84 => BurstStep::Pause { is_paused: random.random_bool(0.3) },
                84..88 => BurstStep::Pass { by_ms: [1, 20, 120][random.random_range(0..3)] },
                88..92 => {
                    let pace = [Pace::Late, Pace::Frozen, Pace::Normal, Pace::Normal][random.random_range(0..4)];
                    BurstStep::Turn { side, pace }
                }
                92..94 if !is_calm => BurstStep::Cut { side: any, loses: random.random_bool(0.5) },
                94..96 if !is_calm => BurstStep::Replay { side: any },
                96..98 if !is_calm => BurstStep::Kill { side },
                98 if !is_calm && !flow.kind.has_silences() => BurstStep::Pass { by_ms: 25_000 },
                _ => BurstStep::Turn { side, pace: Pace::Normal },
            }
        };
        let mut steps = Vec::new();
        for of_flow in std::mem::take(&mut flow.steps) {
            steps.push(BurstStep::Flow(of_flow));
            while random.random_bool(0.55) {
                steps.push(step(&mut random));
            }
        }
        Self { flow, steps }
    }
}

/// What was sent and not taken, by the stage and instance of the task.
type Late = Arc<Mutex<BTreeMap<(usize, usize), VecDeque<(usize, Element)>>>>;

/// A pipe with a defect.
struct Defective {
    pipe: Arc<dyn Pipe>,
    defect: BurstDefect,
    place: (usize, usize),
    /// Whether something was lost by it.
    has_lost: Mutex<bool>,
    came: Mutex<VecDeque<(usize, Element)>>,
    late: Late,
}

impl Defective {
    /// Whether this is lost.
    fn loses(&self, defect: BurstDefect, is_it: bool) -> bool {
        is_it && self.defect == defect && !std::mem::replace(&mut *self.has_lost.lock(), true)
    }

    /// Changes a word, or swallows it.
    fn word(&self, mut word: Word) -> Option<Word> {
        if self.loses(BurstDefect::StateIsLost, matches!(word, Word::State { .. })) {
            return None;
        }
        if let Word::Begin { parts, .. } | Word::Captured { parts, .. } = &mut word
            && self.defect == BurstDefect::StateIsLost
            && std::mem::take(&mut *self.has_lost.lock())
        {
            *parts -= 1;
        }
        Some(word)
    }
}

impl Pipe for Defective {
    fn has_room(&self) -> bool {
        self.pipe.has_room()
    }

    fn push(&self, channel: usize, element: &Element) -> Result<(), PipeError> {
        match self.loses(BurstDefect::ElementIsLost, matches!(element, Element::Batch(_))) {
            true => Ok(()),
            false => self.pipe.push(channel, element),
        }
    }

    fn take(&self) -> Result<Option<(usize, Element)>, PipeError> {
        let mut came = self.came.lock();
        while let Some((channel, element)) = self.pipe.take()? {
            if self.loses(BurstDefect::ElementIsLost, matches!(element, Element::Batch(_))) {
                continue;
            }
            let behind_batch = matches!(came.back(), Some((_, Element::Batch(_))));
            let is_early = self.defect == BurstDefect::EchoIsEarly && matches!(element, Element::Barrier(_));
            let place = came.len() - usize::from(is_early && behind_batch);
            came.insert(place, (channel, element));
        }
        Ok(came.pop_front())
    }

    fn say(&self, word: Word) -> Result<(), PipeError> {
        self.word(word).map_or(Ok(()), |word| self.pipe.say(word))
    }

    fn heard(&self) -> Result<Option<Word>, PipeError> {
        while let Some(word) = self.pipe.heard()? {
            if let Some(word) = self.word(word) {
                return Ok(Some(word));
            }
        }
        Ok(None)
    }

    fn has_some(&self) -> bool {
        self.pipe.has_some() || !self.came.lock().is_empty()
    }

    fn flush(&self) {
        self.pipe.flush();
    }
}

impl Drop for Defective {
    fn drop(&mut self) {
        if self.defect == BurstDefect::AnswersOutliveTheLoss {
            self.late.lock().insert(self.place, std::mem::take(&mut self.came.lock()));
        }
    }
}

/// A worker: its process, if it lives.
#[derive(Default)]
struct Lent {
    process: Option<(Worker, Arc<Workers>)>,
    pace: Pace,
    /// The server knows the process by this number.
    run: u64,
}

/// A place that a worker was asked for: for which task, by which ticket, and when.
struct Wanted {
    place: (usize, usize),
    ticket: u64,
    since_us: i64,
}

/// All beside the query itself.
struct Away {
    script: String,
    defect: Option<BurstDefect>,
    late: Late,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Of the server, while it lives.
    server: Option<(Arc<Links>, Arc<Roster>)>,
    lent: [Lent; WORKERS],
    ways: Ways,
    wanted: Vec<Wanted>,
    /// How far each task is, as noted last.
    steps: BTreeMap<(usize, usize), MoveStep>,
    /// The tasks whose sources were opened again for them to come home.
    reopened: BTreeSet<(usize, usize)>,
    /// When each worker was last known to the server.
    seen_us: BTreeMap<String, i64>,
    /// Whether a worker was lost since the query has started.
    has_lost: bool,
    /// How often the query has started, and its process has ended.
    starts: u64,
    ends: u64,
}

struct BurstWorld {
    steps: Vec<BurstStep>,
    flows: FlowWorld,
    away: Away,
}

/// Runs a plan, with a defect if one is given.
pub fn run(plan: &BurstPlan, defect: Option<BurstDefect>) -> Outcome {
    let mut world = match BurstWorld::new(plan, defect) {
        Ok(world) => world,
        Err(failure) => return Outcome { history: String::new(), counts: Counts::default(), failure: Some(failure) },
    };
    let failure = crate::failure_of(|| world.run());
    let flows = &mut world.flows;
    (flows.counts.faults, flows.counts.disk_operations) = (flows.disk.faults(), flows.disk.operations());
    Outcome { history: std::mem::take(&mut flows.history), counts: flows.counts, failure }
}

/// The name of a process.
fn name(side: usize) -> String {
    if side == SERVER { "server".into() } else { format!("worker {side}") }
}

impl Away {
    /// What a process has of its machine.
    fn machine(&self, flows: &FlowWorld) -> Machine {
        let (disk, clock) = (Arc::new(flows.disk.clone()), flows.clock.clone());
        Machine { disk, clock, random: self.random.clone(), is_stepped: true }
    }

    /// The links and the roster of the server, which lives.
    fn server(&mut self, flows: &FlowWorld) -> Result<(Arc<Links>, Arc<Roster>), String> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        let waiting = Arc::<OnceLock<Weak<Roster>>>::default();
        let told = waiting.clone();
        let on_room = move || told.get().and_then(Weak::upgrade).iter().for_each(|roster| roster.look_for_room());
        let links = Arc::new(Links::on(self.machine(flows), &name(SERVER), None, Some(Arc::new(on_room))));
        let roster = Roster::new(&links, "", LOST_AFTER_US, Arc::new(|| {}))?;
        let _ = waiting.set(Arc::downgrade(&roster));
        Ok(self.server.insert((links, roster)).clone())
    }

    /// Starts a worker, if it does not live.
    fn start(&mut self, side: usize, flows: &FlowWorld) -> Result<(), String> {
        if self.lent[side - 1].process.is_some() {
            return Ok(());
        }
        let clock = Arc::new(ServerClock::new(flows.clock.clone()));
        let workers = Arc::new(Workers::stepped(clock.clone()));
        let (host, open) = (name(SERVER), flows.opens());
        // At once: there is no thread here.
        let open = Arc::new(move |source: PlannedSource, was_at: Vec<PartitionState>| {
            Arc::new(Mutex::new(Some(open(&source, &was_at))))
        });
        let reach = AllowedHosts::everything();
        let target = Target { scope: String::new(), host, port: 7117, tls: None, token: None, reach };
        let planner = move |script: &str, _: &str| Ok(PlannedQuery { plan: planned(script)?, open: open.clone() });
        let me = Me { name: name(side), threads: 1, ends_us: None };
        let on = (self.machine(flows), target);
        let worker = Worker::join(me, on, (workers.clone(), clock), Box::new(planner), Arc::new(|| {}));
        let process = Some((worker.map_err(|error| error.to_string())?, workers));
        self.lent[side - 1] = Lent { process, pace: Pace::Normal, run: (self.random)() };
        Ok(())
    }

    /// A worker connects to the server, which lives.
    fn dial(&mut self, side: usize, flows: &mut FlowWorld) -> Result<(), String> {
        self.start(side, flows)?;
        self.server(flows)?;
        if !self.ways.has(side) {
            let hello = Hello { name: name(side), run: self.lent[side - 1].run, token: None };
            self.ways.dial([side, SERVER], &hello, flows.clock.steady_us());
            flows.note(&format!("{} connects", name(side)));
        }
        Ok(())
    }

    /// The worker that has this number, if it lives and is not slower than that.
    fn working(&self, side: usize, slowest: Pace) -> Option<&(Worker, Arc<Workers>)> {
        let Lent { process, pace, .. } = &self.lent[side - 1];
        process.as_ref().filter(|_| *pace == Pace::Normal || *pace == slowest)
    }

    /// Tasks of a worker run. Returns how many.
    fn work(&self, side: usize, choose: u16, times: u8) -> u8 {
        let Some((_, workers)) = self.working(side, Pace::Normal) else { return 0 };
        let run_one =
            |turn: u8| workers.run_one(|ready| (usize::from(choose) + usize::from(turn)) % ready, Duration::ZERO);
        (0..times).map(|turn| u8::from(run_one(turn))).sum()
    }

    /// Time passes.
    fn pass(&self, flows: &mut FlowWorld, by_us: i64) {
        flows.pass(by_us);
        let working = (1..=WORKERS).filter_map(|side| self.working(side, Pace::Normal));
        working.for_each(|(_, workers)| workers.keep_time_once());
    }

    /// A process receives and sends, and does what it heard. Returns whether any bytes moved.
    fn carry(&mut self, side: usize, bytes_max: usize, flows: &mut FlowWorld) -> Result<bool, String> {
        let now_us = flows.clock.steady_us();
        let links = match side {
            SERVER => self.server.as_ref().map(|(links, _)| links.clone()),
            worker => self.working(worker, Pace::Late).map(|(worker, _)| worker.links().clone()),
        };
        let Some(links) = links else { return Ok(false) };
        let carried =
            self.ways.carry((side, bytes_max), Some(&links), now_us, || side == SERVER && flows.disk.is_off());
        let mut has_moved = false;
        for Carried { came, sent, end } in carried {
            if came > 0 || sent > 0 {
                has_moved = true;
                flows.note(&format!("{} receives {came} bytes and sends {sent}", name(side)));
            }
            if let Some(why) = end {
                flows.counts.disconnects += 1;
                flows.note(&format!("a connection of {} ends: {why}", name(side)));
            }
        }
        match side {
            SERVER => self.oversee(flows)?,
            worker => {
                let Lent { process, pace, .. } = &mut self.lent[worker - 1];
                if let Some((worker, _)) = process.as_mut().filter(|_| *pace == Pace::Normal) {
                    worker.turn(now_us).map_err(|why| format!("{} ends: {why}", name(side)))?;
                }
            }
        }
        Ok(has_moved)
    }

    /// The server hears its workers, and does with tasks what has to be done.
    fn oversee(&mut self, flows: &mut FlowWorld) -> Result<(), String> {
        let Some((_, roster)) = self.server.clone() else { return Ok(()) };
        let now_us = flows.clock.steady_us();
        self.seen_us.extend(roster.workers().into_iter().map(|worker| (worker.name, now_us)));
        roster.turn(now_us);
        let is_late = |_: &String, seen_us: &mut i64| now_us - *seen_us > LOST_AFTER_US;
        self.has_lost |= self.seen_us.extract_if(.., is_late).count() > 0;
        let opens = flows.opens();
        let FlowWorld { running, query, .. } = flows;
        let Some(flow) = running.as_ref().map(|running| &running.flow) else { return Ok(()) };
        let (mut lines, mut begun) = (Vec::new(), 0);
        for placement in flow.placements() {
            let place = (placement.stage, placement.instance);
            let before = self.steps.insert(place, placement.step);
            if before != Some(placement.step) {
                begun += u64::from(placement.step == MoveStep::Running);
                let why = placement.why.unwrap_or_default();
                lines.push(format!("task {place:?} is {:?} {why}", placement.step));
            }
            if placement.unanswered_us.is_some_and(|for_us| for_us > ANSWER_MAX_US) {
                self.has_lost = true;
                lines.push(format!("task {place:?} waits too long for its guest"));
                flow.lose(place, "the burst worker does not answer").map_err(|error| error.to_string())?;
            }
            match placement.reopens {
                Some(states) if self.reopened.insert(place) => {
                    let partitions = opens(&query.sources[0], &states)?;
                    flow.reopened(place, partitions).map_err(|error| error.to_string())?;
                }
                Some(_) => {}
                None => _ = self.reopened.remove(&place),
            }
        }
        for Wanted { place, ticket, since_us } in std::mem::take(&mut self.wanted) {
            let outcome = match roster.outcome(ticket) {
                None if now_us - since_us <= ANSWER_MAX_US => {
                    self.wanted.push(Wanted { place, ticket, since_us });
                    continue;
                }
                None => Err("it does not answer".to_owned()),
                Some(outcome) => outcome,
            };
            let outcome = match (outcome, roster.take(ticket)) {
                (Ok(()), Some(pipe)) => {
                    let pipe = self.with_defect(pipe, place);
                    flow.redirect(place, pipe, PART_ROWS, 1 << 20).map_err(|error| error.to_string())
                }
                (outcome, _) => outcome,
            };
            lines.push(format!("task {place:?} is to move: {outcome:?}"));
        }
        lines.iter().for_each(|line| flows.note(line));
        flows.counts.changes += begun;
        Ok(())
    }

    /// Gives places back that nobody wants any more.
    fn give_back(&mut self) {
        for Wanted { ticket, .. } in std::mem::take(&mut self.wanted) {
            self.server.iter().for_each(|(_, roster)| drop(roster.take(ticket)));
        }
    }

    fn with_defect(&self, pipe: Arc<dyn Pipe>, place: (usize, usize)) -> Arc<dyn Pipe> {
        let Some(defect) = self.defect else { return pipe };
        let late = self.late.clone();
        let came = Mutex::new(late.lock().remove(&place).unwrap_or_default());
        Arc::new(Defective { pipe, defect, place, has_lost: Mutex::new(false), came, late })
    }

    /// Asks a worker for a place for a task.
    fn redirect(&mut self, choose: u16, flows: &mut FlowWorld) -> Result<(), String> {
        let (Some((_, roster)), FlowWorld { running: Some(running), query, clock, .. }) = (&self.server, &*flows)
        else {
            return Ok(());
        };
        let (flow, workers) = (&running.flow, roster.workers());
        let stages = flow.stages().iter().enumerate();
        // Its last stage is that of the sink.
        let stages = stages.filter(|(_, stage)| stage.sink(&query.dataflow).is_none() || stage.nodes.len() > 1);
        let goes = stages.filter(|(_, stage)| stage.nodes.iter().all(|&node| query.stays(node).is_none()));
        let away = flow.placements().into_iter().filter(|one| one.step != MoveStep::Home);
        let away: BTreeSet<_> = away.map(|one| (one.stage, one.instance)).collect();
        let mut places: Vec<_> =
            goes.flat_map(|(place, stage)| (0..stage.instances).map(move |one| (place, one, &stage.nodes))).collect();
        // Now and then one that is away already.
        places.retain(|&(stage, one, _)| choose % 16 == 0 || !away.contains(&(stage, one)));
        let choose = usize::from(choose);
        let Some(worker) = workers.get(choose % workers.len().max(1)) else { return Ok(()) };
        let Some(&(stage, instance, nodes)) = places.get(choose / 2 % places.len().max(1)) else { return Ok(()) };
        let place = (stage, instance);
        let (inputs, output) = columns(&query.dataflow, nodes);
        let hold = Hold {
            ticket: 0,
            query: "q".into(),
            script: self.script.clone(),
            fingerprint: query.fingerprint(),
            nodes: nodes.clone(),
            instance,
            now_us: clock.now_us(),
            limits: LIMITS,
        };
        let waker = flow.waker(place).map_err(|error| error.to_string())?;
        if let Some(ticket) = roster.hold(worker.number, hold, (inputs, vec![output]), waker) {
            self.wanted.push(Wanted { place, ticket, since_us: clock.steady_us() });
            let line = format!("{} is asked to take task {place:?}", worker.name);
            flows.note(&line);
        }
        Ok(())
    }

    /// Lets everything run until nothing is left to do, if all workers work. Returns whether that is so.
    fn settle(&mut self, flows: &mut FlowWorld) -> Result<bool, String> {
        let is_working = |side| self.working(side, Pace::Normal).is_some() && self.ways.is_worked(side);
        let is_open = flows.running.as_ref().is_some_and(|one| one.under_way.is_none() && !one.flow.is_paused());
        if !is_open || !(1..=WORKERS).all(is_working) {
            return Ok(false);
        }
        // Each source is asked once more.
        self.pass(flows, 2 * ROUND_US);
        for _ in 0..SETTLING_MAX {
            let mut has_moved = flows.running.as_ref().is_some_and(|running| running.run(0, u8::MAX) > 0);
            for side in 0..=WORKERS {
                has_moved |= side != SERVER && self.work(side, 0, u8::MAX) > 0;
                has_moved |= self.carry(side, usize::MAX, flows)?;
            }
            if !has_moved {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl BurstWorld {
    fn new(plan: &BurstPlan, defect: Option<BurstDefect>) -> Result<Self, String> {
        let script = plan.flow.kind.script("WITH (burst => true)");
        let flows = FlowWorld::new(&plan.flow, &script)?;
        let next = AtomicU64::new(1);
        let random = move || next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let away = Away {
            script,
            defect,
            late: Late::default(),
            random: Arc::new(random),
            server: None,
            lent: Default::default(),
            ways: Ways::default(),
            wanted: Vec::new(),
            steps: BTreeMap::new(),
            reopened: BTreeSet::new(),
            seen_us: BTreeMap::new(),
            has_lost: false,
            starts: 0,
            ends: 0,
        };
        Ok(Self { steps: plan.steps.clone(), flows, away })
    }

    fn run(&mut self) -> Result<(), String> {
        self.flows.begin()?;
        (1..=WORKERS).try_for_each(|side| self.dial(side))?;
        for step in std::mem::take(&mut self.steps) {
            self.flows.counts.steps += 1;
            self.step(step)?;
            self.look()?;
        }
        self.run_until_idle()
    }

    /// Restarts a query that has failed because a worker was lost, and ends what has ended with the server.
    fn look(&mut self) -> Result<(), String> {
        let Self { flows, away, .. } = self;
        if std::mem::replace(&mut away.starts, flows.counts.starts) != flows.counts.starts {
            away.has_lost = false;
            away.give_back();
            away.steps.clear();
            away.reopened.clear();
        }
        if let Some(running) = &flows.running
            && let Some(Err(error)) = running.flow.wait(Duration::ZERO)
            && running.flow.is_undone()
        {
            let line = format!("the query fails: {error}");
            if !away.has_lost {
                return Err(format!("no worker was lost, and {line}"));
            }
            flows.note(&line);
            flows.running = None;
        }
        flows.look()?;
        let ends = flows.counts.kills + flows.counts.power_losses;
        if std::mem::replace(&mut away.ends, ends) != ends {
            away.server = None;
            away.ways.leave(SERVER);
            away.wanted.clear();
            away.seen_us.clear();
        }
        Ok(())
    }

    fn dial(&mut self, side: usize) -> Result<(), String> {
        self.flows.start()?;
        self.look()?;
        if self.flows.running.is_some() { self.away.dial(side, &mut self.flows) } else { Ok(()) }
    }

    fn step(&mut self, step: BurstStep) -> Result<(), String> {
        let Self { flows, away, .. } = self;
        match step {
            BurstStep::Flow(FlowStep::Silence { .. }) => {
                self.go_on_for(SILENT_ROUNDS)?;
                let Self { flows, away, .. } = self;
                let mut problem = Ok(());
                flows.silence(&mut |flows| match away.settle(flows) {
                    Ok(is_settled) => is_settled,
                    Err(why) => {
                        problem = Err(why);
                        false
                    }
                })?;
                problem?;
            }
            BurstStep::Flow(step) => flows.step(step)?,
            BurstStep::Redirect { choose } => away.redirect(choose, flows)?,
            BurstStep::Back { choose } => {
                let Some(flow) = flows.running.as_ref().map(|running| &running.flow) else { return Ok(()) };
                let away = flow.placements().into_iter().filter(|one| one.step != MoveStep::Home);
                let away: Vec<_> = away.map(|one| (one.stage, one.instance)).collect();
                if let Some(&place) = away.get(usize::from(choose) % away.len().max(1)) {
                    let outcome = flow.bring_back(place);
                    flows.note(&format!("task {place:?} is to come home: {outcome:?}"));
                }
            }
            BurstStep::Work { side, choose, times } => {
                let ran = away.work(side, choose, times);
                flows.note(&format!("{ran} tasks of {} run", name(side)));
            }
            BurstStep::Carry { side, bytes } => _ = away.carry(side, bytes.into(), flows)?,
            BurstStep::Cut { side, loses } => {
                away.ways.leave(side);
                if loses {
                    away.ways.lose(side);
                }
                flows.note(&format!("{} loses its connections", name(side)));
            }
            BurstStep::Replay { side } => {
                away.ways.replay(side);
                flows.note(&format!("bytes come to {} once more", name(side)));
            }
            BurstStep::Dial { side } => self.dial(side)?,
            BurstStep::Kill { side } => {
                if away.lent[side - 1].process.take().is_some() {
                    away.has_lost = true;
                    away.ways.leave(side);
                    flows.counts.stops += 1;
                    flows.note(&format!("-- {} is killed", name(side)));
                }
            }
            BurstStep::Turn { side, pace } => {
                away.lent[side - 1].pace = pace;
                flows.note(&format!("{} is {pace:?}", name(side)));
            }
            BurstStep::Pass { by_ms } => {
                away.pass(flows, 1_000 * i64::from(by_ms));
                flows.note(&format!("{by_ms} ms pass"));
            }
            BurstStep::Pause { is_paused } => {
                let flow = flows.running.as_ref().map(|running| &running.flow);
                flow.iter().for_each(|flow| if is_paused { flow.pause() } else { flow.resume() });
                flows.note(if is_paused { "the query is paused" } else { "the query goes on" });
            }
            BurstStep::Rounds { rounds } => {
                (1..=WORKERS).try_for_each(|side| self.dial(side))?;
                for _ in 0..rounds {
                    self.round()?;
                }
            }
        }
        Ok(())
    }

    /// Everything goes on a bit.
    fn round(&mut self) -> Result<(), String> {
        self.away.pass(&mut self.flows, ROUND_US);
        for side in 0..=WORKERS {
            let Self { flows, away, .. } = self;
            match side {
                SERVER => flows.running.iter().for_each(|running| _ = running.run(0, ROUND_RUNS)),
                worker => _ = away.work(worker, 0, ROUND_RUNS),
            }
            self.look()?;
            self.away.carry(side, usize::MAX, &mut self.flows)?;
            self.look()?;
        }
        self.flows.finish()?;
        self.look()
    }

    /// Everything goes on for some rounds, and nothing holds it up.
    fn go_on_for(&mut self, rounds: usize) -> Result<(), String> {
        self.away.lent.iter_mut().for_each(|lent| lent.pace = Pace::Normal);
        for _ in 0..rounds {
            (1..=WORKERS).try_for_each(|side| self.dial(side))?;
            self.flows.running.iter().for_each(|running| running.flow.resume());
            self.round()?;
        }
        Ok(())
    }

    fn run_until_idle(&mut self) -> Result<(), String> {
        self.flows.come_to_an_end();
        for _ in 0..ROUNDS_MAX {
            self.go_on_for(1)?;
            let outcome = self.flows.running.as_ref().and_then(|running| running.flow.wait(Duration::ZERO));
            if outcome == Some(Ok(())) {
                self.flows.check()?;
                return self.take_leave();
            }
        }
        Err("it does not come to its end".into())
    }

    /// Checks that workers have no tasks of a query that has ended, and the server no places.
    fn take_leave(&mut self) -> Result<(), String> {
        let mut left = Vec::new();
        for _ in 0..FAREWELL_ROUNDS {
            self.go_on_for(1)?;
            let away = &self.away;
            let is_busy = |side: &usize| {
                let process = away.working(*side, Pace::Normal);
                !away.ways.is_worked(*side) || process.is_none_or(|(worker, _)| worker.idle_since_us().is_none())
            };
            let workers = away.server.iter().flat_map(|(_, roster)| roster.workers());
            let held = workers.filter(|worker| worker.tickets > 0).map(|worker| format!("a place at {}", worker.name));
            left = (1..=WORKERS).filter(is_busy).map(name).chain(held).collect();
            if left.is_empty() {
                return Ok(());
            }
        }
        Err(format!("the query has ended, and this is left of it: {}", left.join(", ")))
    }
}
