//! Equalities for which null equals null: `a.k IS NOT DISTINCT FROM b.k`.
//!
//! The optimizer says of a whole join whether null equals null in its keys, and does not look at that when it orders
//! joins anew and adds keys to them. So while it works, each such pair of keys says it for itself: `null_safe(a.k) =
//! null_safe(b.k)`. The optimizer takes that for any other equality. Afterwards a join with such pairs alone gets keys
//! in which null equals null, and in a join with other keys such pairs are a condition on the joined rows.

use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, NullEquality, Result};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::utils::{conjunction, find_valid_equijoin_key_pair, split_conjunction_owned};
use datafusion_expr::{BinaryExpr, Expr, Join, JoinType, LogicalPlan, Operator};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

use crate::functions::{NULL_SAFE, null_safe};

/// Marks the pairs of a join's condition, and those of a join that is planned already.
#[derive(Debug)]
pub(crate) struct MarkNullSafeKeys;

impl OptimizerRule for MarkNullSafeKeys {
    fn name(&self) -> &str {
        "mark_null_safe_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(mut join) = plan else { return Ok(Transformed::no(plan)) };
        let mut is_marked = false;
        // No rule adds keys to the joins of INTERSECT and EXCEPT.
        let is_outer_or_inner =
            matches!(join.join_type, JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full);
        if join.null_equality == NullEquality::NullEqualsNull && is_outer_or_inner {
            join.on = join.on.into_iter().map(|(left, right)| (marked(left), marked(right))).collect();
            join.null_equality = NullEquality::NullEqualsNothing;
            is_marked = true;
        }
        if let Some(filter) = join.filter.take() {
            let schemas = [join.left.schema().as_ref(), join.right.schema().as_ref()];
            let conjuncts = split_conjunction_owned(filter).into_iter().map(|one| {
                let one = marked_pair(one, schemas)?;
                is_marked |= one.transformed;
                Ok(one.data)
            });
            join.filter = conjunction(conjuncts.collect::<Result<Vec<_>>>()?);
        }
        Ok(Transformed::new_transformed(LogicalPlan::Join(join), is_marked))
    }
}

fn marked(key: Expr) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(null_safe(), vec![key]))
}

/// Marks a condition if it is a null-safe equality of both sides.
fn marked_pair(condition: Expr, [left_schema, right_schema]: [&DFSchema; 2]) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::IsNotDistinctFrom, right }) = condition else {
        return Ok(Transformed::no(condition));
    };
    Ok(match find_valid_equijoin_key_pair(&left, &right, left_schema, right_schema)? {
        Some(_) => Transformed::yes(marked(*left).eq(marked(*right))),
        None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op: Operator::IsNotDistinctFrom, right })),
    })
}

/// The key without its mark; `None` if it has none.
fn plain(key: &Expr) -> Option<&Expr> {
    match key {
        Expr::ScalarFunction(call) if call.func.name() == NULL_SAFE => call.args.first(),
        _ => None,
    }
}

/// Returns the plan without marks.
pub(crate) fn without_marks(plan: LogicalPlan) -> Result<LogicalPlan> {
    let unmark = |node| match node {
        LogicalPlan::Join(join) => {
            let join = with_keys_of_one_kind(join);
            match &join.filter {
                Some(filter) => {
                    let filter = Some(as_written(filter.clone())?);
                    Ok(Transformed::yes(LogicalPlan::Join(Join { filter, ..join })))
                }
                None => Ok(Transformed::yes(LogicalPlan::Join(join))),
            }
        }
        LogicalPlan::Filter(mut filter) => {
            filter.predicate = as_written(filter.predicate)?;
            Ok(Transformed::yes(LogicalPlan::Filter(filter)))
        }
        other => Ok(Transformed::no(other)),
    };
    plan.transform_up(unmark).data()
}

fn with_keys_of_one_kind(mut join: Join) -> Join {
    let is_marked = |pair: &(Expr, Expr)| plain(&pair.0).is_some();
    let unmarked = |pair: &(Expr, Expr)| Some((plain(&pair.0)?.clone(), plain(&pair.1)?.clone()));
    let marked: Vec<(Expr, Expr)> = join.on.iter().filter_map(unmarked).collect();
    if marked.is_empty() {
        return join;
    }
    join.on.retain(|pair| !is_marked(pair));
    if join.on.is_empty() || join.null_equality == NullEquality::NullEqualsNull {
        join.on.extend(marked);
        join.null_equality = NullEquality::NullEqualsNull;
    } else {
        let conditions = marked.into_iter().map(|(left, right)| not_distinct(left, right));
        join.filter = conjunction(conditions.chain(join.filter.take()));
    }
    join
}

/// The condition with its marked equalities as they were written.
fn as_written(condition: Expr) -> Result<Expr> {
    condition
        .transform_up(|one| {
            let written = match &one {
                Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => {
                    plain(left).zip(plain(right)).map(|(left, right)| not_distinct(left.clone(), right.clone()))
                }
                _ => None,
            };
            Ok(written.map_or(Transformed::no(one), Transformed::yes))
        })
        .data()
}

fn not_distinct(left: Expr, right: Expr) -> Expr {
    let (left, right) = (Box::new(left), Box::new(right));
    Expr::BinaryExpr(BinaryExpr { left, op: Operator::IsNotDistinctFrom, right })
}
