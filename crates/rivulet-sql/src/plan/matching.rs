//! The part of a WHERE that an index over the queries can answer.

use arrow::datatypes::Schema;
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, Operator};
use rivulet_operators::{Comparison, Match};

use super::expression::parameter_index;

/// Returns the part of a condition that finds the queries a row can concern. An equality is preferred, because it
/// leaves the fewest queries.
pub(super) fn match_of(condition: &Expr, input: &Schema, parameter_schema: &Schema) -> Option<Match> {
    let parts = || split_conjunction(condition).into_iter().filter_map(|part| part_of(part, input, parameter_schema));
    parts().find(|one| one.comparison == Comparison::Equal).or_else(|| parts().next())
}

fn part_of(part: &Expr, input: &Schema, parameter_schema: &Schema) -> Option<Match> {
    let found = |column: &Expr, parameter: &Expr, comparison: Comparison| {
        let (Expr::Column(column), Expr::Column(parameter)) = (column, parameter) else { return None };
        let (column, parameter) =
            (input.index_of(&column.name).ok()?, parameter_index(parameter_schema, &parameter.name)?);
        let data_type = input.field(column).data_type();
        let fits = parameter_schema.field(parameter).data_type() == data_type && Match::supports(data_type, comparison);
        fits.then_some(Match { column, parameter, comparison })
    };
    match part {
        Expr::BinaryExpr(binary) => {
            let (here, turned) = match binary.op {
                Operator::Eq => (Comparison::Equal, Comparison::Equal),
                Operator::Gt | Operator::GtEq => (Comparison::AtLeast, Comparison::AtMost),
                Operator::Lt | Operator::LtEq => (Comparison::AtMost, Comparison::AtLeast),
                _ => return None,
            };
            found(&binary.left, &binary.right, here).or_else(|| found(&binary.right, &binary.left, turned))
        }
        Expr::Between(between) if !between.negated => found(&between.expr, &between.low, Comparison::AtLeast)
            .or_else(|| found(&between.expr, &between.high, Comparison::AtMost)),
        _ => None,
    }
}
