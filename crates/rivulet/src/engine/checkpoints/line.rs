//! A line of epochs: all applications have one together, each big query has one, and so has the catalog where it is
//! saved. All lines have the same rules for when an attempt to add an epoch is due, what becomes of a failed attempt,
//! and what is reported.
//!
//! What must hold: an attempt that fails leaves the epoch before it in force. The failure is reported once, not at
//! every attempt, and the line tells why it has no newer epoch until it has one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rivulet_storage::{Committed, Epoch, Epochs, Piece, StorageError};

use crate::engine::attempts::Attempts;
use crate::service::{ErrorKind, ServiceError};

/// Why there is no newer epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Failure {
    /// In words; a hint stands behind `\nhint: `.
    pub(in crate::engine) text: String,
    /// For how long no attempt is made unless a user asks for one. It doubles with each failure, up to a minute.
    pub(in crate::engine) rest: Duration,
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self { text, rest: Duration::ZERO }
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        error.to_string().into()
    }
}

impl From<Failure> for ServiceError {
    fn from(failure: Failure) -> Self {
        Self::from_text(ErrorKind::Unavailable, &failure.text)
    }
}

/// A line of epochs, and the outcome of attempts to add to it.
pub(in crate::engine) struct Line {
    pub(in crate::engine) epochs: Epochs,
    /// The name in messages of what the line saves.
    of: String,
    /// When this process made the newest epoch.
    made: Option<Instant>,
    /// Why there is no newer epoch, and when the next attempt is due unless a user asks for one.
    attempts: Attempts,
}

/// The status of a line.
#[derive(Clone)]
pub(in crate::engine) struct LineStatus {
    /// The newest epoch.
    pub(in crate::engine) epoch: Option<u64>,
    /// When this process made that epoch.
    pub(in crate::engine) made: Option<Instant>,
    /// Bytes that a restart would read.
    pub(in crate::engine) live_bytes: u64,
    /// The bytes of the epoch that was just written, if one was.
    pub(in crate::engine) written_bytes: Option<u64>,
    /// Why there is no newer epoch, with a hint behind `\nhint: `.
    pub(in crate::engine) failure: Option<String>,
}

impl Line {
    pub(in crate::engine) fn new(epochs: Epochs, of: impl Into<String>) -> Self {
        Self { epochs, of: of.into(), made: None, attempts: Attempts::default() }
    }

    /// Makes an `attempt` to add an epoch with [`Line::commit`], unless the line waits after a failure and the
    /// checkpoint was not requested (`is_asked`). The attempt returns `None` if there is nothing to save now.
    ///
    /// # Errors
    /// Nothing was saved, or only a part.
    pub(in crate::engine) fn save(
        &mut self,
        is_asked: bool,
        attempt: impl FnOnce(&mut Self) -> Result<Option<Committed>, Failure>,
    ) -> Result<Option<Committed>, Failure> {
        if !is_asked && !self.attempts.is_due() {
            return Ok(None);
        }
        let saved = attempt(self);
        match &saved {
            Ok(saved) => {
                if self.attempts.succeed() && saved.is_some() {
                    tracing::info!(epoch = self.epochs.newest(), "checkpoints of {} work again", self.of);
                }
            }
            Err(Failure { text, rest }) => {
                if self.attempts.fail(text, *rest) {
                    tracing::error!(
                        "no checkpoint of {} was made; the one before stays in force, and it is tried again: {text}",
                        self.of
                    );
                }
            }
        }
        saved
    }

    /// The line has something else to save than what failed: the next attempt is made at once.
    pub(in crate::engine) fn begin_anew(&mut self) {
        self.attempts.begin_anew();
    }

    /// Writes an epoch.
    ///
    /// # Errors
    /// The epoch is not written, and the one before it stays in force.
    pub(in crate::engine) fn commit(&mut self, epoch: Epoch) -> Result<Committed, StorageError> {
        let committed = self.epochs.commit(epoch)?;
        self.made = Some(Instant::now());
        tracing::debug!(epoch = committed.epoch, bytes = committed.written_bytes, "checkpoint of {}", self.of);
        Ok(committed)
    }

    /// The status of the line, with the epoch that was just written.
    pub(in crate::engine) fn status(&self, committed: Option<&Committed>) -> LineStatus {
        LineStatus {
            epoch: self.epochs.newest(),
            made: self.made,
            live_bytes: self.epochs.live_bytes(),
            written_bytes: committed.map(|committed| committed.written_bytes),
            failure: self.attempts.problem().map(str::to_owned),
        }
    }

    /// When this process made the newest epoch.
    pub(in crate::engine) fn made(&self) -> Option<Instant> {
        self.made
    }
}

/// An epoch for which all pieces are given completely. A piece that has not changed is not written again, and a piece
/// that is not given is dropped.
pub(in crate::engine) struct Differences {
    written: BTreeMap<String, u64>,
    names: BTreeSet<String>,
    pieces: Vec<Piece>,
}

impl Differences {
    pub(in crate::engine) fn new(epochs: &Epochs) -> Self {
        let written = epochs.checksums().into_iter().map(|(name, checksum)| (name.to_owned(), checksum));
        Self { written: written.collect(), names: BTreeSet::new(), pieces: Vec::new() }
    }

    /// Adds a piece.
    pub(in crate::engine) fn add(&mut self, piece: Piece) {
        self.names.insert(piece.name().to_owned());
        if self.written.get(piece.name()) != Some(&piece.checksum()) {
            self.pieces.push(piece);
        }
    }

    /// The epoch with all pieces that were added.
    pub(in crate::engine) fn epoch(self, note: serde_json::Value) -> Epoch {
        let gone = self.written.into_keys().filter(|name| !self.names.contains(name));
        Epoch { note, dropped: gone.collect(), pieces: self.pieces }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rivulet_storage::{EpochSettings, Store};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_that_fails_says_why_and_rests_until_somebody_asks() {
        let store = Arc::new(Store::in_memory().expect("a store"));
        let epochs = Epochs::open(store, "line", EpochSettings { retained: 2 }).expect("a line");
        let mut line = Line::new(epochs, "a test");
        let failure = Failure { text: "not now".into(), rest: Duration::from_secs(1) };
        assert_eq!(line.save(false, |_| Err(failure.clone())), Err(failure));
        assert_eq!(line.save(false, |_| panic!("it is left alone")), Ok(None));
        assert_eq!(line.status(None).failure.as_deref(), Some("not now"));
        let saved = line.save(true, |line| {
            let epoch = Differences::new(&line.epochs).epoch(json!({}));
            Ok(Some(line.commit(epoch)?))
        });
        assert_eq!(saved.expect("it is written").map(|one| one.epoch), Some(1));
        assert!(line.status(None).failure.is_none() && line.made().is_some());
    }
}
