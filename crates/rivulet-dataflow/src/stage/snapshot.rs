//! What one instance of a stage holds at one moment.

/// The position and time of a partition of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionState {
    /// The position in the connector's own notation; `None` if the source cannot be read again.
    pub position: Option<String>,
    /// The time of its newest row, microseconds since the epoch.
    pub newest_us: Option<i64>,
}

/// The snapshot of one instance of a stage, without the state of its operators.
#[derive(Clone, Debug, Default)]
pub struct StageSnapshot {
    /// The positions of its partitions, if it reads a source.
    pub partitions: Option<Vec<PartitionState>>,
    /// What its sink needs to make its rows final, if it has a sink.
    pub sink: Option<String>,
    /// Its watermark, microseconds since the epoch; `None` before the first.
    pub reached_us: Option<i64>,
    /// Whether it had ended before.
    pub has_ended: bool,
}
