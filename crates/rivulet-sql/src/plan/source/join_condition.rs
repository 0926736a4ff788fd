//! The ON of two joined inputs: equalities, and bounds of their event times.

use std::collections::HashSet;

use arrow::datatypes::DataType;
use datafusion_expr::{BinaryExpr, Expr, Operator};
use datafusion_sql::sqlparser::ast;

use super::super::aggregate::condition_of;
use super::super::check::{Place, Scope};
use super::super::expression::ExpressionPlanner;
use super::super::types::{cast_to, result_type};
use super::super::walk::start;
use super::several::by_input;
use crate::value::{INTERVAL, type_name};
use crate::{Position, SqlError};

const LATEST_FORM: &str = "write JOIN LATEST(b) ON b.key = a.key; other conditions stand in WHERE, \
    and with LEFT JOIN in the SELECT: CASE WHEN b.state = 'on' THEN b.value END";
pub(super) const INTERVAL_FORM: &str = "write JOIN b ON b.key = a.key AND b.ts BETWEEN a.ts - INTERVAL '1 minute' AND a.ts + INTERVAL '1 minute', \
    or JOIN LATEST(b) for the latest row of b; other conditions stand in WHERE, and with LEFT JOIN in the SELECT: \
    CASE WHEN b.state = 'on' THEN b.value END";

/// The interval that is added to the time of a left row; nothing is added without an expression.
pub(super) struct Span {
    pub(super) interval: Option<(Expr, Position)>,
    pub(super) is_negative: bool,
}

impl Span {
    fn negated(self) -> Self {
        Self { is_negative: !self.is_negative, ..self }
    }
}

/// The bounds that ON sets for the times of right rows.
#[derive(Default)]
pub(super) struct Bounds {
    pub(super) low: Option<Span>,
    pub(super) high: Option<Span>,
}

/// One of the two inputs, as ON sees it.
pub(super) struct Side<'a> {
    pub(super) name: &'a str,
    pub(super) columns: HashSet<String>,
    pub(super) event_time: Option<String>,
}

/// What is needed to read ON.
pub(super) struct Condition<'a> {
    pub(super) scope: &'a Scope<'a>,
    pub(super) planner: ExpressionPlanner,
    /// Plans over parameters alone.
    pub(super) lengths: ExpressionPlanner,
    pub(super) sides: [&'a Side<'a>; 2],
    /// The numbers of the inputs.
    pub(super) inputs: [usize; 2],
    pub(super) is_latest: bool,
}

impl Condition<'_> {
    /// Reads conditions joined by AND: equalities, and bounds of time.
    pub(super) fn plan(
        &self,
        on: &ast::Expr,
        position: Position,
        keys: &mut Vec<Expr>,
        bounds: &mut Bounds,
    ) -> Result<(), SqlError> {
        let position = start(on).or(position);
        match on {
            ast::Expr::Nested(inner) => return self.plan(inner, position, keys, bounds),
            ast::Expr::BinaryOp { left, op: ast::BinaryOperator::And, right } => {
                self.plan(left, position, keys, bounds)?;
                return self.plan(right, position, keys, bounds);
            }
            ast::Expr::Value(value) if matches!(value.value, ast::Value::Boolean(true)) => return Ok(()),
            _ => {}
        }
        if !self.is_latest && self.bound(on, position, bounds)? {
            return Ok(());
        }
        let mut checked = on.clone();
        self.scope.check(&mut checked, Place::Where, position)?;
        let planned = condition_of(&self.planner, &checked, "ON", position)?;
        keys.push(self.key(planned, position)?);
        Ok(())
    }

    /// Converts an equality of both sides to one key: the value of a row's own side.
    fn key(&self, planned: Expr, position: Position) -> Result<Expr, SqlError> {
        let form = if self.is_latest { LATEST_FORM } else { INTERVAL_FORM };
        let refuse = |message: &str| Err(SqlError::new(position, message).hint(form));
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = planned else {
            return refuse(match self.is_latest {
                true => "ON takes equalities here",
                false => "ON takes equalities and bounds of time here",
            });
        };
        let is_of = |expression: &Expr, side: usize| {
            let columns = expression.column_refs();
            let mut columns = columns.iter().filter(|column| !column.name.starts_with('$')).peekable();
            columns.peek().is_some() && columns.all(|column| self.sides[side].columns.contains(&column.name))
        };
        let (left, right) = match (is_of(&left, 0), is_of(&right, 1), is_of(&right, 0), is_of(&left, 1)) {
            (true, true, ..) => (*left, *right),
            (.., true, true) => (*right, *left),
            _ => {
                return refuse(&format!(
                    "one side of the equality must be of '{}', and the other of '{}'",
                    self.sides[0].name, self.sides[1].name
                ));
            }
        };
        let mut of_sides = Vec::new();
        for (input, expression) in self.inputs.into_iter().zip([left, right]) {
            let (expression, found) = self.planner.coerce_planned(expression, position)?;
            let Some(kept) = result_type(&found).filter(|_| !matches!(found, DataType::Interval(_))) else {
                return refuse(&format!("values of {} cannot be a key of a JOIN", type_name(&found)));
            };
            of_sides.push((input, cast_to(expression, &found, &kept)));
        }
        Ok(by_input(of_sides))
    }

    /// Reads a condition if it bounds the time of one side by that of the other; returns whether it does.
    fn bound(&self, on: &ast::Expr, position: Position, bounds: &mut Bounds) -> Result<bool, SqlError> {
        let give = |place: &mut Option<Span>, span: Span| match place.replace(span) {
            None => Ok(()),
            Some(_) => Err(SqlError::new(position, "the time is bounded twice on one side").hint(INTERVAL_FORM)),
        };
        let mut both: [Option<&ast::Expr>; 2] = [None, None];
        let time = match on {
            ast::Expr::Between { expr, negated: false, low, high } => {
                both = [Some(&**low), Some(&**high)];
                expr
            }
            ast::Expr::BinaryOp { left, op: ast::BinaryOperator::GtEq, right } => {
                both[0] = Some(&**right);
                left
            }
            ast::Expr::BinaryOp { left, op: ast::BinaryOperator::LtEq, right } => {
                both[1] = Some(&**right);
                left
            }
            _ => return Ok(false),
        };
        let Some(side) = self.side_of_time(time) else { return Ok(false) };
        let [low, high] = both.map(|bound| bound.map(|bound| self.span(bound, 1 - side, position)).transpose());
        let (low, high) = (low?, high?);
        // Bounds for the time of the left side swap, and change their signs.
        let (low, high) = match side {
            1 => (low, high),
            _ => (high.map(Span::negated), low.map(Span::negated)),
        };
        low.map(|low| give(&mut bounds.low, low)).transpose()?;
        high.map(|high| give(&mut bounds.high, high)).transpose()?;
        Ok(true)
    }

    /// The side whose event time is this expression.
    fn side_of_time(&self, expression: &ast::Expr) -> Option<usize> {
        let mut checked = match expression {
            ast::Expr::Nested(inner) => return self.side_of_time(inner),
            ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_) => expression.clone(),
            _ => return None,
        };
        self.scope.check(&mut checked, Place::Where, Position::default()).ok()?;
        let ast::Expr::Identifier(identifier) = checked else { return None };
        self.sides.iter().position(|side| side.event_time.as_ref() == Some(&identifier.value))
    }

    /// Reads a bound: the event time of `side`, plus or minus a constant or parameter.
    fn span(&self, bound: &ast::Expr, side: usize, fallback: Position) -> Result<Span, SqlError> {
        let position = start(bound).or(fallback);
        let refuse = || {
            let side = self.sides[side];
            let time = side.event_time.as_deref().unwrap_or(side.name);
            SqlError::new(position, format!("a bound of the time is '{time}', plus or minus an INTERVAL"))
                .hint(INTERVAL_FORM)
        };
        let (time, interval, is_negative) = match bound {
            ast::Expr::Nested(inner) => return self.span(inner, side, position),
            ast::Expr::BinaryOp { left, op: ast::BinaryOperator::Minus, right } => (&**left, Some(&**right), true),
            ast::Expr::BinaryOp { left, op: ast::BinaryOperator::Plus, right } => (&**left, Some(&**right), false),
            other => (other, None, false),
        };
        if self.side_of_time(time) != Some(side) {
            return Err(refuse());
        }
        let Some(interval) = interval else { return Ok(Span { interval: None, is_negative: false }) };
        let place = start(interval).or(position);
        let mut checked = interval.clone();
        self.scope.check(&mut checked, Place::JoinLength, place)?;
        let (expression, found) = self.lengths.plan_coerced(&checked, place)?;
        if !matches!(found, DataType::Interval(_) | DataType::Duration(_)) {
            return Err(SqlError::new(
                place,
                format!("a bound of the time takes an INTERVAL, and this is {}", type_name(&found)),
            )
            .hint("write for example INTERVAL '30 seconds', or declare the parameter as INTERVAL"));
        }
        Ok(Span { interval: Some((cast_to(expression, &found, &INTERVAL), place)), is_negative })
    }
}
