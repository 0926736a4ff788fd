//! A queue for each worker, so that a task stays where its state is warm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rivulet_dataflow::hold::{self, Wake};

use super::lines::{Lines, SLICE};
use super::{Belonging, Budget, Budgets, Closing, Policy, Runnable, Scheduler, SchedulerSetup};

/// Each task belongs to a worker, which runs its tasks first in, first out, and those of several shares in turns by the
/// time that each share had. An idle worker helps the others.
pub(super) static GROUP: Policy = Policy {
    name: "group",
    help: "its own first, then those of others",
    belonging: Belonging::Balanced,
    follows_pending: false,
    make: |setup| Box::new(Owned::new(true, setup)),
};

/// The same, but no worker runs a task of another: only the balancer evens out the load.
pub(super) static PINNED: Policy = Policy {
    name: "pinned",
    help: "its own only",
    belonging: Belonging::Balanced,
    follows_pending: false,
    make: |setup| Box::new(Owned::new(false, setup)),
};

/// With this many waiting tasks, a push wakes another worker to help. A single task is run sooner by its owner than by
/// a worker that must be woken first.
const HELP_FROM: usize = 2;

/// The same for a worker on another memory node, which is farther from the state of the task.
const HELP_FAR_FROM: usize = 4;

/// Ready tasks by the worker that owns them.
pub struct Owned {
    queues: boxcar::Vec<Arc<Queue>>,
    /// Whether an idle worker takes tasks of others.
    helps: bool,
    /// The memory node of each worker, where there is more than one node.
    nodes: Vec<usize>,
    /// The number of sleeping workers, so that no one is looked for when there is none.
    asleep: AtomicUsize,
    /// Whether any task has a share of its own: until then nobody has to measure, and turns are as long as they may be.
    has_shares: AtomicBool,
    budgets: Budgets,
    closing: Arc<Closing>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    tasks: Lines,
    is_asleep: bool,
}

impl Wake for Queue {
    fn wake(&self) {
        self.came.notify_one();
    }
}

impl Owned {
    /// A scheduler without workers yet. `helps` says whether idle workers take tasks of others.
    pub fn new(helps: bool, SchedulerSetup { closing, nodes, budgets, .. }: SchedulerSetup) -> Self {
        let (queues, asleep, has_shares) = (boxcar::Vec::new(), AtomicUsize::new(0), AtomicBool::new(false));
        Self { queues, helps, nodes, asleep, has_shares, budgets, closing }
    }

    /// Takes the oldest task of the longest queue of another worker; from another memory node only if no near queue has
    /// any.
    fn help(&self, worker: usize) -> Option<Arc<dyn Runnable>> {
        let longest = |is_near: bool| {
            let others = self.queues.iter().filter(|(other, _)| *other != worker);
            let others = others.filter(|(other, _)| self.are_near(*other, worker) == is_near);
            others.map(|(_, queue)| (queue.state.lock().tasks.waiting(), queue)).max_by_key(|(waiting, _)| *waiting)
        };
        let near = longest(true).filter(|(waiting, _)| *waiting > 0);
        let (_, queue) = near.or_else(|| longest(false).filter(|(waiting, _)| *waiting >= HELP_FAR_FROM))?;
        queue.state.lock().tasks.take()
    }

    fn are_near(&self, one: usize, other: usize) -> bool {
        self.nodes.get(one) == self.nodes.get(other)
    }

    /// Wakes a sleeping worker, on the same memory node if possible, because tasks wait for a busy one.
    fn wake_a_helper(&self, busy: usize, waiting: usize) {
        let asleep = |is_near: bool| {
            let mut others = self.queues.iter().filter(|(other, _)| *other != busy);
            others.find(|(other, queue)| self.are_near(*other, busy) == is_near && queue.state.lock().is_asleep)
        };
        let far = || if waiting >= HELP_FAR_FROM { asleep(false) } else { None };
        if let Some((_, queue)) = asleep(true).or_else(far) {
            queue.came.notify_one();
        }
    }
}

impl Scheduler for Owned {
    fn ready(&self, task: Arc<dyn Runnable>, _pending: usize) {
        let worker = task.worker();
        let queue = &self.queues[worker];
        let mut state = queue.state.lock();
        if !task.standing().enter() {
            return;
        }
        if task.standing().share().is_some() && !self.measures() {
            self.has_shares.store(true, Ordering::Relaxed);
        }
        state.tasks.enter(task);
        let (is_asleep, waiting) = (state.is_asleep, state.tasks.waiting());
        drop(state);
        if is_asleep {
            hold::wake(queue);
        } else if self.helps && waiting >= HELP_FROM && self.asleep.load(Ordering::Relaxed) > 0 {
            self.wake_a_helper(worker, waiting);
        }
    }

    fn next(&self, worker: usize) -> Option<(Arc<dyn Runnable>, Budget)> {
        let queue = &self.queues[worker];
        loop {
            if self.closing.is_over() {
                return None;
            }
            let own = queue.state.lock().tasks.take();
            if let Some(task) = own.or_else(|| if self.helps { self.help(worker) } else { None }) {
                let mut budget = self.budgets.of(&*task, usize::MAX);
                if self.measures() {
                    budget.time = budget.time.min(SLICE);
                }
                return Some((task, budget));
            }
            let mut state = queue.state.lock();
            if state.tasks.waiting() > 0 {
                continue;
            }
            if self.closing.has_begun() {
                return None;
            }
            state.is_asleep = true;
            self.asleep.fetch_add(1, Ordering::Relaxed);
            queue.came.wait(&mut state);
            self.asleep.fetch_sub(1, Ordering::Relaxed);
            state.is_asleep = false;
        }
    }

    fn measures(&self) -> bool {
        self.has_shares.load(Ordering::Relaxed)
    }

    fn ran(&self, task: &dyn Runnable, time: Duration) {
        // Of the worker that it belongs to, also where another one has helped.
        self.queues[task.worker()].state.lock().tasks.took(task.standing().share(), time);
    }

    fn waiting(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.state.lock().tasks.waiting()).sum()
    }

    fn add_worker(&self) -> usize {
        self.queues.push(Arc::default())
    }

    fn wake_all(&self) {
        for (_, queue) in &self.queues {
            // Notifying under the lock: a worker that has just looked at its queue is already asleep.
            let _state = queue.state.lock();
            queue.came.notify_all();
        }
    }

    fn clear(&self) {
        for (_, queue) in &self.queues {
            let tasks = std::mem::take(&mut queue.state.lock().tasks);
            drop(tasks);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::Idler;
    use super::super::{Consume, Share, WEIGHT};
    use super::*;

    fn scheduler() -> Owned {
        let budgets = Budgets { time_slice: Duration::from_millis(20), consume: Consume::All };
        let (closing, run) = (Arc::default(), Arc::new(|_: Arc<dyn Runnable>, _| ()));
        let scheduler = Owned::new(true, SchedulerSetup { closing, nodes: Vec::new(), budgets, run });
        scheduler.add_worker();
        scheduler
    }

    /// A task that has work from now on.
    fn begin(scheduler: &Owned, name: &str, share: Option<&Arc<Share>>) {
        let idler = Arc::new(Idler { name: name.into(), ..Idler::default() });
        share.into_iter().for_each(|share| idler.standing.set_share(share.clone()));
        assert!(idler.standing.claim());
        scheduler.ready(idler, 1);
    }

    /// Runs so many tasks for a millisecond each, and counts those of each name.
    fn turns(scheduler: &Owned, count: usize) -> BTreeMap<String, usize> {
        let mut turns = BTreeMap::new();
        for _ in 0..count {
            let (task, budget) = scheduler.next(0).expect("a task");
            assert_eq!(budget.time, SLICE, "others wait no longer");
            scheduler.ran(&*task, Duration::from_millis(1));
            *turns.entry(task.name().to_owned()).or_default() += 1;
            task.standing().again();
            scheduler.ready(task, 1);
        }
        turns
    }

    #[test]
    fn each_share_gets_time_by_its_weight_however_many_tasks_it_has() {
        let (scheduler, many, heavy) = (scheduler(), Arc::<Share>::default(), Arc::<Share>::default());
        heavy.set_weight(2 * WEIGHT);
        (0..10).for_each(|_| begin(&scheduler, "many", Some(&many)));
        begin(&scheduler, "heavy", Some(&heavy));
        begin(&scheduler, "common", None);
        let turns = turns(&scheduler, 400);
        let of = |name: &str| turns[name] as i64;
        for (name, expected) in [("many", 100), ("heavy", 200), ("common", 100)] {
            assert!((of(name) - expected).abs() <= 2, "{turns:?}");
        }
    }

    #[test]
    fn what_a_share_has_on_one_worker_counts_on_no_other() {
        let (scheduler, busy, own) = (scheduler(), Arc::<Share>::default(), Arc::<Share>::default());
        scheduler.add_worker();
        busy.set_weight(1);
        // A long time on the other worker, in the shares of both.
        for share in [&busy, &own] {
            scheduler.queues[1].state.lock().tasks.took(Some(share), Duration::from_secs(3_600));
        }
        begin(&scheduler, "own", Some(&own));
        begin(&scheduler, "common", None);
        begin(&scheduler, "common", None);
        let turns = turns(&scheduler, 100);
        assert!((48..=52).contains(&turns["own"]), "{turns:?}");
    }

    #[test]
    fn who_had_no_work_comes_first_and_saves_nothing_up() {
        let (scheduler, busy, quiet) = (scheduler(), Arc::<Share>::default(), Arc::<Share>::default());
        begin(&scheduler, "busy", Some(&busy));
        begin(&scheduler, "busy", Some(&busy));
        turns(&scheduler, 1_000);
        begin(&scheduler, "quiet", Some(&quiet));
        let first = turns(&scheduler, 2);
        assert_eq!(first.get("quiet"), Some(&1), "{first:?}");
        let next = turns(&scheduler, 100);
        assert!((48..=52).contains(&next["quiet"]), "{next:?}");
    }

    #[test]
    fn without_shares_tasks_have_the_whole_slice_in_their_order() {
        let scheduler = scheduler();
        ["a", "b", "c"].into_iter().for_each(|name| begin(&scheduler, name, None));
        assert!(!scheduler.measures());
        let taken = [0; 3].map(|_| scheduler.next(0).expect("a task"));
        assert_eq!(taken.each_ref().map(|(task, _)| task.name()), ["a", "b", "c"]);
        assert!(taken.iter().all(|(_, budget)| budget.time == Duration::from_millis(20)));
    }
}
