//! A pack: the pieces that one epoch wrote, in one object.
//!
//! ```text
//! mark (8 bytes) | pieces, end to end | index (JSON) | length of the index (8) | checksum of the index (8)
//! ```
//! Numbers are little-endian. The index has the name, the epoch, the place and the checksum (XXH3, 64 bits) of every piece.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::manifest::Used;
use crate::{StorageError, Store};

const MARK: &[u8; 8] = b"RVPACK01";
const ENDING: &str = "pack";
const TRAILER_BYTES: u64 = 16;

/// What the index says of a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The epoch for which it was first written: later ones of the same name apply behind it.
    pub(super) written: u64,
    offset: u64,
    bytes: u64,
    checksum: u64,
}

impl Entry {
    /// A piece of this epoch that is not written yet.
    pub(super) fn new(name: String, written: u64) -> Self {
        Self { name, written, offset: 0, bytes: 0, checksum: 0 }
    }
}

/// A pack whose index is known, with the pieces that count.
#[derive(Clone, Debug)]
pub(super) struct Pack {
    object: String,
    bytes: u64,
    entries: Vec<Entry>,
    live: Vec<bool>,
}

/// The epoch whose pack has this name.
pub(super) fn number_of(line: &str, name: &str) -> Option<u64> {
    number_with_ending(line, name, ENDING)
}

pub(super) fn number_with_ending(line: &str, name: &str, ending: &str) -> Option<u64> {
    name.strip_prefix(line)?.strip_prefix('/')?.strip_suffix(ending)?.strip_suffix('.')?.parse().ok()
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
            entries.push(Entry { offset: end, bytes: length, checksum: xxh3_64(&bytes), ..entry });
            end += length;
            parts.push(bytes);
        }
        let mut index = serde_json::to_vec(&entries).expect("numbers and texts are always JSON");
        let trailer = [index.len() as u64, xxh3_64(&index)];
        index.extend(trailer.iter().flat_map(|number| number.to_le_bytes()));
        let bytes = end + index.len() as u64;
        parts.push(index.into());
        store.put(&object, parts)?;
        Ok(Self { object, bytes, live: vec![true; entries.len()], entries })
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
        Ok(Self { live: vec![true; entries.len()], object, bytes, entries })
    }

    /// Has only these pieces count.
    pub(super) fn keep(&mut self, live: &[u8]) -> Result<(), StorageError> {
        if live.len() != self.entries.len().div_ceil(8) {
            return Err(StorageError::damaged(&self.object, "it has other pieces than its manifest says"));
        }
        let bit = |index: usize| live[index / 8] & (1 << (index % 8)) != 0;
        self.live.iter_mut().enumerate().for_each(|(index, is_live)| *is_live = bit(index));
        Ok(())
    }

    /// What a manifest says of it.
    pub(super) fn used(&self, epoch: u64) -> Used {
        let mut live = vec![0; self.entries.len().div_ceil(8)];
        let counting = self.live.iter().enumerate().filter(|(_, is_live)| **is_live);
        counting.for_each(|(index, _)| live[index / 8] |= 1 << (index % 8));
        Used { epoch, live }
    }

    /// Has the pieces of these names not count any more.
    pub(super) fn forget(&mut self, names: &BTreeSet<&str>) {
        let of_names = self.entries.iter().map(|entry| names.contains(entry.name.as_str()));
        self.live.iter_mut().zip(of_names).for_each(|(is_live, goes)| *is_live &= !goes);
    }

    pub(super) fn forget_all(&mut self) {
        self.live.fill(false);
    }

    /// The pieces that count.
    pub(super) fn live(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().zip(&self.live).filter(|(_, is_live)| **is_live).map(|(entry, _)| entry)
    }

    /// A piece.
    pub(super) fn read(&self, store: &Store, entry: &Entry) -> Result<Bytes, StorageError> {
        let damaged = || StorageError::damaged(&self.object, format!("the checksum of '{}' is wrong", entry.name));
        let end = entry.offset.checked_add(entry.bytes).filter(|&end| end <= self.bytes).ok_or_else(damaged)?;
        let bytes = match entry.bytes {
            0 => Bytes::new(),
            _ => store.get_range(&self.object, entry.offset..end)?,
        };
        if bytes.len() as u64 == entry.bytes && xxh3_64(&bytes) == entry.checksum { Ok(bytes) } else { Err(damaged()) }
    }

    /// Its size.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The size of the pieces that count. An empty piece counts as well.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live().map(|entry| entry.bytes.max(1)).sum()
    }
}
