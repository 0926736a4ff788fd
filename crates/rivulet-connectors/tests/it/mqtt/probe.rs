//! A plain MQTT client for asking brokers precise questions: it does one thing at a time and tells everything it sees.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use rivulet_connectors::mqtt::codec::{self, PacketKind, Publish};
use rivulet_connectors::mqtt::{Qos, Version};
use rmqtt_codec::{types, v3, v5};

use super::support::WAIT_MAX;

/// What a probe asks for when it connects, in either version.
pub(crate) struct Request {
    pub(crate) clean: bool,
    pub(crate) expiry_s: u32,
    pub(crate) keep_alive_s: u16,
    pub(crate) receive_max: Option<u16>,
    pub(crate) login: Option<(&'static str, &'static str)>,
    /// Topic, payload, QoS, retain.
    pub(crate) will: Option<(&'static str, &'static str, u8, bool)>,
}

impl Default for Request {
    fn default() -> Self {
        Self { clean: true, expiry_s: 0, keep_alive_s: 60, receive_max: None, login: None, will: None }
    }
}

/// A connection.
pub(crate) struct Probe {
    stream: TcpStream,
    version: Version,
    buffer: Vec<u8>,
    /// What was seen while waiting for something else.
    seen: VecDeque<String>,
    /// Whether messages of QoS 1 and 2 are acknowledged as they come.
    pub(crate) acknowledges: bool,
    next_packet_id: u16,
}

impl Probe {
    /// Connects, and panics if it is not let in.
    pub(crate) fn connect(port: u16, version: Version, client_id: &str, change: impl FnOnce(&mut Request)) -> Self {
        let (probe, answer) = Self::try_connect(port, version, client_id, change);
        assert!(answer.starts_with("connected"), "{answer}");
        probe
    }

    /// Connects. Returns what the broker answered.
    pub(crate) fn try_connect(
        port: u16,
        version: Version,
        client_id: &str,
        change: impl FnOnce(&mut Request),
    ) -> (Self, String) {
        let mut request = Request::default();
        change(&mut request);
        Self::try_connect_over(Self::raw(port, version), client_id, request)
    }

    /// Connects over a connection on which nothing was said. Returns what the broker answered.
    pub(crate) fn try_connect_over(mut probe: Self, client_id: &str, request: Request) -> (Self, String) {
        let version = probe.version;
        let mut bytes = Vec::new();
        let qos = |qos: u8| types::QoS::try_from(qos).unwrap();
        let username = request.login.map(|(user, _)| user.into());
        let password = request.login.map(|(_, password)| password.into());
        match version {
            Version::V3 => {
                let last_will = request.will.map(|(topic, message, level, retain)| v3::LastWill {
                    qos: qos(level),
                    retain,
                    topic: topic.into(),
                    message: message.into(),
                });
                let connect = v3::Connect {
                    clean_session: request.clean,
                    keep_alive: request.keep_alive_s,
                    client_id: client_id.into(),
                    last_will,
                    username,
                    password,
                    ..v3::Connect::default()
                };
                codec::encode_v3(v3::Packet::Connect(connect.into()), &mut bytes).unwrap();
            }
            Version::V5 => {
                let last_will = request.will.map(|(topic, message, level, retain)| v5::LastWill {
                    qos: qos(level),
                    retain,
                    topic: topic.into(),
                    message: message.into(),
                    will_delay_interval_sec: None,
                    correlation_data: None,
                    message_expiry_interval: None,
                    content_type: None,
                    user_properties: vec![("from".into(), "the will".into())],
                    is_utf8_payload: None,
                    response_topic: None,
                });
                let connect = v5::Connect {
                    clean_start: request.clean,
                    keep_alive: request.keep_alive_s,
                    session_expiry_interval_secs: request.expiry_s,
                    receive_max: request.receive_max.map(|max| max.try_into().unwrap()),
                    client_id: client_id.into(),
                    last_will,
                    username,
                    password,
                    ..v5::Connect::default()
                };
                codec::encode_v5(v5::Packet::Connect(connect.into()), &mut bytes).unwrap();
            }
        }
        probe.send(&bytes);
        let answer = probe.next().unwrap_or_else(|| "closed".to_owned());
        (probe, answer)
    }

    /// A connection on which nothing was said.
    pub(crate) fn raw(port: u16, version: Version) -> Self {
        Self::over(TcpStream::connect(("127.0.0.1", port)).unwrap(), version)
    }

    /// The same from another address of this machine.
    pub(crate) fn raw_from(address: IpAddr, port: u16, version: Version) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((address, 0).into()).unwrap();
            let stream = socket.connect(([127, 0, 0, 1], port).into()).await.unwrap();
            stream.into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Self::over(stream, version)
    }

    fn over(stream: TcpStream, version: Version) -> Self {
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_write_timeout(Some(WAIT_MAX)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, version, buffer: Vec::new(), seen: VecDeque::new(), acknowledges: true, next_packet_id: 1 }
    }

    /// Sends any bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn packet_id(&mut self) -> u16 {
        self.next_packet_id += 1;
        self.next_packet_id - 1
    }

    /// Subscribes, and returns the broker's answer.
    pub(crate) fn subscribe(&mut self, filters: &[(&str, u8)]) -> String {
        self.subscribe_with(filters, |_| {})
    }

    /// Subscribes with options of version 5.
    pub(crate) fn subscribe_with(
        &mut self,
        filters: &[(&str, u8)],
        change: impl Fn(&mut v5::SubscriptionOptions),
    ) -> String {
        let packet_id = self.packet_id().try_into().unwrap();
        let mut bytes = Vec::new();
        let qos = |qos: u8| types::QoS::try_from(qos).unwrap();
        match self.version {
            Version::V3 => {
                let topic_filters = filters.iter().map(|(filter, level)| ((*filter).into(), qos(*level))).collect();
                codec::encode_v3(v3::Packet::Subscribe { packet_id, topic_filters }, &mut bytes).unwrap();
            }
            Version::V5 => {
                let options = |level| {
                    let mut options = v5::SubscriptionOptions { qos: qos(level), ..v5::SubscriptionOptions::default() };
                    change(&mut options);
                    options
                };
                let topic_filters = filters.iter().map(|(filter, level)| ((*filter).into(), options(*level))).collect();
                let packet = v5::Subscribe { packet_id, id: None, user_properties: Vec::new(), topic_filters };
                codec::encode_v5(v5::Packet::Subscribe(packet), &mut bytes).unwrap();
            }
        }
        self.send(&bytes);
        self.wait_for("subscribed")
    }

    /// Ends a subscription, and returns the broker's answer.
    pub(crate) fn unsubscribe(&mut self, filter: &str) -> String {
        let packet_id = self.packet_id().try_into().unwrap();
        let topic_filters = vec![filter.into()];
        let mut bytes = Vec::new();
        match self.version {
            Version::V3 => codec::encode_v3(v3::Packet::Unsubscribe { packet_id, topic_filters }, &mut bytes).unwrap(),
            Version::V5 => {
                let packet = v5::Unsubscribe { packet_id, user_properties: Vec::new(), topic_filters };
                codec::encode_v5(v5::Packet::Unsubscribe(packet), &mut bytes).unwrap();
            }
        }
        self.send(&bytes);
        self.wait_for("unsubscribed")
    }

    /// Publishes, and waits until the broker has processed it. Returns its answer, if there is one.
    pub(crate) fn publish(&mut self, topic: &str, payload: &str, qos: u8, retain: bool) -> String {
        self.publish_with(topic, payload, qos, retain, &[])
    }

    /// Publishes with properties of version 5.
    pub(crate) fn publish_with(
        &mut self,
        topic: &str,
        payload: &str,
        qos: u8,
        retain: bool,
        properties: &[u8],
    ) -> String {
        let packet_id = if qos > 0 { self.packet_id() } else { 0 };
        let publish = Publish {
            topic: topic.as_bytes(),
            payload: payload.as_bytes(),
            properties,
            packet_id,
            qos: Qos::from_level(qos).unwrap(),
            retain,
            duplicate: false,
        };
        let mut bytes = Vec::new();
        publish.encode(self.version, &mut bytes).unwrap();
        self.send(&bytes);
        match qos {
            0 => {}
            1 => return self.wait_for("acknowledged"),
            _ => {
                let answer = self.wait_for("received");
                if answer.ends_with(" 0x0") || answer.ends_with(" 0x10") {
                    self.second_half(0x62, packet_id);
                    self.wait_for("completed");
                }
                return answer;
            }
        }
        self.drain();
        String::new()
    }

    /// Sends one of the packets that follow a message: PUBACK 0x40, PUBREC 0x50, PUBREL 0x62, PUBCOMP 0x70.
    pub(crate) fn second_half(&mut self, first_byte: u8, packet_id: u16) {
        let [high, low] = packet_id.to_be_bytes();
        self.send(&[first_byte, 2, high, low]);
    }

    /// Waits until the broker has answered a PINGREQ: everything it had to say before has arrived then.
    fn drain(&mut self) {
        self.send(&codec::PING_REQUEST);
        self.wait_for("pong");
    }

    /// Everything seen since the last time, up to now.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.drain();
        self.seen.drain(..).collect()
    }

    /// What was seen while waiting for something else.
    pub(crate) fn take_seen(&mut self) -> Vec<String> {
        self.seen.drain(..).collect()
    }

    /// Says goodbye.
    pub(crate) fn disconnect(mut self) {
        let mut bytes = Vec::new();
        match self.version {
            Version::V3 => codec::encode_v3(v3::Packet::Disconnect, &mut bytes).unwrap(),
            Version::V5 => codec::encode_v5(v5::Packet::Disconnect(v5::Disconnect::default()), &mut bytes).unwrap(),
        }
        self.send(&bytes);
        // Until the broker has closed its side, it may not have noticed.
        while self.next().is_some() {}
    }

    fn wait_for(&mut self, what: &str) -> String {
        loop {
            let Some(seen) = self.next() else { return "closed".to_owned() };
            if seen.starts_with(what) {
                return seen;
            }
            self.seen.push_back(seen);
        }
    }

    /// The next packet, as a word and what matters of it; `None` when the connection is closed.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            if let Some(frame) = codec::split_frame(&self.buffer, usize::MAX).unwrap() {
                let whole = frame.whole.to_vec();
                self.buffer.drain(..whole.len());
                return Some(self.describe(&whole));
            }
            let mut bytes = [0; 65_536];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the broker says nothing: {error}"),
            }
        }
    }

    fn describe(&mut self, whole: &[u8]) -> String {
        let frame = codec::split_frame(whole, usize::MAX).unwrap().unwrap();
        match frame.kind() {
            PacketKind::Publish => {
                let publish = Publish::decode(self.version, frame.first_byte, frame.body).unwrap();
                match publish.qos {
                    _ if !self.acknowledges => {}
                    Qos::AtMostOnce => {}
                    Qos::AtLeastOnce => self.second_half(0x40, publish.packet_id),
                    Qos::ExactlyOnce => self.second_half(0x50, publish.packet_id),
                }
                format!(
                    "message {} '{}' qos {}{}{}{}",
                    String::from_utf8_lossy(publish.topic),
                    String::from_utf8_lossy(publish.payload),
                    publish.qos.level(),
                    if publish.retain { " retained" } else { "" },
                    if publish.duplicate { " again" } else { "" },
                    match publish.properties {
                        [] => String::new(),
                        properties => format!(" properties {properties:02x?}"),
                    }
                )
            }
            PacketKind::PubAck => {
                let (_, reason) = codec::decode_puback(self.version, &frame).unwrap();
                format!("acknowledged {reason:#x}")
            }
            PacketKind::Connect | PacketKind::Other if matches!(whole[0] >> 4, 5..=7) => {
                let packet_id = u16::from_be_bytes([frame.body[0], frame.body[1]]);
                let reason = frame.body.get(2).copied().unwrap_or(0);
                match whole[0] >> 4 {
                    5 => format!("received {reason:#x}"),
                    6 => {
                        if self.acknowledges {
                            self.second_half(0x70, packet_id);
                        }
                        format!("release {packet_id} {reason:#x}")
                    }
                    _ => format!("completed {reason:#x}"),
                }
            }
            PacketKind::Connect | PacketKind::Other => match self.version {
                Version::V3 => match codec::decode_v3(&frame).unwrap() {
                    v3::Packet::ConnectAck(answer) => {
                        describe_connack(answer.session_present, answer.return_code.into())
                    }
                    v3::Packet::SubscribeAck { status, .. } => format!("subscribed {status:?}"),
                    v3::Packet::UnsubscribeAck { .. } => "unsubscribed".to_owned(),
                    v3::Packet::PingResponse => "pong".to_owned(),
                    other => format!("{other:?}"),
                },
                Version::V5 => match codec::decode_v5(&frame).unwrap() {
                    v5::Packet::ConnectAck(answer) => {
                        let code: u8 = answer.reason_code.into();
                        let name = answer.assigned_client_id.map(|name| format!(" as {name}")).unwrap_or_default();
                        describe_connack(answer.session_present, code).replacen(
                            "connected",
                            &format!("connected{name}"),
                            1,
                        )
                    }
                    v5::Packet::SubscribeAck(answer) => format!("subscribed {:?}", answer.status),
                    v5::Packet::UnsubscribeAck(answer) => format!("unsubscribed {:?}", answer.status),
                    v5::Packet::PingResponse => "pong".to_owned(),
                    v5::Packet::Disconnect(packet) => format!("told to go: {:?}", packet.reason_code),
                    other => format!("{other:?}"),
                },
            },
        }
    }
}

fn describe_connack(session_present: bool, code: u8) -> String {
    match code {
        0 => format!("connected{}", if session_present { ", session present" } else { "" }),
        code => format!("refused {code:#x}"),
    }
}
