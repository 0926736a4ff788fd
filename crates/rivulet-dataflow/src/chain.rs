//! Chains of operators.

mod cut;
mod run;
mod surroundings;
mod user_code;

use std::fmt;
use std::sync::Arc;

use crate::state_by_key::parts;
use crate::{
    Address, Batch, Element, Holding, KeyGroups, Operator, OperatorError, Slot, StateError, StateFrame, StateSelection,
};

pub use cut::Cut;
pub use surroundings::Surroundings;

use run::{Run, passed_on};
use user_code::call;

/// Operators fused without a queue between them, run depth first.
pub struct Chain {
    operators: Vec<Box<dyn Operator>>,
    /// What each operator has emitted and the next has not processed yet. Kept between calls to reuse the memory.
    outputs: Vec<Vec<Batch>>,
    /// An element other than a batch for which the first operator has more output. It is passed on after that output.
    held: Option<Element>,
    key_groups: KeyGroups,
    /// For each operator the address of its state. Empty if nothing is saved.
    addresses: Vec<Option<Arc<Address>>>,
}

impl Chain {
    /// Makes a chain of these operators, first to last. An empty chain passes everything through.
    pub fn new(operators: Vec<Box<dyn Operator>>) -> Self {
        let outputs = operators.iter().map(|_| Vec::new()).collect();
        Self { operators, outputs, held: None, key_groups: KeyGroups::default(), addresses: Vec::new() }
    }

    /// Sets how the dataflow divides keys among key groups.
    #[must_use]
    pub fn with_key_groups(self, key_groups: KeyGroups) -> Self {
        Self { key_groups, ..self }
    }

    /// Sets the address of the state of each operator, which exported state has from then on.
    #[must_use]
    pub fn with_addresses(self, addresses: Vec<Option<Arc<Address>>>) -> Self {
        Self { addresses, ..self }
    }

    /// The address of the state of each operator; empty if none was set.
    pub fn addresses(&self) -> &[Option<Arc<Address>>] {
        &self.addresses
    }

    fn address(&self, place: usize) -> Option<&Arc<Address>> {
        self.addresses.get(place)?.as_ref()
    }

    /// The frame with the address of the operator at `place`.
    fn with_address_of(&self, place: usize, frame: StateFrame) -> StateFrame {
        StateFrame { address: self.address(place).cloned().or(frame.address), ..frame }
    }

    /// How keys are divided among key groups.
    pub fn key_groups(&self) -> KeyGroups {
        self.key_groups
    }

    /// Runs an element through the chain; `sink` receives the batches that come out.
    ///
    /// A failing operator does not keep elements from the others: what it emitted before the failure, and every element
    /// that is not a batch, still goes on, so that every operator forgets a slot that is removed. Returns the first
    /// error.
    pub fn process(
        &mut self,
        element: Element,
        mut with: Surroundings<'_>,
        sink: &mut dyn FnMut(Batch),
    ) -> Result<(), OperatorError> {
        let mut result = self.process_input(0, element, with.again(), sink);
        while self.has_more() {
            result = result.and(self.go_on(with.again(), sink));
        }
        result
    }

    /// The same for an element of one of several inputs of the first operator. There may be more output
    /// ([`Chain::has_more`]).
    pub fn process_input(
        &mut self,
        input: usize,
        element: Element,
        with: Surroundings<'_>,
        sink: &mut dyn FnMut(Batch),
    ) -> Result<(), OperatorError> {
        self.forget_outputs();
        let mut run = Run { with, sink, behind: 0 };
        let Some((head, rest)) = self.operators.split_first_mut() else {
            return run.through(&mut [], &mut [], input, element);
        };
        let (output, rest_outputs) = self.outputs.split_first_mut().expect("one output for each operator");
        let passed_on = passed_on(&element);
        run.note(rest.len() + 1, &element);
        let result = run.once(&mut **head, output, input, element);
        let result = result.and(run.hand_on(output, rest, rest_outputs));
        let result = result.and(run.tell_clocks(&mut **head, rest, rest_outputs));
        match passed_on {
            Some(element) if head.has_more() => {
                self.held = Some(element);
                result
            }
            Some(element) => result.and(run.through(rest, rest_outputs, 0, element)),
            None => result,
        }
    }

    /// Whether the first operator has more output for the last element. Until it is fetched with [`Chain::go_on`], no
    /// other element may be given.
    pub fn has_more(&self) -> bool {
        self.operators.first().is_some_and(|operator| operator.has_more())
    }

    /// Makes the first operator emit more of the output of the last element.
    pub fn go_on(&mut self, with: Surroundings<'_>, sink: &mut dyn FnMut(Batch)) -> Result<(), OperatorError> {
        self.forget_outputs();
        let Some((head, rest)) = self.operators.split_first_mut() else { return Ok(()) };
        let (output, rest_outputs) = self.outputs.split_first_mut().expect("one output for each operator");
        let mut run = Run { with, sink, behind: 0 };
        let result = run.more(&mut **head, output, rest, rest_outputs);
        match self.held.take_if(|_| !head.has_more()) {
            Some(element) => result.and(run.through(rest, rest_outputs, 0, element)),
            None => result,
        }
    }

    /// Lets every operator do what is due by `now_us`. If one fails, the others still run; returns the first error.
    pub fn tick(&mut self, with: Surroundings<'_>, sink: &mut dyn FnMut(Batch)) -> Result<(), OperatorError> {
        self.forget_outputs();
        let mut run = Run { with, sink, behind: 0 };
        let mut result = Ok(());
        for index in 0..self.operators.len() {
            let (operators, outputs) = (&mut self.operators[index..], &mut self.outputs[index..]);
            let (operator, rest) = operators.split_first_mut().expect("index is in range");
            let (output, rest_outputs) = outputs.split_first_mut().expect("one output for each operator");
            if operator.deadline_us().is_some_and(|deadline_us| deadline_us <= run.with.now_us) {
                let ticked = call(&mut **operator, |operator| operator.tick(&mut run.with.context(output)));
                result = result.and(ticked);
            }
            for batch in output.drain(..) {
                let processed = run.through(rest, rest_outputs, 0, Element::Batch(batch));
                result = result.and(processed);
            }
        }
        result
    }

    /// Drops what a call that panicked has left, so that no later call emits it.
    fn forget_outputs(&mut self) {
        self.outputs.iter_mut().for_each(Vec::clear);
    }

    /// The earliest deadline of any operator.
    pub fn deadline_us(&self) -> Option<i64> {
        self.operators.iter().filter_map(|operator| operator.deadline_us()).min()
    }

    /// The earliest deadline of any operator for one slot.
    pub fn slot_deadline_us(&self, slot: Slot) -> Option<i64> {
        self.operators.iter().filter_map(|operator| operator.slot_deadline_us(slot)).min()
    }

    /// What every operator holds for a slot, in chain order.
    pub fn holdings(&self, slot: Slot) -> Vec<Option<Holding>> {
        self.operators.iter().map(|operator| operator.holding(slot)).collect()
    }

    /// The selected state of every operator, in chain order.
    pub fn export_state(&self, selection: &StateSelection) -> Result<Vec<Option<StateFrame>>, StateError> {
        let mut frames = Vec::with_capacity(self.operators.len());
        for (place, operator) in self.operators.iter().enumerate() {
            let frame = operator.export_state(selection)?.map(|frame| frame.grouped(self.key_groups)).transpose()?;
            frames.push(frame.map(|frame| self.with_address_of(place, frame)));
        }
        Ok(frames)
    }

    /// Exports all state by key, operator by operator and part by part: `into` gets the index of the operator, the part
    /// and its state. A part is a range of key groups; state with up to `rows_max` rows is one part. At any time only
    /// one part is encoded ([`Operator::state_by_key`]), or the state of one operator that does not encode in parts.
    ///
    /// # Errors
    /// State that cannot be exported, or an error of `into`.
    pub fn export_parts(
        &self,
        rows_max: usize,
        into: &mut dyn FnMut(usize, usize, StateFrame) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let key_groups = self.key_groups;
        for (place, operator) in self.operators.iter().enumerate() {
            if let Some(state) = operator.state_by_key()? {
                let mut into = |part, frame| into(place, part, self.with_address_of(place, frame));
                state.each_part(key_groups, rows_max, &mut into)?;
                continue;
            }
            let Some(all) = operator.export_state(&StateSelection::All)? else { continue };
            let all = all.grouped(key_groups)?;
            let count = parts(all.rows.num_rows(), rows_max, key_groups);
            for (part, frame) in all.split(count, |key_group| key_groups.instance(key_group, count))?.enumerate() {
                let frame = frame?;
                if frame.rows.num_rows() > 0 {
                    into(place, part, self.with_address_of(place, frame))?;
                }
            }
        }
        Ok(())
    }

    /// Imports state that was exported from a chain of the same operators.
    ///
    /// # Errors
    /// State that cannot be imported, or that has the address of another operator.
    pub fn import_state(&mut self, frames: &[Option<StateFrame>]) -> Result<(), StateError> {
        if frames.len() != self.operators.len() {
            return Err(StateError::Mismatch(format!(
                "state of {} operators given to a chain of {}",
                frames.len(),
                self.operators.len()
            )));
        }
        for (place, frame) in frames.iter().enumerate() {
            let Some(frame) = frame else { continue };
            if let (Some(own), Some(other)) = (self.address(place), &frame.address)
                && !own.is_like(other)
            {
                return Err(StateError::Mismatch(format!("state of '{other}' given to '{own}'")));
            }
            self.operators[place].import_state(frame)?;
        }
        Ok(())
    }

    /// State held by the operators, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.operators.iter().map(|operator| operator.memory_bytes()).sum()
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({} operators)", self.operators.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::datatypes::Schema;

    use super::*;
    use crate::{Context, Control, Refusals, SlotTable};

    /// Records the elements it gets, emits the batches it is given, and fails on demand.
    struct Probe {
        name: &'static str,
        fails: bool,
        seen: Arc<Mutex<Vec<String>>>,
    }

    impl Probe {
        fn note(&self, what: &str) -> Result<(), OperatorError> {
            self.seen.lock().unwrap().push(format!("{} {what}", self.name));
            if self.fails { Err(OperatorError::new(format!("{} failed", self.name))) } else { Ok(()) }
        }
    }

    impl Operator for Probe {
        fn process(&mut self, element: Element, context: &mut Context<'_>) -> Result<(), OperatorError> {
            match element {
                Element::Batch(batch) => {
                    context.emit(batch);
                    self.note("batch")
                }
                Element::Barrier(_) => {
                    context.emit(batch());
                    self.note("barrier")
                }
                Element::Control(control) => self.note(&format!("{control:?}")),
                other => self.note(&format!("{other:?}")),
            }
        }

        fn deadline_us(&self) -> Option<i64> {
            Some(0)
        }

        fn tick(&mut self, context: &mut Context<'_>) -> Result<(), OperatorError> {
            context.emit(batch());
            self.note("tick")
        }
    }

    fn batch() -> Batch {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let columns = RecordBatch::try_from_iter([("v", column)]).unwrap();
        Batch::new(vec![0].into(), vec![0].into(), vec![0].into(), columns)
    }

    /// What the operators a, b and c have recorded, how many batches came out, and the error, when a and b fail.
    fn with_failing(
        step: impl FnOnce(&mut Chain, Surroundings<'_>, &mut dyn FnMut(Batch)) -> Result<(), OperatorError>,
    ) -> (Vec<String>, usize, String) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let probe = |name, fails| Box::new(Probe { name, fails, seen: seen.clone() }) as Box<dyn Operator>;
        let mut chain = Chain::new(vec![probe("a", true), probe("b", true), probe("c", false)]);
        let table = SlotTable::new(Arc::new(Schema::empty()));
        let mut batches = 0;
        let with = Surroundings { now_us: 0, slots: &table, refusals: &mut Refusals::new(0) };
        let error = step(&mut chain, with, &mut |_| batches += 1).unwrap_err().to_string();
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        (seen, batches, error)
    }

    #[test]
    fn an_operator_that_fails_keeps_no_element_from_those_behind_it() {
        let element = Element::Control(Control::RemoveSlots(vec![7]));
        let (seen, _, error) = with_failing(|chain, with, sink| chain.process(element, with, sink));
        assert_eq!(seen, ["a RemoveSlots([7])", "b RemoveSlots([7])", "c RemoveSlots([7])"]);
        assert_eq!(error, "a failed", "the first error is the one returned");
    }

    #[test]
    fn what_a_failing_operator_emitted_goes_on() {
        let (seen, batches, _) = with_failing(|chain, with, sink| chain.process(Element::Batch(batch()), with, sink));
        assert_eq!((seen, batches), (vec!["a batch".into(), "b batch".into(), "c batch".into()], 1));
    }

    #[test]
    fn an_operator_that_fails_keeps_no_tick_from_the_others() {
        let (seen, batches, error) = with_failing(|chain, with, sink| chain.tick(with, sink));
        assert_eq!(seen.iter().filter(|seen| seen.ends_with("tick")).count(), 3);
        assert_eq!((batches, error.as_str()), (3, "a failed"));
    }

    #[test]
    fn what_is_given_up_at_a_barrier_goes_through_those_behind_before_they_hear_of_it() {
        let (seen, batches, _) = with_failing(|chain, with, sink| chain.process(Element::Barrier(1), with, sink));
        assert_eq!(
            seen,
            ["a barrier", "b batch", "c batch", "b barrier", "c batch", "c barrier"],
            "one that fails keeps it from no other"
        );
        assert_eq!(batches, 3);
    }

    #[test]
    fn state_of_another_operator_of_the_same_kind_is_refused() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let probe = || Box::new(Probe { name: "a", fails: false, seen: seen.clone() }) as Box<dyn Operator>;
        let address = |key: &str| Arc::new(Address { keys: vec![key.into()], ..Address::of("sum") });
        let mut chain = Chain::new(vec![probe()]).with_addresses(vec![Some(address("room"))]);
        let columns: [(&str, ArrayRef); 2] = [
            ("slot", Arc::new(arrow::array::UInt32Array::from(vec![0]))),
            ("key_group", Arc::new(arrow::array::UInt16Array::from(vec![0]))),
        ];
        let frame = StateFrame::new("sum", 1, RecordBatch::try_from_iter(columns).unwrap());
        let other = StateFrame { address: Some(address("floor")), ..frame };
        let error = chain.import_state(&[Some(other)]).unwrap_err().to_string();
        assert_eq!(error, "state of 'sum (by floor)' given to 'sum (by room)'");
    }
}
