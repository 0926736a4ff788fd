//! Where the rows of a big query come from.

use std::fmt;
use std::time::Duration;

use arrow::array::RecordBatch;

use crate::Refusals;

/// One partition of a source: a file, a range of a generator, a partition of a topic.
///
/// A source runs in a task like an operator, so it never blocks: what must wait for a device does so in a thread of its own and
/// hands over through a bounded queue. Rows of one partition come in the order in which they stand there.
pub trait Source: Send {
    /// The next rows, about `rows_max` of them at most (a single event that gives several rows may exceed it). What does not
    /// fit the declared columns is refused and leaves no row.
    ///
    /// # Errors
    /// The source is broken for good: a file that cannot be read, a broker that refuses. What may come back is waited for.
    fn poll(&mut self, rows_max: usize, now_us: i64, refusals: &mut Refusals) -> Result<Polled, SourceError>;

    /// How many of how many bytes, rows or whatever it counts in are done, where the end is known: for progress alone.
    fn progress(&self) -> Option<(u64, u64)> {
        None
    }
}

/// What a source has.
#[derive(Clone, Debug)]
pub enum Polled {
    /// Rows with the columns that were asked for. `arrival_us` is when they reached the engine, or were meant to by the schedule of
    /// a generator, microseconds since the epoch.
    Rows {
        /// The columns.
        columns: RecordBatch,
        /// One time for all of them.
        arrival_us: i64,
    },
    /// Nothing now; it is worth asking again after this long.
    Nothing(Duration),
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
