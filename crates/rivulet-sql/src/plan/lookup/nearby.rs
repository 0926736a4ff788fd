//! The part of a LATERAL that an index of places can answer: rows within a distance, or the nearest rows.

use arrow::datatypes::{DataType, Field};
use datafusion_expr::utils::split_conjunction;
use datafusion_expr::{Expr, Operator};
use datafusion_sql::sqlparser::ast;

use crate::plan::haversine;

/// The columns of places in the table, and which places an event can find.
pub(super) struct PlannedNearby {
    /// Latitude and longitude, as columns of the table.
    pub(super) columns: [usize; 2],
    /// Latitude and longitude of the event.
    pub(super) place: [Expr; 2],
    /// The radius in metres. Without it, the nearest rows are found, as many as the limit says.
    pub(super) radius: Option<Expr>,
}

/// Finds a distance to a place in the condition or order of rows; `columns` are those of the table.
pub(super) fn nearby(
    condition: Option<&Expr>,
    order: &[(Expr, ast::OrderByOptions)],
    has_limit: bool,
    columns: &[Field],
) -> Option<PlannedNearby> {
    let Some(condition) = condition else {
        let (key, options) = order.first()?;
        let is_ascending = options.asc != Some(false) && options.nulls_first != Some(true);
        let (columns, place) = distance(key, columns).filter(|_| has_limit && is_ascending)?;
        return Some(PlannedNearby { columns, place, radius: None });
    };
    split_conjunction(condition).into_iter().find_map(|part| {
        let Expr::BinaryExpr(binary) = part else { return None };
        let (near, radius) = match binary.op {
            Operator::Lt | Operator::LtEq => (&binary.left, &binary.right),
            Operator::Gt | Operator::GtEq => (&binary.right, &binary.left),
            _ => return None,
        };
        let (places, place) = distance(near, columns)?;
        // Both sides of a comparison have one type, so the radius is a DOUBLE as the distance is.
        let is_of_event = !names_any(radius, columns);
        is_of_event.then(|| PlannedNearby { columns: places, place, radius: Some(radius.as_ref().clone()) })
    })
}

/// If an expression is a distance, returns the place's columns in the table and the place of the event.
fn distance(expression: &Expr, columns: &[Field]) -> Option<([usize; 2], [Expr; 2])> {
    let Expr::ScalarFunction(call) = expression else { return None };
    let [lat1, lon1, lat2, lon2] = call.args.as_slice() else { return None };
    if call.func.name() != haversine::NAME {
        return None;
    }
    let of_table = |expression: &Expr| match expression {
        Expr::Column(column) => {
            let place = columns.iter().position(|field| *field.name() == column.name)?;
            (*columns[place].data_type() == DataType::Float64).then_some(place)
        }
        _ => None,
    };
    let sides = |lat: &Expr, lon: &Expr, event_lat: &Expr, event_lon: &Expr| {
        let found = [of_table(lat)?, of_table(lon)?];
        let is_known = !names_any(event_lat, columns) && !names_any(event_lon, columns);
        is_known.then(|| (found, [event_lat.clone(), event_lon.clone()]))
    };
    sides(lat1, lon1, lat2, lon2).or_else(|| sides(lat2, lon2, lat1, lon1))
}

fn names_any(expression: &Expr, columns: &[Field]) -> bool {
    expression.column_refs().iter().any(|one| columns.iter().any(|field| *field.name() == one.name))
}
