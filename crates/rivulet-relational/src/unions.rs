//! Gives the columns of a union names of their own.
//!
//! A union calls its columns by those of its first input, and numbers columns with the same name: `s` and `s_1`. With
//! one column fewer it would number anew, and the plan above would not find its columns any more. So the inputs get the
//! names that the union has.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, Result};
use datafusion_expr::{Expr, LogicalPlan, Projection, Union};

/// If two columns of the first input of a union have one name, gives all its inputs the names of the union's columns.
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
