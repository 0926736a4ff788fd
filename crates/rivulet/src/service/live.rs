//! Results for readers that watch, and the SELECTs that they run.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::broadcast;

/// A result for the readers of a query.
#[derive(Debug, Default)]
pub struct LiveResult {
    /// The result as JSON; empty if this only tells at the end how many results were skipped.
    pub text: String,
    /// The number of earlier results for which there was no memory.
    pub skipped: u64,
    /// Whether this is not a result, but a note about rows that a SELECT has refused.
    pub is_note: bool,
    /// Its memory counts until the last reader has it.
    pub(crate) _waiting: Option<Waiting>,
}

/// The bytes of a result that waits for readers; they count as long as this exists.
#[derive(Debug)]
pub(crate) struct Waiting {
    bytes: usize,
    of_query: Arc<AtomicUsize>,
    of_all: Arc<AtomicUsize>,
}

impl Waiting {
    pub(crate) fn new(bytes: usize, of_query: &Arc<AtomicUsize>, of_all: &Arc<AtomicUsize>) -> Self {
        for counter in [of_query, of_all] {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
        Self { bytes, of_query: of_query.clone(), of_all: of_all.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for counter in [&self.of_query, &self.of_all] {
            counter.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// A SELECT that runs until this is dropped.
pub struct Selection {
    /// Its rows as JSON.
    pub rows: broadcast::Receiver<Arc<LiveResult>>,
    /// The reason once there are no more rows: `ended`, or `failed: ` and the error.
    pub end: Arc<OnceLock<String>>,
    /// Ends it.
    pub(crate) _running: Box<dyn Any + Send + Sync>,
}

impl From<&str> for LiveResult {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }
}
