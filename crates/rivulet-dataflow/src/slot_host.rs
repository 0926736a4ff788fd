//! What a checkpoint needs to know of the queries of a group, kept beside their state.

mod progress;

pub use progress::{Absences, Mark, Progress, position_of, stamp};
