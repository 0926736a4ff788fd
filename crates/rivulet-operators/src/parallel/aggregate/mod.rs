//! GROUP BY without windows: results that change as rows come. [`operator`] computes them, [`state`] keeps,
//! exports and imports what belongs to the keys.

mod operator;
mod plan;
mod state;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{Schema, SchemaRef};
use rivulet_dataflow::{Address, Description, Operator, OperatorFactory, StateFrame};

pub use self::plan::KeyedAggregateSpec;

use self::operator::AggregateOperator;
use self::plan::AggregatePlan;
use super::check_columns;
use super::groups::{GroupPlan, Mode};
use super::keys::KeyPlan;
use super::time_to_live::state_text;
use super::window::{aggregate_fields, by_text, names};
use crate::{AggregateSpec, PlanError};

/// Aggregates rows by key; see [`KeyedAggregateSpec`].
///
/// The output columns are the keys and the aggregates. When the result of a key changes, its old row is retracted and
/// its new row follows. That happens at the next watermark, or earlier if the operator is idle or has received 4,096
/// rows since, so that a key that changes often comes out once. DISTINCT retracts nothing if its input has no
/// retractions.
///
/// When a key is forgotten, its emitted result is not retracted. Rows that come for the key later begin anew, and
/// retractions of its old rows have no effect.
#[derive(Clone)]
pub struct KeyedAggregate {
    plan: Arc<AggregatePlan>,
}

impl KeyedAggregate {
    /// Checks a specification.
    ///
    /// # Errors
    /// Columns that do not exist, aggregates that do not fit their arguments, and aggregates that cannot retract a row
    /// if the input may have retractions.
    pub fn new(spec: KeyedAggregateSpec) -> Result<Self, PlanError> {
        check_columns(&spec.input, spec.keys.iter().copied(), "the key")?;
        let keys = spec.keys.iter().map(|&key| Arc::new(spec.input.field(key).clone()));
        let results = aggregate_fields(&spec.aggregates, &spec.input)?;
        let output = Arc::new(Schema::new(keys.chain(results).collect::<Vec<_>>()));
        let mode = match () {
            () if spec.input_retracts => Mode::Undoing,
            () if spec.state_ttl_us.is_some() && !spec.keys.is_empty() => Mode::Merging,
            () => Mode::Together,
        };
        let groups = GroupPlan::new(&spec.aggregates, &spec.input, mode)?;
        let keys = KeyPlan::new(&spec.input, &spec.keys)?;
        Ok(Self { plan: Arc::new(AggregatePlan { spec, groups, keys, output, gives_at_once: false }) })
    }

    /// Emits the one row of an aggregation without keys at once, before rows have come, so that a join with it does not
    /// wait for a row that may never come.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        if let Some(plan) = Arc::get_mut(&mut self.plan) {
            plan.gives_at_once = plan.spec.keys.is_empty();
        }
        self
    }

    /// The output columns.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }

    /// Whether the output may have retractions.
    pub fn output_retracts(&self) -> bool {
        self.plan.spec.input_retracts || !self.plan.spec.aggregates.is_empty()
    }
}

impl OperatorFactory for KeyedAggregate {
    fn create(&self) -> Box<dyn Operator> {
        Box::new(AggregateOperator::new(self.plan.clone()))
    }

    fn describe(&self) -> Description {
        let spec = &self.plan.spec;
        let mut shared: Vec<String> = by_text(&spec.input, &spec.keys).into_iter().collect();
        shared.extend(spec.aggregates.iter().map(AggregateSpec::text));
        if !spec.keys.is_empty() {
            shared.push(state_text(spec.state_ttl_us, "the last row of a key"));
        }
        Description { operator: "aggregate".into(), shared, per_slot: vec![] }
    }

    fn state(&self) -> Option<Address> {
        let spec = &self.plan.spec;
        Some(Address {
            keys: names(&spec.input, &spec.keys),
            aggregates: spec.aggregates.iter().map(AggregateSpec::text).collect(),
            ..Address::of(state::OPERATOR)
        })
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        state::keys(&self.plan, frame)
    }
}
