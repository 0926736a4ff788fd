//! History functions: what a row says about earlier rows. `lag`, `changed`, `hysteresis` and aggregates over the rows
//! before, by slot and key.

mod operator;
mod over;
mod plan;
pub(crate) mod value;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory};

use self::over::Over;
use crate::aggregate::Storage;
use crate::expression::{Expressions, NamedExpression, sql};
use crate::row_bytes::RowBytes;
use crate::{AggregateSpec, PlanError};
use plan::{Extreme, Kind, Plan, PlannedColumn};

/// The most rows that `lag` and aggregates look back.
pub const LAG_ROWS_MAX: usize = 100;

/// A function of a row and of the earlier rows with the same slot and keys, in order of arrival or of event time.
#[derive(Clone, Debug)]
pub enum HistoryFunction {
    /// `lag(value, rows)`: the value this many rows ago; null if there was no such row. It has the type of the value.
    Lag {
        /// A number, text, boolean or time.
        value: Arc<dyn PhysicalExpr>,
        /// How many rows ago: 1 to [`LAG_ROWS_MAX`].
        rows: usize,
    },
    /// `changed(value)`: whether the value differs from that of the previous row; true for the first row. Null equals
    /// null and NaN equals NaN.
    Changed {
        /// A number, text, boolean or time.
        value: Arc<dyn PhysicalExpr>,
    },
    /// `hysteresis(value, low, high)`: becomes true with a value of at least `high`, and false with a value of at most
    /// `low`. It is false before the first such value. A row where one of the three is null changes nothing. If both
    /// hold, because `low` lies above `high`, it is true.
    Hysteresis {
        /// A number.
        value: Arc<dyn PhysicalExpr>,
        /// A number, for example a parameter.
        low: Arc<dyn PhysicalExpr>,
        /// A number, for example a parameter.
        high: Arc<dyn PhysicalExpr>,
    },
    /// `sum(value) OVER (ROWS 4 PRECEDING)`: an aggregate over the row and the rows before it. Of an aggregate that
    /// remembers values, like `median`, there is none but `min` and `max` of texts.
    Over {
        /// The aggregate; its name does not matter.
        aggregate: AggregateSpec,
        /// How many rows before, at most [`LAG_ROWS_MAX`]; `None`: all.
        preceding: Option<usize>,
    },
}

/// A column that is computed from a row and earlier rows.
#[derive(Clone, Debug)]
pub struct HistoryColumn {
    /// The name of the output column.
    pub name: String,
    /// The function that computes it.
    pub function: HistoryFunction,
}

/// Appends columns to each row that depend on the rows before it. It remembers one small row of values for each slot
/// (and key), and serves plain rows as well as those that windows emit.
/// A slot has at most 100,000 keys, so that one query cannot fill the memory of all; rows with further keys are refused
/// ([`Reason::Expression`](rivulet_dataflow::Reason::Expression)).
///
/// # Example
/// For `SELECT value - lag(value, 1)`: the column `before`, of which a [`Project`](crate::Project) behind computes the
/// difference.
/// ```
/// use std::sync::Arc;
/// use arrow::datatypes::{DataType, Field, Schema};
/// use datafusion_physical_expr::expressions::Column;
/// use rivulet_operators::{History, HistoryColumn, HistoryFunction};
///
/// let input = Schema::new(vec![Field::new("value", DataType::Float64, true)]);
/// let function = HistoryFunction::Lag { value: Arc::new(Column::new("value", 0)), rows: 1 };
/// let columns = vec![HistoryColumn { name: "before".into(), function }];
/// let history = History::new(&input, &Schema::empty(), vec![], vec![], columns).unwrap();
/// let names: Vec<_> = history.output_schema().fields().iter().map(|field| field.name().clone()).collect();
/// assert_eq!(names, ["value", "before"]);
/// ```
#[derive(Clone)]
pub struct History {
    plan: Arc<Plan>,
}

impl History {
    /// Makes an operator over rows with the columns of `input`. Keys and arguments are compiled against
    /// [`Expressions::evaluation_schema`]`(input, parameter_schema, parameters)`. The output columns are those of the
    /// input, then one for each of `columns`. Keys are not part of the output.
    pub fn new(
        input: &Schema,
        parameter_schema: &Schema,
        parameters: Vec<usize>,
        keys: Vec<NamedExpression>,
        columns: Vec<HistoryColumn>,
    ) -> Result<Self, PlanError> {
        let evaluation = Expressions::evaluation_schema(input, parameter_schema, &parameters);
        let mut expressions: Vec<_> = keys.iter().map(|key| key.expression.clone()).collect();
        let (mut planned, mut targets, mut state) = (Vec::new(), Vec::new(), Vec::new());
        let (mut overs, mut of_overs) = (Vec::new(), Vec::new());
        let mut fields = input.fields().iter().cloned().collect::<Vec<_>>();
        for HistoryColumn { name, function } in &columns {
            let (arguments, kind) = match function {
                HistoryFunction::Lag { value, rows } => (vec![value], Kind::Lag(*rows)),
                HistoryFunction::Changed { value } => (vec![value], Kind::Changed),
                HistoryFunction::Hysteresis { value, low, high } => (vec![value, low, high], Kind::Hysteresis),
                HistoryFunction::Over { aggregate, preceding } => {
                    match Extreme::of(aggregate, *preceding, &evaluation) {
                        Some(extreme) => {
                            (aggregate.arguments.iter().chain(&aggregate.filter).collect(), Kind::Extreme(extreme))
                        }
                        None => (Vec::new(), Kind::Over(overs.len())),
                    }
                }
            };
            let text = function.to_string();
            let fail = |problem: String| PlanError::Expression { expression: text.clone(), problem };
            let is_beyond = |rows: usize| fail(format!("it looks back {rows} rows, and the most are {LAG_ROWS_MAX}"));
            let column = PlannedColumn { kind, argument: targets.len(), state: state.len(), text: text.clone() };
            let (mut data_type, mut marks) = (DataType::Boolean, HashMap::new());
            if let HistoryFunction::Over { preceding: Some(rows), .. } = function
                && *rows > LAG_ROWS_MAX
            {
                return Err(is_beyond(*rows));
            }
            for (place, argument) in arguments.into_iter().enumerate() {
                let found = argument.data_type(&evaluation).map_err(|error| fail(error.strip_backtrace()))?;
                let storage = Storage::of(&found).map(|storage| match kind {
                    Kind::Hysteresis if storage == Storage::Integer => Storage::Float,
                    _ => storage,
                });
                let target = storage
                    .filter(|storage| !matches!(kind, Kind::Hysteresis) || *storage == Storage::Float)
                    .filter(|storage| can_cast_types(&found, &storage.data_type()))
                    .filter(|storage| can_cast_types(&storage.data_type(), &found))
                    .ok_or_else(|| fail(format!("it does not take an argument of type {found}")))?;
                targets.push(target);
                expressions.push(argument.clone());
                if let Kind::Lag(rows) = kind
                    && !(1..=LAG_ROWS_MAX).contains(&rows)
                {
                    return Err(fail(format!(
                        "it looks back {rows} rows, it must be 1 to {LAG_ROWS_MAX}\nhint: use a window"
                    )));
                }
                // The second argument of an extreme is a condition.
                if matches!(kind, Kind::Lag(_) | Kind::Extreme(_)) && place == 0 {
                    data_type = found;
                    let field = argument.return_field(&evaluation).map_err(|error| fail(error.strip_backtrace()))?;
                    marks.clone_from(field.metadata());
                }
            }
            match (kind, function) {
                (Kind::Lag(rows), _) => state.extend(std::iter::repeat_n(targets[column.argument], rows)),
                (Kind::Changed, _) => state.push(targets[column.argument]),
                (Kind::Extreme(extreme), _) => state.extend(std::iter::repeat_n(Storage::Text, extreme.values())),
                (_, HistoryFunction::Over { aggregate, preceding }) => {
                    let (over, needed) = Over::new(aggregate, *preceding, &evaluation, of_overs.len())?;
                    data_type = over.data_type().clone();
                    state.extend(std::iter::repeat_n(Storage::Integer, over.values()));
                    of_overs.extend(needed);
                    overs.push(over);
                }
                _ => state.push(Storage::Boolean),
            }
            let field = Field::new(name, data_type, !matches!(kind, Kind::Changed | Kind::Hysteresis));
            fields.push(Arc::new(field.with_metadata(marks)));
            planned.push(column);
        }
        expressions.extend(of_overs);
        let expressions = Expressions::new(input, parameter_schema, parameters, expressions)?;
        let key_types: Vec<_> =
            expressions.fields()[..keys.len()].iter().map(|field| field.data_type().clone()).collect();
        // Fails for types that cannot be a key.
        RowBytes::new(key_types.iter())?;
        Ok(Self {
            plan: Arc::new(Plan {
                expressions,
                key_names: keys.into_iter().map(|key| key.name).collect(),
                key_types,
                columns: planned,
                targets,
                overs,
                state,
                last_time: None,
                input_columns: input.fields().len(),
                output: Arc::new(Schema::new(fields)),
            }),
        })
    }

    /// The same for rows in order of event time: a row that comes behind a later one of its slot and key is refused as
    /// late ([`Reason::Late`](rivulet_dataflow::Reason::Late)).
    #[must_use]
    pub fn in_order_of_time(mut self) -> Self {
        if let Some(plan) = Arc::get_mut(&mut self.plan).filter(|plan| plan.last_time.is_none()) {
            plan.last_time = Some(plan.state.len());
            plan.state.push(Storage::Time);
        }
        self
    }

    /// The output columns: those of the input, then the computed ones.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }
}

impl std::fmt::Display for HistoryFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lag { value, rows } => write!(f, "lag({}, {rows})", sql(value)),
            Self::Changed { value } => write!(f, "changed({})", sql(value)),
            Self::Hysteresis { value, low, high } => {
                write!(f, "hysteresis({}, {}, {})", sql(value), sql(low), sql(high))
            }
            Self::Over { aggregate, preceding: Some(rows) } => {
                write!(f, "{} over {rows} preceding rows", aggregate.text())
            }
            Self::Over { aggregate, preceding: None } => write!(f, "{} over all preceding rows", aggregate.text()),
        }
    }
}

impl OperatorFactory for History {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(operator::HistoryOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let mut shared: Vec<String> = self.plan.columns.iter().map(|column| column.text.clone()).collect();
        if !self.plan.key_names.is_empty() {
            shared.push(format!("by {}", self.plan.key_names.join(", ")));
        }
        if self.plan.last_time.is_some() {
            shared.push("in order of event time".into());
        }
        let mut per_slot = self.plan.expressions.parameter_names();
        let values = match self.plan.state.len() {
            1 => "1 remembered value".to_owned(),
            values => format!("{values} remembered values"),
        };
        per_slot.push(if self.plan.key_names.is_empty() { values } else { values + " of each key" });
        Description { operator: "history".into(), shared, per_slot }
    }

    fn state(&self) -> Option<Address> {
        let plan = &self.plan;
        Some(Address {
            keys: plan.key_names.clone(),
            aggregates: plan.columns.iter().map(|column| column.text.clone()).collect(),
            rest: plan.last_time.map(|_| "by event time".into()).into_iter().collect(),
            ..Address::of(operator::OPERATOR)
        })
    }

    fn only_decides_by(&self, parameter: &str) -> bool {
        let plan = &self.plan;
        let keys = plan.key_types.len();
        let of_overs = keys + plan.targets.len()..plan.expressions.len();
        // A truth value is a decision, and so is what hysteresis remembers, whose limits are not kept.
        let values = plan.columns.iter().flat_map(|column| {
            let kept = match column.kind {
                Kind::Lag(_) | Kind::Changed => usize::from(plan.targets[column.argument] != Storage::Boolean),
                Kind::Extreme(extreme) => extreme.arguments(),
                Kind::Hysteresis | Kind::Over(_) => 0,
            };
            column.argument..column.argument + kept
        });
        let mut kept = (0..keys).chain(values.map(|argument| keys + argument)).chain(of_overs);
        !kept.any(|place| plan.expressions.uses_parameter(place, parameter))
    }
}
