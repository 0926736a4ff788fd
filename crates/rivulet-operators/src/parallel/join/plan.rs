//! The plan of a join over keys, as it is given and as it is checked.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::utils::collect_columns;

use crate::PlanError;
use crate::expression::{Expressions, sql};
use crate::parallel::keys::KeyPlan;
use crate::parallel::rows::RowStore;

/// The plan of a join.
#[derive(Clone, Debug)]
pub struct KeyedJoinSpec {
    /// The columns of input 0.
    pub left: SchemaRef,
    /// The columns of input 1.
    pub right: SchemaRef,
    /// The columns that must be equal, left and right. Without columns, every row meets every other. Null is equal to
    /// nothing, unless [`KeyedJoin::with_equal_nulls`](super::KeyedJoin::with_equal_nulls) says so.
    pub keys: Vec<(usize, usize)>,
    /// Which rows come out.
    pub kind: KeyedJoinKind,
    /// A further condition on pairs, over the columns of left and then right.
    pub residual: Option<Arc<dyn PhysicalExpr>>,
    /// The time after which rows of a side can meet no new row.
    pub expiry: [Option<Expiry>; 2],
    /// For a side without expiry: how long after its own event time a row is remembered, by the watermark, in
    /// microseconds; `None`: for ever.
    pub state_ttl_us: Option<i64>,
    /// The output columns, as indices of the columns of left and then right. Semi and anti joins have only columns of
    /// left.
    pub output: Vec<usize>,
}

/// Which rows come out of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyedJoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and rows of the left side without partner.
    Left,
    /// Pairs, and rows of the right side without partner.
    Right,
    /// Pairs, and rows of both sides without partner.
    Full,
    /// Rows of the left side with a partner.
    LeftSemi,
    /// Rows of the left side without partner.
    LeftAnti,
}

/// When a row can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// A column of times of its side.
    pub column: usize,
    /// In microseconds. The row is no longer needed when the watermark is greater than the column's value plus this.
    pub after_us: i64,
}

/// The plan that all instances share.
pub(crate) struct JoinPlan {
    pub(super) spec: KeyedJoinSpec,
    pub(super) keys: [KeyPlan; 2],
    /// The columns of each side that are kept.
    pub(super) kept: [Vec<usize>; 2],
    /// The residual over the columns that it uses, and for each of these its side and its index among the kept columns.
    pub(super) residual: Option<(Expressions, Vec<(usize, usize)>)>,
    /// For each output column, its side and its index among the kept columns.
    pub(super) columns: Vec<(usize, usize)>,
    pub(super) output: SchemaRef,
    /// A row of a side is late when the watermark is greater than the time that this gives.
    pub(super) late: [Option<Expiry>; 2],
    /// No partner of a side's row expires before the time that this gives.
    pub(super) reach: [Option<Expiry>; 2],
    /// Whether null is equal to null.
    pub(super) nulls_are_equal: bool,
    /// Whether rows of a side stay however old they are.
    pub(super) keeps: [bool; 2],
    /// The side of which every instance has all rows, and the kept columns of the other side by which its rows are
    /// divided; `None`: rows of both are divided by the keys.
    pub(super) everywhere: Option<(usize, Vec<usize>)>,
}

impl JoinPlan {
    pub(super) fn new(spec: KeyedJoinSpec, both: &Schema, output: SchemaRef) -> Result<Self, PlanError> {
        let lefts = spec.left.fields().len();
        let side_of = |column: usize| if column < lefts { (0, column) } else { (1, column - lefts) };
        let mut used: Vec<usize> = match &spec.residual {
            Some(residual) => collect_columns(residual).into_iter().map(|column| column.index()).collect(),
            None => vec![],
        };
        used.sort_unstable();
        used.dedup();
        let mut kept = [Vec::new(), Vec::new()];
        for (side, column) in spec.output.iter().chain(&used).map(|&column| side_of(column)) {
            kept[side].push(column);
        }
        for &(left, right) in &spec.keys {
            kept[0].push(left);
            kept[1].push(right);
        }
        for (side, kept) in kept.iter_mut().enumerate() {
            kept.extend(spec.expiry[side].map(|expiry| expiry.column));
            kept.sort_unstable();
            kept.dedup();
        }
        let place = |column: usize| {
            let (side, column) = side_of(column);
            (side, kept[side].binary_search(&column).expect("the column is kept"))
        };
        let residual = match &spec.residual {
            None => None,
            Some(residual) => {
                let narrowed = Schema::new(used.iter().map(|&column| both.field(column).clone()).collect::<Vec<_>>());
                let moved = residual.clone().transform(|node| {
                    let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
                    let index = used.binary_search(&column.index()).expect("the column is used");
                    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), index));
                    Ok(Transformed::yes(column))
                });
                let moved = moved.map_err(|error| PlanError::Expression {
                    expression: sql(residual),
                    problem: error.strip_backtrace(),
                })?;
                let expressions = Expressions::new(&narrowed, &Schema::empty(), vec![], vec![moved.data])?;
                Some((expressions, used.iter().map(|&column| place(column)).collect()))
            }
        };
        // Both sides share the numbers of keys, so their keys are looked up in one form.
        let keys = KeyPlan::pair(
            &spec.left,
            &spec.keys.iter().map(|key| key.0).collect::<Vec<_>>(),
            &spec.keys.iter().map(|key| key.1).collect::<Vec<_>>(),
        )?;
        let columns = spec.output.iter().map(|&column| place(column)).collect();
        let (late, reach, nulls_are_equal, keeps) = ([None; 2], [None; 2], false, [false; 2]);
        let everywhere = None;
        let plan =
            Self { keys, residual, columns, output, kept, spec, late, reach, nulls_are_equal, keeps, everywhere };
        plan.stores()?;
        Ok(plan)
    }

    /// Makes empty stores for both sides.
    pub(super) fn stores(&self) -> Result<[RowStore; 2], PlanError> {
        Ok([RowStore::new(&self.spec.left, &self.kept[0])?, RowStore::new(&self.spec.right, &self.kept[1])?])
    }

    /// The columns of a side by which its rows are divided among instances; `None` if every instance has all of them.
    pub(super) fn divided_by(&self, side: usize) -> Option<&[usize]> {
        match &self.everywhere {
            Some((everywhere, _)) if *everywhere == side => None,
            Some((_, columns)) => Some(columns),
            None => Some(self.keys[side].places()),
        }
    }

    /// Whether a row cannot have a partner because a column of its key is null.
    pub(super) fn is_alone(&self, keys: &[&ArrayRef], row: usize) -> bool {
        !self.nulls_are_equal && keys.iter().any(|column| column.is_null(row))
    }

    /// The time at which a row of a side is no longer needed; [`i64::MAX`] for never. `time_us` returns the value of a
    /// column of the row.
    pub(super) fn expires_us(
        &self,
        side: usize,
        event_time_us: i64,
        time_us: impl FnOnce(usize) -> Option<i64>,
    ) -> i64 {
        let (time_us, after_us) = match (self.spec.expiry[side], self.state_ttl_us(side)) {
            (Some(expiry), _) => (time_us(expiry.column), expiry.after_us),
            (None, Some(ttl_us)) => (Some(event_time_us), ttl_us),
            (None, None) => (None, 0),
        };
        time_us.map_or(i64::MAX, |time_us| time_us.saturating_add(after_us))
    }

    /// How long a side's rows are remembered if their condition says nothing about that.
    pub(super) fn state_ttl_us(&self, side: usize) -> Option<i64> {
        self.spec.state_ttl_us.filter(|_| !self.keeps[side])
    }

    /// Whether rows of a side come out if they have no partner.
    pub(super) fn pads(&self, side: usize) -> bool {
        match self.spec.kind {
            KeyedJoinKind::Inner | KeyedJoinKind::LeftSemi => false,
            KeyedJoinKind::Left | KeyedJoinKind::LeftAnti => side == 0,
            KeyedJoinKind::Right => side == 1,
            KeyedJoinKind::Full => true,
        }
    }

    /// Whether pairs come out.
    pub(super) fn gives_pairs(&self) -> bool {
        !matches!(self.spec.kind, KeyedJoinKind::LeftSemi | KeyedJoinKind::LeftAnti)
    }

    /// Whether it matters how many partners the rows of a side have.
    pub(super) fn counts(&self, side: usize) -> bool {
        self.pads(side) || (self.spec.kind == KeyedJoinKind::LeftSemi && side == 0)
    }
}
