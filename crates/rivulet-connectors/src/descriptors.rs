//! File descriptors that connections may take. The process has a limit of open files; what connections leave of it is
//! for checkpoints, the log and the files and brokers of queries, which a crowd of clients must not hold up.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The connections of all HTTP sources of the process.
pub static OF_HTTP_SOURCES: Descriptors = Descriptors { max: AtomicUsize::new(usize::MAX), open: AtomicUsize::new(0) };

/// Descriptors that several listeners share.
#[derive(Debug)]
pub struct Descriptors {
    max: AtomicUsize,
    open: AtomicUsize,
}

impl Descriptors {
    /// Bounds how many may be open.
    pub fn bound(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Takes one if there is one; [`Descriptors::give_back`] ends that.
    pub(crate) fn take(&self) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < max).then_some(open + 1)).is_ok()
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}
