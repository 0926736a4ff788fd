//! A free worker takes any task.

use std::sync::Arc;

use rivulet_runtime::scheduler::{Shared, Waiting};
use rivulet_runtime::{Belonging, Policy, Runnable};

use super::ready::Ready;
use crate::random::Random;

/// Any task.
pub static RANDOM: Policy = Policy {
    name: "random",
    help: "any task",
    belonging: Belonging::Nobody,
    follows_pending: false,
    make: |setup| Box::new(Shared::<Lot>::new(setup)),
};

/// Tasks that are drawn by lot.
struct Lot {
    ready: Ready,
    random: Random,
}

impl Default for Lot {
    fn default() -> Self {
        Self { ready: Ready::default(), random: Random::new(1) }
    }
}

impl Waiting for Lot {
    fn enter(&mut self, task: Arc<dyn Runnable>, _pending: usize) {
        self.ready.enter(task, |_| 0.0);
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        let place = self.random.below(self.ready.waiting() as u64);
        self.ready.take(place as usize)
    }

    fn waiting(&self) -> usize {
        self.ready.waiting()
    }
}

#[cfg(test)]
mod tests {
    use rivulet_runtime::Rank;

    use super::super::tests::order;
    use super::*;

    #[test]
    fn each_is_taken_once_and_not_in_the_order_of_coming() {
        const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let mut taken = order(Lot::default(), &NAMES.map(|name| (name, Rank::default())));
        assert_ne!(taken, NAMES);
        taken.sort();
        assert_eq!(taken, NAMES);
    }
}
