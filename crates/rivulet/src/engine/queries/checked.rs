//! Queries whose values were checked.

use std::sync::Arc;

use arrow::array::RecordBatch;
use rivulet_dataflow::{LogPosition, QueryId};

use crate::engine::running::Running;

/// Queries of one application that were checked. Only their names can still be refused.
pub(super) struct Checked<Q> {
    pub(super) running: Arc<Running>,
    pub(super) rows: RecordBatch,
    /// For each row the topics that its query reads, one for each input. `queries` says what the row is for.
    pub(super) inputs: Vec<Vec<String>>,
    pub(super) queries: Vec<Q>,
}

/// Changes that are newer than the saved state. They are made again at their position.
pub(super) struct ReplayedChange {
    pub(super) position: LogPosition,
    pub(super) number: u64,
    pub(super) query: QueryId,
    pub(super) checked: Arc<Checked<(QueryId, u64, LogPosition)>>,
    pub(super) row: usize,
}
