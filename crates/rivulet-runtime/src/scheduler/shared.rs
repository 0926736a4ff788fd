//! One set of ready tasks for all workers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

use super::{Closing, Runnable, Scheduler};

/// Which of the ready tasks is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The one that became ready first.
    Arrival,
    /// The one with the most waiting events: it is the one that holds up others.
    Longest,
}

/// Ready tasks that any worker may run.
pub struct Shared {
    order: Order,
    state: Mutex<State>,
    came: Condvar,
    workers: AtomicUsize,
    closing: Arc<Closing>,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Arc<dyn Runnable>>,
    /// Workers asleep; nobody is woken when there is none.
    asleep: usize,
}

impl Shared {
    pub(super) fn new(order: Order, closing: Arc<Closing>) -> Self {
        Self { order, state: Mutex::default(), came: Condvar::new(), workers: AtomicUsize::new(0), closing }
    }
}

impl Scheduler for Shared {
    fn ready(&self, task: Arc<dyn Runnable>) {
        let mut state = self.state.lock();
        state.tasks.push_back(task);
        if state.asleep > 0 {
            drop(state);
            self.came.notify_one();
        }
    }

    fn next(&self, _worker: usize) -> Option<Arc<dyn Runnable>> {
        let mut state = self.state.lock();
        while state.tasks.is_empty() && !self.closing.has_begun() {
            state.asleep += 1;
            self.came.wait(&mut state);
            state.asleep -= 1;
        }
        if self.closing.is_over() {
            return None;
        }
        match self.order {
            Order::Arrival => state.tasks.pop_front(),
            Order::Longest => {
                let longest = (0..state.tasks.len()).max_by_key(|&place| state.tasks[place].waiting_rows())?;
                state.tasks.swap_remove_back(longest)
            }
        }
    }

    fn waiting(&self) -> usize {
        self.state.lock().tasks.len()
    }

    fn add_worker(&self) -> usize {
        self.workers.fetch_add(1, Ordering::Relaxed)
    }

    /// Workers of a pool are not removed.
    fn remove_worker(&self, _worker: usize) {}

    fn wake_all(&self) {
        // Under the lock: a worker that has just looked sleeps already.
        let _state = self.state.lock();
        self.came.notify_all();
    }

    fn clear(&self) {
        let tasks = std::mem::take(&mut self.state.lock().tasks);
        drop(tasks);
    }
}
