//! The catalog in the object store, next to the state, in case the machine is lost with its data folder.
//!
//! It is not read as long as there is a data folder: there the catalog is durable with every change, and here only with
//! every checkpoint.
//!
//! What must hold: a server that begins with an empty data folder takes the whole catalog or nothing, and does so
//! before it writes anything to the store. No number is given out again under which something is saved there.

use std::collections::BTreeMap;
use std::sync::Arc;

use rivulet_storage::{EpochSettings, Epochs, Piece, StorageError, Store};
use serde_json::json;

use super::line::{Differences, Line, LineStatus};
use crate::catalog::{Catalog, Used};
use crate::data_folder::lines::{self, numbers, refused};
use crate::service::{ErrorKind, ServiceError};

/// A key of an epoch's note: the format of the catalog.
const FORMAT: &str = "format";

/// The catalog's line of epochs.
pub(super) struct CatalogLine {
    line: Line,
    /// The number of changes that the catalog had when it was saved.
    saved: Option<u64>,
}

impl CatalogLine {
    pub(super) fn open(store: Arc<Store>, retained: usize) -> Result<Self, StorageError> {
        let epochs = Epochs::open(store, lines::CATALOG, EpochSettings { retained })?;
        Ok(Self { line: Line::new(epochs, "the catalog"), saved: None })
    }

    /// Saves the catalog if it has changed, and returns the status of the line.
    pub(super) fn save(&mut self, catalog: &Catalog, is_asked: bool) -> LineStatus {
        let Self { line, saved } = self;
        let committed = line.save(is_asked, |line| {
            // Counted before the catalog is read: a change that is made meanwhile may be in it or not.
            let changes = catalog.changes();
            if *saved == Some(changes) {
                return Ok(None);
            }
            let mut parts = Differences::new(&line.epochs);
            let read = catalog.parts(&mut |name, bytes| parts.add(Piece::whole(name, bytes)));
            read.map_err(|error| ServiceError::from(error).text())?;
            let epoch = parts.epoch(json!({ FORMAT: Catalog::FORMAT }));
            let has_changed = !epoch.pieces.is_empty() || !epoch.dropped.is_empty();
            let committed = has_changed.then(|| line.commit(epoch)).transpose()?;
            *saved = Some(changes);
            Ok(committed)
        });
        let status = line.status(committed.ok().flatten().as_ref());
        let failure = status.failure.map(|failure| format!("the catalog is not saved: {failure}"));
        LineStatus { failure, ..status }
    }

    /// Whether there is an epoch that can be used.
    pub(super) fn has_any(&self) -> bool {
        self.line.epochs.newest().is_some()
    }

    /// Fills a catalog in which nothing was ever stored with the saved one, if there is one.
    pub(super) fn restore(&self, store: &Store, catalog: &Catalog) -> Result<(), ServiceError> {
        let restored =
            self.line.epochs.restore().map_err(|error| refused("the saved catalog cannot be read", &error))?;
        let Some(restored) = restored else { return Ok(()) };
        let format = restored.note.get(FORMAT).and_then(serde_json::Value::as_u64);
        if format.is_none_or(|format| format > Catalog::FORMAT) {
            let message = "the catalog in the store of checkpoints was saved by a later version";
            return Err(ServiceError::new(ErrorKind::Unavailable, message)
                .with_hint("use the version of the program that wrote it, or a later one"));
        }
        let parts: BTreeMap<String, Vec<u8>> =
            restored.pieces.into_iter().map(|(name, pieces)| (name, pieces.concat())).collect();
        // The saved catalog is older than the state. Queries that were created between have checkpoints under numbers
        // that this catalog would give out again.
        let statement =
            numbers(store).map_err(|error| refused("the saved big queries cannot be listed", &error))?.pop_last();
        catalog.fill(&parts, Used { statement, ..Used::default() })?;
        tracing::warn!(
            epoch = restored.epoch,
            queries = catalog.queries_count()?,
            "the data folder was empty: the catalog comes from the store of checkpoints, as it was at the last one"
        );
        Ok(())
    }
}
