//! What the handle of a broker and its tasks share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use rivulet_dataflow::Clock;

use super::core::Core;
use super::journal::Journal;
use super::logins::Logins;
use super::memory::LoginMemory;
use super::options::BrokerOptions;
use super::packets;
use super::seats::Seats;
use super::stats::BrokerStats;
use crate::mqtt::acknowledge::DedupWindows;
use crate::mqtt::publisher::Outbound;
use crate::mqtt::router::Router;
use crate::mqtt::supervise::Supervisor;
use crate::notices::Notices;
use crate::tls::Certificates;

/// What the handle and the tasks share.
pub(super) struct Shared {
    /// The options of the start. Values that change while the broker runs are kept where they are used.
    pub(super) options: BrokerOptions,
    pub(super) users: RwLock<Vec<(String, String)>>,
    /// The certificates of each listener.
    pub(super) certificates: Vec<Arc<Certificates>>,
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
    pub(super) logins: Logins,
    pub(super) login_memory: LoginMemory,
    pub(super) notices: Notices,
}

impl Shared {
    /// The state and the counts of the broker, except whether it runs.
    pub(super) fn stats(&self) -> BrokerStats {
        let mut stats = self.core.lock().stats(self.seats.counts());
        stats.bytes_in = self.bytes_in.load(Ordering::Relaxed);
        stats.bytes_out = self.bytes_out.load(Ordering::Relaxed);
        stats.queued_messages = self.outbound.queued_messages();
        stats.queued_bytes = self.outbound.queued_bytes();
        stats.panics = self.supervisor.panics();
        stats.dropped.clients_forgotten = self.dedup_windows.forgotten();
        stats
    }

    /// Counts and logs that a client is disconnected.
    pub(super) fn note_close(&self, core: &mut Core, client_id: &str, close: &packets::Close) {
        match close.reason {
            packets::Reason::KeepAliveTimeout | packets::Reason::QuotaExceeded => {}
            _ => core.counters.drops.protocol_errors += 1,
        }
        self.notices.say(|| tracing::warn!(client_id, reason = %close.text, "a client's connection was closed"));
    }
}
