//! A pack: the pieces that one epoch wrote, in one object.
//!
//! ```text
//! mark (8 bytes) | pieces, end to end | index (JSON) | length of the index (8) | checksum of the index (8)
//! ```
//!
//! Numbers are little-endian. For every piece the index has its name, epoch, offset and checksum (XXH3, 64 bits).

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::piece::Piece;
use crate::{StorageError, Store};

const MARK: &[u8; 8] = b"RVPACK01";
const ENDING: &str = "pack";
const TRAILER_BYTES: u64 = 16;

/// Pieces with at most this many bytes between them are read in one request,
const READ_GAP_BYTES_MAX: u64 = 256 << 10;

/// which reads at most this many bytes, unless it is for a single piece.
const READ_BYTES_MAX: u64 = 16 << 20;

/// The index entry of a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The epoch that first wrote the piece. Later pieces of the same name apply after it.
    pub(super) written: u64,
    offset: u64,
    bytes: u64,
    pub(super) checksum: u64,
}

impl Entry {
    /// An entry for a piece of this epoch, before it is written.
    pub(super) fn new(piece: &Piece, written: u64) -> Self {
        Self { name: piece.name.clone(), written, offset: 0, bytes: 0, checksum: piece.checksum }
    }
}

/// A pack with its index and its live pieces.
#[derive(Clone, Debug)]
pub(super) struct Pack {
    object: String,
    bytes: u64,
    /// The checksum of its index, by which its manifest identifies it.
    index_checksum: u64,
    entries: Vec<Entry>,
    live: Vec<bool>,
    /// The names of damaged pieces, and what is wrong with each.
    damage: Vec<(String, String)>,
}

/// A pack that an epoch needs, in its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Used {
    /// The epoch that wrote the pack.
    pub(super) epoch: u64,
    /// Which of its pieces are live: one bit each, starting at the lowest bit of the first byte.
    pub(super) live: Vec<u8>,
    /// The checksum of its index; manifests of the first versions have none.
    #[serde(default)]
    pub(super) index_checksum: Option<u64>,
}

/// The epoch whose pack has this name.
pub(super) fn number_of(line: &str, name: &str) -> Option<u64> {
    number_with_ending(line, name, ENDING)
}

/// The number in a name, which is always written with twelve digits; `None` for other names.
pub(super) fn number_with_ending(line: &str, name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_prefix(line)?.strip_prefix('/')?.strip_suffix(ending)?.strip_suffix('.')?;
    let is_ours = digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_ours)
}

impl Pack {
    /// Writes the pack of an epoch.
    pub(super) fn write(
        store: &Store,
        line: &str,
        epoch: u64,
        pieces: impl Iterator<Item = (Entry, Bytes)>,
    ) -> Result<Self, StorageError> {
        let object = format!("{line}/{epoch:012}.{ENDING}");
        let mut parts = vec![Bytes::from_static(MARK)];
        let mut end = MARK.len() as u64;
        let mut entries = Vec::new();
        for (entry, bytes) in pieces {
            let length = bytes.len() as u64;
            entries.push(Entry { offset: end, bytes: length, ..entry });
            end += length;
            parts.push(bytes);
        }
        let mut index = serde_json::to_vec(&entries).expect("numbers and texts are always JSON");
        let trailer = [index.len() as u64, xxh3_64(&index)];
        index.extend(trailer.iter().flat_map(|number| number.to_le_bytes()));
        let bytes = end + index.len() as u64;
        parts.push(index.into());
        store.put(&object, parts)?;
        let live = vec![true; entries.len()];
        Ok(Self { object, bytes, index_checksum: trailer[1], live, entries, damage: Vec::new() })
    }

    /// Reads the index of the pack of an epoch.
    pub(super) fn open(store: &Store, line: &str, epoch: u64) -> Result<Self, StorageError> {
        let object = format!("{line}/{epoch:012}.{ENDING}");
        let bytes = store.bytes(&object)?;
        let damaged = |detail: &str| StorageError::damaged(&object, detail);
        let ends_early = || damaged("it ends early");
        let least = MARK.len() as u64 + TRAILER_BYTES;
        let index_end = bytes.checked_sub(TRAILER_BYTES).filter(|_| bytes >= least).ok_or_else(ends_early)?;
        let trailer = store.get_range(&object, index_end..bytes)?;
        let number =
            |at: usize| trailer.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let (length, checksum) = number(0).zip(number(8)).ok_or_else(ends_early)?;
        let begin = index_end.checked_sub(length).filter(|&begin| begin >= MARK.len() as u64);
        let index = store.get_range(&object, begin.ok_or_else(|| damaged("its index has no place"))?..index_end)?;
        if xxh3_64(&index) != checksum {
            return Err(damaged("the checksum of its index is wrong"));
        }
        let entries: Vec<Entry> = serde_json::from_slice(&index).map_err(|error| damaged(&error.to_string()))?;
        let live = vec![true; entries.len()];
        Ok(Self { live, object, bytes, index_checksum: checksum, entries, damage: Vec::new() })
    }

    /// Marks only the pieces as live that a manifest lists.
    pub(super) fn keep(&mut self, used: &Used) -> Result<(), StorageError> {
        let live = &used.live;
        // The pack is intact but belongs to another name: files were copied.
        if used.index_checksum.is_some_and(|expected| expected != self.index_checksum) {
            return Err(StorageError::damaged(&self.object, "it is another pack than its manifest says"));
        }
        if live.len() != self.entries.len().div_ceil(8) {
            return Err(StorageError::damaged(&self.object, "it has other pieces than its manifest says"));
        }
        let bit = |index: usize| live[index / 8] & (1 << (index % 8)) != 0;
        self.live.iter_mut().enumerate().for_each(|(index, is_live)| *is_live = bit(index));
        Ok(())
    }

    /// The manifest's entry for this pack.
    pub(super) fn used(&self, epoch: u64) -> Used {
        let mut live = vec![0; self.entries.len().div_ceil(8)];
        let counting = self.live.iter().enumerate().filter(|(_, is_live)| **is_live);
        counting.for_each(|(index, _)| live[index / 8] |= 1 << (index % 8));
        Used { epoch, live, index_checksum: Some(self.index_checksum) }
    }

    /// Marks the pieces of these names as not live.
    pub(super) fn forget(&mut self, names: &BTreeSet<&str>) {
        let of_names = self.entries.iter().map(|entry| names.contains(entry.name.as_str()));
        self.live.iter_mut().zip(of_names).for_each(|(is_live, goes)| *is_live &= !goes);
    }

    pub(super) fn forget_all(&mut self) {
        self.live.fill(false);
    }

    /// The live pieces.
    pub(super) fn live(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().zip(&self.live).filter(|(_, is_live)| **is_live).map(|(entry, _)| entry)
    }

    /// Forces it to disk, if it is in a folder.
    pub(super) fn make_durable(&self, store: &Store) -> Result<(), StorageError> {
        store.make_durable(&self.object)
    }

    /// Reads the live pieces in the order of their offsets. Neighbouring pieces are read in one request: a request to
    /// an object store takes as long as the transfer of some hundred kilobytes.
    pub(super) fn read_live(&self, store: &Store, mut take: impl FnMut(&Entry, Bytes)) -> Result<(), StorageError> {
        let mut left: Vec<&Entry> = self.live().collect();
        left.sort_by_key(|entry| entry.offset);
        let mut left = &left[..];
        while let Some((first, rest)) = left.split_first() {
            let mut end = self.end_of(first)?;
            let mut count = 1;
            for entry in rest {
                let entry_end = self.end_of(entry)?;
                if entry.offset > end + READ_GAP_BYTES_MAX || entry_end - first.offset > READ_BYTES_MAX {
                    break;
                }
                (end, count) = (end.max(entry_end), count + 1);
            }
            let (together, behind) = left.split_at(count);
            let bytes = store.read(&self.object, first.offset..end)?;
            for entry in together {
                let begin = (entry.offset - first.offset) as usize;
                let piece =
                    bytes.get(begin..begin + entry.bytes as usize).filter(|piece| xxh3_64(piece) == entry.checksum);
                // The pieces share the buffer, which leaves memory with the last of them.
                take(entry, bytes.slice_ref(piece.ok_or_else(|| self.damaged(entry))?));
            }
            left = behind;
        }
        Ok(())
    }

    /// Reads the live pieces of one name.
    pub(super) fn read_named(
        &self,
        store: &Store,
        name: &str,
        mut take: impl FnMut(&Entry, Bytes),
    ) -> Result<(), StorageError> {
        self.live().filter(|entry| entry.name == name).try_for_each(|entry| {
            take(entry, self.read(store, entry)?);
            Ok(())
        })
    }

    /// Reads every live piece by itself, and records the damaged ones.
    pub(super) fn find_damage(&mut self, store: &Store) -> Result<(), StorageError> {
        let mut damage = Vec::new();
        for entry in self.live() {
            match self.read(store, entry) {
                Ok(_) => {}
                Err(error) if error.is_damage() => damage.push((entry.name.clone(), error.to_string())),
                Err(error) => return Err(error),
            }
        }
        self.damage = damage;
        Ok(())
    }

    /// Takes the names of the damaged pieces that [`Pack::find_damage`] recorded, and what is wrong with each.
    pub(super) fn take_damage(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.damage)
    }

    fn read(&self, store: &Store, entry: &Entry) -> Result<Bytes, StorageError> {
        let bytes = store.read(&self.object, entry.offset..self.end_of(entry)?)?;
        match bytes.len() as u64 == entry.bytes && xxh3_64(&bytes) == entry.checksum {
            true => Ok(bytes),
            false => Err(self.damaged(entry)),
        }
    }

    /// The end of a piece; an error if it lies outside the pack.
    fn end_of(&self, entry: &Entry) -> Result<u64, StorageError> {
        let end = entry.offset.checked_add(entry.bytes).filter(|&end| end <= self.bytes);
        end.ok_or_else(|| self.damaged(entry))
    }

    fn damaged(&self, entry: &Entry) -> StorageError {
        StorageError::damaged(&self.object, format!("the checksum of '{}' is wrong", entry.name))
    }

    /// The size of the pack.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The size of the live pieces. An empty piece is live as well.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live().map(|entry| entry.bytes.max(1)).sum()
    }
}
