//! Frames that end before their own row: `avg(x) OVER (ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING)` is what the row
//! before had as `avg(x) OVER (ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)`, so it is the `lag` of that. A count of no
//! rows is 0.

use datafusion_sql::sqlparser::ast::{self, Expr, Ident, ObjectName, WindowFrameBound as Bound, WindowType};

use crate::plan::call::call_name;
use crate::plan::history::whole_number;

/// The call of an aggregate as the `lag` of another, if its frame ends before its own row.
pub(super) fn lagged(call: &ast::Function) -> Option<Expr> {
    let Some(WindowType::WindowSpec(over)) = &call.over else { return None };
    let frame = over.window_frame.as_ref().filter(|frame| matches!(frame.units, ast::WindowFrameUnits::Rows))?;
    let Some(Bound::Preceding(Some(end))) = &frame.end_bound else { return None };
    let behind = whole_number(end).filter(|rows| *rows > 0)?;
    let number = |rows: usize| Expr::Value(ast::Value::Number(rows.to_string(), false).into());
    let start_bound = match &frame.start_bound {
        Bound::Preceding(None) => Bound::Preceding(None),
        Bound::Preceding(Some(start)) => {
            Bound::Preceding(Some(Box::new(number(whole_number(start)?.checked_sub(behind)?))))
        }
        _ => return None,
    };
    let mut ended = over.clone();
    ended.window_frame = Some(ast::WindowFrame { start_bound, end_bound: None, ..frame.clone() });
    let inner = Expr::Function(ast::Function { over: Some(WindowType::WindowSpec(ended)), ..call.clone() });
    let mut ordered = over.clone();
    ordered.window_frame = None;
    let lag = called(call, "lag", [inner, number(behind)], Some(WindowType::WindowSpec(ordered)));
    Some(match call_name(call).as_str() {
        "count" => called(call, "coalesce", [lag, number(0)], None),
        _ => lag,
    })
}

/// A call in the place of another.
fn called(place: &ast::Function, name: &str, arguments: [Expr; 2], over: Option<WindowType>) -> Expr {
    let span = place.name.0.first().and_then(|part| part.as_ident()).map(|name| name.span);
    let name = span.map_or_else(|| Ident::new(name), |span| Ident::with_span(span, name));
    let argument = |one| ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(one));
    Expr::Function(ast::Function {
        name: ObjectName::from(vec![name]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: arguments.map(argument).into(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over,
        within_group: Vec::new(),
    })
}
