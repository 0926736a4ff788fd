//! Acknowledgements that wait for the log: of our broker's clients, and of Mosquitto by our client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{LogMessage, Logged, MessageLog, Qos, Route, Router};
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
    fn commit(&self, position: LogPosition) {
        self.durable.store(position, Ordering::Release);
        self.committed.notify_waiters();
    }

    pub(super) fn len(&self) -> usize {
        self.messages.lock().len()
    }
}

impl MessageLog for HeldLog {
    fn append(&self, message: &LogMessage<'_>, may_exceed: bool, take: &mut dyn FnMut(LogPosition) -> bool) -> Logged {
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

/// A router whose one route is that of a durable input.
pub(super) fn logged_router(filter: &str) -> (Arc<Router>, Arc<Collector>, Arc<HeldLog>) {
    let (router, inbox, log) = (Arc::new(Router::new()), Collector::new(), Arc::<HeldLog>::default());
    let id = router.register_logged_inbox(inbox.clone());
    router.add(&[Route { filter, inbox: id, slot: 0 }]).unwrap();
    router.log_to(log.clone());
    assert!(router.end_replay(|_| true));
    (router, inbox, log)
}

async fn connect(address: std::net::SocketAddr, name: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let mut packet = vec![0x10, 12 + name.len() as u8];
    packet.extend_from_slice(b"\x00\x04MQTT\x04\x00\x00\x3c");
    packet.extend_from_slice(&[0, name.len() as u8]);
    packet.extend_from_slice(name.as_bytes());
    socket.write_all(&packet).await.unwrap();
    let mut answer = [0; 4];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!((answer[0], answer[3]), (0x20, 0));
    socket
}

async fn publish_numbered(socket: &mut TcpStream, id: u8, payload: &str, is_duplicate: bool) {
    let first = if is_duplicate { 0x3a } else { 0x32 };
    let mut packet = vec![first, 5 + payload.len() as u8, 0, 1, b't', 0, id];
    packet.extend_from_slice(payload.as_bytes());
    socket.write_all(&packet).await.unwrap();
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
    // Now the same again is a message of its own.
    publish_numbered(&mut socket, 5, "m5", true).await;
    until("it is processed", || inbox.len() == 6).await;

    // What an earlier process had in its log.
    let message = LogMessage { arrival_us: 0, client: b"lee", packet_id: 9, topic: b"t", payload: b"old" };
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
        let message = LogMessage { arrival_us: 0, client: b"", packet_id: *packet_id, topic: b"t", payload };
        second.remember(&message, position);
    }
    log.commit(2);
    second.subscribe(["t"]).unwrap();
    until_subscribed(&second).await;
    assert!(run(&program, &["-p", &port, "-q", "1", "-t", "t", "-m", "three"]).await.status.success());
    until("the new one is there", || inbox.len() == 1).await;
    assert_eq!(inbox.texts(), ["three"]);
}
