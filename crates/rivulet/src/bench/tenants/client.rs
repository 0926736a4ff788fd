//! A client of the embedded broker that blocks, of MQTT 3.1.1 and QoS 0: as little of it as costs nothing while latency
//! is measured.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rivulet_connectors::mqtt::codec::{self, PacketKind, Publish, Version};

/// The longest packet.
const PACKET_BYTES_MAX: usize = 1 << 20;

/// A connection.
pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// Microseconds since the epoch.
pub(super) fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// The time in the payload of an event or a result.
pub(super) fn time_of(payload: &[u8]) -> Option<i64> {
    let text = str::from_utf8(payload).ok()?.strip_prefix("{\"ts\":")?;
    text.split([',', '}']).next()?.parse().ok()
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Appends a packet; its body is shorter than 16 KiB.
fn push_packet(out: &mut Vec<u8>, first: u8, body: &[u8]) {
    out.push(first);
    if body.len() < 128 {
        out.push(body.len() as u8);
    } else {
        out.extend_from_slice(&[(body.len() % 128) as u8 | 0x80, (body.len() / 128) as u8]);
    }
    out.extend_from_slice(body);
}

/// Appends a PUBLISH of QoS 0.
pub(super) fn write_publish(out: &mut Vec<u8>, topic: &str, payload: &str) {
    let mut body = Vec::with_capacity(2 + topic.len() + payload.len());
    push_text(&mut body, topic);
    body.extend_from_slice(payload.as_bytes());
    push_packet(out, 0x30, &body);
}

/// Queries of the tenant's application, as lines of a bulk submission.
pub(super) fn lines(queries: u32) -> String {
    let line = |number: u32| {
        format!("{{\"name\":\"q{number}\",\"application\":\"pass\",\"parameters\":{{\"home\":\"{number}\"}}}}\n")
    };
    (0..queries).map(line).collect()
}

impl Client {
    /// Connects with a token as password.
    pub(super) fn connect(broker: SocketAddr, token: &str, id: &str) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the embedded broker at {broker}: {error}");
        let stream = TcpStream::connect(broker).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut client = Self { stream, buffer: Vec::new() };
        let mut body = Vec::new();
        push_text(&mut body, "MQTT");
        // Version 3.1.1; user, password, clean session; no keep alive.
        body.extend_from_slice(&[4, 0xc2, 0, 0]);
        [id, "user", token].iter().for_each(|text| push_text(&mut body, text));
        let mut packet = Vec::new();
        push_packet(&mut packet, 0x10, &body);
        client.send(&packet)?;
        let mut answer = [0; 4];
        client.stream.read_exact(&mut answer).map_err(failed)?;
        match answer {
            [0x20, 2, _, 0] => Ok(client),
            answer => Err(format!("the embedded broker refused a client: {answer:?}")),
        }
    }

    /// Subscribes to a filter.
    pub(super) fn subscribe(&mut self, filter: &str) -> Result<(), String> {
        let mut body = vec![0, 1];
        push_text(&mut body, filter);
        body.push(0);
        let mut packet = Vec::new();
        push_packet(&mut packet, 0x82, &body);
        self.send(&packet)?;
        let mut answer = [0; 5];
        self.stream.read_exact(&mut answer).map_err(|error| format!("a subscription: {error}"))?;
        if answer[4] == 0 { Ok(()) } else { Err(format!("the subscription to {filter} was refused: {answer:?}")) }
    }

    /// Sends packets, and waits for as long as the broker does not read them.
    pub(super) fn send(&mut self, packets: &[u8]) -> Result<(), String> {
        self.stream.write_all(packets).map_err(|error| format!("the embedded broker closed a connection: {error}"))
    }

    /// What closes the connection from another thread.
    pub(super) fn closer(&self) -> Result<impl FnOnce() + use<>, String> {
        let stream = self.stream.try_clone().map_err(|error| format!("a connection: {error}"))?;
        Ok(move || drop(stream.shutdown(Shutdown::Both)))
    }

    /// Waits for messages, at most this long, and calls `each` with their payloads.
    pub(super) fn receive(&mut self, limit: Duration, mut each: impl FnMut(&[u8])) -> Result<(), String> {
        self.stream.set_read_timeout(Some(limit)).map_err(|error| format!("a connection: {error}"))?;
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err("the embedded broker closed the connection of the receiver".into()),
            Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
            Err(error) if [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&error.kind()) => {
                return Ok(());
            }
            Err(error) => return Err(format!("the connection of the receiver: {error}")),
        }
        let mut at = 0;
        while let Some(frame) =
            codec::split_frame(&self.buffer[at..], PACKET_BYTES_MAX).map_err(|error| format!("a packet: {error}"))?
        {
            if frame.kind() == PacketKind::Publish {
                let publish = Publish::decode(Version::V3, frame.first_byte, frame.body);
                each(publish.map_err(|error| format!("a message: {error}"))?.payload);
            }
            at += frame.whole.len();
        }
        self.buffer.drain(..at);
        Ok(())
    }
}
