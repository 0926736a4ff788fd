//! `FROM (SELECT ... FROM a UNION ALL SELECT ... FROM b)`: the SELECT over its input turns each row into one of the
//! union.

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_common::Column;
use datafusion_expr::{Expr, lit};
use rivulet_operators::{Filter, NamedExpression, Project};

use super::super::aggregate::condition_of;
use super::super::check::{ARRIVAL_TIME, Place, Scope};
use super::super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::super::items::{Item, items};
use super::super::types::{cast_to, common_field, result_type};
use super::super::window::EventTime;
use super::super::{defect, operators::Operators};
use super::several::{Combined, Several, SourcePlanner, by_input, find, refuse_unread, renamed, uses_arrival};
use crate::statement::UnionBranch;
use crate::value::{TIMESTAMP, type_name};
use crate::{Position, SqlError};

/// A planned UNION ALL, over the columns of all inputs side by side.
pub(super) struct Union {
    /// The condition for rows to pass; `None` if every row passes.
    condition: Option<Expr>,
    columns: Vec<UnionColumn>,
    /// The text of each branch's SELECT.
    step: Vec<String>,
}

struct UnionColumn {
    field: Field,
    expression: Expr,
    position: Position,
}

/// A SELECT of the union, over the columns of its input.
struct Branch {
    input: usize,
    condition: Option<Expr>,
    columns: Vec<BranchColumn>,
    text: String,
}

struct BranchColumn {
    expression: Expr,
    field: Field,
    position: Position,
    is_event_time: bool,
}

impl<'a> SourcePlanner<'a, '_> {
    pub(super) fn union(self) -> Result<(Combined<'a>, Union), SqlError> {
        let inputs = &self.inputs;
        let mut branches: Vec<Branch> = Vec::new();
        for branch in &self.select.union {
            let input = find(&branch.from, inputs)?;
            if branches.iter().any(|other| other.input == input) {
                return Err(SqlError::new(
                    branch.from.position,
                    format!("'{}' in two SELECTs of a UNION ALL is not supported yet", branch.from),
                )
                .hint("read the input in one SELECT: join the conditions by OR, and choose values with CASE"));
            }
            branches.push(self.branch(branch, input)?);
        }
        let read: Vec<usize> = branches.iter().map(|branch| branch.input).collect();
        refuse_unread(inputs, &read, self.declarations)?;

        let first = &branches[0];
        for (branch, written) in branches.iter().zip(&self.select.union) {
            if branch.columns.len() != first.columns.len() {
                return Err(SqlError::new(
                    written.position,
                    format!(
                        "the SELECTs of a UNION ALL have {} and {} columns",
                        first.columns.len(),
                        branch.columns.len()
                    ),
                )
                .hint("the columns go together by their places: give each SELECT the same number"));
            }
        }
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for (place, BranchColumn { position, .. }) in first.columns.iter().enumerate() {
            let field = common_of(branches.iter().map(|branch| &branch.columns[place]))?;
            let expressions = branches.iter().map(|branch| {
                let BranchColumn { expression, field: found, .. } = &branch.columns[place];
                (branch.input, cast_to(expression.clone(), found.data_type(), field.data_type()))
            });
            columns.push(UnionColumn { field: field.clone(), expression: by_input(expressions), position: *position });
            fields.push(field);
        }
        let is_event_time = |place: &usize| branches.iter().all(|branch| branch.columns[*place].is_event_time);
        let event_time = match (0..fields.len()).find(is_event_time) {
            Some(place) if *fields[place].data_type() == TIMESTAMP => EventTime::Column(fields[place].name().clone()),
            _ if inputs.iter().all(|input| input.event_time.is_none()) => EventTime::Arrival,
            _ => EventTime::Missing(
                "the rows of this UNION ALL have no event time",
                "select the event time of each input, as it is, in the same place",
            ),
        };
        let condition = branches.iter().any(|branch| branch.condition.is_some()).then(|| {
            let condition = |branch: &Branch| branch.condition.clone().unwrap_or_else(|| lit(true));
            by_input(branches.iter().map(|branch| (branch.input, condition(branch))))
        });
        let (lateness_us, idle_timeout_us) = (
            inputs.iter().map(|input| input.lateness_us).max().unwrap_or(0),
            inputs.iter().map(|input| input.idle_timeout_us).max().unwrap_or(0),
        );
        let names = inputs.iter().map(|input| input.name.clone()).collect();
        let several = Several { inputs: self.inputs, names, computed: self.computed };
        let (name, tables) = (&self.select.from.text, Vec::new());
        let union = Union { condition, columns, step: branches.into_iter().map(|one| one.text).collect() };
        Ok((Combined { name, fields, tables, event_time, lateness_us, idle_timeout_us, several }, union))
    }

    fn branch(&self, branch: &UnionBranch, index: usize) -> Result<Branch, SqlError> {
        let input = &self.inputs[index];
        let mut fields: Vec<Field> = input.schema.fields().iter().map(|field| field.as_ref().clone()).collect();
        let declared = Schema::new(fields.clone());
        fields.push(Field::new(ARRIVAL_TIME, TIMESTAMP, false));
        let scope = Scope {
            input: &input.name,
            alias: branch.alias.as_ref().map(|alias| alias.text.as_str()),
            columns: fields.iter().map(|field| field.name().as_str()).collect(),
            parameters: &self.declarations.parameters,
            windowed: false,
            tables: &[],
            in_table: false,
        };
        let planned = fields.iter().cloned().chain(parameter_fields(self.parameter_schema));
        let planner = ExpressionPlanner::new(planned.collect())?;
        let condition = match &branch.filter {
            None => None,
            Some(condition) => {
                let mut condition = condition.clone();
                scope.check(&mut condition, Place::Where, branch.position)?;
                Some(renamed(
                    condition_of(&planner, &condition, "WHERE", branch.position)?,
                    &input.name,
                    branch.position,
                )?)
            }
        };
        let event_time = input.event_time.map_or(ARRIVAL_TIME, |column| input.schema.field(column).name());
        let mut columns = Vec::new();
        let mut texts = Vec::new();
        for Item { name, mut expression, text, position } in
            items(&branch.projection, branch.position, &scope, &declared)?
        {
            scope.check(&mut expression, Place::UnionColumn, position)?;
            let (planned, found) = planner.plan_coerced(&expression, position)?;
            let Some(data_type) = result_type(&found) else {
                return Err(SqlError::new(position, format!("the column '{name}' cannot be {}", type_name(&found)))
                    .hint("convert it with CAST(... AS TEXT)"));
            };
            let is_event_time = matches!(&planned, Expr::Column(column) if column.name == event_time);
            let field = planner.field_of(&planned, &name, &data_type);
            let expression = renamed(cast_to(planned, &found, &data_type), &input.name, position)?;
            columns.push(BranchColumn { expression, field, position, is_event_time });
            texts.push(text);
        }
        let filter = branch.filter.as_ref().map_or_else(String::new, |filter| format!(" WHERE {filter}"));
        let text = format!("{} FROM {}{filter}", texts.join(", "), input.name);
        Ok(Branch { input: index, condition, columns, text })
    }
}

impl Union {
    pub(super) fn uses_arrival(&self) -> bool {
        self.columns.iter().map(|column| &column.expression).chain(&self.condition).any(uses_arrival)
    }

    /// Adds the operators over rows with `columns`; returns their output columns.
    pub(super) fn operators(
        &self,
        columns: &SchemaRef,
        parameter_schema: &SchemaRef,
        keeps_arrival: bool,
        position: Position,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        if let Some(condition) = &self.condition {
            let compiler = Compiler::new(columns, parameter_schema, [condition])?;
            let compiled = compiler.compile(condition.clone(), position)?;
            let filter = Filter::new(columns, parameter_schema, compiler.parameters, compiled)
                .map_err(|error| defect(error, position))?;
            operators.push(filter, vec!["the conditions of the union".to_owned()]);
        }
        let compiler = Compiler::new(columns, parameter_schema, self.columns.iter().map(|column| &column.expression))?;
        let named = self.columns.iter().map(|column| {
            let compiled = compiler.compile(column.expression.clone(), column.position)?;
            Ok(NamedExpression::new(column.field.name(), compiled))
        });
        let mut named = named.collect::<Result<Vec<_>, SqlError>>()?;
        if keeps_arrival {
            let arrival = Expr::Column(Column::new_unqualified(ARRIVAL_TIME));
            named.push(NamedExpression::new(ARRIVAL_TIME, compiler.compile(arrival, position)?));
        }
        let arrival = Field::new(ARRIVAL_TIME, TIMESTAMP, false);
        let project = Project::new(columns, parameter_schema, compiler.parameters, named)
            .map_err(|error| defect(error, position))?
            .marked_like(self.columns.iter().map(|column| &column.field).chain([&arrival]));
        let output = project.output_schema().clone();
        operators.push(project, self.step.clone());
        Ok(output)
    }
}

/// A column of the union. It is JSON or an array if it is that in each SELECT.
fn common_of<'c>(mut columns: impl Iterator<Item = &'c BranchColumn>) -> Result<Field, SqlError> {
    let first = columns.next().expect("a union has branches").field.clone();
    columns.try_fold(first, |common, BranchColumn { field, position, .. }| {
        common_field(common.clone(), field).ok_or_else(|| {
            let (name, one, other) = (common.name(), type_name(common.data_type()), type_name(field.data_type()));
            SqlError::new(
                *position,
                format!("the column '{name}' of the UNION ALL is {one} in one SELECT and {other} in another"),
            )
            .hint("convert one of them with CAST")
        })
    })
}
