//! Conditions go down to where their rows come from, but not below an aggregate without keys.
//!
//! Such an aggregate gives a row also where nothing comes. A condition over it that names no column, as one over a column
//! that is a constant, would otherwise be moved below it, take away what it counts, and let its row through.

use datafusion_common::Result;
use datafusion_common::tree_node::Transformed;
use datafusion_expr::LogicalPlan;
use datafusion_optimizer::optimizer::ApplyOrder;
use datafusion_optimizer::push_down_filter::PushDownFilter;
use datafusion_optimizer::{OptimizerConfig, OptimizerRule};

/// [`PushDownFilter`], above aggregates without keys.
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

/// Whether it is a condition, or several, over an aggregate without keys.
fn is_over_keyless(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Filter(filter) = plan else { return false };
    match filter.input.as_ref() {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        input => is_over_keyless(input),
    }
}
