//! Conditions that nothing fulfils, over what gives a row also where nothing comes.
//!
//! `HAVING false` over a global aggregate asks for no row, but the optimizer pushes what names no column below the aggregate, which then gives one: of nothing.
//! So what such a condition is over becomes what gives no row in any place: its columns, all null, of a source of which no row is taken. The source stays, for a
//! query without one could not be run.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, Filter, Join, JoinType, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

/// Replaces what is over a keyless aggregate, under a condition that is constantly false or null, by what gives nothing.
#[derive(Debug)]
pub(crate) struct NothingOverAggregates;

impl OptimizerRule for NothingOverAggregates {
    fn name(&self) -> &str {
        "nothing_over_aggregates"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Filter(filter) if is_never(&filter.predicate) && gives_always(&filter.input)? => {
                Ok(match nothing_of(&filter.input)? {
                    Some(nothing) => Transformed::yes(nothing),
                    None => Transformed::no(LogicalPlan::Filter(filter)),
                })
            }
            // The condition of a join that keeps rows of neither side is one over all of it.
            LogicalPlan::Join(join)
                if join.join_type == JoinType::Inner && join.filter.as_ref().is_some_and(is_never) =>
            {
                let inputs = [&join.left, &join.right];
                if !gives_always(inputs[0])? && !gives_always(inputs[1])? {
                    return Ok(Transformed::no(LogicalPlan::Join(join)));
                }
                let never = join.filter.clone().unwrap_or_else(|| lit(false));
                let all = LogicalPlan::Join(Join { filter: None, ..join });
                Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(never, Arc::new(all))?)))
            }
            other => Ok(Transformed::no(other)),
        }
    }
}

/// Whether a condition is fulfilled by no row.
fn is_never(predicate: &Expr) -> bool {
    let is_never = |part: &&Expr| match part {
        Expr::Literal(ScalarValue::Boolean(value), _) => *value != Some(true),
        Expr::Literal(value, _) => value.is_null(),
        _ => false,
    };
    split_conjunction(predicate).iter().any(is_never)
}

/// Whether a plan has an aggregate in it that gives a row also where nothing comes.
fn gives_always(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|plan| Ok(matches!(plan, LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty())))
}

/// The columns of a plan without any row; `None` if it reads nothing.
fn nothing_of(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let mut source = None;
    plan.apply(|plan| {
        if let LogicalPlan::TableScan(_) = plan {
            source = Some(plan.clone());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let Some(source) = source else { return Ok(None) };
    let nulls = plan.schema().iter().map(|(qualifier, field)| {
        let null = Expr::Literal(ScalarValue::try_new_null(field.data_type())?, None);
        Ok(null.alias_qualified(qualifier.cloned(), field.name()))
    });
    let nulls = nulls.collect::<Result<Vec<_>>>()?;
    LogicalPlanBuilder::from(source).filter(lit(false))?.project(nulls)?.build().map(Some)
}
