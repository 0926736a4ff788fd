//! The SELECT of an application as a straight line of operators: assign time, look up in tables, filter (WHERE); with a
//! window: window aggregate, filter (HAVING); history functions, filter (QUALIFY); project; change only.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Column;
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast;
use rivulet_dataflow::{Dataflow, OperatorFactory};
use rivulet_operators::{
    AggregateSpec, AssignTime, ChangeOnly, Filter, NamedExpression, Project, WindowAggregate, WindowAggregateSpec,
};

use super::aggregate::{Aggregate, Aggregates, check_condition, condition_of, unique};
use super::check::{Place, Scope, start};
use super::declarations::Declarations;
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, cast_to, parameter_fields, result_type};
use super::history::{Histories, PlanExpression};
use super::items::{Item, aliased, item_expression, items};
use super::lookup::{Lookups, PlannedLookup};
use super::walk::for_each_child;
use super::window::{LengthCheck, Window, WindowPlanner, window_call};
use super::window_results::{Computed, Key, WindowResults};
use crate::application::{TableUse, Tables};
use crate::parse::name_of;
use crate::statement::Select;
use crate::value::{format_us, type_name};
use crate::{Position, SqlError};

/// The implicit column of every input.
pub(super) const ARRIVAL_TIME: &str = "arrival_time";
pub(super) const WINDOW_START: &str = "window_start";
pub(super) const WINDOW_END: &str = "window_end";

/// What becomes of a SELECT.
pub(super) struct Planned {
    pub(super) dataflow: Dataflow,
    pub(super) output_schema: SchemaRef,
    /// The window, for people.
    pub(super) window: Option<String>,
    pub(super) checks: Vec<LengthCheck>,
    pub(super) tables: Vec<TableUse>,
    /// What each operator does, in SQL.
    pub(super) steps: Vec<Vec<String>>,
}

/// Plans a SELECT over the declared input.
pub(super) fn plan(
    select: &Select,
    declarations: &Declarations,
    parameter_schema: &SchemaRef,
    tables: &Tables,
) -> Result<Planned, SqlError> {
    let input = &declarations.input;
    if select.from.text != input.name {
        return Err(SqlError::new(select.from.position, format!("unknown input '{}'", select.from))
            .did_you_mean(Some(&input.name)));
    }
    let keys = group_keys(select, &input.schema)?;
    let windows: Vec<&ast::Function> = keys.iter().filter_map(window_call).collect();
    let lookups = Lookups::plan(select, declarations, parameter_schema, tables)?;
    let scope = Scope {
        input: &input.name,
        alias: select.alias.as_ref().map(|alias| alias.text.as_str()),
        columns: lookups.fields.iter().map(|field| field.name().as_str()).collect(),
        parameters: &declarations.parameters,
        windowed: !windows.is_empty(),
        tables: &lookups.tables,
        in_table: false,
    };
    let event_time = input.event_time.map(|column| input.schema.field(column).name().as_str());
    let window = match windows.as_slice() {
        [] => None,
        [call] => Some(WindowPlanner { scope: &scope, parameter_schema, event_time }.plan(call)?),
        [_, second, ..] => {
            return Err(SqlError::new(
                Position::from(ast::Spanned::span(&second.name)),
                "a second window in GROUP BY is not supported yet",
            )
            .hint("an application has one window"));
        }
    };
    let keys: Vec<ast::Expr> = keys.into_iter().filter(|key| window_call(key).is_none()).collect();
    if window.is_none() {
        refuse_without_window(select, &keys, &scope)?;
    }
    let mut fields = lookups.fields.clone();
    fields.extend(parameter_fields(parameter_schema));
    let planner = SelectPlanner {
        select,
        declarations,
        parameter_schema,
        scope,
        rows: ExpressionPlanner::new(fields.clone())?,
        row_fields: fields,
        lookups: &lookups.planned,
    };
    match window {
        None => planner.plan_rows(),
        Some(window) => planner.plan_windows(window, keys),
    }
}

/// The keys of GROUP BY, with positions and aliases of the SELECT replaced by what they stand for.
fn group_keys(select: &Select, input: &Schema) -> Result<Vec<ast::Expr>, SqlError> {
    let resolve = |key: &ast::Expr| {
        match key {
            ast::Expr::Value(value) => {
                let ast::Value::Number(digits, _) = &value.value else { return Ok(key.clone()) };
                let item =
                    digits.parse::<usize>().ok().and_then(|number| select.projection.get(number.checked_sub(1)?));
                let expression = item.and_then(item_expression).map(|(expression, _)| expression.clone());
                return expression.ok_or_else(|| {
                    SqlError::new(value.span, format!("the SELECT has no column number {digits} to group by"))
                });
            }
            ast::Expr::Identifier(identifier) => {
                let name = name_of(identifier).text;
                let is_bound = select.window.is_some() && (name == WINDOW_START || name == WINDOW_END);
                if name != ARRIVAL_TIME && !is_bound && input.index_of(&name).is_err() {
                    return Ok(aliased(select, &name).unwrap_or(key).clone());
                }
            }
            _ => {}
        }
        Ok(key.clone())
    };
    let keys = select.group_by.iter().map(resolve).collect::<Result<Vec<_>, SqlError>>()?;
    match &select.window {
        Some(window) => keys_of_window_table(window, keys, select.position),
        None => Ok(keys),
    }
}

/// The keys of a SELECT with its window in FROM, whose GROUP BY names the bounds: the window stands for both.
fn keys_of_window_table(
    window: &ast::Expr,
    keys: Vec<ast::Expr>,
    fallback: Position,
) -> Result<Vec<ast::Expr>, SqlError> {
    let is_bound = |key: &ast::Expr, bound: &str| match key {
        ast::Expr::Identifier(identifier) => name_of(identifier).text == bound,
        _ => false,
    };
    for bound in [WINDOW_START, WINDOW_END] {
        if !keys.iter().any(|key| is_bound(key, bound)) {
            let place = keys.first().map_or(start(window), start).or(fallback);
            return Err(SqlError::new(place, format!("a window in FROM needs GROUP BY with '{bound}'"))
                .hint("write GROUP BY window_start, window_end, and further keys behind"));
        }
    }
    let others = keys.into_iter().filter(|key| !is_bound(key, WINDOW_START) && !is_bound(key, WINDOW_END));
    Ok(std::iter::once(window.clone()).chain(others).collect())
}

fn refuse_without_window(select: &Select, keys: &[ast::Expr], scope: &Scope<'_>) -> Result<(), SqlError> {
    let hint = "add one: GROUP BY tumble(ts, INTERVAL '1 minute'), hop, session or count_window";
    if let Some(key) = keys.first() {
        // A misspelt window is told as such.
        scope.check(&mut key.clone(), Place::GroupKey, select.position)?;
        return Err(SqlError::new(start(key).or(select.position), "GROUP BY needs a window").hint(hint));
    }
    if select.having.is_some() {
        return Err(SqlError::new(select.having_position, "HAVING needs a window").hint(hint));
    }
    Ok(())
}

/// The operators planned so far, and what each does for all queries, in SQL.
#[derive(Default)]
struct Operators {
    factories: Vec<Arc<dyn OperatorFactory>>,
    steps: Vec<Vec<String>>,
}

impl Operators {
    fn push(&mut self, factory: impl OperatorFactory + 'static, step: Vec<String>) {
        self.factories.push(Arc::new(factory));
        self.steps.push(step);
    }

    fn finish(self, output_schema: SchemaRef, window: Option<Window>, lookups: &[PlannedLookup]) -> Planned {
        let (window, checks) = match window {
            Some(window) => (Some(window.text), vec![window.check]),
            None => (None, Vec::new()),
        };
        let dataflow = Dataflow::linear(self.factories);
        let tables = lookups.iter().map(PlannedLookup::table_use).collect();
        Planned { dataflow, output_schema, window, checks, tables, steps: self.steps }
    }
}

/// What decides about results, with names checked: the columns of the SELECT, and the condition of QUALIFY.
struct Written {
    items: Vec<Item>,
    qualify: Option<ast::Expr>,
    qualify_position: Position,
}

impl Written {
    fn expressions_mut(&mut self) -> impl Iterator<Item = &mut ast::Expr> {
        self.items.iter_mut().map(|item| &mut item.expression).chain(&mut self.qualify)
    }

    /// Takes out the history functions; `taken` are the names of columns beside theirs.
    fn extract_histories(&mut self, taken: Vec<String>, plan: &PlanExpression<'_>) -> Result<Histories, SqlError> {
        let mut histories = Histories::new(taken);
        self.expressions_mut().try_for_each(|expression| histories.extract(expression, plan))?;
        if self.qualify.is_some() && histories.is_empty() {
            return Err(SqlError::new(self.qualify_position, "QUALIFY needs lag, changed or hysteresis")
                .hint("filter rows with WHERE, and what windows emit with HAVING"));
        }
        Ok(histories)
    }

    fn plan(self, plan: &PlanExpression<'_>) -> Result<Results, SqlError> {
        let columns = self.items.into_iter().map(|item| {
            let planned = plan(&item.expression, item.position)?;
            Ok((item, planned))
        });
        let columns = columns.collect::<Result<Vec<_>, SqlError>>()?;
        let qualify = self.qualify.map(|condition| {
            let planned = plan(&condition, self.qualify_position)?;
            check_condition(&planned.data_type, "QUALIFY", start(&condition).or(self.qualify_position))?;
            Ok::<_, SqlError>(planned)
        });
        Ok(Results { columns, qualify: qualify.transpose()? })
    }
}

/// The same, planned.
struct Results {
    columns: Vec<(Item, Computed)>,
    qualify: Option<Computed>,
}

struct SelectPlanner<'a> {
    select: &'a Select,
    declarations: &'a Declarations,
    parameter_schema: &'a SchemaRef,
    scope: Scope<'a>,
    /// Plans over single rows: the input's columns, the arrival, the parameters.
    rows: ExpressionPlanner,
    row_fields: Vec<Field>,
    lookups: &'a [PlannedLookup],
}

impl SelectPlanner<'_> {
    /// A SELECT without window: one row in, at most one row out.
    fn plan_rows(&self) -> Result<Planned, SqlError> {
        let condition = self.condition()?;
        let plan = |planner: &ExpressionPlanner, expression: &ast::Expr, fallback: Position| {
            let (planned, data_type) = planner.plan_coerced(expression, fallback)?;
            Ok(Computed { expression: planned, data_type, position: start(expression).or(fallback) })
        };
        let mut written = self.written()?;
        let names = self.row_fields.iter().map(|field| field.name().clone()).collect();
        let histories = written.extract_histories(names, &|one, fallback| plan(&self.rows, one, fallback))?;
        let rows = ExpressionPlanner::new(self.row_fields.iter().cloned().chain(histories.fields()).collect())?;
        let results = written.plan(&|one, fallback| plan(&rows, one, fallback))?;

        let planned = results.columns.iter().map(|(_, column)| column).chain(&results.qualify);
        let used = condition.iter().chain(histories.expressions()).chain(planned.map(|one| &one.expression));
        let (mut operators, columns) = self.first_operators(used, condition.clone())?;
        let output_schema = self.last_operators(columns, &histories, results, Vec::new(), &mut operators)?;
        Ok(operators.finish(output_schema, None, self.lookups))
    }

    /// A SELECT with a window: rows are aggregated, and one row comes out for each window and key.
    fn plan_windows(&self, window: Window, keys: Vec<ast::Expr>) -> Result<Planned, SqlError> {
        let condition = self.condition()?;
        let mut names: Vec<String> = self.row_fields.iter().map(|field| field.name().clone()).collect();
        names.extend([WINDOW_START.to_owned(), WINDOW_END.to_owned()]);

        // Aggregates become columns first, so that what is left are expressions over columns.
        let mut aggregates = Aggregates::new(&self.rows, names.clone());
        let mut written = self.written()?;
        let mut having = self.result_condition(&self.select.having, Place::Having, self.select.having_position)?;
        for expression in written.expressions_mut().chain(&mut having) {
            aggregates.extract(expression)?;
        }
        let aggregates = aggregates.found;

        let keys = self.keys(keys, &aggregates.iter().map(|one| one.column.clone()).collect::<Vec<_>>())?;
        let window_results = |histories: &[Field]| {
            let input = &self.declarations.input;
            WindowResults::new(input, &self.row_fields, self.parameter_schema, &keys, &aggregates, histories)
        };
        let results = window_results(&[])?;
        let having = having
            .map(|having| {
                let planned = results.plan(&having, self.select.having_position)?;
                check_condition(&planned.data_type, "HAVING", start(&having).or(self.select.having_position))?;
                Ok::<_, SqlError>(planned)
            })
            .transpose()?;
        names.extend(aggregates.iter().map(|one| &one.column).chain(keys.iter().map(|key| &key.name)).cloned());
        let histories = written.extract_histories(names, &|one, fallback| results.plan(one, fallback))?;
        let results = window_results(&histories.fields())?;
        let results = written.plan(&|one, fallback| results.plan(one, fallback))?;

        let used = condition
            .iter()
            .chain(keys.iter().map(|key| &key.expression))
            .chain(aggregates.iter().flat_map(|one| one.arguments.iter().chain(&one.filter)));
        let (mut operators, columns) = self.first_operators(used, condition.clone())?;
        let aggregate = self.window_operator(&window, &keys, &aggregates, columns)?;
        let columns = aggregate.output_schema().clone();
        operators.push(aggregate, self.describe_window(&window, &keys, &aggregates));
        if let (Some(having), Some(text)) = (having, &self.select.having) {
            operators.push(self.filter(&columns, having.expression, having.position)?, vec![text.to_string()]);
        }
        let key_columns = (0..keys.len()).collect();
        let output_schema = self.last_operators(columns, &histories, results, key_columns, &mut operators)?;
        Ok(operators.finish(output_schema, Some(window), self.lookups))
    }

    fn describe_window(&self, window: &Window, keys: &[Key], aggregates: &[Aggregate]) -> Vec<String> {
        let mut step = vec![window.text.clone()];
        if !keys.is_empty() {
            step.push(format!("by {}", list(keys.iter().map(|key| &key.name))));
        }
        step.extend(aggregates.iter().map(|aggregate| aggregate.column.clone()));
        let input = &self.declarations.input;
        if window.is_time() && input.event_time.is_some() {
            let (lateness, timeout) = (format_us(input.lateness_us), format_us(input.idle_timeout_us));
            step.push(format!("lateness {lateness}, idle timeout {timeout}"));
        }
        step
    }

    /// The columns of the SELECT and the condition of QUALIFY, with names checked.
    fn written(&self) -> Result<Written, SqlError> {
        let mut items = items(self.select, &self.scope, &self.selectable())?;
        for item in &mut items {
            self.scope.check(&mut item.expression, Place::Result, item.position)?;
        }
        let qualify_position = self.select.qualify_position;
        let qualify = self.result_condition(&self.select.qualify, Place::Result, qualify_position)?;
        Ok(Written { items, qualify, qualify_position })
    }

    /// The condition of HAVING or QUALIFY, with names checked.
    fn result_condition(
        &self,
        condition: &Option<ast::Expr>,
        place: Place,
        fallback: Position,
    ) -> Result<Option<ast::Expr>, SqlError> {
        let Some(mut condition) = condition.clone() else { return Ok(None) };
        self.resolve_aliases(&mut condition);
        self.scope.check(&mut condition, place, fallback)?;
        Ok(Some(condition))
    }

    /// The columns that `*` stands for.
    fn selectable(&self) -> Schema {
        let is_selectable = |field: &&Field| field.name() != ARRIVAL_TIME && !field.name().starts_with('$');
        Schema::new(self.row_fields.iter().filter(is_selectable).cloned().collect::<Vec<_>>())
    }

    /// The condition of WHERE.
    fn condition(&self) -> Result<Option<Expr>, SqlError> {
        let Some(condition) = &self.select.filter else { return Ok(None) };
        let mut condition = condition.clone();
        let fallback = self.select.position;
        self.scope.check(&mut condition, Place::Where, fallback)?;
        condition_of(&self.rows, &condition, "WHERE", fallback).map(Some)
    }

    /// In HAVING and QUALIFY, names of the SELECT may be used; columns of the input go first.
    fn resolve_aliases(&self, expression: &mut ast::Expr) {
        if let ast::Expr::Identifier(identifier) = expression {
            let name = name_of(identifier).text;
            if !self.scope.columns.contains(&name.as_str())
                && let Some(meant) = aliased(self.select, &name)
            {
                *expression = ast::Expr::Nested(Box::new(meant.clone()));
            }
            return;
        }
        for_each_child(expression, &mut |child| {
            self.resolve_aliases(child);
            std::ops::ControlFlow::Continue(())
        });
    }

    fn keys(&self, keys: Vec<ast::Expr>, taken: &[String]) -> Result<Vec<Key>, SqlError> {
        let mut planned: Vec<Key> = Vec::with_capacity(keys.len());
        let mut taken = taken.to_vec();
        taken.extend([WINDOW_START.to_owned(), WINDOW_END.to_owned()]);
        taken.extend(parameter_fields(self.parameter_schema).map(|field| field.name().clone()));
        for mut key in keys {
            let position = start(&key).or(self.select.position);
            let text = key.to_string().replace('"', "");
            self.scope.check(&mut key, Place::GroupKey, position)?;
            let (meaning, _) = self.rows.plan(&key, position)?;
            if planned.iter().any(|other| other.meaning == meaning) {
                continue;
            }
            let (expression, data_type) = self.rows.plan_coerced(&key, position)?;
            // Dates stay dates, so that expressions over the key find what was written.
            let kept = match &data_type {
                DataType::Date32 => Some(DataType::Date32),
                other => result_type(other),
            };
            let Some(kept) = kept else {
                return Err(SqlError::new(position, format!("{} cannot be a key of GROUP BY", type_name(&data_type))));
            };
            let name = unique(text, &taken);
            taken.push(name.clone());
            planned.push(Key {
                name,
                meaning,
                expression: cast_to(expression, &data_type, &kept),
                data_type: kept,
                position,
            });
        }
        Ok(planned)
    }

    /// Assign time, lookups and WHERE; also the columns that come out. `used` are all expressions over single rows.
    fn first_operators<'e>(
        &'e self,
        used: impl IntoIterator<Item = &'e Expr>,
        condition: Option<Expr>,
    ) -> Result<(Operators, SchemaRef), SqlError> {
        let input = &self.declarations.input;
        let uses_arrival =
            |expression: &Expr| expression.column_refs().iter().any(|column| column.name == ARRIVAL_TIME);
        let of_lookups = self.lookups.iter().flat_map(PlannedLookup::expressions);
        let used: Vec<&Expr> = used.into_iter().chain(of_lookups).collect();
        let assign_time = AssignTime {
            event_time_column: input.event_time,
            future_limit_us: input.future_limit_us,
            append_arrival_column: used.iter().copied().any(uses_arrival),
        };
        let mut columns =
            assign_time.output_schema(&input.schema).map_err(|error| defect(error, self.select.from.position))?;
        let mut operators = Operators::default();
        let mut step = match input.event_time {
            Some(column) => vec![
                format!("event time: {}", input.schema.field(column).name()),
                format!("future limit {}", format_us(input.future_limit_us)),
            ],
            None => vec![format!("event time: {ARRIVAL_TIME}")],
        };
        if assign_time.append_arrival_column {
            step.push(format!("adds {ARRIVAL_TIME}"));
        }
        operators.push(assign_time, step);
        // What needs no table is sorted out before the tables are asked.
        let is_looked_up = |name: &str| self.lookups.iter().any(|lookup| lookup.gives(name));
        let comes_last =
            condition.as_ref().is_some_and(|one| one.column_refs().iter().any(|column| is_looked_up(&column.name)));
        let filter = |operators: &mut Operators, columns: &SchemaRef| {
            if let (Some(condition), Some(text)) = (&condition, &self.select.filter) {
                let filter = self.filter(columns, condition.clone(), self.select.position)?;
                operators.push(filter, vec![text.to_string()]);
            }
            Ok::<_, SqlError>(())
        };
        if !comes_last {
            filter(&mut operators, &columns)?;
        }
        for lookup in self.lookups {
            let is_used =
                |name: &str| used.iter().any(|one| one.column_refs().iter().any(|column| column.name == name));
            let operator = lookup.operator(&columns, self.parameter_schema, is_used)?;
            columns = operator.output_schema().clone();
            operators.push(operator, lookup.step.clone());
        }
        if comes_last {
            filter(&mut operators, &columns)?;
        }
        Ok((operators, columns))
    }

    fn filter(&self, columns: &SchemaRef, condition: Expr, position: Position) -> Result<Filter, SqlError> {
        let compiler = Compiler::new(columns, self.parameter_schema, [&condition])?;
        let condition = compiler.compile(condition, position)?;
        Filter::new(columns, self.parameter_schema, compiler.parameters, condition)
            .map_err(|error| defect(error, position))
    }

    fn window_operator(
        &self,
        window: &Window,
        keys: &[Key],
        aggregates: &[Aggregate],
        columns: SchemaRef,
    ) -> Result<WindowAggregate, SqlError> {
        let input = &self.declarations.input;
        let expressions = keys
            .iter()
            .map(|key| &key.expression)
            .chain(aggregates.iter().flat_map(|one| one.arguments.iter().chain(&one.filter)));
        let compiler = Compiler::new(&columns, self.parameter_schema, expressions)?;
        let key_expressions = keys
            .iter()
            .map(|key| Ok(NamedExpression::new(&key.name, compiler.compile(key.expression.clone(), key.position)?)))
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
            keys: key_expressions,
            aggregates: aggregate_specs,
            lateness_us: input.lateness_us,
            idle_timeout_us: input.idle_timeout_us,
            arrival_time: input.event_time.is_none(),
        })
        .map_err(|error| defect(error, self.select.position))
    }

    /// History functions, QUALIFY, the projection, EMIT ON CHANGE; gives the schema of the output. `key_columns` are
    /// those of `columns` that tell the rows of one window apart.
    fn last_operators(
        &self,
        mut columns: SchemaRef,
        histories: &Histories,
        results: Results,
        key_columns: Vec<usize>,
        operators: &mut Operators,
    ) -> Result<SchemaRef, SqlError> {
        for (history, step) in histories.operators(&columns, self.parameter_schema)? {
            columns = history.output_schema().clone();
            operators.push(history, step);
        }
        if let (Some(qualify), Some(text)) = (results.qualify, &self.select.qualify) {
            operators.push(self.filter(&columns, qualify.expression, qualify.position)?, vec![text.to_string()]);
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
            let is_bound = self.scope.windowed && is_made_of_bounds(&result.expression);
            let expression = cast_to(result.expression, &result.data_type, &to);
            columns_out.push(OutputColumn { name, expression, position: result.position, is_bound });
        }
        let output_columns = columns_out.len();
        let compare: Vec<usize> = (0..output_columns).filter(|&index| !columns_out[index].is_bound).collect();
        let mut keys = Vec::with_capacity(key_columns.len());
        if self.select.emit_on_change {
            for &column in &key_columns {
                let expression = Expr::Column(Column::new_unqualified(columns.field(column).name()));
                // A key that is not selected goes along as a hidden column.
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
        let compiler = Compiler::new(&columns, self.parameter_schema, columns_out.iter().map(|one| &one.expression))?;
        let named = columns_out
            .into_iter()
            .map(|one| Ok(NamedExpression::new(one.name, compiler.compile(one.expression, one.position)?)))
            .collect::<Result<_, SqlError>>()?;
        let project = Project::new(&columns, self.parameter_schema, compiler.parameters, named)
            .map_err(|error| defect(error, self.select.position))?;
        let mut output = project.output_schema().clone();
        operators.push(project, step);
        if self.select.emit_on_change {
            let compares = list(compare.iter().map(|&column| output.field(column).name()));
            let mut step = vec![format!("compares {compares}")];
            if !keys.is_empty() {
                step.push(format!("by {}", list(key_columns.iter().map(|&column| columns.field(column).name()))));
            }
            let change_only = ChangeOnly::new(output, keys, compare, output_columns)
                .map_err(|error| defect(error, self.select.position))?;
            output = change_only.output_schema().clone();
            operators.push(change_only, step);
        }
        Ok(output)
    }
}

/// Names with commas between.
fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// A column of the last projection.
struct OutputColumn {
    name: String,
    expression: Expr,
    position: Position,
    /// Whether it says only when the window was, so that a change of it is none.
    is_bound: bool,
}

/// Whether an expression is computed from the bounds of the window alone.
fn is_made_of_bounds(expression: &Expr) -> bool {
    let columns = expression.column_refs();
    let is_bound = |column: &&Column| column.name == WINDOW_START || column.name == WINDOW_END;
    columns.iter().any(is_bound) && columns.iter().all(|column| is_bound(column) || column.name.starts_with('$'))
}
