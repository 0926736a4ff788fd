//! The broker's side for an engine that makes connections for each query: thousands of them, which a thread for each
//! would not do. It is Rivulet's embedded broker; its work on each event shows in the generator's CPU time.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::mqtt::codec::{Publish, Version, split_frame};
use rivulet_connectors::mqtt::{
    Broker, BrokerLimits, BrokerOptions, BrokerStats, PublishBatch, PublishOptions, Publisher, Router,
};
use tokio::runtime::Runtime;

use super::results::Results;
use crate::latency::LatencyHistogram;
use crate::sender::Outlets;

/// The most connections.
const CONNECTIONS_MAX: usize = 200_000;
/// How long the sender waits for the broker to have room before it looks whether it is to stop.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// A broker for very many clients. Dropping it closes all connections.
pub(super) struct Crowd {
    broker: Broker,
    address: SocketAddr,
    /// What had happened when a run began.
    begun: Mutex<BrokerStats>,
    /// Turns the broker; goes after it.
    _runtime: Runtime,
}

impl Crowd {
    /// Listens on `address` (port 0 for any).
    pub(super) fn listen(address: SocketAddr) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let options = BrokerOptions {
            limits: BrokerLimits {
                connections_max: CONNECTIONS_MAX,
                sessions_max: CONNECTIONS_MAX,
                session_subscriptions_max: usize::MAX,
                memory_bytes_max: usize::MAX,
                address_share_percent: 100,
                ..BrokerLimits::default()
            },
            ..BrokerOptions::new(address)
        };
        let router = Arc::new(Router::new());
        let broker = runtime.block_on(Broker::start(options, router, Arc::new(SystemClock)));
        let broker = broker.map_err(io::Error::other)?;
        let address = broker.addresses()[0];
        Ok(Self { broker, address, begun: Mutex::default(), _runtime: runtime })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many clients are connected.
    pub(super) fn connections(&self) -> usize {
        self.broker.stats().connections
    }

    /// How many filters all clients have subscribed to.
    pub(super) fn filters(&self) -> usize {
        self.broker.stats().subscriptions
    }

    /// Counts from zero again.
    pub(super) fn reset(&self) {
        *self.begun() = self.broker.stats();
    }

    /// What was received since. Bytes are those of whole packets; latencies are not measured.
    pub(super) fn results(&self) -> Results {
        let (now, begun) = (self.broker.stats(), *self.begun());
        Results {
            received: now.messages_in - begun.messages_in,
            bytes: now.bytes_in - begun.bytes_in,
            latency: LatencyHistogram::default(),
        }
    }

    /// Events that were dropped because their receiver did not read.
    pub(super) fn dropped(&self) -> u64 {
        self.broker.stats().dropped.slow_subscriber - self.begun().dropped.slow_subscriber
    }

    /// The broker as a sender sees it.
    pub(super) fn outlet(&self) -> CrowdOutlet {
        CrowdOutlet { publisher: self.broker.publisher(), batch: PublishBatch::new() }
    }

    fn begun(&self) -> std::sync::MutexGuard<'_, BrokerStats> {
        self.begun.lock().expect("nobody panics while holding it")
    }
}

/// Publishes the events; who has subscribed gets them.
pub(super) struct CrowdOutlet {
    publisher: Arc<dyn Publisher>,
    batch: PublishBatch,
}

impl Outlets for CrowdOutlet {
    fn refresh(&mut self) {}

    fn targets(&mut self, _query: u32, _topic: &[u8]) -> u16 {
        1
    }

    fn version(&self, _outlet: usize) -> Version {
        Version::V3
    }

    fn write(&mut self, _outlet: usize, packets: &[u8], stop: &AtomicBool) -> io::Result<()> {
        while !self.publisher.has_room() {
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(ROOM_WAIT);
        }
        let mut rest = packets;
        while let Some(frame) = split_frame(rest, rest.len()).map_err(io::Error::other)? {
            let publish = Publish::decode(Version::V3, frame.first_byte, frame.body).map_err(io::Error::other)?;
            let topic = std::str::from_utf8(publish.topic).map_err(io::Error::other)?;
            self.batch.push(topic, publish.payload, PublishOptions::default()).map_err(io::Error::other)?;
            rest = &rest[frame.whole.len()..];
        }
        self.publisher.submit(&mut self.batch);
        Ok(())
    }
}
