//! What the client is subscribed to, and what the broker has been told of it.

use std::num::NonZeroU16;

use hashbrown::HashMap;
use rmqtt_codec::{types, v3, v5};

use super::super::codec::{self, CodecError, Qos, Version};

/// Packet identifiers of SUBSCRIBE and UNSUBSCRIBE; those below belong to publishes, so that both can be given without
/// looking at the other.
const FIRST_PACKET_ID: u16 = 60_001;

/// The most filters in one packet.
const FILTERS_AT_ONCE: usize = 500;

/// The size at which a packet takes no more filters, in bytes.
const FILTER_BYTES_AT_ONCE: usize = 32 << 10;

/// How many packets may wait for their answer.
const UNANSWERED_MAX: usize = 64;

/// What the broker thinks of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// It does not know of it.
    Waiting,
    /// It was asked.
    Asked,
    /// It has agreed.
    Granted,
    /// It has refused, with this reason.
    Refused(String),
}

#[derive(Debug)]
struct Entry {
    /// How many users the filter has.
    users: usize,
    state: State,
}

/// The filters, each with its number of users.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    filters: HashMap<Box<str>, Entry>,
    to_subscribe: Vec<Box<str>>,
    to_unsubscribe: Vec<Box<str>>,
    /// The filters of SUBSCRIBE packets without answer, by packet identifier.
    unanswered: HashMap<u16, Vec<Box<str>>>,
    last_packet_id: u16,
}

/// What became of the filters of one SUBSCRIBE.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// Filter and reason of the refused ones.
    pub(super) refused: Vec<(String, String)>,
}

impl Subscriptions {
    /// One more user of a filter. Returns whether the broker has to be told.
    pub(super) fn add(&mut self, filter: &str) -> bool {
        if let Some(entry) = self.filters.get_mut(filter) {
            entry.users += 1;
            return false;
        }
        self.filters.insert(filter.into(), Entry { users: 1, state: State::Waiting });
        self.to_subscribe.push(filter.into());
        true
    }

    /// One user less. Returns whether the broker has to be told.
    pub(super) fn remove(&mut self, filter: &str) -> bool {
        let Some(entry) = self.filters.get_mut(filter) else { return false };
        entry.users -= 1;
        if entry.users > 0 {
            return false;
        }
        let state = self.filters.remove(filter).map(|entry| entry.state);
        if state == Some(State::Waiting) {
            // It still stands in `to_subscribe`, and is passed over there.
            return false;
        }
        self.to_unsubscribe.push(filter.into());
        true
    }

    /// The number of filters.
    pub(super) fn len(&self) -> usize {
        self.filters.len()
    }

    /// Whether the broker has agreed to all of them.
    pub(super) fn all_granted(&self) -> bool {
        self.filters.values().all(|entry| entry.state == State::Granted)
    }

    /// At most `limit` refused filters with their reasons.
    pub(super) fn refused(&self, limit: usize) -> Vec<(String, String)> {
        let refused = self.filters.iter().filter_map(|(filter, entry)| match &entry.state {
            State::Refused(reason) => Some((filter.to_string(), reason.clone())),
            _ => None,
        });
        refused.take(limit).collect()
    }

    /// A new connection. If the broker remembers the session, it also remembers what it granted there.
    pub(super) fn connected(&mut self, session_present: bool) {
        self.unanswered.clear();
        self.to_subscribe.clear();
        if !session_present {
            self.to_unsubscribe.clear();
        }
        for (filter, entry) in &mut self.filters {
            if !(session_present && entry.state == State::Granted) {
                entry.state = State::Waiting;
                self.to_subscribe.push(filter.clone());
            }
        }
    }

    /// Appends the packets that tell the broker what has changed.
    pub(super) fn encode(&mut self, version: Version, qos: Qos, out: &mut Vec<u8>) -> Result<(), CodecError> {
        // First what is to go: a filter that came back meanwhile stands in the other list too, and must win.
        while !self.to_unsubscribe.is_empty() {
            let filters = take_some(&mut self.to_unsubscribe);
            let packet_id = self.next_packet_id();
            let topic_filters = filters.iter().map(|filter| (**filter).into()).collect();
            match version {
                Version::V3 => codec::encode_v3(v3::Packet::Unsubscribe { packet_id, topic_filters }, out)?,
                Version::V5 => {
                    let packet = v5::Unsubscribe { packet_id, user_properties: Vec::new(), topic_filters };
                    codec::encode_v5(v5::Packet::Unsubscribe(packet), out)?;
                }
            }
        }
        while !self.to_subscribe.is_empty() && self.unanswered.len() < UNANSWERED_MAX {
            let mut filters = take_some(&mut self.to_subscribe);
            // Those that were removed meanwhile, or stand there twice, fall out.
            filters.retain(|filter| match self.filters.get_mut(filter) {
                Some(entry) if entry.state == State::Waiting => {
                    entry.state = State::Asked;
                    true
                }
                _ => false,
            });
            if filters.is_empty() {
                continue;
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
                        // Not again what was kept for a subscription the broker still remembers.
                        retain_handling: v5::RetainHandling::AtSubscribeNew,
                    };
                    let topic_filters = filters.iter().map(|filter| ((**filter).into(), options)).collect();
                    let packet = v5::Subscribe { packet_id, id: None, user_properties: Vec::new(), topic_filters };
                    codec::encode_v5(v5::Packet::Subscribe(packet), out)?;
                }
            }
            self.unanswered.insert(packet_id.get(), filters);
        }
        Ok(())
    }

    /// Takes the answer to a SUBSCRIBE: for each filter, in order, nothing or the reason of the refusal. `None` if no such
    /// question was asked.
    pub(super) fn answered(&mut self, packet_id: u16, answers: &[Option<String>]) -> Option<Answer> {
        let filters = self.unanswered.remove(&packet_id)?;
        if filters.len() != answers.len() {
            return None;
        }
        let mut answer = Answer::default();
        for (filter, reason) in filters.iter().zip(answers) {
            // It may have been removed (and even added again) meanwhile.
            let Some(entry) = self.filters.get_mut(filter).filter(|entry| entry.state == State::Asked) else {
                continue;
            };
            entry.state = match reason {
                None => State::Granted,
                Some(reason) => {
                    answer.refused.push((filter.to_string(), reason.clone()));
                    State::Refused(reason.clone())
                }
            };
        }
        Some(answer)
    }

    fn next_packet_id(&mut self) -> NonZeroU16 {
        // The identifiers in use are far fewer than there are, so a used one comes up after all others.
        loop {
            self.last_packet_id = self.last_packet_id.checked_add(1).unwrap_or(FIRST_PACKET_ID).max(FIRST_PACKET_ID);
            if !self.unanswered.contains_key(&self.last_packet_id) {
                return NonZeroU16::new(self.last_packet_id).expect("it is at least the first");
            }
        }
    }
}

/// Takes from the end as many filters as go into one packet.
fn take_some(filters: &mut Vec<Box<str>>) -> Vec<Box<str>> {
    let mut bytes = 0;
    let fitting = filters.iter().rev().take(FILTERS_AT_ONCE).take_while(|filter| {
        bytes += filter.len();
        bytes <= FILTER_BYTES_AT_ONCE
    });
    // A filter that is too long for that goes alone.
    let count = fitting.count().max(1).min(filters.len());
    filters.split_off(filters.len() - count)
}

#[cfg(test)]
mod tests {
    use super::super::super::codec::{decode_v5, split_frame};
    use super::*;

    /// What is sent: filters subscribed to (with their packet identifiers) and filters given up.
    fn sent(subscriptions: &mut Subscriptions) -> (Vec<(u16, Vec<String>)>, Vec<String>) {
        let mut bytes = Vec::new();
        subscriptions.encode(Version::V5, Qos::AtLeastOnce, &mut bytes).unwrap();
        let (mut on, mut off, mut rest) = (Vec::new(), Vec::new(), &bytes[..]);
        while let Some(frame) = split_frame(rest, usize::MAX).unwrap() {
            match decode_v5(&frame).unwrap() {
                v5::Packet::Subscribe(packet) => {
                    let filters = packet.topic_filters.iter().map(|(filter, _)| filter.to_string()).collect();
                    on.push((packet.packet_id.get(), filters));
                }
                v5::Packet::Unsubscribe(packet) => off.extend(packet.topic_filters.iter().map(ToString::to_string)),
                other => panic!("{other:?}"),
            }
            rest = &rest[frame.whole.len()..];
        }
        (on, off)
    }

    #[test]
    fn the_broker_hears_of_the_first_and_the_last_user() {
        let mut subscriptions = Subscriptions::default();
        assert!(subscriptions.add("a/+"));
        assert!(!subscriptions.add("a/+"));
        let (on, _) = sent(&mut subscriptions);
        assert_eq!(on[0].1, ["a/+"]);
        assert!(subscriptions.answered(on[0].0, &[None]).unwrap().refused.is_empty());
        assert!(subscriptions.all_granted());
        assert!(!subscriptions.remove("a/+"));
        assert!(subscriptions.remove("a/+"));
        assert_eq!(sent(&mut subscriptions).1, ["a/+"]);
        assert!(!subscriptions.remove("a/+"));
    }

    #[test]
    fn a_session_that_is_remembered_is_not_asked_for_again() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add("granted");
        let (on, _) = sent(&mut subscriptions);
        subscriptions.answered(on[0].0, &[None]);
        subscriptions.add("asked");
        sent(&mut subscriptions);
        subscriptions.connected(true);
        assert_eq!(sent(&mut subscriptions).0[0].1, ["asked"]);
        subscriptions.connected(false);
        let (on, _) = sent(&mut subscriptions);
        assert_eq!(on[0].1.len(), 2);
    }

    #[test]
    fn refusals_are_reported_and_asked_again_on_the_next_connection() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add("secret");
        let (on, _) = sent(&mut subscriptions);
        let answer = subscriptions.answered(on[0].0, &[Some("not authorized".into())]).unwrap();
        assert_eq!(answer.refused, [("secret".to_owned(), "not authorized".to_owned())]);
        assert_eq!(subscriptions.refused(10).len(), 1);
        assert!(subscriptions.answered(on[0].0, &[None]).is_none(), "an answer without a question");
        subscriptions.connected(true);
        assert_eq!(sent(&mut subscriptions).0[0].1, ["secret"]);
    }

    #[test]
    fn many_filters_go_out_in_packets_of_bounded_size_and_number() {
        let mut subscriptions = Subscriptions::default();
        for number in 0..100_000 {
            subscriptions.add(&format!("home/{number}/temperature"));
        }
        let mut seen = 0;
        loop {
            let (on, _) = sent(&mut subscriptions);
            if on.is_empty() {
                break;
            }
            assert!(on.len() <= UNANSWERED_MAX);
            for (packet_id, filters) in on {
                assert!(filters.len() <= FILTERS_AT_ONCE && packet_id >= FIRST_PACKET_ID);
                seen += filters.len();
                subscriptions.answered(packet_id, &vec![None; filters.len()]).unwrap();
            }
        }
        assert_eq!(seen, 100_000);
        assert!(subscriptions.all_granted());
    }
}
