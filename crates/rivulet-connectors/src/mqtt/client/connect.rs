//! Makes a connection: TCP, TLS, CONNECT and its answer.

use std::io;
use std::time::Duration;

use rmqtt_codec::{v3, v5};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::super::buffer::ReadBuffer;
use super::super::codec::{self, CodecError, Qos, Version};
use super::options::ClientOptions;
use crate::reach::OutOfReach;
use crate::sockets::keep_alive;
use crate::tls::Fault;

/// Why there is no connection, or not any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("cannot connect: {0}\nhint: is the broker running, and are host and port right?")]
    Connect(io::Error),
    #[error(transparent)]
    OutOfReach(OutOfReach),
    #[error(
        "cannot connect: no answer within {0} ms\nhint: is the address right, and is there no firewall in between?"
    )]
    Timeout(u64),
    #[error("TLS failed: {}\nhint: {}", tls_problem(.0), tls_hint(.0))]
    Tls(io::Error),
    #[error("the broker refuses the connection: {reason}\nhint: {hint}")]
    Refused { reason: String, hint: &'static str },
    #[error("the connection broke: {0}")]
    Io(io::Error),
    #[error("the broker closed the connection")]
    Closed,
    #[error("the broker closed the connection: {0}")]
    Disconnected(String),
    #[error(
        "the broker closed the connection: another client has connected with the client id '{0}'\nhint: two clients of one id throw each other out; \
         give each its own (mqtt.broker.client_id)"
    )]
    TakenOver(String),
    #[error(
        "the broker closes each connection shortly after it has accepted it, and does not say why\nhint: another client may have the client id '{0}' \
         too, and each throws the other out (mqtt.broker.client_id); or the broker does not allow what is subscribed to or published; its log may say more"
    )]
    ClosedAgain(String),
    #[error("the broker has been silent for {0} s")]
    Silent(u64),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("the broker broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the connection was cut short by a defect in Rivulet: {0}")]
    Defect(String),
}

impl From<io::Error> for ConnectionError {
    /// A server of TLS 1.3 asks for a certificate after the handshake, so its refusal comes with the first read.
    fn from(error: io::Error) -> Self {
        match Fault::of(&error) {
            Some(_) => Self::Tls(error),
            None => Self::Io(error),
        }
    }
}

fn tls_problem(error: &io::Error) -> String {
    Fault::of(error).map_or_else(|| error.to_string(), |fault| fault.problem().to_owned())
}

fn tls_hint(error: &io::Error) -> String {
    let hint = |fault: Fault| fault.hint("ca_file", "certificate_file and key_file");
    Fault::of(error).map_or_else(|| "does the broker speak TLS on this port?".to_owned(), hint)
}

/// The bytes of a connection, in both directions.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that the broker has accepted.
pub(super) struct Connection {
    pub(super) stream: Box<dyn Stream>,
    /// The bytes that came behind the broker's answer.
    pub(super) buffer: ReadBuffer,
    /// The number of bytes read so far.
    pub(super) read_bytes: usize,
    pub(super) terms: Terms,
}

/// The terms that the broker agreed to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Whether it remembers the session.
    pub(super) session_present: bool,
    /// The number of unacknowledged messages of QoS 1 that it accepts.
    pub(super) receive_max: u16,
    /// The highest quality of service that it accepts.
    pub(super) qos_max: Qos,
    /// The largest packet that it accepts, in bytes.
    pub(super) packet_bytes_max: usize,
    /// Whether it keeps messages for later subscribers.
    pub(super) retain_available: bool,
    /// Whether subscriptions may have identifiers, which its messages then carry.
    pub(super) subscription_identifiers: bool,
    /// The interval of keep-alive packets, in seconds; 0 for none.
    pub(super) keep_alive_s: u16,
}

/// Connects and waits for the broker's answer.
pub(super) async fn connect(
    options: &ClientOptions,
    tls: Option<&(TlsConnector, ServerName<'static>)>,
) -> Result<Connection, ConnectionError> {
    let limit = Duration::from_millis(options.connect_timeout_ms);
    match tokio::time::timeout(limit, connect_without_limit(options, tls)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectionError::Timeout(options.connect_timeout_ms)),
    }
}

async fn connect_without_limit(
    options: &ClientOptions,
    tls: Option<&(TlsConnector, ServerName<'static>)>,
) -> Result<Connection, ConnectionError> {
    let tcp = connect_within_reach(options).await?;
    // Results are written in one piece per activation; waiting for more would only delay them.
    tcp.set_nodelay(true)?;
    keep_alive(&tcp);
    let mut stream: Box<dyn Stream> = match tls {
        Some((connector, name)) => Box::new(connector.connect(name.clone(), tcp).await.map_err(ConnectionError::Tls)?),
        None => Box::new(tcp),
    };
    let mut request = Vec::new();
    encode_connect(options, &mut request)?;
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut buffer = ReadBuffer::new(options.read_buffer_bytes);
    loop {
        // The peer may not speak MQTT at all: then the bytes that look like a packet's length may announce a packet
        // that never comes.
        if buffer.data().first().is_some_and(|&byte| byte != codec::CONNACK) {
            return Err(ConnectionError::Protocol("its first packet is no CONNACK; is it an MQTT broker?"));
        }
        if let Some(frame) = codec::split_frame(buffer.data(), options.packet_bytes_max)? {
            let terms = match options.version {
                Version::V3 => terms_v3(options, codec::decode_v3(&frame)?)?,
                Version::V5 => terms_v5(options, &frame)?,
            };
            let (consumed, read_bytes) = (frame.whole.len(), buffer.data().len());
            buffer.consume(consumed);
            return Ok(Connection { stream, buffer, read_bytes, terms });
        }
        if buffer.fill(&mut stream).await? == 0 {
            return Err(match options.version {
                // Brokers that do not know the version do this.
                Version::V5 => ConnectionError::Refused {
                    reason: "it closed the connection without an answer".into(),
                    hint: "if it does not speak MQTT 5, configure version 3.1.1",
                },
                Version::V3 => ConnectionError::Closed,
            });
        }
    }
}

/// Connects to the first address of the broker that answers, of those that may be reached.
async fn connect_within_reach(options: &ClientOptions) -> Result<TcpStream, ConnectionError> {
    let host = options.address.host.as_str();
    let found = tokio::net::lookup_host((host, options.address.port)).await.map_err(ConnectionError::Connect)?;
    let mut failed = ConnectionError::Connect(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    for address in found {
        failed = match options.reach.check(host, address.ip()) {
            Err(refused) => ConnectionError::OutOfReach(refused),
            Ok(()) => match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => ConnectionError::Connect(error),
            },
        };
    }
    Err(failed)
}

fn encode_connect(options: &ClientOptions, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let client_id = options.client_id.as_str().into();
    let username = options.address.user.as_deref().map(Into::into);
    let password = options.address.password.clone().map(|password| password.into_bytes().into());
    match options.version {
        Version::V3 => {
            let connect = v3::Connect {
                clean_session: options.clean_session,
                keep_alive: options.keep_alive_s,
                client_id,
                username,
                password,
                ..v3::Connect::default()
            };
            codec::encode_v3(v3::Packet::Connect(connect.into()), out)
        }
        Version::V5 => {
            let connect = v5::Connect {
                clean_start: options.clean_session,
                keep_alive: options.keep_alive_s,
                session_expiry_interval_secs: if options.clean_session { 0 } else { options.session_expiry_s },
                // None is named: a broker that knows it drops what is larger without a word.
                max_packet_size: None,
                client_id,
                username,
                password,
                ..v5::Connect::default()
            };
            codec::encode_v5(v5::Packet::Connect(connect.into()), out)
        }
    }
}

fn terms_v3(options: &ClientOptions, packet: v3::Packet) -> Result<Terms, ConnectionError> {
    let v3::Packet::ConnectAck(answer) = packet else {
        return Err(ConnectionError::Protocol("its first packet is no CONNACK"));
    };
    if answer.return_code != v3::ConnectAckReason::ConnectionAccepted {
        return Err(ConnectionError::Refused {
            reason: answer.return_code.reason().to_owned(),
            hint: match answer.return_code {
                v3::ConnectAckReason::BadUserNameOrPassword | v3::ConnectAckReason::NotAuthorized => HINT_LOGIN,
                v3::ConnectAckReason::IdentifierRejected => HINT_CLIENT_ID,
                _ => HINT_LOG,
            },
        });
    }
    Ok(Terms {
        session_present: answer.session_present,
        // The protocol has no limit; this limit keeps the broker from dropping messages beyond its own.
        receive_max: 1000,
        qos_max: Qos::AtLeastOnce,
        packet_bytes_max: usize::MAX,
        retain_available: true,
        subscription_identifiers: false,
        keep_alive_s: options.keep_alive_s,
    })
}

const HINT_LOGIN: &str = "check user and password in the broker's address, 'mqtt://user:password@host'";
const HINT_CLIENT_ID: &str = "configure another client id";
const HINT_LOG: &str = "the broker's log may say more";

fn terms_v5(options: &ClientOptions, frame: &codec::Frame<'_>) -> Result<Terms, ConnectionError> {
    // A broker of version 3 answers a CONNECT of version 5 with a CONNACK of its own version.
    if let (codec::CONNACK, [_, 1]) = (frame.first_byte, frame.body) {
        return Err(ConnectionError::Refused {
            reason: "it does not speak MQTT 5".into(),
            hint: "configure version 3.1.1 for this broker",
        });
    }
    let v5::Packet::ConnectAck(answer) = codec::decode_v5(frame)? else {
        return Err(ConnectionError::Protocol("its first packet is no CONNACK"));
    };
    if answer.reason_code != v5::ConnectAckReason::Success {
        let said = answer.reason_string.as_deref().map(|text| format!(" ({text})")).unwrap_or_default();
        return Err(ConnectionError::Refused {
            reason: format!("{:?}{said}", answer.reason_code),
            hint: match answer.reason_code {
                v5::ConnectAckReason::BadUserNameOrPassword | v5::ConnectAckReason::NotAuthorized => HINT_LOGIN,
                v5::ConnectAckReason::ClientIdentifierNotValid => HINT_CLIENT_ID,
                v5::ConnectAckReason::UnsupportedProtocolVersion => "configure version 3.1.1 for this broker",
                _ => HINT_LOG,
            },
        });
    }
    Ok(Terms {
        session_present: answer.session_present,
        receive_max: answer.receive_max.get(),
        qos_max: Qos::from_level(answer.max_qos.value()).unwrap_or(Qos::AtMostOnce).min(Qos::AtLeastOnce),
        packet_bytes_max: answer.max_packet_size.map_or(usize::MAX, |bytes| bytes as usize),
        retain_available: answer.retain_available,
        subscription_identifiers: answer.subscription_identifiers_available,
        keep_alive_s: answer.server_keepalive_sec.unwrap_or(options.keep_alive_s),
    })
}
