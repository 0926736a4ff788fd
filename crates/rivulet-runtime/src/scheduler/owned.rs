//! A queue for each worker, so that a task stays where its state is warm.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use rivulet_dataflow::hold::{self, Wake};

use super::{Belonging, Budget, Budgets, Closing, Policy, Runnable, Scheduler, SchedulerSetup};

/// Each task belongs to a worker, which runs its tasks first in, first out. An idle worker helps the others.
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

/// Ready tasks by the worker that owns them, first in, first out.
pub struct Owned {
    queues: boxcar::Vec<Arc<Queue>>,
    /// Whether an idle worker takes tasks of others.
    helps: bool,
    /// The memory node of each worker, where there is more than one node.
    nodes: Vec<usize>,
    /// The number of sleeping workers, so that no one is looked for when there is none.
    asleep: AtomicUsize,
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
    tasks: VecDeque<Arc<dyn Runnable>>,
    is_asleep: bool,
}

impl Wake for Queue {
    fn wake(&self) {
        self.came.notify_one();
    }
}

impl State {
    fn take(&mut self) -> Option<Arc<dyn Runnable>> {
        let task = self.tasks.pop_front()?;
        task.standing().leave();
        Some(task)
    }
}

impl Owned {
    /// A scheduler without workers yet. `helps` says whether idle workers take tasks of others.
    pub fn new(helps: bool, SchedulerSetup { closing, nodes, budgets, .. }: SchedulerSetup) -> Self {
        Self { queues: boxcar::Vec::new(), helps, nodes, asleep: AtomicUsize::new(0), budgets, closing }
    }

    /// Takes the oldest task of the longest queue of another worker; from another memory node only if no near queue has
    /// any.
    fn help(&self, worker: usize) -> Option<Arc<dyn Runnable>> {
        let longest = |is_near: bool| {
            let others = self.queues.iter().filter(|(other, _)| *other != worker);
            let others = others.filter(|(other, _)| self.are_near(*other, worker) == is_near);
            others.map(|(_, queue)| (queue.state.lock().tasks.len(), queue)).max_by_key(|(waiting, _)| *waiting)
        };
        let near = longest(true).filter(|(waiting, _)| *waiting > 0);
        let (_, queue) = near.or_else(|| longest(false).filter(|(waiting, _)| *waiting >= HELP_FAR_FROM))?;
        queue.state.lock().take()
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
        state.tasks.push_back(task);
        let (is_asleep, waiting) = (state.is_asleep, state.tasks.len());
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
            let own = queue.state.lock().take();
            if let Some(task) = own.or_else(|| if self.helps { self.help(worker) } else { None }) {
                let budget = self.budgets.of(&*task, usize::MAX);
                return Some((task, budget));
            }
            let mut state = queue.state.lock();
            if !state.tasks.is_empty() {
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

    fn waiting(&self) -> usize {
        self.queues.iter().map(|(_, queue)| queue.state.lock().tasks.len()).sum()
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
