//! Acknowledgements that wait for the log, and messages that come again.
//!
//! A message of QoS 1 for a durable input is acknowledged when it is on disk, in the order in which messages came. Should the connection or the
//! process end before that, its sender sends it again, marked as a duplicate: then it is in the log already, and is
//! acknowledged without being processed once more. Who sends it again does so before anything new, so what is known of an
//! earlier connection is forgotten with the first message that is no duplicate.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::codec;
use super::log::MessageLog;

/// The most messages of one connection that wait for their acknowledgement; then it is not read. As many as there are packet identifiers.
const WAITING_MAX: usize = 65_535;

/// How many of the messages that were acknowledged last are remembered: the acknowledgement may be lost with the connection.
const SENT_KEPT: usize = 64;

/// How many clients are remembered.
const CLIENTS_MAX: usize = 100_000;

/// How many messages of one client are remembered.
const KNOWN_MAX: usize = WAITING_MAX + SENT_KEPT;

/// How long a client is remembered that does not come back.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// What a message says, in short.
pub(super) fn content_hash(topic: &[u8], payload: &[u8]) -> u64 {
    xxh3_64_with_seed(payload, xxh3_64(topic))
}

#[derive(Clone, Copy, Debug)]
struct Message {
    position: LogPosition,
    content: u64,
    packet_id: u16,
    /// The reason code of its acknowledgement.
    reason: u8,
}

/// The messages of QoS 1 of one connection.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    state: Mutex<State>,
    /// Told when something begins to wait.
    filled: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Message>,
    /// The last that were acknowledged.
    sent: VecDeque<Message>,
    /// What is known of earlier connections, by packet identifier: contents, and where they stand in the log.
    known: HashMap<u16, (u64, LogPosition), foldhash::fast::RandomState>,
}

impl Ledger {
    /// Where the log has a message that comes marked as a duplicate; `None` if it was never received.
    pub(super) fn find(&self, packet_id: u16, topic: &[u8], payload: &[u8]) -> Option<LogPosition> {
        let content = content_hash(topic, payload);
        let state = self.state.lock();
        let known = state.known.get(&packet_id).filter(|(known, _)| *known == content).map(|(_, position)| *position);
        // Some clients repeat what waits for long on one connection.
        known.or_else(|| {
            let is_same = |message: &&Message| message.packet_id == packet_id && message.content == content;
            state.waiting.iter().find(is_same).map(|message| message.position)
        })
    }

    /// A message came that is no duplicate: whatever was to come again has come.
    pub(super) fn begins_anew(&self) {
        let mut state = self.state.lock();
        if !state.known.is_empty() {
            state.known = HashMap::default();
        }
    }

    /// Acknowledges a message when the log has it: at once if `position` is 0 and nothing waits.
    pub(super) fn acknowledge(
        &self,
        position: LogPosition,
        (packet_id, reason): (u16, u8),
        (topic, payload): (&[u8], &[u8]),
        out: &mut Vec<u8>,
    ) {
        let mut state = self.state.lock();
        let last = state.waiting.back().map(|message| message.position);
        if position == 0 && last.is_none() {
            codec::encode_puback(packet_id, reason, out);
            return;
        }
        // What need not wait for the log itself waits for what came before it.
        let position = position.max(last.unwrap_or(0));
        state.waiting.push_back(Message { position, content: content_hash(topic, payload), packet_id, reason });
        if last.is_none() {
            self.filled.notify_one();
        }
    }

    /// Whether so much waits that nothing more should be read.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().waiting.len() >= WAITING_MAX
    }

    /// How many messages wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Appends the acknowledgements of what is in the log up to `durable`; returns whether anything still waits.
    fn release(&self, durable: LogPosition, out: &mut Vec<u8>) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        while let Some(message) = state.waiting.pop_front_if(|message| message.position <= durable) {
            codec::encode_puback(message.packet_id, message.reason, out);
            if state.sent.len() == SENT_KEPT {
                state.sent.pop_front();
            }
            state.sent.push_back(message);
        }
        !state.waiting.is_empty()
    }

    /// Hands acknowledgements to `send` as the log grows, for as long as it is polled.
    pub(super) async fn serve(&self, log: &dyn MessageLog, mut send: impl FnMut(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        loop {
            let mut committed = std::pin::pin!(log.committed().notified());
            // Before looking: what is committed from here on is not missed.
            committed.as_mut().enable();
            let is_waiting = self.release(log.durable(), &mut bytes);
            if !bytes.is_empty() {
                send(&mut bytes);
                bytes.clear();
            }
            match is_waiting {
                true => committed.await,
                false => self.filled.notified().await,
            }
        }
    }
}

/// The ledgers of all clients, those that have gone for a while included.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    clients: Mutex<HashMap<Box<[u8]>, Client, foldhash::fast::RandomState>>,
}

#[derive(Debug)]
struct Client {
    ledger: Arc<Ledger>,
    /// When its connection has ended.
    ended: Option<Instant>,
}

impl Ledgers {
    /// A connection begins. What an earlier one of the same client has left, though it may not have ended yet, is known to it.
    pub(super) fn begin(&self, client: &[u8]) -> Arc<Ledger> {
        let ledger = Arc::<Ledger>::default();
        let mut clients = self.clients.lock();
        let is_full = clients.len() >= CLIENTS_MAX;
        if let Some(known) = clients.get_mut(client) {
            let old = std::mem::replace(known, Client { ledger: ledger.clone(), ended: None });
            let old = std::mem::take(&mut *old.ledger.state.lock());
            let mut state = ledger.state.lock();
            state.known = old.known;
            // The newest of a packet identifier counts.
            let messages = old.sent.into_iter().chain(old.waiting);
            state.known.extend(messages.map(|message| (message.packet_id, (message.content, message.position))));
        } else if !is_full {
            clients.insert(client.into(), Client { ledger: ledger.clone(), ended: None });
        }
        ledger
    }

    /// A connection has ended.
    pub(super) fn end(&self, client: &[u8], ledger: &Arc<Ledger>) {
        let mut clients = self.clients.lock();
        let Some(known) = clients.get_mut(client).filter(|known| Arc::ptr_eq(&known.ledger, ledger)) else { return };
        known.ended = Some(Instant::now());
        let is_empty = {
            let state = ledger.state.lock();
            state.waiting.is_empty() && state.sent.is_empty() && state.known.is_empty()
        };
        if is_empty {
            clients.remove(client);
        }
    }

    /// The log of an earlier process has a message, whose sender may not have been told so.
    pub(super) fn remember(&self, client: &[u8], packet_id: u16, content: u64, position: LogPosition) {
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(client) {
            return;
        }
        let ended = Some(Instant::now());
        let known = clients.entry(client.into()).or_insert_with(|| Client { ledger: Arc::default(), ended });
        let mut state = known.ledger.state.lock();
        if state.known.len() < KNOWN_MAX {
            state.known.insert(packet_id, (content, position));
        }
    }

    /// Forgets clients that have been gone for long.
    pub(super) fn keep_house(&self, now: Instant) {
        self.clients
            .lock()
            .retain(|_, client| client.ended.is_none_or(|ended| now.saturating_duration_since(ended) < REMEMBERED_FOR));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledge(ledger: &Ledger, position: LogPosition, packet_id: u16) -> Vec<u8> {
        let mut out = Vec::new();
        ledger.acknowledge(position, (packet_id, 0), (b"t", &packet_id.to_be_bytes()), &mut out);
        out
    }

    fn find(ledger: &Ledger, packet_id: u16) -> Option<LogPosition> {
        ledger.find(packet_id, b"t", &packet_id.to_be_bytes())
    }

    fn released(ledger: &Ledger, durable: LogPosition) -> Vec<u8> {
        let mut out = Vec::new();
        ledger.release(durable, &mut out);
        out.chunks(4).map(|puback| puback[3]).collect()
    }

    #[test]
    fn acknowledgements_wait_for_the_log_and_keep_their_order() {
        let ledger = Ledger::default();
        assert_eq!(acknowledge(&ledger, 0, 1).len(), 4, "nothing to wait for");
        for (position, packet_id) in [(5, 2), (0, 3), (7, 4), (6, 5)] {
            assert!(acknowledge(&ledger, position, packet_id).is_empty());
        }
        assert_eq!((released(&ledger, 4), released(&ledger, 6)), (vec![], vec![2, 3]));
        assert_eq!((released(&ledger, 7), ledger.waiting()), (vec![4, 5], 0));
        assert_eq!(acknowledge(&ledger, 0, 6).len(), 4);
    }

    #[test]
    fn what_comes_again_is_known_until_something_new_comes() {
        let ledgers = Ledgers::default();
        let first = ledgers.begin(b"kim");
        acknowledge(&first, 5, 1);
        acknowledge(&first, 6, 2);
        assert_eq!((find(&first, 2), find(&first, 3)), (Some(6), None), "it waits on this connection");
        assert_eq!(released(&first, 5), [1]);
        // The client is faster than the end of its old connection.
        let second = ledgers.begin(b"kim");
        ledgers.end(b"kim", &first);
        assert_eq!((find(&second, 1), find(&second, 2), find(&second, 3)), (Some(5), Some(6), None));
        assert_eq!(second.find(2, b"t", b"another"), None);
        ledgers.end(b"kim", &second);
        let third = ledgers.begin(b"kim");
        assert_eq!(find(&third, 2), Some(6), "nothing new has come");
        third.begins_anew();
        assert_eq!(find(&third, 2), None);
        ledgers.end(b"kim", &third);
        assert!(ledgers.clients.lock().is_empty());
    }

    #[test]
    fn an_earlier_process_is_remembered_for_a_while() {
        let ledgers = Ledgers::default();
        ledgers.remember(b"kim", 1, content_hash(b"t", &1u16.to_be_bytes()), 9);
        ledgers.remember(b"lee", 1, content_hash(b"t", b"x"), 8);
        assert_eq!(find(&ledgers.begin(b"kim"), 1), Some(9));
        ledgers.keep_house(Instant::now() + REMEMBERED_FOR);
        assert_eq!(ledgers.clients.lock().len(), 1, "kim is here");
    }
}
