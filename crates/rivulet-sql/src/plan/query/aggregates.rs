//! The aggregate functions of the language, for the relational planner: names and types.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::{DataFusionError, Result, ScalarValue, not_impl_err};
use datafusion_expr::function::AccumulatorArgs;
use datafusion_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};
use rivulet_operators::{AggregateFunction, DECIMAL_DIGITS};

use crate::plan::scalars::array_of;
use crate::plan::types::result_type;

/// One of our aggregate functions.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct PlannedAggregate {
    pub(super) function: AggregateFunction,
    signature: Signature,
}

/// All aggregates, by all their names.
pub(super) fn aggregates() -> Vec<(String, Arc<AggregateUDF>)> {
    const OTHER_NAMES: [&str; 10] = [
        "mean",
        "stddev",
        "var",
        "covar",
        "var_sample",
        "var_population",
        "stddev",
        "quantile_cont",
        "listagg",
        "approx_count_distinct",
    ];
    let planned = |function: AggregateFunction| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(AggregateUDF::from(PlannedAggregate { function, signature }))
    };
    let is_callable = |function: &AggregateFunction| !function.is_over_distinct();
    let own = AggregateFunction::all().filter(is_callable).map(|one| (one.name().to_owned(), one));
    let other = OTHER_NAMES.iter().filter_map(|name| Some(((*name).to_owned(), AggregateFunction::from_name(name)?)));
    own.chain(other).map(|(name, function)| (name, planned(function))).collect()
}

impl AggregateUDFImpl for PlannedAggregate {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        // If a value of a longer decimal does not fit, that is an error of its row.
        let kept = |argument: &DataType| match argument {
            DataType::Decimal128(precision, scale @ 0..) if *precision > DECIMAL_DIGITS => {
                DataType::Decimal128(DECIMAL_DIGITS, (*scale).min(DECIMAL_DIGITS as i8))
            }
            other => other.clone(),
        };
        let kept: Vec<DataType> = match self.function {
            AggregateFunction::Count => arguments.to_vec(),
            list if list.is_list() => arguments.to_vec(),
            _ => arguments.iter().map(kept).collect(),
        };
        self.return_type(&kept).map(|_| kept)
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        // A null has no type of its own.
        let arguments: Vec<DataType> = arguments
            .iter()
            .map(|data_type| if *data_type == DataType::Null { DataType::Int64 } else { data_type.clone() })
            .collect();
        // The operators get the values in JSON.
        let arguments = match (self.function.gives_json(), arguments.as_slice()) {
            (true, [value]) if result_type(value).is_some() => vec![DataType::Utf8],
            _ => arguments,
        };
        self.function.result_type(&arguments).map_err(|error| {
            let text = error.to_string();
            DataFusionError::Plan(text.lines().next().unwrap_or_default().to_owned())
        })
    }

    fn return_field(&self, arguments: &[FieldRef]) -> Result<FieldRef> {
        let types: Vec<DataType> = arguments.iter().map(|argument| argument.data_type().clone()).collect();
        let field = Field::new(self.name(), self.return_type(&types)?, self.is_nullable());
        Ok(Arc::new(match arguments.first() {
            _ if self.function.gives_json() => array_of(field, arguments),
            Some(value) if self.function.gives_one_value() => field.with_metadata(value.metadata().clone()),
            _ => field,
        }))
    }

    fn is_nullable(&self) -> bool {
        !matches!(self.function, AggregateFunction::Count)
    }

    /// The result over no rows: a subquery that counts returns 0 if it finds nothing.
    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        use AggregateFunction as F;
        match self.function {
            F::Count | F::CountDistinct | F::ApproxDistinct => Ok(ScalarValue::Int64(Some(0))),
            _ => ScalarValue::try_from(data_type),
        }
    }

    fn accumulator(&self, _arguments: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        not_impl_err!("{} is not evaluated here", self.function)
    }
}
