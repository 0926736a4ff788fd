//! Infers the format and the columns of a file from a sample, as a source would declare them.
//!
//! What must hold: a bounded part of the file is read, and that part fits the declaration, except values that are
//! reported as left out.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{cannot_open, ending_of, parquet, paths, unreadable};
use crate::connector::ConnectorError;
use crate::files::Files;
use crate::formats::{Format, Times, decode_table_in_part, is_whole_number, parse_iso_time};

/// The number of bytes of a file that are looked at.
const SAMPLE_BYTES: u64 = 1 << 20;

/// The most columns that are found.
const COLUMNS_MAX: usize = 1000;

/// The greatest depth to which objects are searched.
const DEPTH_MAX: usize = 16;

/// Whole numbers in this range, the years 2000 to 2100, may be times in milliseconds: so JSON has those of Rivulet.
const TIMES_MS: std::ops::Range<i64> = 946_684_800_000..4_102_444_800_000;

/// Names of columns whose numbers are times if they may be, and endings of such names.
const NAMES_OF_TIMES: [&str; 7] = ["ts", "time", "timestamp", "datetime", "date_time", "window_start", "window_end"];
const ENDINGS_OF_TIMES: [&str; 4] = ["_ts", "_time", "_timestamp", "_at"];

/// A file as a source would declare it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferredFile {
    /// The format with its options, as written behind FORMAT.
    pub format: String,
    /// The columns, in the order of the file.
    pub columns: Vec<(String, DataType)>,
    /// The names that become no column, and why.
    pub left_out: Vec<(String, &'static str)>,
    /// The columns of whole numbers that may be times in milliseconds.
    pub perhaps_times: Vec<String>,
}

/// Infers the file, or the first of the files, that `address` means: a path, a folder, or a pattern.
///
/// # Errors
/// There is no such file, it may not be read, or its columns cannot be told from its extension or content.
pub fn infer_file(address: &str, files: &Files) -> Result<InferredFile, ConnectorError> {
    let found = paths::expand(address, files).map_err(|error| unreadable(address, &error))?;
    let Some(path) = found.files.first() else {
        return Err(cannot_open(address, "there is no such file".into(), "name a file, or a folder with files in it"));
    };
    let failed = |problem: String| {
        let hint = "declare its columns: CREATE SOURCE name (column TYPE, ...) FROM 'file:...' FORMAT ...";
        cannot_open(address, problem, hint)
    };
    match ending_of(&path.to_string_lossy()).as_deref() {
        Some("json" | "jsonl" | "ndjson") => of_json(&sample(path, files).map_err(failed)?).map_err(failed),
        Some("csv") => of_csv(&sample(path, files).map_err(failed)?).map_err(failed),
        Some("parquet") => {
            let schema = parquet::declared_columns(path, files).map_err(failed)?;
            let columns = schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone()));
            Ok(InferredFile { format: "PARQUET".into(), columns: columns.collect(), ..InferredFile::default() })
        }
        _ => Err(failed("its ending is none of .jsonl, .ndjson, .json, .csv and .parquet".into())),
    }
}

/// The whole lines at the beginning of a file, as many as are looked at.
fn sample(path: &Path, files: &Files) -> Result<Vec<u8>, String> {
    let file = files.open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(SAMPLE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > SAMPLE_BYTES {
        match bytes.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => bytes.truncate(end + 1),
            None => return Err("its first line has more than 1 MiB".into()),
        }
    }
    let start = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    Ok(bytes.split_off(start))
}

/// The common type of the values of a column so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// Only nulls.
    Nothing,
    Boolean,
    Integer,
    /// Whole numbers that may be times in milliseconds.
    Millis,
    Number,
    Date,
    Time,
    Text,
    /// No type fits all values, for this reason.
    Other(&'static str),
}

/// Why a column with values of several types is left out.
const MIXED: &str = "its values are of several types";

impl Seen {
    /// The common type of both; `others` if there is none.
    fn with(self, other: Self, others: Self) -> Self {
        use Seen::{Date, Integer, Millis, Nothing, Number, Text, Time};
        match (self, other) {
            (one, other) if one == other => one,
            (Nothing, one) | (one, Nothing) => one,
            (Integer | Millis, Integer | Millis) => Integer,
            (Integer | Millis | Number, Integer | Millis | Number) => Number,
            (Date | Time, Date | Time) => Time,
            (Date | Time | Text, Date | Time | Text) => Text,
            _ => others,
        }
    }

    fn of_integer(value: i64) -> Self {
        if TIMES_MS.contains(&value) { Self::Millis } else { Self::Integer }
    }

    /// The type of a text, which may be more specific than text.
    fn of_text(text: &str) -> Self {
        const DATE_CHARACTERS: usize = "2026-11-21".len();
        match text.len() {
            ..DATE_CHARACTERS => Self::Text,
            _ if !parse_iso_time(text) => Self::Text,
            DATE_CHARACTERS => Self::Date,
            _ => Self::Time,
        }
    }

    fn data_type(self) -> Result<DataType, &'static str> {
        Ok(match self {
            Self::Boolean => DataType::Boolean,
            Self::Integer | Self::Millis => DataType::Int64,
            Self::Number => DataType::Float64,
            Self::Date => DataType::Date32,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, None),
            Self::Text => DataType::Utf8,
            Self::Nothing => return Err("nothing but null was found"),
            Self::Other(why) => return Err(why),
        })
    }
}

/// The columns found, in their order.
#[derive(Default)]
struct Columns(Vec<(String, Seen)>);

impl Columns {
    fn add(&mut self, name: &str, seen: Seen) -> Result<(), String> {
        let is_full = self.0.len() == COLUMNS_MAX;
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = known.with(seen, Seen::Other(MIXED)),
            None if is_full => return Err(format!("it has more than {COLUMNS_MAX} columns")),
            None => self.0.push((name.to_owned(), seen)),
        }
        Ok(())
    }

    fn into_file(self, format: String) -> Result<InferredFile, String> {
        let (mut columns, mut left_out, mut perhaps_times) = (Vec::new(), Vec::new(), Vec::new());
        let names: Vec<String> = self.0.iter().map(|(name, _)| name.to_lowercase()).collect();
        for (name, seen) in self.0 {
            // Names are found in any case, so the name is used that needs no quotes.
            let lower = name.to_lowercase();
            let is_only = names.iter().filter(|other| **other == lower).count() == 1;
            let seen = if seen == Seen::Millis && is_name_of_time(&lower) { Seen::Time } else { seen };
            match seen.data_type() {
                _ if !is_only => left_out.push((name, "another column has its name in another case")),
                _ if is_reserved(&lower) => left_out.push((name, "no column may have its name")),
                Ok(data_type) => {
                    perhaps_times.extend((seen == Seen::Millis).then(|| lower.clone()));
                    columns.push((lower, data_type));
                }
                Err(why) => left_out.push((name, why)),
            }
        }
        match columns.is_empty() {
            true => Err("no column was found in it".into()),
            false => Ok(InferredFile { format, columns, left_out, perhaps_times }),
        }
    }
}

/// Whether numbers in a column of this name are times if they may be.
fn is_name_of_time(name: &str) -> bool {
    let own = name.rsplit('.').next().unwrap_or(name);
    NAMES_OF_TIMES.contains(&own) || ENDINGS_OF_TIMES.iter().any(|ending| own.ends_with(ending))
}

/// Whether a source cannot declare a column of this name.
fn is_reserved(name: &str) -> bool {
    const CHARACTERS_MAX: usize = 128;
    name.is_empty()
        || name.starts_with('$')
        || name.chars().count() > CHARACTERS_MAX
        || name.chars().any(char::is_control)
}

/// The columns of lines with one object each.
fn of_json(sample: &[u8]) -> Result<InferredFile, String> {
    let mut columns = Columns::default();
    let lines = sample.split(|&byte| byte == b'\n').enumerate();
    for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice(line) {
            Ok(Json::Object(fields)) => add_object(&mut columns, "", &fields, 0)?,
            _ => return Err(format!("line {} is no JSON object; one object a line is expected", number + 1)),
        }
    }
    columns.into_file("JSON".into())
}

fn add_object(columns: &mut Columns, prefix: &str, fields: &[(String, Json)], depth: usize) -> Result<(), String> {
    for (key, value) in fields {
        let name = format!("{prefix}{key}");
        let seen = match value {
            _ if key.contains('.') => Seen::Other("there is a point in its name"),
            Json::Object(fields) if depth < DEPTH_MAX => {
                add_object(columns, &format!("{name}."), fields, depth + 1)?;
                continue;
            }
            Json::Object(_) => Seen::Other("it is nested too deep"),
            Json::Array => Seen::Other("it is an array"),
            Json::Value(seen) => *seen,
        };
        columns.add(&name, seen)?;
    }
    Ok(())
}

/// A value of JSON, whose objects keep the order of their fields.
enum Json {
    Object(Vec<(String, Json)>),
    Array,
    Value(Seen),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Value(Seen::Nothing))
    }

    fn visit_bool<E>(self, _value: bool) -> Result<Json, E> {
        Ok(Json::Value(Seen::Boolean))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Value(Seen::of_integer(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        match i64::try_from(value) {
            Ok(value) => Ok(Json::Value(Seen::of_integer(value))),
            Err(_) => Ok(Json::Value(Seen::Number)),
        }
    }

    fn visit_f64<E>(self, _value: f64) -> Result<Json, E> {
        Ok(Json::Value(Seen::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Value(Seen::of_text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        while items.next_element::<Json>()?.is_some() {}
        Ok(Json::Array)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some(field) = fields.next_entry()? {
            all.push(field);
        }
        Ok(Json::Object(all))
    }
}

/// The columns of CSV lines below a header.
fn of_csv(sample: &[u8]) -> Result<InferredFile, String> {
    let header = sample.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let count = |delimiter: u8| {
        let mut is_quoted = false;
        let is_it = |byte: &&u8| {
            is_quoted ^= **byte == b'"';
            **byte == delimiter && !is_quoted
        };
        header.iter().filter(is_it).count()
    };
    let (mut delimiter, mut separators) = (b',', count(b','));
    for other in [b';', b'\t', b'|'] {
        if count(other) > separators {
            (delimiter, separators) = (other, count(other));
        }
    }
    let fields = separators + 1;
    if fields > COLUMNS_MAX {
        return Err(format!("it has more than {COLUMNS_MAX} columns"));
    }
    let texts: Vec<Field> = (0..fields).map(|field| Field::new(format!("c{field}"), DataType::Utf8, true)).collect();
    let format = Format::Csv { delimiter };
    // Broken lines are refused when the file is read, and say nothing about the columns.
    let (rows, _) = decode_table_in_part(format, &Times::default(), false, Arc::new(Schema::new(texts)), sample)
        .map_err(|fault| fault.to_string())?;
    let mut columns = Columns::default();
    for column in rows.columns() {
        let values = column.as_string::<i32>();
        let name = if values.is_empty() || values.is_null(0) { "" } else { values.value(0).trim() };
        if is_whole_number(name).is_some() || columns.0.iter().any(|(known, _)| known == name) {
            return Err(format!("its first line is no header: '{name}' cannot be the name of a column"));
        }
        let seen = values.iter().skip(1).flatten().fold(Seen::Nothing, |seen, text| {
            let other = match is_whole_number(text) {
                Some(true) => Seen::Integer,
                Some(false) => Seen::Number,
                None if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") => Seen::Boolean,
                None => Seen::of_text(text),
            };
            seen.with(other, Seen::Text)
        });
        // An empty column may be of any type, and text fits all.
        columns.add(name, if seen == Seen::Nothing { Seen::Text } else { seen })?;
    }
    columns.into_file(match delimiter {
        b',' => "CSV (header => true)".into(),
        b'\t' => "CSV (header => true, delimiter => 'tab')".into(),
        other => format!("CSV (header => true, delimiter => '{}')", char::from(other)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infer(name: &str, content: &str) -> Result<InferredFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        infer_file(path.to_str().unwrap(), &Files::of_user()).map_err(|error| error.to_string())
    }

    fn columns(file: &InferredFile) -> String {
        let columns = file.columns.iter().map(|(name, data_type)| format!("{name} {data_type}"));
        columns.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn objects_become_columns() {
        let file = infer(
            "a.jsonl",
            r#"{"ts": "2026-11-21T08:00:00Z", "Day": "2026-11-21", "n": 1, "x": 1, "ok": true, "radio": {"rssi": -70}}
{"ts": "2026-11-22", "n": 9223372036854775807, "x": 1.5, "ok": null, "name": "a", "radio": {"snr": 2.5, "at": {}}}

{"tags": [1], "mixed": 1, "a.b": 1, "never": null, "N": 1, "arrival_time": 5, "$x": 5}
{"mixed": "one"}
"#,
        )
        .unwrap();
        assert_eq!(
            columns(&file),
            "ts Timestamp(µs), day Date32, x Float64, ok Boolean, radio.rssi Int64, name Utf8, radio.snr Float64, \
             arrival_time Int64"
        );
        let left_out: Vec<&str> = file.left_out.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(left_out, ["n", "tags", "mixed", "a.b", "never", "N", "$x"]);
        assert_eq!(file.format, "JSON");
    }

    #[test]
    fn numbers_that_are_times_are_told_by_their_names() {
        let file = infer(
            "a.jsonl",
            r#"{"window_end": 1763712000000, "sent_at": 1763712000000, "ts": 1763712000000, "sum": 1763712000000, "id": 7}
{"window_end": 1763712060000, "sent_at": null, "ts": 12, "sum": 1763712060000, "id": 1763712000000}
"#,
        )
        .unwrap();
        assert_eq!(columns(&file), "window_end Timestamp(µs), sent_at Timestamp(µs), ts Int64, sum Int64, id Int64");
        assert_eq!(file.perhaps_times, ["sum"]);
    }

    #[test]
    fn fields_become_columns() {
        let file = infer(
            "a.csv",
            "Time;room;\"n\";zip;x;nothing;ok\n2026-11-21 08:00;\"a;b\";1;00123;.5;;TRUE\n;;-2;12345;7;;false\n\
             broken\n",
        )
        .unwrap();
        assert_eq!(
            columns(&file),
            "time Timestamp(µs), room Utf8, n Int64, zip Utf8, x Float64, nothing Utf8, ok Boolean"
        );
        assert_eq!(file.format, "CSV (header => true, delimiter => ';')");
        assert_eq!(infer("b.csv", "a\tb\n1\t2\n").unwrap().format, "CSV (header => true, delimiter => 'tab')");
    }

    #[test]
    fn what_does_not_tell_its_columns_is_refused_with_what_to_do() {
        for (name, content, expected) in [
            ("a.txt", "x", "its ending is none of"),
            ("a.json", "[\n{\"a\": 1}\n]", "line 1 is no JSON object"),
            ("a.jsonl", "{\"a\": 1}\n5\n", "line 2 is no JSON object"),
            ("a.jsonl", "{}\n", "no column was found in it"),
            ("a.csv", "1,2\n3,4\n", "its first line is no header"),
            ("a.csv", "a,a\n3,4\n", "its first line is no header"),
            ("a.parquet", "no parquet", "Parquet"),
        ] {
            let error = infer(name, content).unwrap_err();
            assert!(error.contains(expected) && error.contains("hint: declare its columns"), "{error}");
        }
        let error = infer_file("no/such/file.csv", &Files::of_user()).unwrap_err().to_string();
        assert!(error.contains("no/such/file.csv"), "{error}");
        let denied = infer_file("/etc/hostname.csv", &Files::default()).unwrap_err().to_string();
        assert!(denied.contains("hint"), "{denied}");
        let long = format!("{{\"a\": \"{}\"}}\n", "x".repeat(2 << 20));
        assert!(infer("a.jsonl", &long).unwrap_err().contains("more than 1 MiB"));
        // A bounded part is looked at, and the line that is cut off at its end is ignored.
        let many = format!("{}{{\"b\": 1}}\n", "{\"a\": 1}\n".repeat(200_000));
        assert_eq!(columns(&infer("a.jsonl", &many).unwrap()), "a Int64");
    }
}
