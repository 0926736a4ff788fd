//! The operators of a SELECT, from its first to its last clause: lookups, filter (WHERE), window aggregate; history
//! functions, filter (QUALIFY), project, change only.

use arrow::datatypes::SchemaRef;
use datafusion_common::Column;
use datafusion_expr::Expr;
use rivulet_operators::{AggregateSpec, ChangeOnly, NamedExpression, Project, WindowAggregate, WindowAggregateSpec};

use super::aggregate::{Aggregate, unique};
use super::defect;
use super::expression::Compiler;
use super::history::Histories;
use super::items::Item;
use super::lookup::PlannedLookup;
use super::matching::match_of;
use super::operators::Operators;
use super::planner::SelectPlanner;
use super::types::{cast_to, result_type};
use super::window::Window;
use super::window_results::{Computed, Key};
use super::written::Results;
use crate::value::{format_waits, type_name};
use crate::{Position, SqlError};

/// The results of a SELECT.
pub(super) struct Output {
    pub(super) columns: SchemaRef,
    /// The name and expression of each column, over the columns before the last projection.
    pub(super) expressions: Vec<(String, Expr)>,
    /// The text of each column.
    pub(super) texts: Vec<String>,
}

impl SelectPlanner<'_> {
    pub(super) fn describe_window(&self, window: &Window, keys: Vec<String>, aggregates: Vec<String>) -> Vec<String> {
        let mut step = vec![window.text.clone()];
        if !keys.is_empty() {
            step.push(format!("by {}", list(keys.iter())));
        }
        step.extend(aggregates);
        let source = self.source;
        if let Some(results) = &source.results {
            step.push(format!("over {}", results.text));
        }
        step
    }

    /// How long a window waits for rows. That is no part of what its state means: the next version may wait otherwise.
    pub(super) fn describe_waits(&self, window: &Window) -> Option<String> {
        let source = self.source;
        let is_over_windows = source.results.as_ref().is_some_and(|results| results.of_windows);
        let has_clock = window.is_time() && !source.by_arrival && !is_over_windows;
        has_clock.then(|| format_waits(source.lateness_us, source.idle_timeout_us))
    }

    /// Returns the operators for the source, lookups and WHERE, and their output columns. `used` are all expressions
    /// over single rows.
    pub(super) fn first_operators<'e>(
        &'e self,
        given: Option<(Operators, SchemaRef)>,
        used: impl IntoIterator<Item = &'e Expr>,
        condition: Option<Expr>,
    ) -> Result<(Operators, SchemaRef), SqlError> {
        let of_lookups = self.lookups.iter().flat_map(PlannedLookup::expressions);
        let of_unnest = self.unnest.iter().map(|unnest| unnest.array());
        let used_behind: Vec<&Expr> = used.into_iter().collect();
        let used: Vec<&Expr> = used_behind.iter().copied().chain(of_lookups).chain(of_unnest).collect();
        let (mut operators, mut columns) = match given {
            Some(given) => given,
            None => {
                let (mut operators, columns) = self.source.operators(self.parameter_schema, &used)?;
                operators.matching = condition
                    .as_ref()
                    .zip(self.source.only_input())
                    .and_then(|(condition, input)| match_of(condition, &input.schema, self.parameter_schema));
                (operators, columns)
            }
        };
        // A condition that needs no table filters the rows before they are looked up.
        let is_looked_up = |name: &str| {
            self.lookups.iter().any(|lookup| lookup.gives(name)) || self.unnest.is_some_and(|unnest| unnest.gives(name))
        };
        let comes_last =
            condition.as_ref().is_some_and(|one| one.column_refs().iter().any(|column| is_looked_up(&column.name)));
        if !comes_last {
            self.push_filter(&mut operators, &columns, condition.as_ref())?;
        }
        for lookup in self.lookups {
            let is_used =
                |name: &str| used.iter().any(|one| one.column_refs().iter().any(|column| column.name == name));
            let operator = lookup.operator(&columns, self.parameter_schema, is_used)?;
            columns = operator.output_schema().clone();
            operators.push(operator, lookup.step.clone());
        }
        if let Some(unnest) = self.unnest {
            // Columns that are not used behind it are left out: otherwise each of its rows would carry them.
            let is_used = |name: &str| {
                let mut behind = used_behind.iter().filter(|one| comes_last || Some(**one) != condition.as_ref());
                behind.any(|one| one.column_refs().iter().any(|column| column.name == name))
            };
            let operator = unnest.operator(&columns, self.parameter_schema, is_used)?;
            columns = operator.output_schema().clone();
            operators.push(operator, unnest.step.clone());
        }
        if comes_last {
            self.push_filter(&mut operators, &columns, condition.as_ref())?;
        }
        Ok((operators, columns))
    }

    /// Adds the filter of WHERE, if there is one.
    pub(super) fn push_filter(
        &self,
        operators: &mut Operators,
        columns: &SchemaRef,
        condition: Option<&Expr>,
    ) -> Result<(), SqlError> {
        if let (Some(condition), Some(text)) = (condition, &self.select.filter) {
            let filter = self.filter(columns, condition.clone(), self.select.position)?;
            operators.push(filter, vec![text.to_string()]);
        }
        Ok(())
    }

    pub(super) fn window_operator(
        &self,
        (window, conditions): (&Window, &[Computed]),
        keys: &[Key],
        aggregates: &[Aggregate],
        columns: SchemaRef,
    ) -> Result<WindowAggregate, SqlError> {
        let source = self.source;
        let expressions = keys
            .iter()
            .map(|key| &key.expression)
            .chain(conditions.iter().map(|one| &one.expression))
            .chain(aggregates.iter().flat_map(|one| one.arguments.iter().chain(&one.filter)));
        let compiler = Compiler::new(&columns, self.parameter_schema, expressions)?;
        let key_expressions = keys
            .iter()
            .map(|key| Ok(NamedExpression::new(key.name(), compiler.compile(key.expression.clone(), key.position)?)))
            .collect::<Result<_, SqlError>>()?;
        let aggregate_specs = aggregates
            .iter()
            .map(|one| {
                let compile = |expression: &Expr| compiler.compile(expression.clone(), one.position);
                Ok(AggregateSpec {
                    name: one.column.clone(),
                    function: one.function,
                    arguments: one.arguments.iter().map(compile).collect::<Result<_, _>>()?,
                    filter: one.filter.as_ref().map(compile).transpose()?,
                })
            })
            .collect::<Result<_, SqlError>>()?;
        WindowAggregate::new(WindowAggregateSpec {
            input: columns,
            parameter_schema: self.parameter_schema.clone(),
            parameters: compiler.parameters.clone(),
            window: window.spec.clone(),
            conditions: conditions
                .iter()
                .map(|one| compiler.compile(one.expression.clone(), one.position))
                .collect::<Result<_, SqlError>>()?,
            keys: key_expressions,
            aggregates: aggregate_specs,
            lateness_us: source.lateness_us,
            idle_timeout_us: source.idle_timeout_us,
            arrival_time: source.by_arrival,
            over_windows: source.results.as_ref().is_some_and(|results| results.of_windows),
            tells_clocks: self.is_windowed,
        })
        .map_err(|error| defect(error, self.select.position))
    }

    /// Adds history functions, QUALIFY, the projection and EMIT ON CHANGE. Returns the output.
    /// `key_columns` are the indices in `columns` of the keys that distinguish the rows of one window.
    pub(super) fn last_operators(
        &self,
        mut columns: SchemaRef,
        histories: &Histories,
        results: Results,
        key_columns: Vec<usize>,
        operators: &mut Operators,
    ) -> Result<Output, SqlError> {
        let history_keys = histories.keys();
        let meanings = histories.meanings(|expression| operators.meaning(expression));
        for (((history, step), keys), meaning) in
            histories.operators(&columns, self.parameter_schema)?.into_iter().zip(history_keys).zip(meanings)
        {
            columns = history.output_schema().clone();
            operators.push_keyed(history, (step, meaning), keys, None);
        }
        if let (Some(qualify), Some(text)) = (results.qualify, &self.select.qualify) {
            operators.push(self.filter(&columns, qualify.expression, qualify.position)?, vec![text.to_string()]);
        }
        if let Some(clause) = &self.select.top {
            let top = self.top(clause, results.order)?;
            columns = self.push_top(top, &columns, operators)?;
        }
        let mut columns_out: Vec<OutputColumn> = Vec::with_capacity(results.columns.len() + key_columns.len());
        let mut step = Vec::with_capacity(results.columns.len());
        for (Item { name, text, .. }, result) in results.columns {
            step.push(text);
            let Some(to) = result_type(&result.data_type) else {
                let what = type_name(&result.data_type);
                return Err(SqlError::new(
                    result.position,
                    format!("the column '{name}' is {what}, which has no form in the output"),
                )
                .hint("convert it with CAST(... AS TEXT)"));
            };
            let is_bound = self.is_made_of_bounds(&result.expression);
            let expression = cast_to(result.expression, &result.data_type, &to);
            columns_out.push(OutputColumn { name, expression, position: result.position, is_bound });
        }
        let output_columns = columns_out.len();
        let compare: Vec<usize> = (0..output_columns).filter(|&index| !columns_out[index].is_bound).collect();
        let mut keys = Vec::with_capacity(key_columns.len());
        if self.select.emit_on_change {
            for &column in &key_columns {
                let expression = Expr::Column(Column::new_unqualified(columns.field(column).name()));
                // A key that is not selected is added as a hidden column.
                let selected = columns_out.iter().position(|one| one.expression == expression);
                keys.push(selected.unwrap_or(columns_out.len()));
                if selected.is_none() {
                    let taken: Vec<String> = columns_out.iter().map(|one| one.name.clone()).collect();
                    let name = unique(columns.field(column).name().clone(), &taken);
                    columns_out.push(OutputColumn {
                        name,
                        expression,
                        position: self.select.position,
                        is_bound: false,
                    });
                }
            }
        }
        let selected = columns_out[..output_columns].iter();
        let expressions = selected.map(|one| (one.name.clone(), one.expression.clone())).collect();
        let compiler = Compiler::new(&columns, self.parameter_schema, columns_out.iter().map(|one| &one.expression))?;
        let named = columns_out
            .into_iter()
            .map(|one| Ok(NamedExpression::new(one.name, compiler.compile(one.expression, one.position)?)))
            .collect::<Result<_, SqlError>>()?;
        let project = Project::new(&columns, self.parameter_schema, compiler.parameters, named)
            .map_err(|error| defect(error, self.select.position))?;
        let mut output = project.output_schema().clone();
        operators.push(project, step.clone());
        if self.select.emit_on_change {
            let compares = list(compare.iter().map(|&column| output.field(column).name()));
            let mut compared = vec![format!("compares {compares}")];
            if !keys.is_empty() {
                compared.push(format!("by {}", list(key_columns.iter().map(|&column| columns.field(column).name()))));
            }
            let change_only = ChangeOnly::new(output, keys, compare, output_columns)
                .map_err(|error| defect(error, self.select.position))?;
            output = change_only.output_schema().clone();
            let keys = key_columns.iter().map(|&column| columns.field(column).name());
            let keys = keys.map(|name| Expr::Column(Column::new_unqualified(name))).collect();
            operators.push_keyed(change_only, (compared.clone(), compared), keys, None);
        }
        Ok(Output { columns: output, expressions, texts: step })
    }
}

/// Names separated by commas.
fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// A column of the last projection.
struct OutputColumn {
    name: String,
    expression: Expr,
    position: Position,
    /// Whether it only tells the time of the window, so that EMIT ON CHANGE does not compare it.
    is_bound: bool,
}
