//! The hash of keys in columns, for a whole batch at once. It decides which instance of an operator has a key, and in
//! which key group its state is saved.
//!
//! The hash is part of the storage format: it depends on values alone, not on the process, the machine or the encoding
//! of columns. Keys that SQL holds equal have the same hash: null is a value, all NaN are one, and so are 0 and -0.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::float::canonical_float;

/// The start value of every hash; an arbitrary odd number.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
/// The hash of null.
const NULL: u64 = 0xa5a5_5a5a_c3c3_3c3c;

/// Writes the hash of each row's values in `columns` to `hashes`, `rows` values in all. Without columns all rows have
/// the same key.
///
/// # Errors
/// A column of a type that cannot be a key.
pub fn hash_keys(columns: &[ArrayRef], rows: usize, hashes: &mut Vec<u64>) -> Result<(), ArrowError> {
    hashes.clear();
    hashes.resize(rows, SEED);
    columns.iter().try_for_each(|column| add_column(column, hashes))
}

/// Whether values of this type can be (part of) a key.
pub fn is_key_type(data_type: &DataType) -> bool {
    use DataType::{
        Boolean, Date32, Date64, Decimal128, Float32, Float64, Int8, Int16, Int32, Int64, LargeUtf8, Timestamp, UInt8,
        UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    matches!(
        data_type,
        Boolean | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Float32 | Float64 | Date32 | Date64
    ) || matches!(data_type, Timestamp(..) | Decimal128(..) | Utf8 | LargeUtf8 | Utf8View)
        || *data_type == DataType::Time64(TimeUnit::Nanosecond)
}

fn add_column(column: &ArrayRef, hashes: &mut [u64]) -> Result<(), ArrowError> {
    match column.data_type() {
        DataType::Boolean => {
            let values = column.as_boolean();
            add(hashes, column, |row| u64::from(values.value(row)));
        }
        DataType::Int8 => add_primitive::<Int8Type>(hashes, column, |value| value as u64),
        DataType::Int16 => add_primitive::<Int16Type>(hashes, column, |value| value as u64),
        DataType::Int32 => add_primitive::<Int32Type>(hashes, column, |value| value as u64),
        DataType::Int64 => add_primitive::<Int64Type>(hashes, column, |value| value as u64),
        DataType::UInt8 => add_primitive::<UInt8Type>(hashes, column, u64::from),
        DataType::UInt16 => add_primitive::<UInt16Type>(hashes, column, u64::from),
        DataType::UInt32 => add_primitive::<UInt32Type>(hashes, column, u64::from),
        DataType::UInt64 => add_primitive::<UInt64Type>(hashes, column, |value| value),
        DataType::Date32 => add_primitive::<Date32Type>(hashes, column, |value| value as u64),
        DataType::Date64 => add_primitive::<Date64Type>(hashes, column, |value| value as u64),
        DataType::Float32 => add_primitive::<Float32Type>(hashes, column, |value| float_bits(f64::from(value))),
        DataType::Float64 => add_primitive::<Float64Type>(hashes, column, float_bits),
        DataType::Decimal128(..) => {
            add_primitive::<Decimal128Type>(hashes, column, |value| mix(value as u64) ^ (value >> 64) as u64);
        }
        DataType::Time64(TimeUnit::Nanosecond) => {
            add_primitive::<Time64NanosecondType>(hashes, column, |value| value as u64);
        }
        DataType::Timestamp(TimeUnit::Second, _) => {
            add_primitive::<TimestampSecondType>(hashes, column, |value| value as u64);
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            add_primitive::<TimestampMillisecondType>(hashes, column, |value| value as u64);
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            add_primitive::<TimestampMicrosecondType>(hashes, column, |value| value as u64);
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            add_primitive::<TimestampNanosecondType>(hashes, column, |value| value as u64);
        }
        DataType::Utf8 => {
            let values = column.as_string::<i32>();
            add_text(hashes, column, |row| values.value(row));
        }
        DataType::LargeUtf8 => {
            let values = column.as_string::<i64>();
            add_text(hashes, column, |row| values.value(row));
        }
        DataType::Utf8View => {
            let values = column.as_string_view();
            add_text(hashes, column, |row| values.value(row));
        }
        other => return Err(ArrowError::NotYetImplemented(format!("values of type {other} cannot be a key"))),
    }
    Ok(())
}

fn add_primitive<T: ArrowPrimitiveType>(hashes: &mut [u64], column: &ArrayRef, word: impl Fn(T::Native) -> u64) {
    let array = column.as_primitive::<T>();
    let values = array.values();
    match array.nulls() {
        None => hashes.iter_mut().zip(values).for_each(|(hash, &value)| *hash = mix(*hash ^ word(value))),
        Some(_) => add(hashes, column, |row| word(values[row])),
    }
}

fn add(hashes: &mut [u64], column: &ArrayRef, word: impl Fn(usize) -> u64) {
    for (row, hash) in hashes.iter_mut().enumerate() {
        *hash = mix(*hash ^ if column.is_null(row) { NULL } else { word(row) });
    }
}

fn add_text<'a>(hashes: &mut [u64], column: &ArrayRef, text: impl Fn(usize) -> &'a str) {
    for (row, hash) in hashes.iter_mut().enumerate() {
        *hash = match column.is_null(row) {
            true => mix(*hash ^ NULL),
            false => xxh3_64_with_seed(text(row).as_bytes(), *hash),
        };
    }
}

fn float_bits(value: f64) -> u64 {
    canonical_float(value).to_bits()
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the argument changes every bit of the
/// result.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Float64Array, Int64Array, StringArray, StringViewArray};

    use super::*;

    fn hashes(columns: &[ArrayRef]) -> Vec<u64> {
        let mut hashes = vec![7];
        hash_keys(columns, columns[0].len(), &mut hashes).unwrap();
        hashes
    }

    #[test]
    fn the_hash_is_a_storage_format() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(-1), None]));
        // These values are on disks: to change them is to change the format.
        let expected = [0xe220_a839_7b1d_cdaf, 0xe4d9_7177_1b65_2c20, 0xde0a_564c_bcd0_60c4, 0x1444_a272_5857_2ec5];
        assert_eq!(hashes(&[numbers]), expected);
    }

    #[test]
    fn equal_keys_have_one_hash_and_others_another() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("b"), None, Some("")]));
        let views: ArrayRef = Arc::new(StringViewArray::from(vec![Some("a"), Some("b"), None, Some("")]));
        assert_eq!(hashes(std::slice::from_ref(&texts)), hashes(&[views]), "the encoding does not matter");
        let distinct: std::collections::HashSet<u64> = hashes(&[texts]).into_iter().collect();
        assert_eq!(distinct.len(), 4);
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN, 1.0]));
        let of = hashes(&[floats]);
        assert!(of[0] == of[1] && of[2] == of[3] && of[0] != of[2] && of[0] != of[4]);
    }

    #[test]
    fn the_order_of_columns_matters_and_small_numbers_spread() {
        let (a, b): (ArrayRef, ArrayRef) =
            (Arc::new(Int64Array::from(vec![1, 2])), Arc::new(Int64Array::from(vec![2, 1])));
        let of = hashes(&[a, b]);
        assert_ne!(of[0], of[1]);
        let many: ArrayRef = Arc::new((0..10_000).collect::<Int64Array>());
        let halves = hashes(&[many]).into_iter().filter(|hash| hash % 2 == 0).count();
        assert!((4_800..5_200).contains(&halves), "{halves}");
    }

    #[test]
    fn without_columns_all_rows_are_one_key() {
        let mut hashes = Vec::new();
        hash_keys(&[], 3, &mut hashes).unwrap();
        assert!(hashes.len() == 3 && hashes.iter().all(|hash| *hash == hashes[0]));
        let nested = arrow::array::new_null_array(&DataType::new_list(DataType::Int64, true), 1);
        assert!(hash_keys(&[nested], 1, &mut hashes).is_err());
        assert!(is_key_type(&DataType::Boolean) && !is_key_type(&DataType::Binary));
        assert!(hash_keys(&[Arc::new(BooleanArray::from(vec![true]))], 1, &mut hashes).is_ok());
    }
}
