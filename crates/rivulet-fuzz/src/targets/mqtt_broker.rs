//! The embedded broker, with two clients that send any bytes in turns. The broker always answers in whole packets of
//! the client's version, and ends each connection when its client has gone. The engine gets only valid topics.

use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_connectors::mqtt::codec::{decode_v3, decode_v5, split_frame};
use rivulet_connectors::mqtt::topic::check_topic;
use rivulet_connectors::mqtt::{Broker, BrokerLimits, BrokerOptions, Route, Router};
use rivulet_dataflow::{Inbox, ManualClock, Push, Slot};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::Target;
use crate::input::Input;

/// See the module.
pub const TARGET: Target =
    Target { name: "mqtt_broker", run, words: &["MQTT", "a/b", "a/+", "#", "$share/g/a"], mutations: 1_500 };

const CLIENTS: usize = 2;

/// The most pieces in which the clients send.
const PIECES_MAX: usize = 64;

fn run(bytes: &[u8]) {
    runtime().block_on(async {
        let (router, seen) = (Arc::new(Router::new()), Arc::new(Seen::default()));
        let inbox = router.register_inbox(seen.clone());
        router.add(&[Route { filter: "#", inbox, slot: 0 }]).expect("the filter is valid");
        let broker = Broker::start(options(), router, Arc::new(ManualClock::new(0))).await.expect("it listens nowhere");
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::new(&broker)).collect();
        let mut input = Input::new(bytes);
        for _ in 0..PIECES_MAX {
            if input.is_empty() {
                break;
            }
            let client = input.below(CLIENTS);
            clients[client].send(input.piece()).await;
        }
        for client in clients {
            check_answer(&client.end().await);
        }
        assert_eq!(broker.stats().panics, 0, "{:?}", broker.last_panic());
        assert!(seen.topics.lock().iter().all(|topic| check_topic(topic).is_ok()));
    });
}

pub(super) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("no thread is needed")
}

/// Bounds that are reached by few packets, and no listener.
pub(super) fn options() -> BrokerOptions {
    BrokerOptions {
        listeners: Vec::new(),
        limits: BrokerLimits {
            sessions_max: 2,
            subscriptions_max: 8,
            session_queue_messages_max: 4,
            session_queue_bytes_max: 256,
            in_flight_max: 2,
            receive_max: 2,
            topic_aliases_max: 2,
            retained_messages_max: 2,
            retained_bytes_max: 256,
            ..BrokerLimits::default()
        },
        connection_bytes_max: 4 << 10,
        packet_bytes_max: 2 << 10,
        ..BrokerOptions::new(([127, 0, 0, 1], 0).into())
    }
}

#[derive(Default)]
struct Seen {
    topics: Mutex<Vec<Vec<u8>>>,
}

impl Inbox for Seen {
    fn push(&self, _slot: Slot, _arrival_us: i64, _payload: &[u8]) -> Push {
        Push::Taken
    }

    fn push_message(&self, _slot: Slot, _arrival_us: i64, topic: &[u8], _payload: &[u8]) -> Push {
        self.topics.lock().push(topic.to_vec());
        Push::Taken
    }
}

/// A client's end of a connection.
pub(super) struct Client {
    sending: WriteHalf<DuplexStream>,
    /// All that the broker has answered, once it has closed the connection.
    answer: JoinHandle<Vec<u8>>,
    served: JoinHandle<()>,
}

impl Client {
    pub(super) fn new(broker: &Broker) -> Self {
        let (client, server) = tokio::io::duplex(1 << 12);
        let (receiving, sending) = tokio::io::split(client);
        Self { sending, answer: tokio::spawn(read(receiving)), served: tokio::spawn(broker.serve(server)) }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        // The broker may have closed the connection.
        let _ = self.sending.write_all(bytes).await;
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
    }

    /// Closes the connection, and returns the broker's answers.
    pub(super) async fn end(mut self) -> Vec<u8> {
        let _ = self.sending.shutdown().await;
        self.served.await.expect("the broker does not panic");
        self.answer.await.expect("reading does not fail")
    }
}

async fn read(mut receiving: ReadHalf<DuplexStream>) -> Vec<u8> {
    let mut answer = Vec::new();
    let _ = receiving.read_to_end(&mut answer).await;
    answer
}

/// An answer consists of whole packets that can be read in one of the versions.
pub(super) fn check_answer(answer: &[u8]) {
    let are_read = |is_v3: bool| {
        let mut rest = answer;
        while !rest.is_empty() {
            let frame = split_frame(rest, usize::MAX).expect("a packet").expect("a whole one");
            let is_read = if is_v3 { decode_v3(&frame).is_ok() } else { decode_v5(&frame).is_ok() };
            if !is_read {
                return false;
            }
            rest = &rest[frame.whole.len()..];
        }
        true
    };
    assert!(are_read(true) || are_read(false), "{answer:?}");
}
