//! Frames of rows that end before their own row: `avg(x) OVER (... ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING)` is what
//! the row before had as `avg(x) OVER (... ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)`, so it is the LAG of that. A
//! count of no rows is 0.

use std::sync::Arc;

use datafusion_common::tree_node::Transformed;
use datafusion_common::{Column, Result, ScalarValue};
use datafusion_expr::expr::{WindowFunction, WindowFunctionParams};
use datafusion_expr::{
    Expr, LogicalPlan, Projection, Window, WindowFrame, WindowFrameBound as Bound, WindowFrameUnits,
    WindowFunctionDefinition, WindowUDF, lit, when,
};

/// Replaces aggregates over such frames. `lag` is the function of that name.
pub(crate) fn rewrite_plan(plan: LogicalPlan, lag: &Arc<WindowUDF>) -> Result<LogicalPlan> {
    let rewritten = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Window(window) => Ok(match lagged(&window, lag)? {
            Some(lagged) => Transformed::yes(lagged),
            None => Transformed::no(LogicalPlan::Window(window)),
        }),
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|transformed| transformed.data)
}

/// The same aggregate over a frame that ends with its row, and how many rows before that row it is read.
fn moved(expression: &Expr) -> Option<(WindowFunction, u64)> {
    let Expr::WindowFunction(call) = expression else { return None };
    let WindowFunctionDefinition::AggregateUDF(_) = &call.fun else { return None };
    let frame = &call.params.window_frame;
    let (WindowFrameUnits::Rows, Bound::Preceding(ScalarValue::UInt64(Some(behind @ 1..)))) =
        (frame.units, &frame.end_bound)
    else {
        return None;
    };
    let start = match &frame.start_bound {
        Bound::Preceding(ScalarValue::UInt64(None)) => None,
        Bound::Preceding(ScalarValue::UInt64(Some(start))) => Some(start.checked_sub(*behind)?),
        _ => return None,
    };
    let (start, end) = (Bound::Preceding(ScalarValue::UInt64(start)), Bound::CurrentRow);
    let mut call = (**call).clone();
    call.params.window_frame = WindowFrame::new_bounds(frame.units, start, end);
    Some((call, *behind))
}

/// The rows with these aggregates; `None` if all frames end with their row.
fn lagged(window: &Window, lag: &Arc<WindowUDF>) -> Result<Option<LogicalPlan>> {
    let moved: Vec<_> = window.window_expr.iter().map(moved).collect();
    if moved.iter().all(Option::is_none) {
        return Ok(None);
    }
    let calls = window.window_expr.iter().zip(&moved).map(|(written, moved)| match moved {
        Some((call, _)) => Expr::WindowFunction(Box::new(call.clone())),
        None => written.clone(),
    });
    // Two calls may have become one.
    let mut different: Vec<Expr> = Vec::new();
    let places: Vec<usize> = calls
        .map(|call| {
            let known = different.iter().position(|other| *other == call);
            known.unwrap_or_else(|| {
                different.push(call);
                different.len() - 1
            })
        })
        .collect();
    let width = window.input.schema().fields().len();
    let inner = Window::try_new(different, window.input.clone())?;
    let columns: Vec<Expr> =
        places.iter().map(|place| Expr::Column(Column::from(inner.schema.qualified_field(width + place)))).collect();
    let lags = moved.iter().zip(&columns).filter_map(|(moved, column)| {
        let (call, behind) = moved.as_ref()?;
        let WindowFunctionParams { partition_by, order_by, .. } = call.params.clone();
        Some(Expr::WindowFunction(Box::new(WindowFunction {
            fun: WindowFunctionDefinition::WindowUDF(lag.clone()),
            params: WindowFunctionParams {
                args: vec![column.clone(), lit(i64::try_from(*behind).unwrap_or(i64::MAX))],
                partition_by,
                order_by,
                window_frame: WindowFrame::new(Some(true)),
                filter: None,
                null_treatment: None,
                distinct: false,
            },
        })))
    });
    let lags: Vec<Expr> = lags.collect();
    let inner_width = inner.schema.fields().len();
    let outer = Window::try_new(lags, Arc::new(LogicalPlan::Window(inner)))?;
    let mut lags = inner_width..;
    let mut values = moved.iter().zip(columns).map(|(moved, column)| {
        let Some((call, _)) = moved else { return Ok(column) };
        let place = lags.next().expect("the range has no end");
        let lag = Expr::Column(Column::from(outer.schema.qualified_field(place)));
        match call.fun.name() {
            "count" | "approx_distinct" => when(lag.clone().is_null(), lit(0_i64)).otherwise(lag),
            _ => Ok(lag),
        }
    });
    // For the plan above, the columns keep their names.
    let columns = window.schema.iter().enumerate().map(|(place, (qualifier, field))| match place.checked_sub(width) {
        None => Ok(Expr::Column(Column::from((qualifier, field)))),
        Some(_) => {
            let value = values.next().expect("each call has its value")?;
            Ok(value.alias_qualified(qualifier.cloned(), field.name()))
        }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(Some(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Window(outer)))?)))
}
