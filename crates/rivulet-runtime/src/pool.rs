//! The pool of workers, with what a process has once for all groups: the clock, the scheduler, and the deadlines of
//! tasks.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use rivulet_dataflow::Clock;

use crate::balance::UNDERLOADED;
use crate::labels::{LabelHash, Labels};
use crate::numa::Stands;
use crate::scheduler::{Budget, Closing, Policy, Runnable, STEPPED, Scheduler};
use crate::spill::Spill;

/// The workers, and what all groups share.
pub(crate) struct Pool {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) policy: &'static Policy,
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) closing: Arc<Closing>,
    /// The number of tasks that wait for a worker, run, or wait for room in their sink.
    pub(crate) scheduled: AtomicUsize,
    /// For how long workers have run tasks, in all, nanoseconds, since somebody asked; and whether somebody has.
    pub(crate) busy_ns: AtomicU64,
    pub(crate) counts_busy: AtomicBool,
    /// Tasks whose sink had no room, or whose group was suspended: at most all tasks.
    pub(crate) blocked: Mutex<Vec<Arc<dyn Runnable>>>,
    pub(crate) deadlines: Deadlines,
    /// The same for tasks of big queries.
    pub(crate) flow_deadlines: Deadlines,
    pub(crate) workers: boxcar::Vec<WorkerLoad>,
    /// The cores and memory nodes of the workers, if there are any.
    pub(crate) stands: Option<Stands>,
    /// Where silent queries are spilled to, if spilling is enabled.
    pub(crate) spill: OnceLock<Spill>,
    pub(crate) relief: Relief,
    pub(crate) labels: Labels,
    /// Timers are held at this time while later events are still to be replayed; `i64::MAX` otherwise.
    pub(crate) held_at_us: AtomicI64,
}

/// Asks threads to return memory. In an allocator with a heap for each thread, memory that one thread has allocated and
/// another has freed goes back to the system only when the first thread is asked to return it.
#[derive(Default)]
pub(crate) struct Relief {
    /// Makes the calling thread return memory.
    pub(crate) give_back: OnceLock<fn()>,
    /// How often the threads were asked.
    asked: AtomicUsize,
}

impl Relief {
    /// Asks every worker to return memory after the next task it runs.
    pub(crate) fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns memory if that was asked since `done`.
    pub(crate) fn follow(&self, done: &mut usize) {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked != *done
            && let Some(give_back) = self.give_back.get()
        {
            *done = asked;
            give_back();
        }
    }
}

/// The load of a worker, as the balancer last saw it.
#[derive(Debug, Default)]
pub(crate) struct WorkerLoad {
    /// In thousandths of its time.
    pub(crate) load: AtomicUsize,
    /// The number of tasks placed on it since.
    pub(crate) placed: AtomicUsize,
    /// The number of its tasks of big queries.
    pub(crate) flow_tasks: AtomicUsize,
}

impl WorkerLoad {
    /// The fraction of its time that its groups need, as last measured.
    pub(crate) fn load(&self) -> f64 {
        self.load.load(Ordering::Relaxed) as f64 / 1_000.0
    }

    pub(crate) fn flow_tasks(&self) -> usize {
        self.flow_tasks.load(Ordering::Relaxed)
    }
}

impl Pool {
    /// A pool without workers: the caller runs tasks.
    pub(crate) fn stepped(clock: Arc<dyn Clock>) -> Self {
        Self::scheduled_by(Box::new(Nobody), clock)
    }

    /// A pool without workers, whose scheduler the caller asks.
    pub(crate) fn scheduled_by(scheduler: Box<dyn Scheduler>, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            policy: &STEPPED,
            scheduler,
            closing: Arc::default(),
            scheduled: AtomicUsize::new(0),
            busy_ns: AtomicU64::new(0),
            counts_busy: AtomicBool::new(false),
            blocked: Mutex::default(),
            deadlines: Deadlines::default(),
            flow_deadlines: Deadlines::default(),
            workers: boxcar::Vec::new(),
            stands: None,
            spill: OnceLock::new(),
            relief: Relief::default(),
            labels: Labels::default(),
            held_at_us: AtomicI64::new(i64::MAX),
        }
    }

    /// Hands a task that may have work to the scheduler, if the task is idle. If it already waits there, a scheduler
    /// that asks for it is told how much waits now.
    pub(crate) fn schedule<T: Runnable + 'static>(&self, task: &Arc<T>) {
        if self.is_to_be_told(&**task) {
            self.scheduler.ready(task.clone(), task.pending());
        }
    }

    /// Does the same for all tasks whose deadline has passed.
    pub(crate) fn schedule_due(&self, deadlines: &Deadlines) {
        for task in deadlines.due(self.clock.now_us()) {
            self.tell(task);
        }
    }

    /// As [`Pool::schedule`].
    pub(crate) fn tell(&self, task: Arc<dyn Runnable>) {
        if self.is_to_be_told(&*task) {
            let pending = task.pending();
            self.scheduler.ready(task, pending);
        }
    }

    /// A worker returns a task that has more work: its budget is spent, or its sink had no room.
    pub(crate) fn schedule_again(&self, task: Arc<dyn Runnable>) {
        self.note_due(&*task);
        task.standing().again();
        let pending = task.pending();
        self.scheduler.ready(task, pending);
    }

    /// Schedules tasks again whose sink had no room, or whose group was suspended.
    pub(crate) fn retry_blocked(&self) {
        let blocked = std::mem::take(&mut *self.blocked.lock());
        blocked.into_iter().for_each(|task| self.schedule_again(task));
    }

    /// Keeps a task whose sink had no room, or whose group was suspended, until the timekeeper schedules it again.
    pub(crate) fn block(&self, task: Arc<dyn Runnable>) {
        let mut blocked = self.blocked.lock();
        blocked.push(task);
        let is_first = blocked.len() == 1;
        drop(blocked);
        if is_first {
            self.deadlines.ring();
        }
    }

    /// A worker returns a task without work. Later work schedules it again; work that came meanwhile does so at once.
    pub(crate) fn ran(&self, task: Arc<dyn Runnable>) {
        task.standing().release();
        self.scheduled.fetch_sub(1, Ordering::AcqRel);
        if task.has_work() {
            self.tell(task);
        }
    }

    /// Whether the scheduler must be told of work for a task.
    fn is_to_be_told(&self, task: &dyn Runnable) -> bool {
        let standing = task.standing();
        if standing.claim() {
            self.note_due(task);
            self.scheduled.fetch_add(1, Ordering::AcqRel);
            // At the end no worker is left to run the task, and waiting events have been reported.
            return !self.closing.is_over();
        }
        self.policy.follows_pending && standing.is_waiting()
    }

    /// Notes when a task becomes due, if it asks for that.
    fn note_due(&self, task: &dyn Runnable) {
        if task.is_timed() {
            task.standing().note_due(self.clock.steady_us());
        }
    }

    /// Enables spilling of silent queries; a second call changes nothing.
    pub(crate) fn enable_spilling(&self, spill: Spill) {
        let _ = self.spill.set(spill);
    }

    /// The worker for the first task of a group with a label: that of other groups with the label, unless it is busy or
    /// there are none.
    pub(crate) fn place_near(&self, label: LabelHash) -> usize {
        let has_room = |worker: &usize| {
            let load = self.workers.get(*worker).map(|worker| worker.load.load(Ordering::Relaxed));
            load.is_some_and(|thousandths| (thousandths as f64) < UNDERLOADED * 1_000.0)
        };
        let worker = self.labels.worker(label).filter(has_room).unwrap_or_else(|| self.place());
        self.labels.note(label, worker);
        worker
    }

    /// The workers for the parallel instances of a big query, by instance: on as few nodes as have room for them.
    pub(crate) fn place_flow(&self, instances: usize) -> Vec<usize> {
        let load: Vec<f64> = self.workers.iter().map(|(_, load)| load.load() + load.flow_tasks() as f64).collect();
        match &self.stands {
            Some(stands) => stands.workers_for(instances, &load),
            None => vec![0; instances],
        }
    }

    /// The node of a worker by its number in the system, where there is more than one.
    pub(crate) fn node(&self, worker: usize) -> Option<usize> {
        self.stands.as_ref()?.node(worker)
    }

    /// The worker for a new task: at random one of the two least loaded.
    pub(crate) fn place(&self) -> usize {
        let mut least: [Option<(usize, usize, usize)>; 2] = [None, None];
        for (worker, load) in &self.workers {
            let rank = (load.load.load(Ordering::Relaxed), load.placed.load(Ordering::Relaxed), worker);
            if least[0].is_none_or(|first| rank < first) {
                least = [Some(rank), least[0]];
            } else if least[1].is_none_or(|second| rank < second) {
                least[1] = Some(rank);
            }
        }
        let candidates: Vec<usize> = least.into_iter().flatten().map(|(_, _, worker)| worker).collect();
        match candidates.len() {
            0 => 0,
            several => {
                let worker = candidates[rand::rng().random_range(0..several)];
                self.workers[worker].placed.fetch_add(1, Ordering::Relaxed);
                worker
            }
        }
    }
}

/// The scheduler of tasks that are run by hand: it forgets them.
struct Nobody;

impl Scheduler for Nobody {
    fn ready(&self, _task: Arc<dyn Runnable>, _pending: usize) {}

    fn next(&self, _worker: usize) -> Option<(Arc<dyn Runnable>, Budget)> {
        None
    }

    fn waiting(&self) -> usize {
        0
    }

    fn add_worker(&self) -> usize {
        0
    }

    fn wake_all(&self) {}

    fn clear(&self) {}
}

/// The number of a task's entry among the deadlines.
pub(crate) type DeadlineId = usize;

/// When each task next wants to run, side by side in memory: thousands are looked at in microseconds.
///
/// What must hold: the timekeeper sleeps until the first deadline, and who sets an earlier one wakes it. A fence on
/// both sides, between the store and the load, makes one of them see the other.
pub(crate) struct Deadlines {
    /// Clock time, microseconds; `i64::MAX` for never.
    at_us: boxcar::Vec<AtomicI64>,
    tasks: Mutex<Registered>,
    /// Who sets a deadline before this time wakes the timekeeper; `i64::MIN` once it is awake or rung, until it looks.
    wakes_before_us: AtomicI64,
    /// None where the caller keeps the time.
    timekeeper: OnceLock<Thread>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            at_us: boxcar::Vec::new(),
            tasks: Mutex::default(),
            wakes_before_us: AtomicI64::new(i64::MIN),
            timekeeper: OnceLock::new(),
        }
    }
}

#[derive(Default)]
struct Registered {
    /// By number; `None` for a task that has ended.
    tasks: Vec<Option<Weak<dyn Runnable>>>,
    free: Vec<DeadlineId>,
}

impl Deadlines {
    pub(crate) fn register(&self, task: Weak<dyn Runnable>) -> DeadlineId {
        let mut registered = self.tasks.lock();
        if let Some(id) = registered.free.pop() {
            registered.tasks[id] = Some(task);
            return id;
        }
        registered.tasks.push(Some(task));
        self.at_us.push(AtomicI64::new(i64::MAX))
    }

    pub(crate) fn set(&self, id: DeadlineId, at_us: i64) {
        self.at_us[id].store(at_us, Ordering::Release);
        fence(Ordering::SeqCst);
        if at_us < self.wakes_before_us.load(Ordering::Relaxed) {
            self.ring();
        }
    }

    /// The calling thread is the timekeeper from now on.
    pub(crate) fn keep_time(&self) {
        let _ = self.timekeeper.set(std::thread::current());
    }

    /// Wakes the timekeeper, or ends its next sleep.
    pub(crate) fn ring(&self) {
        // Further deadlines need not wake it.
        self.wakes_before_us.store(i64::MIN, Ordering::Relaxed);
        self.timekeeper.get().inspect(|timekeeper| timekeeper.unpark());
    }

    /// The timekeeper falls asleep: for how long at most, if it is not woken.
    pub(crate) fn sleep(&self, now_us: i64, limit: Duration) -> Duration {
        let mut until_us = self.wakes_before_us.load(Ordering::Relaxed);
        // What it found the last time holds, unless it has been woken since then.
        if until_us == i64::MIN {
            self.wakes_before_us.store(i64::MAX, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let limit_us = now_us.saturating_add(i64::try_from(limit.as_micros()).unwrap_or(i64::MAX));
            until_us = self.next_us().unwrap_or(i64::MAX).min(limit_us);
            // It fails if a deadline was set meanwhile. Then this sleep ends at once, and the next one looks again.
            let _ = self.wakes_before_us.compare_exchange(i64::MAX, until_us, Ordering::Relaxed, Ordering::Relaxed);
        }
        Duration::from_micros(u64::try_from(until_us.saturating_sub(now_us)).unwrap_or(0))
    }

    /// The timekeeper is awake, and need not be woken.
    pub(crate) fn wake(&self) {
        self.wakes_before_us.store(i64::MIN, Ordering::Relaxed);
    }

    pub(crate) fn forget(&self, id: DeadlineId) {
        self.set(id, i64::MAX);
        let mut registered = self.tasks.lock();
        registered.tasks[id] = None;
        registered.free.push(id);
    }

    /// The earliest deadline, if any task has one.
    pub(crate) fn next_us(&self) -> Option<i64> {
        self.at_us.iter().map(|(_, at_us)| at_us.load(Ordering::Acquire)).min().filter(|&at_us| at_us != i64::MAX)
    }

    /// The tasks whose deadline has passed.
    fn due(&self, now_us: i64) -> Vec<Arc<dyn Runnable>> {
        let due: Vec<DeadlineId> =
            self.at_us.iter().filter(|(_, at_us)| at_us.load(Ordering::Acquire) <= now_us).map(|(id, _)| id).collect();
        if due.is_empty() {
            return Vec::new();
        }
        let registered = self.tasks.lock();
        due.into_iter().filter_map(|id| registered.tasks[id].as_ref()?.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::scheduler::{Activation, Standing};

    struct Never(Standing);

    impl Runnable for Never {
        fn name(&self) -> &str {
            "never"
        }

        fn worker(&self) -> usize {
            0
        }

        fn standing(&self) -> &Standing {
            &self.0
        }

        fn pending(&self) -> usize {
            0
        }

        fn run(&self, _budget: Budget) -> Activation {
            Activation::Ran(0)
        }

        fn has_work(&self) -> bool {
            false
        }
    }

    #[test]
    fn an_earlier_deadline_ends_the_sleep_and_a_later_one_does_not() {
        const MINUTE: Duration = Duration::from_secs(60);
        let deadlines = Deadlines::default();
        let task: Arc<dyn Runnable> = Arc::new(Never(Standing::default()));
        let [one, other] = [&task, &task].map(|task| deadlines.register(Arc::downgrade(task)));
        let wakes_before_us = || deadlines.wakes_before_us.load(Ordering::Relaxed);
        deadlines.set(one, 50);
        assert_eq!(wakes_before_us(), i64::MIN, "nobody sleeps");
        assert_eq!(deadlines.sleep(10, MINUTE), Duration::from_micros(40));
        deadlines.set(other, 60);
        assert_eq!(wakes_before_us(), 50);
        deadlines.set(other, 49);
        assert_eq!(wakes_before_us(), i64::MIN, "it was woken");
        assert_eq!(deadlines.sleep(60, MINUTE), Duration::ZERO, "this one has passed");
        [one, other].iter().for_each(|id| deadlines.set(*id, i64::MAX));
        assert_eq!(deadlines.sleep(60, MINUTE), Duration::ZERO, "it has not looked again");
        deadlines.wake();
        assert_eq!(deadlines.sleep(60, MINUTE), MINUTE);
        deadlines.wake();
        assert_eq!(wakes_before_us(), i64::MIN);

        // With a deadline set again and again from another thread, no sleep lasts until its limit.
        deadlines.keep_time();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let (to_sleeper, rounds) = std::sync::mpsc::channel();
            let deadlines = &deadlines;
            scope.spawn(move || {
                for round in rounds {
                    deadlines.set(one, round);
                }
            });
            for round in 1..=1_000 {
                deadlines.set(one, i64::MAX);
                to_sleeper.send(round).unwrap();
                while deadlines.next_us() != Some(round) {
                    std::thread::park_timeout(deadlines.sleep(0, MINUTE));
                    deadlines.wake();
                }
            }
        });
        assert!(begun.elapsed() < MINUTE);
    }
}
