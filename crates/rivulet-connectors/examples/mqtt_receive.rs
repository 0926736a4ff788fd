//! How many messages a second one I/O thread receives and routes:
//! `cargo run --release --example mqtt_receive -- [seconds]`.
//!
//! A publisher thread sends packets of 110 bytes with QoS 0 over a loopback socket, to topics drawn from 100,000 that
//! have a route each: (a) to our client, playing a broker; (b) to our embedded broker, also over TLS and over
//! WebSocket. The inbox only counts. Before that, the two steps that matter on their own: decoding a PUBLISH, and
//! looking up its topic.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rivulet_connectors::http_server::{Hosts, Origins};
use rivulet_connectors::mqtt::codec::{self, Publish};
use rivulet_connectors::mqtt::{
    Broker, BrokerOptions, Client, ClientOptions, Pending, Received, Route, Router, TopicIndex, Version,
    WebSocketOptions,
};
use rivulet_connectors::tls::ServerTls;
use rivulet_dataflow::{Clock, Inbox, ManualClock, Push, Slot};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const TOPICS: u32 = 100_000;
const PACKET_BYTES: usize = 110;
/// Messages that are sent over and over.
const MESSAGES: usize = 200_000;

/// Counts and forgets.
#[derive(Default)]
struct Counting {
    events: AtomicU64,
}

impl Inbox for Counting {
    fn push(&self, _slot: Slot, _arrival_us: i64, payload: &[u8]) -> Push {
        black_box(payload);
        self.events.fetch_add(1, Ordering::Relaxed);
        Push::Taken
    }
}

fn topic(number: u32) -> String {
    format!("home/{number:06}/temperature")
}

/// A reproducible sequence without a pattern (splitmix64).
fn shuffled(index: u64) -> u64 {
    let mut z = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn packets(version: Version, topics: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MESSAGES * PACKET_BYTES);
    for index in 0..MESSAGES as u64 {
        let topic = topic((shuffled(index) % u64::from(topics)) as u32);
        let mut publish = Publish { topic: topic.as_bytes(), ..Publish::default() };
        let payload = vec![b'7'; PACKET_BYTES - publish.packet_bytes(version)];
        publish.payload = &payload;
        publish.encode(version, &mut bytes).expect("it is short");
    }
    assert_eq!(bytes.len(), MESSAGES * PACKET_BYTES);
    bytes
}

fn router(topics: u32) -> (Arc<Router>, Arc<Counting>) {
    let router = Arc::new(Router::new());
    let counting = Arc::new(Counting::default());
    let inbox = router.register_inbox(counting.clone());
    let names: Vec<String> = (0..topics).map(topic).collect();
    let routes: Vec<Route<'_>> =
        names.iter().enumerate().map(|(slot, filter)| Route { filter, inbox, slot: slot as Slot }).collect();
    router.reserve(routes.len());
    router.add(&routes).expect("they are topics");
    (router, counting)
}

fn measure_steps() {
    let bytes = packets(Version::V5, TOPICS);
    let rounds = 20;
    let start = Instant::now();
    for _ in 0..rounds {
        let mut rest = &bytes[..];
        while let Ok(Some(frame)) = codec::split_frame(rest, 1 << 20) {
            black_box(Publish::decode(Version::V5, frame.first_byte, frame.body).expect("it is one"));
            rest = &rest[frame.whole.len()..];
        }
    }
    let per_message = |start: Instant, messages: usize| start.elapsed().as_nanos() as f64 / messages as f64;
    println!("decode a PUBLISH                      {:>8.1} ns", per_message(start, rounds * MESSAGES));
    for topics in [TOPICS, 1_000_000] {
        let mut index = TopicIndex::new();
        index.reserve(topics as usize);
        let start = Instant::now();
        for number in 0..topics {
            index.insert(&topic(number), u64::from(number));
        }
        let insert_ns = per_message(start, topics as usize);
        // End to end, as they lie in a read buffer.
        let wanted: String = (0..1_000_000).map(|index| topic((shuffled(index) % u64::from(topics)) as u32)).collect();
        let wanted: Vec<&[u8]> = wanted.as_bytes().chunks_exact(topic(0).len()).collect();
        let mut found = 0;
        let start = Instant::now();
        for topic in &wanted {
            index.for_each(topic, |&value| found ^= value);
        }
        let lookup_ns = per_message(start, wanted.len());
        black_box(found);
        let bytes = index.memory_bytes() / topics as usize;
        println!(
            "look up one of {topics:>7} topics        {lookup_ns:>8.1} ns   (insert {insert_ns:.0} ns, {bytes} bytes each)"
        );
        let (router, _) = router(topics);
        let mut pending = Pending::default();
        let start = Instant::now();
        for chunk in wanted.chunks(1000) {
            let mut routing = router.read();
            for topic in chunk {
                let message = Received { topic, payload: b"payload", ..Received::default() };
                assert_eq!(routing.route(&message, &mut pending), Push::Taken);
            }
        }
        println!("route to one of {topics:>7} topics       {:>8.1} ns", per_message(start, wanted.len()));
    }
}

/// Sends the packets over and over until told to stop.
fn blast(mut socket: impl Write, bytes: &[u8], stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for chunk in bytes.chunks(1 << 20) {
            if socket.write_all(chunk).is_err() {
                return;
            }
        }
    }
}

fn report(name: &str, counting: &Counting, seconds: u64, cpu: impl Fn() -> Duration) {
    std::thread::sleep(Duration::from_millis(500));
    let (start, before, cpu_before) = (Instant::now(), counting.events.load(Ordering::Relaxed), cpu());
    std::thread::sleep(Duration::from_secs(seconds));
    let messages = counting.events.load(Ordering::Relaxed) - before;
    let cpu_s = (cpu() - cpu_before).as_secs_f64();
    let per_second = messages as f64 / start.elapsed().as_secs_f64();
    println!(
        "{name:<38}{:>8.2} million messages/s ({:.0} ns of the I/O thread's CPU each)",
        per_second / 1e6,
        cpu_s * 1e9 / messages as f64
    );
}

/// CPU time of the thread whose name begins with `io`, from `/proc`.
fn io_thread_cpu() -> Duration {
    let mut total = Duration::ZERO;
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return total };
    for task in tasks.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").starts_with("io") {
            let nanoseconds = read("schedstat").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
            total += Duration::from_nanos(nanoseconds);
        }
    }
    total
}

/// Runs `serve` on a runtime with one thread until the sender is dropped.
fn io_thread<F: Future<Output = ()>>(
    serve: impl FnOnce(tokio::sync::oneshot::Receiver<()>) -> F + Send + 'static,
) -> (tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>) {
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("io".into())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(serve(stopped));
        })
        .expect("a thread");
    (stop, thread)
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::new(0))
}

fn measure_client(version: Version, seconds: u64) {
    let (router, counting) = router(TOPICS);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let stop_sending = Arc::new(AtomicBool::new(false));
    let stop = stop_sending.clone();
    let sender = std::thread::spawn(move || {
        let bytes = packets(version, TOPICS);
        let (mut socket, _) = listener.accept().expect("the client connects");
        let mut request = [0; 1000];
        assert!(socket.read(&mut request).expect("a CONNECT") > 0);
        let answer: &[u8] = if version == Version::V3 { &[0x20, 2, 0, 0] } else { &[0x20, 3, 0, 0, 0] };
        socket.write_all(answer).expect("it listens");
        blast(socket, &bytes, &stop);
    });
    let (stop_io, io) = io_thread(move |stopped| async move {
        let mut options = ClientOptions::new(format!("mqtt://{address}").parse().expect("an address"));
        options.version = version;
        let _client = Client::start(options, router, clock()).expect("no TLS, no errors");
        let _ = stopped.await;
    });
    report(&format!("client, {version:?}"), &counting, seconds, io_thread_cpu);
    stop_sending.store(true, Ordering::Relaxed);
    drop(stop_io);
    io.join().expect("no panic");
    sender.join().expect("no panic");
}

/// How clients reach the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Tcp,
    Tls,
    WebSocket,
}

/// A client's connection.
trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

/// A client's WebSocket: each write is a frame, and a read takes one short frame.
struct Framed(TcpStream);

impl Framed {
    fn open(mut socket: TcpStream) -> Self {
        let request = "GET /mqtt HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                       sec-websocket-version: 13\r\nsec-websocket-protocol: mqtt\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        socket.write_all(request.as_bytes()).expect("it listens");
        let mut answer = [0; 1000];
        let length = socket.read(&mut answer).expect("an answer");
        assert!(answer[..length].starts_with(b"HTTP/1.1 101"));
        Self(socket)
    }
}

impl Write for Framed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut head = vec![0x82, 0xff];
        head.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        if bytes.len() < 126 {
            head = vec![0x82, 0x80 | bytes.len() as u8];
        }
        // A mask of zeros leaves the content as it is.
        head.extend_from_slice(&[0; 4]);
        self.0.write_all(&head)?;
        self.0.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Read for Framed {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let mut frame = vec![0; bytes.len() + 2];
        let length = self.0.read(&mut frame)?.saturating_sub(2);
        bytes[..length].copy_from_slice(&frame[2..2 + length]);
        Ok(length)
    }
}

/// A certificate for localhost as the broker takes it, and a client that trusts it.
fn certificate(folder: &std::path::Path) -> (ServerTls, Arc<ClientConfig>) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = parameters.self_signed(&key).expect("a certificate");
    let (certificate_file, key_file) = (folder.join("certificate.pem"), folder.join("key.pem"));
    std::fs::write(&certificate_file, certificate.pem()).expect("a file");
    std::fs::write(&key_file, key.serialize_pem()).expect("a file");
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).expect("a certificate");
    let client = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    (ServerTls::new(certificate_file, key_file), Arc::new(client))
}

fn measure_broker(version: Version, subscribers: usize, door: Door, seconds: u64) {
    let (router, counting) = router(TOPICS);
    let folder = tempfile::tempdir().expect("a folder");
    let (server, client) = certificate(folder.path());
    let (address_sender, address) = std::sync::mpsc::channel::<SocketAddr>();
    let (stop_io, io) = io_thread(move |stopped| async move {
        let mut options = BrokerOptions::new("127.0.0.1:0".parse().expect("an address"));
        let listener = &mut options.listeners[0];
        listener.tls = (door == Door::Tls).then_some(server);
        let hosts = Hosts::new("", listener.address.ip());
        listener.websocket = (door == Door::WebSocket).then(|| WebSocketOptions { hosts, origins: Origins::default() });
        let broker = Broker::start(options, router, clock()).await.expect("a free port");
        address_sender.send(broker.addresses()[0]).expect("somebody waits");
        let _ = stopped.await;
    });
    let address = address.recv().expect("the broker starts");
    let connect = |id: u8| {
        let socket = TcpStream::connect(address).expect("it listens");
        let mut socket: Box<dyn Socket> = match door {
            Door::Tcp => Box::new(socket),
            Door::WebSocket => Box::new(Framed::open(socket)),
            Door::Tls => {
                let name = "localhost".try_into().expect("a name");
                Box::new(StreamOwned::new(ClientConnection::new(client.clone(), name).expect("a client"), socket))
            }
        };
        let (level, properties): (u8, &[u8]) = if version == Version::V3 { (4, &[]) } else { (5, &[0]) };
        let mut request = vec![0x10, 13 + properties.len() as u8, 0, 4, b'M', b'Q', b'T', b'T', level, 2, 0, 0];
        request.extend_from_slice(properties);
        request.extend_from_slice(&[0, 1, id]);
        socket.write_all(&request).expect("it listens");
        let mut answer = [0; 100];
        assert!(socket.read(&mut answer).expect("a CONNACK") > 3 && answer[3] == 0);
        socket
    };
    // Each is subscribed to one topic of its own: what costs is that there is somebody at all.
    let _listening: Vec<Box<dyn Socket>> = (0..subscribers)
        .map(|number| {
            let mut socket = connect(b'a' + number as u8);
            let topic = format!("other/{number:06}");
            let properties: &[u8] = if version == Version::V3 { &[] } else { &[0] };
            let mut request = vec![0x82, (2 + properties.len() + 2 + topic.len() + 1) as u8, 0, 1];
            request.extend_from_slice(properties);
            request.extend_from_slice(&(topic.len() as u16).to_be_bytes());
            request.extend_from_slice(topic.as_bytes());
            request.push(0);
            socket.write_all(&request).expect("it listens");
            let mut answer = [0; 100];
            assert!(socket.read(&mut answer).expect("a SUBACK") > 3);
            socket
        })
        .collect();
    let stop_sending = Arc::new(AtomicBool::new(false));
    let stop = stop_sending.clone();
    let socket = connect(b'A');
    let sender = std::thread::spawn(move || blast(socket, &packets(version, TOPICS), &stop));
    report(
        &format!("broker, {version:?}, {door:?}, {subscribers} subscribers elsewhere"),
        &counting,
        seconds,
        io_thread_cpu,
    );
    stop_sending.store(true, Ordering::Relaxed);
    drop(stop_io);
    io.join().expect("no panic");
    sender.join().expect("no panic");
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3);
    measure_steps();
    for version in [Version::V3, Version::V5] {
        measure_client(version, seconds);
        for door in [Door::Tcp, Door::Tls, Door::WebSocket] {
            measure_broker(version, 0, door, seconds);
        }
        measure_broker(version, 10, Door::Tcp, seconds);
    }
}
