//! Gives the columns of a union names of their own, and the marks that the columns of all its inputs have.
//!
//! A union calls its columns by those of its first input, and numbers columns with the same name: `s` and `s_1`. With
//! one column fewer it would number anew, and the plan above would not find its columns any more. So the inputs get the
//! names that the union has.
//!
//! A column of a union would have the mark of JSON also where only one of its inputs has it, and text of the others
//! would go out as if it were JSON. So the inputs get the marks that they have in common.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef};
use datafusion_common::tree_node::{Transformed, TransformedResult};
use datafusion_common::{Column, DFSchema, Result};
use datafusion_expr::{Expr, LogicalPlan, Projection, Union};
use rivulet_dataflow::common_marks;

use crate::marks::Marked;

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

/// Where the texts of a column of a union have different marks in its inputs, gives them those that all have.
pub(crate) fn with_common_marks(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut is_changed = false;
    plan.transform_up_with_subqueries(|node| {
        // Nodes above a union that has changed still have the marks of before.
        let node = if is_changed { node.recompute_schema()? } else { node };
        let LogicalPlan::Union(union) = node else { return Ok(Transformed::no(node)) };
        let marks: Vec<Option<Field>> = (0..union.schema.fields().len()).map(|column| mixed(&union, column)).collect();
        if marks.iter().all(Option::is_none) {
            return Ok(Transformed::no(LogicalPlan::Union(union)));
        }
        is_changed = true;
        let inputs = union.inputs.iter().map(|input| {
            let columns = input.schema().iter().zip(&marks).map(|((qualifier, field), marks)| {
                let column = Expr::Column(Column::from((qualifier, field)));
                match marks.as_ref().filter(|_| !field.data_type().is_null()) {
                    Some(marks) => Marked::call(marks, column).alias_qualified(qualifier.cloned(), field.name()),
                    None => column,
                }
            });
            let columns = columns.collect::<Vec<_>>();
            Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(columns, input.clone())?)))
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let fields = union.schema.iter().zip(&marks).map(|((qualifier, field), marks)| {
            let field = match marks {
                Some(marks) => Arc::new(field.as_ref().clone().with_metadata(marks.metadata().clone())),
                None => field.clone(),
            };
            (qualifier.cloned(), field)
        });
        let schema = DFSchema::new_with_metadata(fields.collect(), union.schema.metadata().clone())?;
        Ok(Transformed::yes(LogicalPlan::Union(Union { inputs, schema: Arc::new(schema) })))
    })
    .data()
}

/// The marks that all inputs have in a column, if they have different ones. A null has no marks and takes any.
fn mixed(union: &Union, column: usize) -> Option<Field> {
    let fields = union.inputs.iter().filter_map(|input| input.schema().fields().get(column));
    let fields: Vec<&FieldRef> = fields.filter(|field| !field.data_type().is_null()).collect();
    let (first, others) = fields.split_first()?;
    let is_mixed = others.iter().any(|other| other.metadata() != first.metadata());
    is_mixed.then(|| others.iter().fold(first.as_ref().clone(), |common, other| common_marks(common, other)))
}
