//! Which columns expressions use, and the indices of these columns in the rows of a stream.

use std::collections::BTreeSet;

use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{Column, DFSchema, ScalarValue};
use datafusion_expr::Expr;
use datafusion_expr::expr::ScalarFunction;
use rivulet_relational::functions::PROCTIME;

use super::stream::{Place, Stream, WINDOW_END, WINDOW_START};

/// The expression without its aliases.
pub(super) fn unaliased(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

/// The columns that expressions use, as indices in a schema.
pub(super) fn used_columns<'e>(expressions: impl IntoIterator<Item = &'e Expr>, schema: &DFSchema) -> BTreeSet<usize> {
    let mut used = BTreeSet::new();
    for expression in expressions {
        used.extend(expression.column_refs().into_iter().filter_map(|column| schema.maybe_index_of_column(column)));
    }
    used
}

/// The place of an expression that only names a column; `None` if it is more than that.
pub(super) fn place_in(expression: &Expr, schema: &DFSchema, stream: &Stream) -> Option<Place> {
    match unaliased(expression) {
        Expr::Column(column) => stream.columns.get(schema.maybe_index_of_column(column)?).copied(),
        Expr::ScalarFunction(ScalarFunction { func, .. }) if func.name() == PROCTIME => Some(Place::Clock),
        _ => None,
    }
}

/// Whether expressions use the bounds of windows that are not assigned yet.
pub(super) fn uses_windows<'e>(
    expressions: impl IntoIterator<Item = &'e Expr>,
    schema: &DFSchema,
    stream: &Stream,
) -> bool {
    let is_bound = |column: &usize| matches!(stream.columns.get(*column), Some(Place::WindowStart | Place::WindowEnd));
    used_columns(expressions, schema).iter().any(is_bound)
}

/// Whether a condition uses only the bounds of windows that are not assigned yet.
pub(super) fn is_of_bounds(condition: &Expr, schema: &DFSchema, stream: &Stream) -> bool {
    let used = used_columns([condition], schema);
    let is_bound = |column: &usize| matches!(stream.columns.get(*column), Some(Place::WindowStart | Place::WindowEnd));
    !used.is_empty() && used.iter().all(is_bound)
}

/// Converts a condition about the bounds of windows to one over [`bounds_schema`](super::stream::bounds_schema).
pub(super) fn over_bounds(condition: &Expr, schema: &DFSchema, stream: &Stream) -> Expr {
    let renamed = condition.clone().transform(|node| {
        let Expr::Column(column) = &node else { return Ok(Transformed::no(node)) };
        let place = schema.maybe_index_of_column(column).map(|place| stream.columns[place]);
        let name = if place == Some(Place::WindowStart) { WINDOW_START } else { WINDOW_END };
        Ok(Transformed::yes(Expr::Column(Column::from_name(name))))
    });
    renamed.data().expect("names are replaced without error")
}

/// Returns the number if an expression is a constant whole number.
pub(super) fn whole_number(expression: &Expr) -> Option<i64> {
    match expression {
        Expr::Literal(ScalarValue::Int64(value), _) => *value,
        Expr::Literal(ScalarValue::UInt64(Some(value)), _) => i64::try_from(*value).ok(),
        Expr::Literal(ScalarValue::Int32(Some(value)), _) => Some(i64::from(*value)),
        _ => None,
    }
}
