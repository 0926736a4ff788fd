//! What only the thread that runs a task touches: the host of its queries, its sink, and its counters.

use rivulet_dataflow::slot_host::Failure;
use rivulet_dataflow::{Chunk, Fault, GroupSink, Reason, SlotHost};

use crate::GroupMetrics;

/// The core of a task, or of one of its parts. The thread that runs the task holds its lock; checkpoints, changes of
/// queries and the balancer take the lock in between.
pub(crate) struct Core {
    pub(crate) host: SlotHost,
    pub(super) sink: Box<dyn GroupSink>,
    pub(super) metrics: GroupMetrics,
    /// The number of pushed events when slots were last retired: once these have left the inbox, no event of a retired
    /// slot can come.
    pub(super) retired_at: u64,
}

impl Core {
    pub(super) fn new(host: SlotHost, sink: Box<dyn GroupSink>) -> Self {
        Self { host, sink, metrics: GroupMetrics::default(), retired_at: 0 }
    }

    /// Counts taken events, for each query of a shared slot.
    pub(super) fn count_events(&mut self, chunk: &Chunk, now_us: i64) {
        let events = chunk.rows() as u64;
        self.metrics.events += events + self.host.table().further_of(chunk.slots());
        self.metrics.batches += 1;
        self.metrics.count_inputs(events, chunk.inputs());
        self.metrics.batch_events_max = self.metrics.batch_events_max.max(events);
        self.host.tally_events(chunk, now_us);
    }

    /// Counts events of queries that had been removed.
    pub(crate) fn count_removed(&mut self, events: u64) {
        self.metrics.refused[Reason::Removed as usize] += events;
    }

    /// Adds counts from elsewhere.
    pub(crate) fn count_further(&mut self, metrics: &GroupMetrics) {
        self.metrics.merge(metrics);
    }

    /// Ends a step: refused rows and results are sent, and all that the host did is counted.
    pub(super) fn finish(&mut self, name: &str) {
        self.host.flush(&mut *self.sink);
        self.note(name);
    }

    /// Counts what the host has done, and logs what failed.
    pub(super) fn note(&mut self, name: &str) {
        let report = self.host.report();
        self.metrics.results += report.results;
        for (mine, more) in self.metrics.refused.iter_mut().zip(report.refused) {
            *mine += more;
        }
        for failure in report.failures {
            log(&failure, name);
        }
    }
}

fn log(failure: &Failure, application: &str) {
    match failure {
        Failure::Operator(error, _) if error.fault == Fault::UserCode => {
            tracing::warn!(application, queries = error.slots.len(), "the application's code failed: {error}");
        }
        Failure::Operator(error, rows) => {
            tracing::error!(application, rows, "this batch is lost because of a defect in the engine: {error}");
        }
        Failure::Results(error) => tracing::warn!(application, %error, "results were not written"),
        Failure::Refused(error) => tracing::warn!(application, %error, "dead letters were not written"),
        Failure::Flush(error) => tracing::warn!(application, %error, "results were not sent"),
    }
}
