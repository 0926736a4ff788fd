//! The results of a planned SELECT, as the SELECT around it reads them.

use arrow::datatypes::SchemaRef;
use datafusion_expr::Expr;

use super::operators::Operators;
use super::window::EventTime;

/// A planned SELECT: operators from the inputs to its results, and what the SELECT behind it needs to know of them.
pub(super) struct Behind {
    pub(super) operators: Operators,
    /// What its FROM reads, and by which other name.
    pub(super) input: (String, Option<String>),
    pub(super) columns: SchemaRef,
    pub(super) event_time: EventTime,
    pub(super) lateness_us: i64,
    pub(super) idle_timeout_us: i64,
    pub(super) by_arrival: bool,
    pub(super) results: ResultsOf,
    /// The columns of decoded rows.
    pub(super) row_schema: SchemaRef,
}

/// The results of a SELECT that another one reads.
#[derive(Clone, Default)]
pub(super) struct ResultsOf {
    /// Whether they come from windows by time, all rows of windows with one end together.
    pub(super) of_windows: bool,
    /// Whether the rows of a window, with its bounds by their own names, can be compared with each other.
    pub(super) can_be_ranked: bool,
    /// The columns that only tell the time of a window.
    pub(super) bounds: Vec<String>,
    /// The columns that distinguish the rows of one window, or the texts of those that are not selected.
    pub(super) keys: Vec<Result<String, String>>,
    /// What the SELECT does, for the signature of state behind it.
    pub(super) text: String,
}

/// Whether an expression is the column with this name.
pub(super) fn is_column(expression: &Expr, name: &str) -> bool {
    matches!(expression, Expr::Column(column) if column.name == name)
}
