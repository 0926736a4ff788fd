//! What a join joins, and its checked plan.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::InputIndex;

use crate::expression::Expressions;

/// The most rows that a join within an interval keeps of each side of a query. Further rows are refused.
pub const JOIN_ROWS_MAX: usize = 10_000;

/// One side of a join.
#[derive(Clone, Debug)]
pub struct JoinSide {
    /// The number of its input.
    pub input: InputIndex,
    /// The indices of the mixed rows' columns that come out; at least one.
    pub columns: Vec<usize>,
}

/// Which rows of the two sides belong together.
#[derive(Clone, Debug)]
pub enum JoinKind {
    /// Joins each row of a side that drives with the latest row of the other side and the same key: the row with the
    /// latest event time, and among several the one that came last. The result has the event time of the row that
    /// drives. If both sides drive, a row that is older than the latest row of its own side drives nothing.
    ///
    /// A query has at most 100,000 keys. Rows with further keys are refused
    /// ([`Reason::Expression`](rivulet_dataflow::Reason::Expression)).
    Latest {
        /// Whether rows of the left side, and of the right side, drive.
        drives: [bool; 2],
    },
    /// Joins rows whose event times lie within an interval: `right BETWEEN left + low AND left + high`. The result has
    /// the later one of the two event times.
    ///
    /// A row is kept until no row that is at most `lateness_us` behind the query's newest event time can match it. A
    /// row is refused if it comes when all rows that it could match are forgotten
    /// ([`Reason::Late`](rivulet_dataflow::Reason::Late)). Of each side of a query at most [`JOIN_ROWS_MAX`] rows are
    /// kept; further rows are refused ([`Reason::Expression`](rivulet_dataflow::Reason::Expression)).
    Interval {
        /// The lower bound; zero if there is none.
        low: Option<Offset>,
        /// The upper bound; zero if there is none.
        high: Option<Offset>,
        /// How far a row may be behind the newest one, in microseconds.
        lateness_us: i64,
        /// For a LEFT JOIN: after how much silence, in microseconds, the time of a query goes on with the clock, so
        /// that rows without partner come out; `i64::MAX` for never.
        idle_timeout_us: i64,
    },
}

/// A span of time that is added to an event time.
#[derive(Clone, Debug)]
pub struct Offset {
    /// The span, compiled like the keys, of type `Interval(MonthDayNano)`. If it has months or is null, the row is
    /// refused.
    pub interval: Arc<dyn PhysicalExpr>,
    /// Whether the span is subtracted instead.
    pub is_negative: bool,
}

/// The plan that all instances share.
pub(super) struct Plan {
    /// The keys, then the bounds of the interval, if it has any.
    pub(super) expressions: Expressions,
    pub(super) key_types: Vec<DataType>,
    pub(super) key_texts: Vec<String>,
    pub(super) sides: [JoinSide; 2],
    pub(super) side_types: [Vec<DataType>; 2],
    pub(super) kind: JoinKind,
    pub(super) keeps_unmatched: bool,
    pub(super) append_arrival_column: bool,
    pub(super) output: SchemaRef,
}
