//! Looks events up in a reference table: by a key in a hash index, or by trying rows of the table, either all of them
//! or those near a place.
//!
//! Cost: a [`Find::Key`] is a hash and a comparison for each event. A [`Find::Scan`] evaluates its condition on every
//! row of the table for each event, vectorised over pairs of an event and a row, some thousands at a time. What the
//! order and the results need is computed only for pairs that pass the condition. With [`Nearby`] an event is paired
//! only with the few rows that an index of places returns.

mod aggregate;
mod operator;
mod places;
mod plan;
mod table;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory};

use crate::PlanError;
use crate::expression::{Expressions, NamedExpression, is_condition, sql};
use plan::{PairExpressions, Plan};

pub use aggregate::{STRING_AGG_BYTES_MAX, TableAggregate, TableFunction};
pub use operator::ROWS_PER_EVENT_MAX;
pub use places::EARTH_RADIUS_M;
pub use plan::{Find, Nearby, OrderKey};
pub use table::{Table, TableRows};

/// The plan of a lookup. Expressions are compiled against [`Lookup::evaluation_schema`].
#[derive(Clone, Debug)]
pub struct LookupSpec {
    /// The columns of the events.
    pub input: SchemaRef,
    /// The parameters of the queries.
    pub parameter_schema: SchemaRef,
    /// The parameters that the expressions use, as indices of `parameter_schema`.
    pub parameters: Vec<usize>,
    /// The table in which events are looked up.
    pub table: Arc<Table>,
    /// Which rows of the table an event finds.
    pub find: Find,
    /// What becomes of the found rows.
    pub results: LookupResults,
}

/// What becomes of the rows that an event finds.
#[derive(Clone, Debug)]
pub enum LookupResults {
    /// One row for each found row, with these columns behind those of the event.
    Rows(Vec<NamedExpression>),
    /// One row for each event, also for an event that finds nothing, with these columns behind those of the event.
    Aggregates(Vec<TableAggregate>),
}

/// Looks events up in a table. An event is refused if it finds more than [`ROWS_PER_EVENT_MAX`] rows (and does not
/// aggregate them), or if an expression fails on it.
#[derive(Clone, Debug)]
pub struct Lookup {
    plan: Arc<Plan>,
    output: SchemaRef,
}

impl Lookup {
    /// Returns the columns that the expressions of a lookup are compiled against: those of `input`, those of `table`,
    /// then the parameters as in [`Expressions::evaluation_schema`].
    pub fn evaluation_schema(
        input: &Schema,
        table: &Schema,
        parameter_schema: &Schema,
        parameters: &[usize],
    ) -> SchemaRef {
        let fields = input.fields().iter().chain(table.fields()).cloned().collect::<Vec<_>>();
        Expressions::evaluation_schema(&Schema::new(fields), parameter_schema, parameters)
    }

    /// Makes a lookup, or returns what is wrong with its plan.
    pub fn new(spec: LookupSpec) -> Result<Self, PlanError> {
        let LookupSpec { input, parameter_schema, parameters, table, find, results } = spec;
        let schema = Self::evaluation_schema(&input, table.schema(), &parameter_schema, &parameters);
        let type_of = |expression: &Arc<dyn PhysicalExpr>| {
            expression
                .data_type(&schema)
                .map_err(|error| PlanError::Expression { expression: sql(expression), problem: error.to_string() })
        };
        let wrong = |expression: &Arc<dyn PhysicalExpr>, problem: String| {
            Err(PlanError::Expression { expression: sql(expression), problem })
        };
        let (mut condition, mut order, mut nearby) = (Vec::new(), Vec::new(), Vec::new());
        match &find {
            Find::Scan { condition: Some(one), .. } if !is_condition(&type_of(one)?) => {
                return wrong(one, format!("a condition is true or false, this has type {}", type_of(one)?));
            }
            Find::Scan { nearby: near, condition: one, order: keys, limit } => {
                nearby = checked_nearby(near.as_ref(), limit.as_ref(), &table, type_of)?;
                condition.extend(one.clone());
                order.extend(keys.iter().map(|key| key.expression.clone()));
                if let Some(limit) = limit {
                    if type_of(limit)? != DataType::Int64 {
                        return wrong(limit, format!("a limit has type Int64, this has type {}", type_of(limit)?));
                    }
                    order.push(limit.clone());
                }
            }
            Find::Key { column, value, .. } => {
                let Some(field) = table.schema().fields().get(*column) else {
                    let problem = "there is no such column".into();
                    return Err(PlanError::Column { index: *column, what: "the table", problem });
                };
                if type_of(value)? != *field.data_type() {
                    return wrong(
                        value,
                        format!("the column has type {}, this {}", field.data_type(), type_of(value)?),
                    );
                }
                condition.push(value.clone());
            }
        }
        let (mut expressions, mut fields) = (Vec::new(), input.fields().to_vec());
        let aggregates = match results {
            LookupResults::Rows(columns) => {
                for NamedExpression { name, expression } in columns {
                    fields.push(Arc::new(Field::new(name, type_of(&expression)?, true)));
                    expressions.push(expression);
                }
                None
            }
            LookupResults::Aggregates(aggregates) => {
                for TableAggregate { name, function, argument } in &aggregates {
                    let found = argument.as_ref().map(type_of).transpose()?;
                    let Some(data_type) = function.result_type(found.as_ref()) else {
                        let problem = format!("{function:?} does not take an argument of type {found:?}");
                        return Err(PlanError::Expression { expression: name.clone(), problem });
                    };
                    fields.push(Arc::new(Field::new(name, data_type, true)));
                    expressions.extend(argument.clone());
                }
                Some(aggregates)
            }
        };
        let pairs = |expressions| {
            PairExpressions::new(expressions, &schema, input.fields().len(), table.schema().fields().len())
        };
        let output = Arc::new(Schema::new(fields));
        let plan = Plan {
            nearby: pairs(nearby)?,
            condition: pairs(condition)?,
            order: pairs(order)?,
            results: pairs(expressions)?,
            aggregates,
            output: output.clone(),
            parameter_names: parameters.iter().map(|&one| format!("${}", parameter_schema.field(one).name())).collect(),
            table,
            parameters,
            find,
        };
        Ok(Self { plan: Arc::new(plan), output })
    }

    /// The output columns: those of the events, and the results.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.output
    }
}

/// Returns the expressions of `nearby` over an event; without `nearby` there are none.
fn checked_nearby(
    nearby: Option<&Nearby>,
    limit: Option<&Arc<dyn PhysicalExpr>>,
    table: &Table,
    type_of: impl Fn(&Arc<dyn PhysicalExpr>) -> Result<DataType, PlanError>,
) -> Result<Vec<Arc<dyn PhysicalExpr>>, PlanError> {
    let Some(nearby) = nearby else { return Ok(Vec::new()) };
    for index in nearby.columns {
        if table.schema().fields().get(index).is_none_or(|field| *field.data_type() != DataType::Float64) {
            let problem = "a place is two columns of type Float64".into();
            return Err(PlanError::Column { index, what: "the table", problem });
        }
    }
    for expression in nearby.place.iter().chain(&nearby.radius) {
        if type_of(expression)? != DataType::Float64 {
            let problem = format!("places and radius have type Float64, this has type {}", type_of(expression)?);
            return Err(PlanError::Expression { expression: sql(expression), problem });
        }
    }
    let Some(bound) = nearby.radius.as_ref().or(limit) else {
        let problem = "the nearest rows are looked for without a limit".into();
        return Err(PlanError::Expression { expression: sql(&nearby.place[0]), problem });
    };
    Ok(nearby.place.iter().chain([bound]).cloned().collect())
}

impl OperatorFactory for Lookup {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(operator::LookupOperator { plan: self.plan.clone() })
    }

    fn describe(&self) -> Description {
        let name = self.plan.table.name();
        let how = match &self.plan.find {
            Find::Scan { nearby: None, .. } => format!("scans the rows of {name} for each event"),
            Find::Scan { .. } => format!("finds the rows of {name} near a place in an index"),
            Find::Key { column, .. } => {
                format!("finds rows of {name} by {} in a hash index", self.plan.table.schema().field(*column).name())
            }
        };
        Description { operator: "lookup".into(), shared: vec![how], per_slot: self.plan.parameter_names.clone() }
    }

    fn state(&self) -> Option<Address> {
        None
    }
}
