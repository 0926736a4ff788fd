//! What operators cost: their rows and their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rivulet_dataflow::{Call, Context, Element, Operator, OperatorError, Watcher};

/// What an operator of a task has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorReport {
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
    pub(super) fn report(&self, operator: &str) -> OperatorReport {
        OperatorReport {
            operator: operator.to_owned(),
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
        }
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
