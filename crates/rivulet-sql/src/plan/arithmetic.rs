//! Arithmetic as SQL defines it. A value that does not fit its type is an error of its row and does not wrap around.
//! Computed floating-point numbers are brought into the one form in which the engine compares them
//! ([`rivulet_dataflow::float`]). A quotient of decimals is rounded half away from zero, as `avg` is. The length of a
//! text made by `||` is limited ([`concatenated`]).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array, RecordBatch};
use arrow::compute::kernels::arity::try_binary;
use arrow::compute::kernels::numeric::neg;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, FieldRef, Schema};
use arrow::error::ArrowError;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::{ColumnarValue, Expr, Operator};
use datafusion_physical_expr::expressions::{BinaryExpr, CastExpr, Literal, NegativeExpr, TryCastExpr};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr, create_physical_expr};
use rivulet_dataflow::{canonical_float, canonical_floats};

use super::bounded::concatenated;

type Node = Arc<dyn PhysicalExpr>;

/// Makes the expression that is evaluated.
///
/// # Errors
///
/// The expression cannot be evaluated over these columns.
pub(super) fn compile(expression: &Expr, schema: &DFSchema) -> Result<Node> {
    create_physical_expr(expression, schema, &ExecutionProps::new(), &PhysicalPlanningContext::default())?
        .transform_up(|node| as_evaluated(node, schema.as_arrow()))
        .data()
}

/// Converts a node to the form in which it is evaluated. Its children are converted already.
fn as_evaluated(node: Node, schema: &Schema) -> Result<Transformed<Node>> {
    if let Some(literal) = node.downcast_ref::<Literal>() {
        return Ok(match literal.value() {
            ScalarValue::Float64(Some(value)) => {
                Transformed::yes(Arc::new(Literal::new(ScalarValue::Float64(Some(canonical_float(*value))))))
            }
            _ => Transformed::no(node),
        });
    }
    let computed: Node = if let Some(binary) = node.downcast_ref::<BinaryExpr>() {
        match binary.op() {
            Operator::Plus | Operator::Minus | Operator::Multiply => {
                Arc::new(binary.clone().with_fail_on_overflow(true))
            }
            Operator::Divide if matches!(node.data_type(schema)?, DataType::Decimal128(..)) => {
                Arc::new(Computed { what: What::Quotient, inner: node })
            }
            Operator::Divide | Operator::Modulo => node,
            Operator::StringConcat => Arc::new(Computed { what: What::Text, inner: node }),
            _ => return Ok(Transformed::no(node)),
        }
    } else if let Some(negative) = node.downcast_ref::<NegativeExpr>() {
        Arc::new(Computed { what: What::Negative, inner: negative.arg().clone() })
    } else if node.is::<CastExpr>() || node.is::<TryCastExpr>() || node.is::<ScalarFunctionExpr>() {
        node
    } else {
        return Ok(Transformed::no(node));
    };
    let data_type = computed.data_type(schema)?;
    let has_form = data_type.is_floating() || matches!(data_type, DataType::Decimal128(DECIMAL128_MAX_PRECISION, _));
    match has_form && !computed.is::<Computed>() {
        true => Ok(Transformed::yes(Arc::new(Computed { what: What::Number, inner: computed }))),
        false => Ok(Transformed::yes(computed)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// The number itself.
    Number,
    /// The number with the opposite sign. It is an error for the least BIGINT, which has no opposite.
    Negative,
    /// The concatenation of two texts, if it is not too long.
    Text,
    /// The quotient of two decimals, rounded.
    Quotient,
}

/// Brings floating point numbers into their form. Decimals have room for more digits than they may have, and those
/// would be written without their last ones.
///
/// # Errors
/// A decimal has too many digits.
fn in_form(numbers: ArrayRef) -> Result<ArrayRef> {
    if let Some(decimals) = numbers.as_primitive_opt::<Decimal128Type>() {
        decimals.validate_decimal_precision(decimals.precision())?;
        return Ok(numbers);
    }
    Ok(canonical_floats(&numbers))
}

/// Divides decimals. The quotient has the digits that it has in Arrow, where it is cut off: four more behind the point
/// than the dividend.
fn quotient(left: &ArrayRef, right: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    let (left, right) = (left.as_primitive::<Decimal128Type>(), right.as_primitive::<Decimal128Type>());
    let DataType::Decimal128(precision, scale) = *data_type else { return internal_err!("a quotient of {data_type}") };
    let shift = i32::from(scale) - i32::from(left.scale()) + i32::from(right.scale());
    let too_large = || ArrowError::ArithmeticOverflow("a quotient of decimals has more than 38 digits".into());
    let power = |exponent: i32| 10_i128.checked_pow(exponent.max(0).unsigned_abs()).ok_or_else(too_large);
    let (left_power, right_power) = (power(shift)?, power(-shift)?);
    let divided = try_binary(left, right, |left, right| {
        let dividend = left.checked_mul(left_power).ok_or_else(too_large)?;
        let divisor = right.checked_mul(right_power).ok_or_else(too_large)?;
        if divisor == 0 {
            return Err(ArrowError::DivideByZero);
        }
        let (whole, rest) = (dividend.checked_div(divisor).ok_or_else(too_large)?, dividend % divisor);
        let is_half = rest.unsigned_abs() >= divisor.unsigned_abs() - rest.unsigned_abs();
        Ok(if is_half { whole + dividend.signum() * divisor.signum() } else { whole })
    });
    let divided: Decimal128Array = divided?;
    in_form(Arc::new(divided.with_precision_and_scale(precision, scale)?))
}

/// A computed number, with one zero and one NaN; or a text of limited length.
#[derive(Debug, Eq)]
struct Computed {
    what: What,
    inner: Node,
}

// A derived comparison would move the expression out of its pointer.
impl PartialEq for Computed {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what && self.inner.eq(&other.inner)
    }
}

impl Hash for Computed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.what.hash(state);
        self.inner.hash(state);
    }
}

impl fmt::Display for Computed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Number | What::Text | What::Quotient => write!(f, "{}", self.inner),
            What::Negative => write!(f, "(- {})", self.inner),
        }
    }
}

impl PhysicalExpr for Computed {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.inner.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.inner.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        if let Some(binary) = self.inner.downcast_ref::<BinaryExpr>() {
            let side = |node: &Node| node.evaluate(batch)?.into_array(batch.num_rows());
            match self.what {
                What::Text => {
                    return Ok(ColumnarValue::Array(concatenated(side(binary.left())?, side(binary.right())?)?));
                }
                What::Quotient => {
                    let data_type = self.inner.data_type(batch.schema_ref())?;
                    let (left, right) = (side(binary.left())?, side(binary.right())?);
                    return Ok(ColumnarValue::Array(quotient(&left, &right, &data_type)?));
                }
                What::Number | What::Negative => {}
            }
        }
        Ok(match (self.inner.evaluate(batch)?, self.what) {
            (ColumnarValue::Array(values), What::Number) => ColumnarValue::Array(in_form(values)?),
            (ColumnarValue::Array(values), What::Negative) => ColumnarValue::Array(canonical_floats(&neg(&values)?)),
            (ColumnarValue::Scalar(ScalarValue::Float64(Some(value))), What::Number) => {
                ColumnarValue::Scalar(ScalarValue::Float64(Some(canonical_float(value))))
            }
            (value, What::Text | What::Quotient) => value,
            (ColumnarValue::Scalar(value @ ScalarValue::Decimal128(..)), What::Number) => {
                in_form(value.to_array()?)?;
                ColumnarValue::Scalar(value)
            }
            (ColumnarValue::Scalar(value), What::Number) => ColumnarValue::Scalar(value),
            (ColumnarValue::Scalar(value), What::Negative) => {
                let negative = canonical_floats(&neg(&value.to_array()?)?);
                ColumnarValue::Scalar(ScalarValue::try_from_array(&negative, 0)?)
            }
        })
    }

    fn children(&self) -> Vec<&Node> {
        vec![&self.inner]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Node>) -> Result<Node> {
        match <[Node; 1]>::try_from(children) {
            Ok([inner]) => Ok(Arc::new(Self { what: self.what, inner })),
            Err(children) => internal_err!("a number is computed by one expression, not {}", children.len()),
        }
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Number | What::Text | What::Quotient => self.inner.fmt_sql(f),
            What::Negative => {
                f.write_str("(- ")?;
                self.inner.fmt_sql(f)?;
                f.write_str(")")
            }
        }
    }
}
