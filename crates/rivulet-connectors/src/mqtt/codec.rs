//! MQTT packets as bytes: frames, and PUBLISH decoded in place.
//!
//! PUBLISH and PUBACK, the packets of the hot path, are read and written here, borrowed from the read buffer and
//! without allocation. Every other packet goes through `rmqtt-codec`. For any bytes the result is a packet or a
//! [`CodecError`], never a panic.

use bytes::BytesMut;
use rmqtt_codec::{v3, v5};
use tokio_util::codec::{Decoder, Encoder};

use super::fields::Fields;
pub use super::properties::PublishProperties;
use super::properties::{Allowed, for_each_property};
pub use super::wire::CodecError;
use super::wire::{push_variable_length, split_prefixed, split_variable_length};

/// The largest body the four length bytes of the protocol can express.
const REMAINING_BYTES_MAX: usize = 268_435_455;

/// First byte of a CONNECT.
pub(crate) const CONNECT: u8 = 0x10;

/// First byte of a CONNACK.
pub(crate) const CONNACK: u8 = 0x20;

/// First bytes of acknowledgements.
const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBREL: u8 = 0x62;
const PUBCOMP: u8 = 0x70;

/// The version of the protocol that a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    /// MQTT 3.1.1 (as a broker also 3.1, which has the same packets).
    V3,
    /// MQTT 5.
    #[default]
    V5,
}

/// Quality of service: the guarantee of delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Qos {
    /// 0: fire and forget.
    #[default]
    AtMostOnce,
    /// 1: sent again until acknowledged.
    AtLeastOnce,
    /// 2: a handshake of four packets. Only the embedded broker has it.
    ExactlyOnce,
}

impl Qos {
    /// The number in the protocol.
    pub fn level(self) -> u8 {
        self as u8
    }

    /// The quality of service with this number; `None` for 3 and above.
    pub fn from_level(level: u8) -> Option<Self> {
        match level {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

/// The kind of a packet: the high four bits of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A connection request.
    Connect,
    /// A message.
    Publish,
    /// The acknowledgement of a message of QoS 1.
    PubAck,
    /// Anything else.
    Other,
}

/// One whole packet in a read buffer.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Kind and flags.
    pub first_byte: u8,
    /// The bytes behind the length.
    pub body: &'a [u8],
    /// The packet including its header.
    pub whole: &'a [u8],
}

impl Frame<'_> {
    /// The kind of packet.
    pub fn kind(&self) -> PacketKind {
        match self.first_byte >> 4 {
            1 => PacketKind::Connect,
            3 => PacketKind::Publish,
            4 => PacketKind::PubAck,
            _ => PacketKind::Other,
        }
    }

    /// Whether the length in the header is written with as few bytes as possible, as MQTT 5 requires.
    #[inline]
    pub fn has_shortest_length(&self) -> bool {
        self.whole.len() - self.body.len() == 1 + variable_length_bytes(self.body.len())
    }
}

/// Finds the first packet in `buffer`; `None` if it is not complete yet.
///
/// Fails as soon as the header shows that the packet will exceed `packet_bytes_max`, before its body has arrived.
#[inline]
pub fn split_frame(buffer: &[u8], packet_bytes_max: usize) -> Result<Option<Frame<'_>>, CodecError> {
    let Some(&first_byte) = buffer.first() else { return Ok(None) };
    let mut remaining = 0usize;
    for index in 0..4 {
        let Some(&byte) = buffer.get(1 + index) else { return Ok(None) };
        remaining |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let header = 2 + index;
            let packet_bytes = header + remaining;
            if packet_bytes > packet_bytes_max {
                return Err(CodecError::TooLarge { packet_bytes, packet_bytes_max });
            }
            return Ok(buffer.get(..packet_bytes).map(|whole| Frame { first_byte, body: &whole[header..], whole }));
        }
    }
    Err(CodecError::Malformed("the length takes more than four bytes"))
}

/// A message, borrowed from a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The topic; only its length is checked.
    pub topic: &'a [u8],
    /// The content.
    pub payload: &'a [u8],
    /// The properties of version 5 as in the packet, without their length; empty in version 3.
    pub properties: &'a [u8],
    /// The packet identifier; 0 with QoS 0.
    pub packet_id: u16,
    /// Quality of service.
    pub qos: Qos,
    /// In a publish: retain it for later subscribers. In a delivery: it was retained.
    pub retain: bool,
    /// It may have been sent before.
    pub duplicate: bool,
}

impl<'a> Publish<'a> {
    /// Decodes the body of a PUBLISH.
    ///
    /// The properties are not decoded; see [`PublishProperties::parse`].
    #[inline]
    pub fn decode(version: Version, first_byte: u8, body: &'a [u8]) -> Result<Self, CodecError> {
        let qos = Qos::from_level((first_byte >> 1) & 3).ok_or(CodecError::Malformed("QoS 3 does not exist"))?;
        let (topic, mut rest) = split_prefixed(body).ok_or(CodecError::CutShort("the topic is cut short"))?;
        let mut packet_id = 0;
        if qos != Qos::AtMostOnce {
            let (id, after) =
                rest.split_first_chunk::<2>().ok_or(CodecError::CutShort("the packet identifier is missing"))?;
            packet_id = u16::from_be_bytes(*id);
            rest = after;
            if packet_id == 0 {
                return Err(CodecError::Malformed("packet identifier 0"));
            }
        }
        let mut properties: &[u8] = &[];
        match version {
            Version::V3 if topic.is_empty() => return Err(CodecError::Malformed("the topic is empty")),
            Version::V3 => {}
            Version::V5 => {
                let (length, after) = split_variable_length(rest).ok_or(
                    match rest.len() < 4 && rest.iter().all(|byte| byte & 0x80 != 0) {
                        true => CodecError::CutShort("the length of the properties is cut short"),
                        false => CodecError::Malformed("the length of the properties is broken"),
                    },
                )?;
                (properties, rest) =
                    after.split_at_checked(length).ok_or(CodecError::CutShort("the properties are cut short"))?;
            }
        }
        Ok(Self {
            topic,
            payload: rest,
            properties,
            packet_id,
            qos,
            retain: first_byte & 1 != 0,
            duplicate: first_byte & 8 != 0,
        })
    }

    /// The size of the whole packet, and of its body.
    fn sizes(&self, version: Version) -> (usize, usize) {
        let body = 2
            + self.topic.len()
            + if self.qos == Qos::AtMostOnce { 0 } else { 2 }
            + match version {
                Version::V3 => 0,
                Version::V5 => variable_length_bytes(self.properties.len()) + self.properties.len(),
            }
            + self.payload.len();
        (1 + variable_length_bytes(body) + body, body)
    }

    /// The size of the packet that [`Publish::encode`] writes, in bytes.
    pub fn packet_bytes(&self, version: Version) -> usize {
        self.sizes(version).0
    }

    /// Appends the packet to `out`. For version 3 the properties are left out.
    ///
    /// Fails, with `out` unchanged, if the topic or the packet is longer than the protocol can express.
    #[inline]
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) -> Result<(), CodecError> {
        let (packet_bytes, body_bytes) = self.sizes(version);
        let Ok(topic_bytes) = u16::try_from(self.topic.len()) else {
            return Err(CodecError::Malformed("a topic has at most 65535 bytes"));
        };
        if body_bytes > REMAINING_BYTES_MAX {
            return Err(CodecError::TooLarge { packet_bytes, packet_bytes_max: REMAINING_BYTES_MAX });
        }
        out.reserve(packet_bytes);
        out.push(0x30 | u8::from(self.duplicate) << 3 | self.qos.level() << 1 | u8::from(self.retain));
        push_variable_length(body_bytes, out);
        out.extend_from_slice(&topic_bytes.to_be_bytes());
        out.extend_from_slice(self.topic);
        if self.qos != Qos::AtMostOnce {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
        }
        if version == Version::V5 {
            push_variable_length(self.properties.len(), out);
            out.extend_from_slice(self.properties);
        }
        out.extend_from_slice(self.payload);
        Ok(())
    }
}

/// Whether a packet with this first byte is a PUBLISH.
pub(super) fn is_publish(first_byte: u8) -> bool {
    first_byte >> 4 == 3
}

/// Decodes a PUBLISH of which only the beginning is there, with a whole length; the payload is what is there. The error
/// is [`CodecError::CutShort`] if the beginning ends before the payload.
pub(super) fn beginning_of_publish(version: Version, beginning: &[u8]) -> Result<Publish<'_>, CodecError> {
    const BROKEN: CodecError = CodecError::Malformed("the length in the header is broken");
    let (&first_byte, rest) = beginning.split_first().ok_or(BROKEN)?;
    let (_, body) = split_variable_length(rest).ok_or(BROKEN)?;
    Publish::decode(version, first_byte, body)
}

fn variable_length_bytes(value: usize) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        _ => 4,
    }
}

/// The topic of a PUBLISH, read without looking at the rest.
#[inline]
pub fn topic_of_publish(body: &[u8]) -> Option<&[u8]> {
    let (length, rest) = body.split_first_chunk()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

/// Appends the answer to a message of QoS 1 or 2 (PUBACK or PUBREC). `reason` is the code of version 5 (0 is success);
/// version 3 has none, so it must be 0 there.
#[inline]
pub fn encode_acknowledgement(qos: Qos, packet_id: u16, reason: u8, out: &mut Vec<u8>) {
    let first_byte = if qos == Qos::ExactlyOnce { PUBREC } else { PUBACK };
    let [high, low] = packet_id.to_be_bytes();
    if reason == 0 {
        out.extend_from_slice(&[first_byte, 2, high, low]);
    } else {
        out.extend_from_slice(&[first_byte, 3, high, low, reason]);
    }
}

/// Appends a PUBACK.
#[inline]
pub fn encode_puback(packet_id: u16, reason: u8, out: &mut Vec<u8>) {
    encode_acknowledgement(Qos::AtLeastOnce, packet_id, reason, out);
}

/// Appends a PUBREL. `is_known` says whether the PUBREC belonged to a message; version 3 has no words for that, so it
/// must be true there.
pub fn encode_pubrel(packet_id: u16, is_known: bool, out: &mut Vec<u8>) {
    encode_second_half(PUBREL, packet_id, is_known, out);
}

/// Appends a PUBCOMP. `is_known` says whether the PUBREL belonged to a message, as in [`encode_pubrel`].
pub fn encode_pubcomp(packet_id: u16, is_known: bool, out: &mut Vec<u8>) {
    encode_second_half(PUBCOMP, packet_id, is_known, out);
}

fn encode_second_half(first_byte: u8, packet_id: u16, is_known: bool, out: &mut Vec<u8>) {
    const PACKET_IDENTIFIER_NOT_FOUND: u8 = 0x92;
    let [high, low] = packet_id.to_be_bytes();
    match is_known {
        true => out.extend_from_slice(&[first_byte, 2, high, low]),
        false => out.extend_from_slice(&[first_byte, 3, high, low, PACKET_IDENTIFIER_NOT_FOUND]),
    }
}

/// The packet identifier and the reason code (0 is success) of a PUBACK.
#[inline]
pub fn decode_puback(version: Version, frame: &Frame<'_>) -> Result<(u16, u8), CodecError> {
    decode_acknowledgement(version, PUBACK, frame)
}

/// The same of a PUBREC.
pub fn decode_pubrec(version: Version, frame: &Frame<'_>) -> Result<(u16, u8), CodecError> {
    decode_acknowledgement(version, PUBREC, frame)
}

/// The same of a PUBREL.
pub fn decode_pubrel(version: Version, frame: &Frame<'_>) -> Result<(u16, u8), CodecError> {
    decode_acknowledgement(version, PUBREL, frame)
}

/// The same of a PUBCOMP.
pub fn decode_pubcomp(version: Version, frame: &Frame<'_>) -> Result<(u16, u8), CodecError> {
    decode_acknowledgement(version, PUBCOMP, frame)
}

#[inline]
fn decode_acknowledgement(version: Version, first_byte: u8, frame: &Frame<'_>) -> Result<(u16, u8), CodecError> {
    if frame.first_byte != first_byte {
        return Err(CodecError::Malformed("the flags of an acknowledgement are not its own"));
    }
    let mut fields = Fields::new(frame.body);
    let packet_id = fields.packet_id()?;
    if version == Version::V3 || fields.is_empty() {
        return fields.end().map(|()| (packet_id, 0));
    }
    let reason = fields.byte()?;
    if !fields.is_empty() {
        for_each_property(Allowed::ACKNOWLEDGEMENT, fields.properties()?, |_, _| {})?;
    }
    fields.end().map(|()| (packet_id, reason))
}

/// The protocol level that the body of a CONNECT asks for: 3 and 4 are [`Version::V3`], 5 is [`Version::V5`].
pub fn connect_level(body: &[u8]) -> Result<u8, CodecError> {
    let (name, rest) = split_prefixed(body).ok_or(CodecError::Malformed("the protocol name is missing"))?;
    match (name, rest.first()) {
        (b"MQTT" | b"MQIsdp", Some(&level)) => Ok(level),
        _ => Err(CodecError::Malformed("this is no MQTT CONNECT")),
    }
}

/// Decodes any packet of version 3.
pub fn decode_v3(frame: &Frame<'_>) -> Result<v3::Packet, CodecError> {
    let packet = v3::Codec::new(0).decode(&mut BytesMut::from(frame.whole))?;
    packet.map(|(packet, _)| packet).ok_or(CodecError::Malformed("the packet is cut short"))
}

/// Decodes any packet of version 5.
pub fn decode_v5(frame: &Frame<'_>) -> Result<v5::Packet, CodecError> {
    let packet = v5::Codec::new(0, 0).decode(&mut BytesMut::from(frame.whole))?;
    packet.map(|(packet, _)| packet).ok_or(CodecError::Malformed("the packet is cut short"))
}

/// Appends any packet of version 3.
pub fn encode_v3(packet: v3::Packet, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let mut bytes = BytesMut::new();
    v3::Codec::new(0).encode(packet, &mut bytes)?;
    out.extend_from_slice(&bytes);
    Ok(())
}

/// Appends any packet of version 5.
pub fn encode_v5(packet: v5::Packet, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let mut bytes = BytesMut::new();
    v5::Codec::new(0, 0).encode(packet, &mut bytes)?;
    out.extend_from_slice(&bytes);
    Ok(())
}

/// A PINGREQ, in both versions.
pub const PING_REQUEST: [u8; 2] = [0xc0, 0];
/// A PINGRESP, in both versions.
pub const PING_RESPONSE: [u8; 2] = [0xd0, 0];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rmqtt_codec::types;

    use super::super::fields;
    use super::*;

    fn decode(version: Version, packet: &[u8]) -> Result<Publish<'_>, CodecError> {
        let frame = split_frame(packet, usize::MAX)?.ok_or(CodecError::Malformed("incomplete"))?;
        let publish = Publish::decode(version, frame.first_byte, frame.body)?;
        PublishProperties::parse(publish.properties)?;
        Ok(publish)
    }

    /// How rmqtt-codec decodes the same bytes.
    fn oracle(version: Version, packet: &[u8]) -> Result<types::Publish, CodecError> {
        let frame = split_frame(packet, usize::MAX)?.ok_or(CodecError::Malformed("incomplete"))?;
        match version {
            Version::V3 => match decode_v3(&frame)? {
                v3::Packet::Publish(publish) => Ok(*publish),
                other => panic!("{other:?}"),
            },
            Version::V5 => match decode_v5(&frame)? {
                v5::Packet::Publish(publish) => Ok(*publish),
                other => panic!("{other:?}"),
            },
        }
    }

    fn assert_same(ours: &Publish<'_>, theirs: &types::Publish) {
        assert_eq!(ours.topic, theirs.topic.as_bytes());
        assert_eq!(ours.payload, theirs.payload.as_ref());
        assert_eq!(ours.packet_id, theirs.packet_id.map_or(0, |id| id.get()));
        assert_eq!(ours.qos.level(), theirs.qos.value());
        assert_eq!((ours.retain, ours.duplicate), (theirs.retain, theirs.dup));
        let found = PublishProperties::parse(ours.properties).unwrap();
        let expected = theirs.properties.clone().unwrap_or_default();
        assert_eq!(found.topic_alias, expected.topic_alias.map(|alias| alias.get()));
        assert_eq!(found.message_expiry_s, expected.message_expiry_interval.map(|seconds| seconds.get()));
        assert_eq!(found.has_subscription_identifier, !expected.subscription_ids.is_empty());
    }

    fn version() -> impl Strategy<Value = Version> {
        prop_oneof![Just(Version::V3), Just(Version::V5)]
    }

    prop_compose! {
        fn properties()(
            topic_alias in proptest::option::of(1u16..),
            message_expiry in proptest::option::of(1u32..),
            content_type in proptest::option::of("[^\\x00]{0,6}"),
            response_topic in proptest::option::of("[a-z/]{1,6}"),
            correlation_data in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..6)),
            user in proptest::collection::vec(("[^\\x00]{0,4}", "[^\\x00]{0,4}"), 0..3),
            subscription_ids in proptest::collection::vec(1u32..268_435_455, 0..3),
            is_utf8_payload in any::<bool>(),
        ) -> v5::PublishProperties {
            v5::PublishProperties {
                topic_alias: topic_alias.map(|alias| alias.try_into().unwrap()),
                message_expiry_interval: message_expiry.map(|seconds| seconds.try_into().unwrap()),
                content_type: content_type.map(Into::into),
                response_topic: response_topic.map(Into::into),
                correlation_data: correlation_data.map(Into::into),
                user_properties: user.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
                subscription_ids: subscription_ids.into_iter().map(|id| id.try_into().unwrap()).collect(),
                is_utf8_payload,
            }
        }
    }

    prop_compose! {
        fn publish()(
            topic in "[a-z/$é]{1,200}",
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            qos in 0u8..3,
            packet_id in 1u16..,
            flags in any::<(bool, bool)>(),
            properties in properties(),
        ) -> types::Publish {
            types::Publish {
                dup: flags.0,
                retain: flags.1,
                qos: qos.try_into().unwrap(),
                topic: topic.into(),
                packet_id: (qos > 0).then(|| packet_id.try_into().unwrap()),
                payload: payload.into(),
                properties: Some(properties),
            }
        }
    }

    fn encode_by_oracle(version: Version, publish: types::Publish) -> Vec<u8> {
        let mut bytes = Vec::new();
        match version {
            Version::V3 => encode_v3(v3::Packet::Publish(publish.into()), &mut bytes).unwrap(),
            Version::V5 => encode_v5(v5::Packet::Publish(publish.into()), &mut bytes).unwrap(),
        }
        bytes
    }

    proptest! {
        #[test]
        fn decodes_what_the_oracle_encodes(version in version(), mut expected in publish()) {
            let bytes = encode_by_oracle(version, expected.clone());
            if version == Version::V3 {
                expected.properties = None;
            }
            assert_same(&decode(version, &bytes).unwrap(), &expected);
        }

        #[test]
        fn encodes_what_it_decoded_byte_for_byte(version in version(), expected in publish()) {
            let bytes = encode_by_oracle(version, expected);
            let decoded = decode(version, &bytes).unwrap();
            let mut encoded = Vec::new();
            decoded.encode(version, &mut encoded).unwrap();
            prop_assert_eq!(&encoded, &bytes);
            prop_assert_eq!(decoded.packet_bytes(version), bytes.len());
        }

        #[test]
        fn agrees_with_the_oracle_on_damaged_packets(
            version in version(),
            publish in publish(),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = encode_by_oracle(version, publish);
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                // The kind stays PUBLISH; the flags may change.
                bytes[index] = if index == 0 { 0x30 | (byte & 0x0f) } else { byte };
            }
            match (decode(version, &bytes), oracle(version, &bytes)) {
                (Ok(ours), Ok(theirs)) => assert_same(&ours, &theirs),
                // Code that needs the topic as text checks it later, and likewise the number of an alias. A message
                // that expires after zero seconds is odd, not malformed.
                (Ok(ours), Err(_)) => {
                    let properties = PublishProperties::parse(ours.properties).unwrap();
                    let is_odd = properties.message_expiry_s == Some(0) || properties.topic_alias == Some(0);
                    prop_assert!(is_odd || std::str::from_utf8(ours.topic).is_err());
                }
                (Err(_), Err(_)) => {}
                // The oracle accepts U+0000, numbers with more bytes than needed, and wildcards in response topics.
                (Err(CodecError::Malformed(fields::NUL | "the length of the properties is broken")), Ok(_)) => {}
                (Err(CodecError::Malformed("a property is cut short")), Ok(theirs))
                    if theirs.properties.as_ref().is_some_and(|properties| !properties.subscription_ids.is_empty()) => {}
                (Err(CodecError::Protocol("a response topic with a wildcard")), Ok(_)) => {}
                (Err(ours), Ok(theirs)) => prop_assert!(false, "we refuse ({ours}) {theirs:?}"),
            }
        }

        #[test]
        fn random_bytes_never_panic(version in version(), bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some(frame)) = split_frame(&bytes, 1 << 20) {
                let _ = Publish::decode(version, frame.first_byte, frame.body).map(|publish| PublishProperties::parse(publish.properties));
                let _ = decode_puback(version, &frame);
                let _ = connect_level(frame.body);
                let _ = decode_v3(&frame);
                let _ = decode_v5(&frame);
            }
        }

        /// As above, with a right length for every kind of packet, so that the bodies are reached.
        #[test]
        fn random_bodies_never_panic(first in any::<u8>(), body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut bytes = vec![first, body.len() as u8];
            bytes.extend_from_slice(&body);
            let frame = split_frame(&bytes, 1 << 20).unwrap().unwrap();
            let _ = decode_v3(&frame);
            let _ = decode_v5(&frame);
        }
    }

    #[test]
    fn a_frame_is_found_only_when_it_is_whole() {
        let bytes = [0x30, 5, 0, 1, b'a', 1, 2, 0xc0, 0];
        for end in 0..7 {
            assert!(split_frame(&bytes[..end], 100).unwrap().is_none(), "{end}");
        }
        let frame = split_frame(&bytes, 100).unwrap().unwrap();
        assert_eq!((frame.body, frame.whole.len(), frame.kind()), (&bytes[2..7], 7, PacketKind::Publish));
    }

    #[test]
    fn a_packet_too_large_is_refused_by_its_header() {
        let error = split_frame(&[0x30, 0xff, 0xff, 0x7f], 1000).unwrap_err();
        assert!(matches!(error, CodecError::TooLarge { packet_bytes: 2_097_155, packet_bytes_max: 1000 }));
        assert!(split_frame(&[0x30, 0xff, 0xff, 0xff, 0xff, 0x7f], usize::MAX).is_err());
    }

    #[test]
    fn the_beginning_of_a_message_is_cut_short_until_its_payload_begins() {
        let properties = [0x26, 0, 1, b'a', 0, 1, b'b'].repeat(30);
        for version in [Version::V3, Version::V5] {
            let (mut packet, qos) = (Vec::new(), Qos::AtLeastOnce);
            let publish = Publish {
                topic: b"topic",
                payload: b"xy",
                properties: &properties,
                packet_id: 7,
                qos,
                ..Publish::default()
            };
            publish.encode(version, &mut packet).unwrap();
            for beginning in (1..packet.len()).map(|end| &packet[..end]) {
                if split_frame(beginning, 5).is_ok() {
                    continue;
                }
                match beginning_of_publish(version, beginning) {
                    Ok(found) => assert_eq!((found.topic, found.packet_id), (&b"topic"[..], 7)),
                    Err(CodecError::CutShort(_)) => assert!(beginning.len() < packet.len() - 2),
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(beginning_of_publish(version, &packet[..packet.len() - 2]).is_ok());
        }
    }

    #[test]
    fn pubacks_round_trip() {
        let mut bytes = Vec::new();
        encode_puback(0x1234, 0, &mut bytes);
        encode_puback(7, 0x10, &mut bytes);
        let first = split_frame(&bytes, 100).unwrap().unwrap();
        assert_eq!(decode_puback(Version::V3, &first).unwrap(), (0x1234, 0));
        assert_eq!(decode_v3(&first).unwrap(), v3::Packet::PublishAck { packet_id: 0x1234.try_into().unwrap() });
        let second = split_frame(&bytes[4..], 100).unwrap().unwrap();
        assert_eq!(decode_puback(Version::V5, &second).unwrap(), (7, 0x10));
        assert!(decode_puback(Version::V3, &second).is_err());
        assert!(matches!(decode_v5(&second).unwrap(), v5::Packet::PublishAck(ack) if ack.packet_id.get() == 7));
    }
}
