//! Queries whose values were changed: their values before the change, as long as state may be found that was saved
//! before it.
//!
//! A change of a query is in its record at once. But a server that starts from saved state also has to know with which
//! values that state was made, and from which position of the log on the new values count. So each change has a number,
//! which the state of the query has too, and a row here until no checkpoint needs it ([`Catalog::forget_alterations`]).

use std::collections::BTreeSet;
use std::ops::{Bound, Range};

use redb::ReadableTable;
use rivulet_dataflow::{LogPosition, QueryId};

use super::record::{QueryHead, RecordError, read_name, read_query, write_query};
use super::storage::Failure;
use super::tables::{ALTERATIONS, META, META_ALTERATION_NEXT, QUERIES};
use super::{ApplicationNumber, Catalog, CatalogError, NewQuery};
use crate::service::{Parameter, ParameterValue};

/// The most rows that are deleted in one transaction, for which others wait.
const FORGOTTEN_AT_ONCE: usize = 100_000;

/// So many records side by side are taken out and put back together; fewer are changed one by one.
const NEIGHBOURS_MIN: usize = 8;

/// Other values for a stored query.
#[derive(Clone, Copy, Debug)]
pub struct AlteredQuery<'a> {
    /// Its id.
    pub id: QueryId,
    /// All its parameter values as written.
    pub parameters: &'a [Parameter<'a>],
    /// Its label; not empty.
    pub label: Option<&'a str>,
    /// The position of the log from which on these values count, if the values before must be known after a restart.
    pub noted_at: Option<LogPosition>,
}

/// A change of the values of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Alteration {
    /// The number of the change.
    pub number: u64,
    /// The position of the first event for which the new values count.
    pub position: LogPosition,
    /// The query.
    pub query: QueryId,
    /// Its values before, as written.
    pub before: Vec<Parameter<'static>>,
}

/// Records of queries, in one piece of memory: a bulk submission reads a million of them.
#[derive(Debug, Default)]
pub struct StoredRecords {
    bytes: Vec<u8>,
    /// Where the record of each query is; `None` for a query that is not stored.
    places: Vec<Option<Range<usize>>>,
}

/// The values in the record of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredValues<'a> {
    /// As written.
    pub parameters: Vec<Parameter<'a>>,
    /// Its label.
    pub label: Option<&'a str>,
}

impl StoredRecords {
    /// Fails if one of them is not a record of a query.
    fn check(&self) -> Result<(), RecordError> {
        let mut parameters = Vec::new();
        self.places
            .iter()
            .flatten()
            .try_for_each(|place| read_query(&self.bytes[place.clone()], &mut parameters).map(drop))
    }

    /// The values of each query, in the order in which they were asked for; `None` for a query that is not stored.
    pub fn values(&self) -> impl Iterator<Item = Option<StoredValues<'_>>> {
        self.places.iter().map(|place| {
            let mut parameters = Vec::new();
            let record = &self.bytes[place.clone()?];
            let QueryHead { label, .. } = read_query(record, &mut parameters).expect("it was checked when it was read");
            Some(StoredValues { parameters, label })
        })
    }
}

impl Catalog {
    /// The records of queries, in the order of the ids. It is fastest if the ids ascend without gaps. Code that changes
    /// values reads them first, so after a failed write this opens the file again, as a write does.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn read_records(&self, ids: impl IntoIterator<Item = QueryId>) -> Result<StoredRecords, CatalogError> {
        self.storage.recover().map_err(|failure| failure.into_error(&self.path))?;
        self.look(|transaction| {
            let table = transaction.open_table(QUERIES)?;
            let mut records = StoredRecords::default();
            // The rows from a query on, and the query expected next.
            let mut rows = None;
            for id in ids {
                let ahead = match &mut rows {
                    Some((ahead, next)) if *next == id => ahead,
                    _ => &mut rows.insert((table.range(id..)?, id)).0,
                };
                let record = match ahead.next().transpose()? {
                    Some((found, record)) if found.value() == id => record,
                    _ => {
                        rows = None;
                        records.places.push(None);
                        continue;
                    }
                };
                rows.iter_mut().for_each(|(_, next)| *next += 1);
                let start = records.bytes.len();
                records.bytes.extend_from_slice(record.value());
                records.places.push(Some(start..records.bytes.len()));
            }
            records.check()?;
            Ok(records)
        })
    }

    /// Gives queries other values, all in one transaction. It is fastest if the ids ascend without gaps. Returns the
    /// number of the first change that is recorded here; the others have the numbers after it, in their order.
    ///
    /// # Errors
    /// Disk errors, and damage; a query that is not stored. Nothing is changed then.
    pub fn alter_queries(&self, queries: &[AlteredQuery<'_>]) -> Result<u64, CatalogError> {
        self.write(|transaction| {
            let mut by_id: Vec<usize> = (0..queries.len()).collect();
            by_id.sort_by_key(|&place| queries[place].id);
            let mut table = transaction.open_table(QUERIES)?;
            let mut before = vec![Vec::new(); queries.len()];
            let (mut after, mut ends, mut buffer) = (Vec::new(), Vec::new(), Vec::with_capacity(256));
            let mut rewrite = |place: usize, record: &[u8], buffer: &mut Vec<u8>| {
                let AlteredQuery { parameters, label, noted_at, .. } = queries[place];
                if noted_at.is_some() {
                    before[place] = record.to_vec();
                }
                let (application, name) = read_name(record)?;
                write_query(buffer, &NewQuery { application, name, parameters, label });
                Ok::<_, RecordError>(())
            };
            for run in by_id.chunk_by(|&one, &other| queries[one].id + 1 == queries[other].id) {
                let (first, last) = (queries[run[0]].id, queries[run[run.len() - 1]].id);
                let is_missing = || Failure::Damage(format!("one of the queries {first} to {last} is not stored"));
                if run.len() < NEIGHBOURS_MIN {
                    // Its page has few others: it is changed where it is, if there is room.
                    for &place in run {
                        let mut record = table.get_mut(queries[place].id)?.ok_or_else(is_missing)?;
                        rewrite(place, record.value(), &mut buffer)?;
                        match buffer.len() <= record.value().len() {
                            true => record.insert(buffer.as_slice())?,
                            false => {
                                drop(record);
                                table.insert(queries[place].id, buffer.as_slice())?;
                            }
                        }
                    }
                    continue;
                }
                // Neighbours are taken out together, and put back together: so a page is written once for all its rows.
                after.clear();
                ends.clear();
                let mut done = Ok(());
                table.retain_in(first..=last, |id, record| {
                    let written = rewrite(run[(id - first) as usize], record, &mut buffer);
                    done = done.and(written);
                    after.extend_from_slice(&buffer);
                    ends.push(after.len());
                    false
                })?;
                done?;
                if ends.len() < run.len() {
                    return Err(is_missing());
                }
                let (mut gap, mut start) = (table.lower_bound_mut(Bound::Included(first))?, 0);
                for (&place, &end) in run.iter().zip(&ends) {
                    gap.insert_before(queries[place].id, &after[start..end])?;
                    start = end;
                }
                gap.close()?;
            }
            let mut meta = transaction.open_table(META)?;
            let first = meta.get(META_ALTERATION_NEXT)?.map_or(1, |next| next.value());
            let mut notes = transaction.open_table(ALTERATIONS)?;
            let mut end = notes.upper_bound_mut(Bound::<u64>::Unbounded)?;
            let mut number = first;
            for (AlteredQuery { id, noted_at, .. }, before) in queries.iter().zip(&before) {
                if let Some(position) = noted_at {
                    end.insert_before(number, (*position, *id, before.as_slice()))?;
                    number += 1;
                }
            }
            end.close()?;
            if number > first {
                meta.insert(META_ALTERATION_NEXT, number)?;
            }
            Ok(first)
        })
    }

    /// Every recorded change, oldest first.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn alterations(&self) -> Result<Vec<Alteration>, CatalogError> {
        self.look(|transaction| {
            let mut found = Vec::new();
            for row in transaction.open_table(ALTERATIONS)?.iter()? {
                let (number, row) = row?;
                let (position, query, record) = row.value();
                let mut before = Vec::new();
                read_query(record, &mut before)?;
                found.push(Alteration { number: number.value(), position, query, before: owned(before) });
            }
            Ok(found)
        })
    }

    /// The log ends before this position, which is the next that it gives out. Changes at later positions are moved to
    /// this position, as with [`Catalog::clip_lifecycle`].
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn clip_alterations(&self, end: LogPosition) -> Result<(), CatalogError> {
        // In the order of their numbers, positions never decrease.
        let first = self.look(|transaction| {
            let mut first = None;
            for row in transaction.open_table(ALTERATIONS)?.iter()?.rev() {
                let (number, row) = row?;
                if row.value().0 <= end {
                    break;
                }
                first = Some(number.value());
            }
            Ok(first)
        })?;
        let Some(first) = first else { return Ok(()) };
        self.write(|transaction| {
            let mut table = transaction.open_table(ALTERATIONS)?;
            let mut next = Some(first);
            while let Some(number) = next {
                let row = table.get(number)?.map(|row| (row.value().1, row.value().2.to_vec()));
                if let Some((query, before)) = row {
                    table.insert(number, (end, query, before.as_slice()))?;
                }
                next = table.range(number + 1..)?.next().transpose()?.map(|(number, _)| number.value());
            }
            Ok(())
        })
    }

    /// The number of the next change.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn alteration_next(&self) -> Result<u64, CatalogError> {
        self.look(|transaction| {
            Ok(transaction.open_table(META)?.get(META_ALTERATION_NEXT)?.map_or(1, |next| next.value()))
        })
    }

    /// There is no state any more that was saved before the change with this number, except of the applications that
    /// are `kept`. Deletes the changes before it, in several transactions if they are many.
    ///
    /// # Errors
    /// Disk errors, and damage; some may be deleted then.
    pub fn forget_alterations(&self, before: u64, kept: &BTreeSet<ApplicationNumber>) -> Result<(), CatalogError> {
        let is_kept = |record: &[u8]| Ok::<_, Failure>(kept.contains(&read_name(record)?.0));
        let mut from = 0;
        loop {
            // The number behind the next rows, and whether any of them is forgotten.
            let (end, is_any) = self.look(|transaction| {
                let (mut end, mut is_any) = (from, false);
                for row in transaction.open_table(ALTERATIONS)?.range(from..before)?.take(FORGOTTEN_AT_ONCE) {
                    let (number, row) = row?;
                    end = number.value() + 1;
                    is_any |= !is_kept(row.value().2)?;
                }
                Ok((end, is_any))
            })?;
            if end == from {
                return Ok(());
            }
            if is_any {
                self.write(|transaction| {
                    let mut table = transaction.open_table(ALTERATIONS)?;
                    Ok(table.retain_in(from..end, |_, (_, _, record)| is_kept(record).unwrap_or(true))?)
                })?;
            }
            from = end;
        }
    }
}

fn owned(parameters: Vec<Parameter<'_>>) -> Vec<Parameter<'static>> {
    let owned = |(name, value): Parameter<'_>| (name.into_owned().into(), value.into_owned());
    parameters.into_iter().map(owned).collect()
}

impl ParameterValue<'_> {
    /// The same value without borrowing.
    fn into_owned(self) -> ParameterValue<'static> {
        match self {
            Self::Null => ParameterValue::Null,
            Self::Bool(value) => ParameterValue::Bool(value),
            Self::Int(value) => ParameterValue::Int(value),
            Self::Float(value) => ParameterValue::Float(value),
            Self::Text(value) => ParameterValue::Text(value.into_owned().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(limit: i64) -> Vec<Parameter<'static>> {
        vec![("home".into(), ParameterValue::Text("42".into())), ("limit".into(), ParameterValue::Int(limit))]
    }

    #[test]
    fn what_values_were_before_is_known_until_it_is_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let catalog = Catalog::open(folder.path()).expect("a catalog");
        let (one, other) = (values(1), values(2));
        let query = NewQuery { application: 3, name: "q", parameters: &one, label: Some("home 42") };
        let first = catalog.insert_queries(&[query; 2], None).expect("stored");
        let alter =
            |id, noted_at| catalog.alter_queries(&[AlteredQuery { id, parameters: &other, label: None, noted_at }]);
        assert_eq!(alter(first, Some(7)).expect("altered"), 1);
        alter(first + 1, None).expect("altered");
        assert!(alter(first + 2, Some(9)).is_err(), "it is not there, and nothing is changed");
        assert_eq!(catalog.alteration_next().expect("a number"), 2);
        assert_eq!(alter(first, Some(9)).expect("altered"), 2);
        drop(catalog);
        let catalog = Catalog::open(folder.path()).expect("a catalog");
        let stored = StoredValues { parameters: other.clone(), label: None };
        for ids in [vec![first, first + 1, 99], vec![first + 1, 99, first], vec![]] {
            let expected: Vec<_> = ids.iter().map(|&id| (id != 99).then(|| stored.clone())).collect();
            let read = catalog.read_records(ids).expect("read");
            assert_eq!(read.values().collect::<Vec<_>>(), expected);
        }
        let name = catalog.read_query(first, |query| (query.name.to_owned(), query.application)).expect("read");
        assert_eq!(name, Some(("q".to_owned(), 3)), "all else stays");
        let of = |number, position, before: &[Parameter<'static>]| Alteration {
            number,
            position,
            query: first,
            before: before.to_vec(),
        };
        assert_eq!(catalog.alterations().expect("read"), [of(1, 7, &one), of(2, 9, &other)]);
        let changes = catalog.changes();
        catalog.clip_alterations(9).expect("nothing to clip");
        assert_eq!(catalog.changes(), changes);
        catalog.clip_alterations(8).expect("clipped");
        assert_eq!(catalog.alterations().expect("read"), [of(1, 7, &one), of(2, 8, &other)]);
        catalog.clip_alterations(6).expect("clipped");
        assert_eq!(catalog.alterations().expect("read"), [of(1, 6, &one), of(2, 6, &other)]);
        catalog.forget_alterations(3, &BTreeSet::from([3])).expect("of its application nothing is forgotten");
        assert_eq!(catalog.alterations().expect("read").len(), 2);
        catalog.forget_alterations(2, &BTreeSet::from([4])).expect("forgotten");
        assert_eq!(catalog.alterations().expect("read"), [of(2, 6, &other)]);
        catalog.forget_alterations(3, &BTreeSet::new()).expect("forgotten");
        assert_eq!((catalog.alterations().expect("read"), catalog.alteration_next().expect("a number")), (vec![], 3));
    }
}
