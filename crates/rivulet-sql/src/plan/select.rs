//! The SELECT of an application: its clauses planned one after the other, with and without a window. A SELECT that
//! reads another one is planned behind it, in the same line of operators.

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Column;
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast;

use super::aggregate::{Aggregates, check_condition, condition_of, unique};
use super::check::{ARRIVAL_TIME, Place, Scope, WINDOW_END, WINDOW_START};
use super::declarations::Declarations;
use super::expression::{ExpressionPlanner, parameter_fields};
use super::group_keys::{group_keys, refuse_without_window};
use super::history::RowOrder;
use super::items::{aliased, item_expression, items};
use super::lookup::Lookups;
use super::operators::{Operators, Planned};
use super::pattern::PatternPlanner;
use super::planner::SelectPlanner;
use super::results::{Behind, is_column};
use super::source::Source;
use super::types::{cast_to, result_type};
use super::unnest::PlannedUnnest;
use super::walk::{for_each_child, inspect, start};
use super::window::{EventTime, Window, WindowPlanner, window_call};
use super::window_results::{Computed, Key, WindowResults};
use super::written::Written;
use crate::application::Tables;
use crate::parse::name_of;
use crate::statement::{MatchClause, Select};
use crate::value::type_name;
use crate::{Position, SqlError};

/// Operators with their output columns. Those of a SELECT come from the SELECT that it reads, or from the inputs.
type Given = Option<(Operators, SchemaRef)>;

/// Plans a SELECT over the declared inputs, and those that it reads.
pub(super) fn plan(
    select: &Select,
    declarations: &Declarations,
    parameter_schema: &SchemaRef,
    tables: &Tables,
) -> Result<Planned, SqlError> {
    let behind = plan_one(select, declarations, parameter_schema, tables, false)?;
    behind.operators.finish(
        select,
        &behind.input,
        &behind.columns,
        behind.row_schema,
        &declarations.parameters,
        parameter_schema,
    )
}

/// Plans a SELECT. If `is_windowed`, there are windows over its results.
fn plan_one(
    select: &Select,
    declarations: &Declarations,
    parameter_schema: &SchemaRef,
    tables: &Tables,
    is_windowed: bool,
) -> Result<Behind, SqlError> {
    let (source, given) = match &select.subquery {
        None => (Source::plan(select, declarations, parameter_schema)?, None),
        Some(inner) => {
            let groups = !select.group_by.is_empty() || select.window.is_some();
            let mut behind = plan_one(inner, declarations, parameter_schema, tables, is_windowed || groups)?;
            behind.operators.begin_select();
            let source = Source::of_results(select, declarations, &behind)?;
            (source, Some((behind.operators, behind.columns)))
        }
    };
    if let Some(clause) = &select.pattern {
        return plan_matches(select, clause, &source, declarations, parameter_schema);
    }
    let keys = group_keys(select, &source)?;
    let windows: Vec<&ast::Function> = keys.iter().filter_map(window_call).collect();
    let mut lookups = Lookups::plan(&source, declarations, parameter_schema, tables)?;
    let unnest = match &select.unnest {
        None => None,
        Some(clause) => {
            let scope = plain_scope(&lookups.fields, &source, declarations, source.alias);
            let scope = Scope { tables: &lookups.tables, ..scope };
            let unnest = PlannedUnnest::plan(clause, &scope, parameter_schema, &lookups.fields)?;
            unnest.add_columns(clause, source.alias.unwrap_or(source.name), &mut lookups)?;
            Some(unnest)
        }
    };
    let scope = Scope {
        input: source.name,
        alias: source.alias,
        columns: lookups.fields.iter().map(|field| field.name().as_str()).collect(),
        parameters: &declarations.parameters,
        windowed: !windows.is_empty(),
        tables: &lookups.tables,
        in_table: false,
    };
    let window = match windows.as_slice() {
        [] => None,
        [call] => Some(WindowPlanner { scope: &scope, parameter_schema, event_time: &source.event_time }.plan(call)?),
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
        source: &source,
        parameter_schema,
        scope,
        rows: ExpressionPlanner::new(fields.clone())?,
        row_fields: fields,
        lookups: &lookups.planned,
        unnest: unnest.as_ref(),
        is_windowed,
    };
    match window {
        None => planner.plan_rows(given),
        Some(window) => planner.plan_windows(window, keys, given),
    }
}

const NO_TIME_OF_MATCHES: EventTime = EventTime::Missing(
    "matches have no event time of which windows could be made",
    "write two applications: one publishes its matches to a topic, the other makes windows of them",
);

/// Plans a SELECT over the matches of a row pattern.
fn plan_matches(
    select: &Select,
    clause: &MatchClause,
    source: &Source<'_>,
    declarations: &Declarations,
    parameter_schema: &SchemaRef,
) -> Result<Behind, SqlError> {
    let not_yet = |position: Position, what: &str| {
        Err(SqlError::new(position, format!("{what} of matches is not supported yet"))
            .hint("a SELECT over MATCH_RECOGNIZE has WHERE, QUALIFY and EMIT ON CHANGE"))
    };
    if let Some(lookup) = select.lookups.first() {
        return not_yet(lookup.table.position, "a JOIN");
    }
    if let Some(unnest) = &select.unnest {
        return not_yet(unnest.position, "UNNEST");
    }
    if let Some(window) = &select.window {
        return not_yet(start(window).or(select.position), "a window");
    }
    if let Some(key) = select.group_by.first() {
        return not_yet(start(key).or(select.position), "GROUP BY");
    }
    if select.having.is_some() {
        return not_yet(select.having_position, "HAVING");
    }
    if let Some(top) = &select.top {
        return not_yet(top.position, "ORDER BY or LIMIT");
    }
    if let Some(position) = select.distinct {
        return not_yet(position, "SELECT DISTINCT");
    }
    if select.subquery.is_some() {
        return not_yet(clause.position, "a subquery before the search").map_err(|error: SqlError| {
            error.hint(
                "a row pattern reads one input, or a UNION ALL of several: conditions stand in DEFINE, and a computed \
                 column stands in the input: kmh AS value * 3.6",
            )
        });
    }
    if source.is_joined() {
        return not_yet(clause.position, "a join before the search")
            .map_err(|error: SqlError| error.hint("a row pattern reads one input, or a UNION ALL of several"));
    }
    let lookups = Lookups::plan(source, declarations, parameter_schema, &Tables::new())?;
    let rows = plain_scope(&lookups.fields, source, declarations, None);
    let planner = PatternPlanner {
        clause,
        event_time: Some(&source.event_time),
        clock: Some((source.lateness_us, source.idle_timeout_us)),
        parameter_schema,
        scope: &rows,
        fields: &lookups.fields,
    };
    let (pattern, uses_arrival) = planner.plan()?;
    let arrival = uses_arrival.then(|| Expr::Column(Column::new_unqualified(ARRIVAL_TIME)));
    let (mut operators, _) = source.operators(parameter_schema, &arrival.iter().collect::<Vec<_>>())?;
    operators.push_pattern(pattern.find, (pattern.find_step, pattern.waits), pattern.is_partitioned);
    let columns = pattern.measure.output_schema().clone();
    operators.push(pattern.measure, pattern.measure_step);
    let matches: Vec<Field> = columns.fields().iter().map(|field| field.as_ref().clone()).collect();
    let row_fields: Vec<Field> = matches.iter().cloned().chain(parameter_fields(parameter_schema)).collect();
    let planner = SelectPlanner {
        select,
        source,
        parameter_schema,
        scope: plain_scope(&matches, source, declarations, source.alias),
        rows: ExpressionPlanner::new(row_fields.clone())?,
        row_fields,
        lookups: &[],
        unnest: None,
        is_windowed: false,
    };
    operators.checks.extend(pattern.check);
    let matches = planner.plan_rows(Some((operators, columns)))?;
    Ok(Behind { event_time: NO_TIME_OF_MATCHES, ..matches })
}

/// A scope with the names of columns, and nothing else.
fn plain_scope<'a>(
    columns: &'a [Field],
    source: &'a Source<'_>,
    declarations: &'a Declarations,
    alias: Option<&'a str>,
) -> Scope<'a> {
    Scope {
        input: source.name,
        alias,
        columns: columns.iter().map(|column| column.name().as_str()).collect(),
        parameters: &declarations.parameters,
        windowed: false,
        tables: &[],
        in_table: false,
    }
}

impl SelectPlanner<'_> {
    /// Plans a SELECT without a window: one row in, at most one row out. The rows come from the operators in `given`,
    /// or from the source.
    fn plan_rows(&self, given: Given) -> Result<Behind, SqlError> {
        let condition = self.condition()?;
        let plan = |planner: &ExpressionPlanner, expression: &ast::Expr, fallback: Position| {
            let (planned, data_type) = planner.plan_coerced(expression, fallback)?;
            Ok(Computed::new(planned, data_type, start(expression).or(fallback)).marked(planner))
        };
        let mut written = self.written()?;
        let mut names: Vec<String> = self.row_fields.iter().map(|field| field.name().clone()).collect();
        let ranks = written.extract_ranks(names.clone(), &|one, fallback| plan(&self.rows, one, fallback))?;
        self.check_ranked_results(&ranks)?;
        names.extend(ranks.fields().iter().map(|field| field.name().clone()));
        let with = |others: Vec<Field>| {
            ExpressionPlanner::new(self.row_fields.iter().cloned().chain(ranks.fields()).chain(others).collect())
        };
        let ranked = with(Vec::new())?;
        let histories = written.extract_histories(
            names,
            self.row_orders(),
            !ranks.is_empty(),
            &|one, fallback, inner| match inner {
                [] => plan(&ranked, one, fallback),
                inner => plan(&with(inner.to_vec())?, one, fallback),
            },
        )?;
        let rows = with(histories.fields())?;
        let results = written.plan(&|one, fallback| plan(&rows, one, fallback))?;

        let planned = results.columns.iter().map(|(_, column)| column).chain(&results.qualify);
        let used = condition.iter().chain(ranks.expressions()).chain(histories.expressions());
        let keys = if self.select.emit_on_change { self.keys_of_results()? } else { Vec::new() };
        let used = used.chain(planned.map(|one| &one.expression)).chain(&keys);
        let (mut operators, columns) = self.first_operators(given, used, condition.clone())?;
        let columns = self.push_ranks(&ranks, columns, &mut operators)?;
        let place = |key: &Expr| columns.fields().iter().position(|field| is_column(key, field.name()));
        let keys = keys.iter().filter_map(place).collect();
        let output = self.last_operators(columns, &histories, results, keys, &mut operators)?;
        Ok(self.behind(operators, output, None))
    }

    /// Plans a SELECT with a window: rows are aggregated, and one row comes out for each window and key.
    fn plan_windows(&self, window: Window, keys: Vec<ast::Expr>, given: Given) -> Result<Behind, SqlError> {
        let condition = self.condition()?;
        let mut names: Vec<String> = self.row_fields.iter().map(|field| field.name().clone()).collect();
        names.extend([WINDOW_START.to_owned(), WINDOW_END.to_owned()]);

        // Aggregates become columns first; the rest are expressions over columns.
        let mut aggregates = Aggregates::new(&self.rows, names.clone());
        let mut written = self.written()?;
        let mut having = self.result_condition(&self.select.having, Place::Having, self.select.having_position)?;
        for expression in written.expressions_mut().chain(&mut having) {
            aggregates.extract(expression)?;
        }
        let aggregates = aggregates.found;

        let keys = self.keys(keys, &aggregates.iter().map(|one| one.column.clone()).collect::<Vec<_>>())?;
        let window_results = |histories: &[Field]| {
            WindowResults::new(
                &self.source.event_time,
                &self.row_fields,
                self.parameter_schema,
                &keys,
                &aggregates,
                histories,
            )
        };
        let conditions = self.window_conditions(&window)?;
        let results = window_results(&[])?;
        let having = having
            .map(|having| {
                let planned = results.plan(&having, self.select.having_position)?;
                check_condition(&planned.data_type, "HAVING", start(&having).or(self.select.having_position))?;
                Ok::<_, SqlError>(planned)
            })
            .transpose()?;
        names.extend(aggregates.iter().map(|one| &one.column).chain(keys.iter().map(|key| key.name())).cloned());
        let ranks = written.extract_ranks(names.clone(), &|one, fallback| results.plan(one, fallback))?;
        self.check_ranked(&window, &ranks)?;
        names.extend(ranks.fields().iter().map(|field| field.name().clone()));
        let with = |others: &[Field]| window_results(&[ranks.fields().as_slice(), others].concat());
        let results = with(&[])?;
        let of_results = vec![RowOrder { column: WINDOW_END.to_owned(), is_event_time: true }];
        let histories =
            written.extract_histories(names, of_results, !ranks.is_empty(), &|one, fallback, inner| match inner {
                [] => results.plan(one, fallback),
                inner => with(inner)?.plan(one, fallback),
            })?;
        let results = with(&histories.fields())?;
        let results = written.plan(&|one, fallback| results.plan(one, fallback))?;

        let used = condition
            .iter()
            .chain(keys.iter().map(|key| &key.expression))
            .chain(conditions.iter().map(|condition| &condition.expression))
            .chain(aggregates.iter().flat_map(|one| one.arguments.iter().chain(&one.filter)));
        let (mut operators, columns) = self.first_operators(given, used, condition.clone())?;
        let aggregate = self.window_operator((&window, &conditions), &keys, &aggregates, columns)?;
        let columns = aggregate.output_schema().clone();
        operators.name_columns(&keys, &aggregates);
        let describe = |name: &dyn Fn(&str) -> String| {
            let aggregates = aggregates.iter().map(|one| name(&one.column)).collect();
            self.describe_window(&window, keys.iter().map(|key| name(key.name())).collect(), aggregates)
        };
        let step = [describe(&str::to_owned), Vec::from_iter(self.describe_waits(&window))].concat();
        let steps = (step, describe(&|name| operators.meaning_of_column(name)));
        operators.push_window(aggregate, steps, &keys, &window.spec);
        if let (Some(having), Some(text)) = (having, &self.select.having) {
            operators.push(self.filter(&columns, having.expression, having.position)?, vec![text.to_string()]);
        }
        let columns = self.push_ranks(&ranks, columns, &mut operators)?;
        let key_columns = (0..keys.len()).collect();
        let output = self.last_operators(columns, &histories, results, key_columns, &mut operators)?;
        Ok(self.behind(operators, output, Some((&window, &keys))))
    }

    /// The orders in which history functions can have the rows of a SELECT without a window.
    fn row_orders(&self) -> Vec<RowOrder> {
        let arrival =
            self.source.has_arrival().then(|| RowOrder { column: ARRIVAL_TIME.to_owned(), is_event_time: false });
        let event_time = match &self.source.event_time {
            EventTime::Column(column) => Some(RowOrder { column: column.clone(), is_event_time: true }),
            _ => None,
        };
        event_time.into_iter().chain(arrival).collect()
    }

    /// The conditions of a window of a state, over single rows.
    fn window_conditions(&self, window: &Window) -> Result<Vec<Computed>, SqlError> {
        let planned = window.conditions.iter().map(|condition| {
            let position = start(condition).or(self.select.position);
            let mut checked = condition.clone();
            self.scope.check(&mut checked, Place::GroupKey, position)?;
            let expression = condition_of(&self.rows, &checked, "state_window", position)?;
            Ok(Computed::new(expression, DataType::Boolean, position))
        });
        planned.collect()
    }

    /// The columns of the SELECT and the condition of QUALIFY, with names checked.
    fn written(&self) -> Result<Written, SqlError> {
        let mut items = items(&self.select.projection, self.select.position, &self.scope, &self.selectable())?;
        for item in &mut items {
            self.scope.check(&mut item.expression, Place::Result, item.position)?;
        }
        let qualify_position = self.select.qualify_position;
        let qualify = self.result_condition(&self.select.qualify, Place::Result, qualify_position)?;
        let top = self.select.top.iter().flat_map(|top| top.order_by.iter().map(|order| (top.position, &order.expr)));
        let order = top.map(|(position, one)| {
            // The column of the SELECT with this alias or number.
            let meant = match one {
                ast::Expr::Identifier(name) => aliased(self.select, &name_of(name).text),
                ast::Expr::Value(value) => match &value.value {
                    ast::Value::Number(digits, _) => {
                        let place = digits.parse::<usize>().ok().and_then(|place| place.checked_sub(1));
                        let item = place.and_then(|place| self.select.projection.get(place)).and_then(item_expression);
                        Some(item.map(|(expression, _)| expression).ok_or_else(|| {
                            SqlError::new(value.span, format!("the SELECT has no column number {digits} to order by"))
                                .hint("columns are counted from 1")
                        })?)
                    }
                    _ => None,
                },
                _ => None,
            };
            let mut expression = meant.unwrap_or(one).clone();
            self.resolve_aliases(&mut expression);
            self.scope.check(&mut expression, Place::Result, position)?;
            Ok::<_, SqlError>(expression)
        });
        let order = order.collect::<Result<_, SqlError>>()?;
        Ok(Written { items, qualify, qualify_position, order })
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
        let is_implicit = |name: &str| self.source.has_arrival() && name == ARRIVAL_TIME;
        let is_selectable = |field: &&Field| !is_implicit(field.name()) && !field.name().starts_with('$');
        Schema::new(self.row_fields.iter().filter(is_selectable).cloned().collect::<Vec<_>>())
    }

    /// The condition of WHERE.
    fn condition(&self) -> Result<Option<Expr>, SqlError> {
        let Some(condition) = &self.select.filter else { return Ok(None) };
        let mut condition = condition.clone();
        let fallback = self.select.position;
        if self.select.window.is_some() {
            // Rows of a window in FROM have its bounds already in WHERE.
            let mut checked = Ok(());
            inspect(&condition, &mut |part| match part {
                ast::Expr::Identifier(name) if checked.is_ok() => {
                    let name = name_of(name);
                    if [WINDOW_START, WINDOW_END].contains(&name.text.as_str()) {
                        checked = self.scope.refuse_as_bound(&name);
                    }
                }
                _ => {}
            });
            checked?;
        }
        self.scope.check(&mut condition, Place::Where, fallback)?;
        condition_of(&self.rows, &condition, "WHERE", fallback).map(Some)
    }

    /// Replaces aliases of the SELECT in HAVING and QUALIFY. Columns of the input take precedence.
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
            // Dates stay dates, so that expressions over the key get the type that was written.
            let kept = match &data_type {
                DataType::Date32 => Some(DataType::Date32),
                other => result_type(other),
            };
            let Some(kept) = kept else {
                return Err(SqlError::new(position, format!("{} cannot be a key of GROUP BY", type_name(&data_type))));
            };
            let name = unique(text, &taken);
            taken.push(name.clone());
            let field = self.rows.field_of(&expression, &name, &kept);
            planned.push(Key { field, meaning, expression: cast_to(expression, &data_type, &kept), position });
        }
        Ok(planned)
    }
}
