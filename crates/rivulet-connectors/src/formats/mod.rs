//! Payload formats: bytes to rows and rows to bytes, driven by the declared columns.
//!
//! A format is named in the statement that declares an input or output; from then on everything is fixed by the
//! format and the columns ([`Format::decoder`], [`Format::encoder`]). Columns are declared with one of the types
//! `Boolean`, `Int64`, `Float64`, `Utf8` and `Timestamp(Microsecond, None)`, or with one of those that are checked
//! beyond their form ([`exact`]); rows have them as [`rivulet_dataflow::carried`] says.
//!
//! What must hold: bytes from outside never cause a panic; an event that does not fit is refused with a reason that
//! says field, place, what was expected and what was found, and leaves the rows of all other events as they are; no
//! event vanishes (it gives at least one row or one refusal); nothing is allocated for a single event or row.
//!
//! ```
//! use std::sync::Arc;
//! use arrow::datatypes::{DataType, Field, Schema};
//! use rivulet_connectors::formats::Format;
//! use rivulet_dataflow::{Events, Reason, Refusals};
//!
//! let columns = Arc::new(Schema::new(vec![Field::new("value", DataType::Float64, true)]));
//! let mut decoder = Format::Json.decoder(columns, None)?;
//! let mut events = Events::default();
//! events.push(0, 1_000, br#"{"value": 21.5}"#);
//! events.push(1, 1_001, br#"{"value": "warm"}"#);
//! let mut refusals = Refusals::new(10);
//! let batch = decoder.decode(&events, &mut refusals);
//! assert_eq!((batch.rows(), refusals.counted(Reason::Decode)), (1, 1));
//! assert!(refusals.records()[0].detail.starts_with("field 'value' at byte 10: expected a number, found \"warm\""));
//! # Ok::<(), rivulet_connectors::formats::FormatError>(())
//! ```

mod json;
mod debezium;
mod senml;
mod csv;
mod csv_header;
mod separators;
mod text;
mod raw;
mod avro;
mod protobuf;
mod decode;
mod several;
mod row_format;
mod encode;
mod rows;
mod texts;
mod exact;
mod columnar;
mod array;
mod nested;
mod tape;
mod parts;
pub(crate) mod topic;
mod cells;
mod bare;
mod binary;
mod number;
pub(crate) mod timestamp;
mod times;
mod error;
mod fault;
mod describe;
mod table;

use std::fmt;

use arrow::datatypes::{DataType, Field, SchemaRef, TimeUnit};
use rivulet_dataflow::{Batch, Decoder};

pub(crate) use array::{texts_as_nested, type_of};
pub use avro::AvroFormat;
pub(crate) use avro::{BlockDecoder, ContainerReader, append_block, append_header};
pub(crate) use columnar::{as_json, as_parts, type_of_part, unsuited};
pub(crate) use csv_header::{csv_fields, csv_header};
pub use encode::{EncodedRows, Encoder};
pub use error::FormatError;
pub use json::json_escape;
pub(crate) use json::{object_encoder, readable_encoder};
pub(crate) use parts::Part;
pub use protobuf::ProtobufFormat;
pub use raw::RawEncoding;
pub use row_format::RowFormat;
pub use several::{InputFormat, several_inputs};
pub use table::{TableFault, decode_table, decode_table_in_part};
pub use times::Times;

use decode::{PayloadDecoder, PayloadParser};
use number::Number;
use rows::Rows;

/// How payloads are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One JSON object a row, or an array of objects for several rows; a column named `a.b` is the field `b` of the
    /// object in field `a`.
    Json,
    /// The same where a column named `a.b` is also written as the field `b` of an object `a`.
    NestedJson,
    /// SenML in JSON (RFC 8428), a row for each record, columns among `name`, `unit`, `value`, `text`, `flag`, `time`.
    SenMl,
    /// SenML in JSON, one row for each pack, columns by record name; the event time column is the pack's time.
    SenMlPivot,
    /// Lines of fields in column order (RFC 4180), no header.
    Csv {
        /// What separates fields: an ASCII character other than a quote or a line break.
        delimiter: u8,
    },
    /// One bare value: a number, a boolean or text.
    Text,
    /// The payload as it is, in one text column.
    Raw(RawEncoding),
}

/// What columns of formats may be.
const DECLARE_HINT: &str =
    "declare it TEXT, BIGINT, INT, SMALLINT, DOUBLE, REAL, DECIMAL, BOOLEAN, TIMESTAMP, DATE or TIME";

/// How many columns a format reads or writes; column numbers are held in 16 bits with room to spare.
const COLUMNS_MAX: usize = 4096;

impl Format {
    /// The names of all formats, as [`Format::parse`] takes them.
    pub const NAMES: [&'static str; 6] = ["JSON", "SENML", "SENML_PIVOT", "CSV", "TEXT", "RAW"];

    /// The format called `name` (upper or lower case, `-` like `_`), with its options as pairs of key and value.
    ///
    /// `JSON` has the option `nested`, `true` or `false`: whether rows are written with objects in them.
    /// `CSV` has the option `delimiter`, one character or `tab`, and `RAW` the option `encoding`. JSON, CSV and TEXT
    /// have the options of [`Times`].
    ///
    /// # Errors
    /// There is no such format or option, or the option cannot have this value.
    pub fn parse<'o>(
        name: &str,
        options: impl IntoIterator<Item = (&'o str, &'o str)>,
    ) -> Result<(Self, Times), FormatError> {
        let mut format = match canonical_name(name).as_str() {
            "JSON" => Self::Json,
            "SENML" => Self::SenMl,
            "SENML_PIVOT" => Self::SenMlPivot,
            "CSV" => Self::Csv { delimiter: b',' },
            "TEXT" => Self::Text,
            "RAW" => Self::Raw(RawEncoding::default()),
            _ => return Err(FormatError::UnknownFormat { name: name.into(), names: &Self::NAMES }),
        };
        let mut times = Times::default();
        for (key, value) in options {
            let name = format.name();
            match &mut format {
                Self::Json | Self::NestedJson | Self::Csv { .. } | Self::Text if times.take(name, key, value)? => {}
                Self::Json | Self::NestedJson if key.eq_ignore_ascii_case("nested") => {
                    format = match value.to_ascii_lowercase().as_str() {
                        "true" => Self::NestedJson,
                        "false" => Self::Json,
                        _ => {
                            let hint = "it is true or false: true writes a column \"radio.rssi\" as \
                                        {\"radio\": {\"rssi\": ...}}";
                            return Err(FormatError::setting(name, format!("has 'nested' '{value}'"), hint));
                        }
                    };
                }
                Self::Csv { delimiter } if key.eq_ignore_ascii_case("delimiter") => {
                    *delimiter = parse_delimiter(value)?;
                }
                Self::Raw(encoding) if key.eq_ignore_ascii_case("encoding") => *encoding = RawEncoding::parse(value)?,
                _ => {
                    return Err(FormatError::UnknownOption {
                        format: name,
                        option: key.into(),
                        options: format.options(),
                    });
                }
            }
        }
        Ok((format, times))
    }

    /// The format's name, one of [`Format::NAMES`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Json | Self::NestedJson => "JSON",
            Self::SenMl => "SENML",
            Self::SenMlPivot => "SENML_PIVOT",
            Self::Csv { .. } => "CSV",
            Self::Text => "TEXT",
            Self::Raw(_) => "RAW",
        }
    }

    /// The keys of the format's options.
    pub fn options(&self) -> &'static [&'static str] {
        match self {
            Self::Csv { .. } => &["delimiter", "timestamp"],
            Self::Json | Self::NestedJson => &["timestamp", "nested"],
            Self::Text => &["timestamp"],
            Self::Raw(_) => &["encoding"],
            Self::SenMl | Self::SenMlPivot => &[],
        }
    }

    /// A decoder into rows of `schema`, whose column `event_time_column` is never null.
    ///
    /// Fails if the columns do not suit the format.
    pub fn decoder(
        &self,
        schema: SchemaRef,
        event_time_column: Option<usize>,
    ) -> Result<Box<dyn Decoder>, FormatError> {
        self.check_input(&schema, event_time_column)?;
        self.decoder_into(Rows::new(schema, event_time_column), event_time_column)
    }

    /// The same into these rows, of some of the columns of an input, perhaps none, that has been checked as a whole.
    fn decoder_into(&self, rows: Rows, event_time_column: Option<usize>) -> Result<Box<dyn Decoder>, FormatError> {
        Ok(match self.parser(rows.schema(), event_time_column)? {
            Parser::Json(parser) => boxed(parser, rows),
            Parser::SenMl(parser) => boxed(parser, rows),
            Parser::SenMlPivot(parser) => boxed(parser, rows),
            Parser::Csv(parser) => boxed(parser, rows),
            Parser::Text(parser) => boxed(parser, rows),
            Parser::Raw(parser) => boxed(parser, rows),
        })
    }

    /// The parser of an input that has been checked.
    fn parser(&self, schema: &SchemaRef, event_time_column: Option<usize>) -> Result<Parser, FormatError> {
        let refused = |index: usize, hint: String| self.refused(schema.field(index), hint);
        Ok(match self {
            Self::Json | Self::NestedJson => Parser::Json(
                json::JsonParser::new(schema)
                    .map_err(|index| refused(index, "give it a name with fewer dots".into()))?,
            ),
            Self::SenMl => Parser::SenMl(senml::RecordParser::new(schema).map_err(|index| {
                let columns = senml::COLUMNS;
                refused(index, format!("use columns among {columns}, or FORMAT SENML_PIVOT for columns by record name"))
            })?),
            Self::SenMlPivot => Parser::SenMlPivot(senml::PivotParser::new(schema, event_time_column)),
            Self::Csv { delimiter } => {
                Parser::Csv(csv::CsvParser::new(*delimiter, (0..schema.fields().len()).map(Some).collect()))
            }
            Self::Text => Parser::Text(text::TextParser),
            Self::Raw(encoding) => Parser::Raw(raw::RawParser::new(*encoding)),
        })
    }

    fn check_input(&self, schema: &SchemaRef, event_time_column: Option<usize>) -> Result<(), FormatError> {
        self.check_columns(schema)?;
        for field in schema.fields() {
            if !rows::is_supported(field.data_type()) {
                return Err(self.refused(field, DECLARE_HINT));
            }
        }
        let Some(field) = event_time_column.map(|index| schema.field(index)) else { return Ok(()) };
        let hint = match self {
            Self::Text | Self::Raw(_) => "declare no EVENT TIME column: windows then go by the time of arrival",
            _ if *field.data_type() != DataType::Timestamp(TimeUnit::Microsecond, None) => {
                "declare the EVENT TIME column TIMESTAMP"
            }
            _ => return Ok(()),
        };
        Err(FormatError::EventTime { format: self.name(), column: field.name().clone(), hint })
    }

    fn check_output(&self, schema: &SchemaRef, times: &Times) -> Result<(), FormatError> {
        self.check_columns(schema)?;
        times.check(self.name(), schema)?;
        match schema.fields().iter().find(|field| cells::written_as(field.data_type()).is_none()) {
            None => Ok(()),
            Some(field) => Err(self.refused(field, "cast it to TEXT, BIGINT, DOUBLE, BOOLEAN or TIMESTAMP")),
        }
    }

    /// The error for a column that the format cannot have.
    fn refused(&self, field: &Field, hint: impl Into<String>) -> FormatError {
        let (column, data_type) = (field.name().clone(), field.data_type().clone());
        FormatError::Column { format: self.name(), column, data_type, hint: hint.into() }
    }

    fn check_columns(&self, schema: &SchemaRef) -> Result<(), FormatError> {
        let count = schema.fields().len();
        let hint = match self {
            Self::Text if count != 1 => "FORMAT TEXT has exactly one column; use JSON or CSV for more",
            Self::Raw(_) if count != 1 => "FORMAT RAW has exactly one column, TEXT",
            Self::Raw(_) if *schema.field(0).data_type() != DataType::Utf8 => {
                return Err(self.refused(schema.field(0), "FORMAT RAW has exactly one column, TEXT"));
            }
            _ if count == 0 => "declare at least one column",
            _ if count > COLUMNS_MAX => "declare at most 4096 columns",
            _ => return Ok(()),
        };
        Err(FormatError::Columns { format: self.name(), count, hint })
    }

    /// An encoder of rows of `schema`, one payload for each row.
    ///
    /// Fails if the columns do not suit the format. Types beyond those of inputs are written as the nearest of these.
    pub fn encoder(&self, schema: SchemaRef) -> Result<Box<dyn Encoder>, FormatError> {
        self.encoder_of(schema, &Times::default())
    }

    /// The same with times that are written otherwise.
    ///
    /// # Errors
    /// The columns do not suit the format.
    pub fn encoder_of(&self, schema: SchemaRef, times: &Times) -> Result<Box<dyn Encoder>, FormatError> {
        self.check_output(&schema, times)?;
        Ok(match self {
            Self::Json => Box::new(json::JsonEncoder::new(&schema, times)),
            Self::NestedJson => Box::new(json::JsonEncoder::nested(&schema, times).map_err(|column| {
                let problem = format!("cannot write the column '{column}' as an object and as a value");
                FormatError::setting(self.name(), problem, "name it otherwise with AS, or leave out nested")
            })?),
            Self::SenMl | Self::SenMlPivot => Box::new(senml::SenMlEncoder::new(&schema)),
            Self::Csv { delimiter } => Box::new(csv::CsvEncoder::new(*delimiter, times.of_fields(&schema))),
            Self::Text => Box::new(text::TextEncoder::new(times.of_fields(&schema).remove(0))),
            Self::Raw(encoding) => Box::new(raw::RawEncoder::new(*encoding)),
        })
    }
}

/// The parser of each format.
enum Parser {
    Json(json::JsonParser),
    SenMl(senml::RecordParser),
    SenMlPivot(senml::PivotParser),
    Csv(csv::CsvParser),
    Text(text::TextParser),
    Raw(raw::RawParser),
}

fn boxed(parser: impl PayloadParser + 'static, rows: Rows) -> Box<dyn Decoder> {
    Box::new(PayloadDecoder::new(parser, rows))
}

/// The name of a format as it is compared: upper case, `-` like `_`.
pub(crate) fn canonical_name(name: &str) -> String {
    name.trim().to_ascii_uppercase().replace('-', "_")
}

/// The time that a text names, in ISO 8601 or in milliseconds since 1970, as microseconds since the epoch.
pub fn parse_time(text: &str) -> Option<i64> {
    let text = text.trim().as_bytes();
    match Number::of(text) {
        Ok(number) => timestamp::from_epoch_ms(number, text).ok(),
        Err(_) => timestamp::parse_iso(text).ok(),
    }
}

/// Whether a text is ISO 8601.
pub(crate) fn parse_iso_time(text: &str) -> bool {
    timestamp::parse_iso(text.as_bytes()).is_ok()
}

/// Whether the number that a bare text is is whole and fits BIGINT; `None` if it is none, or has digits that a number
/// has not, as codes do.
pub(crate) fn is_whole_number(text: &str) -> Option<bool> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_code = digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
    Number::of(text.as_bytes()).ok().filter(|_| !is_code).map(|_| text.parse::<i64>().is_ok())
}

fn parse_delimiter(value: &str) -> Result<u8, FormatError> {
    match value.as_bytes() {
        &[byte] if byte.is_ascii() && (byte == b'\t' || !byte.is_ascii_control()) && byte != b'"' => Ok(byte),
        b"\\t" => Ok(b'\t'),
        _ if value.eq_ignore_ascii_case("tab") => Ok(b'\t'),
        _ => Err(FormatError::Delimiter { value: value.into() }),
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Row `row` of `batch` as one JSON object, in the form [`Format::Json`] writes; for dead letters, previews and logs.
///
/// # Panics
/// If there is no such row.
pub fn encode_row_as_json(batch: &Batch, row: usize) -> String {
    json::row_to_json(batch, row)
}
