//! Rows of a `SELECT` on standard output: as a table, as JSON lines or as CSV.

use std::io::{self, BufWriter, Stdout, Write};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use rivulet_connectors::connector::output_failed;
use rivulet_connectors::formats::{EncodedRows, Encoder, Format};
use rivulet_dataflow::Batch;
use rivulet_sql::PlannedOutput;
use serde_json::Value;

use crate::cli::error::CliError;
use crate::cli::output::result_table;
use crate::counted::counted;
use crate::run::results::{FinalRows, Results};

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Layout {
    /// A table for people.
    Table,
    /// An object on each line.
    Json,
    /// Lines of fields under a header.
    Csv,
}

/// How many rows a block of a table has at most, about.
const BLOCK_ROWS_MAX: usize = 1_000;

/// Takes no notice of rows: what is explained is run for its figures.
pub(super) struct Nothing;

impl Results for Nothing {
    fn write(&mut self, _batch: &Batch) -> Result<(), String> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Writes the rows of one query.
pub(super) struct Writer {
    output: PlannedOutput,
    /// The rows that are there in the end, where only those are wanted.
    final_rows: Option<FinalRows>,
    lines: Lines,
    /// Rows that were left out for OFFSET.
    skipped: usize,
    /// Rows that were written.
    written: usize,
}

impl Writer {
    /// For the rows of `output`; with `changes` each as it comes. A table has `rows_max` rows, or all for 0.
    pub(super) fn new(
        output: &PlannedOutput,
        layout: Layout,
        changes: bool,
        rows_max: usize,
    ) -> Result<Self, CliError> {
        if changes && !output.order.is_empty() {
            return Err(CliError::new(
                "--changes shows rows as they come, and ORDER BY those that are there in the end",
            )
            .with_hint("leave one of them out"));
        }
        let schema = &output.schema;
        let is_final = !changes && (output.changes || !output.order.is_empty());
        let final_rows = match is_final {
            true => Some(FinalRows::new(schema.clone()).map_err(|error| CliError::new(error.to_string()))?),
            false => None,
        };
        let marks = changes && output.changes;
        let lines = Lines::new(&output.selected_schema(), layout, marks, rows_max).map_err(CliError::new)?;
        Ok(Self { output: output.clone(), final_rows, lines, skipped: 0, written: 0 })
    }
}

impl Results for Writer {
    fn begin(&mut self, is_bounded: bool) -> Result<(), String> {
        if is_bounded {
            return Ok(());
        }
        if !self.output.order.is_empty() {
            return Err("ORDER BY needs input that ends, and this has no end\n\
                        hint: leave it out, or bound the input: WITH (bounded => true) for kafka: and stdin:, WITH (events => 1000000) for generators"
                .into());
        }
        // There is no final result: each row comes out as it comes.
        self.final_rows = None;
        self.lines.begin_stream(self.output.changes)
    }

    fn write(&mut self, batch: &Batch) -> Result<(), String> {
        match &mut self.final_rows {
            Some(rows) => rows.add(batch).map_err(|error| error.to_string()),
            None => {
                let skipped = batch.rows().min(self.output.offset - self.skipped);
                self.skipped += skipped;
                let left = self.output.limit.map_or(usize::MAX, |limit| limit - self.written.min(limit));
                let batch = batch.slice(skipped, (batch.rows() - skipped).min(left));
                self.written += batch.rows();
                self.lines.write(&batch)
            }
        }
    }

    fn has_enough(&self) -> bool {
        self.final_rows.is_none() && self.output.limit.is_some_and(|limit| self.written >= limit)
    }

    fn look(&mut self) {
        // Whoever went away is noticed with the next row.
        let _ = self.lines.show_block().and_then(|()| self.lines.flush());
    }

    fn finish(&mut self) -> Result<(), String> {
        if let Some(rows) = self.final_rows.take() {
            let rows = rows.rows(&self.output).map_err(|error| error.to_string())?;
            let zeros = vec![0; rows.num_rows()];
            let slots: Vec<u32> = vec![0; rows.num_rows()];
            self.lines.write(&Batch::new(slots.into(), zeros.clone().into(), zeros.into(), rows))?;
        }
        self.lines.finish()
    }
}

/// Rows as lines, or collected for a table.
struct Lines {
    layout: Layout,
    /// The columns, with `op` before them where rows may be taken back.
    schema: SchemaRef,
    marks: bool,
    encoder: Option<Box<dyn Encoder>>,
    encoded: EncodedRows,
    out: BufWriter<Stdout>,
    /// Whether a CSV header was written.
    has_header: bool,
    /// Rows of a table.
    shown: Vec<Vec<Value>>,
    rows: usize,
    rows_max: usize,
    /// Whether a table is written in blocks, as rows come.
    streams: bool,
}

impl Lines {
    fn new(schema: &SchemaRef, layout: Layout, marks: bool, rows_max: usize) -> Result<Self, String> {
        let mut lines = Self {
            layout,
            schema: schema.clone(),
            marks: false,
            encoder: None,
            encoded: EncodedRows::default(),
            out: BufWriter::new(io::stdout()),
            has_header: false,
            shown: Vec::new(),
            rows: 0,
            rows_max: if rows_max == 0 { usize::MAX } else { rows_max },
            streams: false,
        };
        lines.set_columns(marks)?;
        Ok(lines)
    }

    /// Adds `op` before the columns if rows are marked, and makes what encodes them.
    fn set_columns(&mut self, marks: bool) -> Result<(), String> {
        if marks && !std::mem::replace(&mut self.marks, marks) {
            if self.schema.column_with_name("op").is_some() {
                return Err("there is no place for the column 'op'\n\
                            hint: rows of such a result say in 'op' whether they came (+) or were taken back (-); give the column another name"
                    .into());
            }
            let op = Arc::new(Field::new("op", DataType::Utf8, false));
            let fields = std::iter::once(op).chain(self.schema.fields().iter().cloned());
            self.schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        }
        let format = match self.layout {
            Layout::Table => return Ok(()),
            Layout::Json => Format::Json,
            Layout::Csv => Format::Csv { delimiter: b',' },
        };
        self.encoder = Some(format.encoder(self.schema.clone()).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Input turned out to have no end: rows are shown as they come, before any was written.
    fn begin_stream(&mut self, marks: bool) -> Result<(), String> {
        self.streams = true;
        if marks && !self.marks { self.set_columns(marks) } else { Ok(()) }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), String> {
        self.rows += batch.rows();
        let batch = match self.marks {
            false => batch.clone(),
            true => {
                let marks = (0..batch.rows()).map(|row| if batch.is_retraction(row) { "-" } else { "+" });
                let marks: ArrayRef = Arc::new(StringArray::from_iter_values(marks));
                let columns = std::iter::once(marks).chain(batch.columns.columns().iter().cloned()).collect();
                let columns = RecordBatch::try_new(self.schema.clone(), columns).map_err(|error| error.to_string())?;
                Batch::new(batch.slots.clone(), batch.event_time_us.clone(), batch.arrival_us.clone(), columns)
            }
        };
        let Some(encoder) = &mut self.encoder else { return self.collect(&batch) };
        encoder.encode(&batch, &mut self.encoded);
        let written = self.write_encoded();
        self.encoded.clear();
        written.map_err(|error| closed(&error))
    }

    fn write_encoded(&mut self) -> io::Result<()> {
        if self.layout == Layout::Csv && !std::mem::replace(&mut self.has_header, true) {
            let names: Vec<String> = self.schema.fields().iter().map(|field| csv_name(field.name())).collect();
            writeln!(self.out, "{}", names.join(","))?;
        }
        for row in self.encoded.iter() {
            self.out.write_all(row)?;
            self.out.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Keeps the first rows for a table, or all until the next block of one.
    fn collect(&mut self, batch: &Batch) -> Result<(), String> {
        if self.streams && self.shown.len() >= BLOCK_ROWS_MAX {
            self.show_block().map_err(|error| closed(&error))?;
        }
        let rows_max = if self.streams { usize::MAX } else { self.rows_max };
        let rows = batch.rows().min(rows_max - self.shown.len().min(rows_max));
        if rows == 0 {
            return Ok(());
        }
        let options = FormatOptions::default().with_null("");
        let formatters =
            batch.columns.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let formatters = formatters.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        let columns = batch.columns.columns();
        self.shown.extend((0..rows).map(|row| {
            formatters.iter().zip(columns).map(|(formatter, column)| cell(formatter, column, row)).collect()
        }));
        Ok(())
    }

    /// Writes the rows that came since the last block.
    fn show_block(&mut self) -> io::Result<()> {
        if !self.streams || self.layout != Layout::Table || self.shown.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.schema.fields().iter().map(|field| field.name().clone()).collect();
        writeln!(self.out, "{}\n", result_table(&names, &std::mem::take(&mut self.shown)))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self) -> Result<(), String> {
        if self.streams && self.layout == Layout::Table {
            self.show_block().and_then(|()| self.flush()).map_err(|error| closed(&error))?;
            eprintln!("({})", counted(self.rows as u64, "row"));
        } else if self.layout == Layout::Table {
            let names: Vec<String> = self.schema.fields().iter().map(|field| field.name().clone()).collect();
            let table = result_table(&names, &self.shown);
            // The table first, where both go to one screen.
            writeln!(self.out, "{table}").and_then(|()| self.flush()).map_err(|error| closed(&error))?;
            let noun = if self.rows == 1 { "row" } else { "rows" };
            match self.rows > self.shown.len() {
                true => eprintln!(
                    "({} {noun}, the first {} are shown; --rows 0 shows all, --format csv and json too)",
                    self.rows,
                    self.shown.len()
                ),
                false => eprintln!("({} {noun})", self.rows),
            }
        } else if self.layout == Layout::Csv && !self.has_header {
            self.write_encoded().map_err(|error| closed(&error))?;
        }
        self.flush().map_err(|error| closed(&error))
    }
}

fn closed(error: &io::Error) -> String {
    output_failed(error).0
}

fn cell(formatter: &ArrayFormatter<'_>, column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    let text = formatter.value(row).to_string();
    // A number of JSON is a floating point number here, which a decimal is not.
    match column.data_type().is_numeric() && !column.data_type().is_decimal() {
        true => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        false => Value::String(text),
    }
}

/// A column's name as a field of CSV (RFC 4180).
fn csv_name(name: &str) -> String {
    match name.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}
