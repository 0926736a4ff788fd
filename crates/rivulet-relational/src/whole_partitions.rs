//! Aggregates `OVER ()` and `OVER (PARTITION BY k)`, over all rows of a partition: each row is joined with the
//! aggregates of its partition; null keys are equal. When a row comes, the results of the other rows of its partition
//! change.

use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, JoinType, Result};
use datafusion_expr::expr::{AggregateFunction, WindowFunction};
use datafusion_expr::{
    Aggregate, BinaryExpr, Expr, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SubqueryAlias, Window,
    WindowFrameBound, WindowFunctionDefinition,
};

/// The name of the aggregated partitions. It is not visible outside of the join.
const PARTITIONS: &str = "__partitions";

/// Whether a side of a join is what such aggregates give.
pub fn are_partitions(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::SubqueryAlias(alias) if alias.alias.table() == PARTITIONS)
}

/// Replaces such aggregates by joins.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Window(window) => Ok(match joined(&window)? {
            Some(joined) => Transformed::yes(joined),
            None => Transformed::no(LogicalPlan::Window(window)),
        }),
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|transformed| transformed.data)
}

/// The call of an aggregate over all rows of its partition.
fn over_all(expression: &Expr) -> Option<(&WindowFunction, AggregateFunction)> {
    let Expr::WindowFunction(call) = expression else { return None };
    let params = &call.params;
    let (start, end) = (&params.window_frame.start_bound, &params.window_frame.end_bound);
    let is_all = matches!(start, WindowFrameBound::Preceding(rows) if rows.is_null())
        && matches!(end, WindowFrameBound::Following(rows) if rows.is_null());
    let WindowFunctionDefinition::AggregateUDF(function) = &call.fun else { return None };
    if !is_all || !params.order_by.is_empty() {
        return None;
    }
    let (args, filter) = (params.args.clone(), params.filter.clone());
    let treatment = params.null_treatment;
    Some((&**call, AggregateFunction::new_udf(function.clone(), args, params.distinct, filter, vec![], treatment)))
}

/// The join of the rows with their partitions; `None` unless all functions are aggregates over all rows of the same
/// partitions.
fn joined(window: &Window) -> Result<Option<LogicalPlan>> {
    let Some(calls) = window.window_expr.iter().map(over_all).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let Some((first, _)) = calls.first() else { return Ok(None) };
    // Each row of the outer query would have its own partitions.
    if !window.input.all_out_ref_exprs().is_empty() {
        return Ok(None);
    }
    let keys = first.params.partition_by.clone();
    if calls.iter().any(|(call, _)| call.params.partition_by != keys) {
        return Ok(None);
    }
    let results = calls.into_iter().map(|(_, call)| Expr::AggregateFunction(call));
    let partitions = Aggregate::try_new(window.input.clone(), keys.clone(), results.collect())?;
    // Names that no column of the rows has.
    let name = |place: usize| format!("${PARTITIONS}_{place}");
    let named = (0..partitions.schema.fields().len())
        .map(|place| Expr::Column(Column::from(partitions.schema.qualified_field(place))).alias(name(place)));
    let named = named.collect::<Vec<_>>();
    let partitions = Projection::try_new(named, Arc::new(LogicalPlan::Aggregate(partitions)))?;
    let partitions = SubqueryAlias::try_new(Arc::new(LogicalPlan::Projection(partitions)), PARTITIONS)?;
    let of_partition = |place: usize| Expr::Column(Column::new(Some(PARTITIONS), name(place)));
    let equal = keys.iter().enumerate().map(|(place, key)| {
        let (left, right) = (Box::new(key.clone()), Box::new(of_partition(place)));
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::IsNotDistinctFrom, right })
    });
    let rows = LogicalPlanBuilder::from(window.input.clone());
    let partitions = LogicalPlan::SubqueryAlias(partitions);
    let joined = match keys.is_empty() {
        true => rows.cross_join(partitions)?,
        false => rows.join_on(partitions, JoinType::Inner, equal.collect::<Vec<_>>())?,
    };
    // For the plan above, the columns keep their names.
    let width = window.input.schema().fields().len();
    let columns = window.schema.iter().enumerate().map(|(place, (qualifier, field))| match place.checked_sub(width) {
        None => Expr::Column(Column::from((qualifier, field))),
        Some(result) => of_partition(keys.len() + result).alias_qualified(qualifier.cloned(), field.name()),
    });
    joined.project(columns.collect::<Vec<_>>())?.build().map(Some)
}
