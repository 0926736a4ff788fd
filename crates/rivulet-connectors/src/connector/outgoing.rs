//! Turns rows into payloads, and marks rows as added or retracted.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use rivulet_dataflow::{Batch, SinkError};

use super::{ConnectorError, OutputRows, SinkSpec};
use crate::formats::{EncodedRows, Encoder, FormatError, RowFormat};

/// The column that says in a changing result whether a row was added (`+`) or retracted (`-`).
pub(crate) const OP: &str = "op";

/// Encodes batches; rows of a changing result have [`OP`] as their first column.
pub(crate) struct Outgoing {
    encoder: Box<dyn Encoder>,
    /// The schema with [`OP`] in front, if the result changes.
    with_op: Option<SchemaRef>,
    /// Whether payloads say themselves whether their rows were retracted.
    tells_changes: bool,
    encoded: EncodedRows,
}

impl Outgoing {
    /// Encodes rows of `schema`, which may be retractions if `changes`. A format of changes says that itself.
    pub(crate) fn new(format: &RowFormat, schema: &SchemaRef, changes: bool) -> Result<Self, FormatError> {
        let tells_changes = format.has_changes();
        let with_op = if changes && !tells_changes { Some(schema_with_op(format.name(), schema)?) } else { None };
        let encoder = format.encoder(with_op.as_ref().unwrap_or(schema).clone())?;
        Ok(Self { encoder, with_op, tells_changes, encoded: EncodedRows::default() })
    }

    /// The columns that are written.
    pub(crate) fn schema<'s>(&'s self, schema: &'s SchemaRef) -> &'s SchemaRef {
        self.with_op.as_ref().unwrap_or(schema)
    }

    /// A payload for each row, in order, until the next call.
    pub(crate) fn encode(&mut self, batch: &Batch) -> Result<&EncodedRows, SinkError> {
        self.encoded.clear();
        match &self.with_op {
            Some(schema) => self.encoder.encode(&with_op(batch, schema), &mut self.encoded),
            None if batch.retracts.is_some() && !self.tells_changes => return Err(unexpected_change()),
            None => self.encoder.encode(batch, &mut self.encoded),
        }
        Ok(&self.encoded)
    }

    /// Appends a line for each row.
    pub(crate) fn append_lines(&mut self, batch: &Batch, out: &mut Vec<u8>) -> Result<(), SinkError> {
        let encoded = self.encode(batch)?;
        out.reserve(encoded.payload_bytes() + encoded.rows());
        for row in encoded.iter() {
            out.extend_from_slice(row);
            out.push(b'\n');
        }
        self.encoded.shrink_to(MEMORY_KEPT_ROWS, MEMORY_KEPT_BYTES);
        Ok(())
    }
}

/// The queries that rows of an output belong to, and their addresses.
pub(crate) struct Owners<'b> {
    queries: &'b UInt64Array,
    ids: &'b StringArray,
    addresses: Option<&'b StringArray>,
}

impl OutputRows {
    /// Splits rows into the first `columns` columns, which are the sink's, and the columns behind them.
    pub(crate) fn split<'b>(self, batch: &'b Batch, columns: usize) -> Result<(Batch, Owners<'b>), SinkError> {
        let places: Vec<usize> = (0..columns).collect();
        let payload = batch.columns.project(&places).map_err(|error| SinkError(error.to_string()))?;
        let owners = Owners {
            queries: batch.column(columns).as_primitive::<UInt64Type>(),
            ids: batch.column(columns + 1).as_string(),
            addresses: self.has_addresses.then(|| batch.column(columns + 2).as_string()),
        };
        Ok((batch.with_columns(payload), owners))
    }
}

impl<'b> Owners<'b> {
    /// The query of a row.
    pub(crate) fn query(&self, row: usize) -> u64 {
        self.queries.value(row)
    }

    /// The identity of a row; empty if it is not known.
    pub(crate) fn id(&self, row: usize) -> &'b str {
        self.ids.value(row)
    }

    /// The address of a row, if it has one.
    pub(crate) fn address(&self, row: usize) -> Option<&'b str> {
        self.addresses.map(|addresses| addresses.value(row))
    }
}

/// The number of encoded rows whose memory is kept from one batch to the next.
const MEMORY_KEPT_ROWS: usize = 16 << 10;
const MEMORY_KEPT_BYTES: usize = 4 << 20;

/// The error for a retraction where the planner said there would be none.
pub(crate) fn unexpected_change() -> SinkError {
    SinkError("the result changes though it was declared not to (a defect of the engine)".into())
}

/// Refuses a changing result.
pub(crate) fn only_appends(connector: &'static str, spec: &SinkSpec, hint: &str) -> Result<(), ConnectorError> {
    if spec.changes { Err(ConnectorError::Changes { connector, hint: hint.into() }) } else { Ok(()) }
}

/// The batch with [`OP`] as its first column.
fn with_op(batch: &Batch, schema: &SchemaRef) -> Batch {
    let op: StringArray = (0..batch.rows()).map(|row| Some(if batch.is_retraction(row) { "-" } else { "+" })).collect();
    let mut columns: Vec<ArrayRef> = vec![Arc::new(op)];
    columns.extend(batch.columns.columns().iter().cloned());
    debug_assert!(columns.iter().all(|column| column.len() == batch.rows()));
    let columns = RecordBatch::try_new(schema.clone(), columns).expect("the columns of the result behind the mark");
    batch.with_columns(columns)
}

fn schema_with_op(format: &'static str, schema: &Schema) -> Result<SchemaRef, FormatError> {
    if schema.field_with_name(OP).is_ok() {
        let problem = format!("has no place for the column '{OP}' of a result that changes");
        let hint = "rows of such a result say in 'op' whether they came (+) or were taken back (-); give the column \
                    another name";
        return Err(FormatError::setting(format, problem, hint));
    }
    let op = Arc::new(Field::new(OP, DataType::Utf8, false));
    Ok(Arc::new(Schema::new([&[op], schema.fields().as_ref()].concat())))
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;
    use crate::files::Files;

    fn schema(name: &str) -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new(name, DataType::Int64, false)]))
    }

    fn batch() -> Batch {
        let columns = RecordBatch::try_new(schema("n"), vec![Arc::new(Int64Array::from(vec![1, 1, 2]))]).unwrap();
        Batch::new(vec![0; 3].into(), vec![0; 3].into(), vec![0; 3].into(), columns)
    }

    #[test]
    fn changes_are_told() {
        let json = RowFormat::parse("JSON", [], &Files::default()).unwrap();
        let changing = batch().with_retracts(Some(vec![false, true, false].into()));
        let mut lines = Vec::new();
        Outgoing::new(&json, &schema("n"), true).unwrap().append_lines(&changing, &mut lines).unwrap();
        let expected = "{\"op\":\"+\",\"n\":1}\n{\"op\":\"-\",\"n\":1}\n{\"op\":\"+\",\"n\":2}\n";
        assert_eq!(String::from_utf8(lines).unwrap(), expected);
        let mut appending = Outgoing::new(&json, &schema("n"), false).unwrap();
        assert!(appending.append_lines(&changing, &mut Vec::new()).unwrap_err().0.contains("defect"));
        let mut lines = Vec::new();
        appending.append_lines(&batch(), &mut lines).unwrap();
        assert_eq!(lines, b"{\"n\":1}\n{\"n\":1}\n{\"n\":2}\n");
        let error = Outgoing::new(&json, &schema("op"), true).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("no place for the column 'op'"), "{error}");
    }
}
