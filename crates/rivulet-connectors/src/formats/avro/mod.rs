//! AVRO (Apache Avro 1.12, binary encoding): one record in each payload, its schema given in the statement; or files of
//! records that contain their schema.
//!
//! A column is the field with its name; `a.b` is the field `b` of the record in field `a`. Fields without a column are
//! skipped. A null in a union is null. Whole numbers are also read into DOUBLE and DECIMAL, and into TIMESTAMP as
//! milliseconds; the logical types `date`, `time-*` and `decimal` are DATE, TIME and DECIMAL.
//!
//! Arrays, maps and records are also read and written as columns of ARRAY, MAP and ROW.
//!
//! - [`schema`]: the schema as a tree; [`walk`]: the way through a record by it;
//! - [`decoder`]: payloads into rows, and [`part_decoder`]: their values with parts;
//! - [`encoder`]: rows into payloads, and [`part_encoder`]: their values with parts;
//! - [`container`]: files of records.

mod container;
mod decoder;
mod encoder;
mod part_decoder;
mod part_encoder;
mod schema;
mod walk;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};

use super::binary::Framing;
use super::{Encoder, FormatError};
use crate::files::{Files, words};
pub(crate) use container::{BlockDecoder, ContainerReader, append_block, append_header};
pub(crate) use decoder::AvroParser;
use schema::AvroSchema;

/// The longest schema, in bytes.
const SCHEMA_BYTES_MAX: u64 = 1 << 20;

/// A schema, and how payloads are framed.
#[derive(Clone, Debug)]
pub struct AvroFormat {
    /// `None` if rows are written in the schema that their columns suggest.
    schema: Option<Arc<AvroSchema>>,
    framing: Framing,
}

impl AvroFormat {
    /// Reads the options of the format: `schema` or `schema_file`, `framing` and `schema_id`.
    pub(crate) fn parse<'o>(
        options: impl Iterator<Item = (&'o str, &'o str)>,
        files: &Files,
    ) -> Result<Self, FormatError> {
        let (mut text, mut framing, mut schema_id) = (None, None, None);
        for (option, value) in options {
            match option.to_ascii_lowercase().as_str() {
                "schema" => text = Some(value.to_owned()),
                "schema_file" => text = Some(read_file(value, files)?),
                "framing" => framing = Some(value),
                "schema_id" => schema_id = Some(value),
                _ => {
                    return Err(setting(
                        format!("has no option '{option}'"),
                        "its options are schema, schema_file, framing, schema_id",
                    ));
                }
            }
        }
        let schema = match text {
            Some(text) => Some(Arc::new(AvroSchema::parse(&text).map_err(|problem| {
                setting(
                    format!("cannot use this schema: {problem}"),
                    "a schema is JSON, as the Avro specification has it",
                )
            })?)),
            None => None,
        };
        Ok(Self { schema, framing: Framing::parse(NAME, framing, schema_id)? })
    }

    /// A parser into those of the declared columns that are read.
    pub(crate) fn parser(&self, declared: &Schema, read: &[usize]) -> Result<AvroParser, FormatError> {
        let Some(schema) = &self.schema else {
            return Err(setting(
                "needs a schema to be read".into(),
                "FORMAT AVRO (schema => '{\"type\": \"record\", ...}'), or schema_file => 'path'",
            ));
        };
        AvroParser::new(schema.clone(), self.framing, declared, read)
            .map_err(|problem| setting(problem, "a column is a field with the same name and a type that suits"))
    }

    /// An encoder of rows of `schema`.
    pub(crate) fn encoder(&self, columns: &SchemaRef) -> Result<Box<dyn Encoder>, FormatError> {
        let encoder = encoder::AvroEncoder::new(self.writing(columns)?, self.framing, columns)
            .map_err(|problem| setting(problem, "every field needs a column with its name, or takes null"))?;
        Ok(Box::new(encoder))
    }

    /// The text of the schema that rows of these columns are written in.
    pub(crate) fn schema_text(&self, columns: &SchemaRef) -> Result<String, FormatError> {
        Ok(self.writing(columns)?.text().to_owned())
    }

    /// Whether payloads have a frame.
    pub(crate) fn has_frame(&self) -> bool {
        self.framing != Framing::None
    }

    /// The schema that was given, or else the one that columns suggest.
    fn writing(&self, columns: &SchemaRef) -> Result<Arc<AvroSchema>, FormatError> {
        if let Some(schema) = &self.schema {
            return Ok(schema.clone());
        }
        let suggested = AvroSchema::of_columns(columns);
        let hint = "names are letters, digits and '_'; give the column another one, or give a schema";
        suggested.map(Arc::new).map_err(|problem| setting(problem, hint))
    }
}

const NAME: &str = "AVRO";

fn setting(problem: String, hint: &str) -> FormatError {
    FormatError::Setting { format: NAME, problem, hint: hint.into() }
}

fn read_file(path: &str, files: &Files) -> Result<String, FormatError> {
    let failed = |problem: String, hint: Option<String>| {
        setting(
            format!("cannot read {path}: {problem}"),
            hint.as_deref().unwrap_or("schema_file is a path on this machine"),
        )
    };
    let bytes = files.read(path, SCHEMA_BYTES_MAX).map_err(|error| {
        let (problem, hint) = words(&error);
        failed(problem, hint)
    })?;
    String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8 text".into(), None))
}
