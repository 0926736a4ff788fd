//! The arguments and filters of sets and of counted values, among the expressions of all of them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::BooleanBuffer;
use datafusion_physical_expr::PhysicalExpr;

/// Returns the index of an expression among others. Adds the expression if it is new.
pub(super) fn place(expressions: &mut Vec<Arc<dyn PhysicalExpr>>, expression: &Arc<dyn PhysicalExpr>) -> usize {
    expressions.iter().position(|known| known == expression).unwrap_or_else(|| {
        expressions.push(expression.clone());
        expressions.len() - 1
    })
}

/// The rows that count for a set or counted values: those with an argument that pass the filter. `None`: all.
pub(super) fn valid_of(argument: &ArrayRef, filter: Option<&ArrayRef>) -> Option<BooleanBuffer> {
    let nulls = argument.logical_nulls().filter(|nulls| nulls.null_count() > 0).map(|nulls| nulls.inner().clone());
    let filter = filter.map(|filter| {
        let filter = filter.as_boolean();
        match filter.nulls() {
            Some(nulls) => filter.values() & nulls.inner(),
            None => filter.values().clone(),
        }
    });
    match (nulls, filter) {
        (Some(nulls), Some(filter)) => Some(&nulls & &filter),
        (nulls, filter) => nulls.or(filter),
    }
}
