//! The network: clients that send with QoS 1 and repeat what was not acknowledged, and a receiver of results.
//!
//! Between a client and the engine are two queues, of messages and of acknowledgements. The end of a connection empties
//! both. The engine treats a message as its broker does: it asks the client's deduplication window whether the message
//! is a repeat, routes it, and acknowledges it when the log has it. Results are sent as in the broker: first to other
//! queries that read them, in order, then to the receiver.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet::engine::Engine;
use rivulet::engine::stepped::Network;
use rivulet_connectors::mqtt::acknowledge::{Admission, Answer, DedupWindow, DedupWindows};
use rivulet_connectors::mqtt::{Pending, PublishBatch, Publisher, Received, RoomCallback, Router};
use rivulet_dataflow::{Clock, LogPosition, Push};

use crate::defect::Defect;

/// The most messages of a client that wait for an acknowledgement.
const UNACKNOWLEDGED_MAX: usize = 8;

/// The engine's side: the state of clients, and the results that it has published. Each process has one.
pub(crate) struct Side {
    dedup_windows: DedupWindows,
    results: Arc<Results>,
}

struct Results {
    clock: Arc<dyn Clock>,
    defect: Option<Defect>,
    /// Routes results to other queries, once the engine exists.
    router: OnceLock<Arc<Router>>,
    way: Mutex<Way>,
    /// The number of results so far.
    count: AtomicU64,
    are_away: AtomicBool,
}

/// Results that are not sent yet.
#[derive(Default)]
struct Way {
    waiting: VecDeque<GivenResult>,
    /// The first of them, if some of its queries have it and others have no room.
    pending: Pending,
    published: Vec<(String, Vec<u8>)>,
}

struct GivenResult {
    topic: String,
    id: String,
    payload: Vec<u8>,
}

impl Results {
    /// Sends the results that find room; returns whether all are sent.
    fn leave(&self) -> bool {
        let mut way = self.way.lock();
        let Way { waiting, pending, published } = &mut *way;
        let Some(router) = self.router.get() else { return waiting.is_empty() };
        let mut routing = router.read_for_results();
        while let Some(GivenResult { topic, id, payload }) = waiting.front() {
            routing.of_result(if self.defect == Some(Defect::ResultsHaveNoIdentity) { "" } else { id });
            let (arrival_us, topic) = (self.clock.now_us(), topic.as_bytes());
            if routing.route(&Received { arrival_us, topic, payload, ..Received::default() }, pending) == Push::Full {
                return false;
            }
            published.extend(waiting.pop_front().map(|left| (left.topic, left.payload)));
        }
        true
    }
}

impl Side {
    pub(crate) fn new(clock: Arc<dyn Clock>, defect: Option<Defect>) -> Self {
        let results = Results {
            clock,
            defect,
            router: OnceLock::new(),
            way: Mutex::default(),
            count: AtomicU64::new(0),
            are_away: AtomicBool::new(false),
        };
        Self { dedup_windows: DedupWindows::default(), results: Arc::new(results) }
    }

    /// Lets queries read results of others from now on.
    pub(crate) fn route_to(&self, router: &Arc<Router>) {
        let _ = self.results.router.set(router.clone());
    }

    /// Whether all results have been sent.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.results.leave()
    }

    /// Takes the results that were published since the last call: topics and payloads.
    pub(crate) fn take_results(&self) -> Vec<(String, Vec<u8>)> {
        self.results.leave();
        std::mem::take(&mut self.results.way.lock().published)
    }

    /// The number of results for this topic that are not sent yet.
    pub(crate) fn waiting_for(&self, topic: &str) -> usize {
        self.results.way.lock().waiting.iter().filter(|result| result.topic == topic).count()
    }

    /// Whether there is no room for results.
    pub(crate) fn is_away(&self) -> bool {
        self.results.are_away.load(Ordering::Relaxed)
    }

    /// Takes away the room for results, or gives it back.
    pub(crate) fn keep_away(&self, are_away: bool) {
        self.results.are_away.store(are_away, Ordering::Relaxed);
    }
}

impl Network for Side {
    fn publisher(&self) -> Arc<dyn Publisher> {
        self.results.clone()
    }

    fn remember(&self, message: &Received<'_>, position: LogPosition) {
        self.dedup_windows.remember(message, position);
    }
}

impl Publisher for Results {
    fn submit(&self, batch: &mut PublishBatch) {
        self.count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let messages = (0..batch.len()).filter_map(|index| batch.get(index));
        self.way.lock().waiting.extend(messages.map(|message| GivenResult {
            topic: message.topic.to_owned(),
            id: message.id().to_owned(),
            payload: message.payload.to_vec(),
        }));
        batch.clear();
    }

    fn has_room(&self) -> bool {
        !self.are_away.load(Ordering::Relaxed)
    }

    fn on_room(&self, _: RoomCallback) {}

    fn next(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn first_left(&self) -> u64 {
        self.next() - self.way.lock().waiting.len() as u64
    }

    /// Nothing happens while it waits.
    fn wait_until_left(&self, until: u64, _limit: Duration, _is_given_up: &dyn Fn() -> bool) -> bool {
        self.leave();
        self.first_left() >= until
    }
}

/// Identifies an event: its device and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventName {
    pub(crate) device: usize,
    pub(crate) index: usize,
}

#[derive(Clone, Debug)]
struct Message {
    event: EventName,
    packet_id: u16,
    topic: String,
    payload: String,
    /// Whether it was sent before: then it is marked as a duplicate.
    was_sent: bool,
}

/// What became of the next message for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// There was no message in flight.
    Nothing,
    /// There is no room; the message stays in flight.
    Full,
    /// It was accepted, for the first time as far as the engine knows.
    New(EventName, LogPosition),
    /// The engine has recognised it as a repeat.
    Again(EventName, LogPosition),
}

/// A client that publishes.
pub(crate) struct Client {
    name: String,
    next_packet_id: u16,
    /// Sent messages without an acknowledgement, oldest first.
    unacknowledged: VecDeque<Message>,
    /// Messages in flight to the engine, and whether each is marked as a duplicate.
    under_way: VecDeque<(Message, bool)>,
    pending: Pending,
    dedup_window: Option<Arc<DedupWindow>>,
    /// Whether it repeats without a mark after its session was lost, as MQTT 5 requires.
    obeys_lost_session: bool,
    /// Whether the engine's process has ended since the client was connected.
    has_lost_session: bool,
}

impl Client {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            name: format!("client{number}"),
            next_packet_id: 1,
            unacknowledged: VecDeque::new(),
            under_way: VecDeque::new(),
            pending: Pending::default(),
            dedup_window: None,
            obeys_lost_session: number % 2 == 1,
            has_lost_session: false,
        }
    }

    /// Whether it may send one more message.
    pub(crate) fn has_room(&self) -> bool {
        self.unacknowledged.len() < UNACKNOWLEDGED_MAX
    }

    /// Whether all its messages are acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    pub(crate) fn send(&mut self, event: EventName, topic: String, payload: String) {
        let mut message = Message { event, packet_id: self.next_packet_id, topic, payload, was_sent: false };
        self.next_packet_id = self.next_packet_id % 20 + 1;
        if self.dedup_window.is_some() {
            self.under_way.push_back((message.clone(), false));
            message.was_sent = true;
        }
        self.unacknowledged.push_back(message);
    }

    /// Ends the connection, and loses everything in flight on it.
    pub(crate) fn lose_connection(&mut self, side: Option<&Side>) {
        self.under_way.clear();
        self.pending = Pending::default();
        let dedup_window = self.dedup_window.take();
        match side {
            Some(side) => {
                dedup_window.inspect(|dedup_window| side.dedup_windows.end(self.name.as_bytes(), dedup_window));
            }
            None => self.has_lost_session = true,
        }
    }

    /// Connects again, and repeats what was not acknowledged before anything new; returns the number of these messages.
    pub(crate) fn connect(&mut self, side: &Side) -> usize {
        if self.dedup_window.is_some() {
            return 0;
        }
        let dedup_window = side.dedup_windows.begin_next(self.name.as_bytes());
        let marks = !(std::mem::take(&mut self.has_lost_session) && self.obeys_lost_session);
        if !marks {
            dedup_window.lost_session();
        }
        self.dedup_window = Some(dedup_window);
        self.under_way =
            self.unacknowledged.iter().map(|message| (message.clone(), marks && message.was_sent)).collect();
        self.unacknowledged.iter_mut().for_each(|message| message.was_sent = true);
        self.under_way.len()
    }

    /// Makes the engine read the next message, as its broker does.
    pub(crate) fn deliver(&mut self, engine: &Engine, now_us: i64, defect: Option<Defect>) -> Delivered {
        let Some(dedup_window) =
            self.dedup_window.as_deref().filter(|dedup_window| dedup_window.admission() == Admission::Open)
        else {
            return Delivered::Nothing;
        };
        let Some((message, is_duplicate)) = self.under_way.front() else { return Delivered::Nothing };
        let (topic, payload, packet_id) = (message.topic.as_bytes(), message.payload.as_bytes(), message.packet_id);
        let known_at = match defect {
            Some(Defect::DuplicatesAreNew) => None,
            _ => dedup_window.known_at(*is_duplicate, packet_id, topic, payload),
        };
        let (position, delivered) = match known_at {
            Some(position) => (position, Delivered::Again(message.event, position)),
            None => {
                let client = self.name.as_bytes();
                let received = Received { arrival_us: now_us, client, packet_id, topic, payload };
                match engine.router().read().route(&received, &mut self.pending) {
                    Push::Full => return Delivered::Full,
                    Push::Taken => {
                        let position = self.pending.position();
                        (position, Delivered::New(message.event, position))
                    }
                }
            }
        };
        let mut at_once = Vec::new();
        dedup_window.acknowledge(position, Answer::success(packet_id), (topic, payload), &mut at_once);
        self.under_way.pop_front();
        self.acknowledged(&at_once);
        delivered
    }

    /// Receives acknowledgements for messages that the log has by now; returns how many.
    pub(crate) fn acknowledge(&mut self, engine: &Engine, defect: Option<Defect>) -> usize {
        let (Some(dedup_window), Some(log)) = (&self.dedup_window, engine.router().log()) else { return 0 };
        let durable = match defect {
            Some(Defect::AcknowledgesBeforeSync) => log.next() - 1,
            _ => log.durable(),
        };
        let mut answers = Vec::new();
        dedup_window.release(durable, Instant::now(), &mut answers);
        self.acknowledged(&answers)
    }

    /// Reads PUBACK packets.
    fn acknowledged(&mut self, answers: &[u8]) -> usize {
        for answer in answers.chunks_exact(4) {
            let packet_id = u16::from_be_bytes([answer[2], answer[3]]);
            if let Some(place) = self.unacknowledged.iter().position(|message| message.packet_id == packet_id) {
                self.unacknowledged.remove(place);
            }
        }
        answers.len() / 4
    }
}
