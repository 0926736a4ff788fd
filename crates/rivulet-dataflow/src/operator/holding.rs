//! What an operator holds for a slot, in the words of people who ask why nothing comes of it.

/// How many keys of a slot are looked at: its task stands still meanwhile.
pub const HELD_KEYS_MAX: usize = 10_000;

/// What an operator holds for a slot. Times are microseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The latest event time so far.
    pub newest_us: Option<i64>,
    /// Up to where windows are closed.
    pub watermark_us: Option<i64>,
    /// Begin and end of the open window that closes first.
    pub window: Option<(i64, i64)>,
    /// How many keys have open windows.
    pub open_keys: u64,
    /// Of a window of rows, how many have come since the last one closed, and how many make it close.
    pub rows_of: Option<(u64, u64)>,
    /// Of a join, how many rows wait on each side.
    pub sides: Option<[u64; 2]>,
    /// Whether there are more keys than [`HELD_KEYS_MAX`], so that all of this is of the oldest ones.
    pub has_more_keys: bool,
}
