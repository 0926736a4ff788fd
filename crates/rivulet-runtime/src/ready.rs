//! The queue of groups that have work, first in, first out.
//!
//! A group stands in it at most once. While a group waits here its inbox fills, so the busier the machine, the larger
//! the batch that one activation processes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::Group;

/// How long groups are handed out after the queue was closed.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Groups that have work. Bounded by the number of groups, for each stands in it at most once.
#[derive(Default)]
pub struct ReadyQueue {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    groups: VecDeque<Arc<Group>>,
    /// Until when groups are still handed out after the queue was closed; `None` while it is open.
    closes_at: Option<Instant>,
    /// Workers asleep; nobody is woken when there is none.
    asleep: usize,
}

impl ReadyQueue {
    pub(crate) fn push(&self, group: Arc<Group>) {
        let mut state = self.state.lock();
        state.groups.push_back(group);
        if state.asleep > 0 {
            drop(state);
            self.came.notify_one();
        }
    }

    /// The next group; waits for one at most `wait`. `None` after that, or when the queue was closed and is empty.
    pub fn next(&self, wait: Duration) -> Option<Arc<Group>> {
        let mut state = self.state.lock();
        if state.groups.is_empty() && state.closes_at.is_none() {
            state.asleep += 1;
            self.came.wait_for(&mut state, wait);
            state.asleep -= 1;
        }
        // Under load a queue never becomes empty by itself.
        if state.closes_at.is_some_and(|end| Instant::now() >= end) {
            return None;
        }
        state.groups.pop_front()
    }

    /// The number of groups waiting.
    pub fn len(&self) -> usize {
        self.state.lock().groups.len()
    }

    /// Whether no group waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wakes every worker; from now on [`ReadyQueue::next`] does not wait, and soon hands out nothing more.
    pub(crate) fn close(&self) {
        self.state.lock().closes_at.get_or_insert_with(|| Instant::now() + DRAIN_MAX);
        self.came.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closes_at.is_some()
    }
}
