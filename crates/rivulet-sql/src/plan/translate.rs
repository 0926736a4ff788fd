//! Checked expressions as DataFusion's: a node for a node, over exactly the constructs that [`check`](super::check) lets
//! through.
//!
//! DataFusion's own translation is generic over its surroundings, knows the whole of SQL, and would be compiled anew with
//! this crate: two minutes of each build for the hundred lines that are needed.

use arrow::datatypes::DataType;
use datafusion_common::{Column, DFSchema, Result, ScalarValue, plan_datafusion_err, plan_err};
use datafusion_expr::expr::{Between, BinaryExpr, Case, InList, Like, ScalarFunction};
use datafusion_expr::{Expr, ExprSchemable, Operator, cast, lit, try_cast};
use datafusion_sql::sqlparser::ast::{self, BinaryOperator, UnaryOperator, Value};

use super::functions::REGISTRY;
use crate::parse::name_of;
use crate::value::{INTERVAL, TIMESTAMP, parse_interval};

/// Translates over the columns of one schema.
pub(super) struct Translator<'a> {
    pub(super) schema: &'a DFSchema,
}

impl Translator<'_> {
    /// The expression with its types as written, not yet coerced.
    pub(super) fn translate(&self, expression: &ast::Expr) -> Result<Expr> {
        use ast::Expr as Ast;
        Ok(match expression {
            Ast::Identifier(identifier) => self.column(&identifier.value)?,
            Ast::Nested(inner) => self.translate(inner)?,
            Ast::Value(value) => constant(&value.value)?,
            Ast::Interval(interval) => lit(ScalarValue::IntervalMonthDayNano(Some(interval_value(interval)?))),
            Ast::TypedString(typed) => {
                let Value::SingleQuotedString(text) = &typed.value.value else { return unexpected(expression) };
                cast(lit(text.as_str()), cast_target(&typed.data_type)?)
            }
            Ast::Cast { kind: ast::CastKind::TryCast, expr, data_type, .. } => {
                try_cast(self.translate(expr)?, cast_target(data_type)?)
            }
            Ast::Cast { expr, data_type, .. } => cast(self.translate(expr)?, cast_target(data_type)?),
            Ast::BinaryOp { left, op, right } => self.binary(left, binary_operator(op)?, right)?,
            Ast::IsDistinctFrom(left, right) => self.binary(left, Operator::IsDistinctFrom, right)?,
            Ast::IsNotDistinctFrom(left, right) => self.binary(left, Operator::IsNotDistinctFrom, right)?,
            Ast::UnaryOp { op, expr } => self.unary(*op, expr)?,
            Ast::IsNull(inner) => Expr::IsNull(self.boxed(inner)?),
            Ast::IsNotNull(inner) => Expr::IsNotNull(self.boxed(inner)?),
            Ast::IsTrue(inner) => Expr::IsTrue(self.boxed(inner)?),
            Ast::IsNotTrue(inner) => Expr::IsNotTrue(self.boxed(inner)?),
            Ast::IsFalse(inner) => Expr::IsFalse(self.boxed(inner)?),
            Ast::IsNotFalse(inner) => Expr::IsNotFalse(self.boxed(inner)?),
            Ast::IsUnknown(inner) => Expr::IsUnknown(self.boxed(inner)?),
            Ast::IsNotUnknown(inner) => Expr::IsNotUnknown(self.boxed(inner)?),
            Ast::InList { expr, list, negated } => {
                Expr::InList(InList::new(self.boxed(expr)?, self.translate_all(list)?, *negated))
            }
            Ast::Between { expr, negated, low, high } => {
                Expr::Between(Between::new(self.boxed(expr)?, *negated, self.boxed(low)?, self.boxed(high)?))
            }
            Ast::Like { negated, expr, pattern, escape_char, .. } => {
                Expr::Like(self.like(*negated, expr, pattern, escape_char.as_ref(), false)?)
            }
            Ast::ILike { negated, expr, pattern, escape_char, .. } => {
                Expr::Like(self.like(*negated, expr, pattern, escape_char.as_ref(), true)?)
            }
            Ast::Case { operand, conditions, else_result, .. } => {
                let when_then =
                    conditions.iter().map(|when| Ok((self.boxed(&when.condition)?, self.boxed(&when.result)?)));
                Expr::Case(Case::new(
                    operand.as_deref().map(|operand| self.boxed(operand)).transpose()?,
                    when_then.collect::<Result<_>>()?,
                    else_result.as_deref().map(|result| self.boxed(result)).transpose()?,
                ))
            }
            Ast::Function(function) => self.function(function)?,
            Ast::Ceil { expr, .. } => self.call("ceil", [expr.as_ref()])?,
            Ast::Floor { expr, .. } => self.call("floor", [expr.as_ref()])?,
            Ast::Position { expr, r#in } => self.call("strpos", [r#in.as_ref(), expr])?,
            Ast::Extract { field, expr, .. } => call("date_part", vec![lit(field.to_string()), self.translate(expr)?])?,
            Ast::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                let given = [expr.as_ref(), overlay_what, overlay_from].into_iter().chain(overlay_for.as_deref());
                self.call("overlay", given)?
            }
            Ast::Substring { expr, substring_from, substring_for, .. } => {
                let from = match substring_from {
                    Some(from) => self.translate(from)?,
                    None => lit(1_i64),
                };
                let mut arguments = vec![self.translate(expr)?, from];
                if let Some(length) = substring_for {
                    arguments.push(self.translate(length)?);
                }
                call("substr", arguments)?
            }
            Ast::Trim { expr, trim_where, trim_what, .. } => {
                let name = match trim_where {
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                    Some(ast::TrimWhereField::Both) | None => "btrim",
                };
                self.call(name, std::iter::once(expr.as_ref()).chain(trim_what.as_deref()))?
            }
            other => return unexpected(other),
        })
    }

    fn boxed(&self, expression: &ast::Expr) -> Result<Box<Expr>> {
        self.translate(expression).map(Box::new)
    }

    fn translate_all<'e>(&self, expressions: impl IntoIterator<Item = &'e ast::Expr>) -> Result<Vec<Expr>> {
        expressions.into_iter().map(|expression| self.translate(expression)).collect()
    }

    fn column(&self, name: &str) -> Result<Expr> {
        self.schema.field_with_unqualified_name(name)?;
        Ok(Expr::Column(Column::new_unqualified(name)))
    }

    fn binary(&self, left: &ast::Expr, operator: Operator, right: &ast::Expr) -> Result<Expr> {
        Ok(Expr::BinaryExpr(BinaryExpr::new(self.boxed(left)?, operator, self.boxed(right)?)))
    }

    fn unary(&self, operator: UnaryOperator, operand: &ast::Expr) -> Result<Expr> {
        // A negative number is a constant.
        if let (UnaryOperator::Minus, ast::Expr::Value(value)) = (operator, operand)
            && let Value::Number(digits, _) = &value.value
        {
            return number(&format!("-{digits}"));
        }
        let operand = self.translate(operand)?;
        let data_type = operand.get_type(self.schema)?;
        let has_sign = matches!(data_type, DataType::Interval(_) | DataType::Timestamp(..) | DataType::Null)
            || data_type.is_numeric() && !data_type.is_unsigned_integer();
        match operator {
            UnaryOperator::Not => Ok(Expr::Not(Box::new(operand))),
            UnaryOperator::Plus if has_sign => Ok(operand),
            UnaryOperator::Minus if has_sign => Ok(Expr::Negative(Box::new(operand))),
            _ => plan_err!("the operator {operator} does not take {data_type}"),
        }
    }

    fn like(
        &self,
        negated: bool,
        text: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        ignore_case: bool,
    ) -> Result<Like> {
        let escape = match escape.map(|escape| &escape.value) {
            None => None,
            Some(Value::SingleQuotedString(text)) => text.chars().next(),
            Some(other) => return plan_err!("'{other}' is not an escape of LIKE"),
        };
        Ok(Like::new(negated, self.boxed(text)?, self.boxed(pattern)?, escape, ignore_case))
    }

    fn function(&self, function: &ast::Function) -> Result<Expr> {
        let [ast::ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else {
            return plan_err!("unknown function '{}'", function.name);
        };
        let ast::FunctionArguments::List(list) = &function.args else {
            return plan_err!("{name} needs arguments");
        };
        let arguments = list.args.iter().map(|argument| match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expression)) => self.translate(expression),
            other => plan_err!("'{other}' is not an argument of {name}"),
        });
        call(&name_of(name).text, arguments.collect::<Result<_>>()?)
    }

    fn call<'e>(&self, name: &str, arguments: impl IntoIterator<Item = &'e ast::Expr>) -> Result<Expr> {
        call(name, self.translate_all(arguments)?)
    }
}

fn unexpected(expression: &ast::Expr) -> Result<Expr> {
    plan_err!("'{expression}' is not supported yet")
}

fn call(name: &str, arguments: Vec<Expr>) -> Result<Expr> {
    let function = REGISTRY.scalar(name).ok_or_else(|| plan_datafusion_err!("unknown function '{name}'"))?;
    Ok(Expr::ScalarFunction(ScalarFunction::new_udf(function, arguments)))
}

fn constant(value: &Value) -> Result<Expr> {
    match value {
        Value::Number(digits, _) => number(digits),
        Value::SingleQuotedString(text) => Ok(lit(text.as_str())),
        Value::Boolean(value) => Ok(lit(*value)),
        Value::Null => Ok(lit(ScalarValue::Null)),
        other => plan_err!("'{other}' is not supported yet"),
    }
}

/// A whole number as BIGINT, any other as DOUBLE.
fn number(digits: &str) -> Result<Expr> {
    if let Ok(whole) = digits.parse::<i64>() {
        return Ok(lit(whole));
    }
    let number: f64 = digits.parse().map_err(|_| plan_datafusion_err!("'{digits}' is not a number"))?;
    Ok(lit(number))
}

fn interval_value(interval: &ast::Interval) -> Result<arrow::datatypes::IntervalMonthDayNano> {
    super::check::interval_text(interval)
        .and_then(|text| parse_interval(&text))
        .ok_or_else(|| plan_datafusion_err!("'{interval}' is not an interval"))
}

fn binary_operator(operator: &BinaryOperator) -> Result<Operator> {
    Ok(match operator {
        BinaryOperator::Plus => Operator::Plus,
        BinaryOperator::Minus => Operator::Minus,
        BinaryOperator::Multiply => Operator::Multiply,
        BinaryOperator::Divide => Operator::Divide,
        BinaryOperator::Modulo => Operator::Modulo,
        BinaryOperator::StringConcat => Operator::StringConcat,
        BinaryOperator::Gt => Operator::Gt,
        BinaryOperator::Lt => Operator::Lt,
        BinaryOperator::GtEq => Operator::GtEq,
        BinaryOperator::LtEq => Operator::LtEq,
        BinaryOperator::Eq => Operator::Eq,
        BinaryOperator::NotEq => Operator::NotEq,
        BinaryOperator::And => Operator::And,
        BinaryOperator::Or => Operator::Or,
        BinaryOperator::BitwiseAnd => Operator::BitwiseAnd,
        BinaryOperator::BitwiseOr => Operator::BitwiseOr,
        BinaryOperator::PGRegexMatch => Operator::RegexMatch,
        BinaryOperator::PGRegexIMatch => Operator::RegexIMatch,
        BinaryOperator::PGRegexNotMatch => Operator::RegexNotMatch,
        BinaryOperator::PGRegexNotIMatch => Operator::RegexNotIMatch,
        other => return plan_err!("the operator '{other}' is not supported yet"),
    })
}

/// The type of a cast, one of those that [`check`](super::check) leaves.
fn cast_target(data_type: &ast::DataType) -> Result<DataType> {
    Ok(match data_type {
        ast::DataType::Text => DataType::Utf8,
        ast::DataType::TinyInt(_) => DataType::Int8,
        ast::DataType::SmallInt(_) => DataType::Int16,
        ast::DataType::Int(_) => DataType::Int32,
        ast::DataType::BigInt(_) => DataType::Int64,
        ast::DataType::Double(_) => DataType::Float64,
        ast::DataType::Boolean => DataType::Boolean,
        ast::DataType::Date => DataType::Date32,
        ast::DataType::Timestamp(..) => TIMESTAMP,
        ast::DataType::Interval { .. } => INTERVAL,
        ast::DataType::Decimal(ast::ExactNumberInfo::PrecisionAndScale(precision, scale)) => {
            match (u8::try_from(*precision), i8::try_from(*scale)) {
                (Ok(precision), Ok(scale)) => DataType::Decimal128(precision, scale),
                _ => return plan_err!("DECIMAL has no such precision"),
            }
        }
        other => return plan_err!("values cannot be converted to {other}"),
    })
}
