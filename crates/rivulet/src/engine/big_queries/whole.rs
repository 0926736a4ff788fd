//! A SELECT over reference tables alone reads their rows, which have an end. Beside a source, a table is looked up.

use std::sync::Arc;

use arrow::array::RecordBatch;
use rivulet_dataflow::{Polled, Refusals, Source, SourceError};
use rivulet_operators::Table;
use rivulet_sql::{BigQuery, Name, PlannedSource, Scope, SourceDeclaration, relations_of};

use crate::service::{ErrorKind, ResourceKind, ServiceError};

/// Whether the reader may subscribe to a resource of this name.
pub(in crate::engine) type May<'a> = &'a dyn Fn(ResourceKind, &str) -> Result<(), ServiceError>;

/// The beginning of the address of a table's rows. No statement can name it: it is not a connector.
const TABLE: &str = "table:";

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
