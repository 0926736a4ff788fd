//! Lines of text as rows: the common part of files and standard input.
//!
//! - [`reader`]: finds where lines begin and end.

mod reader;

use arrow::datatypes::SchemaRef;

use super::intake::{Intake, PAYLOAD_BYTES_MAX};
use super::{ConnectorError, OptionDescription, OptionKind, Options, SourceSpec};
use crate::files::Files;
use crate::formats::{Format, FormatError, RowFormat, csv_fields};

pub(crate) use reader::{Left, LineRule, Lines, READ_BYTES};

/// The formats with one line for each row.
pub(crate) const LINE_FORMATS: &[&str] = &["JSON", "DEBEZIUM", "CSV", "TEXT", "RAW", "SENML", "SENML_PIVOT"];

/// Option: whether fields in quotes may contain line breaks.
pub(crate) const MULTILINE: OptionDescription = OptionDescription {
    name: "multiline",
    kind: OptionKind::Boolean,
    default: Some("false"),
    help: "Whether quoted fields of CSV may have line breaks in them. Files are then not cut, and read by one partition each.",
};

/// Option: the greatest length of a line.
pub(crate) const LINE_BYTES_MAX: OptionDescription = OptionDescription {
    name: "line_bytes_max",
    kind: OptionKind::Bytes,
    default: Some("16 MiB"),
    help: "Longer lines are refused.",
};

/// How lines become rows; shared by all partitions of a source.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) format: RowFormat,
    pub(crate) declared: SchemaRef,
    /// The columns that are read, ascending.
    pub(crate) read: Vec<usize>,
    pub(crate) event_time_column: Option<usize>,
    pub(crate) rule: LineRule,
    pub(crate) files: Files,
}

impl Reading {
    /// The lines of a source with the options [`MULTILINE`] and [`LINE_BYTES_MAX`].
    pub(crate) fn new(format: RowFormat, spec: &SourceSpec, options: &Options) -> Result<Self, ConnectorError> {
        let has_quotes = options.boolean(MULTILINE.name);
        if has_quotes && !matches!(format, RowFormat::Plain { format: Format::Csv { .. }, .. }) {
            return Err(options.wrong(MULTILINE.name, "is of CSV alone", "leave it out"));
        }
        let line_bytes_max = options.count(LINE_BYTES_MAX.name).unwrap_or(PAYLOAD_BYTES_MAX).min(PAYLOAD_BYTES_MAX);
        let mut reading = Self {
            format,
            declared: spec.schema.clone(),
            read: spec.columns.clone(),
            event_time_column: spec.event_time_column,
            rule: LineRule { has_quotes, line_bytes_max, keeps_empty: false },
            files: spec.host.files.clone(),
        };
        reading.rule.keeps_empty = reading.is_csv_of(reading.declared.fields().len());
        // An error in format or columns is reported now.
        reading.intake()?;
        Ok(reading)
    }

    /// Makes the intake that collects and decodes lines of a file without a header.
    pub(crate) fn intake(&self) -> Result<Intake, FormatError> {
        let mut intake = Intake::new(self.format.decoder(&self.declared, &self.read, self.event_time_column)?);
        intake.set_takes_blocks(self.has_blocks_of(self.declared.fields().len()));
        Ok(intake)
    }

    /// Whether lines with this many fields are taken in blocks: lines of CSV, if empty lines are skipped and every line
    /// break ends a line.
    fn has_blocks_of(&self, fields: usize) -> bool {
        let is_csv = matches!(self.format, RowFormat::Plain { format: Format::Csv { .. }, .. });
        is_csv && fields > 1 && !self.rule.has_quotes
    }

    /// Whether lines are CSV with one field, so that an empty line is a row with a null.
    fn is_csv_of(&self, fields: usize) -> bool {
        fields == 1 && matches!(self.format, RowFormat::Plain { format: Format::Csv { .. }, .. })
    }

    /// Sets the intake to the fields that the header of a file names. Returns the rule for the lines below it.
    pub(crate) fn follow_header(&self, header: &[u8], intake: &mut Intake) -> Result<LineRule, String> {
        let RowFormat::Plain { format: Format::Csv { delimiter }, .. } = self.format else { return Ok(self.rule) };
        let fields = csv_fields(header, delimiter, &self.declared)?;
        let rule = LineRule { keeps_empty: self.is_csv_of(fields.len()), ..self.rule };
        let decoder = self.format.csv_decoder(&self.declared, &fields, &self.read, self.event_time_column);
        intake.set_decoder(decoder.map_err(|error| error.to_string())?);
        intake.set_takes_blocks(self.has_blocks_of(fields.len()));
        Ok(rule)
    }
}
