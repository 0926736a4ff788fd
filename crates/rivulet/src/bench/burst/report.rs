//! What was done in a run, and what it has found.

use std::time::Duration;

use clap::ValueEnum;
use rivulet_bench::Circumstances;
use serde::Serialize;

/// Cores of the server.
pub(super) const SERVER_CORES: f64 = 0.3;
/// And in the run that has enough of them for every burst, or nearly.
const STATIC_FACTOR: f64 = 4.0;

/// Cores of the workers together; there are two of them.
pub(super) const WORKER_CORES: f64 = 1.5;

/// What a core costs for an hour: r5.xlarge has four for 0.252.
const VM_USD: f64 = 0.063;
/// The same of a function with 1769 MB, which has one, at 0.0000166667 for each GB and second.
const FUNCTION_USD: f64 = 0.1037;

/// What is done about a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Baseline {
    /// Nothing
    None,
    /// All tasks migrate to workers that start within 30 s
    Vm,
    /// Tasks migrate to workers that start within 0.5 s; sources stay
    Lambda,
    /// All tasks migrate to workers that start within 0.5 s
    R1,
    /// All tasks are redirected, with their state, to workers that wait
    R2,
    /// Tasks are redirected to workers that wait; what merges partial results stays
    All,
    /// Nothing; the server always has four times as many cores
    Static,
}

impl Baseline {
    /// Its name on the command line, and what it is.
    pub fn words(self) -> (String, String) {
        let value = self.to_possible_value().unwrap_or_default();
        (value.get_name().to_owned(), value.get_help().map(ToString::to_string).unwrap_or_default())
    }

    /// Whether tasks go to workers.
    pub(super) fn bursts(self) -> bool {
        !matches!(self, Self::None | Self::Static)
    }

    /// Whether the query is stopped from a checkpoint and started elsewhere.
    pub(super) fn migrates(self) -> bool {
        matches!(self, Self::Vm | Self::Lambda | Self::R1)
    }

    /// How long workers take to start, besides their process; `None` if they have started before.
    pub(super) fn start_delay(self) -> Option<Duration> {
        match self {
            Self::Vm => Some(Duration::from_secs(30)),
            Self::Lambda | Self::R1 => Some(Duration::from_millis(500)),
            _ => None,
        }
    }

    /// Cores of the server.
    pub(super) fn cores(self) -> f64 {
        if self == Self::Static { STATIC_FACTOR * SERVER_CORES } else { SERVER_CORES }
    }

    /// What so many hours cost if workers are there in so many of them.
    pub(super) fn cost_usd(self, hours: f64, worker_hours: f64) -> f64 {
        let worker_usd = match self {
            Self::None | Self::Static => 0.0,
            Self::Vm => VM_USD,
            _ => FUNCTION_USD,
        };
        self.cores() * VM_USD * hours + WORKER_CORES * worker_usd * worker_hours
    }
}

/// A run, and what it has found.
#[derive(Clone, Debug, Serialize)]
pub struct BurstRun {
    /// The query.
    pub query: String,
    /// What was done about the burst.
    pub baseline: Baseline,
    /// Events a second before the burst.
    pub rate: u64,
    /// Processor time of the server before the burst, as a part of what it may use.
    pub cpu_share: f64,
    /// The longest latency of what was due from the beginning of the burst on.
    pub latency_peak_ms: f64,
    /// The 99th percentile of all rows.
    pub latency_ms_p99: f64,
    /// How long after the burst latencies were as before it; `None` if not until the end.
    pub recovered_s: Option<usize>,
    /// Whether the results are those of a run without scaling.
    pub is_equal: bool,
    /// What the run would cost.
    pub cost_usd: f64,
    /// How long it took to move tasks, without the start of workers.
    pub move_ms: Option<f64>,
    /// What the server said of that.
    pub moves: Vec<String>,
    /// The longest latency of what was due in each second.
    pub latency_ms: Vec<f64>,
}

impl BurstRun {
    /// The headers of its cells.
    pub const HEADERS: [&str; 10] =
        ["query", "baseline", "rate", "cpu", "peak ms", "p99 ms", "recovered s", "equal", "USD", "move ms"];

    /// The run as a row of a table.
    pub fn cells(&self) -> [String; 10] {
        [
            self.query.clone(),
            self.baseline.words().0,
            self.rate.to_string(),
            format!("{:.2}", self.cpu_share),
            format!("{:.0}", self.latency_peak_ms),
            format!("{:.0}", self.latency_ms_p99),
            self.recovered_s.map_or_else(|| "-".into(), |seconds| seconds.to_string()),
            if self.is_equal { "yes" } else { "no" }.into(),
            format!("{:.6}", self.cost_usd),
            self.move_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.0}")),
        ]
    }
}

/// How long after a burst that ended with second `end` latencies stay as they were in the seconds before its begin.
pub(super) fn recovered_s(latency_ms: &[f64], begin: usize, end: usize) -> Option<usize> {
    let calm_ms = latency_ms[begin / 2..begin].iter().copied().fold(0.0, f64::max);
    let is_late = |ms: &f64| *ms > 2.0 * calm_ms + 100.0;
    let late = latency_ms[end..].iter().rposition(is_late).map_or(0, |last| last + 1);
    (late < latency_ms.len() - end).then_some(late)
}

/// Processor time of the server for an event, while no worker is there.
#[derive(Clone, Debug, Serialize)]
pub struct BurstPrice {
    /// The query.
    pub query: String,
    /// Without `burst => true`.
    pub plain_ns: f64,
    /// With it.
    pub burst_ns: f64,
}

/// How long it takes to move many tasks.
#[derive(Clone, Debug, Serialize)]
pub struct BurstMove {
    /// The query.
    pub query: String,
    /// How many of them.
    pub tasks: usize,
    /// All of them redirected.
    pub redirect_ms: f64,
    /// All of them migrated.
    pub migrate_ms: f64,
    /// What the server said of both.
    pub moves: Vec<String>,
}

/// What a day costs if there are bursts in a part of it.
#[derive(Clone, Debug, Serialize)]
pub struct BurstCost {
    /// The part, in hundredths.
    pub share_percent: u32,
    /// Nothing is done; virtual machines; functions; always enough cores.
    pub usd: [f64; 4],
}

impl BurstCost {
    /// The headers of its cells.
    pub const HEADERS: [&str; 5] = ["bursts %", "none", "vm", "functions", "static"];

    /// For some parts.
    pub(super) fn all() -> Vec<Self> {
        let usd = |share_percent: u32| {
            let worker_hours = 24.0 * f64::from(share_percent) / 100.0;
            let kinds = [Baseline::None, Baseline::Vm, Baseline::All, Baseline::Static];
            kinds.map(|baseline| baseline.cost_usd(24.0, worker_hours))
        };
        [1, 5, 10, 15, 20, 25, 50].map(|share_percent| Self { share_percent, usd: usd(share_percent) }).into()
    }

    /// As a row of a table.
    pub fn cells(&self) -> [String; 5] {
        let [none, vm, functions, always] = self.usd.map(|usd| format!("{usd:.2}"));
        [self.share_percent.to_string(), none, vm, functions, always]
    }
}

/// All runs.
#[derive(Clone, Debug, Serialize)]
pub struct BurstReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// Why the processor time of server and workers was not limited; `None` if it was.
    pub unlimited: Option<String>,
    /// Seconds before the burst, of it, and behind it.
    pub part_s: u64,
    /// In the order in which they were made.
    pub runs: Vec<BurstRun>,
    /// What it costs that queries may burst.
    pub prices: Vec<BurstPrice>,
    /// What moves take.
    pub moves: Vec<BurstMove>,
    /// What a day costs.
    pub costs: Vec<BurstCost>,
    /// What came to no end, and why.
    pub failures: Vec<String>,
}

impl BurstReport {
    /// What stands below the tables, a line for each.
    pub fn lines(&self) -> Vec<String> {
        let prices = self.prices.iter().map(|one| {
            let (BurstPrice { query, plain_ns, burst_ns }, rise) = (one, one.burst_ns / one.plain_ns.max(1.0) - 1.0);
            format!(
                "{query}: {plain_ns:.0} ns an event, {burst_ns:.0} with burst => true and no worker ({:+.1} %)",
                rise * 100.0
            )
        });
        let moves = self.moves.iter().map(|one| {
            let BurstMove { query, tasks, redirect_ms, migrate_ms, .. } = one;
            format!("{query}: {tasks} tasks are redirected in {redirect_ms:.0} ms and migrate in {migrate_ms:.0} ms")
        });
        let unlimited = self.unlimited.iter().map(|why| format!("processor time was not limited: {why}"));
        unlimited.chain(prices).chain(moves).chain(self.failures.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_recovered_when_latencies_stay_as_before() {
        let latency_ms = [900.0, 10.0, 400.0, 900.0, 500.0, 20.0, 130.0, 120.0];
        assert_eq!(recovered_s(&latency_ms, 2, 4), Some(3));
        assert_eq!(recovered_s(&latency_ms, 2, 7), Some(0));
        assert_eq!(recovered_s(&latency_ms[..5], 2, 4), None);
    }

    #[test]
    fn workers_cost_while_they_are_there() {
        let costs = BurstCost::all();
        let [none, vm, functions, always] = costs[0].usd;
        assert!(none < vm && vm < functions && functions < always, "{costs:?}");
        assert!(costs[6].usd[2] > always);
        assert_eq!(Baseline::All.cost_usd(1.0, 0.0), Baseline::None.cost_usd(1.0, 0.0));
    }
}
