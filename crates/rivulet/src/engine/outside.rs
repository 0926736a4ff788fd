//! Calls that wait for the world outside: files, brokers and other servers, which may never answer.
//!
//! What must hold: such a call is made under no lock of the engine that others need, and its caller waits for a bounded
//! time. The call runs on a thread of its own, which is abandoned when the time is over; what the call returns at last
//! is closed on that thread. The number of calls at a time has a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::service::{ErrorKind, ServiceError};

/// How long opening may take: some brokers are asked several questions, each with a limit of its own.
pub(super) const OPEN_MAX: Duration = Duration::from_secs(60);

/// How long the start of a server may take to open all sources and sinks together. Those that are not open by then are
/// tried again.
pub(super) const START_MAX: Duration = Duration::from_secs(30);

/// The least time that each of them gets.
pub(super) const START_MIN: Duration = Duration::from_secs(1);

/// The most calls at a time, abandoned ones included.
const CALLS_MAX: usize = 256;

/// How often a waiting caller checks whether the server stops.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// The calls of one engine.
#[derive(Default)]
pub(super) struct Outside {
    calls: Arc<AtomicUsize>,
}

/// A call that has not ended.
struct Call(Arc<AtomicUsize>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Outside {
    /// Makes a call, and waits for it until `limit` is over or the server stops. `what` describes it, as in "opening
    /// the sink".
    ///
    /// # Errors
    /// Those of the call; it takes too long; too many other calls are under way.
    pub(super) fn call<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        is_stopped: &AtomicBool,
        call: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let unavailable = |why: String| ServiceError::new(ErrorKind::Unavailable, why);
        let counted = Call(self.calls.clone());
        if self.calls.fetch_add(1, Ordering::AcqRel) >= CALLS_MAX {
            return Err(unavailable(format!("{what} is not begun: {CALLS_MAX} such calls wait for an answer already"))
                .with_hint("see which files, brokers and servers do not answer"));
        }
        let (answer, answered) = sync_channel(1);
        let run = move || {
            let done = call();
            // The call counts until a result that no caller waits for any more is closed.
            drop(answer.send(done));
            drop(counted);
        };
        let started = thread::Builder::new().name("rivulet-outside".into()).spawn(run);
        started.map_err(|error| unavailable(format!("no thread can be started: {error}")))?;
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answered.recv_timeout(left.min(LOOK_PERIOD)) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ServiceError::new(ErrorKind::Internal, format!("{what} failed inside the server")));
                }
                Err(RecvTimeoutError::Timeout) if is_stopped.load(Ordering::Acquire) => {
                    return Err(unavailable("the server is stopping".into()));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(unavailable(format!("{what} was given up after {} s", limit.as_secs()))
                        .with_hint("is the file system, the broker or the server there, and does it answer?"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn who_waits_waits_for_a_bounded_time_and_what_comes_late_is_closed() {
        let (outside, runs) = (Outside::default(), AtomicBool::new(false));
        assert_eq!(outside.call("a call", OPEN_MAX, &runs, || Ok(7)), Ok(7));
        let (end, ends) = channel::<()>();
        let held = Arc::new(());
        let late = held.clone();
        let hangs = move || {
            let _ = ends.recv();
            Ok(late)
        };
        let error = outside.call("a call", Duration::from_millis(60), &runs, hangs).unwrap_err();
        assert!(error.message.starts_with("a call was given up"), "{error}");
        drop(end);
        while Arc::strong_count(&held) > 1 || outside.calls.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        let panics = || -> Result<(), ServiceError> { panic!("a defect that the test asked for") };
        assert_eq!(outside.call("a call", OPEN_MAX, &runs, panics).unwrap_err().kind, ErrorKind::Internal);
    }

    #[test]
    fn there_are_only_so_many_and_none_outlasts_the_server() {
        let (outside, stops) = (Outside::default(), AtomicBool::new(true));
        let mut ends = Vec::new();
        for _ in 0..CALLS_MAX {
            let (end, ended) = channel::<()>();
            ends.push(end);
            let hangs = move || Ok(ended.recv().is_ok());
            let error = outside.call("a call", OPEN_MAX, &stops, hangs).unwrap_err();
            assert!(error.message.contains("stopping"), "{error}");
        }
        let error = outside.call("a call", OPEN_MAX, &stops, || Ok(())).unwrap_err();
        assert!(error.message.contains("256 such calls"), "{error}");
        drop(ends);
        while outside.calls.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
    }
}
