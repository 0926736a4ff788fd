//! The plan of a window aggregation over keys, as it is given and as it is checked.

use arrow::datatypes::SchemaRef;

use super::bounds::KeyedWindowKind;
use crate::AggregateSpec;
use crate::parallel::groups::GroupPlan;
use crate::parallel::keys::KeyPlan;

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

/// The plan that all instances share.
pub(crate) struct WindowPlan {
    pub(crate) spec: KeyedWindowSpec,
    pub(crate) groups: GroupPlan,
    pub(crate) keys: KeyPlan,
    /// The columns between the two phases.
    pub(crate) partial: SchemaRef,
    pub(crate) output: SchemaRef,
    /// By how much rows may come behind the watermark, in microseconds.
    pub(crate) behind_us: i64,
}

impl WindowPlan {
    /// The time up to which windows close at this watermark.
    pub(crate) fn passed_us(&self, watermark_us: i64) -> i64 {
        watermark_us.saturating_sub(self.behind_us)
    }
}
