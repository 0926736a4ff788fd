//! One script under measurement, from inside the process that runs it.

use std::fs;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;
use rivulet_bench::riot::Task;
use rivulet_dataflow::Reason;
use rivulet_runtime::Consume;
use serde::{Deserialize, Serialize};

use crate::bench::policies::policy;
use crate::run::{RunOptions, Runner};
use crate::script::{Planned, Script, Step};
use crate::service::ServiceError;

/// What is to be run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The script; its last query is measured, and with it those that `CREATE QUERY` starts before.
    pub script: String,
    /// The same with less input, run before so that memory, tables and branches are as they are in the midst of a long
    /// run.
    pub warm_up: Option<String>,
    /// How it is run.
    pub settings: Settings,
    /// How it is watched, if it is.
    pub watch: Option<Watch>,
}

/// How a run is bounded, while its tasks are looked at again and again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watch {
    /// How many cores the process has.
    pub cores: usize,
    /// After how long the query is stopped; it is not if there is none.
    pub elapsed_max: Option<Duration>,
}

/// How queries under measurement are run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Worker threads, and instances of operators.
    pub parallelism: usize,
    /// The name of the policy by which workers take tasks.
    pub policy: String,
    /// How much of what waits a task takes, as it is configured.
    pub consume: String,
}

/// What it took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Rows read from the sources.
    pub events: u64,
    /// Rows handed to the sink, those included that took back others.
    pub results: u64,
    /// Rows refused, by reason; reasons without any are left out.
    pub refused: Vec<(String, u64)>,
    /// From start to end.
    pub elapsed_s: f64,
    /// Processor time of the whole process meanwhile.
    pub cpu_s: f64,
    /// The most memory that was resident.
    pub rss_peak_bytes: u64,
    /// From the arrival of rows, by the schedule if there is a rate, to the writing of their results: median, 95th and
    /// 99th percentile, longest. None if there was no result.
    pub latency_us: Option<[u64; 4]>,
    /// What its tasks did, if it was watched.
    pub tasks: Vec<Task>,
    /// Rows that waited for each of them, by the seconds since the start.
    pub pending: Vec<(f64, Vec<u64>)>,
}

/// Runs a job.
///
/// # Errors
/// The script is wrong, or something that it reads or writes.
pub fn run(job: &Job) -> Result<Outcome, ServiceError> {
    let policy = policy(&job.settings.policy).map_err(ServiceError::invalid)?;
    let consume: Consume = job.settings.consume.parse().map_err(ServiceError::invalid)?;
    let options = RunOptions { policy, consume, ..RunOptions::new(job.settings.parallelism) };
    if let Some(watch) = &job.watch {
        // Before there is a second thread: threads have the cores of the one that starts them.
        stay_on(watch.cores)?;
    }
    if let Some(warm_up) = &job.warm_up {
        run_script(warm_up, options, None)?;
    }
    reset_peak();
    run_script(&job.script, options, job.watch.as_ref())
}

/// Leaves this thread only so many of its cores.
fn stay_on(cores: usize) -> Result<(), ServiceError> {
    let bind = || {
        let all = sched_getaffinity(Pid::from_raw(0))?;
        let mut some = CpuSet::new();
        let own = (0..CpuSet::count()).filter(|core| all.is_set(*core) == Ok(true)).take(cores);
        let bound = own.map(|core| some.set(core)).collect::<Result<Vec<_>, _>>()?.len();
        sched_setaffinity(Pid::from_raw(0), &some).map(|()| bound)
    };
    let failed = |error| ServiceError::invalid(format!("the process cannot stay on {cores} cores: {error}"));
    match bind().map_err(failed)? {
        bound if bound == cores => Ok(()),
        bound => Err(ServiceError::invalid(format!("there are {bound} cores, and not {cores}"))),
    }
}

/// Runs a script; the outcome is that of its last query, and of those that run beside it.
fn run_script(text: &str, options: RunOptions, watch: Option<&Watch>) -> Result<Outcome, ServiceError> {
    let runner = Runner::new(options)?;
    let mut script = Script::parse(text)?;
    let (mut beside, mut outcome) = (Vec::new(), None);
    while let Some(step) = script.next_step()? {
        match step {
            Step::Run(planned) if planned.goes_on && script.has_more() => beside.push(planned),
            Step::Run(planned) => outcome = Some(run_query(&runner, &planned, &beside, watch)?),
            _ => {}
        }
    }
    outcome.ok_or_else(|| ServiceError::invalid("the script has no query"))
}

fn run_query(
    runner: &Runner,
    planned: &Planned,
    beside: &[Planned],
    watch: Option<&Watch>,
) -> Result<Outcome, ServiceError> {
    /// How long one wait is; whoever started this process ends it if it takes too long.
    const WAIT: Duration = Duration::from_secs(3_600);
    /// How often a query that is watched is looked at.
    const LOOK: Duration = Duration::from_millis(100);
    let mut pending = Vec::new();
    let (begun, cpu_before_s) = (Instant::now(), cpu_s());
    let start = |one: &Planned| runner.start(&one.host, &one.plan, &one.name, None);
    let others = beside.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let running = start(planned)?;
    let mut flow = loop {
        if let Some(ended) = running.wait(if watch.is_some() { LOOK } else { WAIT }) {
            break ended?.flow;
        }
        let Some(watch) = watch else { continue };
        let tasks = running.report().tasks;
        let elapsed = begun.elapsed();
        pending.push((elapsed.as_secs_f64(), tasks.iter().map(|task| task.waiting_rows as u64).collect()));
        if watch.elapsed_max.is_some_and(|most| elapsed >= most) {
            [&running].into_iter().chain(&others).for_each(|one| one.flow().stop(false));
        }
    };
    for other in others {
        let ended = loop {
            if let Some(ended) = other.wait(WAIT) {
                break ended?.flow;
            }
        };
        flow.rows_in += ended.rows_in;
        flow.rows_out += ended.rows_out;
    }
    let elapsed_s = begun.elapsed().as_secs_f64();
    let reasons = Reason::ALL.iter().zip(flow.refused).filter(|(_, rows)| *rows > 0);
    let latency = &flow.latency_us;
    Ok(Outcome {
        events: flow.rows_in,
        results: flow.rows_out,
        refused: reasons.map(|(reason, rows)| (reason.name().to_owned(), rows)).collect(),
        elapsed_s,
        cpu_s: cpu_s() - cpu_before_s,
        rss_peak_bytes: rss_peak_bytes(),
        latency_us: (latency.count() > 0)
            .then(|| [0.5, 0.95, 0.99].map(|quantile| latency.quantile_us(quantile)))
            .map(|[p50, p95, p99]| [p50, p95, p99, latency.max_us()]),
        tasks: flow.tasks.iter().filter(|_| watch.is_some()).map(|task| Task::of(task, flow.window_us)).collect(),
        pending,
    })
}

/// Processor time of this process so far, threads that have ended included. Nothing where the kernel does not tell.
fn cpu_s() -> f64 {
    let seconds = |usage: nix::sys::resource::Usage| {
        let times = [usage.user_time(), usage.system_time()];
        times.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum::<f64>()
    };
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, seconds)
}

/// The most memory that was resident since [`reset_peak`].
fn rss_peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// Lets the peak begin again at what is resident now. Where the kernel refuses, the warm-up counts too.
fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}
