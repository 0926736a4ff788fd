//! From which positions of the log of events on queries get events: when they were created, paused and resumed, as far
//! as earlier events may be replayed.
//!
//! Queries that were created together have one row, so a bulk of thousands costs one row. Rows are in the order of the
//! statements. Their positions are not always in order: a query that is paused may have its last event long before the
//! newest event of the log. A row that repeats the change of the row before of its query corrects the position. Rows
//! that no replay can need are deleted when a checkpoint allows it ([`Catalog::forget_lifecycle`]).

use std::collections::HashMap;

use redb::{ReadableTable, WriteTransaction};
use rivulet_dataflow::{LogPosition, QueryId};

use super::storage::Failure;
use super::tables::LIFECYCLE_LOG;
use super::{Catalog, CatalogError};

/// The most rows that are deleted in one transaction, for which others wait.
const FORGOTTEN_AT_ONCE: usize = 100_000;

/// What happened to queries at a position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They were created, and get events from there on.
    Created,
    /// They get no events from there on.
    Paused,
    /// They get events again from there on.
    Resumed,
}

impl Change {
    const ALL: [Self; 3] = [Self::Created, Self::Paused, Self::Resumed];

    /// Its number in the catalog.
    fn number(self) -> u8 {
        match self {
            Self::Created => 0,
            Self::Paused => 1,
            Self::Resumed => 2,
        }
    }
}

/// A change of the lifecycle of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifecycleEntry {
    /// The position of the first event after it.
    pub position: LogPosition,
    /// The first of the queries.
    pub first: QueryId,
    /// The last of them; the queries between belong to it too.
    pub last: QueryId,
    /// What happened.
    pub change: Change,
}

impl Catalog {
    /// Queries of these ranges (first, last, position), which were created just now, get events from exactly these
    /// positions on: events that came while they were written found no route to them yet.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is recorded then.
    pub fn note_created(&self, ranges: &[(QueryId, QueryId, LogPosition)]) -> Result<(), CatalogError> {
        let note = |transaction: &WriteTransaction, &(first, last, position)| {
            note_lifecycle(transaction, &LifecycleEntry { position, first, last, change: Change::Created })
        };
        self.write(|transaction| ranges.iter().try_for_each(|range| note(transaction, range)))
    }

    /// What happened after a position of the log, oldest first.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn lifecycle_after(&self, position: LogPosition) -> Result<Vec<LifecycleEntry>, CatalogError> {
        self.look(|transaction| {
            let mut found: Vec<LifecycleEntry> = Vec::new();
            // The place of the last entry of each query that was paused or resumed.
            let mut last: HashMap<QueryId, usize> = HashMap::new();
            for row in transaction.open_table(LIFECYCLE_LOG)?.iter()? {
                let entry = read_row(row?.1.value())?;
                if entry.change != Change::Created {
                    match last.insert(entry.first, found.len()) {
                        Some(place) if found[place].change == entry.change => {
                            last.insert(entry.first, place);
                            found[place] = entry;
                            continue;
                        }
                        _ => {}
                    }
                }
                found.push(entry);
            }
            found.retain(|entry| entry.position > position);
            Ok(found)
        })
    }

    /// The log ends before this position, which is the next that it gives out. Entries at later positions are moved to
    /// this position: the events between were lost before they were on disk.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn clip_lifecycle(&self, position: LogPosition) -> Result<(), CatalogError> {
        let clipped = self.look(|transaction| {
            let mut clipped = Vec::new();
            for row in transaction.open_table(LIFECYCLE_LOG)?.iter()? {
                let (number, row) = row?;
                let (at, first, last, change) = row.value();
                if at > position {
                    clipped.push((number.value(), (position, first, last, change)));
                }
            }
            Ok(clipped)
        })?;
        if clipped.is_empty() {
            return Ok(());
        }
        self.write(|transaction| {
            let mut table = transaction.open_table(LIFECYCLE_LOG)?;
            clipped.iter().try_for_each(|(number, row)| Ok(table.insert(number, row).map(drop)?))
        })
    }

    /// No replay begins before this position any more: deletes some of the entries up to there, if there are any.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is deleted then.
    pub fn forget_lifecycle(&self, position: LogPosition) -> Result<(), CatalogError> {
        let has_any = self.look(|transaction| {
            let table = transaction.open_table(LIFECYCLE_LOG)?;
            let first = table.first()?.map(|(_, row)| read_row(row.value())).transpose()?;
            Ok(first.is_some_and(|first| first.position <= position))
        })?;
        if !has_any {
            return Ok(());
        }
        self.write(|transaction| {
            let mut table = transaction.open_table(LIFECYCLE_LOG)?;
            for _ in 0..FORGOTTEN_AT_ONCE {
                let first = match table.first()? {
                    Some((number, row)) => Some((number.value(), read_row(row.value())?.position)),
                    None => None,
                };
                match first {
                    Some((number, at)) if at <= position => drop(table.remove(number)?),
                    _ => break,
                }
            }
            Ok(())
        })
    }
}

/// Records an entry.
pub(super) fn note_lifecycle(transaction: &WriteTransaction, entry: &LifecycleEntry) -> Result<(), Failure> {
    let LifecycleEntry { position, first, last, change } = *entry;
    let mut table = transaction.open_table(LIFECYCLE_LOG)?;
    let number = table.last()?.map_or(0, |(last, _)| last.value() + 1);
    table.insert(number, (position, first, last, change.number()))?;
    Ok(())
}

fn read_row((position, first, last, change): (LogPosition, QueryId, QueryId, u8)) -> Result<LifecycleEntry, Failure> {
    if first > last {
        return Err(Failure::Damage(format!("something happened to the queries from {first} to {last}")));
    }
    let Some(change) = Change::ALL.into_iter().find(|known| known.number() == change) else {
        return Err(Failure::Damage(format!("what happened to queries has the number {change}, which nothing has")));
    };
    Ok(LifecycleEntry { position, first, last, change })
}

#[cfg(test)]
mod tests {
    use super::super::tables::{META, META_FORMAT_VERSION};
    use super::super::{FORMAT_VERSION, NewQuery};
    use super::*;

    #[test]
    fn what_happened_behind_a_position_is_found_and_what_was_before_forgotten() {
        let catalog = Catalog::in_memory().expect("a catalog");
        let query = NewQuery { application: 0, name: "", parameters: &[], label: None };
        assert_eq!(catalog.insert_queries(&[query; 3], Some(5)).expect("stored"), 1);
        assert_eq!(catalog.insert_queries(&[query; 2], None).expect("stored"), 4);
        catalog.set_paused(&[2], true, Some(8)).expect("paused");
        catalog.set_paused(&[3], true, None).expect("paused");
        catalog.set_paused(&[2], false, Some(8)).expect("resumed");
        assert_eq!(catalog.insert_queries(&[], Some(9)).expect("nothing"), 6);
        let of = |position, first, last, change| LifecycleEntry { position, first, last, change };
        let all = [of(5, 1, 3, Change::Created), of(8, 2, 2, Change::Paused), of(8, 2, 2, Change::Resumed)];
        assert_eq!(catalog.lifecycle_after(0).expect("read"), all);
        assert_eq!(catalog.lifecycle_after(5).expect("read"), all[1..]);
        assert_eq!(catalog.lifecycle_after(8).expect("read"), []);
        let changes = catalog.changes();
        catalog.forget_lifecycle(4).expect("nothing to forget");
        assert_eq!((catalog.changes(), catalog.lifecycle_after(0).expect("read").len()), (changes, 3));
        catalog.forget_lifecycle(5).expect("forgotten");
        assert_eq!(catalog.lifecycle_after(0).expect("read"), all[1..]);
        catalog.clip_lifecycle(8).expect("nothing to clip");
        assert_eq!(catalog.changes(), changes + 1);
        catalog.clip_lifecycle(7).expect("clipped");
        let clipped = [of(7, 2, 2, Change::Paused), of(7, 2, 2, Change::Resumed)];
        assert_eq!(catalog.lifecycle_after(0).expect("read"), clipped);
        catalog.forget_lifecycle(100).expect("forgotten");
        assert_eq!(catalog.lifecycle_after(0).expect("read"), []);
    }

    #[test]
    fn a_query_that_is_paused_at_an_earlier_position_hides_no_other_entry() {
        let catalog = Catalog::in_memory().expect("a catalog");
        let query = NewQuery { application: 0, name: "", parameters: &[], label: None };
        catalog.insert_queries(&[query; 2], Some(2)).expect("stored");
        catalog.insert_queries(&[query], Some(8)).expect("stored");
        catalog.set_paused(&[1], true, Some(9)).expect("paused");
        catalog.set_paused(&[1], true, Some(5)).expect("the exact position");
        let of = |position, first, last, change| LifecycleEntry { position, first, last, change };
        let (created, paused) = (of(8, 3, 3, Change::Created), of(5, 1, 1, Change::Paused));
        assert_eq!(catalog.lifecycle_after(4).expect("read"), [created, paused]);
        assert_eq!(catalog.lifecycle_after(6).expect("read"), [created], "it has had no event for long");
        catalog.clip_lifecycle(6).expect("clipped");
        let clipped = [LifecycleEntry { position: 6, ..created }, paused];
        assert_eq!(catalog.lifecycle_after(4).expect("read"), clipped);
        catalog.forget_lifecycle(6).expect("forgotten");
        assert_eq!(catalog.lifecycle_after(0).expect("read"), []);
    }

    #[test]
    fn a_catalog_of_the_version_before_says_nothing_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let catalog = Catalog::open(folder.path()).expect("a catalog");
        let query = NewQuery { application: 0, name: "q", parameters: &[], label: None };
        catalog.insert_queries(&[query], None).expect("stored");
        let to_before = |transaction: &WriteTransaction| {
            transaction.delete_table(LIFECYCLE_LOG)?;
            transaction.open_table(META)?.insert(META_FORMAT_VERSION, FORMAT_VERSION - 1)?;
            Ok(())
        };
        catalog.write(to_before).expect("written");
        drop(catalog);
        let catalog = Catalog::open(folder.path()).expect("it is read");
        assert_eq!(catalog.lifecycle_after(0).expect("read"), []);
        catalog.set_paused(&[1], true, Some(3)).expect("paused");
        assert_eq!(catalog.lifecycle_after(0).expect("read").len(), 1);
    }
}
