//! What an operator holds for a slot, for users who ask why a query gives no result.

/// How many keys of a slot are looked at: its task stands still meanwhile.
pub const HELD_KEYS_MAX: usize = 10_000;

/// What an operator holds for a slot. Times are microseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The latest event time so far.
    pub newest_us: Option<i64>,
    /// The event time up to which windows are closed.
    pub watermark_us: Option<i64>,
    /// Begin and end of the open window that closes first. Where a row decides when it closes, there is no end yet.
    pub window: Option<(i64, Option<i64>)>,
    /// The number of keys with open windows.
    pub open_keys: u64,
    /// Of a window of rows: how many rows have come since the last one closed, and how many rows close it.
    pub rows_of: Option<(u64, u64)>,
    /// Of a join: how many rows wait on each side.
    pub sides: Option<[u64; 2]>,
    /// Whether there are more keys than [`HELD_KEYS_MAX`], so that all of this is of the oldest ones.
    pub has_more_keys: bool,
}
