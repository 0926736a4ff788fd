//! Whose checkpoints a store has: a mark for the catalog that they belong to, so that a catalog and checkpoints that do
//! not belong together are not taken for each other's.
//!
//! A mark is an object whose name says everything. Its generation grows each time the checkpoints of a server get
//! another place: a copy that stayed at an earlier place is known by its lower one.
//!
//! What must hold: a store that was marked has a mark of its owner whatever happens: the new one is there before the
//! old ones go.

use bytes::Bytes;

use super::Store;
use crate::StorageError;

/// The folder of marks.
const FOLDER: &str = "owner";

/// Whom a store belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// What tells the server from others.
    pub server: u64,
    /// How often its checkpoints have got a place.
    pub generation: u64,
}

impl Owner {
    /// The marks in a store. There is one, or none where nothing was ever marked; several where a process ended while
    /// it marked, or where somebody has put together what belongs to several.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn of(store: &Store) -> Result<Vec<Self>, StorageError> {
        Ok(store.list(FOLDER)?.iter().filter_map(|(name, _)| Self::from_name(name)).collect())
    }

    /// Marks a store as this one's, in place of earlier marks of the same server.
    ///
    /// # Errors
    /// The store cannot be written; then the marks before are still there.
    pub fn mark(self, store: &Store) -> Result<(), StorageError> {
        let Self { server, generation } = self;
        let text = format!("These checkpoints belong to the server {server:016x}; place number {generation}.\n");
        match store.put(&self.name(), vec![Bytes::from(text)]) {
            // It is there already.
            Ok(()) | Err(StorageError::Taken { .. }) => {}
            Err(error) => return Err(error),
        }
        let outdated = |other: &Self| other.server == server && other.generation < generation;
        Self::of(store)?.into_iter().filter(outdated).try_for_each(|other| other.unmark(store))
    }

    /// Takes this mark away.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn unmark(self, store: &Store) -> Result<(), StorageError> {
        store.delete(&self.name())
    }

    fn name(self) -> String {
        format!("{FOLDER}/{:016x}-{}", self.server, self.generation)
    }

    fn from_name(name: &str) -> Option<Self> {
        let (server, generation) = name.strip_prefix(FOLDER)?.strip_prefix('/')?.split_once('-')?;
        Some(Self { server: u64::from_str_radix(server, 16).ok()?, generation: generation.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_takes_the_place_of_earlier_ones_of_its_server() {
        let store = Store::in_memory().expect("memory");
        assert!(Owner::of(&store).expect("it is read").is_empty());
        let (one, other) = (Owner { server: 7, generation: 1 }, Owner { server: u64::MAX, generation: 9 });
        for mark in [one, other, one, Owner { generation: 3, ..one }, Owner { generation: 3, ..one }] {
            mark.mark(&store).expect("it is marked");
        }
        let mut marks = Owner::of(&store).expect("it is read");
        marks.sort_unstable();
        assert_eq!(marks, [Owner { generation: 3, ..one }, other]);
    }

    #[test]
    fn names_of_others_are_no_marks() {
        for name in ["owner/", "owner/x-1", "owner/7", "owners/7-1", "owner/7-", "applications/1.manifest"] {
            assert_eq!(Owner::from_name(name), None, "{name}");
        }
    }
}
