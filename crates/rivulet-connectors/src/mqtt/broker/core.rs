//! The broker's state: sessions, subscriptions, retained messages. No socket and no waiting here; all of it is under one
//! lock, which a connection takes once for everything it has read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::super::codec::{Publish, Qos, Version};
use super::super::index::TopicIndex;
use super::super::topic;
use super::message::{Delivery, Encoded, Manner, Message};
use super::options::BrokerOptions;
use super::outbox::Outbox;
use super::retained::Retained;
use super::session::{QueueBounds, Session, Will};
use super::slab::Slab;
use super::stats::{BrokerStats, Counters};

/// The number of a session. Used again when the session is gone.
pub(super) type SessionKey = u32;

/// That a session wants what matches a filter.
#[derive(Clone, Copy, Debug)]
struct Subscription {
    session: SessionKey,
    qos: Qos,
    no_local: bool,
    retain_as_published: bool,
    identifier: Option<u32>,
}

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

/// What a CONNECT asks for, in either version.
pub(super) struct ConnectRequest<'a> {
    pub(super) client_id: &'a str,
    pub(super) version: Version,
    pub(super) clean_start: bool,
    pub(super) expiry_s: u32,
    pub(super) receive_max: u16,
    pub(super) packet_bytes_max: usize,
    pub(super) will: Option<Will>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Goodbye {
    /// Whether the will is not to be published.
    pub(super) is_graceful: bool,
    /// A new expiry of the session, from a DISCONNECT of version 5.
    pub(super) expiry_s: Option<u32>,
}

/// The reason codes of a SUBACK that are used here.
pub(super) mod suback {
    pub(crate) const FILTER_INVALID: u8 = 0x8f;
    pub(crate) const QUOTA_EXCEEDED: u8 = 0x97;
    pub(crate) const SHARED_NOT_SUPPORTED: u8 = 0x9e;
}

pub(super) struct Core {
    sessions: Slab<Session>,
    by_client_id: HashMap<Box<str>, SessionKey, foldhash::fast::RandomState>,
    subscriptions: Slab<Subscription>,
    index: TopicIndex<u32>,
    retained: Retained,
    /// Wills to be published by whoever publishes for the engine.
    pub(super) wills: VecDeque<Arc<Message>>,
    pub(super) counters: Counters,
    connections: usize,
    bounds: QueueBounds,
    in_flight_max: u16,
    sessions_max: usize,
    subscriptions_max: usize,
    session_expiry_s_max: u32,
    /// Memory that is used again: the subscriptions of one message, and its packets.
    found: Vec<u32>,
    encoded: Encoded,
}

impl Core {
    pub(super) fn new(options: &BrokerOptions) -> Self {
        Self {
            sessions: Slab::new(),
            by_client_id: HashMap::default(),
            subscriptions: Slab::new(),
            index: TopicIndex::new(),
            retained: Retained::new(options.retained_messages_max, options.retained_bytes_max),
            wills: VecDeque::new(),
            counters: Counters::default(),
            connections: 0,
            bounds: QueueBounds {
                messages_max: options.session_queue_messages_max,
                bytes_max: options.session_queue_bytes_max,
            },
            in_flight_max: options.in_flight_max.max(1),
            sessions_max: options.sessions_max,
            subscriptions_max: options.subscriptions_max,
            session_expiry_s_max: options.session_expiry_s_max,
            found: Vec::new(),
            encoded: Encoded::default(),
        }
    }

    /// Begins (or takes up) a session with this connection. `answer` writes the CONNACK, given whether the session was there
    /// and how long it outlives the connection; it goes out before anything else.
    ///
    /// `None` if there is no room for one more session.
    pub(super) fn connect(
        &mut self,
        request: ConnectRequest<'_>,
        outbox: &Arc<Outbox>,
        farewell: impl FnOnce(Version, &mut Vec<u8>),
        answer: impl FnOnce(bool, u32, &mut Vec<u8>),
    ) -> Option<SessionKey> {
        let now = Instant::now();
        if let Some(&key) = self.by_client_id.get(request.client_id) {
            if let Some(session) = self.sessions.get_mut(key)
                && let Some(old) = session.outbox.take()
            {
                let version = session.version;
                old.answer(|out| farewell(version, out));
                old.close();
                self.leave(key, Goodbye { is_graceful: false, expiry_s: None }, now);
            }
            if let Some(session) = self.sessions.get(key)
                && (request.clean_start || session.expiry_s == 0)
            {
                self.remove_session(key);
            }
        }
        let present = self.by_client_id.get(request.client_id).copied();
        let key = match present {
            Some(key) => key,
            None => {
                if self.sessions.len() >= self.sessions_max && !self.evict_session() {
                    return None;
                }
                let key = self.sessions.insert(Session::new(request.client_id));
                self.by_client_id.insert(request.client_id.into(), key);
                key
            }
        };
        let session = self.sessions.get_mut(key).expect("it was found or made just now");
        session.outbox = Some(outbox.clone());
        session.version = request.version;
        session.packet_bytes_max = request.packet_bytes_max;
        session.window = usize::from(request.receive_max.clamp(1, self.in_flight_max));
        session.expiry_s = request.expiry_s.min(self.session_expiry_s_max);
        session.disconnected_at = None;
        session.will = request.will;
        session.due_will = None;
        self.connections += 1;
        self.counters.connections_total += 1;
        outbox.answer(|out| answer(present.is_some(), session.expiry_s, out));
        session.resume(&mut self.counters);
        Some(key)
    }

    /// A connection has ended. Returns whether the session was still its own: it may have been taken over.
    pub(super) fn disconnected(&mut self, key: SessionKey, outbox: &Arc<Outbox>, goodbye: Goodbye) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        if !session.outbox.as_ref().is_some_and(|own| Arc::ptr_eq(own, outbox)) {
            return false;
        }
        session.outbox = None;
        self.leave(key, goodbye, Instant::now());
        true
    }

    /// What happens to a session and its will when its connection is gone.
    fn leave(&mut self, key: SessionKey, goodbye: Goodbye, now: Instant) {
        self.connections -= 1;
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.disconnected_at = Some(now);
        // A session that was to end with its connection cannot be extended afterwards (MQTT 5, 3.14.2.2.2).
        if let Some(expiry_s) = goodbye.expiry_s
            && session.expiry_s > 0
        {
            session.expiry_s = expiry_s.min(self.session_expiry_s_max);
        }
        if let Some(will) = session.will.take()
            && !goodbye.is_graceful
        {
            match will.delay_s.min(session.expiry_s) {
                0 => self.wills.push_back(will.message),
                delay_s => session.due_will = Some((now + Duration::from_secs(u64::from(delay_s)), will.message)),
            }
        }
        if session.expiry_s == 0 {
            self.remove_session(key);
        }
    }

    fn remove_session(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.remove(key) else { return };
        self.by_client_id.remove(&session.client_id);
        for (filter, subscription) in session.subscriptions {
            self.index.remove(&filter, subscription);
            self.subscriptions.remove(subscription);
        }
        // The session's end is the latest a will waits for.
        self.wills.extend(session.due_will.map(|(_, message)| message));
    }

    /// Removes the session that has been without connection the longest. Returns whether there was one.
    fn evict_session(&mut self) -> bool {
        let oldest = self.sessions.iter().filter_map(|(key, session)| Some((session.disconnected_at?, key))).min();
        let Some((_, key)) = oldest else { return false };
        self.remove_session(key);
        self.counters.sessions_evicted += 1;
        true
    }

    /// Subscribes a session. `answer` writes the SUBACK from the reason codes (those of version 5); it goes out before retained messages.
    pub(super) fn subscribe(
        &mut self,
        key: SessionKey,
        requests: &[SubscribeRequest<'_>],
        answer: impl FnOnce(&[u8], &mut Vec<u8>),
    ) {
        let mut codes = Vec::with_capacity(requests.len());
        let mut wanted_retained = Vec::new();
        for request in requests {
            match self.subscribe_one(key, request) {
                Err(code) => codes.push(code),
                Ok((qos, is_new)) => {
                    codes.push(qos.level());
                    match request.retain_handling {
                        RetainHandling::Always => wanted_retained.push((request, qos)),
                        RetainHandling::IfNew if is_new => wanted_retained.push((request, qos)),
                        RetainHandling::IfNew | RetainHandling::Never => {}
                    }
                }
            }
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        if let Some(outbox) = &session.outbox {
            outbox.answer(|out| answer(&codes, out));
        }
        let now = Instant::now();
        for (request, qos) in wanted_retained {
            for message in self.retained.matching(request.filter, now) {
                let manner =
                    Manner { qos: qos.min(message.qos), retain: true, subscription_identifier: request.identifier };
                session.deliver_kept(&message, manner, self.bounds, &mut self.counters);
            }
        }
    }

    /// The quality of service granted, and whether the subscription is new.
    fn subscribe_one(&mut self, key: SessionKey, request: &SubscribeRequest<'_>) -> Result<(Qos, bool), u8> {
        if request.filter.starts_with("$share/") {
            return Err(suback::SHARED_NOT_SUPPORTED);
        }
        if topic::check_filter(request.filter).is_err() {
            return Err(suback::FILTER_INVALID);
        }
        let session = self.sessions.get_mut(key).ok_or(suback::QUOTA_EXCEEDED)?;
        let subscription = Subscription {
            session: key,
            qos: request.qos.min(Qos::AtLeastOnce),
            no_local: request.no_local,
            retain_as_published: request.retain_as_published,
            identifier: request.identifier,
        };
        match session.subscriptions.entry(request.filter.into()) {
            Entry::Occupied(entry) => {
                if let Some(old) = self.subscriptions.get_mut(*entry.get()) {
                    *old = subscription;
                }
                Ok((subscription.qos, false))
            }
            Entry::Vacant(entry) => {
                if self.subscriptions.len() >= self.subscriptions_max {
                    return Err(suback::QUOTA_EXCEEDED);
                }
                let number = self.subscriptions.insert(subscription);
                entry.insert(number);
                self.index.insert(request.filter, number);
                Ok((subscription.qos, true))
            }
        }
    }

    /// Ends a subscription. Returns whether there was one.
    pub(super) fn unsubscribe(&mut self, key: SessionKey, filter: &str) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let Some(number) = session.subscriptions.remove(filter) else { return false };
        self.index.remove(filter, number);
        self.subscriptions.remove(number);
        true
    }

    /// Hands a message to its subscribers, and keeps it if it is to be retained. `from` is the session that publishes.
    /// Returns whether anybody is subscribed.
    ///
    /// The topic is valid and the properties are checked.
    #[inline]
    pub(super) fn publish(
        &mut self,
        publish: &Publish<'_>,
        from: Option<SessionKey>,
        expires_at: Option<Instant>,
    ) -> bool {
        if self.index.is_empty() && !publish.retain {
            return false;
        }
        self.fan_out(publish, from, expires_at)
    }

    fn fan_out(&mut self, publish: &Publish<'_>, from: Option<SessionKey>, expires_at: Option<Instant>) -> bool {
        let mut delivery = Delivery::new(*publish, expires_at, &mut self.encoded);
        if publish.retain {
            if publish.payload.is_empty() {
                self.retained.remove(publish.topic);
            } else if !self.retained.insert(delivery.keep()) {
                self.counters.retained_full += 1;
            }
        }
        self.found.clear();
        self.index.for_each(publish.topic, |&number| self.found.push(number));
        for &number in &self.found {
            let Some(subscription) = self.subscriptions.get(number) else { continue };
            if subscription.no_local && from == Some(subscription.session) {
                continue;
            }
            let manner = Manner {
                qos: subscription.qos.min(publish.qos),
                retain: subscription.retain_as_published && publish.retain,
                subscription_identifier: subscription.identifier,
            };
            if let Some(session) = self.sessions.get_mut(subscription.session) {
                session.deliver(&mut delivery, manner, self.bounds, &mut self.counters);
            }
        }
        !self.found.is_empty()
    }

    /// A client has acknowledged a message.
    pub(super) fn acknowledge(&mut self, key: SessionKey, packet_id: u16) {
        if let Some(session) = self.sessions.get_mut(key) {
            session.acknowledge(packet_id, &mut self.counters);
        }
    }

    /// There is room in a connection's outbox again.
    pub(super) fn pump(&mut self, key: SessionKey, outbox: &Arc<Outbox>) {
        if let Some(session) = self.sessions.get_mut(key)
            && session.outbox.as_ref().is_some_and(|own| Arc::ptr_eq(own, outbox))
        {
            session.pump(&mut self.counters);
        }
    }

    /// Does what time brings: ends sessions, makes wills due, forgets retained messages. To be called every second or so.
    pub(super) fn keep_house(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (key, session) in self.sessions.iter_mut() {
            if let Some((_, message)) = session.due_will.take_if(|(at, _)| *at <= now) {
                self.wills.push_back(message);
            }
            let age = session.disconnected_at.map(|at| now.saturating_duration_since(at));
            if age.is_some_and(|age| age >= Duration::from_secs(u64::from(session.expiry_s))) {
                ended.push(key);
            }
        }
        ended.into_iter().for_each(|key| self.remove_session(key));
        self.retained.expire(now);
    }

    /// Closes every connection after `farewell`.
    pub(super) fn close_all(&mut self, farewell: impl Fn(Version, &mut Vec<u8>)) {
        for (_, session) in self.sessions.iter_mut() {
            if let Some(outbox) = &session.outbox {
                outbox.answer(|out| farewell(session.version, out));
                outbox.close();
            }
        }
    }

    /// What the core knows of the statistics.
    pub(super) fn stats(&self, connections_refused: u64) -> BrokerStats {
        BrokerStats {
            connections: self.connections,
            connections_total: self.counters.connections_total,
            sessions: self.sessions.len(),
            subscriptions: self.subscriptions.len(),
            retained_messages: self.retained.len(),
            retained_bytes: self.retained.bytes(),
            waiting_messages: self.sessions.iter().map(|(_, session)| session.waiting()).sum(),
            messages_in: self.counters.messages_in,
            messages_out: self.counters.messages_out,
            dropped: self.counters.drops(connections_refused),
            ..BrokerStats::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::codec::split_frame;
    use super::*;

    fn core(change: impl FnOnce(&mut BrokerOptions)) -> Core {
        let mut options = BrokerOptions::new("127.0.0.1:0".parse().unwrap());
        change(&mut options);
        Core::new(&options)
    }

    fn connect(core: &mut Core, client_id: &str, clean_start: bool, expiry_s: u32) -> (SessionKey, Arc<Outbox>, bool) {
        let outbox = Arc::new(Outbox::new(1000));
        let request = ConnectRequest {
            client_id,
            version: Version::V5,
            clean_start,
            expiry_s,
            receive_max: 2,
            packet_bytes_max: usize::MAX,
            will: None,
        };
        let mut was_present = false;
        let key = core.connect(request, &outbox, |_, _| {}, |present, _, _| was_present = present).unwrap();
        (key, outbox, was_present)
    }

    fn subscribe(core: &mut Core, key: SessionKey, filter: &str, qos: Qos) -> u8 {
        let request = SubscribeRequest {
            filter,
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Always,
            identifier: None,
        };
        let mut code = 0;
        core.subscribe(key, &[request], |codes, _| code = codes[0]);
        code
    }

    fn publish(core: &mut Core, payload: &[u8], qos: Qos) {
        core.publish(&Publish { topic: b"t", payload, qos, ..Publish::default() }, None, None);
    }

    /// The payloads sent, with their packet identifiers and whether they are marked as sent again.
    fn sent(outbox: &Outbox) -> Vec<(Vec<u8>, u16, bool)> {
        let mut bytes = Vec::new();
        outbox.take(&mut bytes);
        let (mut rest, mut sent) = (&bytes[..], Vec::new());
        while let Some(frame) = split_frame(rest, usize::MAX).unwrap() {
            let publish = Publish::decode(Version::V5, frame.first_byte, frame.body).unwrap();
            sent.push((publish.payload.to_vec(), publish.packet_id, publish.duplicate));
            rest = &rest[frame.whole.len()..];
        }
        sent
    }

    #[test]
    fn the_window_is_kept_and_a_session_survives_its_connection() {
        let mut core = core(|_| {});
        let (key, outbox, present) = connect(&mut core, "c", false, 60);
        assert!(!present);
        subscribe(&mut core, key, "t", Qos::AtLeastOnce);
        for payload in [b"1", b"2", b"3"] {
            publish(&mut core, payload, Qos::AtLeastOnce);
        }
        let first = sent(&outbox);
        assert_eq!(first.len(), 2, "the client takes two at a time");
        core.acknowledge(key, first[0].1);
        assert_eq!(sent(&outbox)[0].0, b"3");
        assert!(core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None }));
        publish(&mut core, b"4", Qos::AtLeastOnce);
        publish(&mut core, b"lost", Qos::AtMostOnce);
        let (key, outbox, present) = connect(&mut core, "c", false, 60);
        assert!(present);
        let again = sent(&outbox);
        assert_eq!(again, [(b"2".to_vec(), first[1].1, true), (b"3".to_vec(), 3, true)]);
        core.acknowledge(key, again[0].1);
        core.acknowledge(key, again[1].1);
        assert_eq!(sent(&outbox).iter().map(|(payload, _, _)| &payload[..]).collect::<Vec<_>>(), [b"4"]);
        core.acknowledge(key, 4);
        assert_eq!(core.stats(0).waiting_messages, 0);
    }

    #[test]
    fn a_full_outbox_holds_back_qos_1_and_drops_qos_0() {
        let mut core = core(|options| options.session_queue_messages_max = 3);
        let (key, outbox, _) = connect(&mut core, "c", true, 0);
        subscribe(&mut core, key, "t", Qos::AtLeastOnce);
        let large = [b'x'; 900];
        publish(&mut core, &large, Qos::AtMostOnce);
        publish(&mut core, &large, Qos::AtMostOnce);
        assert_eq!(core.counters.slow_subscriber, 1);
        for _ in 0..5 {
            publish(&mut core, &large, Qos::AtLeastOnce);
        }
        assert_eq!(core.counters.session_queue_full, 2);
        assert_eq!(sent(&outbox).len(), 1);
        assert!(outbox.is_starved.load(std::sync::atomic::Ordering::SeqCst));
        core.pump(key, &outbox);
        assert_eq!(sent(&outbox).len(), 1);
        core.pump(key, &outbox);
        assert_eq!(sent(&outbox).len(), 1);
        core.acknowledge(key, 1);
        assert_eq!(sent(&outbox).len(), 1);
    }

    #[test]
    fn sessions_end_in_time_and_take_their_subscriptions_with_them() {
        let mut core = core(|_| {});
        let (key, outbox, _) = connect(&mut core, "c", true, 10);
        subscribe(&mut core, key, "a/#", Qos::AtMostOnce);
        core.disconnected(key, &outbox, Goodbye { is_graceful: true, expiry_s: None });
        core.keep_house(Instant::now() + Duration::from_secs(9));
        assert_eq!((core.stats(0).sessions, core.index.len()), (1, 1));
        core.keep_house(Instant::now() + Duration::from_secs(11));
        assert_eq!((core.stats(0).sessions, core.index.len(), core.subscriptions.len()), (0, 0, 0));
    }

    #[test]
    fn a_client_id_is_taken_over_and_the_old_connection_told() {
        let mut core = core(|_| {});
        let (key, old, _) = connect(&mut core, "c", false, 60);
        subscribe(&mut core, key, "t", Qos::AtMostOnce);
        let (new_key, new, present) = connect(&mut core, "c", false, 60);
        assert!(present && new_key == key);
        assert!(old.take(&mut Vec::new()), "the old connection is closed");
        assert!(!core.disconnected(key, &old, Goodbye { is_graceful: false, expiry_s: None }));
        publish(&mut core, b"x", Qos::AtMostOnce);
        assert_eq!((sent(&new).len(), core.stats(0).connections), (1, 1));
    }

    #[test]
    fn a_delayed_will_waits_for_its_time_or_the_end_of_the_session() {
        let message = Arc::new(Message::of(&Publish { topic: b"will", ..Publish::default() }, None));
        for (delay_s, expiry_s, due_after_s) in [(0, 60, 0), (5, 60, 5), (60, 5, 5), (5, 0, 0)] {
            let mut core = core(|_| {});
            let (key, outbox, _) = connect(&mut core, "c", true, expiry_s);
            core.sessions.get_mut(key).unwrap().will = Some(Will { message: message.clone(), delay_s });
            core.disconnected(key, &outbox, Goodbye { is_graceful: false, expiry_s: None });
            if due_after_s > 0 {
                core.keep_house(Instant::now() + Duration::from_secs(due_after_s - 1));
                assert!(core.wills.is_empty(), "{delay_s} {expiry_s}");
                core.keep_house(Instant::now() + Duration::from_secs(due_after_s + 1));
            }
            assert_eq!(core.wills.len(), 1, "{delay_s} {expiry_s}");
        }
    }

    #[test]
    fn shared_and_broken_filters_and_too_many_are_refused() {
        let mut core = core(|options| options.subscriptions_max = 1);
        let (key, _, _) = connect(&mut core, "c", true, 0);
        assert_eq!(subscribe(&mut core, key, "$share/g/a", Qos::AtMostOnce), suback::SHARED_NOT_SUPPORTED);
        assert_eq!(subscribe(&mut core, key, "a/#/b", Qos::AtMostOnce), suback::FILTER_INVALID);
        assert_eq!(subscribe(&mut core, key, "a", Qos::ExactlyOnce), 1);
        assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), suback::QUOTA_EXCEEDED);
        assert!(core.unsubscribe(key, "a") && !core.unsubscribe(key, "a"));
        assert_eq!(subscribe(&mut core, key, "b", Qos::AtMostOnce), 0);
    }

    #[test]
    fn when_sessions_are_full_the_oldest_without_connection_goes() {
        let mut core = core(|options| options.sessions_max = 2);
        let (first, outbox, _) = connect(&mut core, "first", false, 60);
        core.disconnected(first, &outbox, Goodbye { is_graceful: true, expiry_s: None });
        let _second = connect(&mut core, "second", false, 60);
        let _third = connect(&mut core, "third", false, 60);
        assert_eq!(core.counters.sessions_evicted, 1);
        let request = ConnectRequest {
            client_id: "fourth",
            version: Version::V3,
            clean_start: true,
            expiry_s: 0,
            receive_max: 1,
            packet_bytes_max: 1000,
            will: None,
        };
        assert!(core.connect(request, &Arc::new(Outbox::new(100)), |_, _| {}, |_, _, _| {}).is_none());
    }
}
