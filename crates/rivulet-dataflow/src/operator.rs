//! Operators: the steps of a dataflow.
//!
//! **The rule:** an operator never spawns, sleeps, reads a clock or opens a socket. It receives elements and a
//! [`Context`], and answers by emitting batches. Whatever it keeps between elements it can export and import.

mod failure;
mod holding;
mod watched;

use std::sync::Arc;

use crate::{Batch, Element, Refusals, Slot, SlotClock, SlotTable, StateByKey, StateError, StateFrame, StateSelection};

pub(crate) use failure::caught;
pub use failure::{Fault, OperatorError, panic_text};
pub use holding::{HELD_KEYS_MAX, Holding};
pub use watched::{Call, Watched, Watcher};

/// What an operator may use while it processes an element.
pub struct Context<'a> {
    /// The host's clock, read once for this activation: microseconds since the epoch.
    pub now_us: i64,
    /// The queries of the group and their parameters.
    pub slots: &'a SlotTable,
    /// Where rows go that cannot be processed.
    pub refusals: &'a mut Refusals,
    output: &'a mut Vec<Batch>,
}

impl<'a> Context<'a> {
    /// A context that collects what is emitted in `output`.
    pub fn new(now_us: i64, slots: &'a SlotTable, refusals: &'a mut Refusals, output: &'a mut Vec<Batch>) -> Self {
        Self { now_us, slots, refusals, output }
    }

    /// The rows that were emitted and not handed on yet, for counting.
    pub fn emitted_rows(&self) -> usize {
        self.output.iter().map(Batch::rows).sum()
    }

    /// Hands rows to the next operator. An empty batch goes nowhere.
    pub fn emit(&mut self, batch: Batch) {
        if !batch.is_empty() {
            self.output.push(batch);
        }
    }
}

/// A step of a dataflow.
///
/// The host hands in elements one at a time and in order. The operator emits batches through the context; every other
/// element is passed on by the host after the operator has seen it, so an operator cannot forget to forward one.
pub trait Operator: Send {
    /// Processes one element.
    ///
    /// A row that fails is refused through the context, never an error here. An error means that the operator itself
    /// failed: a defect, for which the host counts the batch as refused and goes on, unless the operator runs code of
    /// users.
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError>;

    /// Processes one element of one of several inputs, numbered from 0. Only batches come by input: of watermarks,
    /// barriers and the end the host hands in those that hold for all inputs together, as elements of input 0.
    fn process_input(
        &mut self,
        input: usize,
        element: Element,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        assert_eq!(input, 0, "this operator has one input");
        self.process(element, context)
    }

    /// The hash of the key of each row ([`KeyHash::bits`](crate::KeyHash::bits)), of an operator whose state is by key
    /// and can be divided among instances. It also returns the batch, without the rows that it refuses: those whose key
    /// cannot be computed, and those that would never move the clock of their slot.
    fn key_hashes(&mut self, _batch: Batch, _context: &mut Context<'_>) -> Result<(Batch, Vec<u16>), OperatorError> {
        Err(OperatorError::new("this operator has no state by key"))
    }

    /// Processes the rows `own` of a batch, ascending. The other rows belong to other instances; here they only move
    /// the clock of their slot, where it has one.
    fn process_own(&mut self, batch: &Batch, own: &[u32], context: &mut Context<'_>) -> Result<(), OperatorError> {
        if own.is_empty() {
            return Ok(());
        }
        self.process(Element::Batch(batch.take(own)?), context)
    }

    /// Whether the last element has more output, which waits for [`Operator::go_on`]. Until that is done the operator
    /// gets no other element, and an element that is not a batch is not passed on. So the output in memory stays
    /// bounded where one row meets very many rows or is in very many windows.
    fn has_more(&self) -> bool {
        false
    }

    /// The event clocks that the last element has moved, for windows over the results of this operator. The host takes
    /// them behind the output of the element and hands them on.
    fn take_clocks(&mut self) -> Option<Arc<[SlotClock]>> {
        None
    }

    /// Emits more of the output of the last element.
    fn go_on(&mut self, _context: &mut Context<'_>) -> Result<(), OperatorError> {
        Ok(())
    }

    /// When this operator next wants [`Operator::tick`], in clock time (microseconds since the epoch); `None` if it
    /// waits for elements only.
    fn deadline_us(&self) -> Option<i64> {
        None
    }

    /// The same for one slot: when a tick can have an effect for it, if no element comes. By default all slots wait for
    /// the operator's own deadline, and stay in memory as long as it has one.
    fn slot_deadline_us(&self, _slot: Slot) -> Option<i64> {
        self.deadline_us()
    }

    /// Does what is due by `context.now_us`, for example closes windows of silent queries. Results do not depend on
    /// when exactly the host ticks: an element that arrives after a deadline finds the same state with or without the
    /// tick.
    fn tick(&mut self, _context: &mut Context<'_>) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Copies the selected state; the column `key_group` holds the hash of each key. `None` from an operator without
    /// state.
    fn export_state(&self, selection: &StateSelection) -> Result<Option<StateFrame>, StateError> {
        self.state_by_key()?.map(|state| state.select(selection)).transpose()
    }

    /// The state by key, from an operator that can encode it in parts. Such an operator need not implement
    /// [`Operator::export_state`].
    ///
    /// # Errors
    /// State that cannot be exported.
    fn state_by_key(&self) -> Result<Option<Box<dyn StateByKey + '_>>, StateError> {
        Ok(None)
    }

    /// Imports state that [`Operator::export_state`] gave, replacing the state of the same slots.
    fn import_state(&mut self, frame: &StateFrame) -> Result<(), StateError> {
        Err(StateError::Mismatch(format!("state of '{}' given to an operator without state", frame.operator)))
    }

    /// What the operator holds for a slot, for users who ask why a query gives no result; `None` if it holds nothing.
    fn holding(&self, _slot: Slot) -> Option<Holding> {
        None
    }

    /// State held, in bytes.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// Whether the operator runs code of users, whose failures are not defects of the engine. An error or panic costs
    /// the rows of the slots that the error names. If it names none, the rows of each slot are processed alone, and
    /// those that fail then are refused ([`Reason::UserCode`](crate::Reason::UserCode)).
    ///
    /// Such an operator must keep these promises:
    /// - A call that fails has changed only the state of the slots it names, because the other rows are processed
    ///   again.
    /// - It never [has more](Operator::has_more) and is not cut by key ([`Cut::ByKey`](crate::Cut::ByKey)).
    /// - In a tick it moves its deadline before it calls user code; otherwise a tick that fails would come again at
    ///   once.
    fn runs_user_code(&self) -> bool {
        false
    }
}
