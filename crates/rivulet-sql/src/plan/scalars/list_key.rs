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
    // The name is what distinguishes two calls in the text of a plan.
    let name = |order: &SortOptions| match (order.descending, order.nulls_first) {
        (false, false) => "",
        (false, true) => " nulls first",
        (true, false) => " desc nulls last",
        (true, true) => " desc",
    };
    let name = format!("list_key{}", orders.iter().map(name).collect::<Vec<_>>().join(","));
    let signature = Signature::variadic_any(Volatility::Immutable);
    Arc::new(ScalarUDF::from(ListKey { name: name.trim_end_matches(',').to_owned(), orders, signature }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ListKey {
    name: String,
    orders: Vec<SortOptions>,
    signature: Signature,
}

impl ScalarUDFImpl for ListKey {
    fn name(&self) -> &str {
        &self.name
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
