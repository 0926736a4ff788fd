//! What a policy is to everybody but its scheduler.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::{Closing, Scheduler, congestion, owned};

/// Which task a worker runs next, where and for how long: a name, what that needs of the workers, and how its scheduler
/// is made.
pub struct Policy {
    /// The name in configurations.
    pub name: &'static str,
    /// Which task a worker runs next, in a few words.
    pub help: &'static str,
    /// Whether a task belongs to a worker.
    pub belonging: Belonging,
    /// Whether the order depends on how much waits: [`Scheduler::ready`] is then called again whenever the order of
    /// magnitude of that rises.
    pub follows_pending: bool,
    /// Makes its scheduler.
    pub make: fn(Surroundings) -> Box<dyn Scheduler>,
}

/// Whether a task belongs to a worker.
#[derive(Clone, Copy, Debug)]
pub enum Belonging {
    /// To none: any worker runs it.
    Nobody,
    /// To one, with others; the balancer evens out the load between workers.
    Balanced,
    /// To one that has no other: workers come and go with tasks. There are no more of them than this says once, at the
    /// start.
    Own(fn() -> ThreadLimit),
}

/// How many threads may be started, and what would be in the way of more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimit {
    /// Threads in all.
    pub threads_max: usize,
    /// The setting of the system that allows no more, for people.
    pub bounded_by: &'static str,
}

/// What a scheduler is made for.
pub struct Surroundings {
    /// Whether the process is stopping.
    pub closing: Arc<Closing>,
    /// The nodes of the workers, where there is more than one.
    pub nodes: Vec<usize>,
    /// How long a worker stays with a task while others wait.
    pub time_slice: Duration,
}

impl Policy {
    /// Every policy that can be configured.
    pub const ALL: [&'static Self; 3] = [&owned::GROUP, &owned::PINNED, &congestion::CONGESTION];

    /// The names of these.
    pub fn names() -> String {
        Self::ALL.map(|policy| policy.name).join(", ")
    }

    /// Whether a task belongs to one worker.
    pub(crate) fn is_owned(&self) -> bool {
        !matches!(self.belonging, Belonging::Nobody)
    }

    /// Whether load is evened out between workers: tasks belong to one, and each worker may have several.
    pub(crate) fn is_balanced(&self) -> bool {
        matches!(self.belonging, Belonging::Balanced)
    }

    /// How many workers there may be, where each task has its own.
    pub(crate) fn thread_limit(&self) -> Option<fn() -> ThreadLimit> {
        match self.belonging {
            Belonging::Own(limit) => Some(limit),
            Belonging::Nobody | Belonging::Balanced => None,
        }
    }

    /// Whether each task has a worker of its own.
    pub fn has_worker_for_each_task(&self) -> bool {
        self.thread_limit().is_some()
    }
}

impl Default for &'static Policy {
    fn default() -> Self {
        &owned::GROUP
    }
}

/// Policies go by their names.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for &'static Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name == name)
            .ok_or_else(|| format!("'{name}' is no scheduling policy; there are {}", Policy::names()))
    }
}
