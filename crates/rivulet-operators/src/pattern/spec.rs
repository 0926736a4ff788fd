//! A row pattern as the planner gives it, and the bounds of its search.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;

use super::program::Pattern;
use crate::aggregate::Storage;
use crate::expression::NamedExpression;

/// The most rows that a partition keeps, and so the most rows of a match.
pub const MATCH_ROWS_MAX: usize = 10_000;

/// The most rows that all partitions of a slot keep together.
pub const SLOT_ROWS_MAX: usize = 100_000;

/// The most partial matches that are followed at once from one first row.
pub const THREADS_MAX: usize = 256;

/// The most variables of a pattern.
pub const VARIABLES_MAX: usize = 60;

/// How far back or forward a navigation may reach, in rows.
pub const NAVIGATION_ROWS_MAX: usize = 100;

/// Which row of a match a source reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Navigation {
    /// The first row of the variable, or the row this many rows of the variable after it.
    First(usize),
    /// The last row of the variable, or the row this many rows of the variable before it.
    Last(usize),
    /// The row of the partition this many rows before the last row of the variable, whether the rows between belong to
    /// the match or not.
    Previous(usize),
}

/// An aggregate over the rows of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    /// The number of rows, or of values that are not null. `BIGINT`.
    Count,
    /// The sum of numbers; null if a sum of integers leaves `BIGINT`.
    Sum,
    /// The mean of numbers, as `DOUBLE`.
    Avg,
    /// The smallest number or time.
    Min,
    /// The largest number or time.
    Max,
}

/// A property of a match that a condition or a result reads. Without a variable it is about all rows of the match. In
/// conditions, the row that is tried counts as one of them, and as the last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A value of one row; null if there is no such row.
    Value {
        /// The index of the value in [`PatternSpec::values`].
        value: usize,
        /// The variable whose rows count.
        variable: Option<usize>,
        /// Which row of the variable.
        navigation: Navigation,
    },
    /// A value over several rows.
    Aggregate {
        /// What is computed.
        aggregate: Aggregate,
        /// The index of the value in [`PatternSpec::values`]; `None` for `count(*)`.
        value: Option<usize>,
        /// The variable whose rows count.
        variable: Option<usize>,
    },
    /// The name of the variable of the last row.
    Classifier,
    /// The number of the match in its partition, from 1.
    MatchNumber,
}

/// A condition that depends on the match.
#[derive(Clone, Debug)]
pub struct MatchCondition {
    /// The properties that it reads. The columns that `expression` is compiled against are these, then the parameters.
    pub sources: Vec<Source>,
    /// The parameters that it uses, as indices of the slot table's schema.
    pub parameters: Vec<usize>,
    /// True or false.
    pub expression: Arc<dyn PhysicalExpr>,
}

/// A variable of the pattern. A row is one of its rows if both conditions are true; without conditions every row is.
#[derive(Clone, Debug)]
pub struct PatternVariable {
    /// Its name, as `CLASSIFIER()` gives it.
    pub name: String,
    /// The part of its condition that depends on the row alone, compiled like [`PatternSpec::values`].
    pub row_condition: Option<Arc<dyn PhysicalExpr>>,
    /// The part of its condition that depends on the match.
    pub match_condition: Option<MatchCondition>,
}

/// Where the search goes on after a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Skip {
    /// With the row after the last row of the match.
    #[default]
    PastLastRow,
    /// With the row after the first row of the match.
    ToNextRow,
    /// With the first row of this variable. If there is none, or if it is the first row of the match, with the row
    /// after the first row of the match.
    ToFirst(usize),
    /// With the last row of this variable, by the same rule.
    ToLast(usize),
}

/// The plan of a row pattern operator, as the planner gives it.
#[derive(Clone, Debug)]
pub struct PatternSpec {
    /// The columns of the input.
    pub input: SchemaRef,
    /// The slot table's schema.
    pub parameter_schema: SchemaRef,
    /// The parameters that keys, values and row conditions use, as indices of `parameter_schema`.
    pub parameters: Vec<usize>,
    /// The expressions by which rows are partitioned, compiled against
    /// [`Expressions::evaluation_schema`](crate::Expressions::evaluation_schema)`(input, parameter_schema,
    /// parameters)`.
    pub keys: Vec<NamedExpression>,
    /// The values that are kept of each row, compiled in the same way: numbers, texts, booleans or times.
    pub values: Vec<Arc<dyn PhysicalExpr>>,
    /// The variables, at most [`VARIABLES_MAX`].
    pub variables: Vec<PatternVariable>,
    /// The pattern over them.
    pub pattern: Pattern,
    /// The output columns behind the keys, by name.
    pub results: Vec<(String, Source)>,
    /// Where the search goes on after a match.
    pub skip: Skip,
    /// The longest duration of a match: an interval over the slot table's columns (column i is parameter i).
    pub within: Option<Arc<dyn PhysicalExpr>>,
    /// How far a row may be behind the newest row of its slot, in microseconds.
    pub lateness_us: i64,
    /// After how much silence a slot's clock follows that of the machine, in microseconds; `i64::MAX` for never.
    pub idle_timeout_us: i64,
    /// Whether rows are in order of arrival. Lateness and idle timeout do not matter then.
    pub arrival_time: bool,
}

/// A column of the values of a source, which are JSON if the value is; `values` are the fields of
/// [`PatternSpec::values`].
pub(super) fn source_field(name: impl Into<String>, source: &Source, values: &[Field]) -> Field {
    let field = Field::new(name, source_type(source, values), true);
    match source {
        Source::Value { value, .. } => field.with_metadata(values[*value].metadata().clone()),
        _ => field,
    }
}

fn source_type(source: &Source, values: &[Field]) -> DataType {
    match source {
        Source::Value { value, .. } => values[*value].data_type().clone(),
        Source::Aggregate { aggregate, value, .. } => {
            let of = value.map(|value| values[value].data_type());
            match (aggregate, of) {
                (Aggregate::Count, _) | (_, None) => DataType::Int64,
                (Aggregate::Avg, _) => DataType::Float64,
                (Aggregate::Sum, Some(of)) if of.is_floating() => DataType::Float64,
                (Aggregate::Sum, _) => DataType::Int64,
                (Aggregate::Min | Aggregate::Max, Some(of)) => of.clone(),
            }
        }
        Source::Classifier => DataType::Utf8,
        Source::MatchNumber => DataType::Int64,
    }
}

/// The form in which values of a source are kept; `values` as for [`source_field`].
pub(super) fn source_storage(source: &Source, values: &[Field]) -> Storage {
    match source {
        Source::Classifier => Storage::Text,
        other => Storage::of(&source_type(other, values)).expect("values are of types that are kept"),
    }
}
