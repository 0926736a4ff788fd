//! Joins of two inputs: with the latest row of the other input, or with its rows within an interval of time.
//!
//! Rows of both inputs come mixed in one batch, in the order of their arrival. The first column holds the number of
//! their input, then come the columns of all inputs side by side ([`AssignTime`](crate::AssignTime)). The output
//! columns are those of the left side, then those of the right side, and the arrival if it is wanted. A joined row
//! comes out as soon as both of its rows have come.

mod encoded;
mod interval;
mod latest;
mod plan;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory};

use crate::PlanError;
use crate::assign_time::{ARRIVAL_COLUMN, TIME_TYPE};
use crate::expression::{Expressions, sql};
use crate::row_bytes::RowBytes;
use plan::Plan;

pub use plan::{JOIN_ROWS_MAX, JoinKind, JoinSide, Offset};

/// A join of two inputs.
#[derive(Clone, Debug)]
pub struct JoinSpec {
    /// The mixed rows: the number of the input, then the columns of all inputs.
    pub input: SchemaRef,
    /// The parameters of the slot table.
    pub parameter_schema: SchemaRef,
    /// The indices of the parameters that expressions see.
    pub parameters: Vec<usize>,
    /// The left side and the right side.
    pub sides: [JoinSide; 2],
    /// The expressions that must be equal on both sides, compiled against [`Expressions::evaluation_schema`]. For a row
    /// of either side they give its own value. Null equals nothing. Without keys all rows of a query belong together.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    /// Which rows belong together in time.
    pub kind: JoinKind,
    /// Whether a left row without partner comes out, with nulls: LEFT JOIN. In a join within an interval it comes out
    /// when the row is forgotten, with its own event time.
    pub keeps_unmatched: bool,
    /// Whether a column [`ARRIVAL_COLUMN`] is appended: the arrival of the later one of the two rows.
    pub append_arrival_column: bool,
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

impl Join {
    /// Makes a join, or returns why it cannot work.
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

    /// The output columns.
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

    fn state(&self) -> Option<Address> {
        let plan = &self.plan;
        let kind = match plan.kind {
            JoinKind::Latest { .. } => latest::OPERATOR,
            JoinKind::Interval { .. } => interval::OPERATOR,
        };
        let columns = plan.output.fields().iter().map(|field| field.name().clone());
        Some(Address { keys: plan.key_texts.clone(), rest: columns.collect(), ..Address::of(kind) })
    }
}
