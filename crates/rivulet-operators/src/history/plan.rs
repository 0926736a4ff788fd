//! The checked plan of history functions.

use arrow::datatypes::{DataType, SchemaRef};

use super::over::Over;
use crate::aggregate::Storage;
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

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Lag(usize),
    Changed,
    Hysteresis,
    /// With the index of the aggregate.
    Over(usize),
}
