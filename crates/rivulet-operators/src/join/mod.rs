//! Joins of two inputs: with the latest row of the other one, or with its rows within an interval of time.
//!
//! Rows of both inputs come mixed in one batch, in the order of their arrival, with the number of their input in the
//! first column and the columns of all inputs side by side ([`AssignTimes`](crate::AssignTimes)). What comes out are
//! the columns of the left side, then those of the right one, and the arrival where it is wanted. A row comes out at
//! once when the second of its two sides is there.

mod encoded;
mod interval;
mod latest;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Description, InputIndex, Operator, OperatorFactory};

use crate::PlanError;
use crate::assign_time::{ARRIVAL_COLUMN, TIME_TYPE};
use crate::expression::{Expressions, sql};
use crate::row_bytes::RowBytes;

/// The most rows that a join within an interval keeps of each side of a query; further ones are refused.
pub const JOIN_ROWS_MAX: usize = 10_000;

/// A join of two inputs.
#[derive(Clone, Debug)]
pub struct JoinSpec {
    /// The mixed rows: the number of the input, then the columns of all inputs.
    pub input: SchemaRef,
    /// The parameters of the slot table.
    pub parameter_schema: SchemaRef,
    /// The places of the parameters that expressions see.
    pub parameters: Vec<usize>,
    /// The left side and the right one.
    pub sides: [JoinSide; 2],
    /// What must be equal on both sides, compiled against [`Expressions::evaluation_schema`]; for a row of either side
    /// its own value. Null equals nothing. Without keys all rows of a query belong together.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Which rows belong together in time.
    pub kind: JoinKind,
    /// Whether a left row without partner comes out, with nulls: LEFT JOIN. Within an interval it comes out when the
    /// row is forgotten, with its own event time.
    pub keeps_unmatched: bool,
    /// Whether a column [`ARRIVAL_COLUMN`] is appended: when the later one of the two rows came.
    pub append_arrival_column: bool,
}

/// One side of a join.
#[derive(Clone, Debug)]
pub struct JoinSide {
    /// The number of its input.
    pub input: InputIndex,
    /// Which of the mixed rows' columns come out; at least one.
    pub columns: Vec<usize>,
}

/// Which rows of the two sides belong together.
#[derive(Clone, Debug)]
pub enum JoinKind {
    /// Each row of a side that drives, with the latest row of the other side and the same key: the one with the latest
    /// event time, among several the one that came last. The result has the event time of the row that drives. A row
    /// that is older than the latest one of its own side drives nothing where both sides do.
    ///
    /// A query has at most 100,000 keys; rows with further ones are refused
    /// ([`Reason::Expression`](rivulet_dataflow::Reason::Expression)).
    Latest {
        /// Whether rows of the left side, and of the right side, drive.
        drives: [bool; 2],
    },
    /// Rows whose event times lie within an interval: `right BETWEEN left + low AND left + high`. The result has the
    /// later one of the two event times.
    ///
    /// A row is kept until the query's newest event time is so far that no row which is at most `lateness_us` behind it
    /// can match; one that comes when all rows it could match are forgotten is refused
    /// ([`Reason::Late`](rivulet_dataflow::Reason::Late)). Of each side of a query at most [`JOIN_ROWS_MAX`] rows are
    /// kept; further ones are refused ([`Reason::Expression`](rivulet_dataflow::Reason::Expression)).
    Interval {
        /// The lower bound; without one it is zero.
        low: Option<Offset>,
        /// The upper bound; without one it is zero.
        high: Option<Offset>,
        /// How far a row may be behind the newest one.
        lateness_us: i64,
        /// Of a LEFT JOIN: after how much silence of a query its time goes on with the clock, so that rows without
        /// partner come out; `i64::MAX` for never.
        idle_timeout_us: i64,
    },
}

/// A span of time that is added to an event time.
#[derive(Clone, Debug)]
pub struct Offset {
    /// The span, compiled like the keys, of type `Interval(MonthDayNano)`; one with months, or null, is refused with
    /// the row.
    pub interval: Arc<dyn PhysicalExpr>,
    /// Whether it is subtracted instead.
    pub is_negative: bool,
}

/// Joins two inputs; see [`JoinKind`].
///
/// # Example
/// For `dog JOIN LATEST(sheep) ON sheep.herd = dog.herd`.
/// ```
/// use std::sync::Arc;
/// use arrow::datatypes::{DataType, Field, Schema};
/// use datafusion_physical_expr::expressions::Column;
/// use rivulet_operators::{Join, JoinKind, JoinSide, JoinSpec};
///
/// let input = Arc::new(Schema::new(vec![
///     Field::new("input", DataType::UInt8, false),
///     Field::new("herd", DataType::Utf8, true),
///     Field::new("dog.x", DataType::Float64, true),
///     Field::new("sheep.x", DataType::Float64, true),
/// ]));
/// let spec = JoinSpec {
///     parameter_schema: Arc::new(Schema::empty()),
///     parameters: vec![],
///     sides: [JoinSide { input: 0, columns: vec![2] }, JoinSide { input: 1, columns: vec![3] }],
///     keys: vec![Arc::new(Column::new("herd", 1))],
///     kind: JoinKind::Latest { drives: [true, false] },
///     keeps_unmatched: false,
///     append_arrival_column: false,
///     input,
/// };
/// let schema = Join::new(spec).unwrap().output_schema().clone();
/// let names: Vec<_> = schema.fields().iter().map(|field| field.name().clone()).collect();
/// assert_eq!(names, ["dog.x", "sheep.x"]);
/// ```
#[derive(Clone)]
pub struct Join {
    plan: Arc<Plan>,
}

struct Plan {
    /// The keys, then the bounds of the interval that there are.
    expressions: Expressions,
    key_types: Vec<DataType>,
    key_texts: Vec<String>,
    sides: [JoinSide; 2],
    side_types: [Vec<DataType>; 2],
    kind: JoinKind,
    keeps_unmatched: bool,
    append_arrival_column: bool,
    output: SchemaRef,
}

impl Join {
    /// A join, or why it cannot be.
    pub fn new(spec: JoinSpec) -> Result<Self, PlanError> {
        let JoinSpec { input, parameter_schema, parameters, sides, keys, kind, keeps_unmatched, append_arrival_column } =
            spec;
        let mut fields: Vec<Arc<Field>> = Vec::new();
        let mut side_types: [Vec<DataType>; 2] = Default::default();
        for (side, types) in sides.iter().zip(&mut side_types) {
            let fail =
                |index: usize, problem: &str| PlanError::Column { index, what: "a side", problem: problem.into() };
            if side.columns.is_empty() {
                return Err(fail(0, "a side has at least one column"));
            }
            for &index in &side.columns {
                let field = input.fields().get(index).ok_or_else(|| fail(index, "there is no such column"))?;
                types.push(field.data_type().clone());
                fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
            }
            RowBytes::exact(types.iter())?;
        }
        if append_arrival_column {
            fields.push(Arc::new(Field::new(ARRIVAL_COLUMN, TIME_TYPE, false)));
        }
        let offsets = match &kind {
            JoinKind::Latest { .. } => Vec::new(),
            JoinKind::Interval { low, high, .. } => low.iter().chain(high).map(|one| one.interval.clone()).collect(),
        };
        let key_texts = keys.iter().map(sql).collect();
        let key_count = keys.len();
        let all = keys.into_iter().chain(offsets).collect();
        let expressions = Expressions::new(&input, &parameter_schema, parameters, all)?;
        let (key_fields, offset_fields) = expressions.fields().split_at(key_count);
        let key_types: Vec<DataType> = key_fields.iter().map(|field| field.data_type().clone()).collect();
        RowBytes::new(key_types.iter())?;
        if let Some(field) =
            offset_fields.iter().find(|field| *field.data_type() != DataType::Interval(IntervalUnit::MonthDayNano))
        {
            let problem = format!("a bound is an INTERVAL, this has type {}", field.data_type());
            return Err(PlanError::Expression { expression: field.name().clone(), problem });
        }
        let output = Arc::new(Schema::new(fields));
        Ok(Self {
            plan: Arc::new(Plan {
                expressions,
                key_types,
                key_texts,
                sides,
                side_types,
                kind,
                keeps_unmatched,
                append_arrival_column,
                output,
            }),
        })
    }

    /// The columns that come out.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }
}

impl OperatorFactory for Join {
    fn create(&self) -> Box<dyn Operator> {
        match self.plan.kind {
            JoinKind::Latest { drives } => Box::new(latest::LatestJoin::new(self.plan.clone(), drives)),
            JoinKind::Interval { lateness_us, idle_timeout_us, .. } => {
                Box::new(interval::IntervalJoin::new(self.plan.clone(), lateness_us, idle_timeout_us))
            }
        }
    }

    fn describe(&self) -> Description {
        let (operator, kept) = match &self.plan.kind {
            JoinKind::Latest { .. } => ("latest join", "the latest row of a side that is read so"),
            JoinKind::Interval { .. } => ("interval join", "the rows of both sides within the interval"),
        };
        let mut per_slot = self.plan.expressions.parameter_names();
        per_slot.push(if self.plan.key_texts.is_empty() { kept.to_owned() } else { format!("{kept}, by key") });
        Description { operator: operator.into(), shared: self.plan.key_texts.clone(), per_slot }
    }

    fn is_stateful(&self) -> bool {
        true
    }
}
