//! One zero and one NaN: the canonical form of floating-point numbers in the engine.
//!
//! SQL holds 0 and -0 equal, and all NaN. The kernels that compare, sort, hash and group look at bits instead: there 0
//! and -0 differ, and a NaN with its sign bit set (0.0 / 0.0 sets it on some machines) is the least number. So numbers
//! are made canonical at their origin: where payloads are decoded, expressions evaluated and aggregates computed. Then
//! a comparison of bits does what SQL wants everywhere: NaN equals NaN and is greater than every other number.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array, Float64Array};
use arrow::datatypes::{DataType, Float32Type, Float64Type};

/// The canonical form: one NaN for all, and 0 for -0.
#[inline]
pub fn canonical_float(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value + 0.0 }
}

/// The column in canonical form; the column itself if nothing changes or it holds no floating-point numbers.
pub fn canonical_floats(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>();
            // A loop without an early exit is vectorised, and most batches have nothing to change.
            let is_other = |value: &f64| value.to_bits() != canonical_float(*value).to_bits();
            match values.values().iter().fold(false, |any, value| any | is_other(value)) {
                true => Arc::new(values.unary::<_, Float64Type>(canonical_float) as Float64Array),
                false => column.clone(),
            }
        }
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>();
            let canonical = |value: f32| if value.is_nan() { f32::NAN } else { value + 0.0 };
            let is_other = |value: &f32| value.to_bits() != canonical(*value).to_bits();
            match values.values().iter().fold(false, |any, value| any | is_other(value)) {
                true => Arc::new(values.unary::<_, Float32Type>(canonical) as Float32Array),
                false => column.clone(),
            }
        }
        _ => column.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_zero_and_one_nan() {
        let numbers: ArrayRef = Arc::new(Float64Array::from(vec![Some(-0.0), Some(-f64::NAN), None, Some(-1.5)]));
        let found = canonical_floats(&numbers);
        let bits: Vec<Option<u64>> =
            found.as_primitive::<Float64Type>().iter().map(|one| one.map(f64::to_bits)).collect();
        assert_eq!(bits, [Some(0), Some(f64::NAN.to_bits()), None, Some((-1.5f64).to_bits())]);
        let numbers: ArrayRef = Arc::new(Float32Array::from(vec![-0.0, -f32::NAN, 2.5]));
        let found = canonical_floats(&numbers);
        let bits: Vec<u32> = found.as_primitive::<Float32Type>().values().iter().map(|one| one.to_bits()).collect();
        assert_eq!(bits, [0, f32::NAN.to_bits(), 2.5f32.to_bits()]);
    }
}
