//! `rivulet bench debs`: the job of the DEBS 2012 challenge, one or many of it at once in one process, and each answer
//! of each job compared with what must come out.

use std::fs;
use std::time::Duration;

use rivulet_bench::{Circumstances, debs};
use serde::Serialize;

use super::streams::job::{Job, Settings};
use super::streams::{Folder, run_apart};

/// How many readings each job has at least, and the warm-up: enough for alarms.
const READINGS_MIN: u64 = 100_000;

/// What is measured.
#[derive(Clone, Debug)]
pub struct DebsOptions {
    /// How many jobs run at once; each number is measured by itself.
    pub jobs: Vec<usize>,
    /// About how long a run takes.
    pub duration: Duration,
    /// How they are run.
    pub settings: Settings,
    /// After how long a run is given up.
    pub timeout: Duration,
}

/// So many jobs at once.
#[derive(Clone, Debug, Serialize)]
pub struct DebsRun {
    /// How many.
    pub jobs: usize,
    /// Readings a second that their sources gave, all together.
    pub readings_per_s: f64,
    /// The same for each job.
    pub readings_per_s_per_job: f64,
    /// The same for each second of processor time.
    pub readings_per_s_per_core: f64,
    /// Processor time for a reading, microseconds.
    pub cpu_us_per_reading: f64,
    /// The most memory that was resident.
    pub rss_peak_bytes: u64,
    /// Alarms of all jobs.
    pub alarms: usize,
    /// How many there must be.
    pub alarms_expected: usize,
    /// Whether all answers of all jobs are those that must come out.
    pub is_equal: bool,
}

/// All runs.
#[derive(Clone, Debug, Serialize)]
pub struct DebsReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// Whether the mean powers of the sample are golden.
    pub is_golden: bool,
    /// In the order in which they were made.
    pub runs: Vec<DebsRun>,
}

/// Makes all runs; `progress` gets a line for each.
///
/// # Errors
/// A run fails, or a file cannot be written or read.
pub fn run_debs(options: &DebsOptions, mut progress: impl FnMut(&str)) -> Result<DebsReport, String> {
    let folder = Folder::new("debs")?;
    let failed = |error: std::io::Error| format!("{}: {error}", folder.0.display());
    let run = |script: String, warm_up: Option<String>| {
        run_apart(&Job { script, warm_up, settings: options.settings.clone(), watch: None }, options.timeout)
    };
    fs::write(folder.0.join("sample.csv"), debs::SAMPLE).map_err(failed)?;
    run(debs::averages(&folder.0), None)?;
    let is_golden = debs::is_golden(&fs::read_to_string(folder.0.join("averages.csv")).map_err(failed)?);
    let warm_up = debs::script(1, READINGS_MIN, "'blackhole:'");
    let first = run(warm_up.clone(), Some(warm_up.clone()))?;
    let readings = first.events_per_s() * options.duration.as_secs_f64();
    let mut report = DebsReport { circumstances: Circumstances::now(), is_golden, runs: Vec::new() };
    for &jobs in &options.jobs {
        let of_each = ((readings / jobs as f64) as u64).max(READINGS_MIN);
        progress(&format!("{jobs} at once, {of_each} readings each ..."));
        let place = folder.0.join(jobs.to_string()).display().to_string().replace('\'', "''");
        let sink = format!("'file:{place}-{{job}}.csv' FORMAT CSV");
        let outcome = run(debs::script(jobs, of_each, &sink), Some(warm_up.clone()))?;
        let expected = debs::expected(of_each);
        let alarms_of = |answers: &[String]| answers.iter().filter(|answer| answer.ends_with("true")).count();
        let (mut alarms, mut is_equal) = (0, outcome.events == of_each * jobs as u64);
        for job in 1..=jobs {
            let texts = fs::read_to_string(folder.0.join(format!("{jobs}-{job}.csv"))).map_err(failed)?;
            let answers = debs::answers(&texts);
            alarms += alarms_of(&answers);
            is_equal &= answers == expected;
        }
        report.runs.push(DebsRun {
            jobs,
            readings_per_s: outcome.events_per_s().round(),
            readings_per_s_per_job: (outcome.events_per_s() / jobs as f64).round(),
            readings_per_s_per_core: outcome.events_per_s_per_core().round(),
            cpu_us_per_reading: (outcome.cpu_s * 1e9 / outcome.events.max(1) as f64).round() / 1e3,
            rss_peak_bytes: outcome.rss_peak_bytes,
            alarms,
            alarms_expected: jobs * alarms_of(&expected),
            is_equal,
        });
    }
    Ok(report)
}
