//! The columns of a union have names of their own.
//!
//! A union calls its columns by those of its first input, and numbers those that have one name: `s` and `s_1`. With a
//! column fewer it would number anew, and what stands above would not find its columns any more. So the inputs get the
//! names that the union has.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, Result};
use datafusion_expr::{Expr, LogicalPlan, Projection, Union};

/// Gives the inputs of each union of a plan the names of its columns, where two of the first input have one name.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(with_own_names).map(|transformed| transformed.data)
}

/// The same for a plan that is a union.
pub(crate) fn with_own_names(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Union(union) = plan else { return Ok(Transformed::no(plan)) };
    let mut names = HashSet::new();
    let is_numbered = union.inputs.iter().take(1).any(|first| {
        let fields = first.schema().fields().iter();
        fields.map(|field| field.name()).any(|name| !names.insert(name.as_str()))
    });
    if !is_numbered {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let Union { inputs, schema } = union;
    let named = inputs.into_iter().map(|input| {
        let columns = input
            .schema()
            .iter()
            .zip(schema.fields())
            .map(|((qualifier, field), named)| Expr::Column(Column::from((qualifier, field))).alias(named.name()));
        let columns = columns.collect::<Vec<_>>();
        Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(columns, input)?)))
    });
    let inputs = named.collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(LogicalPlan::Union(Union { inputs, schema })))
}
