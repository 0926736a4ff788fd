//! One queue for all workers, first in, first out (the thread pool of the Pluto paper).

use std::collections::VecDeque;
use std::sync::Arc;

use rivulet_runtime::scheduler::{Shared, Waiting};
use rivulet_runtime::{Belonging, Policy, Runnable};

/// The task that has waited longest.
pub static POOL: Policy = Policy {
    name: "pool",
    help: "first in, first out",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(Shared::<Queue<false>>::new(setup)),
};

/// Tasks in the order in which they came. There may be very many. They are accepted here unless they have been.
#[derive(Default)]
pub(super) struct Queue<const ARE_ACCEPTED: bool>(VecDeque<Arc<dyn Runnable>>);

impl<const ARE_ACCEPTED: bool> Waiting for Queue<ARE_ACCEPTED> {
    fn enter(&mut self, task: Arc<dyn Runnable>, _pending: usize) {
        if ARE_ACCEPTED || task.standing().enter() {
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

#[cfg(test)]
mod tests {
    use rivulet_runtime::Rank;

    use super::super::tests::order;
    use super::*;

    #[test]
    fn tasks_go_as_they_came() {
        let tasks = ["b", "a", "c"].map(|name| (name, Rank::default()));
        assert_eq!(order(Queue::<false>::default(), &tasks), ["b", "a", "c"]);
    }
}
