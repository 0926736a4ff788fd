//! Windows in GROUP BY: `GROUP BY device, tumble(ts, INTERVAL '1 minute')` or `count_window(100)`, with `window_start`
//! and `window_end` in the SELECT, or `TUMBLE_START(ts, ...)` and `TUMBLE_END(ts, ...)` as in older scripts.
//!
//! In the syntax tree the window becomes two keys, its start and its end, as functions. In the plan the aggregate over
//! such keys becomes an aggregate over a [`WindowTable`].

use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, DFSchema, Result, ScalarValue};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::planner::ContextProvider;
use datafusion_expr::{Aggregate, Expr, LogicalPlan, Projection};
use datafusion_sql::planner::{PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::ast;

use crate::catalog::Catalog;
use crate::clauses::{place_of, start};
use crate::error::{Problem, RelationalError};
use crate::functions::{BOUNDS, COUNT_WINDOW, PROCTIME, WINDOWS};
use crate::table_function::check_time;
use crate::times::{interval, joined};
use crate::walk::{Node, NodeMut, change_expression, change_query, look, look_at_expression};
use crate::window::{WindowKind, WindowTable, interval_us};

/// The columns of a window in GROUP BY. Their names cannot be written without quotes.
const HIDDEN: [&str; 2] = ["$window_start", "$window_end"];

/// What the bounds of a window are called in the SELECT.
const BOUND_NAMES: [&str; 2] = ["window_start", "window_end"];

/// Fails if there is more than one window in GROUP BY, or if the lengths of one are invalid. The plan would show the
/// same, but without the place in the text.
pub(crate) fn check(query: &ast::Query, catalog: &Catalog) -> Result<(), RelationalError> {
    look(query, &mut |node| {
        let Node::Query(query) = node else { return Ok(()) };
        let mut bodies = vec![query.body.as_ref()];
        while let Some(body) = bodies.pop() {
            match body {
                ast::SetExpr::Select(select) => {
                    if let ast::GroupByExpr::Expressions(keys, _) = &select.group_by {
                        let mut windows = keys.iter().filter_map(window_call);
                        if let Some((name, call)) = windows.next() {
                            check_call(&name, &call, catalog)?;
                        }
                        if let Some((_, second)) = windows.next() {
                            let error = RelationalError::new("a second window in GROUP BY is not supported yet")
                                .hint("a GROUP BY has one window: aggregate by the other one in a query of its own");
                            return Err(RelationalError { place: start(&second.name), ..error });
                        }
                        if keys.iter().any(is_window) {
                            check_names(select, keys, catalog)?;
                        }
                    }
                }
                ast::SetExpr::SetOperation { left, right, .. } => bodies.extend([right.as_ref(), left.as_ref()]),
                _ => {}
            }
        }
        Ok(())
    })
}

/// Fails if a name alone, in a key or an aggregate, could be the column of a row and the bound of the window.
fn check_names(select: &ast::Select, keys: &[ast::Expr], catalog: &Catalog) -> Result<(), RelationalError> {
    let refuse = |name: &ast::Ident| match BOUND_NAMES.contains(&name.value.to_lowercase().as_str()) {
        true => {
            let error = RelationalError::new(format!(
                "'{}' is a bound of the window here, and keys and aggregates cannot use it",
                name.value
            ));
            let hint = format!("a column of this name is written with its input: t.{}", name.value);
            Err(RelationalError { place: place_of(name.span), ..error.hint(hint) })
        }
        false => Ok(()),
    };
    for key in keys {
        if let ast::Expr::Identifier(name) = key {
            refuse(name)?;
        }
    }
    let items = select.projection.iter().filter_map(|item| match item {
        ast::SelectItem::UnnamedExpr(expression) | ast::SelectItem::ExprWithAlias { expr: expression, .. } => {
            Some(expression)
        }
        _ => None,
    });
    for expression in items.chain(&select.having).chain(&select.qualify) {
        look_at_expression(expression, &mut |node| match node {
            Node::Expr(ast::Expr::Function(call))
                if call.over.is_none()
                    && catalog.get_aggregate_meta(&call.name.to_string().to_lowercase()).is_some() =>
            {
                look_at_expression(&ast::Expr::Function(call.clone()), &mut |node| match node {
                    Node::Expr(ast::Expr::Identifier(name)) => refuse(name),
                    _ => Ok(()),
                })
            }
            _ => Ok(()),
        })?;
    }
    Ok(())
}

fn check_call(name: &str, call: &ast::Function, catalog: &Catalog) -> Result<(), RelationalError> {
    let place = start(&call.name);
    let at =
        |place: Option<(u64, u64)>, error: RelationalError| RelationalError { place: error.place.or(place), ..error };
    let ast::FunctionArguments::List(list) = &call.args else { return Ok(()) };
    let arguments = list.args.iter().filter_map(|argument| match argument {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => Some(expression),
        _ => None,
    });
    let arguments: Vec<&ast::Expr> = arguments.collect();
    let constant = |argument: &ast::Expr| {
        let (mut context, nothing) = (PlannerContext::new(), DFSchema::empty());
        SqlToRel::new(catalog).sql_to_expr(argument.clone(), &nothing, &mut context).map_err(RelationalError::from)
    };
    if name == COUNT_WINDOW {
        let numbers =
            arguments.iter().map(|argument| constant(argument).unwrap_or(Expr::Literal(ScalarValue::Null, None)));
        let numbers: Vec<Expr> = numbers.collect();
        return WindowKind::count(&numbers).map(drop).map_err(|error| at(place, error.into()));
    }
    let Some((_, lengths)) = arguments.split_first() else {
        let error = RelationalError::new(format!("{name} needs a time and a length"));
        return Err(at(place, error.hint(format!("write for example {name}(ts, INTERVAL '1 minute')"))));
    };
    let mut known = Vec::with_capacity(lengths.len());
    for length in lengths {
        let planned = match constant(length) {
            Ok(planned) => Some(planned),
            // An interval that cannot be read.
            Err(error @ RelationalError { problem: Problem::Foreign(_), .. }) => {
                let text = match error.to_string().rsplit_once(": \"") {
                    Some((_, text)) => text.trim_end_matches('"').to_owned(),
                    None => length.to_string(),
                };
                let error = RelationalError::new(format!("'{text}' is not an interval"));
                return Err(at(start(*length).or(place), error.hint("write for example INTERVAL '5 minutes'")));
            }
            Err(_) => None,
        };
        match planned.as_ref().and_then(interval_us) {
            Some(us) => known.push(us),
            None => return Err(at(start(*length).or(place), not_constant())),
        }
    }
    WindowKind::new(name, &known).map(drop).map_err(|error| at(place, error.into()))
}

fn not_constant() -> RelationalError {
    RelationalError::new("the length of a window is a constant INTERVAL of fixed length")
        .hint("write for example tumble(ts, INTERVAL '1 minute')")
}

/// Replaces each window in GROUP BY by its two bounds.
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
    if select.from.iter().any(reads_windows) {
        spell_out_window_time(select);
    }
    let ast::GroupByExpr::Expressions(keys, _) = &mut select.group_by else { return };
    let Some(place) = keys.iter().position(|key| window_call(key).is_some()) else { return };
    let Some((window, function)) = window_call(&keys[place]) else { return };
    let bounds = [bound(&function, &window, "start"), bound(&function, &window, "end")];
    keys.splice(place..=place, bounds.iter().cloned());
    let names = Names { bounds };
    for item in &mut select.projection {
        match item {
            ast::SelectItem::UnnamedExpr(expression) => match names.bound_named(expression) {
                // A bound that is a whole item keeps its name.
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

/// Whether a key of GROUP BY is a window.
pub fn is_window(key: &ast::Expr) -> bool {
    window_call(key).is_some()
}

/// The name of the window that a key is, and its call.
fn window_call(key: &ast::Expr) -> Option<(String, ast::Function)> {
    let ast::Expr::Function(function) = key else { return None };
    let name = function.name.to_string().to_lowercase();
    (name == COUNT_WINDOW || WINDOWS.contains(&name.as_str())).then(|| (name, function.clone()))
}

/// Makes a call with the same arguments, of the function for one of the bounds.
fn bound(function: &ast::Function, window: &str, which: &str) -> ast::Expr {
    let mut function = function.clone();
    if let Some(ast::ObjectNamePart::Identifier(name)) = function.name.0.last_mut() {
        name.value = format!("{window}_{which}");
        name.quote_style = None;
    }
    ast::Expr::Function(function)
}

/// Whether FROM reads rows of windows, alone or joined.
fn reads_windows(from: &ast::TableWithJoins) -> bool {
    let is_window = |factor: &ast::TableFactor| match factor {
        ast::TableFactor::Table { name, args: Some(_), .. } => {
            WINDOWS.contains(&name.to_string().to_lowercase().as_str())
        }
        _ => false,
    };
    is_window(&from.relation) || from.joins.iter().any(|join| is_window(&join.relation))
}

/// The name of the last microsecond of a window. It is not a column, so `SELECT *` does not have it.
const WINDOW_TIME: &str = "window_time";

/// The last moment of a window: the event time of its results.
fn last_of(end: ast::Expr) -> ast::Expr {
    joined(end, ast::BinaryOperator::Minus, interval("1 microsecond"))
}

/// If an expression is `window_time`, with or without its input, returns the column `window_end` of the same input and
/// the name.
fn end_of_window_time(expression: &ast::Expr) -> Option<(ast::Expr, ast::Ident)> {
    let end = |name: &ast::Ident| ast::Ident { value: "window_end".into(), ..name.clone() };
    match expression {
        ast::Expr::Identifier(name) if name.value.eq_ignore_ascii_case(WINDOW_TIME) => {
            Some((ast::Expr::Identifier(end(name)), name.clone()))
        }
        ast::Expr::CompoundIdentifier(names) => match names.as_slice() {
            [input, name] if name.value.eq_ignore_ascii_case(WINDOW_TIME) => {
                Some((ast::Expr::CompoundIdentifier(vec![input.clone(), end(name)]), name.clone()))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Replaces `window_time` by what it means, except in subqueries. As a key it becomes the end of the window, which
/// gives the same groups.
fn spell_out_window_time(select: &mut ast::Select) {
    if let ast::GroupByExpr::Expressions(keys, _) = &mut select.group_by {
        for place in (0..keys.len()).rev() {
            let Some((end, _)) = end_of_window_time(&keys[place]) else { continue };
            match keys.iter().any(|key| key.to_string() == end.to_string()) {
                true => drop(keys.remove(place)),
                false => keys[place] = end,
            }
        }
    }
    let replace_in = |expression: &mut ast::Expr| {
        change_expression(expression, &mut |node, depth| {
            if let NodeMut::Expr(expression) = node
                && depth == 0
                && let Some((end, _)) = end_of_window_time(expression)
            {
                *expression = last_of(end);
            }
        });
    };
    for item in &mut select.projection {
        match item {
            ast::SelectItem::UnnamedExpr(expression) => match end_of_window_time(expression) {
                Some((end, alias)) => *item = ast::SelectItem::ExprWithAlias { expr: last_of(end), alias },
                None => replace_in(expression),
            },
            ast::SelectItem::ExprWithAlias { expr, .. } => replace_in(expr),
            _ => {}
        }
    }
    let conditions = [&mut select.selection, &mut select.having, &mut select.qualify];
    conditions.into_iter().flatten().for_each(replace_in);
}

/// Replaces the names `window_start`, `window_end` and `window_time` by the bounds, except in subqueries.
struct Names {
    bounds: [ast::Expr; 2],
}

impl Names {
    fn bound_named(&self, expression: &ast::Expr) -> Option<(ast::Expr, ast::Ident)> {
        let ast::Expr::Identifier(name) = expression else { return None };
        let [start, end] = &self.bounds;
        let bound = match name.value.to_lowercase().as_str() {
            "window_start" => start.clone(),
            "window_end" => end.clone(),
            WINDOW_TIME => last_of(end.clone()),
            _ => return None,
        };
        Some((bound, name.clone()))
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
    // For the plan above, the columns keep their names.
    let mut columns = Vec::with_capacity(renamed.schema.fields().len());
    for ((old_qualifier, old), (qualifier, new)) in aggregate.schema.iter().zip(renamed.schema.iter()) {
        let column = Expr::Column(Column::from((qualifier, new)));
        let is_same = old_qualifier == qualifier && old.name() == new.name();
        columns.push(if is_same { column } else { column.alias_qualified(old_qualifier.cloned(), old.name()) });
    }
    let projection = Projection::try_new(columns, Arc::new(LogicalPlan::Aggregate(renamed)))?;
    Ok(Transformed::yes(LogicalPlan::Projection(projection)))
}

/// Makes a window from its time and its lengths.
fn window_of_time(window: &str, arguments: &[Expr]) -> Result<(WindowKind, Expr)> {
    let Some((time, lengths)) = arguments.split_first() else {
        return Err(RelationalError::new(format!("{window} needs a time and a length")).boxed());
    };
    let lengths = lengths.iter().map(|length| interval_us(length).ok_or_else(|| not_constant().boxed()));
    Ok((WindowKind::new(window, &lengths.collect::<Result<Vec<_>>>()?)?, time.clone()))
}

/// If a key is a bound, returns its window, whether it is the end, and the arguments.
fn bound_call(key: &Expr) -> Option<(&'static str, bool, &[Expr])> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = key else { return None };
    let (_, window, is_end) = BOUNDS.iter().find(|(name, ..)| *name == func.name())?;
    Some((window, *is_end, args))
}

/// Adds the time as a column to the rows, if it is written as `PROCTIME()`.
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
