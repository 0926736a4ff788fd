//! What a flow and its tasks have done.

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
    /// What each task has done, in the order of stages.
    pub tasks: Vec<TaskReport>,
}

/// What one task has done so far.
#[derive(Clone, Debug, Default)]
pub struct TaskReport {
    /// The index of its stage.
    pub stage: usize,
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
    /// Rows that wait for the task.
    pub waiting_rows: usize,
    /// The most rows that ever waited.
    pub waiting_rows_max: usize,
    /// The watermark of its input, microseconds since the epoch; `None` before the first.
    pub watermark_us: Option<i64>,
    /// What each of its operators has done, if that is measured.
    pub operators: Vec<OperatorReport>,
}
