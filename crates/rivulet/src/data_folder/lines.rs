//! The names of lines of epochs in the store of checkpoints: all applications have one together, each big query has
//! one, and so has the catalog where it is saved.

use std::collections::BTreeSet;

use rivulet_storage::{Epochs, StorageError, Store};

use crate::service::{ErrorKind, ServiceError};

/// The line of applications.
pub(crate) const APPLICATIONS: &str = "applications";

/// The line of the catalog.
pub(crate) const CATALOG: &str = "catalog";

/// The folder of the lines of big queries.
const OF_QUERIES: &str = "queries";

/// The name of the line of a big query.
pub(crate) fn of_query(number: u64) -> String {
    format!("{OF_QUERIES}/{number}")
}

/// The big query whose line this is.
pub(crate) fn query_of(line: &str) -> Option<u64> {
    line.strip_prefix(OF_QUERIES)?.strip_prefix('/')?.parse().ok()
}

/// The big queries of which anything is saved.
///
/// # Errors
/// The store cannot be read.
pub(crate) fn numbers(store: &Store) -> Result<BTreeSet<u64>, StorageError> {
    Ok(Epochs::lines(store, OF_QUERIES)?.iter().filter_map(|line| query_of(line)).collect())
}

/// The `error` of the store as an answer to the caller, with its hint.
pub(crate) fn refused(what: &str, error: &StorageError) -> ServiceError {
    ServiceError::from_text(ErrorKind::Unavailable, &format!("{what}: {error}"))
}
