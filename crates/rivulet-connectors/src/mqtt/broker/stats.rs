//! What the broker counts.

use std::collections::BTreeMap;

use serde::Serialize;

/// Counts kept under the core's lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) connections_total: u64,
    pub(super) messages_in: u64,
    pub(super) messages_out: u64,
    pub(super) drops: BrokerDrops,
}

/// The state of a broker, and its counts since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerStats {
    /// Clients connected.
    pub connections: usize,
    /// Clients that have connected since the start.
    pub connections_total: u64,
    /// Sessions, with and without a connection.
    pub sessions: usize,
    /// Subscriptions of all sessions.
    pub subscriptions: usize,
    /// Retained messages.
    pub retained_messages: usize,
    /// Their size in bytes.
    pub retained_bytes: usize,
    /// Messages of QoS 1 and 2 that wait for a client or its acknowledgement.
    pub waiting_messages: usize,
    /// Memory of clients, sessions and retained messages, in bytes.
    pub memory_bytes: usize,
    /// Messages published by clients.
    pub messages_in: u64,
    /// Bytes received from clients.
    pub bytes_in: u64,
    /// Messages sent to clients.
    pub messages_out: u64,
    /// Bytes sent to clients.
    pub bytes_out: u64,
    /// Results of the engine that wait to be published.
    pub queued_messages: usize,
    /// Their size in bytes.
    pub queued_bytes: usize,
    /// Whether all its tasks run. A task that a panic has cut short begins again after a pause.
    pub running: bool,
    /// How often a task was cut short by a panic of this program.
    pub panics: u64,
    /// What was dropped, and the clients that were refused.
    pub dropped: BrokerDrops,
}

/// Drops by reason. Its fields are the reasons that users read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BrokerDrops {
    /// Messages of QoS 0 for a subscriber that reads too slowly.
    pub slow_subscriber: u64,
    /// Messages of QoS 1 and 2 for a session whose queue is full.
    pub session_queue_full: u64,
    /// Messages larger than their subscriber accepts.
    pub too_large: u64,
    /// Messages of clients that are larger than [`BrokerOptions::packet_bytes_max`](super::BrokerOptions).
    pub too_large_received: u64,
    /// Messages that expired before they could be sent.
    pub expired: u64,
    /// Messages that waited for a client that may not subscribe to their topics any more.
    pub rights_ended: u64,
    /// Messages that could not be retained because the store is full. They were delivered.
    pub retained_full: u64,
    /// Messages that could not wait, or be retained, because the broker's memory was used up.
    pub memory_full: u64,
    /// Changes of sessions and retained messages that would not outlive the process, because the disk refused them.
    pub unsaved: u64,
    /// Clients for which there was no room, or none in the share of their tenant.
    pub clients_refused: u64,
    /// Sessions without a connection that gave way to others.
    pub sessions_evicted: u64,
    /// Subscriptions beyond a bound.
    pub subscriptions_refused: u64,
    /// Events dropped to break a deadlock of full queues.
    pub deadlock_events: u64,
    /// Messages of QoS 0 for which some inbox had no room before their connection ended.
    pub unread_messages: u64,
    /// Wills that were not published because too many were due at once.
    pub wills_full: u64,
    /// Results of the engine that were lost when a panic cut a task short.
    pub lost_results: u64,
    /// Clients whose messages were forgotten because there were too many clients: their repeats are not recognised.
    pub clients_forgotten: u64,
    /// Connections beyond the limit.
    pub connections_refused: u64,
    /// Connections that gave way to those of addresses with fewer.
    pub connections_evicted: u64,
    /// Connections with a wrong user or password.
    pub logins_refused: u64,
    /// Connections closed because the client broke the protocol.
    pub protocol_errors: u64,
}

impl BrokerDrops {
    /// The counts by reason.
    pub fn by_reason(&self) -> BTreeMap<String, u64> {
        let counts = serde_json::to_value(self).and_then(serde_json::from_value);
        counts.expect("every field is a number")
    }
}
