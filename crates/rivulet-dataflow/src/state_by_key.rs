//! State by key before it is encoded: its rows are listed once, and then any part of them can be encoded.

use crate::{KeyGroups, KeyHash, StateError, StateFrame, StateSelection};

/// The rows of an operator's state, one for each key.
pub trait StateByKey {
    /// The hash of the key of each row ([`KeyHash::bits`]).
    fn hashes(&self) -> &[u16];

    /// Encodes these rows, ascending, as a frame with the hashes in the column `key_group`.
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

    /// Encodes all rows, one frame for each [part](parts) that has rows, ascending. One part is encoded at a time.
    ///
    /// # Errors
    /// As [`StateByKey::frame`], or an error of `into`.
    fn each_part(
        &self,
        key_groups: KeyGroups,
        rows_max: usize,
        into: &mut dyn FnMut(usize, StateFrame) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let parts = parts(self.hashes().len(), rows_max, key_groups);
        let mut rows_of: Vec<Vec<u32>> = vec![Vec::new(); parts];
        for (row, &hash) in (0u32..).zip(self.hashes()) {
            rows_of[key_groups.instance(key_groups.of(KeyHash::from_bits(hash)), parts)].push(row);
        }
        for (part, rows) in rows_of.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
            into(part, self.frame(&rows)?.grouped(key_groups)?)?;
        }
        Ok(())
    }
}

/// Into how many parts state is cut, each a range of key groups: one part for up to `rows_max` rows, then some, and for
/// very many rows one for each key group. There are few steps, because a change of the number of parts writes all state
/// anew.
pub(crate) fn parts(rows: usize, rows_max: usize, key_groups: KeyGroups) -> usize {
    const SOME: usize = 16;
    let all = usize::from(key_groups.count());
    match rows {
        rows if rows <= rows_max => 1,
        rows if rows <= rows_max.saturating_mul(SOME * SOME) => SOME.min(all),
        _ => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_parts_seldom_changes_and_a_part_has_whole_key_groups() {
        let of_rows = |rows| parts(rows, 4_096, KeyGroups::default());
        assert_eq!([0, 4_096, 4_097, 1 << 20, (1 << 20) + 1, 1 << 30].map(of_rows), [1, 1, 16, 16, 256, 256]);
        let few = KeyGroups::new(8);
        assert_eq!([parts(2, 1, few), parts(257, 1, few), parts(1, 0, few), parts(9, usize::MAX, few)], [8, 8, 8, 1]);
    }
}
