//! Where the rows of a `SELECT` go.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{SortColumn, SortOptions, lexsort_to_indices, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use parking_lot::Mutex;
use rivulet_dataflow::{Batch, Sink, SinkError};
use rivulet_sql::PlannedOutput;

/// Takes the rows of one query, in the order in which they come.
pub trait Results: Send {
    /// Called once before the first row, with whether all input has an end.
    ///
    /// # Errors
    /// The wanted output is impossible for input without an end.
    fn begin(&mut self, _is_bounded: bool) -> Result<(), String> {
        Ok(())
    }

    /// Takes rows; some may retract others.
    ///
    /// # Errors
    /// They cannot be kept or shown.
    fn write(&mut self, batch: &Batch) -> Result<(), String>;

    /// Whether more rows may come now. If not, none is asked for, and the query waits.
    fn has_room(&self) -> bool {
        true
    }

    /// Whether no more rows are wanted.
    fn has_enough(&self) -> bool {
        false
    }

    /// Called from time to time while the query runs.
    fn look(&mut self) {}

    /// The query has come to its end.
    ///
    /// # Errors
    /// The remaining rows cannot be shown.
    fn finish(&mut self) -> Result<(), String>;
}

/// Results to which all instances of a sink write.
pub(super) struct SharedResults {
    results: Mutex<Box<dyn Results>>,
    has_enough: AtomicBool,
    has_room: AtomicBool,
}

impl SharedResults {
    pub(super) fn new(results: Box<dyn Results>) -> Arc<Self> {
        let (has_enough, has_room) = (AtomicBool::new(false), AtomicBool::new(true));
        Arc::new(Self { results: Mutex::new(results), has_enough, has_room })
    }

    pub(super) fn instance(self: &Arc<Self>) -> ResultSink {
        ResultSink(self.clone())
    }

    pub(super) fn has_enough(&self) -> bool {
        self.has_enough.load(Ordering::Acquire)
    }

    pub(super) fn look(&self) {
        let mut results = self.results.lock();
        results.look();
        self.has_room.store(results.has_room(), Ordering::Release);
    }

    pub(super) fn finish(&self) -> Result<(), String> {
        self.results.lock().finish()
    }
}

/// One instance of the sink.
pub(super) struct ResultSink(Arc<SharedResults>);

impl Sink for ResultSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut results = self.0.results.lock();
        results.write(batch).map_err(SinkError)?;
        self.0.has_enough.store(results.has_enough(), Ordering::Release);
        self.0.has_room.store(results.has_room(), Ordering::Release);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.0.has_room.load(Ordering::Acquire)
    }
}

/// What remembering a row takes besides its values.
const ROW_BYTES: usize = 32;

/// The rows at the end, without retracted ones.
#[derive(Debug)]
pub struct FinalRows {
    schema: SchemaRef,
    converter: RowConverter,
    /// How often each row exists. A count is below zero while a retraction has overtaken its row (rows of the instances
    /// of one sink come in any order), and where a source of changes takes back a row that never came.
    counts: HashMap<Box<[u8]>, i64>,
    /// The bytes of the rows that exist.
    bytes: usize,
}

impl FinalRows {
    /// Without rows yet.
    ///
    /// # Errors
    /// A column has a type that cannot be compared.
    pub fn new(schema: SchemaRef) -> Result<Self, ArrowError> {
        let fields = schema.fields().iter().map(|field| SortField::new(field.data_type().clone())).collect();
        Ok(Self { converter: RowConverter::new(fields)?, schema, counts: HashMap::new(), bytes: 0 })
    }

    /// Adds rows, or takes retracted ones away.
    ///
    /// # Errors
    /// They do not have the schema.
    pub fn add(&mut self, batch: &Batch) -> Result<(), ArrowError> {
        let rows = self.converter.convert_columns(batch.columns.columns())?;
        for (place, row) in rows.iter().enumerate() {
            let change = if batch.is_retraction(place) { -1 } else { 1 };
            match self.counts.get_mut(row.as_ref()) {
                Some(count) if *count + change == 0 => {
                    self.counts.remove(row.as_ref());
                    self.bytes -= row.as_ref().len() + ROW_BYTES;
                }
                Some(count) => *count += change,
                None => {
                    self.counts.insert(row.as_ref().into(), change);
                    self.bytes += row.as_ref().len() + ROW_BYTES;
                }
            }
        }
        Ok(())
    }

    /// About how many bytes it takes to remember the rows.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rows, in the order and number that the query asks for; without an order, in the order of their values.
    ///
    /// # Errors
    /// Their values cannot be converted.
    pub fn rows(&self, output: &PlannedOutput) -> Result<RecordBatch, ArrowError> {
        let strange = self.counts.values().filter(|count| **count < 0).count();
        if strange > 0 {
            tracing::warn!("rows of the result were taken back that never came: {strange} different ones");
        }
        let counts = self.counts.iter().filter(|(_, count)| **count > 0);
        let mut keys: Vec<(&[u8], i64)> = counts.map(|(row, &count)| (&**row, count)).collect();
        keys.sort_unstable();
        let parser = self.converter.parser();
        let repeated = keys.iter().flat_map(|&(row, count)| std::iter::repeat_n(row, count as usize));
        let columns = self.converter.convert_rows(repeated.map(|row| parser.parse(row)))?;
        let rows = keys.iter().map(|(_, count)| *count as usize).sum();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        ordered(&batch, output)
    }
}

/// Rows in the order and number that a query asks for.
fn ordered(batch: &RecordBatch, output: &PlannedOutput) -> Result<RecordBatch, ArrowError> {
    let all = output.limit.map_or(usize::MAX, |limit| limit.saturating_add(output.offset)).min(batch.num_rows());
    let skipped = output.offset.min(all);
    if output.order.is_empty() || batch.num_rows() == 0 {
        return selected(&batch.slice(skipped, all - skipped), output);
    }
    // Rows that are equal in the ordering columns stay in the order of their values, so that LIMIT is the same each
    // time.
    let of_order = output.order.iter().map(|key| {
        let options = SortOptions { descending: key.descending, nulls_first: key.nulls_first };
        (batch.column(key.column), options)
    });
    let of_values = batch.columns().iter().map(|column| (column, SortOptions::default()));
    let columns: Vec<SortColumn> = of_order
        .chain(of_values)
        .map(|(values, options): (&ArrayRef, _)| SortColumn { values: values.clone(), options: Some(options) })
        .collect();
    let first = lexsort_to_indices(&columns, Some(all))?;
    selected(&take_record_batch(batch, &first.slice(skipped, all - skipped))?, output)
}

/// The selected columns, without those that only order the rows.
fn selected(batch: &RecordBatch, output: &PlannedOutput) -> Result<RecordBatch, ArrowError> {
    match output.selected == batch.num_columns() {
        true => Ok(batch.clone()),
        false => batch.project(&(0..output.selected).collect::<Vec<_>>()),
    }
}
