//! MQTT over WebSocket, as browsers speak it: with and without TLS, and what is refused.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use rivulet_connectors::tls::ClientTls;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::authority::Authority;
use super::server::{Publisher, Server, free_port};
use super::support::{WAIT_MAX, exchange};

/// The handshake of RFC 6455, 1.3, whose answer is there too.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A server whose broker takes WebSockets at this address as well.
fn start(folder: &Path, settings: &[(&str, String)]) -> (Server, SocketAddr) {
    let (mqtt, websocket) = (free_port(), free_port());
    let mut all = vec![
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_MQTT_EMBEDDED_WEBSOCKET_ADDRESS", websocket.to_string()),
    ];
    all.extend_from_slice(settings);
    let server = Server::spawn(folder, mqtt, &all);
    server.wait_until_ready();
    (server, websocket)
}

/// A request for a WebSocket, with other lines in the place of its own, or none where a line is empty.
pub(super) fn request(line: &str, changed: &[(&str, &str)]) -> String {
    let mut headers = vec![
        ("host", "localhost"),
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "mqttv3.1, mqtt"),
        ("sec-websocket-key", KEY),
    ];
    for (name, value) in changed {
        headers.retain(|(known, _)| known != name);
        headers.push((name, value));
    }
    let lines =
        headers.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name}: {value}\r\n"));
    format!("{line} HTTP/1.1\r\n{}\r\n", lines.collect::<String>())
}

/// A client's frame.
pub(super) fn frame(first: u8, content: &[u8]) -> Vec<u8> {
    let mask = [7, 0, 255, 128];
    let mut frame = vec![first];
    match u8::try_from(content.len()) {
        Ok(length @ 0..126) => frame.push(0x80 | length),
        _ => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(content.len() as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&mask);
    frame.extend(content.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

pub(super) const BINARY: u8 = 0x82;
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// A CONNECT of version 3.1.1 without an identifier, and the answer to it.
const CONNECT: &[u8] = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00";
const CONNACK: &[u8] = &[0x20, 2, 0, 0];

/// The client's end of a WebSocket.
struct Browser<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> Browser<S> {
    async fn open(mut stream: S, origin: &str) -> Self {
        stream.write_all(request("GET /mqtt", &[("origin", origin)]).as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        for line in [format!("sec-websocket-accept: {ACCEPT}").to_lowercase(), "sec-websocket-protocol: mqtt".into()] {
            assert!(head.lines().any(|found| found == line), "{line} is not in {head}");
        }
        Self(stream)
    }

    async fn send(&mut self, first: u8, content: &[u8]) {
        self.0.write_all(&frame(first, content)).await.unwrap();
    }

    /// The next frame: its first byte and its content.
    async fn next(&mut self) -> (u8, Vec<u8>) {
        let next = async {
            let first = self.0.read_u8().await.unwrap();
            let length = match self.0.read_u8().await.unwrap() {
                126 => usize::from(self.0.read_u16().await.unwrap()),
                length => usize::from(length),
            };
            let mut content = vec![0; length];
            self.0.read_exact(&mut content).await.unwrap();
            (first, content)
        };
        tokio::time::timeout(WAIT_MAX, next).await.expect("a frame")
    }

    async fn connect(&mut self) {
        // Packets need not begin and end with frames.
        self.send(0x02, &CONNECT[..5]).await;
        self.send(PING, b"meanwhile").await;
        self.send(0x80, &CONNECT[5..]).await;
        let mut frames = vec![self.next().await, self.next().await];
        frames.sort_unstable();
        assert_eq!(frames, [(BINARY, CONNACK.to_vec()), (PONG, b"meanwhile".to_vec())]);
    }

    /// Publishes and subscribes, so that a message of its own comes back.
    async fn exchange(&mut self, payload: &[u8]) {
        self.send(BINARY, b"\x82\x0a\x00\x01\x00\x05ws/in\x00").await;
        assert_eq!(self.next().await, (BINARY, vec![0x90, 3, 0, 1, 0]));
        let mut publish = vec![0x30];
        let length = 7 + payload.len();
        publish.extend(if length < 128 { vec![length as u8] } else { vec![length as u8 | 128, (length >> 7) as u8] });
        publish.extend_from_slice(b"\x00\x05ws/in");
        publish.extend_from_slice(payload);
        self.send(BINARY, &publish).await;
        assert_eq!(self.next().await, (BINARY, publish));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn dial(address: SocketAddr) -> tokio::net::TcpStream {
    tokio::net::TcpStream::connect(address).await.unwrap()
}

#[test]
fn a_browser_is_a_client_like_any_other() {
    let folder = TempDir::new().unwrap();
    let origins = ("RIVULET_MQTT_EMBEDDED_WEBSOCKET_ORIGINS", "https://app.example".to_owned());
    let (server, websocket) = start(folder.path(), &[origins]);
    server.sql_ok(
        "CREATE APPLICATION doubled (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n * 2 AS n FROM numbers;
         CREATE QUERY q FROM APPLICATION doubled WITH (id => 'a')",
    );
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("out/#");
    block_on(async {
        let mut browser = Browser::open(dial(websocket).await, "https://app.example").await;
        browser.connect().await;
        browser.exchange(&[b'x'; 300]).await;
        browser.send(BINARY, b"\x30\x0d\x00\x04in/a{\"n\":4}").await;
    });
    assert_eq!(listener.next_json(), ("out/a".to_owned(), json!({"n": 8})));
}

#[test]
fn a_websocket_may_be_encrypted_and_is_closed_as_it_should() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new(folder.path(), "authority");
    let (certificate, key) = authority.server("broker");
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_TLS_CERTIFICATE_FILE", certificate.to_str().unwrap().to_owned()),
        ("RIVULET_MQTT_EMBEDDED_TLS_KEY_FILE", key.to_str().unwrap().to_owned()),
    ];
    let (_server, websocket) = start(folder.path(), &settings);
    let tls = ClientTls { ca_file: Some(authority.file.clone()), identity: None };
    block_on(async {
        let open = async || {
            let stream = rivulet_connectors::tls::connect(&tls, "localhost", dial(websocket).await).await.unwrap();
            let mut browser = Browser::open(stream, "").await;
            browser.connect().await;
            browser
        };
        let mut browser = open().await;
        browser.exchange(b"secret").await;
        browser.send(CLOSE, &1000_u16.to_be_bytes()).await;
        assert_eq!(browser.next().await, (CLOSE, vec![3, 232]));
        let mut browser = open().await;
        browser.send(TEXT, b"text").await;
        assert_eq!(browser.next().await, (CLOSE, vec![3, 235]), "MQTT is binary");
    });
}

#[test]
fn what_is_no_request_for_mqtt_is_refused() {
    let folder = TempDir::new().unwrap();
    let origins = ("RIVULET_MQTT_EMBEDDED_WEBSOCKET_ORIGINS", "https://app.example".to_owned());
    let (_server, websocket) = start(folder.path(), &[origins]);
    let own = format!("http://localhost:{}", websocket.port());
    for (status, line, changed) in [
        (421, "GET /mqtt", &[("host", "evil.example")][..]),
        (421, "GET /mqtt", &[("host", "")]),
        (403, "GET /mqtt", &[("origin", "https://evil.example")]),
        (403, "GET /mqtt", &[("origin", "null")]),
        (403, "GET /mqtt", &[("origin", "http://app.example")]),
        (404, "GET /other", &[]),
        (404, "POST /mqtt", &[]),
        (426, "GET /mqtt", &[("upgrade", "")]),
        (426, "GET /mqtt", &[("connection", "keep-alive")]),
        (426, "GET /mqtt", &[("sec-websocket-version", "8")]),
        (400, "GET /mqtt", &[("sec-websocket-protocol", "")]),
        (400, "GET /mqtt", &[("sec-websocket-protocol", "chat")]),
        (400, "GET /mqtt", &[("sec-websocket-key", "")]),
        (400, "GET /mqtt", &[("sec-websocket-key", "c2hvcnQ=")]),
    ] {
        let answer = exchange(websocket, &request(line, changed));
        assert_eq!(answer.0, status, "{line} {changed:?}: {}", answer.1);
    }
    // The page of the listener itself, a listed one, and a program.
    for origin in [&own, "https://app.example", ""] {
        let mut connection = TcpStream::connect(websocket).unwrap();
        connection.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let host = format!("localhost:{}", websocket.port());
        connection.write_all(request("GET /", &[("origin", origin), ("host", &host)]).as_bytes()).unwrap();
        let mut status = [0; 12];
        connection.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 101", "{origin}");
    }
}
