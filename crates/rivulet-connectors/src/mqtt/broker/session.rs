//! One client's session: what it is subscribed to, and the messages of QoS 1 on their way to it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;

use super::super::codec::{Qos, Version};
use super::message::{Delivery, Manner, Message, encode_kept};
use super::outbox::Outbox;
use super::stats::Counters;

/// A session, with or without a connection.
pub(super) struct Session {
    pub(super) client_id: Box<str>,
    /// The connection; `None` while there is none.
    pub(super) outbox: Option<Arc<Outbox>>,
    pub(super) version: Version,
    /// The largest packet the client takes.
    pub(super) packet_bytes_max: usize,
    /// How many messages may be in flight.
    pub(super) window: usize,
    /// How long the session outlives its connection, in seconds.
    pub(super) expiry_s: u32,
    pub(super) disconnected_at: Option<Instant>,
    /// The filters, with the numbers of their subscriptions.
    pub(super) subscriptions: HashMap<Box<str>, u32>,
    /// What is published if the client goes without saying goodbye.
    pub(super) will: Option<Will>,
    /// The will of a client that has gone, and when it is due.
    pub(super) due_will: Option<(Instant, Arc<Message>)>,
    queue: VecDeque<Queued>,
    queue_bytes: usize,
    /// Sent and not acknowledged, oldest first.
    in_flight: VecDeque<(u16, Queued)>,
    last_packet_id: u16,
}

/// A message that is published for a client when it is gone.
#[derive(Clone, Debug)]
pub(super) struct Will {
    pub(super) message: Arc<Message>,
    pub(super) delay_s: u32,
}

#[derive(Clone, Debug)]
struct Queued {
    message: Arc<Message>,
    manner: Manner,
}

/// The bounds of a session's queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBounds {
    pub(super) messages_max: usize,
    pub(super) bytes_max: usize,
}

impl Session {
    pub(super) fn new(client_id: &str) -> Self {
        Self {
            client_id: client_id.into(),
            outbox: None,
            version: Version::V3,
            packet_bytes_max: usize::MAX,
            window: 1,
            expiry_s: 0,
            disconnected_at: None,
            subscriptions: HashMap::new(),
            will: None,
            due_will: None,
            queue: VecDeque::new(),
            queue_bytes: 0,
            in_flight: VecDeque::new(),
            last_packet_id: 0,
        }
    }

    /// Hands a message that is just being published to the client.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        delivery: &mut Delivery<'_>,
        manner: Manner,
        bounds: QueueBounds,
        counters: &mut Counters,
    ) {
        // A subscription identifier makes the packet this subscriber's own; and expiry has just begun, so the packet
        // for everybody else says the right thing.
        let is_common = manner.subscription_identifier.is_none() || self.version == Version::V3;
        if manner.qos == Qos::AtMostOnce {
            let Some(outbox) = &self.outbox else { return };
            let mut own = Vec::new();
            let packet = match is_common {
                true => delivery.packet(self.version, Qos::AtMostOnce, manner.retain).map(|(packet, _)| packet),
                false => {
                    let kept = delivery.keep();
                    let now = Instant::now();
                    encode_kept(&kept, manner, self.version, (0, false), usize::MAX, now, &mut own).then_some(&own[..])
                }
            };
            match packet {
                Some(packet) if packet.len() <= self.packet_bytes_max => match outbox.offer(packet, None) {
                    true => counters.messages_out += 1,
                    false => counters.slow_subscriber += 1,
                },
                _ => counters.too_large += 1,
            }
            return;
        }
        if is_common
            && self.queue.is_empty()
            && self.in_flight.len() < self.window
            && let Some(outbox) = self.outbox.clone()
            && let Some((packet, id_at)) = delivery.packet(self.version, Qos::AtLeastOnce, manner.retain)
            && packet.len() <= self.packet_bytes_max
        {
            let packet_id = following(self.last_packet_id, &self.in_flight);
            if outbox.offer(packet, Some((id_at, packet_id))) {
                counters.messages_out += 1;
                self.last_packet_id = packet_id;
                self.in_flight.push_back((packet_id, Queued { message: delivery.keep(), manner }));
                return;
            }
        }
        let queued = Queued { message: delivery.keep(), manner };
        self.enqueue(queued, bounds, counters);
        self.pump(counters);
    }

    /// Hands a message that is kept to the client.
    pub(super) fn deliver_kept(
        &mut self,
        message: &Arc<Message>,
        manner: Manner,
        bounds: QueueBounds,
        counters: &mut Counters,
    ) {
        if manner.qos != Qos::AtMostOnce {
            self.enqueue(Queued { message: message.clone(), manner }, bounds, counters);
            self.pump(counters);
            return;
        }
        let Some(outbox) = &self.outbox else { return };
        let mut packet = Vec::new();
        if !encode_kept(message, manner, self.version, (0, false), self.packet_bytes_max, Instant::now(), &mut packet) {
            counters.too_large += 1;
        } else if outbox.offer(&packet, None) {
            counters.messages_out += 1;
        } else {
            counters.slow_subscriber += 1;
        }
    }

    fn enqueue(&mut self, queued: Queued, bounds: QueueBounds, counters: &mut Counters) {
        let bytes = queued.message.memory_bytes();
        // A single message always finds a place, however large.
        let is_full = self.queue.len() >= bounds.messages_max || self.queue_bytes + bytes > bounds.bytes_max;
        if is_full && !self.queue.is_empty() {
            counters.session_queue_full += 1;
            return;
        }
        self.queue_bytes += bytes;
        self.queue.push_back(queued);
    }

    /// Sends queued messages as far as window and connection allow.
    pub(super) fn pump(&mut self, counters: &mut Counters) {
        let Some(outbox) = self.outbox.clone() else { return };
        let now = Instant::now();
        let mut packet = Vec::new();
        while self.in_flight.len() < self.window
            && let Some(Queued { message, manner }) = self.queue.front()
        {
            let packet_id = following(self.last_packet_id, &self.in_flight);
            packet.clear();
            if message.is_expired(now) {
                counters.expired += 1;
            } else if !encode_kept(
                message,
                *manner,
                self.version,
                (packet_id, false),
                self.packet_bytes_max,
                now,
                &mut packet,
            ) {
                counters.too_large += 1;
            } else if !outbox.offer(&packet, None) {
                outbox.set_starved();
                return;
            }
            let Some(queued) = self.queue.pop_front() else { return };
            self.queue_bytes -= queued.message.memory_bytes();
            if !packet.is_empty() {
                counters.messages_out += 1;
                self.last_packet_id = packet_id;
                self.in_flight.push_back((packet_id, queued));
            }
        }
    }

    /// The client has acknowledged a message. One it was not sent is passed over.
    pub(super) fn acknowledge(&mut self, packet_id: u16, counters: &mut Counters) {
        if let Some(index) = self.in_flight.iter().position(|(id, _)| *id == packet_id) {
            self.in_flight.remove(index);
            if !self.queue.is_empty() {
                self.pump(counters);
            }
        }
    }

    /// The client is back: what it has not acknowledged is sent again, then what has come meanwhile.
    pub(super) fn resume(&mut self, counters: &mut Counters) {
        let Some(outbox) = self.outbox.clone() else { return };
        let now = Instant::now();
        // A smaller window than the last time: what is beyond it waits in the queue again, as if never sent.
        while self.in_flight.len() > self.window
            && let Some((_, queued)) = self.in_flight.pop_back()
        {
            self.queue_bytes += queued.message.memory_bytes();
            self.queue.push_front(queued);
        }
        let (version, packet_bytes_max) = (self.version, self.packet_bytes_max);
        self.in_flight.retain(|(packet_id, Queued { message, manner })| {
            let is_sent = outbox
                .answer(|out| encode_kept(message, *manner, version, (*packet_id, true), packet_bytes_max, now, out));
            counters.too_large += u64::from(!is_sent);
            is_sent
        });
        self.pump(counters);
    }

    /// Messages that wait for the client, sent or not.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len() + self.in_flight.len()
    }
}

/// The next packet identifier that is not in flight; there are far more identifiers than may be in flight.
fn following(last: u16, in_flight: &VecDeque<(u16, Queued)>) -> u16 {
    let mut id = last;
    loop {
        id = id.checked_add(1).unwrap_or(1);
        if !in_flight.iter().any(|(used, _)| *used == id) {
            return id;
        }
    }
}
