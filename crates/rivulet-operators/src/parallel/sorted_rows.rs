//! The numbers of rows in an order, with insertions in the middle.
//!
//! A few rows are in one piece. Many rows, as with ties or if all rows of a partition are kept, are in several pieces,
//! so that an insertion moves a bounded number of rows.

use std::cmp::Ordering;

/// The most rows of a piece.
const PIECE_ROWS_MAX: usize = 1024;

/// Rows in their order.
pub(crate) enum SortedRows {
    /// In one piece.
    Few(Vec<u32>),
    /// In pieces, none of them empty. Boxed, because most partitions have few rows.
    Many(Box<Pieces>),
}

pub(crate) struct Pieces {
    pieces: Vec<Vec<u32>>,
    rows: usize,
}

impl Default for SortedRows {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl SortedRows {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(rows) => rows.len(),
            Self::Many(many) => many.rows,
        }
    }

    /// The row at an index, which must exist.
    pub(crate) fn get(&self, at: usize) -> u32 {
        match self {
            Self::Few(rows) => rows[at],
            Self::Many(many) => {
                let (piece, place) = many.place(at);
                many.pieces[piece][place]
            }
        }
    }

    /// All rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let (few, many) = match self {
            Self::Few(rows) => (&rows[..], &[][..]),
            Self::Many(many) => (&[][..], &many.pieces[..]),
        };
        few.iter().chain(many.iter().flatten()).copied()
    }

    /// Returns the index of a row, or the index where it belongs. `order` says how an existing row compares with it.
    pub(crate) fn search(&self, mut order: impl FnMut(u32) -> Ordering) -> Result<usize, usize> {
        match self {
            Self::Few(rows) => rows.binary_search_by(|&row| order(row)),
            Self::Many(many) => {
                let piece = many.pieces.partition_point(|piece| piece.last().is_some_and(|&row| order(row).is_lt()));
                let before = many.before(piece);
                let Some(piece) = many.pieces.get(piece) else { return Err(before) };
                match piece.binary_search_by(|&row| order(row)) {
                    Ok(place) => Ok(before + place),
                    Err(place) => Err(before + place),
                }
            }
        }
    }

    /// The number of rows at the beginning for which `is_such` holds. It must not hold for any row behind them.
    pub(crate) fn partition_point(&self, mut is_such: impl FnMut(u32) -> bool) -> usize {
        let (Ok(place) | Err(place)) = self.search(|row| if is_such(row) { Ordering::Less } else { Ordering::Greater });
        place
    }

    /// Inserts a row before the one at an index.
    pub(crate) fn insert(&mut self, at: usize, row: u32) {
        match self {
            Self::Few(rows) => {
                rows.insert(at, row);
                if rows.len() > PIECE_ROWS_MAX {
                    let pieces: Vec<Vec<u32>> = rows.chunks(PIECE_ROWS_MAX / 2).map(<[u32]>::to_vec).collect();
                    *self = Self::Many(Box::new(Pieces { rows: rows.len(), pieces }));
                }
            }
            Self::Many(many) => {
                // At the end of a piece rather than at the beginning of the next one, which may not exist.
                let (number, place) = if at == 0 { (0, 0) } else { many.place(at - 1) };
                let piece = &mut many.pieces[number];
                piece.insert(place + usize::from(at > 0), row);
                if piece.len() > PIECE_ROWS_MAX {
                    let behind = piece.split_off(PIECE_ROWS_MAX / 2);
                    many.pieces.insert(number + 1, behind);
                }
                many.rows += 1;
            }
        }
    }

    /// Removes the row at an index.
    pub(crate) fn remove(&mut self, at: usize) -> u32 {
        match self {
            Self::Few(rows) => rows.remove(at),
            Self::Many(many) => {
                let (number, place) = many.place(at);
                let row = many.pieces[number].remove(place);
                many.rows -= 1;
                if many.pieces[number].is_empty() {
                    many.pieces.remove(number);
                }
                self.come_together();
                row
            }
        }
    }

    /// Removes all rows from an index on, and adds them to `gone`.
    pub(crate) fn truncate(&mut self, rows: usize, gone: &mut Vec<u32>) {
        match self {
            Self::Few(few) => gone.extend(few.drain(rows.min(few.len())..)),
            Self::Many(many) if rows < many.rows => {
                let (number, place) = many.place(rows);
                gone.extend(many.pieces[number].drain(place..));
                gone.extend(many.pieces.drain(number + 1..).flatten());
                if place == 0 {
                    many.pieces.pop();
                }
                many.rows = rows;
                self.come_together();
            }
            Self::Many(_) => {}
        }
    }

    /// Puts the rows into one piece if they have become few.
    fn come_together(&mut self) {
        if let Self::Many(many) = self
            && many.rows <= PIECE_ROWS_MAX / 4
        {
            *self = Self::Few(many.pieces.concat());
        }
    }

    /// Memory held beside the value itself, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Few(rows) => rows.capacity() * 4,
            Self::Many(many) => {
                let rows: usize = many.pieces.iter().map(|piece| piece.capacity() * 4).sum();
                size_of::<Pieces>() + many.pieces.capacity() * size_of::<Vec<u32>>() + rows
            }
        }
    }
}

impl Pieces {
    /// The piece of the row at an index, and its index in the piece.
    fn place(&self, mut at: usize) -> (usize, usize) {
        for (number, piece) in self.pieces.iter().enumerate() {
            match at.checked_sub(piece.len()) {
                None => return (number, at),
                Some(rest) => at = rest,
            }
        }
        unreachable!("a place is one of the rows'")
    }

    /// The number of rows before a piece.
    fn before(&self, piece: usize) -> usize {
        self.pieces[..piece].iter().map(Vec::len).sum()
    }
}

impl From<Vec<u32>> for SortedRows {
    fn from(rows: Vec<u32>) -> Self {
        match rows.len() {
            0..=PIECE_ROWS_MAX => Self::Few(rows),
            _ => {
                let pieces = rows.chunks(PIECE_ROWS_MAX / 2).map(<[u32]>::to_vec).collect();
                Self::Many(Box::new(Pieces { rows: rows.len(), pieces }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Compares with a vector.
        #[test]
        fn rows_are_in_their_order(
            begin in 0..3 * PIECE_ROWS_MAX as u32,
            steps in prop::collection::vec((0..5u8, any::<prop::sample::Index>(), 1..900usize), 1..40),
        ) {
            // Each twice, so that there are equal ones.
            let mut model: Vec<u32> = (0..begin).map(|row| row / 2 * 4).collect();
            let mut rows = SortedRows::from(model.clone());
            let (mut gone, mut all_gone) = (Vec::new(), Vec::new());
            for (what, which, times) in steps {
                for time in 0..times {
                    match what {
                        0..=2 => {
                            let row = which.index(begin as usize + 1) as u32 * 2 + time as u32 * 3;
                            let (Ok(place) | Err(place)) = rows.search(|known| known.cmp(&row));
                            rows.insert(place, row);
                            model.insert(place, row);
                        }
                        3 if !model.is_empty() => {
                            let row = model[which.index(model.len())];
                            let place = rows.search(|known| known.cmp(&row)).unwrap();
                            prop_assert_eq!(rows.get(place), row);
                            prop_assert_eq!(rows.remove(place), model.remove(place));
                        }
                        _ => {
                            let left = model.len() - which.index(model.len() / 8 + 1);
                            rows.truncate(left, &mut gone);
                            all_gone.extend(model.drain(left..));
                        }
                    }
                }
                prop_assert!(model.is_sorted() && rows.iter().eq(model.iter().copied()));
                prop_assert_eq!(rows.len(), model.len());
                let half = model.len() as u32;
                prop_assert_eq!(rows.partition_point(|row| row < half), model.partition_point(|&row| row < half));
            }
            prop_assert_eq!(gone, all_gone);
            prop_assert!(rows.memory_bytes() >= rows.len() * 4);
        }
    }
}
