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
    /// Tasks are redirected to workers that wait, unless that does not pay; those that take no state along first
    All,
    /// Nothing; the server always has four times as many cores
    Static,
}

impl Baseline {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().unwrap_or_default().get_name().to_owned()
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
    /// Processor time of the server and of the workers within the burst, after tasks have moved, in cores.
    pub burst_cores: Option<[f64; 2]>,
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
            self.baseline.name(),
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

/// What it costs that a query may burst, and to move its tasks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BurstPrice {
    /// The query.
    pub query: String,
    /// Processor time of the server for an event, while no worker is there, without `burst => true`.
    pub plain_ns: f64,
    /// The same with it.
    pub burst_ns: f64,
    /// Of q1, how many tasks are moved at once.
    pub tasks: usize,
    /// How long it takes to redirect them.
    pub redirect_ms: f64,
    /// How long their query takes to migrate.
    pub migrate_ms: f64,
    /// What the server said of both.
    pub moves: Vec<String>,
}

/// What a day costs if there are bursts in a part of it, in USD.
#[derive(Clone, Debug, Serialize)]
pub struct BurstCost {
    /// The part, in hundredths.
    pub share_percent: u32,
    /// If nothing is done.
    pub none: f64,
    /// With virtual machines.
    pub vm: f64,
    /// With functions.
    pub all: f64,
    /// With enough cores all the time.
    pub always: f64,
}

impl BurstCost {
    /// For some parts.
    pub(super) fn some() -> Vec<Self> {
        let of = |share_percent: u32| {
            let usd = |baseline: Baseline| baseline.cost_usd(24.0, 24.0 * f64::from(share_percent) / 100.0);
            let [none, vm, all, always] = [Baseline::None, Baseline::Vm, Baseline::All, Baseline::Static].map(usd);
            Self { share_percent, none, vm, all, always }
        };
        [1, 5, 10, 15, 20, 25, 50].map(of).into()
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
    /// What a day costs.
    pub costs: Vec<BurstCost>,
    /// What came to no end, and why.
    pub failures: Vec<String>,
}

impl BurstReport {
    /// What stands below the table, a line for each.
    pub fn lines(&self) -> Vec<String> {
        let prices = self.prices.iter().map(|BurstPrice { query, plain_ns, burst_ns, .. }| {
            format!("{query}: {plain_ns:.0} ns an event, {burst_ns:.0} ns with burst => true and no worker")
        });
        let moved = self.prices.iter().filter(|price| price.tasks > 0);
        let moves = moved.map(|BurstPrice { query, tasks, redirect_ms, migrate_ms, .. }| {
            format!("{query}: {tasks} tasks are redirected in {redirect_ms:.0} ms, and migrate in {migrate_ms:.0} ms")
        });
        let costs = self.costs.iter().map(|BurstCost { share_percent, none, vm, all, always }| {
            format!(
                "bursts in {share_percent} % of a day: USD {none:.2} none, {vm:.2} vm, {all:.2} all, {always:.2} static"
            )
        });
        let unlimited = self.unlimited.iter().map(|why| format!("processor time was not limited: {why}"));
        unlimited.chain(prices).chain(moves).chain(costs).chain(self.failures.iter().cloned()).collect()
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
        let costs = BurstCost::some();
        let BurstCost { none, vm, all, always, .. } = costs[0];
        assert!(none < vm && vm < all && all < always && always < costs[6].all, "{costs:?}");
        assert_eq!(Baseline::All.cost_usd(1.0, 0.0), Baseline::None.cost_usd(1.0, 0.0));
    }
}
