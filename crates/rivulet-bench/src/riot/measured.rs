//! What a run took, and what its tasks did.

use rivulet_runtime::TaskReport;
use serde::{Deserialize, Serialize};

/// What a run took.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Rows read.
    pub events: u64,
    /// Rows handed to the sink.
    pub results: u64,
    /// From start to end.
    pub elapsed_s: f64,
    /// Processor time of the whole process meanwhile.
    pub cpu_s: f64,
    /// From the time in the schedule to the result: median, 95th and 99th percentile, longest.
    pub latency_us: [u64; 4],
    /// What each task did.
    pub tasks: Vec<Task>,
    /// Rows that waited for each task, by the seconds since the start.
    pub pending: Vec<(f64, Vec<u64>)>,
}

/// What a task did: an instance of an operator, or of several that are fused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its stage and instance, and its operators.
    pub operator: String,
    /// Rows that came.
    pub rows_in: u64,
    /// Rows that went.
    pub rows_out: u64,
    /// The most rows that waited.
    pub rows_waiting_max: u64,
    /// The part of the time in which it had work.
    pub utilisation: f64,
    /// The part of a worker that it got while it had work.
    pub weight: f64,
    /// The events a second at which it has work all the time; of all tasks, the least is the bottleneck.
    pub input_per_s_max: Option<f64>,
    /// How long a row waited in its queue, in the mean, but for the time in which the task waited for a worker.
    pub queued_us: Option<f64>,
    /// How long a row waited there while the task waited for a worker.
    pub scheduling_us: Option<f64>,
    /// How long it took.
    pub computing_us: Option<f64>,
}

impl Task {
    /// What a task did in so much time.
    pub fn of(task: &TaskReport, window_us: u64) -> Self {
        let usage = task.usage(window_us);
        Self {
            operator: format!("{}.{} {}", task.stage + 1, task.instance + 1, task.name),
            rows_in: task.rows_in,
            rows_out: task.rows_out,
            rows_waiting_max: task.waiting_rows_max as u64,
            utilisation: usage.utilisation,
            weight: usage.weight,
            input_per_s_max: usage.source_rows_per_s_max,
            queued_us: usage.queued_us,
            scheduling_us: usage.scheduling_us,
            computing_us: usage.computing_us,
        }
    }
}
