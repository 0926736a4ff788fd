//! `rivulet query bulk`: many queries from a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::api::types::{BulkAnswer, BulkOutcome};
use crate::cli::error::CliError;
use crate::cli::options::Global;
use crate::cli::output::{colours, paint, print_json};
use crate::counted::counted;
use crate::http_client::Client;
use crate::service::ErrorKind;

/// How often progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Refused lines that are shown; the others are only counted.
const SHOWN_MAX: u64 = 10;

/// Different things to tell of changed queries; further ones are counted together.
const TOLD_MAX: usize = 16;

/// What becomes of a line whose name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// It is refused.
    Refuse,
    /// It is passed over.
    Skip,
    /// The query gets its values.
    Replace,
}

/// Submits the lines of a file and says how many were created. With `--json` the server's answers go to standard
/// output, line by line, and nothing else is said; with `names` the names of the new queries do.
pub(super) fn run(
    global: Global,
    client: &Client,
    file: &Path,
    names: bool,
    existing: Existing,
) -> Result<(), CliError> {
    let input: Box<dyn Read + Send> = if file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let open = File::open(file);
        Box::new(open.map_err(|error| CliError::new(format!("cannot read {}: {error}", file.display())))?)
    };
    let mut bulk = Bulk {
        out: BufWriter::new(io::stdout().lock()),
        json: global.json,
        names,
        existing,
        progress: io::stderr().is_terminal() && !global.json,
        started: Instant::now(),
        shown: Instant::now(),
        created: 0,
        changed: 0,
        unchanged: 0,
        skipped: 0,
        refused: 0,
        told: BTreeMap::new(),
    };
    let sent = client.submit_bulk(input, existing == Existing::Replace, |answer| bulk.take(answer));
    // What was answered is told even if the rest failed.
    bulk.finish()?;
    sent.map_err(|error| {
        let goes_on = error.is_unavailable() && bulk.answered() > bulk.refused;
        if goes_on { error.with_hint(bulk.how_to_go_on()) } else { error }
    })?;
    if bulk.refused > 0 { Err(CliError::reported()) } else { Ok(()) }
}

struct Bulk<W: Write> {
    out: W,
    json: bool,
    names: bool,
    existing: Existing,
    progress: bool,
    started: Instant,
    shown: Instant,
    created: u64,
    changed: u64,
    unchanged: u64,
    skipped: u64,
    refused: u64,
    /// What changed queries are to be told of, with how many of them.
    told: BTreeMap<String, u64>,
}

impl<W: Write> Bulk<W> {
    fn take(&mut self, answer: BulkAnswer) -> Result<(), CliError> {
        if self.json {
            print_json(&mut self.out, &answer)?;
        }
        match (answer.error, answer.name) {
            (Some(error), _) if self.existing == Existing::Skip && error.kind == ErrorKind::AlreadyExists.name() => {
                self.skipped += 1;
            }
            (Some(error), _) => {
                self.refused += 1;
                if self.json {
                    // The answer says it.
                } else if self.refused <= SHOWN_MAX {
                    self.clear_progress();
                    let label = paint("1;31", "error:", colours(&io::stderr()));
                    eprintln!("{label} line {}: {}", answer.line, error.message);
                    if let Some(hint) = error.hint {
                        eprintln!("{} {hint}", paint("1;36", "hint:", colours(&io::stderr())));
                    }
                } else if self.refused == SHOWN_MAX + 1 {
                    self.clear_progress();
                    eprintln!("more lines were refused; --json shows every answer");
                }
            }
            (None, _) if answer.outcome == Some(BulkOutcome::Changed) => {
                self.changed += 1;
                let reset = (!answer.state_reset.is_empty()).then(|| reset(&answer.state_reset, &answer.begun_anew));
                let warning = answer.warning.map(|warning| format!("warning: {warning}"));
                reset.into_iter().chain(warning).for_each(|what| self.tell(what));
            }
            (None, _) if answer.outcome == Some(BulkOutcome::Unchanged) => self.unchanged += 1,
            (None, name) => {
                self.created += 1;
                if self.names && !self.json {
                    writeln!(self.out, "{}", name.unwrap_or_default())?;
                }
            }
        }
        // Looking at the clock for every answer would cost more than the answer.
        if self.progress && self.answered().is_multiple_of(256) && self.shown.elapsed() >= PROGRESS_INTERVAL {
            self.shown = Instant::now();
            eprint!("\r{}", self.summary());
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), CliError> {
        self.out.flush()?;
        self.clear_progress();
        if !self.json {
            eprintln!("{}", self.summary());
            for (what, queries) in &self.told {
                eprintln!("{what}: {}", counted(*queries, "query"));
            }
        }
        Ok(())
    }

    /// Counts a query of which this is to be told.
    fn tell(&mut self, what: String) {
        let what = match self.told.len() < TOLD_MAX || self.told.contains_key(&what) {
            true => what,
            false => "state begins anew, or a warning, for other reasons; --json shows every answer".to_owned(),
        };
        *self.told.entry(what).or_default() += 1;
    }

    fn clear_progress(&self) {
        if self.progress {
            eprint!("\r\x1b[K");
        }
    }

    fn answered(&self) -> u64 {
        self.created + self.changed + self.unchanged + self.skipped + self.refused
    }

    fn summary(&self) -> String {
        let seconds = self.started.elapsed().as_secs_f64().max(1e-6);
        let rate = (self.answered() as f64 / seconds).round() as u64;
        let existing = match self.existing {
            Existing::Refuse => String::new(),
            Existing::Skip => format!("{} skipped, ", self.skipped),
            Existing::Replace => format!("{} changed, {} unchanged, ", self.changed, self.unchanged),
        };
        let created = counted(self.created, "query");
        format!("{created} created, {existing}{} refused, {rate} lines/s", self.refused)
    }

    /// What to do after the server went away in the middle. More may be created than it came to answer.
    fn how_to_go_on(&self) -> String {
        if self.existing == Existing::Replace {
            return "when the server runs again, run this again: queries that have their values are left".to_owned();
        }
        let created = self.created + self.skipped;
        let verb = if created == 1 { "is" } else { "are" };
        format!("{created} {verb} created; when the server runs again, run this again with --skip-existing")
    }
}

/// What has begun anew because of these parameters.
fn reset(parameters: &[String], operators: &[String]) -> String {
    let parameters = parameters.join(", ");
    match operators.is_empty() {
        true => format!("reads other events because of {parameters}"),
        false => format!("state begins anew because of {parameters} ({})", operators.join("; ")),
    }
}
