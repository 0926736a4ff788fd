//! Translates the errors of DataFusion's planner about whole clauses: they have other words, and mostly no place.

use datafusion_sql::sqlparser::ast::{self, Spanned};
use datafusion_sql::sqlparser::tokenizer::Span;

use crate::check::name_of;
use crate::error::RelationalError;
use crate::walk::{Node, first_name, see};

/// A line and a column.
type Place = Option<(u64, u64)>;

/// Returns the error in our words, at the place `known` or a better one; `None` for errors about expressions.
pub(crate) fn said(message: &str, known: Place, query: &ast::Query) -> Option<RelationalError> {
    let message = message.lines().next()?;
    let behind = |mark: &str| message.split_once(mark).map(|(_, rest)| rest);
    let at = |place: Place, message: String, hint: &str| {
        Some(RelationalError { place, ..RelationalError::new(message) }.hint(hint))
    };
    if message.contains("must appear in the GROUP BY clause") {
        let (_, rest) = message.rsplit_once("column \"")?;
        let column = rest.split_once("\" must")?.0;
        let bare = column.rsplit('.').next().unwrap_or(column);
        let written = first_name(query, |idents| idents.last().is_some_and(|ident| ident.value == bare));
        let place = known.or(written.and_then(|written| written.place)).or_else(|| wildcard(query, None));
        let hint = match ["window_start", "window_end"].contains(&bare) {
            true => format!("{bare} alone is the bound of this window; of its rows, write max(input.{bare})"),
            false => format!("add it to GROUP BY, or write for example max({bare})"),
        };
        return at(place, format!("the column '{bare}' is neither in GROUP BY nor in an aggregate"), &hint);
    }
    if message.contains("UNION queries have different number of columns") {
        let hint = "select as many columns on both sides, in the same order";
        return at(right_of_union(query), "the two sides of a UNION have different numbers of columns".into(), hint);
    }
    if let Some(rest) = behind("Incompatible inputs for Union: Previous inputs were of type ") {
        let name = rest.rsplit_once("on column ").map_or("", |(_, name)| name.trim_end_matches('.'));
        let message = format!("the column {name} of a UNION has another type than on the side before");
        return at(right_of_union(query), message, "convert one of them with CAST");
    }
    if message.contains("The subquery should only return one column") {
        return at(None, "a subquery that is compared has one column".into(), "select that one alone");
    }
    if message.contains("Aggregate functions are not allowed in the WHERE clause") {
        let hint = "WHERE looks at single rows; use HAVING";
        return at(first(query, |select| select.selection.as_ref()), "an aggregate cannot stand in WHERE".into(), hint);
    }
    if message.contains("Aggregate function calls cannot be nested") {
        let hint = "aggregate in a subquery in FROM, and aggregate its results";
        return at(None, "an aggregate stands inside another aggregate".into(), hint);
    }
    if message.contains("QUALIFY clause requires window functions") {
        let message = "QUALIFY needs a function with OVER".to_owned();
        return at(first(query, |select| select.qualify.as_ref()), message, "use WHERE, or HAVING behind GROUP BY");
    }
    if message.contains("require unique expression names") {
        let hint = "name one of them anew, as in SELECT v, v AS again";
        return at(item_twice(query), "two columns of a SELECT have one name".into(), hint);
    }
    if let Some(rest) = behind("Cannot find column with position ") {
        let number = rest.split(' ').next()?;
        let message = format!("the SELECT has no column number {number} to group by");
        return at(key(query, number), message, "columns are counted from 1");
    }
    if let Some(rest) = behind("Order by column out of bounds, specified: ") {
        let number = rest.split(',').next()?;
        let message = format!("the SELECT has no column number {number} to order by");
        return at(key(query, number), message, "columns are counted from 1");
    }
    if let Some(rest) = behind("Invalid qualifier ") {
        let name = rest.trim_end_matches('.');
        let message = format!("unknown input '{name}'");
        return at(
            wildcard(query, Some(name)),
            message,
            "before .* stands the name, or the alias, of an input in FROM",
        );
    }
    if message.contains("SELECT * with no tables specified") {
        return at(wildcard(query, None), "the query reads nothing".into(), "name a source in FROM");
    }
    if let Some(rest) = behind("WITH query name ") {
        let name = rest.split('"').nth(1)?;
        let message = format!("two queries of WITH are called '{name}'");
        return at(with_twice(query, name), message, "give one of them another name");
    }
    if let Some(rest) = behind("The window ") {
        let name = rest.strip_suffix(" is not defined!")?;
        let message = format!("there is no window '{name}'");
        return at(named_window(query, name), message, "define it: WINDOW name AS (...), or write OVER (...)");
    }
    if let Some(rest) = behind("Source table contains ") {
        let (columns, rest) = rest.split_once(" columns but only ")?;
        let names = rest.split(' ').next()?;
        let message = format!("{names} names are given to {columns} columns");
        return at(named_columns(query), message, "name all columns behind AS, or none");
    }
    if message.contains("OFFSET must be >=") {
        return at(offset(query), "OFFSET takes a whole number, 0 or more".into(), "write for example OFFSET 10");
    }
    if message.contains("must be >= 0, ") {
        return at(limit(query), "LIMIT takes a whole number, 0 or more".into(), "write for example LIMIT 10");
    }
    None
}

/// The error for an input with two columns of one name, or two inputs of one name.
pub(crate) fn twice(input: &str, column: &str, query: &ast::Query) -> RelationalError {
    let mut places = Vec::new();
    selects(query, &mut |select| {
        let mut found = Vec::new();
        let joined = |from: &ast::TableWithJoins| {
            std::iter::once(from.relation.clone()).chain(from.joins.iter().map(|join| join.relation.clone())).collect()
        };
        let factors: Vec<ast::TableFactor> = select.from.iter().flat_map(|from| -> Vec<_> { joined(from) }).collect();
        for factor in &factors {
            let (called, place) = match factor {
                ast::TableFactor::Table { name, alias: None, .. } => (name_of(name), start(name)),
                ast::TableFactor::Table { alias: Some(alias), .. }
                | ast::TableFactor::Derived { alias: Some(alias), .. } => {
                    (alias.name.value.clone(), place_of(alias.name.span))
                }
                _ => continue,
            };
            if called.eq_ignore_ascii_case(input) {
                found.push(place);
            }
        }
        if places.len() < found.len() {
            places = found;
        }
    });
    match places.as_slice() {
        [_, second, ..] => {
            RelationalError { place: *second, ..RelationalError::new(format!("two inputs are called '{input}'")) }
                .hint("give one of them another name: FROM ... AS other")
        }
        places => {
            let message = format!("'{input}' has two columns called '{column}'");
            RelationalError { place: places.first().copied().flatten(), ..RelationalError::new(message) }
                .hint(format!("name one of them anew where '{input}' is made: SELECT a.{column}, b.{column} AS other"))
        }
    }
}

/// The place of a column in USING.
pub(crate) fn using(column: &str, query: &ast::Query) -> Place {
    use ast::JoinOperator::{FullOuter, Inner, Join, Left, LeftOuter, Right, RightOuter};
    let mut found = None;
    selects(query, &mut |select| {
        for join in select.from.iter().flat_map(|from| &from.joins) {
            if let Join(on) | Inner(on) | Left(on) | LeftOuter(on) | Right(on) | RightOuter(on) | FullOuter(on) =
                &join.join_operator
                && let ast::JoinConstraint::Using(names) = on
            {
                let named = names.iter().find(|name| name.to_string().eq_ignore_ascii_case(column));
                found = found.or(named.and_then(start));
            }
        }
    });
    found
}

/// Where a node begins, if that is known.
pub(crate) fn start(node: &impl Spanned) -> Place {
    place_of(node.span())
}

pub(crate) fn place_of(span: Span) -> Place {
    let start = span.start;
    (start.line > 0).then_some((start.line, start.column))
}

/// Calls `show` for every SELECT of a query.
fn selects(query: &ast::Query, show: &mut dyn FnMut(&ast::Select)) {
    see(query, &mut |node| {
        let Node::Query(query) = node else { return };
        let mut bodies = vec![query.body.as_ref()];
        while let Some(body) = bodies.pop() {
            match body {
                ast::SetExpr::Select(select) => show(select),
                ast::SetExpr::SetOperation { left, right, .. } => bodies.extend([right.as_ref(), left.as_ref()]),
                _ => {}
            }
        }
    });
}

/// The place of the first clause that `clause` returns.
fn first(query: &ast::Query, clause: impl Fn(&ast::Select) -> Option<&ast::Expr>) -> Place {
    let mut found = None;
    selects(query, &mut |select| found = found.or_else(|| clause(select).and_then(start)));
    found
}

/// The place of the first part of a query for which `place` knows one.
fn first_part(query: &ast::Query, place: impl Fn(Node<'_>) -> Place) -> Place {
    let mut found = None;
    see(query, &mut |node| found = found.or_else(|| place(node)));
    found
}

/// The place of the first expression for which `is_it` holds.
pub(crate) fn first_expression(query: &ast::Query, is_it: impl Fn(&ast::Expr) -> bool) -> Place {
    first_part(query, |node| match node {
        Node::Expr(expression) if is_it(expression) => start(expression),
        _ => None,
    })
}

/// The place of the first `*`, or of the first `name.*`.
fn wildcard(query: &ast::Query, name: Option<&str>) -> Place {
    let mut found = None;
    selects(query, &mut |select| {
        let place = select.projection.iter().find_map(|item| match (item, name) {
            (ast::SelectItem::Wildcard(options), None) => place_of(options.wildcard_token.0.span),
            (ast::SelectItem::QualifiedWildcard(kind, _), Some(name)) if kind.to_string() == format!("{name}.*") => {
                start(kind)
            }
            _ => None,
        });
        found = found.or(place);
    });
    found
}

/// The place of the first alias with names of columns.
fn named_columns(query: &ast::Query) -> Place {
    first_part(query, |node| match node {
        Node::TableFactor(ast::TableFactor::Table { alias, .. } | ast::TableFactor::Derived { alias, .. }) => {
            place_of(alias.as_ref().filter(|alias| !alias.columns.is_empty())?.name.span)
        }
        _ => None,
    })
}

/// The place of the number in the first LIMIT.
pub(crate) fn limit(query: &ast::Query) -> Place {
    limits(query).into_iter().flatten().next()
}

/// The place of the number in the first LIMIT inside a query.
pub(crate) fn inner_limit(query: &ast::Query) -> Place {
    limits(query).into_iter().skip(1).flatten().next()
}

/// The places of the numbers in LIMIT: one for each query, the outermost first.
fn limits(query: &ast::Query) -> Vec<Place> {
    let mut found = Vec::new();
    see(query, &mut |node| match node {
        Node::Query(ast::Query { limit_clause: Some(ast::LimitClause::LimitOffset { limit, .. }), .. }) => {
            found.push(limit.as_ref().and_then(start));
        }
        Node::Query(_) => found.push(None),
        _ => {}
    });
    found
}

/// The place of the number in the first OFFSET.
pub(crate) fn offset(query: &ast::Query) -> Place {
    first_part(query, |node| {
        let Node::Query(ast::Query { limit_clause: Some(clause), .. }) = node else { return None };
        match clause {
            ast::LimitClause::LimitOffset { offset: Some(ast::Offset { value, .. }), .. }
            | ast::LimitClause::OffsetCommaLimit { offset: value, .. } => start(value),
            ast::LimitClause::LimitOffset { .. } => None,
        }
    })
}

/// The place of the right side of the first UNION.
fn right_of_union(query: &ast::Query) -> Place {
    first_part(query, |node| {
        let Node::Query(query) = node else { return None };
        let ast::SetExpr::SetOperation { right, .. } = query.body.as_ref() else { return None };
        start(right.as_ref())
    })
}

/// The place of the second column of a SELECT that has the name of an earlier one.
fn item_twice(query: &ast::Query) -> Place {
    let mut found = None;
    selects(query, &mut |select| {
        let mut names: Vec<String> = Vec::new();
        for item in &select.projection {
            let (name, place) = match item {
                ast::SelectItem::ExprWithAlias { alias, .. } => (alias.value.to_lowercase(), place_of(alias.span)),
                ast::SelectItem::UnnamedExpr(expression) => (expression.to_string().to_lowercase(), start(expression)),
                _ => continue,
            };
            if names.contains(&name) {
                found = found.or(place);
            }
            names.push(name);
        }
    });
    found
}

/// The place of this number in GROUP BY or ORDER BY.
fn key(query: &ast::Query, number: &str) -> Place {
    let is_it = |expression: &&ast::Expr| expression.to_string() == number;
    let mut found = None;
    selects(query, &mut |select| {
        if let ast::GroupByExpr::Expressions(keys, _) = &select.group_by {
            found = found.or_else(|| keys.iter().find(is_it).and_then(start));
        }
    });
    let of_order = |node: Node<'_>| {
        let Node::Query(ast::Query { order_by: Some(order), .. }) = node else { return None };
        let ast::OrderByKind::Expressions(keys) = &order.kind else { return None };
        keys.iter().map(|key| &key.expr).find(is_it).and_then(start)
    };
    found.or_else(|| first_part(query, of_order))
}

/// The place of the second query of that name in WITH.
fn with_twice(query: &ast::Query, name: &str) -> Place {
    first_part(query, |node| {
        let Node::Query(ast::Query { with: Some(with), .. }) = node else { return None };
        let called = with.cte_tables.iter().filter(|cte| cte.alias.name.value.eq_ignore_ascii_case(name));
        called.skip(1).find_map(|cte| place_of(cte.alias.name.span))
    })
}

/// The place of a named window behind OVER.
fn named_window(query: &ast::Query, name: &str) -> Place {
    first_part(query, |node| {
        let Node::Expr(ast::Expr::Function(function)) = node else { return None };
        let Some(ast::WindowType::NamedWindow(window)) = &function.over else { return None };
        if window.value.eq_ignore_ascii_case(name) { place_of(window.span) } else { None }
    })
}
