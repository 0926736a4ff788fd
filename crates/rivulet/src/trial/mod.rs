//! Tries applications in this process: with the engine of a server, stepped, without a broker, a disk or a network, and
//! with a clock that follows the events.
//!
//! What must hold: a trial gives the results that a server gives for the same events at the same times. So it has no
//! interpreter of its own: statements, routes, groups and timers are the engine's. Events are processed one at a time,
//! which changes no result. The operators have watchers around them ([`watch`]), which note what became of an event.
//!
//! In reading order: [`event`]: lines to events, with their times; [`network`]: where results go; [`watch`];
//! [`report`]: the reports about an event; this file: how events and time go through the engine; [`expect`]: results
//! compared with a file; [`script`]: the statements of a script.

mod event;
mod expect;
pub(crate) mod network;
mod report;
mod script;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_connectors::connector::{ConnectorContext, Secrets};
use rivulet_connectors::files::Files;
use rivulet_connectors::mqtt::{Pending, Received};
use rivulet_dataflow::{ManualClock, Push, QueryId};
use rivulet_operators::application::{Application, Durability};
use rivulet_sql::{CreateApplication, CreateTable, Position, Statement, plan_application_with};
use rivulet_storage::Store;
use rivulet_storage::log::LogSettings;

use crate::catalog::Catalog;
use crate::config::{self, Config, FilesConfig, Sources};
use crate::engine::stepped::Environment;
use crate::engine::{Engine, check_outputs};
use crate::run::CONNECTORS;
use crate::service::{Caller, ErrorKind, Parameter, QueryRequest, ServiceError, Session};

pub use event::{Event, TimeError, parse_event, parse_time_us, time_text};
pub use expect::{Expected, difference};
pub use report::{Counts, Report};
pub use script::of_script;

use event::{Messages, Reader};
use network::{NoDisk, Results};
use watch::Seen;

/// When the first event arrives if it has no time: the start of 2026.
const START_US: i64 = 1_767_225_600_000_000;

/// The time between an event without a time and the event before it.
const STEP_US: i64 = 1_000_000;

/// The most tasks that are run, and results that are handed to other queries, for one event or timer. Beyond that they
/// count as endless.
const RUNS_MAX: usize = 1_000_000;

/// The most timers that fire between two events, and after the last. Beyond that they count as endless.
const TIMERS_MAX: usize = 10_000_000;

/// The most bytes of a reference table.
const TABLE_BYTES_MAX: usize = 1 << 30;

/// Applications and queries in an engine of their own.
pub struct Trial {
    host: fn() -> ConnectorContext,
    engine: Arc<Engine>,
    clock: Arc<ManualClock>,
    results: Arc<Results>,
    seen: Arc<Mutex<Seen>>,
    applications: Vec<Application>,
    reader: Reader,
    /// Queries that are yet to be created, once all applications exist.
    wanted: Vec<Wanted>,
    /// The names of queries.
    names: HashMap<QueryId, String>,
    /// The topics that the queries read, with wildcards.
    topics: BTreeSet<String>,
    counts: Counts,
}

/// A query that is to be created.
enum Wanted {
    Statement(Statement, Position),
    Parameters { name: String, application: String, parameters: Vec<Parameter<'static>> },
}

/// The path of a file that a script in `folder` names: beside the script, or in the working folder if there is none.
pub fn beside_script(folder: &Path, path: &str) -> PathBuf {
    let beside = folder.join(path);
    let path = if beside.exists() { beside } else { PathBuf::from(path) };
    std::path::absolute(&path).unwrap_or(path)
}

impl Trial {
    /// An engine without applications.
    ///
    /// # Errors
    /// The system lacks resources.
    pub fn new() -> Result<Self, ServiceError> {
        Self::of_host(ConnectorContext::of_user, Path::new("/"))
    }

    /// The same for somebody who may not read the files of this process: none is read.
    ///
    /// # Errors
    /// The system lacks resources.
    pub fn without_files() -> Result<Self, ServiceError> {
        let host = || ConnectorContext { files: Files::default(), ..ConnectorContext::of_user() };
        Self::of_host(host, &folder())
    }

    fn of_host(host: fn() -> ConnectorContext, files: &Path) -> Result<Self, ServiceError> {
        let clock = Arc::new(ManualClock::new(0));
        let results = Arc::<Results>::default();
        let environment = Environment {
            clock: clock.clone(),
            disk: Arc::new(NoDisk),
            log: LogSettings::default(),
            store: Arc::new(Store::in_memory().map_err(|error| unavailable(&error))?),
            catalog: Catalog::in_memory()?,
            network: results.clone(),
        };
        let engine = Engine::stepped(config(files)?, environment)?;
        engine.replay_some(u64::MAX, true);
        Ok(Self {
            host,
            engine,
            clock,
            results,
            seen: Arc::default(),
            applications: Vec::new(),
            reader: Reader::default(),
            wanted: Vec::new(),
            names: HashMap::new(),
            topics: BTreeSet::new(),
            counts: Counts::default(),
        })
    }

    /// Loads a reference table. A relative path is looked up in `folder`, or in the working folder if there is no such
    /// file.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn create_table(&mut self, mut create: CreateTable, folder: &Path) -> Result<(), ServiceError> {
        if let Some(path) = CONNECTORS.path_of(&create.address).filter(|path| !path.is_empty()) {
            create.address = format!("file:{}", beside_script(folder, path).display());
        }
        self.engine.carry_out(Statement::CreateTable(Box::new(create))).map(drop)
    }

    /// Registers an application.
    ///
    /// # Errors
    /// It is refused. The error has its position.
    pub fn create_application(&mut self, create: &CreateApplication) -> Result<(), ServiceError> {
        let mut application =
            plan_application_with(create, &self.engine.loaded_tables()).map_err(ServiceError::from)?;
        for input in &mut application.inputs {
            // No data outlives a trial.
            input.durability = Some(Durability::None);
            event::to_topic_input(input)?;
        }
        // Rows for other places are shown instead. The outputs are checked all the same, with any values of secrets.
        let secrets = Secrets::found_by(|_| Some("secret".to_owned()));
        check_outputs(&application, &ConnectorContext { secrets, ..(self.host)() })?;
        application.outputs.iter_mut().for_each(event::to_messages);
        self.reader.add(&application, &(self.host)())?;
        application.dataflow = watch::watched(&application.dataflow, self.applications.len(), &self.seen);
        self.engine.register(application.clone())?;
        self.applications.push(application);
        Ok(())
    }

    /// The names of the applications.
    pub fn applications(&self) -> impl Iterator<Item = &str> {
        self.applications.iter().map(|application| application.name.as_str())
    }

    /// Whether there is a query, or will be one.
    pub fn has_queries(&self) -> bool {
        !self.wanted.is_empty() || !self.names.is_empty()
    }

    /// Arranges that a query is created by its statement, before the next event.
    ///
    /// # Errors
    /// There is no such application.
    pub fn create_query(&mut self, statement: Statement, position: Position) -> Result<(), ServiceError> {
        if let Statement::CreateQuery { application, .. } = &statement
            && !self.applications().any(|name| name == application.text)
        {
            let Position { line, column } = application.position;
            return Err(ServiceError::not_found(format!("there is no application '{application}'"))
                .at(line, column)
                .with_hint(format!("the script creates it before: CREATE APPLICATION {application} ...")));
        }
        self.wanted.push(Wanted::Statement(statement, position));
        Ok(())
    }

    /// Arranges that a query of an application is created with these values, before the next event.
    pub fn create_query_with(&mut self, application: &str, parameters: Vec<Parameter<'static>>) {
        let name = format!("{application}_{}", self.wanted.len() + 1);
        self.wanted.push(Wanted::Parameters { name, application: application.to_owned(), parameters });
    }

    /// Creates the queries that are yet to be created.
    fn begin(&mut self) -> Result<(), ServiceError> {
        for wanted in std::mem::take(&mut self.wanted) {
            let name = match wanted {
                Wanted::Statement(statement, position) => {
                    let name = match &statement {
                        Statement::CreateQuery { name, .. } => name.text.clone(),
                        _ => String::new(),
                    };
                    self.engine.carry_out(statement).map_err(|error| error.or_at(position))?;
                    name
                }
                Wanted::Parameters { name, application, parameters } => {
                    let request = QueryRequest {
                        name: Some(&name),
                        application: &application,
                        parameters: &parameters,
                        label: None,
                    };
                    self.session().submit(&[request]).into_iter().collect::<Result<Vec<_>, _>>()?;
                    name
                }
            };
            let query = self.session().query(&name)?;
            self.names.extend(query.id.map(|id| (id, name)));
            self.topics.extend(query.input_topic.split(", ").map(str::to_owned));
        }
        Ok(())
    }

    /// The topics that its queries read, with wildcards.
    ///
    /// # Errors
    /// A query is refused.
    pub fn topics(&mut self) -> Result<&BTreeSet<String>, ServiceError> {
        self.begin()?;
        Ok(&self.topics)
    }

    /// The time of an event: its arrival, if that is given, or the time in its payload. `None` if it has neither.
    pub fn time_us(&mut self, event: &Event) -> Option<i64> {
        event.arrival_us.or_else(|| self.reader.event_time_us(event.topic.as_deref(), &event.payload))
    }

    /// Advances the clock to the time of an event, and processes the event. An event with a time before the clock's
    /// arrives now.
    ///
    /// # Errors
    /// A query is refused, the topic or the time of the event is unknown, or processing is endless.
    pub fn feed(&mut self, event: &Event, tell: &mut dyn FnMut(Report)) -> Result<(), ServiceError> {
        self.reader.check_arrival(event)?;
        let time_us = self.time_us(event);
        self.begin()?;
        let now_us = self.now_us();
        let next_us = if self.counts.events == 0 { START_US } else { now_us + STEP_US };
        self.advance(time_us.unwrap_or(next_us).max(now_us), tell)?;
        let Messages { shown: topic, messages } = match self.reader.source_messages(event, self.now_us())? {
            Some(of_source) => of_source,
            None => {
                let topic = event.topic.clone().map_or_else(|| self.only_topic(event.line), Ok)?;
                Messages { messages: vec![(topic.clone(), event.payload.clone())], shown: topic }
            }
        };
        self.counts.events += 1;
        let mut runs = 0;
        let routed: Vec<bool> = messages.iter().map(|(topic, payload)| self.route(topic, payload, true)).collect();
        if routed.contains(&true) {
            self.run_ready(&mut runs)?;
            let seen = std::mem::take(&mut *self.seen.lock());
            let context = report::OfEvent { line: event.line, topic: &topic, time_us: self.now_us() };
            let reports = report::of_event(&seen, &context, &self.applications, &self.names);
            self.send_results(&mut runs, tell)?;
            reports.into_iter().for_each(|one| self.tell(one, tell));
        } else {
            let readable: Vec<&str> = self.topics.iter().map(String::as_str).collect();
            let why = format!("no query reads this topic, only {}", readable.join(", "));
            let (line, time_us) = (event.line, self.now_us());
            self.tell(Report::Nothing { time_us, line, topic, query: None, why }, tell);
        }
        Ok(())
    }

    /// Advances time after the last event, to `until_us` or to the last timer that is due before it. Returns when the
    /// next timer is due, if one is left.
    ///
    /// # Errors
    /// A query is refused, or timers are endless.
    pub fn finish(&mut self, until_us: i64, tell: &mut dyn FnMut(Report)) -> Result<Option<i64>, ServiceError> {
        self.begin()?;
        self.fire_timers(until_us, tell)?;
        Ok(self.engine.next_timer_us())
    }

    /// The clock of the trial, microseconds since the epoch.
    pub fn now_us(&self) -> i64 {
        rivulet_dataflow::Clock::now_us(&*self.clock)
    }

    /// The counters of events and results.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Warnings for the author of an application, with its name.
    pub fn warnings(&self) -> Vec<String> {
        let of_applications = self.session().applications().unwrap_or_default().into_iter();
        let named = of_applications.flat_map(|one| {
            let name = one.name;
            one.warnings.into_iter().map(move |warning| format!("{name}: {warning}"))
        });
        self.reader.warning().into_iter().chain(named).collect()
    }

    /// The engine, for the local user.
    fn session(&self) -> Session<'_> {
        self.engine.session(Caller::local_operator())
    }

    /// The topic of an event that has none: the queries must read exactly one.
    fn only_topic(&self, line: usize) -> Result<String, ServiceError> {
        let mut topics = self.topics.iter();
        let all = || self.topics.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        match (topics.next(), topics.next()) {
            (Some(topic), None) if !rivulet_connectors::mqtt::topic::is_wildcard(topic) => Ok(topic.clone()),
            _ => {
                Err(ServiceError::invalid(format!("the event in line {line} has no topic, and queries read {}", all()))
                    .with_hint("write {\"topic\": \"...\", \"payload\": {...}}"))
            }
        }
    }

    /// Puts an event into the inboxes of the queries that read it. Returns whether there are any.
    fn route(&self, topic: &str, payload: &[u8], is_input: bool) -> bool {
        let router = self.engine.router();
        let mut pending = Pending::default();
        let mut routing = if is_input { router.read() } else { router.read_for_results() };
        let received = Received { arrival_us: self.now_us(), topic: topic.as_bytes(), payload, ..Received::default() };
        // Inboxes are empty between events.
        routing.route(&received, &mut pending) == Push::Taken && pending.is_delivered()
    }

    /// Runs the tasks that are ready.
    fn run_ready(&self, runs: &mut usize) -> Result<(), ServiceError> {
        while self.engine.run_one(|_| 0, Duration::MAX) {
            count_run(runs)?;
        }
        Ok(())
    }

    /// Reports results, and hands them to the queries that read them, until no more come.
    fn send_results(&mut self, runs: &mut usize, tell: &mut dyn FnMut(Report)) -> Result<(), ServiceError> {
        loop {
            let results = self.results.take();
            if results.is_empty() {
                return Ok(());
            }
            let time_us = self.now_us();
            for (topic, payload) in results {
                count_run(runs)?;
                if self.route(&topic, &payload, false) {
                    self.run_ready(runs)?;
                    self.tell_refused(tell);
                }
                self.tell(Report::Result { time_us, topic, payload }, tell);
            }
        }
    }

    /// Advances the clock to a time, and fires the timers that are due before it.
    fn advance(&mut self, to_us: i64, tell: &mut dyn FnMut(Report)) -> Result<(), ServiceError> {
        self.fire_timers(to_us, tell)?;
        self.clock.set_us(to_us);
        Ok(())
    }

    /// Fires the timers that are due by a time, each at its own time.
    fn fire_timers(&mut self, until_us: i64, tell: &mut dyn FnMut(Report)) -> Result<(), ServiceError> {
        for _ in 0..TIMERS_MAX {
            let Some(due_us) = self.engine.next_timer_us().filter(|&due_us| due_us <= until_us) else { return Ok(()) };
            // A timer that is due again at once has to wait until the clock advances.
            self.clock.set_us(due_us.max(self.now_us() + 1).min(until_us));
            self.engine.keep_time_once();
            let mut runs = 0;
            self.run_ready(&mut runs)?;
            self.tell_refused(tell);
            self.send_results(&mut runs, tell)?;
            if self.now_us() >= until_us && due_us >= until_us {
                return Ok(());
            }
        }
        Err(endless("timers"))
    }

    /// Reports rows that were refused outside of the processing of an event.
    fn tell_refused(&mut self, tell: &mut dyn FnMut(Report)) {
        let seen = std::mem::take(&mut *self.seen.lock());
        for refused in report::refused(&seen, self.now_us(), &self.names) {
            self.tell(refused, tell);
        }
    }

    fn tell(&mut self, report: Report, tell: &mut dyn FnMut(Report)) {
        self.counts.count(&report);
        tell(report);
    }
}

/// The configuration of an engine in a trial: the defaults, and no data that outlives it.
/// The folder of the data of a trial. It is never made.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("rivulet-trial-{}", std::process::id()))
}

/// The settings of an engine that may read files below `files`.
fn config(files: &Path) -> Result<Config, ServiceError> {
    // A settings file in the working folder belongs to a server.
    let sources = Sources { file: Some(PathBuf::from("/dev/null")), ..Sources::default() };
    let loaded =
        config::load(&sources).map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))?;
    Ok(Config {
        // It only determines where no statement may read.
        data_dir: folder(),
        // A script that a user runs has the rights of that user.
        files: FilesConfig { allow: vec![files.to_owned()], ..loaded.config.files },
        // One event at a time, and no shared work between queries, so that it is known what becomes of each event.
        batch_rows_max: Some(1),
        table_bytes_max: TABLE_BYTES_MAX,
        memory_bytes_max: None,
        spill_after: None,
        checkpoint: None,
        ..loaded.config
    })
}

fn count_run(runs: &mut usize) -> Result<(), ServiceError> {
    *runs += 1;
    if *runs > RUNS_MAX { Err(endless("results")) } else { Ok(()) }
}

fn endless(what: &str) -> ServiceError {
    ServiceError::new(ErrorKind::LimitReached, format!("{what} bring about {what} and come to no end"))
        .with_hint("does a query read the topic that it writes?")
}

fn unavailable(error: &impl ToString) -> ServiceError {
    ServiceError::from_text(ErrorKind::Unavailable, &error.to_string())
}
