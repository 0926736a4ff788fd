//! Messages on their way from one publisher to many subscribers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::codec::{Publish, Qos, Version};
use super::super::properties;
use super::memory::Memory;

/// A message that is kept: retained, queued for a session, or sent and not acknowledged yet.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) topic: Box<[u8]>,
    pub(super) payload: Box<[u8]>,
    /// Properties of version 5, checked, as they were received.
    pub(super) properties: Box<[u8]>,
    pub(super) qos: Qos,
    pub(super) retain: bool,
    /// When it expires.
    pub(super) expires_at: Option<Instant>,
    /// Its number in the journal; 0 if it is not there.
    pub(super) number: AtomicU64,
    /// The position of its last record in the journal.
    pub(super) saved_at: AtomicU64,
    /// The memory that counts its bytes, if any.
    counted_in: Option<Arc<Memory>>,
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(memory) = &self.counted_in {
            memory.subtract(self.memory_bytes());
        }
    }
}

impl Message {
    pub(super) fn of(publish: &Publish<'_>, expires_at: Option<Instant>) -> Self {
        Self {
            topic: publish.topic.into(),
            payload: publish.payload.into(),
            properties: publish.properties.into(),
            qos: publish.qos,
            retain: publish.retain,
            expires_at,
            number: AtomicU64::new(0),
            saved_at: AtomicU64::new(0),
            counted_in: None,
        }
    }

    /// Counts the message's memory as long as it is kept.
    pub(super) fn counted_in(mut self, memory: &Arc<Memory>) -> Self {
        memory.add(self.memory_bytes());
        self.counted_in = Some(memory.clone());
        self
    }

    /// The message as it was published.
    pub(super) fn publish(&self) -> Publish<'_> {
        Publish {
            topic: &self.topic,
            payload: &self.payload,
            properties: &self.properties,
            qos: self.qos,
            retain: self.retain,
            ..Publish::default()
        }
    }

    /// The bytes that it counts against a bound.
    pub(super) fn memory_bytes(&self) -> usize {
        self.topic.len() + self.payload.len() + self.properties.len() + size_of::<Self>()
    }

    /// Its number in the journal; 0 if it is not there.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// How a kept message is sent to one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    pub(super) qos: Qos,
    pub(super) retain: bool,
    /// Whether it is for a shared subscription.
    pub(super) is_shared: bool,
    /// The group whose shared subscription that is.
    pub(super) group: OfGroup,
    pub(super) identifiers: Identifiers,
}

/// The number of the group that a message is for, if it is known: the journal does not have it. So it does not count
/// when manners are compared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OfGroup(pub(super) Option<u32>);

impl PartialEq for OfGroup {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OfGroup {}

impl Manner {
    /// How one packet for both is sent; `None` if that has more subscription identifiers than fit.
    pub(super) fn join(self, other: &Self) -> Option<Self> {
        Some(Self {
            qos: self.qos.max(other.qos),
            retain: self.retain || other.retain,
            is_shared: false,
            group: OfGroup::default(),
            identifiers: self.identifiers.join(other.identifiers)?,
        })
    }
}

/// The most subscription identifiers of a packet. A session with more subscriptions to a topic that have identifiers
/// gets several copies.
pub(super) const IDENTIFIERS_MAX: usize = 4;

/// The subscription identifiers of a packet, in their order; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identifiers([u32; IDENTIFIERS_MAX]);

impl From<Option<u32>> for Identifiers {
    fn from(identifier: Option<u32>) -> Self {
        let mut identifiers = [0; IDENTIFIERS_MAX];
        identifiers[0] = identifier.unwrap_or(0);
        Self(identifiers)
    }
}

impl Identifiers {
    pub(super) fn is_empty(self) -> bool {
        self.0[0] == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u32> {
        self.0.into_iter().take_while(|&identifier| identifier > 0)
    }

    /// These and one more; `None` if there is no room.
    pub(super) fn with(mut self, identifier: u32) -> Option<Self> {
        *self.0.iter_mut().find(|known| **known == 0)? = identifier;
        Some(self)
    }

    fn join(self, other: Self) -> Option<Self> {
        other.iter().try_fold(self, Self::with)
    }
}

/// The alias of a topic on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alias {
    None,
    /// It is to be set.
    New(u16),
    /// It stands for the topic.
    Known(u16),
}

/// What a packet says beside the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) alias: Alias,
    /// 0 with QoS 0.
    pub(super) packet_id: u16,
    /// Whether it may have been sent before.
    pub(super) is_again: bool,
}

/// Appends a kept message as a packet. Appends nothing and returns false if the packet is larger than the protocol
/// allows.
pub(super) fn encode_kept(
    message: &Message,
    manner: Manner,
    header: Header,
    version: Version,
    now: Instant,
    out: &mut Vec<u8>,
) -> bool {
    let mut own = Vec::new();
    if version == Version::V5 {
        match message.expires_at {
            // A subscriber is told how much of the expiry time is left: whole seconds of waiting are subtracted.
            Some(at) => {
                let left_s = at.saturating_duration_since(now).as_millis().div_ceil(1000).max(1);
                properties::copy_properties_with_expiry(
                    &message.properties,
                    u32::try_from(left_s).unwrap_or(u32::MAX),
                    &mut own,
                );
            }
            None => own.extend_from_slice(&message.properties),
        }
        if let Alias::New(alias) | Alias::Known(alias) = header.alias {
            properties::push_topic_alias(alias, &mut own);
        }
        for identifier in manner.identifiers.iter() {
            properties::push_subscription_identifier(identifier, &mut own);
        }
    }
    let publish = Publish {
        topic: if matches!(header.alias, Alias::Known(_)) { &[] } else { &message.topic },
        payload: &message.payload,
        properties: &own,
        packet_id: header.packet_id,
        qos: manner.qos,
        retain: manner.retain,
        duplicate: header.is_again,
    };
    publish.encode(version, out).is_ok()
}

/// A message while it is delivered to its subscribers: encoded once for each version, quality of service and retain
/// flag; copied into a [`Message`] once, if it must be kept.
pub(super) struct Delivery<'a> {
    pub(super) publish: Publish<'a>,
    pub(super) expires_at: Option<Instant>,
    kept: Option<Arc<Message>>,
    cache: &'a mut Encoded,
    memory: &'a Arc<Memory>,
}

/// The variants of a packet: two versions, three qualities of service, retained or not.
const VARIANTS: usize = 2 * 3 * 2;

/// The packets of one message, and the memory for them.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    bytes: Vec<u8>,
    /// Where each variant is, empty if it is not encoded. All together have less than 4 GiB.
    variants: [Range<u32>; VARIANTS],
}

impl<'a> Delivery<'a> {
    pub(super) fn new(
        publish: Publish<'a>,
        expires_at: Option<Instant>,
        cache: &'a mut Encoded,
        memory: &'a Arc<Memory>,
    ) -> Self {
        cache.bytes.clear();
        cache.variants = Default::default();
        Self { publish, expires_at, kept: None, cache, memory }
    }

    /// The bytes that the message counts against a bound when it is kept.
    pub(super) fn memory_bytes(&self) -> usize {
        let Publish { topic, payload, properties, .. } = &self.publish;
        topic.len() + payload.len() + properties.len() + size_of::<Message>()
    }

    /// Returns the message in a form that can be kept.
    pub(super) fn keep(&mut self) -> Arc<Message> {
        let make = || Arc::new(Message::of(&self.publish, self.expires_at).counted_in(self.memory));
        self.kept.get_or_insert_with(make).clone()
    }

    /// The packet, with the offset of its packet identifier (if the quality of service is 1 or 2). `None` if the packet
    /// would be longer than the protocol allows.
    pub(super) fn packet(&mut self, version: Version, qos: Qos, retain: bool) -> Option<(&[u8], usize)> {
        let variant = (usize::from(version == Version::V5) * 3 + usize::from(qos.level())) * 2 + usize::from(retain);
        let mut range = self.cache.variants[variant].clone();
        if range.is_empty() {
            let start = self.cache.bytes.len() as u32;
            let publish = Publish { qos, retain, packet_id: 0, duplicate: false, ..self.publish };
            publish.encode(version, &mut self.cache.bytes).ok()?;
            range = start..self.cache.bytes.len() as u32;
            self.cache.variants[variant] = range.clone();
        }
        let range = range.start as usize..range.end as usize;
        let packet = &self.cache.bytes[range];
        // First byte, the length (whose last byte has no continuation bit), the topic with its own length.
        let length_bytes = 1 + packet[1..].iter().take_while(|&&byte| byte & 0x80 != 0).count();
        Some((packet, 1 + length_bytes + 2 + self.publish.topic.len()))
    }
}

/// When a message with this expiry expires if it is published now.
pub(super) fn expires_at(message_expiry_s: Option<u32>) -> Option<Instant> {
    message_expiry_s.map(|seconds| Instant::now() + Duration::from_secs(u64::from(seconds)))
}

#[cfg(test)]
mod tests {
    use super::super::super::codec::{PublishProperties, split_frame};
    use super::*;

    fn decode(version: Version, packet: &[u8]) -> Publish<'_> {
        let frame = split_frame(packet, usize::MAX).unwrap().unwrap();
        Publish::decode(version, frame.first_byte, frame.body).unwrap()
    }

    #[test]
    fn a_message_is_encoded_once_for_everybody_who_gets_the_same() {
        let payload = vec![7u8; 300];
        let publish = Publish { topic: b"a/b", payload: &payload, retain: true, ..Publish::default() };
        let mut cache = Encoded::default();
        let memory = Memory::new(usize::MAX, 100, 100);
        let mut delivery = Delivery::new(publish, None, &mut cache, &memory);
        for version in [Version::V3, Version::V5] {
            for (qos, retain) in [(Qos::AtMostOnce, false), (Qos::AtLeastOnce, true)] {
                let (packet, id_at) = delivery.packet(version, qos, retain).unwrap();
                let mut packet = packet.to_vec();
                if qos == Qos::AtLeastOnce {
                    packet[id_at..id_at + 2].copy_from_slice(&0x0102u16.to_be_bytes());
                }
                let decoded = decode(version, &packet);
                assert_eq!((decoded.topic, decoded.payload), (&b"a/b"[..], &payload[..]));
                assert_eq!((decoded.qos, decoded.retain), (qos, retain));
                assert_eq!(decoded.packet_id, if qos == Qos::AtLeastOnce { 0x0102 } else { 0 });
            }
        }
        let encoded_bytes = delivery.cache.bytes.len();
        delivery.packet(Version::V5, Qos::AtMostOnce, false).unwrap();
        assert_eq!(delivery.cache.bytes.len(), encoded_bytes);
    }

    #[test]
    fn a_kept_message_says_how_long_it_is_still_good_for() {
        let now = Instant::now();
        let mut properties = Vec::new();
        properties::push_message_expiry(60, &mut properties);
        let publish = Publish { topic: b"t", payload: b"p", properties: &properties, ..Publish::default() };
        let message = Message::of(&publish, Some(now + Duration::from_millis(41_100)));
        let identifiers = Identifiers::from(Some(5)).with(300).unwrap();
        let manner =
            Manner { qos: Qos::AtLeastOnce, retain: false, is_shared: false, group: OfGroup::default(), identifiers };
        let mut out = Vec::new();
        let header = Header { alias: Alias::None, packet_id: 9, is_again: true };
        assert!(encode_kept(&message, manner, header, Version::V5, now, &mut out));
        let decoded = decode(Version::V5, &out);
        assert_eq!((decoded.packet_id, decoded.duplicate), (9, true));
        let found = PublishProperties::parse(decoded.properties).unwrap();
        assert_eq!((found.message_expiry_s, found.has_subscription_identifier), (Some(42), true));
        let mut identifiers = Vec::new();
        properties::for_each_subscription_identifier(decoded.properties, |identifier| identifiers.push(identifier));
        assert_eq!(identifiers, [5, 300]);
        out.clear();
        assert!(encode_kept(&message, manner, Header { alias: Alias::Known(3), ..header }, Version::V5, now, &mut out));
        let decoded = decode(Version::V5, &out);
        let found = PublishProperties::parse(decoded.properties).unwrap();
        assert_eq!((decoded.topic, found.topic_alias), (&b""[..], Some(3)));
        assert!(message.is_expired(now + Duration::from_secs(42)) && !message.is_expired(now));
    }
}
