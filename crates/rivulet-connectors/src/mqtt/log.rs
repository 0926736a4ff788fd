//! The log that messages for durable inputs go to, as the router sees it.

use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;

use super::router::Received;

/// What became of a message that was offered to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Logged {
    /// It has this position, and will be on disk.
    At(LogPosition),
    /// It was not wanted after all.
    NotTaken,
    /// There is no room for it.
    Full,
}

/// A log of messages that survive a crash.
pub trait MessageLog: Send + Sync {
    /// Offers a message. If there is room, `take` is told the position that it would get, and says whether it is to
    /// have it. Nothing else is appended meanwhile. One that `may_exceed` the limit of the log is in the way of what
    /// would make room.
    fn append(&self, message: &Received<'_>, may_exceed: bool, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged;

    /// The position of the next message. All before it have been taken when this returns.
    fn next(&self) -> LogPosition;

    /// The highest position that is on disk, with all before it.
    fn durable(&self) -> LogPosition;

    /// Told each time [`MessageLog::durable`] has grown.
    fn committed(&self) -> &Notify;
}
