//! All packets other than messages, with both versions in one form.

mod decode;

use std::borrow::Cow;
use std::net::IpAddr;
use std::num::NonZeroU16;

use rmqtt_codec::{types, v3, v5};

use super::super::client::random;
use super::super::codec::{self, CodecError, Frame, Qos, Version};
use super::core::{ConnectRequest, Goodbye, RetainHandling, SubscribeRequest};
use super::options::BrokerOptions;
use super::session::Will;

pub(super) use decode::{control, is_saved, login, without_mark};
pub(super) use rmqtt_codec::v5::DisconnectReasonCode as Reason;

/// Why a client is disconnected.
#[derive(Debug)]
pub(super) struct Close {
    pub(super) reason: Reason,
    pub(super) text: Cow<'static, str>,
}

impl Close {
    pub(super) fn new(reason: Reason, text: &'static str) -> Self {
        Self { reason, text: Cow::Borrowed(text) }
    }
}

impl From<CodecError> for Close {
    fn from(error: CodecError) -> Self {
        Self { reason: error.reason(), text: error.to_string().into() }
    }
}

/// A CONNECT.
pub(super) struct Login {
    pub(super) version: Version,
    /// Whether it is told if its session was there: MQTT 3.1 has no word for that.
    is_told_of_session: bool,
    /// Whether it may mark more packets than messages as sent again, as MQTT 3.1 has it.
    pub(super) marks_repeats: bool,
    /// With the scope in front, if the client has one.
    pub(super) client_id: String,
    /// Whether the broker chose the client id.
    pub(super) is_assigned: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<Vec<u8>>,
    keep_alive_s: u16,
    /// How long the client asks to keep its session, in seconds.
    pub(super) expiry_s: u32,
    clean_start: bool,
    receive_max: u16,
    packet_bytes_max: usize,
    topic_aliases_max: u16,
    will: Option<Will>,
}

/// Why a client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Wrong user or password.
    Login,
    /// The client may not publish its will.
    WillNotAuthorized,
    /// There is no room for one more session.
    Busy,
    /// The client id cannot be used.
    ClientId,
    /// The version of the protocol is not supported.
    ProtocolVersion,
    /// The will's topic is invalid.
    WillTopic,
    /// Enhanced authentication is not supported.
    AuthenticationMethod,
    /// The packet is malformed.
    Malformed,
    /// The packet breaks the protocol.
    Protocol,
}

/// Appends a CONNACK that refuses. Version 3 has few reasons; where it has none for this one, nothing is appended, and
/// closing the connection is the answer.
pub(super) fn refuse(version: Version, refused: Refused, out: &mut Vec<u8>) {
    let encoded = match version {
        Version::V3 => {
            let return_code = match refused {
                Refused::Login => v3::ConnectAckReason::BadUserNameOrPassword,
                Refused::WillNotAuthorized => v3::ConnectAckReason::NotAuthorized,
                Refused::Busy => v3::ConnectAckReason::ServiceUnavailable,
                Refused::ClientId => v3::ConnectAckReason::IdentifierRejected,
                Refused::ProtocolVersion => v3::ConnectAckReason::UnacceptableProtocolVersion,
                Refused::WillTopic | Refused::AuthenticationMethod | Refused::Malformed | Refused::Protocol => return,
            };
            codec::encode_v3(v3::Packet::ConnectAck(v3::ConnectAck { return_code, session_present: false }), out)
        }
        Version::V5 => {
            let reason_code = match refused {
                Refused::Login => v5::ConnectAckReason::BadUserNameOrPassword,
                Refused::WillNotAuthorized => v5::ConnectAckReason::NotAuthorized,
                Refused::Busy => v5::ConnectAckReason::QuotaExceeded,
                Refused::ClientId => v5::ConnectAckReason::ClientIdentifierNotValid,
                Refused::ProtocolVersion => v5::ConnectAckReason::UnsupportedProtocolVersion,
                Refused::WillTopic => v5::ConnectAckReason::TopicNameInvalid,
                Refused::AuthenticationMethod => v5::ConnectAckReason::BadAuthenticationMethod,
                Refused::Malformed => v5::ConnectAckReason::MalformedPacket,
                Refused::Protocol => v5::ConnectAckReason::ProtocolError,
            };
            let answer = v5::ConnectAck { reason_code, ..v5::ConnectAck::default() };
            codec::encode_v5(v5::Packet::ConnectAck(answer.into()), out)
        }
    };
    debug_assert!(encoded.is_ok(), "a refusal is short");
}

fn client_id_or_random(client_id: &str) -> String {
    match client_id {
        "" => format!("auto-{:016x}", random()),
        given => given.to_owned(),
    }
}

impl Login {
    /// Whether the client asks for the session of an earlier connection.
    pub(super) fn wants_session(&self) -> bool {
        !self.clean_start && self.expiry_s > 0
    }

    /// Keeps the client's session apart from those of other scopes. Returns whether the id with the scope is short
    /// enough for a log.
    pub(super) fn keep_apart(&mut self, scope: &str) -> bool {
        // No text in MQTT has this character.
        self.client_id = format!("{scope}\0{}", self.client_id);
        self.client_id.len() <= usize::from(u16::MAX)
    }

    /// The client id without a scope, as the client knows it.
    fn own_id(&self) -> &str {
        self.client_id.rsplit('\0').next().unwrap_or_default()
    }

    /// The keep alive of the connection in seconds, given the longest one for clients of version 5; 0 for none.
    pub(super) fn keep_alive_s(&self, keep_alive_s_max: u16) -> u16 {
        let asks_for_more = self.keep_alive_s == 0 || self.keep_alive_s > keep_alive_s_max;
        match self.version == Version::V5 && keep_alive_s_max > 0 && asks_for_more {
            true => keep_alive_s_max,
            false => self.keep_alive_s,
        }
    }

    /// The topic of the will, if there is one.
    pub(super) fn will_topic(&self) -> Option<&[u8]> {
        self.will.as_ref().map(|will| &*will.message.topic)
    }

    pub(super) fn request(&self, address: IpAddr) -> ConnectRequest<'_> {
        ConnectRequest {
            client_id: &self.client_id,
            address,
            version: self.version,
            clean_start: self.clean_start,
            expiry_s: self.expiry_s,
            receive_max: self.receive_max,
            packet_bytes_max: self.packet_bytes_max,
            topic_aliases_max: self.topic_aliases_max,
            will: self.will.clone(),
        }
    }
}

/// Appends the CONNACK that lets a client in.
pub(super) fn accept(client: &Login, session_present: bool, expiry_s: u32, options: &BrokerOptions, out: &mut Vec<u8>) {
    let encoded = match client.version {
        Version::V3 => {
            let return_code = v3::ConnectAckReason::ConnectionAccepted;
            let session_present = session_present && client.is_told_of_session;
            codec::encode_v3(v3::Packet::ConnectAck(v3::ConnectAck { return_code, session_present }), out)
        }
        Version::V5 => {
            let keep_alive_s = client.keep_alive_s(options.limits.keep_alive_s_max);
            let answer = v5::ConnectAck {
                session_present,
                topic_alias_max: options.limits.topic_aliases_max,
                server_keepalive_sec: (keep_alive_s != client.keep_alive_s).then_some(keep_alive_s),
                session_expiry_interval_secs: (expiry_s != client.expiry_s).then_some(expiry_s),
                receive_max: options.receive_max(),
                // With one, a client that exceeds it would have to be disconnected (MQTT 5, 3.2.2.3.6). Without, only
                // the message is refused.
                max_packet_size: None,
                assigned_client_id: client.is_assigned.then(|| client.own_id().into()),
                ..v5::ConnectAck::default()
            };
            codec::encode_v5(v5::Packet::ConnectAck(answer.into()), out)
        }
    };
    debug_assert!(encoded.is_ok(), "a CONNACK is short");
}

/// Appends a DISCONNECT; version 3 has none from a broker.
pub(super) fn disconnect(version: Version, reason: Reason, out: &mut Vec<u8>) {
    if version == Version::V5 {
        let encoded = codec::encode_v5(v5::Packet::Disconnect(v5::Disconnect::new(reason)), out);
        debug_assert!(encoded.is_ok(), "a DISCONNECT is short");
    }
}

/// The packet identifier of a PUBACK.
#[inline]
pub(super) fn acknowledged(version: Version, frame: &Frame<'_>) -> Result<u16, Close> {
    match codec::decode_puback(version, frame)? {
        (packet_id, reason) if answers_a_message(reason) => Ok(packet_id),
        _ => Err(CodecError::Malformed("a reason code that a PUBACK does not have").into()),
    }
}

/// Whether a PUBACK and a PUBREC may have this reason code.
fn answers_a_message(reason: u8) -> bool {
    matches!(reason, 0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99)
}

/// A packet from a client other than a message.
pub(super) enum Control {
    Ping,
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
    /// PUBREC: the client has a message of QoS 2, or refuses it.
    Received {
        packet_id: u16,
        is_refused: bool,
    },
    /// PUBREL: the client knows that the broker has its message of QoS 2.
    Release(u16),
    /// PUBCOMP: the client has forgotten the packet identifier of a message of QoS 2.
    Completed(u16),
    Disconnect(Goodbye),
}

pub(super) struct Subscribe {
    version: Version,
    packet_id: NonZeroU16,
    filters: Vec<(String, SubscriptionOptions)>,
    identifier: Option<u32>,
}

/// How a filter is subscribed to.
#[derive(Clone, Copy)]
struct SubscriptionOptions {
    qos: Qos,
    no_local: bool,
    retain_as_published: bool,
    retain_handling: RetainHandling,
}

pub(super) struct Unsubscribe {
    version: Version,
    packet_id: NonZeroU16,
    filters: Vec<String>,
}

impl Subscribe {
    pub(super) fn requests(&self) -> Vec<SubscribeRequest<'_>> {
        self.filters
            .iter()
            .map(|(filter, options)| SubscribeRequest {
                filter,
                qos: options.qos,
                no_local: options.no_local,
                retain_as_published: options.retain_as_published,
                retain_handling: options.retain_handling,
                identifier: self.identifier,
            })
            .collect()
    }

    /// Appends the SUBACK with these reason codes of version 5.
    pub(super) fn answer(&self, codes: &[u8], out: &mut Vec<u8>) {
        let encoded = match self.version {
            Version::V3 => {
                let code = |&code: &u8| match types::QoS::try_from(code) {
                    Ok(qos) => v3::SubscribeReturnCode::Success(qos),
                    Err(_) => v3::SubscribeReturnCode::Failure,
                };
                let status = codes.iter().map(code).collect();
                codec::encode_v3(v3::Packet::SubscribeAck { packet_id: self.packet_id, status }, out)
            }
            Version::V5 => {
                let code = |&code: &u8| {
                    v5::SubscribeAckReason::try_from(code).unwrap_or(v5::SubscribeAckReason::UnspecifiedError)
                };
                let status = codes.iter().map(code).collect();
                let packet =
                    v5::SubscribeAck { packet_id: self.packet_id, properties: Vec::new(), reason_string: None, status };
                codec::encode_v5(v5::Packet::SubscribeAck(packet), out)
            }
        };
        debug_assert!(encoded.is_ok(), "a SUBACK is shorter than its SUBSCRIBE");
    }
}

impl Unsubscribe {
    pub(super) fn filters(&self) -> impl Iterator<Item = &str> {
        self.filters.iter().map(String::as_str)
    }

    /// Appends the UNSUBACK, which in version 5 says which subscriptions there were.
    pub(super) fn answer(&self, removed: &[bool], out: &mut Vec<u8>) {
        let encoded = match self.version {
            Version::V3 => codec::encode_v3(v3::Packet::UnsubscribeAck { packet_id: self.packet_id }, out),
            Version::V5 => {
                let code = |&removed: &bool| match removed {
                    true => v5::UnsubscribeAckReason::Success,
                    false => v5::UnsubscribeAckReason::NoSubscriptionExisted,
                };
                let status = removed.iter().map(code).collect();
                let packet = v5::UnsubscribeAck {
                    packet_id: self.packet_id,
                    properties: Vec::new(),
                    reason_string: None,
                    status,
                };
                codec::encode_v5(v5::Packet::UnsubscribeAck(packet), out)
            }
        };
        debug_assert!(encoded.is_ok(), "an UNSUBACK is shorter than its UNSUBSCRIBE");
    }
}
