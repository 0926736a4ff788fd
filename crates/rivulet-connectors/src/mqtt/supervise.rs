//! Handles panics of tasks: a panic is logged and counted, and the task begins again.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The pause before a task begins again; it doubles with every panic that follows soon.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A task that ran this long was a good one: after its panic the pauses begin anew.
const GOOD_RUN: Duration = Duration::from_secs(60);

/// Runs a future to its end. If it panics, returns the panic's message.
///
/// The caller is responsible for the state that the future leaves behind: locks are free (none of ours is poisoned),
/// counts may be off.
pub(super) fn catch_panic<F: Future>(mut future: Pin<&mut F>) -> impl Future<Output = Result<F::Output, String>> {
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(said(&*panic))),
    })
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it does not say why").to_owned()
}

/// The pauses between the runs of one task.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: PAUSE_MIN }
    }
}

impl Pauses {
    /// The pause after a run that lasted `ran`.
    fn next(&mut self, ran: Duration) -> Duration {
        if ran >= GOOD_RUN {
            self.next = PAUSE_MIN;
        }
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// Knows which tasks run, and counts their panics.
#[derive(Debug, Default)]
pub(super) struct Supervisor {
    /// The number of tasks that pause after a panic.
    down: AtomicUsize,
    panics: AtomicU64,
    last: Mutex<Option<String>>,
}

impl Supervisor {
    /// Runs a task. `None` if it panicked; then a pause has passed, longer than the last one unless the task ran for
    /// long, and the task may begin again.
    pub(super) async fn run<T>(
        &self,
        name: &'static str,
        pauses: &mut Pauses,
        task: impl Future<Output = T>,
    ) -> Option<T> {
        let started = Instant::now();
        match catch_panic(pin!(task)).await {
            Ok(output) => Some(output),
            Err(panic) => {
                self.note(name, &panic);
                self.down.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(pauses.next(started.elapsed())).await;
                self.down.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Logs and counts a panic.
    pub(super) fn note(&self, name: &'static str, panic: &str) {
        tracing::error!(task = name, panic, "an MQTT task was cut short by a defect in Rivulet, and begins again");
        self.panics.fetch_add(1, Ordering::Relaxed);
        *self.last.lock() = Some(format!("{name} was cut short by a defect in Rivulet: {panic}"));
    }

    /// Whether every task runs.
    pub(super) fn is_up(&self) -> bool {
        self.down.load(Ordering::Relaxed) == 0
    }

    /// How often a task has panicked.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// The message of the last panic.
    pub(super) fn last(&self) -> Option<String> {
        self.last.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_begins_again_and_is_told() {
        let supervisor = Supervisor::default();
        let (mut pauses, mut runs) = (Pauses::default(), 0);
        let mut ended = None;
        while ended.is_none() && runs < 5 {
            runs += 1;
            let task = async {
                assert!(supervisor.is_up(), "it runs");
                assert!(runs == 3, "run {runs}");
                runs
            };
            ended = supervisor.run("the test", &mut pauses, task).await;
        }
        assert_eq!((ended, supervisor.panics()), (Some(3), 2));
        assert_eq!(supervisor.last().unwrap(), "the test was cut short by a defect in Rivulet: run 2");
    }

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew_after_a_long_run() {
        let mut pauses = Pauses::default();
        let soon = Duration::from_secs(1);
        assert_eq!([pauses.next(soon), pauses.next(soon)], [PAUSE_MIN, 2 * PAUSE_MIN]);
        assert_eq!((0..20).map(|_| pauses.next(soon)).max(), Some(PAUSE_MAX));
        assert_eq!([pauses.next(GOOD_RUN), pauses.next(soon)], [PAUSE_MIN, 2 * PAUSE_MIN]);
    }
}
