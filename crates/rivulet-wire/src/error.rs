//! What can be wrong with what comes from the other side.

/// An error of a connection or of one of its streams.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The other side is no Rivulet.
    #[error("what answers there is no link of Rivulet")]
    Stranger,
    /// The other side has another version of the wire.
    #[error("the other side speaks version {theirs} of the wire, this one version {ours}: upgrade the older one")]
    Version {
        /// The version of this program.
        ours: u16,
        /// The version of the other one.
        theirs: u16,
    },
    /// Bytes that nobody has written so.
    #[error("the other side sent {0}: the connection is broken")]
    Broken(&'static str),
    /// A frame with more bytes than may be.
    #[error("the other side sent a frame of {bytes} bytes, and {bytes_max} is the most")]
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The most that are taken.
        bytes_max: u64,
    },
    /// Columns that cannot be written, or are not those of the stream.
    #[error("the columns of a stream: {0}")]
    Columns(String),
    /// The other side has ended the connection, and said why.
    #[error("the other side has refused the connection: {0}")]
    Refused(String),
    /// Nothing was heard for too long.
    #[error("nothing was heard from the other side for {} s", .us / 1_000_000)]
    Silent {
        /// For how long, microseconds.
        us: i64,
    },
}
