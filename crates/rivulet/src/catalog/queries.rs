//! The queries in the catalog.

use std::ops::Bound;

use redb::{ReadableTable, ReadableTableMetadata};
use rivulet_dataflow::{LogPosition, QueryId};

use super::lifecycle_log::{Change, LifecycleEntry, note_lifecycle};
use super::record::{self, ApplicationNumber, NewQuery};
use super::storage::guard;
use super::tables::{META, META_QUERY_ID_NEXT, PAUSED, QUERIES};
use super::{Catalog, CatalogError, remove_queries};
use crate::service::Parameter;

/// A query as stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredQuery<'a> {
    /// Its id.
    pub id: QueryId,
    /// Its application.
    pub application: ApplicationNumber,
    /// Its name; empty if that is the one generated from the id.
    pub name: &'a str,
    /// Its parameter values as written.
    pub parameters: &'a [Parameter<'a>],
    /// Its label.
    pub label: Option<&'a str>,
    /// Whether it is paused.
    pub paused: bool,
}

impl Catalog {
    /// Stores queries in one transaction. Returns the id of the first; the others follow it without a gap. It is
    /// fastest with some thousands of queries per call. If the queries are to get no event of the log before a
    /// position, that is recorded.
    ///
    /// # Errors
    /// Disk errors, and damage; none of the queries is stored then.
    pub fn insert_queries(
        &self,
        queries: &[NewQuery<'_>],
        since: Option<LogPosition>,
    ) -> Result<QueryId, CatalogError> {
        self.write(|transaction| {
            let mut meta = transaction.open_table(META)?;
            let first = meta.get(META_QUERY_ID_NEXT)?.map_or(1, |next| next.value());
            meta.insert(META_QUERY_ID_NEXT, first + queries.len() as u64)?;
            let mut table = transaction.open_table(QUERIES)?;
            let mut end = table.upper_bound_mut(Bound::<QueryId>::Unbounded)?;
            let mut buffer = Vec::with_capacity(256);
            for (id, query) in (first..).zip(queries) {
                record::write_query(&mut buffer, query);
                end.insert_before(id, buffer.as_slice())?;
            }
            end.close()?;
            if let (Some(position), Some(further)) = (since, queries.len().checked_sub(1)) {
                let last = first + further as u64;
                note_lifecycle(transaction, &LifecycleEntry { position, first, last, change: Change::Created })?;
            }
            Ok(first)
        })
    }

    /// Removes queries in one transaction; ids that are not stored are ignored.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is removed then.
    pub fn remove_queries(&self, queries: &[QueryId]) -> Result<(), CatalogError> {
        self.write(|transaction| remove_queries(transaction, queries))
    }

    /// Marks queries as paused or not, in one transaction, and records the position in the log at which that happened,
    /// if one is given.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn set_paused(&self, queries: &[QueryId], paused: bool, at: Option<LogPosition>) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let mut table = transaction.open_table(PAUSED)?;
            for id in queries {
                if paused {
                    table.insert(id, ())?;
                } else {
                    table.remove(id)?;
                }
                if let Some(position) = at {
                    let change = if paused { Change::Paused } else { Change::Resumed };
                    note_lifecycle(transaction, &LifecycleEntry { position, first: *id, last: *id, change })?;
                }
            }
            Ok(())
        })
    }

    /// Calls `visit` with every query in order of id, and returns their number. Memory does not grow with that number.
    ///
    /// # Errors
    /// Disk errors, and damage; `visit` has seen the queries before it then.
    pub fn scan_queries(&self, mut visit: impl FnMut(StoredQuery<'_>)) -> Result<u64, CatalogError> {
        self.read(|transaction| {
            // Both tables are in order of id, so one pass over each is enough.
            let mut queries = guard(|| Ok(transaction.open_table(QUERIES)?.range::<QueryId>(..)?))?;
            let mut paused = guard(|| Ok(transaction.open_table(PAUSED)?.range::<QueryId>(..)?))?;
            let mut next_paused = || guard(|| Ok(paused.next().transpose()?.map(|(id, _)| id.value())));
            let mut paused_id = next_paused()?;
            let mut count = 0;
            while let Some((id, value)) = guard(|| Ok(queries.next().transpose()?))? {
                let id = id.value();
                while paused_id.is_some_and(|paused| paused < id) {
                    paused_id = next_paused()?;
                }
                let mut parameters = Vec::new();
                let head = guard(|| Ok(record::read_query(value.value(), &mut parameters)?))?;
                let record::QueryHead { application, name, label } = head;
                let paused = paused_id == Some(id);
                visit(StoredQuery { id, application, name, parameters: &parameters, label, paused });
                count += 1;
            }
            Ok(count)
        })
    }

    /// Reads one query; `None` if it is not stored.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn read_query<T>(
        &self,
        id: QueryId,
        visit: impl FnOnce(StoredQuery<'_>) -> T,
    ) -> Result<Option<T>, CatalogError> {
        self.read(|transaction| {
            let Some(value) = guard(|| Ok(transaction.open_table(QUERIES)?.get(id)?))? else { return Ok(None) };
            let paused = guard(|| Ok(transaction.open_table(PAUSED)?.get(id)?.is_some()))?;
            let mut parameters = Vec::new();
            let head = guard(|| Ok(record::read_query(value.value(), &mut parameters)?))?;
            let record::QueryHead { application, name, label } = head;
            Ok(Some(visit(StoredQuery { id, application, name, parameters: &parameters, label, paused })))
        })
    }

    /// The number of stored queries.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn queries_count(&self) -> Result<u64, CatalogError> {
        self.look(|transaction| Ok(transaction.open_table(QUERIES)?.len()?))
    }
}
