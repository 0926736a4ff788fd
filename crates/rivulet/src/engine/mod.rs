//! The engine: applications as groups, queries as slots, wired to MQTT and remembered in the catalog.
//!
//! What must hold:
//! - A query that was answered with its id is in the catalog on disk, and runs. The catalog comes first: what it refuses is
//!   not started.
//! - Locks are taken in one order: the state of the engine, then a group, then the router. A sink runs under its group's lock and
//!   takes neither of the others.
//!
//! In reading order: this file (opening, applications), `not_running` (what an upgrade has left behind), `warnings` (what is probably a mistake), `submit`
//! (queries), `lifecycle` (whether one runs), `upgrade` (how a new version takes over), `replace` (that of an
//! application), `room`, `topics` and `shared_input` (what they read), `tables` (reference tables), `offer` (the trait)
//! and `statements` (SQL), `output` (the sink of a task), `outside` (what waits for files, brokers and other servers),
//! `messaging` (broker or client) and `own_connections`, `memory` (how much there may be), `checkpoints`, `event_log`
//! and `attendance` (what outlives the process), `reserve` (a start on a full disk), `status` and `exposition` (what is
//! counted), [`by_hand`] (for simulations).

mod broker_journal;
mod messaging;
mod own_connections;
mod output;
mod outside;
mod taps;
mod lifecycle;
mod registry;
mod memory;
mod not_running;
mod warnings;
mod topics;
mod submit;
mod shared_input;
mod room;
mod upgrade;
mod replace;
mod reserve;
mod backup;
mod checkpoints;
mod event_log;
mod attendance;
mod tables;
mod statements;
mod languages;
mod offer;
mod status;
mod big_queries;
mod exposition;
pub mod by_hand;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::files::Files;
use rivulet_connectors::formats::{Format, FormatError, InputFormat, several_inputs};
use rivulet_connectors::mqtt::InboxId;
use rivulet_dataflow::{Clock, Cut, Decoder, Inbox, InputIndex, LogPosition, QueryId};
use rivulet_operators::application::{self, Application, Durability, FormatSpec, Input, Tables};
use rivulet_runtime::{Absences, Group, GroupInput, GroupParts, InboxLimits, Overflow, Spill, TaskParts, Workers};
use rivulet_sql::CreateTable;

use crate::catalog::{ApplicationNumber, Catalog, NewApplication, StoredApplication};
use crate::config::Config;
use crate::data_folder::{CHECKPOINTS, FILES, LOG};
use crate::service::{Access, ErrorKind, ServiceError};
use big_queries::BigQueries;
use checkpoints::{Checkpoints, Loading, SavedStates, Unrestored};
use event_log::EventLog;
pub use languages::Languages;
use memory::MemoryBound;
use messaging::Messaging;
use not_running::NotRunning;
use output::{Outputs, TaskSink};
use outside::Outside;
use registry::Registry;
use shared_input::{InputShape, SharedInput};
use taps::Taps;
pub(crate) use taps::Waiting;
use topics::Topics;

pub(crate) use big_queries::note_crashes;
pub(crate) use big_queries::saved as saved_queries;
pub(crate) use checkpoints::applications as saved;
pub(crate) use checkpoints::catalog as saved_catalog;
pub(crate) use checkpoints::home as checkpoint_home;
pub(crate) use statements::literal_text;
pub(crate) use tables::read_table;

/// The engine of one server.
pub struct Engine {
    config: Config,
    languages: Languages,
    access: Arc<Access>,
    memory: MemoryBound,
    started: Instant,
    catalog: Arc<Catalog>,
    /// What tells this server from others.
    server_id: String,
    workers: Workers,
    messaging: Messaging,
    /// Those that statements may name.
    files: Files,
    /// Calls that wait for the world outside.
    outside: Outside,
    /// Until when big queries may be opened while the server starts, and whether that is over.
    start_ends: OnceLock<Instant>,
    has_started: AtomicBool,
    taps: Arc<Taps>,
    /// Its locks are taken before the state.
    big_queries: Arc<BigQueries>,
    /// None if state is not saved. Its lock too is taken before the state.
    checkpoints: Option<Arc<Checkpoints>>,
    /// Held by the backup that is being made.
    backup: Mutex<Weak<()>>,
    event_log: EventLog,
    state: Mutex<State>,
    /// Whether it was said that it will be stopped.
    stops_soon: AtomicBool,
    is_stopped: AtomicBool,
}

/// What others add to the engine.
#[derive(Clone, Default)]
pub struct Extensions {
    /// In which languages applications may be written.
    pub languages: Languages,
    /// Who clients are and what they may do.
    pub access: Arc<Access>,
}

/// What an engine is made of.
struct Parts {
    extensions: Extensions,
    messaging: Messaging,
    catalog: Arc<Catalog>,
    workers: Workers,
    memory: MemoryBound,
    checkpoints: Option<Arc<Checkpoints>>,
    event_log: EventLog,
    big_queries: BigQueries,
}

#[derive(Default)]
struct State {
    registry: Registry,
    applications: BTreeMap<String, Arc<Running>>,
    /// The same by the number that the registry and the catalog know them by.
    numbered: BTreeMap<ApplicationNumber, Arc<Running>>,
    /// The same by the hash of their text.
    hashed: HashMap<String, Arc<Running>>,
    /// The same by their inbox.
    by_inbox: HashMap<InboxId, Arc<Running>>,
    /// Topics that many queries read, by the signature of their input.
    shared_inputs: HashMap<String, SharedInput>,
    /// Reference tables, by name: what was declared, and what of it applications can use.
    declared_tables: BTreeMap<String, CreateTable>,
    tables: Tables,
    /// Tables of which the server's start could read only a part, and what is wrong with the rest.
    lines_left_out: BTreeMap<String, String>,
    /// Applications that are registered and cannot run, by name.
    not_running: BTreeMap<String, NotRunning>,
    /// Names of big queries, which those of applications may not have.
    big_query_names: BTreeSet<String>,
    /// How many queries of an application cannot run; of most none.
    queries_not_running: HashMap<ApplicationNumber, u64>,
    /// What was saved of applications that cannot run now.
    unrestored: Unrestored,
    /// Queries that are paused, and get what the log has from before that until it is replayed.
    replayed_paused: BTreeSet<QueryId>,
    /// Until then: when queries were away.
    absences: Vec<(Arc<Running>, Absences)>,
}

/// An application with its group.
struct Running {
    number: ApplicationNumber,
    application: Application,
    group: Arc<Group>,
    /// One for each input.
    inboxes: Vec<InboxId>,
    topics: Topics,
    outputs: Arc<Outputs>,
    /// How its payloads are decoded; `None` if it shares that with nobody.
    shape: Option<Arc<InputShape>>,
    queries_running: AtomicU64,
    queries_paused: AtomicU64,
    /// The last refusal in words, for people who ask why.
    last_refusal: Arc<Mutex<Option<String>>>,
    /// What its owner should know.
    warnings: Vec<String>,
}

impl Engine {
    /// Opens the catalog, starts workers and MQTT, and lets everything run that is registered.
    ///
    /// # Errors
    /// A catalog that cannot be used, an address that is taken, a broker's address that is none. A broker that does not answer is not an error:
    /// the engine goes on trying.
    pub fn open(config: Config) -> Result<Arc<Self>, ServiceError> {
        Self::open_with(config, Extensions::default())
    }

    /// The same with what others add to the engine.
    ///
    /// # Errors
    /// As [`Engine::open`]. An application in the catalog of a kind that is not among the languages is none: it does not
    /// run, and is listed so.
    pub fn open_with(config: Config, extensions: Extensions) -> Result<Arc<Self>, ServiceError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        // Before the data folder is made: an address that is taken must leave nothing behind.
        let messaging = Messaging::start(&config, &extensions.access, clock.clone()).map_err(name_the_key)?;
        reserve::give_back(&config.data_dir);
        let checkpoints = config.checkpoint.as_ref().map(Checkpoints::open).transpose()?;
        if !Catalog::is_there(&config.data_dir) {
            refuse_orphans(&config, checkpoints.as_deref())?;
        }
        let catalog = Arc::new(Catalog::open(&config.data_dir)?);
        reserve::keep(&config.data_dir);
        if let Some(checkpoints) = &checkpoints {
            // A server may have ended between making a catalog and filling it.
            if catalog.is_new()? && checkpoints.has_orphans()? {
                return Err(orphans(&config, checkpoints.store().0.place()));
            }
            checkpoints.restore_catalog(&catalog)?;
            checkpoints.settle(&catalog, &config.data_dir.join(CHECKPOINTS), config.accepts_empty_checkpoints)?;
        }
        let workers = Workers::start(config.workers, clock.clone()).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start worker threads: {error}"))
        })?;
        let memory = MemoryBound::new(&config);
        if let Some(after) = config.spill_after {
            let spill = Spill::new(&config.data_dir, after, config.spill_bytes_max, move || memory.is_pressed());
            workers.enable_spilling(spill.map_err(|error| {
                let folder = config.data_dir.display();
                ServiceError::new(
                    ErrorKind::Unavailable,
                    format!("cannot make a file for silent queries in {folder}: {error}"),
                )
            })?);
        }
        if config.files.allow.is_empty() {
            let folder = config.data_dir.join(FILES);
            std::fs::create_dir_all(&folder).map_err(|error| {
                let message = format!("cannot make the folder {}: {error}", folder.display());
                ServiceError::new(ErrorKind::Unavailable, message)
            })?;
        }
        let event_log = EventLog::open(&config.data_dir, &config.durability, clock)?;
        messaging.keep_sessions(&config)?;
        let big_queries = BigQueries::open(&config.data_dir);
        let parts = Parts { extensions, messaging, catalog, workers, memory, checkpoints, event_log, big_queries };
        let engine = Self::assemble(config, parts)?;
        if let Some(checkpoints) = &engine.checkpoints {
            checkpoints.start(Arc::downgrade(&engine))?;
        }
        big_queries::watch(&engine)
            .map_err(|error| ServiceError::new(ErrorKind::Unavailable, format!("cannot start a thread: {error}")))?;
        Ok(engine)
    }

    /// Puts an engine together of its parts, gives it back what was saved, and opens it for messages.
    fn assemble(config: Config, parts: Parts) -> Result<Arc<Self>, ServiceError> {
        let Parts { extensions, messaging, catalog, workers, memory, checkpoints, event_log, big_queries } = parts;
        let Extensions { languages, access } = extensions;
        let files = files_of(&config)?;
        let server_id = format!("{:016x}", catalog.server_id()?);
        let taps = Taps::new(config.http.results_bytes_max);
        let engine = Arc::new(Self {
            access,
            event_log,
            config,
            languages,
            memory,
            started: Instant::now(),
            catalog,
            server_id,
            workers,
            messaging,
            files,
            outside: Outside::default(),
            start_ends: OnceLock::new(),
            has_started: AtomicBool::new(false),
            taps: Arc::new(taps),
            big_queries: Arc::new(big_queries),
            checkpoints,
            backup: Mutex::default(),
            state: Mutex::default(),
            stops_soon: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
        });
        let replayed_from = engine.load()?;
        engine.load_big_queries()?;
        if engine.messaging.own_connections().is_none() {
            engine.event_log.attach(&engine.messaging)?;
            engine.event_log.replay(&engine, replayed_from)?;
        } else {
            engine.event_log.leave();
        }
        engine.messaging.open()?;
        Ok(engine)
    }

    /// Has worker threads call `give_back`, which returns memory of the calling thread's heap to the system, after the state of
    /// many queries has left memory.
    pub fn give_back_memory_with(&self, give_back: fn()) {
        self.workers.give_back_with(give_back);
    }

    /// Where MQTT clients reach the embedded broker, if there is one.
    pub fn embedded_broker_address(&self) -> Option<std::net::SocketAddr> {
        self.messaging.embedded_address()
    }

    /// Lets everything run that the catalog remembers, with the state that was saved of it. Returns the position in the log from which
    /// on events may be missing in that.
    fn load(&self) -> Result<LogPosition, ServiceError> {
        let (mut unrestored, mut found, position) = self.read_checkpoint()?;
        let mut state = self.state.lock();
        self.load_tables(&mut state)?;
        for stored in self.catalog.applications()? {
            // One that this version cannot plan any more stays in the catalog, and the others run.
            if let Err(error) = self.start_application(&mut state, &stored) {
                tracing::error!(application = stored.name, "a registered application is not running: {error}");
                state.not_running.insert(stored.name.clone(), NotRunning::new(stored, &error));
            }
        }
        let begun = Instant::now();
        let mut saved = SavedStates::read(&unrestored);
        // A catalog that is older than the state, as one of a store can be, would give them to others, who got that state.
        self.catalog.pass(saved.used())?;
        saved.fit(&state, &self.catalog, &self.languages);
        let attendances = self.attendances(position)?;
        let loading = Loading { saved: &saved, attendances: &attendances, restores_at_once: false };
        let queries = self.load_queries(&mut state, &loading)?;
        if queries > 0 {
            tracing::info!(
                queries,
                applications = state.applications.len(),
                elapsed_ms = begun.elapsed().as_millis() as u64,
                "queries run again"
            );
        }
        self.restore_all(&state, &saved, &mut found);
        self.expect_attendances(&mut state, &saved, attendances);
        self.report_recovery(found);
        let not_running: BTreeSet<ApplicationNumber> =
            state.not_running.values().map(|other| other.stored.number).collect();
        unrestored.retain(|number, _| not_running.contains(number));
        state.unrestored = unrestored;
        Ok(position)
    }

    /// Registers an application; one that is registered already with the same text is returned as it is. Also returns whether
    /// it is new.
    fn register(&self, application: Application) -> Result<(Arc<Running>, bool), ServiceError> {
        self.register_all(vec![application]).pop().expect("an answer for each")
    }

    /// Registers applications of different names, and remembers them together, which takes as long as remembering one. Stops
    /// at the first that is refused: the last answer says why.
    fn register_all(&self, applications: Vec<Application>) -> Vec<Result<(Arc<Running>, bool), ServiceError>> {
        // Everything that can be refused is, before the catalog remembers it.
        let prepared: Vec<_> = applications.into_iter().map(|application| self.prepare(application)).collect();
        let mut state = self.state.lock();
        // None where an answer is not known before the catalog's.
        let mut answers: Vec<Option<Result<_, ServiceError>>> = Vec::with_capacity(prepared.len());
        let mut new = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            match prepared.and_then(|prepared| Ok((state.check_new(&prepared.application)?, prepared))) {
                Ok((Some(running), _)) => answers.push(Some(Ok((running, false)))),
                Ok((None, prepared)) => {
                    new.push((answers.len(), prepared));
                    answers.push(None);
                }
                Err(error) => {
                    answers.push(Some(Err(error)));
                    break;
                }
            }
        }
        let stored: Vec<_> = new.iter().map(|(_, prepared)| NewApplication::of(&prepared.application)).collect();
        let first = match stored.is_empty() {
            true => Ok(0),
            false => self.catalog.insert_applications(&stored).map_err(ServiceError::from),
        };
        for (number, (place, prepared)) in (0..).zip(new) {
            let name = prepared.application.name.clone();
            let running = first.clone().and_then(|first| self.run(&mut state, first + number, prepared));
            if running.is_ok() {
                tracing::info!(application = name, "registered");
            }
            answers[place] = Some(running.map(|running| (running, true)));
        }
        answers.into_iter().flatten().collect()
    }

    fn start_application(&self, state: &mut State, stored: &StoredApplication) -> Result<(), ServiceError> {
        let application = self.languages.load_stored(stored, &state.tables)?;
        let prepared = self.prepare(application)?;
        self.run(state, stored.number, prepared)?;
        Ok(())
    }

    /// What can be wrong with an application that the planner does not know: connectors and formats.
    fn prepare(&self, application: Application) -> Result<Prepared, ServiceError> {
        self.check_durability(&application)?;
        let topics = Topics::new(&application)?;
        let format = |spec: &FormatSpec| {
            let options: Vec<(String, String)> =
                spec.options.iter().map(|(name, value)| (name.clone(), statements::literal_text(value))).collect();
            let options = options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            Format::parse(&spec.name, options).map_err(|error| statements::format_error(&error, spec))
        };
        let mut inputs = Vec::with_capacity(application.inputs.len());
        for input in &application.inputs {
            let input_format = format(&input.format)?;
            input_format
                .decoder(input.schema.clone(), input.event_time)
                .map_err(|error| statements::format_error(&error, &input.format))?;
            let (schema, event_time_column) = (input.schema.clone(), input.event_time);
            inputs.push(InputFormat { format: input_format, schema, event_time_column });
        }
        let mut output_formats = Vec::with_capacity(application.outputs.len());
        for output in &application.outputs {
            let output_format = format(&output.format)?;
            output_format
                .encoder(output.schema.clone())
                .map_err(|error| statements::format_error(&error, &output.format))?;
            output_formats.push(output_format);
        }
        let last_refusal = Arc::default();
        let outputs = Arc::new(Outputs {
            application: application.name.clone(),
            // Only a replay gives a result once more that has its number; elsewhere a number may be given to another result after a crash.
            server_of_ids: application.inputs.iter().all(|input| self.is_logged(input)).then(|| self.server_id.clone()),
            result_is_json: output_formats.iter().map(|one| *one == Format::Json).collect(),
            has_bits: application.has_output_bits,
            rows: application.outputs.iter().map(|_| AtomicU64::new(0)).collect(),
            topics: topics.clone(),
            options: self.messaging.publish_options(),
            publisher: self.messaging.publisher(),
            own_connections: self.messaging.own_connections().cloned(),
            taps: self.taps.clone(),
            catalog: self.catalog.clone(),
            last_refusal: Arc::clone(&last_refusal),
            seconds: Mutex::default(),
            inputs: application.inputs.iter().map(|input| input.name.clone()).collect(),
        });
        let overflow = application.inputs[0].overflow;
        let event_time = application.inputs[0].event_time.filter(|_| application.inputs.len() == 1);
        let (dataflow, output_schema) = (application.dataflow.clone(), application.outputs[0].schema.clone());
        let (row_schema, of_task) = (application.row_schema.clone(), outputs.clone());
        let tables =
            application.tables.iter().map(|one| (one.table.name().to_owned(), Ok(one.table.clone()))).collect();
        let baseline = &self.config.baseline;
        let own_code = (baseline.has_own_code)
            .then(|| (self.languages.clone(), application.kind, application.bytes.clone(), tables));
        // What is measured to compare with engines that share nothing shares no decoding either.
        let shares = !baseline.has_own_code && baseline.batch_rows_max.is_none() && baseline.task_queries_max.is_none();
        let is_logged = self.is_logged(&application.inputs[0]);
        let shape = (shares && inputs.len() == 1).then(|| {
            let (inputs, row_schema) = (inputs.clone(), row_schema.clone());
            Arc::new(InputShape {
                signature: format!("{inputs:?} {is_logged}"),
                is_logged,
                decoder: Box::new(move || decoder(&inputs, &row_schema).expect("one was made before")),
            })
        });
        let make = move || {
            let replanned = own_code.as_ref().and_then(|(languages, kind, code, tables): &(_, _, _, Tables)| {
                languages.load(kind, code, tables).ok()
            });
            let made = "one was made before";
            let encoders = output_formats.iter().map(|one| one.encoder(output_schema.clone()).expect(made)).collect();
            TaskParts {
                decoder: decoder(&inputs, &row_schema).expect(made),
                chain: replanned.as_ref().map_or(&dataflow, |application| &application.dataflow).chain(),
                sink: Box::new(TaskSink::new(of_task.clone(), encoders)),
            }
        };
        let parts = GroupParts {
            name: application.name.clone(),
            parameters: application.parameter_schema.clone(),
            make: Box::new(make),
            limits: InboxLimits {
                rows_max: self.config.inbox_rows_max,
                bytes_max: self.config.inbox_bytes_max,
                overflow: match overflow {
                    application::Overflow::Block => Overflow::Block,
                    application::Overflow::DropOldest => Overflow::DropOldest,
                    application::Overflow::DropNewest => Overflow::DropNewest,
                },
            },
            event_time_column: event_time,
            task_queries_max: baseline.task_queries_max,
            batch_rows_max: baseline.batch_rows_max,
            equal_by: shares.then(|| application.deciding_parameters.clone()),
            cut: match application.inputs.iter().any(|input| self.is_logged(input)) {
                true => Cut::Never(
                    "its events are in the log, and after a restart each has to be told from those that it has seen",
                ),
                false => application.cut.clone(),
            },
            passes_on: false,
            is_captured: self.config.checkpoint.is_some()
                && application.inputs.iter().any(|input| self.is_saved(input)),
        };
        let warnings = self.warnings_of(&application);
        Ok(Prepared { application, topics, outputs, shape, parts, last_refusal, warnings })
    }

    fn run(
        &self,
        state: &mut State,
        number: ApplicationNumber,
        prepared: Prepared,
    ) -> Result<Arc<Running>, ServiceError> {
        let Prepared { application, topics, outputs, shape, parts, last_refusal, warnings } = prepared;
        let group = self.workers.create_group(parts);
        let inboxes = self.register_inboxes(&group, &application);
        self.messaging.subscribe(topics.inputs.iter().filter_map(|input| input.filter.as_deref()));
        let running = Arc::new(Running {
            number,
            application,
            group,
            inboxes,
            topics,
            outputs,
            shape,
            queries_running: AtomicU64::new(0),
            queries_paused: AtomicU64::new(0),
            last_refusal,
            warnings,
        });
        running.log_warnings();
        self.keep_results(&running, true);
        state.insert(&running);
        Ok(running)
    }

    /// Makes the inboxes of an application known, one for each input.
    fn register_inboxes(&self, group: &Arc<Group>, application: &Application) -> Vec<InboxId> {
        let router = self.messaging.router();
        let register = |(input, declared)| match self.is_logged(declared) {
            true => router.register_logged_inbox(inbox_of(group, input)),
            false => router.register_inbox(inbox_of(group, input)),
        };
        application.inputs.iter().enumerate().map(register).collect()
    }

    /// Whether what inputs promise can be kept.
    fn check_durability(&self, application: &Application) -> Result<(), ServiceError> {
        let mut logged = application.inputs.iter().filter(|input| self.is_logged(input));
        if let Some(input) = logged.clone().find(|input| input.overflow != application::Overflow::Block) {
            let message = format!("the input '{}' has durability 'log', and its overflow drops events", input.name);
            return Err(ServiceError::invalid(message).with_hint(
                "nothing acknowledged is dropped: leave out overflow, or write WITH (durability => 'checkpoint') behind the input's FORMAT",
            ));
        }
        let Some(input) = logged.next() else { return Ok(()) };
        let (why, hint) = if self.config.checkpoint.is_none() {
            (
                "this server makes no checkpoints: its log of events would only grow, until nothing more is received",
                "set checkpoint.enabled to true, or ",
            )
        } else if self.messaging.own_connections().is_some() {
            ("what connections of each query receive goes to no log", "")
        } else {
            return Ok(());
        };
        let message = format!("the input '{}' has durability 'log', and {why}", input.name);
        Err(ServiceError::new(ErrorKind::Conflict, message)
            .with_hint(format!("{hint}write WITH (durability => 'none') behind the input's FORMAT")))
    }

    /// Whether the state that comes of an input outlives the process.
    fn is_saved(&self, input: &Input) -> bool {
        input.durability.unwrap_or(self.config.durability.default) != Durability::None
    }

    /// Whether what an input receives goes to the log.
    fn is_logged(&self, input: &Input) -> bool {
        input.durability.unwrap_or(self.config.durability.default) == Durability::Log
    }

    fn drop_registered(&self, name_or_id: &str, cascade: bool) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        let (number, name) = state.registered(name_or_id)?;
        let queries: Vec<QueryId> = state.registry.of_application(number).collect();
        if !queries.is_empty() && !cascade {
            return Err(ServiceError::new(
                ErrorKind::Conflict,
                format!("the application '{name}' has {} queries", queries.len()),
            )
            .with_hint(format!("drop them too: DROP APPLICATION {} CASCADE", rivulet_sql::name_in_sql(&name))));
        }
        self.catalog.remove_application(&name, &queries)?;
        self.stop_queries(&mut state, number, &queries);
        state.queries_not_running.remove(&number);
        state.unrestored.remove(&number);
        state.not_running.remove(&name);
        if let Some(running) = state.numbered.remove(&number) {
            self.messaging.unsubscribe(running.topics.inputs.iter().filter_map(|input| input.filter.as_deref()));
            self.keep_results(&running, false);
            for inbox in &running.inboxes {
                self.messaging.router().unregister_inbox(*inbox);
                state.by_inbox.remove(inbox);
            }
            self.workers.remove_group(running.group.id());
            state.applications.remove(&name);
            state.hashed.remove(&running.application.id);
        }
        tracing::info!(application = name, queries = queries.len(), "dropped");
        Ok(())
    }

    /// Stops reading, processes what came, sends it, and ends all threads. Further calls do nothing.
    fn stop(&self) {
        if self.is_stopped.swap(true, Ordering::AcqRel) {
            return;
        }
        self.big_queries.begin_to_stop();
        self.messaging.close_input();
        self.event_log.end_replay();
        self.stop_big_queries();
        let waiting = self.workers.stop();
        if waiting > 0 {
            tracing::error!(
                events = waiting,
                "events were taken in that nobody processed: the time for stopping was over"
            );
        }
        self.messaging.stop();
        // What was sent is sent: now nothing changes any more, and nothing of it is done again.
        self.end_checkpoints();
        self.event_log.close();
    }
}

impl State {
    /// Makes an application known by all that it goes by.
    fn insert(&mut self, running: &Arc<Running>) {
        self.applications.insert(running.application.name.clone(), running.clone());
        self.hashed.insert(running.application.id.clone(), running.clone());
        self.numbered.insert(running.number, running.clone());
        self.by_inbox.extend(running.inboxes.iter().map(|&inbox| (inbox, running.clone())));
    }

    /// Whether an application can be registered: it runs already with the same text, or it is new, or it is refused.
    fn check_new(&self, application: &Application) -> Result<Option<Arc<Running>>, ServiceError> {
        self.check_tables(&application.tables)?;
        if let Some(running) = self.hashed.get(&application.id) {
            return Ok(Some(running.clone()));
        }
        let name = &application.name;
        if self.applications.contains_key(name) {
            return Err(ServiceError::new(
                ErrorKind::AlreadyExists,
                format!("an application '{name}' with another text exists"),
            )
            .with_hint(format!(
                "to let it take over the queries: CREATE OR REPLACE APPLICATION {0} ...; otherwise register it under another name, or \
                 drop the old one and its queries first: DROP APPLICATION {0} CASCADE",
                rivulet_sql::name_in_sql(name)
            )));
        }
        match self.not_running.get(name) {
            Some(other) => Err(ServiceError { kind: ErrorKind::AlreadyExists, ..other.conflict() }),
            None => Ok(None),
        }
    }
}

/// The files that statements may name.
fn files_of(config: &Config) -> Result<Files, ServiceError> {
    let kept: Vec<_> = std::iter::once(&config.data_dir).chain(&config.files.kept).cloned().collect();
    let folder = config.data_dir.join(FILES);
    Files::below(&config.files.allow, &kept, &folder).map_err(|error| {
        ServiceError::new(ErrorKind::Unavailable, format!("a folder of files.allow cannot be used: {error}"))
    })
}

/// Fails if there is state of queries that a new catalog would not know: it would be taken for that of dropped ones, and deleted.
fn refuse_orphans(config: &Config, checkpoints: Option<&Checkpoints>) -> Result<(), ServiceError> {
    let log = config.data_dir.join(LOG);
    let place = match checkpoints {
        Some(checkpoints) if checkpoints.has_orphans()? => checkpoints.store().0.place().to_owned(),
        _ if std::fs::read_dir(&log).is_ok_and(|mut files| files.next().is_some()) => log.display().to_string(),
        _ => return Ok(()),
    };
    Err(orphans(config, &place))
}

/// What is said where `place` has what belongs to a catalog that is not there.
fn orphans(config: &Config, place: &str) -> ServiceError {
    let folder = config.data_dir.display();
    let message = format!("{folder} has no catalog, and {place} has what was saved of queries that are in one");
    ServiceError::new(ErrorKind::Conflict, message).with_hint(format!(
        "put {} back into {folder}, or make all of it of a backup with `rivulet restore`; to begin anew, move {place} away",
        crate::catalog::FILE_NAME
    ))
}

/// What events of an input of a group's application are pushed to.
fn inbox_of(group: &Arc<Group>, input: usize) -> Arc<dyn Inbox> {
    match input {
        0 => group.clone(),
        input => Arc::new(GroupInput::new(group.clone(), input as InputIndex)),
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An application that was found good and has not been started.
struct Prepared {
    application: Application,
    topics: Topics,
    outputs: Arc<Outputs>,
    shape: Option<Arc<InputShape>>,
    parts: GroupParts,
    last_refusal: Arc<Mutex<Option<String>>>,
    warnings: Vec<String>,
}

/// The decoder of an application's rows.
fn decoder(inputs: &[InputFormat], row_schema: &SchemaRef) -> Result<Box<dyn Decoder>, FormatError> {
    match inputs {
        [one] => one.format.decoder(one.schema.clone(), one.event_time_column),
        several => several_inputs(several.to_vec(), row_schema.clone()),
    }
}

/// A configured address that cannot be listened on: the hint says where it is configured.
fn name_the_key(error: ServiceError) -> ServiceError {
    if !error.message.contains("cannot listen on") {
        return error;
    }
    let hint = error.hint.as_deref().map_or_else(String::new, |hint| format!("{hint}; "));
    error.with_hint(format!(
        "{hint}it is set with --mqtt-address, RIVULET_MQTT_EMBEDDED_ADDRESS or mqtt.embedded.address in rivulet.toml"
    ))
}

impl State {
    /// An application that runs, by name or by id.
    fn application(&self, name_or_id: &str) -> Result<Arc<Running>, ServiceError> {
        if let Some(running) = self.applications.get(name_or_id).or_else(|| self.hashed.get(name_or_id)) {
            return Ok(running.clone());
        }
        if let Some(other) = self.not_running(name_or_id) {
            return Err(other.conflict());
        }
        if let Some(running) = self.by_short_id(name_or_id) {
            return Ok(running.clone());
        }
        let error = ServiceError::not_found(format!("there is no application '{name_or_id}'"));
        let mut names = self.applications.keys().chain(self.not_running.keys()).map(String::as_str);
        Err(match rivulet_sql::nearest(name_or_id, names.clone()) {
            Some(near) => error.with_hint(format!("did you mean '{near}'?")),
            None if names.next().is_none() => error.with_hint("register one first: rivulet app register FILE.sql"),
            None => error.with_hint("SHOW APPLICATIONS lists them"),
        })
    }

    /// The application whose id begins so, if it is the only one: lists show the beginning of an id.
    fn by_short_id(&self, beginning: &str) -> Option<&Arc<Running>> {
        const CHARACTERS_MIN: usize = 8;
        let is_meant = |id: &str| beginning.len() >= CHARACTERS_MIN && id.starts_with(beginning);
        let mut meant = self.hashed.iter().filter(|(id, _)| is_meant(id)).map(|(_, running)| running);
        meant.next().filter(|_| meant.next().is_none())
    }

    /// Number and name of an application, whether it runs or not, by name or by id.
    fn registered(&self, name_or_id: &str) -> Result<(ApplicationNumber, String), ServiceError> {
        match self.not_running(name_or_id) {
            Some(other) => Ok((other.stored.number, other.stored.name.clone())),
            None => self.application(name_or_id).map(|running| (running.number, running.application.name.clone())),
        }
    }

    /// How many queries there are, small and big.
    fn queries(&self) -> usize {
        self.registry.count() + self.big_query_names.len()
    }

    /// Whether there is a query of this name, small or big.
    fn has_query(&self, name: &str) -> bool {
        self.registry.contains(name) || self.big_query_names.contains(name)
    }

    /// A query by name.
    fn query(&self, name: &str) -> Result<QueryId, ServiceError> {
        self.registry.id_of(name).ok_or_else(|| {
            ServiceError::not_found(format!("there is no query '{name}'")).with_hint("SHOW QUERIES lists them")
        })
    }
}
