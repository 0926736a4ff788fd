//! The schedulers of the engines that Rivulet is compared with (the ladder of Pluto). No configuration names them.

use std::collections::VecDeque;
use std::sync::Arc;

use rivulet_runtime::scheduler::{Owned, Shared, Waiting};
use rivulet_runtime::{Belonging, Policy, Runnable};

use super::threads::of_this_process;

/// One queue for all workers, first in, first out.
pub static POOL: Policy = Policy {
    name: "pool",
    help: "first in, first out",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |surroundings| Box::new(Shared::<Queue>::new(surroundings)),
};

/// A thread for each task.
pub static DEDICATED: Policy = Policy {
    name: "dedicated",
    help: "a thread for each task",
    belonging: Belonging::Own(of_this_process),
    follows_pending: false,
    make: |surroundings| Box::new(Owned::new(false, surroundings)),
};

/// Tasks in the order in which they came.
#[derive(Default)]
struct Queue(VecDeque<Arc<dyn Runnable>>);

impl Waiting for Queue {
    fn enter(&mut self, task: Arc<dyn Runnable>, _pending: usize) {
        if task.standing().enter() {
            self.0.push_back(task);
        }
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        let task = self.0.pop_front()?;
        task.standing().leave();
        Some((task, usize::MAX))
    }

    fn waiting(&self) -> usize {
        self.0.len()
    }
}
