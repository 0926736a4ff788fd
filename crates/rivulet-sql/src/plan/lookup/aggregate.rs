//! The aggregates over the rows of a table that one event has found.

use arrow::datatypes::DataType;
use datafusion_common::ScalarValue;
use datafusion_expr::Expr;
use datafusion_sql::sqlparser::ast;
use rivulet_operators::TableFunction;

use super::super::call::call_name;
use super::super::check::{Place, Scope};
use super::super::expression::ExpressionPlanner;
use super::super::functions::{Found, REGISTRY};
use super::super::types::{cast_to, result_type};
use super::super::walk::for_each_child;
use crate::{Position, SqlError};

/// Returns the aggregate of a LATERAL with this name. `string_agg` is recognised by its separator.
fn function_named(name: &str) -> Option<TableFunction> {
    Some(match name {
        "count" => TableFunction::Count,
        "sum" => TableFunction::Sum,
        "avg" | "mean" => TableFunction::Avg,
        "min" => TableFunction::Min,
        "max" => TableFunction::Max,
        "first_value" => TableFunction::First,
        "last_value" => TableFunction::Last,
        "string_agg" => TableFunction::StringAgg { separator: String::new() },
        _ => return None,
    })
}

/// Whether an expression contains an aggregate.
pub(super) fn holds_aggregate(expression: &ast::Expr) -> bool {
    fn search(expression: &mut ast::Expr, found: &mut bool) {
        if let ast::Expr::Function(call) = expression {
            let name = call_name(call);
            *found |= function_named(&name).is_some() || matches!(REGISTRY.find(&name), Found::Aggregate(_));
        }
        for_each_child(expression, &mut |child| {
            search(child, found);
            if *found { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        });
    }
    let mut found = false;
    search(&mut expression.clone(), &mut found);
    found
}

/// Plans an aggregate of a LATERAL, and its argument with its type.
pub(super) fn aggregate(
    expression: &ast::Expr,
    scope: &Scope<'_>,
    planner: &ExpressionPlanner,
    position: Position,
) -> Result<(TableFunction, Option<(Expr, DataType)>), SqlError> {
    const KNOWN: &str = "count, sum, avg, min, max, first_value, last_value and string_agg are";
    let ast::Expr::Function(call) = expression else {
        return Err(SqlError::new(
            position,
            "beside an aggregate, every column of a LATERAL is one aggregate by itself",
        )
        .hint("compute with it in the SELECT around the LATERAL"));
    };
    let name = call_name(call);
    let Some(mut function) = function_named(&name) else {
        return Err(SqlError::new(position, format!("{name} is not supported in a SELECT of aggregates in a LATERAL"))
            .hint(format!("{KNOWN}; compute with them in the SELECT around the LATERAL")));
    };
    let list = match &call.args {
        ast::FunctionArguments::List(list) if list.duplicate_treatment.is_none() && list.clauses.is_empty() => list,
        _ => return Err(SqlError::new(position, format!("this form of {name} is not supported in a LATERAL yet"))),
    };
    if call.filter.is_some() || call.over.is_some() || !call.within_group.is_empty() || call.null_treatment.is_some() {
        return Err(SqlError::new(position, format!("this form of {name} is not supported in a LATERAL yet"))
            .hint("put conditions into the WHERE of the LATERAL"));
    }
    let usage = match function {
        TableFunction::StringAgg { .. } => "string_agg(name, ', ')".to_owned(),
        TableFunction::Count => "count(*)".to_owned(),
        _ => format!("{name}(price)"),
    };
    let wrong = || {
        Err(SqlError::new(position, format!("{name} has other arguments")).hint(format!("write for example {usage}")))
    };
    let mut arguments = Vec::new();
    for argument in &list.args {
        match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard) if function == TableFunction::Count => {
                return if list.args.len() == 1 { Ok((function, None)) } else { wrong() };
            }
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument)) => {
                let mut argument = argument.clone();
                scope.check(&mut argument, Place::AggregateArgument, position)?;
                arguments.push(planner.plan_coerced(&argument, position)?);
            }
            _ => return wrong(),
        }
    }
    let mut arguments = arguments.into_iter();
    let Some((argument, found)) = arguments.next() else { return wrong() };
    if let TableFunction::StringAgg { separator } = &mut function {
        match arguments.next() {
            Some((Expr::Literal(ScalarValue::Utf8(Some(text)), _), _)) => *separator = text,
            _ => return wrong(),
        }
    }
    if arguments.next().is_some() {
        return wrong();
    }
    let kept = match (&function, result_type(&found)) {
        // Only text is allowed, because other values have several text forms.
        (TableFunction::StringAgg { .. }, _) if !found.is_string() => found.clone(),
        (_, Some(kept)) => kept,
        (_, None) => found.clone(),
    };
    Ok((function, Some((cast_to(argument, &found, &kept), kept))))
}
