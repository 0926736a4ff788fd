//! MATCH_RECOGNIZE: the operators that find matches and compute their measures. The SELECT is planned over these.
//!
//! The conditions in DEFINE are split at their ANDs. The parts that read only the current row are evaluated for a whole
//! batch, and the rest only for rows where these parts are true.

mod references;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Column;
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast;
use rivulet_operators::{
    MatchCondition, NamedExpression, Pattern, PatternMatch, PatternSpec, PatternVariable, PlanError, Project, Skip,
};

use super::aggregate::check_condition;
use super::check::{ARRIVAL_TIME, Place, Scope};
use super::defect;
use super::expression::{Compiler, ExpressionPlanner, parameter_fields, placed};
use super::types::{cast_to, result_type};
use super::walk::start;
use super::window::{EventTime, LengthCheck, WindowPlanner};
use super::window_results::Computed;
use crate::parse::name_of;
use crate::statement::{MatchClause, Name, PatternTree, SkipClause};
use crate::value::{format_waits, type_name};
use crate::{Position, SqlError};
use references::{References, Sources};

/// The operators of a row pattern, each with its description in SQL.
pub(super) struct PlannedPattern {
    pub(super) find: PatternMatch,
    pub(super) find_step: Vec<String>,
    /// How long it waits for rows, in words.
    pub(super) waits: Option<String>,
    pub(super) is_partitioned: bool,
    pub(super) measure: Project,
    pub(super) measure_step: Vec<String>,
    pub(super) check: Option<LengthCheck>,
    /// The columns of single rows that are read.
    pub(super) columns: Vec<String>,
}

/// What is needed to plan a pattern.
pub(super) struct PatternPlanner<'a> {
    pub(super) clause: &'a MatchClause,
    /// The time of the rows; `None` while only the columns of matches are asked.
    pub(super) event_time: Option<&'a EventTime>,
    /// The clock of the slots of an application: its lateness and its idle timeout, in microseconds.
    pub(super) clock: Option<(i64, i64)>,
    pub(super) parameter_schema: &'a SchemaRef,
    /// The names in single rows.
    pub(super) scope: &'a Scope<'a>,
    /// The columns of single rows, including the arrival time.
    pub(super) fields: &'a [Field],
}

/// A planned condition of DEFINE.
struct Condition {
    row: Option<Computed>,
    of_match: Option<(Sources, Computed)>,
}

impl PatternPlanner<'_> {
    /// Plans the pattern. Also returns whether the arrival time is used; if not, rows need not have it.
    pub(super) fn plan(&self) -> Result<(PlannedPattern, bool), SqlError> {
        let clause = self.clause;
        let fields = self.fields.iter().cloned().chain(parameter_fields(self.parameter_schema)).collect();
        let rows = ExpressionPlanner::new(fields)?;
        self.check_order()?;
        let keys = self.keys(&rows)?;
        let mut variables = Vec::new();
        let pattern = number_variables(&clause.pattern, &mut variables);
        let mut references = References { variables: &variables, scope: self.scope, rows: &rows, values: Vec::new() };
        let mut conditions: Vec<Option<Condition>> = variables.iter().map(|_| None).collect();
        for (name, condition) in &clause.define {
            let variable = references.variable(name)?;
            if conditions[variable].is_some() {
                return Err(SqlError::new(name.position, format!("'{name}' is defined twice")));
            }
            let condition = spelled_out(condition, name.position)?;
            conditions[variable] = Some(self.condition(&condition, variable, &mut references, name.position)?);
        }
        let mut results = Sources::new(keys.iter().map(|(name, _)| name.clone()).collect());
        let measures = self.measures(&keys, &mut references, &mut results)?;
        let skip = match &clause.skip {
            SkipClause::PastLastRow => Skip::PastLastRow,
            SkipClause::ToNextRow => Skip::ToNextRow,
            SkipClause::ToFirst(name) => Skip::ToFirst(references.variable(name)?),
            SkipClause::ToLast(name) => Skip::ToLast(references.variable(name)?),
        };
        let windows = WindowPlanner {
            scope: self.scope,
            parameter_schema: self.parameter_schema,
            event_time: self.event_time.unwrap_or(&EventTime::Arrival),
        };
        let within = match &clause.within {
            Some(length) => Some(windows.within(length, clause.position)?),
            None => None,
        };
        let values = std::mem::take(&mut references.values);

        let of_rows = || {
            let conditions = conditions.iter().flatten().filter_map(|one| one.row.as_ref());
            let keys = keys.iter().map(|(_, key)| &key.expression);
            keys.chain(values.iter().map(|one| &one.expression)).chain(conditions.map(|one| &one.expression))
        };
        let mut columns: Vec<String> =
            of_rows().flat_map(Expr::column_refs).map(|column| column.name.clone()).collect();
        columns.sort_unstable();
        columns.dedup();
        let uses_arrival = columns.iter().any(|column| column == ARRIVAL_TIME);
        let is_there = |field: &&Field| uses_arrival || field.name() != ARRIVAL_TIME;
        let input = Schema::new(self.fields.iter().filter(is_there).cloned().collect::<Vec<_>>());
        let compiler = Compiler::new(&input, self.parameter_schema, of_rows())?;
        let compile = |expression: &Expr, position| compiler.compile(expression.clone(), position);
        let named =
            keys.iter().map(|(name, key)| Ok(NamedExpression::new(name, compile(&key.expression, key.position)?)));
        let spec = PatternSpec {
            keys: named.collect::<Result<_, SqlError>>()?,
            values: values.iter().map(|one| compile(&one.expression, one.position)).collect::<Result<_, _>>()?,
            variables: variables
                .iter()
                .zip(&conditions)
                .map(|(name, condition)| self.variable(name, condition.as_ref(), &compiler))
                .collect::<Result<_, _>>()?,
            pattern,
            results: results.found.iter().map(|(field, source)| (field.name().clone(), source.clone())).collect(),
            skip,
            within: within.as_ref().map(|(within, _)| within.clone()),
            lateness_us: self.clock.map_or(0, |(lateness_us, _)| lateness_us),
            idle_timeout_us: self.clock.map_or(i64::MAX, |(_, idle_timeout_us)| idle_timeout_us),
            arrival_time: self.event_time == Some(&EventTime::Arrival),
            parameters: compiler.parameters.clone(),
            input: input.into(),
            parameter_schema: self.parameter_schema.clone(),
        };
        let find = PatternMatch::new(spec).map_err(|error| self.refused(error))?;
        let (measure, measure_step) = self.project(&find, &keys, measures)?;
        let find_step = self.describe();
        let clock = self.clock.filter(|_| self.event_time != Some(&EventTime::Arrival));
        let waits = clock.map(|(lateness_us, idle_timeout_us)| format_waits(lateness_us, idle_timeout_us));
        let check = within.map(|(_, check)| check);
        let is_partitioned = !keys.is_empty();
        let planned = PlannedPattern { find, find_step, waits, is_partitioned, measure, measure_step, check, columns };
        Ok((planned, uses_arrival))
    }

    fn refused(&self, error: PlanError) -> SqlError {
        let position = first_position(&self.clause.pattern).or(self.clause.position);
        defect(error, position)
    }

    /// Checks that the rows are in the order of event time.
    fn check_order(&self) -> Result<(), SqlError> {
        let [first, rest @ ..] = self.clause.order_by.as_slice() else { return Ok(()) };
        let expected = match self.event_time {
            None => return Ok(()),
            Some(EventTime::Column(name)) => name,
            Some(EventTime::Arrival) => ARRIVAL_TIME,
            Some(EventTime::Missing(message, hint)) => {
                return Err(SqlError::new(start(&first.expr).or(self.clause.position), *message).hint(*hint));
            }
        };
        let hint = format!("write ORDER BY {expected}, or leave it out: rows are in this order anyhow");
        let is_expected = matches!(&first.expr, ast::Expr::Identifier(name) if name_of(name).text == expected);
        let plain = first.options.asc != Some(false) && first.options.nulls_first.is_none() && rest.is_empty();
        if is_expected && plain {
            return Ok(());
        }
        let position = start(&first.expr).or(self.clause.position);
        Err(SqlError::new(position, "the rows of a pattern are in order of their time, the oldest first").hint(hint))
    }

    fn keys(&self, rows: &ExpressionPlanner) -> Result<Vec<(String, Computed)>, SqlError> {
        let mut keys: Vec<(String, Computed)> = Vec::new();
        for key in &self.clause.partition_by {
            let position = start(key).or(self.clause.position);
            let mut key = key.clone();
            let is_name = matches!(key, ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_));
            if is_name {
                self.scope.check(&mut key, Place::Where, position)?;
            }
            // A field is a column with its name; a row is not.
            let ast::Expr::Identifier(identifier) = &key else {
                return Err(SqlError::new(position, "PARTITION BY in a row pattern takes columns")
                    .hint("compute the key in a subquery in FROM, and give it a name"));
            };
            let name = name_of(identifier).text;
            if keys.iter().any(|(known, _)| *known == name) {
                return Err(SqlError::new(position, format!("'{name}' stands twice in PARTITION BY")));
            }
            let (expression, data_type) = rows.plan_coerced(&key, position)?;
            let Some(kept) = result_type(&data_type) else {
                let message = format!("{} cannot be a key of PARTITION BY", type_name(&data_type));
                return Err(SqlError::new(position, message));
            };
            let expression = cast_to(expression, &data_type, &kept);
            keys.push((name, Computed::new(expression, kept, position)));
        }
        Ok(keys)
    }

    fn condition(
        &self,
        condition: &ast::Expr,
        variable: usize,
        references: &mut References<'_>,
        fallback: Position,
    ) -> Result<Condition, SqlError> {
        let mut parts = Vec::new();
        conjuncts(condition, &mut parts);
        let (row, of_match): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| references.is_about_row(part, variable));
        let row = match all_of(row) {
            None => None,
            Some(mut condition) => {
                references.strip(&mut condition, &mut Vec::new(), fallback)?;
                self.scope.check(&mut condition, Place::Where, fallback)?;
                let position = start(&condition).or(fallback);
                let (expression, data_type) = references.rows.plan_coerced(&condition, position)?;
                check_condition(&data_type, "DEFINE", position)?;
                Some(Computed::new(expression, data_type, position))
            }
        };
        let of_match = match all_of(of_match) {
            None => None,
            Some(condition) => {
                let mut sources = Sources::new(Vec::new());
                let computed = self.of_match(condition, &[], references, &mut sources, fallback)?;
                check_condition(&computed.data_type, "DEFINE", computed.position)?;
                Some((sources, computed))
            }
        };
        Ok(Condition { row, of_match })
    }

    /// Plans an expression over a match: over these keys, and over sources, which are added to `sources`.
    fn of_match(
        &self,
        mut expression: ast::Expr,
        keys: &[(String, Computed)],
        references: &mut References<'_>,
        sources: &mut Sources,
        fallback: Position,
    ) -> Result<Computed, SqlError> {
        let position = start(&expression).or(fallback);
        references.extract(&mut expression, sources, position)?;
        let keys = keys.iter().map(|(name, key)| Field::new(name, key.data_type.clone(), true));
        let fields: Vec<Field> = keys.chain(sources.fields()).chain(parameter_fields(self.parameter_schema)).collect();
        let scope = Scope {
            columns: fields.iter().map(|field| field.name().as_str()).collect(),
            parameters: self.scope.parameters,
            ..*self.scope
        };
        scope.check(&mut expression, Place::Where, position)?;
        let (expression, data_type) = ExpressionPlanner::new(fields.clone())?.plan_coerced(&expression, position)?;
        Ok(Computed::new(expression, data_type, position))
    }

    fn measures(
        &self,
        keys: &[(String, Computed)],
        references: &mut References<'_>,
        sources: &mut Sources,
    ) -> Result<Vec<(Name, String, Computed)>, SqlError> {
        let mut measures: Vec<(Name, String, Computed)> = Vec::new();
        for (expression, name) in &self.clause.measures {
            let is_taken = |other: &str| other == name.text;
            if measures.iter().any(|(other, ..)| is_taken(&other.text)) || keys.iter().any(|(other, _)| is_taken(other))
            {
                return Err(SqlError::new(name.position, format!("two columns of the matches are called '{name}'"))
                    .hint("give one of them another name with AS"));
            }
            let spelled = spelled_out(expression, name.position)?;
            let measure = self.of_match(spelled, keys, references, sources, name.position)?;
            measures.push((name.clone(), format!("{expression} AS {name}"), measure));
        }
        Ok(measures)
    }

    fn variable(
        &self,
        name: &Name,
        condition: Option<&Condition>,
        compiler: &Compiler,
    ) -> Result<PatternVariable, SqlError> {
        let row = condition.and_then(|one| one.row.as_ref());
        let of_match = condition.and_then(|one| one.of_match.as_ref());
        let match_condition = match of_match {
            None => None,
            Some((sources, condition)) => {
                let schema = Schema::new(sources.fields().collect::<Vec<_>>());
                let compiler = Compiler::new(&schema, self.parameter_schema, [&condition.expression])?;
                let expression = compiler.compile(condition.expression.clone(), condition.position)?;
                let sources = sources.found.iter().map(|(_, source)| source.clone()).collect();
                Some(MatchCondition { sources, parameters: compiler.parameters, expression })
            }
        };
        Ok(PatternVariable {
            name: name.text.clone(),
            row_condition: row.map(|one| compiler.compile(one.expression.clone(), one.position)).transpose()?,
            match_condition,
        })
    }

    /// Adds the projection that computes the measures of a match from the output of the search.
    fn project(
        &self,
        find: &PatternMatch,
        keys: &[(String, Computed)],
        measures: Vec<(Name, String, Computed)>,
    ) -> Result<(Project, Vec<String>), SqlError> {
        let columns = find.output_schema();
        let compiler = Compiler::new(columns, self.parameter_schema, measures.iter().map(|(.., one)| &one.expression))?;
        let key = |(name, key): &(String, Computed)| {
            let expression = Expr::Column(Column::new_unqualified(name));
            Ok(NamedExpression::new(name, compiler.compile(expression, key.position)?))
        };
        let mut named = keys.iter().map(key).collect::<Result<Vec<_>, SqlError>>()?;
        let mut step: Vec<String> = keys.iter().map(|(name, _)| name.clone()).collect();
        for (name, text, measure) in measures {
            let Some(to) = result_type(&measure.data_type) else {
                let message = format!("a measure cannot be {}", type_name(&measure.data_type));
                return Err(SqlError::new(measure.position, message).hint("convert it with CAST(... AS TEXT)"));
            };
            // Dates and times of day stay what they are for the SELECT; the output has its own type.
            let kept = match measure.data_type {
                DataType::Date32 | DataType::Time64(_) => measure.data_type.clone(),
                _ => to,
            };
            let expression = cast_to(measure.expression, &measure.data_type, &kept);
            named.push(NamedExpression::new(name.text, compiler.compile(expression, measure.position)?));
            step.push(text);
        }
        let project = Project::new(columns, self.parameter_schema, compiler.parameters, named)
            .map_err(|error| defect(error, self.clause.position))?;
        Ok((project, step))
    }

    fn describe(&self) -> Vec<String> {
        let clause = self.clause;
        let mut within = String::new();
        if let Some(length) = &clause.within {
            within = format!(" WITHIN {length}");
        }
        let mut step = vec![format!("PATTERN ({}){within}", text(&clause.pattern))];
        step.extend(clause.define.iter().map(|(name, condition)| format!("{name} AS {condition}")));
        if !clause.partition_by.is_empty() {
            let keys: Vec<String> = clause.partition_by.iter().map(ToString::to_string).collect();
            step.push(format!("by {}", keys.join(", ")));
        }
        step.push(match &clause.skip {
            SkipClause::PastLastRow => "after a match: past its last row".to_owned(),
            SkipClause::ToNextRow => "after a match: its second row".to_owned(),
            SkipClause::ToFirst(name) => format!("after a match: the first row of {name}"),
            SkipClause::ToLast(name) => format!("after a match: the last row of {name}"),
        });
        step
    }
}

/// An expression with its parts of values, and what else has a syntax of its own, as calls: then each name of a
/// variable stands before a column.
fn spelled_out(expression: &ast::Expr, fallback: Position) -> Result<ast::Expr, SqlError> {
    let mut expression = expression.clone();
    rivulet_relational::spell_out_times(&mut expression).map_err(|error| placed(error, fallback))?;
    Ok(expression)
}

/// Returns the pattern with numbers for its variables, in order of appearance.
fn number_variables(tree: &PatternTree, variables: &mut Vec<Name>) -> Pattern {
    let mut parts =
        |parts: &[PatternTree]| parts.iter().map(|part| number_variables(part, variables)).collect::<Vec<_>>();
    match tree {
        PatternTree::Sequence(all) => Pattern::Sequence(parts(all)),
        PatternTree::Alternation(all) => Pattern::Alternation(parts(all)),
        PatternTree::Repeat { pattern, min, max, greedy, .. } => {
            let pattern = Box::new(number_variables(pattern, variables));
            Pattern::Repeat { pattern, min: *min, max: *max, greedy: *greedy }
        }
        PatternTree::Variable(name) => {
            let known = variables.iter().position(|known| known.text == name.text);
            Pattern::Variable(known.unwrap_or_else(|| {
                variables.push(name.clone());
                variables.len() - 1
            }))
        }
    }
}

fn text(tree: &PatternTree) -> String {
    let mut variables = Vec::new();
    let pattern = number_variables(tree, &mut variables);
    pattern.text(&variables.iter().map(|variable| variable.text.as_str()).collect::<Vec<_>>())
}

fn first_position(tree: &PatternTree) -> Position {
    match tree {
        PatternTree::Variable(name) => name.position,
        PatternTree::Sequence(parts) | PatternTree::Alternation(parts) => {
            parts.first().map_or_else(Position::default, first_position)
        }
        PatternTree::Repeat { pattern, position, .. } => first_position(pattern).or(*position),
    }
}

/// Splits a condition at its ANDs.
fn conjuncts<'a>(condition: &'a ast::Expr, parts: &mut Vec<&'a ast::Expr>) {
    match condition {
        ast::Expr::Nested(inner) => conjuncts(inner, parts),
        ast::Expr::BinaryOp { left, op: ast::BinaryOperator::And, right } => {
            conjuncts(left, parts);
            conjuncts(right, parts);
        }
        other => parts.push(other),
    }
}

/// Combines the parts with AND again.
fn all_of(parts: Vec<&ast::Expr>) -> Option<ast::Expr> {
    let nested = |part: &ast::Expr| ast::Expr::Nested(Box::new(part.clone()));
    parts.into_iter().map(nested).reduce(|left, right| ast::Expr::BinaryOp {
        left: Box::new(left),
        op: ast::BinaryOperator::And,
        right: Box::new(right),
    })
}
