//! The checked plan of a row pattern.

use arrow::datatypes::{Field, SchemaRef};

use super::condition::Condition;
use super::program::Program;
use super::registers::{Layout, Read};
use super::spec::Skip;
use crate::aggregate::Storage;
use crate::expression::Expressions;
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

impl Plan {
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
