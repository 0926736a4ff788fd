//! How often the program has allocated memory. Only one with the feature `baselines` counts, for `rivulet bench relay`.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// A thread tells the others of so many allocations at once: counting one by one would cost more than many of them do.
const TOLD_AT_ONCE: u64 = 256;

static TOLD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static UNTOLD: Cell<u64> = const { Cell::new(0) };
}

/// Counts an allocation of this thread. It does not allocate.
#[inline]
pub fn count_allocation() {
    if cfg!(feature = "baselines") {
        let untold = UNTOLD.get() + 1;
        UNTOLD.set(untold % TOLD_AT_ONCE);
        if untold == TOLD_AT_ONCE {
            TOLD.fetch_add(TOLD_AT_ONCE, Ordering::Relaxed);
        }
    }
}

/// The allocations so far, but for up to 255 of each thread; `None` of a program that does not count them.
pub fn allocations() -> Option<u64> {
    cfg!(feature = "baselines").then(|| TOLD.load(Ordering::Relaxed))
}
