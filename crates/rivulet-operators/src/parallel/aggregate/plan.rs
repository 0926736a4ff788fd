//! The plan of an aggregation over keys without windows, as it is given and as it is checked.

use arrow::datatypes::SchemaRef;

use crate::AggregateSpec;
use crate::parallel::groups::GroupPlan;
use crate::parallel::keys::KeyPlan;

/// The plan of an aggregation over keys without windows.
#[derive(Clone, Debug)]
pub struct KeyedAggregateSpec {
    /// The columns of the input.
    pub input: SchemaRef,
    /// The columns that are the key. Without columns there is one row for everything; it is emitted at the end of the
    /// input even if the input had no rows, or at once ([`KeyedAggregate::at_once`](super::KeyedAggregate::at_once)).
    pub keys: Vec<usize>,
    /// The aggregates of each key. None: DISTINCT.
    pub aggregates: Vec<AggregateSpec>,
    /// Whether the input may have retractions.
    pub input_retracts: bool,
    /// How long a key is remembered for which no row comes, in microseconds of event time; `None`: for ever. Without
    /// keys nothing is forgotten.
    pub state_ttl_us: Option<i64>,
}

/// The plan that all instances share.
pub(crate) struct AggregatePlan {
    pub(super) spec: KeyedAggregateSpec,
    pub(super) groups: GroupPlan,
    pub(super) keys: KeyPlan,
    pub(super) output: SchemaRef,
    /// Whether the one row of an aggregation without keys is emitted before any row has come.
    pub(super) gives_at_once: bool,
}
