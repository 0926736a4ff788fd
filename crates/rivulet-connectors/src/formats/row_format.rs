//! The formats of big queries: those of small ones, those that need a schema or a file of their own, and what only
//! files have, a header.
//!
//! Only some of the declared columns are read ([`RowFormat::decoder`]). What is not read is not checked either.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use rivulet_dataflow::{Batch, Decoder, Events, Refusals};

use super::debezium::{self, DebeziumEncoder, DebeziumParser};
use super::json::JsonEncoder;
use super::rows::{Rows, is_supported};
use super::{
    AvroFormat, COLUMNS_MAX, DECLARE_HINT, Encoder, Format, FormatError, ProtobufFormat, Times, boxed, canonical_name,
    csv,
};
use crate::files::Files;

/// The format of rows, with everything that it needs to know.
#[derive(Clone, Debug)]
pub enum RowFormat {
    /// A format that small queries have as well.
    Plain {
        /// Which one.
        format: Format,
        /// How times are written.
        times: Times,
        /// Whether names of columns come before the rows; only CSV has them, and only in files.
        has_header: bool,
    },
    /// Changes of rows in JSON, as Debezium writes them. Rows come and retract others.
    Debezium {
        /// How times are written.
        times: Times,
    },
    /// Apache Avro, one record a payload.
    Avro(AvroFormat),
    /// Protocol Buffers, one message a payload.
    Protobuf(ProtobufFormat),
    /// Apache Parquet, which is not a format of payloads but of whole files.
    Parquet,
}

impl RowFormat {
    /// The format called `name` (upper or lower case, `-` like `_`), with its options. A schema may be one of `files`.
    ///
    /// # Errors
    /// There is no such format or option, or the option cannot have this value.
    pub fn parse<'o>(
        name: &str,
        options: impl IntoIterator<Item = (&'o str, &'o str)>,
        files: &Files,
    ) -> Result<Self, FormatError> {
        let options = options.into_iter();
        match canonical_name(name).as_str() {
            "AVRO" => AvroFormat::parse(options, files).map(Self::Avro),
            "PROTOBUF" => ProtobufFormat::parse(options, files).map(Self::Protobuf),
            debezium::NAME => debezium_of(options),
            "PARQUET" => no_options("PARQUET", options).map(|()| Self::Parquet),
            _ => {
                let mut has_header = false;
                let mut rest = Vec::new();
                for (key, value) in options {
                    match key.eq_ignore_ascii_case("header") && canonical_name(name) == "CSV" {
                        true => has_header = switch("CSV", "header", value)?,
                        false => rest.push((key, value)),
                    }
                }
                let (format, times) = Format::parse(name, rest)?;
                Ok(Self::Plain { format, times, has_header })
            }
        }
    }

    /// The format's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Plain { format, .. } => format.name(),
            Self::Debezium { .. } => debezium::NAME,
            Self::Avro(_) => "AVRO",
            Self::Protobuf(_) => "PROTOBUF",
            Self::Parquet => "PARQUET",
        }
    }

    /// Whether names of columns stand before the rows.
    pub fn has_header(&self) -> bool {
        matches!(self, Self::Plain { has_header: true, .. })
    }

    /// Whether a payload never contains a line break, so that each payload can have a line of its own.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Plain { .. } | Self::Debezium { .. })
    }

    /// Whether a payload says itself whether its row came or was taken back.
    pub fn has_changes(&self) -> bool {
        matches!(self, Self::Debezium { .. })
    }

    /// A decoder of payloads into rows of those columns of `declared` that are `read` (ascending). The event time, one
    /// of the declared columns, is never null.
    ///
    /// # Errors
    /// The declared columns do not suit the format.
    pub fn decoder(
        &self,
        declared: &SchemaRef,
        read: &[usize],
        event_time_column: Option<usize>,
    ) -> Result<Box<dyn Decoder>, FormatError> {
        match self {
            Self::Plain { format, times, .. } => {
                format.check_input(declared, event_time_column)?;
                times.check(format.name(), declared)?;
                plain_decoder(*format, times, declared, read, event_time_column)
            }
            Self::Debezium { times } => {
                check_columns(self.name(), declared, event_time_column)?;
                times.check(self.name(), declared)?;
                let (schema, event_time) = projected(declared, read, event_time_column);
                let parser = DebeziumParser::new(&schema).map_err(|column| {
                    let problem = format!("cannot have the column '{}'", schema.field(column).name());
                    FormatError::setting(self.name(), problem, "give it a name with fewer dots")
                })?;
                Ok(boxed(parser, Rows::new(schema, event_time).with_times(times)))
            }
            Self::Avro(avro) => {
                check_columns(self.name(), declared, event_time_column)?;
                let parser = avro.parser(declared, read)?;
                let (schema, event_time) = projected(declared, read, event_time_column);
                Ok(boxed(parser, Rows::new(schema, event_time)))
            }
            Self::Protobuf(protobuf) => {
                check_columns(self.name(), declared, event_time_column)?;
                let parser = protobuf.parser(declared, read)?;
                let (schema, event_time) = projected(declared, read, event_time_column);
                Ok(boxed(parser, Rows::new(schema, event_time)))
            }
            Self::Parquet => Err(whole_files()),
        }
    }

    /// A decoder of CSV lines whose fields are the columns of `declared` at these places; a field without one is
    /// skipped. Columns are read as with [`RowFormat::decoder`].
    ///
    /// # Panics
    /// If the format is not CSV.
    pub(crate) fn csv_decoder(
        &self,
        declared: &SchemaRef,
        fields: &[Option<usize>],
        read: &[usize],
        event_time_column: Option<usize>,
    ) -> Result<Box<dyn Decoder>, FormatError> {
        let Self::Plain { format: format @ Format::Csv { delimiter }, times, .. } = self else {
            unreachable!("only CSV has fields in an order of their own")
        };
        format.check_input(declared, event_time_column)?;
        let place = |column: usize| read.binary_search(&column).ok();
        let places = fields.iter().map(|field| field.and_then(place)).collect();
        let (schema, event_time) = projected(declared, read, event_time_column);
        times.check(format.name(), declared)?;
        Ok(boxed(csv::CsvParser::new(*delimiter, places), Rows::new(schema, event_time).with_times(times)))
    }

    /// An encoder of rows of `schema`, one payload for each row.
    ///
    /// # Errors
    /// The columns do not suit the format.
    pub fn encoder(&self, schema: SchemaRef) -> Result<Box<dyn Encoder>, FormatError> {
        match self {
            Self::Plain { format, times, .. } => format.encoder_of(schema, times),
            Self::Debezium { times } => {
                Format::Json.check_output(&schema, times)?;
                Ok(Box::new(DebeziumEncoder::new(JsonEncoder::new(&schema, times))))
            }
            Self::Avro(avro) => avro.encoder(&schema),
            Self::Protobuf(protobuf) => protobuf.encoder(&schema),
            Self::Parquet => Err(whole_files()),
        }
    }
}

/// Checks the requirements on columns of all formats of single rows.
fn check_columns(format: &'static str, declared: &Schema, event_time_column: Option<usize>) -> Result<(), FormatError> {
    let wrong = |column: usize, hint: &str| {
        let field = declared.field(column);
        let problem = format!("cannot have the column '{}' of type {}", field.name(), field.data_type());
        FormatError::setting(format, problem, hint)
    };
    let fields = declared.fields();
    if let Some(column) = fields.iter().position(|field| !is_supported(field.data_type())) {
        return Err(wrong(column, DECLARE_HINT));
    }
    match event_time_column {
        Some(column) if !matches!(declared.field(column).data_type(), DataType::Timestamp(..)) => {
            Err(wrong(column, "declare the EVENT TIME column TIMESTAMP"))
        }
        _ if fields.len() > COLUMNS_MAX => {
            let problem = format!("does not go with {} columns", fields.len());
            Err(FormatError::setting(format, problem, format!("declare at most {COLUMNS_MAX} columns")))
        }
        _ => Ok(()),
    }
}

/// The format of changes, whose options are those of [`Times`].
fn debezium_of<'o>(options: impl Iterator<Item = (&'o str, &'o str)>) -> Result<RowFormat, FormatError> {
    let mut times = Times::default();
    for (option, value) in options {
        if !times.take(debezium::NAME, option, value)? {
            let problem = format!("has no option '{option}'");
            return Err(FormatError::setting(debezium::NAME, problem, "its option is timestamp"));
        }
    }
    Ok(RowFormat::Debezium { times })
}

/// Checks that the format has no options.
fn no_options<'o>(
    format: &'static str,
    mut options: impl Iterator<Item = (&'o str, &'o str)>,
) -> Result<(), FormatError> {
    match options.next() {
        None => Ok(()),
        Some((option, _)) => Err(FormatError::setting(format, format!("has no option '{option}'"), "it has none")),
    }
}

/// The value of a switch.
pub(crate) fn switch(format: &'static str, option: &str, value: &str) -> Result<bool, FormatError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => {
            let problem = format!("has an option '{option}' that cannot be '{value}'");
            Err(FormatError::setting(format, problem, "it is true or false"))
        }
    }
}

fn whole_files() -> FormatError {
    let problem = "is a format of whole files, not of single rows";
    FormatError::setting("PARQUET", problem, "use it with 'file:', or JSON or CSV here")
}

fn plain_decoder(
    format: Format,
    times: &Times,
    declared: &SchemaRef,
    read: &[usize],
    event_time_column: Option<usize>,
) -> Result<Box<dyn Decoder>, FormatError> {
    match format {
        // Fields and values are identified by their position, so all columns are decoded.
        Format::Csv { delimiter } => {
            let places = (0..declared.fields().len()).map(|column| read.binary_search(&column).ok()).collect();
            let (schema, event_time) = projected(declared, read, event_time_column);
            Ok(boxed(csv::CsvParser::new(delimiter, places), Rows::new(schema, event_time).with_times(times)))
        }
        Format::Text | Format::Raw(_) => {
            let rows = Rows::new(declared.clone(), event_time_column).with_times(times);
            Ok(some_of(format.decoder_into(rows, event_time_column)?, declared, read))
        }
        // A record counts as a row if it has one of the columns, so all columns stay.
        Format::SenMl | Format::SenMlPivot => {
            Ok(some_of(format.decoder(declared.clone(), event_time_column)?, declared, read))
        }
        Format::Json | Format::NestedJson => {
            let (schema, event_time) = projected(declared, read, event_time_column);
            format.decoder_into(Rows::new(schema, event_time).with_times(times), event_time)
        }
    }
}

/// The schema of the columns that are read, and the event time among them.
fn projected(declared: &SchemaRef, read: &[usize], event_time_column: Option<usize>) -> (SchemaRef, Option<usize>) {
    let schema = declared.project(read).expect("columns that are read are declared");
    let event_time = event_time_column.and_then(|column| read.binary_search(&column).ok());
    (Arc::new(schema), event_time)
}

/// A decoder that decodes all columns and gives some.
fn some_of(decoder: Box<dyn Decoder>, declared: &Schema, read: &[usize]) -> Box<dyn Decoder> {
    match read.len() == declared.fields().len() {
        true => decoder,
        false => Box::new(SomeColumns { decoder, read: read.to_vec() }),
    }
}

struct SomeColumns {
    decoder: Box<dyn Decoder>,
    read: Vec<usize>,
}

impl Decoder for SomeColumns {
    fn decode(&mut self, events: &Events, refusals: &mut Refusals) -> Batch {
        let batch = self.decoder.decode(events, refusals);
        let columns: RecordBatch = batch.columns.project(&self.read).expect("columns that are read are declared");
        batch.with_columns(columns)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{Field, Float64Type};

    use super::*;

    fn declared() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("name", DataType::Utf8, false),
            Field::new("count", DataType::Int64, true),
            Field::new("price", DataType::Float64, true),
        ]))
    }

    fn decode(format: &RowFormat, read: &[usize], payload: &str) -> RecordBatch {
        let mut events = Events::default();
        events.push(0, 0, payload.as_bytes());
        let mut decoder = format.decoder(&declared(), read, None).unwrap();
        let mut refusals = Refusals::new(1);
        let columns = decoder.decode(&events, &mut refusals).columns;
        assert!(refusals.is_empty(), "{:?}", refusals.records());
        columns
    }

    #[test]
    fn only_what_is_read_is_decoded() {
        let csv = RowFormat::parse("csv", [("delimiter", ";"), ("Header", "TRUE")], &Files::default()).unwrap();
        assert!(csv.has_header() && csv.is_text());
        let json = RowFormat::parse("JSON", [], &Files::default()).unwrap();
        for (format, payload) in
            [(&csv, "a;\"no\"\"t\na number\";1.5"), (&json, r#"{"price": 1.5, "count": "no", "name": "a"}"#)]
        {
            let batch = decode(format, &[0, 2], payload);
            assert_eq!(batch.schema().fields().len(), 2);
            assert_eq!(batch.column(0).as_string::<i32>().value(0), "a");
            assert_eq!(batch.column(1).as_primitive::<Float64Type>().value(0), 1.5);
            assert_eq!(decode(format, &[], payload).num_rows(), 1);
        }
    }

    #[test]
    fn fields_may_stand_in_another_order() {
        let csv = RowFormat::parse("CSV", [], &Files::default()).unwrap();
        let mut decoder = csv.csv_decoder(&declared(), &[Some(2), None, Some(0), Some(1)], &[0, 2], None).unwrap();
        let mut events = Events::default();
        events.push(0, 0, b"2.5,x,name,7");
        let batch = decoder.decode(&events, &mut Refusals::new(0));
        assert_eq!(batch.columns.column(0).as_string::<i32>().value(0), "name");
        assert_eq!(batch.columns.column(1).as_primitive::<Float64Type>().value(0), 2.5);
    }

    #[test]
    fn options_are_checked() {
        let error = |name: &str, option| RowFormat::parse(name, [option], &Files::default()).unwrap_err().to_string();
        assert!(error("CSV", ("header", "maybe")).contains("cannot be 'maybe'\nhint: it is true or false"));
        assert!(error("JSON", ("header", "true")).contains("no option 'header'"));
        assert!(error("PARQUET", ("x", "y")).contains("format PARQUET has no option 'x'"));
        let error = RowFormat::Parquet.encoder(declared()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("'file:'"), "{error}");
        let raw = RowFormat::parse("RAW", [], &Files::default()).unwrap();
        assert!(raw.decoder(&declared(), &[], None).map(|_| ()).unwrap_err().to_string().contains("3 columns"));
    }
}
