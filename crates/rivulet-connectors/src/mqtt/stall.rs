//! Waiting for room in a full inbox.

use std::time::{Duration, Instant};

/// The first wait before a full inbox is tried again.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// How long one message has been waiting for room, and when that has become a deadlock.
///
/// An inbox may be full because its group is not scheduled, because its results have no room, because they wait behind the
/// very message that waits for the inbox. Nobody in that circle can move, so after a while the message is given up, and
/// counted.
#[derive(Debug)]
pub(crate) struct Stall {
    since: Option<Instant>,
    wait: Duration,
    deadlock_after: Duration,
    /// A deadlock was found and the way out has not cleared yet: the next messages do not wait all that time again.
    broken: bool,
}

impl Stall {
    /// Nothing waits. A circle that stands still for `deadlock_after` is a deadlock.
    pub(crate) fn new(deadlock_after: Duration) -> Self {
        Self { since: None, wait: WAIT_MIN, deadlock_after, broken: false }
    }

    /// The message was taken.
    pub(crate) fn taken(&mut self) {
        self.since = None;
        self.wait = WAIT_MIN;
    }

    /// The inbox is full. Returns whether to give the message up; `is_circular` says whether what the inbox waits for may
    /// be waiting for this message.
    pub(crate) fn full(&mut self, is_circular: bool) -> bool {
        if !is_circular {
            self.broken = false;
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        self.broken |= since.elapsed() >= self.deadlock_after;
        self.broken
    }

    /// How long to wait before the next try.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.wait;
        self.wait = (wait * 2).min(WAIT_MAX);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_circle_is_broken() {
        let mut stall = Stall::new(Duration::ZERO);
        assert!(!stall.full(false));
        assert!(stall.full(true));
        let mut stall = Stall::new(Duration::from_secs(3600));
        assert!(!stall.full(true));
        assert!(!stall.full(true));
    }

    #[test]
    fn waits_grow_to_a_bound_and_start_over() {
        let mut stall = Stall::new(Duration::ZERO);
        let waits: Vec<u128> = (0..7).map(|_| stall.next_wait().as_millis()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 20, 20]);
        stall.taken();
        assert_eq!(stall.next_wait(), WAIT_MIN);
    }
}
