//! The owner of the checkpoints in a store: a mark of the catalog that they belong to, so that a server never uses the
//! checkpoints of another catalog.
//!
//! A mark is an object with all its content in its name. Its generation grows each time the checkpoints of a server
//! move to another place: a copy left at an earlier place has a lower generation.
//!
//! What must hold: a marked store always has a mark of its owner. The new mark is written before old ones are deleted.

use bytes::Bytes;

use super::Store;
use crate::StorageError;

/// The folder of marks.
const FOLDER: &str = "owner";

/// The owner of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The number that identifies the server.
    pub server: u64,
    /// How often the checkpoints of the server have moved.
    pub generation: u64,
}

impl Owner {
    /// The marks in a store: usually one, none in a new store. There are several if a process stopped while it wrote a
    /// mark, or if the objects of several servers were put together.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn of(store: &Store) -> Result<Vec<Self>, StorageError> {
        Ok(store.list(FOLDER)?.iter().filter_map(|(name, _)| Self::from_name(name)).collect())
    }

    /// Marks a store with this owner, replacing earlier marks of the same server.
    ///
    /// # Errors
    /// The store cannot be written; the earlier marks are kept then.
    pub fn mark(self, store: &Store) -> Result<(), StorageError> {
        let Self { server, generation } = self;
        let text = format!("These checkpoints belong to the server {server:016x}; place number {generation}.\n");
        match store.put(&self.name(), vec![Bytes::from(text)]) {
            // The mark exists already.
            Ok(()) | Err(StorageError::Taken { .. }) => {}
            Err(error) => return Err(error),
        }
        let outdated = |other: &Self| other.server == server && other.generation < generation;
        Self::of(store)?.into_iter().filter(outdated).try_for_each(|other| other.unmark(store))
    }

    /// Deletes this mark.
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
