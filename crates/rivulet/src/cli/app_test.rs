//! `rivulet app test`: an application is tried here, before it is registered.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::counted::counted;
use crate::service::{Parameter, ParameterValue};
use crate::trial::{self, Expected, Report, Trial, difference, parse_event, parse_time_us, time_text};

use super::error::CliError;
use super::options::Global;
use super::output::{colours, paint};
use super::sql::read_source;

/// Shown behind the options.
pub(super) const EXAMPLES: &str = "\
Events are lines. A line with a payload is an event with its topic, any other line is the payload of the only input:
  {\"topic\": \"home/42/temperature\", \"payload\": {\"ts\": 1763712345678, \"value\": 24.8},
   \"arrival\": \"2025-11-21T08:05:46Z\"}                       all in one line
  {\"ts\": 1763712345678, \"value\": 24.8}
An event without an arrival arrives at its event time, or a second after the event before it, and never before that.

Examples:
  rivulet app test app.sql --input events.ndjson --parameters '{\"device\": \"7\"}'
  rivulet app test app.sql --input events.ndjson --parameters sets.ndjson --json > expected.ndjson
  rivulet app test app.sql --input events.ndjson --parameters sets.ndjson --expect expected.ndjson";

/// Arguments of `rivulet app test`.
#[derive(Debug, clap::Args)]
pub(super) struct TestArguments {
    /// Script with the application, its tables and, if wanted, queries
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Events, one a line; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    input: PathBuf,
    /// Values of a query as a JSON object, or a file with an object on each line, for a query each
    #[arg(short, long, value_name = "JSON or FILE")]
    parameters: Option<String>,
    /// The application that they are for, where the script has several
    #[arg(long, value_name = "NAME")]
    application: Option<String>,
    /// Results that must come, one a line, as --json prints them; exit code 1 if others do
    #[arg(short, long, value_name = "FILE")]
    expect: Option<PathBuf>,
    #[command(flatten)]
    end: End,
}

/// How long the clock goes on.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct End {
    /// How long the clock goes on behind the last event, as long as anything is open
    #[arg(long, value_name = "DURATION", value_parser = super::options::duration, default_value = "24h")]
    wait: Duration,
    /// The same as a time
    #[arg(long, value_name = "TIME", value_parser = time_us, conflicts_with = "wait")]
    until: Option<i64>,
}

fn time_us(text: &str) -> Result<i64, String> {
    parse_time_us(text).map_err(|error| error.to_string().replace("\nhint: ", "; "))
}

impl End {
    /// Lets the clock of a trial go on, and says on standard error if anything stays open.
    pub(super) fn reach(self, trial: &mut Trial, tell: &mut dyn FnMut(Report)) -> Result<(), CliError> {
        let wait_us = i64::try_from(self.wait.as_micros()).unwrap_or(i64::MAX);
        let until_us = self.until.unwrap_or_else(|| trial.now_us().saturating_add(wait_us));
        if let Some(due_us) = trial.finish(until_us, tell)? {
            let (end, due) = (time_text(until_us), time_text(due_us));
            eprintln!("the clock ends at {end}, and a timer is left for {due}: --until or --wait lets it go on");
        }
        Ok(())
    }
}

pub(super) fn run(global: Global, arguments: &TestArguments) -> Result<(), CliError> {
    let text = read_source(&arguments.file)?;
    let trial = trial::of_script(&text, arguments.file.parent().unwrap_or(Path::new("")));
    let mut trial = trial.map_err(|error| CliError::from(error).in_source(&text))?;
    add_queries(&mut trial, arguments)?;
    let expected = arguments.expect.as_deref().map(read_expected).transpose()?;
    let mut kept = Vec::new();
    let mut printer = Printer { json: global.json, left_out: None, failure: None };
    let mut tell = |report: Report| {
        match &expected {
            Some(_) if matches!(report, Report::Result { .. }) => kept.push(report),
            Some(_) => {}
            None => printer.print(&report),
        };
    };
    let outcome = feed(&mut trial, &arguments.input, &mut tell).map_err(|error| match arguments.parameters {
        Some(_) => error.in_source(&text),
        None => error.in_source(&text).with_note("--parameters gives the values of a query"),
    });
    let outcome = outcome.and_then(|()| arguments.end.reach(&mut trial, &mut tell));
    printer.end();
    outcome?;
    printer.failure.map_or(Ok(()), Err)?;
    trial.warnings().iter().for_each(|warning| {
        eprintln!("{} {warning}", paint("1;33", "warning:", colours(&io::stderr())));
    });
    let counts = trial.counts();
    let results = counted(counts.results, "result");
    eprintln!(
        "{}, {results}, {} refused, {} gave nothing at once",
        counted(counts.events, "event"),
        counts.refused,
        counts.nothing
    );
    match expected.and_then(|expected| difference(&expected, &kept)) {
        None => Ok(()),
        Some(difference) => {
            let file = arguments.expect.as_deref().unwrap_or(Path::new("")).display();
            Err(CliError::new(format!("the results are not those of {file}: {difference}")))
        }
    }
}

/// Creates a query for each set of values.
fn add_queries(trial: &mut Trial, arguments: &TestArguments) -> Result<(), CliError> {
    let sets = match &arguments.parameters {
        Some(text) if text.trim_start().starts_with('{') => vec![parameters(text, "--parameters")?],
        Some(file) => {
            let text = read_source(Path::new(file))?;
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            lines
                .map(|(place, line)| parameters(line, &format!("{file}, line {}", place + 1)))
                .collect::<Result<_, _>>()?
        }
        None if trial.has_queries() => return Ok(()),
        None => vec![Vec::new()],
    };
    let names: Vec<String> = trial.applications().map(str::to_owned).collect();
    let application = match (&arguments.application, names.as_slice()) {
        (Some(name), _) => name.clone(),
        (None, [only]) => only.clone(),
        (None, []) => return Err(CliError::new("the script has no CREATE APPLICATION")),
        (None, several) => {
            return Err(CliError::new(format!("the script has several applications: {}", several.join(", ")))
                .with_hint("--application says for which the parameters are; or write CREATE QUERY into the script"));
        }
    };
    sets.into_iter().for_each(|set| trial.create_query_with(&application, set));
    Ok(())
}

/// The values of one query.
fn parameters(text: &str, place: &str) -> Result<Vec<Parameter<'static>>, CliError> {
    let wrong =
        |what: String| CliError::new(format!("{place}: {what}")).with_hint("write {\"device\": \"7\", \"limit\": 30}");
    let object: serde_json::Map<String, Value> =
        serde_json::from_str(text).map_err(|error| wrong(format!("this is no JSON object: {error}")))?;
    let value = |(name, value): (String, Value)| {
        let value = match value {
            Value::Null => ParameterValue::Null,
            Value::Bool(value) => ParameterValue::Bool(value),
            Value::String(text) => ParameterValue::Text(text.into()),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(value), _) => ParameterValue::Int(value),
                (None, Some(value)) => ParameterValue::Float(value),
                (None, None) => return Err(wrong(format!("'{name}' is too large"))),
            },
            Value::Array(_) | Value::Object(_) => return Err(wrong(format!("'{name}' is no single value"))),
        };
        Ok((name.into(), value))
    };
    object.into_iter().map(value).collect()
}

fn read_expected(file: &Path) -> Result<Vec<Expected>, CliError> {
    let text = read_source(file)?;
    let lines = text.lines().enumerate().filter_map(|(place, line)| Expected::parse(line, place + 1).transpose());
    lines.collect::<Result<_, _>>().map_err(CliError::from)
}

/// Feeds the events of a file to a trial, line by line.
fn feed(trial: &mut Trial, file: &Path, tell: &mut dyn FnMut(Report)) -> Result<(), CliError> {
    let mut lines = Lines::open(file)?;
    while let Some((text, line)) = lines.next()? {
        trial.feed(&parse_event(&text, line)?, tell)?;
    }
    Ok(())
}

/// The lines of a file that are not empty, with their numbers.
pub(super) struct Lines {
    name: String,
    from: Box<dyn BufRead>,
    line: usize,
}

impl Lines {
    /// The most bytes of a line.
    const BYTES_MAX: u64 = 16 << 20;

    /// Opens a file; `-` is standard input.
    pub(super) fn open(file: &Path) -> Result<Self, CliError> {
        let name = file.display().to_string();
        if file == Path::new("-") {
            return Ok(Self { name, from: Box::new(io::stdin().lock()), line: 0 });
        }
        let opened = fs::File::open(file).map_err(|error| CliError::new(format!("cannot read {name}: {error}")))?;
        Ok(Self { name, from: Box::new(BufReader::new(opened)), line: 0 })
    }

    /// The next line and its number; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(String, usize)>, CliError> {
        loop {
            let mut bytes = Vec::new();
            let read = io::Read::take(&mut self.from, Self::BYTES_MAX).read_until(b'\n', &mut bytes);
            let read = read.map_err(|error| CliError::new(format!("cannot read {}: {error}", self.name)))?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            if read as u64 == Self::BYTES_MAX {
                let message = format!("line {} of {} has more than {} bytes", self.line, self.name, Self::BYTES_MAX);
                return Err(CliError::new(message));
            }
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_end_matches(['\n', '\r']);
            if !text.trim().is_empty() {
                return Ok(Some((text.to_owned(), self.line)));
            }
        }
    }
}

/// Prints reports as they come; events that one after the other gave nothing for the same reason in one line.
struct Printer {
    json: bool,
    left_out: Option<LeftOut>,
    failure: Option<CliError>,
}

struct LeftOut {
    time_us: i64,
    first: usize,
    last: usize,
    of_query: String,
    why: String,
    /// Without times, which differ.
    kind: String,
}

impl Printer {
    fn print(&mut self, report: &Report) {
        let printed = if self.json { writeln!(io::stdout(), "{}", report.to_json()) } else { self.print_text(report) };
        if let Err(error) = printed {
            self.failure.get_or_insert(error.into());
        }
    }

    fn print_text(&mut self, report: &Report) -> io::Result<()> {
        match report {
            Report::Nothing { time_us, line, query, why, .. } => {
                let of_query = query.as_ref().map_or_else(String::new, |query| format!(" ({query})"));
                let kind: String = format!("{of_query}{}", why.split(" or the clock at ").next().unwrap_or_default());
                if let Some(left_out) = self.left_out.as_mut().filter(|left_out| left_out.kind == kind) {
                    (left_out.last, left_out.why) = (*line, why.clone());
                    return Ok(());
                }
                self.flush()?;
                let (first, why) = (*line, why.clone());
                self.left_out = Some(LeftOut { time_us: *time_us, first, last: first, of_query, why, kind });
                Ok(())
            }
            Report::Result { time_us, topic, payload } => {
                self.flush()?;
                let (time, payload) = (time_text(*time_us), String::from_utf8_lossy(payload));
                writeln!(io::stdout(), "{time}  {topic}  {payload}")
            }
            Report::Refused { time_us, line, query, reason, detail, content } => {
                self.flush()?;
                let line = line.map_or_else(String::new, |line| format!("line {line} "));
                let (time, detail) = (time_text(*time_us), detail.replace("\nhint: ", "; "));
                writeln!(io::stdout(), "{time}  # {line}({query}) is refused, {reason}: {detail}: {content}")
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(LeftOut { time_us, first, last, of_query, why, .. }) = self.left_out.take() else { return Ok(()) };
        let lines = if first == last { format!("line {first}") } else { format!("lines {first} to {last}") };
        writeln!(io::stdout(), "{}  # {lines}{of_query}: no result at once: {why}", time_text(time_us))
    }

    fn end(&mut self) {
        if let Err(error) = self.flush() {
            self.failure.get_or_insert(error.into());
        }
    }
}
