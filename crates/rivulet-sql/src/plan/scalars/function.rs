//! A scalar function that is a few closures.

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

/// Gives the column of the results, given one of the declared type, and the columns and constants of the arguments.
type Returning = Box<dyn Fn(Field, &ReturnFieldArgs<'_>) -> Result<Field> + Send + Sync>;

/// Computes the results from a column for each argument, given the column of the results.
type Compute = Box<dyn Fn(&[ArrayRef], &Field) -> Result<ArrayRef> + Send + Sync>;

/// The function. Functions of the same name are equal, so all that one depends on is in its name.
pub(in crate::plan) struct Function {
    name: String,
    aliases: Vec<String>,
    signature: Signature,
    returns: DataType,
    returning: Option<Returning>,
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
        let (name, aliases) = (name.into(), Vec::new());
        Self { name, aliases, signature, returns, returning: None, rewrite: None, compute: None }
    }

    /// The function, which has another name too.
    pub(in crate::plan) fn also(mut self, alias: &str) -> Self {
        self.aliases.push(alias.to_owned());
        self
    }

    /// The function, whose results are JSON.
    pub(in crate::plan) fn returning_json(self) -> Self {
        self.returning(|field, _| marked_as_json(field))
    }

    /// The function, whose column of results depends on the columns of its arguments.
    pub(in crate::plan) fn returning(
        self,
        returning: impl Fn(Field, &[FieldRef]) -> Field + Send + Sync + 'static,
    ) -> Self {
        self.returning_by(move |field, arguments| Ok(returning(field, arguments.arg_fields)))
    }

    /// The function, whose column of results depends on the columns and constants of its arguments, or is refused.
    pub(in crate::plan) fn returning_by(
        self,
        returning: impl Fn(Field, &ReturnFieldArgs<'_>) -> Result<Field> + Send + Sync + 'static,
    ) -> Self {
        Self { returning: Some(Box::new(returning)), ..self }
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
        self.computed_as(move |columns, _| compute(columns))
    }

    /// The function, which is computed from columns for the column of the results.
    pub(in crate::plan) fn computed_as(
        self,
        compute: impl Fn(&[ArrayRef], &Field) -> Result<ArrayRef> + Send + Sync + 'static,
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

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let field = Field::new(self.name(), self.returns.clone(), true);
        Ok(Arc::new(match &self.returning {
            Some(returning) => returning(field, &arguments)?,
            None => field,
        }))
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        match &self.rewrite {
            Some(rewrite) => rewrite(arguments, context),
            None => Ok(ExprSimplifyResult::Original(arguments)),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match &self.compute {
            Some(compute) => {
                let of_columns = |columns: &[ArrayRef]| compute(columns, &arguments.return_field);
                make_scalar_function(of_columns, Vec::new())(&arguments.args)
            }
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
