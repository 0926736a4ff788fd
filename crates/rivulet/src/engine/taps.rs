//! Live results: copies of the results of a query, for readers that watch it. Without readers this costs one atomic
//! load per batch.
//!
//! What must hold: the memory for readers has a bound, however many readers there are and however slowly they read.
//! Each watched query has the same share of it, so that readers that do not read cost others nothing until all of it is
//! used. Readers that do not read at all are disconnected by the server they are connected to.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rivulet_connectors::formats::encode_row_as_json;
use rivulet_dataflow::{Batch, QueryId};
use tokio::sync::broadcast;

use crate::service::{FullName, LiveResult, Waiting};

/// The most results that wait for a slow reader. Beyond that the reader loses the oldest and is told how many.
const WAITING_MAX: usize = 1_024;

/// The memory of a result besides its text.
const RESULT_BYTES: usize = 64;

/// How often a result that is complete asks whether its reader takes more rows, and for how long it asks. Memory that
/// others use may be the reason; then the row is skipped, and counted.
const ROOM_PERIOD: Duration = Duration::from_millis(2);
const ROOM_WAIT_MAX: Duration = Duration::from_secs(30);

/// The least time between two lines in the log about results that were skipped.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// A source of results that can be watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Watched {
    /// A query of an application.
    Query(QueryId),
    /// A big query, by its name.
    BigQuery(FullName),
    /// A SELECT that runs for its readers alone.
    Select(u64),
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Query(id) => write!(f, "{id}"),
            Self::BigQuery(name) => f.write_str(&name.in_log()),
            Self::Select(number) => write!(f, "select {number}"),
        }
    }
}

/// The readers of live results, by query.
#[derive(Debug)]
pub(super) struct Taps {
    watched: AtomicUsize,
    taps: RwLock<HashMap<Watched, Tap>>,
    bytes_max: usize,
    /// Bytes that wait for readers of any query.
    bytes: Arc<AtomicUsize>,
    last_notice: Mutex<Option<Instant>>,
}

/// The readers of one query.
#[derive(Debug)]
struct Tap {
    sender: broadcast::Sender<Arc<LiveResult>>,
    bytes: Arc<AtomicUsize>,
    /// The number of results that were skipped since the last one that was not.
    skipped: AtomicU64,
    /// The length of the last skipped result that did not fit; 0 if none was too long.
    too_long: AtomicUsize,
}

impl Tap {
    fn new() -> Self {
        let sender = broadcast::channel(WAITING_MAX).0;
        Self { sender, bytes: Arc::default(), skipped: AtomicU64::new(0), too_long: AtomicUsize::new(0) }
    }
}

impl Taps {
    /// At most `bytes_max` bytes of results wait for readers.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            watched: AtomicUsize::new(0),
            taps: RwLock::default(),
            bytes_max,
            bytes: Arc::default(),
            last_notice: Mutex::default(),
        }
    }

    /// A reader of a query's results from now on.
    pub(super) fn watch(&self, query: Watched) -> broadcast::Receiver<Arc<LiveResult>> {
        let mut taps = self.taps.write();
        taps.retain(|_, tap| tap.sender.receiver_count() > 0);
        let receiver = taps.entry(query).or_insert_with(Tap::new).sender.subscribe();
        self.watched.store(taps.len(), Ordering::Release);
        receiver
    }

    /// Whether there is any reader. Ask before looking at rows.
    pub(super) fn is_watching(&self) -> bool {
        self.watched.load(Ordering::Acquire) > 0
    }

    /// Whether a query has readers.
    pub(super) fn is_watched(&self, query: &Watched) -> bool {
        self.taps.read().contains_key(query)
    }

    /// Hands rows of a big query to its readers. If the result `changes`, `op` tells for each row whether it was added
    /// (`+`) or retracted (`-`).
    pub(super) fn send_rows(&self, query: &Watched, batch: &Batch, changes: bool) {
        if !self.is_watching() || !self.is_watched(query) {
            return;
        }
        for row in 0..batch.rows() {
            self.send(query, || {
                let text = encode_row_as_json(batch, row);
                match changes {
                    false => text,
                    true => {
                        let op = if batch.is_retraction(row) { '-' } else { '+' };
                        let rest = text.strip_prefix('{').unwrap_or(&text);
                        let comma = if rest == "}" { "" } else { "," };
                        format!("{{\"op\":\"{op}\"{comma}{rest}")
                    }
                }
            });
        }
    }

    /// Hands over the first rows of a batch, as many as its reader takes now, and returns how many these are; without a
    /// reader all. It does not wait.
    pub(super) fn send_some(&self, query: &Watched, batch: &Batch) -> usize {
        for row in 0..batch.rows() {
            match self.takes_more(query) {
                None => return batch.rows(),
                Some(false) => return row,
                Some(true) => self.send(query, || encode_row_as_json(batch, row)),
            }
        }
        batch.rows()
    }

    /// Hands over the rows of a result that is complete, as fast as its reader takes them. It waits for the reader, so
    /// it is for a thread of that result alone. It ends when the reader goes.
    pub(super) fn send_whole(&self, query: &Watched, batch: &Batch) {
        for row in 0..batch.rows() {
            let asked = Instant::now();
            loop {
                match self.takes_more(query) {
                    None => return,
                    Some(false) if asked.elapsed() < ROOM_WAIT_MAX => thread::sleep(ROOM_PERIOD),
                    Some(_) => break,
                }
            }
            self.send(query, || encode_row_as_json(batch, row));
        }
    }

    /// Whether the reader of a result has taken most of it so far; `None` without a reader.
    fn takes_more(&self, query: &Watched) -> Option<bool> {
        let taps = self.taps.read();
        let tap = taps.get(query).filter(|tap| tap.sender.receiver_count() > 0)?;
        let share = self.bytes_max / taps.len().max(1);
        let fits = |bytes_max: usize, waiting: &AtomicUsize| waiting.load(Ordering::Relaxed) <= bytes_max / 2;
        Some(tap.sender.len() < WAITING_MAX / 2 && fits(share, &tap.bytes) && fits(self.bytes_max, &self.bytes))
    }

    /// Hands a result to the readers of a query; `result` is called only if there are any.
    pub(super) fn send(&self, query: &Watched, result: impl FnOnce() -> String) {
        let is_gone = {
            let taps = self.taps.read();
            match taps.get(query) {
                Some(tap) => !self.offer(query, tap, taps.len(), result),
                None => false,
            }
        };
        if is_gone {
            // A new reader may have come in between.
            let mut taps = self.taps.write();
            taps.retain(|id, tap| id != query || tap.sender.receiver_count() > 0);
            self.watched.store(taps.len(), Ordering::Release);
        }
    }

    /// Tells the readers of a query what was refused. Call it rarely: it has no bound of its own.
    pub(super) fn note(&self, query: &Watched, text: String) {
        if let Some(tap) = self.taps.read().get(query) {
            let _ = tap.sender.send(Arc::new(LiveResult { text, is_note: true, ..LiveResult::default() }));
        }
    }

    /// Hands a result on if there is room for it. Returns whether there still are readers. The result is made only if
    /// its readers read: a single reader with the most waiting results does not, and among several there may be one
    /// that does.
    fn offer(&self, query: &Watched, tap: &Tap, watched: usize, result: impl FnOnce() -> String) -> bool {
        let has_room = |bytes: usize| {
            let fits = |bytes_max: usize, waiting: &AtomicUsize| match waiting.load(Ordering::Relaxed) {
                // A result that is larger than its share passes when no other waits.
                0 => true,
                waiting => waiting + bytes + RESULT_BYTES <= bytes_max,
            };
            fits(self.bytes_max / watched.max(1), &tap.bytes) && fits(self.bytes_max, &self.bytes)
        };
        let is_read = match tap.sender.receiver_count() {
            0 => return false,
            1 => tap.sender.len() < WAITING_MAX,
            _ => true,
        };
        if is_read && has_room(tap.too_long.load(Ordering::Relaxed)) {
            let text = result();
            let fits = has_room(text.len());
            tap.too_long.store(if fits { 0 } else { text.len() }, Ordering::Relaxed);
            if fits {
                let waiting = Some(Waiting::new(text.len() + RESULT_BYTES, &tap.bytes, &self.bytes));
                let skipped = tap.skipped.swap(0, Ordering::Relaxed);
                return tap
                    .sender
                    .send(Arc::new(LiveResult { text, skipped, is_note: false, _waiting: waiting }))
                    .is_ok();
            }
        }
        let skipped = tap.skipped.fetch_add(1, Ordering::Relaxed) + 1;
        let mut last = self.last_notice.lock();
        if last.is_none_or(|last| last.elapsed() >= NOTICE_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!(%query, skipped, "live results are skipped, because their readers are too slow");
        }
        tap.sender.receiver_count() > 0
    }

    /// Ends the readers of a query that is gone. At the end they are told how many results were skipped.
    pub(super) fn forget(&self, query: &Watched) {
        let mut taps = self.taps.write();
        let tap = taps.remove(query);
        self.watched.store(taps.len(), Ordering::Release);
        drop(taps);
        if let Some((tap, skipped)) =
            tap.map(|tap| (tap.sender, tap.skipped.into_inner())).filter(|(_, more)| *more > 0)
        {
            // The readers may have gone.
            let _ = tap.send(Arc::new(LiveResult { skipped, ..LiveResult::default() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_query_is_copied_and_others_are_not() {
        let taps = Taps::new(1 << 20);
        assert!(!taps.is_watching());
        let mut reader = taps.watch(Watched::Query(7));
        taps.send(&Watched::Query(7), || "{}".into());
        taps.send(&Watched::Query(8), || unreachable!("nobody watches this query"));
        assert_eq!(reader.try_recv().unwrap().text, "{}");
        drop(reader);
        taps.send(&Watched::Query(7), || "{}".into());
        assert!(!taps.is_watching());
    }

    #[test]
    fn readers_that_do_not_read_hold_no_more_than_is_allowed_and_others_get_theirs() {
        let bytes_max = 64 << 10;
        let taps = Taps::new(bytes_max);
        let sleepers: Vec<_> = (0..32).map(|query| taps.watch(Watched::Query(query))).collect();
        let mut reader = taps.watch(Watched::Query(99));
        let result = "x".repeat(1_000);
        for round in 0..1_000 {
            for query in 0..32 {
                taps.send(&Watched::Query(query), || result.clone());
            }
            taps.send(&Watched::Query(99), || result.clone());
            let got = reader.try_recv().unwrap_or_else(|_| panic!("the reader that reads loses result {round}"));
            assert_eq!((got.text.len(), got.skipped), (1_000, 0));
            assert!(taps.bytes.load(Ordering::Relaxed) <= bytes_max);
        }
        // A sleeping reader that wakes up gets the kept results, and the number of the others.
        let mut sleeper = sleepers.into_iter().next().unwrap();
        let mut kept = 0;
        while sleeper.try_recv().is_ok() {
            kept += 1;
        }
        taps.send(&Watched::Query(0), || "{}".into());
        assert_eq!(kept + sleeper.try_recv().unwrap().skipped, 1_000);
        drop((sleeper, reader));
        for query in 0..100 {
            taps.send(&Watched::Query(query), || "{}".into());
        }
        assert_eq!(taps.bytes.load(Ordering::Relaxed), 0, "all is given back");
    }

    #[test]
    fn nothing_is_encoded_for_a_reader_that_does_not_read_and_it_is_told_at_the_end() {
        let (query, sent) = (Watched::Select(1), 3 * WAITING_MAX as u64);
        for (bytes_max, length) in [(1 << 30, 2), (64 * RESULT_BYTES, 2), (64 * RESULT_BYTES, 700)] {
            let taps = Taps::new(bytes_max);
            let mut reader = taps.watch(query.clone());
            let mut encoded = 0;
            for _ in 0..sent {
                taps.send(&query, || {
                    encoded += 1;
                    "x".repeat(length)
                });
            }
            assert!((1..=WAITING_MAX as u64).contains(&encoded), "{encoded} of {sent}");
            taps.forget(&query);
            let (mut results, mut skipped, mut lagged) = (0, 0, 0);
            loop {
                match reader.try_recv() {
                    Ok(result) => {
                        results += u64::from(!result.text.is_empty());
                        skipped += result.skipped;
                    }
                    Err(broadcast::error::TryRecvError::Lagged(more)) => lagged += more,
                    Err(_) => break,
                }
            }
            assert_eq!(results + skipped + lagged, sent, "{results} {skipped} {lagged}");
        }
    }
}
