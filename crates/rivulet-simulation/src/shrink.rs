//! Reduces a failing plan to a small one that fails too: parts are left out as long as it still fails.

use std::ops::Range;

use crate::bursts::{self, BurstDefect, BurstPlan};
use crate::flows::{self, FlowPlan};
use crate::links::{self, LinkPlan};
use crate::plan::Plan;
use crate::{Defect, Outcome, run};

/// The most plans that are tried.
const TRIES_MAX: usize = 600;

/// Something that can be run with parts left out.
pub trait Shrinks: Clone {
    /// Runs it.
    fn run(&self) -> Outcome;

    /// The number of its parts.
    fn parts(&self) -> usize;

    /// Returns it without some of its parts; `None` if these cannot be left out.
    fn without(&self, parts: Range<usize>) -> Option<Self>;
}

/// A plan with a deliberate defect, if there is one.
impl Shrinks for (Plan, Option<Defect>) {
    fn run(&self) -> Outcome {
        run(&self.0, self.1)
    }

    fn parts(&self) -> usize {
        self.0.steps.len() + self.0.queries.len()
    }

    fn without(&self, parts: Range<usize>) -> Option<Self> {
        let (mut plan, defect) = self.clone();
        let steps = plan.steps.len();
        let queries = parts.start.max(steps) - steps..parts.end.max(steps) - steps;
        plan.steps.drain(parts.start.min(steps)..parts.end.min(steps));
        plan.queries.drain(queries);
        (!plan.queries.is_empty()).then_some((plan, defect))
    }
}

impl Shrinks for FlowPlan {
    fn run(&self) -> Outcome {
        flows::run(self)
    }

    fn parts(&self) -> usize {
        self.steps.len()
    }

    fn without(&self, parts: Range<usize>) -> Option<Self> {
        let mut plan = self.clone();
        plan.steps.drain(parts);
        Some(plan)
    }
}

impl Shrinks for LinkPlan {
    fn run(&self) -> Outcome {
        links::run(self)
    }

    fn parts(&self) -> usize {
        self.steps.len()
    }

    fn without(&self, parts: Range<usize>) -> Option<Self> {
        let mut plan = self.clone();
        plan.steps.drain(parts);
        Some(plan)
    }
}

impl Shrinks for (BurstPlan, Option<BurstDefect>) {
    fn run(&self) -> Outcome {
        bursts::run(&self.0, self.1)
    }

    fn parts(&self) -> usize {
        self.0.steps.len()
    }

    fn without(&self, parts: Range<usize>) -> Option<Self> {
        let mut plan = self.clone();
        plan.0.steps.drain(parts);
        Some(plan)
    }
}

/// Returns the smallest failing part that is found, and its outcome; `None` if `plan` does not fail.
pub fn shrink<P: Shrinks>(plan: &P) -> Option<(P, Outcome)> {
    let outcome = plan.run();
    outcome.failure.as_ref()?;
    let (mut smallest, mut outcome) = (plan.clone(), outcome);
    let mut tries = 0;
    loop {
        let before = smallest.parts();
        let mut length = before.div_ceil(2);
        while length > 0 {
            let mut from = 0;
            while from < smallest.parts() && tries < TRIES_MAX {
                tries += 1;
                let fewer = smallest.without(from..(from + length).min(smallest.parts()));
                match fewer.map(|fewer| (fewer.run(), fewer)) {
                    // The parts behind it have moved here.
                    Some((again, fewer)) if again.failure.is_some() => (smallest, outcome) = (fewer, again),
                    _ => from += length,
                }
            }
            length /= 2;
        }
        if smallest.parts() == before || tries >= TRIES_MAX {
            return Some((smallest, outcome));
        }
    }
}
