//! A planned SELECT as operators: assign time, combine inputs, look up in tables, filter (WHERE); with a window: window
//! aggregate, filter (HAVING); history functions, filter (QUALIFY); project; change only; choose the outputs.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion_common::Column;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_expr::Expr;
use rivulet_dataflow::{Cut, Line, OperatorFactory};
use rivulet_operators::{
    AggregateSpec, ChangeOnly, Filter, Match, NamedExpression, PatternMatch, Project, Rank, Route, WindowAggregate,
    WindowAggregateSpec, WindowSpec,
};

use super::aggregate::{Aggregate, condition_of, unique};
use super::check::{Place, Scope};
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::history::Histories;
use super::items::Item;
use super::lookup::PlannedLookup;
use super::matching::match_of;
use super::select::SelectPlanner;
use super::source::BoundCheck;
use super::types::{cast_to, result_type};
use super::walk::start;
use super::window::{LengthCheck, Window};
use super::window_results::{Computed, Key};
use super::written::Results;
use crate::application::{Parameter, TableUse};
use crate::statement::Select;
use crate::value::{format_us, type_name};
use crate::{Position, SqlError};

/// The operators planned so far, and what each does for all queries, in SQL.
#[derive(Default)]
pub(super) struct Operators {
    factories: Vec<Arc<dyn OperatorFactory>>,
    steps: Vec<Vec<String>>,
    /// The same, derived from the plan instead of the text.
    meanings: Vec<Vec<String>>,
    /// The meanings of the columns that operators make.
    columns: BTreeMap<String, String>,
    /// The part of WHERE that tells by an index which queries on one topic a row can concern.
    matching: Option<Match>,
    cut: PlannedCut,
    /// The last window, in the words of `EXPLAIN`.
    pub(super) window: Option<String>,
    pub(super) checks: Vec<LengthCheck>,
    pub(super) bound_checks: Vec<BoundCheck>,
    pub(super) tables: Vec<TableUse>,
}

/// The result of planning a SELECT.
pub(super) struct Planned {
    pub(super) dataflow: Line,
    /// The columns of decoded rows.
    pub(super) row_schema: SchemaRef,
    pub(super) output_schema: SchemaRef,
    /// Whether there is a column behind those of the output that says to which outputs a row goes.
    pub(super) has_output_bits: bool,
    /// The text of the window, for users.
    pub(super) window: Option<String>,
    pub(super) checks: Vec<LengthCheck>,
    pub(super) bound_checks: Vec<BoundCheck>,
    pub(super) tables: Vec<TableUse>,
    /// The part of WHERE that tells by an index which queries on one topic a row can concern.
    pub(super) matching: Option<Match>,
    /// How the dataflow can run as several instances side by side, if at all.
    pub(super) cut: Cut,
    /// What each operator does, in SQL.
    pub(super) steps: Vec<Vec<String>>,
    /// The same, derived from the plan instead of the text.
    pub(super) meanings: Vec<Vec<String>>,
}

/// The results of a SELECT.
pub(super) struct Output {
    pub(super) columns: SchemaRef,
    /// The name and expression of each column, over the columns before the last projection.
    pub(super) expressions: Vec<(String, Expr)>,
    /// The text of each column.
    pub(super) texts: Vec<String>,
}

/// How the operators so far can run as several instances side by side.
#[derive(Default)]
enum PlannedCut {
    #[default]
    Anywhere,
    /// From the operator with this index on, by these keys, which are expressions over the columns behind it. Without
    /// keys here, no later key is known to be the same.
    ByKey(usize, Vec<Expr>),
    Never(&'static str),
}

/// Why an application cannot be divided if an operator has state that is not by key.
const NO_KEY: &str = "an operator remembers rows of all keys together";

impl Operators {
    pub(super) fn push(&mut self, factory: impl OperatorFactory + 'static, step: Vec<String>) {
        if factory.is_stateful() {
            self.keep_whole(NO_KEY);
        }
        self.add(factory, (step.clone(), step));
    }

    fn add(&mut self, factory: impl OperatorFactory + 'static, (step, meaning): (Vec<String>, Vec<String>)) {
        self.factories.push(Arc::new(factory));
        self.steps.push(step);
        self.meanings.push(meaning);
    }

    /// The meaning of an expression, whichever text it was planned from.
    pub(super) fn meaning(&self, expression: &Expr) -> String {
        let bare = expression.clone().transform(|node| match node {
            // Without its position in the text.
            Expr::Column(column) => {
                Ok(Transformed::yes(Expr::Column(Column::new_unqualified(self.meaning_of_column(&column.name)))))
            }
            other => Ok(Transformed::no(other)),
        });
        // Unlike the `Display` form, the `Debug` form differs for any two expressions.
        bare.data().map_or_else(|_| expression.to_string(), |bare| format!("{bare:?}"))
    }

    pub(super) fn meaning_of_column(&self, name: &str) -> String {
        self.columns.get(name).map_or(name, String::as_str).to_owned()
    }

    /// Records the meanings of the columns that a window makes.
    pub(super) fn name_columns(&mut self, keys: &[Key], aggregates: &[Aggregate]) {
        let keys = keys.iter().map(|key| (key.name.clone(), self.meaning(&key.expression)));
        let aggregates = aggregates.iter().map(|one| {
            let parts = one.arguments.iter().chain(&one.filter).map(|part| self.meaning(part));
            let parts = parts.collect::<Vec<_>>().join(", ");
            let filter = if one.filter.is_some() { "filtered " } else { "" };
            (one.column.clone(), format!("{filter}{:?}({parts})", one.function))
        });
        self.columns = keys.chain(aggregates).collect();
    }

    /// Adds an operator whose state is by these keys, which are expressions over the columns behind it. `steps` is what
    /// it does, in SQL and as planned. If `whole` has a reason, the application cannot be divided in spite of the keys.
    fn push_keyed(
        &mut self,
        factory: impl OperatorFactory + 'static,
        steps: (Vec<String>, Vec<String>),
        keys: Vec<Expr>,
        whole: Option<&'static str>,
    ) {
        match &self.cut {
            _ if keys.is_empty() => self.keep_whole(NO_KEY),
            PlannedCut::Anywhere => self.cut = PlannedCut::ByKey(self.factories.len(), keys),
            PlannedCut::ByKey(_, known) if *known != keys => {
                self.keep_whole("operators remember rows by different keys")
            }
            PlannedCut::ByKey(..) | PlannedCut::Never(_) => {}
        }
        if let Some(whole) = whole {
            self.keep_whole(whole);
        }
        self.add(factory, steps);
    }

    /// Adds the search for a pattern, in partitions if it has any.
    pub(super) fn push_pattern(&mut self, find: PatternMatch, step: Vec<String>, is_partitioned: bool) {
        match (&self.cut, is_partitioned) {
            (PlannedCut::Anywhere, true) => self.cut = PlannedCut::ByKey(self.factories.len(), Vec::new()),
            _ => self.keep_whole(NO_KEY),
        }
        self.add(find, (step.clone(), step));
    }

    /// Adds a window aggregate with its keys, which are columns behind it.
    pub(super) fn push_window(
        &mut self,
        window: WindowAggregate,
        steps: (Vec<String>, Vec<String>),
        keys: &[Key],
        spec: &WindowSpec,
    ) {
        // The session that a row would belong to decides whether the row is late, and so its key does.
        let whole = match spec {
            WindowSpec::Session { .. } => Some("a session tells by its key which rows are late"),
            // The parts know a row by its key alone.
            WindowSpec::State => Some("conditions of a state may refuse rows"),
            _ => None,
        };
        let keys = keys.iter().map(|key| Expr::Column(Column::new_unqualified(&key.name))).collect();
        self.push_keyed(window, steps, keys, whole);
    }

    /// Adds the operator that numbers the rows of a window for each value of these keys. It needs all of these rows at
    /// once.
    pub(super) fn push_ranked(&mut self, rank: Rank, step: Vec<String>, keys: Vec<Expr>) {
        self.push_keyed(rank, (step.clone(), step), keys, None);
    }

    fn keep_whole(&mut self, why: &'static str) {
        if !matches!(self.cut, PlannedCut::Never(_)) {
            self.cut = PlannedCut::Never(why);
        }
    }

    /// Records the meanings of the columns of a SELECT.
    pub(super) fn name_results(&mut self, expressions: &[(String, Expr)]) {
        self.columns = expressions.iter().map(|(name, one)| (name.clone(), self.meaning(one))).collect();
    }

    /// Begins the operators of a SELECT that reads the results so far.
    pub(super) fn begin_select(&mut self) {
        if let PlannedCut::ByKey(_, keys) = &mut self.cut {
            keys.clear();
        }
    }

    /// Makes the plan of operators whose results have the columns `output`, for the outputs of the SELECT.
    pub(super) fn finish(
        mut self,
        select: &Select,
        input: &(String, Option<String>),
        output: &SchemaRef,
        row_schema: SchemaRef,
        parameters: &[Parameter],
        parameter_schema: &SchemaRef,
    ) -> Result<Planned, SqlError> {
        let has_output_bits = self.route(select, input, output, parameters, parameter_schema)?;
        Ok(Planned {
            dataflow: Line::new(self.factories),
            row_schema,
            output_schema: output.clone(),
            has_output_bits,
            window: self.window,
            checks: self.checks,
            bound_checks: self.bound_checks,
            tables: self.tables,
            matching: self.matching,
            cut: match self.cut {
                PlannedCut::Anywhere => Cut::Anywhere,
                PlannedCut::ByKey(place, _) => Cut::ByKey(place),
                PlannedCut::Never(why) => Cut::Never(why),
            },
            steps: self.steps,
            meanings: self.meanings,
        })
    }

    /// Adds the operator that decides to which outputs rows with these columns go. Returns `false` if all rows go to
    /// all outputs.
    fn route(
        &mut self,
        select: &Select,
        (input, alias): &(String, Option<String>),
        output: &SchemaRef,
        parameters: &[Parameter],
        parameter_schema: &SchemaRef,
    ) -> Result<bool, SqlError> {
        let written = &select.output_conditions;
        if written.iter().all(Option::is_none) {
            return Ok(false);
        }
        let scope = Scope {
            input,
            alias: alias.as_deref(),
            columns: output.fields().iter().map(|field| field.name().as_str()).collect(),
            parameters,
            windowed: false,
            tables: &[],
            in_table: false,
        };
        let fields = output.fields().iter().map(|field| field.as_ref().clone());
        let planner = ExpressionPlanner::new(fields.chain(parameter_fields(parameter_schema)).collect())?;
        let planned = written.iter().map(|condition| {
            let Some(condition) = condition else { return Ok(None) };
            let position = start(condition).or(select.position);
            let mut checked = condition.clone();
            scope.check(&mut checked, Place::OutputCondition, position)?;
            Ok(Some((condition_of(&planner, &checked, "WHEN", position)?, position)))
        });
        let planned = planned.collect::<Result<Vec<_>, SqlError>>()?;
        let all = planned.iter().flatten().map(|(condition, _)| condition);
        let compiler = Compiler::new(output, parameter_schema, all)?;
        let compiled = planned.iter().map(|one| {
            one.as_ref().map(|(condition, position)| compiler.compile(condition.clone(), *position)).transpose()
        });
        let compiled = compiled.collect::<Result<Vec<_>, SqlError>>()?;
        let route = Route::new(output, parameter_schema, compiler.parameters, compiled)
            .map_err(|error| defect(error, select.position))?;
        let texts = written.iter().map(|one| one.as_ref().map_or_else(|| "every row".to_owned(), ToString::to_string));
        self.push(route, texts.enumerate().map(|(output, text)| format!("output {}: {text}", output + 1)).collect());
        Ok(true)
    }
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
        let is_over_windows = source.results.as_ref().is_some_and(|results| results.of_windows);
        if window.is_time() && !source.by_arrival && !is_over_windows {
            let (lateness, timeout) = (format_us(source.lateness_us), format_us(source.idle_timeout_us));
            step.push(format!("lateness {lateness}, idle timeout {timeout}"));
        }
        step
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

    pub(super) fn filter(&self, columns: &SchemaRef, condition: Expr, position: Position) -> Result<Filter, SqlError> {
        let compiler = Compiler::new(columns, self.parameter_schema, [&condition])?;
        let condition = compiler.compile(condition, position)?;
        Filter::new(columns, self.parameter_schema, compiler.parameters, condition)
            .map_err(|error| defect(error, position))
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

    /// Whether an expression is computed only from the bounds of windows.
    pub(super) fn is_made_of_bounds(&self, expression: &Expr) -> bool {
        let columns = expression.column_refs();
        let is_bound = |column: &&Column| self.is_bound(&column.name);
        columns.iter().any(is_bound) && columns.iter().all(|column| is_bound(column) || column.name.starts_with('$'))
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
