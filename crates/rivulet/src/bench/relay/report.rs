//! What is done in a run, and what it has found.

use clap::ValueEnum;
use rivulet_bench::Circumstances;
use serde::Serialize;

/// Experiments of the Neptune paper, by numbers of our own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    /// Sizes of messages by sizes of buffers
    #[default]
    N1,
    /// Context switches: messages in batches, and scheduled one by one, in buffers of the same size
    N2,
    /// Allocations of memory, as n2
    N3,
    /// A receiver that takes 0, 1, 2, 3, 2, 1 and 0 ms for each message
    N4,
    /// Compression or none, of readings and of random texts, over links of --rate-mbit
    N5,
    /// Several relays at once, in one server
    N6,
}

impl Experiment {
    /// Its name on the command line, and what it is.
    pub fn words(self) -> (String, String) {
        let value = self.to_possible_value().unwrap_or_default();
        (value.get_name().to_owned(), value.get_help().map(ToString::to_string).unwrap_or_default())
    }
}

/// What is done in a run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Setup {
    /// The experiment.
    pub experiment: Experiment,
    /// Bytes of a message: its time, its number, and a text.
    pub message_bytes: usize,
    /// KiB of a buffer; 0: each message is sent by itself.
    pub buffer_kib: usize,
    /// Relays at once.
    pub jobs: usize,
    /// Whether the relay is scheduled for each message; buffers have the same size.
    pub is_individual: bool,
    /// Whether texts are like readings of the DEBS 2012 challenge, and not random.
    pub is_debs: bool,
    /// Whether links compress where a sample says that it pays.
    pub compresses: bool,
    /// Megabits a second of each link in each direction, by a token bucket; `None`: as many as the machine carries.
    pub rate_mbit: Option<u32>,
}

impl Setup {
    /// The run in a few words.
    pub fn label(&self) -> String {
        let Self { experiment, message_bytes, buffer_kib, .. } = self;
        let (data, codec) =
            (if self.is_debs { "debs" } else { "random" }, if self.compresses { "auto" } else { "none" });
        let what = match experiment {
            Experiment::N5 => format!("{data}, {codec}"),
            Experiment::N6 => format!("{} at once", self.jobs),
            _ if self.is_individual => "one by one".into(),
            _ => "batched".into(),
        };
        format!("{} {message_bytes} B, {buffer_kib} KiB, {what}", experiment.words().0)
    }
}

/// A run, and what it has found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RelayRun {
    /// What was done.
    #[serde(flatten)]
    pub setup: Setup,
    /// Messages that came back a second.
    pub messages_per_s: f64,
    /// Messages of this size a second by plain sockets, over such links.
    pub ceiling_messages_per_s: f64,
    /// From the sending of a message to its return.
    pub latency_us_p50: u64,
    /// Its 99th percentile.
    pub latency_us_p99: u64,
    /// Allocations of the relay's process for each message; `None` of a program that does not count them.
    pub allocations_per_message: Option<f64>,
    /// Context switches of the relay for a million messages.
    pub context_switches_per_million: f64,
    /// Those of them for which it waited for something.
    pub voluntary_switches_per_million: f64,
    /// Those that the kernel forced.
    pub nonvoluntary_switches_per_million: f64,
    /// Processor time of the relay for a message, nanoseconds.
    pub relay_ns_per_message: f64,
    /// Resident memory of the relay before messages were counted.
    pub relay_rss_bytes: u64,
    /// The most of it while they were.
    pub relay_rss_bytes_max: u64,
    /// Messages that did not come back.
    pub lost: u64,
    /// Where the receiver's time for a message changes: what was seen every 100 ms.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<RelaySample>,
    /// The same for each time for a message, from two seconds after its beginning on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RelaySample>,
}

/// What was seen in some time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RelaySample {
    /// Its end, in seconds.
    pub at_s: f64,
    /// Milliseconds that the receiver takes for a message.
    pub cost_ms: u64,
    /// Messages that were sent a second.
    pub sent_per_s: f64,
    /// Messages that came back a second.
    pub came_per_s: f64,
    /// Whether both differ by at most a tenth.
    pub is_settled: bool,
    /// Resident memory of the relay at its end.
    pub relay_rss_bytes: u64,
}

impl RelayRun {
    /// The headers of its cells.
    pub const HEADERS: [&str; 11] =
        ["run", "messages/s", "of ceiling", "p50", "p99", "voluntary", "forced", "ns", "allocations", "MiB", "lost"];

    /// The run as a row of a table.
    pub fn cells(&self) -> [String; 11] {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        [
            self.setup.label(),
            self.messages_per_s.to_string(),
            format!("{:.2}", self.messages_per_s / self.ceiling_messages_per_s.max(1.0)),
            ms(self.latency_us_p50),
            ms(self.latency_us_p99),
            self.voluntary_switches_per_million.to_string(),
            self.nonvoluntary_switches_per_million.to_string(),
            self.relay_ns_per_message.to_string(),
            self.allocations_per_message.map_or_else(|| "-".into(), |count| format!("{count:.3}")),
            (self.relay_rss_bytes_max >> 20).to_string(),
            self.lost.to_string(),
        ]
    }
}

/// All runs.
#[derive(Clone, Debug, Serialize)]
pub struct RelayReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// In the order in which they were made.
    pub runs: Vec<RelayRun>,
}
