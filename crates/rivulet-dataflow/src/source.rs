//! Where the rows of a big query come from.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};

use crate::{Batch, Refusals};

/// One partition of a source: a file, a range of a generator, a partition of a topic. Its newest row tells how far its
/// time is; other partitions have times of their own.
///
/// A source runs in a task like an operator, so it never blocks. What must wait for a device does so in a thread of the
/// source, which hands rows over through a bounded queue. The rows of a partition come in the order in which the
/// partition holds them.
pub trait Source: Send {
    /// Returns the next rows, at most about `rows_max` (an event that gives several rows may exceed it). An event that
    /// does not fit the declared columns is refused and gives no row.
    ///
    /// # Errors
    /// The source has failed for good: a file cannot be read, a broker refuses. The source itself waits for what may
    /// come back, such as a lost connection.
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError>;

    /// Partitions found since the last call, for example new files. They are read beside this partition.
    fn found(&mut self) -> Vec<Box<dyn Source>> {
        Vec::new()
    }

    /// Whether rows arrive as they happen, so that a time far ahead of the arrival is wrong. History may have any time.
    fn is_live(&self) -> bool {
        false
    }

    /// Called when the source will not be polled until further notice (`true`), and when polling goes on (`false`). A
    /// source whose full queue would hold up others stops listening; most sources have nothing to do.
    fn set_paused(&mut self, _is_paused: bool) {}

    /// Whether rows wait in this process that nobody could read again. Before the last checkpoint of a query the host
    /// polls until there are none.
    fn holds_rows(&self) -> bool {
        false
    }

    /// The position of the next row, in the connector's own notation; the connector can open the source there again.
    /// `None` if the source cannot be read again. Called between two polls.
    fn position(&mut self) -> Option<String> {
        None
    }

    /// Everything before the last [`Source::position`] is where it outlives a crash, or everything so far if the host
    /// asks for no positions: senders that wait for that may be told. Called between two polls.
    fn confirm(&mut self) {}

    /// How much is read and how much there is, in bytes, rows or another unit; `None` if that is unknown.
    fn progress(&self) -> Option<(u64, u64)> {
        None
    }

    /// Whether the source ends by itself. Its query then emits all results at the end.
    fn is_bounded(&self) -> bool {
        self.progress().is_some()
    }
}

/// The type in which rows of sources have values that are declared as `declared`.
///
/// Whole numbers and floating point numbers of fewer bits than 64 are widened to 64, which keeps each value, so that
/// arithmetic over them does not overflow where that of 64 bits would not. All other types stay.
pub fn carried_type(declared: &DataType) -> &DataType {
    match declared {
        DataType::Int8 | DataType::Int16 | DataType::Int32 => &DataType::Int64,
        DataType::Float32 => &DataType::Float64,
        other => other,
    }
}

/// The columns of rows as sources give them that are declared as `declared`: each of its [`carried_type`].
pub fn carried(declared: &Schema) -> Schema {
    let carried = |field: &FieldRef| match carried_type(field.data_type()) {
        same if same == field.data_type() => field.clone(),
        wide => Arc::new(Field::new(field.name(), wide.clone(), field.is_nullable())),
    };
    Schema::new_with_metadata(declared.fields().iter().map(carried).collect::<Vec<_>>(), declared.metadata().clone())
}

/// The answer of a source to a poll.
#[derive(Clone, Debug)]
pub enum Polled {
    /// Rows with the declared columns. `arrival_us` is when they reached the engine, or were due by the schedule of a
    /// generator, in microseconds since the epoch.
    Rows {
        /// The columns.
        columns: RecordBatch,
        /// Which rows retract an equal row that came before ([`Batch::retracts`]), in a source of changes.
        retracts: Option<BooleanBuffer>,
        /// The arrival time of all these rows.
        arrival_us: i64,
    },
    /// No rows now; poll again after this time. With a time of zero the source was not silent: it refused all that
    /// came.
    Nothing(Duration),
    /// No rows are expected, for example because another reader has the partition now, so no watermark waits for this
    /// source. Poll again after this time.
    Aside(Duration),
    /// The source has ended.
    End,
}

impl Polled {
    /// The rows of a batch. Without any, the source was not silent: it refused all that came.
    pub fn rows(batch: Batch, arrival_us: i64) -> Self {
        match batch.is_empty() {
            true => Self::Nothing(Duration::ZERO),
            false => Self::Rows { columns: batch.columns, retracts: batch.retracts, arrival_us },
        }
    }
}

/// A source that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);
