//! Acknowledgements that wait for the log, and messages that come again.
//!
//! A message of QoS 1 for a durable input is acknowledged when it is on disk, in the order in which messages came. If
//! the connection or the process ends before that, the sender repeats the message. The log has it already, so a repeat
//! is acknowledged and not processed once more. An acknowledgement may be lost with its connection, so an acknowledged
//! message is remembered for as long as its sender may not know of the acknowledgement.
//!
//! A repeat has the packet identifier and the content of the newest message with that identifier. That alone is not
//! enough: a client that has its acknowledgement may use the identifier again for an equal message, and that is a new
//! one. Three cases tell them apart, and none depends on the order in which a client sends new messages and repeats:
//!
//! - It is marked as a duplicate (DUP). MQTT forbids that for a new message.
//! - It is not marked, but the acknowledgement of the first was never sent: until then the identifier is in use.
//! - It is not marked, but the client asked for its session and was told that there is none. Then MQTT 5 has it send
//!   what it kept as if it were new.
//!
//! Any other message that is not marked is new. So a client counts twice that repeats without the mark though the
//! acknowledgement was on its way or its session was there; and in the third case an equal message under the same
//! identifier that is indeed new is taken for a repeat. Nothing in the protocol tells these apart.
//!
//! What must hold: a connection knows what earlier ones of its client put into the log before it processes its first
//! message, though they may not have ended when it began ([`DedupWindow::take_over`]); and memory is bounded, by client
//! and in total.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use rivulet_dataflow::LogPosition;
use tokio::sync::Notify;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::codec::{self, Qos};
use super::log::MessageLog;
use super::router::Received;

/// The most messages of one connection that wait for their acknowledgement; then it is not read. As many as there are
/// packet identifiers.
const WAITING_MAX: usize = 65_535;

/// How many of the messages that were acknowledged last are remembered of a connection. Half of the packet identifiers:
/// who counts them up comes to one again long after its last message was forgotten, and is not taken for who repeats
/// that.
const SENT_MAX: usize = 32_767;

/// The same while there is no room for more in total.
const SENT_LEAST: usize = 64;

/// A sender that goes on for so long knows of an acknowledgement.
const ARRIVES_WITHIN: Duration = Duration::from_secs(60);

/// How many clients are remembered.
const CLIENTS_MAX: usize = 100_000;

/// Of a full number of clients one in so many is forgotten at once, so that they are not looked through for each that
/// comes.
const FORGOTTEN_SHARE: usize = 16;

/// How many acknowledged messages are remembered in total, give or take those of one client: 32 to 80 bytes each.
const REMEMBERED_MAX: usize = 4 << 20;

/// How long a client is remembered that does not come back.
pub const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// How long a connection waits for an earlier one of its client to end, which has some seconds for what it has read.
const TAKE_OVER_MAX: Duration = Duration::from_secs(10);

/// What a message says, in short; `None` of one that was refused, which is not known when it comes again.
type Content = Option<NonZero<u64>>;

fn content_hash(topic: &[u8], payload: &[u8]) -> Content {
    Some(NonZero::new(xxh3_64_with_seed(payload, xxh3_64(topic))).unwrap_or(NonZero::<u64>::MIN))
}

/// What the sender of a message is to be told: PUBACK, or PUBREC where it has QoS 2.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Of the message; at least 1.
    pub qos: Qos,
    /// Of the message.
    pub packet_id: u16,
    /// The code of version 5; 0 is success.
    pub reason: u8,
}

impl Answer {
    /// A PUBACK that says that all is well.
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
    /// When something was last read from the sender, in seconds since `begun`.
    heard_s: AtomicU32,
    /// Told when something begins to wait.
    filled: Notify,
    /// Told when the connection has ended.
    ended: Notify,
    /// How many messages the windows of all clients remember.
    total: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Message>,
    /// The last that were acknowledged.
    sent: VecDeque<Message>,
    /// What is known of earlier connections, but for identifiers that this one has used.
    known: ByPacketId,
    /// Until when `known` is kept, in seconds since the window was begun; `None` before the first message.
    repeats_until_s: Option<u64>,
    /// Whether the client asked for a session that is not there.
    has_lost_session: bool,
    /// `sent` and `waiting` by packet identifier, from the first duplicate on that is looked for there: most senders
    /// never send one.
    index: Option<ByPacketId>,
    /// The connection before this one, if that has not ended yet.
    predecessor: Option<Arc<DedupWindow>>,
    /// Whether the next connection has taken what this one knows.
    is_taken: bool,
}

impl State {
    fn remembered(&self) -> usize {
        self.sent.len() + self.known.len()
    }

    /// Remembers a message that was acknowledged, and forgets those of which its sender knows that they were.
    fn remember(&mut self, message: Message, sent_max: usize) {
        self.sent.push_back(message);
        let excess = self.sent.len().saturating_sub(sent_max);
        self.sent.drain(..excess);
        let oldest_s = message.acknowledged_s.saturating_sub(ARRIVES_WITHIN.as_secs() as u32);
        // An identifier that is used again was acknowledged, as its sender knows.
        let is_over = |first: &mut Message| {
            first.position < message.position
                && (first.acknowledged_s < oldest_s || first.answer.packet_id == message.answer.packet_id)
        };
        while self.sent.pop_front_if(is_over).is_some() {}
    }

    /// Everything that is known, the newest of a packet identifier. A sender that was heard long after an
    /// acknowledgement has it.
    fn into_known(self, heard_s: u32) -> ByPacketId {
        let mut known = self.known;
        let oldest_s = heard_s.saturating_sub(ARRIVES_WITHIN.as_secs() as u32);
        let sent = self.sent.iter().filter(|message| message.acknowledged_s >= oldest_s);
        known.extend(sent.map(|message| message.entry(true)));
        known.extend(self.waiting.iter().map(|message| message.entry(false)));
        known
    }

    /// Where the log has the newest message of this connection with that identifier, if it has this content.
    fn find(&mut self, packet_id: u16, content: Content) -> Option<LogPosition> {
        let messages = self.sent.iter().chain(&self.waiting);
        let index = self.index.get_or_insert_with(|| messages.map(|message| message.entry(true)).collect());
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
    /// It may.
    Open,
    /// So much waits for its acknowledgement that nothing more should be read.
    Full,
    /// The next connection of the client knows what came so far, and nothing of what would come: it is left to be sent
    /// again.
    TakenOver,
}

impl DedupWindow {
    fn new(total: Arc<AtomicUsize>) -> Self {
        let (filled, ended) = (Notify::new(), Notify::new());
        Self { state: Mutex::default(), begun: Instant::now(), heard_s: AtomicU32::new(0), filled, ended, total }
    }

    /// Changes the state, and keeps count of what is remembered in total.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let before = state.remembered();
        let result = change(&mut state);
        let after = state.remembered();
        if after != before {
            // Less is added by going round.
            self.total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
        result
    }

    /// How many acknowledged messages may be remembered of this connection.
    fn sent_max(&self) -> usize {
        match self.total.load(Ordering::Relaxed) < REMEMBERED_MAX {
            true => SENT_MAX,
            false => SENT_LEAST,
        }
    }

    /// Waits until an earlier connection of the client has processed what it had read, and takes what it knows. To be
    /// called before anything is processed; a second call does nothing.
    pub(super) async fn take_over(&self) {
        let predecessor = self.state.lock().predecessor.clone();
        if let Some(predecessor) = predecessor {
            // Who takes longer processes nothing more from then on.
            let _ = tokio::time::timeout(TAKE_OVER_MAX, predecessor.ended.notified()).await;
            self.inherit();
        }
    }

    /// Takes what connections before this one know.
    fn inherit(&self) {
        // They may not have come to that themselves, and there may be many of them: the newest first.
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

    /// Something was read from the sender.
    pub(super) fn heard(&self, now: Instant) {
        let heard_s = now.saturating_duration_since(self.begun).as_secs() as u32;
        self.heard_s.store(heard_s, Ordering::Relaxed);
    }

    /// The client has asked for its session, and is told that there is none.
    pub fn lost_session(&self) {
        self.state.lock().has_lost_session = true;
    }

    /// Where the log has a message of QoS 1 already, if this is a repeat; `None` if it is a new one.
    pub fn known_at(&self, is_duplicate: bool, packet_id: u16, topic: &[u8], payload: &[u8]) -> Option<LogPosition> {
        if !is_duplicate && self.state.lock().known.is_empty() {
            return None;
        }
        let content = content_hash(topic, payload);
        let now_s = self.begun.elapsed().as_secs();
        self.change(|state| {
            // Whichever it is, it is the newest message with this identifier now.
            let earlier = state.known.remove(&packet_id);
            if is_duplicate && let Some(position) = state.find(packet_id, content) {
                return Some(position);
            }
            let found = earlier.filter(|known| {
                known.content == content && (is_duplicate || !known.may_be_told || state.has_lost_session)
            });
            // Repeats come soon after a connection has begun, and one after the other.
            let until_s = state.repeats_until_s.get_or_insert(now_s + ARRIVES_WITHIN.as_secs());
            match found {
                Some(_) => *until_s = now_s + ARRIVES_WITHIN.as_secs(),
                None if now_s > *until_s => state.known = HashMap::default(),
                None => {}
            }
            found.map(|known| known.position)
        })
    }

    /// The sender has begun anew: nothing of earlier connections comes again.
    pub(super) fn forget_earlier(&self) {
        self.change(|state| state.known = HashMap::default());
    }

    /// Acknowledges a message when the log has it: at once if `position` is 0 and nothing waits.
    pub fn acknowledge(
        &self,
        position: LogPosition,
        answer: Answer,
        (topic, payload): (&[u8], &[u8]),
        out: &mut Vec<u8>,
    ) {
        self.answer(position, answer, || content_hash(topic, payload), out);
    }

    /// Answers a message that goes nowhere: behind the answers to those before it.
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
        // What need not wait for the log itself waits for what came before it.
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

    /// How many messages wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Appends the acknowledgements of what is in the log up to `durable`; returns whether anything still waits.
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
            // The index also has messages that are forgotten. If they are too many, it is made anew when it is needed.
            let indexed = state.sent.len() + state.waiting.len();
            state.index.take_if(|index| index.len() > 2 * indexed + SENT_LEAST);
            !state.waiting.is_empty()
        })
    }

    /// Hands acknowledgements to `send` as the log grows, for as long as it is polled.
    pub(super) async fn serve(&self, log: &dyn MessageLog, mut send: impl FnMut(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        loop {
            let mut committed = std::pin::pin!(log.committed().notified());
            // Before looking: what is committed from here on is not missed.
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
}

impl Drop for DedupWindow {
    fn drop(&mut self) {
        self.total.fetch_sub(self.state.get_mut().remembered(), Ordering::Relaxed);
    }
}

/// The deduplication windows of all clients, those that have gone for a while included.
#[derive(Debug, Default)]
pub struct DedupWindows {
    clients: Mutex<HashMap<Box<[u8]>, Client, foldhash::fast::RandomState>>,
    /// How many messages they remember.
    total: Arc<AtomicUsize>,
    /// Clients that were forgotten early, or never remembered, for want of room.
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
    /// A connection begins. What an earlier one of the same client has left is known to it, after
    /// [`DedupWindow::take_over`] if that has not ended yet.
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

    /// The same after the end of the one before.
    pub fn begin_next(&self, client: &[u8]) -> Arc<DedupWindow> {
        let dedup_window = self.begin(client);
        dedup_window.inherit();
        dedup_window
    }

    /// Makes sure that there is room for one more client: those go that have gone for longest. False if all are
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

    /// A connection has ended, and processes nothing more.
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

    /// The log of an earlier process has a message, whose sender may not have been told so; from the oldest to the
    /// newest.
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
