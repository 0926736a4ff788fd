//! Queries of applications in a script: their events come from files or standard input, and their results go there.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};

use crate::cli::app_test::Lines;
use crate::cli::error::CliError;
use crate::cli::options::Global;
use crate::counted::counted;
use crate::trial::{Event, Report, Trial, parse_event, time_text};

use super::arguments::{LOOK_PERIOD, RunArguments};

/// What the topic begins with of an input or output that is a file.
const FILE: &str = "file:";

/// How many lines of a source are read ahead.
const LINES_AHEAD: usize = 1_024;

/// How many files of results are open at a time.
const FILES_OPEN_MAX: usize = 128;

/// How many refused rows are shown.
const REFUSED_SHOWN_MAX: u64 = 5;

pub(super) fn run(
    global: Global,
    arguments: &RunArguments,
    stop: &AtomicBool,
    mut trial: Trial,
) -> Result<(), CliError> {
    let mut sources: Vec<Source> = Vec::new();
    let files = |topic: &&String| topic.strip_prefix(FILE).is_some();
    let topics = trial.topics()?;
    for topic in topics.iter().filter(files) {
        sources.push(Source::open(Path::new(&topic[FILE.len()..]), Some(topic)));
    }
    let others: Vec<&str> = topics.iter().filter(|topic| !files(topic)).map(String::as_str).collect();
    match &arguments.input {
        Some(file) => sources.push(Source::open(file, None)),
        None if sources.is_empty() => {
            return Err(CliError::new(format!("there is no broker, and queries read {}", others.join(", ")))
                .with_hint("--input gives them events; or write INPUT ... FROM 'file:...'"));
        }
        None => {}
    }
    let mut results = Results { is_json: global.json, refused: 0, unread: 0, files: Files::default(), failure: None };
    let outcome = feed(&mut trial, &mut sources, stop, &mut results);
    let outcome = outcome.and_then(|()| match stop.load(Ordering::Relaxed) {
        true => Ok(()),
        false => arguments.end.reach(&mut trial, &mut |report| results.take(&report)),
    });
    results.files.close().map_err(CliError::from)?;
    outcome?;
    results.failure.take().map_or(Ok(()), Err)?;
    let counts = trial.counts();
    if !arguments.quiet {
        trial.warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
        eprintln!("{} read, {}", counted(counts.events, "event"), counted(counts.results, "result"));
    }
    if results.refused > REFUSED_SHOWN_MAX {
        eprintln!("and {} refused beside", counted(results.refused - REFUSED_SHOWN_MAX, "row"));
    }
    if results.unread > 0 {
        eprintln!("{} had a topic that no query reads", counted(results.unread, "event"));
    }
    match counts.results == 0 && results.refused > 0 {
        true => Err(CliError::new(format!("no result was given, and {} refused", counted(results.refused, "row")))
            .with_hint("do the columns of the inputs fit to the events?")),
        false => Ok(()),
    }
}

/// Feeds the events of all sources, the earliest first.
fn feed(
    trial: &mut Trial,
    sources: &mut Vec<Source>,
    stop: &AtomicBool,
    results: &mut Results,
) -> Result<(), CliError> {
    loop {
        for place in (0..sources.len()).rev() {
            if !sources[place].fill(trial, stop)? {
                sources.remove(place);
            }
        }
        // An event without a time goes before all others.
        let earliest = sources.iter_mut().min_by_key(|source| source.time_us);
        let Some(event) = earliest.and_then(|source| source.next.take()) else { return Ok(()) };
        trial.feed(&event, &mut |report| results.take(&report))?;
        results.flush();
    }
}

/// Events from a file. A thread reads it: whoever waits for a line can be stopped.
struct Source {
    lines: Receiver<Result<(String, usize), CliError>>,
    /// The topic of its lines; without one, each is an event as in `rivulet app test`.
    topic: Option<String>,
    next: Option<Event>,
    time_us: Option<i64>,
}

impl Source {
    fn open(file: &Path, topic: Option<&String>) -> Self {
        let (sender, lines) = sync_channel(LINES_AHEAD);
        let file = file.to_owned();
        std::thread::spawn(move || {
            let mut from = match Lines::open(&file) {
                Ok(from) => from,
                Err(error) => return drop(sender.send(Err(error))),
            };
            // It ends with the file, with an error, or when nobody reads any more.
            while let Some(line) = from.next().transpose() {
                let has_failed = line.is_err();
                if sender.send(line).is_err() || has_failed {
                    return;
                }
            }
        });
        Self { lines, topic: topic.cloned(), next: None, time_us: None }
    }

    /// Waits for its next event; false at the end.
    fn fill(&mut self, trial: &mut Trial, stop: &AtomicBool) -> Result<bool, CliError> {
        while self.next.is_none() {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let (text, line) = match self.lines.recv_timeout(LOOK_PERIOD) {
                Ok(line) => line?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            };
            let event = match &self.topic {
                Some(topic) => {
                    let topic = Some(topic.clone());
                    Event { line, topic, payload: text.into_bytes(), ..Event::default() }
                }
                None => parse_event(&text, line)?,
            };
            self.time_us = trial.time_us(&event);
            self.next = Some(event);
        }
        Ok(true)
    }
}

/// Where results go.
struct Results {
    is_json: bool,
    refused: u64,
    unread: u64,
    files: Files,
    failure: Option<CliError>,
}

impl Results {
    fn take(&mut self, report: &Report) {
        match report {
            Report::Result { topic, payload, .. } if topic.starts_with(FILE) => {
                if let Err(error) = self.files.write(&topic[FILE.len()..], payload) {
                    self.failure.get_or_insert(CliError::new(format!("cannot write {topic}: {error}")));
                }
            }
            Report::Result { time_us, topic, payload } => {
                let text = match self.is_json {
                    true => report.to_json(),
                    false => format!("{}  {topic}  {}", time_text(*time_us), String::from_utf8_lossy(payload)),
                };
                if let Err(error) = writeln!(io::stdout(), "{text}") {
                    self.failure.get_or_insert(error.into());
                }
            }
            Report::Refused { query, reason, detail, content, .. } => {
                self.refused += 1;
                if self.refused <= REFUSED_SHOWN_MAX {
                    eprintln!("{query}: refused, {reason}: {detail}: {content}");
                }
            }
            Report::Nothing { query, .. } => self.unread += u64::from(query.is_none()),
        }
    }

    /// Whoever reads along sees results as they come.
    fn flush(&mut self) {
        let _ = io::stdout().flush();
    }
}

/// Files of results: each is replaced by the first result.
#[derive(Default)]
struct Files {
    open: HashMap<PathBuf, BufWriter<File>>,
    /// Those that were begun.
    begun: HashSet<PathBuf>,
}

impl Files {
    fn write(&mut self, path: &str, line: &[u8]) -> io::Result<()> {
        let path = PathBuf::from(path);
        if !self.open.contains_key(&path) {
            if self.open.len() >= FILES_OPEN_MAX {
                self.close()?;
            }
            let is_new = self.begun.insert(path.clone());
            if let Some(folder) = path.parent().filter(|_| is_new) {
                std::fs::create_dir_all(folder)?;
            }
            let mut options = OpenOptions::new();
            let file = if is_new { options.write(true).create(true).truncate(true) } else { options.append(true) };
            self.open.insert(path.clone(), BufWriter::new(file.open(&path)?));
        }
        let file = self.open.get_mut(&path).expect("it was opened");
        file.write_all(line)?;
        file.write_all(b"\n")
    }

    fn close(&mut self) -> io::Result<()> {
        self.open.drain().try_for_each(|(_, mut file)| file.flush())
    }
}
