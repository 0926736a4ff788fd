//! What the broker says of itself on topics below `$SYS/broker/`, with the names that Mosquitto has for it.

use std::time::Duration;

use super::stats::BrokerStats;

/// What the topics of the broker itself begin with. No client may publish there.
pub(super) const SYSTEM: &str = "$SYS/";

/// All these topics, each with its present text.
pub(super) fn topics(stats: &BrokerStats, uptime: Duration) -> [(&'static str, String); 14] {
    let dropped = &stats.dropped;
    let dropped_messages = dropped.slow_subscriber
        + dropped.session_queue_full
        + dropped.memory_full
        + dropped.too_large
        + dropped.expired
        + dropped.rights_ended;
    [
        ("$SYS/broker/version", format!("rivulet version {}", env!("CARGO_PKG_VERSION"))),
        ("$SYS/broker/uptime", format!("{} seconds", uptime.as_secs())),
        ("$SYS/broker/clients/total", stats.sessions.to_string()),
        ("$SYS/broker/clients/connected", stats.connections.to_string()),
        ("$SYS/broker/clients/disconnected", stats.sessions.saturating_sub(stats.connections).to_string()),
        ("$SYS/broker/subscriptions/count", stats.subscriptions.to_string()),
        ("$SYS/broker/retained messages/count", stats.retained_messages.to_string()),
        ("$SYS/broker/store/messages/count", (stats.retained_messages + stats.waiting_messages).to_string()),
        ("$SYS/broker/store/messages/bytes", stats.memory_bytes.to_string()),
        ("$SYS/broker/publish/messages/received", stats.messages_in.to_string()),
        ("$SYS/broker/publish/messages/sent", stats.messages_out.to_string()),
        ("$SYS/broker/publish/messages/dropped", dropped_messages.to_string()),
        ("$SYS/broker/bytes/received", stats.bytes_in.to_string()),
        ("$SYS/broker/bytes/sent", stats.bytes_out.to_string()),
    ]
}
