//! Errors of storage.

use std::io;

/// Why something could not be stored or read back.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// There is no room.
    #[error("the disk is full: {what}\nhint: free space in {place}; nothing was lost, and it is tried again")]
    Full {
        /// What could not be written.
        what: String,
        /// The folder or bucket that is full.
        place: String,
    },
    /// The system or the object store refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// An object store could not be reached, or did not do what was asked.
    #[error("{what}: {detail}\nhint: {hint}")]
    Remote {
        /// What was tried.
        what: String,
        /// Its answer, or why there is none.
        detail: String,
        /// What to do about it.
        hint: String,
    },
    /// The bytes are not those that were written.
    #[error("{what} is damaged: {detail}")]
    Damaged {
        /// What was read.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Another process writes the same line of epochs.
    #[error(
        "{what} was written by another process meanwhile\nhint: give every server a data folder or prefix of its own"
    )]
    Taken {
        /// The object that existed already.
        what: String,
    },
    /// The data was written by a later version.
    #[error(
        "{what} has format {found}, and this program knows formats up to {known}\nhint: use the version of the program that wrote it, or a later one"
    )]
    Version {
        /// What was read.
        what: String,
        /// The format found.
        found: u32,
        /// The highest format that this program reads.
        known: u32,
    },
}

impl StorageError {
    pub(crate) fn damaged(what: &str, detail: impl Into<String>) -> Self {
        Self::Damaged { what: what.to_owned(), detail: detail.into() }
    }

    /// The error for a system error at `what`, which is in `place`.
    pub(crate) fn from_io(what: impl Into<String>, place: &str, source: io::Error) -> Self {
        let what = what.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full { what, place: place.to_owned() }
            }
            _ => Self::Io { what, source },
        }
    }

    /// Whether the data is damaged, truncated or missing. Any other error may be gone at the next attempt.
    pub(crate) fn is_damage(&self) -> bool {
        use io::ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
        match self {
            Self::Damaged { .. } => true,
            // An error that nobody can tell is none: whoever goes back to an older state loses what came after it.
            Self::Io { source, .. } => matches!(source.kind(), InvalidData | InvalidInput | NotFound | UnexpectedEof),
            _ => false,
        }
    }

    /// Whether there may be room later.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_over_at_the_next_attempt_is_no_damage() {
        let io = |source: io::Error| StorageError::from_io("cannot read it", "here", source).is_damage();
        assert!(io(io::ErrorKind::NotFound.into()) && io(io::ErrorKind::UnexpectedEof.into()));
        assert!(!io(io::Error::other("the disk does not answer")));
        assert!(StorageError::damaged("it", "cut").is_damage());
        assert!(!io(io::ErrorKind::PermissionDenied.into()));
        assert!(!io(io::Error::from_raw_os_error(24)), "too many open files");
        assert!(!io(io::Error::from_raw_os_error(5)), "a disk that does not answer");
    }
}
