//! A scheduling policy, as everything but its scheduler sees it, and the trait of its scheduler.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{Budget, Budgets, Runnable};

/// How long tasks are still handed out while the process is stopping: under load a queue never becomes empty by itself.
const DRAIN_MAX: Duration = Duration::from_secs(5);

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
    pub make: fn(SchedulerSetup) -> Box<dyn Scheduler>,
}

/// Whether a task belongs to a worker.
#[derive(Clone, Copy, Debug)]
pub enum Belonging {
    /// To none: any worker runs any task.
    Nobody,
    /// To a worker that has several tasks; the balancer evens out the load between workers.
    Balanced,
}

/// What a scheduler is made with.
pub struct SchedulerSetup {
    /// Whether the process is stopping.
    pub closing: Arc<Closing>,
    /// The memory nodes of the workers, where there is more than one node.
    pub nodes: Vec<usize>,
    /// Makes the budgets of tasks.
    pub budgets: Budgets,
    /// Runs a task as a worker does that was handed it, for a policy with threads of its own. Such a policy hands its
    /// tasks to nobody else; it starts its threads as tasks come and ends them in [`Scheduler::clear`].
    pub run: Arc<dyn Fn(Arc<dyn Runnable>, Budget) + Send + Sync>,
}

impl Policy {
    /// Whether a task belongs to one worker, and the balancer evens out the load between workers.
    pub(crate) fn is_balanced(&self) -> bool {
        matches!(self.belonging, Belonging::Balanced)
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

/// Gives a worker its next task.
pub trait Scheduler: Send + Sync {
    /// Reports that a task has work: about `pending` events wait for it. However often this is called, the task is
    /// handed out once; a further call updates the number of events. While the task runs, a call changes nothing.
    fn ready(&self, task: Arc<dyn Runnable>, pending: usize);

    /// The next task for a worker, and its budget; waits until there is one. `None` if there is none and the process is
    /// stopping.
    fn next(&self, worker: usize) -> Option<(Arc<dyn Runnable>, Budget)>;

    /// Whether it is to be told how long tasks run.
    fn measures(&self) -> bool {
        false
    }

    /// Is told for how long a task has run.
    fn ran(&self, task: &dyn Runnable, time: Duration) {
        let _ = (task, time);
    }

    /// The number of tasks that wait for a worker.
    fn waiting(&self) -> usize;

    /// Adds a worker and returns its number. Workers are numbered from 0.
    fn add_worker(&self) -> usize;

    /// Wakes every worker, after [`Closing`] has begun.
    fn wake_all(&self);

    /// Drops every waiting task, once no worker is left.
    fn clear(&self);
}

/// Whether the process is stopping, and since when.
#[derive(Debug, Default)]
pub struct Closing(OnceLock<Instant>);

impl Closing {
    pub(crate) fn begin(&self) {
        self.0.get_or_init(|| Instant::now() + DRAIN_MAX);
    }

    /// Whether the process is stopping: workers finish the ready tasks and then end.
    pub fn has_begun(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether the time for that is over: no task is handed out any more, even if some are ready.
    pub fn is_over(&self) -> bool {
        self.0.get().is_some_and(|end| Instant::now() >= *end)
    }
}
