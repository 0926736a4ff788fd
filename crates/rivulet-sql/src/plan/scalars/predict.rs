//! `predict('model.json', x, y)`: the result of a model for each row.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion_common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use rivulet_operators::Model;
use rivulet_relational::RelationalError;

use super::Function;
use crate::statement::PREDICT;

/// The function over these models, by the names of their files. In the plan it becomes a function of one model.
pub(in crate::plan) fn predict(models: Vec<(String, Arc<Model>)>) -> Arc<ScalarUDF> {
    let signature = Signature::user_defined(Volatility::Immutable);
    Arc::new(ScalarUDF::from(Predict { models, signature }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Predict {
    models: Vec<(String, Arc<Model>)>,
    signature: Signature,
}

impl Predict {
    /// The model of a call, and its file.
    fn model(&self, file: Option<&ScalarValue>, inputs: usize) -> Result<(&str, &Arc<Model>)> {
        let Some(file) = file.and_then(|file| file.try_as_str().flatten()) else {
            return refuse("the file of a model is a constant text", "write predict('model.json', x, y)");
        };
        let Some((file, model)) = self.models.iter().find(|(name, _)| name == file) else {
            return refuse(
                &format!("the model '{file}' is not read in this place"),
                "call predict in a SELECT around it",
            );
        };
        let names = model.inputs();
        if names.len() != inputs {
            let count = names.len();
            let what = format!("the model '{file}' has {count} inputs, and {inputs} are given");
            return refuse(&what, &format!("write predict('{file}', {})", names.join(", ")));
        }
        Ok((file.as_str(), model))
    }
}

fn refuse<T>(what: &str, hint: &str) -> Result<T> {
    Err(RelationalError::new(what).hint(hint).boxed())
}

impl ScalarUDFImpl for Predict {
    fn name(&self) -> &str {
        PREDICT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let is_number = |one: &DataType| one.is_numeric() || *one == DataType::Null;
        match arguments {
            [file, inputs @ ..] if file.is_string() && inputs.iter().all(is_number) => {
                Ok(std::iter::once(file.clone()).chain(inputs.iter().map(|_| DataType::Float64)).collect())
            }
            _ => plan_err!("{PREDICT} takes the file of a model and numbers"),
        }
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        internal_err!("the type of {PREDICT} is that of its model")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let file = arguments.scalar_arguments.first().copied().flatten();
        let (_, model) = self.model(file, arguments.arg_fields.len().saturating_sub(1))?;
        Ok(Arc::new(Field::new(PREDICT, model.result_type(), true)))
    }

    fn simplify(&self, mut arguments: Vec<Expr>, _context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let file = match arguments.first() {
            Some(Expr::Literal(file, _)) => Some(file),
            _ => None,
        };
        let (file, model) = self.model(file, arguments.len().saturating_sub(1))?;
        let of_model = of_model(file, model.clone());
        let inputs = arguments.split_off(1);
        Ok(ExprSimplifyResult::Simplified(Expr::ScalarFunction(ScalarFunction::new_udf(of_model, inputs))))
    }

    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{PREDICT} is a function of one model in the plan")
    }
}

/// The function of one model. Its name tells which version of the file was read.
fn of_model(file: &str, model: Arc<Model>) -> Arc<ScalarUDF> {
    let name = format!("{PREDICT} '{file}' {:016x}", model.version());
    let (inputs, file) = (vec![DataType::Float64; model.inputs().len()], file.to_owned());
    let function = Function::new(name, [inputs], model.result_type()).computed(move |columns| {
        let numbers: Vec<_> = columns.iter().map(|column| column.as_primitive::<Float64Type>()).collect();
        match model.predict(&numbers) {
            Ok(results) => Ok(results),
            Err(input) => exec_err!("the input '{}' of the model '{file}' is NaN", model.inputs()[input]),
        }
    });
    function.into()
}
