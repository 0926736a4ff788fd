//! Balances load between workers: measures how busy tasks keep them, and plans what to move, split or merge.
//!
//! The load of a task is its utilisation as an M/M/1 queue: the arrival rate of events divided by the rate at which the
//! task could process them. A worker's load is the sum over its tasks. [`plan`] is a function of loads alone, so it can
//! be tested without threads or clocks.

use std::time::Duration;

/// Beyond this load a worker gives tasks away.
const OVERLOADED: f64 = 0.95;

/// Below this load a worker accepts tasks.
pub(crate) const UNDERLOADED: f64 = 0.80;

/// The most steps of a plan: a plan rests on measurements, and each step makes them less accurate.
const STEPS_MAX: usize = 30;

/// The most a task counts: the true load of a task that cannot keep up is unknown.
const LOAD_MAX: f64 = 1.5;

/// A query in parts is joined at a load lower by this factor than the load at which it was cut, so that it is not cut
/// and joined again and again.
const JOINED_BELOW: f64 = UNDERLOADED / OVERLOADED;

/// For how many periods a moved task stays where it is, so that tasks do not oscillate.
const REST_PERIODS: u32 = 3;

/// The totals of a task when the balancer looked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Events that arrived.
    pub(crate) arrived: u64,
    /// Events that wait.
    pub(crate) waiting: u64,
    /// Time spent running, microseconds.
    pub(crate) busy_us: u64,
}

/// Measures the load of one task between two looks.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    last: Seen,
    load: f64,
    rests: u32,
}

impl LoadMeter {
    /// Updates the load from the totals seen `elapsed` after the look before, for a task with this many parts.
    pub(crate) fn look(&mut self, seen: Seen, elapsed: Duration, parts: usize) {
        let arrived = seen.arrived - self.last.arrived;
        let processed = (self.last.waiting + arrived).saturating_sub(seen.waiting);
        let busy_us = (seen.busy_us - self.last.busy_us) as f64;
        // The events that arrived, and those that should have been processed earlier.
        let offered = (processed + seen.waiting) as f64;
        if processed > 0 {
            let busy_each = busy_us / processed as f64;
            self.load = (offered * busy_each / elapsed.as_micros().max(1) as f64).min(LOAD_MAX * parts as f64);
        } else if seen.waiting == 0 {
            self.load = 0.0;
        }
        self.last = seen;
        self.rests = self.rests.saturating_sub(1);
    }

    /// The last measured load; a load of 1 keeps a worker busy.
    pub(crate) fn load(&self) -> f64 {
        self.load
    }

    /// The task was moved or split off: it stays where it is for some periods, and has this load until it is measured.
    pub(crate) fn moved(&mut self, seen: Seen, load: f64) {
        (self.last, self.load, self.rests) = (seen, load, REST_PERIODS);
    }

    /// Whether the task was moved recently.
    pub(crate) fn rests(&self) -> bool {
        self.rests > 0
    }
}

/// A task as [`plan`] sees it; a task in parts has one entry for each part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TaskLoad {
    /// The caller's number of the task.
    pub(crate) task: usize,
    /// The group: tasks of one group can be merged.
    pub(crate) group: usize,
    pub(crate) worker: usize,
    pub(crate) load: f64,
    pub(crate) queries: usize,
    /// Whether the task must stay as it is.
    pub(crate) rests: bool,
    /// The number of its parts. Each has an equal share of the load.
    pub(crate) parts: usize,
    /// Whether a single query makes up most of its load and can be cut.
    pub(crate) is_one_hot_query: bool,
}

/// One step towards even load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Give the whole task to another worker.
    Move { task: usize, to: usize },
    /// Give half of the task's queries to a new task on another worker.
    Split { task: usize, to: usize },
    /// Give the queries of a task back to another task of its group.
    Merge { task: usize, into: usize },
    /// Run the task in one more part, on that worker.
    Cut { task: usize, to: usize },
    /// Run the task in one piece again.
    Join { task: usize },
}

/// Plans steps for overloaded workers, for queries that need more than `cut_above` of a worker, and for groups and
/// queries that need not be divided any more.
pub(crate) fn plan(workers: usize, tasks: &[TaskLoad], cut_above: f64) -> Vec<Step> {
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
    while steps.len() < STEPS_MAX
        && let Some(step) = cut(&mut tasks, &mut loads, cut_above)
    {
        steps.push(step);
    }
    if steps.is_empty() {
        steps.extend(join(&tasks, &loads, cut_above));
    }
    if steps.is_empty()
        && loads.iter().all(|&load| load < UNDERLOADED)
        && let Some(step) = merge(&tasks, &loads)
    {
        steps.push(step);
    }
    steps
}

/// One step that reduces the load of the most loaded worker.
fn relieve(tasks: &mut [TaskLoad], loads: &mut [f64]) -> Option<Step> {
    let by_load = |a: &usize, b: &usize| loads[*a].total_cmp(&loads[*b]);
    let from = (0..loads.len()).max_by(by_load).filter(|&worker| loads[worker] > OVERLOADED)?;
    let to = (0..loads.len()).min_by(by_load).filter(|&worker| loads[worker] < UNDERLOADED)?;
    let is_whole = |task: &TaskLoad| task.parts == 1 && !task.rests;
    let mut own: Vec<&mut TaskLoad> =
        tasks.iter_mut().filter(|task| task.worker == from && is_whole(task) && task.load > 0.0).collect();
    own.sort_by(|a, b| b.load.total_cmp(&a.load));
    let fits = |load: f64| loads[to] + load < OVERLOADED;
    // The largest task that the other worker can accept. Moving its only task does not help a worker whose task is too
    // much for any.
    if let Some(task) = own.iter_mut().find(|task| fits(task.load) && loads[to] + task.load < loads[from]) {
        loads[from] -= task.load;
        loads[to] += task.load;
        (task.worker, task.rests) = (to, true);
        return Some(Step::Move { task: task.task, to });
    }
    // If one query makes most of the load, half of the queries would still have most of it.
    let task = own.into_iter().find(|task| task.queries > 1 && !task.is_one_hot_query && fits(task.load / 2.0))?;
    let half = task.load / 2.0;
    loads[from] -= half;
    loads[to] += half;
    (task.load, task.rests) = (half, true);
    Some(Step::Split { task: task.task, to })
}

/// One more part for the hottest query that is too much for a worker, on a worker that has room and no part of it.
fn cut(tasks: &mut Vec<TaskLoad>, loads: &mut [f64], cut_above: f64) -> Option<Step> {
    let is_hot = |task: &&TaskLoad| task.is_one_hot_query && !task.rests && task.load > cut_above;
    let hottest = *tasks.iter().filter(is_hot).max_by(|a, b| a.load.total_cmp(&b.load))?;
    let of_it = |task: &TaskLoad| task.task == hottest.task;
    let is_free = |worker: &usize| !tasks.iter().any(|task| of_it(task) && task.worker == *worker);
    let has_least = |a: &usize, b: &usize| loads[*a].total_cmp(&loads[*b]);
    let to = (0..loads.len()).filter(is_free).filter(|&worker| loads[worker] < UNDERLOADED).min_by(has_least)?;
    let parts = hottest.parts + 1;
    let share = hottest.load * hottest.parts as f64 / parts as f64;
    for task in tasks.iter_mut().filter(|task| of_it(task)) {
        loads[task.worker] += share - task.load;
        (task.load, task.parts, task.rests) = (share, parts, true);
    }
    loads[to] += share;
    tasks.push(TaskLoad { worker: to, load: share, parts, rests: true, ..hottest });
    Some(Step::Cut { task: hottest.task, to })
}

/// The query in parts with the least load, if the worker of its first part has room for all of it.
fn join(tasks: &[TaskLoad], loads: &[f64], cut_above: f64) -> Option<Step> {
    let mut in_parts: Vec<&TaskLoad> = tasks.iter().filter(|task| task.parts > 1 && !task.rests).collect();
    // The first entry of each task is that of its first part.
    in_parts.dedup_by_key(|task| task.task);
    in_parts
        .into_iter()
        .filter(|task| {
            let whole = task.load * task.parts as f64;
            whole < cut_above * JOINED_BELOW && loads[task.worker] - task.load + whole < UNDERLOADED
        })
        .min_by(|a, b| a.load.total_cmp(&b.load))
        .map(|task| Step::Join { task: task.task })
}

/// The task of a split group with the least load, if another task of its group can take its queries back.
fn merge(tasks: &[TaskLoad], loads: &[f64]) -> Option<Step> {
    let mut tasks: Vec<&TaskLoad> = tasks.iter().filter(|task| !task.rests && task.parts == 1).collect();
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
        TaskLoad { task, group: task, worker, load, queries, rests: false, parts: 1, is_one_hot_query: false }
    }

    /// A plan that cuts queries which are too much for a worker.
    fn plan(workers: usize, tasks: &[TaskLoad]) -> Vec<Step> {
        super::plan(workers, tasks, OVERLOADED)
    }

    #[test]
    fn one_hot_query_is_cut_where_there_is_room_and_joined_when_it_is_cold() {
        let hot = TaskLoad { is_one_hot_query: true, ..task(0, 0, 1.5, 1) };
        assert_eq!(plan(3, &[hot, task(1, 1, 0.3, 5)]), [Step::Cut { task: 0, to: 2 }]);
        assert_eq!(plan(2, &[hot, task(1, 1, 0.85, 5)]), [], "nobody has room");
        assert_eq!(
            plan(2, &[TaskLoad { queries: 50, ..hot }]),
            [Step::Cut { task: 0, to: 1 }],
            "a split would not help"
        );
        let halves = |load| [0, 1].map(|worker| TaskLoad { worker, load, parts: 2, ..hot });
        assert_eq!(plan(3, &halves(1.0)), [Step::Cut { task: 0, to: 2 }], "it is too much for two as well");
        assert_eq!(plan(2, &halves(1.0)), [], "nobody has room");
        assert_eq!(plan(2, &halves(0.45)), [], "it would be cut again soon");
        assert_eq!(plan(2, &halves(0.35)), [Step::Join { task: 0 }]);
        assert_eq!(plan(2, &halves(0.35).map(|half| TaskLoad { rests: true, ..half })), []);
        let with_another = [halves(0.35)[0], halves(0.35)[1], task(1, 0, 0.3, 5)];
        assert_eq!(plan(2, &with_another), [], "together it is too much for that worker");
        assert_eq!(
            super::plan(2, &[task(0, 0, 0.2, 1), TaskLoad { is_one_hot_query: true, ..task(1, 1, 0.1, 1) }], 0.05),
            [Step::Cut { task: 1, to: 0 }]
        );
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
        meter.look(Seen { arrived: 1000, waiting: 0, busy_us: 250_000 }, second, 1);
        assert!((meter.load() - 0.25).abs() < 1e-9);
        // The task processed 1000 events in half a second of work, and as many wait: it needs the whole second.
        meter.look(Seen { arrived: 3000, waiting: 1000, busy_us: 750_000 }, second, 1);
        assert!((meter.load() - 1.0).abs() < 1e-9);
        meter.look(Seen { arrived: 3000, waiting: 1000, busy_us: 750_000 }, second, 1);
        assert!((meter.load() - 1.0).abs() < 1e-9, "what waits is not forgotten");
        meter.look(Seen { arrived: 3000, waiting: 0, busy_us: 751_000 }, second, 1);
        meter.look(Seen { arrived: 3000, waiting: 0, busy_us: 751_000 }, second, 1);
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
                    _ => prop_assert!(false, "no group is split, and no query hot"),
                }
            }
            prop_assert!(highest(&tasks) <= before.max(OVERLOADED) + 1e-9);
            prop_assert!(steps.is_empty() || before > OVERLOADED);
        }
    }
}
