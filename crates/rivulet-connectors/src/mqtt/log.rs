//! The log for messages of durable inputs, as the router sees it.

use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;

use super::received::Received;

/// The result of offering a message to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Logged {
    /// It has this position, and will be on disk.
    At(LogPosition),
    /// `take` did not accept it.
    NotTaken,
    /// There is no room for it.
    Full,
}

/// A log of messages that survive a crash.
pub trait MessageLog: Send + Sync {
    /// Offers a message. If there is room, calls `take` with the position that it would get; `take` returns whether it
    /// is to be appended. Nothing else is appended meanwhile. A message that `may_exceed` the limit of the log blocks
    /// what would make room, so it may be appended beyond it.
    fn append(&self, message: &Received<'_>, may_exceed: bool, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged;

    /// The position of the next message. Every message before it has been taken when this returns.
    fn next(&self) -> LogPosition;

    /// The highest position that is on disk, together with all positions before it.
    fn durable(&self) -> LogPosition;

    /// Notified each time [`MessageLog::durable`] has grown.
    fn committed(&self) -> &Notify;
}
