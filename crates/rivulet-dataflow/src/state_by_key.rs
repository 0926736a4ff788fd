//! State by key that is not encoded yet: which rows it has is said once, and then any part of them is encoded.

use crate::{KeyGroup, KeyGroups, KeyHash, StateError, StateFrame, StateSelection};

/// The rows of an operator's state, each of a key.
pub trait StateByKey {
    /// By row, the hash of its key ([`KeyHash::bits`]).
    fn hashes(&self) -> &[u16];

    /// These rows, ascending, as a frame with the hashes in the column `key_group`.
    ///
    /// # Errors
    /// State that cannot be exported.
    fn frame(&self, rows: &[u32]) -> Result<StateFrame, StateError>;

    /// The hashes of some rows.
    fn hashes_of(&self, rows: &[u32]) -> Vec<u16> {
        rows.iter().map(|&row| self.hashes()[row as usize]).collect()
    }

    /// The selected rows as a frame. The state of big queries is that of slot 0.
    ///
    /// # Errors
    /// As [`StateByKey::frame`].
    fn select(&self, selection: &StateSelection) -> Result<StateFrame, StateError> {
        let rows = (0u32..).zip(self.hashes());
        let selected = rows.filter(|(_, hash)| selection.selects(0, KeyHash::from_bits(**hash)));
        self.frame(&selected.map(|(row, _)| row).collect::<Vec<_>>())
    }

    /// All rows, a frame for each key group that has any, ascending; one is held at a time.
    ///
    /// # Errors
    /// As [`StateByKey::frame`], or an error of `into`.
    fn each_key_group(
        &self,
        key_groups: KeyGroups,
        into: &mut dyn FnMut(KeyGroup, StateFrame) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); key_groups.count().into()];
        for (row, &hash) in (0u32..).zip(self.hashes()) {
            rows_of[usize::from(key_groups.of(KeyHash::from_bits(hash)).index())].push(row);
        }
        for (index, rows) in (0..).zip(rows_of).filter(|(_, rows)| !rows.is_empty()) {
            into(KeyGroup::from_index(index), self.frame(&rows)?.grouped(key_groups)?)?;
        }
        Ok(())
    }
}
