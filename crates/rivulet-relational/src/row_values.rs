//! Comparisons of row values, spelled out as comparisons of their parts, as the standard defines them:
//! `(a, b) = (c, d)` is `a = c AND b = d`, and `(a, b) < (c, d)` is `a < c OR (a = c AND b < d)`. As values of their
//! own, rows would have no null in their comparisons.

use datafusion_sql::sqlparser::ast::{BinaryOperator as Op, Expr, FunctionArg, FunctionArgExpr, FunctionArguments};

use crate::clauses::start;
use crate::error::RelationalError;
use crate::subscripts::ROW;

/// How two values are compared.
#[derive(Clone, Copy)]
enum Comparison<'a> {
    By(&'a Op),
    Distinct,
    NotDistinct,
}

/// Spells out one expression, whose parts are spelled out already.
pub(crate) fn spell_out(expression: &mut Expr) -> Result<(), RelationalError> {
    let is_row = |value: &Expr| parts(value).is_some();
    let spelled = match &*expression {
        Expr::BinaryOp { left, op, right } if is_comparison(op) && (is_row(left) || is_row(right)) => {
            if [left, right].iter().any(|side| matches!(side.as_ref(), Expr::Subquery(_))) {
                return Err(refused(left, "a comparison of a row with a subquery"));
            }
            compared(Comparison::By(op), left, right)?
        }
        Expr::IsDistinctFrom(left, right) if is_row(left) => compared(Comparison::Distinct, left, right)?,
        Expr::IsNotDistinctFrom(left, right) if is_row(left) => compared(Comparison::NotDistinct, left, right)?,
        Expr::InList { expr, list, negated } if is_row(expr) => {
            let equal = list.iter().map(|row| compared(Comparison::By(&Op::Eq), expr, row));
            negated_if(*negated, joined(&Op::Or, equal.collect::<Result<_, _>>()?))
        }
        Expr::Between { expr, negated, low, high } if is_row(expr) => {
            let bounds =
                [compared(Comparison::By(&Op::GtEq), expr, low)?, compared(Comparison::By(&Op::LtEq), expr, high)?];
            negated_if(*negated, joined(&Op::And, bounds.into()))
        }
        Expr::IsNull(row) | Expr::IsNotNull(row) if is_row(row) => {
            let is_null = matches!(expression, Expr::IsNull(_));
            let parts = parts(row).into_iter().flatten().cloned().map(Box::new);
            joined(&Op::And, parts.map(if is_null { Expr::IsNull } else { Expr::IsNotNull }).collect())
        }
        Expr::InSubquery { expr: row, .. } | Expr::AnyOp { left: row, .. } | Expr::AllOp { left: row, .. }
            if is_row(row) =>
        {
            return Err(refused(row, "a comparison of a row with a subquery"));
        }
        Expr::Case { operand: Some(row), .. } if is_row(row) => return Err(refused(row, "CASE of a row")),
        _ => return Ok(()),
    };
    *expression = spelled;
    Ok(())
}

/// The parts of `(a, b)`, or of `ROW(a, b)`, which is spelled out already.
fn parts(value: &Expr) -> Option<Vec<&Expr>> {
    match value {
        Expr::Tuple(parts) => Some(parts.iter().collect()),
        Expr::Nested(inner) => parts(inner),
        Expr::Function(call) if call.name.to_string() == ROW => match &call.args {
            FunctionArguments::List(list) => (list.args.iter().skip(1).step_by(2))
                .map(|part| match part {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(part)) => Some(part),
                    _ => None,
                })
                .collect(),
            _ => None,
        },
        _ => None,
    }
}

fn is_comparison(operator: &Op) -> bool {
    matches!(operator, Op::Eq | Op::NotEq | Op::Lt | Op::LtEq | Op::Gt | Op::GtEq | Op::Spaceship)
}

/// The comparison of two values; of two rows, part by part.
fn compared(comparison: Comparison<'_>, left: &Expr, right: &Expr) -> Result<Expr, RelationalError> {
    let (lefts, rights) = match (parts(left), parts(right)) {
        (Some(lefts), Some(rights)) => (lefts, rights),
        _ => {
            let (left, right) = (Box::new(left.clone()), Box::new(right.clone()));
            return Ok(match comparison {
                Comparison::By(op) => Expr::BinaryOp { left, op: op.clone(), right },
                Comparison::Distinct => Expr::IsDistinctFrom(left, right),
                Comparison::NotDistinct => Expr::IsNotDistinctFrom(left, right),
            });
        }
    };
    if lefts.len() != rights.len() {
        let what = format!("a row of {} values is compared with one of {}", lefts.len(), rights.len());
        let error = RelationalError { place: start(left), ..RelationalError::new(what) };
        return Err(error.hint("write as many values on both sides: (a, b) = (c, d)"));
    }
    let each = |comparison| {
        let pairs = lefts.iter().zip(&rights);
        pairs.map(|(left, right)| compared(comparison, left, right)).collect::<Result<Vec<_>, _>>()
    };
    let is_order = |op: &Op| matches!(op, Op::Lt | Op::LtEq | Op::Gt | Op::GtEq);
    Ok(match comparison {
        Comparison::Distinct | Comparison::By(Op::NotEq) => joined(&Op::Or, each(comparison)?),
        Comparison::By(op) if is_order(op) => {
            let strict = match op {
                Op::LtEq => &Op::Lt,
                Op::GtEq => &Op::Gt,
                other => other,
            };
            let (mut last, stricts) = (each(comparison)?.pop(), each(Comparison::By(strict))?);
            for (equal, strict) in each(Comparison::By(&Op::Eq))?.into_iter().zip(stricts).rev().skip(1) {
                let rest = last.map(|last| joined(&Op::And, vec![equal, last]));
                last = Some(joined(&Op::Or, [strict].into_iter().chain(rest).collect()));
            }
            joined(&Op::And, last.into_iter().collect())
        }
        _ => joined(&Op::And, each(comparison)?),
    })
}

/// Conditions joined by AND or OR, as a tree that is no deeper than it must be.
fn joined(operator: &Op, mut conditions: Vec<Expr>) -> Expr {
    let others = conditions.split_off(conditions.len().div_ceil(2));
    if others.is_empty() {
        return conditions.pop().expect("a row has values");
    }
    let [left, right] = [conditions, others].map(|half| Box::new(joined(operator, half)));
    Expr::Nested(Box::new(Expr::BinaryOp { left, op: operator.clone(), right }))
}

fn negated_if(negated: bool, condition: Expr) -> Expr {
    use datafusion_sql::sqlparser::ast::UnaryOperator;
    match negated {
        true => Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(condition) },
        false => condition,
    }
}

fn refused(row: &Expr, what: &str) -> RelationalError {
    let error = RelationalError { place: start(row), ..RelationalError::new(format!("{what} is not supported yet")) };
    error.hint("compare a row with a row, (a, b) = (c, d), and in a subquery by EXISTS (... WHERE x = a AND y = b)")
}
