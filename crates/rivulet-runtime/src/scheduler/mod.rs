//! Which task runs next, and where: one trait, several policies.
//!
//! A task is handed to [`Scheduler::ready`] when its inbox turns from empty to non-empty or a timer of it is due, and again
//! when its time slice ended before its inbox was empty. It is never handed in twice: from then on until it has run it is
//! *scheduled*. So whatever a policy keeps is bounded by the number of tasks.

mod owned;
mod shared;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use owned::Owned;
pub use shared::Shared;

use crate::Task;

/// How long tasks are handed out after a scheduler was closed: under load a queue never becomes empty by itself.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The policy that gives a worker its next task.
pub trait Scheduler: Send + Sync {
    /// A task has work. It is handed out once for each call.
    fn ready(&self, task: Arc<Task>);

    /// The next task for a worker; waits for one at most `wait`. `None` after that, or when the scheduler is closed and nothing
    /// is left.
    fn next(&self, worker: usize, wait: Duration) -> Option<Arc<Task>>;

    /// Tasks that wait for a worker.
    fn waiting(&self) -> usize;

    /// One more worker, and its number. Workers are numbered from 0.
    fn add_worker(&self) -> usize;

    /// Wakes every worker; from now on [`Scheduler::next`] does not wait, and soon hands out nothing more.
    fn close(&self);

    /// Whether [`Scheduler::close`] was called, and how far that is.
    fn closing(&self) -> Closing;
}

/// The policies that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Each task belongs to a worker, which runs its tasks first in, first out. A worker that has nothing to do helps the
    /// others.
    #[default]
    Group,
    /// The same, and no worker runs a task of another: the balancer alone evens out load.
    Pinned,
    /// One queue for all workers, first in, first out.
    Pool,
    /// One set for all workers; a free worker takes the task with the most waiting events.
    Congestion,
    /// A worker of its own for each task.
    Dedicated,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 5] = [Self::Group, Self::Pinned, Self::Pool, Self::Congestion, Self::Dedicated];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Pinned => "pinned",
            Self::Pool => "pool",
            Self::Congestion => "congestion",
            Self::Dedicated => "dedicated",
        }
    }

    pub(crate) fn scheduler(self) -> Box<dyn Scheduler> {
        match self {
            Self::Group => Box::new(Owned::new(true)),
            Self::Pinned | Self::Dedicated => Box::new(Owned::new(false)),
            Self::Pool => Box::new(Shared::new(shared::Order::Arrival)),
            Self::Congestion => Box::new(Shared::new(shared::Order::Longest)),
        }
    }

    /// Whether a task belongs to one worker.
    pub(crate) fn is_owned(self) -> bool {
        matches!(self, Self::Group | Self::Pinned | Self::Dedicated)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            format!("'{name}' is no scheduling policy; there are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// Until when tasks are still handed out once a scheduler was closed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Closing(Option<Instant>);

impl Closing {
    fn close(&mut self) {
        self.0.get_or_insert_with(|| Instant::now() + DRAIN_MAX);
    }

    /// Whether the scheduler was closed.
    pub fn has_begun(self) -> bool {
        self.0.is_some()
    }

    /// Whether nothing is handed out any more, done or not.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}
