//! What operators cost: an operator around another one that counts its rows and its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rivulet_dataflow::{
    Context, Element, Operator, OperatorError, Slot, StateByKey, StateError, StateFrame, StateSelection,
};

/// What an operator of a task did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorReport {
    /// The operator.
    pub operator: String,
    /// Rows that came.
    pub rows_in: u64,
    /// Rows that it emitted.
    pub rows_out: u64,
    /// Batches that came.
    pub batches: u64,
    /// Time spent in it, without those behind it, nanoseconds.
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

/// Counts what the operator in it does.
pub(super) struct Measured {
    pub(super) operator: Box<dyn Operator>,
    pub(super) counters: Arc<OperatorCounters>,
}

impl Measured {
    fn timed(
        &mut self,
        context: &mut Context<'_>,
        work: impl FnOnce(&mut dyn Operator, &mut Context<'_>) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        let (begun, emitted) = (Instant::now(), context.emitted_rows());
        let result = work(&mut *self.operator, context);
        self.counters.busy_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.counters.rows_out.fetch_add((context.emitted_rows() - emitted) as u64, Ordering::Relaxed);
        result
    }
}

impl Operator for Measured {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.process_input(0, element, context)
    }

    fn process_input(
        &mut self,
        input: usize,
        element: Element,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        if let Element::Batch(batch) = &element {
            self.counters.rows_in.fetch_add(batch.rows() as u64, Ordering::Relaxed);
            self.counters.batches.fetch_add(1, Ordering::Relaxed);
        }
        self.timed(context, |operator, context| operator.process_input(input, element, context))
    }

    fn deadline_us(&self) -> Option<i64> {
        self.operator.deadline_us()
    }

    fn slot_deadline_us(&self, slot: Slot) -> Option<i64> {
        self.operator.slot_deadline_us(slot)
    }

    fn has_more(&self) -> bool {
        self.operator.has_more()
    }

    fn go_on(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.timed(context, |operator, context| operator.go_on(context))
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.timed(context, |operator, context| operator.tick(context))
    }

    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        self.operator.export_state(selection)
    }

    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        self.operator.state_by_key()
    }

    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        self.operator.import_state(frame)
    }

    fn memory_bytes(&self) -> usize {
        self.operator.memory_bytes()
    }

    fn runs_user_code(&self) -> bool {
        self.operator.runs_user_code()
    }
}
