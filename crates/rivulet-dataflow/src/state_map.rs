//! The mapping of state between two versions: for each operator of a new version of an application (a chain) or big
//! query (a dataflow), the operator of the old version whose state it takes over.

use crate::{NodeId, StateError, StateFrame};

/// For each source, operator and sink of a new dataflow, the one of the old dataflow that it continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowMap {
    /// For each source, the index of the old source whose positions it takes over; a source without one begins anew.
    pub sources: Vec<Option<usize>>,
    /// For each node, the old node whose state it takes over.
    pub operators: Vec<Option<NodeId>>,
    /// For each sink, the index of the old sink that it continues.
    pub sinks: Vec<Option<usize>>,
}

/// For each operator of a chain, the index of the operator in the old chain whose state it takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMap {
    /// The number of operators in the old chain.
    before: usize,
    from: Vec<Option<usize>>,
}

impl StateMap {
    /// A map from a chain of `before` operators.
    ///
    /// # Panics
    /// If an index is not in that chain.
    pub fn new(before: usize, from: Vec<Option<usize>>) -> Self {
        assert!(from.iter().flatten().all(|&place| place < before), "state comes from an operator that is there");
        Self { before, from }
    }

    /// The number of operators in the old chain.
    pub fn before(&self) -> usize {
        self.before
    }

    /// The number of operators in the new chain.
    pub fn after(&self) -> usize {
        self.from.len()
    }

    /// Turns frames of the old chain into frames of the new chain. Frames that no operator takes over are left out.
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
        let moved = |place: usize| frames[place].clone().map(StateFrame::without_address);
        Ok(self.from.iter().map(|from| from.and_then(moved)).collect())
    }

    /// Composes this map with a map from its new chain to a later one.
    ///
    /// # Panics
    /// If `next` does not begin where this map ends.
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
