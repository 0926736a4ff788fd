//! Remembered values, and their conversion from arrays and into arrays.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, Float64Array, Float64Builder, Int64Array,
    Int64Builder, StringArray, StringBuilder,
};
use arrow::datatypes::{Float64Type, Int64Type};
use rivulet_dataflow::canonical_float;

use crate::aggregate::Storage;

/// A remembered value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    #[default]
    Null,
    /// The bits of a number, time or boolean.
    Word(u64),
    Text(String),
}

impl Value {
    pub(crate) fn heap_bytes(&self) -> usize {
        if let Self::Text(text) = self { text.capacity() } else { 0 }
    }
}

/// The values of an argument, in the form in which they are kept.
pub(crate) enum Values {
    Float(Float64Array),
    Word(Int64Array),
    Text(StringArray),
}

impl Values {
    /// The values of an array whose type is that of the storage.
    pub(crate) fn new(array: &ArrayRef, storage: Storage) -> Self {
        match storage {
            Storage::Float => Self::Float(array.as_primitive::<Float64Type>().clone()),
            Storage::Text => Self::Text(array.as_string::<i32>().clone()),
            Storage::Integer | Storage::Boolean | Storage::Time => {
                Self::Word(array.as_primitive::<Int64Type>().clone())
            }
        }
    }

    /// The bits of a row's value; `None` if it is null or text.
    pub(crate) fn word(&self, row: usize) -> Option<u64> {
        match self {
            Self::Float(values) => values.is_valid(row).then(|| values.value(row).to_bits()),
            Self::Word(values) => values.is_valid(row).then(|| values.value(row) as u64),
            Self::Text(_) => None,
        }
    }

    pub(crate) fn text(&self, row: usize) -> Option<&str> {
        match self {
            Self::Text(values) => values.is_valid(row).then(|| values.value(row)),
            _ => None,
        }
    }

    pub(crate) fn float(&self, row: usize) -> Option<f64> {
        self.word(row).map(f64::from_bits)
    }

    /// Remembers a row's value in place of another value. If both are texts, it reuses the memory.
    pub(crate) fn store(&self, row: usize, value: &mut Value) {
        /// How many bytes a text may keep beyond twice its length.
        const SPARE_BYTES: usize = 64;
        match (self.text(row), self.word(row), value) {
            (Some(new), _, Value::Text(text)) => {
                text.clear();
                text.push_str(new);
                text.shrink_to(2 * new.len() + SPARE_BYTES);
            }
            (Some(new), _, value) => *value = Value::Text(new.to_owned()),
            (None, Some(word), value) => *value = Value::Word(word),
            (None, None, value) => *value = Value::Null,
        }
    }

    /// Whether SQL would put a row's value and the remembered one into one group.
    pub(crate) fn equals(&self, row: usize, value: &Value) -> bool {
        match (self, value) {
            (Self::Float(_), Value::Word(word)) => {
                let canonical = |value: f64| canonical_float(value).to_bits();
                self.float(row).is_some_and(|found| canonical(found) == canonical(f64::from_bits(*word)))
            }
            (_, Value::Word(word)) => self.word(row) == Some(*word),
            (_, Value::Text(text)) => self.text(row) == Some(text),
            (_, Value::Null) => self.word(row).is_none() && self.text(row).is_none(),
        }
    }
}

/// Remembered values, or flags, collected for an array.
pub(crate) enum Builder {
    Float(Float64Builder),
    Word(Int64Builder),
    Text(StringBuilder),
    Flags(BooleanBufferBuilder),
}

impl Builder {
    /// Makes a builder for values that are kept as `storage`.
    pub(crate) fn values(storage: Storage, rows: usize) -> Self {
        match storage {
            Storage::Float => Self::Float(Float64Builder::with_capacity(rows)),
            Storage::Text => Self::Text(StringBuilder::new()),
            Storage::Integer | Storage::Boolean | Storage::Time => Self::Word(Int64Builder::with_capacity(rows)),
        }
    }

    pub(crate) fn push(&mut self, value: &Value) {
        match (self, value) {
            (Self::Float(values), Value::Word(word)) => values.append_value(f64::from_bits(*word)),
            (Self::Float(values), _) => values.append_null(),
            (Self::Word(values), Value::Word(word)) => values.append_value(*word as i64),
            (Self::Word(values), _) => values.append_null(),
            (Self::Text(values), Value::Text(text)) => values.append_value(text),
            (Self::Text(values), _) => values.append_null(),
            (Self::Flags(flags), value) => flags.append(*value == Value::Word(1)),
        }
    }

    pub(crate) fn finish(self) -> ArrayRef {
        match self {
            Self::Float(mut values) => Arc::new(values.finish()),
            Self::Word(mut values) => Arc::new(values.finish()),
            Self::Text(mut values) => Arc::new(values.finish()),
            Self::Flags(mut flags) => Arc::new(BooleanArray::new(flags.finish(), None)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_share_memory_and_a_long_one_gives_it_back() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["one", "two", &*"long".repeat(1000), "three"]));
        let texts = Values::new(&texts, Storage::Text);
        let mut value = Value::Null;
        texts.store(0, &mut value);
        let place = |value: &Value| match value {
            Value::Text(text) => text.as_ptr(),
            _ => panic!("not a text"),
        };
        let first = place(&value);
        texts.store(1, &mut value);
        assert_eq!((place(&value), &value), (first, &Value::Text("two".into())));
        texts.store(2, &mut value);
        assert!(value.heap_bytes() >= 4000);
        texts.store(3, &mut value);
        assert!(value.heap_bytes() < 100 && value == Value::Text("three".into()));
    }
}
