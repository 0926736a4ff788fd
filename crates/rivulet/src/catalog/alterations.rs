//! Queries whose values were changed: their values before the change, as long as state may be found that was saved
//! before it.
//!
//! A change of a query is in its record at once. But a server that starts from saved state also has to know with which
//! values that state was made, and from which position of the log on the new values count. So each change has a number,
//! which the state of the query has too, and a row here until no checkpoint needs it ([`Catalog::forget_alterations`]).

use std::collections::BTreeSet;
use std::ops::Bound;

use redb::ReadableTable;
use rivulet_dataflow::{LogPosition, QueryId};

use super::record::{QueryHead, read_name, read_query, write_query};
use super::storage::Failure;
use super::tables::{ALTERATIONS, META, META_ALTERATION_NEXT, QUERIES};
use super::{ApplicationNumber, Catalog, CatalogError, NewQuery};
use crate::service::{Parameter, ParameterValue};

/// The most rows that are deleted in one transaction, for which others wait.
const FORGOTTEN_AT_ONCE: usize = 100_000;

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

/// The values in the record of a query.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredValues {
    /// As written.
    pub parameters: Vec<Parameter<'static>>,
    /// Its label.
    pub label: Option<String>,
}

impl Catalog {
    /// The values of queries, in the order of the ids; `None` for a query that is not stored. Code that changes values
    /// reads them first, so after a failed write this opens the file again, as a write does.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn read_values(
        &self,
        ids: impl IntoIterator<Item = QueryId>,
    ) -> Result<Vec<Option<StoredValues>>, CatalogError> {
        self.storage.recover().map_err(|failure| failure.into_error(&self.path))?;
        self.look(|transaction| {
            let table = transaction.open_table(QUERIES)?;
            let read = |id: QueryId| {
                let Some(record) = table.get(id)? else { return Ok(None) };
                let mut parameters = Vec::new();
                let QueryHead { label, .. } = read_query(record.value(), &mut parameters)?;
                Ok(Some(StoredValues { label: label.map(str::to_owned), parameters: owned(parameters) }))
            };
            ids.into_iter().map(read).collect()
        })
    }

    /// Gives queries other values, all in one transaction. Returns the number of the first change that is recorded
    /// here; the others have the numbers after it, in their order.
    ///
    /// # Errors
    /// Disk errors, and damage; a query that is not stored. Nothing is changed then.
    pub fn alter_queries(&self, queries: &[AlteredQuery<'_>]) -> Result<u64, CatalogError> {
        self.write(|transaction| {
            let mut meta = transaction.open_table(META)?;
            let first = meta.get(META_ALTERATION_NEXT)?.map_or(1, |next| next.value());
            let noted = queries.iter().filter(|query| query.noted_at.is_some()).count() as u64;
            if noted > 0 {
                meta.insert(META_ALTERATION_NEXT, first + noted)?;
            }
            let (mut table, mut notes) = (transaction.open_table(QUERIES)?, transaction.open_table(ALTERATIONS)?);
            let mut end = notes.upper_bound_mut(Bound::<u64>::Unbounded)?;
            let (mut number, mut buffer, mut before) = (first, Vec::with_capacity(256), Vec::with_capacity(256));
            for AlteredQuery { id, parameters, label, noted_at } in queries {
                before.clear();
                match table.get(id)? {
                    Some(record) => before.extend_from_slice(record.value()),
                    None => return Err(Failure::Damage(format!("the query {id} is not stored"))),
                }
                let (application, name) = read_name(&before)?;
                write_query(&mut buffer, &NewQuery { application, name, parameters, label: *label });
                table.insert(id, buffer.as_slice())?;
                if let Some(position) = noted_at {
                    end.insert_before(number, (*position, *id, before.as_slice()))?;
                    number += 1;
                }
            }
            end.close()?;
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
    /// are `kept`. Deletes some of the changes before it, if there are any.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is deleted then.
    pub fn forget_alterations(&self, before: u64, kept: &BTreeSet<ApplicationNumber>) -> Result<(), CatalogError> {
        let forgotten: Vec<u64> = self.look(|transaction| {
            let mut forgotten = Vec::new();
            for row in transaction.open_table(ALTERATIONS)?.range(..before)? {
                let (number, row) = row?;
                if kept.is_empty() || !kept.contains(&application_of(row.value().2)?) {
                    forgotten.push(number.value());
                }
                if forgotten.len() == FORGOTTEN_AT_ONCE {
                    break;
                }
            }
            Ok(forgotten)
        })?;
        if forgotten.is_empty() {
            return Ok(());
        }
        self.write(|transaction| {
            let mut table = transaction.open_table(ALTERATIONS)?;
            forgotten.iter().try_for_each(|number| Ok(table.remove(number).map(drop)?))
        })
    }
}

fn application_of(record: &[u8]) -> Result<ApplicationNumber, Failure> {
    Ok(read_name(record)?.0)
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
        let read = catalog.read_values([first, first + 1, 99]).expect("read");
        assert_eq!(read, [Some(stored.clone()), Some(stored), None]);
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
