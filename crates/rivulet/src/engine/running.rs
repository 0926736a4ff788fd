//! An application that runs: its group, its inputs and outputs, the number of its queries, and its status.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rivulet_connectors::mqtt::InboxId;
use rivulet_dataflow::{Decoder, Reason, Seconds, Slot};
use rivulet_operators::application::{Address, Application};
use rivulet_runtime::{Group, GroupMetrics, GroupParts, Histogram};
use rivulet_sql::DEFAULT_CONNECTOR;

use super::event_log::EventLog;
use super::output::Outputs;
use super::source_reader::Reader;
use super::topics::{InputTopics, Topics, write_topic};
use crate::catalog::ApplicationNumber;
use crate::counted::counted;
use crate::service::{ApplicationInfo, ApplicationStatus, EndHealth, FullName, LatencyStatus, ParameterInfo, Tenant};

/// An application with its group.
pub(super) struct Running {
    pub(super) number: ApplicationNumber,
    pub(super) tenant: Tenant,
    pub(super) application: Application,
    pub(super) group: Arc<Group>,
    /// One for each input.
    pub(super) inboxes: Vec<InboxId>,
    pub(super) topics: Topics,
    pub(super) outputs: Arc<Outputs>,
    pub(super) event_log: Arc<EventLog>,
    /// How its payloads are decoded; `None` if it shares decoding with no other application.
    pub(super) shape: Option<Arc<InputShape>>,
    pub(super) queries_running: AtomicU64,
    pub(super) queries_paused: AtomicU64,
    /// The number of queries that do not fit this version of the application.
    pub(super) queries_not_running: AtomicU64,
    /// Its code as users see it.
    pub(super) shown: String,
    /// What its owner should know.
    pub(super) warnings: Vec<String>,
    pub(super) warned: Warned,
    /// The sources of inputs that read no topics; set when the application is open.
    pub(super) sources: OnceLock<Vec<Arc<Reader>>>,
}

/// An application that was checked and has not been started.
pub(super) struct Prepared {
    pub(super) tenant: Tenant,
    pub(super) application: Application,
    pub(super) topics: Topics,
    pub(super) outputs: Arc<Outputs>,
    pub(super) shape: Option<Arc<InputShape>>,
    pub(super) parts: GroupParts,
    pub(super) shown: String,
    pub(super) warnings: Vec<String>,
}

/// How the payloads of an input are decoded. Inputs with the same signature are decoded in the same way.
pub(super) struct InputShape {
    pub(super) signature: String,
    /// Whether events of the input go to the log.
    pub(super) is_logged: bool,
    /// As in [`GroupParts`].
    pub(super) topic_inputs: u32,
    pub(super) decoder: Box<dyn Fn() -> Box<dyn Decoder> + Send + Sync>,
}

/// The warnings of an application that are in the log already, and since when the application runs.
pub(super) struct Warned {
    pub(super) begun: Instant,
    /// A bit for each kind.
    pub(super) said: AtomicU64,
}

impl Default for Warned {
    fn default() -> Self {
        Self { begun: Instant::now(), said: AtomicU64::new(0) }
    }
}

impl Running {
    pub(super) fn full_name(&self) -> FullName {
        self.tenant.named(&self.application.name)
    }

    /// Its tenant and the hash of its text. Another tenant's application may have the same text.
    pub(super) fn id(&self) -> (Tenant, String) {
        (self.tenant.clone(), self.application.id.clone())
    }

    /// Whether it has queries, running or paused.
    pub(super) fn has_queries(&self) -> bool {
        [&self.queries_running, &self.queries_paused].iter().any(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Whether its queries read any input that is in the log.
    pub(super) fn reads_log(&self) -> bool {
        self.topics.inputs.iter().any(|input| input.is_logged)
    }

    /// That events which came are still in the log for it, in a sentence.
    pub(super) fn behind(&self) -> Option<String> {
        let left_from = self.group.behind_from().map(|(from, _)| from);
        let left = self.event_log.left(left_from).filter(|&left| left > 0 && self.reads_log())?;
        let why = match left_from {
            Some(_) => "it reads on from there as soon as its output delivers",
            None => "the log is being replayed since the server was started",
        };
        Some(format!("the application is behind by up to {} in the log: {why}", counted(left, "event")))
    }

    /// The inputs whose times are most likely seconds that were read as milliseconds.
    pub(super) fn seconds_by_input(&self) -> Vec<(String, Seconds)> {
        named(&self.outputs.inputs, &self.outputs.seconds.lock())
    }

    /// The number of events of each input that have such times.
    pub(super) fn times_in_seconds(&self) -> BTreeMap<String, u64> {
        self.seconds_by_input().into_iter().map(|(input, seconds)| (input, seconds.rows)).collect()
    }

    /// If there are several outputs: the name of each, and the number of its rows.
    pub(super) fn output_rows(&self) -> BTreeMap<String, u64> {
        let rows = self.outputs.rows.iter().map(|rows| rows.load(Ordering::Relaxed));
        let named = self.application.outputs.iter().zip(rows);
        named.filter_map(|(output, rows)| Some((output.name.clone()?, rows))).collect()
    }

    /// The sources of its inputs that read no topics.
    pub(super) fn sources(&self) -> &[Arc<Reader>] {
        self.sources.get().map_or(&[], Vec::as_slice)
    }

    /// How each of these gets on, and each of its outputs that is no topic.
    pub(super) fn health(&self) -> Vec<EndHealth> {
        self.sources().iter().map(|reader| reader.health()).chain(self.outputs.health()).collect()
    }

    /// An answer about the application, with its warnings.
    pub(super) fn answer(&self, text: String) -> String {
        self.warnings.iter().fold(text, |text, warning| format!("{text}\nwarning: {warning}"))
    }

    /// Writes its warnings to the log too.
    pub(super) fn log_warnings(&self) {
        let name = self.full_name().in_log();
        self.warnings.iter().for_each(|warning| tracing::warn!(application = name, "{warning}"));
    }

    /// The status of the application; `metrics` are those of its group.
    pub(super) fn status(&self, metrics: &GroupMetrics) -> ApplicationStatus {
        let (inbox_rows, inbox_bytes) = self.group.waiting();
        let warnings = self.warnings(metrics);
        ApplicationStatus {
            name: self.application.name.clone(),
            queries_running: self.queries_running.load(Ordering::Relaxed),
            queries_paused: self.queries_paused.load(Ordering::Relaxed),
            queries_not_running: self.queries_not_running.load(Ordering::Relaxed),
            queries_spilled: self.group.spill_status().queries,
            inbox_rows: inbox_rows as u64,
            inbox_bytes: inbox_bytes as u64,
            last_refusal: self.outputs.last_refusal.lock().clone(),
            times_in_seconds: self.times_in_seconds(),
            warnings,
            health: self.health(),
            ..of_metrics(metrics)
        }
    }

    /// The entry of the application in a list.
    pub(super) fn info(&self) -> ApplicationInfo {
        let application = &self.application;
        ApplicationInfo {
            id: application.id.clone(),
            name: application.name.clone(),
            sql: self.shown.clone(),
            parameters: application
                .parameters
                .iter()
                .map(|parameter| ParameterInfo {
                    name: parameter.name.clone(),
                    data_type: rivulet_sql::type_name(&parameter.data_type),
                    default: parameter.default.as_ref().map(ToString::to_string),
                })
                .collect(),
            input_topic: listed(application.inputs.iter().map(|input| &input.address)),
            output_topic: listed(application.outputs.iter().map(|output| &output.address)),
            queries_running: self.queries_running.load(Ordering::Relaxed),
            queries_paused: self.queries_paused.load(Ordering::Relaxed),
            queries_not_running: self.queries_not_running.load(Ordering::Relaxed),
            warnings: self.warnings(&self.group.metrics()),
            health: self.health(),
            ..ApplicationInfo::default()
        }
    }
}

/// The templates of addresses, separated by commas.
fn listed<'a>(addresses: impl Iterator<Item = &'a Address>) -> String {
    let text = |address: &Address| match address.connector.as_str() {
        DEFAULT_CONNECTOR => address.template.clone(),
        _ => rivulet_sql::shown_address(&address.to_string()).into_owned(),
    };
    addresses.map(text).collect::<Vec<_>>().join(", ")
}

/// The names of the sources or inputs whose times are most likely seconds that were read as milliseconds.
pub(super) fn named(names: &[String], seconds: &[Seconds]) -> Vec<(String, Seconds)> {
    let found = names.iter().zip(seconds).filter(|(_, seconds)| seconds.rows > 0);
    found.map(|(name, seconds)| (name.clone(), *seconds)).collect()
}

/// The topics that queries read: for each query one per input.
pub(super) fn topics_of(running: &Running, slots: &[Slot]) -> Vec<Vec<String>> {
    let topics = running.group.with_queries(slots, |table, slot| {
        let topic = |input: &InputTopics| {
            let mut topic = String::new();
            write_topic(&input.events, table, slot, &mut topic);
            topic
        };
        running.topics.inputs.iter().map(topic).collect()
    });
    topics.into_iter().map(Option::unwrap_or_default).collect()
}

/// The status that follows from the metrics of one group, or of several.
pub(super) fn of_metrics(metrics: &GroupMetrics) -> ApplicationStatus {
    ApplicationStatus {
        events: metrics.events,
        batches: metrics.batches,
        batch_rows_mean: if metrics.batches == 0 { 0.0 } else { metrics.events as f64 / metrics.batches as f64 },
        results: metrics.results,
        refused: by_reason(&metrics.refused),
        processing: latency(&metrics.processing_latency_us),
        end_to_end: latency(&metrics.event_latency_us),
        ..ApplicationStatus::default()
    }
}

/// Refused rows by reason, without the reasons for which none was refused.
pub(super) fn by_reason(refused: &[u64]) -> BTreeMap<String, u64> {
    let counts = Reason::ALL.into_iter().map(|reason| (reason.name().to_owned(), refused[reason as usize]));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Quantiles of a latency; none where nothing was measured.
pub(super) fn latency(histogram: &Histogram) -> LatencyStatus {
    let quantile = |quantile| (histogram.count() > 0).then(|| histogram.quantile_us(quantile));
    LatencyStatus { p50_us: quantile(0.5), p95_us: quantile(0.95), p99_us: quantile(0.99), max_us: quantile(1.0) }
}
