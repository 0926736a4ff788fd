//! The client's subscriptions, and which of them the broker knows.
//!
//! **Invariant:** a message is routed once, however many of the filters match it. A broker may send a message that
//! matches several subscriptions once for each of them. With subscription identifiers (MQTT 5) every copy says which
//! subscriptions it was sent for, and only a copy for the oldest matching subscription counts: see
//! [`Subscriptions::is_copy`]. Without them, a filter that another one covers is not subscribed to, and filters that
//! overlap in part are reported to the user.

use std::collections::{BTreeMap, BTreeSet};
use std::num::{NonZeroU16, NonZeroU32};
use std::ops::Bound;

use hashbrown::HashMap;
use rmqtt_codec::{types, v3, v5};

use super::super::codec::{self, CodecError, Qos, Version};
use super::super::index::TopicIndex;
use super::super::properties;
use super::super::topic;
use super::random;

/// Packet identifiers of SUBSCRIBE and UNSUBSCRIBE start here. Lower ones belong to publishes, so that each side
/// assigns its own independently.
const FIRST_PACKET_ID: u16 = 60_001;

/// The most filters in one packet.
const FILTERS_AT_ONCE: usize = 500;

/// The size at which a packet takes no more filters, in bytes.
const FILTER_BYTES_AT_ONCE: usize = 32 << 10;

/// The number of SUBSCRIBE packets that may wait for their answer, and the same number of UNSUBSCRIBE packets.
const UNANSWERED_MAX: usize = 64;

/// The most comparisons of filters, in all, to find out whether some overlap: half a second's work. Beyond that they
/// are assumed to overlap, which costs a look-up for each message.
const COMPARISONS_MAX: usize = 10_000_000;

/// The largest subscription identifier of the protocol.
const IDENTIFIER_MAX: u32 = 268_435_455;

/// The state of a filter at the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// The broker does not know the filter.
    Waiting,
    /// The broker does not know the filter and need not: another filter covers it.
    Covered,
    /// The broker was asked.
    Asked,
    /// The broker has agreed.
    Granted,
    /// The broker has refused, with this reason.
    Refused(String),
}

#[derive(Debug)]
struct Entry {
    /// The number of users of the filter.
    users: usize,
    state: State,
    /// The identifier that the broker got with it; 0 for none.
    identifier: u32,
}

impl Entry {
    /// Whether the broker may send messages that match the filter.
    fn is_told(&self) -> bool {
        matches!(self.state, State::Asked | State::Granted)
    }
}

/// The filters, each with its number of users.
#[derive(Debug)]
pub(super) struct Subscriptions {
    filters: BTreeMap<Box<str>, Entry>,
    /// The filters that are [`State::Waiting`], in order.
    to_subscribe: BTreeSet<Box<str>>,
    /// Filters that the broker knows and need no longer know.
    to_unsubscribe: BTreeSet<Box<str>>,
    /// The filters of unanswered SUBSCRIBE packets, by packet identifier.
    unanswered: HashMap<u16, Vec<Box<str>>>,
    /// The filters of unanswered UNSUBSCRIBE packets: until the answer it is unknown whether the broker has read them.
    unsubscribing: HashMap<u16, Vec<Box<str>>>,
    last_packet_id: u16,
    /// The filters with wildcards, which may overlap others.
    wildcards: BTreeSet<Box<str>>,
    /// The filters that are [`State::Covered`].
    covered: BTreeSet<Box<str>>,
    /// Whether filters overlap, may overlap, or have overlapped since the set was last empty.
    has_overlaps: bool,
    /// The number of comparisons since the set was last empty, or since the last connection.
    comparisons: usize,
    /// Two filters that overlap in part, if the broker does not support identifiers.
    partial_overlap: Option<(Box<str>, Box<str>)>,
    /// Whether the broker supports subscription identifiers.
    has_identifiers: bool,
    /// The identifiers given so far are a range. It begins at a random number, so that identifiers of an earlier
    /// process, in messages that the broker has kept, are recognised as foreign.
    first_identifier: u32,
    last_identifier: u32,
    /// The identifiers of the granted filters.
    granted: TopicIndex<u32>,
}

/// The result for the filters of one SUBSCRIBE.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// The refused filters with their reasons.
    pub(super) refused: Vec<(String, String)>,
}

impl Default for Subscriptions {
    fn default() -> Self {
        let first_identifier = 1 + (random() % u64::from(IDENTIFIER_MAX / 2)) as u32;
        Self {
            filters: BTreeMap::new(),
            to_subscribe: BTreeSet::new(),
            to_unsubscribe: BTreeSet::new(),
            unanswered: HashMap::new(),
            unsubscribing: HashMap::new(),
            last_packet_id: 0,
            wildcards: BTreeSet::new(),
            covered: BTreeSet::new(),
            has_overlaps: false,
            comparisons: 0,
            partial_overlap: None,
            has_identifiers: true,
            first_identifier,
            last_identifier: first_identifier - 1,
            granted: TopicIndex::new(),
        }
    }
}

impl Subscriptions {
    /// Adds a user of a filter. Returns whether the broker has to be told.
    pub(super) fn add(&mut self, filter: &str) -> bool {
        if let Some(entry) = self.filters.get_mut(filter) {
            entry.users += 1;
            return false;
        }
        self.has_overlaps = self.has_overlaps
            || self.find_overlapping(filter, |_| true).is_some()
            || self.comparisons >= COMPARISONS_MAX;
        if topic::is_wildcard(filter) {
            self.wildcards.insert(filter.into());
        }
        self.filters.insert(filter.into(), Entry { users: 1, state: State::Waiting, identifier: 0 });
        self.to_subscribe.insert(filter.into());
        // The filter has come back before the broker was told that it was gone.
        self.to_unsubscribe.remove(filter);
        self.note_partial_overlap(filter);
        true
    }

    /// Removes a user of a filter. Returns whether the broker has to be told.
    pub(super) fn remove(&mut self, filter: &str) -> bool {
        let Some(entry) = self.filters.get_mut(filter) else { return false };
        entry.users -= 1;
        if entry.users > 0 {
            return false;
        }
        let Some(entry) = self.filters.remove(filter) else { return false };
        self.wildcards.remove(filter);
        if self.filters.is_empty() {
            (self.has_overlaps, self.comparisons) = (false, 0);
        }
        if self.partial_overlap.as_ref().is_some_and(|(a, b)| **a == *filter || **b == *filter) {
            self.look_for_partial_overlap();
        }
        match entry.state {
            State::Waiting => {
                self.to_subscribe.remove(filter);
                return false;
            }
            State::Covered => {
                self.covered.remove(filter);
                return false;
            }
            State::Granted => {
                self.granted.remove(filter, entry.identifier);
            }
            State::Asked | State::Refused(_) => {}
        }
        self.to_unsubscribe.insert(filter.into());
        self.uncover(filter);
        true
    }

    /// Finds another filter that overlaps this one and for which `is_wanted` is true, as long as comparisons are left.
    fn find_overlapping(&mut self, filter: &str, is_wanted: impl Fn(&str) -> bool) -> Option<Box<str>> {
        // Two filters without wildcards are equal or have no topic in common.
        let is_wildcard = topic::is_wildcard(filter);
        if !is_wildcard && self.wildcards.is_empty() {
            return None;
        }
        let narrower = is_wildcard.then(|| narrower_candidates(&self.filters, filter));
        let others = wider_candidates(&self.wildcards, filter)
            .chain(narrower.into_iter().flatten().map(|(other, _)| other))
            .take(COMPARISONS_MAX - self.comparisons);
        let mut compared = 0;
        let found = others
            .inspect(|_| compared += 1)
            .find(|other| ***other != *filter && topic::overlap(other, filter) && is_wanted(other))
            .cloned();
        self.comparisons += compared;
        found
    }

    /// Whether another filter, which the broker knows, covers this one.
    fn is_covered(&self, filter: &str) -> bool {
        wider_candidates(&self.wildcards, filter).any(|wide| {
            **wide != *filter && topic::covers(wide, filter) && self.filters.get(wide).is_some_and(Entry::is_told)
        })
    }

    /// Handles a granted filter that may cover others: the broker need not know those any more.
    fn cover(&mut self, wide: &str) {
        if self.has_identifiers || !self.has_overlaps || !topic::is_wildcard(wide) {
            return;
        }
        let told = narrower_candidates(&self.filters, wide).filter(|(_, entry)| entry.is_told());
        let narrow: Vec<Box<str>> = told
            .map(|(filter, _)| filter)
            .filter(|filter| ***filter != *wide && topic::covers(wide, filter))
            .cloned()
            .collect();
        for filter in narrow {
            let Some(entry) = self.filters.get_mut(&filter) else { continue };
            if entry.state == State::Granted {
                self.granted.remove(&filter, entry.identifier);
            }
            entry.state = State::Covered;
            self.covered.insert(filter.clone());
            self.to_unsubscribe.insert(filter);
        }
    }

    /// Handles a filter that is gone or was refused: filters that only it covered must be subscribed to.
    fn uncover(&mut self, wide: &str) {
        if !topic::is_wildcard(wide) {
            return;
        }
        let covered = self.covered.iter().filter(|filter| topic::covers(wide, filter));
        let bare: Vec<Box<str>> = covered.filter(|filter| !self.is_covered(filter)).cloned().collect();
        for filter in bare {
            if let Some(entry) = self.filters.get_mut(&filter) {
                entry.state = State::Waiting;
            }
            self.covered.remove(&filter);
            self.to_unsubscribe.remove(&filter);
            self.to_subscribe.insert(filter);
        }
    }

    fn note_partial_overlap(&mut self, filter: &str) {
        if self.has_identifiers || !self.has_overlaps || self.partial_overlap.is_some() {
            return;
        }
        let other =
            self.find_overlapping(filter, |other| !topic::covers(other, filter) && !topic::covers(filter, other));
        self.partial_overlap = other.map(|other| (other, filter.into()));
    }

    /// Replaces the noted pair by another one, if there is any.
    fn look_for_partial_overlap(&mut self) {
        self.partial_overlap = None;
        if self.has_identifiers || !self.has_overlaps {
            return;
        }
        // One filter of such a pair has a wildcard.
        for wildcard in self.wildcards.clone() {
            self.note_partial_overlap(&wildcard);
        }
    }

    /// Whether some filters overlap, so that [`Subscriptions::is_copy`] has to be asked.
    pub(super) fn has_overlaps(&self) -> bool {
        self.has_overlaps
    }

    /// Two filters that overlap in part, if that may duplicate messages.
    pub(super) fn partial_overlap(&self) -> Option<(&str, &str)> {
        self.partial_overlap.as_ref().map(|(a, b)| (&**a, &**b))
    }

    /// Whether the message was sent only for filters that are younger than another one that matches: then a copy has
    /// come, or will come, for that older filter too.
    ///
    /// Identifiers that this process did not give belong to messages that the broker has kept; those are never copies.
    pub(super) fn is_copy(&self, topic: &[u8], properties: &[u8]) -> bool {
        let mut oldest = None;
        self.granted.for_each(topic, |&identifier| {
            oldest = Some(oldest.map_or(identifier, |oldest: u32| oldest.min(identifier)));
        });
        let Some(oldest) = oldest else { return false };
        let (mut is_ours, mut is_for_oldest) = (false, false);
        properties::for_each_subscription_identifier(properties, |identifier| {
            is_ours |= (self.first_identifier..=self.last_identifier).contains(&identifier);
            is_for_oldest |= identifier == oldest;
        });
        is_ours && !is_for_oldest
    }

    /// The number of filters.
    pub(super) fn len(&self) -> usize {
        self.filters.len()
    }

    /// Whether the broker has agreed to all of them.
    pub(super) fn all_granted(&self) -> bool {
        self.filters.values().all(|entry| matches!(entry.state, State::Granted | State::Covered))
    }

    /// At most `limit` refused filters with their reasons.
    pub(super) fn refused(&self, limit: usize) -> Vec<(String, String)> {
        let refused = self.filters.iter().filter_map(|(filter, entry)| match &entry.state {
            State::Refused(reason) => Some((filter.to_string(), reason.clone())),
            _ => None,
        });
        refused.take(limit).collect()
    }

    /// Notes a new connection. If the broker remembers the session, it also remembers which filters it granted.
    /// `has_identifiers` says whether it supports subscription identifiers.
    pub(super) fn connected(&mut self, session_present: bool, has_identifiers: bool) {
        let is_remembered = session_present && has_identifiers == self.has_identifiers;
        self.has_identifiers = has_identifiers;
        self.unanswered.clear();
        self.to_subscribe.clear();
        // It is unknown whether the broker has read these. Filters that were added again are subscribed to again if
        // necessary.
        let unsubscribing = self.unsubscribing.drain().flat_map(|(_, filters)| filters);
        self.to_unsubscribe.extend(
            unsubscribing.filter(|filter| self.filters.get(filter).is_none_or(|one| one.state == State::Covered)),
        );
        if !session_present {
            self.to_unsubscribe.clear();
        }
        self.covered.clear();
        if !is_remembered {
            self.granted = TopicIndex::new();
        }
        for (filter, entry) in &mut self.filters {
            match entry.state {
                State::Granted if is_remembered => continue,
                // The broker may have read the request; then messages for the filter carry the same identifier.
                State::Asked if is_remembered => {}
                _ => entry.identifier = 0,
            }
            entry.state = State::Waiting;
            self.to_subscribe.insert(filter.clone());
        }
        self.comparisons = 0;
        self.look_for_partial_overlap();
    }

    /// Appends the packets that tell the broker the changes: new filters first, so that no message is missed when one
    /// filter replaces another.
    pub(super) fn encode(&mut self, version: Version, qos: Qos, out: &mut Vec<u8>) -> Result<(), CodecError> {
        while self.unanswered.len() < UNANSWERED_MAX {
            let filters = self.take_to_subscribe();
            if filters.is_empty() {
                break;
            }
            let packet_id = self.next_packet_id();
            let qos = types::QoS::try_from(qos.level()).expect("it is 0 to 2");
            match version {
                Version::V3 => {
                    let topic_filters = filters.iter().map(|filter| ((**filter).into(), qos)).collect();
                    codec::encode_v3(v3::Packet::Subscribe { packet_id, topic_filters }, out)?;
                }
                Version::V5 => {
                    let options = v5::SubscriptionOptions {
                        qos,
                        no_local: false,
                        retain_as_published: false,
                        // They are older than what subscribes, or have come before.
                        retain_handling: v5::RetainHandling::NoAtSubscribe,
                    };
                    let topic_filters = filters.iter().map(|filter| ((**filter).into(), options)).collect();
                    let id = self.identify(&filters);
                    let packet = v5::Subscribe { packet_id, id, user_properties: Vec::new(), topic_filters };
                    codec::encode_v5(v5::Packet::Subscribe(packet), out)?;
                }
            }
            self.unanswered.insert(packet_id.get(), filters);
        }
        while self.unsubscribing.len() < UNANSWERED_MAX && !self.to_unsubscribe.is_empty() {
            let filters = take_some(&mut self.to_unsubscribe, |_| false);
            let packet_id = self.next_packet_id();
            let topic_filters = filters.iter().map(|filter| (**filter).into()).collect();
            match version {
                Version::V3 => codec::encode_v3(v3::Packet::Unsubscribe { packet_id, topic_filters }, out)?,
                Version::V5 => {
                    let packet = v5::Unsubscribe { packet_id, user_properties: Vec::new(), topic_filters };
                    codec::encode_v5(v5::Packet::Unsubscribe(packet), out)?;
                }
            }
            self.unsubscribing.insert(packet_id.get(), filters);
        }
        Ok(())
    }

    /// Takes the filters for one SUBSCRIBE packet and marks them as asked for. Covered filters are left out.
    fn take_to_subscribe(&mut self) -> Vec<Box<str>> {
        let mut asked = Vec::new();
        while asked.is_empty() && !self.to_subscribe.is_empty() {
            // A packet has one identifier. Filters without wildcards have no topic in common, so they may share it.
            let (has_identifiers, known) = (self.has_identifiers, &self.filters);
            let goes_alone = |filter: &str| {
                has_identifiers && (topic::is_wildcard(filter) || known.get(filter).is_some_and(|e| e.identifier != 0))
            };
            for filter in take_some(&mut self.to_subscribe, goes_alone) {
                let is_covered = !self.has_identifiers && self.has_overlaps && self.is_covered(&filter);
                let Some(entry) = self.filters.get_mut(&filter) else { continue };
                if is_covered {
                    entry.state = State::Covered;
                    self.covered.insert(filter);
                } else {
                    entry.state = State::Asked;
                    // The filter was covered on the last connection, and is not on this one.
                    self.to_unsubscribe.remove(&filter);
                    asked.push(filter);
                }
            }
        }
        asked
    }

    /// The identifier for the filters of one packet: their earlier one, or the next.
    fn identify(&mut self, filters: &[Box<str>]) -> Option<NonZeroU32> {
        if !self.has_identifiers {
            return None;
        }
        let known = filters.first().and_then(|filter| self.filters.get(filter)).map_or(0, |entry| entry.identifier);
        let identifier = NonZeroU32::new(known).unwrap_or_else(|| {
            if self.last_identifier == IDENTIFIER_MAX {
                // After a hundred million subscriptions: all earlier identifiers count as foreign from now on.
                (self.first_identifier, self.last_identifier) = (1, 0);
            }
            self.last_identifier += 1;
            NonZeroU32::new(self.last_identifier).expect("it is at least 1")
        });
        for filter in filters {
            if let Some(entry) = self.filters.get_mut(filter) {
                entry.identifier = identifier.get();
            }
        }
        Some(identifier)
    }

    /// Handles the answer to a SUBSCRIBE: for each filter, in order, `None` or the reason of the refusal. Returns
    /// `None` if there was no such request.
    pub(super) fn answered(&mut self, packet_id: u16, answers: &[Option<String>]) -> Option<Answer> {
        let filters = self.unanswered.remove(&packet_id)?;
        if filters.len() != answers.len() {
            return None;
        }
        let mut answer = Answer::default();
        for (filter, reason) in filters.iter().zip(answers) {
            // The filter may have been removed (and even added again) meanwhile.
            let Some(entry) = self.filters.get_mut(filter).filter(|entry| entry.state == State::Asked) else {
                continue;
            };
            match reason {
                None => {
                    entry.state = State::Granted;
                    self.granted.insert(filter, entry.identifier);
                    self.cover(filter);
                }
                Some(reason) => {
                    answer.refused.push((filter.to_string(), reason.clone()));
                    entry.state = State::Refused(reason.clone());
                    self.uncover(filter);
                }
            }
        }
        Some(answer)
    }

    /// Handles the answer to an UNSUBSCRIBE. Returns whether there was such a request.
    pub(super) fn unsubscribed(&mut self, packet_id: u16) -> bool {
        self.unsubscribing.remove(&packet_id).is_some()
    }

    fn next_packet_id(&mut self) -> NonZeroU16 {
        // Far fewer identifiers are in use than exist, so a used one comes up again only after all others.
        loop {
            self.last_packet_id = self.last_packet_id.checked_add(1).unwrap_or(FIRST_PACKET_ID).max(FIRST_PACKET_ID);
            let in_use = [&self.unanswered, &self.unsubscribing];
            if !in_use.iter().any(|packets| packets.contains_key(&self.last_packet_id)) {
                return NonZeroU16::new(self.last_packet_id).expect("it is at least the first");
            }
        }
    }
}

/// The part of a filter before its first wildcard: whole levels, each with its `/`.
fn spelled_out(filter: &str) -> &str {
    filter.find(['+', '#']).map_or(filter, |position| &filter[..position])
}

/// The wildcards that may cover a filter, or overlap it and have their first wildcard at the same level or earlier: up
/// to that level they have the same text.
fn wider_candidates<'a>(wildcards: &'a BTreeSet<Box<str>>, filter: &str) -> impl Iterator<Item = &'a Box<str>> {
    // 'a/#' matches 'a' too.
    let spelled = if topic::is_wildcard(filter) { spelled_out(filter).to_owned() } else { format!("{filter}/") };
    let starts: Vec<usize> =
        std::iter::once(0).chain(spelled.match_indices('/').map(|(position, _)| position + 1)).collect();
    starts.into_iter().flat_map(move |start| {
        ["+", "#"].into_iter().flat_map({
            let start = spelled[..start].to_owned();
            move |wildcard| {
                let start = format!("{start}{wildcard}");
                let from = (Bound::Included(&*start), Bound::Unbounded);
                wildcards.range::<str, _>(from).take_while(move |other| other.starts_with(&start))
            }
        })
    })
}

/// The filters that a wildcard may cover, or overlap if its first wildcard is at the same level or earlier: they begin
/// with the same text.
fn narrower_candidates<'a>(
    filters: &'a BTreeMap<Box<str>, Entry>,
    wildcard: &str,
) -> impl Iterator<Item = (&'a Box<str>, &'a Entry)> {
    // 'a/#' matches 'a' too.
    let start = spelled_out(wildcard).trim_end_matches('/').to_owned();
    let from = (Bound::Included(&*start), Bound::Unbounded);
    filters.range::<str, _>(from).take_while(move |(filter, _)| filter.starts_with(&start))
}

/// Takes as many filters as fit into one packet, in order. A filter that `goes_alone` gets a packet of its own.
fn take_some(filters: &mut BTreeSet<Box<str>>, goes_alone: impl Fn(&str) -> bool) -> Vec<Box<str>> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    while taken.len() < FILTERS_AT_ONCE
        && let Some(first) = filters.first()
    {
        let is_alone = goes_alone(first);
        bytes += first.len();
        // A filter that is too long to share a packet gets its own as well.
        if !taken.is_empty() && (is_alone || bytes > FILTER_BYTES_AT_ONCE) {
            break;
        }
        taken.extend(filters.pop_first());
        if is_alone {
            break;
        }
    }
    taken
}

#[cfg(test)]
mod tests;
