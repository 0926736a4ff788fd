//! The changes of the keys of a changing result since messages were last sent: one message for each key, however often
//! it changed.
//!
//! What must hold: a change is two rows, the retraction of the old one and the new one, which may come in different
//! flushes. A key must not appear as gone between two of its values. So a key is reported as gone only one flush later,
//! and not at all if it came back by then. A retraction of a row other than the newest of its key changes nothing,
//! because that row was replaced before.

use std::hash::BuildHasher;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Above this many bytes, values are sent before the flush.
const BYTES_MAX: usize = 16 << 20;

/// The newest row of each key. Keys and rows are in one arena.
#[derive(Default)]
pub(super) struct Newest {
    bytes: Vec<u8>,
    changes: Vec<Change>,
    places: HashTable<usize>,
    hasher: RandomState,
}

struct Change {
    key: Range<usize>,
    /// `None` if the key is gone.
    value: Option<Range<usize>>,
    /// Whether it has waited for a flush.
    has_waited: bool,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The values, but not yet which keys are gone.
    Values,
    /// The values, and the keys that were gone at the previous call.
    ValuesAndGone,
    /// Everything: nothing will follow.
    All,
}

impl Newest {
    /// Adds or retracts a row.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], is_retraction: bool) {
        let hash = self.hasher.hash_one(key);
        let is_it = |&place: &usize| self.bytes[self.changes[place].key.clone()] == *key;
        let place = match self.places.find(hash, is_it) {
            Some(&place) => place,
            None => {
                let key = append(&mut self.bytes, key);
                self.changes.push(Change { key, value: None, has_waited: false });
                let (place, changes, bytes, hasher) =
                    (self.changes.len() - 1, &self.changes, &self.bytes, &self.hasher);
                let hash_of = |&place: &usize| hasher.hash_one(&bytes[changes[place].key.clone()]);
                self.places.insert_unique(hash, place, hash_of);
                place
            }
        };
        let change = &mut self.changes[place];
        match (&change.value, is_retraction) {
            (_, false) => change.value = Some(append(&mut self.bytes, value)),
            (Some(newest), true) if self.bytes[newest.clone()] == *value => {
                (change.value, change.has_waited) = (None, false);
            }
            // Another row has replaced it already, or it is gone.
            (_, true) => {}
        }
    }

    /// Whether values are to be sent before the flush.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.len() > BYTES_MAX
    }

    /// Gives what is due to the caller: each key with its value, or with `None` if it is gone. The others stay.
    pub(super) fn send<E>(
        &mut self,
        due: Due,
        mut send: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut staying = Self { hasher: self.hasher.clone(), ..Self::default() };
        for change in self.changes.drain(..) {
            let key = &self.bytes[change.key];
            match change.value {
                Some(value) => send(key, Some(&self.bytes[value]))?,
                None if due == Due::All || (due == Due::ValuesAndGone && change.has_waited) => send(key, None)?,
                None => {
                    staying.push(key, &[], true);
                    let has_waited = change.has_waited || due == Due::ValuesAndGone;
                    staying.changes.last_mut().expect("it was pushed").has_waited = has_waited;
                }
            }
        }
        self.bytes.clear();
        self.bytes.shrink_to(BYTES_MAX / 4);
        self.places.clear();
        if !staying.changes.is_empty() {
            *self = staying;
        }
        Ok(())
    }
}

fn append(bytes: &mut Vec<u8>, more: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(more);
    start..bytes.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn sent(newest: &mut Newest, due: Due) -> Vec<(String, Option<String>)> {
        let mut sent = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let Ok(()) = newest.send(due, |key, value| {
            sent.push((text(key), value.map(text)));
            Ok::<(), Infallible>(())
        });
        sent
    }

    #[test]
    fn a_key_is_not_gone_between_its_values() {
        let mut newest = Newest::default();
        newest.push(b"a", b"1", false);
        newest.push(b"a", b"1", true);
        newest.push(b"a", b"2", false);
        newest.push(b"b", b"1", true);
        assert_eq!(sent(&mut newest, Due::ValuesAndGone), [("a".to_owned(), Some("2".to_owned()))]);
        // The new value of b comes with the next flush; a is gone.
        newest.push(b"b", b"3", false);
        newest.push(b"a", b"2", true);
        assert_eq!(sent(&mut newest, Due::ValuesAndGone), [("b".to_owned(), Some("3".to_owned()))]);
        assert_eq!(sent(&mut newest, Due::Values), []);
        assert_eq!(sent(&mut newest, Due::ValuesAndGone), [("a".to_owned(), None)]);
        assert_eq!(sent(&mut newest, Due::All), []);
        // A retraction of a row that was replaced changes nothing.
        newest.push(b"a", b"5", false);
        newest.push(b"a", b"4", true);
        assert_eq!(sent(&mut newest, Due::All), [("a".to_owned(), Some("5".to_owned()))]);
    }

    proptest! {
        #[test]
        fn what_readers_have_at_the_end_is_the_result(
            // Changes of a few keys, with flushes between their two halves.
            changes in prop::collection::vec((0_u8..4, prop::option::of(0_u8..9), any::<bool>(), any::<bool>()), 0..60),
        ) {
            let (mut newest, mut result, mut read) = (Newest::default(), BTreeMap::new(), BTreeMap::new());
            let mut read_from = |newest: &mut Newest, due| for (key, value) in sent(newest, due) {
                match value {
                    Some(value) => _ = read.insert(key, value),
                    None => _ = read.remove(&key),
                }
            };
            for (key, value, flush_between, flush_behind) in changes {
                let key = key.to_string();
                if let Some(old) = result.remove(&key) {
                    let old: String = old;
                    newest.push(key.as_bytes(), old.as_bytes(), true);
                }
                if flush_between { read_from(&mut newest, Due::ValuesAndGone) }
                if let Some(value) = value {
                    newest.push(key.as_bytes(), value.to_string().as_bytes(), false);
                    result.insert(key, value.to_string());
                }
                if flush_behind { read_from(&mut newest, Due::Values) }
            }
            read_from(&mut newest, Due::All);
            prop_assert_eq!(read, result);
        }
    }
}
