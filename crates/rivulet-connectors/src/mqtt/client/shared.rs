//! What the handle of a client and its task share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rivulet_dataflow::Clock;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::acknowledge::DedupWindows;
use super::super::publisher::Outbound;
use super::super::router::Router;
use super::super::supervise::Supervisor;
use super::connect::ConnectionError;
use super::in_flight::InFlight;
use super::options::ClientOptions;
use super::subscriptions::Subscriptions;
use crate::notices::Notices;

#[derive(Clone, Copy)]
pub(super) enum Count {
    Connections,
    Gaps,
    MessagesIn,
    BytesIn,
    MessagesOut,
    BytesOut,
    LostMessages,
    TooLargeMessages,
    RefusedMessages,
    DeadlockEvents,
    CopiedMessages,
    UnreadMessages,
    RetainedMessages,
    TooLargeEvents,
}

#[derive(Default)]
pub(super) struct Counters([AtomicU64; 14]);

impl Counters {
    pub(super) fn add(&self, what: Count, count: u64) {
        if count > 0 {
            self.0[what as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&self, what: Count) -> u64 {
        self.0[what as usize].load(Ordering::Relaxed)
    }
}

/// What the handle and the task share.
pub(super) struct Shared {
    pub(super) options: ClientOptions,
    pub(super) router: Arc<Router>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) outbound: Arc<Outbound>,
    pub(super) subscriptions: Mutex<Subscriptions>,
    pub(super) in_flight: Mutex<InFlight>,
    /// PUBACKs for the writer.
    pub(super) acknowledgements: Mutex<Vec<u8>>,
    pub(super) dedup_windows: DedupWindows,
    /// Whether results wait for PUBACKs of the broker, which come behind events that are not read yet.
    pub(super) waits_for_acknowledgements: AtomicBool,
    /// Whether the broker may send a message once for each of several filters.
    pub(super) has_overlaps: AtomicBool,
    pub(super) supervisor: Supervisor,
    pub(super) notices: Notices,
    /// The moment until which to send the rest and then stop; `None` while running.
    pub(super) stop: watch::Sender<Option<Instant>>,
    pub(super) state: Mutex<State>,
    pub(super) counters: Counters,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) connected: bool,
    pub(super) since_us: i64,
    pub(super) last_error: Option<String>,
}

impl Shared {
    /// Handles the broker's answer to a SUBSCRIBE.
    pub(super) fn subscribed(&self, packet_id: u16, answers: &[Option<String>]) -> Result<(), ConnectionError> {
        let answer = self.subscriptions.lock().answered(packet_id, answers);
        let answer = answer.ok_or(ConnectionError::Protocol("its SUBACK answers no SUBSCRIBE"))?;
        if let Some((filter, reason)) = answer.refused.first() {
            tracing::warn!(
                broker = %self.options.address, filter, reason, refused = answer.refused.len(),
                "the broker refuses subscriptions; queries that read from them get no events"
            );
        }
        // More filters may have waited for this answer.
        self.outbound.wake.notify_one();
        Ok(())
    }

    /// Handles the broker's answer to an UNSUBSCRIBE.
    pub(super) fn unsubscribed(&self, packet_id: u16) -> Result<(), ConnectionError> {
        if !self.subscriptions.lock().unsubscribed(packet_id) {
            return Err(ConnectionError::Protocol("its UNSUBACK answers no UNSUBSCRIBE"));
        }
        // More filters may have waited for this answer.
        self.outbound.wake.notify_one();
        Ok(())
    }

    /// Notes that a panic cut the connection short; it is made again like any other that failed.
    pub(super) fn defect(&self, panic: String) -> ConnectionError {
        self.supervisor.note("the connection to the broker", &panic);
        ConnectionError::Defect(panic)
    }

    pub(super) fn warn_of_overlap(&self, subscriptions: &Subscriptions) {
        if let Some((a, b)) = subscriptions.partial_overlap() {
            tracing::warn!(
                broker = %self.options.address, a, b,
                "two subscriptions overlap in part; without subscription identifiers (MQTT 5) the broker may send what \
                 matches both twice"
            );
        }
    }

    pub(super) fn set_state(&self, connected: bool, error: Option<String>) {
        let mut state = self.state.lock();
        if state.connected != connected || state.since_us == 0 {
            state.connected = connected;
            state.since_us = self.clock.now_us();
        }
        if error.is_some() {
            state.last_error = error;
        }
    }
}
