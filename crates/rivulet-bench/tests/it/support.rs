//! A minimal MQTT client: what a test needs of an engine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rivulet_connectors::mqtt::codec::{
    PacketKind, Publish, Version, decode_v3, decode_v5, encode_puback, encode_v3, encode_v5, split_frame,
};
use rmqtt_codec::types::{MQTT_LEVEL_311, Protocol, QoS};
use rmqtt_codec::{v3, v5};

/// How long any test waits for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Connections so far, for their names.
static CLIENTS: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    version: Version,
    buffer: Vec<u8>,
}

/// A message received.
pub(crate) struct Message {
    pub(crate) topic: String,
    pub(crate) payload: serde_json::Value,
    /// 0 where none is to be acknowledged.
    pub(crate) packet_id: u16,
}

impl Client {
    /// Connects with version 3 to any broker and subscribes, whatever quality of service it grants.
    pub(crate) fn subscribe_to_any(address: SocketAddr, filters: &[String]) -> Self {
        let mut client = Self::say_hello(address, Version::V3, filters);
        while client.control_v3() != v3::Packet::PingResponse {}
        client
    }

    /// Connects to a generator and subscribes.
    pub(crate) fn subscribe(address: SocketAddr, version: Version, filters: &[String]) -> Self {
        let mut client = Self::say_hello(address, version, filters);
        let packet_id = 1.try_into().unwrap();
        match version {
            Version::V3 => {
                assert!(matches!(client.control_v3(), v3::Packet::ConnectAck(_)));
                let granted = vec![v3::SubscribeReturnCode::Success(QoS::AtMostOnce); filters.len()];
                assert_eq!(client.control_v3(), v3::Packet::SubscribeAck { packet_id, status: granted });
                assert_eq!(client.control_v3(), v3::Packet::PingResponse);
            }
            Version::V5 => {
                let v5::Packet::ConnectAck(accepted) = client.control_v5() else { panic!("no CONNACK") };
                assert!(!accepted.shared_subscription_available && accepted.assigned_client_id.is_some());
                let v5::Packet::SubscribeAck(acknowledgement) = client.control_v5() else { panic!("no SUBACK") };
                assert_eq!(acknowledgement.status, vec![v5::SubscribeAckReason::GrantedQos0; filters.len()]);
                assert_eq!(client.control_v5(), v5::Packet::PingResponse);
            }
        }
        client
    }

    /// Sends CONNECT, SUBSCRIBE and PINGREQ.
    fn say_hello(address: SocketAddr, version: Version, filters: &[String]) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut client = Self { socket, version, buffer: Vec::new() };
        let packet_id = 1.try_into().unwrap();
        let mut packets = Vec::new();
        match version {
            Version::V3 => {
                let protocol = Protocol(MQTT_LEVEL_311);
                // Brokers end the older of two connections with one name.
                let client_id = format!("test-{}", CLIENTS.fetch_add(1, Ordering::Relaxed));
                let connect = v3::Connect { protocol, clean_session: true, ..v3::Connect::default() };
                let connect = connect.client_id(client_id);
                encode_v3(connect.into(), &mut packets).unwrap();
                let topic_filters = filters.iter().map(|filter| (filter.clone().into(), QoS::AtLeastOnce)).collect();
                encode_v3(v3::Packet::Subscribe { packet_id, topic_filters }, &mut packets).unwrap();
                encode_v3(v3::Packet::PingRequest, &mut packets).unwrap();
            }
            Version::V5 => {
                let connect = v5::Connect { clean_start: true, ..v5::Connect::default() };
                encode_v5(connect.into(), &mut packets).unwrap();
                let options = v5::SubscriptionOptions::default();
                let topic_filters = filters.iter().map(|filter| (filter.clone().into(), options)).collect();
                let (id, user_properties) = (None, Vec::new());
                let subscribe = v5::Subscribe { packet_id, id, user_properties, topic_filters };
                encode_v5(v5::Packet::Subscribe(subscribe), &mut packets).unwrap();
                encode_v5(v5::Packet::PingRequest, &mut packets).unwrap();
            }
        }
        client.socket.write_all(&packets).unwrap();
        client
    }

    /// Publishes at QoS 1 and waits for the acknowledgement.
    pub(crate) fn publish_acknowledged(&mut self, topic: &str) {
        let mut packet = Vec::new();
        let qos = rivulet_connectors::mqtt::codec::Qos::AtLeastOnce;
        Publish { topic: topic.as_bytes(), payload: b"{}", packet_id: 7, qos, ..Publish::default() }
            .encode(self.version, &mut packet)
            .unwrap();
        self.socket.write_all(&packet).unwrap();
        let acknowledged = self.next(|kind, _| kind == PacketKind::PubAck).expect("a PUBACK in time");
        assert!(acknowledged);
    }

    /// The next message; `None` if there is none for a while.
    pub(crate) fn message(&mut self, patience: Duration) -> Option<Message> {
        let version = self.version;
        self.next_within(patience, |_, whole| {
            let frame = split_frame(whole, usize::MAX).unwrap().unwrap();
            let publish = Publish::decode(version, frame.first_byte, frame.body).unwrap();
            Message {
                topic: String::from_utf8(publish.topic.to_vec()).unwrap(),
                payload: serde_json::from_slice(publish.payload).unwrap(),
                packet_id: publish.packet_id,
            }
        })
    }

    pub(crate) fn acknowledge(&mut self, packet_ids: &[u16]) {
        let mut packets = Vec::new();
        packet_ids.iter().for_each(|&packet_id| encode_puback(packet_id, 0, &mut packets));
        self.socket.write_all(&packets).unwrap();
    }

    fn control_v3(&mut self) -> v3::Packet {
        self.next(|_, whole| decode_v3(&split_frame(whole, usize::MAX).unwrap().unwrap()).unwrap())
            .expect("a packet in time")
    }

    fn control_v5(&mut self) -> v5::Packet {
        self.next(|_, whole| decode_v5(&split_frame(whole, usize::MAX).unwrap().unwrap()).unwrap())
            .expect("a packet in time")
    }

    fn next<T>(&mut self, read: impl FnOnce(PacketKind, &[u8]) -> T) -> Option<T> {
        self.next_within(PATIENCE, read)
    }

    fn next_within<T>(&mut self, patience: Duration, read: impl FnOnce(PacketKind, &[u8]) -> T) -> Option<T> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(frame) = split_frame(&self.buffer, 1 << 20).unwrap() {
                let length = frame.whole.len();
                let result = read(frame.kind(), frame.whole);
                self.buffer.drain(..length);
                return Some(result);
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(_) if Instant::now() >= deadline => return None,
                Err(_) => {}
            }
        }
    }
}
