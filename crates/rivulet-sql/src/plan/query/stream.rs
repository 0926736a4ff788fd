//! What is known of the rows that leave a step: where they have the columns of the relational plan, and their times,
//! windows, partition and changes.

use std::collections::BTreeSet;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_expr::Expr;
use rivulet_dataflow::NodeId;
use rivulet_operators::parallel::KeyedWindowKind;

use crate::value::TIMESTAMP;

/// The rows that leave a node. All columns here are indices in `schema`, except in `columns`.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// The node that emits them.
    pub(super) node: NodeId,
    /// Their columns.
    pub(super) schema: SchemaRef,
    /// The place of each column of the relational plan.
    pub(super) columns: Vec<Place>,
    /// The column that is the event time of each row.
    pub(super) time: Option<usize>,
    /// Lower bounds of columns relative to the watermark: no row comes with a value less than the watermark plus this
    /// number of microseconds. If rows may be retracted, this holds for rows that come for the first time. Retractions
    /// and rows that replace others can be later, and are late where that matters.
    pub(super) bounds: Vec<(usize, i64)>,
    /// Windows that are not assigned to the rows yet.
    pub(super) pending: Option<Pending>,
    /// The columns of the window that rows came out of.
    pub(super) window: Option<Attached>,
    /// Whether rows may be retracted.
    pub(super) changes: bool,
    /// Which rows are in one instance.
    pub(super) partition: Partition,
    /// Columns whose values identify a row.
    pub(super) key: Option<Vec<usize>>,
    /// Whether every instance may have all rows: their source says that they are few.
    pub(super) is_small: bool,
}

/// The place of a column of the relational plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// In this column.
    Column(usize),
    /// The start of the window that is not assigned yet.
    WindowStart,
    /// The end of that window.
    WindowEnd,
    /// The time by the clock: `PROCTIME()`.
    Clock,
    /// Nowhere: nothing needs it.
    Absent,
}

/// Windows that are not assigned yet, because an aggregate does it better.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) kind: KeyedWindowKind,
    /// The column of the time; `None` for windows by the clock.
    pub(super) time: Option<usize>,
    /// How far this time may be behind the watermark when a row comes, in microseconds.
    pub(super) behind_us: i64,
    /// The columns that separate sessions; `None`: the keys of the aggregate.
    pub(super) partition: Option<Vec<usize>>,
    /// Conditions on the windows alone, over [`bounds_schema`]. They are applied to the results of the windows.
    pub(super) held: Vec<Expr>,
}

/// The bounds of a window as columns, start and end.
pub(super) fn bounds_schema() -> Result<DFSchema, DataFusionError> {
    let bound = |name| Field::new(name, TIMESTAMP, false);
    DFSchema::try_from(Schema::new(vec![bound(WINDOW_START), bound(WINDOW_END)]))
}

pub(super) const WINDOW_START: &str = "window_start";
pub(super) const WINDOW_END: &str = "window_end";

/// The columns of the window of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) start: Option<usize>,
    pub(super) end: usize,
    /// Whether one of the bounds determines the other.
    pub(super) has_fixed_width: bool,
}

/// Which rows are in one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Partition {
    /// Any rows.
    Any,
    /// Rows with equal values of these columns, in this order; not empty.
    Keys(Vec<usize>),
    /// All rows: there is one instance.
    One,
}

impl Partition {
    /// The same where columns have other places, or none.
    pub(super) fn moved(&self, new: impl Fn(usize) -> Option<usize>) -> Self {
        match self {
            Self::Keys(columns) => {
                columns.iter().map(|&column| new(column)).collect::<Option<_>>().map_or(Self::Any, Self::Keys)
            }
            other => other.clone(),
        }
    }
}

impl Stream {
    /// Returns the rows with other columns. The first ones are the columns with the indices `kept`; what is known of
    /// others is lost. The columns of the relational plan are mapped as far as they are kept.
    pub(super) fn rearranged(&self, node: NodeId, schema: SchemaRef, kept: &[usize]) -> Self {
        let new = |column: usize| kept.iter().position(|old| *old == column);
        let all = |columns: &[usize]| columns.iter().map(|column| new(*column)).collect::<Option<Vec<_>>>();
        Self {
            node,
            schema,
            columns: self
                .columns
                .iter()
                .map(|place| match *place {
                    Place::Column(column) => new(column).map_or(Place::Absent, Place::Column),
                    other => other,
                })
                .collect(),
            time: self.time.and_then(new),
            bounds: self.bounds.iter().filter_map(|&(column, delta)| Some((new(column)?, delta))).collect(),
            pending: self.pending.as_ref().map(|pending| Pending {
                kind: pending.kind,
                time: pending.time.and_then(new),
                behind_us: pending.behind_us,
                partition: pending.partition.as_deref().and_then(all),
                held: pending.held.clone(),
            }),
            window: self.window.and_then(|window| {
                Some(Attached { start: window.start.and_then(new), end: new(window.end)?, ..window })
            }),
            changes: self.changes,
            partition: self.partition.moved(new),
            key: self.key.as_deref().and_then(all),
            is_small: self.is_small,
        }
    }

    /// Whether there is at most one row at a time.
    pub(super) fn is_one_row(&self) -> bool {
        self.key.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether rows with equal values of these columns are already in one instance.
    pub(super) fn is_partitioned_by(&self, keys: &[usize]) -> bool {
        match &self.partition {
            Partition::Any => false,
            Partition::Keys(columns) => columns.iter().all(|column| keys.contains(column)),
            Partition::One => true,
        }
    }

    /// The columns that must be kept so that windows can still be assigned.
    pub(super) fn pending_columns(&self) -> BTreeSet<usize> {
        let of = |pending: &Pending| {
            pending.time.into_iter().chain(pending.partition.iter().flatten().copied()).collect::<Vec<_>>()
        };
        self.pending.iter().flat_map(of).collect()
    }

    /// Whether a column is the start or the end of the window that rows came out of.
    pub(super) fn is_window_bound(&self, column: usize) -> bool {
        self.window.is_some_and(|window| window.end == column || window.start == Some(column))
    }

    /// The lower bound of a column, relative to the watermark.
    pub(super) fn bound_of(&self, column: usize) -> Option<i64> {
        self.bounds.iter().filter(|(of, _)| *of == column).map(|(_, delta)| *delta).max()
    }
}
