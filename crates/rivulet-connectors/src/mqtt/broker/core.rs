//! The broker's state: sessions, subscriptions, retained messages. It uses no socket and never waits. One lock protects
//! all of it; a connection takes the lock once for everything that it has read.

use super::rights::{Rights, may_publish};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rivulet_dataflow::LogPosition;

use super::super::codec::{Qos, Version};
use super::addresses::{Addresses, SessionKey};
use super::link::{Link, Terms};
use super::memory::{Memory, Share};
use super::message::Encoded;
use super::options::{BrokerLimits, BrokerOptions};
use super::outbox::Outbox;
use super::retained::Retained;
use super::seats::SeatCounts;
use super::session::{QueueBounds, Session, Will};
use super::slab::Slab;
use super::stats::{BrokerDrops, BrokerStats, Counters};
use super::subscriptions::{Receiver, Subscriptions, Wanted};
use super::tenants::{Held, Tenant, Tenants, share_of};
use saving::Saving;

mod publishing;
mod restore;
mod saved;
mod saving;
mod subscribing;

pub use restore::{JournalContents, JournalSummary};
pub(super) use saving::Rewritten;

/// When retained messages are sent to a new subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetainHandling {
    Always,
    IfNew,
    Never,
}

/// One filter of a SUBSCRIBE.
#[derive(Clone, Debug)]
pub(super) struct SubscribeRequest<'a> {
    pub(super) filter: &'a str,
    pub(super) qos: Qos,
    pub(super) no_local: bool,
    pub(super) retain_as_published: bool,
    pub(super) retain_handling: RetainHandling,
    pub(super) identifier: Option<u32>,
}

/// The request of a CONNECT, in either version.
pub(super) struct ConnectRequest<'a> {
    pub(super) client_id: &'a str,
    /// The address of the client.
    pub(super) address: IpAddr,
    pub(super) version: Version,
    pub(super) clean_start: bool,
    pub(super) expiry_s: u32,
    pub(super) receive_max: u16,
    pub(super) packet_bytes_max: usize,
    pub(super) topic_aliases_max: u16,
    pub(super) will: Option<Will>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Goodbye {
    /// Whether the will is discarded without being published.
    pub(super) is_graceful: bool,
    /// A new expiry of the session, from a DISCONNECT of version 5.
    pub(super) expiry_s: Option<u32>,
}

/// The most look-ups in the retained messages for new subscriptions before other tasks have their turn: some hundredths
/// of a millisecond.
const RETAINED_STEPS_MAX: usize = 256;

/// The most sessions that are ended to free memory for a new one.
const EVICTIONS_MAX: usize = 16;

/// The most wills that wait to be published.
const WILLS_MAX: usize = 10_000;

/// The most bytes of these wills. A single will always has room.
const WILL_BYTES_MAX: usize = 64 << 20;

/// The reason codes of a SUBACK that are used here.
pub(super) mod suback {
    pub(crate) const NOT_AUTHORIZED: u8 = 0x87;
    pub(crate) const FILTER_INVALID: u8 = 0x8f;
    pub(crate) use crate::mqtt::wire::QUOTA_EXCEEDED;
}

/// The result of publishing a message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Published {
    /// Whether the topic has any subscriber.
    pub(super) has_subscribers: bool,
    /// The position that the journal must have on disk before the publisher gets its acknowledgement; 0 if there is
    /// none.
    pub(super) saved_at: LogPosition,
}

/// Positions in the log of events of the last messages of QoS 2 that a client has released, by packet identifier.
type Done = HashMap<u16, LogPosition>;

/// The bounds of sessions and subscriptions.
struct Bounds {
    queue: QueueBounds,
    in_flight_max: u16,
    receive_max: u16,
    topic_aliases_max: u16,
    sessions_max: usize,
    subscriptions_max: usize,
    session_subscriptions_max: usize,
    address_subscriptions_max: usize,
    connections_max: usize,
    session_expiry_s_max: u32,
}

impl Bounds {
    fn of(options: &BrokerOptions) -> Self {
        Self {
            queue: QueueBounds {
                messages_max: options.limits.session_queue_messages_max,
                bytes_max: options.limits.session_queue_bytes_max,
            },
            in_flight_max: options.limits.in_flight_max.max(1),
            receive_max: options.receive_max().get(),
            topic_aliases_max: options.limits.topic_aliases_max,
            sessions_max: options.limits.sessions_max,
            subscriptions_max: options.limits.subscriptions_max,
            session_subscriptions_max: options.limits.session_subscriptions_max,
            address_subscriptions_max: share_of(options.limits.subscriptions_max, options.limits.address_share_percent),
            connections_max: options.limits.connections_max,
            session_expiry_s_max: options.limits.session_expiry_s_max,
        }
    }
}

pub(super) struct Core {
    pub(super) sessions: Slab<Session>,
    by_client_id: HashMap<Box<str>, SessionKey, foldhash::fast::RandomState>,
    pub(super) addresses: Addresses,
    tenants: Tenants,
    memory: Arc<Memory>,
    subscriptions: Subscriptions,
    retained: Retained,
    /// Wills to be published by the task that publishes the engine's results.
    wills: VecDeque<Will>,
    will_bytes: usize,
    pub(super) counters: Counters,
    connections: usize,
    bounds: Bounds,
    /// The look-ups that are left for new subscriptions while the lock is held.
    retained_steps: usize,
    /// What writes the journal, if there is one.
    saving: Option<Saving>,
    /// Memory that is reused: the subscriptions of one message, and its packets.
    found: Vec<Receiver>,
    encoded: Encoded,
    /// Of clients of an earlier process, messages of QoS 2 that they had released; empty once the broker is open.
    done: HashMap<Box<str>, Done>,
    /// Whether the broker stops: what waits for a session stays there.
    is_closing: bool,
}

impl Core {
    pub(super) fn new(options: &BrokerOptions) -> Self {
        Self {
            sessions: Slab::new(),
            by_client_id: HashMap::default(),
            addresses: Addresses::new(),
            tenants: Tenants::new(options.authorizer.clone(), options.limits.tenant_share_percent),
            memory: Memory::new(
                options.limits.memory_bytes_max,
                options.limits.address_share_percent,
                options.limits.tenant_share_percent,
            ),
            subscriptions: Subscriptions::new(),
            retained: Retained::new(options.limits.retained_messages_max, options.limits.retained_bytes_max),
            wills: VecDeque::new(),
            will_bytes: 0,
            counters: Counters::default(),
            connections: 0,
            bounds: Bounds::of(options),
            retained_steps: 0,
            saving: None,
            found: Vec::new(),
            encoded: Encoded::default(),
            done: HashMap::new(),
            is_closing: false,
        }
    }

    /// Takes over the bounds of other options. Existing state beyond them stays.
    pub(super) fn set_bounds(&mut self, options: &BrokerOptions) {
        let BrokerLimits { memory_bytes_max, address_share_percent, tenant_share_percent, .. } = options.limits;
        self.memory.set_bounds(memory_bytes_max, address_share_percent, tenant_share_percent);
        self.tenants.share_percent = tenant_share_percent;
        self.retained.set_bounds(options.limits.retained_messages_max, options.limits.retained_bytes_max);
        // Clients are told the receive maximum that was configured at the start.
        let Bounds { receive_max, .. } = self.bounds;
        self.bounds = Bounds { receive_max, ..Bounds::of(options) };
    }

    /// The share that counts the memory of a connection of this client from this address.
    pub(super) fn share(&mut self, address: IpAddr, client_id: &str) -> Arc<Share> {
        let tenant = self.tenants.of_client(client_id);
        let known = self.addresses.of(address, tenant.as_ref()).map(|known| known.share.clone());
        known.unwrap_or_else(|| self.memory.share(tenant))
    }

    /// Begins a new turn, after other tasks have had theirs: new subscriptions may look at some more retained messages.
    pub(super) fn begin_turn(&mut self) {
        self.retained_steps = RETAINED_STEPS_MAX;
        self.look_for_room_to_save();
    }

    /// Begins or resumes a session with this connection. `answer` writes the CONNACK, given whether the session existed
    /// and how long it outlives the connection; the CONNACK is sent before anything else. `hold` gets the packet
    /// identifiers that are released again, if the journal does not have on disk yet that they were received: a PUBREL
    /// may be sent when it is durable up to the position.
    ///
    /// `None` if there is no room for one more session.
    pub(super) fn connect(
        &mut self,
        request: ConnectRequest<'_>,
        outbox: &Arc<Outbox>,
        farewell: impl FnOnce(Version, &mut Vec<u8>),
        answer: impl FnOnce(bool, u32, &mut Vec<u8>),
        hold: impl FnOnce(LogPosition, Vec<u16>),
    ) -> Option<SessionKey> {
        let now = Instant::now();
        // What follows here is recorded, and nothing that a PUBREL promises.
        let unsaved_to = self.saving.as_ref().map_or(0, Saving::undurable_end);
        if let Some(&key) = self.by_client_id.get(request.client_id) {
            if let Some(session) = self.sessions.get_mut(key)
                && let Some(old) = session.link.take()
            {
                old.outbox.answer(|out| farewell(old.terms.version, out));
                old.outbox.close();
                self.leave(key, Goodbye { is_graceful: false, expiry_s: None }, now);
            }
            if let Some(session) = self.sessions.get(key)
                && (request.clean_start || session.expiry_s == 0 || session.ends_at.is_some_and(|at| at <= now))
            {
                self.remove_session(key);
            }
        }
        let present = self.by_client_id.get(request.client_id).copied();
        let tenant = self.tenants.of_client(request.client_id);
        let tenant = tenant.as_ref();
        let has_room = !self.tenants.has_share(tenant, Held::Connections, 1, self.bounds.connections_max);
        if !has_room || present.is_none() && !self.makes_room(request.address, tenant) {
            self.counters.drops.clients_refused += 1;
            return None;
        }
        let key = match present {
            Some(key) => key,
            None => {
                let address = self.addresses.enter(request.address, tenant, &self.memory);
                let share = self.addresses.get_mut(address).share.clone();
                let key = self.sessions.insert(Session::new(request.client_id, address, share));
                self.by_client_id.insert(request.client_id.into(), key);
                key
            }
        };
        if present.is_some() {
            self.come_back(key, request.address, tenant);
        }
        let session = self.sessions.get_mut(key).expect("it was found or made just now");
        let window = usize::from(request.receive_max.clamp(1, self.bounds.in_flight_max));
        let terms = Terms {
            version: request.version,
            packet_bytes_max: request.packet_bytes_max,
            window,
            aliases_max: request.topic_aliases_max.min(self.bounds.topic_aliases_max),
        };
        session.link = Some(Link::new(outbox.clone(), terms));
        session.expiry_s = request.expiry_s.min(self.bounds.session_expiry_s_max);
        session.ends_at = None;
        session.set_will(request.will);
        session.due_will = None;
        self.connections += 1;
        tenant.iter().for_each(|tenant| tenant.add(Held::Connections, 1));
        self.counters.connections_total += 1;
        outbox.answer(|out| answer(present.is_some(), session.expiry_s, out));
        match unsaved_to > 0 && !session.released().is_empty() {
            true => hold(unsaved_to, session.released().iter().copied().collect()),
            false => session.release_again(),
        }
        session.resume(&mut self.counters);
        self.save_session(key);
        self.save_sent(key);
        Some(key)
    }

    /// Ends the subscriptions of a client's session that its rights do not allow any more, and drops what waits for the
    /// client without a right to it. What was sent and not acknowledged would be sent again, so it counts as well.
    pub(super) fn keep_permitted(&mut self, client_id: &str, rights: &Rights) {
        let Some(rights) = rights.as_deref() else { return };
        let Some(&key) = self.by_client_id.get(client_id) else { return };
        let Some(session) = self.sessions.get(key) else { return };
        // As with a SUBSCRIBE, of a shared subscription the filter counts that topics match.
        let may = |text: &str| Wanted::parse(text).is_some_and(|wanted| rights.may_subscribe(wanted.filter));
        let refused: Vec<Box<str>> = session.subscriptions.keys().filter(|text| !may(text)).cloned().collect();
        for filter in &refused {
            self.unsubscribe(key, filter);
        }
        let Self { sessions, subscriptions, found, counters, saving, .. } = self;
        let Some(session) = sessions.get_mut(key) else { return };
        let dropped = session.drop_refused(|topic, is_sent| {
            found.clear();
            subscriptions.find(topic, found);
            let is_wanted = found.iter().any(|receiver| match *receiver {
                Receiver::One(number) => subscriptions.get(number).is_some_and(|one| one.session == key),
                Receiver::Group(group) => subscriptions.has_member(group, |member| member.session == key),
            });
            // The client may have unsubscribed before it lost the right. While it has the right, it gets what was on
            // its way (MQTT 5, 3.10.4).
            let may_go_on = is_sent || refused.is_empty();
            is_wanted || may_go_on && str::from_utf8(topic).is_ok_and(|topic| rights.may_subscribe(topic))
        });
        counters.drops.rights_ended += dropped.len() as u64;
        for message in dropped {
            saving::save_acknowledged(saving, session.saved_as, message.number());
        }
    }

    /// Handles the end of a connection. Returns whether the session still belonged to it: another connection may have
    /// taken the session over.
    pub(super) fn disconnected(&mut self, key: SessionKey, outbox: &Arc<Outbox>, goodbye: Goodbye) -> bool {
        if !self.owns(key, outbox) {
            return false;
        }
        let Some(session) = self.sessions.get_mut(key) else { return false };
        session.link = None;
        self.leave(key, goodbye, Instant::now());
        true
    }

    /// Ends or keeps a session, and handles its will, after its connection has ended.
    fn leave(&mut self, key: SessionKey, goodbye: Goodbye, now: Instant) {
        self.connections -= 1;
        let Some(session) = self.sessions.get_mut(key) else { return };
        let tenant = self.addresses.get_mut(session.address).tenant.iter();
        tenant.for_each(|tenant| tenant.subtract(Held::Connections, 1));
        // A session that was to end with its connection cannot be extended afterwards (MQTT 5, 3.14.2.2.2).
        if let Some(expiry_s) = goodbye.expiry_s
            && session.expiry_s > 0
        {
            session.expiry_s = expiry_s.min(self.bounds.session_expiry_s_max);
        }
        let expiry_s = session.expiry_s;
        session.ends_at = Some(now + Duration::from_secs(u64::from(expiry_s)));
        session.waits_as = Some(self.addresses.wait(session.address, key));
        if let Some(will) = session.set_will(None)
            && !goodbye.is_graceful
        {
            match will.delay_s.min(expiry_s) {
                0 => self.push_will(will),
                delay_s => session.due_will = Some(Box::new((now + Duration::from_secs(u64::from(delay_s)), will))),
            }
        }
        match expiry_s {
            0 => self.remove_session(key),
            _ => {
                self.save_session(key);
                self.hand_over(key, false);
            }
        }
    }

    /// Notes that the client of a session is back, maybe from another address, and maybe as the client of a tenant that
    /// has come or gone since.
    fn come_back(&mut self, key: SessionKey, address: IpAddr, tenant: Option<&Arc<Tenant>>) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let old = session.address;
        if let Some(number) = session.waits_as.take() {
            self.addresses.wait_no_more(old, number);
        }
        let new = self.addresses.enter(address, tenant, &self.memory);
        if new != old {
            self.addresses.get_mut(old).unsubscribed(session.subscriptions.len());
            let row = self.addresses.get_mut(new);
            row.subscribed(session.subscriptions.len());
            session.move_to(new, row.share.clone());
        }
        self.addresses.leave(old);
    }

    fn remove_session(&mut self, key: SessionKey) {
        self.hand_over(key, true);
        let Some(mut session) = self.sessions.remove(key) else { return };
        self.by_client_id.remove(&session.client_id);
        saving::save_end(&mut self.saving, session.saved_as);
        for (filter, &subscription) in &session.subscriptions {
            self.subscriptions.remove(subscription, filter);
        }
        if let Some(number) = session.waits_as {
            self.addresses.wait_no_more(session.address, number);
        }
        self.addresses.get_mut(session.address).unsubscribed(session.subscriptions.len());
        self.addresses.leave(session.address);
        // A will waits until the session's end at the latest.
        if let Some(due) = session.due_will.take() {
            self.push_will(due.1);
        }
    }

    /// Queues a will, or drops and counts it: its client may have lost the right to publish it since it connected, and
    /// a thousand clients may go at once while an inbox is full.
    fn push_will(&mut self, will: Will) {
        if !may_publish(&will.rights, &will.message.topic) {
            self.counters.drops.rights_ended += 1;
            return;
        }
        let bytes = will.message.memory_bytes();
        let is_full = self.wills.len() >= WILLS_MAX || self.will_bytes + bytes > WILL_BYTES_MAX;
        if is_full && !self.wills.is_empty() {
            self.counters.drops.wills_full += 1;
            return;
        }
        self.will_bytes += bytes;
        self.wills.push_back(will);
    }

    /// The next will to be published.
    pub(super) fn take_will(&mut self) -> Option<Will> {
        let will = self.wills.pop_front()?;
        self.will_bytes -= will.message.memory_bytes();
        Some(will)
    }

    /// Whether there are wills to be published.
    pub(super) fn has_wills(&self) -> bool {
        !self.wills.is_empty()
    }

    /// Whether a session belongs to this connection. It does not if another connection has taken over the session, or
    /// got its number.
    pub(super) fn owns(&self, key: SessionKey, outbox: &Arc<Outbox>) -> bool {
        let own = self.sessions.get(key).and_then(|session| session.link.as_ref());
        own.is_some_and(|own| Arc::ptr_eq(&own.outbox, outbox))
    }

    /// Makes room for one more session of an address and a tenant. Sessions without a connection may be ended for it.
    /// Returns false if that does not suffice.
    fn makes_room(&mut self, address: IpAddr, tenant: Option<&Arc<Tenant>>) -> bool {
        for _ in 0..EVICTIONS_MAX {
            if self.has_room(address, tenant) {
                return true;
            }
            let Some(key) = self.addresses.to_evict(address, tenant) else { return false };
            self.remove_session(key);
            self.counters.drops.sessions_evicted += 1;
        }
        self.has_room(address, tenant)
    }

    /// Whether there is room for one more session of an address and a tenant.
    fn has_room(&self, address: IpAddr, tenant: Option<&Arc<Tenant>>) -> bool {
        let is_full = || match self.addresses.of(address, tenant) {
            Some(known) => known.share.is_full(),
            None => self.memory.is_full() || self.memory.is_full_for(tenant),
        };
        self.sessions.len() < self.bounds.sessions_max
            && !self.tenants.has_share(tenant, Held::Sessions, 1, self.bounds.sessions_max)
            && !is_full()
    }

    /// Sends more to a connection whose outbox has room again. Returns whether it should ask again in the next turn.
    pub(super) fn pump(&mut self, key: SessionKey, outbox: &Arc<Outbox>) -> bool {
        self.begin_turn();
        if self.owns(key, outbox)
            && let Some(session) = self.sessions.get_mut(key)
        {
            session.pump(&mut self.counters);
            return self.walk(key);
        }
        false
    }

    /// Does the work that depends on time: ends sessions, makes wills due, removes expired retained messages. To be
    /// called about every second.
    pub(super) fn keep_house(&mut self, now: Instant) {
        let (mut ended, mut due) = (Vec::new(), Vec::new());
        for (key, session) in self.sessions.iter_mut() {
            if let Some(will) = session.due_will.take_if(|will| will.0 <= now) {
                due.push(will.1);
            }
            if session.ends_at.is_some_and(|at| at <= now) {
                ended.push(key);
            }
        }
        due.into_iter().for_each(|will| self.push_will(will));
        ended.into_iter().for_each(|key| self.remove_session(key));
        self.retained.expire(now);
        self.done = HashMap::new();
        self.save_rest();
    }

    /// Closes every connection; `farewell` writes its last packet.
    pub(super) fn close_all(&mut self, farewell: impl Fn(Version, &mut Vec<u8>)) {
        self.is_closing = true;
        for (_, session) in self.sessions.iter_mut() {
            if let Some(link) = &session.link {
                link.outbox.answer(|out| farewell(link.terms.version, out));
                link.outbox.close();
            }
        }
    }

    /// The part of the statistics that the core has.
    pub(super) fn stats(&self, seats: SeatCounts) -> BrokerStats {
        BrokerStats {
            connections: self.connections,
            connections_total: self.counters.connections_total,
            sessions: self.sessions.len(),
            subscriptions: self.subscriptions.len(),
            retained_messages: self.retained.len(),
            retained_bytes: self.retained.bytes(),
            memory_bytes: self.memory.bytes(),
            waiting_messages: self.sessions.iter().map(|(_, session)| session.waiting()).sum(),
            messages_in: self.counters.messages_in,
            messages_out: self.counters.messages_out,
            dropped: BrokerDrops {
                unsaved: self.saving.as_ref().map_or(0, |saving| saving.unsaved),
                connections_refused: seats.refused,
                connections_evicted: seats.evicted,
                ..self.counters.drops
            },
            ..BrokerStats::default()
        }
    }
}

#[cfg(test)]
mod tests;
