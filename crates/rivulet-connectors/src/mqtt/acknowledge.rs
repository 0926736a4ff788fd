//! Acknowledgements that wait for the log, and messages that come again.
//!
//! A message of QoS 1 or 2 for a durable input is acknowledged when it is on disk, in the order in which messages came.
//! If the connection or the process ends before that, the sender repeats the message. The log has it already, so a
//! repeat is acknowledged and not processed once more. An acknowledgement may be lost with its connection, so an
//! acknowledged message is remembered for as long as its sender may not know of the acknowledgement.
//!
//! A repeat has the packet identifier and the content of the newest message with that identifier. That alone is not
//! enough: a client that has its acknowledgement may use the identifier again for an equal message, and that is a new
//! one. In three cases a message is a repeat, and none depends on the order in which a client sends new messages and
//! repeats:
//!
//! - It is marked as a duplicate (DUP). MQTT forbids that for a new message.
//! - It is not marked, but the acknowledgement of the first was never sent: until then the identifier is in use.
//! - It is not marked, but the client asked for its session and was told that there is none. In that case MQTT 5 makes
//!   the client send the messages that it kept as if they were new.
//!
//! Any other message that is not marked is new. This is wrong in two cases that the protocol does not distinguish: an
//! unmarked repeat counts twice if the acknowledgement was on its way or the session was there; and in the third case a
//! new message that is equal to an earlier one under the same identifier is taken for a repeat.
//!
//! What must hold: before a connection processes its first message, it knows what earlier connections of its client put
//! into the log, even if these had not ended when it began ([`DedupWindow::take_over`]); and memory is bounded, by
//! client and in total.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::codec::{self, Qos};
use super::log::MessageLog;
use super::received::Received;

/// The most messages of one connection that wait for their acknowledgement; beyond this it is not read. As many as
/// there are packet identifiers.
const WAITING_MAX: usize = 65_535;

/// The number of last acknowledged messages that are remembered for a connection. It is half of the packet identifiers:
/// a client that counts them up reuses an identifier long after its last message was forgotten, so the new message is
/// not taken for a repeat.
const SENT_MAX: usize = 32_767;

/// The same number while there is no room for more in total.
const SENT_LEAST: usize = 64;

/// A sender that goes on for this long knows of an acknowledgement.
const ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// The number of clients that are remembered.
const CLIENTS_MAX: usize = 100_000;

/// When the number of clients is full, this fraction of them is forgotten at once, so that they are not searched for
/// each new client.
const FORGOTTEN_SHARE: usize = 16;

/// The number of acknowledged messages that are remembered in total, exceeded by those of one client at most: 32 to 80
/// bytes each.
const REMEMBERED_MAX: usize = 4 << 20;

/// How long a client without a connection is remembered.
pub const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// How long a connection waits for an earlier one of its client to end, which has some seconds to process what it has
/// read.
const TAKE_OVER_MAX: Duration = Duration::from_secs(10);

/// The hash of a message's topic and payload; `None` for a refused message, which is not recognised when it comes
/// again.
type Content = Option<NonZero<u64>>;

fn content_hash(topic: &[u8], payload: &[u8]) -> Content {
    Some(NonZero::new(xxh3_64_with_seed(payload, xxh3_64(topic))).unwrap_or(NonZero::<u64>::MIN))
}

/// The answer to the sender of a message: PUBACK, or PUBREC if it has QoS 2.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The message's quality of service; at least 1.
    pub qos: Qos,
    /// The message's packet identifier.
    pub packet_id: u16,
    /// The code of version 5; 0 is success.
    pub reason: u8,
}

impl Answer {
    /// A PUBACK that reports success.
    pub fn success(packet_id: u16) -> Self {
        Self { qos: Qos::AtLeastOnce, packet_id, reason: 0 }
    }

    /// Appends the packet.
    #[inline]
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        codec::encode_acknowledgement(self.qos, self.packet_id, self.reason, out);
    }
}

#[derive(Clone, Copy, Debug)]
struct Message {
    position: LogPosition,
    content: Content,
    /// When it was acknowledged, in seconds from a moment that is the same for all messages of a window.
    acknowledged_s: u32,
    answer: Answer,
}

/// What is known of the newest message with a packet identifier.
#[derive(Clone, Copy, Debug)]
struct Known {
    content: Content,
    position: LogPosition,
    /// Whether its acknowledgement may have been sent.
    may_be_told: bool,
}

type ByPacketId = HashMap<u16, Known, foldhash::fast::RandomState>;

/// The messages of QoS 1 of one connection.
#[derive(Debug)]
pub struct DedupWindow {
    state: Mutex<State>,
    begun: Instant,
    /// When bytes were last read from the sender, in seconds since `begun`.
    heard_s: AtomicU32,
    /// Notified when something begins to wait.
    filled: Notify,
    /// Notified when the connection has ended.
    ended: Notify,
    /// The number of messages that the windows of all clients remember.
    total: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Message>,
    /// The messages that were acknowledged last.
    sent: VecDeque<Message>,
    /// The newest messages of earlier connections, except for identifiers that this connection has used.
    known: ByPacketId,
    /// Until when `known` is kept, in seconds since the window was begun; `None` before the first message.
    repeats_until_s: Option<u32>,
    /// Whether the client asked for a session that is not there.
    has_lost_session: bool,
    /// `sent` and `waiting` by packet identifier. It is made when the first duplicate is looked for there: most senders
    /// never send one.
    index: Option<Box<ByPacketId>>,
    /// The previous connection, if it has not ended yet.
    predecessor: Option<Arc<DedupWindow>>,
    /// Whether the next connection has taken over what this one knows.
    is_taken: bool,
}

impl State {
    fn remembered(&self) -> usize {
        self.sent.len() + self.known.len()
    }

    /// Remembers an acknowledged message, and forgets messages whose senders know that they were acknowledged.
    fn remember(&mut self, message: Message, sent_max: usize) {
        self.sent.push_back(message);
        let excess = self.sent.len().saturating_sub(sent_max);
        self.sent.drain(..excess);
        let oldest_s = message.acknowledged_s.saturating_sub(ARRIVES_WITHIN.as_secs() as u32);
        // If an identifier is used again, its sender knows that the earlier message was acknowledged.
        let is_over = |first: &mut Message| {
            first.position < message.position
                && (first.acknowledged_s < oldest_s || first.answer.packet_id == message.answer.packet_id)
        };
        while self.sent.pop_front_if(is_over).is_some() {}
    }

    /// Everything that is known: the newest message of each packet identifier. A sender that was heard long after an
    /// acknowledgement has received it.
    fn into_known(self, heard_s: u32) -> ByPacketId {
        let mut known = self.known;
        let oldest_s = heard_s.saturating_sub(ARRIVES_WITHIN.as_secs() as u32);
        let sent = self.sent.iter().filter(|message| message.acknowledged_s >= oldest_s);
        known.extend(sent.map(|message| message.entry(true)));
        known.extend(self.waiting.iter().map(|message| message.entry(false)));
        known
    }

    /// The position in the log of the newest message of this connection with that identifier, if it has this content.
    fn find(&mut self, packet_id: u16, content: Content) -> Option<LogPosition> {
        let messages = self.sent.iter().chain(&self.waiting);
        let index = self.index.get_or_insert_with(|| Box::new(messages.map(|message| message.entry(true)).collect()));
        index.get(&packet_id).filter(|known| known.content == content).map(|known| known.position)
    }
}

impl Message {
    fn entry(&self, may_be_told: bool) -> (u16, Known) {
        (self.answer.packet_id, Known { content: self.content, position: self.position, may_be_told })
    }
}

/// Whether a connection may process more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may process more.
    Open,
    /// So many messages wait for their acknowledgement that nothing more should be read.
    Full,
    /// The next connection of the client has taken over. It knows the messages so far, and would not know later ones:
    /// the client must send those again.
    TakenOver,
}

impl DedupWindow {
    fn new(total: Arc<AtomicUsize>) -> Self {
        let (filled, ended) = (Notify::new(), Notify::new());
        Self { state: Mutex::default(), begun: Instant::now(), heard_s: AtomicU32::new(0), filled, ended, total }
    }

    /// Changes the state, and updates the number of messages that are remembered in total.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let before = state.remembered();
        let result = change(&mut state);
        let after = state.remembered();
        if after != before {
            // A decrease is added as a wrapping number.
            self.total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
        result
    }

    /// The number of acknowledged messages that may be remembered for this connection.
    fn sent_max(&self) -> usize {
        match self.total.load(Ordering::Relaxed) < REMEMBERED_MAX {
            true => SENT_MAX,
            false => SENT_LEAST,
        }
    }

    /// Waits until an earlier connection of the client has processed what it had read, and takes over what it knows. To
    /// be called before anything is processed; a second call does nothing.
    pub(super) async fn take_over(&self) {
        let predecessor = self.state.lock().predecessor.clone();
        if let Some(predecessor) = predecessor {
            // A connection that takes longer processes nothing more from then on.
            let _ = tokio::time::timeout(TAKE_OVER_MAX, predecessor.ended.notified()).await;
            self.inherit();
        }
    }

    /// Takes over what earlier connections know.
    fn inherit(&self) {
        // Earlier connections may not have taken over from their own predecessors, and there may be many. The newest
        // comes first.
        let mut earlier = Vec::new();
        let mut next = self.state.lock().predecessor.take();
        while let Some(dedup_window) = next {
            next = dedup_window.state.lock().predecessor.take();
            earlier.push(dedup_window);
        }
        if earlier.is_empty() {
            return;
        }
        let mut known = ByPacketId::default();
        for dedup_window in earlier.iter().rev() {
            let old = dedup_window.change(|old| std::mem::replace(old, State { is_taken: true, ..State::default() }));
            known.extend(old.into_known(dedup_window.heard_s.load(Ordering::Relaxed)));
        }
        self.change(|state| state.known = known);
    }

    /// Notes that bytes were read from the sender.
    pub(super) fn heard(&self, now: Instant) {
        let heard_s = now.saturating_duration_since(self.begun).as_secs() as u32;
        self.heard_s.store(heard_s, Ordering::Relaxed);
    }

    /// Notes that the client has asked for its session and is told that there is none.
    pub fn lost_session(&self) {
        self.state.lock().has_lost_session = true;
    }

    /// The position in the log of a message of QoS 1 if this is a repeat of it; `None` if this is a new message.
    pub fn known_at(&self, is_duplicate: bool, packet_id: u16, topic: &[u8], payload: &[u8]) -> Option<LogPosition> {
        if !is_duplicate && self.state.lock().known.is_empty() {
            return None;
        }
        let content = content_hash(topic, payload);
        let now_s = self.begun.elapsed().as_secs() as u32;
        self.change(|state| {
            // New or not, it is the newest message with this identifier now.
            let earlier = state.known.remove(&packet_id);
            if is_duplicate && let Some(position) = state.find(packet_id, content) {
                return Some(position);
            }
            let found = earlier.filter(|known| {
                known.content == content && (is_duplicate || !known.may_be_told || state.has_lost_session)
            });
            // Repeats come soon after a connection has begun, and one after the other.
            let until_s = state.repeats_until_s.get_or_insert(now_s + ARRIVES_WITHIN.as_secs() as u32);
            match found {
                Some(_) => *until_s = now_s + ARRIVES_WITHIN.as_secs() as u32,
                None if now_s > *until_s => state.known = HashMap::default(),
                None => {}
            }
            found.map(|known| known.position)
        })
    }

    /// Notes that the sender has released a message of QoS 2: what comes with its packet identifier from now on is new.
    pub(super) fn forget(&self, packet_id: u16) {
        self.change(|state| {
            state.known.remove(&packet_id);
            // An older message with this identifier was released before; the newest is near the end.
            if let Some(place) = state.sent.iter().rposition(|message| message.answer.packet_id == packet_id) {
                state.sent.remove(place);
            }
            if let Some(index) = &mut state.index {
                index.remove(&packet_id);
            }
        });
    }

    /// Notes that the sender has begun anew: nothing of earlier connections comes again.
    pub(super) fn forget_earlier(&self) {
        self.change(|state| state.known = HashMap::default());
    }

    /// Acknowledges a message when the log has it on disk: at once if `position` is 0 and nothing waits.
    pub fn acknowledge(
        &self,
        position: LogPosition,
        answer: Answer,
        (topic, payload): (&[u8], &[u8]),
        out: &mut Vec<u8>,
    ) {
        self.answer(position, answer, || content_hash(topic, payload), out);
    }

    /// Answers a message that goes nowhere, behind the answers to earlier messages.
    pub(super) fn refuse(&self, answer: Answer, out: &mut Vec<u8>) {
        self.answer(0, answer, || None, out);
    }

    fn answer(&self, position: LogPosition, answer: Answer, content: impl FnOnce() -> Content, out: &mut Vec<u8>) {
        let mut state = self.state.lock();
        let last = state.waiting.back().map(|message| message.position);
        if position == 0 && last.is_none() {
            answer.encode(out);
            return;
        }
        // A message that need not wait for the log still waits for earlier messages.
        let position = position.max(last.unwrap_or(0));
        let message = Message { position, content: content(), acknowledged_s: 0, answer };
        if let Some(index) = &mut state.index {
            index.extend([message.entry(true)]);
        }
        state.waiting.push_back(message);
        if last.is_none() {
            self.filled.notify_one();
        }
    }

    /// Whether more may be processed.
    pub fn admission(&self) -> Admission {
        let state = self.state.lock();
        match state.waiting.len() >= WAITING_MAX {
            _ if state.is_taken => Admission::TakenOver,
            true => Admission::Full,
            false => Admission::Open,
        }
    }

    /// The number of messages that wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Appends the acknowledgements of the messages that are in the log up to `durable`. Returns whether anything still
    /// waits.
    pub fn release(&self, durable: LogPosition, now: Instant, out: &mut Vec<u8>) -> bool {
        let now_s = now.saturating_duration_since(self.begun).as_secs() as u32;
        let sent_max = self.sent_max();
        self.change(|state| {
            while let Some(message) = state.waiting.pop_front_if(|message| message.position <= durable) {
                message.answer.encode(out);
                state.remember(Message { acknowledged_s: now_s, ..message }, sent_max);
            }
            if state.sent.capacity() > 2 * SENT_LEAST && state.sent.len() < state.sent.capacity() / 4 {
                state.sent.shrink_to(2 * state.sent.len());
            }
            // The index also has messages that are forgotten. If they are too many, it is dropped, and made anew when
            // it is needed.
            let indexed = state.sent.len() + state.waiting.len();
            state.index.take_if(|index| index.len() > 2 * indexed + SENT_LEAST);
            !state.waiting.is_empty()
        })
    }

    /// Hands acknowledgements to `send` as the log becomes durable, for as long as it is polled.
    pub(super) async fn serve(&self, log: &dyn MessageLog, mut send: impl FnMut(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        loop {
            let mut committed = std::pin::pin!(log.committed().notified());
            // Enabled before looking, so that no commit from here on is missed.
            committed.as_mut().enable();
            let is_waiting = self.release(log.durable(), Instant::now(), &mut bytes);
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

    /// Whether anything waits.
    pub(super) fn has_waiting(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// Completes when something has begun to wait.
    pub(super) fn filled(&self) -> Notified<'_> {
        self.filled.notified()
    }
}

impl Drop for DedupWindow {
    fn drop(&mut self) {
        self.total.fetch_sub(self.state.get_mut().remembered(), Ordering::Relaxed);
    }
}

/// The deduplication windows of all clients, including clients that have been gone for a while.
#[derive(Debug, Default)]
pub struct DedupWindows {
    clients: Mutex<HashMap<Box<[u8]>, Client, foldhash::fast::RandomState>>,
    /// The number of messages that they remember.
    total: Arc<AtomicUsize>,
    /// Clients that were forgotten early, or never remembered, because there was no room.
    forgotten: AtomicU64,
    has_warned: AtomicBool,
}

#[derive(Debug)]
struct Client {
    dedup_window: Arc<DedupWindow>,
    /// When its connection has ended.
    ended: Option<Instant>,
}

impl DedupWindows {
    /// Begins a connection. It knows what an earlier one of the same client has left; if that one has not ended yet,
    /// only after [`DedupWindow::take_over`].
    pub fn begin(&self, client: &[u8]) -> Arc<DedupWindow> {
        let dedup_window = Arc::new(DedupWindow::new(self.total.clone()));
        let mut clients = self.clients.lock();
        if let Some(known) = clients.get_mut(client) {
            let old = std::mem::replace(known, Client { dedup_window: dedup_window.clone(), ended: None });
            dedup_window.state.lock().predecessor = Some(old.dedup_window);
            if old.ended.is_some() {
                dedup_window.inherit();
            }
        } else if self.makes_room(&mut clients) {
            clients.insert(client.into(), Client { dedup_window: dedup_window.clone(), ended: None });
        }
        dedup_window
    }

    /// The same if the previous connection has ended: takes over at once what it knows.
    pub fn begin_next(&self, client: &[u8]) -> Arc<DedupWindow> {
        let dedup_window = self.begin(client);
        dedup_window.inherit();
        dedup_window
    }

    /// Makes room for one more client by forgetting those that have been gone for longest. Returns false if all are
    /// connected.
    fn makes_room(&self, clients: &mut HashMap<Box<[u8]>, Client, foldhash::fast::RandomState>) -> bool {
        if clients.len() < CLIENTS_MAX {
            return true;
        }
        let mut gone: Vec<Instant> = clients.values().filter_map(|client| client.ended).collect();
        let share = (CLIENTS_MAX / FORGOTTEN_SHARE).min(gone.len());
        let before = clients.len();
        if share > 0 {
            let (_, &mut last, _) = gone.select_nth_unstable(share - 1);
            clients.retain(|_, client| client.ended.is_none_or(|ended| ended > last));
        }
        let forgotten = (before - clients.len()).max(1) as u64;
        self.forgotten.fetch_add(forgotten, Ordering::Relaxed);
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                clients = before,
                "there are more clients with durable events than are remembered; of those that went first, what they send again is counted \
                 again\nhint: let devices keep their client id"
            );
        }
        clients.len() < before
    }

    /// Clients that were forgotten early, or never remembered, because there were too many.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Notes that a connection has ended, and processes nothing more.
    pub fn end(&self, client: &[u8], dedup_window: &Arc<DedupWindow>) {
        let mut clients = self.clients.lock();
        dedup_window.ended.notify_one();
        dedup_window.inherit();
        let Some(known) = clients.get_mut(client).filter(|known| Arc::ptr_eq(&known.dedup_window, dedup_window)) else {
            return;
        };
        known.ended = Some(Instant::now());
        let is_empty = {
            let state = dedup_window.state.lock();
            state.waiting.is_empty() && state.remembered() == 0
        };
        if is_empty {
            clients.remove(client);
        }
    }

    /// Notes a message that is in the log of an earlier process, whose sender may not have its acknowledgement. To be
    /// called from the oldest to the newest.
    pub fn remember(&self, message: &Received<'_>, position: LogPosition) {
        let Received { arrival_us, client, packet_id, topic, payload } = *message;
        let mut clients = self.clients.lock();
        if !clients.contains_key(client) {
            if !self.makes_room(&mut clients) {
                return;
            }
            let dedup_window = Arc::new(DedupWindow::new(self.total.clone()));
            clients.insert(client.into(), Client { dedup_window, ended: Some(Instant::now()) });
        }
        let Some(Client { dedup_window, .. }) = clients.get(client) else { return };
        let content = content_hash(topic, payload);
        let acknowledged_s = u32::try_from(arrival_us.div_euclid(1_000_000)).unwrap_or(0);
        let sent_max = dedup_window.sent_max();
        dedup_window.change(|state| {
            let message = Message { position, content, acknowledged_s, answer: Answer::success(packet_id) };
            state.remember(message, sent_max);
        });
    }

    /// Forgets clients that have been gone for long.
    pub(super) fn keep_house(&self, now: Instant) {
        self.clients
            .lock()
            .retain(|_, client| client.ended.is_none_or(|ended| now.saturating_duration_since(ended) < REMEMBERED_FOR));
    }
}

#[cfg(test)]
mod tests;
