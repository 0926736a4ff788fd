//! Checks that the bounds of a JOIN in time are usable with given parameters.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{IntervalMonthDayNanoType, SchemaRef};
use datafusion_common::ScalarValue;
use datafusion_expr::{ColumnarValue, Expr};
use datafusion_physical_expr::PhysicalExpr;

use super::expression::Compiler;
use crate::binding::BindError;
use crate::{Position, SqlError};

const MONTHS: &str = "a bound of the JOIN is given in months or years, which differ in length";
const DAYS: &str = "give days, for example INTERVAL '30 days'";

/// A bound that depends on parameters.
#[derive(Clone)]
pub(crate) struct BoundCheck {
    /// An expression over the columns of the slot table.
    interval: Arc<dyn PhysicalExpr>,
    parameter: String,
}

impl BoundCheck {
    /// Makes the check of a bound. `None` if the bound is the same for all queries; then it is checked at once.
    pub(super) fn new(
        interval: &Expr,
        parameter_schema: &SchemaRef,
        position: Position,
    ) -> Result<Option<Self>, SqlError> {
        let compiled = Compiler::over_parameters(parameter_schema)?.compile(interval.clone(), position)?;
        match interval.column_refs().iter().next() {
            Some(column) => Ok(Some(Self { interval: compiled, parameter: column.name[1..].to_owned() })),
            None => match compiled.evaluate(&RecordBatch::new_empty(parameter_schema.clone())) {
                Ok(ColumnarValue::Scalar(ScalarValue::IntervalMonthDayNano(Some(one)))) if one.months != 0 => {
                    Err(SqlError::new(position, MONTHS).hint(DAYS))
                }
                _ => Ok(None),
            },
        }
    }

    /// Sets the error of every row that has an unusable bound and no error yet.
    pub(crate) fn run(&self, rows: &RecordBatch, results: &mut [Result<(), BindError>]) {
        let refuse = |message: String, hint: Option<&str>| {
            Err(BindError { hint: hint.map(str::to_owned), ..BindError::new(Some(&self.parameter), message) })
        };
        let evaluated = self.interval.evaluate(rows).and_then(|value| value.into_array(rows.num_rows()));
        let intervals = match evaluated {
            Ok(intervals) => intervals,
            Err(error) => {
                let failed = results.iter_mut().filter(|result| result.is_ok());
                return failed.for_each(|result| *result = refuse(error.strip_backtrace(), None));
            }
        };
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
        for (row, result) in results.iter_mut().enumerate().filter(|(_, result)| result.is_ok()) {
            if intervals.is_null(row) {
                *result = refuse("a bound of the JOIN is null".into(), Some("give the parameter a value or a default"));
            } else if intervals.value(row).months != 0 {
                *result = refuse(MONTHS.into(), Some(DAYS));
            }
        }
    }
}

impl fmt::Debug for BoundCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoundCheck(${})", self.parameter)
    }
}
