//! What becomes of rows on their way through an application: its operators, each with a watcher around it.
//!
//! A trial processes one event at a time, so everything that its watchers have noted afterwards is about that event.

use std::sync::Arc;

use arrow::array::ArrayRef;
use parking_lot::Mutex;
use rivulet_connectors::formats::encode_row_as_json;
use rivulet_dataflow::{
    Address, Batch, Call, Context, Description, Element, Line, Operator, OperatorError, OperatorFactory, QueryId,
    Reason, Refusal, Refused, Slot, SlotTable, StateFrame, Watched, Watcher,
};

/// What the operators of all applications have done since this was last taken.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) passed: Vec<Passed>,
    pub(super) refused: Vec<Turned>,
}

/// The number of rows of a query that entered an operator, and that left it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) application: usize,
    /// The index of the operator in its dataflow.
    pub(super) place: usize,
    pub(super) query: QueryId,
    pub(super) rows_in: u64,
    pub(super) rows_out: u64,
    /// When a timer of the operator is due for the query, microseconds since the epoch.
    pub(super) due_us: Option<i64>,
}

/// A row that was refused.
#[derive(Clone, Debug)]
pub(super) struct Turned {
    pub(super) query: QueryId,
    pub(super) reason: Reason,
    pub(super) detail: String,
    /// The payload or the row, as text.
    pub(super) content: String,
}

/// The operators of the application with the number `application`, with watchers around them.
pub(super) fn watched(line: &Line, application: usize, seen: &Arc<Mutex<Seen>>) -> Line {
    let around = |(place, inner): (usize, &Arc<dyn OperatorFactory>)| {
        let watcher = Notes { application, place, seen: seen.clone() };
        Arc::new(Around { inner: inner.clone(), watcher }) as Arc<dyn OperatorFactory>
    };
    Line::new(line.operators().iter().enumerate().map(around).collect())
}

struct Around {
    inner: Arc<dyn OperatorFactory>,
    watcher: Notes,
}

impl OperatorFactory for Around {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(Watched::new(self.inner.create(), self.watcher.clone()))
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn state(&self) -> Option<Address> {
        self.inner.state()
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        self.inner.state_keys(frame)
    }
}

/// Notes the outcome of each call of an operator.
#[derive(Clone)]
struct Notes {
    application: usize,
    place: usize,
    seen: Arc<Mutex<Seen>>,
}

impl Watcher for Notes {
    fn watch(
        &mut self,
        operator: &mut dyn Operator,
        call: Call,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        let rows = match &call {
            Call::Process(_, Element::Batch(batch)) => Some(batch.clone()),
            _ => None,
        };
        // Payloads that could not be decoded were refused before the first operator.
        let first = if self.place == 0 && rows.is_some() { 0 } else { context.refusals.records().len() };
        let mut emitted = Vec::new();
        let inner = &mut Context::new(context.now_us, context.slots, &mut *context.refusals, &mut emitted);
        let result = call.make(operator, inner);
        let mut seen = self.seen.lock();
        seen.refused.extend(context.refusals.records()[first..].iter().filter_map(|one| turned(one, context.slots)));
        let mut slots: Vec<Slot> = Vec::new();
        let of_batches = rows.iter().chain(&emitted).flat_map(|batch| batch.slots.iter().copied());
        of_batches.for_each(|slot| {
            if !slots.contains(&slot) {
                slots.push(slot)
            }
        });
        let count = |batch: &Batch, slot: Slot| batch.slots.iter().filter(|&&one| one == slot).count() as u64;
        for slot in slots {
            let Some(query) = context.slots.query(slot) else { continue };
            seen.passed.push(Passed {
                application: self.application,
                place: self.place,
                query,
                rows_in: rows.as_ref().map_or(0, |batch| count(batch, slot)),
                rows_out: emitted.iter().map(|batch| count(batch, slot)).sum(),
                due_us: operator.slot_deadline_us(slot),
            });
        }
        drop(seen);
        emitted.into_iter().for_each(|batch| context.emit(batch));
        result
    }
}

fn turned(refusal: &Refusal, slots: &SlotTable) -> Option<Turned> {
    let content = match &refusal.content {
        Refused::Payload(payload) => String::from_utf8_lossy(payload).into_owned(),
        Refused::Row(row) => encode_row_as_json(row, 0),
    };
    let detail = refusal.detail.clone();
    Some(Turned { query: slots.query(refusal.slot)?, reason: refusal.reason, detail, content })
}
