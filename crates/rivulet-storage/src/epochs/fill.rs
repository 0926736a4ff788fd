//! A store is filled with the epochs of another one.

use bytes::Bytes;

use super::Epochs;
use crate::{StorageError, Store};

impl Store {
    /// Fills an empty store with the objects of another one, which `read` gives, and then calls `finish`. The objects
    /// that make an epoch exist are written after those they need. After an error the store is empty again.
    ///
    /// # Errors
    /// An error of `read`, of `finish` or of the store.
    pub fn fill<E: From<StorageError>>(
        &self,
        mut names: Vec<String>,
        mut read: impl FnMut(&str) -> Result<Bytes, E>,
        finish: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        names.sort_by_key(|name| Epochs::line_of(name).is_some());
        let filled = names.iter().try_for_each(|name| Ok(self.put(name, vec![read(name)?])?)).and_then(|()| finish());
        if filled.is_err() {
            for name in names.iter().rev() {
                if let Err(error) = self.delete(name) {
                    tracing::warn!("{name} is left in {}, and of no use: {error}", self.place());
                }
            }
        }
        filled
    }
}
