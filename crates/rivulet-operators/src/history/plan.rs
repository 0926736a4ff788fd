//! The checked plan of history functions.

use arrow::datatypes::{DataType, Schema, SchemaRef};

use super::over::Over;
use super::value::{Builder, Value, Values};
use crate::AggregateSpec;
use crate::aggregate::{AggregateFunction, Storage};
use crate::expression::Expressions;

/// The plan that all instances share.
pub(super) struct Plan {
    /// Keys, then the arguments of the columns.
    pub(super) expressions: Expressions,
    pub(super) key_names: Vec<String>,
    pub(super) key_types: Vec<DataType>,
    pub(super) columns: Vec<PlannedColumn>,
    /// The form in which each argument is kept.
    pub(super) targets: Vec<Storage>,
    /// The aggregates over rows before. Their expressions are the last ones.
    pub(super) overs: Vec<Over>,
    /// The form of each remembered value.
    pub(super) state: Vec<Storage>,
    /// The place of the event time of the last row among the remembered values, if rows are in order of event time.
    pub(super) last_time: Option<usize>,
    pub(super) input_columns: usize,
    pub(super) output: SchemaRef,
}

pub(super) struct PlannedColumn {
    pub(super) kind: Kind,
    /// The index of the first of its arguments.
    pub(super) argument: usize,
    /// The index of the first of its remembered values.
    pub(super) state: usize,
    pub(super) text: String,
}

/// The least or greatest text of the rows up to each row. A text is no word of a pane, so the texts are remembered as
/// they are.
#[derive(Clone, Copy)]
pub(super) struct Extreme {
    pub(super) is_max: bool,
    /// How many rows before each count; `None`: all.
    pub(super) preceding: Option<usize>,
    /// Whether its second argument says which rows count.
    pub(super) is_filtered: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Lag(usize),
    Changed,
    Hysteresis,
    /// With the index of the aggregate.
    Over(usize),
    /// `min` or `max` of texts.
    Extreme(Extreme),
}

impl Extreme {
    /// The plan of an aggregate over rows with the columns of `schema`; `None` if it is another one.
    pub(super) fn of(aggregate: &AggregateSpec, preceding: Option<usize>, schema: &Schema) -> Option<Self> {
        let is_max = match aggregate.function {
            AggregateFunction::Min => false,
            AggregateFunction::Max => true,
            _ => return None,
        };
        let [value] = aggregate.arguments.as_slice() else { return None };
        let is_text = value.data_type(schema).is_ok_and(|data_type| Storage::of(&data_type) == Some(Storage::Text));
        is_text.then_some(Self { is_max, preceding, is_filtered: aggregate.filter.is_some() })
    }

    /// The number of remembered values.
    pub(super) fn values(self) -> usize {
        self.preceding.map_or(1, |rows| rows + 1)
    }

    /// The number of arguments.
    pub(super) fn arguments(self) -> usize {
        1 + usize::from(self.is_filtered)
    }

    /// Adds a row to the remembered texts, and the result to `computed`.
    pub(super) fn compute(self, arguments: &[Values], row: usize, memory: &mut [Value], computed: &mut Builder) {
        let counts = !self.is_filtered || arguments[1].word(row) == Some(1);
        let text = arguments[0].text(row).filter(|_| counts);
        if self.preceding.is_some() {
            // The newest is the first. Places of rows that have not come yet are null.
            memory.rotate_right(1);
            match text {
                Some(_) => arguments[0].store(row, &mut memory[0]),
                None => memory[0] = Value::Null,
            }
        } else if let Some(text) = text {
            let is_better = match &memory[0] {
                Value::Text(best) if self.is_max => text > best.as_str(),
                Value::Text(best) => text < best.as_str(),
                _ => true,
            };
            if is_better {
                arguments[0].store(row, &mut memory[0]);
            }
        }
        let known = memory.iter().filter(|value| **value != Value::Null);
        let best = if self.is_max { known.max() } else { known.min() };
        computed.push(best.unwrap_or(&Value::Null));
    }
}
