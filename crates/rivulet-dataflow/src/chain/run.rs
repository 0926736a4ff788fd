//! How elements go through the operators of a chain, depth first.

use crate::{Batch, Element, Operator, OperatorError};

use super::surroundings::Surroundings;
use super::user_code::{call, user_code};

/// The element to pass on behind an operator that has processed it, if it is passed on.
pub(super) fn passed_on(element: &Element) -> Option<Element> {
    match element {
        Element::Batch(_) => None,
        other => Some(other.clone()),
    }
}

/// The context of one run of elements through operators.
pub(super) struct Run<'a> {
    pub(super) with: Surroundings<'a>,
    pub(super) sink: &'a mut dyn FnMut(Batch),
    /// How many operators of the chain come after those of this run.
    pub(super) behind: usize,
}

impl Run<'_> {
    pub(super) fn through(
        &mut self,
        operators: &mut [Box<dyn Operator>],
        outputs: &mut [Vec<Batch>],
        input: usize,
        element: Element,
    ) -> Result<(), OperatorError> {
        self.note(operators.len(), &element);
        let Some((operator, rest)) = operators.split_first_mut() else {
            if let Element::Batch(batch) = element {
                (self.sink)(batch);
            }
            return Ok(());
        };
        let (output, rest_outputs) = outputs.split_first_mut().expect("one output for each operator");
        let passed_on = passed_on(&element);
        let mut result = self.once(&mut **operator, output, input, element);
        result = result.and(self.hand_on(output, rest, rest_outputs));
        while operator.has_more() {
            result = result.and(self.more(&mut **operator, output, rest, rest_outputs));
        }
        result = result.and(self.tell_clocks(&mut **operator, rest, rest_outputs));
        match passed_on {
            Some(element) => result.and(self.through(rest, rest_outputs, 0, element)),
            None => result,
        }
    }

    /// Counts rows that have reached an operator with `left` operators from it to the end of the run.
    #[inline]
    pub(super) fn note(&mut self, left: usize, element: &Element) {
        if let Element::Batch(batch) = element {
            self.with.refusals.reached(self.behind + left, batch, self.with.now_us);
        }
    }

    /// Hands an element to one operator.
    pub(super) fn once(
        &mut self,
        operator: &mut dyn Operator,
        output: &mut Vec<Batch>,
        input: usize,
        element: Element,
    ) -> Result<(), OperatorError> {
        match element {
            Element::Batch(batch) if operator.runs_user_code() => {
                user_code(&mut self.with, output, &batch, (0..batch.rows() as u32).collect(), |rows, context| {
                    let rows = if rows.len() == batch.rows() { batch.clone() } else { batch.take(rows)? };
                    operator.process_input(input, Element::Batch(rows), context)
                });
                Ok(())
            }
            element => {
                let context = &mut self.with.context(output);
                call(operator, |operator| operator.process_input(input, element, context))
            }
        }
    }

    /// Makes one operator emit more, and passes that to the operators behind it.
    pub(super) fn more(
        &mut self,
        operator: &mut dyn Operator,
        output: &mut Vec<Batch>,
        rest: &mut [Box<dyn Operator>],
        rest_outputs: &mut [Vec<Batch>],
    ) -> Result<(), OperatorError> {
        let context = &mut self.with.context(output);
        let result = call(operator, |operator| operator.go_on(context));
        result.and(self.hand_on(output, rest, rest_outputs))
    }

    /// Hands on the clocks that the last element of an operator has moved.
    pub(super) fn tell_clocks(
        &mut self,
        operator: &mut dyn Operator,
        rest: &mut [Box<dyn Operator>],
        rest_outputs: &mut [Vec<Batch>],
    ) -> Result<(), OperatorError> {
        match operator.take_clocks() {
            Some(clocks) => self.through(rest, rest_outputs, 0, Element::Clocks(clocks)),
            None => Ok(()),
        }
    }

    pub(super) fn hand_on(
        &mut self,
        output: &mut Vec<Batch>,
        rest: &mut [Box<dyn Operator>],
        rest_outputs: &mut [Vec<Batch>],
    ) -> Result<(), OperatorError> {
        let mut result = Ok(());
        for batch in output.drain(..) {
            let processed = self.through(rest, rest_outputs, 0, Element::Batch(batch));
            result = result.and(processed);
        }
        result
    }

    /// Hands the rows `own` of a batch to one operator.
    pub(super) fn own(
        &mut self,
        operator: &mut dyn Operator,
        output: &mut Vec<Batch>,
        batch: &Batch,
        own: &[u32],
    ) -> Result<(), OperatorError> {
        if !operator.runs_user_code() || own.is_empty() {
            let context = &mut self.with.context(output);
            return call(operator, |operator| operator.process_own(batch, own, context));
        }
        user_code(&mut self.with, output, batch, own.to_vec(), |rows, context| {
            operator.process_own(batch, rows, context)
        });
        Ok(())
    }
}
