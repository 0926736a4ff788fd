//! A client's session: its subscriptions, the messages of QoS 1 and 2 on their way to it, and those of QoS 2 from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;

use super::super::codec::Qos;
use super::addresses::AddressKey;
use super::incoming::{Incoming, UNRELEASED_BYTES, Unreleased};
use super::link::{Link, Offered};
use super::memory::Share;
use super::message::{Identifiers, Manner, Message, OfGroup};
use super::outbox::SCARCE_BYTES_MAX;
use super::retained::{Retained, Step, Walk};
use super::rights::Rights;
use super::stats::Counters;
use super::subscriptions::Readiness;
use queued::Queued;
pub(super) use queued::Received;

mod queued;
mod sending;

/// Memory of a session apart from its texts, in bytes: itself and its entries in tables.
const SESSION_BYTES: usize = size_of::<Session>() + 200;

/// Memory of a subscription apart from its filter, which is kept twice.
const SUBSCRIPTION_BYTES: usize = 200;

/// Memory of a waiting message in the queue of its session.
const QUEUED_BYTES: usize = 2 * size_of::<Queued>();

/// A session, with or without a connection.
pub(super) struct Session {
    pub(super) client_id: Box<str>,
    /// Its number in the journal; 0 if it ends with its connection, or if there is no journal.
    pub(super) saved_as: u64,
    /// The connection; `None` while there is none.
    pub(super) link: Option<Link>,
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
    /// Whether any of its subscriptions was shared.
    shares_any: bool,
    /// Retained messages on their way to new subscriptions, by the number of the subscription.
    walks: BTreeMap<u32, RetainedWalk>,
    /// The message that is published if the client goes without a DISCONNECT.
    will: Option<Box<Will>>,
    /// The will of a client that has gone, and when it is due.
    pub(super) due_will: Option<Box<(Instant, Will)>>,
    queue: VecDeque<Queued>,
    queue_bytes: usize,
    /// How many messages of the queue were sent before and have a packet identifier.
    resent: usize,
    /// Sent and not acknowledged yet, oldest first.
    in_flight: VecDeque<Queued>,
    /// Packet identifiers of messages of QoS 2 that the client has, and whose PUBCOMP has not come, oldest first.
    released: VecDeque<u16>,
    last_packet_id: u16,
    /// Messages of QoS 2 that were sent and whose packet identifiers the journal does not have yet.
    sent: Vec<(Arc<Message>, u16)>,
    /// The messages of QoS 2 that the client has sent and not released.
    incoming: Incoming,
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
    /// The rights of the client: that to publish the message may end before the will is due.
    pub(super) rights: Rights,
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
            link: None,
            expiry_s: 0,
            ends_at: None,
            address,
            waits_as: None,
            subscriptions: HashMap::new(),
            shares_any: false,
            walks: BTreeMap::new(),
            will: None,
            due_will: None,
            queue: VecDeque::new(),
            queue_bytes: 0,
            resent: 0,
            in_flight: VecDeque::new(),
            released: VecDeque::new(),
            last_packet_id: 0,
            sent: Vec::new(),
            incoming: Incoming::default(),
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
        !(self.link.is_some() && is_little) && self.share.is_full()
    }

    /// Sets or removes the will.
    pub(super) fn set_will(&mut self, will: Option<Will>) -> Option<Will> {
        let bytes = |will: Option<&Will>| will.map_or(0, |will| will.message.memory_bytes());
        self.add_bytes(bytes(will.as_ref()));
        let old = std::mem::replace(&mut self.will, will.map(Box::new));
        self.subtract_bytes(bytes(old.as_deref()));
        old.map(|will| *will)
    }

    /// Whether it may have messages of a shared subscription.
    pub(super) fn has_shared(&self) -> bool {
        self.shares_any
    }

    /// How soon it would get a message.
    pub(super) fn readiness(&self) -> Readiness {
        match self.link {
            None => Readiness::Away,
            Some(_) if self.queue.is_empty() && self.has_window() => Readiness::Ready,
            Some(_) => Readiness::Busy,
        }
    }

    /// The messages of QoS 2 that the client has sent and not released.
    pub(super) fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    /// Notes a message of QoS 2 from the client that was taken.
    pub(super) fn take(&mut self, taken: Unreleased) {
        if self.incoming.take(taken) {
            self.add_bytes(UNRELEASED_BYTES);
        }
    }

    /// Handles a PUBREL. Returns whether it belongs to a message.
    pub(super) fn release_incoming(&mut self, packet_id: u16) -> bool {
        let is_known = self.incoming.release(packet_id);
        if is_known {
            self.subtract_bytes(UNRELEASED_BYTES);
        }
        is_known
    }

    /// Notes a new subscription.
    pub(super) fn subscribed(&mut self, filter: &str, number: u32, is_shared: bool) {
        self.subscriptions.insert(filter.into(), number);
        self.shares_any |= is_shared;
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
        let now = Instant::now();
        while let Some(link) = self.link.as_mut()
            && let Some((&number, RetainedWalk { walk, qos, identifier })) = self.walks.iter_mut().next()
        {
            let message = match retained.step(walk, steps, now) {
                Step::At(message) => message,
                Step::Paused => {
                    link.outbox.set_starved();
                    return true;
                }
                Step::Over => {
                    tell(Walked::Over(number, walk.filter()));
                    self.end_walk(number);
                    continue;
                }
            };
            let manner = Manner {
                qos: (*qos).min(message.qos),
                retain: true,
                is_shared: false,
                group: OfGroup::default(),
                identifiers: Identifiers::from(*identifier),
            };
            if manner.qos == Qos::AtMostOnce {
                match link.offer(&message, manner, (0, false)) {
                    Offered::Taken => counters.messages_out += 1,
                    Offered::TooLarge => counters.drops.too_large += 1,
                    Offered::Full => {
                        link.outbox.set_starved();
                        return false;
                    }
                }
                walk.pass(&message.topic);
            } else if !self.queue.is_empty() || !self.has_window() || self.is_out_of_memory(message.memory_bytes()) {
                return false;
            } else if let Some(RetainedWalk { walk, .. }) = self.walks.get_mut(&number) {
                walk.pass(&message.topic);
                tell(Walked::Waits(&message, manner));
                self.wait(message, manner);
                self.pump(counters);
            }
        }
        false
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.share.subtract(self.own_bytes);
        self.share.release(self.message_bytes);
    }
}
