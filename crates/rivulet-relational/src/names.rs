//! Names of computed columns without AS.
//!
//! DataFusion's planner names such a column by its planned expression without casts (`t.v + Int64(1)`), and refuses two
//! columns of one name: `SELECT count(*), count(*)`, `SELECT v, CAST(v AS TEXT)`. The later ones get a number:
//! `count(*)_1`, `v_1`. Inside of a query all others keep the names of the planner; a result has those of the text.
//! Keys of GROUP BY cannot be named, so of `CAST(v AS BIGINT), CAST(v AS TEXT)` the later one becomes `coalesce(...)`.

use std::collections::HashSet;

use datafusion_sql::sqlparser::ast::{self, Ident, SelectItem};

use crate::times::call;
use crate::walk::{NodeMut, change_expression, change_query};

/// The beginning of the planner's refusal.
const REFUSAL: &str = "require unique expression names";

/// The call that gives a key another name, and is its value.
const RENAMING: &str = "coalesce";

/// Names the computed columns of each SELECT that would have the name of a column before them. Returns whether there
/// is any, after the planner has refused the query with this message.
pub(crate) fn make_different(message: &str, query: &mut ast::Query) -> bool {
    let mut is_changed = false;
    if message.contains(REFUSAL) {
        change_query(query, &mut |node, _| {
            if let NodeMut::Query(query) = node {
                is_changed |= of_body(&mut query.body);
            }
        });
    }
    is_changed
}

fn of_body(body: &mut ast::SetExpr) -> bool {
    match body {
        ast::SetExpr::Select(select) => of_items(&mut select.projection),
        ast::SetExpr::SetOperation { left, right, .. } => of_body(left) | of_body(right),
        // The walk comes to it by itself.
        _ => false,
    }
}

fn of_items(items: &mut [SelectItem]) -> bool {
    // The names that are given, which no other column may get.
    let mut taken: HashSet<String> = items.iter().filter_map(given).collect();
    let mut known: HashSet<String> = HashSet::new();
    let mut is_changed = false;
    for item in items {
        let SelectItem::UnnamedExpr(expression) = item else { continue };
        let name = natural(expression);
        // Names of functions may be written in any case.
        if known.insert(name.to_lowercase()) && !taken.contains(&name) || is_column(expression) {
            continue;
        }
        let numbered = (1..).map(|number| format!("{name}_{number}")).find(|numbered| taken.insert(numbered.clone()));
        let alias = Ident::with_quote('"', numbered.expect("there is another number"));
        *item = SelectItem::ExprWithAlias { expr: expression.clone(), alias };
        is_changed = true;
    }
    is_changed
}

/// Puts the keys of each GROUP BY that would have the name of another key into a call, which has another name.
/// Returns whether there is any.
pub(crate) fn make_keys_different(query: &mut ast::Query) -> bool {
    let mut is_changed = false;
    change_query(query, &mut |node, _| {
        let NodeMut::Query(query) = node else { return };
        while let Some(key) = later_key(&query.body) {
            let other = call(RENAMING, vec![key.clone()]);
            // The expressions of the query itself stand within one query.
            change_query(query, &mut |node, depth| match node {
                NodeMut::Expr(part) if depth == 1 && *part == key => *part = other.clone(),
                _ => {}
            });
            is_changed = true;
        }
    });
    is_changed
}

/// A computed key that has the name of another one. What is equal to an earlier key is that key, and one that was put
/// into a call has got its name: so each key is found once at most.
fn later_key(body: &ast::SetExpr) -> Option<ast::Expr> {
    let select = match body {
        ast::SetExpr::Select(select) => select,
        ast::SetExpr::SetOperation { left, right, .. } => return later_key(left).or_else(|| later_key(right)),
        _ => return None,
    };
    let ast::GroupByExpr::Expressions(keys, _) = &select.group_by else { return None };
    // A key may be the name or the number of a column.
    let meant = |key: &ast::Expr| match key {
        ast::Expr::Identifier(name) => select.projection.iter().find_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias } if *alias == *name => Some(expr),
            _ => None,
        }),
        ast::Expr::Value(number) => {
            match select.projection.get(number.to_string().parse::<usize>().ok()?.checked_sub(1)?)? {
                SelectItem::ExprWithAlias { expr, .. } | SelectItem::UnnamedExpr(expr) => Some(expr),
                _ => None,
            }
        }
        _ => None,
    };
    let keys: Vec<&ast::Expr> = keys.iter().map(|key| meant(key).unwrap_or(key)).collect();
    let name = |key: &ast::Expr| natural(key).to_lowercase();
    let mut known: HashSet<String> = keys.iter().filter(|key| is_column(key)).map(|key| name(key)).collect();
    let is_first = |place: usize| !keys[..place].contains(&keys[place]);
    let mut places = (0..keys.len()).filter(|place| !is_column(keys[*place]) && is_first(*place));
    places.find(|place| !known.insert(name(keys[*place])) && !is_renamed(keys[*place])).map(|place| keys[place].clone())
}

/// Whether a key stands in the call that gives it another name.
fn is_renamed(key: &ast::Expr) -> bool {
    let ast::Expr::Function(function) = key else { return false };
    let ast::FunctionArguments::List(list) = &function.args else { return false };
    list.args.len() == 1 && function.name.to_string().eq_ignore_ascii_case(RENAMING)
}

/// The name of a column that the query names itself.
fn given(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(folded(alias)),
        SelectItem::UnnamedExpr(expression) if is_column(expression) => Some(natural(expression)),
        _ => None,
    }
}

fn is_column(expression: &ast::Expr) -> bool {
    matches!(expression, ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_))
}

/// The names by which the text of a query calls its first `columns` columns, where it computes them and does not name
/// them.
pub fn written(query: &ast::Query, columns: usize) -> Vec<Option<String>> {
    let mut names = vec![None; columns];
    let Some(items) = first_items(&query.body) else { return names };
    let is_one = |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
    let name = |item: &SelectItem| match item {
        // A subquery is too long for a name.
        SelectItem::UnnamedExpr(expression) if !is_column(expression) => {
            Some(as_written(expression)).filter(|name| !name.contains("(SELECT "))
        }
        _ => None,
    };
    // What stands behind a `*` is counted from the end.
    let before = items.iter().take_while(|item| is_one(item)).count();
    let behind = if before == items.len() { 0 } else { items.iter().rev().take_while(|item| is_one(item)).count() };
    if before + behind > columns || (before == items.len() && before != columns) {
        return names;
    }
    for (place, item) in items[..before].iter().enumerate() {
        names[place] = name(item);
    }
    for (place, item) in items[items.len() - behind..].iter().enumerate() {
        names[columns - behind + place] = name(item);
    }
    names
}

/// The columns of the first SELECT of a query, which names the columns of all.
fn first_items(body: &ast::SetExpr) -> Option<&[SelectItem]> {
    match body {
        ast::SetExpr::Select(select) => Some(&select.projection),
        ast::SetExpr::SetOperation { left, .. } => first_items(left),
        ast::SetExpr::Query(query) => first_items(&query.body),
        _ => None,
    }
}

/// An expression as it was written, but for casts.
fn as_written(expression: &ast::Expr) -> String {
    let mut bare = expression.clone();
    change_expression(&mut bare, &mut |node, _| {
        if let NodeMut::Expr(part) = node
            && let ast::Expr::Cast { expr: inner, .. } = part
        {
            *part = (**inner).clone();
        }
    });
    while let ast::Expr::Nested(inner) = bare {
        bare = *inner;
    }
    match &bare {
        ast::Expr::Identifier(column) => folded(column),
        ast::Expr::CompoundIdentifier(parts) => parts.last().map(folded).unwrap_or_default(),
        other => other.to_string(),
    }
}

/// The name of a column without AS: that of a column alone, or the text without casts.
fn natural(expression: &ast::Expr) -> String {
    let mut bare = expression.clone();
    change_expression(&mut bare, &mut |node, _| {
        if let NodeMut::Expr(part) = node
            && let ast::Expr::Cast { expr: inner, .. } | ast::Expr::Nested(inner) = part
        {
            *part = (**inner).clone();
        }
    });
    match &bare {
        ast::Expr::Identifier(column) => folded(column),
        ast::Expr::CompoundIdentifier(parts) => parts.last().map(folded).unwrap_or_default(),
        other => other.to_string(),
    }
}

fn folded(ident: &Ident) -> String {
    match ident.quote_style {
        None => ident.value.to_lowercase(),
        Some(_) => ident.value.clone(),
    }
}
