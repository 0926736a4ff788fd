//! The operators that run, in the order in which they are planned: what each does, and how they can be divided. The
//! last one chooses the outputs.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion_common::Column;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_expr::Expr;
use rivulet_dataflow::{Cut, Line, OperatorFactory};
use rivulet_operators::{Match, PatternMatch, Rank, Route, WindowAggregate, WindowSpec};

use super::aggregate::{Aggregate, condition_of};
use super::check::{Place, Scope};
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, parameter_fields};
use super::join_bounds::BoundCheck;
use super::walk::start;
use super::window::LengthCheck;
use super::window_results::Key;
use crate::SqlError;
use crate::application::{Parameter, TableUse};
use crate::statement::Select;

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
    pub(super) matching: Option<Match>,
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
        self.push_waiting(factory, (step, None));
    }

    /// Adds an operator with what it does, and how long it waits for rows. The latter changes nothing in what its state
    /// means.
    pub(super) fn push_waiting(
        &mut self,
        factory: impl OperatorFactory + 'static,
        (meaning, waits): (Vec<String>, Option<String>),
    ) {
        if factory.is_stateful() {
            self.keep_whole(NO_KEY);
        }
        self.add(factory, (meaning.iter().cloned().chain(waits).collect(), meaning));
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
        let keys = keys.iter().map(|key| (key.name().clone(), self.meaning(&key.expression)));
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
    pub(super) fn push_keyed(
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
    pub(super) fn push_pattern(
        &mut self,
        find: PatternMatch,
        (meaning, waits): (Vec<String>, Option<String>),
        is_partitioned: bool,
    ) {
        match (&self.cut, is_partitioned) {
            (PlannedCut::Anywhere, true) => self.cut = PlannedCut::ByKey(self.factories.len(), Vec::new()),
            _ => self.keep_whole(NO_KEY),
        }
        self.add(find, (meaning.iter().cloned().chain(waits).collect(), meaning));
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
        let keys = keys.iter().map(|key| Expr::Column(Column::new_unqualified(key.name()))).collect();
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
