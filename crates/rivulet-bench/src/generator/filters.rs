//! The topic filters that one connection has subscribed to.

use std::collections::HashSet;

use rivulet_connectors::mqtt::topic::{check_filter, is_wildcard, matches};

/// How many filters one connection may hold: as many as a run has queries, should an engine subscribe to every topic.
const FILTERS_MAX: usize = crate::sensors::QUERIES_MAX as usize;

/// Exact topics and filters with wildcards.
#[derive(Debug, Default)]
pub(super) struct Filters {
    exact: HashSet<Box<[u8]>>,
    with_wildcards: Vec<Box<str>>,
}

impl Filters {
    /// Adds a filter; false if it is not valid, is for a shared subscription, or there are too many.
    pub(super) fn add(&mut self, filter: &str) -> bool {
        if !is_offered(filter) || self.len() >= FILTERS_MAX {
            return false;
        }
        if !is_wildcard(filter) {
            self.exact.insert(filter.as_bytes().into());
        } else if !self.with_wildcards.iter().any(|known| **known == *filter) {
            self.with_wildcards.push(filter.into());
        }
        true
    }

    /// Removes a filter; false if it was not there.
    pub(super) fn remove(&mut self, filter: &str) -> bool {
        let before = self.len();
        self.exact.remove(filter.as_bytes());
        self.with_wildcards.retain(|known| **known != *filter);
        self.len() < before
    }

    /// The number of filters.
    pub(super) fn len(&self) -> usize {
        self.exact.len() + self.with_wildcards.len()
    }

    /// Whether any filter matches the topic.
    pub(super) fn matches(&self, topic: &[u8]) -> bool {
        (!self.exact.is_empty() && self.exact.contains(topic))
            || self.with_wildcards.iter().any(|filter| matches(filter.as_bytes(), topic))
    }
}

/// Whether `filter` is one that may be subscribed to here. Shared subscriptions (`$share/...`) are not offered.
fn is_offered(filter: &str) -> bool {
    check_filter(filter).is_ok() && !filter.starts_with("$share/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_come_and_go() {
        let mut filters = Filters::default();
        assert!(filters.add("a/+") && filters.add("a/+") && filters.add("b"));
        assert!(filters.matches(b"a/1") && filters.matches(b"b") && !filters.matches(b"a/1/2"));
        assert_eq!(filters.len(), 2);
        for invalid in ["", "a/#/b", "a+/b", "x#", "$share/g/a", "a\0"] {
            assert!(!filters.add(invalid), "{invalid:?}");
        }
        assert!(filters.remove("a/+") && !filters.remove("a/+"));
        assert!(!filters.matches(b"a/1") && filters.matches(b"b"));
    }
}
