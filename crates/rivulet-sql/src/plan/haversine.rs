//! `haversine_m(lat1, lon1, lat2, lon2)`: the distance between two places on the globe, in metres.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use datafusion_common::Result;
use datafusion_expr::ScalarUDF;
use rivulet_operators::EARTH_RADIUS_M;

use super::scalars::Function;

/// Its name in SQL.
pub(super) const NAME: &str = "haversine_m";

/// The function, for the registry.
pub(super) fn haversine_m() -> Arc<ScalarUDF> {
    Function::new(NAME, [vec![DataType::Float64; 4]], DataType::Float64).computed(distances).into()
}

fn distances(columns: &[ArrayRef]) -> Result<ArrayRef> {
    let columns: Vec<&Float64Array> = columns.iter().map(|column| column.as_primitive::<Float64Type>()).collect();
    let [lat1, lon1, lat2, lon2] = columns.as_slice() else {
        return datafusion_common::exec_err!("haversine_m takes four numbers");
    };
    let of_row = |row: usize| {
        let valid = columns.iter().all(|column| column.is_valid(row));
        valid.then(|| distance_m(lat1.value(row), lon1.value(row), lat2.value(row), lon2.value(row)))
    };
    Ok(Arc::new((0..lat1.len()).map(of_row).collect::<Float64Array>()))
}

/// The great-circle distance between two places given in degrees (the haversine formula).
fn distance_m(lat1: f64, lon1: f64, lat2: f64, lon2: f64) -> f64 {
    let half_lat = (lat2 - lat1).to_radians() / 2.0;
    let half_lon = (lon2 - lon1).to_radians() / 2.0;
    let h = half_lat.sin().powi(2) + lat1.to_radians().cos() * lat2.to_radians().cos() * half_lon.sin().powi(2);
    // Rounding may make `h` greater than 1 for opposite places, where the arc sine is not defined. A NaN stays a NaN.
    2.0 * EARTH_RADIUS_M * if h > 1.0 { 1.0 } else { h }.sqrt().asin()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_distances() {
        let quarter = std::f64::consts::FRAC_PI_2 * EARTH_RADIUS_M;
        assert_eq!(distance_m(1.0, 2.0, 1.0, 2.0), 0.0);
        assert!((distance_m(0.0, 0.0, 0.0, 90.0) - quarter).abs() < 1e-6);
        assert!((distance_m(0.0, 0.0, 90.0, 0.0) - quarter).abs() < 1e-6);
        assert!((distance_m(0.0, 0.0, 0.0, 180.0) - 2.0 * quarter).abs() < 1e-6);
        // Across the date line, one degree at the equator.
        assert!((distance_m(0.0, 179.5, 0.0, -179.5) - quarter / 90.0).abs() < 1e-6);
        assert!(distance_m(f64::NAN, 0.0, 0.0, 0.0).is_nan());
    }
}
