//! Runs the task with the most waiting events first (Fu et al., EdgeWise, ATC 2019): it is the task that holds up
//! others.
//!
//! The number of waiting events counts by its order of magnitude ([`level`]), so a task seldom changes its place. Among
//! equals the task that came first goes first. A task may process what waited when it was taken; then all tasks are
//! compared again. A task for which nothing is known to wait, such as a task that polls sources, comes last and gets
//! its time slice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::shared::{Shared, Waiting};
use super::{Belonging, Policy, Runnable, level};

/// One in so many taken tasks is the task that has waited longest, however few events wait for it. So each of `n` tasks
/// has its turn after at most `16 n` others.
const OLDEST_EVERY: u64 = 16;

/// A free worker takes the task with the most waiting events.
pub(super) static CONGESTION: Policy = Policy {
    name: "congestion",
    help: "most events waiting",
    belonging: Belonging::Nobody,
    follows_pending: true,
    make: |setup| Box::new(Shared::<Longest>::new(setup)),
};

/// Ready tasks, ordered by the number of waiting events and by arrival.
#[derive(Default)]
struct Longest {
    /// By number of arrival, which is their [place](Standing::place).
    tasks: BTreeMap<u64, (Arc<dyn Runnable>, u32)>,
    /// Level and number of each task; the next task is last.
    by_level: BTreeSet<(u32, Reverse<u64>)>,
    came: u64,
    taken: u64,
}

impl Waiting for Longest {
    fn enter(&mut self, task: Arc<dyn Runnable>, pending: usize) {
        let level = level(pending);
        if task.standing().enter() {
            task.standing().set_place(self.came);
            self.tasks.insert(self.came, (task, level));
            self.by_level.insert((level, Reverse(self.came)));
            self.came += 1;
        } else if task.standing().is_waiting() {
            let number = task.standing().place();
            let Some((_, known)) = self.tasks.get_mut(&number).filter(|(_, known)| *known < level) else { return };
            self.by_level.remove(&(*known, Reverse(number)));
            self.by_level.insert((level, Reverse(number)));
            *known = level;
        }
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        self.taken += 1;
        let number = match self.taken % OLDEST_EVERY {
            0 => *self.tasks.first_key_value()?.0,
            _ => self.by_level.last()?.1.0,
        };
        let (task, level) = self.tasks.remove(&number)?;
        self.by_level.remove(&(level, Reverse(number)));
        task.standing().leave();
        // At least the number last reported, and at most twice as many.
        let events = if level == 0 { usize::MAX } else { 1_usize.checked_shl(level).unwrap_or(usize::MAX) };
        Some((task, events))
    }

    fn waiting(&self) -> usize {
        self.tasks.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::Idler;
    use super::*;

    fn idlers(count: usize) -> Vec<Arc<Idler>> {
        (0..count).map(|number| Arc::new(Idler { name: number.to_string(), ..Idler::default() })).collect()
    }

    /// Reports waiting events for a task, and enters the task if it is not here yet.
    fn enter(tasks: &mut Longest, task: &Arc<Idler>, pending: usize) {
        if !task.standing().is_waiting() && !task.standing().claim() {
            task.standing().again();
        }
        tasks.enter(task.clone(), pending);
    }

    fn leave(tasks: &mut Longest) -> Option<usize> {
        tasks.leave().map(|(task, _)| task.name().parse().expect("a number"))
    }

    #[test]
    fn the_longest_queue_is_first_also_when_it_has_grown_meanwhile() {
        let (mut tasks, idlers) = (Longest::default(), idlers(4));
        for (task, pending) in [(0, 1), (1, 5), (2, 900), (3, 4), (0, 2), (3, 4_000), (0, 1_000), (2, 7)] {
            enter(&mut tasks, &idlers[task], pending);
        }
        // 900 and 1,000 have the same level.
        let order: Vec<usize> = std::iter::from_fn(|| leave(&mut tasks)).collect();
        assert_eq!(order, [3, 0, 2, 1]);
        assert_eq!((tasks.waiting(), tasks.by_level.len()), (0, 0));
    }

    #[test]
    fn a_task_with_one_event_has_its_turn_though_others_always_have_more() {
        let (mut tasks, idlers) = (Longest::default(), idlers(11));
        enter(&mut tasks, &idlers[0], 1);
        idlers[1..].iter().for_each(|task| enter(&mut tasks, task, 100));
        let mut before = 0;
        loop {
            let number = leave(&mut tasks).expect("some wait");
            if number == 0 {
                break;
            }
            before += 1;
            enter(&mut tasks, &idlers[number], 100);
        }
        assert!(before < OLDEST_EVERY, "the oldest of all is waited for no longer: {before}");
        assert_eq!(leave(&mut tasks).map(|number| number > 0), Some(true));
    }

    proptest! {
        #[test]
        fn what_is_taken_is_as_in_a_list_that_is_searched(
            steps in proptest::collection::vec((0usize..12, 0usize..5_000), 0..400)
        ) {
            let (mut tasks, idlers) = (Longest::default(), idlers(10));
            // Task and level, in the order of arrival.
            let mut model: Vec<(usize, u32)> = Vec::new();
            let mut taken = 0;
            for (task, pending) in steps {
                if let Some(idler) = idlers.get(task) {
                    enter(&mut tasks, idler, pending);
                    match model.iter_mut().find(|(other, _)| *other == task) {
                        Some((_, known)) => *known = level(pending).max(*known),
                        None => model.push((task, level(pending))),
                    }
                } else {
                    taken += 1;
                    let most = model.iter().map(|(_, level)| *level).max();
                    let place = model.iter().position(|(_, level)| taken % OLDEST_EVERY == 0 || Some(*level) == most);
                    let expected = place.map(|place| model.remove(place));
                    let found = tasks.leave().map(|(task, events)| (task.name().to_owned(), events));
                    let events = |level: u32| if level == 0 { usize::MAX } else { 1_usize << level };
                    prop_assert_eq!(found, expected.map(|(task, level)| (task.to_string(), events(level))));
                }
                prop_assert_eq!((tasks.waiting(), tasks.by_level.len()), (model.len(), model.len()));
            }
        }
    }
}
