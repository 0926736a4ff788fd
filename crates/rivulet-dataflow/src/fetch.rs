//! Prefetching: memory is requested before it is needed.
//!
//! Each row of a batch belongs to another query, and the state of a million queries fits in no cache. Without
//! prefetching a row would wait for memory at each step from its slot to its state. But a batch knows the slots of all
//! its rows. So the state of a row is requested while the rows before it are processed, and many cache lines are in
//! flight at a time.

/// How many rows lie between two steps on the way to a row's state: about as many as cache lines may be in flight at
/// once.
const ROWS: usize = 16;

/// Requests the memory of a value without waiting for it.
#[inline]
pub fn fetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that the program can see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Requests the state of later rows in a batch of `rows` rows. The caller calls it before each `row`, from 0 on.
///
/// `first` gets a row some way ahead and [fetches](fetch) the place of its slot. `second` gets a row half as far ahead,
/// whose place has arrived by then: it reads that place and fetches the memory it points to.
#[inline]
pub fn fetch_ahead(row: usize, rows: usize, first: impl Fn(usize), second: impl Fn(usize)) {
    if row == 0 {
        (0..rows.min(2 * ROWS)).for_each(&first);
        (0..rows.min(ROWS)).for_each(&second);
    }
    if row + 2 * ROWS < rows {
        first(row + 2 * ROWS);
    }
    if row + ROWS < rows {
        second(row + ROWS);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn each_row_is_fetched_once_in_both_steps_before_its_turn() {
        for rows in [0, 1, ROWS, ROWS + 1, 2 * ROWS, 100] {
            let (first, second) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
            for row in 0..rows {
                fetch_ahead(
                    row,
                    rows,
                    |row| first.borrow_mut().push(row),
                    |row| {
                        assert!(first.borrow().contains(&row), "its place is fetched before");
                        second.borrow_mut().push(row);
                    },
                );
                assert!(second.borrow().contains(&row));
            }
            assert_eq!(first.into_inner(), (0..rows).collect::<Vec<_>>());
            assert_eq!(second.into_inner(), (0..rows).collect::<Vec<_>>());
        }
    }
}
