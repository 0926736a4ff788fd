//! The packets around the messages, with the two versions brought to one form.

use std::borrow::Cow;
use std::num::NonZeroU16;
use std::sync::Arc;

use rmqtt_codec::{types, v3, v5};

use super::super::client::random;
use super::super::codec::{self, CodecError, Frame, PacketKind, Publish, Qos, Version};
use super::super::properties;
use super::super::topic;
use super::core::{ConnectRequest, Goodbye, RetainHandling, SubscribeRequest};
use super::message::{self, Message};
use super::options::BrokerOptions;
use super::session::Will;

pub(super) use rmqtt_codec::v5::DisconnectReasonCode as Reason;

/// Why a client is thrown out.
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
    pub(super) client_id: String,
    /// Whether the broker chose the client id.
    pub(super) is_assigned: bool,
    pub(super) user: Option<String>,
    pub(super) password: Option<Vec<u8>>,
    pub(super) keep_alive_s: u16,
    clean_start: bool,
    expiry_s: u32,
    receive_max: u16,
    packet_bytes_max: usize,
    will: Option<Will>,
}

/// Why a client is not let in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Wrong user or password.
    Login,
    /// There is no room for one more session.
    Busy,
    /// The client id cannot be used.
    ClientId,
    /// The version of the protocol is unknown.
    ProtocolVersion,
    /// The will has QoS 2.
    WillQos,
    /// The will's topic is none.
    WillTopic,
    /// Enhanced authentication is not spoken here.
    AuthenticationMethod,
    /// The packet is malformed.
    Malformed,
}

/// Appends a CONNACK that refuses. Version 3 has few reasons; where it has none, nothing is appended, and closing the connection is
/// the answer.
pub(super) fn refuse(version: Version, refused: Refused, out: &mut Vec<u8>) {
    let encoded = match version {
        Version::V3 => {
            let return_code = match refused {
                Refused::Login => v3::ConnectAckReason::BadUserNameOrPassword,
                Refused::Busy => v3::ConnectAckReason::ServiceUnavailable,
                Refused::ClientId => v3::ConnectAckReason::IdentifierRejected,
                Refused::ProtocolVersion => v3::ConnectAckReason::UnacceptableProtocolVersion,
                Refused::WillQos | Refused::WillTopic | Refused::AuthenticationMethod | Refused::Malformed => return,
            };
            codec::encode_v3(v3::Packet::ConnectAck(v3::ConnectAck { return_code, session_present: false }), out)
        }
        Version::V5 => {
            let reason_code = match refused {
                Refused::Login => v5::ConnectAckReason::BadUserNameOrPassword,
                Refused::Busy => v5::ConnectAckReason::QuotaExceeded,
                Refused::ClientId => v5::ConnectAckReason::ClientIdentifierNotValid,
                Refused::ProtocolVersion => v5::ConnectAckReason::UnsupportedProtocolVersion,
                Refused::WillQos => v5::ConnectAckReason::QosNotSupported,
                Refused::WillTopic => v5::ConnectAckReason::TopicNameInvalid,
                Refused::AuthenticationMethod => v5::ConnectAckReason::BadAuthenticationMethod,
                Refused::Malformed => v5::ConnectAckReason::MalformedPacket,
            };
            let answer = v5::ConnectAck { reason_code, max_qos: types::QoS::AtLeastOnce, ..v5::ConnectAck::default() };
            codec::encode_v5(v5::Packet::ConnectAck(answer.into()), out)
        }
    };
    debug_assert!(encoded.is_ok(), "a refusal is short");
}

/// Reads the first packet of a connection. Fails with what to answer, which may be nothing.
pub(super) fn login(frame: &Frame<'_>) -> Result<Login, Vec<u8>> {
    if frame.kind() != PacketKind::Connect {
        return Err(Vec::new());
    }
    let refusal = |version, refused| {
        let mut answer = Vec::new();
        refuse(version, refused, &mut answer);
        answer
    };
    let version = match codec::connect_level(frame.body) {
        Ok(3 | 4) => Version::V3,
        Ok(5) => Version::V5,
        // What this is no client can know, but one of the first versions would understand the answer.
        Ok(_) => return Err(refusal(Version::V3, Refused::ProtocolVersion)),
        Err(_) => return Err(Vec::new()),
    };
    let login = match version {
        Version::V3 => login_v3(frame),
        Version::V5 => login_v5(frame),
    };
    login.map_err(|refused| refusal(version, refused))
}

fn refused_by(error: &CodecError) -> Refused {
    match error {
        CodecError::Decode(rmqtt_codec::error::DecodeError::InvalidClientId) => Refused::ClientId,
        _ => Refused::Malformed,
    }
}

fn login_v3(frame: &Frame<'_>) -> Result<Login, Refused> {
    let v3::Packet::Connect(connect) = codec::decode_v3(frame).map_err(|error| refused_by(&error))? else {
        return Err(Refused::Malformed);
    };
    let will = match &connect.last_will {
        None => None,
        Some(will) => Some(check_will(&will.topic, &will.message, Vec::new(), will.qos, will.retain, (0, None))?),
    };
    Ok(Login {
        version: Version::V3,
        is_assigned: connect.client_id.is_empty(),
        client_id: client_id_or_random(&connect.client_id),
        user: connect.username.map(|user| user.to_string()),
        password: connect.password.map(|password| password.to_vec()),
        keep_alive_s: connect.keep_alive,
        clean_start: connect.clean_session,
        // A session that is not clean is kept as long as the broker keeps any.
        expiry_s: if connect.clean_session { 0 } else { u32::MAX },
        receive_max: u16::MAX,
        packet_bytes_max: usize::MAX,
        will,
    })
}

fn login_v5(frame: &Frame<'_>) -> Result<Login, Refused> {
    let v5::Packet::Connect(connect) = codec::decode_v5(frame).map_err(|error| refused_by(&error))? else {
        return Err(Refused::Malformed);
    };
    if connect.auth_method.is_some() {
        return Err(Refused::AuthenticationMethod);
    }
    let will = match &connect.last_will {
        None => None,
        Some(will) => {
            let times =
                (will.will_delay_interval_sec.unwrap_or(0), will.message_expiry_interval.map(|seconds| seconds.get()));
            let properties = properties::will_properties(will);
            Some(check_will(&will.topic, &will.message, properties, will.qos, will.retain, times)?)
        }
    };
    Ok(Login {
        version: Version::V5,
        is_assigned: connect.client_id.is_empty(),
        client_id: client_id_or_random(&connect.client_id),
        user: connect.username.map(|user| user.to_string()),
        password: connect.password.map(|password| password.to_vec()),
        keep_alive_s: connect.keep_alive,
        clean_start: connect.clean_start,
        expiry_s: connect.session_expiry_interval_secs,
        receive_max: connect.receive_max.map_or(u16::MAX, NonZeroU16::get),
        packet_bytes_max: connect.max_packet_size.map_or(usize::MAX, |bytes| bytes.get() as usize),
        will,
    })
}

fn client_id_or_random(client_id: &str) -> String {
    match client_id {
        "" => format!("auto-{:016x}", random()),
        given => given.to_owned(),
    }
}

fn check_will(
    topic: &str,
    payload: &[u8],
    properties: Vec<u8>,
    qos: types::QoS,
    retain: bool,
    (delay_s, message_expiry_s): (u32, Option<u32>),
) -> Result<Will, Refused> {
    if topic::check_topic(topic.as_bytes()).is_err() {
        return Err(Refused::WillTopic);
    }
    let qos = match Qos::from_level(qos.value()) {
        Some(qos @ (Qos::AtMostOnce | Qos::AtLeastOnce)) => qos,
        _ => return Err(Refused::WillQos),
    };
    let publish =
        Publish { topic: topic.as_bytes(), payload, properties: &properties, qos, retain, ..Publish::default() };
    Ok(Will { message: Arc::new(Message::of(&publish, message::expires_at(message_expiry_s))), delay_s })
}

impl Login {
    /// Whether the client asks for a session of an earlier connection.
    pub(super) fn wants_session(&self) -> bool {
        !self.clean_start && self.expiry_s > 0
    }

    pub(super) fn request(&self) -> ConnectRequest<'_> {
        ConnectRequest {
            client_id: &self.client_id,
            version: self.version,
            clean_start: self.clean_start,
            expiry_s: self.expiry_s,
            receive_max: self.receive_max,
            packet_bytes_max: self.packet_bytes_max,
            will: self.will.clone(),
        }
    }
}

/// Appends the CONNACK that lets a client in.
pub(super) fn accept(login: &Login, session_present: bool, expiry_s: u32, options: &BrokerOptions, out: &mut Vec<u8>) {
    let encoded = match login.version {
        Version::V3 => {
            let return_code = v3::ConnectAckReason::ConnectionAccepted;
            codec::encode_v3(v3::Packet::ConnectAck(v3::ConnectAck { return_code, session_present }), out)
        }
        Version::V5 => {
            let answer = v5::ConnectAck {
                session_present,
                session_expiry_interval_secs: (expiry_s != login.expiry_s).then_some(expiry_s),
                max_qos: types::QoS::AtLeastOnce,
                max_packet_size: u32::try_from(options.packet_bytes_max).ok(),
                assigned_client_id: login.is_assigned.then(|| login.client_id.as_str().into()),
                shared_subscription_available: false,
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

/// A packet from a client that is no message.
pub(super) enum Control {
    Ping,
    Subscribe(Subscribe),
    Unsubscribe(Unsubscribe),
    Disconnect(Goodbye),
}

pub(super) struct Subscribe {
    version: Version,
    packet_id: NonZeroU16,
    filters: Vec<(String, v5::SubscriptionOptions)>,
    identifier: Option<u32>,
}

pub(super) struct Unsubscribe {
    version: Version,
    packet_id: NonZeroU16,
    filters: Vec<String>,
}

/// Decodes any packet but PUBLISH and PUBACK.
pub(super) fn control(version: Version, frame: &Frame<'_>) -> Result<Control, Close> {
    const UNEXPECTED: Close =
        Close { reason: Reason::ProtocolError, text: Cow::Borrowed("it sends a packet that has no place here") };
    Ok(match version {
        Version::V3 => match codec::decode_v3(frame)? {
            v3::Packet::PingRequest => Control::Ping,
            v3::Packet::Disconnect => Control::Disconnect(Goodbye { is_graceful: true, expiry_s: None }),
            v3::Packet::Subscribe { packet_id, topic_filters } => {
                let options = |qos| v5::SubscriptionOptions { qos, ..v5::SubscriptionOptions::default() };
                let filters = topic_filters.iter().map(|(filter, qos)| (filter.to_string(), options(*qos))).collect();
                Control::Subscribe(Subscribe { version, packet_id, filters, identifier: None })
            }
            v3::Packet::Unsubscribe { packet_id, topic_filters } => {
                let filters = topic_filters.iter().map(ToString::to_string).collect();
                Control::Unsubscribe(Unsubscribe { version, packet_id, filters })
            }
            _ => return Err(UNEXPECTED),
        },
        Version::V5 => match codec::decode_v5(frame)? {
            v5::Packet::PingRequest => Control::Ping,
            v5::Packet::Disconnect(packet) => Control::Disconnect(Goodbye {
                is_graceful: packet.reason_code == Reason::NormalDisconnection,
                expiry_s: packet.session_expiry_interval_secs,
            }),
            v5::Packet::Subscribe(packet) => Control::Subscribe(Subscribe {
                version,
                packet_id: packet.packet_id,
                identifier: packet.id.map(|id| id.get()),
                filters: packet
                    .topic_filters
                    .into_iter()
                    .map(|(filter, options)| (filter.to_string(), options))
                    .collect(),
            }),
            v5::Packet::Unsubscribe(packet) => {
                let filters = packet.topic_filters.iter().map(ToString::to_string).collect();
                Control::Unsubscribe(Unsubscribe { version, packet_id: packet.packet_id, filters })
            }
            _ => return Err(UNEXPECTED),
        },
    })
}

impl Subscribe {
    pub(super) fn requests(&self) -> Vec<SubscribeRequest<'_>> {
        self.filters
            .iter()
            .map(|(filter, options)| SubscribeRequest {
                filter,
                qos: Qos::from_level(options.qos.value()).unwrap_or(Qos::AtLeastOnce),
                no_local: options.no_local,
                retain_as_published: options.retain_as_published,
                retain_handling: match options.retain_handling {
                    v5::RetainHandling::AtSubscribe => RetainHandling::Always,
                    v5::RetainHandling::AtSubscribeNew => RetainHandling::IfNew,
                    v5::RetainHandling::NoAtSubscribe => RetainHandling::Never,
                },
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
