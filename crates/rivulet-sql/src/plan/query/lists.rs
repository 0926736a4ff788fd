//! The arguments of `array_agg` and `string_agg`: values as JSON or texts, the separator, and the key that orders them.
//!
//! Rows of several instances have no order of arrival. So values without ORDER BY are in order of event time, values
//! with DISTINCT in their own order, and what is equal in that is ordered by its text.

use arrow::compute::SortOptions;
use datafusion_common::ScalarValue;
use datafusion_expr::Expr;
use datafusion_expr::expr::Sort;
use rivulet_operators::AggregateFunction;

use super::super::scalars::{json_of, list_key};
use super::columns::unaliased;
use super::error::{place_of, refused};
use crate::{Position, SqlError};

/// The arguments of a call for the operators, given those that are written and ORDER BY.
pub(super) fn arguments(
    function: AggregateFunction,
    written: &[Expr],
    order: &[Sort],
    position: Position,
) -> Result<Vec<Expr>, SqlError> {
    let name = if function.gives_json() { "array_agg" } else { "string_agg" };
    let Some(value) = written.first() else { return Err(refused(position, format!("{name} has no value"))) };
    if let Some(separator) = written.get(1)
        && !matches!(unaliased(separator), Expr::Literal(ScalarValue::Utf8(Some(_)), _))
    {
        let position = place_of(separator).or(position);
        return Err(refused(position, "the separator of string_agg is no constant text")
            .hint("write for example string_agg(name, ', ')"));
    }
    let options = |sort: &Sort| SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
    let (mut keys, mut orders): (Vec<Expr>, Vec<SortOptions>) =
        order.iter().map(|sort| (unaliased(&sort.expr).clone(), options(sort))).unzip();
    if function.is_over_distinct() {
        if let Some(other) = keys.iter().find(|key| *key != unaliased(value)) {
            let position = place_of(other).or(position);
            return Err(refused(position, format!("{name}(DISTINCT x) is ordered by x alone"))
                .hint(format!("a value may come with several others; write {name}(DISTINCT x ORDER BY x DESC)")));
        }
        if keys.is_empty() {
            (keys, orders) = (vec![value.clone()], vec![SortOptions::default()]);
        }
    }
    let mut arguments = match function.gives_json() {
        true => vec![json_of().call(vec![value.clone()])],
        false => written.to_vec(),
    };
    if !keys.is_empty() {
        arguments.push(list_key(orders).call(keys));
    }
    Ok(arguments)
}
