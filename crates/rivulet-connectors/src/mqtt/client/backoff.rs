//! How long a client waits before it connects again, and what it concludes from connections that do not last.

use std::time::Duration;

use super::connect::ConnectionError;
use super::options::{ClientOptions, random};

/// A connection that lasted this long was a good one: after it the waits begin with the shortest again.
pub(super) const GOOD_CONNECTION: Duration = Duration::from_secs(5);

/// The longest wait after a connection that the broker had accepted, in milliseconds: the broker is reachable, so
/// waiting longer gains nothing. It does if another client has the same id: the two then disconnect each other less
/// often.
const ACCEPTED_WAIT_MS_MAX: u64 = 5_000;

/// If the broker accepts this many connections in a row, and soon closes each without a reason, that is no accident.
const CLOSED_MAX: u32 = 3;

/// The waits of one client. Each is up to twice as long as the previous one, within bounds.
pub(super) struct Backoff<'a> {
    options: &'a ClientOptions,
    wait_ms: u64,
    /// The number of connections in a row that were accepted, and soon closed without a reason.
    closed: u32,
}

impl<'a> Backoff<'a> {
    pub(super) fn new(options: &'a ClientOptions) -> Self {
        Self { options, wait_ms: options.reconnect_wait_ms_min, closed: 0 }
    }

    /// Notes that a connection which the broker had accepted has ended after this time. Returns the error to report.
    pub(super) fn connection_ended(&mut self, lived: Duration, error: ConnectionError) -> ConnectionError {
        let was_good = lived >= GOOD_CONNECTION;
        if was_good {
            self.wait_ms = self.options.reconnect_wait_ms_min;
        }
        let is_wordless = matches!(error, ConnectionError::Closed | ConnectionError::Io(_));
        self.closed = if is_wordless && !was_good { self.closed + 1 } else { 0 };
        if let ConnectionError::TakenOver(_) = error {
            return error;
        }
        if self.closed >= CLOSED_MAX {
            return ConnectionError::ClosedAgain(self.options.client_id.clone());
        }
        self.wait_ms = self.wait_ms.min(ACCEPTED_WAIT_MS_MAX);
        error
    }

    /// The next wait: a random part of it between half and all, so that a thousand clients do not come back at once.
    pub(super) fn next_wait(&mut self) -> Duration {
        let wait_ms = self.wait_ms;
        self.wait_ms = (wait_ms * 2).clamp(1, self.options.reconnect_wait_ms_max.max(1));
        Duration::from_millis(wait_ms / 2 + random() % (wait_ms / 2 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest of twelve waits, each after a connection that ended with this error; with `None`, no connection was
    /// made.
    fn longest(lived_ms: u64, error: Option<fn() -> ConnectionError>) -> Duration {
        let options = ClientOptions::new("mqtt://nowhere".parse().unwrap());
        let mut backoff = Backoff::new(&options);
        let waits = (0..12).map(|_| {
            if let Some(error) = error {
                backoff.connection_ended(Duration::from_millis(lived_ms), error());
            }
            backoff.next_wait()
        });
        waits.max().unwrap()
    }

    #[test]
    fn waits_are_long_only_where_that_helps() {
        let between = |wait: Duration, least_ms: u64, most_ms: u64| {
            let range = Duration::from_millis(least_ms)..=Duration::from_millis(most_ms);
            assert!(range.contains(&wait), "{wait:?} is not in {range:?}");
        };
        between(longest(0, None), 15_000, 30_000);
        between(longest(4_000, Some(|| ConnectionError::Protocol("x"))), 2_500, 5_000);
        between(longest(4_000, Some(|| ConnectionError::TakenOver("x".into()))), 15_000, 30_000);
        between(longest(6_000, Some(|| ConnectionError::Closed)), 50, 100);
    }

    #[test]
    fn a_broker_that_closes_again_and_again_is_told_so() {
        let options = ClientOptions::new("mqtt://nowhere".parse().unwrap());
        let mut backoff = Backoff::new(&options);
        let mut ended = |lived_ms, error| backoff.connection_ended(Duration::from_millis(lived_ms), error);
        for _ in 0..2 {
            assert!(matches!(ended(10, ConnectionError::Closed), ConnectionError::Closed));
            assert!(matches!(ended(10, ConnectionError::Closed), ConnectionError::Closed));
            assert!(matches!(ended(10, ConnectionError::Closed), ConnectionError::ClosedAgain(_)));
            assert!(matches!(ended(5_000, ConnectionError::Closed), ConnectionError::Closed));
        }
    }
}
