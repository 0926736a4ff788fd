//! Acknowledgements that wait for the log: of our broker's clients, and of Mosquitto by our client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{Journal, Logged, MessageLog, Qos, Received, Room, Route, Router};
use rivulet_dataflow::LogPosition;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::support::*;

/// Client, packet and payload of a message.
type Kept = (Vec<u8>, u16, Vec<u8>);

/// A log in memory that is on disk as far as the test says, and full if it says so.
#[derive(Default)]
pub(super) struct HeldLog {
    messages: Mutex<Vec<Kept>>,
    pub(super) is_full: AtomicBool,
    durable: AtomicU64,
    committed: Notify,
}

impl HeldLog {
    pub(super) fn commit(&self, position: LogPosition) {
        self.durable.store(position, Ordering::Release);
        self.committed.notify_waiters();
    }

    pub(super) fn len(&self) -> usize {
        self.messages.lock().len()
    }
}

impl MessageLog for HeldLog {
    fn append(&self, message: &Received<'_>, may_exceed: bool, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged {
        if self.is_full.load(Ordering::Acquire) && !may_exceed {
            return Logged::Full;
        }
        let mut messages = self.messages.lock();
        let position = messages.len() as u64 + 1;
        if !take(position) {
            return Logged::NotTaken;
        }
        messages.push((message.client.to_vec(), message.packet_id, message.payload.to_vec()));
        Logged::At(position)
    }

    fn next(&self) -> LogPosition {
        self.len() as u64 + 1
    }

    fn durable(&self) -> LogPosition {
        self.durable.load(Ordering::Acquire)
    }

    fn committed(&self) -> &Notify {
        &self.committed
    }
}

/// The same for what the embedded broker keeps, of which it forgets what it is told.
impl Journal for HeldLog {
    fn append(&self, record: &[u8], may_exceed: bool) -> Option<LogPosition> {
        let message = Received { payload: record, ..Received::default() };
        match MessageLog::append(self, &message, may_exceed, &mut |_| true) {
            Logged::At(position) => Some(position),
            Logged::NotTaken | Logged::Full => None,
        }
    }

    fn room(&self) -> Room {
        Room::Free
    }

    fn can_rewrite(&self) -> bool {
        true
    }

    fn next(&self) -> LogPosition {
        MessageLog::next(self)
    }

    fn durable(&self) -> LogPosition {
        MessageLog::durable(self)
    }

    fn committed(&self) -> &Notify {
        MessageLog::committed(self)
    }

    fn disk_bytes(&self) -> u64 {
        0
    }

    fn bytes_max(&self) -> u64 {
        u64::MAX
    }

    fn forget_before(&self, _: LogPosition) -> bool {
        true
    }

    fn read(&self, take: &mut dyn FnMut(LogPosition, &[u8])) -> Result<(), String> {
        let records: Vec<Vec<u8>> = self.messages.lock().iter().map(|(_, _, record)| record.clone()).collect();
        (1..).zip(&records).for_each(|(position, record)| take(position, record));
        Ok(())
    }
}

/// A router whose one route is that of a durable input.
pub(super) fn logged_router(filter: &str) -> (Arc<Router>, Arc<Collector>, Arc<HeldLog>) {
    let (router, inbox, log) = (Arc::new(Router::new()), Collector::new(), Arc::<HeldLog>::default());
    let id = router.register_logged_inbox(inbox.clone());
    router.add(&[Route { filter, inbox: id, slot: 0 }]).unwrap();
    router.log_to(log.clone());
    assert!(router.end_replay(|_| true));
    (router, inbox, log)
}

/// A CONNECT of version 3.1.1.
fn connect_packet(name: &str, is_clean: bool) -> Vec<u8> {
    let mut packet = vec![0x10, 12 + name.len() as u8];
    packet.extend_from_slice(b"\x00\x04MQTT\x04");
    packet.extend_from_slice(&[u8::from(is_clean) << 1, 0, 60, 0, name.len() as u8]);
    packet.extend_from_slice(name.as_bytes());
    packet
}

/// Connects with a session; returns whether there was one.
async fn connect_to_session(address: std::net::SocketAddr, name: &str) -> (TcpStream, bool) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(&connect_packet(name, false)).await.unwrap();
    let is_present = connected(&mut socket).await;
    (socket, is_present)
}

async fn connect(address: std::net::SocketAddr, name: &str) -> TcpStream {
    connect_to_session(address, name).await.0
}

/// Reads the CONNACK; returns whether there was a session.
async fn connected(socket: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    tokio::time::timeout(WAIT_MAX, socket.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!((answer[0], answer[3]), (0x20, 0));
    answer[2] == 1
}

fn publish_packet(id: u8, payload: &str, is_duplicate: bool) -> Vec<u8> {
    let first = if is_duplicate { 0x3a } else { 0x32 };
    let mut packet = vec![first, 5 + payload.len() as u8, 0, 1, b't', 0, id];
    packet.extend_from_slice(payload.as_bytes());
    packet
}

async fn publish_numbered(socket: &mut TcpStream, id: u8, payload: &str, is_duplicate: bool) {
    socket.write_all(&publish_packet(id, payload, is_duplicate)).await.unwrap();
}

/// The packet identifiers of the next acknowledgements.
async fn acknowledged(socket: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4 * count];
    tokio::time::timeout(WAIT_MAX, socket.read_exact(&mut bytes)).await.unwrap().unwrap();
    bytes.chunks(4).map(|packet| packet[3]).collect()
}

async fn is_silent(socket: &mut TcpStream) -> bool {
    tokio::time::timeout(Duration::from_millis(50), socket.read_u8()).await.is_err()
}

#[tokio::test]
async fn a_client_is_told_when_its_message_is_on_disk_and_may_send_it_again() {
    let (router, inbox, log) = logged_router("t");
    let broker = broker(router.clone(), |_| {}).await;
    let address = broker.addresses()[0];
    let mut socket = connect(address, "kim").await;
    for id in 1..=3 {
        publish_numbered(&mut socket, id, &format!("m{id}"), false).await;
    }
    until("the inbox has them at once", || inbox.len() == 3).await;
    assert!(is_silent(&mut socket).await);
    log.commit(2);
    assert_eq!(acknowledged(&mut socket, 2).await, [1, 2]);
    assert!(is_silent(&mut socket).await);

    // The connection is lost; what is not acknowledged comes again, one of them changed, and something new.
    drop(socket);
    let mut socket = connect(address, "kim").await;
    publish_numbered(&mut socket, 2, "m2", true).await;
    publish_numbered(&mut socket, 3, "m3", true).await;
    publish_numbered(&mut socket, 4, "m4", true).await;
    publish_numbered(&mut socket, 5, "m5", false).await;
    until("what is new is there", || inbox.len() == 5).await;
    assert_eq!(inbox.texts(), ["m1", "m2", "m3", "m4", "m5"]);
    assert_eq!(log.len(), 5);
    assert_eq!(acknowledged(&mut socket, 1).await, [2], "it is on disk already");
    log.commit(5);
    assert_eq!(acknowledged(&mut socket, 3).await, [3, 4, 5]);
    // It repeats at once what it was told of; and the same without the mark is a message of its own.
    publish_numbered(&mut socket, 5, "m5", true).await;
    publish_numbered(&mut socket, 5, "m5", false).await;
    until("it is processed", || inbox.len() == 6).await;
    assert_eq!(acknowledged(&mut socket, 1).await, [5]);

    // What an earlier process had in its log.
    let message = Received { arrival_us: 0, client: b"lee", packet_id: 9, topic: b"t", payload: b"old" };
    broker.remember(&message, 1);
    let mut socket = connect(address, "lee").await;
    publish_numbered(&mut socket, 9, "old", true).await;
    assert_eq!(acknowledged(&mut socket, 1).await, [9]);
    assert_eq!(inbox.len(), 6);
}

#[tokio::test]
async fn a_client_that_read_no_acknowledgement_sends_all_again_and_each_counts_once() {
    let (router, inbox, log) = logged_router("t");
    let broker = broker(router.clone(), |_| {}).await;
    let address = broker.addresses()[0];
    let mut socket = connect(address, "kim").await;
    for id in 1..=200 {
        publish_numbered(&mut socket, id, &format!("m{id}"), false).await;
    }
    until("all are there", || inbox.len() == 200).await;
    log.commit(200);
    // They are on their way, and nobody reads them.
    until("all are acknowledged", || broker.stats().bytes_out >= 4 * 200).await;
    drop(socket);
    let mut socket = connect(address, "kim").await;
    for id in 1..=200 {
        publish_numbered(&mut socket, id, &format!("m{id}"), true).await;
    }
    assert_eq!(acknowledged(&mut socket, 200).await, (1..=200).collect::<Vec<_>>());
    assert_eq!((inbox.len(), log.len()), (200, 200));
}

/// As paho does: what its application publishes before the CONNACK leaves at once, and the repeats behind it.
#[tokio::test]
async fn a_client_that_sends_something_new_before_its_repeats_counts_each_once() {
    for (is_clean, is_restarted) in [(false, false), (true, false), (false, true), (true, true)] {
        let (router, inbox, log) = logged_router("t");
        let first = broker(router.clone(), |_| {}).await;
        let mut socket = connect(first.addresses()[0], "kim").await;
        for id in 1..=20 {
            publish_numbered(&mut socket, id, &format!("m{id}"), false).await;
        }
        until("all are there", || inbox.len() == 20).await;
        log.commit(10);
        assert_eq!(acknowledged(&mut socket, 10).await.len(), 10);
        drop(socket);
        // The broker of a new process knows the messages by the log.
        let known = log.messages.lock().clone();
        let second = match is_restarted {
            false => first,
            true => broker(router.clone(), |_| {}).await,
        };
        for (position, (client, packet_id, payload)) in (1..).zip(known.iter().filter(|_| is_restarted)) {
            let (packet_id, topic) = (*packet_id, &b"t"[..]);
            second.remember(&Received { arrival_us: 0, client, packet_id, topic, payload }, position);
        }
        log.commit(22);
        let mut socket = TcpStream::connect(second.addresses()[0]).await.unwrap();
        let mut packets = connect_packet("kim", is_clean);
        packets.extend(publish_packet(21, "m21", false));
        // It has not read the last five acknowledgements.
        (6..=13).for_each(|id| packets.extend(publish_packet(id, &format!("m{id}"), true)));
        packets.extend(publish_packet(22, "m22", false));
        (14..=20).for_each(|id| packets.extend(publish_packet(id, &format!("m{id}"), true)));
        socket.write_all(&packets).await.unwrap();
        connected(&mut socket).await;
        let expected: Vec<u8> = [21].into_iter().chain(6..=13).chain([22]).chain(14..=20).collect();
        assert_eq!(acknowledged(&mut socket, 17).await, expected);
        let texts: Vec<String> = (1..=22).map(|id| format!("m{id}")).collect();
        assert_eq!(inbox.texts(), texts, "clean: {is_clean}, restarted: {is_restarted}");
    }
}

/// What is not marked as a duplicate is a repeat only where its sender may not have been told.
#[tokio::test]
async fn a_client_that_repeats_without_a_mark_counts_once_unless_it_knows_of_the_first() {
    let (router, inbox, log) = logged_router("t");
    let first = broker(router.clone(), |_| {}).await;
    let address = first.addresses()[0];
    let mut socket = connect(address, "kim").await;
    publish_numbered(&mut socket, 1, "on", false).await;
    until("the first is there", || inbox.len() == 1).await;
    drop(socket);
    // It was not told, so this is the same.
    let mut socket = connect(address, "kim").await;
    publish_numbered(&mut socket, 1, "on", false).await;
    log.commit(1);
    assert_eq!((acknowledged(&mut socket, 1).await, inbox.len()), (vec![1], 1));
    // It was told, whether it says goodbye or not: this is another one.
    for connection in 2..=4 {
        drop(socket);
        log.commit(connection);
        let (next, is_present) = connect_to_session(address, "kim").await;
        socket = next;
        assert!(is_present);
        publish_numbered(&mut socket, 1, "on", false).await;
        assert_eq!((acknowledged(&mut socket, 1).await, inbox.len() as u64), (vec![1], connection));
        if connection == 2 {
            socket.write_all(&[0xe0, 0]).await.unwrap();
        }
    }
    // A broker that has no session of it, but a log: what the client sends is what it has not heard of.
    let second = broker(router.clone(), |_| {}).await;
    second.remember(&Received { arrival_us: 0, client: b"kim", packet_id: 1, topic: b"t", payload: b"on" }, 4);
    let (mut socket, is_present) = connect_to_session(second.addresses()[0], "kim").await;
    assert!(!is_present);
    publish_numbered(&mut socket, 1, "on", false).await;
    assert_eq!((acknowledged(&mut socket, 1).await, inbox.len()), (vec![1], 4));
    // And one that asks for no session sends new messages.
    let third = broker(router, |_| {}).await;
    third.remember(&Received { arrival_us: 0, client: b"kim", packet_id: 1, topic: b"t", payload: b"on" }, 4);
    let mut socket = TcpStream::connect(third.addresses()[0]).await.unwrap();
    socket.write_all(&connect_packet("kim", true)).await.unwrap();
    connected(&mut socket).await;
    log.commit(5);
    publish_numbered(&mut socket, 1, "on", false).await;
    assert_eq!((acknowledged(&mut socket, 1).await, inbox.len()), (vec![1], 5));
}

#[tokio::test]
async fn an_external_broker_keeps_what_is_not_on_disk() {
    let (Some(mosquitto), Some(program)) = (Mosquitto::start(&[]), program("mosquitto_pub")) else { return };
    let port = mosquitto.port.to_string();
    let options = |options: &mut rivulet_connectors::mqtt::ClientOptions| {
        options.client_id = "engine".into();
        options.clean_session = false;
        options.qos = Qos::AtLeastOnce;
    };
    let (router, inbox, log) = logged_router("t");
    let first = client(router, &mosquitto.address(), options);
    first.subscribe(["t"]).unwrap();
    until_subscribed(&first).await;
    for payload in ["one", "two"] {
        assert!(run(&program, &["-p", &port, "-q", "1", "-t", "t", "-m", payload]).await.status.success());
    }
    until("both are there", || inbox.len() == 2).await;
    log.commit(1);
    // The acknowledgement of the first is on its way; the process ends, and its log has both.
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(first);
    let known = log.messages.lock().clone();

    let (router, inbox, log) = logged_router("t");
    let second = client(router, &mosquitto.address(), options);
    for (position, (_, packet_id, payload)) in (1..).zip(&known) {
        let message = Received { arrival_us: 0, client: b"", packet_id: *packet_id, topic: b"t", payload };
        second.remember(&message, position);
    }
    log.commit(2);
    second.subscribe(["t"]).unwrap();
    until_subscribed(&second).await;
    assert!(run(&program, &["-p", &port, "-q", "1", "-t", "t", "-m", "three"]).await.status.success());
    until("the new one is there", || inbox.len() == 1).await;
    assert_eq!(inbox.texts(), ["three"]);
}
