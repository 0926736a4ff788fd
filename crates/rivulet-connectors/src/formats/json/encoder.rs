//! Rows into objects.

use arrow::datatypes::Schema;
use rivulet_dataflow::{Batch, is_json};

use super::super::cells::{Cell, Cells};
use super::super::encode::{EncodedRows, Encoder, append_display};
use super::super::exact::{append_date, append_scaled, append_time_of_day};
use super::super::number::not_finite_name;
use super::super::times::{TimeFormat, Times};
use super::values::{append_integer, append_json_float, append_json_string, append_json_timestamp};

/// Writes each row as one object, keys in column order. A column that holds JSON is written as it is.
///
/// Floats are written with as few digits as bring back the same value, those that are not finite as the texts `"NaN"`,
/// `"Infinity"` and `"-Infinity"`, since JSON has no numbers for them; timestamps as epoch milliseconds, with a
/// fraction where there is one.
pub(crate) struct JsonEncoder {
    members: Vec<Member>,
    /// The bytes behind the last value: `}` for each open object.
    end: Vec<u8>,
    /// Whether a float that is not finite is null.
    is_finite: bool,
}

/// A value of a row and the bytes before it.
struct Member {
    /// `{"first":`, `,"second":` and so on.
    prefix: Vec<u8>,
    /// The index of its column.
    column: usize,
    /// Whether the column holds JSON.
    is_json: bool,
    times: TimeFormat,
}

impl JsonEncoder {
    /// An encoder for rows of `schema`.
    pub(crate) fn new(schema: &Schema, times: &Times) -> Self {
        let names = schema.fields().iter().map(|field| vec![field.name().as_str()]);
        Self::of_paths(&names.enumerate().collect::<Vec<_>>(), schema, times)
    }

    /// An encoder that writes a column `a.b` as the field `b` of an object `a`. An object stands where the first of its
    /// columns does.
    ///
    /// # Errors
    /// The name of a column that would have to be an object and a value.
    pub(crate) fn nested(schema: &Schema, times: &Times) -> Result<Self, String> {
        let paths = schema.fields().iter().map(|field| field.name().split('.').collect::<Vec<_>>());
        let paths: Vec<(usize, Vec<&str>)> = paths.enumerate().collect();
        for (column, path) in &paths {
            if paths.iter().any(|(other, longer)| other != column && longer.starts_with(path)) {
                return Err(schema.field(*column).name().clone());
            }
        }
        // By where the columns of each object begin, from the outermost object to the innermost.
        let first = |path: &[&str]| paths.iter().position(|(_, other)| other.starts_with(path));
        let mut ordered = paths.clone();
        ordered
            .sort_by_cached_key(|(_, path)| (1..=path.len()).map(|length| first(&path[..length])).collect::<Vec<_>>());
        Ok(Self::of_paths(&ordered, schema, times))
    }

    /// Writes columns in this order, each with the fields that lead to it.
    fn of_paths(paths: &[(usize, Vec<&str>)], schema: &Schema, times: &Times) -> Self {
        let times = times.of_fields(schema);
        let mut members: Vec<Member> = Vec::with_capacity(paths.len());
        let mut before: &[&str] = &[];
        for (column, path) in paths {
            let shared = before.iter().zip(path).take_while(|(one, other)| one == other).count();
            // Closes the objects that the column is not in, and opens its own.
            let mut prefix = vec![b'}'; before.len().saturating_sub(shared + 1)];
            prefix.push(if members.is_empty() { b'{' } else { b',' });
            for (index, name) in path[shared..].iter().enumerate() {
                if index > 0 {
                    prefix.push(b'{');
                }
                append_json_string(name, &mut prefix);
                prefix.push(b':');
            }
            let is_json = is_json(schema.field(*column));
            members.push(Member { prefix, column: *column, is_json, times: times[*column].clone() });
            before = path;
        }
        let end = if members.is_empty() { b"{}".to_vec() } else { vec![b'}'; before.len()] };
        Self { members, end, is_finite: false }
    }

    /// Appends a row of these columns.
    pub(crate) fn append(&self, columns: &[Cells], row: usize, out: &mut Vec<u8>) {
        for Member { prefix, column, is_json, times } in &self.members {
            out.extend_from_slice(prefix);
            match columns[*column].cell(row) {
                Cell::Timestamp(time_us) => append_time(times, time_us, out),
                Cell::Date(days) => {
                    out.push(b'"');
                    append_date(days, times, out);
                    out.push(b'"');
                }
                Cell::Text(text) if *is_json => out.extend_from_slice(text.as_bytes()),
                Cell::Float64(value) if self.is_finite && !value.is_finite() => append_json_cell(Cell::Null, out),
                Cell::Float32(value) if self.is_finite && !value.is_finite() => append_json_cell(Cell::Null, out),
                cell => append_json_cell(cell, out),
            }
        }
        out.extend_from_slice(&self.end);
    }
}

impl Encoder for JsonEncoder {
    fn encode(&mut self, batch: &Batch, out: &mut EncodedRows) {
        let columns: Vec<Cells> = batch.columns.columns().iter().map(Cells::new).collect();
        for row in 0..batch.rows() {
            self.append(&columns, row, out.bytes_mut());
            out.end_row();
        }
    }
}

/// An encoder of objects, which may have no column at all.
pub(crate) fn object_encoder(schema: &Schema) -> Box<dyn Encoder> {
    Box::new(JsonEncoder::new(schema, &Times::default()))
}

/// The same for objects that are read as rows: a float that is not finite is null, because a text is no number.
pub(crate) fn readable_encoder(schema: &Schema) -> Box<dyn Encoder> {
    Box::new(JsonEncoder { is_finite: true, ..JsonEncoder::new(schema, &Times::default()) })
}

/// Row `row` of `batch` as one JSON object, in the form the JSON format writes; for dead letters, previews and logs.
///
/// # Panics
/// If there is no such row.
pub(crate) fn row_to_json(batch: &Batch, row: usize) -> String {
    let one = batch.columns.slice(row, 1);
    let columns: Vec<Cells> = one.columns().iter().map(Cells::new).collect();
    let mut out = Vec::new();
    JsonEncoder::new(one.schema_ref(), &Times::default()).append(&columns, 0, &mut out);
    // Every piece is text, so this copies nothing and replaces nothing.
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Appends a time: a number, or a text that a pattern has written.
fn append_time(times: &TimeFormat, time_us: i64, out: &mut Vec<u8>) {
    // No pattern writes a character that is escaped in a string.
    let quote: &[u8] = if times.is_number() { b"" } else { b"\"" };
    out.extend_from_slice(quote);
    times.append(time_us, out);
    out.extend_from_slice(quote);
}

fn append_json_cell(cell: Cell<'_>, out: &mut Vec<u8>) {
    match cell {
        Cell::Null => out.extend_from_slice(b"null"),
        Cell::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Cell::Int64(value) => append_integer(value.unsigned_abs(), value < 0, out),
        Cell::UInt64(value) => append_integer(value, false, out),
        Cell::Float64(value) => match not_finite_name(value) {
            Some(name) => append_json_string(name, out),
            None => append_json_float(value, out),
        },
        Cell::Float32(value) => match not_finite_name(f64::from(value)) {
            Some(name) => append_json_string(name, out),
            None => append_display(out, format_args!("{value:?}")),
        },
        Cell::Decimal(digits, scale) => append_scaled(digits, scale, out),
        Cell::Text(text) => append_json_string(text, out),
        Cell::Date(days) => {
            out.push(b'"');
            append_date(days, &TimeFormat::default(), out);
            out.push(b'"');
        }
        Cell::Time(of_day_ns) => {
            out.push(b'"');
            append_time_of_day(of_day_ns, out);
            out.push(b'"');
        }
        Cell::Timestamp(time_us) => append_json_timestamp(time_us, out),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray};
    use arrow::datatypes::Field;

    use super::*;

    fn written(columns: &[(&str, ArrayRef)], nested: bool) -> Result<String, String> {
        let fields = columns.iter().map(|(name, column)| {
            let field = Field::new(*name, column.data_type().clone(), true);
            if *name == "doc" { rivulet_dataflow::marked_as_json(field) } else { field }
        });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let columns = columns.iter().map(|(_, column)| column.clone()).collect();
        let rows = RecordBatch::try_new(schema.clone(), columns).unwrap();
        let times = Times::default();
        let mut encoder = match nested {
            true => JsonEncoder::nested(&schema, &times)?,
            false => JsonEncoder::new(&schema, &times),
        };
        let mut out = EncodedRows::default();
        encoder.encode(&Batch::new(vec![0].into(), vec![0].into(), vec![0].into(), rows), &mut out);
        Ok(String::from_utf8(out.row(0).to_vec()).unwrap())
    }

    #[test]
    fn names_with_dots_become_objects_where_asked() {
        let number = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value])) };
        let columns = [
            ("n", number(1)),
            ("a.b", number(2)),
            ("m", number(3)),
            ("a.c.d", number(4)),
            ("a.c.e", number(5)),
            ("a.f", number(6)),
        ];
        assert_eq!(written(&columns, false).unwrap(), r#"{"n":1,"a.b":2,"m":3,"a.c.d":4,"a.c.e":5,"a.f":6}"#);
        assert_eq!(written(&columns, true).unwrap(), r#"{"n":1,"a":{"b":2,"c":{"d":4,"e":5},"f":6},"m":3}"#);
        assert_eq!(written(&[("x.y", number(1)), ("z", number(2))], true).unwrap(), r#"{"x":{"y":1},"z":2}"#);
        assert_eq!(written(&[("z", number(2)), ("x.y", number(1))], true).unwrap(), r#"{"z":2,"x":{"y":1}}"#);
        for twice in [["a", "a.b"], ["a.b.c", "a.b"]] {
            let columns = twice.map(|name| (name, number(0)));
            assert!(written(&columns, true).is_err(), "{twice:?}");
        }
    }

    #[test]
    fn a_float_that_is_not_finite_is_null_in_objects_that_are_read_as_rows() {
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, 1.5, f64::NEG_INFINITY]));
        let small: ArrayRef = Arc::new(Float32Array::from(vec![0.5, f32::INFINITY, f32::NAN]));
        let rows = RecordBatch::try_from_iter([("a", floats), ("b", small)]).unwrap();
        let mut out = EncodedRows::default();
        let zeros = || vec![0; 3].into();
        readable_encoder(&rows.schema()).encode(&Batch::new(vec![0; 3].into(), zeros(), zeros(), rows), &mut out);
        let objects: Vec<&[u8]> = out.iter().collect();
        assert_eq!(objects, [&br#"{"a":null,"b":0.5}"#[..], br#"{"a":1.5,"b":null}"#, br#"{"a":null,"b":null}"#]);
    }

    #[test]
    fn json_stands_as_it_is() {
        let text: ArrayRef = Arc::new(StringArray::from(vec![r#"{"a":[1,"x"]}"#]));
        let columns = [("doc", text.clone()), ("text", text)];
        assert_eq!(written(&columns, false).unwrap(), r#"{"doc":{"a":[1,"x"]},"text":"{\"a\":[1,\"x\"]}"}"#);
    }
}
