//! Where the rows of a big query come from.

use std::fmt;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};

use crate::Refusals;

/// One partition of a source: a file, a range of a generator, a partition of a topic. It has a time of its own: how far
/// it is, is told by its newest row, and that says nothing of other partitions.
///
/// A source runs in a task like an operator, so it never blocks: what must wait for a device does so in a thread of its
/// own and hands over through a bounded queue. Rows of one partition come in the order in which they stand there.
pub trait Source: Send {
    /// The next rows, about `rows_max` of them at most (a single event that gives several rows may exceed it). What
    /// does not fit the declared columns is refused and leaves no row.
    ///
    /// # Errors
    /// The source is broken for good: a file that cannot be read, a broker that refuses. What may come back is waited
    /// for.
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError>;

    /// Partitions that were found since this was last asked, as files that are new. They are read beside this one, as
    /// it is.
    fn found(&mut self) -> Vec<Box<dyn Source>> {
        Vec::new()
    }

    /// Whether rows come as they happen, so that a time far ahead of their arrival is wrong. History that is read again
    /// has any time.
    fn is_live(&self) -> bool {
        false
    }

    /// It will not be asked until it is told otherwise (`false`), or goes on being asked. A source that holds up others
    /// while it is full lets go of what it listens to; most have nothing to do.
    fn set_paused(&mut self, _is_paused: bool) {}

    /// Where its next row stands, in words of its connector, which can open it there again. `None` where what was read
    /// cannot be read again. Asked between two polls.
    fn position(&mut self) -> Option<String> {
        None
    }

    /// Everything that polls have brought so far is where it outlives a crash: senders that wait for that may be told.
    /// Called by a host that has promised it when the source was opened, between two polls.
    fn confirm(&mut self) {}

    /// How many of how many bytes, rows or whatever it counts in are done, where that is known.
    fn progress(&self) -> Option<(u64, u64)> {
        None
    }

    /// Whether it comes to an end by itself, and results are wanted then.
    fn is_bounded(&self) -> bool {
        self.progress().is_some()
    }
}

/// The columns of rows as sources give them that are declared as `declared`.
///
/// Whole numbers and floating point numbers of fewer bits than 64 are widened to 64, which keeps each value, so that
/// arithmetic over them does not overflow where that of 64 bits would not. All other types stay.
pub fn carried(declared: &Schema) -> Schema {
    let fields = declared.fields().iter().map(|field| match field.data_type() {
        DataType::Int8 | DataType::Int16 | DataType::Int32 => {
            Field::new(field.name(), DataType::Int64, field.is_nullable())
        }
        DataType::Float32 => Field::new(field.name(), DataType::Float64, field.is_nullable()),
        _ => field.as_ref().clone(),
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), declared.metadata().clone())
}

/// What a source has.
#[derive(Clone, Debug)]
pub enum Polled {
    /// Rows with the columns that were asked for. `arrival_us` is when they reached the engine, or were meant to by the
    /// schedule of a generator, microseconds since the epoch.
    Rows {
        /// The columns.
        columns: RecordBatch,
        /// One time for all of them.
        arrival_us: i64,
    },
    /// Nothing now; it is worth asking again after this long. After no time at all, it was not silent: what it had was
    /// refused.
    Nothing(Duration),
    /// Nothing is expected of it, as of a partition that somebody else reads now, and nobody waits for its time. It is
    /// worth asking again after this long.
    Aside(Duration),
    /// Nothing will ever follow.
    End,
}

/// A source that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError(pub String);

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SourceError {}
