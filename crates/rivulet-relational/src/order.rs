//! `ORDER BY 2`: the place of a column becomes what is selected there. The planner below looks for it among the columns
//! of the aggregate, where an expression over aggregates is not.

use datafusion_sql::sqlparser::ast;

use crate::walk::{NodeMut, change_query};

/// Puts what is selected in the place of numbers in ORDER BY.
pub(crate) fn rewrite_query(query: &mut ast::Query) {
    change_query(query, &mut |node, _| {
        if let NodeMut::Query(query) = node {
            rewrite_order(query);
        }
    });
}

fn rewrite_order(query: &mut ast::Query) {
    let ast::SetExpr::Select(select) = query.body.as_ref() else { return };
    // With DISTINCT only columns that are selected may be named, and an expression is none.
    if select.distinct.is_some() {
        return;
    }
    let Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(keys), .. }) = &mut query.order_by else { return };
    for key in keys {
        let ast::Expr::Value(value) = &key.expr else { continue };
        let ast::Value::Number(number, _) = &value.value else { continue };
        let Some(place) = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1)) else { continue };
        // Behind a wildcard the place is not known here; the planner below finds the columns.
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
