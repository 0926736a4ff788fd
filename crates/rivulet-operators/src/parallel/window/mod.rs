//! Windows over keys, by the watermark of the whole query.
//!
//! Time is cut into panes, and windows consist of panes; a tumbling window is one pane. Each open pane has a table of
//! its own from keys to states ([`pane`]), so a row costs one look-up, and closing frees all memory at once.
//! Overlapping windows are merged from closed panes, with work by key and pane instead of by row and window
//! ([`sliding`]). Sessions have one table for all keys ([`session`]), and so do windows that count rows ([`count`]).
//! [`bounds`] does the arithmetic of time, [`state`] export and import.

pub(crate) mod bounds;
pub(crate) mod count;
pub(crate) mod operator;
pub(crate) mod pane;
mod partial;
pub(crate) mod session;
pub(crate) mod sliding;
pub(crate) mod state;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rivulet_dataflow::{Description, Operator, OperatorFactory, StateFrame};

pub(crate) use self::bounds::Bounds;
use self::count::CountOperator;
use self::operator::WindowOperator;
use self::session::SessionOperator;
use super::groups::{GroupPlan, Mode};
use super::keys::KeyPlan;
use super::time_to_live::{span_text, state_text};
use super::{TIME, check_columns, check_time};
use crate::expression::sql;
use crate::window::{WINDOW_END, WINDOW_START, check_panes};
use crate::{AggregateSpec, PlanError};

/// The plan of a window aggregation over keys.
#[derive(Clone, Debug)]
pub struct KeyedWindowSpec {
    /// The columns of the rows to aggregate. They stay the same in phase [`Phase::Final`], although its input then has
    /// [`KeyedWindow::partial_schema`].
    pub input: SchemaRef,
    /// The columns that are the key. Without columns, all rows have one key.
    pub keys: Vec<usize>,
    /// The windows.
    pub window: KeyedWindowKind,
    /// The aggregates of each window, over the columns of `input`. None: a row for each key and window.
    pub aggregates: Vec<AggregateSpec>,
    /// The part of the work that the operator does.
    pub phase: Phase,
    /// Whether the input may have retractions. Only for windows that tumble or that rows carry.
    pub input_retracts: bool,
    /// For windows that count rows: how long a key is remembered for which no row comes, in microseconds of event time;
    /// `None`: for ever. Without keys nothing is forgotten.
    pub state_ttl_us: Option<i64>,
}

/// How time is cut. Lengths are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedWindowKind {
    /// Windows one after the other.
    Tumble {
        /// The length.
        width_us: i64,
        /// By how much windows begin later than at a multiple of their length.
        offset_us: i64,
    },
    /// Overlapping windows (or windows with gaps, if the slide is longer than the width).
    Hop {
        /// The distance between starts.
        slide_us: i64,
        /// The length.
        width_us: i64,
        /// By how much windows begin later than at a multiple of the slide.
        offset_us: i64,
    },
    /// Windows that grow by a step until they have their whole width, and then begin anew.
    Cumulate {
        /// By how much each window is longer than the previous one. It divides the width.
        step_us: i64,
        /// The length of the longest.
        width_us: i64,
        /// By how much windows begin later than at a multiple of the width.
        offset_us: i64,
    },
    /// From a row of a key to its last row before a pause.
    Session {
        /// The length of the pause. A session ends this long after its last row.
        gap_us: i64,
    },
    /// Rows carry their window, because they come from another window operator.
    Attached {
        /// The column with the start.
        start: usize,
        /// The column with the end.
        end: usize,
    },
    /// Tumbling windows by the clock instead of event time.
    ProcessingTumble {
        /// The length.
        width_us: i64,
    },
    /// A number of rows of a key, in the order in which they come to an instance. Rows of different upstream instances
    /// have no fixed order.
    Count {
        /// The number of rows of a window.
        rows: u32,
        /// How many rows later the next window begins: at most as many as a window has.
        slide_rows: u32,
    },
}

/// The part of an aggregation that an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// All of it.
    Whole,
    /// Rows to states: the output has [`KeyedWindow::partial_schema`]. If that does not reduce their number, each row
    /// comes out as the states of that row alone.
    Partial,
    /// States to results.
    Final,
}

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

/// The plan that all instances share.
pub(crate) struct WindowPlan {
    pub(crate) spec: KeyedWindowSpec,
    pub(crate) groups: GroupPlan,
    pub(crate) keys: KeyPlan,
    /// The columns between the two phases.
    pub(crate) partial: SchemaRef,
    pub(crate) output: SchemaRef,
    /// By how much rows may come behind the watermark, in microseconds.
    behind_us: i64,
}

impl WindowPlan {
    /// The time up to which windows close at this watermark.
    pub(crate) fn passed_us(&self, watermark_us: i64) -> i64 {
        watermark_us.saturating_sub(self.behind_us)
    }
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
                return Err(PlanError::Operator {
                    operator: "window",
                    problem: format!("{} cannot take rows back", spec.window.text(&spec.input)),
                    hint: "use windows that tumble".into(),
                });
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
            false => Err(PlanError::Operator {
                operator: "window",
                problem: "this aggregation cannot be split into a partial and a final one".into(),
                hint: "ask KeyedWindow::can_be_split first".into(),
            }),
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

impl KeyedWindowKind {
    /// The window as `EXPLAIN` shows it.
    pub(crate) fn text(&self, input: &Schema) -> String {
        let seconds = span_text;
        let offset = |us: i64| if us == 0 { String::new() } else { format!(", offset {}", seconds(us)) };
        match *self {
            Self::Tumble { width_us, offset_us } => format!("tumble({}{})", seconds(width_us), offset(offset_us)),
            Self::Hop { slide_us, width_us, offset_us } => {
                format!("hop({}, {}{})", seconds(slide_us), seconds(width_us), offset(offset_us))
            }
            Self::Cumulate { step_us, width_us, offset_us } => {
                format!("cumulate({}, {}{})", seconds(step_us), seconds(width_us), offset(offset_us))
            }
            Self::Session { gap_us } => format!("session({})", seconds(gap_us)),
            Self::Attached { start, end } => {
                format!("windows of the rows ({}, {})", input.field(start).name(), input.field(end).name())
            }
            Self::ProcessingTumble { width_us } => format!("tumble({}) by the clock", seconds(width_us)),
            Self::Count { rows, slide_rows } if rows == slide_rows => format!("count_window({rows})"),
            Self::Count { rows, slide_rows } => format!("count_window({rows}, {slide_rows})"),
        }
    }

    /// Checks the lengths, and the columns from which they are read.
    ///
    /// # Errors
    /// Lengths that no window can have, windows of too many panes, columns that hold no times.
    pub fn check(&self, input: &Schema) -> Result<(), PlanError> {
        let fail = |problem: &str, hint: &str| {
            Err(PlanError::Operator { operator: "window", problem: problem.into(), hint: hint.into() })
        };
        match *self {
            Self::Attached { start, end } => {
                check_time(input, start, "the window's start")?;
                return check_time(input, end, "the window's end");
            }
            Self::Count { rows, slide_rows } => {
                return match (1..=rows).contains(&slide_rows) && rows <= ROWS_MAX {
                    true => Ok(()),
                    false => fail(
                        "the slide is not between 1 and the number of rows, or that is more than a million",
                        "write for example count_window(100, 10): rows, then slide",
                    ),
                };
            }
            Self::Cumulate { step_us, width_us, .. } if step_us > 0 && width_us % step_us != 0 => {
                return fail(
                    "the width is not a multiple of the step",
                    "write for example a step of 1 minute and a width of 1 hour",
                );
            }
            _ => {}
        }
        let lengths = match *self {
            Self::Tumble { width_us, .. } | Self::ProcessingTumble { width_us } => [width_us, width_us],
            Self::Hop { slide_us, width_us, .. } => [slide_us, width_us],
            Self::Cumulate { step_us, width_us, .. } => [step_us, width_us],
            Self::Session { gap_us } => [gap_us, gap_us],
            Self::Attached { .. } | Self::Count { .. } => [1, 1],
        };
        if !lengths.iter().all(|length| (1..=LENGTH_US_MAX).contains(length)) {
            return fail(
                "a length is not between 1 microsecond and 100 years",
                "write for example INTERVAL '10 seconds'",
            );
        }
        let panes = Bounds::of(self).map_or(1, |bounds| bounds.width_us / bounds.pane_us);
        Ok(check_panes(panes, false)?)
    }
}

/// The most rows of a window.
pub const ROWS_MAX: u32 = 1_000_000;
/// The longest window: a hundred years. So ends of windows stay far from the ends of time.
const LENGTH_US_MAX: i64 = 100 * 366 * 24 * 3600 * 1_000_000;

/// The key as `EXPLAIN` shows it; `None` without one.
pub(crate) fn by_text(input: &Schema, keys: &[usize]) -> Option<String> {
    let names: Vec<&str> = keys.iter().map(|&key| input.field(key).name().as_str()).collect();
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
            let function = aggregate.function;
            Ok(Arc::new(function.result_field(&aggregate.name, function.result_type(&types)?)))
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

    fn is_stateful(&self) -> bool {
        true
    }

    /// The keys and, for windows of time, their bounds.
    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        let keys = frame.rows.columns().get(2..2 + self.plan.keys.len() + 2)?;
        Some(keys.to_vec())
    }
}
