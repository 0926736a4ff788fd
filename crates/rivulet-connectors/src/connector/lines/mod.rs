//! Lines of text as rows: what files and standard input have in common.
//!
//! - [`reader`]: where lines begin and end; [`header`]: the names of columns that may stand before them.

mod header;
mod reader;

use arrow::datatypes::SchemaRef;

use super::intake::{Intake, PAYLOAD_BYTES_MAX};
use super::{ConnectorError, OptionDescription, OptionKind, Options, SourceSpec};
use crate::files::Files;
use crate::formats::{Format, FormatError, RowFormat};

pub(crate) use reader::{Left, LineRule, Lines, READ_BYTES};

/// The formats that stand on a line each.
pub(crate) const LINE_FORMATS: &[&str] = &["JSON", "CSV", "TEXT", "RAW", "SENML", "SENML_PIVOT"];

/// Option: whether line breaks between quotes count.
pub(crate) const MULTILINE: OptionDescription = OptionDescription {
    name: "multiline",
    kind: OptionKind::Boolean,
    default: Some("false"),
    help: "Whether quoted fields of CSV may have line breaks in them. Files are then not cut, and read by one partition each.",
};

/// Option: how long a line may be.
pub(crate) const LINE_BYTES_MAX: OptionDescription = OptionDescription {
    name: "line_bytes_max",
    kind: OptionKind::Bytes,
    default: Some("16 MiB"),
    help: "Longer lines are refused.",
};

/// How lines become rows; what all partitions of a source have in common.
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
        // Whatever is wrong with format and columns is told now.
        reading.intake()?;
        Ok(reading)
    }

    /// Collects and decodes lines of a file without a header.
    pub(crate) fn intake(&self) -> Result<Intake, FormatError> {
        let mut intake = Intake::new(self.format.decoder(&self.declared, &self.read, self.event_time_column)?);
        intake.set_takes_blocks(self.has_blocks_of(self.declared.fields().len()));
        Ok(intake)
    }

    /// Whether lines of so many fields are taken in blocks: those of CSV, where an empty line is none and a line break
    /// always the end of one.
    fn has_blocks_of(&self, fields: usize) -> bool {
        let is_csv = matches!(self.format, RowFormat::Plain { format: Format::Csv { .. }, .. });
        is_csv && fields > 1 && !self.rule.has_quotes
    }

    /// Whether so many fields are one field of CSV, so that an empty line is a row of a null.
    fn is_csv_of(&self, fields: usize) -> bool {
        fields == 1 && matches!(self.format, RowFormat::Plain { format: Format::Csv { .. }, .. })
    }

    /// Sets the intake to the fields that the header of a file names; gives the rule for the lines below it.
    pub(crate) fn follow_header(&self, header: &[u8], intake: &mut Intake) -> Result<LineRule, String> {
        let RowFormat::Plain { format: Format::Csv { delimiter }, .. } = self.format else { return Ok(self.rule) };
        let fields = header::fields(header, delimiter, &self.declared)?;
        let rule = LineRule { keeps_empty: self.is_csv_of(fields.len()), ..self.rule };
        let decoder = self.format.csv_decoder(&self.declared, &fields, &self.read, self.event_time_column);
        intake.set_decoder(decoder.map_err(|error| error.to_string())?);
        intake.set_takes_blocks(self.has_blocks_of(fields.len()));
        Ok(rule)
    }
}
