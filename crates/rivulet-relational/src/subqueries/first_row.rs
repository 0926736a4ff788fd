//! `(SELECT v FROM b WHERE b.k = a.k ORDER BY ts DESC LIMIT 1)`: the value of the first matching row. It becomes the
//! greatest value of one row: the row that is first among those with its keys.

use std::sync::Arc;

use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{Column, Result};
use datafusion_expr::expr::{AggregateFunction, Sort as SortKey};
use datafusion_expr::utils::{conjunction, split_conjunction};
use datafusion_expr::{AggregateUDF, Expr, LogicalPlan, LogicalPlanBuilder, Projection, WindowUDF, lit};

use super::reach::equal_to_outer;
use crate::limits::{limits, numbered, ordered};

/// The plan of such a value; `None` if the subquery is not a correlated one of this form.
pub(super) fn first_row(
    plan: &LogicalPlan,
    max: &Arc<AggregateUDF>,
    row_number: &Arc<WindowUDF>,
) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Limit(limit) = plan else { return Ok(None) };
    let (Some((selected, sort)), Some((skip, Some(1)))) = (ordered(limit), limits(limit)?) else { return Ok(None) };
    if plan.all_out_ref_exprs().is_empty() {
        return Ok(None);
    }
    // The selected value and the order, over the rows below all projections.
    let first = Expr::Column(Column::from(sort.input.schema().qualified_field(0)));
    let mut value = selected.map_or(first, |selected| selected.expr[0].clone());
    let mut order: Vec<SortKey> = sort.expr.clone();
    let mut below = sort.input.as_ref();
    while let LogicalPlan::Projection(projection) = below {
        value = over_input(value, projection)?;
        for key in &mut order {
            key.expr = over_input(key.expr.clone(), projection)?;
        }
        below = &projection.input;
    }
    let LogicalPlan::Filter(filter) = below else { return Ok(None) };
    let names_outer = |one: &Expr| one.contains_outer();
    let (found, others): (Vec<&Expr>, Vec<&Expr>) =
        split_conjunction(&filter.predicate).into_iter().partition(|one| names_outer(one));
    let keys: Option<Vec<Expr>> = found.iter().map(|one| key_of(one).cloned()).collect();
    let Some(keys) = keys.filter(|_| filter.input.all_out_ref_exprs().is_empty()) else { return Ok(None) };
    if names_outer(&value) || order.iter().any(|key| names_outer(&key.expr)) {
        return Ok(None);
    }
    let mut rows = LogicalPlanBuilder::from(filter.input.as_ref().clone());
    if let Some(others) = conjunction(others.into_iter().cloned()) {
        rows = rows.filter(others)?;
    }
    let ranked = rows.window([numbered(row_number, keys, &order)])?.build()?;
    let rank = ranked.schema().fields().len() - 1;
    let rank = Expr::Column(Column::from(ranked.schema().qualified_field(rank)));
    let number = i64::try_from(skip).unwrap_or(i64::MAX).saturating_add(1);
    let firsts = LogicalPlanBuilder::from(ranked).filter(rank.eq(lit(number)))?;
    let found = conjunction(found.into_iter().cloned()).unwrap_or_else(|| lit(true));
    let max = AggregateFunction::new_udf(max.clone(), vec![value], false, None, vec![], None);
    let one = firsts.filter(found)?.aggregate(Vec::<Expr>::new(), vec![Expr::AggregateFunction(max)])?.build()?;
    let column = Expr::Column(Column::from(one.schema().qualified_field(0)));
    LogicalPlanBuilder::from(one).project(vec![column])?.build().map(Some)
}

/// The column that a condition compares without a conversion. If a conversion made different values equal, each value
/// would have a first row of its own.
fn key_of(conjunct: &Expr) -> Option<&Expr> {
    let key = equal_to_outer(conjunct)?;
    let is_plain = matches!(conjunct, Expr::BinaryExpr(equal) if *equal.left == *key || *equal.right == *key);
    is_plain.then_some(key)
}

/// Turns an expression over the columns of a projection into one over its input.
fn over_input(expression: Expr, projection: &Projection) -> Result<Expr> {
    expression
        .transform(|node| match node {
            Expr::Column(column) => {
                let place = projection.schema.index_of_column(&column)?;
                Ok(Transformed::yes(projection.expr[place].clone().unalias()))
            }
            other => Ok(Transformed::no(other)),
        })
        .data()
}
