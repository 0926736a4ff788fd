//! Single expressions over given columns: expressions of applications, whose clauses are not those of a query, and
//! parts of a query, to find the wrong one.

use std::fmt;
use std::sync::Arc;

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
use crate::decimals;
use crate::error::RelationalError;
use crate::marks;
use crate::planning::spell_out_expression;

/// Plans expressions over one set of columns.
#[derive(Clone)]
pub struct ExpressionPlanner {
    schema: DFSchemaRef,
    catalog: Arc<Catalog>,
}

impl ExpressionPlanner {
    /// Makes a planner over these columns, with the functions of the catalog.
    pub fn new(schema: DFSchemaRef, catalog: Arc<Catalog>) -> Self {
        Self { schema, catalog }
    }

    /// The columns.
    pub fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    /// Plans an expression: names are resolved, and types are as written, not yet coerced.
    ///
    /// # Errors
    /// A name or type that does not exist, or an operator that does not take the type of its operand.
    pub fn plan(&self, expression: &ast::Expr) -> Result<Expr, RelationalError> {
        let mut expression = expression.clone();
        spell_out_expression(&mut expression)?;
        let mut context = PlannerContext::new();
        let planned = SqlToRel::new(self.catalog.as_ref()).sql_to_expr(expression, &self.schema, &mut context)?;
        // If a function is called by another of its names, that name is an alias, and equal expressions would differ by
        // it.
        Ok(marks::rewrite(planned.unalias_nested().data, &self.schema)?.data)
    }

    /// Returns a planned expression with its types coerced, and its type.
    ///
    /// # Errors
    /// The types do not go together.
    pub fn coerce(&self, planned: Expr) -> Result<(Expr, DataType), RelationalError> {
        comparisons::check_expression(&planned, &self.schema)?;
        let planned = decimals::rewrite(planned, &self.schema)?.data;
        let coerced = planned.rewrite(&mut TypeCoercionRewriter::new(&self.schema))?.data;
        let data_type = coerced.get_type(self.schema.as_ref())?;
        Ok((coerced, data_type))
    }

    /// Does all of a coerced expression that can be done before there are rows.
    ///
    /// # Errors
    /// A constant part that would fail at every row.
    pub fn simplify(&self, coerced: Expr) -> Result<Expr, RelationalError> {
        let folded = (self.catalog.fold)(coerced)?.data;
        let context = SimplifyContext::builder()
            .with_schema(self.schema.clone())
            .with_config_options(self.catalog.options.clone())
            .build();
        Ok(ExprSimplifier::new(context).simplify(folded)?)
    }
}

impl fmt::Debug for ExpressionPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpressionPlanner").field("schema", &self.schema).finish_non_exhaustive()
    }
}
