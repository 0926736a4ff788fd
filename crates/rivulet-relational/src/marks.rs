//! Gives the values of CASE, `coalesce` and the like the marks of JSON that all their results have, and refuses parts
//! of values that have none.
//!
//! DataFusion knows only the type of such a value, which is text. A value that may be one of several is JSON if each of
//! them is, and an array, map or row if all are of one type. A null has no marks and takes any.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, Result, internal_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::expr_rewriter::NamePreserver;
use datafusion_expr::utils::merge_schema;
use datafusion_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use rivulet_dataflow::{common_marks, is_json};

use crate::error::{RelationalError, place_of};
use crate::subscripts::PART;

/// Marks such values in all expressions of a plan. Columns keep their names.
pub(crate) fn rewrite_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut is_changed = false;
    let rewritten = plan.transform_up_with_subqueries(|node| {
        // Nodes above one that has changed still have the marks of before.
        let node = if is_changed { node.recompute_schema()? } else { node };
        let mut has_any = false;
        node.apply_expressions(|expression| {
            has_any |= expression.exists(|part| Ok(results_of(part).is_some() || whole_of(part).is_some()))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if !has_any {
            return Ok(Transformed::no(node));
        }
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        let rewritten = node.map_expressions(|expression| {
            let name = names.save(&expression);
            Ok(rewrite(expression, &schema)?.update_data(|marked| name.restore(marked)))
        })?;
        is_changed |= rewritten.transformed;
        match rewritten.transformed {
            true => rewritten.map_data(LogicalPlan::recompute_schema),
            false => Ok(rewritten),
        }
    });
    rewritten.map(|transformed| transformed.data)
}

/// Marks such values in an expression.
pub(crate) fn rewrite(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expression.transform_up(|part| {
        // Otherwise the value would be converted to a text, which has no parts.
        if let Some(whole) = whole_of(&part)
            && !matches!(whole.get_type(schema), Ok(DataType::Utf8 | DataType::Utf8View | DataType::Null) | Err(_))
        {
            let error = RelationalError { place: place_of(whole), ..RelationalError::new("this value has no parts") };
            return Err(error.hint("arrays, maps and rows have: array[1], map['key'], row.field").boxed());
        }
        let Some(marks) = marks_of(&part, schema) else { return Ok(Transformed::no(part)) };
        Ok(Transformed::yes(Marked::call(&marks, part)))
    })
}

/// The value of which an expression is a part.
fn whole_of(expression: &Expr) -> Option<&Expr> {
    match expression {
        Expr::ScalarFunction(call) if call.func.name() == PART => call.args.first(),
        _ => None,
    }
}

/// The expressions of which an expression may be one; `None` if it is no such expression.
fn results_of(expression: &Expr) -> Option<Vec<&Expr>> {
    match expression {
        Expr::Case(case) => {
            Some(case.when_then_expr.iter().map(|(_, then)| &**then).chain(case.else_expr.as_deref()).collect())
        }
        Expr::ScalarFunction(call) => match (call.func.name(), call.args.as_slice()) {
            ("coalesce" | "nvl" | "greatest" | "least", results) => Some(results.iter().collect()),
            ("nvl2", [_, results @ ..]) => Some(results.iter().collect()),
            ("nullif", [result, _]) => Some(vec![result]),
            _ => None,
        },
        _ => None,
    }
}

/// The marks that all results of an expression have, if it may be one of several.
fn marks_of(expression: &Expr, schema: &DFSchema) -> Option<Field> {
    let results = results_of(expression)?;
    let mut fields: Vec<FieldRef> = Vec::with_capacity(results.len());
    for result in results {
        let (_, field) = result.to_field(schema).ok()?;
        if !field.data_type().is_null() {
            fields.push(field);
        }
    }
    let (first, others) = fields.split_first()?;
    let common = others.iter().fold(first.as_ref().clone(), |common, other| common_marks(common, other));
    (is_json(&common) && fields.iter().all(|field| field.data_type().is_string())).then_some(common)
}

/// A text as it is, in a column with these marks.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Marked {
    marks: BTreeMap<String, String>,
    signature: Signature,
}

impl Marked {
    pub(crate) fn call(marks: &Field, text: Expr) -> Expr {
        let marks = marks.metadata().clone().into_iter().collect();
        let function = Self { marks, signature: Signature::any(1, Volatility::Immutable) };
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), vec![text]))
    }
}

impl ScalarUDFImpl for Marked {
    fn name(&self) -> &str {
        "marked"
    }

    /// The marks are no part of what the text is.
    fn display_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(arguments.iter().map(ToString::to_string).collect())
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(arguments.iter().map(|text| text.schema_name().to_string()).collect())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [text] => Ok(text.clone()),
            _ => internal_err!("marked takes one text"),
        }
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let is_nullable = arguments.arg_fields.iter().any(|field| field.is_nullable());
        let field = Field::new(self.name(), self.return_type(&types)?, is_nullable);
        Ok(Arc::new(field.with_metadata(self.marks.clone().into_iter().collect())))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match arguments.args.pop() {
            Some(text) => Ok(text),
            None => internal_err!("marked takes one text"),
        }
    }
}
