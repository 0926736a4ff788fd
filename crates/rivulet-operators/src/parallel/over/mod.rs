//! Aggregates over the rows before each row: `avg(x) OVER (PARTITION BY .. ORDER BY .. ROWS 10 PRECEDING)`.
//!
//! Rows in order of event time wait for the watermark and come out once ([`waiting`]). In any other order, or if rows
//! are retracted, results change ([`changing`]). The rows that a row sees are a [`Frame`].

mod changing;
mod waiting;

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};

use self::changing::ChangingOperator;
use self::waiting::WaitingOperator;
use super::frame::Frame;
use super::groups::{GroupPlan, GroupStates, Mode};
use super::keys::KeyPlan;
use super::order::{SortKey, order_text};
use super::rows::RowStore;
use super::saved_rows::state_keys;
use super::time_to_live::{span_text, state_text};
use super::window::{aggregate_fields, by_text};
use super::{TIME, check_columns};
use rivulet_dataflow::{Batch, Context, Description, Operator, OperatorError, OperatorFactory, StateFrame};

use crate::aggregate::dense::RowSet;
use crate::{AggregateSpec, PlanError};

/// The plan of aggregates over preceding rows.
#[derive(Clone, Debug)]
pub struct KeyedOverSpec {
    /// The columns of the input.
    pub input: SchemaRef,
    /// The columns by which rows are divided. Without columns, all rows are one partition.
    pub partition: Vec<usize>,
    /// The order within a partition.
    pub order: Vec<SortKey>,
    /// The rows that an aggregate sees beside its own.
    pub frame: OverFrame,
    /// The aggregates for each row.
    pub aggregates: Vec<AggregateSpec>,
    /// Values of earlier rows. They need rows that wait, and a frame that reaches that far back.
    pub lags: Vec<Lag>,
    /// Whether the input may have retractions.
    pub input_retracts: bool,
    /// How long a partition is remembered for which no row comes, in microseconds of event time; `None`: for ever.
    /// `Some(0)`: its rows are of one window and have the last microsecond of the window as event time. The partition
    /// is forgotten when the window closes, and rows that come later are refused.
    pub state_ttl_us: Option<i64>,
}

/// `LAG(column, rows)`: the value in the row this many rows before each row in its partition; null if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The name of the output column.
    pub name: String,
    /// The input column.
    pub column: usize,
    /// How many rows before: at least one.
    pub rows: u32,
}

/// The rows that an aggregate sees, up to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverFrame {
    /// A number of rows before its own; `None`: all.
    Rows {
        /// How many.
        preceding: Option<u64>,
    },
    /// The rows whose time (the first column of the order) is at most this much earlier, and all rows that are equal to
    /// its own in the order; `None`: all rows before it.
    Range {
        /// How much earlier, in microseconds.
        preceding_us: Option<i64>,
    },
}

/// Aggregates over the rows before each row; see [`KeyedOverSpec`].
///
/// The output columns are those of the input, the aggregates, and the values of earlier rows. If the order begins with
/// an ascending column of times and no row is retracted ([`KeyedOver::waits`]), that column must be the event time.
/// Then a row waits until the watermark has passed it, comes out once, and is refused as late behind the watermark.
/// Otherwise a row comes out at once, and changed results are retracted. Rows that are equal in the order are ordered
/// by their content.
///
/// A partition is forgotten after [`KeyedOverSpec::state_ttl_us`]. If rows wait and the frame is a range of time, it is
/// also forgotten once no later row can see any of its rows. A row that comes later sees no row from before; no row is
/// retracted.
#[derive(Clone)]
pub struct KeyedOver {
    plan: Arc<OverPlan>,
}

/// The number of columns that a saved row has beside its own, whether rows wait or change.
const ADDED: usize = 2;

/// The plan that all instances share.
pub(crate) struct OverPlan {
    spec: KeyedOverSpec,
    keys: KeyPlan,
    groups: GroupPlan,
    output: SchemaRef,
    /// By how much the time of a row is at least ahead of the watermark, in microseconds.
    ahead_us: i64,
    /// Values of later rows, for which rows wait.
    leads: Vec<Lag>,
}

impl OverPlan {
    fn store(&self) -> Result<RowStore, PlanError> {
        RowStore::new(&self.spec.input, &(0..self.spec.input.fields().len()).collect::<Vec<_>>())
    }

    fn result_store(&self) -> Result<RowStore, PlanError> {
        let results = self.spec.input.fields().len()..self.output.fields().len();
        RowStore::new(&self.output, &results.collect::<Vec<_>>())
    }

    /// Whether rows leave the frame.
    fn is_bounded(&self) -> bool {
        !matches!(self.spec.frame, OverFrame::Rows { preceding: None } | OverFrame::Range { preceding_us: None })
    }

    /// For how many later rows a row waits; 0 if it does not wait.
    fn later_rows(&self) -> u32 {
        self.leads.iter().map(|lead| lead.rows).max().unwrap_or(0)
    }

    /// How long after its last row a partition is forgotten. A range of time has its own limit: when no later row can
    /// reach it.
    fn ttl_us(&self) -> Option<i64> {
        let reach_us = match self.spec.frame {
            OverFrame::Range { preceding_us } if waits(&self.spec) => preceding_us,
            _ => None,
        };
        self.spec.state_ttl_us.into_iter().chain(reach_us).min()
    }

    /// Whether the oldest row of a frame leaves it with a row of this time.
    fn leaves(&self, frame: &Frame, time_us: i64) -> bool {
        match self.spec.frame {
            OverFrame::Rows { preceding: Some(rows) } => frame.len() as u64 > rows.saturating_add(1),
            OverFrame::Range { preceding_us: Some(reach_us) } => {
                frame.oldest().is_some_and(|oldest| oldest.time_us < time_us.saturating_sub(reach_us))
            }
            _ => false,
        }
    }

    /// Computes the states of each single row. Returns them together with the rows on which no expression failed, in
    /// the same order.
    fn entries(
        &self,
        store: &RowStore,
        rows: &[u32],
        context: &mut Context<'_>,
    ) -> Result<(GroupStates, Vec<u32>), OperatorError> {
        let columns = RecordBatch::try_new(self.spec.input.clone(), store.columns(rows)?)?;
        // The arrival of a row holds its index, because rows on which an expression fails are missing afterwards.
        let batch = Batch::new(
            vec![0; rows.len()].into(),
            rows.iter().map(|&row| store.event_time_us(row)).collect(),
            (0..rows.len() as i64).collect(),
            columns,
        );
        let (batch, values) = self.groups.evaluate(batch, context)?;
        let mut states = self.groups.states();
        states.grow(&self.groups, batch.rows());
        let groups: Vec<u32> = (0..batch.rows() as u32).collect();
        let all = RowSet::Range(0..batch.rows());
        states.update(&self.groups, &values, &groups, &all, &batch.event_time_us);
        Ok((states, batch.arrival_us.iter().map(|&at| rows[at as usize]).collect()))
    }

    /// Names what the states mean, for saved states.
    fn states(&self) -> String {
        let KeyedOverSpec { partition, order, frame, .. } = &self.spec;
        format!("{partition:?} {order:?} {frame:?} {}", self.groups.fingerprint())
    }
}

impl KeyedOver {
    /// Checks a specification.
    ///
    /// # Errors
    /// Columns that do not exist or cannot be compared, a range over an order that does not begin with an ascending
    /// column of times, aggregates that do not fit their arguments.
    pub fn new(spec: KeyedOverSpec) -> Result<Self, PlanError> {
        check_columns(&spec.input, spec.partition.iter().copied(), "the partition")?;
        check_columns(&spec.input, spec.order.iter().map(|key| key.column), "the order")?;
        if matches!(spec.frame, OverFrame::Range { preceding_us: Some(_) }) && !is_by_time(&spec) {
            return Err(PlanError::Operator {
                operator: "over",
                problem: "RANGE with an interval needs rows in order of time".into(),
                hint: "order by a column of type TIMESTAMP, ascending, or write ROWS n PRECEDING".into(),
            });
        }
        let results = aggregate_fields(&spec.aggregates, &spec.input)?;
        check_columns(&spec.input, spec.lags.iter().map(|lag| lag.column), "the value of an earlier row")?;
        let reach = match spec.frame {
            OverFrame::Rows { preceding } if waits(&spec) => preceding.unwrap_or(0),
            _ => 0,
        };
        if let Some(lag) = spec.lags.iter().find(|lag| !(1..=reach).contains(&u64::from(lag.rows))) {
            return Err(PlanError::Operator {
                operator: "over",
                problem: format!("{} rows before each are not at hand", lag.rows),
                hint: "order by the event time, ascending, with a frame of as many rows".into(),
            });
        }
        let lags = spec
            .lags
            .iter()
            .map(|lag| Arc::new(Field::new(&lag.name, spec.input.field(lag.column).data_type().clone(), true)));
        let fields: Vec<_> = spec.input.fields().iter().cloned().chain(results).chain(lags).collect();
        let output = Arc::new(Schema::new(fields));
        let groups = GroupPlan::new(&spec.aggregates, &spec.input, Mode::Merging)?;
        let keys = KeyPlan::new(&spec.input, &spec.partition)?;
        let plan = OverPlan { spec, keys, groups, output, ahead_us: 0, leads: Vec::new() };
        plan.store()?;
        plan.result_store()?;
        Ok(Self { plan: Arc::new(plan) })
    }

    /// For rows whose time is at least this many microseconds ahead of the watermark, like ends of windows: a row need
    /// not wait until the watermark itself has passed it, if the operators behind may rely on the same.
    #[must_use]
    pub fn with_rows_ahead(mut self, ahead_us: i64) -> Self {
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            plan.ahead_us = ahead_us.max(0);
        }
        self
    }

    /// `LEAD(column, rows)`: adds the values of later rows as further columns. A row comes out when the last of these
    /// later rows has its turn, and at the latest when its partition is forgotten or the input ends. Values of rows
    /// that have not come by then are null.
    ///
    /// # Errors
    /// Rows do not wait for the watermark; the operator also computes something else; or the frame does not hold
    /// exactly the rows that wait.
    pub fn with_leads(mut self, leads: Vec<Lag>) -> Result<Self, PlanError> {
        let spec = &self.plan.spec;
        check_columns(&spec.input, leads.iter().map(|lead| lead.column), "the value of a later row")?;
        let most = leads.iter().map(|lead| lead.rows).max().unwrap_or(0);
        let holds_them = matches!(spec.frame, OverFrame::Rows { preceding: Some(rows) } if rows + 1 == u64::from(most));
        if !holds_them || !waits(spec) || !spec.aggregates.is_empty() || !spec.lags.is_empty() {
            return Err(PlanError::Operator {
                operator: "over",
                problem: "values of later rows stand alone, over the rows that wait for them".into(),
                hint: "order by the event time, ascending, with a frame of as many rows".into(),
            });
        }
        let input = spec.input.clone();
        let later = leads
            .iter()
            .map(|lead| Arc::new(Field::new(&lead.name, input.field(lead.column).data_type().clone(), true)));
        let output = Arc::new(Schema::new(input.fields().iter().cloned().chain(later).collect::<Vec<_>>()));
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            (plan.leads, plan.output) = (leads, output);
        }
        Ok(self)
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }

    /// Whether rows wait for the watermark. Then no output row is retracted.
    pub fn waits(&self) -> bool {
        waits(&self.plan.spec)
    }
}

fn waits(spec: &KeyedOverSpec) -> bool {
    !spec.input_retracts && is_by_time(spec)
}

fn is_by_time(spec: &KeyedOverSpec) -> bool {
    spec.order.first().is_some_and(|key| !key.descending && *spec.input.field(key.column).data_type() == TIME)
}

impl OperatorFactory for KeyedOver {
    fn create(&self) -> Box<dyn Operator> {
        match self.waits() {
            true => Box::new(WaitingOperator::new(self.plan.clone())),
            false => Box::new(ChangingOperator::new(self.plan.clone())),
        }
    }

    fn describe(&self) -> Description {
        let spec = &self.plan.spec;
        let mut shared: Vec<String> = by_text(&spec.input, &spec.partition).into_iter().collect();
        shared.extend(order_text(&spec.input, &spec.order));
        shared.push(match spec.frame {
            OverFrame::Rows { .. } if !self.plan.leads.is_empty() => {
                format!("rows wait for {} later ones", self.plan.later_rows())
            }
            OverFrame::Rows { preceding: Some(rows) } => format!("rows {rows} preceding"),
            OverFrame::Rows { preceding: None } => "rows unbounded preceding".into(),
            OverFrame::Range { preceding_us: Some(us) } => format!("range {} preceding", span_text(us)),
            OverFrame::Range { preceding_us: None } => "range unbounded preceding".into(),
        });
        shared.extend(spec.aggregates.iter().map(AggregateSpec::text));
        let other =
            |name: &str, other: &Lag| format!("{name}({}, {})", spec.input.field(other.column).name(), other.rows);
        shared.extend(spec.lags.iter().map(|lag| other("lag", lag)));
        shared.extend(self.plan.leads.iter().map(|lead| other("lead", lead)));
        shared.push(state_text(self.plan.ttl_us(), "the last row of a partition"));
        Description { operator: "over".into(), shared, per_slot: vec![] }
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        state_keys(frame, ADDED, &self.plan.spec.partition)
    }
}
