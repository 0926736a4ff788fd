//! Finds the part of a query that DataFusion refuses without a position or in words of its own: the smallest expression
//! that is refused by itself. Its error is explained as in an application.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_sql::sqlparser::ast;
use rivulet_relational::group_window::is_window;
use rivulet_relational::parts::{columns_of, selects};
use rivulet_relational::{Catalog, ExpressionPlanner, Problem, RelationalError};

use crate::plan::expression::{Wrong, explain, no_condition};
use crate::plan::walk::start;
use crate::{Position, SqlError};

/// An expression of a SELECT.
struct Part<'s> {
    expression: &'s ast::Expr,
    /// The name of the clause if it needs a condition.
    condition: Option<&'static str>,
}

/// Returns the error with its position, if it is about an expression of the query.
pub(super) fn find(
    error: &RelationalError,
    query: &ast::Query,
    catalog: &Arc<Catalog>,
    fallback: Position,
) -> Option<SqlError> {
    let is_placed = match error.problem {
        Problem::Foreign(_) => false,
        Problem::UnknownType(_) | Problem::Other(_) => error.place.is_some(),
        _ => true,
    };
    if is_placed {
        return None;
    }
    selects(query).into_iter().find_map(|(select, keys)| {
        // A named window has no meaning for an expression by itself.
        if !select.named_window.is_empty() {
            return None;
        }
        // Inner SELECTs are checked before outer ones.
        let columns = columns_of(&select, query, catalog).ok()?;
        let planner = ExpressionPlanner::new(columns, catalog.clone());
        let type_of = |expression: &ast::Expr| type_of(&planner, expression);
        parts(&select, &keys).into_iter().find_map(|Part { expression, condition }| {
            match (type_of(expression), condition) {
                (Err(wrong), _) if !wrong.is_of_name() => Some(explain(expression, wrong, fallback, &type_of)),
                (Ok(data_type), Some(clause)) if !matches!(data_type, DataType::Boolean | DataType::Null) => {
                    Some(no_condition(clause, &data_type).at(start(expression).or(fallback)))
                }
                _ => None,
            }
        })
    })
}

fn type_of(planner: &ExpressionPlanner, expression: &ast::Expr) -> Result<DataType, Wrong> {
    // An expression that is a key of GROUP BY by itself is not checked.
    if let ast::Expr::Function(call) = expression
        && is_window(expression)
    {
        let error = RelationalError {
            problem: Problem::Other(format!("{}() stands in GROUP BY only", call.name)),
            place: None,
            hint: Some("select window_start and window_end to see the bounds of the window".into()),
        };
        return Err(Wrong::constants(error));
    }
    let (coerced, data_type) =
        planner.plan(expression).and_then(|planned| planner.coerce(planned)).map_err(Wrong::types)?;
    planner.simplify(coerced).map_err(Wrong::constants)?;
    Ok(data_type)
}

/// The expressions of a SELECT, except windows in GROUP BY, in the order in which they are written.
fn parts<'s>(select: &'s ast::Select, order: &'s [ast::Expr]) -> Vec<Part<'s>> {
    let plain = |expression| Part { expression, condition: None };
    let condition = |clause| move |expression| Part { expression, condition: Some(clause) };
    let mut found: Vec<Part<'s>> = Vec::new();
    found.extend(select.projection.iter().filter_map(|item| match item {
        ast::SelectItem::UnnamedExpr(expression) | ast::SelectItem::ExprWithAlias { expr: expression, .. } => {
            Some(plain(expression))
        }
        _ => None,
    }));
    let joins = select.from.iter().flat_map(|from| &from.joins);
    found.extend(joins.filter_map(on).map(condition("ON")));
    found.extend(select.selection.iter().map(condition("WHERE")));
    if let ast::GroupByExpr::Expressions(keys, _) = &select.group_by {
        found.extend(keys.iter().filter(|key| !is_window(key)).map(plain));
    }
    found.extend(select.having.iter().map(condition("HAVING")));
    found.extend(select.qualify.iter().map(condition("QUALIFY")));
    found.extend(order.iter().map(plain));
    found
}

/// The condition of ON.
fn on(join: &ast::Join) -> Option<&ast::Expr> {
    use ast::JoinOperator::{FullOuter, Inner, Join, Left, LeftOuter, Right, RightOuter};
    match &join.join_operator {
        Join(on) | Inner(on) | Left(on) | LeftOuter(on) | Right(on) | RightOuter(on) | FullOuter(on) => match on {
            ast::JoinConstraint::On(condition) => Some(condition),
            _ => None,
        },
        _ => None,
    }
}
