//! Values by number that never move: growth adds a page, and existing values stay where they are.
//!
//! A vector that doubles copies all its values, into memory that the system has to provide first: with some million
//! keys that takes a tenth of a second, in which no row goes on. A page costs the same whenever it is added, and no
//! memory is held twice. The price is a look at the list of pages for each access. The list is short enough to stay in
//! the cache.
//!
//! What must hold: every page but the last one is full.

use std::ops::{Index, IndexMut};

/// The number of values of a page. The first page grows up to it like any vector, so that small collections stay small.
const PAGE: usize = 1 << PAGE_BITS;
const PAGE_BITS: u32 = 13;

/// Values by number, from 0.
#[derive(Clone, Debug)]
pub(crate) struct Paged<T> {
    pages: Vec<Vec<T>>,
}

impl<T> Default for Paged<T> {
    fn default() -> Self {
        Self { pages: Vec::new() }
    }
}

impl<T> Paged<T> {
    /// Makes a collection without values.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Makes a collection without values, with room for about this many.
    pub(crate) fn with_capacity(values: usize) -> Self {
        Self { pages: if values == 0 { Vec::new() } else { vec![Vec::with_capacity(values.min(PAGE))] } }
    }

    /// The number of values.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.pages.last().map_or(0, |last| ((self.pages.len() - 1) << PAGE_BITS) + last.len())
    }

    /// The value with this number, if there is one.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.pages.get(at >> PAGE_BITS)?.get(at & (PAGE - 1))
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.pages.get_mut(at >> PAGE_BITS)?.get_mut(at & (PAGE - 1))
    }

    /// Adds a value, which gets the next number.
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        self.open().push(value);
    }

    /// Adds values until there are at least `values`.
    pub(crate) fn grow_with(&mut self, values: usize, mut value: impl FnMut() -> T) {
        let mut missing = values.saturating_sub(self.len());
        while missing > 0 {
            let page = self.open();
            let added = missing.min(PAGE - page.len());
            page.resize_with(page.len() + added, &mut value);
            missing -= added;
        }
    }

    /// Adds copies of a value until there are at least `values`.
    pub(crate) fn grow(&mut self, values: usize, value: T)
    where
        T: Copy,
    {
        self.grow_with(values, || value);
    }

    /// All values, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten()
    }

    /// The memory of the values themselves, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let values: usize = self.pages.iter().map(Vec::capacity).sum();
        values * size_of::<T>() + self.pages.capacity() * size_of::<Vec<T>>()
    }

    /// Returns the page that has room; adds one if need be.
    #[inline]
    fn open(&mut self) -> &mut Vec<T> {
        if self.pages.last().is_none_or(|last| last.len() == PAGE) {
            let capacity = if self.pages.is_empty() { 0 } else { PAGE };
            self.pages.push(Vec::with_capacity(capacity));
        }
        self.pages.last_mut().expect("there is one now")
    }
}

impl<T> Index<usize> for Paged<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.pages[at >> PAGE_BITS][at & (PAGE - 1)]
    }
}

impl<T> IndexMut<usize> for Paged<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.pages[at >> PAGE_BITS][at & (PAGE - 1)]
    }
}

/// Rows of a fixed number of words, by number.
#[derive(Clone, Debug)]
pub(crate) struct PagedRows {
    width: usize,
    rows: usize,
    /// Each page has [`PAGE`] rows; the last one may have fewer.
    pages: Vec<Vec<u64>>,
}

impl PagedRows {
    /// Makes a collection without rows.
    pub(crate) fn new(width: usize) -> Self {
        Self { width, rows: 0, pages: Vec::new() }
    }

    /// Adds copies of a row until there are at least `rows`.
    pub(crate) fn grow(&mut self, rows: usize, row: &[u64]) {
        assert_eq!(row.len(), self.width, "rows have one width");
        self.grow_by(rows, |page, words| {
            while page.len() < words {
                page.extend_from_slice(row);
            }
        });
    }

    /// Adds rows until there are at least `rows`; `fill` extends a page to a number of words.
    fn grow_by(&mut self, rows: usize, fill: impl Fn(&mut Vec<u64>, usize)) {
        while self.rows < rows {
            let place = self.rows & (PAGE - 1);
            if place == 0 {
                let capacity = if self.pages.is_empty() { 0 } else { PAGE * self.width };
                self.pages.push(Vec::with_capacity(capacity));
            }
            let added = (rows - self.rows).min(PAGE - place);
            let page = self.pages.last_mut().expect("the first row of a page makes it");
            fill(page, (place + added) * self.width);
            self.rows += added;
        }
    }

    /// Adds rows of zeros until there are at least `rows`.
    pub(crate) fn grow_zeroed(&mut self, rows: usize) {
        self.grow_by(rows, |page, words| page.resize(words, 0));
    }

    /// The words of a row.
    #[inline]
    pub(crate) fn row(&self, at: usize) -> &[u64] {
        &self.pages[at >> PAGE_BITS][(at & (PAGE - 1)) * self.width..][..self.width]
    }

    /// The same, to change them.
    #[inline]
    pub(crate) fn row_mut(&mut self, at: usize) -> &mut [u64] {
        &mut self.pages[at >> PAGE_BITS][(at & (PAGE - 1)) * self.width..][..self.width]
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.iter().map(|page| page.capacity() * 8).sum::<usize>() + self.pages.capacity() * size_of::<Vec<u64>>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Compares with vectors.
        #[test]
        fn values_are_where_they_were_put(
            width in 1..4usize,
            steps in prop::collection::vec((0..2 * PAGE, any::<u64>(), any::<prop::sample::Index>()), 1..12),
        ) {
            let (mut paged, mut vector) = (Paged::new(), Vec::new());
            let (mut rows, mut words) = (PagedRows::new(width), Vec::new());
            for (more, value, which) in steps {
                let length = vector.len() + more;
                paged.grow(length, value);
                vector.resize(length, value);
                paged.push(!value);
                vector.push(!value);
                paged.grow(length / 2, 0);
                let at = which.index(vector.len());
                paged[at] = 7;
                vector[at] = 7;
                let row = vec![value % 2; width];
                rows.grow(vector.len(), &row);
                (words.len()..vector.len() * width).for_each(|_| words.push(value % 2));
                rows.row_mut(at).fill(7);
                words[at * width..][..width].fill(7);
            }
            prop_assert_eq!(paged.len(), vector.len());
            prop_assert!(paged.iter().eq(&vector));
            prop_assert!(vector.iter().enumerate().all(|(at, value)| paged.get(at) == Some(value)));
            prop_assert_eq!(paged.get(vector.len()), None);
            prop_assert!((0..vector.len()).all(|at| rows.row(at) == &words[at * width..][..width]));
        }
    }

    #[test]
    fn what_is_there_stays_where_it_is() {
        let mut paged = Paged::with_capacity(PAGE + 1);
        paged.grow(PAGE, 1u64);
        let place = &raw const paged[5];
        paged.grow(40 * PAGE + 1, 2);
        assert_eq!(place, &raw const paged[5]);
        assert!(paged.memory_bytes() < 42 * (PAGE * 8 + 24) && Paged::<u64>::with_capacity(0).memory_bytes() == 0);
    }
}
