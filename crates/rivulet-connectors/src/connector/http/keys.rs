//! Idempotency keys that are the same when a request comes once more after a crash.
//!
//! A query goes on from its last checkpoint and computes the rows after it once more, perhaps in another order and in
//! other instances. So a key is made from what stays the same: the line of checkpoints, their number, the content of
//! the request, and its number among the equal requests since the checkpoint. It does not matter which of several equal
//! requests has which number.
//!
//! What must hold: no two requests have the same key, unless one repeats the other. So this is for queries all of whose
//! sources are read again; all instances count together, and nothing is written between the moment when a checkpoint
//! captures the state and the moment when it is known to be durable.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::connector::instances::Instances;

/// The number of different requests that are told apart between two checkpoints; further ones get keys that are new
/// each time.
const SEEN_MAX: usize = 1 << 20;

/// What a checkpoint stores of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Noted {
    pub(super) line: String,
    /// The number of checkpoints, including this one.
    pub(super) checkpoints: u64,
}

/// The keys of all instances of a sink.
pub(super) struct Keys {
    line: String,
    /// Distinguishes requests since the server was restored: they may be equal to others since that checkpoint.
    restored: String,
    state: Mutex<State>,
}

struct State {
    /// The number of durable checkpoints of the line, and the epoch of the newest since the start.
    checkpoints: u64,
    epoch: u64,
    /// How often each content was sent since then.
    seen: HashMap<u128, u64>,
    /// The number of requests that are not told apart, and the common part of their keys.
    unseen: u64,
    run: String,
}

/// The keys of open sinks, by their query.
static OPEN: Instances<Keys> = Instances::new();

fn unlike_any_other() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

impl Keys {
    /// The keys of a query's sink: made by its first instance, from what a checkpoint has stored, and found by the
    /// others.
    pub(super) fn open(query: &str, instance: usize, noted: Option<Noted>, restored: &str) -> Arc<Self> {
        if let Some(open) = OPEN.find(query).filter(|_| instance > 0) {
            return open;
        }
        let Noted { line, checkpoints } = noted.unwrap_or_else(|| Noted { line: unlike_any_other(), checkpoints: 0 });
        let state = State { checkpoints, epoch: 0, seen: HashMap::new(), unseen: 0, run: unlike_any_other() };
        let opened = Arc::new(Self { line, restored: restored.to_owned(), state: Mutex::new(state) });
        OPEN.put(query, &opened);
        opened
    }

    /// The key of a request with this content.
    pub(super) fn key(&self, body: &[u8]) -> String {
        let mut state = self.state.lock();
        let hash = xxh3_128_with_seed(body, state.checkpoints);
        if state.seen.len() >= SEEN_MAX && !state.seen.contains_key(&hash) {
            if state.unseen == 0 {
                tracing::warn!(
                    "more than {SEEN_MAX} different requests since the last checkpoint: further ones have another idempotency key if they come \
                     again after a crash; make checkpoints more often"
                );
            }
            state.unseen += 1;
            return format!("{}{:x}", state.run, state.unseen);
        }
        let times = state.seen.entry(hash).or_default();
        *times += 1;
        let mut key = String::with_capacity(self.line.len() + self.restored.len() + 34);
        key.push_str(&self.line);
        key.push_str(&self.restored);
        // Writing to a text does not fail.
        let _ = write!(key, "{hash:032x}{times:x}");
        key
    }

    /// What the checkpoint that is about to be made is to store.
    pub(super) fn noted(&self) -> Noted {
        Noted { line: self.line.clone(), checkpoints: self.state.lock().checkpoints + 1 }
    }

    /// Notes that the checkpoint with this number is durable. Each instance calls it.
    pub(super) fn commit(&self, epoch: u64) {
        let mut state = self.state.lock();
        if state.epoch < epoch {
            (state.epoch, state.unseen) = (epoch, 0);
            state.checkpoints += 1;
            state.seen.clear();
            state.run = unlike_any_other();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn keys(keys: &Keys, bodies: &[&str]) -> BTreeSet<String> {
        bodies.iter().map(|body| keys.key(body.as_bytes())).collect()
    }

    #[test]
    fn what_comes_again_behind_a_checkpoint_has_the_keys_it_had() {
        let first = Keys::open("again", 0, None, "");
        let before = keys(&first, &["a", "a", "b"]);
        assert_eq!(before.len(), 3, "equal requests are two");
        let noted = Some(first.noted());
        first.commit(7);
        first.commit(7);
        let behind = keys(&first, &["a", "c", "a"]);
        assert_eq!(before.intersection(&behind).count(), 0);
        // A checkpoint that did not become durable has no effect.
        let _ = first.noted();
        let behind: BTreeSet<_> = behind.into_iter().chain(keys(&first, &["d"])).collect();
        let again = Keys::open("again", 0, noted.clone(), "");
        let other = Keys::open("again", 1, noted.clone(), "");
        // In another order, and by two instances.
        let came_again: BTreeSet<_> = keys(&again, &["d", "a"]).into_iter().chain(keys(&other, &["c", "a"])).collect();
        assert_eq!(came_again, behind);
        assert_eq!(keys(&again, &["a"]).intersection(&behind).count(), 0, "a third one is new");
        let restored = Keys::open("again", 0, noted, "since a backup");
        assert_eq!(
            keys(&restored, &["a", "c", "d"]).intersection(&behind).count(),
            0,
            "other rows than those that are lost"
        );
    }

    #[test]
    fn no_two_queries_share_a_key() {
        let one = Keys::open("one", 0, None, "");
        let two = Keys::open("two", 0, None, "");
        assert_ne!(keys(&one, &["a"]), keys(&two, &["a"]));
    }
}
