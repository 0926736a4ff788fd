//! What is known of the rows that leave a step: where the columns of the relational plan are in them, and what holds of
//! their times, windows, partition and changes.

use std::collections::BTreeSet;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_expr::Expr;
use rivulet_dataflow::NodeId;
use rivulet_operators::parallel::KeyedWindowKind;

use crate::value::TIMESTAMP;

/// The rows that leave a node. All columns here are places in `schema`, except in `columns`.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Who gives them.
    pub(super) node: NodeId,
    /// Their columns.
    pub(super) schema: SchemaRef,
    /// For each column of the relational plan, where it is.
    pub(super) columns: Vec<Place>,
    /// The column that is the event time of each row.
    pub(super) time: Option<usize>,
    /// Columns of which it is known how far behind the watermark they can be: no row comes with less than the watermark
    /// plus so many microseconds. Of rows that may be taken back this holds of those that come for the first time: what
    /// is taken back, or comes in the place of another, can be later, and is late wherever that matters.
    pub(super) bounds: Vec<(usize, i64)>,
    /// Windows that rows are to have and have not yet.
    pub(super) pending: Option<Pending>,
    /// The columns with the window that rows came out of.
    pub(super) window: Option<Attached>,
    /// Whether rows may be taken back.
    pub(super) changes: bool,
    /// Which rows are in one instance.
    pub(super) partition: Partition,
    /// Columns of which there is one row for each value.
    pub(super) key: Option<Vec<usize>>,
}

/// Where a column of the relational plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// In this column.
    Column(usize),
    /// The start of the window that is still to be assigned.
    WindowStart,
    /// The end of it.
    WindowEnd,
    /// The time by the clock: `PROCTIME()`.
    Clock,
    /// Nowhere: nobody asked for it.
    Absent,
}

/// Windows that are not assigned yet, because an aggregate does it better.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) kind: KeyedWindowKind,
    /// The column of the time; none by the clock.
    pub(super) time: Option<usize>,
    /// By how much that may be behind the watermark when a row comes, microseconds.
    pub(super) behind_us: i64,
    /// The columns that keep sessions apart; `None`: the keys of the aggregate.
    pub(super) partition: Option<Vec<usize>>,
    /// Conditions on the windows alone, over [`bounds_schema`]: they are for what the windows come to.
    pub(super) held: Vec<Expr>,
}

/// The bounds of a window as columns, start and end.
pub(super) fn bounds_schema() -> Result<DFSchema, DataFusionError> {
    let bound = |name| Field::new(name, TIMESTAMP, false);
    DFSchema::try_from(Schema::new(vec![bound(WINDOW_START), bound(WINDOW_END)]))
}

pub(super) const WINDOW_START: &str = "window_start";
pub(super) const WINDOW_END: &str = "window_end";

/// The columns with the window of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) start: Option<usize>,
    pub(super) end: usize,
    /// Whether one of the bounds tells the other.
    pub(super) has_fixed_width: bool,
}

/// Which rows are in one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Partition {
    /// Any.
    Any,
    /// Those with equal values of these columns, in this order; not empty.
    Keys(Vec<usize>),
    /// All: there is one instance.
    One,
}

impl Stream {
    /// The rows with other columns, of which those at the places `kept` are the first ones; what is known of the others
    /// is lost. The columns of the relational plan follow as far as they are there.
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
            partition: match &self.partition {
                Partition::Keys(columns) => all(columns).map_or(Partition::Any, Partition::Keys),
                other => other.clone(),
            },
            key: self.key.as_deref().and_then(all),
        }
    }

    /// Whether rows with equal values of these columns are in one instance already.
    pub(super) fn is_partitioned_by(&self, keys: &[usize]) -> bool {
        match &self.partition {
            Partition::Any => false,
            Partition::Keys(columns) => columns.iter().all(|column| keys.contains(column)),
            Partition::One => true,
        }
    }

    /// The columns that must stay so that windows can still be assigned.
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

    /// Where the lower bound of a column is, relative to the watermark.
    pub(super) fn bound_of(&self, column: usize) -> Option<i64> {
        self.bounds.iter().filter(|(of, _)| *of == column).map(|(_, delta)| *delta).max()
    }
}
