//! `rivulet bench burst`: the experiments of the Sponge paper on one machine. A query has five times as many events for
//! a while, and gets more cores in one way or another. Server and workers are processes of their own, and each may use
//! a given part of the machine.
//!
//! - [`report`]: what is done about a burst, and what a run has found; [`page`]: the same with plots;
//! - [`cell`]: a query under measurement; [`limit`]: how much processor time its processes may have.

mod report;
mod cell;
mod limit;
mod page;

use std::time::{Duration, Instant};

use rivulet_bench::Circumstances;
use rivulet_bench::nexmark::Query;

use cell::{Cell, Feed, PARTS, Seen};
use limit::Limit;
pub use page::html;
pub use report::{Baseline, BurstReport, BurstRun};
use report::{BurstCost, BurstPrice, SERVER_CORES, recovered_s};

/// In how many tasks operators run.
const INSTANCES: usize = 4;

/// How many tasks are moved where only that is measured, and their events a second. The server may use all cores then.
const MOVED_TASKS: usize = 100;
const MOVED_RATE: u64 = 100_000;

/// So long after a burst begins or ends, something is done about it.
const DECISION: Duration = Duration::from_secs(1);

/// Tasks come back once results are at most so much later than before the burst, and all of the query uses at most this
/// part of the server; before the last part of the run in any case.
const BEHIND: Duration = Duration::from_millis(500);
const USED: f64 = 0.8;

/// How long the server's processor time is looked at for one rate, at most; and as long is not looked before.
const LOOK_S_MAX: u64 = 5;

/// The first rate of a search, how many rates it tries, and what part of its time the server should use.
const RATE_FIRST: u64 = 10_000;
const RATES_MAX: usize = 6;
const SHARES: std::ops::RangeInclusive<f64> = 0.6..=0.8;

/// What is measured.
#[derive(Clone, Debug)]
pub struct BurstOptions {
    /// The queries.
    pub queries: Vec<&'static Query>,
    /// What is done about bursts.
    pub baselines: Vec<Baseline>,
    /// How many seconds a burst lasts, and as many before and behind it; the seconds of windows.
    pub part_s: u64,
    /// Events a second without a burst; by default they are searched for.
    pub rate: Option<u64>,
}

/// Makes all runs; `progress` gets a line for each. What fails is in the report.
pub fn run_burst(options: &BurstOptions, mut progress: impl FnMut(&str)) -> BurstReport {
    let mut report = BurstReport {
        circumstances: Circumstances::now(),
        unlimited: Limit::new("trial", SERVER_CORES).err(),
        part_s: options.part_s,
        runs: Vec::new(),
        prices: Vec::new(),
        costs: BurstCost::some(),
        failures: Vec::new(),
    };
    for query in &options.queries {
        let done = run_query(query, options, &mut report, &mut progress);
        report.failures.extend(done.err().map(|error| format!("{}: {error}", query.name)));
    }
    report
}

fn run_query(
    query: &Query,
    options: &BurstOptions,
    report: &mut BurstReport,
    progress: &mut impl FnMut(&str),
) -> Result<(), String> {
    let calm = Feed { rate: RATE_FIRST, part_s: options.part_s, has_burst: false, is_paced: true };
    let rate = match options.rate {
        Some(rate) => rate,
        None => search(query, calm, progress)?,
    };
    let calm = Feed { rate, ..calm };
    let ns = |cores: f64| cores * 1e9 / rate as f64;
    let [plain_ns, burst_ns] = [cores(query, calm, false)?, cores(query, calm, true)?].map(ns);
    let mut price = BurstPrice { query: query.name.into(), plain_ns, burst_ns, ..BurstPrice::default() };
    if query.name == "q1" {
        progress(&format!("{}: {MOVED_TASKS} tasks ...", query.name));
        move_many(query, Feed { rate: MOVED_RATE, ..calm }, &mut price)?;
    }
    report.prices.push(price);
    let feed = Feed { has_burst: true, ..calm };
    progress(&format!("{} without a clock, at {rate} events/s of event time ...", query.name));
    let unscaled = Cell::start(query, Feed { is_paced: false, ..feed }, false, INSTANCES, None)?.finish()?;
    for &baseline in &options.baselines {
        progress(&format!("{} with {} ...", query.name, baseline.name()));
        match measure(query, feed, baseline, &unscaled) {
            Ok(run) => report.runs.push(run),
            Err(error) => report.failures.push(format!("{} with {}: {error}", query.name, baseline.name())),
        }
    }
    Ok(())
}

/// Cores that the server uses for a query.
fn cores(query: &Query, feed: Feed, is_burst: bool) -> Result<f64, String> {
    let mut cell = Cell::start(query, feed, is_burst, INSTANCES, Some(SERVER_CORES))?;
    let look = Duration::from_secs(feed.part_s.min(LOOK_S_MAX));
    std::thread::sleep(look);
    Ok(cell.cores(look))
}

/// The rate at which the server uses a good part of its time, but not all of it.
fn search(query: &Query, feed: Feed, progress: &mut impl FnMut(&str)) -> Result<u64, String> {
    let mut rate = feed.rate;
    for _ in 0..RATES_MAX {
        let share = cores(query, Feed { rate, ..feed }, true)? / SERVER_CORES;
        progress(&format!("{}: {rate} events/s use {share:.2} of the server", query.name));
        if SHARES.contains(&share) {
            break;
        }
        // A server that has no time left may want any multiple of it.
        let factor = if share > 0.9 { 0.5 } else { (0.7 / share.max(0.01)).min(8.0) };
        rate = ((rate as f64 * factor) as u64).max(100);
    }
    Ok(rate)
}

/// How long it takes to move many tasks, all at once.
fn move_many(query: &Query, feed: Feed, price: &mut BurstPrice) -> Result<(), String> {
    let mut cell = Cell::start(query, feed, true, MOVED_TASKS, None)?;
    cell.start_workers()?;
    let (redirect, redirected) = cell.send(false, &["ALL".into()]);
    cell.bring_back(false)?;
    let (migrate, migrated) = cell.send(true, &["ALL".into()]);
    (price.tasks, price.moves) = (MOVED_TASKS, [redirected, migrated].concat());
    [price.redirect_ms, price.migrate_ms] = [redirect, migrate].map(|time| time.as_secs_f64() * 1e3);
    Ok(())
}

fn measure(query: &Query, feed: Feed, baseline: Baseline, unscaled: &Seen) -> Result<BurstRun, String> {
    let mut cell = Cell::start(query, feed, baseline.bursts(), INSTANCES, Some(baseline.cores()))?;
    let (begun, part) = (cell.begun, Duration::from_secs(feed.part_s));
    let sleep_until = |after: Duration| std::thread::sleep((begun + after).saturating_duration_since(Instant::now()));
    let (mut move_ms, mut moves, mut workers) = (None, Vec::new(), Duration::ZERO);
    if baseline.bursts() && baseline.start_delay().is_none() {
        cell.start_workers()?;
    }
    sleep_until(part / 2);
    let cpu_share = cell.cores((begun + part).saturating_duration_since(Instant::now())) / baseline.cores();
    let (calm, mut burst_cores) = (cell.behind()?, None);
    if baseline.bursts() {
        let operators = cell.redirected(baseline)?;
        sleep_until(part + DECISION);
        let decided = Instant::now();
        if let Some(delay) = baseline.start_delay() {
            std::thread::sleep(delay);
            cell.start_workers()?;
        }
        let (time, said) = cell.send(baseline.migrates(), &operators);
        (move_ms, moves) = (Some(time.as_secs_f64() * 1e3), said);
        let (used_s, since) = (cell.used_s(), Instant::now());
        sleep_until(2 * part);
        let (now_s, seconds) = (cell.used_s(), since.elapsed().as_secs_f64());
        // Not if the burst was over when tasks had moved.
        burst_cores = (seconds >= 1.0).then(|| [0, 1].map(|place| (now_s[place] - used_s[place]) / seconds));
        sleep_until(2 * part + DECISION);
        // What waits would wait for the server alone.
        while begun.elapsed() < (PARTS as u32 - 1) * part {
            let used_s: f64 = cell.used_s().iter().sum();
            std::thread::sleep(DECISION);
            let now_s: f64 = cell.used_s().iter().sum();
            let cores = (now_s - used_s) / DECISION.as_secs_f64();
            if cell.behind()? < calm + BEHIND && cores < USED * baseline.cores() {
                break;
            }
        }
        match cell.bring_back(baseline.migrates()) {
            Ok(_) => cell.workers.clear(),
            // They stay to the end.
            Err(error) => moves.push(error),
        }
        workers = decided.elapsed();
    }
    sleep_until(PARTS as u32 * part);
    let seen = cell.finish()?;
    let latency_ms: Vec<f64> = seen.latest_us.iter().map(|us| *us as f64 / 1e3).collect();
    let begin = latency_ms.len() / PARTS as usize;
    Ok(BurstRun {
        query: query.name.into(),
        baseline,
        rate: feed.rate,
        cpu_share,
        burst_cores,
        latency_peak_ms: latency_ms[begin..].iter().copied().fold(0.0, f64::max),
        latency_ms_p99: seen.latencies.percentile_us(99.0) as f64 / 1e3,
        recovered_s: recovered_s(&latency_ms, begin, 2 * begin),
        is_equal: seen.rows == unscaled.rows,
        cost_usd: baseline.cost_usd(feed.total_s() as f64 / 3_600.0, workers.as_secs_f64() / 3_600.0),
        move_ms,
        moves,
        latency_ms,
    })
}
