//! An operator with a watcher around it, which looks at what goes in and what comes out.

use std::sync::Arc;

use super::{Context, Holding, Operator, OperatorError};
use crate::{Element, Slot, SlotClock, StateByKey, StateError, StateFrame, StateSelection};

/// What an operator is asked to do of which rows may come.
pub enum Call {
    /// [`Operator::process_input`].
    Process(usize, Element),
    /// [`Operator::go_on`].
    GoOn,
    /// [`Operator::tick`].
    Tick,
}

impl Call {
    /// Has an operator do it.
    ///
    /// # Errors
    /// Those of the operator.
    pub fn make(self, operator: &mut dyn Operator, context: &mut Context<'_>) -> Result<(), OperatorError> {
        match self {
            Self::Process(input, element) => operator.process_input(input, element, context),
            Self::GoOn => operator.go_on(context),
            Self::Tick => operator.tick(context),
        }
    }
}

/// Looks at what an operator does.
pub trait Watcher: Send {
    /// Makes a call of the operator, and looks.
    ///
    /// # Errors
    /// Those of the operator.
    fn watch(
        &mut self,
        operator: &mut dyn Operator,
        call: Call,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError>;
}

/// An operator with a watcher around it. To everybody else it is the operator, but for instances beside each other
/// ([`Operator::process_own`]), which are not watched.
pub struct Watched<W> {
    operator: Box<dyn Operator>,
    watcher: W,
}

impl<W: Watcher> Watched<W> {
    /// Puts a watcher around an operator.
    pub fn new(operator: Box<dyn Operator>, watcher: W) -> Self {
        Self { operator, watcher }
    }

    fn watch(&mut self, call: Call, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.watcher.watch(&mut *self.operator, call, context)
    }
}

impl<W: Watcher> Operator for Watched<W> {
    fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.watch(Call::Process(0, element), context)
    }

    fn process_input(
        &mut self,
        input: usize,
        element: Element,
        context: &mut Context<'_>,
    ) -> Result<(), OperatorError> {
        self.watch(Call::Process(input, element), context)
    }

    fn has_more(&self) -> bool {
        self.operator.has_more()
    }

    fn take_clocks(&mut self) -> Option<Arc<[SlotClock]>> {
        self.operator.take_clocks()
    }

    fn go_on(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.watch(Call::GoOn, context)
    }

    fn deadline_us(&self) -> Option<i64> {
        self.operator.deadline_us()
    }

    fn slot_deadline_us(&self, slot: Slot) -> Option<i64> {
        self.operator.slot_deadline_us(slot)
    }

    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
        self.watch(Call::Tick, context)
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

    fn holding(&self, slot: Slot) -> Option<Holding> {
        self.operator.holding(slot)
    }

    fn memory_bytes(&self) -> usize {
        self.operator.memory_bytes()
    }

    fn runs_user_code(&self) -> bool {
        self.operator.runs_user_code()
    }
}
