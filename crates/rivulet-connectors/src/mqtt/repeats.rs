//! Recognises results of the engine that the log has already. Queries that read a durable input give their results once
//! more after a crash; if these are events of other durable inputs, they would count twice.
//!
//! A result in the log has its identity in the place of its sender's name ([`write_origin`]): a text that is unique to
//! its query, and behind the last `-` a number that grows with each result. So the results of one query on one topic
//! are a few ranges of numbers, however many they are.
//!
//! What must hold: for each result that was found in the log, one result that is given again is recognised, and only
//! one.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use xxhash_rust::xxh3::Xxh3;

/// The first byte of the origin of a result. No text begins with it, so no client has such a name.
const RESULT: u8 = 0xff;

/// Writes, in the place of a client's name, that a message is the result with this identity.
pub(super) fn write_origin(id: &str, origin: &mut Vec<u8>) {
    origin.push(RESULT);
    origin.extend_from_slice(id.as_bytes());
}

/// The query's part of an origin, and the number of the result; `None` if it is not the origin of a result.
fn split_origin(origin: &[u8]) -> Option<(&[u8], u64)> {
    let (&RESULT, id) = origin.split_first()? else { return None };
    let dash = id.iter().rposition(|&byte| byte == b'-')?;
    let number = std::str::from_utf8(&id[dash + 1..]).ok()?.parse().ok()?;
    // The server in front has another name once it was restored, and the log is its own.
    let query = id[..dash].iter().position(|&byte| byte == b'-').map_or(&id[..dash], |server| &id[server + 1..dash]);
    Some((query, number))
}

/// The results that are in the log and may be given once more.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// By the keyed 128-bit hash of query and topic: ranges of numbers, first and last.
    ranges: HashMap<u128, VecDeque<(u64, u64)>, foldhash::fast::RandomState>,
}

impl Repeats {
    /// Notes that a message with this origin is in the log; does nothing if it is no result.
    pub(super) fn expect(&mut self, origin: &[u8], topic: &[u8]) {
        let Some((query, number)) = split_origin(origin) else { return };
        let ranges = self.ranges.entry(key(query, topic)).or_default();
        match ranges.back_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push_back((number, number)),
        }
    }

    /// Whether this result is in the log. To be asked once for each result: one that was found here is not expected any
    /// more.
    pub(super) fn take(&mut self, origin: &[u8], topic: &[u8]) -> bool {
        let Some((query, number)) = split_origin(origin) else { return false };
        let Entry::Occupied(mut entry) = self.ranges.entry(key(query, topic)) else { return false };
        let ranges = entry.get_mut();
        let Some(place) = ranges.iter().position(|&(first, last)| (first..=last).contains(&number)) else {
            return false;
        };
        // Results come in the order in which they were found, so it is at the front.
        let (first, last) = ranges[place];
        match (first < number, number < last) {
            (false, false) => drop(ranges.remove(place)),
            (false, true) => ranges[place].0 = number + 1,
            (true, false) => ranges[place].1 = number - 1,
            (true, true) => {
                ranges[place].1 = number - 1;
                ranges.insert(place + 1, (number + 1, last));
            }
        }
        if ranges.is_empty() {
            entry.remove();
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

fn key(query: &[u8], topic: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&(query.len() as u64).to_le_bytes());
    hash.update(query);
    hash.update(topic);
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn origin(id: &str) -> Vec<u8> {
        let mut origin = Vec::new();
        write_origin(id, &mut origin);
        origin
    }

    #[test]
    fn a_result_is_known_by_query_number_and_topic() {
        let mut repeats = Repeats::default();
        for number in 3..6 {
            repeats.expect(&origin(&format!("one-7-{number}")), b"t");
        }
        repeats.expect(b"one-7-9", b"t");
        repeats.expect(b"", b"t");
        repeats.expect(&origin("without a number"), b"t");
        repeats.expect(&origin("two-9-1"), b"t");
        assert!(repeats.take(&origin("restored-9-1"), b"t"), "the same server under its name since a backup");
        assert!(!repeats.take(&origin("one-7-4"), b"u") && !repeats.take(&origin("one-8-4"), b"t"));
        assert!(!repeats.take(b"one-7-4", b"t"), "a client may have any text for a name");
        assert!(!repeats.take(&origin("one-7-9"), b"t") && !repeats.take(&origin("one-7-2"), b"t"));
        for number in [4, 3, 5] {
            let again = origin(&format!("one-7-{number}"));
            assert!(repeats.take(&again, b"t"), "{number}");
            assert!(!repeats.take(&again, b"t"), "once for each");
        }
        assert!(repeats.is_empty());
    }

    #[test]
    fn many_results_of_a_query_take_the_place_of_one() {
        let mut repeats = Repeats::default();
        for number in 1..=100_000 {
            repeats.expect(&origin(&format!("one-7-{number}")), b"t");
        }
        assert_eq!(repeats.ranges.values().map(VecDeque::len).sum::<usize>(), 1);
    }

    proptest! {
        /// Compares with a list of all expected results.
        #[test]
        fn each_is_recognised_as_often_as_it_was_found(
            found in proptest::collection::vec((0..3u8, 0..12u64), 0..60),
            given in proptest::collection::vec((0..3u8, 0..12u64), 0..90),
        ) {
            let (mut repeats, mut left) = (Repeats::default(), HashMap::<(u8, u64), u32>::new());
            for (query, number) in found {
                repeats.expect(&origin(&format!("one-{query}-{number}")), b"t");
                *left.entry((query, number)).or_default() += 1;
            }
            for (query, number) in given {
                let left = left.entry((query, number)).or_default();
                prop_assert_eq!(repeats.take(&origin(&format!("one-{query}-{number}")), b"t"), *left > 0);
                *left = left.saturating_sub(1);
            }
            prop_assert_eq!(repeats.is_empty(), left.values().all(|&left| left == 0));
        }
    }
}
