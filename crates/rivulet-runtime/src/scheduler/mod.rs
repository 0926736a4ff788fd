//! Which task runs next, and where: one trait, several policies.
//!
//! A task is handed to [`Scheduler::ready`] when its inbox turns from empty to non-empty or a timer of it is due, and again
//! when its time slice ended before its inbox was empty. It is never handed in twice: from then on until it has run it is
//! *scheduled*. So whatever a policy keeps is bounded by the number of tasks.

mod by_hand;
mod owned;
mod shared;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub(crate) use by_hand::ByHand;
pub use owned::Owned;
pub use shared::Shared;

use crate::Activation;

/// How long tasks are handed out once the process is stopping: under load a queue never becomes empty by itself.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// What a scheduler hands out: a task of a group, or of a big query.
pub trait Runnable: Send + Sync {
    /// The name of the application or query, for people.
    fn name(&self) -> &str;

    /// The worker that it belongs to, where the policy knows owners.
    fn worker(&self) -> usize;

    /// Events or rows that wait for it.
    fn waiting_rows(&self) -> usize;

    /// Works until nothing waits any more or `slice` has passed. Called by one worker at a time; a second caller waits.
    fn run(&self, slice: Duration) -> Activation;

    /// It has been run to its end: from here on what comes schedules it again. What came meanwhile does so at once.
    fn ran(self: Arc<Self>);
}

/// The policy that gives a worker its next task.
pub trait Scheduler: Send + Sync {
    /// A task has work. It is handed out once for each call.
    fn ready(&self, task: Arc<dyn Runnable>);

    /// The next task for a worker; waits until there is one. `None` if there is none and the process is stopping, or this worker
    /// was removed.
    fn next(&self, worker: usize) -> Option<Arc<dyn Runnable>>;

    /// Tasks that wait for a worker.
    fn waiting(&self) -> usize;

    /// One more worker, and its number. Workers are numbered from 0.
    fn add_worker(&self) -> usize;

    /// A worker is not needed any more: nothing will become ready for it.
    fn remove_worker(&self, worker: usize);

    /// Wakes every worker, after [`Closing`] has begun.
    fn wake_all(&self);

    /// Forgets every task that waits, once no worker is left.
    fn clear(&self);
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

    /// `nodes` are those of the workers, where there is more than one.
    pub(crate) fn scheduler(self, closing: Arc<Closing>, nodes: Vec<usize>) -> Box<dyn Scheduler> {
        match self {
            Self::Group => Box::new(Owned::new(true, nodes, closing)),
            Self::Pinned | Self::Dedicated => Box::new(Owned::new(false, nodes, closing)),
            Self::Pool => Box::new(Shared::new(shared::Order::Arrival, closing)),
            Self::Congestion => Box::new(Shared::new(shared::Order::Longest, closing)),
        }
    }

    /// Whether a task belongs to one worker.
    pub(crate) fn is_owned(self) -> bool {
        matches!(self, Self::Group | Self::Pinned | Self::Dedicated)
    }

    /// Whether load is evened out between workers: tasks belong to one, and each worker may have several.
    pub(crate) fn is_balanced(self) -> bool {
        self.is_owned() && self != Self::Dedicated
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

/// Whether the process is stopping, and how far that is.
#[derive(Debug, Default)]
pub struct Closing(OnceLock<Instant>);

impl Closing {
    pub(crate) fn begin(&self) {
        self.0.get_or_init(|| Instant::now() + DRAIN_MAX);
    }

    /// Whether it is: workers finish what is ready and then end.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether nothing is handed out any more, done or not.
    pub fn is_over(&self) -> bool {
        self.0.get().is_some_and(|end| Instant::now() >= *end)
    }
}
