//! What operators cost: their rows and their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rivulet_dataflow::{Call, Context, Element, NodeId, Operator, OperatorError, Watcher};

/// What an operator of a task has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorReport {
    /// Its node in the dataflow.
    pub node: NodeId,
    /// The operator.
    pub operator: String,
    /// Rows received.
    pub rows_in: u64,
    /// Rows emitted.
    pub rows_out: u64,
    /// Batches received.
    pub batches: u64,
    /// Time spent in the operator, without those behind it, nanoseconds.
    pub busy_ns: u64,
}

/// Counters of one operator of a task.
#[derive(Debug, Default)]
pub(super) struct OperatorCounters {
    rows_in: AtomicU64,
    rows_out: AtomicU64,
    batches: AtomicU64,
    busy_ns: AtomicU64,
}

impl OperatorCounters {
    pub(super) fn report(&self, operator: &str, node: NodeId) -> OperatorReport {
        OperatorReport {
            node,
            operator: operator.to_owned(),
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
        }
    }
}

/// How a task spends its time, microseconds, and how long rows wait in its queue, microseconds summed over rows.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) busy_us: AtomicU64,
    /// It had work, and waited for a worker.
    pub(super) ready_us: AtomicU64,
    /// It had work, and no room for what comes of it.
    pub(super) blocked_us: AtomicU64,
    /// Rows waited in its queue before the task was due, and while it was held up.
    pub(super) queued_row_us: AtomicU64,
    /// Rows waited in its queue while the task waited for a worker.
    pub(super) scheduled_row_us: AtomicU64,
}

/// The current activation of a task, and the end of the one before: moments of the steady clock, microseconds.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// When the task became due.
    due_us: i64,
    begun_us: i64,
    /// When the last activation ended, if it left work behind because there was no room for what comes of it.
    held_since_us: Option<i64>,
}

impl Times {
    /// An activation begins of a task that became due at `due_us`.
    pub(super) fn begin(&self, turn: &mut Turn, due_us: i64, now_us: i64) {
        let add = |counter: &AtomicU64, time_us: i64| {
            counter.fetch_add(u64::try_from(time_us).unwrap_or(0), Ordering::Relaxed);
        };
        add(&self.ready_us, now_us - due_us);
        if let Some(since_us) = turn.held_since_us.take() {
            add(&self.blocked_us, due_us - since_us);
        }
        (turn.due_us, turn.begun_us) = (due_us, now_us);
    }

    /// The activation is over; `is_held` says whether it leaves work behind for which there is no room.
    pub(super) fn end(&self, turn: &mut Turn, is_held: bool, now_us: i64) {
        self.busy_us.fetch_add(u64::try_from(now_us - turn.begun_us).unwrap_or(0), Ordering::Relaxed);
        turn.held_since_us = is_held.then_some(now_us);
    }

    /// Rows that were sent at `sent_us` are taken at `now_us`.
    pub(super) fn take(&self, turn: &Turn, rows: usize, sent_us: i64, now_us: i64) {
        let waited_us = (now_us - sent_us).max(0);
        let scheduled_us = (turn.begun_us - sent_us.max(turn.due_us)).clamp(0, waited_us);
        let over_rows = |time_us: i64| u64::try_from(time_us).unwrap_or(0) * rows as u64;
        self.scheduled_row_us.fetch_add(over_rows(scheduled_us), Ordering::Relaxed);
        self.queued_row_us.fetch_add(over_rows(waited_us - scheduled_us), Ordering::Relaxed);
    }
}

/// Counts what an operator does.
pub(super) struct Counting(pub(super) Arc<OperatorCounters>);

impl Watcher for Counting {
    fn watch(
        &mut self,
        operator: &mut dyn Operator,
        call: Call,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let counters = &self.0;
        if let Call::Process(_, Element::Batch(batch)) = &call {
            counters.rows_in.fetch_add(batch.rows() as u64, Ordering::Relaxed);
            counters.batches.fetch_add(1, Ordering::Relaxed);
        }
        let (begun, emitted) = (Instant::now(), context.emitted_rows());
        let result = call.make(operator, context);
        counters.busy_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        counters.rows_out.fetch_add((context.emitted_rows() - emitted) as u64, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_microsecond_of_a_row_and_of_a_task_counts_once() {
        let (times, mut turn) = (Times::default(), Turn::default());
        let figures = || {
            [&times.busy_us, &times.ready_us, &times.blocked_us, &times.queued_row_us, &times.scheduled_row_us]
                .map(|counter| counter.load(Ordering::Relaxed))
        };
        // Two rows are sent at 8, the task is due at 10, and a worker has time at 15.
        times.begin(&mut turn, 10, 15);
        times.take(&turn, 2, 8, 16);
        // Sent while the task was due, and while it ran.
        times.take(&turn, 1, 12, 18);
        times.take(&turn, 1, 17, 19);
        times.end(&mut turn, true, 20);
        assert_eq!(figures(), [5, 5, 0, 2 * 3 + 3 + 2, 2 * 5 + 3]);
        // There is room at 30.
        times.begin(&mut turn, 30, 31);
        times.end(&mut turn, false, 32);
        assert_eq!(figures()[..3], [6, 6, 10]);
        // It was idle.
        times.begin(&mut turn, 50, 50);
        times.end(&mut turn, false, 51);
        assert_eq!(figures()[..3], [7, 6, 10]);
    }
}
