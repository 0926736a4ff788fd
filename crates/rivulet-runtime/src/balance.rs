//! Evening out load between workers: how busy tasks keep them, and what is to be moved, split or merged.
//!
//! The load of a task is its utilisation as an M/M/1 queue: the rate at which events arrive divided by the rate at which it
//! could process them. A worker's load is the sum over its tasks. [`plan`] is a function of loads alone, so it can be tested
//! without threads or clocks.

use std::time::Duration;

/// Beyond this a worker gives tasks away.
const OVERLOADED: f64 = 0.95;

/// Below this a worker takes tasks.
pub(crate) const UNDERLOADED: f64 = 0.80;

/// The most steps of one plan: a plan rests on what was measured before, and each step makes that less true.
const STEPS_MAX: usize = 30;

/// A task counts at most this much: its true load cannot be seen while it cannot keep up.
const LOAD_MAX: f64 = 1.5;

/// For how many periods a task that was moved stays where it is, so that none is thrown to and fro.
const REST_PERIODS: u32 = 3;

/// What a task had done when the balancer looked, in total.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Events that came.
    pub(crate) arrived: u64,
    /// Events that wait.
    pub(crate) waiting: u64,
    /// Time spent running, microseconds.
    pub(crate) busy_us: u64,
}

/// Measures the load of one task from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    last: Seen,
    load: f64,
    rests: u32,
}

impl LoadMeter {
    /// Updates the load by what was seen `elapsed` after the look before.
    pub(crate) fn look(&mut self, seen: Seen, elapsed: Duration) {
        let arrived = seen.arrived - self.last.arrived;
        let processed = (self.last.waiting + arrived).saturating_sub(seen.waiting);
        let busy_us = (seen.busy_us - self.last.busy_us) as f64;
        // What came, and what should have come earlier.
        let offered = (processed + seen.waiting) as f64;
        if processed > 0 {
            let busy_each = busy_us / processed as f64;
            self.load = (offered * busy_each / elapsed.as_micros().max(1) as f64).min(LOAD_MAX);
        } else if seen.waiting == 0 {
            self.load = 0.0;
        }
        self.last = seen;
        self.rests = self.rests.saturating_sub(1);
    }

    /// The load as it was last measured; 1 keeps a worker busy.
    pub(crate) fn load(&self) -> f64 {
        self.load
    }

    /// The task was moved, or split off: it stays where it is for some periods, with this load until it is measured.
    pub(crate) fn moved(&mut self, seen: Seen, load: f64) {
        (self.last, self.load, self.rests) = (seen, load, REST_PERIODS);
    }

    /// Whether the task was moved a short while ago.
    pub(crate) fn rests(&self) -> bool {
        self.rests > 0
    }
}

/// A task, as [`plan`] sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TaskLoad {
    /// Which one: whatever the caller likes.
    pub(crate) task: usize,
    /// Tasks of one group can be merged.
    pub(crate) group: usize,
    pub(crate) worker: usize,
    pub(crate) load: f64,
    pub(crate) queries: usize,
    /// Whether it stays where it is, as it is.
    pub(crate) rests: bool,
}

/// One step towards even load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Give the whole task to another worker.
    Move { task: usize, to: usize },
    /// Give half of the task's queries to a new task on another worker.
    Split { task: usize, to: usize },
    /// Give the queries of a task back to another one of its group.
    Merge { task: usize, into: usize },
}

/// What to do about workers that have too much, and about groups that need not be split any more.
pub(crate) fn plan(workers: usize, tasks: &[TaskLoad]) -> Vec<Step> {
    let mut tasks = tasks.to_vec();
    let mut loads = vec![0.0; workers];
    for task in &tasks {
        loads[task.worker] += task.load;
    }
    let mut steps = Vec::new();
    while steps.len() < STEPS_MAX
        && let Some(step) = relieve(&mut tasks, &mut loads)
    {
        steps.push(step);
    }
    if steps.is_empty()
        && loads.iter().all(|&load| load < UNDERLOADED)
        && let Some(step) = merge(&tasks, &loads)
    {
        steps.push(step);
    }
    steps
}

/// One step that makes the most loaded worker's load less.
fn relieve(tasks: &mut [TaskLoad], loads: &mut [f64]) -> Option<Step> {
    let by_load = |a: &usize, b: &usize| loads[*a].total_cmp(&loads[*b]);
    let from = (0..loads.len()).max_by(by_load).filter(|&worker| loads[worker] > OVERLOADED)?;
    let to = (0..loads.len()).min_by(by_load).filter(|&worker| loads[worker] < UNDERLOADED)?;
    let mut own: Vec<&mut TaskLoad> =
        tasks.iter_mut().filter(|task| task.worker == from && !task.rests && task.load > 0.0).collect();
    own.sort_by(|a, b| b.load.total_cmp(&a.load));
    let fits = |load: f64| loads[to] + load < OVERLOADED;
    // The largest task that the other worker can take; a worker whose only task is too much is not helped by moving that.
    if let Some(task) = own.iter_mut().find(|task| fits(task.load) && loads[to] + task.load < loads[from]) {
        loads[from] -= task.load;
        loads[to] += task.load;
        (task.worker, task.rests) = (to, true);
        return Some(Step::Move { task: task.task, to });
    }
    let task = own.into_iter().find(|task| task.queries > 1 && fits(task.load / 2.0))?;
    let half = task.load / 2.0;
    loads[from] -= half;
    loads[to] += half;
    (task.load, task.rests) = (half, true);
    Some(Step::Split { task: task.task, to })
}

/// The task of a split group with the least load, if another one of its group can take it back.
fn merge(tasks: &[TaskLoad], loads: &[f64]) -> Option<Step> {
    let mut tasks: Vec<&TaskLoad> = tasks.iter().filter(|task| !task.rests).collect();
    tasks.sort_by_key(|task| task.group);
    tasks
        .chunk_by(|a, b| a.group == b.group)
        .filter(|of_group| of_group.len() > 1)
        .filter_map(|of_group| {
            let task = of_group.iter().min_by(|a, b| a.load.total_cmp(&b.load))?;
            let others = of_group.iter().filter(|other| other.task != task.task);
            let into = others.min_by(|a, b| loads[a.worker].total_cmp(&loads[b.worker]))?;
            let added = if into.worker == task.worker { 0.0 } else { task.load };
            (loads[into.worker] + added < UNDERLOADED).then_some((task, into))
        })
        .min_by(|(a, _), (b, _)| a.load.total_cmp(&b.load))
        .map(|(task, into)| Step::Merge { task: task.task, into: into.task })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task(task: usize, worker: usize, load: f64, queries: usize) -> TaskLoad {
        TaskLoad { task, group: task, worker, load, queries, rests: false }
    }

    #[test]
    fn the_largest_task_that_fits_is_moved() {
        let tasks = [task(0, 0, 0.5, 10), task(1, 0, 0.3, 10), task(2, 0, 0.4, 10), task(3, 1, 0.5, 10)];
        assert_eq!(plan(2, &tasks), [Step::Move { task: 2, to: 1 }]);
    }

    #[test]
    fn a_task_that_fits_nowhere_is_split_and_one_query_cannot_be() {
        assert_eq!(plan(2, &[task(0, 0, 1.2, 100)]), [Step::Split { task: 0, to: 1 }]);
        assert_eq!(plan(2, &[task(0, 0, 1.2, 1)]), []);
    }

    #[test]
    fn nobody_is_helped_by_swapping_the_overload() {
        assert_eq!(plan(2, &[task(0, 0, 0.97, 1), task(1, 1, 0.1, 1)]), []);
    }

    #[test]
    fn halves_merge_once_all_have_room() {
        let mut halves = [task(0, 0, 0.2, 5), task(1, 1, 0.1, 5)];
        halves[1].group = 0;
        assert_eq!(plan(2, &halves), [Step::Merge { task: 1, into: 0 }]);
        halves[0].load = 0.75;
        assert_eq!(plan(2, &halves), [], "it would not fit");
        halves[0].load = 0.2;
        halves[0].rests = true;
        assert_eq!(plan(2, &halves), []);
    }

    #[test]
    fn load_is_arrivals_over_service_rate() {
        let mut meter = LoadMeter::default();
        let second = Duration::from_secs(1);
        meter.look(Seen { arrived: 1000, waiting: 0, busy_us: 250_000 }, second);
        assert!((meter.load() - 0.25).abs() < 1e-9);
        // It processed 1000 in half a second of work, and as many wait: it needs the whole second.
        meter.look(Seen { arrived: 3000, waiting: 1000, busy_us: 750_000 }, second);
        assert!((meter.load() - 1.0).abs() < 1e-9);
        meter.look(Seen { arrived: 3000, waiting: 1000, busy_us: 750_000 }, second);
        assert!((meter.load() - 1.0).abs() < 1e-9, "what waits is not forgotten");
        meter.look(Seen { arrived: 3000, waiting: 0, busy_us: 751_000 }, second);
        meter.look(Seen { arrived: 3000, waiting: 0, busy_us: 751_000 }, second);
        assert_eq!(meter.load(), 0.0);
    }

    proptest! {
        #[test]
        fn a_plan_makes_the_highest_load_lower_and_ends(
            loads in proptest::collection::vec((0.0..0.6f64, 0usize..4, 1usize..50), 0..40)
        ) {
            let mut tasks: Vec<TaskLoad> =
                loads.iter().enumerate().map(|(n, &(load, worker, queries))| task(n, worker, load, queries)).collect();
            let highest = |tasks: &[TaskLoad]| {
                (0..4).map(|worker| tasks.iter().filter(|t| t.worker == worker).map(|t| t.load).sum::<f64>()).fold(0.0, f64::max)
            };
            let before = highest(&tasks);
            let steps = plan(4, &tasks);
            for step in &steps {
                match *step {
                    Step::Move { task, to } => tasks[task].worker = to,
                    Step::Split { task: whole, to } => {
                        tasks[whole].load /= 2.0;
                        let half = TaskLoad { worker: to, ..tasks[whole] };
                        tasks.push(half);
                    }
                    Step::Merge { .. } => prop_assert!(false, "no group is split"),
                }
            }
            prop_assert!(highest(&tasks) <= before.max(OVERLOADED) + 1e-9);
            prop_assert!(steps.is_empty() || before > OVERLOADED);
        }
    }
}
