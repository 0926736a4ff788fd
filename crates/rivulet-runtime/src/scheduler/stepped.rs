//! The scheduler of an engine without threads: ready tasks wait until the caller chooses one.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Belonging, Budget, Policy, Runnable, Scheduler};

/// The policy of a stepped engine. It cannot be configured.
pub(crate) static STEPPED: Policy = Policy {
    name: "stepped",
    help: "the one that somebody chooses",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |_| Box::new(Arc::<Stepped>::default()),
};

/// Ready tasks, in the order in which they came.
#[derive(Default)]
pub(crate) struct Stepped(Mutex<Vec<Arc<dyn Runnable>>>);

impl Stepped {
    /// Takes a ready task: `choose` gets their number and returns an index.
    pub(crate) fn take(&self, choose: impl FnOnce(usize) -> usize) -> Option<Arc<dyn Runnable>> {
        let mut ready = self.0.lock();
        let count = ready.len();
        let task = (count > 0).then(|| ready.remove(choose(count).min(count - 1)))?;
        task.standing().leave();
        Some(task)
    }
}

impl Scheduler for Arc<Stepped> {
    fn ready(&self, task: Arc<dyn Runnable>, _pending: usize) {
        let mut ready = self.0.lock();
        if task.standing().enter() {
            ready.push(task);
        }
    }

    fn next(&self, _worker: usize) -> Option<(Arc<dyn Runnable>, Budget)> {
        self.take(|_| 0).map(|task| (task, Budget::ENDLESS))
    }

    fn waiting(&self) -> usize {
        self.0.lock().len()
    }

    fn add_worker(&self) -> usize {
        0
    }

    fn wake_all(&self) {}

    fn clear(&self) {
        self.0.lock().clear();
    }
}
