//! What a flow and its tasks have done.

use std::sync::Arc;

use rivulet_dataflow::{Reason, Seconds, Waits};

use super::measure::OperatorReport;
use crate::Histogram;

/// What a flow has done so far.
#[derive(Clone, Debug, Default)]
pub struct FlowReport {
    /// Rows read from sources.
    pub rows_in: u64,
    /// Rows handed to sinks.
    pub rows_out: u64,
    /// Rows refused, by [`Reason`].
    pub refused: [u64; Reason::ALL.len()],
    /// Rows read whose times are most likely seconds that were read as milliseconds, by source; sources behind the last
    /// one with such rows are left out.
    pub seconds: Vec<Seconds>,
    /// The first refusals, in words.
    pub refusals: Vec<String>,
    /// From the arrival of a row, or from the end of its window, to the writing of what came of it, microseconds.
    pub latency_us: Histogram,
    /// From the arrival of the newest row of a window to its end.
    pub waits: Waits,
    /// Memory of operators, bytes.
    pub state_bytes: usize,
    /// How far the results have come in event time, microseconds since the epoch: the watermark of the slowest task
    /// with a sink. `None` before the first.
    pub watermark_us: Option<i64>,
    /// How much is read and how much there is, in the unit of the sources, if all of them know their end.
    pub progress: Option<(u64, u64)>,
    /// Time since the start, microseconds.
    pub window_us: u64,
    /// What each task has done, in the order of stages.
    pub tasks: Vec<TaskReport>,
}

impl FlowReport {
    /// How unevenly the tasks are used: the standard deviation of their utilisation over its mean. `None` if nothing
    /// was done.
    pub fn utilisation_cv(&self) -> Option<f64> {
        let used: Vec<f64> = self.tasks.iter().map(|task| task.usage(self.window_us).utilisation).collect();
        let mean = used.iter().sum::<f64>() / used.len() as f64;
        let variance = used.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / used.len() as f64;
        (mean > 0.0).then(|| variance.sqrt() / mean)
    }
}

/// What one task has done so far.
#[derive(Clone, Debug, Default)]
pub struct TaskReport {
    /// The index of its stage.
    pub stage: usize,
    /// The operators, source and sink of its stage.
    pub name: Arc<str>,
    /// The worker that it belongs to, where tasks belong to one.
    pub worker: Option<usize>,
    /// The memory node of that worker, where the machine has several.
    pub node: Option<usize>,
    /// The instance of the stage.
    pub instance: usize,
    /// Rows received.
    pub rows_in: u64,
    /// Rows sent on or written.
    pub rows_out: u64,
    /// Time spent running, microseconds.
    pub busy_us: u64,
    /// The part of it that its guests ran elsewhere.
    pub away_us: u64,
    /// Time in which it had work and waited for a worker, microseconds.
    pub ready_us: u64,
    /// Time in which it had work and no room for what comes of it, microseconds.
    pub blocked_us: u64,
    /// How long rows waited in its queue, without the time in which it waited for a worker: microseconds, summed over
    /// rows.
    pub queued_row_us: u64,
    /// How long rows waited in its queue while it waited for a worker: microseconds, summed over rows.
    pub scheduled_row_us: u64,
    /// Whether its rows come by a queue. Those of a source do not.
    pub has_queue: bool,
    /// Rows that all tasks have read of the sources of its rows.
    pub source_rows: u64,
    /// Rows that wait for the task.
    pub waiting_rows: usize,
    /// The most rows that ever waited.
    pub waiting_rows_max: usize,
    /// The watermark of its input, microseconds since the epoch; `None` before the first.
    pub watermark_us: Option<i64>,
    /// What each of its operators has done.
    pub operators: Vec<OperatorReport>,
}

/// How a task has used a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// The part of the window in which it had work: 1 - time with an empty queue / window.
    pub utilisation: f64,
    /// The part of a worker that it got while it had work.
    pub weight: f64,
    /// Rows a second of computing; `None` before the first row.
    pub rows_per_s: Option<f64>,
    /// Rows for each row that its sources read.
    pub rows_per_source_row: Option<f64>,
    /// The rows a second of its sources at which it has work all the time, if it goes on getting that part of a worker:
    /// `weight * rows_per_s / rows_per_source_row`. The task with the least is the bottleneck.
    pub source_rows_per_s_max: Option<f64>,
    /// Rows that waited in its queue, in the mean over the window.
    pub waiting_rows_mean: f64,
    /// Of a row in the mean, microseconds: in its queue, without the time in which the task waited for a worker.
    pub queued_us: Option<f64>,
    /// Of a row in the mean, microseconds: in its queue while the task waited for a worker.
    pub scheduling_us: Option<f64>,
    /// Of a row in the mean, microseconds.
    pub computing_us: Option<f64>,
}

impl TaskReport {
    /// How the task has used a window of time, in which it has done this.
    pub fn usage(&self, window_us: u64) -> Usage {
        let ratio = |over: f64, under: f64| (under > 0.0).then(|| over / under);
        let (busy, rows, window) = (self.busy_us as f64, self.rows_in as f64, window_us as f64);
        let active = busy + self.ready_us as f64 + self.blocked_us as f64;
        let weight = ratio(busy, active).unwrap_or(0.0);
        let rows_per_s = ratio(rows * 1e6, busy).filter(|rate| *rate > 0.0);
        let rows_per_source_row = ratio(rows, self.source_rows as f64).filter(|rows| *rows > 0.0);
        let of_row = |sum_us: u64| ratio(sum_us as f64, rows).filter(|_| self.has_queue);
        Usage {
            utilisation: ratio(active, window).unwrap_or(0.0).min(1.0),
            weight,
            rows_per_s,
            rows_per_source_row,
            source_rows_per_s_max: rows_per_s.zip(rows_per_source_row).map(|(rate, rows)| weight * rate / rows),
            waiting_rows_mean: ratio((self.queued_row_us + self.scheduled_row_us) as f64, window).unwrap_or(0.0),
            queued_us: of_row(self.queued_row_us),
            scheduling_us: of_row(self.scheduled_row_us),
            computing_us: ratio(busy, rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(busy_us: u64, ready_us: u64, blocked_us: u64, rows_in: u64) -> TaskReport {
        TaskReport {
            busy_us,
            ready_us,
            blocked_us,
            rows_in,
            has_queue: true,
            source_rows: 100,
            ..TaskReport::default()
        }
    }

    #[test]
    fn usage_says_where_the_time_went_and_when_a_task_is_full() {
        let one = TaskReport { queued_row_us: 1_000, scheduled_row_us: 400, ..task(200, 100, 100, 50) };
        let usage = one.usage(1_000);
        assert_eq!((usage.utilisation, usage.weight, usage.waiting_rows_mean), (0.4, 0.5, 1.4));
        assert_eq!((usage.queued_us, usage.scheduling_us, usage.computing_us), (Some(20.0), Some(8.0), Some(4.0)));
        assert_eq!((usage.rows_per_s, usage.rows_per_source_row), (Some(250_000.0), Some(0.5)));
        assert_eq!(usage.source_rows_per_s_max, Some(250_000.0), "it has work 0.4 of the time at 100,000 rows/s");
        let of_source = TaskReport { has_queue: false, ..one };
        assert_eq!(of_source.usage(1_000).queued_us, None);
        let idle = task(0, 0, 0, 0).usage(1_000);
        assert_eq!((idle.utilisation, idle.rows_per_s, idle.source_rows_per_s_max), (0.0, None, None));
    }

    #[test]
    fn how_unevenly_tasks_are_used() {
        let report = |tasks| FlowReport { window_us: 1_000, tasks, ..FlowReport::default() };
        assert_eq!(report(vec![task(500, 0, 0, 1), task(300, 200, 0, 1)]).utilisation_cv(), Some(0.0));
        assert_eq!(report(vec![task(500, 0, 0, 1), task(0, 0, 0, 0)]).utilisation_cv(), Some(1.0));
        assert_eq!(report(vec![task(0, 0, 0, 0)]).utilisation_cv(), None);
    }
}
