//! Numbers beside decimals. A literal is the decimal that is written: in `price * 1.19` and `price > 9.99` it is not
//! the nearest floating point number, so that no decimal is converted to one. Where CASE, functions such as COALESCE,
//! and UNION give a decimal or any other floating point number, they give floating point numbers. A decimal and any
//! other floating point number are compared as floating point numbers, which have a place for each of both.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{Column, DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{Between, InList, InSubquery, SetComparison};
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{Expr, ExprSchemable, JoinConstraint, LogicalPlan, Projection, Subquery, Union, cast};
use datafusion_optimizer::analyzer::type_coercion::coerce_union_schema;

use crate::comparisons::is_comparison;

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
    let mut is_changed = false;
    plan.transform_up_with_subqueries(|node| {
        // What has changed below may have other types.
        let node = if is_changed { node.recompute_schema()? } else { node };
        let (schema, names) = (merge_schema(&node.inputs()), NamePreserver::new(&node));
        let rewritten = node
            .map_expressions(|expression| {
                let name = names.save(&expression);
                Ok(rewrite(expression, &schema)?.update_data(|exact| name.restore(exact)))
            })?
            .transform_data(|node| widen_join(node, &schema))?
            .transform_data(widen_union)?;
        is_changed |= rewritten.transformed;
        match rewritten.transformed {
            true => Ok(Transformed::yes(rewritten.data.recompute_schema()?)),
            false => Ok(rewritten),
        }
    })
    .data()
}

/// The same for one expression over these columns.
pub(crate) fn rewrite(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expression.transform_up(|part| {
        Ok(match part {
            Expr::BinaryExpr(mut binary) if is_comparison(binary.op) => {
                let changed = widen(vec![&mut binary.left, &mut binary.right], schema);
                Transformed::new_transformed(Expr::BinaryExpr(binary), changed)
            }
            Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
                let changed = bring_together(vec![&mut expr, &mut low, &mut high], schema);
                let between = Expr::Between(Between { expr, negated, low, high });
                Transformed::new_transformed(between, changed)
            }
            Expr::InList(InList { mut expr, mut list, negated }) => {
                let changed = bring_together(std::iter::once(&mut *expr).chain(&mut list).collect(), schema);
                let in_list = Expr::InList(InList { expr, list, negated });
                Transformed::new_transformed(in_list, changed)
            }
            Expr::InSubquery(InSubquery { mut expr, mut subquery, negated }) => {
                let changed = widen_subquery(&mut expr, &mut subquery, schema)?;
                let within = Expr::InSubquery(InSubquery { expr, subquery, negated });
                Transformed::new_transformed(within, changed)
            }
            Expr::SetComparison(SetComparison { mut expr, mut subquery, op, quantifier }) => {
                let changed = widen_subquery(&mut expr, &mut subquery, schema)?;
                let comparison = SetComparison { expr, subquery, op, quantifier };
                Transformed::new_transformed(Expr::SetComparison(comparison), changed)
            }
            Expr::Case(mut case) => {
                let (mut compared, mut results) = (Vec::new(), Vec::new());
                for (when, then) in &mut case.when_then_expr {
                    compared.push(&mut **when);
                    results.push(&mut **then);
                }
                compared.extend(case.expr.as_deref_mut());
                results.extend(case.else_expr.as_deref_mut());
                let changed = bring_together(compared, schema) | bring_together(results, schema);
                Transformed::new_transformed(Expr::Case(case), changed)
            }
            Expr::ScalarFunction(mut call) if GIVES_AN_ARGUMENT.contains(&call.func.name()) => {
                let changed = bring_together(call.args.iter_mut().collect(), schema);
                Transformed::new_transformed(Expr::ScalarFunction(call), changed)
            }
            other => Transformed::no(other),
        })
    })
}

/// Makes decimals of the numbers that are written among these, if one of the others is a decimal, and then floating
/// point numbers of all decimals, if one of the others is such a number. Whether it did any of both.
fn bring_together(mut together: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    make_all_exact(&mut together, schema) | widen(together, schema)
}

/// Makes floating point numbers of the decimals among these, if one of the others is one; whether it did.
fn widen(mut together: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    let types: Vec<_> = together.iter().map(|one| one.get_type(schema).unwrap_or(DataType::Null)).collect();
    if !types.iter().any(DataType::is_floating) {
        return false;
    }
    let decimals = together.iter_mut().zip(&types).filter(|(_, data_type)| data_type.is_decimal());
    decimals.fold(false, |_, (one, _)| {
        **one = cast(std::mem::take(*one), DataType::Float64);
        true
    })
}

/// Does so with a value and the column of a subquery that it is compared with.
fn widen_subquery(value: &mut Expr, subquery: &mut Subquery, schema: &DFSchema) -> Result<bool> {
    let Some((qualifier, field)) = subquery.subquery.schema().iter().next() else { return Ok(false) };
    let found = value.get_type(schema).unwrap_or(DataType::Null);
    if found.is_decimal() && field.data_type().is_floating() {
        *value = cast(std::mem::take(value), DataType::Float64);
    } else if found.is_floating() && field.data_type().is_decimal() {
        let column = Expr::Column(Column::from((qualifier, field)));
        let wide = cast(column, DataType::Float64).alias_qualified(qualifier.cloned(), field.name());
        let plan = Projection::try_new(vec![wide], subquery.subquery.clone())?;
        subquery.subquery = Arc::new(LogicalPlan::Projection(plan));
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// Does so with the columns that a join by USING has in common.
fn widen_join(plan: LogicalPlan, schema: &DFSchema) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Join(mut join) = plan else { return Ok(Transformed::no(plan)) };
    let changed = join.on.iter_mut().fold(false, |changed, (left, right)| widen(vec![left, right], schema) | changed);
    if changed {
        // The sides of USING are columns.
        join.join_constraint = JoinConstraint::On;
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
}

/// Does so with the columns of a union, of all its parts at once: unions of unions become one. DataFusion's planner
/// gives a union the types of its first part until types are coerced, and what reads it would go by them.
fn widen_union(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Union(union) = plan else { return Ok(Transformed::no(plan)) };
    let parts = union.inputs.iter().flat_map(|input| match &**input {
        LogicalPlan::Union(inner) => inner.inputs.as_slice(),
        _ => std::slice::from_ref(input),
    });
    let mut inputs: Vec<Arc<LogicalPlan>> = parts.cloned().collect();
    let is_any = |column: usize, is: fn(&DataType) -> bool| {
        inputs.iter().any(|input| input.schema().fields().get(column).is_some_and(|field| is(field.data_type())))
    };
    let columns = 0..union.schema.fields().len();
    let mixed: Vec<bool> =
        columns.map(|column| is_any(column, DataType::is_floating) && is_any(column, DataType::is_decimal)).collect();
    if mixed.contains(&true) {
        let widened = inputs.iter().map(|input| {
            let schema = input.schema();
            let columns = schema.iter().zip(&mixed).map(|((qualifier, field), is_mixed)| {
                let column = Expr::Column(Column::from((qualifier, field)));
                match *is_mixed && field.data_type().is_decimal() {
                    true => cast(column, DataType::Float64).alias_qualified(qualifier.cloned(), field.name()),
                    false => column,
                }
            });
            let columns = columns.collect::<Vec<_>>();
            Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(columns, input.clone())?)))
        });
        inputs = widened.collect::<Result<_>>()?;
    }
    // Types that do not go together are refused where types are coerced.
    let schema = match coerce_union_schema(&inputs) {
        Ok(coerced) => {
            let fields = union.schema.iter().zip(coerced.fields()).map(|((qualifier, field), coerced)| {
                let field = field.as_ref().clone().with_data_type(coerced.data_type().clone());
                (qualifier.cloned(), Arc::new(field))
            });
            Arc::new(DFSchema::new_with_metadata(fields.collect(), union.schema.metadata().clone())?)
        }
        Err(_) => union.schema.clone(),
    };
    let is_changed = inputs.len() != union.inputs.len() || mixed.contains(&true) || schema != union.schema;
    Ok(Transformed::new_transformed(LogicalPlan::Union(Union { inputs, schema }), is_changed))
}

/// Makes decimals of the numbers that are written among these, if one of the others is a decimal; whether it did.
fn make_all_exact(together: &mut [&mut Expr], schema: &DFSchema) -> bool {
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
