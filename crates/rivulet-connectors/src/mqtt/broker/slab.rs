//! A table whose rows keep their numbers.

/// Rows by number. The number of a removed row is reused for a later row.
pub(super) struct Slab<T> {
    rows: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { rows: Vec::new(), free: Vec::new() }
    }

    pub(super) fn insert(&mut self, row: T) -> u32 {
        if let Some(key) = self.free.pop() {
            self.rows[key as usize] = Some(row);
            return key;
        }
        let key = u32::try_from(self.rows.len()).expect("its users are bounded far below");
        self.rows.push(Some(row));
        key
    }

    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        let row = self.rows.get_mut(key as usize)?.take()?;
        self.free.push(key);
        Some(row)
    }

    pub(super) fn get(&self, key: u32) -> Option<&T> {
        self.rows.get(key as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        self.rows.get_mut(key as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() - self.free.len()
    }

    /// A number above all numbers in use.
    pub(super) fn end(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows.iter().enumerate().filter_map(|(key, row)| Some((key as u32, row.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.rows.iter_mut().enumerate().filter_map(|(key, row)| Some((key as u32, row.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_and_used_again() {
        let mut slab = Slab::new();
        let keys: Vec<u32> = ["a", "b", "c"].into_iter().map(|row| slab.insert(row)).collect();
        assert_eq!(slab.remove(keys[1]), Some("b"));
        assert_eq!(slab.remove(keys[1]), None);
        assert_eq!((slab.len(), slab.get(keys[1]), slab.get(keys[2]), slab.get(99)), (2, None, Some(&"c"), None));
        assert_eq!(slab.insert("d"), keys[1]);
        assert_eq!(slab.iter().map(|(_, row)| *row).collect::<Vec<_>>(), ["a", "d", "c"]);
    }
}
