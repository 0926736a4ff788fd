//! The plan of aggregates over preceding rows, as it is given and as it is checked.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use rivulet_dataflow::{Batch, Context, OperatorError};

use crate::aggregate::dense::RowSet;
use crate::parallel::TIME;
use crate::parallel::frame::Frame;
use crate::parallel::groups::{GroupPlan, GroupStates};
use crate::parallel::keys::KeyPlan;
use crate::parallel::order::SortKey;
use crate::parallel::rows::RowStore;
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

/// Rows that are versions, among the rows that ask for them: `FOR SYSTEM_TIME AS OF`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// A column of type BOOLEAN, never null: whether a row is a version.
    pub is_version: usize,
    /// The input columns of the rows that ask, in the output.
    pub columns: Vec<usize>,
    /// The input columns of their versions, in the output behind them. Null if there is no version.
    pub of_version: Vec<usize>,
    /// Whether a row for which there is no version comes out.
    pub keeps_unmatched: bool,
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

/// The plan that all instances share.
pub(crate) struct OverPlan {
    pub(super) spec: KeyedOverSpec,
    pub(super) keys: KeyPlan,
    pub(super) groups: GroupPlan,
    pub(super) output: SchemaRef,
    /// By how much the time of a row is at least ahead of the watermark, in microseconds.
    pub(super) ahead_us: i64,
    /// Values of later rows, for which rows wait.
    pub(super) leads: Vec<Lag>,
    pub(super) versions: Option<Versions>,
}

impl OverPlan {
    pub(super) fn store(&self) -> Result<RowStore, PlanError> {
        RowStore::new(&self.spec.input, &(0..self.spec.input.fields().len()).collect::<Vec<_>>())
    }

    pub(super) fn result_store(&self) -> Result<RowStore, PlanError> {
        let results = self.spec.input.fields().len()..self.output.fields().len();
        RowStore::new(&self.output, &results.collect::<Vec<_>>())
    }

    /// Whether rows leave the frame.
    pub(super) fn is_bounded(&self) -> bool {
        is_bounded(self.spec.frame)
    }

    /// For how many later rows a row waits; 0 if it does not wait.
    pub(super) fn later_rows(&self) -> u32 {
        self.leads.iter().map(|lead| lead.rows).max().unwrap_or(0)
    }

    /// How long after its last row a partition is forgotten. A range of time has its own limit: when no later row can
    /// reach it.
    pub(super) fn ttl_us(&self) -> Option<i64> {
        let reach_us = match self.spec.frame {
            OverFrame::Range { preceding_us } if waits(&self.spec) => preceding_us,
            _ => None,
        };
        self.spec.state_ttl_us.into_iter().chain(reach_us).min()
    }

    /// Whether the oldest row of a frame leaves it with a row of this time.
    pub(super) fn leaves(&self, frame: &Frame, time_us: i64) -> bool {
        match self.spec.frame {
            OverFrame::Rows { preceding: Some(rows) } => frame.len() as u64 > rows.saturating_add(1),
            OverFrame::Range { preceding_us: Some(reach_us) } => {
                frame.oldest().is_some_and(|oldest| oldest.time_us < time_us.saturating_sub(reach_us))
            }
            _ => false,
        }
    }

    /// Computes the states of each single row. Returns them together with the rows on which no expression failed, and
    /// their columns, in the same order.
    pub(super) fn entries(
        &self,
        store: &RowStore,
        rows: &[u32],
        context: &mut Context<'_>,
    ) -> Result<(GroupStates, Vec<u32>, RecordBatch), OperatorError> {
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
        Ok((states, batch.arrival_us.iter().map(|&at| rows[at as usize]).collect(), batch.columns))
    }

    /// Names what the states mean, for saved states.
    pub(super) fn states(&self) -> String {
        let KeyedOverSpec { partition, order, frame, .. } = &self.spec;
        format!("{partition:?} {order:?} {frame:?} {}", self.groups.fingerprint())
    }
}

pub(super) fn is_bounded(frame: OverFrame) -> bool {
    !matches!(frame, OverFrame::Rows { preceding: None } | OverFrame::Range { preceding_us: None })
}

pub(super) fn waits(spec: &KeyedOverSpec) -> bool {
    !spec.input_retracts && is_by_time(spec)
}

pub(super) fn is_by_time(spec: &KeyedOverSpec) -> bool {
    spec.order.first().is_some_and(|key| !key.descending && *spec.input.field(key.column).data_type() == TIME)
}
