//! A SELECT over reference tables alone: its input has an end, so its result is complete, with ORDER BY, LIMIT and
//! aggregates as they are in the end. Beside a source, a table is looked up.
//!
//! What must hold: the reader gets every row, as fast as it takes them. A thread of the SELECT waits for the reader,
//! and no worker does. What is collected for it has a bound.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use rivulet_dataflow::{Batch, Polled, Refusals, Source, SourceError};
use rivulet_operators::Table;
use rivulet_sql::{BigQuery, Name, PlannedOutput, PlannedSource, Scope, SourceDeclaration, relations_of};

use crate::engine::taps::{Taps, Watched};
use crate::run::results::{FinalRows, Results};
use crate::service::{ErrorKind, ResourceKind, ServiceError};

/// Whether the reader may subscribe to a resource of this name.
pub(in crate::engine) type May<'a> = &'a dyn Fn(ResourceKind, &str) -> Result<(), ServiceError>;

/// The beginning of the address of a table's rows. No statement can name it: it is not a connector.
const TABLE: &str = "table:";

/// The most bytes of rows that are collected for a reader.
const COLLECTED_BYTES_MAX: usize = 64 << 20;

/// The tables that a SELECT reads as they are.
#[derive(Clone, Default)]
pub(super) struct WholeTables(Vec<Arc<Table>>);

impl WholeTables {
    /// The tables of a SELECT that reads nothing else. In the scope they become sources whose rows have an end. The
    /// right is asked for over each table, whatever is read beside it.
    pub(super) fn of(query: &BigQuery, scope: &mut Scope, may: May<'_>) -> Result<Self, ServiceError> {
        let mut tables: Vec<(Name, Arc<Table>)> = Vec::new();
        let mut are_all = true;
        for (parts, position) in relations_of(query)? {
            let name = Name { text: parts.join("."), position };
            match scope.table(&name.text) {
                Some(table) if tables.iter().all(|(known, _)| known.text != name.text) => {
                    may(ResourceKind::Table, &name.text).map_err(|error| error.at(position.line, position.column))?;
                    tables.push((name, table.clone()));
                }
                None if scope.has_relation(&name.text) => are_all = false,
                // The query itself may define the name.
                Some(_) | None => {}
            }
        }
        if !are_all {
            return Ok(Self::default());
        }
        for (name, table) in &tables {
            scope.drop_table(&name.text);
            let address = format!("{TABLE}{}", name.text);
            scope.add_source(SourceDeclaration::undeclared(name.clone(), table.schema().clone(), address))?;
        }
        Ok(Self(tables.into_iter().map(|(_, table)| table).collect()))
    }

    /// Whether a SELECT reads nothing else.
    pub(super) fn are_all(&self) -> bool {
        !self.0.is_empty()
    }

    /// The rows of a table that the SELECT reads, as they are now.
    pub(super) fn open(&self, planned: &PlannedSource) -> Option<Result<Box<dyn Source>, ServiceError>> {
        let name = planned.declaration.address.strip_prefix(TABLE)?;
        let table = self.0.iter().find(|table| table.name() == name)?;
        let rows = table.rows().columns().project(&planned.columns);
        let rows = rows.map_err(|error| ServiceError::new(ErrorKind::Internal, error.to_string()));
        Some(rows.map(|rows| Box::new(TableSource { rows, read: 0 }) as Box<dyn Source>))
    }
}

/// The rows of a table, once.
struct TableSource {
    rows: RecordBatch,
    /// How many of them were read.
    read: usize,
}

impl Source for TableSource {
    fn poll(&mut self, rows_max: usize, now_us: i64, _refusals: &mut Refusals) -> Result<Polled, SourceError> {
        let rows = (self.rows.num_rows() - self.read).min(rows_max.max(1));
        if rows == 0 {
            return Ok(Polled::End);
        }
        let columns = self.rows.slice(self.read, rows);
        self.read += rows;
        Ok(Polled::Rows { columns, retracts: None, arrival_us: now_us })
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.read as u64, self.rows.num_rows() as u64))
    }
}

/// The rows of a SELECT whose input has an end, for its reader.
pub(super) struct WholeRows {
    taps: Arc<Taps>,
    watched: Watched,
    output: PlannedOutput,
    collected: Collected,
    rows: usize,
    bytes: usize,
}

enum Collected {
    /// Rows in the order in which they come.
    AsTheyCome(Vec<Batch>),
    /// Rows of which some are retracted, or that are ordered.
    Final(FinalRows),
}

impl WholeRows {
    /// Without rows yet.
    pub(super) fn new(taps: Arc<Taps>, watched: Watched, output: &PlannedOutput) -> Result<Self, ServiceError> {
        let collected = match output.changes || !output.order.is_empty() {
            false => Collected::AsTheyCome(Vec::new()),
            true => Collected::Final(
                FinalRows::new(output.schema.clone())
                    .map_err(|error| ServiceError::new(ErrorKind::Internal, error.to_string()))?,
            ),
        };
        Ok(Self { taps, watched, output: output.clone(), collected, rows: 0, bytes: 0 })
    }
}

impl Results for WholeRows {
    fn write(&mut self, batch: &Batch) -> Result<(), String> {
        let bytes = batch.columns.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0));
        self.bytes += bytes.sum::<usize>();
        if self.bytes > COLLECTED_BYTES_MAX {
            return Err(format!(
                "the result has more than {} MiB; select fewer rows with WHERE or LIMIT",
                COLLECTED_BYTES_MAX >> 20
            ));
        }
        self.rows += batch.rows();
        match &mut self.collected {
            Collected::AsTheyCome(batches) => {
                batches.push(batch.clone());
                Ok(())
            }
            Collected::Final(rows) => rows.add(batch).map_err(|error| error.to_string()),
        }
    }

    fn has_enough(&self) -> bool {
        let wanted = self.output.limit.map(|limit| limit.saturating_add(self.output.offset));
        matches!(self.collected, Collected::AsTheyCome(_)) && wanted.is_some_and(|wanted| self.rows >= wanted)
    }

    fn finish(&mut self) -> Result<(), String> {
        match &mut self.collected {
            Collected::AsTheyCome(batches) => {
                let (mut skipped, mut left) = (self.output.offset, self.output.limit.unwrap_or(usize::MAX));
                for batch in std::mem::take(batches) {
                    let from = skipped.min(batch.rows());
                    let rows = left.min(batch.rows() - from);
                    (skipped, left) = (skipped - from, left - rows);
                    self.taps.send_whole(&self.watched, &batch.slice(from, rows));
                }
            }
            Collected::Final(rows) => {
                let rows = rows.rows(&self.output).map_err(|error| error.to_string())?;
                let zeros = vec![0; rows.num_rows()];
                let slots: Vec<u32> = vec![0; rows.num_rows()];
                let batch = Batch::new(slots.into(), zeros.clone().into(), zeros.into(), rows);
                self.taps.send_whole(&self.watched, &batch);
            }
        }
        Ok(())
    }
}
