//! Which operators take over the state of which others: what a new version of an application, which is a chain, or of a
//! big query, which is a dataflow, does with the state of the one before.

use crate::{NodeId, StateError, StateFrame};

/// What of a dataflow goes on where something of the one before it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowMap {
    /// For each source the place, among those before, of the one whose positions it takes over; without, it begins.
    pub sources: Vec<Option<usize>>,
    /// For each node the one before whose state it takes over.
    pub operators: Vec<Option<NodeId>>,
    /// For each sink the place, among those before, of the one that it goes on with.
    pub sinks: Vec<Option<usize>>,
}

/// For each operator of a chain the place, in the chain before it, of the one whose state it takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMap {
    /// How many operators the chain before has.
    before: usize,
    from: Vec<Option<usize>>,
}

impl StateMap {
    /// A map from a chain of `before` operators.
    ///
    /// # Panics
    /// If a place is not in that chain.
    pub fn new(before: usize, from: Vec<Option<usize>>) -> Self {
        assert!(from.iter().flatten().all(|&place| place < before), "state comes from an operator that is there");
        Self { before, from }
    }

    /// How many operators the chain before has.
    pub fn before(&self) -> usize {
        self.before
    }

    /// How many operators the chain has.
    pub fn after(&self) -> usize {
        self.from.len()
    }

    /// Frames of the chain before as those of the chain; what nobody takes over is not among them.
    ///
    /// # Errors
    /// Frames of another chain.
    pub fn apply(&self, frames: &[Option<StateFrame>]) -> Result<Vec<Option<StateFrame>>, StateError> {
        if frames.len() != self.before {
            return Err(StateError::Mismatch(format!(
                "state of {} operators, where the version before has {}",
                frames.len(),
                self.before
            )));
        }
        Ok(self.from.iter().map(|from| from.and_then(|place| frames[place].clone())).collect())
    }

    /// This map and behind it another one, as one.
    ///
    /// # Panics
    /// If the other one does not begin where this one ends.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        assert_eq!(self.after(), next.before, "maps follow each other");
        Self {
            before: self.before,
            from: next.from.iter().map(|from| from.and_then(|place| self.from[place])).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{RecordBatch, UInt16Array, UInt32Array};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn frame(operator: &str) -> Option<StateFrame> {
        let schema = Schema::new(vec![
            Field::new("slot", DataType::UInt32, false),
            Field::new("key_group", DataType::UInt16, false),
        ]);
        let columns = vec![Arc::new(UInt32Array::from(vec![1])) as _, Arc::new(UInt16Array::from(vec![0])) as _];
        Some(StateFrame::new(operator, 1, RecordBatch::try_new(Arc::new(schema), columns).unwrap()))
    }

    #[test]
    fn state_goes_where_the_map_says_also_over_several_versions() {
        let first = StateMap::new(3, vec![None, Some(0), Some(2)]);
        let second = StateMap::new(3, vec![Some(2), Some(1), None, Some(0)]);
        let frames = [frame("a"), None, frame("c")];
        let step_by_step = second.apply(&first.apply(&frames).unwrap()).unwrap();
        assert_eq!(step_by_step, first.then(&second).apply(&frames).unwrap());
        assert_eq!(step_by_step, [frame("c"), frame("a"), None, None]);
        assert_eq!((first.then(&second).before(), first.then(&second).after()), (3, 4));
        assert!(first.apply(&frames[..2]).unwrap_err().to_string().contains("2 operators"));
    }
}
