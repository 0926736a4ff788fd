//! A function of DataFusion with extra work around its calls. The planner sees the function itself.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion_common::Result;
use datafusion_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// The extra work around a call.
pub(super) trait Invoke: Debug + Eq + Hash + Send + Sync + 'static {
    /// Calls the function, or returns its result without a call.
    fn invoke(&self, function: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue>;

    /// The column of the results: that of the function, unless the extra work gives another one.
    fn returns(&self, function: &ScalarUDF, args: ReturnFieldArgs) -> Result<FieldRef> {
        function.return_field_from_args(args)
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Wrapped<I> {
    function: Arc<ScalarUDF>,
    around: I,
}

impl<I: Invoke> Wrapped<I> {
    pub(super) fn around(function: Arc<ScalarUDF>, around: I) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::from(Self { function, around }))
    }
}

impl<I: Invoke> ScalarUDFImpl for Wrapped<I> {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.around.returns(&self.function, args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.inner().coerce_types(types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.function.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.around.invoke(&self.function, args)
    }
}
