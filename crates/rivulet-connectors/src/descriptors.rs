//! File descriptors that connections may take. The process has a limit of open files. The rest of it is for
//! checkpoints, the log and the files and brokers of queries, which a crowd of clients must not hold up.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// The connections of all HTTP sources of the process.
pub static OF_HTTP_SOURCES: Descriptors = Descriptors::new(usize::MAX);

/// The number of connections that have given way and may still be open, beside `connections_max` others, until they are
/// closed.
pub(crate) fn leaving_max(connections_max: usize) -> usize {
    connections_max / 8 + 2
}

/// How long a new connection waits for connections that have given way to be closed.
const CLOSED_WAIT: Duration = Duration::from_secs(1);

/// Waits until `is_so`, which is checked each time `closed` reports that a connection has given way and is closed. Most
/// are closed as soon as their tasks run.
pub(crate) async fn wait_closed(closed: &Notify, is_so: impl Fn() -> bool) {
    let wait = async {
        loop {
            let mut next = pin!(closed.notified());
            // Enabled before looking, so that nothing that is closed from here on is missed.
            next.as_mut().enable();
            if is_so() {
                return;
            }
            next.await;
        }
    };
    let _ = tokio::time::timeout(CLOSED_WAIT, wait).await;
}

/// How a connection is told to give way.
#[derive(Debug, Default)]
pub(crate) struct Yield {
    notify: Notify,
    is_told: AtomicBool,
}

impl Yield {
    /// Tells the connection that its place goes to another one.
    pub(crate) fn tell(&self) {
        self.is_told.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// Whether [`Yield::tell`] was called.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told.load(Ordering::Acquire)
    }

    /// Completes when it is told, and at once from then on. One task waits at a time.
    pub(crate) async fn told(&self) {
        while !self.is_told() {
            self.notify.notified().await;
        }
    }
}

/// The number of connections that take at most this many descriptors, including those that have given way and are not
/// closed yet. At least one.
pub fn connections_within(descriptors: usize) -> usize {
    let both = descriptors.saturating_sub(2);
    (both - both.div_ceil(9)).max(1)
}

/// Descriptors that several listeners share.
#[derive(Debug)]
pub struct Descriptors {
    max: AtomicUsize,
    open: AtomicUsize,
}

impl Descriptors {
    /// At most so many.
    pub(crate) const fn new(max: usize) -> Self {
        Self { max: AtomicUsize::new(max), open: AtomicUsize::new(0) }
    }

    /// Bounds how many may be open.
    pub fn bound(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Takes one if there is one; [`Descriptors::give_back`] ends that.
    pub(crate) fn take(&self) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < max).then_some(open + 1)).is_ok()
    }

    /// As [`Descriptors::take`], for a connection that replaces one that is being closed: so many more may be open
    /// meanwhile.
    pub(crate) fn take_over(&self) -> bool {
        let max = self.max.load(Ordering::Relaxed);
        let max = max.saturating_add(leaving_max(max));
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| (open < max).then_some(open + 1)).is_ok()
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_those_that_have_given_way_are_within_their_descriptors() {
        for descriptors in 3..5_000 {
            let connections_max = connections_within(descriptors);
            assert!(connections_max + leaving_max(connections_max) <= descriptors, "{descriptors}");
        }
    }
}
