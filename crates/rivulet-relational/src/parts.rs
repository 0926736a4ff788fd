//! The parts of a query one by one, to find the smallest one that is wrong. For most mistakes DataFusion's planner
//! gives neither the place nor the words of the query.

use datafusion_common::DFSchemaRef;
use datafusion_sql::sqlparser::ast;

use crate::catalog::Catalog;
use crate::error::RelationalError;
use crate::planning::schema_of;
use crate::walk::{Node, see};

/// The most SELECTs of a query that are looked at.
const SELECTS_MAX: usize = 64;

/// The SELECTs of a query, inner ones first, each with the keys of its ORDER BY.
pub fn selects(query: &ast::Query) -> Vec<(ast::Select, Vec<ast::Expr>)> {
    let mut found = Vec::new();
    see(query, &mut |node| {
        let Node::Query(inner) = node else { return };
        let keys = match &inner.order_by {
            Some(ast::OrderBy { kind: ast::OrderByKind::Expressions(keys), .. }) => {
                keys.iter().map(|key| key.expr.clone()).collect()
            }
            _ => Vec::new(),
        };
        let mut bodies = vec![inner.body.as_ref()];
        while let Some(body) = bodies.pop().filter(|_| found.len() < SELECTS_MAX) {
            match body {
                ast::SetExpr::Select(select) => found.push((select.as_ref().clone(), keys.clone())),
                ast::SetExpr::SetOperation { left, right, .. } => bodies.extend([left.as_ref(), right.as_ref()]),
                _ => {}
            }
        }
    });
    found.reverse();
    found
}

/// Returns the columns that the expressions of a SELECT of `query` can use. The SELECT may use the names in WITH of
/// `query`.
///
/// # Errors
/// The input of the SELECT cannot be planned alone.
pub fn columns_of(select: &ast::Select, query: &ast::Query, catalog: &Catalog) -> Result<DFSchemaRef, RelationalError> {
    let mut alone = query.clone();
    let mut select = select.clone();
    select.projection = vec![ast::SelectItem::Wildcard(ast::WildcardAdditionalOptions::default())];
    select.group_by = ast::GroupByExpr::Expressions(Vec::new(), Vec::new());
    (select.distinct, select.selection, select.having, select.qualify) = (None, None, None, None);
    for join in select.from.iter_mut().flat_map(|from| &mut from.joins) {
        use ast::JoinOperator::{FullOuter, Inner, Join, Left, LeftOuter, Right, RightOuter};
        if let Join(on) | Inner(on) | Left(on) | LeftOuter(on) | Right(on) | RightOuter(on) | FullOuter(on) =
            &mut join.join_operator
            && matches!(on, ast::JoinConstraint::On(_))
        {
            let always = ast::Expr::Value(ast::Value::Boolean(true).into());
            *on = ast::JoinConstraint::On(always);
        }
    }
    *alone.body = ast::SetExpr::Select(Box::new(select));
    (alone.order_by, alone.limit_clause) = (None, None);
    schema_of(&alone, catalog)
}
