//! A scalar function with a type of results that does not depend on its arguments.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::{Result, internal_err};
use datafusion_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion_functions::utils::make_scalar_function;
use rivulet_dataflow::marked_as_json;

/// Gives an expression in place of a call with these arguments, or returns the arguments.
type Rewrite = Box<dyn Fn(Vec<Expr>, &SimplifyContext) -> Result<ExprSimplifyResult> + Send + Sync>;

/// Computes the results from a column for each argument.
type Compute = Box<dyn Fn(&[ArrayRef]) -> Result<ArrayRef> + Send + Sync>;

/// The function. Functions of the same name are equal, so all that one depends on is in its name.
pub(in crate::plan) struct Function {
    name: String,
    signature: Signature,
    returns: DataType,
    returns_json: bool,
    rewrite: Option<Rewrite>,
    compute: Option<Compute>,
}

impl Function {
    /// A function that takes any of these lists of arguments.
    pub(in crate::plan) fn new(
        name: impl Into<String>,
        arguments: impl IntoIterator<Item = Vec<DataType>>,
        returns: DataType,
    ) -> Self {
        let mut forms: Vec<TypeSignature> = arguments.into_iter().map(TypeSignature::Exact).collect();
        let form = if forms.len() == 1 { forms.remove(0) } else { TypeSignature::OneOf(forms) };
        let signature = Signature::new(form, Volatility::Immutable);
        Self { name: name.into(), signature, returns, returns_json: false, rewrite: None, compute: None }
    }

    /// The function, whose results are JSON.
    pub(in crate::plan) fn returning_json(self) -> Self {
        Self { returns_json: true, ..self }
    }

    /// The function, which becomes another expression in the plan. It is only called where `rewrite` returns the
    /// arguments.
    pub(in crate::plan) fn rewritten(
        self,
        rewrite: impl Fn(Vec<Expr>, &SimplifyContext) -> Result<ExprSimplifyResult> + Send + Sync + 'static,
    ) -> Self {
        Self { rewrite: Some(Box::new(rewrite)), ..self }
    }

    /// The function, which is computed from columns.
    pub(in crate::plan) fn computed(
        self,
        compute: impl Fn(&[ArrayRef]) -> Result<ArrayRef> + Send + Sync + 'static,
    ) -> Self {
        Self { compute: Some(Box::new(compute)), ..self }
    }
}

impl From<Function> for Arc<ScalarUDF> {
    fn from(function: Function) -> Self {
        Self::new(ScalarUDF::from(function))
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn return_field_from_args(&self, _arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let field = Field::new(self.name(), self.returns.clone(), true);
        Ok(Arc::new(if self.returns_json { marked_as_json(field) } else { field }))
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match &self.rewrite {
            Some(rewrite) => rewrite(arguments, context),
            None => Ok(ExprSimplifyResult::Original(arguments)),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match &self.compute {
            Some(compute) => make_scalar_function(compute, Vec::new())(&arguments.args),
            None => internal_err!("{} is another function in the plan", self.name),
        }
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name).finish_non_exhaustive()
    }
}
