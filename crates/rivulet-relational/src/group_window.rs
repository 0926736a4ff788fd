//! Windows in GROUP BY: `GROUP BY device, tumble(ts, INTERVAL '1 minute')` or `count_window(100)`, with `window_start` and `window_end` in the SELECT, or
//! `TUMBLE_START(ts, ...)` and `TUMBLE_END(ts, ...)` as older scripts have it.
//!
//! In the syntax tree the window becomes two keys, its start and its end, as functions; in the plan the aggregate over such keys
//! becomes one over a [`WindowTable`].

use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, Result};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{Aggregate, Expr, LogicalPlan, Projection};
use datafusion_sql::sqlparser::ast;

use crate::error::RelationalError;
use crate::functions::{BOUNDS, COUNT_WINDOW, PROCTIME, WINDOWS};
use crate::table_function::check_time;
use crate::walk::{NodeMut, change_expression, change_query};
use crate::window::{WindowKind, WindowTable, interval_us};

/// The columns of a window in GROUP BY, under names that nobody can write without quotes.
const HIDDEN: [&str; 2] = ["$window_start", "$window_end"];

/// Puts the two bounds in the place of each window in GROUP BY.
pub(crate) fn rewrite_query(query: &mut ast::Query) {
    change_query(query, &mut |node, _| {
        if let NodeMut::Query(query) = node {
            rewrite_selects(&mut query.body);
        }
    });
}

fn rewrite_selects(body: &mut ast::SetExpr) {
    match body {
        ast::SetExpr::Select(select) => rewrite_select(select),
        ast::SetExpr::SetOperation { left, right, .. } => {
            rewrite_selects(left);
            rewrite_selects(right);
        }
        _ => {}
    }
}

fn rewrite_select(select: &mut ast::Select) {
    let ast::GroupByExpr::Expressions(keys, _) = &mut select.group_by else { return };
    let Some(place) = keys.iter().position(|key| window_call(key).is_some()) else { return };
    let Some((window, function)) = window_call(&keys[place]) else { return };
    let bounds = [bound(&function, &window, "start"), bound(&function, &window, "end")];
    keys.splice(place..=place, bounds.iter().cloned());
    let names = Names { bounds };
    for item in &mut select.projection {
        match item {
            ast::SelectItem::UnnamedExpr(expression) => match names.bound_named(expression) {
                // A bound by itself keeps its name.
                Some((bound, alias)) => *item = ast::SelectItem::ExprWithAlias { expr: bound, alias },
                None => names.replace_in(expression),
            },
            ast::SelectItem::ExprWithAlias { expr, .. } => names.replace_in(expr),
            _ => {}
        }
    }
    for condition in [&mut select.having, &mut select.qualify].into_iter().flatten() {
        names.replace_in(condition);
    }
}

/// The window that a key is, and its call.
fn window_call(key: &ast::Expr) -> Option<(String, ast::Function)> {
    let ast::Expr::Function(function) = key else { return None };
    let name = function.name.to_string().to_lowercase();
    (name == COUNT_WINDOW || WINDOWS.contains(&name.as_str())).then(|| (name, function.clone()))
}

/// A call with the same arguments, of the function for one of the bounds.
fn bound(function: &ast::Function, window: &str, which: &str) -> ast::Expr {
    let mut function = function.clone();
    if let Some(ast::ObjectNamePart::Identifier(name)) = function.name.0.last_mut() {
        name.value = format!("{window}_{which}");
        name.quote_style = None;
    }
    ast::Expr::Function(function)
}

/// Puts the bounds in the place of the names `window_start` and `window_end`, except in subqueries.
struct Names {
    bounds: [ast::Expr; 2],
}

impl Names {
    fn bound_named(&self, expression: &ast::Expr) -> Option<(ast::Expr, ast::Ident)> {
        let ast::Expr::Identifier(name) = expression else { return None };
        let place = match name.value.to_lowercase().as_str() {
            "window_start" => 0,
            "window_end" => 1,
            _ => return None,
        };
        Some((self.bounds[place].clone(), name.clone()))
    }

    fn replace_in(&self, expression: &mut ast::Expr) {
        change_expression(expression, &mut |node, depth| {
            if let NodeMut::Expr(expression) = node
                && depth == 0
                && let Some((bound, _)) = self.bound_named(expression)
            {
                *expression = bound;
            }
        });
    }
}

/// Puts a [`WindowTable`] under each aggregate whose keys are bounds of a window.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|plan| match plan {
        LogicalPlan::Aggregate(aggregate) => rewrite_aggregate(aggregate),
        other => Ok(Transformed::no(other)),
    })
    .map(|transformed| transformed.data)
}

fn rewrite_aggregate(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let mut window: Option<(&'static str, &[Expr])> = None;
    for key in &aggregate.group_expr {
        let Some((name, _, arguments)) = bound_call(key) else { continue };
        match window {
            None => window = Some((name, arguments)),
            Some((known, same)) if known == name && *same == *arguments => {}
            Some(_) => {
                return Err(RelationalError::new("GROUP BY has two different windows")
                    .hint("give one of them a subquery of its own")
                    .boxed());
            }
        }
    }
    let Some((window, arguments)) = window else {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    };
    let (kind, input, time) = match window {
        COUNT_WINDOW => (WindowKind::count(arguments)?, aggregate.input.clone(), None),
        _ => {
            let (kind, time) = window_of_time(window, arguments)?;
            let (input, time) = with_time(aggregate.input.clone(), time)?;
            check_time(&time, input.schema()).map_err(RelationalError::boxed)?;
            (kind, input, Some(time))
        }
    };
    let windows = WindowTable::new(input, kind, time, None, HIDDEN.map(str::to_owned))?.into_plan();
    let hidden =
        |key: &Expr| bound_call(key).map(|(_, end, _)| Expr::Column(Column::from_name(HIDDEN[usize::from(end)])));
    let keys: Vec<Expr> = aggregate.group_expr.iter().map(|key| hidden(key).unwrap_or_else(|| key.clone())).collect();
    let renamed = Aggregate::try_new(Arc::new(windows), keys, aggregate.aggr_expr.clone())?;
    // Above, the columns have the names that they had.
    let mut columns = Vec::with_capacity(renamed.schema.fields().len());
    for ((old_qualifier, old), (qualifier, new)) in aggregate.schema.iter().zip(renamed.schema.iter()) {
        let column = Expr::Column(Column::from((qualifier, new)));
        let is_same = old_qualifier == qualifier && old.name() == new.name();
        columns.push(if is_same { column } else { column.alias_qualified(old_qualifier.cloned(), old.name()) });
    }
    let projection = Projection::try_new(columns, Arc::new(LogicalPlan::Aggregate(renamed)))?;
    Ok(Transformed::yes(LogicalPlan::Projection(projection)))
}

/// A window by its time and its lengths.
fn window_of_time(window: &str, arguments: &[Expr]) -> Result<(WindowKind, Expr)> {
    let Some((time, lengths)) = arguments.split_first() else {
        return Err(RelationalError::new(format!("{window} needs a time and a length")).boxed());
    };
    let lengths = lengths.iter().map(|length| {
        interval_us(length).ok_or_else(|| {
            RelationalError::new("the length of a window is a constant INTERVAL of fixed length")
                .hint("write for example tumble(ts, INTERVAL '1 minute')")
                .boxed()
        })
    });
    Ok((WindowKind::new(window, &lengths.collect::<Result<Vec<_>>>()?)?, time.clone()))
}

/// The window, whether it is its end, and the arguments of a key that is a bound.
fn bound_call(key: &Expr) -> Option<(&'static str, bool, &[Expr])> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = key else { return None };
    let (_, window, is_end) = BOUNDS.iter().find(|(name, ..)| *name == func.name())?;
    Some((window, *is_end, args))
}

/// The rows with the time as a column, where it is written as `PROCTIME()`.
fn with_time(input: Arc<LogicalPlan>, time: Expr) -> Result<(Arc<LogicalPlan>, Expr)> {
    match &time {
        Expr::ScalarFunction(function) if function.func.name() == PROCTIME => {
            let mut columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
            let name = "$proctime";
            columns.push(time.alias(name));
            let projection = Projection::try_new(columns, input)?;
            Ok((Arc::new(LogicalPlan::Projection(projection)), Expr::Column(Column::from_name(name))))
        }
        _ => Ok((input, time)),
    }
}
