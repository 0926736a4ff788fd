//! The parts of a query one by one, to find the smallest that is wrong: the planner below says of most mistakes neither
//! where they stand nor in which words of the query.

use arrow::datatypes::DataType;
use datafusion_common::DFSchemaRef;
use datafusion_common::tree_node::TreeNode;
use datafusion_expr::simplify::SimplifyContext;
use datafusion_expr::{Expr, ExprSchemable};
use datafusion_optimizer::analyzer::type_coercion::TypeCoercionRewriter;
use datafusion_optimizer::simplify_expressions::ExprSimplifier;
use datafusion_sql::planner::{PlannerContext, SqlToRel};
use datafusion_sql::sqlparser::ast;

use crate::catalog::Catalog;
use crate::comparisons;
use crate::error::{RelationalError, see};
use crate::planning::{schema_of, spell_out_expression};
use crate::walk::Node;

/// How many SELECTs of a query are looked at.
const SELECTS_MAX: usize = 64;

/// The SELECTs of a query, those inside of others first, each with the keys of its ORDER BY.
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

/// The rows that a SELECT reads, for its expressions.
pub struct Rows<'c> {
    catalog: &'c Catalog,
    schema: DFSchemaRef,
}

impl<'c> Rows<'c> {
    /// Those of a SELECT of `query`, whose names of WITH it may use.
    ///
    /// # Errors
    /// What it reads cannot be planned by itself.
    pub fn new(select: &ast::Select, query: &ast::Query, catalog: &'c Catalog) -> Result<Self, RelationalError> {
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
        Ok(Self { catalog, schema: schema_of(&alone, catalog)? })
    }

    /// An expression of the SELECT, planned and with its types coerced, and its type.
    ///
    /// # Errors
    /// There is no such name, or the types do not go together.
    pub fn typed(&self, expression: &ast::Expr) -> Result<(Expr, DataType), RelationalError> {
        let mut expression = expression.clone();
        spell_out_expression(&mut expression)?;
        let mut context = PlannerContext::new();
        let planned = SqlToRel::new(self.catalog).sql_to_expr(expression, &self.schema, &mut context)?;
        comparisons::check_expression(&planned, &self.schema)?;
        let coerced = planned.rewrite(&mut TypeCoercionRewriter::new(&self.schema))?.data;
        let data_type = coerced.get_type(self.schema.as_ref())?;
        Ok((coerced, data_type))
    }

    /// Does what can be done of an expression before there are rows.
    ///
    /// # Errors
    /// A constant is such that it would fail at every row.
    pub fn simplify(&self, coerced: Expr) -> Result<(), RelationalError> {
        let folded = (self.catalog.fold)(coerced)?.data;
        let context = SimplifyContext::builder()
            .with_schema(self.schema.clone())
            .with_config_options(self.catalog.options.clone())
            .build();
        ExprSimplifier::new(context).simplify(folded)?;
        Ok(())
    }
}
