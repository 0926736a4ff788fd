//! The counters of the engine, in OpenMetrics.

mod big_queries;
mod tenants;

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};
use rivulet_connectors::connector::Condition;
use rivulet_connectors::feed::FeedCounts;
use rivulet_dataflow::Reason;
use rivulet_runtime::{GroupMetrics, Histogram, SpillStatus, WorkerStatus};
use rivulet_storage::log::{LogStats, SYNC_BOUNDS_US};

use super::big_queries::BigQuerySnapshot;
use crate::service::{ConnectionStatus, EndHealth, Limit, LimitUse, Tenant};

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
    pub(super) tenants: Vec<TenantSnapshot>,
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
    pub(super) times_in_seconds: BTreeMap<String, u64>,
    /// If there are several outputs: the name of each, and the number of its rows.
    pub(super) outputs: BTreeMap<String, u64>,
    /// For each input that reads no topic its name, the condition of its source, and the source's counters.
    pub(super) sources: Vec<(String, Condition, FeedCounts)>,
    /// The health of outputs that are not topics.
    pub(super) ends: Vec<EndHealth>,
}

/// What a tenant may have and use.
#[derive(Debug)]
pub(super) struct TenantSnapshot {
    pub(super) tenant: Tenant,
    pub(super) limits: Vec<LimitUse>,
    /// How often each limit was reached.
    pub(super) reached: [(Limit, u64); Limit::ALL.len()],
    /// For how long its MQTT clients were not read.
    pub(super) waited_us: u64,
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
        let encoder = &mut encoder;
        let program = Series(vec![(Labels(None, vec![("version", env!("CARGO_PKG_VERSION"))]), ())]);
        program.gauges(encoder, &[("build_info", "The program that runs", |()| 1)])?;
        for &(name, help, only_grows, value) in &self.numbers {
            if only_grows {
                encoder
                    .encode_descriptor(name, help, None, MetricType::Counter)?
                    .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            } else {
                encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        self.encode_applications(encoder)?;
        self.encode_big_queries(encoder)?;
        self.encode_tenants(encoder)?;
        self.encode_workers(encoder)?;
        self.encode_log(encoder)?;
        self.encode_connections(encoder)
    }
}

impl Snapshot {
    fn encode_applications(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = self.applications.iter().map(|one| Labels(Some(&one.tenant), vec![("application", &one.name)]));
        let applications = Series(labels.zip(&self.applications).collect());
        let queries = applications.by("state", |one| [("running", one.running), ("paused", one.paused)]);
        queries.gauges(encoder, &[("queries", "Queries", |count| count)])?;
        let help = "Events whose own time differs by more than an hour from the clock; they have no event latency";
        applications.counters(
            encoder,
            &[
                ("events", "Events taken from the inbox", |one| one.metrics.events),
                ("batches", "Batches processed", |one| one.metrics.batches),
                ("results", "Rows handed to the output", |one| one.metrics.results),
                ("activations", "How often a worker took a task", |one| one.metrics.activations),
                ("busy_microseconds", "Time spent processing", |one| one.metrics.busy_us),
                ("waiting_microseconds", "How long the oldest event of each batch waited for a worker", |one| {
                    one.metrics.waiting_us
                }),
                ("clock_differs", help, |one| one.metrics.clock_differs),
            ],
        )?;
        let refused = |one: &ApplicationSnapshot| {
            let counts = one.metrics.refused;
            Reason::ALL.map(|reason| (reason.name(), counts[reason as usize]))
        };
        let help = "Rows that were not processed, by reason";
        applications.by("reason", refused).counters(encoder, &[("refused", help, |count| count)])?;
        let help = "Events whose times are most likely seconds that were taken for milliseconds";
        let of_inputs = applications.by("input", |one| counts(&one.times_in_seconds));
        of_inputs.counters(encoder, &[("times_in_seconds", help, |count| count)])?;
        let outputs = applications.by("output", |one| counts(&one.outputs));
        let help = "Rows handed to each of several outputs";
        outputs.counters(encoder, &[("output_rows", help, |count| count)])?;

        let sources = applications.by("input", |one| one.sources.iter().map(|source| (&*source.0, source)));
        sources.counters(
            encoder,
            &[
                ("input_messages", "Messages that the source of an input gave to the router", |(.., one)| one.events),
                ("input_unwanted", "Those of them that no query asked for", |(.., one)| one.unwanted),
                ("input_refused", "Messages of the source of an input that were refused", |(.., one)| one.refused),
                ("input_waits", "How often the source of an input waited for room", |(.., one)| one.full_waits),
            ],
        )?;
        let help = "Whether the source of an input is in this state";
        sources.states(encoder, "input_state", help, Condition::ALL, Condition::name, |one| one.1)?;

        let ends = applications.by("output", |one| one.ends.iter().map(|end| (&*end.name, end)));
        let help = "Whether an output that is no topic is in this state";
        ends.states(encoder, "output_state", help, Condition::ALL, Condition::name, |end| end.condition)?;
        ends.counters(
            encoder,
            &[
                ("output_delivered_rows", "Rows that the receivers behind an output have acknowledged", |end| end.rows),
                ("output_delivered_bytes", "Bytes of these rows", |end| end.bytes),
                ("output_left_out_rows", "Rows of an output that were rejected, given up, or gave way", |end| {
                    end.rejected_rows
                }),
                ("output_failures", "Attempts of an output that failed", |end| end.failures),
            ],
        )?;
        let help = "Rows that the receivers behind an output have not acknowledged";
        ends.gauges(
            encoder,
            &[
                ("output_waiting_rows", help, |end| end.waiting_rows),
                ("output_oldest_ms", "How long the oldest of these waits", |end| end.oldest_ms.unwrap_or(0)),
                ("output_stands_still", "Whether its application stands still on account of an output", |end| {
                    u64::from(end.stands_still_since_ms.is_some())
                }),
            ],
        )?;

        let help = "Parts, on as many workers, in which tasks run that are cut because of one query";
        applications.gauges(
            encoder,
            &[
                ("batch_events_max", "Largest batch so far", |one| one.metrics.batch_events_max),
                ("tasks", "Tasks with queries; more than one after a split", |one| one.tasks),
                ("parts", help, |one| one.parts),
                ("inbox_rows", "Events waiting", |one| one.inbox_rows),
                ("inbox_bytes", "Payload bytes waiting", |one| one.inbox_bytes),
                ("memory_bytes", "Memory of parameters, state and inbox", |one| one.memory_bytes),
                ("queries_spilled", "Silent queries whose state is on disk", |one| one.spill.queries),
                ("queries_shared", "Queries that are computed together with an equal one", |one| one.further),
            ],
        )?;
        let help = "Queries that started anew because their state could not be read back";
        applications.counters(
            encoder,
            &[
                ("spills", "How often the state of a silent query went to disk", |one| one.spill.spilled),
                ("wakes", "How often it came back", |one| one.spill.woken),
                ("spill_failures", "How often spilling stopped because the disk was full or failed", |one| {
                    one.spill.failures
                }),
                ("spill_losses", help, |one| one.spill.lost),
            ],
        )?;
        let help = "From an event's arrival to the end of its processing";
        let seconds = Some(&Unit::Seconds);
        applications.family(encoder, "processing_latency", help, seconds, |one| {
            Some(Latency(&one.metrics.processing_latency_us))
        })?;
        let help = "From an event's own time to the end of its processing";
        applications.family(encoder, "event_latency", help, seconds, |one| Some(Latency(&one.metrics.event_latency_us)))
    }

    fn encode_workers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let names: Vec<String> = self.workers.iter().map(|worker| worker.worker.to_string()).collect();
        let labels = names.iter().map(|name| Labels(None, vec![("worker", name)]));
        let workers = Series(labels.zip(&self.workers).collect());
        let help = "Part of a worker's time that its tasks need, as last measured; above 1 it cannot keep up";
        workers.family(encoder, "worker_load", help, None, |worker| Some(ConstGauge::new(worker.load)))?;
        let help = "Tasks with queries, and of big queries, that belong to a worker";
        workers.gauges(encoder, &[("worker_tasks", help, |worker| worker.tasks as u64)])?;
        let help = "The memory node (NUMA) that a worker stays on, where the machine has several";
        workers.family(encoder, "worker_node", help, None, |worker| Some(ConstGauge::new(worker.node? as i64)))
    }

    fn encode_log(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "How long the log of events waited for the disk";
        let mut family = encoder.encode_descriptor("log_commit", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let bounds = SYNC_BOUNDS_US.iter().map(|&bound_us| bound_us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.log.commits_by_time).collect();
        family.encode_histogram::<NoLabelSet>(self.log.commits_us as f64 / 1e6, self.log.commits, &buckets, None)
    }

    fn encode_connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = self.connections.iter().map(|one| Labels(None, vec![("broker", &one.broker)]));
        let connections = Series(labels.zip(&self.connections).collect());
        let help = "Whether the connection to the broker is up";
        connections.gauges(encoder, &[("broker_connected", help, |one| one.connected.into())])?;
        let help = "How often the connection was lost and events may have been missed";
        connections.counters(encoder, &[("broker_gaps", help, |one| one.gaps)])?;
        let help = "What was dropped or turned away, by reason";
        let dropped = connections.by("reason", |one| counts(&one.dropped));
        dropped.counters(encoder, &[("broker_dropped", help, |count| count)])?;
        let help = "Subscriptions that the broker has refused, 20 for 20 or more";
        let refused = |one: &ConnectionStatus| one.refused_subscriptions.len() as u64;
        connections.gauges(encoder, &[("broker_refused_subscriptions", help, refused)])
    }
}

/// A family of metrics: its name, its help, and its value of what a series is about.
type Figure<'f, T> = (&'f str, &'f str, fn(T) -> u64);

/// The labels of series, each with what the series is about.
struct Series<'a, T>(Vec<(Labels<'a>, T)>);

impl<'a, T: Copy> Series<'a, T> {
    /// Series for the named parts of each of these; the name of a part is the value of one more label.
    fn by<U, P: IntoIterator<Item = (&'a str, U)>>(&self, label: &'a str, parts: impl Fn(T) -> P) -> Series<'a, U> {
        let mut series = Vec::new();
        for (labels, of) in &self.0 {
            series.extend(parts(*of).into_iter().map(|(name, part)| (labels.with(label, name), part)));
        }
        Series(series)
    }

    /// Writes one family; without a value there is no series.
    fn family<V: EncodeMetric + TypedMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: impl Fn(T) -> Option<V>,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, unit, V::TYPE)?;
        for (labels, of) in &self.0 {
            if let Some(value) = value(*of) {
                value.encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }

    fn counters(&self, encoder: &mut DescriptorEncoder<'_>, figures: &[Figure<'_, T>]) -> fmt::Result {
        let mut figures = figures.iter();
        figures.try_for_each(|&(name, help, value)| {
            self.family(encoder, name, help, None, |of| Some(ConstCounter::new(value(of))))
        })
    }

    fn gauges(&self, encoder: &mut DescriptorEncoder<'_>, figures: &[Figure<'_, T>]) -> fmt::Result {
        let mut figures = figures.iter();
        figures.try_for_each(|&(name, help, value)| {
            self.family(encoder, name, help, None, |of| Some(ConstGauge::new(value(of))))
        })
    }

    /// Writes a gauge for each of `all` states: 1 for that of `state`, else 0.
    fn states<S: Copy + PartialEq, const N: usize>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        all: [S; N],
        text: fn(S) -> &'static str,
        state: impl Fn(T) -> S,
    ) -> fmt::Result {
        let states = self.by("state", |of| all.map(|one| (text(one), u64::from(one == state(of)))));
        states.gauges(encoder, &[(name, help, |is_it| is_it)])
    }
}

/// Counts by name, as parts of a series.
fn counts(counts: &BTreeMap<String, u64>) -> impl Iterator<Item = (&str, u64)> {
    counts.iter().map(|(name, count)| (&**name, *count))
}

/// A latency as a histogram in seconds.
#[derive(Debug)]
struct Latency<'a>(&'a Histogram);

impl TypedMetric for Latency<'_> {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Latency<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let Self(histogram) = self;
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
        let sum_seconds = histogram.sum_us() as f64 / 1e6;
        encoder.encode_histogram::<NoLabelSet>(sum_seconds, histogram.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// The tenant of a series, which is not shown if it is the default one; and other labels.
#[derive(Clone, Debug)]
struct Labels<'a>(Option<&'a Tenant>, Vec<(&'a str, &'a str)>);

impl<'a> Labels<'a> {
    /// These labels and one more.
    fn with(&self, name: &'a str, value: &'a str) -> Self {
        let mut labels = self.clone();
        labels.1.push((name, value));
        labels
    }
}

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::EncodeLabel;
        let Self(tenant, others) = self;
        let tenant = tenant.filter(|tenant| !tenant.is_default()).map(|tenant| ("tenant", tenant.as_str()));
        tenant.iter().chain(others).try_for_each(|label| label.encode(encoder.encode_label()))
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
        let outputs = [("alarms".to_owned(), 2)].into();
        let application = ApplicationSnapshot {
            name: "a\"b".into(),
            running: 7,
            metrics,
            outputs,
            sources: vec![("in".to_owned(), Condition::Retrying, FeedCounts { events: 8, ..FeedCounts::default() })],
            times_in_seconds: [("in".to_owned(), 4)].into(),
            spill: SpillStatus { queries: 2, lost: 1, ..Default::default() },
            ..Default::default()
        };
        let of_other = ApplicationSnapshot {
            tenant: Tenant::new("acme"),
            name: "floors".into(),
            running: 3,
            ..Default::default()
        };
        let mut reached = Limit::ALL.map(|limit| (limit, 0));
        reached[Limit::Queries as usize].1 = 2;
        let queries = LimitUse { limit: Limit::Queries, used: Some(3), most: Some(4) };
        let streams = LimitUse { limit: Limit::Streams, used: Some(1), most: None };
        let limits = vec![queries, streams];
        let tenant = TenantSnapshot { tenant: Tenant::new("acme"), limits, reached, waited_us: 5 };
        let text = text(Snapshot {
            applications: vec![application, of_other],
            connections: vec![ConnectionStatus {
                broker: "embedded".into(),
                connected: true,
                dropped: [("slow_subscriber".into(), 6), ("expired".into(), 0)].into(),
                ..Default::default()
            }],
            big_queries: vec![],
            tenants: vec![tenant],
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
            "rivulet_tenant_used{tenant=\"acme\",limit=\"queries\"} 3",
            "rivulet_tenant_limit{tenant=\"acme\",limit=\"queries\"} 4",
            "rivulet_tenant_limit_reached_total{tenant=\"acme\",limit=\"queries\"} 2",
            "rivulet_tenant_held_back_microseconds_total{tenant=\"acme\"} 5",
            "rivulet_tenant_used{tenant=\"acme\",limit=\"streams\"} 1",
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
