//! A client's session: its subscriptions, and the messages of QoS 1 on their way to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;

use super::super::codec::{Qos, Version};
use super::addresses::AddressKey;
use super::memory::Share;
use super::message::{Delivery, Manner, Message, encode_kept};
use super::outbox::{Outbox, SCARCE_BYTES_MAX};
use super::retained::{Retained, Step, Walk};
use super::stats::Counters;

/// Memory of a session apart from its texts, in bytes: itself and its entries in tables.
const SESSION_BYTES: usize = size_of::<Session>() + 200;

/// Memory of a subscription apart from its filter, which is kept twice.
const SUBSCRIPTION_BYTES: usize = 200;

/// Memory of a waiting message in the queue of its session.
const QUEUED_BYTES: usize = 2 * size_of::<(u16, Queued)>();

/// A session, with or without a connection.
pub(super) struct Session {
    pub(super) client_id: Box<str>,
    /// Its number in the journal; 0 if it ends with its connection, or if there is no journal.
    pub(super) saved_as: u64,
    /// The connection; `None` while there is none.
    pub(super) outbox: Option<Arc<Outbox>>,
    pub(super) version: Version,
    /// The largest packet that the client accepts.
    pub(super) packet_bytes_max: usize,
    /// The number of messages that may be in flight.
    pub(super) window: usize,
    /// How long the session outlives its connection, in seconds.
    pub(super) expiry_s: u32,
    /// When it ends unless its client comes back.
    pub(super) ends_at: Option<Instant>,
    /// The last address of its client.
    pub(super) address: AddressKey,
    /// Its number among the sessions of the address that have no connection.
    pub(super) waits_as: Option<u64>,
    /// The filters, each with the number of its subscription.
    pub(super) subscriptions: HashMap<Box<str>, u32>,
    /// Retained messages on their way to new subscriptions, by the number of the subscription.
    walks: BTreeMap<u32, RetainedWalk>,
    /// The message that is published if the client goes without a DISCONNECT.
    pub(super) will: Option<Will>,
    /// The will of a client that has gone, and when it is due.
    pub(super) due_will: Option<(Instant, Will)>,
    queue: VecDeque<Queued>,
    queue_bytes: usize,
    /// Sent and not acknowledged yet, oldest first.
    in_flight: VecDeque<(u16, Queued)>,
    last_packet_id: u16,
    /// The share that counts its memory.
    share: Arc<Share>,
    /// The bytes of messages that wait. They may wait for other sessions too.
    message_bytes: usize,
    /// All other bytes that are counted.
    own_bytes: usize,
}

/// A message that is published on behalf of a client after it has gone.
#[derive(Clone, Debug)]
pub(super) struct Will {
    pub(super) message: Arc<Message>,
    pub(super) delay_s: u32,
    /// The seconds until the message expires, from when it is published.
    pub(super) message_expiry_s: Option<u32>,
}

/// How retained messages are sent for one subscription.
#[derive(Debug)]
struct RetainedWalk {
    walk: Walk,
    qos: Qos,
    identifier: Option<u32>,
}

/// An event of retained messages on their way to a new subscription.
pub(super) enum Walked<'w> {
    /// One message waits for the client.
    Waits(&'w Message, Manner),
    /// All messages for the subscription with this number and filter were sent or wait.
    Over(u32, &'w str),
}

#[derive(Clone, Debug)]
struct Queued {
    message: Arc<Message>,
    manner: Manner,
    /// Whether it may have been sent before.
    is_again: bool,
}

/// The bounds of a session's queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBounds {
    pub(super) messages_max: usize,
    pub(super) bytes_max: usize,
}

impl Session {
    pub(super) fn new(client_id: &str, address: AddressKey, share: Arc<Share>) -> Self {
        let own_bytes = SESSION_BYTES + 2 * client_id.len();
        share.add(own_bytes);
        Self {
            client_id: client_id.into(),
            saved_as: 0,
            outbox: None,
            version: Version::V3,
            packet_bytes_max: usize::MAX,
            window: 1,
            expiry_s: 0,
            ends_at: None,
            address,
            waits_as: None,
            subscriptions: HashMap::new(),
            walks: BTreeMap::new(),
            will: None,
            due_will: None,
            queue: VecDeque::new(),
            queue_bytes: 0,
            in_flight: VecDeque::new(),
            last_packet_id: 0,
            share,
            message_bytes: 0,
            own_bytes,
        }
    }

    /// Notes that its client has another address from now on.
    pub(super) fn move_to(&mut self, address: AddressKey, share: Arc<Share>) {
        share.add(self.own_bytes);
        share.hold(self.message_bytes);
        self.share.subtract(self.own_bytes);
        self.share.release(self.message_bytes);
        (self.address, self.share) = (address, share);
    }

    /// Counts bytes of the session itself.
    fn add_bytes(&mut self, bytes: usize) {
        self.own_bytes += bytes;
        self.share.add(bytes);
    }

    fn subtract_bytes(&mut self, bytes: usize) {
        self.own_bytes -= bytes;
        self.share.subtract(bytes);
    }

    /// Counts a message that begins to wait.
    fn hold(&mut self, message: &Message) {
        self.message_bytes += message.memory_bytes();
        self.share.hold(message.memory_bytes());
        self.add_bytes(QUEUED_BYTES);
    }

    /// Counts a message that waits no longer.
    fn release(&mut self, message: &Message) {
        self.message_bytes -= message.memory_bytes();
        self.share.release(message.memory_bytes());
        self.subtract_bytes(QUEUED_BYTES);
    }

    /// Whether there is no memory for one more message. While memory is scarce, little may wait for a connected client,
    /// and nothing for a client without a connection.
    fn is_out_of_memory(&self, bytes: usize) -> bool {
        let is_little = self.message_bytes == 0 || self.message_bytes + bytes <= SCARCE_BYTES_MAX;
        !(self.outbox.is_some() && is_little) && self.share.is_full()
    }

    /// Sets or removes the will.
    pub(super) fn set_will(&mut self, will: Option<Will>) -> Option<Will> {
        let bytes = |will: &Option<Will>| will.as_ref().map_or(0, |will| will.message.memory_bytes());
        self.add_bytes(bytes(&will));
        let old = std::mem::replace(&mut self.will, will);
        self.subtract_bytes(bytes(&old));
        old
    }

    /// Notes a new subscription.
    pub(super) fn subscribed(&mut self, filter: &str, number: u32) {
        self.subscriptions.insert(filter.into(), number);
        self.add_bytes(SUBSCRIPTION_BYTES + 2 * filter.len());
    }

    /// Removes a subscription and returns its number.
    pub(super) fn unsubscribed(&mut self, filter: &str) -> Option<u32> {
        let number = self.subscriptions.remove(filter)?;
        self.subtract_bytes(SUBSCRIPTION_BYTES + 2 * filter.len());
        self.end_walk(number);
        Some(number)
    }

    /// Begins to send the retained messages that match a subscription.
    pub(super) fn begin_walk(&mut self, number: u32, filter: &str, qos: Qos, identifier: Option<u32>) {
        self.end_walk(number);
        let walk = Walk::new(filter);
        self.add_bytes(walk.memory_bytes());
        self.walks.insert(number, RetainedWalk { walk, qos, identifier });
    }

    fn end_walk(&mut self, number: u32) {
        if let Some(ended) = self.walks.remove(&number) {
            self.subtract_bytes(ended.walk.memory_bytes());
        }
    }

    /// Whether retained messages are on their way to a subscription.
    pub(super) fn wants_retained(&self, number: u32) -> bool {
        self.walks.contains_key(&number)
    }

    /// Sends retained messages to new subscriptions, as many as the client accepts and `steps` allow; the connection's
    /// writer or the next acknowledgement asks for more. Reports to `tell` what waits and what is over. Returns whether
    /// it stopped because of `steps`.
    pub(super) fn walk(
        &mut self,
        retained: &Retained,
        steps: &mut usize,
        counters: &mut Counters,
        mut tell: impl FnMut(Walked<'_>),
    ) -> bool {
        let Some(outbox) = self.outbox.clone() else { return false };
        let now = Instant::now();
        let mut packet = Vec::new();
        while let Some((&number, RetainedWalk { walk, qos, identifier })) = self.walks.iter_mut().next() {
            let message = match retained.step(walk, steps, now) {
                Step::At(message) => message,
                Step::Paused => {
                    outbox.set_starved();
                    return true;
                }
                Step::Over => {
                    tell(Walked::Over(number, walk.filter()));
                    self.end_walk(number);
                    continue;
                }
            };
            let manner = Manner { qos: (*qos).min(message.qos), retain: true, subscription_identifier: *identifier };
            if manner.qos == Qos::AtMostOnce {
                packet.clear();
                let (version, bytes_max) = (self.version, self.packet_bytes_max);
                if !encode_kept(&message, manner, version, (0, false), bytes_max, now, &mut packet) {
                    counters.too_large += 1;
                } else if outbox.offer(&packet, None) {
                    counters.messages_out += 1;
                } else {
                    outbox.set_starved();
                    return false;
                }
                walk.pass(&message.topic);
            } else if !self.queue.is_empty()
                || self.in_flight.len() >= self.window
                || self.is_out_of_memory(message.memory_bytes())
            {
                return false;
            } else if let Some(RetainedWalk { walk, .. }) = self.walks.get_mut(&number) {
                walk.pass(&message.topic);
                tell(Walked::Waits(&message, manner));
                self.push_queue(Queued { message, manner, is_again: false });
                self.pump(counters);
            }
        }
        false
    }

    /// Delivers a message that is just being published. Returns whether it waits for the client's acknowledgement.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        delivery: &mut Delivery<'_>,
        manner: Manner,
        bounds: QueueBounds,
        counters: &mut Counters,
    ) -> bool {
        // With a subscription identifier the packet is this subscriber's own. The expiry time has just begun, so the
        // common packet has the right value.
        let is_common = manner.subscription_identifier.is_none() || self.version == Version::V3;
        if manner.qos == Qos::AtMostOnce {
            let Some(outbox) = &self.outbox else { return false };
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
                    false if self.share.is_full() => counters.memory_full += 1,
                    false => counters.slow_subscriber += 1,
                },
                _ => counters.too_large += 1,
            }
            return false;
        }
        if is_common
            && self.queue.is_empty()
            && self.in_flight.len() < self.window
            && let Some(outbox) = self.outbox.clone()
            && let Some((packet, id_at)) = delivery.packet(self.version, Qos::AtLeastOnce, manner.retain)
            && packet.len() <= self.packet_bytes_max
        {
            let packet_id = following(self.last_packet_id, &self.in_flight);
            if !self.is_out_of_memory(packet.len()) && outbox.offer(packet, Some((id_at, packet_id))) {
                counters.messages_out += 1;
                self.last_packet_id = packet_id;
                let message = delivery.keep();
                self.hold(&message);
                self.in_flight.push_back((packet_id, Queued { message, manner, is_again: false }));
                return true;
            }
        }
        let is_taken = self.has_room(delivery.memory_bytes(), bounds, counters);
        if is_taken {
            self.push_queue(Queued { message: delivery.keep(), manner, is_again: false });
            self.pump(counters);
        }
        is_taken
    }

    /// Adds a message that waited for the client in an earlier process, which may have sent it.
    pub(super) fn restore(&mut self, message: Arc<Message>, manner: Manner) {
        self.push_queue(Queued { message, manner, is_again: true });
    }

    /// All messages that wait for the client, in order.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&Arc<Message>, Manner)> {
        let in_flight = self.in_flight.iter().map(|(_, queued)| queued);
        in_flight.chain(&self.queue).map(|queued| (&queued.message, queued.manner))
    }

    /// Whether a message of this size may wait. One that may not is dropped and counted.
    fn has_room(&self, bytes: usize, bounds: QueueBounds, counters: &mut Counters) -> bool {
        // A single message always has room, however large.
        let is_full = self.queue.len() >= bounds.messages_max || self.queue_bytes + bytes > bounds.bytes_max;
        if is_full && !self.queue.is_empty() {
            counters.session_queue_full += 1;
            return false;
        }
        if self.is_out_of_memory(bytes) {
            counters.memory_full += 1;
            return false;
        }
        true
    }

    fn push_queue(&mut self, queued: Queued) {
        self.queue_bytes += queued.message.memory_bytes();
        self.hold(&queued.message);
        self.queue.push_back(queued);
    }

    /// Sends queued messages as far as the window and the connection allow.
    pub(super) fn pump(&mut self, counters: &mut Counters) {
        let Some(outbox) = self.outbox.clone() else { return };
        let now = Instant::now();
        let mut packet = Vec::new();
        while self.in_flight.len() < self.window
            && let Some(Queued { message, manner, is_again }) = self.queue.front()
        {
            let packet_id = following(self.last_packet_id, &self.in_flight);
            packet.clear();
            if message.is_expired(now) {
                counters.expired += 1;
            } else if !encode_kept(
                message,
                *manner,
                self.version,
                (packet_id, *is_again),
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
            if packet.is_empty() {
                self.release(&queued.message);
            } else {
                counters.messages_out += 1;
                self.last_packet_id = packet_id;
                self.in_flight.push_back((packet_id, queued));
            }
        }
    }

    /// Handles an acknowledgement of the client; one for a message that was not sent is ignored. Returns the message's
    /// number in the journal, 0 if it is not there.
    pub(super) fn acknowledge(&mut self, packet_id: u16, counters: &mut Counters) -> u64 {
        let Some(index) = self.in_flight.iter().position(|(id, _)| *id == packet_id) else { return 0 };
        let Some((_, Queued { message, .. })) = self.in_flight.remove(index) else { return 0 };
        self.release(&message);
        if !self.queue.is_empty() {
            self.pump(counters);
        }
        if let Some(outbox) = &self.outbox
            && self.queue.is_empty()
            && !self.walks.is_empty()
        {
            outbox.ask_for_more();
        }
        message.number()
    }

    /// Resumes sending when the client is back: first the messages that it has not acknowledged, then those that have
    /// come meanwhile.
    pub(super) fn resume(&mut self, counters: &mut Counters) {
        let Some(outbox) = self.outbox.clone() else { return };
        let now = Instant::now();
        // If the window is smaller than last time, the messages beyond it go back to the queue.
        while self.in_flight.len() > self.window
            && let Some((_, queued)) = self.in_flight.pop_back()
        {
            self.queue_bytes += queued.message.memory_bytes();
            self.queue.push_front(Queued { is_again: true, ..queued });
        }
        let (version, packet_bytes_max) = (self.version, self.packet_bytes_max);
        for (packet_id, queued) in std::mem::take(&mut self.in_flight) {
            let Queued { message, manner, .. } = &queued;
            let is_sent = outbox
                .answer(|out| encode_kept(message, *manner, version, (packet_id, true), packet_bytes_max, now, out));
            if is_sent {
                self.in_flight.push_back((packet_id, queued));
            } else {
                counters.too_large += 1;
                self.release(message);
            }
        }
        self.pump(counters);
        if !self.walks.is_empty() {
            outbox.ask_for_more();
        }
    }

    /// The number of messages that wait for the client, sent or not.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len() + self.in_flight.len()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.share.subtract(self.own_bytes);
        self.share.release(self.message_bytes);
    }
}

/// The next packet identifier that is not in flight; there are far more identifiers than messages in flight.
fn following(last: u16, in_flight: &VecDeque<(u16, Queued)>) -> u16 {
    let mut id = last;
    loop {
        id = id.checked_add(1).unwrap_or(1);
        if !in_flight.iter().any(|(used, _)| *used == id) {
            return id;
        }
    }
}
