//! The checked plan of a window aggregation.

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, SchemaRef};

use super::length::{LengthExpressions, Lengths, WindowSpec};
use super::panes::PANES_APART_MAX;
use crate::aggregate::AggregateSpec;
use crate::aggregate::layout::Layout;
use crate::error::LengthError;
use crate::expression::Expressions;

/// The plan that all instances share.
pub(crate) struct Plan {
    pub(crate) window: WindowSpec,
    pub(crate) lengths: LengthExpressions,
    /// Keys first, then the conditions of windows of a state, then the arguments and filters that [`Layout`] needs.
    pub(crate) expressions: Expressions,
    pub(crate) keys: usize,
    pub(crate) conditions: usize,
    pub(crate) key_fields: Vec<Field>,
    pub(crate) layout: Layout,
    pub(crate) lateness_us: i64,
    pub(crate) idle_timeout_us: i64,
    pub(crate) arrival_time: bool,
    pub(crate) over_windows: bool,
    pub(crate) tells_clocks: bool,
    pub(crate) output: SchemaRef,
    pub(crate) aggregates: Vec<AggregateSpec>,
}

impl Plan {
    /// Checks that the lengths of a slot can work with the lateness.
    pub(crate) fn check(&self, lengths: Lengths) -> Result<Lengths, LengthError> {
        match self.has_clock() && self.lateness_us / lengths.pane > PANES_APART_MAX / 2 {
            true => Err(LengthError::PanesTooShort { pane_us: lengths.pane, lateness_us: self.lateness_us }),
            false => Ok(lengths),
        }
    }

    /// Whether slots have event clocks.
    pub(crate) fn has_clock(&self) -> bool {
        self.window.is_time() && !self.arrival_time
    }

    /// Computes the lengths for each row of the slot table's columns.
    pub(crate) fn lengths_of(&self, parameters: &RecordBatch) -> Vec<Result<Lengths, LengthError>> {
        let lengths = self.lengths.evaluate(parameters).into_iter();
        lengths.map(|lengths| lengths.and_then(|lengths| self.check(lengths))).collect()
    }
}
