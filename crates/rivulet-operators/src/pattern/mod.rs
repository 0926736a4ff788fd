//! MATCH_RECOGNIZE: sequences of rows that a pattern describes, by slot and partition.
//!
//! # What is found
//! The rows of a partition are taken in order of event time, and rows of the same time in order of arrival. The pattern
//! is tried from the first row on. Of all ways to match it, the one that the standard prefers is taken (greedy
//! repetitions longer, reluctant ones shorter, alternatives from left to right). If there is none, the pattern is tried
//! from the next row on; after a match, from the row that [`Skip`] names. With `WITHIN` all rows of a match lie less
//! than that after its first row.
//!
//! # When a match comes out
//! A match comes out as soon as no later row can give a better one. That is at once if the pattern ends with a variable
//! that takes one row or with a reluctant repetition, and with the next row that does not fit if it ends with a greedy
//! one. With `WITHIN` it comes out at the latest when the event clock of the slot has passed that time. The clock is
//! that of windows (see [`crate::window`]): the newest event time of the slot less the lateness, and after the idle
//! timeout it goes on with the clock of the machine. A row behind the clock is refused as late. Rows within the
//! lateness wait until their turn has come.
//!
//! # Bounds
//! A partition keeps at most [`MATCH_ROWS_MAX`] rows and a slot [`SLOT_ROWS_MAX`]. A match that would need more rows
//! ends there. If it is complete, it comes out as it is. Otherwise it is abandoned together with its rows, which are
//! counted ([`Reason::Overflow`](rivulet_dataflow::Reason::Overflow)). If there are more than [`THREADS_MAX`] partial
//! matches, the least preferred ones are abandoned and counted too. A slot has at most 100,000 partitions at once.
//!
//! # How
//! Conditions over the row alone are evaluated for a whole batch. An automaton ([`program`]) goes over the rows with
//! one list of partial matches, best first. Each is a state and a few words ([`registers`]). Only conditions that
//! depend on the match are evaluated on the way ([`condition`]).
//!
//! # In reading order
//! [`spec`]: the pattern as the planner gives it; [`program`]: the pattern as an automaton; [`registers`] and [`rows`]:
//! what is remembered; [`condition`]: DEFINE; [`partition`]: the search; [`slots`]: all searches and their clocks;
//! [`operator`]: batches and ticks; [`keyed`]: the same for big queries; [`output`]: matches as rows; [`state`]: export
//! and import.

pub(crate) mod condition;
pub(crate) mod keyed;
pub(crate) mod operator;
pub(crate) mod output;
pub(crate) mod partition;
mod plan;
pub(crate) mod program;
pub(crate) mod registers;
pub(crate) mod rows;
mod slots;
mod spec;
pub(crate) mod state;

use std::sync::Arc;

use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory};

pub use keyed::KeyedPattern;
pub use program::{Pattern, STATES_MAX};
pub use spec::{
    Aggregate, MATCH_ROWS_MAX, MatchCondition, NAVIGATION_ROWS_MAX, Navigation, PatternSpec, PatternVariable,
    SLOT_ROWS_MAX, Skip, Source, THREADS_MAX, VARIABLES_MAX,
};

use crate::PlanError;
use crate::aggregate::Storage;
use crate::expression::{Expressions, is_condition, sql};
use crate::row_bytes::RowBytes;
use crate::window::WindowSpec;
use crate::window::length::LengthExpressions;
use condition::Condition;
use plan::Plan;
use program::Program;
use registers::Layout;
use spec::{source_field, source_storage};

/// Finds the matches of a row pattern. See the [module](self) for what it does exactly.
///
/// # Example
/// `PATTERN (A B) DEFINE B AS B.value > A.value`, which gives both values:
/// ```
/// use std::sync::Arc;
/// use arrow::datatypes::{DataType, Field, Schema};
/// use datafusion_expr::Operator;
/// use datafusion_physical_expr::expressions::{Column, binary};
/// use rivulet_operators::{
///     MatchCondition, Navigation, Pattern, PatternMatch, PatternSpec, PatternVariable, Skip, Source,
/// };
///
/// let input = Arc::new(Schema::new(vec![Field::new("value", DataType::Float64, true)]));
/// let last = |variable| Source::Value { value: 0, variable: Some(variable), navigation: Navigation::Last(0) };
/// let seen = Schema::new(vec![Field::new("b", DataType::Float64, true), Field::new("a", DataType::Float64, true)]);
/// let rises =
///     binary(Arc::new(Column::new("b", 0)), Operator::Gt, Arc::new(Column::new("a", 1)), &seen).unwrap();
/// let rise = PatternMatch::new(PatternSpec {
///     input,
///     parameter_schema: Arc::new(Schema::empty()),
///     parameters: vec![],
///     keys: vec![],
///     values: vec![Arc::new(Column::new("value", 0))],
///     variables: vec![
///         PatternVariable { name: "a".into(), row_condition: None, match_condition: None },
///         PatternVariable {
///             name: "b".into(),
///             row_condition: None,
///             match_condition: Some(MatchCondition {
///                 sources: vec![last(1), last(0)],
///                 parameters: vec![],
///                 expression: rises,
///             }),
///         },
///     ],
///     pattern: Pattern::Sequence(vec![Pattern::Variable(0), Pattern::Variable(1)]),
///     results: vec![("before".into(), last(0)), ("after".into(), last(1))],
///     skip: Skip::PastLastRow,
///     within: None,
///     lateness_us: 0,
///     idle_timeout_us: i64::MAX,
///     arrival_time: false,
/// })
/// .unwrap();
/// let columns: Vec<_> = rise.output_schema().fields().iter().map(|field| field.name().clone()).collect();
/// assert_eq!(columns, ["before", "after"]);
/// ```
#[derive(Clone)]
pub struct PatternMatch {
    plan: Arc<Plan>,
}

impl PatternMatch {
    /// Makes an operator that finds a pattern, or returns what is wrong with its plan.
    pub fn new(spec: PatternSpec) -> Result<Self, PlanError> {
        let evaluation = Expressions::evaluation_schema(&spec.input, &spec.parameter_schema, &spec.parameters);
        let fail = |problem: String| PlanError::Pattern { problem };
        if spec.variables.len() > VARIABLES_MAX {
            let hint = "hint: use the same variable for rows with the same condition";
            return Err(fail(format!("it has more than {VARIABLES_MAX} variables\n{hint}")));
        }
        let storages = storages(&spec.values, &evaluation)?;
        let mut expressions: Vec<_> = spec.keys.iter().map(|key| key.expression.clone()).collect();
        expressions.extend(spec.values.iter().cloned());
        let (mut row_conditions, mut unconditional) = (Vec::new(), 0);
        for (index, variable) in spec.variables.iter().enumerate() {
            match &variable.row_condition {
                Some(condition) => {
                    let found = condition.data_type(&evaluation).unwrap_or(DataType::Null);
                    if !is_condition(&found) {
                        return Err(PlanError::Expression {
                            expression: sql(condition),
                            problem: format!("a condition is true or false, this has type {found}"),
                        });
                    }
                    expressions.push(condition.clone());
                    row_conditions.push(index);
                }
                None => unconditional |= 1 << index,
            }
        }
        let expressions = Expressions::new(&spec.input, &spec.parameter_schema, spec.parameters, expressions)?;
        let fields = expressions.fields();
        let key_fields: Vec<Field> = spec
            .keys
            .iter()
            .zip(fields)
            .map(|(key, field)| Field::new(&key.name, field.data_type().clone(), true))
            .collect();
        // Fails for types that cannot be a key.
        RowBytes::new(key_fields.iter().map(Field::data_type))?;
        let value_fields = fields[spec.keys.len()..][..storages.len()].to_vec();

        let of_conditions =
            || spec.variables.iter().flat_map(|one| &one.match_condition).flat_map(|condition| &condition.sources);
        let of_results = || spec.results.iter().map(|(_, source)| source);
        for source in of_conditions().chain(of_results()) {
            check_source(source, &storages, spec.variables.len())?;
        }
        let mut layout = Layout::default();
        of_conditions().for_each(|source| layout.add(source, &storages));
        layout.end_of_conditions();
        let conditions = spec
            .variables
            .iter()
            .map(|one| {
                let condition = one.match_condition.as_ref();
                condition.map(|one| Condition::new(one, &layout, &value_fields, &spec.parameter_schema)).transpose()
            })
            .collect::<Result<Vec<_>, _>>()?;
        of_results().for_each(|source| layout.add(source, &storages));
        // The last row of a match gives its time.
        layout.navigate(None, false, 1);
        match spec.skip {
            Skip::ToFirst(variable) => layout.navigate(Some(variable), true, 1),
            Skip::ToLast(variable) => layout.navigate(Some(variable), false, 1),
            Skip::PastLastRow | Skip::ToNextRow => {}
        }
        let results = of_results().map(|source| (layout.read(source), source_storage(source, &value_fields))).collect();
        let result_fields = spec.results.iter().map(|(name, source)| source_field(name, source, &value_fields));
        let output: Vec<Field> = key_fields.iter().cloned().chain(result_fields).collect();

        let names: Vec<String> = spec.variables.iter().map(|variable| variable.name.clone()).collect();
        let program = Program::new(&spec.pattern)?;
        let within = match &spec.within {
            Some(within) => {
                Some(LengthExpressions::new(&WindowSpec::Session { gap: within.clone() }, &spec.parameter_schema)?)
            }
            None => None,
        };
        let mut parameter_names = expressions.parameter_names();
        let of_within = within.iter().flat_map(LengthExpressions::parameter_names);
        let more = conditions.iter().flatten().flat_map(Condition::parameter_names).chain(of_within);
        for name in more.collect::<Vec<_>>() {
            if !parameter_names.contains(&name) {
                parameter_names.push(name);
            }
        }
        let previous = of_conditions().chain(of_results()).filter_map(|source| match source {
            Source::Value { navigation: Navigation::Previous(rows), .. } => Some(*rows),
            _ => None,
        });
        let rows_before = previous.max().unwrap_or(0);
        let numbers_matches = of_conditions().chain(of_results()).any(|source| *source == Source::MatchNumber);
        let text = text(&spec.pattern, &names, &spec.variables);
        Ok(Self {
            plan: Arc::new(Plan {
                expressions,
                key_fields,
                storages,
                row_conditions,
                unconditional,
                names,
                conditions,
                program,
                layout,
                results,
                skip: spec.skip,
                within,
                rows_before,
                numbers_matches,
                lateness_us: if spec.arrival_time { 0 } else { spec.lateness_us.max(0) },
                idle_timeout_us: spec.idle_timeout_us.max(0),
                arrival_time: spec.arrival_time,
                output: Arc::new(Schema::new(output)),
                text,
                parameter_names,
            }),
        })
    }

    /// The output columns: keys, then results.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }

    /// The same pattern over the rows of a big query, which has no parameters. A partition is remembered for
    /// `state_ttl_us` microseconds of event time after its last row; `None`: for ever.
    ///
    /// # Errors
    /// WITHIN is no length.
    pub fn keyed(&self, state_ttl_us: Option<i64>) -> Result<KeyedPattern, PlanError> {
        KeyedPattern::new(self.plan.clone(), state_ttl_us)
    }
}

/// Returns the form in which each value is kept.
fn storages(values: &[Arc<dyn PhysicalExpr>], evaluation: &Schema) -> Result<Vec<Storage>, PlanError> {
    let storage = |value: &Arc<dyn PhysicalExpr>| {
        let fail = |problem: String| PlanError::Expression { expression: sql(value), problem };
        let found = value.data_type(evaluation).map_err(|error| fail(error.strip_backtrace()))?;
        Storage::of(&found)
            .filter(|storage| can_cast_types(&found, &storage.data_type()))
            .filter(|storage| can_cast_types(&storage.data_type(), &found))
            .ok_or_else(|| fail(format!("a pattern cannot keep values of type {found}")))
    };
    values.iter().map(storage).collect()
}

/// Fails if a source names a value or variable that does not exist.
fn check_source(source: &Source, storages: &[Storage], variables: usize) -> Result<(), PlanError> {
    let fail = |problem: String| Err(PlanError::Pattern { problem });
    let (value, variable) = match source {
        Source::Value { value, variable, navigation } => {
            let (Navigation::First(rows) | Navigation::Last(rows) | Navigation::Previous(rows)) = *navigation;
            if rows > NAVIGATION_ROWS_MAX {
                return fail(format!("it looks {rows} rows away, at most {NAVIGATION_ROWS_MAX} are allowed"));
            }
            (Some(*value), *variable)
        }
        Source::Aggregate { aggregate, value, variable } => {
            let storage = value.map(|value| storages.get(value));
            let fits = match (aggregate, storage) {
                (Aggregate::Count, _) => true,
                (_, None | Some(None)) => false,
                (Aggregate::Sum | Aggregate::Avg, Some(Some(storage))) => {
                    matches!(storage, Storage::Float | Storage::Integer)
                }
                (_, Some(Some(storage))) => matches!(storage, Storage::Float | Storage::Integer | Storage::Time),
            };
            if !fits {
                return fail(format!("{aggregate:?} does not take such a value\nhint: aggregates are over numbers"));
            }
            (*value, *variable)
        }
        Source::Classifier | Source::MatchNumber => (None, None),
    };
    match value.is_none_or(|value| value < storages.len()) && variable.is_none_or(|variable| variable < variables) {
        true => Ok(()),
        false => fail("a value or variable that there is not".to_owned()),
    }
}

/// Writes the pattern and its conditions as text, for users and for checking state.
fn text(pattern: &Pattern, names: &[String], variables: &[PatternVariable]) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut text = pattern.text(&names);
    for variable in variables {
        let conditions = [
            variable.row_condition.as_ref().map(sql),
            variable.match_condition.as_ref().map(|condition| sql(&condition.expression)),
        ];
        let conditions: Vec<String> = conditions.into_iter().flatten().collect();
        if !conditions.is_empty() {
            text.push_str(&format!(", {}: {}", variable.name, conditions.join(" AND ")));
        }
    }
    text
}

impl OperatorFactory for PatternMatch {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(operator::PatternOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let plan = &self.plan;
        let shared = plan.shared_text();
        let mut per_slot = plan.parameter_names.clone();
        if !plan.arrival_time {
            per_slot.push("watermark".into());
        }
        per_slot.push("rows of the match under way".into());
        Description { operator: "pattern".into(), shared, per_slot }
    }

    fn state(&self) -> Option<Address> {
        Some(self.plan.address(state::OPERATOR))
    }
}
