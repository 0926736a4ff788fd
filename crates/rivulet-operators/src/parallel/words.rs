//! Arrow columns of fixed width as 64-bit words, and back.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, make_array};
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int8Type, UInt8Type, UInt16Type, UInt32Type};

/// The width of a value of a type whose values fit a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Bit,
    Bytes(usize),
}

/// The width of values of this type, if a word holds one.
pub(crate) fn width_of(data_type: &DataType) -> Option<Width> {
    match data_type {
        DataType::Boolean => Some(Width::Bit),
        _ => data_type.primitive_width().filter(|width| *width <= 8).map(Width::Bytes),
    }
}

/// The values of a column whose type has a [`Width`]. As signed integers, the words of integers and times have the
/// order of the values; the words of other types only keep equality. The word of a null is undefined.
pub(crate) fn words_of(column: &dyn Array) -> ScalarBuffer<u64> {
    match column.data_type() {
        DataType::Boolean => column.as_boolean().values().iter().map(u64::from).collect(),
        DataType::Int8 => column.as_primitive::<Int8Type>().values().iter().map(|&value| value as u64).collect(),
        DataType::UInt8 => column.as_primitive::<UInt8Type>().values().iter().map(|&value| value.into()).collect(),
        DataType::UInt16 => column.as_primitive::<UInt16Type>().values().iter().map(|&value| value.into()).collect(),
        DataType::UInt32 => column.as_primitive::<UInt32Type>().values().iter().map(|&value| value.into()).collect(),
        other => {
            let data = column.to_data();
            let (offset, rows) = (data.offset(), data.len());
            let buffer = data.buffers()[0].clone();
            match other.primitive_width() {
                Some(8) => ScalarBuffer::new(buffer, offset, rows),
                Some(4) => ScalarBuffer::<i32>::new(buffer, offset, rows).iter().map(|&value| value as u64).collect(),
                Some(2) => ScalarBuffer::<i16>::new(buffer, offset, rows).iter().map(|&value| value as u64).collect(),
                width => unreachable!("{other} has width {width:?}"),
            }
        }
    }
}

/// The same with one NaN and one zero, so that words are equal if SQL says that the values are.
pub(crate) fn key_words_of(column: &dyn Array) -> ScalarBuffer<u64> {
    use rivulet_dataflow::canonical_float;
    match column.data_type() {
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>().values();
            values.iter().map(|&value| canonical_float(value).to_bits()).collect()
        }
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>().values();
            values.iter().map(|&value| u64::from((canonical_float(value.into()) as f32).to_bits())).collect()
        }
        _ => words_of(column),
    }
}

/// Makes a column of this type from words that [`words_of`] returned.
pub(crate) fn column_of(data_type: &DataType, words: Vec<u64>, nulls: Option<NullBuffer>) -> ArrayRef {
    let rows = words.len();
    let buffer = match width_of(data_type) {
        Some(Width::Bit) => {
            let values = words.iter().map(|&word| word != 0).collect();
            return Arc::new(BooleanArray::new(values, nulls));
        }
        Some(Width::Bytes(1)) => Buffer::from_vec(words.into_iter().map(|word| word as u8).collect::<Vec<_>>()),
        Some(Width::Bytes(2)) => Buffer::from_vec(words.into_iter().map(|word| word as u16).collect::<Vec<_>>()),
        Some(Width::Bytes(4)) => Buffer::from_vec(words.into_iter().map(|word| word as u32).collect::<Vec<_>>()),
        _ => Buffer::from_vec(words),
    };
    let data = ArrayData::builder(data_type.clone()).len(rows).add_buffer(buffer).nulls(nulls);
    make_array(data.build().expect("words have the width of the type"))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Date32Array, Float32Array, Float64Array, Int8Array, TimestampMicrosecondArray, UInt32Array};

    use super::*;

    #[test]
    fn what_becomes_words_comes_back() {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
            Arc::new(Int8Array::from(vec![Some(-1), Some(5), None])),
            Arc::new(UInt32Array::from(vec![Some(u32::MAX), None])),
            Arc::new(Date32Array::from(vec![Some(-4), Some(4)])),
            Arc::new(Float32Array::from(vec![Some(-1.5), None])),
            Arc::new(Float64Array::from(vec![Some(-0.0), Some(2.5), None])),
            Arc::new(TimestampMicrosecondArray::from(vec![Some(7), None, Some(-9)])),
        ];
        for column in columns {
            assert!(width_of(column.data_type()).is_some());
            let again = column_of(column.data_type(), words_of(&column).to_vec(), column.nulls().cloned());
            assert_eq!(&again, &column);
            let part = column.slice(1, 1);
            assert_eq!(&column_of(part.data_type(), words_of(&part).to_vec(), part.nulls().cloned()), &part);
        }
        assert_eq!(words_of(&Int8Array::from(vec![-1]))[0], u64::MAX, "signs are kept");
        assert_eq!(key_words_of(&Float64Array::from(vec![-0.0]))[0], 0);
        assert_eq!(width_of(&DataType::Utf8), None);
    }
}
