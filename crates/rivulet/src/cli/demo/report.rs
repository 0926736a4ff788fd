//! What the demo reports at its end.

use serde_json::json;

use crate::service::Status;

/// What the demo did.
#[derive(Clone, Debug)]
pub(super) struct DemoReport {
    /// Queries that ran.
    pub(super) queries: u64,
    /// Queries submitted per second.
    pub(super) submit_per_s: f64,
    /// Events published by the homes.
    pub(super) events_sent: u64,
    /// The engine's status at the end.
    pub(super) status: Status,
}

impl DemoReport {
    /// The report as one JSON object.
    pub(super) fn to_json(&self) -> serde_json::Value {
        let total = &self.status.total;
        json!({
            "queries": self.queries,
            "applications": self.status.applications.len(),
            "submit_per_s": self.submit_per_s.round(),
            "events_sent": self.events_sent,
            "events_processed": total.events,
            "events_refused": total.refused.values().sum::<u64>(),
            "alerts": total.results,
            "latency_us_p50": total.end_to_end.p50_us,
            "latency_us_p99": total.end_to_end.p99_us,
            "processing_us_p50": total.processing.p50_us,
            "processing_us_p99": total.processing.p99_us,
            "memory_rss_bytes": self.status.memory_rss_bytes,
        })
    }
}
