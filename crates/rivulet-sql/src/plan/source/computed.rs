//! Columns of an input or source that are computed from its other columns: `event AS to_timestamp(ts / 1000) EVENT
//! TIME`.
//!
//! They are computed before any other step, so an event time may be one of them. A row on which an expression fails is
//! refused, as in the SELECT.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Column;
use datafusion_expr::Expr;
use rivulet_operators::{NamedExpression, Project};

use super::super::check::{Place, Scope};
use super::super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::super::types::{cast_to, result_type};
use super::super::walk::start;
use crate::application::{Input, Parameter};
use crate::plan::declarations::Declarations;
use crate::plan::defect;
use crate::plan::operators::Operators;
use crate::statement::{ComputedColumn, Select};
use crate::value::{TIMESTAMP, type_name};
use crate::{Position, SqlError};

/// A computed column, planned over the other columns of its input.
pub(in crate::plan) struct Computed {
    /// The column as later expressions see it.
    pub(in crate::plan) field: Field,
    pub(in crate::plan) expression: Expr,
    pub(in crate::plan) position: Position,
}

/// Plans the computed columns of the input with this number.
pub(super) fn plan(
    select: &Select,
    number: usize,
    declarations: &Declarations,
    parameter_schema: &SchemaRef,
) -> Result<Vec<Computed>, SqlError> {
    let input = &declarations.inputs[number];
    let written = select.computed.get(number).map_or(&[][..], |written| written);
    let parameters = (declarations.parameters.as_slice(), parameter_schema);
    plan_over(written, &input.name, &input.schema, parameters, result_type)
}

/// Plans computed columns over those of the input or source with this name, and over parameters. `type_of` maps the
/// type of an expression to the type in which its values are kept.
pub(in crate::plan) fn plan_over(
    written: &[ComputedColumn],
    name: &str,
    schema: &Schema,
    (parameters, parameter_schema): (&[Parameter], &SchemaRef),
    type_of: fn(&DataType) -> Option<DataType>,
) -> Result<Vec<Computed>, SqlError> {
    if written.is_empty() {
        return Ok(Vec::new());
    }
    let fields = schema.fields().iter().map(|field| field.as_ref().clone());
    let planner = ExpressionPlanner::new(fields.chain(parameter_fields(parameter_schema)).collect())?;
    let scope = Scope {
        input: name,
        alias: None,
        columns: schema.fields().iter().map(|field| field.name().as_str()).collect(),
        parameters,
        windowed: false,
        tables: &[],
        in_table: false,
    };
    let planned = written.iter().map(|column| {
        let mut expression = column.expression.clone();
        let position = start(&expression).or(column.name.position);
        scope.check(&mut expression, Place::Computed, position)?;
        let (planned, found) = planner.plan_coerced(&expression, position)?;
        let Some(data_type) = type_of(&found) else {
            return Err(SqlError::new(position, format!("a column cannot be {}", type_name(&found))));
        };
        if column.event_time && data_type != TIMESTAMP {
            let message =
                format!("the event time '{}' must be a TIMESTAMP, not {}", column.name, type_name(&data_type));
            return Err(SqlError::new(position, message)
                .hint("make one of it: to_timestamp(seconds), to_timestamp_millis(milliseconds)"));
        }
        let field = planner.field_of(&planned, &column.name.text, &data_type);
        Ok(Computed { field, expression: cast_to(planned, &found, &data_type), position })
    });
    planned.collect()
}

/// Returns the inputs with their computed columns behind the declared ones, as all later steps see them.
pub(super) fn extended(inputs: &[Input], computed: &[Vec<Computed>]) -> Vec<Input> {
    let extend = |(input, computed): (&Input, &Vec<Computed>)| {
        let declared = input.schema.fields().iter().map(|field| field.as_ref().clone());
        let fields: Vec<Field> = declared.chain(computed.iter().map(|one| one.field.clone())).collect();
        let event_time = input.computed_event_time.map(|place| input.schema.fields().len() + place);
        Input { schema: Arc::new(Schema::new(fields)), event_time: input.event_time.or(event_time), ..input.clone() }
    };
    inputs.iter().zip(computed).map(extend).collect()
}

/// Adds the operator that computes the columns, if there are any; returns its output columns.
pub(super) fn operators(
    input: &Input,
    computed: &[Computed],
    position: Position,
    parameter_schema: &SchemaRef,
    operators: &mut Operators,
) -> Result<SchemaRef, SqlError> {
    let rows = &input.schema;
    if computed.is_empty() {
        return Ok(rows.clone());
    }
    let compiler = Compiler::new(rows, parameter_schema, computed.iter().map(|one| &one.expression))?;
    let plain = rows.fields().iter().map(|field| {
        let column = Expr::Column(Column::new_unqualified(field.name()));
        Ok(NamedExpression::new(field.name(), compiler.compile(column, position)?))
    });
    let computed_columns = computed
        .iter()
        .map(|one| Ok(NamedExpression::new(one.field.name(), compiler.compile(one.expression.clone(), one.position)?)));
    let columns = plain.chain(computed_columns).collect::<Result<_, SqlError>>()?;
    let project =
        Project::new(rows, parameter_schema, compiler.parameters, columns).map_err(|error| defect(error, position))?;
    let output = project.output_schema().clone();
    let written = input.computed.iter().map(|(name, expression)| format!("{expression} AS {name}"));
    operators.push(project, written.collect());
    Ok(output)
}
