//! `ORDER BY ... LIMIT n OFFSET m` inside a query: the rows whose number in that order is above m and at most m + n.
//! Ranks change when rows come or are retracted; a count of the rows that pass could not.

use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, Result};
use datafusion_expr::expr::{Sort as SortKey, WindowFunction, WindowFunctionParams};
use datafusion_expr::{
    Expr, FetchType, Filter, Limit, LogicalPlan, Projection, SkipType, Sort, Window, WindowFrame,
    WindowFunctionDefinition, WindowUDF, lit,
};

/// Replaces each LIMIT with an order that is not at the top by ranks. `row_number` is the function of that name.
pub(crate) fn rewrite_below(plan: LogicalPlan, row_number: &Arc<WindowUDF>) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::Limit(limit) => {
            let input = Arc::new(rewrite(Arc::unwrap_or_clone(limit.input), row_number)?);
            Ok(LogicalPlan::Limit(Limit { input, ..limit }))
        }
        other => rewrite(other, row_number),
    }
}

/// Replaces a LIMIT at the top by ranks: a view has no end at which its rows could be ordered.
pub(crate) fn rewrite_top(plan: LogicalPlan, row_number: &Arc<WindowUDF>) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::Limit(limit) => Ok(ranked(&limit, row_number)?.unwrap_or_else(|| LogicalPlan::Limit(limit))),
        other => Ok(other),
    }
}

/// Replaces each LIMIT with an order by ranks.
fn rewrite(plan: LogicalPlan, row_number: &Arc<WindowUDF>) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Limit(limit) => match ranked(&limit, row_number)? {
            Some(ranked) => Ok(Transformed::yes(ranked)),
            None => Ok(Transformed::no(LogicalPlan::Limit(limit))),
        },
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|transformed| transformed.data)
}

/// The rows that a LIMIT takes, by their ranks; `None` if the ranks are not known.
fn ranked(limit: &Limit, row_number: &Arc<WindowUDF>) -> Result<Option<LogicalPlan>> {
    let (Some((selected, sort)), Some((skip, Some(fetch)))) = (ordered(limit), limits(limit)?) else {
        return Ok(None);
    };
    // Each row of the outer query would have its own rows and order.
    if sort.fetch.is_some() || !limit.input.all_out_ref_exprs().is_empty() {
        return Ok(None);
    }
    let number = |rows: usize| lit(i64::try_from(rows).unwrap_or(i64::MAX));
    let window = Window::try_new(vec![numbered(row_number, Vec::new(), &sort.expr)], sort.input.clone())?;
    let rank = window.schema.fields().len() - 1;
    let rank = Expr::Column(Column::from(window.schema.qualified_field(rank)));
    let mut condition = rank.clone().lt_eq(number(skip.saturating_add(fetch)));
    if skip > 0 {
        condition = condition.and(rank.gt(number(skip)));
    }
    let rows = Arc::new(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(LogicalPlan::Window(window)))?));
    let columns = match selected {
        Some(projection) => projection.expr.clone(),
        None => sort.input.schema().columns().into_iter().map(Expr::Column).collect(),
    };
    Ok(Some(LogicalPlan::Projection(Projection::try_new(columns, rows)?)))
}

/// The order of the rows that a LIMIT takes, and the projection above it. The projection removes columns that are
/// ordered by but not selected.
pub(crate) fn ordered(limit: &Limit) -> Option<(Option<&Projection>, &Sort)> {
    let (selected, sort) = match limit.input.as_ref() {
        LogicalPlan::Projection(projection) => (Some(projection), projection.input.as_ref()),
        other => (None, other),
    };
    match sort {
        LogicalPlan::Sort(sort) => Some((selected, sort)),
        _ => None,
    }
}

/// The number of a row in an order, among the rows with equal keys.
pub(crate) fn numbered(row_number: &Arc<WindowUDF>, keys: Vec<Expr>, order: &[SortKey]) -> Expr {
    Expr::WindowFunction(Box::new(WindowFunction {
        fun: WindowFunctionDefinition::WindowUDF(row_number.clone()),
        params: WindowFunctionParams {
            args: Vec::new(),
            partition_by: keys,
            order_by: order.to_vec(),
            window_frame: WindowFrame::new(Some(true)),
            filter: None,
            null_treatment: None,
            distinct: false,
        },
    }))
}

/// How many rows LIMIT skips at the start, and how many it takes then; `None` if these are not plain numbers.
pub(crate) fn limits(limit: &Limit) -> Result<Option<(usize, Option<usize>)>> {
    Ok(match (limit.get_skip_type()?, limit.get_fetch_type()?) {
        (SkipType::Literal(skip), FetchType::Literal(fetch)) => Some((skip, fetch)),
        _ => None,
    })
}
