//! Waiting for room in a full inbox.

use std::time::{Duration, Instant};

/// The first wait before a full inbox is tried again.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// How long one message has been waiting for room, and whether that is a deadlock.
///
/// An inbox may be full because its group is not scheduled, because its results have no room, because they wait behind
/// the very message that waits for the inbox. Nothing in that circle can move, so after a while the message is
/// abandoned and counted.
#[derive(Debug)]
pub(crate) struct Stall {
    /// Since when the circle has been stuck.
    since: Option<Instant>,
    wait: Duration,
    deadlock_after: Duration,
    /// How long the circle may be stuck this time.
    patience: Duration,
}

impl Stall {
    /// Starts without a wait. A circle that is stuck for `deadlock_after` is a deadlock.
    pub(crate) fn new(deadlock_after: Duration) -> Self {
        Self { since: None, wait: WAIT_MIN, deadlock_after, patience: deadlock_after }
    }

    /// Notes that the message was taken: the circle moves.
    pub(crate) fn taken(&mut self) {
        self.opened();
        self.wait = WAIT_MIN;
    }

    fn opened(&mut self) {
        self.since = None;
        self.patience = self.deadlock_after;
    }

    /// Notes that the inbox is full. Returns whether to abandon the message; `is_circular` says whether the inbox may
    /// be waiting, in the end, for this message.
    ///
    /// After that the wait begins anew for the next message and is half as long, so that a deadlock which takes
    /// thousands of messages to clear does not take thousands of waits. A circle that opens even for a moment gets the
    /// full time again.
    pub(crate) fn full(&mut self, is_circular: bool) -> bool {
        if !is_circular {
            self.opened();
            return false;
        }
        let is_deadlock = self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience;
        if is_deadlock {
            self.since = None;
            self.patience /= 2;
        }
        is_deadlock
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
    fn a_circle_that_opened_or_was_broken_begins_to_count_anew() {
        let mut stall = Stall::new(Duration::from_secs(3600));
        let waited =
            |stall: &mut Stall, minutes: u64| stall.since = Some(Instant::now() - Duration::from_secs(60 * minutes));
        assert!(!stall.full(true));
        waited(&mut stall, 59);
        assert!(!stall.full(true) && !stall.full(false), "not yet; and then the circle opens");
        assert!(!stall.full(true));
        waited(&mut stall, 61);
        assert!(stall.full(true));
        assert!(!stall.full(true), "the next message waits too");
        waited(&mut stall, 29);
        assert!(!stall.full(true));
        waited(&mut stall, 31);
        assert!(stall.full(true), "half as long");
        stall.taken();
        waited(&mut stall, 59);
        assert!(!stall.full(true), "after one was taken, all the time again");
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
