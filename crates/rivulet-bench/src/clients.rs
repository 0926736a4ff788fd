//! Ordinary MQTT clients that publish events to a broker: the simulated homes of a demonstration, and the generator if
//! there is a real broker between it and the engine.
//!
//! They use plain blocking sockets, MQTT 3.1.1, QoS 0 and no keep-alive. A broken connection is made again; events for
//! it in the meantime are counted as lost.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rivulet_connectors::mqtt::codec::{Version, decode_v3, encode_v3, split_frame};
use rmqtt_codec::{types::Protocol, v3};
use serde::{Deserialize, Serialize};

use crate::sender::{OUTLETS_MAX, Outlets, write_patiently};

/// How long a broker may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a failure the client connects again.
const RETRY: Duration = Duration::from_secs(1);
/// How long a write blocks before the writer checks whether it has to stop.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// A broker, and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerOptions {
    /// Host and port, for example `127.0.0.1:1883`.
    pub address: String,
    /// The number of connections that share the queries, 1 to 15; values outside are moved to the nearest one.
    pub connections: usize,
    /// The beginning of client identifiers; a number follows.
    pub client_id: String,
    /// The users whose connections these are, each with its password; none if nobody logs in. An event goes over a
    /// connection of the user whose name is the first level of its topic.
    #[serde(default)]
    pub users: Vec<(String, String)>,
}

impl BrokerOptions {
    /// Returns the options for a broker at this address without a login.
    pub fn new(address: impl Into<String>, connections: usize, client_id: impl Into<String>) -> Self {
        let (address, client_id) = (address.into(), client_id.into());
        Self { address, connections, client_id, users: Vec::new() }
    }

    /// The number of connections: as many for each user.
    pub(crate) fn connection_count(&self) -> usize {
        let users = self.users.len().clamp(1, OUTLETS_MAX);
        self.connections.clamp(1, OUTLETS_MAX).next_multiple_of(users).min(OUTLETS_MAX / users * users)
    }

    /// The place of the user below whose name a topic is.
    fn user_of(&self, topic: &[u8]) -> usize {
        let is_below = |(name, _): &(String, String)| {
            topic.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'/'))
        };
        self.users.iter().take(OUTLETS_MAX).position(is_below).unwrap_or(0)
    }
}

/// Connections to a broker; each query always uses the same one, so that its events stay in order.
pub(crate) struct Clients {
    options: BrokerOptions,
    connections: Vec<Connection>,
}

enum Connection {
    Open(TcpStream),
    /// It is made again from this time on.
    Broken(Instant),
}

impl Clients {
    /// Makes all connections.
    pub(crate) fn connect(options: BrokerOptions) -> io::Result<Self> {
        let connections = (0..options.connection_count())
            .map(|number| Ok(Connection::Open(open(&options, number)?)))
            .collect::<io::Result<Vec<Connection>>>()?;
        Ok(Self { options, connections })
    }
}

impl Outlets for Clients {
    fn refresh(&mut self) {
        for (number, connection) in self.connections.iter_mut().enumerate() {
            if matches!(connection, Connection::Broken(retry_at) if *retry_at <= Instant::now()) {
                *connection = match open(&self.options, number) {
                    Ok(socket) => Connection::Open(socket),
                    Err(_) => Connection::Broken(Instant::now() + RETRY),
                };
            }
        }
    }

    #[inline]
    fn targets(&mut self, query: u32, topic: &[u8]) -> u16 {
        let users = self.options.users.len().clamp(1, OUTLETS_MAX);
        let of_user = if users == 1 { 0 } else { self.options.user_of(topic) };
        // The connections of a user are so far from each other.
        1 << (of_user + query as usize % (self.connections.len() / users) * users)
    }

    fn version(&self, _outlet: usize) -> Version {
        Version::V3
    }

    fn write(&mut self, outlet: usize, packets: &[u8], stop: &AtomicBool) -> io::Result<()> {
        let connection = &mut self.connections[outlet];
        let Connection::Open(socket) = connection else { return Err(io::ErrorKind::NotConnected.into()) };
        let written = write_patiently(socket, packets, stop);
        if written.is_err() {
            *connection = Connection::Broken(Instant::now() + RETRY);
        }
        written
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        let mut farewell = Vec::new();
        if encode_v3(v3::Packet::Disconnect, &mut farewell).is_err() {
            return;
        }
        for connection in &mut self.connections {
            if let Connection::Open(socket) = connection {
                // Best effort: the broker notices the end of the connection anyway.
                let _ = io::Write::write(socket, &farewell);
            }
        }
    }
}

/// Connects, and waits until the broker accepts.
fn open(options: &BrokerOptions, number: usize) -> io::Result<TcpStream> {
    let invalid = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let addresses: Vec<SocketAddr> = options.address.to_socket_addrs()?.collect();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the broker's name has no address");
    let socket = addresses
        .iter()
        .find_map(|address| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).map_err(|error| failure = error).ok());
    let Some(mut socket) = socket else { return Err(failure) };
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    socket.set_write_timeout(Some(WRITE_TIMEOUT))?;

    let user = options.users.get(number % options.users.len().clamp(1, OUTLETS_MAX));
    let connect = v3::Connect {
        protocol: Protocol(rmqtt_codec::types::MQTT_LEVEL_311),
        clean_session: true,
        client_id: format!("{}-{number}", options.client_id).into(),
        username: user.map(|(name, _)| name.as_str().into()),
        password: user.map(|(_, password)| password.clone().into()),
        ..v3::Connect::default()
    };
    let mut packet = Vec::new();
    encode_v3(connect.into(), &mut packet).map_err(|error| invalid(&error))?;
    write_patiently(&mut socket, &packet, &AtomicBool::new(true))?;

    // A CONNACK has exactly four bytes, and nothing follows it before the client sends something.
    let mut answer = [0; 4];
    socket.read_exact(&mut answer)?;
    let frame = split_frame(&answer, answer.len()).map_err(|error| invalid(&error))?;
    match frame.map(|frame| decode_v3(&frame)) {
        Some(Ok(v3::Packet::ConnectAck(acknowledgement))) => match acknowledgement.return_code {
            v3::ConnectAckReason::ConnectionAccepted => Ok(socket),
            refused => Err(io::Error::new(io::ErrorKind::ConnectionRefused, refused.reason())),
        },
        _ => Err(invalid(&"the broker does not answer as a broker does")),
    }
}
