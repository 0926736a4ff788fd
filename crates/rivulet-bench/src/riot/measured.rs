//! What a run took, and what its tasks did.

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
    /// The part of the time in which it had something to do.
    pub utilisation: f64,
    /// How long a row waited for those before it, in the mean; if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_us: Option<f64>,
    /// How long for a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_us: Option<f64>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computing_us: Option<f64>,
}
