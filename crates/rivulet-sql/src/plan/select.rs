//! The SELECT of an application as a straight line of operators:
//! assign time, filter, then either project, or window aggregate, filter (HAVING), project; and change only at the end.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DataFusionError};
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast;
use rivulet_dataflow::{Dataflow, OperatorFactory};
use rivulet_operators::{
    AggregateSpec, AssignTime, ChangeOnly, Filter, NamedExpression, Project, WindowAggregate, WindowAggregateSpec,
};

use super::aggregate::{Aggregate, Aggregates, check_condition, condition_of, place_of, unique};
use super::check::{Place, Scope, start};
use super::declarations::Declarations;
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, cast_to, parameter_fields, result_type};
use super::window::{LengthCheck, Window, WindowPlanner, window_call};
use crate::parse::name_of;
use crate::statement::{Name, Select};
use crate::value::{TIMESTAMP, type_name};
use crate::{Position, SqlError};

/// The implicit column of every input.
const ARRIVAL_TIME: &str = "arrival_time";
const WINDOW_START: &str = "window_start";
const WINDOW_END: &str = "window_end";
/// The most columns a SELECT may have.
const RESULTS_MAX: usize = 1024;

/// What becomes of a SELECT.
pub(super) struct Planned {
    pub(super) dataflow: Dataflow,
    pub(super) output_schema: SchemaRef,
    /// The window, for people.
    pub(super) window: Option<String>,
    pub(super) checks: Vec<LengthCheck>,
}

/// Plans a SELECT over the declared input.
pub(super) fn plan(
    select: &Select,
    declarations: &Declarations,
    parameter_schema: &SchemaRef,
) -> Result<Planned, SqlError> {
    let input = &declarations.input;
    if select.from.text != input.name {
        return Err(SqlError::new(select.from.position, format!("unknown input '{}'", select.from))
            .did_you_mean(Some(&input.name)));
    }
    let keys = group_keys(select, &input.schema)?;
    let windows: Vec<&ast::Function> = keys.iter().filter_map(window_call).collect();
    let names = input.schema.fields().iter().map(|field| field.name().as_str());
    let scope = Scope {
        input: &input.name,
        alias: select.alias.as_ref().map(|alias| alias.text.as_str()),
        columns: names.chain([ARRIVAL_TIME]).collect(),
        parameters: &declarations.parameters,
        windowed: !windows.is_empty(),
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
    let fields = input.schema.fields().iter().map(|field| field.as_ref().clone());
    let mut fields: Vec<Field> = fields.chain([Field::new(ARRIVAL_TIME, TIMESTAMP, false)]).collect();
    fields.extend(parameter_fields(parameter_schema));
    let planner = SelectPlanner {
        select,
        declarations,
        parameter_schema,
        scope,
        rows: ExpressionPlanner::new(fields.clone())?,
        row_fields: fields,
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
                if name != ARRIVAL_TIME && input.index_of(&name).is_err() {
                    return Ok(aliased(select, &name).unwrap_or(key).clone());
                }
            }
            _ => {}
        }
        Ok(key.clone())
    };
    select.group_by.iter().map(resolve).collect()
}

fn item_expression(item: &ast::SelectItem) -> Option<(&ast::Expr, Option<&ast::Ident>)> {
    match item {
        ast::SelectItem::UnnamedExpr(expression) => Some((expression, None)),
        ast::SelectItem::ExprWithAlias { expr, alias } => Some((expr, Some(alias))),
        _ => None,
    }
}

/// What the SELECT calls `name`.
fn aliased<'a>(select: &'a Select, name: &str) -> Option<&'a ast::Expr> {
    select
        .projection
        .iter()
        .filter_map(item_expression)
        .find_map(|(expression, alias)| alias.filter(|alias| name_of(alias).text == name).map(|_| expression))
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

/// A column of the SELECT: its name, its expression, and where it stands.
struct Item {
    name: String,
    expression: ast::Expr,
    position: Position,
}

/// A planned column or condition, over the columns before the last projection.
struct Computed {
    expression: Expr,
    data_type: DataType,
    position: Position,
}

struct SelectPlanner<'a> {
    select: &'a Select,
    declarations: &'a Declarations,
    parameter_schema: &'a SchemaRef,
    scope: Scope<'a>,
    /// Plans over single rows: the input's columns, the arrival, the parameters.
    rows: ExpressionPlanner,
    row_fields: Vec<Field>,
}

impl SelectPlanner<'_> {
    /// A SELECT without window: one row in, at most one row out.
    fn plan_rows(&self) -> Result<Planned, SqlError> {
        let condition = self.condition()?;
        let mut results = Vec::new();
        for mut item in self.items()? {
            self.scope.check(&mut item.expression, Place::Result, item.position)?;
            let (expression, data_type) = self.rows.plan_coerced(&item.expression, item.position)?;
            results.push((item.name, Computed { expression, data_type, position: item.position }));
        }
        let used = condition.iter().chain(results.iter().map(|(_, result)| &result.expression));
        let (mut factories, columns) = self.first_operators(used.clone(), condition.clone())?;
        let output_schema = self.last_operators(&columns, results, Vec::new(), &mut factories)?;
        Ok(Planned { dataflow: Dataflow::linear(factories), output_schema, window: None, checks: Vec::new() })
    }

    /// A SELECT with a window: rows are aggregated, and one row comes out for each window and key.
    fn plan_windows(&self, window: Window, keys: Vec<ast::Expr>) -> Result<Planned, SqlError> {
        let condition = self.condition()?;
        let mut names: Vec<String> = self.row_fields.iter().map(|field| field.name().clone()).collect();
        names.extend([WINDOW_START.to_owned(), WINDOW_END.to_owned()]);

        // Aggregates become columns first, so that what is left are expressions over columns.
        let mut aggregates = Aggregates::new(&self.rows, names);
        let mut items = self.items()?;
        for item in &mut items {
            self.scope.check(&mut item.expression, Place::Result, item.position)?;
            aggregates.extract(&mut item.expression)?;
        }
        let having = match &self.select.having {
            None => None,
            Some(having) => {
                let mut having = having.clone();
                self.resolve_aliases(&mut having);
                self.scope.check(&mut having, Place::Result, self.select.having_position)?;
                aggregates.extract(&mut having)?;
                Some(having)
            }
        };
        let aggregates = aggregates.found;

        let keys = self.keys(keys, &aggregates.iter().map(|one| one.column.clone()).collect::<Vec<_>>())?;
        let results = WindowResults::new(self, &keys, &aggregates)?;
        let having = having
            .map(|having| {
                let planned = results.plan(&having, self.select.having_position)?;
                check_condition(&planned.data_type, "HAVING", start(&having).or(self.select.having_position))?;
                Ok::<_, SqlError>(planned)
            })
            .transpose()?;
        let items = items
            .into_iter()
            .map(|item| Ok((item.name, results.plan(&item.expression, item.position)?)))
            .collect::<Result<Vec<_>, SqlError>>()?;

        let used = condition
            .iter()
            .chain(keys.iter().map(|key| &key.expression))
            .chain(aggregates.iter().flat_map(|one| one.arguments.iter().chain(&one.filter)));
        let (mut factories, columns) = self.first_operators(used, condition.clone())?;
        let aggregate = self.window_operator(&window, &keys, &aggregates, columns)?;
        let columns = aggregate.output_schema().clone();
        factories.push(Arc::new(aggregate));
        if let Some(having) = having {
            let position = having.position;
            factories.push(Arc::new(self.filter(&columns, having.expression, position)?));
        }
        let key_columns = (0..keys.len()).collect();
        let output_schema = self.last_operators(&columns, items, key_columns, &mut factories)?;
        Ok(Planned {
            dataflow: Dataflow::linear(factories),
            output_schema,
            window: Some(window.text),
            checks: vec![window.check],
        })
    }

    /// The condition of WHERE.
    fn condition(&self) -> Result<Option<Expr>, SqlError> {
        let Some(condition) = &self.select.filter else { return Ok(None) };
        let mut condition = condition.clone();
        let fallback = self.select.position;
        self.scope.check(&mut condition, Place::Where, fallback)?;
        condition_of(&self.rows, &condition, "WHERE", fallback).map(Some)
    }

    /// The columns of the SELECT with their names; `*` as the columns of the input.
    fn items(&self) -> Result<Vec<Item>, SqlError> {
        let mut items: Vec<Item> = Vec::new();
        let mut push = |item: Item| {
            if items.iter().any(|other| other.name == item.name) {
                return Err(SqlError::new(
                    item.position,
                    format!("two columns of the SELECT are called '{}'", item.name),
                )
                .hint("give one of them another name with AS"));
            }
            items.push(item);
            if items.len() > RESULTS_MAX {
                return Err(SqlError::new(self.select.position, format!("a SELECT has at most {RESULTS_MAX} columns")));
            }
            Ok(())
        };
        for (index, item) in self.select.projection.iter().enumerate() {
            match item {
                ast::SelectItem::UnnamedExpr(expression) => {
                    let position = start(expression).or(self.select.position);
                    let name = natural_name(expression).unwrap_or_else(|| format!("column{}", index + 1));
                    push(Item { name, expression: expression.clone(), position })?;
                }
                ast::SelectItem::ExprWithAlias { expr, alias } => {
                    let Name { text, position } = name_of(alias);
                    if text.is_empty() {
                        return Err(SqlError::new(position, "a column needs a name"));
                    }
                    let position = start(expr).or(position);
                    push(Item { name: text, expression: expr.clone(), position })?;
                }
                ast::SelectItem::Wildcard(options) => {
                    let position = Position::from(options.wildcard_token.0.span).or(self.select.position);
                    self.check_wildcard(options, position)?;
                    for name in self.declared_columns() {
                        let identifier = ast::Ident::with_quote_and_span('"', options.wildcard_token.0.span, name);
                        push(Item { name: name.to_owned(), expression: ast::Expr::Identifier(identifier), position })?;
                    }
                }
                ast::SelectItem::QualifiedWildcard(
                    ast::SelectItemQualifiedWildcardKind::ObjectName(table),
                    options,
                ) => {
                    let span = ast::Spanned::span(table);
                    let named = match table.0.as_slice() {
                        [ast::ObjectNamePart::Identifier(identifier)] => Some(name_of(identifier).text),
                        _ => None,
                    };
                    if named.as_deref() != Some(self.scope.alias.unwrap_or(self.scope.input)) {
                        return Err(SqlError::new(span, format!("unknown input '{table}'"))
                            .did_you_mean(Some(self.scope.alias.unwrap_or(self.scope.input))));
                    }
                    self.check_wildcard(options, span.into())?;
                    for name in self.declared_columns() {
                        let identifier = ast::Ident::with_quote_and_span('"', span, name);
                        push(Item {
                            name: name.to_owned(),
                            expression: ast::Expr::Identifier(identifier),
                            position: span.into(),
                        })?;
                    }
                }
                other => {
                    let position = Position::from(ast::Spanned::span(other)).or(self.select.position);
                    return Err(SqlError::new(position, "this form of a column is not supported yet"));
                }
            }
        }
        Ok(items)
    }

    fn declared_columns(&self) -> impl Iterator<Item = &str> {
        self.declarations.input.schema.fields().iter().map(|field| field.name().as_str())
    }

    fn check_wildcard(&self, options: &ast::WildcardAdditionalOptions, position: Position) -> Result<(), SqlError> {
        let plain = options.opt_ilike.is_none()
            && options.opt_exclude.is_none()
            && options.opt_except.is_none()
            && options.opt_replace.is_none()
            && options.opt_rename.is_none();
        if !plain {
            return Err(SqlError::new(position, "'*' with changes is not supported yet").hint("name the columns"));
        }
        if self.scope.windowed {
            return Err(SqlError::new(position, "'*' cannot be selected from a window")
                .hint("select aggregates, the keys of GROUP BY, window_start and window_end"));
        }
        Ok(())
    }

    /// In HAVING, names of the SELECT may be used; columns of the input go first.
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
        super::check::for_each_child(expression, &mut |child| {
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

    /// Assign time and WHERE; also the columns that come out. `used` are all expressions over single rows.
    fn first_operators<'e>(
        &self,
        used: impl IntoIterator<Item = &'e Expr>,
        condition: Option<Expr>,
    ) -> Result<(Vec<Arc<dyn OperatorFactory>>, SchemaRef), SqlError> {
        let input = &self.declarations.input;
        let uses_arrival =
            |expression: &Expr| expression.column_refs().iter().any(|column| column.name == ARRIVAL_TIME);
        let assign_time = AssignTime {
            event_time_column: input.event_time,
            future_limit_us: input.future_limit_us,
            append_arrival_column: used.into_iter().any(uses_arrival),
        };
        let columns =
            assign_time.output_schema(&input.schema).map_err(|error| defect(error, self.select.from.position))?;
        let mut factories: Vec<Arc<dyn OperatorFactory>> = vec![Arc::new(assign_time)];
        if let Some(condition) = condition {
            factories.push(Arc::new(self.filter(&columns, condition, self.select.position)?));
        }
        Ok((factories, columns))
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

    /// The projection, and EMIT ON CHANGE; gives the schema of the output. `key_columns` are those of `columns` that
    /// tell the rows of one window apart.
    fn last_operators(
        &self,
        columns: &SchemaRef,
        results: Vec<(String, Computed)>,
        key_columns: Vec<usize>,
        factories: &mut Vec<Arc<dyn OperatorFactory>>,
    ) -> Result<SchemaRef, SqlError> {
        let mut columns_out: Vec<OutputColumn> = Vec::with_capacity(results.len() + key_columns.len());
        for (name, result) in results {
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
            for column in key_columns {
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
        let compiler = Compiler::new(columns, self.parameter_schema, columns_out.iter().map(|one| &one.expression))?;
        let named = columns_out
            .into_iter()
            .map(|one| Ok(NamedExpression::new(one.name, compiler.compile(one.expression, one.position)?)))
            .collect::<Result<_, SqlError>>()?;
        let project = Project::new(columns, self.parameter_schema, compiler.parameters, named)
            .map_err(|error| defect(error, self.select.position))?;
        let mut output = project.output_schema().clone();
        factories.push(Arc::new(project));
        if self.select.emit_on_change {
            let change_only = ChangeOnly::new(output, keys, compare, output_columns)
                .map_err(|error| defect(error, self.select.position))?;
            output = change_only.output_schema().clone();
            factories.push(Arc::new(change_only));
        }
        Ok(output)
    }
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

/// The name that a column without AS has: that of the column or function it is made of.
fn natural_name(expression: &ast::Expr) -> Option<String> {
    match expression {
        ast::Expr::Identifier(identifier) => Some(name_of(identifier).text),
        ast::Expr::CompoundIdentifier(identifiers) => identifiers.last().map(|last| name_of(last).text),
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Placeholder(name) => Some(name.trim_start_matches('$').to_lowercase()),
            _ => None,
        },
        ast::Expr::Function(function) => match function.name.0.as_slice() {
            [ast::ObjectNamePart::Identifier(identifier)] => Some(name_of(identifier).text),
            _ => None,
        },
        ast::Expr::Nested(inner) | ast::Expr::Cast { expr: inner, .. } => natural_name(inner),
        ast::Expr::Case { .. } => Some("case".to_owned()),
        _ => None,
    }
}

/// A key of GROUP BY.
struct Key {
    /// The column it becomes.
    name: String,
    /// The expression as planned, before coercion: what equal expressions in the SELECT are recognised by.
    meaning: Expr,
    expression: Expr,
    data_type: DataType,
    position: Position,
}

/// Plans expressions over what comes out of windows.
struct WindowResults<'a> {
    /// Over rows, bounds and aggregates: to give names meaning, before it is known what is a key.
    all: ExpressionPlanner,
    /// Over keys, bounds and aggregates.
    results: ExpressionPlanner,
    keys: &'a [Key],
    /// The columns of aggregates that are unsigned; the language has no such type.
    unsigned: Vec<String>,
    /// The columns of single rows, which are gone after aggregation.
    row_columns: Vec<String>,
    event_time: Option<String>,
}

/// The type as the language has it.
fn signed(data_type: &DataType) -> DataType {
    if *data_type == DataType::UInt64 { DataType::Int64 } else { data_type.clone() }
}

impl<'a> WindowResults<'a> {
    fn new(planner: &SelectPlanner<'_>, keys: &'a [Key], aggregates: &[Aggregate]) -> Result<Self, SqlError> {
        let bounds = [Field::new(WINDOW_START, TIMESTAMP, false), Field::new(WINDOW_END, TIMESTAMP, false)];
        let column = |one: &Aggregate| Field::new(&one.column, one.data_type.clone(), true);
        let all = planner.row_fields.iter().cloned().chain(bounds.clone());
        let all = all.chain(aggregates.iter().map(|one| column(one).with_data_type(signed(&one.data_type))));
        let key_fields = keys.iter().map(|key| Field::new(&key.name, key.data_type.clone(), true));
        let results = key_fields.chain(bounds).chain(aggregates.iter().map(column));
        let results = results.chain(parameter_fields(planner.parameter_schema));
        let input = &planner.declarations.input;
        Ok(Self {
            all: ExpressionPlanner::new(all.collect())?,
            results: ExpressionPlanner::new(results.collect())?,
            keys,
            unsigned: aggregates
                .iter()
                .filter(|one| one.data_type == DataType::UInt64)
                .map(|one| one.column.clone())
                .collect(),
            row_columns: planner.scope.columns.iter().map(|&name| name.to_owned()).collect(),
            event_time: input.event_time.map(|column| input.schema.field(column).name().clone()),
        })
    }

    /// Plans a checked expression whose aggregates are columns already.
    fn plan(&self, expression: &ast::Expr, fallback: Position) -> Result<Computed, SqlError> {
        let (planned, _) = self.all.plan(expression, fallback)?;
        let mut stray = None;
        let planned = planned
            .transform_down(|node| {
                if let Some(key) = self.keys.iter().find(|key| key.meaning == node) {
                    let column = Expr::Column(Column::new_unqualified(&key.name));
                    return Ok(Transformed::new(column, true, TreeNodeRecursion::Jump));
                }
                if let Expr::Column(column) = &node
                    && self.unsigned.contains(&column.name)
                {
                    let signed = cast_to(node, &DataType::UInt64, &DataType::Int64);
                    return Ok(Transformed::new(signed, true, TreeNodeRecursion::Jump));
                }
                if let Expr::Column(column) = &node
                    && self.row_columns.contains(&column.name)
                {
                    stray = Some(column.name.clone());
                    return Ok(Transformed::new(node, false, TreeNodeRecursion::Stop));
                }
                Ok(Transformed::no(node))
            })
            .map_err(|error: DataFusionError| SqlError::new(fallback, error.strip_backtrace()))?
            .data;
        let position = start(expression).or(fallback);
        if let Some(name) = stray {
            let position = place_of(expression, &name).map_or(position, |found| found.position.or(position));
            let error =
                SqlError::new(position, format!("the column '{name}' is neither in GROUP BY nor in an aggregate"));
            return Err(if Some(&name) == self.event_time.as_ref() {
                error.hint(format!("select window_start or window_end, or last_value({name})"))
            } else {
                error.hint(format!("add it to GROUP BY, or write for example last_value({name})"))
            });
        }
        let (expression, data_type) = self.results.coerce_planned(planned, position)?;
        Ok(Computed { expression, data_type, position })
    }
}
