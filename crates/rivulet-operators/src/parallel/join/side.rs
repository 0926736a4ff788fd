//! One side of a join: its rows, in lists by key (whose [`Heads`] hold both sides next to each other), in buckets by
//! expiry, and, after the first retraction, by content.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::paged::Paged;
use crate::parallel::keys::NONE;
use crate::parallel::rows::RowStore;

/// By key: the first row of each side, [`NONE`] if it has none. A new row reads both, which are in one cache line.
pub(super) type Heads = Paged<[u32; 2]>;

pub(super) struct Side {
    /// The number of the side: 0 or 1.
    number: usize,
    pub(super) store: RowStore,
    /// By row.
    pub(super) rows: Paged<SideRow>,
    /// Rows by the bucket of their expiry.
    due: BTreeMap<i64, Vec<u32>>,
    bucket_us: i64,
    /// Whether a row was unlinked before its expiry, so that its number may be in the buckets twice.
    waits_twice: bool,
    /// Rows by content. It is built for the first retraction.
    by_content: Option<HashTable<u32>>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
pub(super) struct SideRow {
    /// The number of its key; [`NONE`] if a part of it is null.
    pub(super) key: u32,
    next: u32,
    previous: u32,
    /// How many rows of the other side it has met that still exist.
    pub(super) matches: u32,
    /// The last watermark at which the row is needed.
    pub(super) expires_us: i64,
    /// The greatest `expires_us` of this row and the rows behind it in the list of its key, as of when it was linked. A
    /// search for rows that expire later can stop here.
    reach_us: i64,
}

impl Side {
    /// Makes an empty side, 0 or 1; `bucket_us` is the length of the buckets of expiry.
    pub(super) fn new(number: usize, store: RowStore, bucket_us: i64) -> Self {
        Self {
            number,
            store,
            rows: Paged::new(),
            due: BTreeMap::new(),
            bucket_us,
            waits_twice: false,
            by_content: None,
            hasher: RandomState::default(),
        }
    }

    /// The row behind this one in the list of its key.
    #[inline]
    pub(super) fn next(&self, row: u32) -> u32 {
        self.rows[row as usize].next
    }

    /// Whether this row, or one behind it in the list of its key, may be needed at this watermark.
    #[inline]
    pub(super) fn reaches(&self, row: u32, watermark_us: i64) -> bool {
        self.rows[row as usize].reach_us >= watermark_us
    }

    /// Whether a row of the store is in the lists.
    pub(super) fn is_linked(&self, row: u32) -> bool {
        self.rows[row as usize].expires_us != UNLINKED
    }

    /// Links a row that was added to the store. A row that does not wait for its expiry is unlinked before anything
    /// else expires.
    pub(super) fn link(&mut self, heads: &mut Heads, row: u32, key: u32, expires_us: i64, waits: bool) {
        if row as usize >= self.rows.len() {
            let empty =
                SideRow { key: NONE, next: NONE, previous: NONE, matches: 0, expires_us: UNLINKED, reach_us: UNLINKED };
            self.rows.grow(self.store.numbers(), empty);
        }
        let (mut next, mut reach_us) = (NONE, expires_us);
        if key != NONE {
            next = std::mem::replace(&mut heads[key as usize][self.number], row);
            if next != NONE {
                let behind = &mut self.rows[next as usize];
                behind.previous = row;
                reach_us = reach_us.max(behind.reach_us);
            }
        }
        self.rows[row as usize] = SideRow { key, next, previous: NONE, matches: 0, expires_us, reach_us };
        if waits && expires_us != i64::MAX {
            self.due.entry(expires_us.div_euclid(self.bucket_us)).or_default().push(row);
        }
        if let Some(index) = &mut self.by_content {
            let (store, hasher) = (&self.store, &self.hasher);
            index.insert_unique(store.hash(row, hasher), row, |&row| store.hash(row, hasher));
        }
    }

    /// Unlinks a row before its expiry.
    pub(super) fn unlink_early(&mut self, heads: &mut Heads, row: u32) {
        self.waits_twice = true;
        self.unlink(heads, row);
    }

    /// Removes a row from all lists. It stays in the store until [`RowStore::remove`].
    pub(super) fn unlink(&mut self, heads: &mut Heads, row: u32) {
        let SideRow { key, next, previous, .. } = self.rows[row as usize];
        if next != NONE {
            self.rows[next as usize].previous = previous;
        }
        if previous != NONE {
            self.rows[previous as usize].next = next;
        } else if key != NONE {
            heads[key as usize][self.number] = next;
        }
        self.rows[row as usize].expires_us = UNLINKED;
        if let Some(index) = &mut self.by_content
            && let Ok(entry) = index.find_entry(self.store.hash(row, &self.hasher), |&known| known == row)
        {
            entry.remove();
        }
    }

    /// Finds a linked row with the content of `pattern`, which is in the store but not linked.
    pub(super) fn find_equal(&mut self, pattern: u32) -> Option<u32> {
        let (store, rows, hasher) = (&self.store, &self.rows, &self.hasher);
        let index = self.by_content.get_or_insert_with(|| {
            let mut index = HashTable::new();
            for row in store.live() {
                // Rows that are new, or are in the store only as patterns, are not linked.
                if rows.get(row as usize).is_some_and(|linked| linked.expires_us != UNLINKED) && row != pattern {
                    index.insert_unique(store.hash(row, hasher), row, |&row| store.hash(row, hasher));
                }
            }
            index
        });
        index.find(store.hash(pattern, hasher), |&row| store.compare_content(row, pattern).is_eq()).copied()
    }

    /// Returns the rows that have expired at this watermark; they stay linked. If not `exactly`, some may be left for
    /// later, and about `rows_max` are looked at.
    pub(super) fn expired(&mut self, watermark_us: i64, exactly: bool, rows_max: usize) -> Vec<u32> {
        let mut expired = Vec::new();
        self.take_due(watermark_us, exactly, if exactly { usize::MAX } else { rows_max }, |row| expired.push(row));
        if self.waits_twice {
            expired.sort_unstable();
            expired.dedup();
        }
        expired
    }

    fn take_due(&mut self, watermark_us: i64, exactly: bool, rows_max: usize, mut each: impl FnMut(u32)) {
        let mut left = rows_max;
        while left > 0
            && let Some(mut entry) = self.due.first_entry()
        {
            let bucket = *entry.key();
            let is_whole = bucket.saturating_add(1).saturating_mul(self.bucket_us) <= watermark_us;
            if !is_whole && (!exactly || bucket.saturating_mul(self.bucket_us) > watermark_us) {
                return;
            }
            let due = entry.get_mut();
            let looked_at = due.split_off(due.len().saturating_sub(left));
            if due.is_empty() {
                entry.remove();
            }
            left -= looked_at.len();
            let mut waiting = Vec::new();
            for row in looked_at {
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
            // In a bucket that is over, these are the rows that expire with its last microsecond.
            let has_waiting = !waiting.is_empty();
            if has_waiting {
                self.due.entry(bucket).or_default().append(&mut waiting);
            }
            if has_waiting || !is_whole {
                return;
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.store.memory_bytes()
            + self.rows.memory_bytes()
            + self.due.values().map(|rows| rows.capacity() * 4).sum::<usize>()
            + self.by_content.as_ref().map_or(0, HashTable::allocation_size)
    }
}

/// The expiry of rows that are not linked.
const UNLINKED: i64 = i64::MIN;
