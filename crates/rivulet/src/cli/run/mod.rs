//! `rivulet run`: scripts of big queries and applications, and jobs in JSON, here and now.

mod analyze;
mod applications;
mod arguments;
mod graph;
mod progress;
mod writer;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rivulet_dataflow::Reason;

use crate::counted::counted;
use crate::run::results::Results;
use crate::run::{RunOptions, RunReport, Runner, Running};
use crate::script::{Planned, Script, Step};

use super::error::CliError;
use super::options::Global;
use super::output::print_json;
use super::signals::stop_on_signal;
use super::sql::read_source;
use arguments::LOOK_PERIOD;
pub(super) use arguments::{EXAMPLES, RunArguments};
use graph::{Statements, statements};
use progress::Progress;
use writer::{Layout, Writer};

pub(super) fn run(global: Global, arguments: &RunArguments) -> Result<(), CliError> {
    let text = match (&arguments.command, &arguments.file) {
        (Some(command), _) => command.clone(),
        (None, file) => read_source(file.as_deref().unwrap_or(Path::new("-")))?,
    };
    let is_job = arguments.file.as_deref().and_then(Path::extension).is_some_and(|end| end == "json");
    let job = is_job.then(|| statements(&text)).transpose();
    let job = job.map_err(|error| CliError::from(error).in_source(&text))?;
    let script = job.as_ref().map_or(text, Statements::sql);
    let mut console = Console { global, arguments, stop: Arc::default(), beside: Vec::new() };
    stop_on_signal(console.stop.clone())?;
    console.run(&script).map_err(|error| match &job {
        Some(job) => error.in_place(|line| job.place(line)),
        None => error.in_source(&script),
    })
}

struct Console<'a> {
    global: Global,
    arguments: &'a RunArguments,
    stop: Arc<AtomicBool>,
    /// Queries that go on beside the statements that follow.
    beside: Vec<(Named, Running)>,
}

/// How a query is called, and the file with content that its result replaces.
#[derive(Clone)]
struct Named {
    name: String,
    replaces: Option<(PathBuf, u64)>,
}

impl Named {
    fn of(planned: &Planned) -> Self {
        let bytes =
            |file: &PathBuf| std::fs::metadata(file).ok().map(|metadata| metadata.len()).filter(|&bytes| bytes > 0);
        let replaces = planned.replaces.as_ref().and_then(|file| Some((file.clone(), bytes(file)?)));
        Self { name: planned.name.clone(), replaces }
    }
}

impl Console<'_> {
    fn run(&mut self, text: &str) -> Result<(), CliError> {
        let folder = self.arguments.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let mut script = Script::parse_in(text, folder)?;
        if self.arguments.input.is_some() && !script.has_queries_of_applications() {
            let message = "nothing reads --input: the script has no query of an application";
            return Err(CliError::new(message).with_hint(
                "CREATE QUERY name FROM APPLICATION ... makes one; a big query reads its sources alone: FROM 'stdin:', \
                 'file:...', or 'mqtt:...' WITH (broker => 'mqtt://localhost:1883')",
            ));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let parallelism = self.arguments.parallelism.unwrap_or(cores).clamp(1, 1024);
        let options = RunOptions::new(parallelism);
        let runner = Runner::new(options)?;
        while let Some(step) = script.next_step()? {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            match step {
                Step::Run(planned) => self.start(&runner, &planned, script.has_more())?,
                Step::Applications(trial) => applications::run(self.global, self.arguments, &self.stop, *trial)?,
                Step::Show(text) => writeln!(io::stdout(), "{}", text.trim_end())?,
                Step::Analyze(planned) => {
                    let running =
                        runner.start(&planned.host, &planned.plan, &planned.name, Some(Box::new(writer::Nothing)))?;
                    let report = self.wait(&Named::of(&planned), &running)?;
                    if self.global.json {
                        print_json(&mut io::stdout(), &analyze::json(&planned.plan, &report))?;
                    } else {
                        let text = analyze::text(&planned.plan, &report) + &analyze::workers(&runner);
                        writeln!(io::stdout(), "{}", text.trim_end())?;
                    }
                }
            }
        }
        for (name, running) in std::mem::take(&mut self.beside) {
            self.wait(&name, &running)?;
        }
        Ok(())
    }

    /// Runs a query to its end, or lets it go on if it has none in sight.
    fn start(&mut self, runner: &Runner, planned: &Planned, more_follows: bool) -> Result<(), CliError> {
        let layout = if self.global.json { Layout::Json } else { self.arguments.format };
        let results = match planned.plan.output.sink {
            Some(_) => None,
            None => {
                let writer = Writer::new(&planned.plan.output, layout, self.arguments.changes, self.arguments.rows)?;
                Some(Box::new(writer) as Box<dyn Results>)
            }
        };
        let (shows, named) = (results.is_some(), Named::of(planned));
        let running = runner.start(&planned.host, &planned.plan, &planned.name, results)?;
        let goes_on = planned.goes_on || (!running.is_bounded() && more_follows && !shows);
        if goes_on {
            self.beside.push((named, running));
            return Ok(());
        }
        self.wait(&named, &running).map(drop)
    }

    /// Waits for the end of a query, says how far it is, and what it did.
    fn wait(&self, named: &Named, running: &Running) -> Result<RunReport, CliError> {
        let name = &named.name;
        let mut progress = Progress::new(self.arguments.quiet);
        let mut asked = false;
        let ended = loop {
            if let Some(ended) = running.wait(LOOK_PERIOD) {
                break ended;
            }
            if self.stop.load(Ordering::Relaxed) && !asked {
                running.stop();
                asked = true;
            }
            progress.show(&running.report());
        };
        progress.clear();
        let report = ended?;
        progress.finish(name, &report);
        self.tell_refused(name, &report);
        if let (Some((file, bytes)), 0) = (&named.replaces, report.flow.rows_out) {
            eprintln!("{name}: no row was written; {}, which had {bytes} bytes, has no row any more", file.display());
        }
        // Late rows belong to what was asked for.
        let failures = Reason::ALL.into_iter().filter(|&reason| reason != Reason::Late);
        let refused: u64 = failures.map(|reason| report.flow.refused[reason as usize]).sum();
        match report.flow.rows_out == 0 && refused > 0 {
            true => Err(CliError::new(format!("{name} wrote no row and refused {}", counted(refused, "row")))
                .with_hint("do the columns of the source fit to what it reads?")),
            false => Ok(report),
        }
    }

    /// Rows that were not processed are never passed over in silence.
    fn tell_refused(&self, name: &str, report: &RunReport) {
        let refused = &report.flow.refused;
        if refused.iter().all(|&count| count == 0) {
            return;
        }
        let reasons = Reason::ALL.into_iter().filter(|&reason| refused[reason as usize] > 0);
        let counts: Vec<String> =
            reasons.map(|reason| format!("{} {}", refused[reason as usize], reason.name())).collect();
        eprintln!("{name}: rows refused: {}", counts.join(", "));
        report.flow.refusals.iter().take(5).for_each(|one| eprintln!("  {one}"));
    }
}
