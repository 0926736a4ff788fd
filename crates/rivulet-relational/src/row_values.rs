//! Comparisons of row values, spelled out as comparisons of their parts, as the standard defines them:
//! `(a, b) = (c, d)` is `a = c AND b = d`, and `(a, b) < (c, d)` is `a < c OR (a = c AND b < d)`. As values of their
//! own, rows would have no null in their comparisons.

use datafusion_sql::sqlparser::ast::{BinaryOperator as Op, Expr, FunctionArg, FunctionArgExpr, FunctionArguments};

use crate::clauses::start;
use crate::error::RelationalError;
use crate::subscripts::ROW;
use crate::walk::look_at_expression;

/// The most nodes of a query or an expression that are copied because of its comparisons of rows. A comparison stands
/// for several of the values in its rows, so of comparisons within comparisons the copies would double with each.
const COPIED_MAX: usize = 1 << 18;

/// As how many nodes a value of rows in an order counts: the comparison of each is nested in that of the value before,
/// and walks over trees need stack for each level.
const LEVEL: usize = 1 << 9;

/// How two values are compared.
#[derive(Clone, Copy)]
enum Comparison<'a> {
    By(&'a Op),
    Distinct,
    NotDistinct,
}

/// Spells out one expression, whose parts are spelled out already. `copied` counts what was copied for the whole query.
pub(crate) fn spell_out(expression: &mut Expr, copied: &mut usize) -> Result<(), RelationalError> {
    let mut compared = |comparison, left: &Expr, right: &Expr| compared(comparison, left, right, copied);
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
            let equal = list.iter().map(|row| compared(Comparison::By(&Op::Eq), expr, row)).collect::<Result<_, _>>();
            negated_if(*negated, joined(&Op::Or, equal?))
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
            FunctionArguments::List(list) if !list.args.is_empty() => (list.args.iter().skip(1).step_by(2))
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
fn compared(
    comparison: Comparison<'_>,
    left: &Expr,
    right: &Expr,
    copied: &mut usize,
) -> Result<Expr, RelationalError> {
    let (lefts, rights) = match (parts(left), parts(right)) {
        (Some(lefts), Some(rights)) => (lefts, rights),
        _ => {
            [left, right].into_iter().try_for_each(|side| count(side, copied))?;
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
    let mut pairs = lefts.into_iter().zip(rights);
    let strict = match comparison {
        Comparison::By(Op::Lt | Op::LtEq) => &Op::Lt,
        Comparison::By(Op::Gt | Op::GtEq) => &Op::Gt,
        _ => {
            let each = pairs.map(|(left, right)| compared(comparison, left, right, copied));
            let is_any = matches!(comparison, Comparison::Distinct | Comparison::By(Op::NotEq));
            return Ok(joined(if is_any { &Op::Or } else { &Op::And }, each.collect::<Result<_, _>>()?));
        }
    };
    *copied += LEVEL * pairs.len();
    // Of a pair only what is used is spelled out: rows may stand in rows, at each place.
    let (left, right) = pairs.next_back().expect("a row has values");
    pairs.rev().try_fold(compared(comparison, left, right, copied)?, |rest, (left, right)| {
        let mut by = |op| compared(Comparison::By(op), left, right, copied);
        let (strict, equal) = (by(strict)?, by(&Op::Eq)?);
        Ok(joined(&Op::Or, vec![strict, joined(&Op::And, vec![equal, rest])]))
    })
}

/// Adds the nodes of a value that is copied, if all that are copied are not too many.
fn count(value: &Expr, copied: &mut usize) -> Result<(), RelationalError> {
    look_at_expression(value, &mut |_| {
        *copied += 1;
        match *copied > COPIED_MAX {
            true => Err(RelationalError {
                place: start(value),
                ..RelationalError::new("rows are compared that are too large")
            }
            .hint("compute the values of the rows in a subquery in FROM, and compare those")),
            false => Ok(()),
        }
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use datafusion_sql::sqlparser::dialect::GenericDialect;
    use datafusion_sql::sqlparser::parser::Parser;

    use crate::planning::spell_out_expression;

    /// What an expression is spelled out as, in a thread of its own: one that takes exponential time never ends.
    fn spelled(text: &str) -> Result<String, String> {
        let (text, (done, answer)) = (text.to_owned(), channel());
        std::thread::spawn(move || {
            let parser = Parser::new(&GenericDialect {}).with_recursion_limit(1_000);
            let mut expression = parser.try_with_sql(&text).unwrap().parse_expr().unwrap();
            let spelled = spell_out_expression(&mut expression);
            let _ = done.send(spelled.map(|()| expression.to_string()).map_err(|error| error.to_string()));
        });
        answer.recv_timeout(Duration::from_secs(60)).expect("it ends")
    }

    /// `value`, put so many times into what `into` makes of it.
    fn nested(depth: usize, value: &str, into: impl Fn(&str) -> String) -> String {
        (0..depth).fold(value.to_owned(), |value, _| into(&value))
    }

    #[test]
    fn only_what_is_used_is_spelled_out() {
        assert_eq!(spelled("(a, b) <= (c, d)").unwrap(), "(a < c OR (a = c AND b <= d))");
        assert_eq!(spelled("((a, b), e) > ((c, d), f)").unwrap().matches(['<', '>', '=']).count(), 6);
        // No row is without values, and the planner says so.
        for text in ["ROW() = ROW()", "ROW() < ROW()", "ROW() IN (ROW())", "ROW() IS NULL"] {
            assert!(spelled(text).is_ok(), "{text}");
        }
        for operator in ["<", "<=", ">", ">="] {
            for into in [|row: &str| format!("({row}, 1)"), |row: &str| format!("(1, {row})")] {
                let [left, right] = ["a", "b"].map(|value| nested(40, value, into));
                let comparisons =
                    spelled(&format!("{left} {operator} {right}")).unwrap().matches(['<', '>', '=']).count();
                assert!(comparisons < 2 * 40 * 40, "{comparisons}");
            }
        }
    }

    #[test]
    fn comparisons_within_comparisons_are_bounded() {
        type Into = fn(&str) -> String;
        let into: [Into; 3] = [
            |row| format!("({row}, 1) < (b, 1)"),
            |row| format!("({row}, 1) BETWEEN (1, 1) AND (2, 1)"),
            |row| format!("({row}, 1) IN ((1, 1), (2, 1))"),
        ];
        for into in into {
            assert!(spelled(&nested(5, "a", into)).is_ok());
            assert_eq!(spelled(&nested(40, "a", into)).unwrap_err(), "rows are compared that are too large");
        }
    }

    #[test]
    fn wide_rows_in_an_order_do_not_nest_without_bound() {
        let wide = |width: usize, operator: &str| {
            let row = vec!["a"; width].join(", ");
            spelled(&format!("({row}) {operator} ({row})"))
        };
        assert!(wide(400, "<").is_ok() && wide(20_000, "=").is_ok());
        for width in [600, 20_000] {
            assert_eq!(wide(width, ">=").unwrap_err(), "rows are compared that are too large");
        }
    }
}
