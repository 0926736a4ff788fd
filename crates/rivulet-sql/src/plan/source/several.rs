//! Several inputs whose rows come together: their columns side by side, and expressions over them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, ScalarValue};
use datafusion_expr::expr::Case;
use datafusion_expr::{Expr, lit};
use rivulet_operators::{INPUT_COLUMN, NamedExpression, Project};

use super::super::check::{ARRIVAL_TIME, ScopeTable, full_name};
use super::super::declarations::Declarations;
use super::super::defect;
use super::super::expression::Compiler;
use super::super::operators::Operators;
use super::super::window::EventTime;
use super::computed::Computed;
use crate::application::Input;
use crate::statement::{Name, Select};
use crate::{Position, SqlError, suggest};

/// What is needed to plan how the rows of several inputs come together.
pub(super) struct SourcePlanner<'a, 'p> {
    pub(super) select: &'a Select,
    pub(super) declarations: &'a Declarations,
    pub(super) parameter_schema: &'p SchemaRef,
    /// The inputs, with their computed columns.
    pub(super) inputs: Vec<Input>,
    pub(super) computed: Vec<Vec<Computed>>,
}

/// The inputs of rows that are combined or joined.
pub(super) struct Several {
    /// The inputs, with their computed columns.
    pub(super) inputs: Vec<Input>,
    /// The name of each of them in the SELECT.
    pub(super) names: Vec<String>,
    /// The computed columns of each input.
    pub(super) computed: Vec<Vec<Computed>>,
}

/// Rows of several inputs, as the SELECT sees them.
pub(super) struct Combined<'a> {
    pub(super) name: &'a str,
    pub(super) fields: Vec<Field>,
    /// For a join: the tables that the SELECT can name.
    pub(super) tables: Vec<ScopeTable>,
    pub(super) event_time: EventTime,
    pub(super) lateness_us: i64,
    pub(super) idle_timeout_us: i64,
    pub(super) several: Several,
}

impl Several {
    /// Adds the operator that computes the columns of each input for its rows, if there are any; returns its output
    /// columns. `rows` are the columns of all `declared` inputs side by side.
    pub(super) fn operators(
        &self,
        declared: &[Input],
        rows: &SchemaRef,
        position: Position,
        parameter_schema: &SchemaRef,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        if self.computed.iter().all(Vec::is_empty) {
            return Ok(rows.clone());
        }
        let mut columns = Vec::new();
        let mut add = |field: Field, expression: Expr, place: Position| columns.push((field, expression, place));
        let given = |name: &str| Expr::Column(Column::new_unqualified(name));
        add(Field::new(INPUT_COLUMN, DataType::UInt8, false), given(INPUT_COLUMN), position);
        for (number, (input, computed)) in declared.iter().zip(&self.computed).enumerate() {
            let name = &self.names[number];
            for field in input.schema.fields() {
                let full = full_name(name, field.name());
                add(field.as_ref().clone().with_name(&full), given(&full), position);
            }
            for one in computed {
                let expression = by_input([(number, renamed(one.expression.clone(), name, one.position)?)]);
                add(one.field.clone().with_name(full_name(name, one.field.name())), expression, one.position);
            }
        }
        let compiler = Compiler::new(rows, parameter_schema, columns.iter().map(|(_, expression, _)| expression))?;
        let named = columns.iter().map(|(field, expression, position)| {
            Ok(NamedExpression::new(field.name(), compiler.compile(expression.clone(), *position)?))
        });
        let project =
            Project::new(rows, parameter_schema, compiler.parameters.clone(), named.collect::<Result<_, SqlError>>()?)
                .map_err(|error| defect(error, position))?
                .marked_like(columns.iter().map(|(field, ..)| field));
        let output = project.output_schema().clone();
        let written = declared.iter().zip(&self.names).flat_map(|(input, name)| {
            input.computed.iter().map(move |(column, expression)| format!("{expression} AS {name}.{column}"))
        });
        operators.push(project, written.collect());
        Ok(output)
    }
}

/// Returns the index of the input that a name in FROM means.
pub(super) fn find(name: &Name, inputs: &[Input]) -> Result<usize, SqlError> {
    inputs.iter().position(|input| input.name == name.text).ok_or_else(|| {
        let names = || inputs.iter().map(|input| input.name.as_str());
        let near = suggest::nearest(&name.text, names()).or(names().next());
        SqlError::new(name.position, format!("unknown input '{name}'")).did_you_mean(near)
    })
}

/// Fails if a declared input is not read, because nothing that is written is ignored.
pub(super) fn refuse_unread(inputs: &[Input], read: &[usize], declarations: &Declarations) -> Result<(), SqlError> {
    match (0..inputs.len()).find(|input| !read.contains(input)) {
        Some(unread) => Err(SqlError::new(
            declarations.input_positions[unread],
            format!("the input '{}' is not read", inputs[unread].name),
        )
        .hint("leave it out, or join it, or put it together with the others by UNION ALL")),
        None => Ok(()),
    }
}

/// The columns of decoded rows of several inputs, each with the name of its input in `names`.
pub(super) fn side_by_side(inputs: &[Input], names: &[String]) -> SchemaRef {
    let mut fields = vec![Field::new(INPUT_COLUMN, DataType::UInt8, false)];
    for (input, name) in inputs.iter().zip(names) {
        let columns = input.schema.fields().iter();
        fields.extend(
            columns.map(|field| field.as_ref().clone().with_name(full_name(name, field.name())).with_nullable(true)),
        );
    }
    Arc::new(Schema::new(fields))
}

/// An expression that has, for rows of each input, the value of that input's expression. The other expressions are not
/// evaluated.
pub(super) fn by_input(expressions: impl IntoIterator<Item = (usize, Expr)>) -> Expr {
    let input = || Expr::Column(Column::new_unqualified(INPUT_COLUMN));
    let is = |number: usize| input().eq(lit(ScalarValue::UInt8(Some(number as u8))));
    let cases = expressions.into_iter().map(|(number, expression)| (Box::new(is(number)), Box::new(expression)));
    Expr::Case(Case::new(None, cases.collect(), None))
}

/// Converts an expression over the columns of the input `name` to one over those of all inputs side by side.
pub(super) fn renamed(expression: Expr, name: &str, position: Position) -> Result<Expr, SqlError> {
    let rename = |node: Expr| match &node {
        Expr::Column(column) if column.name != ARRIVAL_TIME && !column.name.starts_with('$') => {
            let full = full_name(name, &column.name);
            Ok(Transformed::yes(Expr::Column(Column::new_unqualified(full))))
        }
        _ => Ok(Transformed::no(node)),
    };
    expression
        .transform_up(rename)
        .map(|renamed| renamed.data)
        .map_err(|error| SqlError::new(position, error.strip_backtrace()))
}

pub(super) fn uses_arrival(expression: &Expr) -> bool {
    expression.column_refs().iter().any(|column| column.name == ARRIVAL_TIME)
}
