//! Windows over keys, by the watermark of the whole query.
//!
//! Time is cut into panes, and windows consist of panes; a tumbling window is one pane. Each open pane has a table of
//! its own from keys to states ([`pane`]), so a row costs one look-up, and closing frees all memory at once.
//! Overlapping windows are merged from closed panes, with work by key and pane instead of by row and window
//! ([`sliding`]). Sessions have one table for all keys ([`session`]), and so do windows that count rows ([`count`]).
//! [`bounds`] does the arithmetic of time, [`state`] says how state is saved.

pub(crate) mod bounds;
pub(crate) mod count;
pub(crate) mod operator;
pub(crate) mod pane;
mod partial;
mod plan;
pub(crate) mod session;
pub(crate) mod sliding;
pub(crate) mod state;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory, StateFrame};

pub use self::bounds::{KeyedWindowKind, ROWS_MAX};
pub use self::plan::{KeyedWindowSpec, Phase};

pub(crate) use self::bounds::Bounds;
use self::count::CountOperator;
use self::operator::WindowOperator;
use self::plan::WindowPlan;
use self::session::SessionOperator;
use super::groups::{GroupPlan, Mode};
use super::keys::KeyPlan;
use super::time_to_live::state_text;
use super::{TIME, check_columns};
use crate::expression::sql;
use crate::window::{WINDOW_END, WINDOW_START};
use crate::{AggregateSpec, PlanError};

/// Aggregates rows by key and window; see [`KeyedWindowSpec`].
///
/// The output columns are the keys, `window_start` and `window_end` (TIMESTAMP), and the aggregates. A row's event time
/// is the last microsecond of its window. A row is counted in all its windows or, once one of them is closed, in none.
/// The same holds for a retraction, so a row that is retracted too late stays counted. A window that counts rows begins
/// and ends at the event times of its first and last row; the latter is its own event time. It has no late rows. A
/// forgotten key loses the rows of its incomplete window.
#[derive(Clone)]
pub struct KeyedWindow {
    plan: Arc<WindowPlan>,
}

impl KeyedWindow {
    /// Checks a specification.
    ///
    /// # Errors
    /// Columns that do not exist, invalid lengths, aggregates that do not fit their arguments, and phases of windows
    /// that cannot be split.
    pub fn new(spec: KeyedWindowSpec) -> Result<Self, PlanError> {
        check_columns(&spec.input, spec.keys.iter().copied(), "the key")?;
        spec.window.check(&spec.input)?;
        let keys = spec.keys.iter().map(|&key| Arc::new(spec.input.field(key).clone()));
        let bounds = [WINDOW_START, WINDOW_END].map(|name| Arc::new(Field::new(name, TIME, false)));
        let results = aggregate_fields(&spec.aggregates, &spec.input)?;
        let output = Arc::new(Schema::new(keys.chain(bounds).chain(results).collect::<Vec<_>>()));
        let mode = match spec.window {
            KeyedWindowKind::Tumble { .. } | KeyedWindowKind::Attached { .. } if spec.input_retracts => Mode::Undoing,
            _ if spec.input_retracts => {
                let problem = format!("{} cannot take rows back", spec.window.text(&spec.input));
                return Err(PlanError::operator("window", problem, "use windows that tumble"));
            }
            KeyedWindowKind::Session { .. }
            | KeyedWindowKind::Count { .. }
            | KeyedWindowKind::Hop { .. }
            | KeyedWindowKind::Cumulate { .. } => Mode::Merging,
            _ => Mode::Together,
        };
        let groups = GroupPlan::new(&spec.aggregates, &spec.input, mode)?;
        let words = groups.layout.dense_words();
        let states = (0..words).map(|word| Arc::new(Field::new(format!("state_{word}"), DataType::Int64, false)));
        let leading = output.fields()[..spec.keys.len() + 2].iter().cloned();
        let partial = Arc::new(Schema::new(leading.chain(states).collect::<Vec<_>>()));
        let keys = match spec.phase {
            Phase::Final => KeyPlan::new(&partial, &(0..spec.keys.len()).collect::<Vec<_>>())?,
            _ => KeyPlan::new(&spec.input, &spec.keys)?,
        };
        let window = Self { plan: Arc::new(WindowPlan { spec, groups, keys, partial, output, behind_us: 0 }) };
        match window.plan.spec.phase == Phase::Whole || window.can_be_split() {
            true => Ok(window),
            false => {
                let problem = "this aggregation cannot be split into a partial and a final one";
                Err(PlanError::operator("window", problem, "ask KeyedWindow::can_be_split first"))
            }
        }
    }

    /// For rows that may come up to this many microseconds behind the watermark, like pairs of a join within a span of
    /// time: windows close this much later.
    #[must_use]
    pub fn with_rows_behind(mut self, behind_us: i64) -> Self {
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            plan.behind_us = behind_us.max(0);
        }
        self
    }

    /// Whether the work can be split into phases: all states are words that can be merged, and windows follow from
    /// rows.
    pub fn can_be_split(&self) -> bool {
        let is_known = !matches!(
            self.plan.spec.window,
            KeyedWindowKind::Session { .. } | KeyedWindowKind::ProcessingTumble { .. } | KeyedWindowKind::Count { .. }
        );
        is_known && !self.plan.spec.input_retracts && self.plan.groups.is_words()
    }

    /// The columns between phase `Partial` and phase `Final`: the keys, the bounds of a piece of time, and states. Keys
    /// have the same indices as in the output.
    pub fn partial_schema(&self) -> SchemaRef {
        self.plan.partial.clone()
    }

    /// The output columns of phases `Whole` and `Final`.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }
}

/// The names of columns.
pub(crate) fn names(input: &Schema, columns: &[usize]) -> Vec<String> {
    columns.iter().map(|&column| input.field(column).name().clone()).collect()
}

/// The key as `EXPLAIN` shows it; `None` without one.
pub(crate) fn by_text(input: &Schema, keys: &[usize]) -> Option<String> {
    let names = names(input, keys);
    (!names.is_empty()).then(|| format!("by {}", names.join(", ")))
}

/// The output column of each aggregate.
pub(crate) fn aggregate_fields(aggregates: &[AggregateSpec], input: &Schema) -> Result<Vec<Arc<Field>>, PlanError> {
    aggregates
        .iter()
        .map(|aggregate| {
            let types = aggregate
                .arguments
                .iter()
                .map(|argument| {
                    argument.data_type(input).map_err(|error| PlanError::Expression {
                        expression: sql(argument),
                        problem: error.strip_backtrace(),
                    })
                })
                .collect::<Result<Vec<DataType>, _>>()?;
            Ok(Arc::new(aggregate.result_field(aggregate.function.result_type(&types)?, input)))
        })
        .collect()
}

impl OperatorFactory for KeyedWindow {
    fn create(&self) -> Box<dyn Operator> {
        match self.plan.spec.window {
            KeyedWindowKind::Session { gap_us } => Box::new(SessionOperator::new(self.plan.clone(), gap_us)),
            KeyedWindowKind::Count { rows, slide_rows } => {
                Box::new(CountOperator::new(self.plan.clone(), rows, slide_rows))
            }
            _ => Box::new(WindowOperator::new(self.plan.clone())),
        }
    }

    fn describe(&self) -> Description {
        let spec = &self.plan.spec;
        let mut shared = vec![spec.window.text(&spec.input)];
        shared.extend(by_text(&spec.input, &spec.keys));
        shared.extend(spec.aggregates.iter().map(AggregateSpec::text));
        match spec.phase {
            Phase::Whole => {}
            Phase::Partial => shared.push("partial".into()),
            Phase::Final => shared.push("final".into()),
        }
        if matches!(spec.window, KeyedWindowKind::Count { .. }) && !spec.keys.is_empty() {
            shared.push(state_text(spec.state_ttl_us, "the last row of a key"));
        }
        Description { operator: "window".into(), shared, per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        let spec = &self.plan.spec;
        let kind = if matches!(spec.window, KeyedWindowKind::Count { .. }) { count::STATE } else { state::OPERATOR };
        Some(Address {
            keys: names(&spec.input, &spec.keys),
            aggregates: spec.aggregates.iter().map(AggregateSpec::text).collect(),
            window: Some(spec.window.text(&spec.input)),
            is_transient: spec.phase == Phase::Partial,
            ..Address::of(kind)
        })
    }

    /// The keys and, for windows of time, their bounds.
    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        let keys = frame.rows.columns().get(2..2 + self.plan.keys.len() + 2)?;
        Some(keys.to_vec())
    }
}
