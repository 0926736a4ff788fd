//! Ready tasks, of which the best one is searched for: a big query has some tens of them.

use std::marker::PhantomData;
use std::sync::Arc;

use rivulet_runtime::scheduler::Waiting;
use rivulet_runtime::{Rank, Runnable};

/// What makes a task the next one.
pub(super) trait Merit: Default + Send {
    /// It is higher the better it is to run the task next.
    fn of(rank: Rank) -> f64;
}

/// Ready tasks, the best one first, and of several the one that came first.
#[derive(Default)]
pub(super) struct BestFirst<M>(Ready, PhantomData<M>);

impl<M: Merit> Waiting for BestFirst<M> {
    fn enter(&mut self, task: Arc<dyn Runnable>, _pending: usize) {
        self.0.enter(task, M::of);
    }

    fn leave(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        self.0.take_best()
    }

    fn waiting(&self) -> usize {
        self.0.waiting()
    }
}

/// Ready tasks in the order in which they came, each with a number that is higher the better it is to run it next.
#[derive(Default)]
pub(super) struct Ready(Vec<(f64, Arc<dyn Runnable>)>);

impl Ready {
    /// Accepts a task. It is as good as it is now until it is taken.
    pub(super) fn enter(&mut self, task: Arc<dyn Runnable>, merit: impl FnOnce(Rank) -> f64) {
        if task.standing().enter() {
            self.0.push((merit(task.rank()), task));
        }
    }

    /// Takes the best task, and of several the one that came first.
    fn take_best(&mut self) -> Option<(Arc<dyn Runnable>, usize)> {
        let better = |best: usize, place: usize| if self.0[place].0 > self.0[best].0 { place } else { best };
        let best = (0..self.0.len()).reduce(better)?;
        self.take(best)
    }

    /// Takes the task at a place.
    pub(super) fn take(&mut self, place: usize) -> Option<(Arc<dyn Runnable>, usize)> {
        if place >= self.0.len() {
            return None;
        }
        let (_, task) = self.0.remove(place);
        task.standing().leave();
        Some((task, usize::MAX))
    }

    pub(super) fn waiting(&self) -> usize {
        self.0.len()
    }
}
