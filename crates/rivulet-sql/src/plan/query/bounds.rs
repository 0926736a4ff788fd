//! What the condition of a join says about times: when a row of one side can no longer meet a new row of the other
//! side.
//!
//! A conjunct like `bid.ts <= auction.expires` says that one time is at most another, plus a constant. If no bid comes
//! any more with a time before the watermark, an auction whose `expires` is before the watermark has met all its bids.
//!
//! This holds for rows that are not retracted. A retracted row is looked up among the rows of its side, and its pairs
//! with rows of the other side are retracted, however old these are. So a join with a side that changes forgets nothing
//! because of its condition.

use datafusion_common::DFSchema;
use datafusion_expr::{BinaryExpr, Expr, Operator};
use rivulet_operators::parallel::Expiry;

use super::stream::{Place, Stream};
use crate::value::{TIMESTAMP, interval_us};

/// The index of each side of a join.
pub(super) const LEFT: usize = 0;
pub(super) const RIGHT: usize = 1;

/// Says that the time `earlier` of one side is at most the time `later` of the other plus `plus_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constraint {
    /// The side of the `earlier` time.
    pub(super) side: usize,
    pub(super) earlier: usize,
    pub(super) later: usize,
    pub(super) plus_us: i64,
}

/// A column of one side of a join, plus a constant.
#[derive(Clone, Copy, Debug)]
struct Time {
    side: usize,
    column: usize,
    plus_us: i64,
}

/// The indices of the columns of a join's two inputs.
pub(super) struct Sides<'a> {
    pub(super) schemas: [&'a DFSchema; 2],
    pub(super) streams: [&'a Stream; 2],
}

impl Sides<'_> {
    /// Returns the constraints in the conjuncts of the join's condition.
    pub(super) fn constraints<'e>(&self, conjuncts: impl IntoIterator<Item = &'e Expr>) -> Vec<Constraint> {
        let mut found = Vec::new();
        for conjunct in conjuncts {
            match conjunct {
                Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                    let (Some(left), Some(right)) = (self.time(left), self.time(right)) else { continue };
                    match op {
                        Operator::Lt | Operator::LtEq => found.extend(constraint(left, right)),
                        Operator::Gt | Operator::GtEq => found.extend(constraint(right, left)),
                        Operator::Eq => {
                            found.extend(constraint(left, right).into_iter().chain(constraint(right, left)))
                        }
                        _ => {}
                    }
                }
                Expr::Between(between) if !between.negated => {
                    let Some(time) = self.time(&between.expr) else { continue };
                    found.extend(self.time(&between.low).and_then(|low| constraint(low, time)));
                    found.extend(self.time(&between.high).and_then(|high| constraint(time, high)));
                }
                _ => {}
            }
        }
        found
    }

    /// Returns the constraints of two columns that are equal.
    pub(super) fn equality(&self, left: usize, right: usize) -> Vec<Constraint> {
        if *self.streams[LEFT].schema.field(left).data_type() != TIMESTAMP {
            return Vec::new();
        }
        let (left, right) =
            (Time { side: LEFT, column: left, plus_us: 0 }, Time { side: RIGHT, column: right, plus_us: 0 });
        constraint(left, right).into_iter().chain(constraint(right, left)).collect()
    }

    fn time(&self, expression: &Expr) -> Option<Time> {
        match expression {
            Expr::Alias(alias) => self.time(&alias.expr),
            Expr::Column(column) => (0..2).find_map(|side| {
                let logical = self.schemas[side].maybe_index_of_column(column)?;
                let Place::Column(place) = *self.streams[side].columns.get(logical)? else { return None };
                let is_time = *self.streams[side].schema.field(place).data_type() == TIMESTAMP;
                is_time.then_some(Time { side, column: place, plus_us: 0 })
            }),
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus, right }) => {
                match (self.time(left), constant(right)) {
                    (Some(time), Some(us)) => time.plus(us),
                    _ => self.time(right)?.plus(constant(left)?),
                }
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Minus, right }) => {
                self.time(left)?.plus(constant(right)?.checked_neg()?)
            }
            _ => None,
        }
    }
}

impl Time {
    fn plus(self, us: i64) -> Option<Self> {
        Some(Self { plus_us: self.plus_us.checked_add(us)?, ..self })
    }
}

fn constraint(earlier: Time, later: Time) -> Option<Constraint> {
    (earlier.side != later.side).then_some(())?;
    let plus_us = later.plus_us.checked_sub(earlier.plus_us)?;
    Some(Constraint { side: earlier.side, earlier: earlier.column, later: later.column, plus_us })
}

/// The length of a constant interval, in microseconds.
fn constant(expression: &Expr) -> Option<i64> {
    match expression {
        Expr::Literal(datafusion_common::ScalarValue::IntervalMonthDayNano(Some(value)), _) => interval_us(*value),
        Expr::Negative(inner) => constant(inner)?.checked_neg(),
        _ => None,
    }
}

/// When rows of a side expire, and what that means for rows of the other side.
#[derive(Clone, Copy)]
pub(super) struct Forgetting {
    /// From when on rows of the side can no longer meet new rows of the other side.
    pub(super) expiry: Expiry,
    /// For a row of the other side: no row that it meets expires before this time.
    pub(super) reach: Expiry,
}

/// When rows of a side are forgotten, if ever.
pub(super) fn forgetting(side: usize, constraints: &[Constraint], streams: [&Stream; 2]) -> Option<Forgetting> {
    // A row that the other side retracts may have been joined long ago, and a row that this side retracts must still be
    // in the state.
    if streams.iter().any(|stream| stream.changes) {
        return None;
    }
    let other = streams[1 - side];
    constraints
        .iter()
        .filter(|constraint| constraint.side != side)
        // New rows of the other side are at or after the watermark plus the bound. Once that is after the last time
        // that a row of this side can meet, the row meets no new rows.
        .filter_map(|constraint| {
            let bound = other.bound_of(constraint.earlier)?;
            Some(Forgetting {
                expiry: Expiry { column: constraint.later, after_us: constraint.plus_us.checked_sub(bound)? },
                reach: Expiry { column: constraint.earlier, after_us: bound.checked_neg()? },
            })
        })
        .min_by_key(|forgetting| forgetting.expiry.after_us)
}

/// When a row of a side is late, if that is known: when it is behind the bound that holds for the rows of its stream.
pub(super) fn lateness(side: &Stream) -> Option<Expiry> {
    let (column, bound) = side.bounds.iter().filter(|_| !side.changes).max_by_key(|(_, bound)| *bound)?;
    Some(Expiry { column: *column, after_us: bound.checked_neg()? })
}

/// How far behind the watermark the times of a side can be in new pairs, which have a new row of this side or of the
/// other side.
pub(super) fn bounds_of_pairs(side: usize, constraints: &[Constraint], streams: [&Stream; 2]) -> Vec<(usize, i64)> {
    let (own, other) = (streams[side], streams[1 - side]);
    own.bounds
        .iter()
        .filter_map(|&(column, bound)| {
            let by_other = constraints
                .iter()
                .filter(|constraint| constraint.side != side && constraint.later == column)
                .filter_map(|constraint| other.bound_of(constraint.earlier)?.checked_sub(constraint.plus_us))
                .max()?;
            Some((column, bound.min(by_other)))
        })
        .collect()
}

/// The same for the column by which rows of a side expire, where rows without a partner come out when they expire: as
/// long as the watermark has not passed the column's value plus [`Expiry::after_us`].
pub(super) fn bounds_of_expiring(
    side: usize,
    expiry: Option<Expiry>,
    constraints: &[Constraint],
    streams: [&Stream; 2],
) -> Option<(usize, i64)> {
    let Expiry { column, after_us } = expiry?;
    let (_, bound) = bounds_of_pairs(side, constraints, streams).into_iter().find(|(other, _)| *other == column)?;
    Some((column, bound.min(after_us.checked_neg()?)))
}
