//! The threads: workers that run tasks, a timekeeper that notices due deadlines, and a balancer that moves load.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rivulet_dataflow::{Clock, StateError};

use crate::balance::{self, Step, TaskLoad};
use crate::numa::Stands;
use crate::pool::{Pool, WorkerLoad};
use crate::scheduler::{Budget, Budgets, Closing, Consume, Policy, Runnable, SchedulerSetup, Stepped};
use crate::spill::{SWEEPS, Spill};
use crate::{Activation, Flow, FlowParts, Group, GroupId, GroupParts, Guest, GuestParts, Numa, Task, Topology};

/// How often deadlines are checked at most; windows of silent queries close with this precision.
const TIMER_PERIOD: Duration = Duration::from_millis(10);

/// The same for big queries: sources are polled again, and windows close by the clock.
const FLOW_TIMER_PERIOD: Duration = Duration::from_millis(1);

/// How long the timekeeper sleeps at most. So late is a timer when the clock is set forward.
const TIMER_SLEEP_MAX: Duration = Duration::from_secs(2);

/// How often load is measured where it is not balanced.
const MEASURE_PERIOD: Duration = Duration::from_secs(5);

/// How often the balancer looks at least whether memory is short.
const PRESSURE_PERIOD: Duration = Duration::from_secs(1);

/// With this many spilled queries it is worth a few milliseconds of every worker to return their memory.
const RELIEF_QUERIES_MIN: usize = 1_000;

/// The number of threads and how they work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Worker threads, at least one.
    pub threads: usize,
    /// Which task runs next, and where.
    pub policy: &'static Policy,
    /// How long a worker stays with a task while others wait.
    pub time_slice: Duration,
    /// How much of what waits a task takes before it returns its worker.
    pub consume: Consume,
    /// How often load is balanced; `None` for never.
    pub balance_period: Option<Duration>,
    /// The percentage of a worker's time beyond which a single query is cut in parts, if it can be; `None` for never.
    pub cut_above_percent: Option<u32>,
    /// Whether each worker thread is pinned to a core. With several memory nodes in use, threads are always pinned.
    pub pins: bool,
    /// Whether memory nodes are used for placement.
    pub numa: Numa,
}

impl Default for WorkerSettings {
    /// Two threads that own their groups, slices of 20 ms, all that waits, balanced every 5 s, queries cut from 95 %
    /// on, pinned where there are several memory nodes.
    fn default() -> Self {
        Self {
            threads: 2,
            policy: <&Policy>::default(),
            time_slice: Duration::from_millis(20),
            consume: Consume::All,
            balance_period: Some(Duration::from_secs(5)),
            cut_above_percent: Some(95),
            pins: false,
            numa: Numa::Auto,
        }
    }
}

/// The worker threads of this process, and its groups.
pub struct Workers {
    shared: Arc<Shared>,
    /// The ready tasks, where there are no threads.
    stepped: Option<Arc<Stepped>>,
}

struct Shared {
    settings: WorkerSettings,
    pool: Arc<Pool>,
    groups: Mutex<Groups>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Groups {
    all: Vec<Arc<Group>>,
    next_id: GroupId,
}

/// The state of one worker, for status pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: usize,
    /// The fraction of its time that its tasks need, as last measured; above 1 it cannot keep up.
    pub load: f64,
    /// The number of its tasks: those with queries, and those of big queries.
    pub tasks: usize,
    /// The core that it is pinned to, if any.
    pub core: Option<usize>,
    /// The memory node of that core, where the machine has several.
    pub node: Option<usize>,
}

impl Workers {
    /// Starts the workers and the timekeeper.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn start(settings: WorkerSettings, clock: Arc<dyn Clock>) -> std::io::Result<Self> {
        Self::start_on(settings, clock, Topology::of_this_machine())
    }

    /// The same on a machine with this topology. A worker whose core does not exist here runs on any core.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn start_on(settings: WorkerSettings, clock: Arc<dyn Clock>, topology: Topology) -> std::io::Result<Self> {
        let threads = settings.threads.max(1);
        let stands = Stands::new(topology, settings.numa, threads);
        let nodes = (0..threads).filter_map(|worker| stands.node(worker)).collect();
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let (shared, closing) = (shared.clone(), Arc::<Closing>::default());
            let setup = SchedulerSetup {
                closing: closing.clone(),
                nodes,
                budgets: Budgets { time_slice: settings.time_slice, consume: settings.consume },
                run: Arc::new(move |task, budget| {
                    if let Some(shared) = shared.upgrade() {
                        shared.run(task, budget);
                    }
                }),
            };
            Shared {
                settings,
                pool: Arc::new(Pool {
                    policy: settings.policy,
                    closing,
                    stands: Some(stands),
                    ..Pool::scheduled_by((settings.policy.make)(setup), clock)
                }),
                groups: Mutex::default(),
                threads: Mutex::default(),
            }
        });
        let workers = Self { shared: shared.clone(), stepped: None };
        for _ in 0..threads {
            shared.pool.workers.push(WorkerLoad::default());
            shared.start_worker(shared.pool.scheduler.add_worker())?;
        }
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let (timed, balanced) = (shared.clone(), shared.clone());
        let timekeeper = named("rivulet-timer").spawn(move || timed.keep_time())?;
        shared.threads.lock().push(timekeeper);
        // In a thread of its own, because moving many queries takes a while, and timers must not wait for it.
        let balancer = named("rivulet-balancer").spawn(move || balanced.keep_balance())?;
        shared.threads.lock().push(balancer);
        Ok(workers)
    }

    /// Workers without threads: the caller calls [`Workers::run_one`] and [`Workers::keep_time_once`], and so decides
    /// what happens when. Load is not balanced; the caller splits, merges and spills groups.
    pub fn stepped(clock: Arc<dyn Clock>) -> Self {
        let stepped = Arc::<Stepped>::default();
        let shared = Shared {
            settings: WorkerSettings { threads: 1, ..WorkerSettings::default() },
            pool: Arc::new(Pool::scheduled_by(Box::new(stepped.clone()), clock)),
            groups: Mutex::default(),
            threads: Mutex::default(),
        };
        Self { shared: Arc::new(shared), stepped: Some(stepped) }
    }

    /// Runs one of the ready tasks of [stepped](Workers::stepped) workers: `choose` gets their number and returns an
    /// index. Returns false if none is ready. A panic of the task reaches the caller.
    pub fn run_one(&self, choose: impl FnOnce(usize) -> usize, slice: Duration) -> bool {
        self.run_one_within(choose, Budget::of_time(slice))
    }

    /// The same within any budget.
    pub fn run_one_within(&self, choose: impl FnOnce(usize) -> usize, budget: Budget) -> bool {
        let Some(task) = self.stepped.as_ref().and_then(|ready| ready.take(choose)) else { return false };
        let outcome = task.run(budget);
        self.shared.goes_on(task, outcome);
        true
    }

    /// Schedules tasks again whose sink had no room. They are tried again every few milliseconds anyhow.
    pub fn retry_blocked(&self) {
        self.shared.pool.retry_blocked();
    }

    /// Schedules blocked tasks and due timers of [stepped](Workers::stepped) workers.
    pub fn keep_time_once(&self) {
        self.retry_blocked();
        let pool = &self.shared.pool;
        pool.schedule_due(&pool.deadlines);
        pool.schedule_due(&pool.flow_deadlines);
    }

    /// When [`Workers::keep_time_once`] next finds a due timer of a group, microseconds since the epoch.
    pub fn next_timer_us(&self) -> Option<i64> {
        self.shared.pool.deadlines.next_us()
    }

    /// Enables spilling of silent queries. A second call changes nothing.
    pub fn enable_spilling(&self, spill: Spill) {
        self.shared.pool.enable_spilling(spill);
        // The balancer sleeps until something is to be done.
        self.shared.threads.lock().iter().for_each(|thread| thread.thread().unpark());
    }

    /// Holds the timers of groups at `at_us` until the next call, because later events are still to be replayed.
    /// `i64::MAX` lets timers follow the clock.
    pub fn hold_timers_at(&self, at_us: i64) {
        self.shared.pool.held_at_us.store(at_us, Ordering::Release);
    }

    /// Makes each worker call `give_back` after queries were spilled, which returns memory that the calling thread's
    /// heap does not need. A second call changes nothing.
    pub fn give_back_with(&self, give_back: fn()) {
        let _ = self.shared.pool.relief.give_back.set(give_back);
    }

    /// Where silent queries are spilled to, if spilling is enabled.
    pub fn spill(&self) -> Option<&Spill> {
        self.shared.pool.spill.get()
    }

    /// Creates a group that these workers run.
    pub fn create_group(&self, parts: GroupParts) -> Arc<Group> {
        let mut groups = self.shared.groups.lock();
        let group = Group::new(groups.next_id, parts, self.shared.pool.clone());
        groups.next_id += 1;
        groups.all.push(group.clone());
        group
    }

    /// Runs a big query.
    ///
    /// # Errors
    /// The restored state is not that of its operators.
    pub fn start_flow(&self, parts: FlowParts) -> Result<Flow, StateError> {
        Flow::start(parts, &self.shared.pool)
    }

    /// Runs the operators of a task of a flow elsewhere.
    ///
    /// # Errors
    /// The state is not that of its operators.
    pub fn start_guest(&self, parts: GuestParts) -> Result<Guest, StateError> {
        Guest::start(parts, &self.shared.pool)
    }

    /// Removes a group. Its sources must have released it already.
    pub fn remove_group(&self, id: GroupId) {
        self.shared.groups.lock().all.retain(|group| group.id() != id);
    }

    /// All groups.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.shared.groups.lock().all.clone()
    }

    /// Whether every started thread, worker or timekeeper, is running. False once stopped.
    pub fn are_alive(&self) -> bool {
        let threads = self.shared.threads.lock();
        !threads.is_empty() && !threads.iter().any(JoinHandle::is_finished)
    }

    /// For how long workers have run tasks, in all, since the first call, microseconds.
    pub fn busy_us(&self) -> u64 {
        self.shared.pool.counts_busy.store(true, Ordering::Relaxed);
        self.shared.pool.busy_ns.load(Ordering::Relaxed) / 1_000
    }

    /// The number of tasks that wait for a worker.
    pub fn waiting_tasks(&self) -> usize {
        self.shared.pool.scheduler.waiting()
    }

    /// The state of each worker; empty where tasks belong to no worker.
    pub fn status(&self) -> Vec<WorkerStatus> {
        let pool = &self.shared.pool;
        if !pool.policy.is_balanced() {
            return Vec::new();
        }
        let mut status: Vec<WorkerStatus> = pool
            .workers
            .iter()
            .map(|(worker, load)| WorkerStatus {
                worker,
                load: load.load(),
                tasks: load.flow_tasks(),
                core: self.shared.core(worker),
                node: pool.node(worker),
            })
            .collect();
        let groups = self.groups();
        for task in groups.iter().flat_map(|group| group.tasks()).filter(|task| task.queries() > 0) {
            for worker in std::iter::once(task.worker()).chain(task.workers_of_parts()) {
                if let Some(worker) = status.get_mut(worker) {
                    worker.tasks += 1;
                }
            }
        }
        status
    }

    /// Measures load by what came since the last call and, unless configured otherwise, balances it.
    pub fn balance(&self, elapsed: Duration) {
        self.shared.balance(elapsed);
    }

    /// Lets the workers finish ready tasks, for a bounded time, joins them, and returns how many events still wait.
    /// Further calls do nothing. Sources should have been closed before.
    pub fn stop(&self) -> usize {
        let pool = &self.shared.pool;
        pool.closing.begin();
        pool.scheduler.wake_all();
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        // The timekeeper and the balancer sleep otherwise, until something is to be done.
        threads.iter().for_each(|thread| thread.thread().unpark());
        for thread in threads {
            // A panic in a worker was caught and reported where it happened.
            let _ = thread.join();
        }
        pool.blocked.lock().clear();
        pool.scheduler.clear();
        self.groups().iter().map(|group| group.waiting().0).sum()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How long a task must have run, where there are shares, before its worker yields its core: the system would let other
/// threads wait for some milliseconds.
const YIELDS_AFTER: Duration = Duration::from_micros(80);

impl Shared {
    fn start_worker(self: &Arc<Self>, worker: usize) -> std::io::Result<()> {
        let shared = self.clone();
        let thread = std::thread::Builder::new().name(format!("rivulet-worker-{worker}"));
        self.threads.lock().push(thread.spawn(move || shared.work(worker))?);
        Ok(())
    }

    /// The core that a worker is pinned to, if any.
    fn core(&self, worker: usize) -> Option<usize> {
        let stands = self.pool.stands.as_ref()?;
        stands.core(worker).filter(|_| self.settings.pins || stands.has_nodes())
    }

    fn work(&self, worker: usize) {
        if let Some(core) = self.core(worker) {
            pin(worker, core);
        }
        let (scheduler, closing) = (&self.pool.scheduler, &self.pool.closing);
        let mut relieved = 0;
        loop {
            self.pool.relief.follow(&mut relieved);
            match scheduler.next(worker) {
                Some((task, budget)) => self.run(task, budget),
                None if closing.is_over() || self.pool.scheduled.load(Ordering::Acquire) == 0 => return,
                // A task waits for room in its sink, or runs and may have to run again.
                None => std::thread::sleep(TIMER_PERIOD / 10),
            }
        }
    }

    /// Runs a task that the scheduler has handed out.
    fn run(&self, task: Arc<dyn Runnable>, budget: Budget) {
        let (counts_busy, measures) = (self.pool.counts_busy.load(Ordering::Relaxed), self.pool.scheduler.measures());
        let begun = (counts_busy || measures).then(Instant::now);
        let outcome = catch_unwind(AssertUnwindSafe(|| task.run(budget))).unwrap_or_else(|_| {
            tracing::error!(application = task.name(), "an activation was cut short by a defect in the engine");
            Activation::Ran(0)
        });
        let time = begun.map(|begun| begun.elapsed());
        if let Some(time) = time {
            if counts_busy {
                self.pool.busy_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
            }
            self.pool.scheduler.ran(&*task, time);
        }
        self.goes_on(task, outcome);
        // Threads that bring events and take results may wait for the core as others wait for the worker.
        if measures && time.is_some_and(|time| time >= YIELDS_AFTER) {
            std::thread::yield_now();
        }
    }

    /// Decides what happens to a task after a run.
    fn goes_on(&self, task: Arc<dyn Runnable>, outcome: Activation) {
        match outcome {
            Activation::Ran(_) => self.pool.ran(task),
            Activation::Yielded(_) => self.pool.schedule_again(task),
            // The task keeps its standing as running, so that no push schedules it before the timekeeper does.
            Activation::Blocked => self.pool.block(task),
        }
    }

    fn keep_time(&self) {
        let (pool, closing) = (&self.pool, &self.pool.closing);
        let timed = [(&pool.deadlines, TIMER_PERIOD), (&pool.flow_deadlines, FLOW_TIMER_PERIOD)];
        timed.iter().for_each(|(deadlines, _)| deadlines.keep_time());
        let mut looked = [Instant::now(); 2];
        while !closing.has_begun() || (pool.scheduled.load(Ordering::Acquire) > 0 && !closing.is_over()) {
            let is_short = closing.has_begun() || !pool.blocked.lock().is_empty();
            let mut pause = if is_short { TIMER_PERIOD } else { TIMER_SLEEP_MAX };
            let now_us = pool.clock.now_us();
            for ((deadlines, period), looked) in timed.iter().zip(&looked) {
                let left = deadlines.sleep(now_us, TIMER_SLEEP_MAX);
                pause = pause.min(left.max(period.saturating_sub(looked.elapsed())));
            }
            std::thread::park_timeout(pause);
            if looked[0].elapsed() >= TIMER_PERIOD {
                looked[0] = Instant::now();
                pool.deadlines.wake();
                pool.retry_blocked();
                if !closing.has_begun() {
                    pool.schedule_due(&pool.deadlines);
                }
            }
            if looked[1].elapsed() >= FLOW_TIMER_PERIOD {
                looked[1] = Instant::now();
                pool.flow_deadlines.wake();
                pool.schedule_due(&pool.flow_deadlines);
            }
        }
    }

    fn keep_balance(&self) {
        let period = self.settings.balance_period.unwrap_or(MEASURE_PERIOD);
        let (mut looked, mut swept, mut relieved) = (Instant::now(), Instant::now(), 0);
        while !self.pool.closing.has_begun() {
            let spill = self.pool.spill.get();
            let to_sweep = spill.map(|spill| spill.sweep_period().saturating_sub(swept.elapsed()).min(PRESSURE_PERIOD));
            // The stop ends this wait, and so does spilling when it begins.
            std::thread::park_timeout(to_sweep.unwrap_or(period).min(period.saturating_sub(looked.elapsed())));
            if looked.elapsed() >= period {
                let elapsed = looked.elapsed();
                looked = Instant::now();
                self.balance(elapsed);
            }
            if let Some(spill) = self.pool.spill.get() {
                let period = spill.sweep_period();
                if swept.elapsed() >= period {
                    swept = Instant::now();
                    self.spill(period);
                    self.pool.relief.follow(&mut relieved);
                }
            }
        }
    }

    /// One sweep over all groups.
    fn spill(&self, period: Duration) {
        // A query with something due before it could be silent for that long again is not worth spilling.
        let horizon_us = i64::try_from((period * u32::from(SWEEPS)).as_micros()).unwrap_or(i64::MAX);
        let groups = self.groups.lock().all.clone();
        let mut spilled = 0;
        for group in &groups {
            if self.pool.closing.has_begun() {
                return;
            }
            // The sweep in which the last event came does not count as a whole one.
            match group.spill_silent(SWEEPS + 1, horizon_us) {
                Ok(0) => {}
                Ok(queries) => {
                    spilled += queries;
                    tracing::debug!(application = group.name(), queries, "silent queries are on disk");
                }
                Err(error) => {
                    tracing::error!(application = group.name(), "silent queries stay in memory: {error}");
                }
            }
        }
        if spilled >= RELIEF_QUERIES_MIN {
            self.pool.relief.ask();
            // A sleeping worker learns of it with its next task; if all is silent, that is a task without events.
            let mut called = HashSet::new();
            for task in groups.iter().flat_map(|group| group.tasks()) {
                if called.insert(task.worker()) {
                    task.schedule();
                }
            }
        }
    }

    /// Measures every task, and carries out the plan of the balancer.
    fn balance(&self, elapsed: Duration) {
        let groups = self.groups.lock().all.clone();
        let tasks: Vec<(&Arc<Group>, Arc<Task>)> =
            groups.iter().flat_map(|group| group.tasks().map(move |task| (group, task.clone()))).collect();
        let cut_above = self.settings.cut_above_percent.map_or(f64::INFINITY, |percent| f64::from(percent) / 100.0);
        let mut loads = vec![0.0; self.pool.workers.count()];
        let mut seen = Vec::new();
        for (index, (group, task)) in tasks.iter().enumerate() {
            let mut meter = task.load.lock();
            let workers: Vec<usize> = std::iter::once(task.worker()).chain(task.workers_of_parts()).collect();
            meter.look(task.seen(), elapsed, workers.len());
            let load = meter.load() / workers.len() as f64;
            let is_hot = meter.load() > cut_above && task.is_one_hot_query();
            for &worker in &workers {
                if let Some(of_worker) = loads.get_mut(worker) {
                    *of_worker += load;
                }
                if task.queries() > 0 {
                    seen.push(TaskLoad {
                        task: index,
                        group: group.id() as usize,
                        worker,
                        load,
                        queries: task.queries(),
                        rests: meter.rests() || !group.is_movable(),
                        parts: workers.len(),
                        is_one_hot_query: is_hot,
                    });
                }
            }
        }
        for (worker, load) in &self.pool.workers {
            load.load.store((loads[worker] * 1_000.0) as usize, Ordering::Relaxed);
            load.placed.store(0, Ordering::Relaxed);
        }
        if !self.pool.policy.is_balanced() || self.settings.balance_period.is_none() {
            return;
        }
        for step in balance::plan(loads.len(), &seen, cut_above) {
            let (task, done) = match step {
                Step::Move { task, to } => {
                    let task = &tasks[task].1;
                    task.assign(to);
                    let load = task.load.lock().load();
                    task.load.lock().moved(task.seen(), load);
                    (task, Ok(()))
                }
                Step::Split { task, to } => {
                    let (group, task) = &tasks[task];
                    let half = task.load.lock().load() / 2.0;
                    let done = group.split(task).map(|other| {
                        other.assign(to);
                        other.load.lock().moved(other.seen(), half);
                        task.load.lock().moved(task.seen(), half);
                    });
                    (task, done)
                }
                Step::Merge { task, into } => {
                    let (group, task) = &tasks[task];
                    (task, group.merge(task, &tasks[into].1))
                }
                Step::Cut { task, to } => {
                    let (group, task) = &tasks[task];
                    let load = task.load.lock().load();
                    // In a task of its own, so that other queries are not held up whenever its parts are joined.
                    let done = group.isolate(task).map(|alone| {
                        let Some(alone) = alone else { return };
                        let workers = [alone.workers_of_parts(), vec![to]].concat();
                        group.cut_on(&alone, &workers);
                        alone.load.lock().moved(alone.seen(), load);
                    });
                    (task, done)
                }
                Step::Join { task } => {
                    let (group, task) = &tasks[task];
                    group.cut_on(task, &[]);
                    let load = task.load.lock().load();
                    task.load.lock().moved(task.seen(), load);
                    (task, Ok(()))
                }
            };
            match done {
                Ok(()) => tracing::debug!(application = task.name(), ?step, "load is evened out"),
                Err(error) => tracing::error!(application = task.name(), "queries stay where they are: {error}"),
            }
        }
    }
}

/// Pins the calling thread to a core.
fn pin(worker: usize, core: usize) {
    let mut one = CpuSet::new();
    let pinned = one.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &one));
    if let Err(error) = pinned {
        tracing::warn!("worker {worker} runs on any core: {error}");
    }
}
