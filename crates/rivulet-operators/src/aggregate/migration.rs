//! Frames with states in the layout of earlier versions.
//!
//! Saved state is readable for ever. The fingerprint of a frame tells the layout of its words; words of the earlier
//! layout are converted before they are read.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use rivulet_dataflow::{StateError, StateFrame};

use super::earlier::{Earlier, Move};
use super::fixed::FixedKind;
use super::layout::Layout;

/// How states of an earlier layout are converted; `None` if it is the same.
pub(super) fn conversion(earlier: &Layout, now: &Layout) -> Option<Earlier> {
    let fingerprint = earlier.fingerprint();
    if fingerprint == now.fingerprint() {
        return None;
    }
    let start = |layout: &Layout| layout.fixed.first().map_or(layout.entry_words, |state| state.offset);
    let same_class = |one: usize, other: usize| {
        let class =
            |layout: &Layout, state: usize| layout.classes.iter().position(|class| class.states.contains(&state));
        class(now, one) == class(earlier, other)
    };
    let expressions = |layout: &Layout, state: usize| -> Vec<usize> {
        layout.fixed[state].arguments.iter().map(|&argument| layout.arguments[argument].0).collect()
    };
    let states = now.fixed.iter().enumerate().map(|(index, state)| {
        let mut candidates: Vec<usize> = (0..earlier.fixed.len())
            .filter(|&old| same_class(index, old) && expressions(now, index) == expressions(earlier, old))
            .collect();
        // An identical state is preferred to one that must be converted.
        candidates.sort_by_key(|&old| earlier.fixed[old].kind != state.kind);
        let old = candidates.into_iter().map(|old| &earlier.fixed[old]).find(|old| {
            let is_sum = matches!(old.kind, FixedKind::SumFloat | FixedKind::SumUndone);
            old.kind == state.kind || (state.kind == FixedKind::SumInteger && is_sum)
        })?;
        let was = (old.kind != state.kind).then_some(old.kind);
        Some(Move { from: old.offset - start(earlier), words: state.kind.words(), was })
    });
    Some(Earlier {
        fingerprint,
        entry_words: earlier.entry_words,
        dense_words: earlier.empty_window.len(),
        entry_header: start(earlier),
        dense_header: earlier.classes.len(),
        states: states.collect::<Option<_>>()?,
    })
}

impl Layout {
    /// Converts a frame with the states of groups in columns called `states`, if it has the earlier layout and is
    /// otherwise as expected.
    ///
    /// # Errors
    /// States that are not even words.
    pub(crate) fn brought_up<'f>(
        &self,
        frame: &'f StateFrame,
        expected: &SchemaRef,
    ) -> Result<Cow<'f, StateFrame>, StateError> {
        let Some(earlier) = &self.earlier else { return Ok(Cow::Borrowed(frame)) };
        let (found, fingerprint) = (frame.rows.schema_ref(), self.fingerprint());
        let names = expected.metadata().iter().map(|(key, name)| (key.clone(), earlier.named(&fingerprint, name)));
        if found.fields() != expected.fields() || *found.metadata() != names.collect() {
            return Ok(Cow::Borrowed(frame));
        }
        let columns = found.fields().iter().zip(frame.rows.columns()).map(|(field, column)| {
            if field.name() != "states" || *field.data_type() != DataType::Binary {
                return Ok(column.clone());
            }
            let states = column.as_binary::<i32>();
            let now = (0..states.len()).map(|row| match states.is_valid(row) && !states.value(row).is_empty() {
                true => earlier.group(states.value(row)).map(Some).ok_or("states of a group are incomplete"),
                false => Ok(states.is_valid(row).then(Vec::new)),
            });
            let now: Vec<Option<Vec<u8>>> =
                now.collect::<Result<_, _>>().map_err(|problem| StateError::Corrupt(problem.to_owned()))?;
            Ok(Arc::new(now.iter().map(Option::as_deref).collect::<BinaryArray>()) as ArrayRef)
        });
        let columns = columns.collect::<Result<Vec<_>, StateError>>()?;
        let rows = RecordBatch::try_new(expected.clone(), columns)?;
        Ok(Cow::Owned(StateFrame { rows, ..frame.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{UInt16Array, UInt32Array};
    use arrow::datatypes::{Field, Schema};

    use super::*;
    use crate::expression::column;
    use crate::{AggregateFunction, AggregateSpec};

    /// `avg(n), sum(x)` of a BIGINT and a DOUBLE.
    fn layout() -> Layout {
        let schema =
            Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("x", DataType::Float64, false)]);
        let specs = [(AggregateFunction::Avg, 0), (AggregateFunction::Sum, 1)].map(|(function, argument)| {
            AggregateSpec { name: "a".into(), function, arguments: vec![column(&schema, argument)], filter: None }
        });
        Layout::new(&specs, &schema, 1).unwrap().0
    }

    #[test]
    fn averages_of_earlier_versions_go_on() {
        let layout = layout();
        let earlier = layout.earlier.as_ref().unwrap();
        assert_eq!(layout.fingerprint(), "Count@1 SumInteger@1 SumFloat@3");
        assert_eq!(
            earlier.named(&layout.fingerprint(), "panes Count@1 SumInteger@1 SumFloat@3"),
            "panes Count@1 SumFloat@1 SumFloat@2"
        );
        let panes = [7, (-3.0f64).to_bits(), 0.5f64.to_bits(), 8, 1e15f64.to_bits(), 0];
        let now = [7, -3_i64 as u64, u64::MAX, 0.5f64.to_bits(), 8, 1_000_000_000_000_000, 0, 0];
        assert_eq!(earlier.entries(&panes), now);
        // The state of a group begins with the count and ends with what is not words.
        let frame = |name: &str, words: &[u64]| {
            let names = HashMap::from([("rivulet.states".to_owned(), name.to_owned())]);
            let fields = vec![
                Field::new("slot", DataType::UInt32, false),
                Field::new("key_group", DataType::UInt16, false),
                Field::new("states", DataType::Binary, false),
            ];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).chain([9]).collect();
            let columns: Vec<ArrayRef> = vec![
                Arc::new(UInt32Array::from(vec![0])),
                Arc::new(UInt16Array::from(vec![0])),
                Arc::new(BinaryArray::from_vec(vec![&bytes])),
            ];
            let schema = Arc::new(Schema::new_with_metadata(fields, names));
            StateFrame::new("test", 1, RecordBatch::try_new(schema, columns).unwrap())
        };
        let expected = frame("x Count@1 SumInteger@1 SumFloat@3 y", &[2, -3_i64 as u64, u64::MAX, 0.5f64.to_bits()]);
        let old = frame("x Count@1 SumFloat@1 SumFloat@2 y", &[2, (-3.0f64).to_bits(), 0.5f64.to_bits()]);
        assert_eq!(*layout.brought_up(&old, expected.rows.schema_ref()).unwrap(), expected);
        assert_eq!(*layout.brought_up(&expected, expected.rows.schema_ref()).unwrap(), expected);
        let short = frame("x Count@1 SumFloat@1 SumFloat@2 y", &[2]);
        assert!(layout.brought_up(&short, expected.rows.schema_ref()).is_err());
    }
}
