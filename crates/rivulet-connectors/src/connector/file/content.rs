//! How rows become the content of files.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Field, Schema, SchemaRef};
use rivulet_dataflow::{Batch, SinkError};
use xxhash_rust::xxh3::xxh3_128;

use super::super::outgoing::{Outgoing, unexpected_change};
use super::part::{ParquetCompression, Part as FilePart};
use crate::files::Files;
use crate::formats::{
    Format, FormatError, Part, RowFormat, append_block, append_header, as_parts, csv_header, type_of_part,
};

/// Begins files and writes rows to them.
pub(crate) enum Content {
    /// Lines, below a header if there is one; or blocks of Avro, below the header of a container.
    Lines {
        outgoing: Outgoing,
        header: Vec<u8>,
        /// The sync marker behind each block of Avro.
        mark: Option<[u8; 16]>,
        /// The lines of one batch; empty between batches.
        lines: Vec<u8>,
    },
    /// Row groups of rows of this schema, in which columns of JSON with known parts are lists, maps and structs.
    Parquet { schema: SchemaRef, parts: Vec<(usize, Part)>, compression: ParquetCompression },
}

impl Content {
    /// The content for rows of `schema`, which may be retractions if `changes`; Parquet does not support those.
    pub(super) fn new(
        format: &RowFormat,
        schema: &SchemaRef,
        changes: bool,
        compression: ParquetCompression,
    ) -> Result<Self, FormatError> {
        if matches!(format, RowFormat::Parquet) {
            let of_parts = |(column, field): (usize, &Arc<Field>)| Some((column, Part::of_column(field)?));
            let parts: Vec<(usize, Part)> = schema.fields().iter().enumerate().filter_map(of_parts).collect();
            let mut fields: Vec<Field> = schema.fields().iter().map(|field| Field::clone(field)).collect();
            for (column, part) in &parts {
                let field = &schema.fields()[*column];
                fields[*column] = Field::new(field.name(), type_of_part(part), field.is_nullable());
            }
            return Ok(Self::Parquet { schema: Arc::new(Schema::new(fields)), parts, compression });
        }
        let RowFormat::Avro(avro) = format else { return Self::lines_of(format, schema, changes) };
        if avro.has_frame() {
            let problem = "has an option 'framing' that is of single records, not of files";
            return Err(FormatError::setting("AVRO", problem, "leave it out"));
        }
        let outgoing = Outgoing::new(format, schema, changes)?;
        let text = avro.schema_text(outgoing.schema(schema))?;
        // Any bytes that are unlikely in records.
        let mark = xxh3_128(text.as_bytes()).to_le_bytes();
        let mut header = Vec::new();
        append_header(&text, mark, &mut header);
        Ok(Self::Lines { outgoing, header, mark: Some(mark), lines: Vec::new() })
    }

    /// Lines of rows of `schema`, which may be retractions if `changes`.
    pub(crate) fn lines_of(format: &RowFormat, schema: &SchemaRef, changes: bool) -> Result<Self, FormatError> {
        let outgoing = Outgoing::new(format, schema, changes)?;
        let header = match format {
            RowFormat::Plain { format: Format::Csv { delimiter }, has_header: true, .. } => {
                let names = outgoing.schema(schema).fields().iter().map(|field| field.name().as_str());
                csv_header(names, *delimiter)
            }
            _ => Vec::new(),
        };
        Ok(Self::Lines { outgoing, header, mark: None, lines: Vec::new() })
    }

    /// Begins a file.
    pub(super) fn begin(&self, path: PathBuf, files: &Files) -> Result<FilePart, SinkError> {
        match self {
            Self::Lines { header, .. } => {
                let mut part = FilePart::lines(path, files)?;
                part.write_lines(header)?;
                Ok(part)
            }
            Self::Parquet { schema, compression, .. } => FilePart::parquet(path, schema, *compression, files),
        }
    }

    /// The header line, if there is one.
    pub(crate) fn header(&self) -> &[u8] {
        match self {
            Self::Lines { header, .. } => header,
            Self::Parquet { .. } => &[],
        }
    }

    /// The batch as lines, or as a block.
    pub(crate) fn lines(&mut self, batch: &Batch) -> Result<&[u8], SinkError> {
        let Self::Lines { outgoing, lines, mark, .. } = self else { unreachable!("Parquet files have no lines") };
        /// The memory for lines that is kept from one batch to the next.
        const KEPT_BYTES: usize = 4 << 20;
        lines.clear();
        lines.shrink_to(KEPT_BYTES);
        match mark {
            Some(mark) => append_block(outgoing.encode(batch)?.iter(), *mark, lines),
            None => outgoing.append_lines(batch, lines)?,
        }
        Ok(lines)
    }

    /// Prepares rows for writing, without the file, so that several instances may do so at a time.
    pub(super) fn prepare<'c>(&'c mut self, batch: &'c Batch) -> Result<Prepared<'c>, SinkError> {
        match self {
            Self::Lines { .. } => self.lines(batch).map(|lines| Prepared::Lines(lines, batch.rows())),
            Self::Parquet { .. } if batch.retracts.is_some() => Err(unexpected_change()),
            Self::Parquet { parts, .. } if parts.is_empty() => Ok(Prepared::Rows(batch.columns.clone())),
            Self::Parquet { schema, parts, .. } => {
                let mut columns = batch.columns.columns().to_vec();
                for (column, part) in parts {
                    columns[*column] = as_parts(columns[*column].as_string::<i32>(), part);
                }
                let rows = RecordBatch::try_new(schema.clone(), columns);
                rows.map(Prepared::Rows).map_err(|error| SinkError(error.to_string()))
            }
        }
    }
}

/// Rows that are ready to be written.
pub(super) enum Prepared<'c> {
    Lines(&'c [u8], usize),
    Rows(RecordBatch),
}

impl Prepared<'_> {
    /// Appends them to a file.
    pub(super) fn write(self, part: &mut FilePart) -> Result<(), SinkError> {
        let before = part.bytes();
        let rows = match self {
            Self::Lines(lines, rows) => part.write_lines(lines).map(|()| rows),
            Self::Rows(rows) => part.write_rows(&rows).map(|()| rows.num_rows()),
        };
        part.note_rows(rows?, usize::try_from(part.bytes().saturating_sub(before)).unwrap_or(usize::MAX));
        Ok(())
    }
}
