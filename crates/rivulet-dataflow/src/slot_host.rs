//! The host of the queries of a group that one thread runs together: it steps their operators, and keeps their
//! parameters, state, timers and progress.
//!
//! - [`SlotHost`]: what is driven, by calls alone;
//! - [`SlotReport`]: what it tells its driver;
//! - [`SlotCopy`]: queries on their way to another host; [`SlotSnapshot`]: what a checkpoint saves of them;
//! - [`Mark`], [`Absences`]: the progress of a query, saved with its state;
//! - [`parts`](SlotHost::fork): several hosts side by side for one busy query.

mod idle;
mod progress;
mod report;
mod table;
mod host;
mod tallies;
mod state;
mod parts;

pub use host::SlotHost;
pub use progress::{Absences, Mark};
pub use report::{Failure, SlotReport};
pub use state::{SlotCopy, SlotSnapshot, renumber, with_slots};
