//! Publishing to the subscribers, and their acknowledgements.

use std::sync::Arc;
use std::time::Instant;

use rivulet_dataflow::LogPosition;

use super::super::addresses::SessionKey;
use super::super::incoming::{Arrival, Unreleased};
use super::super::journal::Record;
use super::super::memory::Memory;
use super::super::message::{Delivery, Manner, Message, OfGroup};
use super::super::retained::Retained;
use super::super::session::{Received, Session};
use super::super::slab::Slab;
use super::super::stats::Counters;
use super::super::subscriptions::{GroupKey, Readiness, Receiver, Subscription, Wanted};
use super::super::tenants::Tenants;
use super::saving::Saving;
use super::{Core, Published, saved, saving};
use crate::mqtt::codec::{Publish, Qos};
use crate::mqtt::index::TopicIndex;

impl Core {
    /// Delivers a message to its subscribers, and keeps it if it is to be retained. `from` is the session that
    /// publishes. The topic is valid and the properties are checked.
    #[inline]
    pub(in super::super) fn publish(
        &mut self,
        publish: &Publish<'_>,
        from: Option<SessionKey>,
        expires_at: Option<Instant>,
    ) -> Published {
        if self.subscriptions.is_empty() && !publish.retain {
            return Published::default();
        }
        self.fan_out(publish, from, expires_at)
    }

    /// Tells a text of the broker itself to those who want it, now and later, unless it was told before.
    pub(in super::super) fn tell(&mut self, topic: &str, text: &str) {
        let publish = Publish { topic: topic.as_bytes(), payload: text.as_bytes(), ..Publish::default() };
        if self.retained.tell(&Arc::new(Message::of(&publish, None))) {
            self.publish(&publish, None, None);
        }
    }

    /// Prefetches the memory that [`Core::publish`] will look at first.
    #[inline]
    pub(in super::super) fn prefetch(&self, topic: &[u8]) {
        self.subscriptions.prefetch(topic);
    }

    fn fan_out(&mut self, publish: &Publish<'_>, from: Option<SessionKey>, expires_at: Option<Instant>) -> Published {
        let Self { sessions, subscriptions, saving, counters, found, .. } = self;
        let mut delivery = Delivery::new(*publish, expires_at, &mut self.encoded, &self.memory);
        let (is_retained, mut saved_at) = match publish.retain {
            true => {
                let tenants = &mut self.tenants;
                retain(&mut delivery, &mut self.retained, (&self.memory, tenants), saving, counters)
            }
            false => (false, 0),
        };
        let (queue, bytes) = (self.bounds.queue, delivery.memory_bytes());
        let mut sent_once = Vec::new();
        let mut deliver = |sessions: &mut Slab<Session>, key, manner: Manner| {
            if let Some(session) = sessions.get_mut(key)
                && session.deliver(&mut delivery, manner, queue, counters).is_some()
            {
                saving::note_waiting(saving, session.saved_as, manner);
                if manner.qos == Qos::ExactlyOnce && session.saved_as > 0 {
                    sent_once.push(key);
                }
            }
        };
        found.clear();
        subscriptions.find(publish.topic, found);
        let mut overlapping = Vec::new();
        for &receiver in &*found {
            match receiver {
                Receiver::Group(group) => {
                    let readiness = |member: &Subscription| sessions.get(member.session).map(Session::readiness);
                    let with_room = |member: &Subscription| {
                        let session = sessions.get(member.session)?;
                        let needs_no_room = member.qos.min(publish.qos) == Qos::AtMostOnce;
                        (needs_no_room || session.may_wait(bytes, queue)).then(|| session.readiness())
                    };
                    // If no member has room, one of them drops and counts the message.
                    let picked = subscriptions.pick(group, with_room);
                    if let Some(member) = picked.or_else(|| subscriptions.pick(group, readiness)) {
                        deliver(
                            sessions,
                            member.session,
                            Manner { is_shared: true, group: OfGroup(Some(group)), ..member.manner(publish) },
                        );
                    }
                }
                Receiver::One(number) => {
                    let Some(subscription) = subscriptions.get(number) else { continue };
                    if subscription.no_local && from == Some(subscription.session) {
                        continue;
                    }
                    let (key, manner) = (subscription.session, subscription.manner(publish));
                    let has_more =
                        found.len() > 1 && sessions.get(key).is_some_and(|session| session.subscriptions.len() > 1);
                    match has_more {
                        true => overlapping.push((key, manner)),
                        false => deliver(sessions, key, manner),
                    }
                }
            }
        }
        // A session gets a message once, for all its subscriptions together (MQTT 5, 3.3.4).
        overlapping.sort_by_key(|(key, _)| *key);
        let mut overlapping = overlapping.into_iter().peekable();
        while let Some((key, mut manner)) = overlapping.next() {
            while let Some((_, other)) = overlapping.peek().filter(|(next, _)| *next == key)
                && let Some(joined) = manner.join(other)
            {
                manner = joined;
                overlapping.next();
            }
            deliver(sessions, key, manner);
        }
        if saving.is_some() && (is_retained || saving::waits(saving)) {
            saved_at = saving::save_message(saving, &delivery.keep(), is_retained).max(saved_at);
            // The message has its number from now on.
            for key in sent_once {
                if let Some(session) = sessions.get_mut(key) {
                    save_sent(saving, session);
                }
            }
        }
        Published { has_subscribers: !found.is_empty(), saved_at }
    }

    /// Hands what waits for a session as a member of groups to other members: if it `is_over`, or for as long as it has
    /// no connection. Messages of QoS 2 that were sent stay with it (MQTT 5, 4.8.2), and so do messages that no other
    /// member takes: it may come back. A member that gets messages with QoS 0 takes none, for they could be lost.
    pub(super) fn hand_over(&mut self, key: SessionKey, is_over: bool) {
        let Some(session) = self.sessions.get(key).filter(|session| session.has_shared() && !self.is_closing) else {
            return;
        };
        // Of its groups, those that have another member who gets messages sooner.
        let least = if is_over { Readiness::Away } else { Readiness::Busy };
        let sessions = &self.sessions;
        let groups = self.groups_of(session, |group| {
            self.subscriptions.has_member(group, |other| takes_over(sessions, other, key, least).is_some())
        });
        if groups.is_empty() {
            return;
        }
        let group_of = |topic: &[u8], OfGroup(of): OfGroup| {
            let mut found = None;
            // A number is given to another group when its group has no member any more.
            groups.for_each(topic, |&group| {
                found = found.or(Some(group).filter(|group| of.is_none_or(|of| of == *group)))
            });
            found
        };
        let goes = |topic: &[u8], of: OfGroup| group_of(topic, of).is_some();
        let Some(session) = self.sessions.get_mut(key) else { return };
        let (saved_as, messages) = (session.saved_as, session.offer_shared(goes));
        let queue = self.bounds.queue;
        let mut are_taken = Vec::with_capacity(messages.len());
        for (message, Manner { qos, group: of, .. }) in &messages {
            let (sessions, bytes) = (&self.sessions, message.memory_bytes());
            let readiness = |other: &Subscription| {
                let session = takes_over(sessions, other, key, least)?;
                session.may_wait(bytes, queue).then(|| session.readiness())
            };
            let group = group_of(&message.topic, *of);
            let picked = group.and_then(|group| self.subscriptions.pick(group, readiness));
            let mut is_taken = false;
            if let Some(member) = picked
                && let Some(session) = self.sessions.get_mut(member.session)
            {
                let qos = (*qos).min(member.qos);
                let manner =
                    Manner { qos, is_shared: true, group: OfGroup(group), ..member.manner(&message.publish()) };
                is_taken = session.add(message.clone(), manner, queue, &mut self.counters);
                if is_taken {
                    let is_retained = saved::is_retained(&self.retained, message);
                    saving::save_waits(&mut self.saving, session.saved_as, message, is_retained, manner);
                    self.save_sent(member.session);
                    saving::save_acknowledged(&mut self.saving, saved_as, message.number());
                }
            }
            are_taken.push(is_taken);
        }
        if is_over {
            self.counters.drops.session_queue_full += are_taken.iter().filter(|is_taken| !**is_taken).count() as u64;
        }
        if let Some(session) = self.sessions.get_mut(key) {
            session.take_off(goes, &are_taken);
        }
    }

    /// The groups of a session that count, by their filters: a session may have many of them, and many messages.
    pub(super) fn groups_of(&self, session: &Session, counts: impl Fn(GroupKey) -> bool) -> TopicIndex<GroupKey> {
        let mut groups = TopicIndex::new();
        for (text, &number) in &session.subscriptions {
            if let Some(group) = self.subscriptions.get(number).and_then(|subscription| subscription.group)
                && let Some(wanted) = Wanted::parse(text)
                && counts(group)
            {
                groups.insert(wanted.filter, group);
            }
        }
        groups
    }

    /// What is known of a message of QoS 2 that a client sends; `None` if it has sent as many as it may without
    /// releasing them.
    pub(in super::super) fn arrival(&self, key: SessionKey, packet_id: u16) -> Option<Arrival> {
        let incoming = self.sessions.get(key)?.incoming();
        let arrival = incoming.arrival(packet_id);
        (arrival != Arrival::New || incoming.len() < usize::from(self.bounds.receive_max)).then_some(arrival)
    }

    /// Publishes a message of QoS 2 of a session, and remembers its packet identifier until it is released.
    pub(in super::super) fn publish_once(
        &mut self,
        key: SessionKey,
        publish: &Publish<'_>,
        expires_at: Option<Instant>,
        position: LogPosition,
    ) -> Published {
        let packet_id = publish.packet_id;
        let taken = Unreleased { packet_id, position };
        let Some(session) = self.sessions.get_mut(key) else { return Published::default() };
        let is_lost = session.incoming().arrival(packet_id) == Arrival::Lost;
        session.take(taken);
        if let Some(saving) = self.saving.as_mut().filter(|_| session.saved_as > 0) {
            saving.taken = Some((session.saved_as, taken));
        }
        // Sessions have a message that only inputs have lost.
        let published = match is_lost {
            true => Published { has_subscribers: true, saved_at: 0 },
            false => self.publish(publish, Some(key), expires_at),
        };
        let saved_at = saving::save_taken(&mut self.saving).max(published.saved_at);
        Published { saved_at, ..published }
    }

    /// The position up to which the journal has changes of a session; 0 if it has none.
    pub(in super::super) fn saved_to(&self, key: SessionKey) -> LogPosition {
        let is_saved = self.sessions.get(key).is_some_and(|session| session.saved_as > 0);
        self.saving.as_ref().filter(|_| is_saved).map_or(0, Saving::last)
    }

    /// Handles a PUBREL of a client. Returns whether it belongs to a message, and the position that the journal must
    /// have on disk before it is answered: from then on the client may use the packet identifier again.
    pub(in super::super) fn release(&mut self, key: SessionKey, packet_id: u16) -> (bool, LogPosition) {
        let Some(session) = self.sessions.get_mut(key) else { return (false, 0) };
        if !session.release_incoming(packet_id) {
            // It may have been released before, and that may not be on disk yet.
            return (false, self.saved_to(key));
        }
        let session = session.saved_as;
        (true, saving::save_change(&mut self.saving, session, &Record::Released { session, packet_id }))
    }

    /// Handles a PUBACK of a client.
    pub(in super::super) fn acknowledge(&mut self, key: SessionKey, packet_id: u16) {
        if let Some(session) = self.sessions.get_mut(key) {
            let number = session.acknowledge(packet_id, &mut self.counters);
            saving::save_acknowledged(&mut self.saving, session.saved_as, number);
            save_sent(&mut self.saving, session);
        }
    }

    /// Handles a PUBREC of a client. Also returns the position that the journal must have on disk before it is
    /// answered: from then on the client forgets that it has the message.
    pub(in super::super) fn received(
        &mut self,
        key: SessionKey,
        packet_id: u16,
        is_refused: bool,
    ) -> (Received, LogPosition) {
        let Some(session) = self.sessions.get_mut(key) else { return (Received::Unknown, 0) };
        let received = session.received(packet_id, is_refused, &mut self.counters);
        let session = session.saved_as;
        let saved_at = match received {
            Received::Unknown => 0,
            Received::Refused(message) => {
                saving::save_acknowledged(&mut self.saving, session, message);
                0
            }
            // It was recorded before, and may not be on disk yet.
            Received::Taken(0) => self.saved_to(key),
            Received::Taken(message) => {
                let change = Record::Received { session, message, packet_id };
                saving::save_change(&mut self.saving, session, &change)
            }
        };
        self.save_sent(key);
        (received, saved_at)
    }

    /// Handles a PUBCOMP of a client; an unexpected one is ignored.
    pub(in super::super) fn completed(&mut self, key: SessionKey, packet_id: u16) {
        if let Some(session) = self.sessions.get_mut(key)
            && session.completed(packet_id, &mut self.counters)
        {
            let session = session.saved_as;
            saving::save_change(&mut self.saving, session, &Record::Completed { session, packet_id });
            self.save_sent(key);
        }
    }

    /// Records the packet identifiers with which messages of QoS 2 were sent to a session.
    pub(super) fn save_sent(&mut self, key: SessionKey) {
        if let Some(session) = self.sessions.get_mut(key) {
            save_sent(&mut self.saving, session);
        }
    }
}

/// The session of a member that may get messages of another session, `from`: it is ready enough, and acknowledges them.
fn takes_over<'s>(
    sessions: &'s Slab<Session>,
    member: &Subscription,
    from: SessionKey,
    least: Readiness,
) -> Option<&'s Session> {
    let session = sessions.get(member.session).filter(|_| member.session != from && member.qos > Qos::AtMostOnce)?;
    (session.readiness() >= least).then_some(session)
}

fn save_sent(saving: &mut Option<Saving>, session: &mut Session) {
    let messages = session.take_sent();
    if !messages.is_empty() {
        let session = session.saved_as;
        saving::save_change(saving, session, &Record::Sent { session, messages });
    }
}

/// Retains a message, or removes the retained one of its topic. Returns whether it is retained, and the position that
/// the journal must have on disk.
fn retain(
    delivery: &mut Delivery<'_>,
    retained: &mut Retained,
    (memory, tenants): (&Memory, &mut Tenants),
    saving: &mut Option<Saving>,
    counters: &mut Counters,
) -> (bool, LogPosition) {
    let (topic, mut is_retained) = (delivery.publish.topic, false);
    let had_older = retained.get(topic).is_some();
    let tenant = tenants.of_topic(topic);
    let has_memory = !memory.is_full() && !memory.is_full_for(tenant.as_ref());
    // An old value must not stay where a newer one was published.
    retained.remove(topic);
    match delivery.publish.payload.is_empty() {
        true => {}
        false if !has_memory => counters.drops.memory_full += 1,
        false => {
            is_retained = !retained.is_full_for(tenant.as_ref(), delivery.memory_bytes(), tenants)
                && retained.insert(delivery.keep(), tenant);
            counters.drops.retained_full += u64::from(!is_retained);
        }
    }
    let saved_at = match had_older && !is_retained {
        true => saving::save_forgotten(saving, topic),
        false => 0,
    };
    (is_retained, saved_at)
}
