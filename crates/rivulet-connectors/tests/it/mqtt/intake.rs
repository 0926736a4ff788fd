//! The intake that client and broker have in common: what is the same on both sides, and what one of them may not miss.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rivulet_connectors::mqtt::codec::Publish;
use rivulet_connectors::mqtt::{
    ClientAuthorizer, ClientLogin, ClientRights, NotAdmitted, Qos, Route, RouterStats, Version,
};
use rivulet_dataflow::LogPosition;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::durable::{HeldLog, logged_router};
use super::probe::Probe;
use super::support::*;

/// A reproducible sequence without a pattern (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// The largest packet that both sides accept.
const PACKET_BYTES_MAX: usize = 1_000;

/// Messages as packets, and how many want an answer: of both QoS, to topics with and without routes and with a durable
/// input, some of the durable ones sent again, and some too large.
fn messages(random: &mut Random) -> (Vec<u8>, usize) {
    let (mut bytes, mut answers) = (Vec::new(), 0);
    let mut sent = VecDeque::new();
    for number in 0..200u16 {
        let repeated = if random.below(8) == 0 { sent.pop_back() } else { None };
        let duplicate = repeated.is_some();
        let (topic, payload, packet_id) = repeated.unwrap_or_else(|| {
            let topic = ["durable", "durable", "plain", "nobody's"][random.below(4) as usize];
            let length =
                if random.below(10) == 0 { PACKET_BYTES_MAX as u64 + random.below(20_000) } else { random.below(200) };
            let payload = format!("{number} {}", "x".repeat(length as usize));
            (topic, payload, if random.below(3) == 0 { 0 } else { 1 + number })
        });
        let qos = if packet_id == 0 { Qos::AtMostOnce } else { Qos::AtLeastOnce };
        let (topic_bytes, payload_bytes) = (topic.as_bytes(), payload.as_bytes());
        Publish { topic: topic_bytes, payload: payload_bytes, packet_id, qos, duplicate, ..Publish::default() }
            .encode(Version::V3, &mut bytes)
            .unwrap();
        answers += usize::from(packet_id > 0);
        if packet_id > 0 && topic == "durable" && payload.len() < PACKET_BYTES_MAX {
            sent.push_back((topic, payload, packet_id));
        }
    }
    (bytes, answers)
}

/// What came of messages.
#[derive(Debug, PartialEq)]
struct Outcome {
    events: Vec<String>,
    logged: usize,
    answers: Vec<u8>,
    stats: RouterStats,
    messages_in: u64,
    too_large: u64,
}

/// Sends in pieces, and reads so many PUBACKs.
async fn exchange(mut socket: TcpStream, bytes: &[u8], answers: usize, random: &mut Random) -> Vec<u8> {
    let (mut received, mut rest) = (vec![0; 4 * answers], bytes);
    let (mut reading, mut writing) = socket.split();
    let write = async {
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(1 + random.below(4000) as usize));
            writing.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
            rest = after;
        }
    };
    let both = async { tokio::join!(write, reading.read_exact(&mut received)).1.unwrap() };
    tokio::time::timeout(WAIT_MAX, both).await.unwrap();
    received
}

/// The outcome of messages that a broker sends to our client, or that a client sends to our broker.
async fn outcome(to_client: bool, bytes: &[u8], answers: usize, random: &mut Random) -> Outcome {
    let (router, inbox, log) = logged_router("durable");
    let plain = router.register_inbox(inbox.clone());
    router.add(&[Route { filter: "plain", inbox: plain, slot: 1 }]).unwrap();
    log.commit(LogPosition::MAX);
    let (answers, messages_in, too_large) = if to_client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("mqtt://{}", listener.local_addr().unwrap());
        let client = client(router.clone(), &address, |options| {
            options.version = Version::V3;
            options.packet_bytes_max = PACKET_BYTES_MAX;
        });
        let (mut socket, _) = listener.accept().await.unwrap();
        assert!(socket.read(&mut [0; 1000]).await.unwrap() > 0);
        socket.write_all(&[0x20, 2, 0, 0]).await.unwrap();
        let answers = exchange(socket, bytes, answers, random).await;
        // With the CONNACK. A message that is too large is counted before all of it has come.
        until("all are read", || client.status().bytes_in >= 4 + bytes.len() as u64).await;
        until("all are counted", || client.status().messages_in >= 200).await;
        let status = client.status();
        assert_eq!((status.messages_in, status.bytes_in), (200, 4 + bytes.len() as u64));
        (answers, status.messages_in, status.too_large_events)
    } else {
        let broker = broker(router.clone(), |options| options.packet_bytes_max = PACKET_BYTES_MAX).await;
        let mut socket = TcpStream::connect(broker.addresses()[0]).await.unwrap();
        socket.write_all(b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01a").await.unwrap();
        socket.read_exact(&mut [0; 4]).await.unwrap();
        let answers = exchange(socket, bytes, answers, random).await;
        // With the CONNECT.
        until("all are read", || broker.stats().bytes_in >= 15 + bytes.len() as u64).await;
        until("all are counted", || broker.stats().messages_in >= 200).await;
        let stats = broker.stats();
        assert_eq!((stats.messages_in, stats.bytes_in), (200, 15 + bytes.len() as u64));
        (answers, stats.messages_in, stats.dropped.too_large_received)
    };
    let stats = RouterStats { routes_bytes: 0, ..router.stats() };
    Outcome { events: inbox.texts(), logged: log.len(), answers, stats, messages_in, too_large }
}

#[tokio::test]
async fn client_and_broker_take_messages_alike() {
    for seed in 0..20 {
        let random = &mut Random(seed);
        let (bytes, answers) = messages(random);
        let from_broker = outcome(true, &bytes, answers, random).await;
        let from_client = outcome(false, &bytes, answers, random).await;
        assert_eq!(from_broker, from_client, "seed {seed}");
        assert!(from_client.logged > 0 && from_client.logged < from_client.events.len(), "{from_client:?}");
        assert!(from_client.too_large > 0 && from_client.events.iter().all(|event| event.len() < PACKET_BYTES_MAX));
    }
}

/// A client that may publish to some topics, as long as that is so.
#[derive(Debug, Default)]
struct Changing {
    is_revoked: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct Authorizer(Arc<Changing>);

impl ClientAuthorizer for Authorizer {
    fn admit(&self, _: &ClientLogin) -> Result<Option<Arc<dyn ClientRights>>, NotAdmitted> {
        Ok(Some(self.0.clone()))
    }
}

impl ClientRights for Changing {
    fn session_scope(&self) -> Option<String> {
        None
    }

    fn may_publish(&self, topic: &str) -> bool {
        topic != "forbidden" && !self.is_revoked.load(Ordering::Acquire)
    }

    fn may_subscribe(&self, _: &str) -> bool {
        true
    }
}

#[test]
fn the_answer_to_a_refused_message_does_not_let_the_next_one_overtake_the_journal() {
    let (router, _) = router(&[]);
    let broker = BrokerThread::start(router, |options| options.authorizer = Some(Arc::new(Authorizer::default())));
    let journal = Arc::<HeldLog>::default();
    broker.broker().keep_in(journal.clone(), 0).unwrap();
    let mut probe = Probe::connect(broker.port(), Version::V5, "kim", |_| {});
    assert_eq!(probe.publish("forbidden", "no", 1, false), "acknowledged 0x87");
    let mut bytes = Vec::new();
    let (qos, retain) = (Qos::AtLeastOnce, true);
    Publish { topic: b"kept", payload: b"yes", packet_id: 9, qos, retain, ..Publish::default() }
        .encode(Version::V5, &mut bytes)
        .unwrap();
    probe.send(&bytes);
    assert_eq!(probe.take(), Vec::<String>::new(), "it is not on disk yet");
    journal.commit(LogPosition::MAX);
    assert!(probe.next().unwrap().starts_with("acknowledged"));
}

#[test]
fn a_message_that_some_inboxes_have_reaches_the_others_though_its_right_was_revoked() {
    let (router, first) = router(&["t"]);
    let second = Collector::new();
    let inbox = router.register_inbox(second.clone());
    router.add(&[Route { filter: "+", inbox, slot: 0 }]).unwrap();
    second.limit(0);
    let authorizer = Authorizer::default();
    let rights = authorizer.0.clone();
    let broker = BrokerThread::start(router, |options| options.authorizer = Some(Arc::new(authorizer)));
    let mut probe = Probe::connect(broker.port(), Version::V5, "kim", |_| {});
    let send = |probe: &mut Probe, payload: &[u8]| {
        let mut bytes = Vec::new();
        Publish { topic: b"t", payload, ..Publish::default() }.encode(Version::V5, &mut bytes).unwrap();
        probe.send(&bytes);
    };
    send(&mut probe, b"one");
    send(&mut probe, b"two");
    block_until("one inbox has it, and the other is full", || first.len() == 1 && second.refusals() > 0);
    rights.is_revoked.store(true, Ordering::Release);
    second.limit(9);
    block_until("the other has it, too", || second.contains("one"));
    probe.take();
    assert_eq!((first.texts(), second.texts()), (vec!["one".to_owned()], vec!["one".to_owned()]));
}

#[test]
fn a_refused_message_that_comes_again_is_taken_when_it_may_be_published() {
    let (router, inbox, log) = logged_router("t");
    let authorizer = Authorizer::default();
    let rights = authorizer.0.clone();
    let broker = BrokerThread::start(router, |options| options.authorizer = Some(Arc::new(authorizer)));
    let mut probe = Probe::connect(broker.port(), Version::V5, "kim", |_| {});
    let send = |probe: &mut Probe, payload: &str, packet_id: u16, duplicate: bool| {
        let (payload, qos) = (payload.as_bytes(), Qos::AtLeastOnce);
        let mut bytes = Vec::new();
        Publish { topic: b"t", payload, packet_id, qos, duplicate, ..Publish::default() }
            .encode(Version::V5, &mut bytes)
            .unwrap();
        probe.send(&bytes);
    };
    send(&mut probe, "one", 1, false);
    block_until("it is in the log, and not on disk", || inbox.len() == 1);
    rights.is_revoked.store(true, Ordering::Release);
    send(&mut probe, "two", 2, false);
    block_until("it is refused", || broker.broker().stats().messages_in == 2);
    rights.is_revoked.store(false, Ordering::Release);
    // Its answer waits behind that of the first, so its sender repeats it.
    send(&mut probe, "two", 2, true);
    block_until("it is processed", || broker.broker().stats().messages_in == 3);
    log.commit(2);
    let answers: Vec<String> = (0..3).map_while(|_| probe.next()).collect();
    assert_eq!(answers, ["acknowledged 0x0", "acknowledged 0x87", "acknowledged 0x0"]);
    assert_eq!(inbox.texts(), ["one", "two"]);
}

#[test]
fn a_message_that_is_too_large_and_would_not_be_taken_gets_the_answer_of_a_small_one() {
    let (router, inbox) = router(&["#"]);
    let broker = BrokerThread::start(router, |options| {
        options.authorizer = Some(Arc::new(Authorizer::default()));
        options.packet_bytes_max = PACKET_BYTES_MAX;
    });
    let forbidden: [(&[u8], &[u8]); 5] =
        [(b"forbidden", b""), (b"$SYS/x", b""), (b"a/#", b""), (b"a\n\xff", b""), (b"t", &[0x0b, 1])];
    for version in [Version::V3, Version::V5] {
        for (topic, properties) in forbidden.into_iter().filter(|(topic, _)| version == Version::V5 || *topic != b"t") {
            let [small, large] = [1, 20 * PACKET_BYTES_MAX].map(|payload_bytes| {
                let mut probe = Probe::connect(broker.port(), version, "kim", |_| {});
                let (mut bytes, payload, qos) = (Vec::new(), vec![b'x'; payload_bytes], Qos::AtLeastOnce);
                Publish { topic, payload: &payload, properties, packet_id: 7, qos, ..Publish::default() }
                    .encode(version, &mut bytes)
                    .unwrap();
                probe.send(&bytes);
                probe.next()
            });
            assert_eq!(large, small, "{version:?} {}", topic.escape_ascii());
            assert_ne!(large.as_deref(), Some("acknowledged 0x97"));
        }
    }
    assert_eq!((broker.broker().stats().dropped.too_large_received, inbox.len()), (0, 0));
}

#[tokio::test]
async fn the_bytes_of_a_login_in_pieces_count_once() {
    let (router, _) = router(&[]);
    let broker = broker(router, |_| {}).await;
    let address: SocketAddr = broker.addresses()[0];
    let mut socket = TcpStream::connect(address).await.unwrap();
    let packet = b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01a";
    for end in [5, 9, packet.len()] {
        let from = broker.stats().bytes_in as usize;
        socket.write_all(&packet[from..end]).await.unwrap();
        until("they are counted", || broker.stats().bytes_in >= end as u64).await;
        assert_eq!(broker.stats().bytes_in, end as u64);
    }
}

#[test]
fn a_refused_message_of_qos_2_leaves_its_identifier_to_another_one() {
    let (router, inbox) = router(&["t"]);
    let authorizer = Authorizer::default();
    let rights = authorizer.0.clone();
    let broker = BrokerThread::start(router, |options| options.authorizer = Some(Arc::new(authorizer)));
    let mut probe = Probe::connect(broker.port(), Version::V5, "kim", |_| {});
    let send = |probe: &mut Probe, payload: &[u8], duplicate| {
        let mut bytes = Vec::new();
        Publish { topic: b"t", payload, packet_id: 7, qos: Qos::ExactlyOnce, duplicate, ..Publish::default() }
            .encode(Version::V5, &mut bytes)
            .unwrap();
        probe.send(&bytes);
        probe.take()
    };
    assert_eq!(send(&mut probe, b"one", false), ["received 0x0"]);
    // The answer was lost, and the right is gone: with this answer the exchange is over.
    rights.is_revoked.store(true, Ordering::Release);
    assert_eq!(send(&mut probe, b"one", true), ["received 0x87"]);
    rights.is_revoked.store(false, Ordering::Release);
    assert_eq!(send(&mut probe, b"two", false), ["received 0x0"]);
    assert_eq!(inbox.texts(), ["one", "two"]);
}
