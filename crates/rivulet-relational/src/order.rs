//! `ORDER BY 2`: replaces the number of a column by the selected expression. DataFusion's planner looks for it among
//! the columns of the aggregate, which do not include an expression over aggregates.
//!
//! `OVER (ORDER BY t)` where `t` is a TIME: the order is by its number of microseconds, because DataFusion's planner
//! has no frames over times of day.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::Result;
use datafusion_common::tree_node::Transformed;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Window, cast};
use datafusion_sql::sqlparser::ast;

use crate::walk::{NodeMut, change_query};

/// Replaces numbers in ORDER BY by the selected expressions.
pub(crate) fn rewrite_query(query: &mut ast::Query) {
    change_query(query, &mut |node, _| {
        if let NodeMut::Query(query) = node {
            rewrite_order(query);
        }
    });
}

fn rewrite_order(query: &mut ast::Query) {
    let ast::SetExpr::Select(select) = query.body.as_ref() else { return };
    // With DISTINCT, ORDER BY may name only selected columns, and an expression is not a column.
    if select.distinct.is_some() {
        return;
    }
    let Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(keys), .. }) = &mut query.order_by else { return };
    for key in keys {
        let ast::Expr::Value(value) = &key.expr else { continue };
        let ast::Value::Number(number, _) = &value.value else { continue };
        let Some(place) = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1)) else { continue };
        // After a wildcard the number of a column is not known here; DataFusion's planner finds the columns.
        let items = select.projection.iter().take(place + 1);
        let is_wild = |item: &ast::SelectItem| {
            matches!(item, ast::SelectItem::Wildcard(_) | ast::SelectItem::QualifiedWildcard(..))
        };
        if items.clone().any(is_wild) {
            continue;
        }
        match select.projection.get(place) {
            Some(ast::SelectItem::UnnamedExpr(selected)) => key.expr = selected.clone(),
            Some(ast::SelectItem::ExprWithAlias { alias, .. }) => key.expr = ast::Expr::Identifier(alias.clone()),
            _ => {}
        }
    }
}

/// Orders by numbers where OVER orders by times of day.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::Window(Window { input, mut window_expr, schema }) = node else {
            return Ok(Transformed::no(node));
        };
        let mut is_changed = false;
        for expression in &mut window_expr {
            let name = expression.schema_name().to_string();
            let Expr::WindowFunction(call) = expression else { continue };
            let mut is_by_time = false;
            for key in &mut call.params.order_by {
                if matches!(key.expr.get_type(input.schema())?, DataType::Time64(_)) {
                    key.expr = cast(key.expr.clone(), DataType::Int64);
                    is_by_time = true;
                }
            }
            if is_by_time {
                *expression = expression.clone().alias(name);
                is_changed = true;
            }
        }
        Ok(match is_changed {
            true => Transformed::yes(LogicalPlan::Window(Window::try_new(window_expr, Arc::clone(&input))?)),
            false => Transformed::no(LogicalPlan::Window(Window { input, window_expr, schema })),
        })
    });
    rewritten.map(|transformed| transformed.data)
}
