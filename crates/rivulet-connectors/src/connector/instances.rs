//! State that the parallel instances of a sink share: the first instance that is opened makes it, the others find it by
//! the name of their query.
//!
//! What must hold: it is dropped with the last instance that has it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;

/// The shared state of all sinks of one kind.
pub(super) struct Instances<T>(LazyLock<Mutex<HashMap<String, Weak<T>>>>);

impl<T> Instances<T> {
    /// Nothing yet.
    pub(super) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// Stores what the first instance has made. The state of an earlier run under that name is not found any more.
    pub(super) fn put(&self, name: &str, shared: &Arc<T>) {
        let mut all = self.0.lock();
        all.retain(|_, other| other.strong_count() > 0);
        all.insert(name.to_owned(), Arc::downgrade(shared));
    }

    /// The state that the first instance has made, if it still exists.
    pub(super) fn find(&self, name: &str) -> Option<Arc<T>> {
        self.0.lock().get(name)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_find_what_the_first_has_made_for_as_long_as_it_is_there() {
        static SHARED: Instances<u8> = Instances::new();
        assert_eq!(SHARED.find("a"), None);
        let first = Arc::new(1);
        SHARED.put("a", &first);
        assert_eq!(SHARED.find("a").as_deref(), Some(&1));
        let later = Arc::new(2);
        SHARED.put("a", &later);
        assert_eq!(SHARED.find("a").as_deref(), Some(&2));
        drop(later);
        assert_eq!(SHARED.find("a"), None);
    }
}
