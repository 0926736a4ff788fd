//! A scheduling policy, as everything but its scheduler sees it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::{Closing, Scheduler, congestion, owned};

/// Which task a worker runs next, where and for how long: a name, what the policy needs of the workers, and how its
/// scheduler is made.
pub struct Policy {
    /// Its name in configurations.
    pub name: &'static str,
    /// What it runs next, in a few words.
    pub help: &'static str,
    /// Whether a task belongs to a worker.
    pub belonging: Belonging,
    /// Whether the order depends on how much waits. If so, [`Scheduler::ready`] is called again whenever the order of
    /// magnitude rises.
    pub follows_pending: bool,
    /// Makes its scheduler.
    pub make: fn(Surroundings) -> Box<dyn Scheduler>,
}

/// Whether a task belongs to a worker.
#[derive(Clone, Copy, Debug)]
pub enum Belonging {
    /// To none: any worker runs any task.
    Nobody,
    /// To a worker that has several tasks; the balancer evens out the load between workers.
    Balanced,
    /// To a worker that has only this task: workers are added and removed with tasks. The function gives the most
    /// workers there may be; it is called once, at the start.
    Own(fn() -> ThreadLimit),
}

/// How many threads may be started, and what limits them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimit {
    /// The most threads in all.
    pub threads_max: usize,
    /// The setting of the system that limits them, for messages.
    pub bounded_by: &'static str,
}

/// The environment of a scheduler.
pub struct Surroundings {
    /// Whether the process is stopping.
    pub closing: Arc<Closing>,
    /// The memory nodes of the workers, where there is more than one node.
    pub nodes: Vec<usize>,
    /// How long a worker stays with a task while others wait.
    pub time_slice: Duration,
}

impl Policy {
    /// Every policy that can be configured.
    pub const ALL: [&'static Self; 3] = [&owned::GROUP, &owned::PINNED, &congestion::CONGESTION];

    /// The names of all policies that can be configured.
    pub fn names() -> String {
        Self::ALL.map(|policy| policy.name).join(", ")
    }

    /// Whether a task belongs to one worker.
    pub(crate) fn is_owned(&self) -> bool {
        !matches!(self.belonging, Belonging::Nobody)
    }

    /// Whether the balancer evens out load: each task belongs to a worker, and a worker may have several.
    pub(crate) fn is_balanced(&self) -> bool {
        matches!(self.belonging, Belonging::Balanced)
    }

    /// The limit of workers, where each task has its own.
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

/// Policies are equal if their names are.
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
