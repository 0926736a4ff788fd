//! The keys of GROUP BY: their expressions, and which of them is the window.

use datafusion_sql::sqlparser::ast;

use super::call::call_name;
use super::check::{ARRIVAL_TIME, Place, Scope, WINDOW_END, WINDOW_START};
use super::functions::{Found, REGISTRY};
use super::items::{aliased, item_expression};
use super::source::Source;
use super::walk::{inspect, start};
use super::window::window_call;
use crate::parse::name_of;
use crate::statement::Select;
use crate::{Position, SqlError};

/// The keys of GROUP BY. Positions and aliases of the SELECT are replaced by the expressions they mean.
pub(super) fn group_keys(select: &Select, source: &Source<'_>) -> Result<Vec<ast::Expr>, SqlError> {
    let resolve = |key: &ast::Expr| {
        match key {
            ast::Expr::Value(value) => {
                let ast::Value::Number(digits, _) = &value.value else { return Ok(key.clone()) };
                let item =
                    digits.parse::<usize>().ok().and_then(|number| select.projection.get(number.checked_sub(1)?));
                let expression = item.and_then(item_expression).map(|(expression, _)| expression.clone());
                return expression.ok_or_else(|| {
                    SqlError::new(value.span, format!("the SELECT has no column number {digits} to group by"))
                        .hint("columns are counted from 1")
                });
            }
            ast::Expr::Identifier(identifier) => {
                let name = name_of(identifier).text;
                let is_bound = select.window.is_some() && (name == WINDOW_START || name == WINDOW_END);
                if name != ARRIVAL_TIME && !is_bound && !source.has_column(&name) {
                    return Ok(aliased(select, &name).unwrap_or(key).clone());
                }
            }
            _ => {}
        }
        Ok(key.clone())
    };
    let keys = select.group_by.iter().map(resolve).collect::<Result<Vec<_>, SqlError>>()?;
    if let Some(position) = select.distinct {
        return distinct_keys(select, keys, position);
    }
    match &select.window {
        Some(window) => keys_of_window_table(window, keys, select.position),
        None => Ok(keys),
    }
}

/// Returns the keys of a SELECT DISTINCT: the window and all columns, so that a window returns each combination once.
fn distinct_keys(select: &Select, keys: Vec<ast::Expr>, position: Position) -> Result<Vec<ast::Expr>, SqlError> {
    let window = select.window.iter().chain(keys.iter().filter(|key| window_call(key).is_some()));
    let window: Vec<ast::Expr> = window.cloned().collect();
    if window.is_empty() {
        return Err(SqlError::new(position, "SELECT DISTINCT needs a window").hint(
            "add one: GROUP BY tumble(ts, INTERVAL '1 minute'); or write EMIT ON CHANGE for DISTINCT: it leaves out a \
             row that equals the row before",
        ));
    }
    if select.having.is_some() {
        return Err(SqlError::new(select.having_position, "HAVING of a SELECT DISTINCT is not supported yet")
            .hint("leave out DISTINCT, and group by the columns"));
    }
    let mut columns = Vec::new();
    for (expression, _) in select.projection.iter().filter_map(item_expression) {
        let (mut is_of_rows, mut is_of_window) = (true, false);
        inspect(expression, &mut |part| match part {
            ast::Expr::Function(call) => {
                is_of_rows &= matches!(REGISTRY.find(&call_name(call)), Found::Scalar | Found::Unknown);
            }
            ast::Expr::Identifier(name) => {
                is_of_window |= [WINDOW_START, WINDOW_END].contains(&name_of(name).text.as_str());
            }
            _ => {}
        });
        if !is_of_rows {
            return Err(SqlError::new(
                start(expression).or(position),
                "SELECT DISTINCT takes columns, and no aggregates",
            )
            .hint("leave out DISTINCT: with all keys of GROUP BY selected, a window gives each row once"));
        }
        if !is_of_window {
            columns.push(expression.clone());
        }
    }
    Ok(window.into_iter().chain(columns).collect())
}

/// Returns the keys of a SELECT with its window in FROM. Its GROUP BY names the bounds of the window; the window
/// replaces both.
fn keys_of_window_table(
    window: &ast::Expr,
    keys: Vec<ast::Expr>,
    fallback: Position,
) -> Result<Vec<ast::Expr>, SqlError> {
    let is_bound = |key: &ast::Expr, bound: &str| match key {
        ast::Expr::Identifier(identifier) => name_of(identifier).text == bound,
        _ => false,
    };
    for bound in [WINDOW_START, WINDOW_END] {
        if !keys.iter().any(|key| is_bound(key, bound)) {
            let place = keys.first().map_or(start(window), start).or(fallback);
            return Err(SqlError::new(place, format!("a window in FROM needs GROUP BY with '{bound}'"))
                .hint("write GROUP BY window_start, window_end, and further keys behind"));
        }
    }
    let others = keys.into_iter().filter(|key| !is_bound(key, WINDOW_START) && !is_bound(key, WINDOW_END));
    Ok(std::iter::once(window.clone()).chain(others).collect())
}

/// Refuses clauses that need a window.
pub(super) fn refuse_without_window(select: &Select, keys: &[ast::Expr], scope: &Scope<'_>) -> Result<(), SqlError> {
    let hint = "add one: GROUP BY tumble(ts, INTERVAL '1 minute'), hop, session or count_window";
    if let Some(key) = keys.first() {
        // A misspelt window is reported as such.
        scope.check(&mut key.clone(), Place::GroupKey, select.position)?;
        return Err(SqlError::new(start(key).or(select.position), "GROUP BY needs a window").hint(hint));
    }
    if select.having.is_some() {
        return Err(SqlError::new(select.having_position, "HAVING needs a window").hint(hint));
    }
    if let Some(top) = &select.top {
        let what = if top.order_by.is_empty() { "LIMIT" } else { "ORDER BY" };
        return Err(SqlError::new(top.position, format!("{what} needs a window")).hint(
            "a stream has no end, and its rows come in order of time; ORDER BY ... LIMIT 3 gives the first rows of \
             each window: GROUP BY tumble(ts, INTERVAL '1 minute')",
        ));
    }
    Ok(())
}
