//! What the handle of a broker and its tasks share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rivulet_dataflow::Clock;
use tokio_rustls::TlsAcceptor;

use super::core::Core;
use super::journal::Journal;
use super::options::BrokerOptions;
use super::packets;
use super::seats::Seats;
use crate::logins::FailedLogins;
use crate::mqtt::acknowledge::DedupWindows;
use crate::mqtt::publisher::Outbound;
use crate::mqtt::router::Router;
use crate::mqtt::supervise::Supervisor;

/// The least time between two log lines about clients that misbehave.
const NOTICE_INTERVAL: Duration = Duration::from_secs(10);

/// What the handle and the tasks share.
pub(super) struct Shared {
    /// The options of the start. Values that change while the broker runs are kept where they are used.
    pub(super) options: BrokerOptions,
    pub(super) users: RwLock<Vec<(String, String)>>,
    /// The TLS acceptor of each listener, if its connections are encrypted.
    pub(super) acceptors: RwLock<Vec<Option<TlsAcceptor>>>,
    pub(super) router: Arc<Router>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) core: Mutex<Core>,
    pub(super) outbound: Arc<Outbound>,
    pub(super) dedup_windows: DedupWindows,
    /// The journal, if anything outlives the process.
    pub(super) journal: OnceLock<Arc<dyn Journal>>,
    /// Connections, from their acceptance to their end.
    pub(super) seats: Arc<Seats>,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) supervisor: Supervisor,
    pub(super) failed_logins: FailedLogins,
    pub(super) notices: Notices,
}

impl Shared {
    /// Counts and logs that a client is disconnected.
    pub(super) fn note_close(&self, core: &mut Core, client_id: &str, close: &packets::Close) {
        match close.reason {
            packets::Reason::QosNotSupported => core.counters.qos2_refused += 1,
            packets::Reason::KeepAliveTimeout | packets::Reason::QuotaExceeded => {}
            _ => core.counters.protocol_errors += 1,
        }
        self.notices.say(|| tracing::warn!(client_id, reason = %close.text, "a client's connection was closed"));
    }
}

/// Keeps clients from filling the log.
#[derive(Default)]
pub(super) struct Notices {
    last: Mutex<Option<Instant>>,
}

impl Notices {
    /// Calls `say`, unless something was logged a moment ago.
    pub(super) fn say(&self, say: impl FnOnce()) {
        let mut last = self.last.lock();
        if last.is_none_or(|at| at.elapsed() >= NOTICE_INTERVAL) {
            *last = Some(Instant::now());
            say();
        }
    }
}
