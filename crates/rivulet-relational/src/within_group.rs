//! `WITHIN GROUP (ORDER BY x)` behind the call of an aggregate: what it says is put into the call.
//!
//! `percentile_cont(0.9) WITHIN GROUP (ORDER BY x)` is `percentile_cont(x, 0.9)`, and counts from the other end with
//! DESC; `string_agg(name, ',') WITHIN GROUP (ORDER BY x)` is `string_agg(name, ',' ORDER BY x)`. Behind any other call
//! it stays, and is refused where calls are checked.

use datafusion_sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArguments, Value,
};

use crate::error::RelationalError;

/// Spells out the call. `name` is that of the function, in lower case.
pub(crate) fn spell_out(function: &mut Function, name: &str) -> Result<(), RelationalError> {
    let FunctionArguments::List(list) = &mut function.args else { return Ok(()) };
    if function.within_group.is_empty() || function.within_group.iter().any(|order| order.with_fill.is_some()) {
        return Ok(());
    }
    match name {
        "percentile_cont" | "quantile_cont" => {
            let [order] = function.within_group.as_slice() else {
                let error = RelationalError::new("WITHIN GROUP takes one expression");
                return Err(error.hint("write for example percentile_cont(0.95) WITHIN GROUP (ORDER BY value)"));
            };
            if let (Some(false), Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(fraction)))) =
                (order.options.asc, list.args.first_mut())
            {
                let one = Box::new(Expr::Value(Value::Number("1.0".into(), false).into()));
                let right = Box::new(Expr::Nested(Box::new(fraction.clone())));
                *fraction = Expr::BinaryOp { left: one, op: BinaryOperator::Minus, right };
            }
            list.args.insert(0, FunctionArg::Unnamed(FunctionArgExpr::Expr(order.expr.clone())));
        }
        "string_agg" | "listagg" | "array_agg" => {
            if list.clauses.iter().any(|clause| matches!(clause, FunctionArgumentClause::OrderBy(_))) {
                let error = RelationalError::new(format!("{name} has two orders"));
                return Err(error.hint("write ORDER BY once, in the call or in WITHIN GROUP"));
            }
            list.clauses.push(FunctionArgumentClause::OrderBy(function.within_group.clone()));
        }
        _ => return Ok(()),
    }
    function.within_group.clear();
    Ok(())
}
