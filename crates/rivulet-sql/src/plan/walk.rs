//! Walks over expressions: tells where they begin, visits their parts, and replaces calls by columns.

use std::ops::ControlFlow;

use datafusion_sql::sqlparser::ast::{self, Expr, Spanned};
use rivulet_relational::functions::RANKINGS;

use super::call::call_name;
use crate::{Position, SqlError};

/// Calls `visit` for each expression directly inside `expression`, in written order, until it breaks off. Covers the
/// constructs that [`check`](super::check) accepts.
pub(super) fn for_each_child(expression: &mut Expr, visit: &mut dyn FnMut(&mut Expr) -> ControlFlow<()>) {
    let mut all = |children: &mut [&mut Expr]| {
        for child in children {
            if visit(child).is_break() {
                break;
            }
        }
    };
    match expression {
        // A negative number is a constant.
        Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr: number } if is_number(number) => {}
        Expr::IsNull(inner)
        | Expr::IsNotNull(inner)
        | Expr::IsTrue(inner)
        | Expr::IsNotTrue(inner)
        | Expr::IsFalse(inner)
        | Expr::IsNotFalse(inner)
        | Expr::IsUnknown(inner)
        | Expr::IsNotUnknown(inner)
        | Expr::Nested(inner)
        | Expr::UnaryOp { expr: inner, .. }
        | Expr::Cast { expr: inner, .. }
        | Expr::Extract { expr: inner, .. }
        | Expr::Ceil { expr: inner, .. }
        | Expr::Floor { expr: inner, .. } => all(&mut [inner]),
        Expr::IsDistinctFrom(left, right)
        | Expr::IsNotDistinctFrom(left, right)
        | Expr::BinaryOp { left, right, .. }
        | Expr::Position { expr: left, r#in: right } => all(&mut [left, right]),
        Expr::InList { expr, list, .. } => {
            all(&mut std::iter::once(expr.as_mut()).chain(list.iter_mut()).collect::<Vec<_>>());
        }
        Expr::Between { expr, low, high, .. } => all(&mut [expr, low, high]),
        Expr::Like { expr, pattern, .. } | Expr::ILike { expr, pattern, .. } => all(&mut [expr, pattern]),
        Expr::Substring { expr, substring_from, substring_for, .. } => all(&mut std::iter::once(expr.as_mut())
            .chain(substring_from.as_deref_mut())
            .chain(substring_for.as_deref_mut())
            .collect::<Vec<_>>()),
        Expr::Trim { expr, trim_what, .. } => {
            all(&mut trim_what.as_deref_mut().into_iter().chain([expr.as_mut()]).collect::<Vec<_>>());
        }
        Expr::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
            all(&mut [expr.as_mut(), overlay_what.as_mut(), overlay_from.as_mut()]
                .into_iter()
                .chain(overlay_for.as_deref_mut())
                .collect::<Vec<_>>());
        }
        Expr::Case { operand, conditions, else_result, .. } => all(&mut operand
            .as_deref_mut()
            .into_iter()
            .chain(conditions.iter_mut().flat_map(|when| [&mut when.condition, &mut when.result]))
            .chain(else_result.as_deref_mut())
            .collect::<Vec<_>>()),
        Expr::Function(function) => {
            let is_rank = RANKINGS.contains(&call_name(function).as_str());
            let mut children: Vec<&mut Expr> = Vec::new();
            if let ast::FunctionArguments::List(arguments) = &mut function.args {
                children.extend(arguments.args.iter_mut().filter_map(|argument| match argument {
                    ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => Some(expression),
                    _ => None,
                }));
                let orders = arguments.clauses.iter_mut().filter_map(|clause| match clause {
                    ast::FunctionArgumentClause::OrderBy(orders) => Some(orders),
                    _ => None,
                });
                children.extend(orders.flatten().map(|order| &mut order.expr));
            }
            children.extend(function.within_group.iter_mut().map(|order| &mut order.expr));
            children.extend(function.filter.as_deref_mut());
            if let Some(ast::WindowType::WindowSpec(over)) = &mut function.over {
                children.extend(&mut over.partition_by);
                if is_rank {
                    children.extend(over.order_by.iter_mut().map(|order| &mut order.expr));
                }
            }
            all(&mut children);
        }
        _ => {}
    }
}

/// Returns where an expression begins; unknown if the parser keeps no position for it.
pub(super) fn start(expression: &Expr) -> Position {
    match expression {
        // The span of these does not include the part before the first inner expression.
        Expr::Function(function) => Position::from(function.name.span()),
        // The parser has no span for this one.
        Expr::RLike { expr, .. } => start(expr),
        Expr::Exists { subquery, .. } | Expr::Subquery(subquery) => Position::from(subquery.span()),
        other => Position::from(other.span()),
    }
}

fn is_number(expression: &Expr) -> bool {
    matches!(expression, Expr::Value(value) if matches!(value.value, ast::Value::Number(..)))
}

/// Calls `show` for an expression and all its parts.
pub(super) fn inspect(expression: &Expr, show: &mut dyn FnMut(&Expr)) {
    fn each(expression: &mut Expr, show: &mut dyn FnMut(&Expr)) {
        show(expression);
        for_each_child(expression, &mut |child| {
            each(child, show);
            ControlFlow::Continue(())
        });
    }
    each(&mut expression.clone(), show);
}

/// Does the same until `visit` fails.
pub(super) fn try_each_child(
    expression: &mut Expr,
    visit: &mut dyn FnMut(&mut Expr) -> Result<(), SqlError>,
) -> Result<(), SqlError> {
    let mut result = Ok(());
    for_each_child(expression, &mut |child| {
        result = visit(child);
        if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    result
}

/// Replaces each call for which `column_of` returns a column by that column. Does not look into replaced calls.
pub(super) fn replace_calls(
    expression: &mut Expr,
    column_of: &mut dyn FnMut(&ast::Function) -> Result<Option<String>, SqlError>,
) -> Result<(), SqlError> {
    if let Expr::Function(function) = expression
        && let Some(column) = column_of(function)?
    {
        let span = function.name.span();
        *expression = Expr::Identifier(ast::Ident::with_quote_and_span('"', span, column));
        return Ok(());
    }
    try_each_child(expression, &mut |child| replace_calls(child, column_of))
}
