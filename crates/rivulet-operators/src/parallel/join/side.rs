//! One side of a join: its rows, in lists by key, in buckets by expiry, and, once one has been taken back, by content.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::parallel::keys::NONE;
use crate::parallel::rows::RowStore;

pub(super) struct Side {
    pub(super) store: RowStore,
    /// By row.
    pub(super) rows: Vec<SideRow>,
    /// By key: its first row.
    heads: Vec<u32>,
    /// Rows by the bucket of their expiry.
    due: BTreeMap<i64, Vec<u32>>,
    bucket_us: i64,
    /// Rows by content, from the first that is taken back on.
    by_content: Option<HashTable<u32>>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
pub(super) struct SideRow {
    /// The number of its key; [`NONE`] if a part of it is null.
    pub(super) key: u32,
    next: u32,
    previous: u32,
    /// How many rows of the other side it has met that are still there.
    pub(super) matches: u32,
    /// The last watermark at which it is needed.
    pub(super) expires_us: i64,
}

impl Side {
    /// An empty side; expiry is by buckets of so many microseconds.
    pub(super) fn new(store: RowStore, bucket_us: i64) -> Self {
        Self {
            store,
            rows: Vec::new(),
            heads: Vec::new(),
            due: BTreeMap::new(),
            bucket_us,
            by_content: None,
            hasher: RandomState::default(),
        }
    }

    /// Makes room for so many keys.
    pub(super) fn grow_keys(&mut self, keys: usize) {
        if keys > self.heads.len() {
            self.heads.resize(keys, NONE);
        }
    }

    /// Whether no row has this key.
    pub(super) fn lacks(&self, key: u32) -> bool {
        self.heads[key as usize] == NONE
    }

    /// The first row of a key, and [`NONE`] without one.
    #[inline]
    pub(super) fn first(&self, key: u32) -> u32 {
        self.heads[key as usize]
    }

    /// The row behind another of its key.
    #[inline]
    pub(super) fn next(&self, row: u32) -> u32 {
        self.rows[row as usize].next
    }

    /// Whether a row of the store is in the lists.
    pub(super) fn is_linked(&self, row: u32) -> bool {
        self.rows[row as usize].expires_us != UNLINKED
    }

    /// Links a row that has been added to the store.
    pub(super) fn link(&mut self, row: u32, key: u32, expires_us: i64) {
        if row as usize >= self.rows.len() {
            let empty = SideRow { key: NONE, next: NONE, previous: NONE, matches: 0, expires_us: UNLINKED };
            self.rows.resize(self.store.numbers(), empty);
        }
        let mut next = NONE;
        if key != NONE {
            next = std::mem::replace(&mut self.heads[key as usize], row);
            if next != NONE {
                self.rows[next as usize].previous = row;
            }
        }
        self.rows[row as usize] = SideRow { key, next, previous: NONE, matches: 0, expires_us };
        if expires_us != i64::MAX {
            self.due.entry(expires_us.div_euclid(self.bucket_us)).or_default().push(row);
        }
        if let Some(index) = &mut self.by_content {
            let (store, hasher) = (&self.store, &self.hasher);
            index.insert_unique(store.hash(row, hasher), row, |&row| store.hash(row, hasher));
        }
    }

    /// Takes a row out of all lists; it stays in the store until [`RowStore::remove`].
    pub(super) fn unlink(&mut self, row: u32) {
        let SideRow { key, next, previous, .. } = self.rows[row as usize];
        if next != NONE {
            self.rows[next as usize].previous = previous;
        }
        if previous != NONE {
            self.rows[previous as usize].next = next;
        } else if key != NONE {
            self.heads[key as usize] = next;
        }
        self.rows[row as usize].expires_us = UNLINKED;
        if let Some(index) = &mut self.by_content
            && let Ok(entry) = index.find_entry(self.store.hash(row, &self.hasher), |&known| known == row)
        {
            entry.remove();
        }
    }

    /// A row that is linked and has the content of `pattern`, which is in the store but not linked.
    pub(super) fn find_equal(&mut self, pattern: u32) -> Option<u32> {
        let (store, rows, hasher) = (&self.store, &self.rows, &self.hasher);
        let index = self.by_content.get_or_insert_with(|| {
            let mut index = HashTable::new();
            for row in store.live() {
                // Rows that are in the store only as patterns, or new, are not linked.
                if rows.get(row as usize).is_some_and(|linked| linked.expires_us != UNLINKED) && row != pattern {
                    index.insert_unique(store.hash(row, hasher), row, |&row| store.hash(row, hasher));
                }
            }
            index
        });
        index.find(store.hash(pattern, hasher), |&row| store.compare_content(row, pattern).is_eq()).copied()
    }

    /// The rows that have expired at this watermark, which stay linked. Where not `exactly`, some may be left for later.
    pub(super) fn expired(&mut self, watermark_us: i64, exactly: bool) -> Vec<u32> {
        let mut expired = Vec::new();
        self.take_due(watermark_us, exactly, |row| expired.push(row));
        // A number that was used again may have waited twice.
        expired.sort_unstable();
        expired.dedup();
        expired
    }

    fn take_due(&mut self, watermark_us: i64, exactly: bool, mut each: impl FnMut(u32)) {
        while let Some(entry) = self.due.first_entry() {
            let bucket = *entry.key();
            let is_whole = bucket.saturating_add(1).saturating_mul(self.bucket_us) <= watermark_us;
            if !is_whole && (!exactly || bucket.saturating_mul(self.bucket_us) > watermark_us) {
                return;
            }
            let mut waiting = Vec::new();
            for row in entry.remove() {
                let expires_us = self.rows[row as usize].expires_us;
                let is_here = expires_us != UNLINKED
                    && expires_us != i64::MAX
                    && expires_us.div_euclid(self.bucket_us) == bucket
                    && self.store.is_live(row);
                match is_here {
                    false => {}
                    true if expires_us < watermark_us => each(row),
                    true => waiting.push(row),
                }
            }
            if !is_whole {
                if !waiting.is_empty() {
                    self.due.insert(bucket, waiting);
                }
                return;
            }
            // Those that expire with the last microsecond of a bucket.
            if !waiting.is_empty() {
                self.due.insert(bucket, waiting);
                return;
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.store.memory_bytes()
            + self.rows.capacity() * size_of::<SideRow>()
            + self.heads.capacity() * 4
            + self.due.values().map(|rows| rows.capacity() * 4).sum::<usize>()
            + self.by_content.as_ref().map_or(0, HashTable::allocation_size)
    }
}

/// The expiry of rows that are not linked.
const UNLINKED: i64 = i64::MIN;
