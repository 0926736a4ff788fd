//! The topics of the last few messages that no query reads, for users who look for their events.
//!
//! What must hold: a flood of such messages costs only a comparison of one number each. In each second only a few
//! messages are looked at, so a topic may be missed among very many others.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;

/// The number of topics that are kept.
const TOPICS_MAX: usize = 16;

/// Longer topics are not kept.
const TOPIC_BYTES_MAX: usize = 256;

/// The number of messages that are looked at before a pause of a second.
const LOOKS: u32 = 16;

const PAUSE_US: i64 = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct Strays {
    /// No message is looked at before this arrival time.
    rests_until_us: AtomicI64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    topics: VecDeque<Box<[u8]>>,
    looks: u32,
}

impl Strays {
    /// Notes a message on a topic that no query reads.
    #[inline]
    pub(super) fn note(&self, topic: &[u8], arrival_us: i64) {
        if arrival_us >= self.rests_until_us.load(Ordering::Relaxed) {
            self.keep(topic, arrival_us);
        }
    }

    #[cold]
    fn keep(&self, topic: &[u8], arrival_us: i64) {
        let Some(mut kept) = self.kept.try_lock() else { return };
        kept.looks += 1;
        if kept.looks.is_multiple_of(LOOKS) {
            self.rests_until_us.store(arrival_us.saturating_add(PAUSE_US), Ordering::Relaxed);
        }
        if topic.len() > TOPIC_BYTES_MAX || kept.topics.iter().any(|known| **known == *topic) {
            return;
        }
        if kept.topics.len() == TOPICS_MAX {
            kept.topics.pop_front();
        }
        kept.topics.push_back(topic.into());
    }

    /// The topics, newest first by when they were first seen.
    pub(super) fn topics(&self) -> Vec<String> {
        self.kept.lock().topics.iter().rev().map(|topic| String::from_utf8_lossy(topic).into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_topics_are_kept_and_a_flood_is_not_looked_at() {
        let strays = Strays::default();
        for round in 0..20 {
            for _ in 0..LOOKS / 2 {
                strays.note(format!("a/{round}").as_bytes(), round * 2 * PAUSE_US);
            }
        }
        let topics = strays.topics();
        assert_eq!((topics.len(), topics[0].as_str(), topics[15].as_str()), (TOPICS_MAX, "a/19", "a/4"));
        for n in 0..1_000 {
            strays.note(format!("flood/{n}").as_bytes(), 100 * PAUSE_US);
        }
        assert_eq!(strays.topics()[0], format!("flood/{}", LOOKS - 1));
        strays.note(b"later", 101 * PAUSE_US);
        strays.note(&[b'x'; TOPIC_BYTES_MAX + 1], 103 * PAUSE_US);
        assert_eq!(strays.topics()[0], "later");
    }
}
