//! Live results: copies of what a query emits, for whoever watches it. Costs one atomic load a batch while nobody does.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use rivulet_dataflow::QueryId;
use tokio::sync::broadcast;

/// How many results wait for a slow reader; beyond that it loses the oldest and is told how many.
const WAITING_MAX: usize = 1_024;

/// The readers of live results, by query.
#[derive(Debug, Default)]
pub(super) struct Taps {
    watched: AtomicUsize,
    senders: RwLock<HashMap<QueryId, broadcast::Sender<Arc<str>>>>,
}

impl Taps {
    /// A reader of a query's results from now on.
    pub(super) fn watch(&self, query: QueryId) -> broadcast::Receiver<Arc<str>> {
        let mut senders = self.senders.write();
        senders.retain(|_, sender| sender.receiver_count() > 0);
        let receiver = senders.entry(query).or_insert_with(|| broadcast::channel(WAITING_MAX).0).subscribe();
        self.watched.store(senders.len(), Ordering::Release);
        receiver
    }

    /// Whether anybody watches anything. Ask before looking at rows.
    pub(super) fn is_watching(&self) -> bool {
        self.watched.load(Ordering::Acquire) > 0
    }

    /// Whether anybody watches a query.
    pub(super) fn is_watched(&self, query: QueryId) -> bool {
        self.senders.read().contains_key(&query)
    }

    /// Hands a result to the readers of a query; `result` is called only if there are any.
    pub(super) fn send(&self, query: QueryId, result: impl FnOnce() -> String) {
        let is_gone = {
            let senders = self.senders.read();
            match senders.get(&query) {
                Some(sender) => sender.send(result().into()).is_err(),
                None => false,
            }
        };
        if is_gone {
            // Somebody new may have begun to watch in between.
            let mut senders = self.senders.write();
            senders.retain(|&id, sender| id != query || sender.receiver_count() > 0);
            self.watched.store(senders.len(), Ordering::Release);
        }
    }

    /// Ends the readers of a query that is gone.
    pub(super) fn forget(&self, query: QueryId) {
        let mut senders = self.senders.write();
        senders.remove(&query);
        self.watched.store(senders.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_query_is_copied_and_others_are_not() {
        let taps = Taps::default();
        assert!(!taps.is_watching());
        let mut reader = taps.watch(7);
        taps.send(7, || "{}".into());
        taps.send(8, || unreachable!("nobody watches this query"));
        assert_eq!(&*reader.try_recv().unwrap(), "{}");
        drop(reader);
        taps.send(7, || "{}".into());
        assert!(!taps.is_watching());
    }
}
