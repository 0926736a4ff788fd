//! `rivulet bench nexmark`: the queries of the benchmark, one after the other, each in a process of its own.

use std::path::Path;
use std::time::Duration;

use rivulet_bench::Circumstances;
use rivulet_bench::nexmark::{FileFormat, Input, Output, Query, Stream, write_side_input, write_stream};

use super::streams::job::{Job, Settings};
use super::streams::report::StreamsReport;
use super::streams::{Folder, run_apart};

/// Where the results go: the benchmark measures the query.
const SINK: &str = "'blackhole:'";
/// The part of the events that the warm-up has.
const WARM_UP_PART: u64 = 10;
/// And how many at most.
const WARM_UP_EVENTS_MAX: u64 = 1_000_000;

/// What is measured.
#[derive(Clone, Debug)]
pub struct NexmarkOptions {
    /// The queries.
    pub queries: Vec<&'static Query>,
    /// The events.
    pub stream: Stream,
    /// Whether they are read from files that are written before, instead of being generated beside the query.
    pub files: Option<FileFormat>,
    /// How they are run.
    pub settings: Settings,
    /// After how long a query is given up.
    pub timeout: Duration,
}

/// Runs the queries; `progress` gets a line for each.
///
/// # Errors
/// Files that cannot be written. A query that fails is a row of the report.
pub fn run_nexmark(options: &NexmarkOptions, mut progress: impl FnMut(&str)) -> Result<StreamsReport, String> {
    let folder = Folder::new("nexmark")?;
    let side_input = folder.0.join("side_input.csv");
    write_side_input(&side_input).map_err(|error| format!("cannot write {}: {error}", side_input.display()))?;
    let warm_up = Stream {
        events: (options.stream.events / WARM_UP_PART).clamp(1, WARM_UP_EVENTS_MAX),
        rate: 0,
        ..options.stream.clone()
    };
    let warm_up_folder = folder.0.join("warm_up");
    if let Some(format) = options.files {
        progress("writing the events to files");
        write_stream(&options.stream, &folder.0, format).map_err(|error| error.to_string())?;
        write_stream(&warm_up, &warm_up_folder, format).map_err(|error| error.to_string())?;
    }
    let script = |query: &Query, stream, folder: &Path| {
        let input = options.files.map_or(Input::Generator(stream), |format| Input::Files(folder, format));
        query.script(input, Output::Sink(SINK), &side_input)
    };
    let mut queries = Vec::new();
    for query in &options.queries {
        let job = Job {
            script: script(query, &options.stream, &folder.0),
            warm_up: Some(script(query, &warm_up, &warm_up_folder)),
            settings: options.settings.clone(),
            watch: None,
        };
        let outcome = run_apart(&job, options.timeout);
        progress(&match &outcome {
            Ok(outcome) => format!("{}: {:.0} events/s per core", query.name, outcome.events_per_s_per_core()),
            Err(_) => format!("{}: failed", query.name),
        });
        queries.push((query.name.to_owned(), outcome));
    }
    let source = match options.files {
        None => "generated beside the query".to_owned(),
        Some(format) => format!("read from {} files", format.ending()),
    };
    Ok(StreamsReport {
        circumstances: Circumstances::now(),
        settings: options.settings.clone(),
        input: format!("{} events, {source}", options.stream.events),
        queries,
    })
}
