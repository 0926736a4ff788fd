//! The log that messages for durable inputs go to, as the router sees it.

use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;

/// A message for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMessage<'m> {
    /// When it reached the engine, microseconds since the epoch.
    pub arrival_us: i64,
    /// The name of the client that sent it, empty for the external broker; of the engine's own results their identity, if they have one, in a form that
    /// no name has.
    pub client: &'m [u8],
    /// The packet identifier under which its sender waits for an acknowledgement; 0 if it does not.
    pub packet_id: u16,
    /// Where it was sent to.
    pub topic: &'m [u8],
    /// Its content.
    pub payload: &'m [u8],
}

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
    /// Offers a message. If there is room, `take` is told the position that it would get, and says whether it is to have it. Nothing
    /// else is appended meanwhile. One that `may_exceed` the limit of the log is in the way of what would make room.
    fn append(&self, message: &LogMessage<'_>, may_exceed: bool, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged;

    /// The position of the next message. All before it have been taken when this returns.
    fn next(&self) -> LogPosition;

    /// The highest position that is on disk, with all before it.
    fn durable(&self) -> LogPosition;

    /// Told each time [`MessageLog::durable`] has grown.
    fn committed(&self) -> &Notify;
}
