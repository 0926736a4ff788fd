//! Windows with a watermark per slot.
//!
//! # Time
//! Every slot has its own event clock. `max_ts` is the largest event time that the slot has accepted; `last_arrival` is
//! the arrival of its newest accepted row. The watermark at arrival-clock time t is `max_ts - lateness`. Once the time
//! from `last_arrival` to t has reached the idle timeout, it is added to the watermark, so a slot whose device fell
//! silent closes its windows by the clock. The watermark never goes back. It is a function of the slot's rows and of t
//! alone, so results depend neither on how rows are cut into batches nor on when ticks run. (The host must not tick
//! with a time later than the arrival of a row that it has yet to hand in.) For windows over arrival time the watermark
//! is the clock.
//!
//! Rows are processed one at a time in the order of arrival: close what the row's arrival closes; refuse the row as
//! late if every window it belongs to is closed; count it; close what its event time closes. A window `[start, end)`
//! closes when the watermark reaches `end`, and is emitted if it holds a row. All keys of a slot share its watermark.
//!
//! # Windows over windows
//! Rows may be results of earlier windows by time (`over_windows`). They come by ascending event time, and all results
//! of earlier windows with one end come together, so a row with event time t says that the watermark is at least t.
//! Beyond that the clock of a slot is the one of the earlier windows. They tell `max_ts`, `last_arrival` and the
//! watermark behind their results ([`Element::Clocks`](rivulet_dataflow::Element::Clocks)). The watermark does not
//! follow from the other two: a silence that a row has ended may have brought it further. Lateness and idle timeout are
//! the same, so the watermark of both is the same at any time. Windows close as early as the earlier ones allow, also
//! where no result comes, and no row is late.
//!
//! # Output
//! The columns are the keys, `window_start`, `window_end`, and the aggregates. A row's event time is the last
//! microsecond of its window (for windows of rows and of a state the event time of its last row). Its arrival is that
//! of the row or tick which closed the window. Windows of a slot come out by ascending end, and for one end by the age
//! of the key.
//!
//! # In reading order
//! [`length`]: the kinds of windows and their lengths per slot; [`panes`]: a cell's panes in one piece of memory;
//! [`plan`]: what all instances share; [`shared`]: what successive windows have in common; [`cells`]: all slots, keys
//! and clocks; [`rules`]: what a row closes and where it counts; [`operator`]: the loop over rows; [`output`]: closed
//! windows as rows; [`state`]: export and import.

pub mod length;
pub(crate) mod cells;
pub(crate) mod operator;
pub(crate) mod output;
pub(crate) mod panes;
pub(crate) mod plan;
pub(crate) mod rules;
pub(crate) mod shared;
pub(crate) mod state;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_physical_expr::PhysicalExpr;
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory};

pub(crate) use length::check_panes;
pub use length::{Lengths, WindowSpec, check_lengths};

use crate::aggregate::AggregateSpec;
use crate::aggregate::layout::Layout;
use crate::assign_time::TIME_TYPE;
use crate::error::PlanError;
use crate::expression::{Expressions, NamedExpression, is_condition, sql};
use crate::row_bytes::RowBytes;
use plan::Plan;

/// The plan of a window aggregation, as the planner gives it.
///
/// Keys, arguments and filters are compiled against [`Expressions::evaluation_schema`]`(input, parameter_schema,
/// parameters)`; the lengths of the window against `parameter_schema` alone.
#[derive(Clone, Debug)]
pub struct WindowAggregateSpec {
    /// The columns of the input.
    pub input: SchemaRef,
    /// The slot table's schema.
    pub parameter_schema: SchemaRef,
    /// The parameters that keys, arguments and filters use, as indices of `parameter_schema`.
    pub parameters: Vec<usize>,
    /// The window.
    pub window: WindowSpec,
    /// Of windows of a state, two conditions: a row that meets the first one opens a window, and a row in the window
    /// that meets the second one is its last. Other windows have none.
    pub conditions: Vec<Arc<dyn PhysicalExpr>>,
    /// The expressions that rows are grouped by, beside the window.
    pub keys: Vec<NamedExpression>,
    /// The aggregates of each window.
    pub aggregates: Vec<AggregateSpec>,
    /// How far a row may be behind the newest row and still count, in microseconds. Windows close that much later.
    pub lateness_us: i64,
    /// After how much silence a slot's watermark follows the clock, in microseconds; `i64::MAX` for never.
    pub idle_timeout_us: i64,
    /// Whether windows are over arrival time. Lateness and idle timeout do not matter then.
    pub arrival_time: bool,
    /// Whether the rows are results of earlier windows by time. The watermark is theirs then, and no row is late.
    pub over_windows: bool,
    /// Whether later windows are over the results, so that they need the clock.
    pub tells_clocks: bool,
}

/// The name of the output column with the start of the window.
pub const WINDOW_START: &str = "window_start";
/// The name of the output column with the end of the window.
pub const WINDOW_END: &str = "window_end";

/// Aggregates the rows of each slot (and key) by windows. See the [module](self) for what it does exactly.
///
/// # Example
/// The average over `tumble(ts, $width)`, where each query has a width of its own:
/// ```
/// use std::sync::Arc;
/// use arrow::datatypes::{DataType, Field, IntervalUnit, Schema};
/// use datafusion_physical_expr::expressions::Column;
/// use rivulet_dataflow::OperatorFactory;
/// use rivulet_operators::{AggregateFunction, AggregateSpec, WindowAggregate, WindowAggregateSpec, WindowSpec};
///
/// let interval = DataType::Interval(IntervalUnit::MonthDayNano);
/// let average = WindowAggregate::new(WindowAggregateSpec {
///     input: Arc::new(Schema::new(vec![Field::new("value", DataType::Float64, true)])),
///     parameter_schema: Arc::new(Schema::new(vec![Field::new("width", interval, true)])),
///     parameters: vec![],
///     window: WindowSpec::Tumble { width: Arc::new(Column::new("width", 0)) },
///     conditions: vec![],
///     keys: vec![],
///     aggregates: vec![AggregateSpec {
///         name: "average".into(),
///         function: AggregateFunction::Avg,
///         arguments: vec![Arc::new(Column::new("value", 0))],
///         filter: None,
///     }],
///     lateness_us: 2_000_000,
///     idle_timeout_us: 30_000_000,
///     arrival_time: false,
///     over_windows: false,
///     tells_clocks: false,
/// })
/// .unwrap();
/// let columns: Vec<_> = average.output_schema().fields().iter().map(|field| field.name().clone()).collect();
/// assert_eq!(columns, ["window_start", "window_end", "average"]);
/// assert_eq!(average.describe().shared[0], "tumble(width)");
/// ```
#[derive(Clone)]
pub struct WindowAggregate {
    plan: Arc<Plan>,
}

impl WindowAggregate {
    /// Makes a window aggregation, or returns what is wrong with its plan.
    pub fn new(spec: WindowAggregateSpec) -> Result<Self, PlanError> {
        let WindowAggregateSpec { input, parameter_schema, parameters, window, conditions, keys, aggregates, .. } =
            spec;
        let lengths = length::LengthExpressions::new(&window, &parameter_schema)?;
        let evaluation = Expressions::evaluation_schema(&input, &parameter_schema, &parameters);
        let key_expressions: Vec<_> = keys.iter().map(|key| key.expression.clone()).collect();
        let (layout, layout_expressions) = Layout::new(&aggregates, &evaluation, window.header_halves())?;
        let expressions = Expressions::new(
            &input,
            &parameter_schema,
            parameters,
            key_expressions.into_iter().chain(conditions.iter().cloned()).chain(layout_expressions).collect(),
        )?;
        let filters = aggregates.iter().filter_map(|aggregate| aggregate.filter.as_ref());
        let filters = filters.map(|filter| ("FILTER (WHERE ...)", filter));
        for (what, condition) in filters.chain(conditions.iter().map(|condition| ("state_window", condition))) {
            let data_type = condition.data_type(&evaluation).unwrap_or(DataType::Null);
            if !is_condition(&data_type) {
                return Err(PlanError::Expression {
                    expression: sql(condition),
                    problem: format!("{what} needs a condition, this has type {data_type}"),
                });
            }
        }
        let needed = if matches!(window, WindowSpec::State) { 2 } else { 0 };
        if conditions.len() != needed {
            let problem = format!("{window} has {needed} conditions, and {} are given", conditions.len());
            return Err(PlanError::Expression { expression: window.to_string(), problem });
        }
        let key_fields: Vec<Field> = keys
            .iter()
            .zip(expressions.fields())
            .map(|(key, field)| field.clone().with_name(&key.name).with_nullable(true))
            .collect();
        // Fails for types that cannot be a key.
        RowBytes::new(key_fields.iter().map(Field::data_type))?;
        let bounds = [Field::new(WINDOW_START, TIME_TYPE, false), Field::new(WINDOW_END, TIME_TYPE, false)];
        let results = layout.results.iter().zip(&aggregates);
        let results = results.map(|(result, spec)| spec.result_field(result.data_type.clone(), &evaluation));
        let output: Vec<Field> = key_fields.iter().cloned().chain(bounds).chain(results).collect();
        Ok(Self {
            plan: Arc::new(Plan {
                window,
                lengths,
                expressions,
                keys: keys.len(),
                conditions: conditions.len(),
                key_fields,
                layout,
                lateness_us: spec.lateness_us.max(0),
                idle_timeout_us: spec.idle_timeout_us.max(0),
                arrival_time: spec.arrival_time,
                over_windows: spec.over_windows,
                tells_clocks: spec.tells_clocks,
                output: Arc::new(Schema::new(output)),
                aggregates,
            }),
        })
    }

    /// The output columns: keys, [`WINDOW_START`], [`WINDOW_END`], aggregates.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }
}

impl OperatorFactory for WindowAggregate {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(operator::WindowOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let plan = &self.plan;
        let mut shared = vec![plan.window.to_string()];
        let keys: Vec<&str> = plan.key_fields.iter().map(|field| field.name().as_str()).collect();
        if !keys.is_empty() {
            shared.push(format!("by {}", keys.join(", ")));
        }
        shared.extend(plan.aggregates.iter().map(AggregateSpec::text));
        if plan.window.is_time() {
            shared.push(match plan.arrival_time {
                _ if plan.over_windows => "over the results of earlier windows".into(),
                true => "over arrival time".into(),
                false if plan.idle_timeout_us == i64::MAX => format!("lateness {} ms", plan.lateness_us / 1000),
                false => {
                    format!("lateness {} ms, idle timeout {} ms", plan.lateness_us / 1000, plan.idle_timeout_us / 1000)
                }
            });
        }
        let mut per_slot = plan.expressions.parameter_names();
        per_slot.extend(
            plan.lengths
                .parameter_names()
                .into_iter()
                .filter(|name| !plan.expressions.parameter_names().contains(name)),
        );
        if plan.window.is_time() && !plan.arrival_time {
            per_slot.push("watermark".into());
        }
        per_slot.push(match plan.layout.objects.len() {
            0 => format!("{} bytes a pane", plan.layout.entry_words * 8),
            objects => format!("{} bytes and {objects} object(s) a pane", plan.layout.entry_words * 8),
        });
        Description { operator: "window aggregate".into(), shared, per_slot }
    }

    fn state(&self) -> Option<Address> {
        let plan = &self.plan;
        Some(Address {
            keys: plan.key_fields.iter().map(|field| field.name().clone()).collect(),
            aggregates: plan.aggregates.iter().map(AggregateSpec::text).collect(),
            window: Some(plan.window.address()),
            ..Address::of(state::OPERATOR)
        })
    }
}
