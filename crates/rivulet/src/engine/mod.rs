//! The engine: applications as groups, queries as slots, wired to MQTT and remembered in the catalog.
//!
//! What must hold:
//! - A query that was answered with its id is in the catalog on disk, and runs. The catalog comes first: what it refuses is
//!   not started.
//! - Locks are taken in one order: the state of the engine, then a group, then the router. A sink runs under its group's lock and
//!   takes neither of the others.
//!
//! In reading order: this file (opening, applications), `not_running` (what an upgrade has left behind), `submit`
//! (queries) and `topics`, `tables` (reference tables), `offer` (the trait) and `statements` (SQL), `output` (the sink of
//! a task), `messaging` (broker or client), `status` and `exposition` (what is counted).

mod messaging;
mod output;
mod taps;
mod registry;
mod not_running;
mod topics;
mod submit;
mod tables;
mod statements;
mod offer;
mod status;
mod exposition;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use rivulet_connectors::formats::Format;
use rivulet_connectors::mqtt::InboxId;
use rivulet_dataflow::{Clock, QueryId};
use rivulet_runtime::{Group, GroupParts, InboxLimits, Overflow, TaskParts, Workers};
use rivulet_sql::{Application, CreateTable, Tables};

use crate::catalog::{ApplicationNumber, Catalog, StoredApplication};
use crate::config::Config;
use crate::service::{ErrorKind, ServiceError};
use messaging::Messaging;
use not_running::NotRunning;
use output::{Outputs, TaskSink};
use registry::Registry;
use taps::Taps;
use topics::Topics;

/// The machine's clock.
struct SystemClock;

impl Clock for SystemClock {
    fn now_us(&self) -> i64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn steady_us(&self) -> i64 {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        i64::try_from(BEGIN.get_or_init(Instant::now).elapsed().as_micros()).unwrap_or(i64::MAX)
    }
}

/// The engine of one server.
pub struct Engine {
    config: Config,
    started: Instant,
    catalog: Arc<Catalog>,
    workers: Workers,
    messaging: Messaging,
    taps: Arc<Taps>,
    state: Mutex<State>,
    is_stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    registry: Registry,
    applications: BTreeMap<String, Arc<Running>>,
    /// The same by the number that the registry and the catalog know them by.
    numbered: HashMap<ApplicationNumber, Arc<Running>>,
    /// The same by the hash of their text.
    hashed: HashMap<String, Arc<Running>>,
    /// Reference tables, by name: what was declared, and what of it applications can use.
    declared_tables: BTreeMap<String, CreateTable>,
    tables: Tables,
    /// Applications that are registered and cannot run, by name.
    not_running: BTreeMap<String, NotRunning>,
    /// How many queries of an application cannot run; of most none.
    queries_not_running: HashMap<ApplicationNumber, u64>,
}

/// An application with its group.
struct Running {
    number: ApplicationNumber,
    application: Application,
    group: Arc<Group>,
    inbox: InboxId,
    topics: Topics,
    queries_running: AtomicU64,
    queries_paused: AtomicU64,
    /// The last refusal in words, for people who ask why.
    last_refusal: Arc<Mutex<Option<String>>>,
}

impl Engine {
    /// Opens the catalog, starts workers and MQTT, and lets everything run that is registered.
    ///
    /// # Errors
    /// A catalog that cannot be used, an address that is taken, a broker's address that is none. A broker that does not answer is not an error:
    /// the engine goes on trying.
    pub fn open(config: Config) -> Result<Arc<Self>, ServiceError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        // Before the data folder is made: an address that is taken must leave nothing behind.
        let messaging = Messaging::start(&config, clock.clone()).map_err(name_the_key)?;
        let catalog = Arc::new(Catalog::open(&config.data_dir)?);
        let workers = Workers::start(config.workers, clock).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start worker threads: {error}"))
        })?;
        let engine = Arc::new(Self {
            config,
            started: Instant::now(),
            catalog,
            workers,
            messaging,
            taps: Arc::default(),
            state: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        engine.load()?;
        engine.messaging.open()?;
        Ok(engine)
    }

    /// Where MQTT clients reach the embedded broker, if there is one.
    pub fn embedded_broker_address(&self) -> Option<std::net::SocketAddr> {
        self.messaging.embedded_address()
    }

    /// Lets everything run that the catalog remembers.
    fn load(&self) -> Result<(), ServiceError> {
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
        let queries = self.load_queries(&mut state)?;
        if queries > 0 {
            tracing::info!(
                queries,
                applications = state.applications.len(),
                elapsed_ms = begun.elapsed().as_millis() as u64,
                "queries run again"
            );
        }
        Ok(())
    }

    /// Registers an application; one that is registered already with the same text is returned as it is.
    fn register(&self, application: Application) -> Result<(Arc<Running>, bool), ServiceError> {
        // Everything that can be refused is, before the catalog remembers it.
        let (name, id, sql) = (application.name.clone(), application.id.clone(), application.text.clone());
        let tables = application.tables.clone();
        let prepared = self.prepare(application)?;
        let mut state = self.state.lock();
        state.check_tables(&tables)?;
        if let Some(running) = state.hashed.get(&id) {
            return Ok((running.clone(), false));
        }
        if state.applications.contains_key(&name) {
            return Err(ServiceError::new(
                ErrorKind::AlreadyExists,
                format!("an application '{name}' with another text exists"),
            )
            .with_hint(format!(
                "register it under another name, or drop the old one and its queries first: DROP APPLICATION {} CASCADE",
                rivulet_sql::name_in_sql(&name)
            )));
        }
        if let Some(other) = state.not_running.get(&name) {
            return Err(ServiceError { kind: ErrorKind::AlreadyExists, ..other.conflict() });
        }
        let number = self.catalog.insert_application(&name, &id, &sql)?;
        let running = self.run(&mut state, number, prepared)?;
        tracing::info!(application = name, "registered");
        Ok((running, true))
    }

    fn start_application(&self, state: &mut State, stored: &StoredApplication) -> Result<(), ServiceError> {
        let application = statements::plan(&stored.sql, &state.tables)?;
        let prepared = self.prepare(application)?;
        self.run(state, stored.number, prepared)?;
        Ok(())
    }

    /// What can be wrong with an application that the planner does not know: connectors and formats.
    fn prepare(&self, application: Application) -> Result<Prepared, ServiceError> {
        let topics = Topics::new(&application)?;
        let format = |spec: &rivulet_sql::FormatSpec| {
            let options: Vec<(String, String)> =
                spec.options.iter().map(|(name, value)| (name.clone(), statements::literal_text(value))).collect();
            let options = options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            Format::parse(&spec.name, options).map_err(|error| statements::format_error(&error, spec))
        };
        let input = &application.input;
        let input_format = format(&input.format)?;
        input_format
            .decoder(input.schema.clone(), input.event_time)
            .map_err(|error| statements::format_error(&error, &input.format))?;
        let output_format = format(&application.output.format)?;
        output_format
            .encoder(application.output.schema.clone())
            .map_err(|error| statements::format_error(&error, &application.output.format))?;
        let last_refusal = Arc::default();
        let outputs = Arc::new(Outputs {
            application: application.name.clone(),
            is_json: output_format == Format::Json,
            result: topics.output.clone(),
            late: topics.late.clone(),
            dead_letter: topics.dead_letter.clone(),
            options: self.messaging.publish_options(),
            publisher: self.messaging.publisher(),
            taps: self.taps.clone(),
            catalog: self.catalog.clone(),
            last_refusal: Arc::clone(&last_refusal),
        });
        let (input_schema, event_time) = (input.schema.clone(), input.event_time);
        let (dataflow, output_schema) = (application.dataflow.clone(), application.output.schema.clone());
        let tables =
            application.tables.iter().map(|one| (one.table.name().to_owned(), Ok(one.table.clone()))).collect();
        let own_code: Option<(String, Tables)> = (!self.config.shares_code).then(|| (application.text.clone(), tables));
        let make = move || {
            let replanned = own_code.as_ref().and_then(|(text, tables)| statements::plan(text, tables).ok());
            let encoder = output_format.encoder(output_schema.clone()).expect("one was made before");
            TaskParts {
                decoder: input_format.decoder(input_schema.clone(), event_time).expect("one was made before"),
                chain: replanned.as_ref().map_or(&dataflow, |application| &application.dataflow).chain(),
                sink: Box::new(TaskSink::new(outputs.clone(), encoder)),
            }
        };
        let parts = GroupParts {
            name: application.name.clone(),
            parameters: application.parameter_schema.clone(),
            make: Box::new(make),
            limits: InboxLimits {
                rows_max: self.config.inbox_rows_max,
                bytes_max: self.config.inbox_bytes_max,
                overflow: match input.overflow {
                    rivulet_sql::Overflow::Block => Overflow::Block,
                    rivulet_sql::Overflow::DropOldest => Overflow::DropOldest,
                    rivulet_sql::Overflow::DropNewest => Overflow::DropNewest,
                },
            },
            event_time_column: event_time,
            task_queries_max: self.config.task_queries_max,
            batch_rows_max: self.config.batch_rows_max,
        };
        Ok(Prepared { application, topics, parts, last_refusal })
    }

    fn run(
        &self,
        state: &mut State,
        number: ApplicationNumber,
        prepared: Prepared,
    ) -> Result<Arc<Running>, ServiceError> {
        let Prepared { application, topics, parts, last_refusal } = prepared;
        let group = self.workers.create_group(parts);
        let inbox = self.messaging.router().register_inbox(group.clone());
        if let Some(filter) = &topics.input_filter {
            self.messaging.subscribe([filter.as_str()]);
        }
        let running = Arc::new(Running {
            number,
            application,
            group,
            inbox,
            topics,
            queries_running: AtomicU64::new(0),
            queries_paused: AtomicU64::new(0),
            last_refusal,
        });
        state.applications.insert(running.application.name.clone(), running.clone());
        state.hashed.insert(running.application.id.clone(), running.clone());
        state.numbered.insert(number, running.clone());
        Ok(running)
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
        state.not_running.remove(&name);
        if let Some(running) = state.numbered.remove(&number) {
            if let Some(filter) = &running.topics.input_filter {
                self.messaging.unsubscribe([filter.as_str()]);
            }
            self.messaging.router().unregister_inbox(running.inbox);
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
        self.messaging.close_input();
        let waiting = self.workers.stop();
        if waiting > 0 {
            tracing::error!(
                events = waiting,
                "events were taken in that nobody processed: the time for stopping was over"
            );
        }
        self.messaging.stop();
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
    parts: GroupParts,
    last_refusal: Arc<Mutex<Option<String>>>,
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

    /// A query by name.
    fn query(&self, name: &str) -> Result<QueryId, ServiceError> {
        self.registry.id_of(name).ok_or_else(|| {
            ServiceError::not_found(format!("there is no query '{name}'")).with_hint("SHOW QUERIES lists them")
        })
    }
}
