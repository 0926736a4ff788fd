//! One set of ready tasks for all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use super::{Budget, Budgets, Closing, Runnable, Scheduler, SchedulerSetup};

/// The ready tasks of all workers, and the order in which they are taken.
pub trait Waiting: Default + Send {
    /// Enters a task for which about `pending` events wait. If the task is here already, only the number is updated.
    fn enter(&mut self, task: Arc<dyn Runnable>, pending: usize);

    /// Takes the next task, and the number of events it may process.
    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)>;

    /// The number of tasks.
    fn waiting(&self) -> usize;
}

/// Ready tasks that any worker may run.
pub struct Shared<W> {
    state: Mutex<State<W>>,
    came: Condvar,
    workers: AtomicUsize,
    budgets: Budgets,
    closing: Arc<Closing>,
}

#[derive(Default)]
struct State<W> {
    tasks: W,
    /// The number of sleeping workers; without any, no worker is woken.
    asleep: usize,
}

impl<W: Waiting> Shared<W> {
    /// A scheduler without tasks and workers.
    pub fn new(SchedulerSetup { closing, budgets, .. }: SchedulerSetup) -> Self {
        Self { state: Mutex::default(), came: Condvar::new(), workers: AtomicUsize::new(0), budgets, closing }
    }
}

impl<W: Waiting> Scheduler for Shared<W> {
    fn ready(&self, task: Arc<dyn Runnable>, pending: usize) {
        let mut state = self.state.lock();
        let before = state.tasks.waiting();
        state.tasks.enter(task, pending);
        if state.asleep > 0 && state.tasks.waiting() > before {
            drop(state);
            self.came.notify_one();
        }
    }

    fn next(&self, _worker: usize) -> Option<(Arc<dyn Runnable>, Budget)> {
        let mut state = self.state.lock();
        while state.tasks.waiting() == 0 && !self.closing.has_begun() {
            state.asleep += 1;
            self.came.wait(&mut state);
            state.asleep -= 1;
        }
        if self.closing.is_over() {
            return None;
        }
        let (task, events) = state.tasks.leave()?;
        let budget = self.budgets.of(&*task, events);
        Some((task, budget))
    }

    fn waiting(&self) -> usize {
        self.state.lock().tasks.waiting()
    }

    fn add_worker(&self) -> usize {
        self.workers.fetch_add(1, Ordering::Relaxed)
    }

    fn wake_all(&self) {
        // Notifying under the lock: a worker that has just looked at the queue is already asleep.
        let _state = self.state.lock();
        self.came.notify_all();
    }

    fn clear(&self) {
        let tasks = std::mem::take(&mut self.state.lock().tasks);
        drop(tasks);
    }
}
