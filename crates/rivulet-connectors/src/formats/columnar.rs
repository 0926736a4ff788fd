//! Values with parts in columns of Arrow: lists, maps and structs, in both directions.
//!
//! What must hold: a value that is written and read again is the same. Any JSON is text, as its reader sees it: a
//! string without its quotes, another value as it is written.

use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, BooleanBuilder, Float64Array, Float64Builder, Int64Array, Int64Builder,
    ListArray, MapArray, StringArray, StringBuilder, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float64Type, Int64Type};
use arrow::error::ArrowError;

use super::array::NestedValues;
use super::fault::{Fault, Problem};
use super::parts::{Part, PartWriter};
use super::tape::{Held, Tape, Value};

/// The first part that cannot be read from values of the type: its path and what it is. `None` if all can. Numbers may
/// have fewer bits than the part.
pub(crate) fn unsuited(found: &DataType, part: &Part, path: &str) -> Option<(String, &'static str)> {
    let itself = || Some((path.to_owned(), part.name()));
    let is_text = |found: &DataType| match found {
        DataType::Dictionary(_, values) => values.is_string(),
        found => found.is_string(),
    };
    match (found, part) {
        (DataType::Null, _) => None,
        (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _), part) => {
            let element: &Part = match part {
                Part::Array(element) => element,
                Part::Any => part,
                _ => return itself(),
            };
            unsuited(item.data_type(), element, &format!("{path}[]"))
        }
        (DataType::Map(entries, _), Part::Map(_) | Part::Any) => {
            let value: &Part = if let Part::Map(value) = part { value } else { part };
            match entries.data_type() {
                DataType::Struct(fields) if fields.len() == 2 && is_text(fields[0].data_type()) => {
                    unsuited(fields[1].data_type(), value, &format!("{path}['']"))
                }
                _ => itself(),
            }
        }
        (DataType::Struct(found), Part::Row(fields)) => fields.iter().find_map(|(name, part)| {
            let path = format!("{path}.{name}");
            match found.iter().find(|field| field.name() == name) {
                Some(field) => unsuited(field.data_type(), part, &path),
                None => Some((path, "field")),
            }
        }),
        (DataType::Boolean, Part::Boolean | Part::Any) => None,
        (found, Part::Text | Part::Any) if is_text(found) => None,
        (found, Part::Integer | Part::Float | Part::Any) if found.is_integer() => {
            if *found == DataType::UInt64 && *part != Part::Float { itself() } else { None }
        }
        (found, Part::Float | Part::Any) if found.is_floating() => None,
        _ => itself(),
    }
}

/// A column, whose type suits the part, as JSON.
///
/// # Errors
/// The texts are too long for one column.
pub(crate) fn as_json(column: &ArrayRef, part: &Part) -> Result<ArrayRef, ArrowError> {
    let source = Source::new(column, part)?;
    let mut values = NestedValues::of(part.clone());
    // Rows are as large here as they are there.
    let payload_bytes = usize::MAX >> 8;
    for row in 0..column.len() {
        match column.is_valid(row) {
            true => {
                let written =
                    values.push_with(payload_bytes, |part, writer, out| source.append(row, part, writer, out));
                let failed = |_| ArrowError::ComputeError("the values of a batch are too long for one column".into());
                written.map_err(failed)?;
            }
            false => values.push_default(),
        }
    }
    Ok(Arc::new(values.finish(column.nulls().cloned())))
}

/// The values of a column that is read, or of a part of it.
enum Source {
    /// All are null.
    Null,
    Boolean(BooleanArray),
    Integer(Int64Array),
    Float(Float64Array),
    Text(StringArray),
    List(ListArray, Box<Source>),
    Map(MapArray, StringArray, Box<Source>),
    Row(StructArray, Vec<Source>),
}

impl Source {
    fn new(column: &ArrayRef, part: &Part) -> Result<Self, ArrowError> {
        let of_type = |data_type: &DataType| cast(column, data_type);
        Ok(match (column.data_type(), part) {
            (DataType::Null, _) => Self::Null,
            (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _), _) => {
                let element: &Part = if let Part::Array(element) = part { element } else { part };
                let lists = of_type(&DataType::List(item.clone()))?.as_list::<i32>().clone();
                let values = Self::new(lists.values(), element)?;
                Self::List(lists, Box::new(values))
            }
            (DataType::Map(..), _) => {
                let value: &Part = if let Part::Map(value) = part { value } else { part };
                let maps = column.as_map().clone();
                let keys = cast(maps.keys(), &DataType::Utf8)?.as_string().clone();
                let values = Self::new(maps.values(), value)?;
                Self::Map(maps, keys, Box::new(values))
            }
            (DataType::Struct(found), Part::Row(fields)) => {
                let rows = column.as_struct();
                let inner = |(name, part): &(String, Part)| match found.iter().position(|field| field.name() == name) {
                    Some(place) => Self::new(rows.column(place), part),
                    None => Ok(Self::Null),
                };
                Self::Row(rows.clone(), fields.iter().map(inner).collect::<Result<_, _>>()?)
            }
            (_, Part::Integer) => Self::Integer(of_type(&DataType::Int64)?.as_primitive::<Int64Type>().clone()),
            (_, Part::Float) => Self::Float(of_type(&DataType::Float64)?.as_primitive::<Float64Type>().clone()),
            (DataType::Boolean, _) => Self::Boolean(column.as_boolean().clone()),
            (found, _) if found.is_integer() => Self::new(column, &Part::Integer)?,
            (found, _) if found.is_floating() => Self::new(column, &Part::Float)?,
            _ => Self::Text(of_type(&DataType::Utf8)?.as_string().clone()),
        })
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Null => true,
            Self::Boolean(values) => values.is_null(row),
            Self::Integer(values) => values.is_null(row),
            Self::Float(values) => values.is_null(row),
            Self::Text(values) => values.is_null(row),
            Self::List(lists, _) => lists.is_null(row),
            Self::Map(maps, ..) => maps.is_null(row),
            Self::Row(rows, _) => rows.is_null(row),
        }
    }

    fn append(&self, row: usize, part: &Part, writer: &mut PartWriter, out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.is_null(row) {
            out.extend_from_slice(b"null");
            return Ok(());
        }
        let appended = match self {
            Self::Null => Ok(()),
            Self::Boolean(values) => part.append_boolean(values.value(row), out),
            Self::Integer(values) => part.append_integer(values.value(row), out),
            Self::Float(values) => part.append_float(values.value(row), out),
            Self::Text(values) => part.append_text(values.value(row).as_bytes(), out),
            Self::List(lists, values) => {
                let element: &Part = if let Part::Array(element) = part { element } else { part };
                out.push(b'[');
                let places = between(lists.value_offsets(), row);
                for place in places.clone() {
                    out.extend_from_slice(if place > places.start { b"," } else { b"" });
                    values.append(place, element, writer, out)?;
                }
                out.push(b']');
                Ok(())
            }
            Self::Map(maps, keys, values) => {
                let value: &Part = if let Part::Map(value) = part { value } else { part };
                let mut map = writer.open_map(out);
                for place in between(maps.value_offsets(), row) {
                    writer.open_member(&mut map, keys.value(place), out);
                    values.append(place, value, writer, out)?;
                    writer.close_member(out);
                }
                writer.close_map(map, out);
                Ok(())
            }
            Self::Row(_, columns) => match part {
                Part::Row(fields) => {
                    let open = writer.open_row(fields.len(), out);
                    for (field, (column, (_, part))) in columns.iter().zip(fields).enumerate() {
                        let begin = out.len();
                        column.append(row, part, writer, out)?;
                        writer.set_field(&open, field, begin, out);
                    }
                    writer.close_row(open, fields, out);
                    Ok(())
                }
                _ => Err(Problem::ExpectedObject),
            },
        };
        appended.map_err(|problem| Fault::new(problem, 0))
    }
}

/// Where the values of a row begin and end.
fn between(offsets: &[i32], row: usize) -> std::ops::Range<usize> {
    offsets[row] as usize..offsets[row + 1] as usize
}

/// The type of Arrow that values of the part have.
pub(crate) fn type_of_part(part: &Part) -> DataType {
    let field = |name: &str, part| Arc::new(Field::new(name, type_of_part(part), true));
    match part {
        // Any JSON is text.
        Part::Any | Part::Text => DataType::Utf8,
        Part::Integer => DataType::Int64,
        Part::Float => DataType::Float64,
        Part::Boolean => DataType::Boolean,
        Part::Array(element) => DataType::List(field("element", element)),
        Part::Map(value) => {
            // The names that Parquet's specification has.
            let key = Arc::new(Field::new("key", DataType::Utf8, false));
            let entries = DataType::Struct(Fields::from(vec![key, field("value", value)]));
            DataType::Map(Arc::new(Field::new("key_value", entries, false)), false)
        }
        Part::Row(fields) => DataType::Struct(fields.iter().map(|(name, part)| field(name, part)).collect()),
    }
}

/// A column of JSON as lists, maps or structs of the part.
pub(crate) fn as_parts(texts: &StringArray, part: &Part) -> ArrayRef {
    let (mut target, mut tape) = (Target::new(part), Tape::default());
    for row in 0..texts.len() {
        match texts.is_valid(row) {
            true => target.append(tape.read(texts.value(row), part)),
            false => target.append_null(),
        }
    }
    target.finish()
}

/// A column of values with parts that is written, or a part of it.
enum Target {
    Boolean(BooleanBuilder),
    Integer(Int64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
    List { field: FieldRef, lengths: Vec<usize>, valid: NullBufferBuilder, values: Box<Target> },
    Map { field: FieldRef, lengths: Vec<usize>, valid: NullBufferBuilder, inner: Box<(Target, Target)> },
    Row { fields: Fields, valid: NullBufferBuilder, columns: Vec<Target> },
}

impl Target {
    fn new(part: &Part) -> Self {
        let (lengths, valid) = (Vec::new(), NullBufferBuilder::new(0));
        match (part, type_of_part(part)) {
            (Part::Boolean, _) => Self::Boolean(BooleanBuilder::new()),
            (Part::Integer, _) => Self::Integer(Int64Builder::new()),
            (Part::Float, _) => Self::Float(Float64Builder::new()),
            (Part::Array(element), DataType::List(field)) => {
                let values = Box::new(Self::new(element));
                Self::List { field, lengths, valid, values }
            }
            (Part::Map(value), DataType::Map(field, _)) => {
                let inner = Box::new((Self::new(&Part::Text), Self::new(value)));
                Self::Map { field, lengths, valid, inner }
            }
            (Part::Row(parts), DataType::Struct(fields)) => {
                let columns = parts.iter().map(|(_, part)| Self::new(part)).collect();
                Self::Row { fields, valid, columns }
            }
            _ => Self::Text(StringBuilder::new()),
        }
    }

    fn append(&mut self, value: Value<'_>) {
        match (self, value.held()) {
            (target, Held::Null) => target.append_null(),
            (Self::Boolean(values), Held::Boolean(value)) => values.append_value(value),
            (Self::Integer(values), Held::Integer(value)) => values.append_value(value),
            (Self::Float(values), Held::Float(value)) => values.append_value(value),
            (Self::Text(values), Held::Text(text)) => values.append_value(text),
            (Self::List { lengths, valid, values, .. }, Held::Array(count, elements)) => {
                lengths.push(count);
                valid.append_non_null();
                elements.for_each(|element| values.append(element));
            }
            (Self::Map { lengths, valid, inner, .. }, Held::Map(count, mut values)) => {
                lengths.push(count);
                valid.append_non_null();
                while let (Some(key), Some(value)) = (values.next(), values.next()) {
                    inner.0.append(key);
                    inner.1.append(value);
                }
            }
            (Self::Row { valid, columns, .. }, Held::Row(values)) => {
                valid.append_non_null();
                columns.iter_mut().zip(values).for_each(|(column, value)| column.append(value));
            }
            _ => unreachable!("a value is read as the part that is written"),
        }
    }

    fn append_null(&mut self) {
        match self {
            Self::Boolean(values) => values.append_null(),
            Self::Integer(values) => values.append_null(),
            Self::Float(values) => values.append_null(),
            Self::Text(values) => values.append_null(),
            Self::List { lengths, valid, .. } | Self::Map { lengths, valid, .. } => {
                lengths.push(0);
                valid.append_null();
            }
            Self::Row { valid, columns, .. } => {
                valid.append_null();
                columns.iter_mut().for_each(Self::append_null);
            }
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Boolean(mut values) => Arc::new(values.finish()),
            Self::Integer(mut values) => Arc::new(values.finish()),
            Self::Float(mut values) => Arc::new(values.finish()),
            Self::Text(mut values) => Arc::new(values.finish()),
            Self::List { field, lengths, valid, values } => {
                Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), values.finish(), valid.build()))
            }
            Self::Map { field, lengths, valid, inner } => {
                let DataType::Struct(fields) = field.data_type().clone() else { unreachable!("entries are structs") };
                let entries = StructArray::new(fields, vec![inner.0.finish(), inner.1.finish()], None);
                Arc::new(MapArray::new(field, OffsetBuffer::from_lengths(lengths), entries, valid.build(), false))
            }
            Self::Row { fields, valid, columns } => {
                let rows = valid.len();
                let columns = columns.into_iter().map(Self::finish).collect();
                // A row may have no field that tells how many there are.
                let built = StructArray::try_new_with_length(fields, columns, valid.build(), rows);
                Arc::new(built.expect("each field has a value for each row"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::LargeListArray;
    use arrow::datatypes::Int32Type;

    use super::*;

    fn round(part: &Part, texts: &[Option<&str>]) -> Vec<Option<String>> {
        let column = as_parts(&StringArray::from(texts.to_vec()), part);
        assert_eq!((column.data_type(), unsuited(column.data_type(), part, "v")), (&type_of_part(part), None));
        let read = as_json(&column, part).unwrap();
        read.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
    }

    #[test]
    fn values_come_back_as_they_are() {
        let of = |name: &str, part| (name.to_owned(), part);
        let map = |part| Part::Map(Box::new(part));
        let array = |part| Part::Array(Box::new(part));
        let row = Part::Row(vec![of("n", Part::Integer), of("m", map(Part::Float)), of("t", Part::Text)]);
        for (part, texts) in [
            (array(Part::Float), [r#"[1.5,null,"NaN","-Infinity"]"#, "[]", "[0.0]"]),
            (array(array(Part::Boolean)), ["[[true],[],null]", "[[false,null]]", "[]"]),
            (map(Part::Text), [r#"{"":"x","a\n":null}"#, "{}", r#"{"b":"\""}"#]),
            (map(row.clone()), [r#"{"k":{"n":1,"m":{"x":2.5},"t":"é"}}"#, "{}", r#"{"k":null}"#]),
            (
                row.clone(),
                [r#"{"n":-7,"m":{},"t":null}"#, r#"{"n":null,"m":null,"t":""}"#, r#"{"n":1,"m":{"a":null},"t":"x"}"#],
            ),
            (array(Part::Row(vec![])), ["[{},null]", "[]", "[{}]"]),
        ] {
            let [a, b, c] = texts;
            let texts = [Some(a), None, Some(b), Some(c), None];
            let expected: Vec<_> = texts.iter().map(|text| text.map(str::to_owned)).collect();
            assert_eq!(round(&part, &texts), expected);
        }
        let any = round(&map(Part::Any), &[Some(r#"{"a":1,"b":"x","c":[{"d":null}]}"#)]);
        assert_eq!(any[0].as_deref(), Some(r#"{"a":"1","b":"x","c":"[{\"d\":null}]"}"#));
    }

    #[test]
    fn columns_of_others_are_read() {
        let numbers = [Some(vec![Some(1), None, Some(-3)]), None, Some(vec![])];
        let array = |part| Part::Array(Box::new(part));
        let small: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(numbers.clone()));
        let large: ArrayRef = Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(numbers));
        for column in [small, large] {
            for (element, expected) in [(Part::Float, "[1.0,null,-3.0]"), (Part::Any, "[1,null,-3]")] {
                let part = array(element);
                assert_eq!(unsuited(column.data_type(), &part, "v"), None);
                let read = as_json(&column, &part).unwrap();
                assert_eq!(read.as_string::<i32>().iter().collect::<Vec<_>>(), [Some(expected), None, Some("[]")]);
            }
            let wrong = unsuited(column.data_type(), &array(Part::Text), "v");
            assert_eq!(wrong, Some(("v[]".to_owned(), "TEXT")));
        }
        // The keys of a map are put in order, each with its last value.
        let part = Part::Map(Box::new(Part::Integer));
        let DataType::Map(field, _) = type_of_part(&part) else { panic!("a map") };
        let DataType::Struct(fields) = field.data_type().clone() else { panic!("entries") };
        let keys: ArrayRef = Arc::new(StringArray::from(vec!["b", "a", "b"]));
        let values: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let entries = StructArray::new(fields, vec![keys, values], None);
        let maps: ArrayRef = Arc::new(MapArray::new(field, OffsetBuffer::from_lengths([3]), entries, None, false));
        assert_eq!(as_json(&maps, &part).unwrap().as_string::<i32>().value(0), r#"{"a":2,"b":3}"#);
        let times = DataType::Timestamp(arrow::datatypes::TimeUnit::Second, None);
        for (found, part) in [(times, Part::Any), (DataType::UInt64, Part::Integer), (DataType::Utf8, Part::Float)] {
            assert!(unsuited(&found, &part, "v").is_some(), "{found}");
        }
    }
}
