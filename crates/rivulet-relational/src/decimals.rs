//! Number literals beside decimals: `price * 1.19` and `price > 9.99` mean the decimal that is written, and not the
//! nearest floating point number, so that no decimal is converted to one.

use arrow::datatypes::DataType;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{Between, InList};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan};

/// The most digits of a decimal.
const DIGITS_MAX: usize = 38;

/// Functions that give one of their arguments, which are brought to one type.
const GIVES_AN_ARGUMENT: [&str; 5] = ["coalesce", "greatest", "least", "nullif", "nvl"];

/// Turns a number literal into a decimal if the other side of its operator is a decimal.
#[derive(Debug)]
pub(crate) struct ExactNumbers;

impl ExprPlanner for ExactNumbers {
    fn plan_binary_op(&self, mut raw: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        make_exact(&mut raw.right, &raw.left, schema);
        make_exact(&mut raw.left, &raw.right, schema);
        Ok(PlannerResult::Original(raw))
    }
}

/// The same for several numbers beside one expression, for which DataFusion's planner has no hook.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let (schema, names) = (merge_schema(&node.inputs()), NamePreserver::new(&node));
        node.map_expressions(|expression| {
            let name = names.save(&expression);
            Ok(rewrite(expression, &schema)?.update_data(|exact| name.restore(exact)))
        })
    })
    .data()
}

/// The same for one expression over these columns.
pub(crate) fn rewrite(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expression.transform_up(|part| {
        Ok(match part {
            Expr::Between(Between { expr, negated, mut low, mut high }) => {
                let changed = make_exact(&mut low, &expr, schema) | make_exact(&mut high, &expr, schema);
                let between = Expr::Between(Between { expr, negated, low, high });
                Transformed::new_transformed(between, changed)
            }
            Expr::InList(InList { expr, mut list, negated }) => {
                let changed = list.iter_mut().fold(false, |changed, item| make_exact(item, &expr, schema) | changed);
                let in_list = Expr::InList(InList { expr, list, negated });
                Transformed::new_transformed(in_list, changed)
            }
            Expr::Case(mut case) => {
                let (mut compared, mut results) = (Vec::new(), Vec::new());
                for (when, then) in &mut case.when_then_expr {
                    compared.push(&mut **when);
                    results.push(&mut **then);
                }
                compared.extend(case.expr.as_deref_mut());
                results.extend(case.else_expr.as_deref_mut());
                let changed = make_all_exact(compared, schema) | make_all_exact(results, schema);
                Transformed::new_transformed(Expr::Case(case), changed)
            }
            Expr::ScalarFunction(mut call) if GIVES_AN_ARGUMENT.contains(&call.func.name()) => {
                let changed = make_all_exact(call.args.iter_mut().collect(), schema);
                Transformed::new_transformed(Expr::ScalarFunction(call), changed)
            }
            other => Transformed::no(other),
        })
    })
}

/// Makes decimals of the numbers that are written among these, if one of the others is a decimal; whether it did.
fn make_all_exact(mut together: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    if !together.iter().any(|one| decimal_of(one).is_some()) {
        return false;
    }
    let is_decimal = |one: &&mut Expr| matches!(one.get_type(schema), Ok(DataType::Decimal128(..)));
    let Some(decimal) = together.iter().find(|one| is_decimal(one)).map(|one| (**one).clone()) else { return false };
    together.iter_mut().fold(false, |changed, one| make_exact(one, &decimal, schema) | changed)
}

/// Turns a number literal into a decimal if `beside` is a decimal. Returns whether it is.
fn make_exact(number: &mut Expr, beside: &Expr, schema: &DFSchema) -> bool {
    let Some(exact) = decimal_of(number) else { return false };
    let is_beside = matches!(beside.get_type(schema), Ok(DataType::Decimal128(..)));
    if is_beside {
        *number = exact;
    }
    is_beside
}

/// The decimal as which a constant is written. It has the fewest digits that give the same floating point number.
fn decimal_of(number: &Expr) -> Option<Expr> {
    match number {
        Expr::Negative(inner) => decimal_of(inner).map(|inner| Expr::Negative(Box::new(inner))),
        Expr::Literal(ScalarValue::Float64(Some(value)), metadata) if value.is_finite() => {
            let text = value.abs().to_string();
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            let digits = format!("{}{fraction}", whole.trim_start_matches('0'));
            if digits.len() > DIGITS_MAX || fraction.len() > DIGITS_MAX {
                return None;
            }
            let magnitude: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
            let (precision, scale) = (digits.len().max(fraction.len()).max(1), fraction.len());
            let value = if value.is_sign_negative() { -magnitude } else { magnitude };
            let decimal = ScalarValue::Decimal128(Some(value), precision as u8, scale as i8);
            Some(Expr::Literal(decimal, metadata.clone()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_decimal_that_was_written() {
        for (number, expected) in [
            (1.19, Some((119, 3, 2))),
            (-0.05, Some((-5, 2, 2))),
            (0.0, Some((0, 1, 0))),
            (1_234_567.89, Some((123_456_789, 9, 2))),
            (1e20, Some((100_000_000_000_000_000_000, 21, 0))),
            (1e-40, None),
            (1e300, None),
            (f64::NAN, None),
        ] {
            let found = decimal_of(&Expr::Literal(ScalarValue::Float64(Some(number)), None));
            let found = found.map(|found| match found {
                Expr::Literal(ScalarValue::Decimal128(Some(value), precision, scale), None) => {
                    (value, precision, scale)
                }
                other => panic!("{other}"),
            });
            assert_eq!(found, expected, "{number}");
        }
    }
}
