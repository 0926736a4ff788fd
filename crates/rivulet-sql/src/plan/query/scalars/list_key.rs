//! The key by which `array_agg` and `string_agg` order their values: the ORDER BY as bytes.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion_common::Result;
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion_functions::utils::make_scalar_function;

/// A function with one argument for each order. The bytes that it returns compare as the values do.
pub(in crate::plan) fn list_key(orders: Vec<SortOptions>) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(ListKey { orders, signature: Signature::variadic_any(Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ListKey {
    orders: Vec<SortOptions>,
    signature: Signature,
}

impl ScalarUDFImpl for ListKey {
    fn name(&self) -> &str {
        "list_key"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let keys = |columns: &[ArrayRef]| -> Result<ArrayRef> {
            let fields = columns.iter().zip(&self.orders);
            let fields = fields.map(|(column, order)| SortField::new_with_options(column.data_type().clone(), *order));
            Ok(Arc::new(RowConverter::new(fields.collect())?.convert_columns(columns)?.try_into_binary()?))
        };
        make_scalar_function(keys, Vec::new())(&arguments.args)
    }
}
