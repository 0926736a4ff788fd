//! How one dataflow runs as several instances side by side, over the same events.
//!
//! An instance of a chain without state may be given any of the rows. In a chain with state by key, the operators
//! before the first one with state may also be given any rows. The first operator with state says which key group each
//! row belongs to ([`Chain::key_groups_of`]). Every instance then gets *all* rows, with marks for its own
//! ([`Chain::process_own`]): the other rows still move the clocks of their slots, so each instance closes windows and
//! refuses late rows exactly as a single instance would.

use crate::{Batch, Element, KeyGroup, KeyHash, OperatorError};

use super::Chain;
use super::run::Run;
use super::surroundings::Surroundings;

/// Whether a dataflow can run as several instances side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The chain has no state between rows: each instance takes blocks of rows in turn.
    Anywhere,
    /// By the key of the operator at this index. The operators before it have no state between rows; those behind it
    /// have state by the same key, or none.
    ByKey(usize),
    /// The chain cannot be cut, for this reason.
    Never(&'static str),
}

impl Chain {
    /// Runs rows through the operators before `place`, which have no state between rows; `sink` receives what comes
    /// out.
    ///
    /// # Errors
    /// As [`Chain::process`].
    pub fn process_before(
        &mut self,
        place: usize,
        batch: Batch,
        with: Surroundings<'_>,
        sink: &mut dyn FnMut(Batch),
    ) -> Result<(), OperatorError> {
        self.forget_outputs();
        let behind = self.operators.len() - place;
        let (operators, outputs) = (&mut self.operators[..place], &mut self.outputs[..place]);
        Run { with, sink, behind }.through(operators, outputs, 0, Element::Batch(batch))
    }

    /// The rows that the operator at `place` accepts of those given, and the key group of each.
    ///
    /// # Errors
    /// As [`Chain::process`].
    pub fn key_groups_of(
        &mut self,
        place: usize,
        batch: Batch,
        mut with: Surroundings<'_>,
    ) -> Result<(Batch, Vec<KeyGroup>), OperatorError> {
        let mut nothing = Vec::new();
        let (batch, hashes) = self.operators[place].key_hashes(batch, &mut with.context(&mut nothing))?;
        let key_groups = hashes.into_iter().map(|bits| self.key_groups.of(KeyHash::from_bits(bits)));
        Ok((batch, key_groups.collect()))
    }

    /// Runs the rows `own` of a batch, ascending, through the operators from `place` on. The other rows belong to other
    /// instances.
    ///
    /// # Errors
    /// As [`Chain::process`].
    pub fn process_own(
        &mut self,
        place: usize,
        batch: &Batch,
        own: &[u32],
        with: Surroundings<'_>,
        sink: &mut dyn FnMut(Batch),
    ) -> Result<(), OperatorError> {
        self.forget_outputs();
        let mut run = Run { with, sink, behind: 0 };
        let (operator, behind) = self.operators[place..].split_first_mut().expect("the place is one of the chain's");
        let (output, outputs) = self.outputs[place..].split_first_mut().expect("one output for each operator");
        let result = run.own(&mut **operator, output, batch, own);
        let result = result.and(run.hand_on(output, behind, outputs));
        result.and(run.tell_clocks(&mut **operator, behind, outputs))
    }
}
