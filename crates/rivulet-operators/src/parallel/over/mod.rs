//! Aggregates over the rows before each row: `avg(x) OVER (PARTITION BY .. ORDER BY .. ROWS 10 PRECEDING)`.
//!
//! Rows in order of event time wait for the watermark and come out once ([`waiting`]). In any other order, or if rows
//! are retracted, results change ([`changing`]). The rows that a row sees are a [`Frame`](super::frame::Frame).

mod changing;
mod plan;
mod waiting;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema, SchemaRef};

pub use self::plan::{KeyedOverSpec, Lag, OverFrame, Versions};

use self::changing::ChangingOperator;
use self::plan::{OverPlan, is_bounded, is_by_time, waits};
use self::waiting::WaitingOperator;
use super::check_columns;
use super::groups::{GroupPlan, Mode};
use super::keys::KeyPlan;
use super::order::order_text;
use super::saved_rows::state_keys;
use super::time_to_live::{span_text, state_text};
use super::window::{aggregate_fields, by_text, names};
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory, StateFrame};

use crate::{AggregateSpec, PlanError};

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

/// What to do where rows are wanted that are not at hand.
const WITH_AS_MANY_ROWS: &str = "order by the event time, ascending, with a frame of as many rows";

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
            let hint = "order by a column of type TIMESTAMP, ascending, or write ROWS n PRECEDING";
            return Err(PlanError::operator("over", "RANGE with an interval needs rows in order of time", hint));
        }
        let results = aggregate_fields(&spec.aggregates, &spec.input)?;
        check_columns(&spec.input, spec.lags.iter().map(|lag| lag.column), "the value of an earlier row")?;
        let reach = match spec.frame {
            OverFrame::Rows { preceding } if waits(&spec) => preceding.unwrap_or(0),
            _ => 0,
        };
        if let Some(lag) = spec.lags.iter().find(|lag| !(1..=reach).contains(&u64::from(lag.rows))) {
            let problem = format!("{} rows before each are not at hand", lag.rows);
            return Err(PlanError::operator("over", problem, WITH_AS_MANY_ROWS));
        }
        let lags = spec
            .lags
            .iter()
            .map(|lag| Arc::new(spec.input.field(lag.column).clone().with_name(&lag.name).with_nullable(true)));
        let fields: Vec<_> = spec.input.fields().iter().cloned().chain(results).chain(lags).collect();
        let output = Arc::new(Schema::new(fields));
        let mut groups = GroupPlan::new(&spec.aggregates, &spec.input, Mode::Merging)?;
        groups.layout.in_order = waits(&spec);
        let keys = KeyPlan::new(&spec.input, &spec.partition)?;
        let is_of_all = !is_bounded(spec.frame) && waits(&spec);
        if let Some(one) = spec.aggregates.iter().find(|one| one.function.is_sequence() && !is_of_all) {
            let hint = "order by the event time, ascending, with ROWS UNBOUNDED PRECEDING";
            return Err(PlanError::operator("over", format!("{} follows all rows one by one", one.function), hint));
        }
        let plan = OverPlan { spec, keys, groups, output, ahead_us: 0, leads: Vec::new(), versions: None };
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
            let problem = "values of later rows stand alone, over the rows that wait for them";
            return Err(PlanError::operator("over", problem, WITH_AS_MANY_ROWS));
        }
        let input = spec.input.clone();
        let later = leads
            .iter()
            .map(|lead| Arc::new(input.field(lead.column).clone().with_name(&lead.name).with_nullable(true)));
        let output = Arc::new(Schema::new(input.fields().iter().cloned().chain(later).collect::<Vec<_>>()));
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            (plan.leads, plan.output) = (leads, output);
        }
        Ok(self)
    }

    /// Gives each row that is no version the newest version of its partition that is not later than the row in the
    /// order. Versions themselves do not come out. The output columns are those of [`Versions`] alone.
    ///
    /// # Errors
    /// Rows do not wait for the watermark; the operator also computes something else; the frame holds more than one
    /// row; or columns do not exist.
    pub fn with_versions(mut self, versions: Versions) -> Result<Self, PlanError> {
        let spec = &self.plan.spec;
        let columns = || versions.columns.iter().chain(&versions.of_version).copied();
        check_columns(&spec.input, columns().chain([versions.is_version]), "the column of a version")?;
        let is_marked = *spec.input.field(versions.is_version).data_type() == DataType::Boolean;
        let is_alone = spec.aggregates.is_empty() && spec.lags.is_empty() && self.plan.leads.is_empty();
        if !is_marked || !is_alone || !waits(spec) || spec.frame != (OverFrame::Rows { preceding: Some(0) }) {
            let problem = "versions stand alone, over rows that wait for them and are marked";
            let hint = "order by the event time, ascending, with a frame of one row";
            return Err(PlanError::operator("over", problem, hint));
        }
        let fields: Vec<_> = columns().map(|column| spec.input.fields()[column].clone()).collect();
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            (plan.versions, plan.output) = (Some(versions), Arc::new(Schema::new(fields)));
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
        if let Some(versions) = &self.plan.versions {
            let name = |&column: &usize| spec.input.field(column).name().as_str();
            let of_version: Vec<&str> = versions.of_version.iter().map(name).collect();
            shared.push(format!("the version at {}: {}", name(&spec.order[0].column), of_version.join(", ")));
            shared.extend(versions.keeps_unmatched.then(|| "rows without a version stay".to_owned()));
            shared.push(state_text(self.plan.ttl_us(), "the last row of a key"));
            return Description { operator: "as of".into(), shared, per_slot: vec![] };
        }
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

    fn state(&self) -> Option<Address> {
        let spec = &self.plan.spec;
        Some(Address {
            keys: names(&spec.input, &spec.partition),
            aggregates: spec.aggregates.iter().map(AggregateSpec::text).collect(),
            rest: order_text(&spec.input, &spec.order).into_iter().chain([frame_text(spec.frame)]).collect(),
            ..Address::of(if self.waits() { waiting::STATE } else { changing::STATE })
        })
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        state_keys(frame, ADDED, &self.plan.spec.partition)
    }
}

/// A frame as addresses say it, which are saved: in the same text for ever.
fn frame_text(frame: OverFrame) -> String {
    let most = |most: Option<i128>| most.map_or_else(|| "None".into(), |most| format!("Some({most})"));
    match frame {
        OverFrame::Rows { preceding } => format!("Rows {{ preceding: {} }}", most(preceding.map(i128::from))),
        OverFrame::Range { preceding_us } => {
            format!("Range {{ preceding_us: {} }}", most(preceding_us.map(i128::from)))
        }
    }
}
