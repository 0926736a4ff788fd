//! GROUP BY without windows: results that change as rows come. [`operator`] computes them, [`state`] exports and
//! imports.

mod operator;
mod state;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{Schema, SchemaRef};
use rivulet_dataflow::{Description, Operator, OperatorFactory, StateFrame};

use self::operator::AggregateOperator;
use super::check_columns;
use super::groups::{GroupPlan, Mode};
use super::keys::KeyPlan;
use super::time_to_live::state_text;
use super::window::{aggregate_fields, aggregate_text, by_text};
use crate::{AggregateSpec, PlanError};

/// What an aggregation over keys without windows does.
#[derive(Clone, Debug)]
pub struct KeyedAggregateSpec {
    /// The columns that come in.
    pub input: SchemaRef,
    /// The columns that are the key; none: one row for everything, given at the end of the input even if there was
    /// none.
    pub keys: Vec<usize>,
    /// What is computed of each key. None: DISTINCT.
    pub aggregates: Vec<AggregateSpec>,
    /// Whether rows may take back others.
    pub input_retracts: bool,
    /// How long a key is remembered that no row comes for, in microseconds of event time; `None`: for ever. Without
    /// keys nothing is forgotten.
    pub state_ttl_us: Option<i64>,
}

/// Aggregates rows by key; see [`KeyedAggregateSpec`].
///
/// The columns that come out are the keys and the aggregates. When the result of a key changes, its old row is taken
/// back and its new one follows: at the next watermark, at the latest when the operator is idle or has taken in 4,096
/// rows since, so that a key that changes often comes out once. DISTINCT over rows that are never taken back takes
/// nothing back either.
///
/// A key that is forgotten keeps the result that it has outside: that is not taken back. Rows that come for it later
/// begin anew, and rows that it had are not taken back any more.
#[derive(Clone)]
pub struct KeyedAggregate {
    plan: Arc<AggregatePlan>,
}

/// What all instances share.
pub(crate) struct AggregatePlan {
    spec: KeyedAggregateSpec,
    groups: GroupPlan,
    keys: KeyPlan,
    output: SchemaRef,
}

impl KeyedAggregate {
    /// Checks a specification.
    ///
    /// # Errors
    /// Columns that are not there, aggregates that do not fit their arguments, and such as cannot take a row back where
    /// rows may be.
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
        Ok(Self { plan: Arc::new(AggregatePlan { spec, groups, keys, output }) })
    }

    /// The columns that come out.
    pub fn output_schema(&self) -> &SchemaRef {
        &self.plan.output
    }

    /// Whether rows that come out may be taken back.
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
        Description {
            operator: "aggregate".into(),
            shared: {
                let mut shared: Vec<String> = by_text(&spec.input, &spec.keys).into_iter().collect();
                shared.extend(spec.aggregates.iter().map(aggregate_text));
                if !spec.keys.is_empty() {
                    shared.push(state_text(spec.state_ttl_us, "the last row of a key"));
                }
                shared
            },
            per_slot: vec![],
        }
    }

    fn is_stateful(&self) -> bool {
        true
    }

    fn state_keys(&self, frame: &StateFrame) -> Option<Vec<ArrayRef>> {
        state::keys(&self.plan, frame)
    }
}
