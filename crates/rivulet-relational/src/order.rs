//! `ORDER BY 2`: replaces the number of a column by the selected expression. DataFusion's planner looks for it among
//! the columns of the aggregate, which do not include an expression over aggregates.

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
