//! Text and numbers are not compared. DataFusion's planner would read each text as a number, which for many texts fails
//! at each row. Such a comparison is a mistake, and is reported when the query is planned, as in applications.
//!
//! Neither are bits taken of numbers with a fraction, which the planner would cut off.

use arrow::datatypes::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{Expr, ExprSchemable, LogicalPlan, Operator};

use crate::error::{RelationalError, place_of};

/// Functions whose arguments are compared, or stand for each other. Applications may still give them text and numbers,
/// as before: rows whose text is not a number are refused.
const FUNCTIONS: [&str; 4] = ["coalesce", "nullif", "greatest", "least"];

/// Fails at the first comparison of text, or of a time, with a number.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        if let LogicalPlan::Join(join) = node {
            join.on.iter().try_for_each(|(left, right)| pair(left, right, &schema))?;
        }
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                check_one(part, &schema)?;
                check_call(part, &schema)?;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map(drop)
}

/// The same for one expression of an application, over these columns.
pub(crate) fn check_expression(expression: &Expr, schema: &DFSchema) -> Result<()> {
    expression
        .apply(|part| {
            check_one(part, schema)?;
            Ok(TreeNodeRecursion::Continue)
        })
        .map(drop)
}

fn check_one(expression: &Expr, schema: &DFSchema) -> Result<()> {
    match expression {
        Expr::BinaryExpr(binary) if is_comparison(binary.op) => pair(&binary.left, &binary.right, schema),
        Expr::BinaryExpr(binary) if is_of_bits(binary.op) => {
            [&binary.left, &binary.right].into_iter().try_for_each(|side| refuse_fraction(side, binary.op, schema))
        }
        Expr::Between(between) => {
            pair(&between.expr, &between.low, schema)?;
            pair(&between.expr, &between.high, schema)
        }
        Expr::InList(list) => list.list.iter().try_for_each(|item| pair(&list.expr, item, schema)),
        Expr::InSubquery(subquery) => {
            let columns = subquery.subquery.subquery.schema();
            match (subquery.expr.get_type(schema), columns.fields().first()) {
                (Ok(left), Some(right)) => refuse_mixed(&left, right.data_type(), &subquery.expr),
                _ => Ok(()),
            }
        }
        Expr::Case(case) => case.when_then_expr.iter().try_for_each(|(when, _)| match &case.expr {
            Some(operand) => pair(operand, when, schema),
            None => condition(when, "WHEN", schema),
        }),
        Expr::AggregateFunction(call) => match &call.params.filter {
            Some(filter) => condition(filter, "FILTER", schema),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn check_call(expression: &Expr, schema: &DFSchema) -> Result<()> {
    let Expr::ScalarFunction(call) = expression else { return Ok(()) };
    match call.args.as_slice() {
        [first, others @ ..] if FUNCTIONS.contains(&call.func.name()) => {
            others.iter().try_for_each(|other| pair(first, other, schema))
        }
        _ => Ok(()),
    }
}

/// Whether an operator compares its sides.
pub(crate) fn is_comparison(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Whether an operator computes with the bits of whole numbers.
fn is_of_bits(operator: Operator) -> bool {
    use Operator::{BitwiseAnd, BitwiseOr, BitwiseShiftLeft, BitwiseShiftRight, BitwiseXor};
    matches!(operator, BitwiseAnd | BitwiseOr | BitwiseXor | BitwiseShiftLeft | BitwiseShiftRight)
}

/// Fails if an operand of an operator of bits may have a fraction.
fn refuse_fraction(operand: &Expr, operator: Operator, schema: &DFSchema) -> Result<()> {
    match operand.get_type(schema) {
        Ok(found) if found.is_floating() || found.is_decimal() => {
            let name = Kind::Number.name(&found);
            let error =
                RelationalError::new(format!("the operator {operator} takes whole numbers, and this is {name}"))
                    .hint("write which whole number is meant, for example CAST(round(x) AS BIGINT)");
            placed_at(error, operand)
        }
        _ => Ok(()),
    }
}

/// Fails if a condition is neither a boolean nor null.
fn condition(expression: &Expr, clause: &str, schema: &DFSchema) -> Result<()> {
    match expression.get_type(schema) {
        Ok(data_type) if !matches!(data_type, DataType::Boolean | DataType::Null) => {
            let name = Kind::of(&data_type).map_or("no BOOLEAN", |kind| kind.name(&data_type));
            let error = RelationalError::new(format!("{clause} needs a condition, and this is {name}"))
                .hint("a condition is true or false, for example value > 3");
            placed_at(error, expression)
        }
        _ => Ok(()),
    }
}

/// Fails if two expressions are compared that cannot be. An expression without a type has another mistake, which is
/// found later.
fn pair(left: &Expr, right: &Expr, schema: &DFSchema) -> Result<()> {
    match (left.get_type(schema), right.get_type(schema)) {
        (Ok(left_type), Ok(right_type)) => {
            let placed = if left.column_refs().is_empty() { right } else { left };
            refuse_mixed(&left_type, &right_type, placed)
        }
        _ => Ok(()),
    }
}

/// Fails if values of these types are not compared; `placed` gives the place of the error.
fn refuse_mixed(left: &DataType, right: &DataType, placed: &Expr) -> Result<()> {
    let (Some(left_kind), Some(right_kind)) = (Kind::of(left), Kind::of(right)) else { return Ok(()) };
    let hint = match (left_kind, right_kind) {
        (Kind::Text, Kind::Number) | (Kind::Number, Kind::Text) => {
            "write numbers without quotes; convert with CAST(... AS DOUBLE) or CAST(... AS TEXT)"
        }
        (Kind::Text, Kind::Truth) | (Kind::Truth, Kind::Text) => {
            "write TRUE and FALSE without quotes; convert with CAST(... AS BOOLEAN) or CAST(... AS TEXT)"
        }
        (Kind::Time, Kind::Number) | (Kind::Number, Kind::Time) => {
            "write TIMESTAMP '...' for a time and INTERVAL '...' for a time span"
        }
        _ => return Ok(()),
    };
    let message = format!("{} and {} cannot be compared", left_kind.name(left), right_kind.name(right));
    placed_at(RelationalError::new(message).hint(hint), placed)
}

/// Fails with an error at the first column of an expression.
fn placed_at(error: RelationalError, placed: &Expr) -> Result<()> {
    Err(RelationalError { place: place_of(placed), ..error }.boxed())
}

/// A kind of values. Values are compared only with values of the same kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Truth,
    Time,
}

impl Kind {
    fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Dictionary(_, values) => Self::of(values),
            DataType::Boolean => Some(Self::Truth),
            DataType::Timestamp(..) => Some(Self::Time),
            text if text.is_string() => Some(Self::Text),
            number if number.is_numeric() => Some(Self::Number),
            _ => None,
        }
    }

    fn name(self, data_type: &DataType) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Number if data_type.is_integer() => "BIGINT",
            Self::Number if data_type.is_decimal() => "DECIMAL",
            Self::Number => "DOUBLE",
            Self::Truth => "BOOLEAN",
            Self::Time => "TIMESTAMP",
        }
    }
}
