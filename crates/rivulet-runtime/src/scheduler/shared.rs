//! One set of ready tasks for all workers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Closing, Scheduler};
use crate::Task;

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
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Arc<Task>>,
    /// Workers asleep; nobody is woken when there is none.
    asleep: usize,
    closing: Closing,
}

impl Shared {
    pub(super) fn new(order: Order) -> Self {
        Self { order, state: Mutex::default(), came: Condvar::new(), workers: AtomicUsize::new(0) }
    }
}

impl Scheduler for Shared {
    fn ready(&self, task: Arc<Task>) {
        let mut state = self.state.lock();
        state.tasks.push_back(task);
        if state.asleep > 0 {
            drop(state);
            self.came.notify_one();
        }
    }

    fn next(&self, _worker: usize, wait: Duration) -> Option<Arc<Task>> {
        let mut state = self.state.lock();
        if state.tasks.is_empty() && !state.closing.has_begun() {
            state.asleep += 1;
            self.came.wait_for(&mut state, wait);
            state.asleep -= 1;
        }
        if state.closing.is_over() {
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

    fn close(&self) {
        self.state.lock().closing.close();
        self.came.notify_all();
    }

    fn closing(&self) -> Closing {
        self.state.lock().closing
    }
}
