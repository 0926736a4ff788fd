//! Pushes conditions down to where their rows come from, but not below an aggregate without keys.
//!
//! Such an aggregate gives a row even without input rows. A condition over it that names no column, such as one over a
//! column that is a constant, would otherwise be moved below it. There it would remove the rows that the aggregate
//! counts, and let the row of the aggregate through.
//!
//! The constant of a comparison stands on its right. The optimizer puts it there in WHERE and leaves it in ON. If one
//! of two conditions on one column has it on the left, the optimizer takes them for a contradiction: `2 = k` and
//! `2 = k`, one of them inferred.

use datafusion_common::Result;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_expr::{BinaryExpr, Expr, LogicalPlan};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::push_down_filter::PushDownFilter;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

/// [`PushDownFilter`], but not below aggregates without keys.
#[derive(Debug)]
pub(crate) struct PushDownConditions(PushDownFilter);

impl PushDownConditions {
    pub(crate) fn new() -> Self {
        Self(PushDownFilter::new())
    }
}

impl OptimizerRule for PushDownConditions {
    fn name(&self) -> &str {
        "push_down_conditions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if is_over_keyless(&plan) { Ok(Transformed::no(plan)) } else { self.0.rewrite(plan, config) }
    }
}

/// Turns the comparisons of ON so that a constant stands on the right.
#[derive(Debug)]
pub(crate) struct ConstantsOnTheRight;

impl OptimizerRule for ConstantsOnTheRight {
    fn name(&self) -> &str {
        "constants_on_the_right"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(mut join) = plan else { return Ok(Transformed::no(plan)) };
        let Some(filter) = join.filter.take() else { return Ok(Transformed::no(LogicalPlan::Join(join))) };
        filter.transform_up(turned)?.map_data(|filter| {
            join.filter = Some(filter);
            Ok(LogicalPlan::Join(join))
        })
    }
}

/// Returns a comparison with its constant on the right.
fn turned(expression: Expr) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expression else { return Ok(Transformed::no(expression)) };
    let is_constant = |side: &Expr| matches!(side, Expr::Literal(..));
    Ok(match op.swap() {
        Some(turned) if is_constant(&left) && !is_constant(&right) => {
            Transformed::yes(Expr::BinaryExpr(BinaryExpr { left: right, op: turned, right: left }))
        }
        _ => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
    })
}

/// Whether a plan is one or more conditions over an aggregate without keys.
fn is_over_keyless(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Filter(filter) = plan else { return false };
    match filter.input.as_ref() {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        input => is_over_keyless(input),
    }
}
