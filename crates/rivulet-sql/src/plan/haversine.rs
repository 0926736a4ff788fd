//! `haversine_m(lat1, lon1, lat2, lon2)`: the distance between two places on the globe, in metres.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use rivulet_operators::EARTH_RADIUS_M;

/// Its name in SQL.
pub(super) const NAME: &str = "haversine_m";

/// The function, for the registry.
pub(super) fn haversine_m() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Haversine {
        signature: Signature::exact(vec![DataType::Float64; 4], Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Haversine {
    signature: Signature,
}

impl ScalarUDFImpl for Haversine {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let all_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if all_scalar { 1 } else { args.number_rows };
        let columns: Vec<ArrayRef> = args.args.into_iter().map(|arg| arg.into_array(rows)).collect::<Result<_>>()?;
        let columns: Vec<&Float64Array> = columns.iter().map(|column| column.as_primitive::<Float64Type>()).collect();
        let [lat1, lon1, lat2, lon2] = columns.as_slice() else {
            return datafusion_common::exec_err!("haversine_m takes four numbers");
        };
        let distances: Float64Array = (0..rows)
            .map(|row| {
                let valid = columns.iter().all(|column| column.is_valid(row));
                valid.then(|| distance_m(lat1.value(row), lon1.value(row), lat2.value(row), lon2.value(row)))
            })
            .collect();
        Ok(if all_scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&distances, 0)?)
        } else {
            ColumnarValue::Array(Arc::new(distances))
        })
    }
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
