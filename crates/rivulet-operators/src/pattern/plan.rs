//! The checked plan of a row pattern.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::cast;
use arrow::datatypes::{Field, SchemaRef};
use arrow::error::ArrowError;
use rivulet_dataflow::Address;

use super::condition::Condition;
use super::program::Program;
use super::registers::{Layout, Read};
use super::spec::Skip;
use crate::aggregate::Storage;
use crate::expression::Expressions;
use crate::history::value::Values;
use crate::window::length::LengthExpressions;

/// The plan that all instances share.
pub(super) struct Plan {
    /// Keys, values, then the row conditions.
    pub(super) expressions: Expressions,
    pub(super) key_fields: Vec<Field>,
    /// The form in which each value is kept.
    pub(super) storages: Vec<Storage>,
    /// For each row condition, its variable.
    pub(super) row_conditions: Vec<usize>,
    /// The variables without row condition, as bits.
    pub(super) unconditional: u64,
    pub(super) names: Vec<String>,
    /// By variable.
    pub(super) conditions: Vec<Option<Condition>>,
    pub(super) program: Program,
    pub(super) layout: Layout,
    pub(super) results: Vec<(Read, Storage)>,
    pub(super) skip: Skip,
    pub(super) within: Option<LengthExpressions>,
    /// How many rows before a match are kept, for `PREV`.
    pub(super) rows_before: usize,
    /// Whether partitions count their matches.
    pub(super) numbers_matches: bool,
    pub(super) lateness_us: i64,
    pub(super) idle_timeout_us: i64,
    pub(super) arrival_time: bool,
    pub(super) output: SchemaRef,
    /// The pattern and its conditions as text. State must agree with it.
    pub(super) text: String,
    pub(super) parameter_names: Vec<String>,
}

/// What the rows of a batch have beside their keys.
pub(super) struct RowInputs<'a> {
    pub(super) values: Vec<Values>,
    /// Row conditions, each with the bit of its variable.
    conditions: Vec<(u64, &'a BooleanArray)>,
    unconditional: u64,
}

impl RowInputs<'_> {
    /// The variables that may take this row, as bits: those without row condition, and those whose condition holds.
    #[inline]
    pub(super) fn holds(&self, row: usize) -> u64 {
        let is_true = |condition: &BooleanArray| condition.is_valid(row) && condition.value(row);
        let holds = self.conditions.iter().filter(|(_, condition)| is_true(condition));
        holds.map(|(bit, _)| bit).fold(self.unconditional, |all, bit| all | bit)
    }
}

impl Plan {
    /// Divides the columns that [`Plan::expressions`] gives into keys and the rest.
    pub(super) fn inputs<'a>(&self, columns: &'a [ArrayRef]) -> Result<(&'a [ArrayRef], RowInputs<'a>), ArrowError> {
        let (keys, rest) = columns.split_at(self.key_fields.len());
        let (values, conditions) = rest.split_at(self.storages.len());
        let values = values
            .iter()
            .zip(&self.storages)
            .map(|(value, storage)| Ok(Values::new(&cast(value, &storage.data_type())?, *storage)))
            .collect::<Result<Vec<_>, ArrowError>>()?;
        let conditions = self
            .row_conditions
            .iter()
            .zip(conditions)
            .filter_map(|(&variable, condition)| Some((1 << variable, condition.as_boolean_opt()?)))
            .collect();
        Ok((keys, RowInputs { values, conditions, unconditional: self.unconditional }))
    }

    /// The address of its state, which is of this kind.
    pub(super) fn address(&self, kind: &str) -> Address {
        let keys = self.key_fields.iter().map(|field| field.name().clone()).collect();
        Address { keys, rest: vec![self.text.clone()], ..Address::of(kind) }
    }

    /// What all queries have in common, for users.
    pub(super) fn shared_text(&self) -> Vec<String> {
        let mut shared = vec![self.text.clone(), format!("{} states", self.program.states())];
        let keys: Vec<&str> = self.key_fields.iter().map(|field| field.name().as_str()).collect();
        if !keys.is_empty() {
            shared.push(format!("by {}", keys.join(", ")));
        }
        shared
    }
}
