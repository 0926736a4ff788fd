//! Decodes packets of clients other than PUBLISH and PUBACK, strictly: everything that MQTT 3.1.1 and 5 forbid is
//! refused, with the reason code that version 5 has for it.

use std::sync::Arc;

use super::super::super::codec::{self, CodecError, Frame, Publish, Qos, Version};
use super::super::super::fields::Fields;
use super::super::super::properties::{Allowed, for_each_property, number, property, subscription_identifier};
use super::super::super::topic;
use super::super::message::Message;
use super::super::session::Will;
use super::*;

/// The bits of the flags of a CONNECT.
mod flag {
    pub(super) const RESERVED: u8 = 0x01;
    pub(super) const CLEAN_START: u8 = 0x02;
    pub(super) const WILL: u8 = 0x04;
    pub(super) const WILL_QOS: u8 = 0x18;
    pub(super) const WILL_RETAIN: u8 = 0x20;
    pub(super) const PASSWORD: u8 = 0x40;
    pub(super) const USER: u8 = 0x80;
}

/// Kinds of packets, as the high four bits of the first byte.
mod kind {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const CONNACK: u8 = 2;
    pub(super) const PUBREC: u8 = 5;
    pub(super) const PUBREL: u8 = 6;
    pub(super) const PUBCOMP: u8 = 7;
    pub(super) const SUBSCRIBE: u8 = 8;
    pub(super) const SUBACK: u8 = 9;
    pub(super) const UNSUBSCRIBE: u8 = 10;
    pub(super) const UNSUBACK: u8 = 11;
    pub(super) const PINGREQ: u8 = 12;
    pub(super) const PINGRESP: u8 = 13;
    pub(super) const DISCONNECT: u8 = 14;
    pub(super) const AUTH: u8 = 15;
}

/// Reads the first packet of a connection. The error is the answer to send, which may be empty.
pub(in super::super) fn login(frame: &Frame<'_>) -> Result<Login, Vec<u8>> {
    let refusal = |version, refused| {
        let mut answer = Vec::new();
        refuse(version, refused, &mut answer);
        answer
    };
    if frame.first_byte != codec::CONNECT {
        return Err(Vec::new());
    }
    let mut fields = Fields::new(frame.body);
    // A peer that names another protocol is no MQTT client, and gets no answer.
    let (Ok(name), Ok(level)) = (fields.bytes(), fields.byte()) else { return Err(Vec::new()) };
    let version = match (name, level) {
        (b"MQIsdp", 3) | (b"MQTT", 4) => Version::V3,
        (b"MQTT", 5) => Version::V5,
        // Which version such a client speaks is unknown, but one of the first versions would understand the answer.
        (b"MQIsdp" | b"MQTT", _) => return Err(refusal(Version::V3, Refused::ProtocolVersion)),
        _ => return Err(Vec::new()),
    };
    if version == Version::V5 && !frame.has_shortest_length() {
        return Err(refusal(version, Refused::Malformed));
    }
    connect(version, level, fields).map_err(|refused| refusal(version, refused))
}

impl From<CodecError> for Refused {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Protocol(_) => Self::Protocol,
            _ => Self::Malformed,
        }
    }
}

/// Reads the part of a CONNECT behind the level of the protocol.
fn connect(version: Version, level: u8, mut fields: Fields<'_>) -> Result<Login, Refused> {
    let flags = fields.byte()?;
    let has = |flag| flags & flag != 0;
    if has(flag::RESERVED) || (!has(flag::WILL) && has(flag::WILL_QOS | flag::WILL_RETAIN)) {
        return Err(Refused::Malformed);
    }
    // Version 5 allows passwords without users.
    if version == Version::V3 && has(flag::PASSWORD) && !has(flag::USER) {
        return Err(Refused::Malformed);
    }
    let keep_alive_s = fields.number()?;
    let clean_start = has(flag::CLEAN_START);
    let (mut expiry_s, mut receive_max, mut packet_bytes_max) = (0, u16::MAX, usize::MAX);
    let (mut topic_aliases_max, mut has_method, mut has_data) = (0, false, false);
    match version {
        // A session that is not clean is kept as long as the broker keeps any session.
        Version::V3 if !clean_start => expiry_s = u32::MAX,
        Version::V3 => {}
        Version::V5 => {
            for_each_property(Allowed::CONNECT, fields.properties()?, |identifier, value| match identifier {
                property::SESSION_EXPIRY => expiry_s = number(value),
                property::RECEIVE_MAX => receive_max = number(value) as u16,
                property::PACKET_BYTES_MAX => packet_bytes_max = number(value) as usize,
                property::TOPIC_ALIAS_MAX => topic_aliases_max = number(value) as u16,
                property::AUTHENTICATION_METHOD => has_method = true,
                property::AUTHENTICATION_DATA => has_data = true,
                _ => {}
            })?
        }
    }
    let client_id = fields.text()?;
    let will = match has(flag::WILL) {
        false => None,
        true => Some(will(version, flags, &mut fields)?),
    };
    let user = if has(flag::USER) { Some(fields.text()?.to_owned()) } else { None };
    let password = if has(flag::PASSWORD) { Some(fields.bytes()?.to_owned()) } else { None };
    fields.end()?;
    match has_method {
        false if has_data => return Err(Refused::Protocol),
        false => {}
        true => return Err(Refused::AuthenticationMethod),
    }
    // A session without a name cannot be resumed. In version 5 the broker assigns a name, and 3.1 forbids an empty one.
    if client_id.is_empty() && version == Version::V3 && (!clean_start || level == 3) {
        return Err(Refused::ClientId);
    }
    Ok(Login {
        version,
        is_told_of_session: level > 3,
        marks_repeats: level == 3,
        is_assigned: client_id.is_empty(),
        client_id: client_id_or_random(client_id),
        user,
        password,
        keep_alive_s,
        clean_start,
        expiry_s,
        receive_max,
        packet_bytes_max,
        topic_aliases_max,
        will: will.transpose()?,
    })
}

/// Reads the will of a CONNECT. The inner error still allows reading the rest.
fn will(version: Version, flags: u8, fields: &mut Fields<'_>) -> Result<Result<Will, Refused>, Refused> {
    let (mut delay_s, mut message_expiry_s, mut properties) = (0, None, Vec::new());
    if version == Version::V5 {
        for_each_property(Allowed::WILL, fields.properties()?, |identifier, value| {
            match identifier {
                property::WILL_DELAY => return delay_s = number(value),
                property::MESSAGE_EXPIRY => message_expiry_s = Some(number(value)),
                _ => {}
            }
            // These properties go with the message, in the form that they have here.
            properties.push(identifier);
            properties.extend_from_slice(value);
        })?;
    }
    let (topic, payload) = (fields.text()?, fields.bytes()?);
    let qos = Qos::from_level((flags & flag::WILL_QOS) >> 3).ok_or(Refused::Malformed)?;
    if topic::check_topic(topic.as_bytes()).is_err() {
        return Ok(Err(Refused::WillTopic));
    }
    let retain = flags & flag::WILL_RETAIN != 0;
    let publish =
        Publish { topic: topic.as_bytes(), payload, properties: &properties, qos, retain, ..Publish::default() };
    Ok(Ok(Will { message: Arc::new(Message::of(&publish, None)), delay_s, message_expiry_s, rights: None }))
}

/// Whether a packet other than PUBLISH is answered only when the journal has its change.
pub(in super::super) fn is_saved(frame: &Frame<'_>) -> bool {
    matches!(frame.first_byte >> 4, kind::PUBREC | kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE)
}

/// The packet without the mark that it is sent again, which means nothing for these kinds of packets.
pub(in super::super) fn without_mark<'f>(frame: &Frame<'f>) -> Frame<'f> {
    const DUPLICATE: u8 = 0b1000;
    match frame.first_byte >> 4 {
        kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE => {
            Frame { first_byte: frame.first_byte & !DUPLICATE, ..*frame }
        }
        _ => *frame,
    }
}

/// Reads any packet but PUBLISH and PUBACK. `session_expiry_s` is the session expiry of the client's CONNECT.
pub(in super::super) fn control(version: Version, frame: &Frame<'_>, session_expiry_s: u32) -> Result<Control, Close> {
    let mut fields = Fields::new(frame.body);
    let (kind, flags) = (frame.first_byte >> 4, frame.first_byte & 0x0f);
    let flags_expected = match kind {
        kind::PUBREL | kind::SUBSCRIBE | kind::UNSUBSCRIBE => 2,
        _ => 0,
    };
    if flags != flags_expected {
        return Err(CodecError::Malformed("the flags of the packet are not its own").into());
    }
    Ok(match kind {
        kind::PINGREQ => {
            fields.end()?;
            Control::Ping
        }
        kind::SUBSCRIBE => Control::Subscribe(subscribe(version, fields)?),
        kind::UNSUBSCRIBE => {
            let packet_id = fields.packet_id()?;
            if version == Version::V5 {
                for_each_property(Allowed::UNSUBSCRIBE, fields.properties()?, |_, _| {})?;
            }
            let mut filters = Vec::new();
            while !fields.is_empty() {
                filters.push(filter(&mut fields)?.to_owned());
            }
            Control::Unsubscribe(Unsubscribe { version, packet_id: nonzero(packet_id)?, filters: not_empty(filters)? })
        }
        kind::PUBREL => match codec::decode_pubrel(version, frame)? {
            (packet_id, 0 | 0x92) => Control::Release(packet_id),
            _ => return Err(UNKNOWN_REASON.into()),
        },
        kind::DISCONNECT => Control::Disconnect(disconnect_of(version, fields, session_expiry_s)?),
        kind::CONNECT => return Err(CodecError::Protocol("a second CONNECT").into()),
        kind::AUTH if version == Version::V5 => {
            return Err(CodecError::Protocol("an AUTH without an authentication method").into());
        }
        kind::PUBREC => match codec::decode_pubrec(version, frame)? {
            (packet_id, reason) if answers_a_message(reason) => {
                Control::Received { packet_id, is_refused: reason >= 0x80 }
            }
            _ => return Err(UNKNOWN_REASON.into()),
        },
        kind::PUBCOMP => match codec::decode_pubcomp(version, frame)? {
            (packet_id, 0 | 0x92) => Control::Completed(packet_id),
            _ => return Err(UNKNOWN_REASON.into()),
        },
        kind::CONNACK | kind::SUBACK | kind::UNSUBACK | kind::PINGRESP => {
            return Err(CodecError::Protocol("it sends a packet that only a broker sends").into());
        }
        _ => return Err(CodecError::Malformed("there is no such kind of packet").into()),
    })
}

const UNKNOWN_REASON: CodecError = CodecError::Malformed("a reason code that such a packet does not have");

fn nonzero(packet_id: u16) -> Result<NonZeroU16, CodecError> {
    NonZeroU16::new(packet_id).ok_or(CodecError::Malformed("packet identifier 0"))
}

fn not_empty<T>(filters: Vec<T>) -> Result<Vec<T>, CodecError> {
    match filters.is_empty() {
        true => Err(CodecError::Protocol("it names no filter")),
        false => Ok(filters),
    }
}

/// Reads a filter as text. The answer says whether its wildcards are valid.
fn filter<'a>(fields: &mut Fields<'a>) -> Result<&'a str, CodecError> {
    match fields.text()? {
        "" => Err(CodecError::Malformed("an empty filter")),
        filter => Ok(filter),
    }
}

fn subscribe(version: Version, mut fields: Fields<'_>) -> Result<Subscribe, CodecError> {
    let packet_id = nonzero(fields.packet_id()?)?;
    let mut identifier = None;
    if version == Version::V5 {
        let each = |found, value| {
            if found == property::SUBSCRIPTION_IDENTIFIER {
                identifier = Some(subscription_identifier(value));
            }
        };
        for_each_property(Allowed::SUBSCRIBE, fields.properties()?, each)?;
    }
    let mut filters = Vec::new();
    while !fields.is_empty() {
        let filter = filter(&mut fields)?;
        let options = options(version, fields.byte()?)?;
        if options.no_local && filter.starts_with("$share/") {
            return Err(CodecError::Protocol("a shared subscription with 'no local'"));
        }
        filters.push((filter.to_owned(), options));
    }
    Ok(Subscribe { version, packet_id, filters: not_empty(filters)?, identifier })
}

/// The options of a subscription, of which version 3 has one.
fn options(version: Version, byte: u8) -> Result<SubscriptionOptions, CodecError> {
    let reserved = if version == Version::V3 { 0xfc } else { 0xc0 };
    if byte & reserved != 0 {
        return Err(CodecError::Malformed("a reserved bit of a subscription is set"));
    }
    let qos = match (version, Qos::from_level(byte & 3)) {
        (_, Some(qos)) => qos,
        (Version::V3, None) => return Err(CodecError::Malformed("QoS 3 does not exist")),
        (Version::V5, None) => return Err(CodecError::Protocol("QoS 3 does not exist")),
    };
    let retain_handling = match byte >> 4 & 3 {
        0 => RetainHandling::Always,
        1 => RetainHandling::IfNew,
        2 => RetainHandling::Never,
        _ => return Err(CodecError::Protocol("retain handling 3 does not exist")),
    };
    Ok(SubscriptionOptions { qos, no_local: byte & 4 != 0, retain_as_published: byte & 8 != 0, retain_handling })
}

fn disconnect_of(version: Version, mut fields: Fields<'_>, session_expiry_s: u32) -> Result<Goodbye, CodecError> {
    if version == Version::V3 || fields.is_empty() {
        return fields.end().map(|()| Goodbye { is_graceful: true, expiry_s: None });
    }
    let reason = fields.byte()?;
    let mut expiry_s = None;
    if !fields.is_empty() {
        for_each_property(Allowed::DISCONNECT, fields.properties()?, |identifier, value| {
            if identifier == property::SESSION_EXPIRY {
                expiry_s = Some(number(value));
            }
        })?;
    }
    fields.end()?;
    match reason {
        0x00 | 0x04 | 0x80..=0x83 | 0x90 | 0x93..=0x99 => {}
        0x87 | 0x89 | 0x8b | 0x8d..=0x8f | 0x9a..=0xa2 => {
            return Err(CodecError::Protocol("a reason code that only a broker gives"));
        }
        _ => return Err(UNKNOWN_REASON),
    }
    if session_expiry_s == 0 && expiry_s.is_some_and(|seconds| seconds > 0) {
        return Err(CodecError::Protocol("it asks to keep a session that was to end with its connection"));
    }
    Ok(Goodbye { is_graceful: reason == 0, expiry_s })
}
