//! The counters of the engine, in OpenMetrics.

mod big_queries;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use rivulet_connectors::connector::Condition;
use rivulet_connectors::mqtt::feed::FeedCounts;
use rivulet_dataflow::Reason;
use rivulet_runtime::{GroupMetrics, Histogram, SpillStatus, WorkerStatus};
use rivulet_storage::log::{LogStats, SYNC_BOUNDS_US};

use super::big_queries::BigQuerySnapshot;
use crate::service::{ConnectionStatus, EndHealth, Tenant};

/// A figure of a source, sink or output.
type OfEnd = fn(&EndHealth) -> u64;

/// Upper bounds of the latency buckets, in microseconds: 100 us to 100 s, two per decade.
const LATENCY_BOUNDS_US: [u64; 13] = [
    100,
    300,
    1_000,
    3_000,
    10_000,
    30_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    100_000_000,
];

/// All counters at one moment.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) applications: Vec<ApplicationSnapshot>,
    pub(super) big_queries: Vec<BigQuerySnapshot>,
    pub(super) connections: Vec<ConnectionStatus>,
    pub(super) workers: Vec<WorkerStatus>,
    pub(super) log: LogStats,
    /// Plain numbers of the process: name, help, whether it only grows, value.
    pub(super) numbers: Vec<(&'static str, &'static str, bool, u64)>,
}

/// The counters of an application.
#[derive(Debug, Default)]
pub(super) struct ApplicationSnapshot {
    pub(super) tenant: Tenant,
    pub(super) name: String,
    pub(super) running: u64,
    pub(super) paused: u64,
    pub(super) inbox_rows: u64,
    pub(super) inbox_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) spill: SpillStatus,
    /// Queries that share the slot of an equal one.
    pub(super) further: u64,
    pub(super) tasks: u64,
    /// The number of parts in which split tasks run.
    pub(super) parts: u64,
    pub(super) metrics: GroupMetrics,
    /// By input, events whose times are most likely seconds that were read as milliseconds.
    pub(super) times_in_seconds: Vec<(String, u64)>,
    /// If there are several outputs: the name of each, and the number of its rows.
    pub(super) outputs: Vec<(String, u64)>,
    /// For each input that reads no topic its name, the condition of its source, and the source's counters.
    pub(super) sources: Vec<(String, Condition, FeedCounts)>,
    /// The health of outputs that are not topics.
    pub(super) ends: Vec<EndHealth>,
}

/// The snapshot in OpenMetrics.
pub(super) fn text(snapshot: Snapshot) -> String {
    let mut registry = Registry::with_prefix("rivulet");
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let program = Labels(None, &[("version", env!("CARGO_PKG_VERSION"))]);
        let mut family = encoder.encode_descriptor("build_info", "The program that runs", None, MetricType::Gauge)?;
        family.encode_family(&program)?.encode_gauge(&1_i64)?;
        for &(name, help, only_grows, value) in &self.numbers {
            if only_grows {
                encoder
                    .encode_descriptor(name, help, None, MetricType::Counter)?
                    .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            } else {
                encoder
                    .encode_descriptor(name, help, None, MetricType::Gauge)?
                    .encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
            }
        }
        self.encode_queries(&mut encoder)?;
        self.counter(&mut encoder, "events", "Events taken from the inbox", |m| m.events)?;
        self.counter(&mut encoder, "batches", "Batches processed", |m| m.batches)?;
        self.counter(&mut encoder, "results", "Rows handed to the output", |m| m.results)?;
        self.counter(&mut encoder, "activations", "How often a worker took a task", |m| m.activations)?;
        self.counter(&mut encoder, "busy_microseconds", "Time spent processing", |m| m.busy_us)?;
        let help = "How long the oldest event of each batch waited for a worker";
        self.counter(&mut encoder, "waiting_microseconds", help, |m| m.waiting_us)?;
        let help = "Events whose own time differs by more than an hour from the clock; they have no event latency";
        self.counter(&mut encoder, "clock_differs", help, |m| m.clock_differs)?;
        self.encode_refused(&mut encoder)?;
        self.encode_times_in_seconds(&mut encoder)?;
        self.encode_outputs(&mut encoder)?;
        self.encode_sources(&mut encoder)?;
        self.encode_output_ends(&mut encoder)?;
        self.gauge(&mut encoder, "batch_events_max", "Largest batch so far", |a| a.metrics.batch_events_max)?;
        self.gauge(&mut encoder, "tasks", "Tasks with queries; more than one after a split", |a| a.tasks)?;
        let help = "Parts, on as many workers, in which tasks run that are cut because of one query";
        self.gauge(&mut encoder, "parts", help, |a| a.parts)?;
        self.gauge(&mut encoder, "inbox_rows", "Events waiting", |a| a.inbox_rows)?;
        self.gauge(&mut encoder, "inbox_bytes", "Payload bytes waiting", |a| a.inbox_bytes)?;
        self.gauge(&mut encoder, "memory_bytes", "Memory of parameters, state and inbox", |a| a.memory_bytes)?;
        self.gauge(&mut encoder, "queries_spilled", "Silent queries whose state is on disk", |a| a.spill.queries)?;
        let help = "Queries that are computed together with an equal one";
        self.gauge(&mut encoder, "queries_shared", help, |a| a.further)?;
        self.encode_spills(&mut encoder)?;
        let help = "From an event's arrival to the end of its processing";
        self.histogram(&mut encoder, "processing_latency", help, |m| &m.processing_latency_us)?;
        let help = "From an event's own time to the end of its processing";
        self.histogram(&mut encoder, "event_latency", help, |m| &m.event_latency_us)?;
        self.encode_big_queries(&mut encoder)?;
        self.encode_workers(&mut encoder)?;
        self.encode_log(&mut encoder)?;
        self.encode_connections(&mut encoder)
    }
}

impl Snapshot {
    fn encode_queries(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor("queries", "Queries", None, MetricType::Gauge)?;
        for application in &self.applications {
            for (state, count) in [("running", application.running), ("paused", application.paused)] {
                let labels = Labels(Some(&application.tenant), &[("application", &application.name), ("state", state)]);
                family.encode_family(&labels)?.encode_gauge(&(count as i64))?;
            }
        }
        Ok(())
    }

    fn encode_outputs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Rows handed to each of several outputs";
        let mut family = encoder.encode_descriptor("output_rows", help, None, MetricType::Counter)?;
        for application in &self.applications {
            for (output, rows) in &application.outputs {
                let labels =
                    Labels(Some(&application.tenant), &[("application", &application.name), ("output", output)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(rows, None)?;
            }
        }
        Ok(())
    }

    fn encode_sources(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of_sources = || {
            self.applications
                .iter()
                .flat_map(|one| one.sources.iter().map(move |source| (&one.tenant, &one.name, source)))
        };
        type Count = fn(&FeedCounts) -> u64;
        let counters: [(&str, &str, Count); 4] = [
            ("input_messages", "Messages that the source of an input gave to the router", |counts| counts.events),
            ("input_unwanted", "Those of them that no query asked for", |counts| counts.unwanted),
            ("input_refused", "Messages of the source of an input that were refused", |counts| counts.refused),
            ("input_waits", "How often the source of an input waited for room", |counts| counts.full_waits),
        ];
        for (name, help, count) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (tenant, application, (input, _, counts)) in of_sources() {
                let labels = Labels(Some(tenant), &[("application", application), ("input", input)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count(counts), None)?;
            }
        }
        let help = "Whether the source of an input is in this state";
        let mut family = encoder.encode_descriptor("input_state", help, None, MetricType::Gauge)?;
        for (tenant, application, (input, condition, _)) in of_sources() {
            for state in Condition::ALL {
                let labels = [("application", application.as_str()), ("input", input), ("state", state.name())];
                let labels = Labels(Some(tenant), &labels);
                family.encode_family(&labels)?.encode_gauge(&i64::from(*condition == state))?;
            }
        }
        Ok(())
    }

    /// The health of outputs that are not topics.
    fn encode_output_ends(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ends = || self.applications.iter().flat_map(|one| one.ends.iter().map(move |end| (one, end)));
        let help = "Whether an output that is no topic is in this state";
        let mut family = encoder.encode_descriptor("output_state", help, None, MetricType::Gauge)?;
        for (application, end) in ends() {
            for condition in Condition::ALL {
                let of_it = [("application", &*application.name), ("output", &*end.name), ("state", condition.name())];
                let value = i64::from(end.condition == condition);
                family.encode_family(&Labels(Some(&application.tenant), &of_it))?.encode_gauge(&value)?;
            }
        }
        let counters: [(&str, &str, OfEnd); 4] = [
            ("output_delivered_rows", "Rows that the receivers behind an output have acknowledged", |end| end.rows),
            ("output_delivered_bytes", "Bytes of these rows", |end| end.bytes),
            ("output_left_out_rows", "Rows of an output that were rejected, given up, or gave way", |end| {
                end.rejected_rows
            }),
            ("output_failures", "Attempts of an output that failed", |end| end.failures),
        ];
        for (name, help, value) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (application, end) in ends() {
                let of_it = [("application", &*application.name), ("output", &*end.name)];
                let labels = Labels(Some(&application.tenant), &of_it);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(end), None)?;
            }
        }
        let gauges: [(&str, &str, OfEnd); 2] = [
            ("output_waiting_rows", "Rows that the receivers behind an output have not acknowledged", |end| {
                end.waiting_rows
            }),
            ("output_oldest_ms", "How long the oldest of these waits", |end| end.oldest_ms.unwrap_or(0)),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (application, end) in ends() {
                let of_it = [("application", &*application.name), ("output", &*end.name)];
                let value = i64::try_from(value(end)).unwrap_or(i64::MAX);
                family.encode_family(&Labels(Some(&application.tenant), &of_it))?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn encode_refused(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(
            "refused",
            "Rows that were not processed, by reason",
            None,
            MetricType::Counter,
        )?;
        for application in &self.applications {
            for reason in Reason::ALL {
                let labels =
                    Labels(Some(&application.tenant), &[("application", &application.name), ("reason", reason.name())]);
                let count = application.metrics.refused[reason as usize];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn encode_times_in_seconds(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Events whose times are most likely seconds that were taken for milliseconds";
        let mut family = encoder.encode_descriptor("times_in_seconds", help, None, MetricType::Counter)?;
        for application in &self.applications {
            for (input, count) in &application.times_in_seconds {
                let labels = Labels(Some(&application.tenant), &[("application", &application.name), ("input", input)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        Ok(())
    }

    fn encode_spills(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Count = fn(&SpillStatus) -> u64;
        let counters: [(&str, &str, Count); 4] = [
            ("spills", "How often the state of a silent query went to disk", |spill| spill.spilled),
            ("wakes", "How often it came back", |spill| spill.woken),
            ("spill_failures", "How often spilling stopped because the disk was full or failed", |spill| {
                spill.failures
            }),
            ("spill_losses", "Queries that started anew because their state could not be read back", |spill| {
                spill.lost
            }),
        ];
        for (name, help, value) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for application in &self.applications {
                let labels = Labels(Some(&application.tenant), &[("application", &application.name)]);
                let count = value(&application.spill);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Part of a worker's time that its tasks need, as last measured; above 1 it cannot keep up";
        let mut family = encoder.encode_descriptor("worker_load", help, None, MetricType::Gauge)?;
        for worker in &self.workers {
            family
                .encode_family(&Labels(None, &[("worker", &worker.worker.to_string())]))?
                .encode_gauge(&worker.load)?;
        }
        let help = "Tasks with queries, and of big queries, that belong to a worker";
        let mut family = encoder.encode_descriptor("worker_tasks", help, None, MetricType::Gauge)?;
        for worker in &self.workers {
            let labels = Labels(None, &[("worker", &worker.worker.to_string())]);
            family.encode_family(&labels)?.encode_gauge(&(worker.tasks as i64))?;
        }
        let help = "The memory node (NUMA) that a worker stays on, where the machine has several";
        let mut family = encoder.encode_descriptor("worker_node", help, None, MetricType::Gauge)?;
        for worker in &self.workers {
            if let Some(node) = worker.node {
                let labels = Labels(None, &[("worker", &worker.worker.to_string())]);
                family.encode_family(&labels)?.encode_gauge(&(node as i64))?;
            }
        }
        Ok(())
    }

    fn encode_log(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "How long the log of events waited for the disk";
        let mut family = encoder.encode_descriptor("log_commit", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let bounds = SYNC_BOUNDS_US.iter().map(|&bound_us| bound_us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.log.commits_by_time).collect();
        family.encode_histogram::<NoLabelSet>(self.log.commits_us as f64 / 1e6, self.log.commits, &buckets, None)
    }

    fn encode_connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Whether the connection to the broker is up";
        let mut family = encoder.encode_descriptor("broker_connected", help, None, MetricType::Gauge)?;
        for connection in &self.connections {
            let labels = Labels(None, &[("broker", &connection.broker)]);
            family.encode_family(&labels)?.encode_gauge(&i64::from(connection.connected))?;
        }
        let help = "How often the connection was lost and events may have been missed";
        let mut family = encoder.encode_descriptor("broker_gaps", help, None, MetricType::Counter)?;
        for connection in &self.connections {
            let labels = Labels(None, &[("broker", &connection.broker)]);
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&connection.gaps, None)?;
        }
        let help = "What was dropped or turned away, by reason";
        let mut family = encoder.encode_descriptor("broker_dropped", help, None, MetricType::Counter)?;
        for connection in &self.connections {
            for &(reason, count) in &connection.dropped {
                let labels = Labels(None, &[("broker", &connection.broker), ("reason", reason)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        let help = "Subscriptions that the broker has refused, 20 for 20 or more";
        let mut family = encoder.encode_descriptor("broker_refused_subscriptions", help, None, MetricType::Gauge)?;
        for connection in &self.connections {
            let labels = Labels(None, &[("broker", &connection.broker)]);
            family.encode_family(&labels)?.encode_gauge(&(connection.refused_subscriptions.len() as i64))?;
        }
        Ok(())
    }

    fn counter(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&GroupMetrics) -> u64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for application in &self.applications {
            let labels = Labels(Some(&application.tenant), &[("application", &application.name)]);
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(&application.metrics), None)?;
        }
        Ok(())
    }

    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&ApplicationSnapshot) -> u64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for application in &self.applications {
            let labels = Labels(Some(&application.tenant), &[("application", &application.name)]);
            family.encode_family(&labels)?.encode_gauge(&i64::try_from(value(application)).unwrap_or(i64::MAX))?;
        }
        Ok(())
    }

    fn histogram(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        histogram: impl Fn(&GroupMetrics) -> &Histogram,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for application in &self.applications {
            let labels = Labels(Some(&application.tenant), &[("application", &application.name)]);
            encode_histogram(&mut family, &labels, histogram(&application.metrics))?;
        }
        Ok(())
    }
}

/// A latency as one series of a family of histograms.
fn encode_histogram(family: &mut MetricEncoder<'_>, labels: &Labels<'_>, histogram: &Histogram) -> fmt::Result {
    let mut below = 0;
    let mut buckets: Vec<(f64, u64)> = LATENCY_BOUNDS_US
        .iter()
        .map(|&bound_us| {
            let up_to = histogram.count_up_to(bound_us);
            let bucket = (bound_us as f64 / 1e6, up_to - below);
            below = up_to;
            bucket
        })
        .collect();
    buckets.push((f64::INFINITY, histogram.count() - below));
    family.encode_family(labels)?.encode_histogram::<NoLabelSet>(
        histogram.sum_us() as f64 / 1e6,
        histogram.count(),
        &buckets,
        None,
    )
}

/// The tenant of a series, which is not shown if it is the default one; and other labels.
#[derive(Debug)]
struct Labels<'a>(Option<&'a Tenant>, &'a [(&'a str, &'a str)]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::EncodeLabel;
        let Self(tenant, others) = self;
        let tenant = tenant.filter(|tenant| !tenant.is_default()).map(|tenant| ("tenant", tenant.as_str()));
        tenant.iter().chain(*others).try_for_each(|label| label.encode(encoder.encode_label()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_family_and_ends_as_it_must() {
        let mut metrics = GroupMetrics { events: 5, batches: 2, ..GroupMetrics::default() };
        metrics.refused[Reason::Late as usize] = 3;
        [50, 2_000, 200_000_000].into_iter().for_each(|us| metrics.processing_latency_us.record(us));
        let outputs = vec![("alarms".to_owned(), 2)];
        let application = ApplicationSnapshot {
            name: "a\"b".into(),
            running: 7,
            metrics,
            outputs,
            sources: vec![("in".to_owned(), Condition::Retrying, FeedCounts { events: 8, ..FeedCounts::default() })],
            times_in_seconds: vec![("in".to_owned(), 4)],
            spill: SpillStatus { queries: 2, lost: 1, ..Default::default() },
            ..Default::default()
        };
        let of_other = ApplicationSnapshot {
            tenant: Tenant::new("acme"),
            name: "floors".into(),
            running: 3,
            ..Default::default()
        };
        let text = text(Snapshot {
            applications: vec![application, of_other],
            connections: vec![ConnectionStatus {
                broker: "embedded".into(),
                connected: true,
                dropped: vec![("slow_subscriber", 6), ("expired", 0)],
                ..Default::default()
            }],
            big_queries: vec![],
            workers: vec![WorkerStatus { worker: 1, load: 0.25, tasks: 3, core: Some(8), node: Some(2) }],
            log: LogStats { commits: 2, commits_by_time: [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], ..LogStats::default() },
            numbers: vec![("messages_unrouted", "Messages nobody asked for", true, 4)],
        });
        for line in [
            concat!("rivulet_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "rivulet_messages_unrouted_total 4",
            "rivulet_worker_load{worker=\"1\"} 0.25",
            "rivulet_worker_tasks{worker=\"1\"} 3",
            "rivulet_worker_node{worker=\"1\"} 2",
            "rivulet_queries{application=\"a\\\"b\",state=\"running\"} 7",
            "rivulet_queries{tenant=\"acme\",application=\"floors\",state=\"running\"} 3",
            "rivulet_queries_spilled{application=\"a\\\"b\"} 2",
            "rivulet_spill_losses_total{application=\"a\\\"b\"} 1",
            "rivulet_events_total{application=\"a\\\"b\"} 5",
            "rivulet_times_in_seconds_total{application=\"a\\\"b\",input=\"in\"} 4",
            "rivulet_refused_total{application=\"a\\\"b\",reason=\"late\"} 3",
            "rivulet_output_rows_total{application=\"a\\\"b\",output=\"alarms\"} 2",
            "rivulet_input_messages_total{application=\"a\\\"b\",input=\"in\"} 8",
            "rivulet_input_state{application=\"a\\\"b\",input=\"in\",state=\"retrying\"} 1",
            "rivulet_processing_latency_seconds_bucket{le=\"0.0001\",application=\"a\\\"b\"} 1",
            "rivulet_processing_latency_seconds_bucket{le=\"+Inf\",application=\"a\\\"b\"} 3",
            "rivulet_processing_latency_seconds_count{application=\"a\\\"b\"} 3",
            "rivulet_log_commit_seconds_bucket{le=\"0.0005\"} 1",
            "rivulet_log_commit_seconds_bucket{le=\"0.001\"} 2",
            "rivulet_broker_connected{broker=\"embedded\"} 1",
            "rivulet_broker_dropped_total{broker=\"embedded\",reason=\"slow_subscriber\"} 6",
            "rivulet_broker_dropped_total{broker=\"embedded\",reason=\"expired\"} 0",
            "rivulet_broker_refused_subscriptions{broker=\"embedded\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
