//! The engine: applications as groups, queries as slots, connected to MQTT and recorded in the catalog.
//!
//! [`Engine`] holds parts, each with its own lock, and carries out what the service offers by calling them. A part is
//! given the parts that it needs, never the engine. Arrows point one way:
//!
//! ```text
//! backup -> coordinator -> big_queries -> queries -> applications -> tables -> outside
//!   -> routing -> shared_input, sources, messaging, event_log big_queries, queries   -> checkpoints
//! ```
//!
//! `replace` belongs to the queries. The coordinator, which makes checkpoints, is in `checkpoints`; the other parts use
//! the saved state there. Above all parts, with the engine, are `offer` and `statements`.
//!
//! What must hold:
//!
//! - A query whose creation was answered with its id is in the catalog on disk, and runs. The catalog is written first:
//!   a query that it refuses is not started.
//! - Locks are taken in one order: statements that change big queries; the lines of checkpoints (checkpoints and
//!   backups hold them and never change big queries); saved state of a query; the table of big queries; queries;
//!   applications; tables; routing; a group's free slots (held to lock two tasks of a group); the core of a task; its
//!   parts; the order of its blocks; its inbox, or the timers of a spilled task. Within a shared input: its readers,
//!   then the rows that wait, then the inboxes behind it. The router's routes come after routing and before inboxes.
//!   The lock of a scheduler is the innermost.
//! - No code waits for files, sockets or brokers while it holds a lock. There are two exceptions: the catalog, and a
//!   group that quiesces while its version is replaced or values of its queries change. A sink runs under the core of
//!   its task and takes none of the locks that are named before that one.
//!
//! In reading order: this file (opening and stopping), `applications` with `languages` (how code is loaded) and
//! `prepare` (what an application is made of), `running` and `not_running` (applications that run, and those that an
//! upgrade has left behind), `source_reader` and `sources` (inputs that read no topics), `queries` with `registry`
//! (which queries there are), `lifecycle` (whether a query runs), `big_queries`, `upgrade` (how a new version takes
//! over), `replace` (the upgrade of an application), `routing`, `topics` and `shared_input` (what queries read),
//! `resting` (groups that rest meanwhile), `tables` (reference tables), `companion` (what accompanies queries outside),
//! `offer` (the trait) and `statements` with `texts`, `answers` and `secrets` (SQL), `output` (the sink of a task),
//! `taps` (live results), `addresses`, `outlet` and `outlets` (where rows go that are not messages), `outside` (waiting
//! for files, brokers and other servers), `permitted` (what statements may reach there), `quotas` (what tenants use),
//! `links` (streams to and from other servers), `messaging` (broker or client) with `broker_journal` (sessions on
//! disk), `memory` (limits of memory), `checkpoints`, `backup` and `event_log` (what outlives the process), `attempts`
//! and `threads` (work that is repeated), `reserve` (a start on a full disk), `status` and `exposition` (counters),
//! `warnings` (what an owner should know), `standstill` (applications whose outputs cannot deliver), [`stepped`] (for
//! simulations and trials).

mod addresses;
mod answers;
mod applications;
mod attempts;
mod backup;
mod big_queries;
mod broker_journal;
pub mod stepped;
mod checkpoints;
mod companion;
mod event_log;
mod exposition;
mod routing;
mod languages;
mod last_minute;
mod lifecycle;
mod links;
mod memory;
mod messaging;
mod not_running;
mod offer;
mod outlet;
mod outlets;
mod output;
mod outside;
mod permitted;
mod prepare;
mod queries;
mod quotas;
mod registry;
mod replace;
mod reserve;
mod resting;
mod running;
mod saved_rows;
mod secrets;
mod shared_input;
mod source_reader;
mod sources;
mod standstill;
mod statements;
mod status;
mod tables;
mod taps;
mod texts;
mod threads;
mod topics;
mod upgrade;
mod warnings;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::{Clock, LogPosition, QueryId};
use rivulet_runtime::{InboxLimits, Spill, Workers};

use crate::accounts::{self, Accounts, AuditLog};
use crate::catalog::Catalog;
use crate::config::{AuditConfig, Config, Listener};
use crate::counted::counted;
use crate::data_folder::archive::Copies;
use crate::data_folder::{CHECKPOINTS, LOG};
use crate::secrets::Secrets;
use crate::service::{Access, ErrorKind, Limits, ServiceError};
use applications::Applications;
use backup::Backups;
use big_queries::{BigQueries, Functions, Opener, Starts};
use checkpoints::coordinator::Coordinator;
use checkpoints::{Checkpoints, SavedStates, WayOut};
pub use companion::Companion;
use event_log::EventLog;
pub use languages::Languages;
use last_minute::LastMinutes;
use links::ServerLinks;
use memory::MemoryBound;
pub(crate) use messaging::client_options;
use messaging::{Messaging, Network};
use outlets::Outlets;
use outside::Outside;
use permitted::Permitted;
use prepare::Preparation;
use queries::Queries;
use queries::lifecycle_log::Loading;
use routing::Routing;
use sources::Sources;
use standstill::Standstills;
use tables::ReferenceTables;
use taps::Taps;
use threads::Threads;

pub(crate) use big_queries::note_crashes;
pub(crate) use big_queries::saved as saved_queries;
pub(crate) use checkpoints::applications as saved;
pub(crate) use prepare::{TrialInput, check_outputs, trial_inputs};
pub(crate) use tables::{TableBound, read_table};
pub(crate) use texts::format_error;
pub(crate) use topics::is_topic;

/// The engine of one server.
pub struct Engine {
    config: Arc<Config>,
    access: Arc<Access>,
    /// `None` if something else decides who gets in.
    accounts: Option<Arc<Accounts>>,
    secrets: Arc<Secrets>,
    audit: Option<Arc<AuditLog>>,
    started: Instant,
    last_minutes: Mutex<LastMinutes>,
    catalog: Arc<Catalog>,
    workers: Arc<Workers>,
    messaging: Arc<Messaging>,
    big_queries: Arc<BigQueries>,
    /// `None` if state is not saved.
    checkpoints: Option<Arc<Checkpoints>>,
    coordinator: Arc<Coordinator>,
    backups: Backups,
    event_log: Arc<EventLog>,
    queries: Arc<Queries>,
    applications: Arc<Applications>,
    tables: Arc<ReferenceTables>,
    permitted: Arc<Permitted>,
    routing: Arc<Routing>,
    outlets: Arc<Outlets>,
    threads: Arc<Threads>,
    /// Whether the server has announced that it will stop the engine.
    stops_soon: AtomicBool,
    is_stopped: Arc<AtomicBool>,
}

/// What a caller adds to the engine.
#[derive(Clone, Default)]
pub struct Extensions {
    /// The languages in which applications may be written.
    pub languages: Languages,
    /// Decides which clients get in, and what they may do; without it, the accounts in the catalog do.
    pub access: Option<Arc<Access>>,
    /// Where messages come from and go to. If `None`, the engine uses its own broker or client.
    pub network: Option<Arc<dyn Network>>,
    /// What accompanies queries.
    pub companion: Option<Arc<dyn Companion>>,
}

/// The parts of an engine.
struct Parts {
    doors: Doors,
    extensions: Extensions,
    messaging: Messaging,
    catalog: Arc<Catalog>,
    workers: Workers,
    memory: MemoryBound,
    checkpoints: Option<Arc<Checkpoints>>,
    event_log: EventLog,
    starts: Starts,
}

/// Who gets in.
#[derive(Clone)]
struct Doors {
    access: Arc<Access>,
    /// `None` if something else decides that.
    accounts: Option<Arc<Accounts>>,
    /// What callers did; `None` if it is not recorded.
    audit: Option<Arc<AuditLog>>,
}

impl Doors {
    fn of(extensions: &Extensions, audit: Option<&AuditConfig>) -> Result<Self, ServiceError> {
        if let Some(access) = &extensions.access {
            return Ok(Self { access: access.clone(), accounts: None, audit: None });
        }
        let accounts = Arc::<Accounts>::default();
        let audit = audit.map(AuditLog::start).transpose().map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start a thread for the audit: {error}"))
        })?;
        let access = Access::new(accounts.clone()).limited(accounts.quotas().clone());
        let access = Arc::new(match audit.clone() {
            Some(audit) => access.audited(audit),
            None => access,
        });
        Ok(Self { access, accounts: Some(accounts), audit })
    }

    /// Reads the accounts. Until then nobody gets in.
    fn load(&self, catalog: &Arc<Catalog>, config: &Config) -> Result<(), ServiceError> {
        let Some(accounts) = &self.accounts else { return Ok(()) };
        accounts.load(catalog.clone())?;
        accounts.trust(accounts.prepare_issuer(config.jwt.as_ref())?);
        Ok(())
    }
}

/// Fails if other machines could reach an address behind which nobody has to log in.
fn refuse_to_stand_open(access: &Access, config: &Config) -> Result<(), ServiceError> {
    if access.has_accounts() {
        return Ok(());
    }
    let open = config.public_listeners().find(|listener| !listener.asks_for_password);
    let Some(Listener { key, address, .. }) = open else { return Ok(()) };
    let folder = config.data_dir.display();
    let message = format!("{key} is {address}, which other machines reach, and nobody has to log in");
    Err(ServiceError::new(ErrorKind::Conflict, message).with_hint(format!(
        "make the first administrator: `rivulet user create admin --admin --data-dir {folder}`, then `rivulet \
         token create admin --data-dir {folder}`, and start again; or listen on 127.0.0.1"
    )))
}

impl Engine {
    /// Opens the catalog, starts workers and MQTT, and starts everything that is registered.
    ///
    /// # Errors
    /// The catalog cannot be used, a listening address is taken, or the broker's address is invalid. A broker that does
    /// not answer is not an error: the engine keeps trying.
    pub fn open(config: Config) -> Result<Arc<Self>, ServiceError> {
        Self::open_with(config, Extensions::default())
    }

    /// Like [`Engine::open`], with what a caller adds to the engine.
    ///
    /// # Errors
    /// As [`Engine::open`]. It is not an error if the catalog has an application of a kind that is not among the
    /// languages: that application does not run, and is listed so.
    pub fn open_with(config: Config, extensions: Extensions) -> Result<Arc<Self>, ServiceError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        // Before the data folder is made: a start that finds an address taken must leave nothing behind.
        let network = extensions.network.clone();
        let doors = Doors::of(&extensions, config.audit.as_ref())?;
        let messaging = Messaging::start(&config, &doors.access, network, clock.clone())?;
        reserve::give_back(&config.data_dir);
        let checkpoints = config.checkpoint.as_ref().map(Checkpoints::open).transpose()?;
        if !Catalog::is_there(&config.data_dir) {
            refuse_orphans(&config, checkpoints.as_deref())?;
        }
        let catalog = Arc::new(Catalog::open(&config.data_dir)?);
        Copies::forget(&config.data_dir);
        reserve::keep(&config.data_dir);
        if let Some(checkpoints) = &checkpoints {
            // An earlier server may have ended after it made a catalog and before it filled it.
            if catalog.is_new()? && checkpoints.has_orphans()? {
                return Err(orphans(&config, checkpoints.store().0.place()));
            }
            checkpoints.restore_catalog(&catalog, &config.data_dir)?;
            checkpoints.claim_place(&catalog, &config.data_dir.join(CHECKPOINTS), config.accepts_empty_checkpoints)?;
        }
        doors.load(&catalog, &config)?;
        doors.access.quotas().set_defaults(Limits::of(&config.tenant_limits));
        refuse_to_stand_open(&doors.access, &config)?;
        let workers = Workers::start(config.workers, clock.clone()).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("cannot start worker threads: {error}"))
        })?;
        let memory = MemoryBound::new(&config);
        if let Some(after) = config.spill_after {
            let bound = memory.clone();
            let spill = Spill::new(&config.data_dir, after, config.spill_bytes_max, move || bound.is_pressed());
            workers.enable_spilling(spill.map_err(|error| {
                let folder = config.data_dir.display();
                ServiceError::new(
                    ErrorKind::Unavailable,
                    format!("cannot make a file for silent queries in {folder}: {error}"),
                )
            })?);
        }
        let event_log = EventLog::open(&config.data_dir, &config.durability, clock)?;
        messaging.keep_sessions(&config, event_log.end())?;
        let starts = Starts::open(&config.data_dir, Path::new("/"));
        let parts = Parts { doors, extensions, messaging, catalog, workers, memory, checkpoints, event_log, starts };
        let engine = Self::assemble(config, parts)?;
        engine.coordinator.start(&engine.threads)?;
        engine.routing.sources().begin();
        let watched = engine.big_queries.watch(&engine.threads);
        watched
            .and_then(|()| reserve::watch(&engine.config.data_dir, &engine.catalog, &engine.threads))
            .and_then(|()| warnings::watch(&engine.applications, &engine.threads))
            .and_then(|()| engine.outlets.watch(&engine.threads))
            .and_then(|()| engine.standstills().watch(&engine.threads))
            .and_then(|()| engine.watch_accounts())
            .and_then(|()| engine.watch_quotas())
            .and_then(|()| engine.big_queries.watch_bursts(&engine.threads))
            .map_err(|error| ServiceError::new(ErrorKind::Unavailable, format!("cannot start a thread: {error}")))?;
        Ok(engine)
    }

    /// What looks after applications whose outputs cannot deliver.
    fn standstills(&self) -> Arc<Standstills> {
        Arc::new(Standstills {
            applications: self.applications.clone(),
            queries: self.queries.clone(),
            outlets: self.outlets.clone(),
            routing: self.routing.clone(),
            event_log: self.event_log.clone(),
            is_stopped: self.is_stopped.clone(),
            known: Mutex::default(),
            has_some: Arc::default(),
            log_waits: self.coordinator.log_waits.clone(),
            failed: Mutex::default(),
            given_up_to: AtomicU64::new(0),
        })
    }

    /// Assembles an engine from its parts, restores what was saved, and opens it for messages.
    fn assemble(config: Config, parts: Parts) -> Result<Arc<Self>, ServiceError> {
        let Parts { doors, extensions, messaging, catalog, workers, memory, checkpoints, event_log, starts } = parts;
        let Doors { access, accounts, audit } = doors;
        let Extensions { languages, access: _, companion, network: _ } = extensions;
        let server_id = format!("{:016x}", catalog.server_id()?);
        let config = Arc::new(config);
        let secrets = Arc::new(Secrets::open(&config.data_dir)?);
        let (workers, messaging, event_log) = (Arc::new(workers), Arc::new(messaging), Arc::new(event_log));
        let links = ServerLinks::start(&config, &access, &server_id, &workers)?;
        let permitted = Arc::new(Permitted::new(&config, &access, &secrets, links)?);
        let blocked = Arc::downgrade(&workers);
        messaging.publisher().on_room(Arc::new(move || {
            blocked.upgrade().iter().for_each(|workers| workers.retry_blocked());
        }));
        let taps = Arc::new(Taps::new(config.http.results_bytes_max));
        let (outside, is_stopped) = (Arc::<Outside>::default(), Arc::<AtomicBool>::default());
        let reader = tables::Reader {
            permitted: permitted.clone(),
            bytes_max: AtomicUsize::new(config.table_bytes_max),
            memory: memory.clone(),
            quotas: access.quotas().clone(),
            outside: outside.clone(),
            is_stopped: is_stopped.clone(),
        };
        let tables = Arc::new(ReferenceTables::new(catalog.clone(), reader));
        let limits = InboxLimits {
            rows_max: config.inbox_rows_max,
            bytes_max: config.inbox_bytes_max,
            ..InboxLimits::default()
        };
        let sources = Sources::new(messaging.router().clone(), permitted.clone(), server_id.clone());
        let sources = Arc::new(sources);
        let routing = Routing::new(messaging.clone(), event_log.clone(), sources, workers.clone(), limits);
        let routing = Arc::new(routing);
        let preparation = Preparation {
            config: config.clone(),
            languages,
            companion: companion.clone(),
            messaging: messaging.clone(),
            catalog: catalog.clone(),
            taps: taps.clone(),
            server_id: server_id.clone(),
            permitted: permitted.clone(),
        };
        let outlets = Arc::<Outlets>::default();
        let applications =
            Applications::new(preparation, workers.clone(), tables.clone(), routing.clone(), outlets.clone());
        let applications = Arc::new(applications);
        let way_out = WayOut::new(messaging.clone(), event_log.clone(), outlets.clone(), is_stopped.clone());
        let way_out = Arc::new(way_out);
        let queries = Arc::new(Queries {
            applications: applications.clone(),
            tables: tables.clone(),
            routing: routing.clone(),
            catalog: catalog.clone(),
            event_log: event_log.clone(),
            taps,
            memory: memory.clone(),
            checkpoints: checkpoints.clone(),
            way_out: way_out.clone(),
            companion,
            quotas: access.quotas().clone(),
            state: Mutex::default(),
            next_change: AtomicU64::new(LogPosition::MAX),
        });
        let opener = Opener::new(
            config.clone(),
            permitted.clone(),
            messaging.clone(),
            workers.clone(),
            outside,
            server_id,
            is_stopped.clone(),
        );
        let big_queries = Arc::new(BigQueries::new(
            opener,
            catalog.clone(),
            queries.clone(),
            tables.clone(),
            checkpoints.clone(),
            memory,
            (starts, Functions::open(&config, &is_stopped)?),
        ));
        let coordinator = Arc::new(Coordinator {
            checkpoints: checkpoints.clone(),
            way_out,
            catalog: catalog.clone(),
            event_log: event_log.clone(),
            messaging: messaging.clone(),
            routing: routing.clone(),
            applications: applications.clone(),
            queries: queries.clone(),
            big_queries: big_queries.clone(),
            log_waits: Arc::default(),
        });
        let backups = Backups {
            data_dir: config.data_dir.clone(),
            secrets: secrets.clone(),
            catalog: catalog.clone(),
            messaging: messaging.clone(),
            event_log: event_log.clone(),
            coordinator: coordinator.clone(),
            current: Mutex::default(),
        };
        let engine = Arc::new(Self {
            config,
            access,
            accounts,
            secrets,
            audit,
            started: Instant::now(),
            last_minutes: Mutex::default(),
            catalog,
            workers,
            messaging,
            big_queries,
            checkpoints,
            coordinator,
            backups,
            event_log,
            queries,
            applications,
            tables,
            permitted,
            routing,
            outlets,
            threads: Arc::default(),
            stops_soon: AtomicBool::new(false),
            is_stopped,
        });
        // Restored queries have timers that are due, and behind their state there are events that come first.
        engine.workers.hold_timers_at(0);
        let replayed_from = engine.load()?;
        engine.big_queries.load()?;
        engine.event_log.attach(&engine.messaging)?;
        let of_queries = Arc::downgrade(&engine.queries);
        let queries = of_queries.clone();
        let change =
            move |position| queries.upgrade().map_or(LogPosition::MAX, |queries| queries.make_changes(position));
        let over = move || of_queries.upgrade().iter().for_each(|queries| queries.end_absences());
        let router = engine.messaging.router().clone();
        // Without checkpoints, events that the log no longer has do not count as lost.
        let asks_for_all = engine.checkpoints.is_some();
        let workers = engine.workers.clone();
        let (change, over) = (Box::new(change), Box::new(over));
        engine.event_log.replay(replayed_from, asks_for_all, router, workers, change, over)?;
        engine.messaging.open()?;
        Ok(engine)
    }

    /// Ends what expires, from time to time.
    fn watch_accounts(&self) -> std::io::Result<()> {
        let Some(accounts) = self.accounts.clone() else { return Ok(()) };
        self.threads.start("rivulet-accounts", accounts::LOOK_PERIOD, move || accounts.look())
    }

    /// Makes worker threads call `give_back` after the state of many queries has left memory. It returns memory of the
    /// calling thread's heap to the system.
    pub fn give_back_memory_with(&self, give_back: fn()) {
        self.workers.give_back_with(give_back);
    }

    /// The address at which MQTT clients reach the embedded broker, if there is one.
    pub fn embedded_broker_address(&self) -> Option<std::net::SocketAddr> {
        self.messaging.embedded_address()
    }

    /// Applies the keys of a configuration that can change while the engine runs: see
    /// [`Key::reloads`](crate::config::Key).
    ///
    /// # Errors
    /// A certificate cannot be used, or nobody would have to log in any more. Then nothing has changed.
    fn change_configuration(&self, config: &Config) -> Result<(), ServiceError> {
        refuse_to_stand_open(&self.access, config)?;
        let prepare = |accounts: &Arc<Accounts>| accounts.prepare_issuer(config.jwt.as_ref());
        let issuer = self.accounts.as_ref().map(prepare).transpose()?;
        self.messaging.take_over(config, &self.access)?;
        self.accounts.iter().zip(issuer).for_each(|(accounts, issuer)| accounts.trust(issuer));
        self.queries.memory.set_bytes_max(config.memory_bytes_max);
        self.tables.set_bytes_max(config.table_bytes_max);
        self.permitted.take_over(config);
        self.access.quotas().set_defaults(Limits::of(&config.tenant_limits));
        Ok(())
    }

    /// Starts everything that the catalog has, with its saved state. Returns the position in the log from which on
    /// events may be missing in that state.
    fn load(&self) -> Result<LogPosition, ServiceError> {
        let read = self
            .checkpoints
            .as_ref()
            .map(|checkpoints| checkpoints.read(&self.event_log, &self.outlets))
            .transpose()?;
        let (mut unrestored, mut found, position) = read.unwrap_or_default();
        // Before numbers are passed over, below.
        unrestored.altered_next = self.catalog.alteration_next()?;
        self.tables.load()?;
        self.queries.note_tables();
        let stored = self.applications.stored()?;
        if let Some(checkpoints) = &self.checkpoints {
            let sources = self.routing.sources();
            let (positions, from) = checkpoints.sources();
            // The sources of an application that does not run are read once it does.
            let mut may_have =
                stored.iter().map(|(_, one)| one.as_ref().map_or(true, |one| Sources::have_places(&one.application)));
            if !positions.is_empty() || may_have.any(|may| may) {
                sources.restore(positions);
                self.event_log.look_through(from, &mut |message| sources.pass(message))?;
            }
        }
        let begun = Instant::now();
        let mut saved = SavedStates::read(&unrestored);
        self.applications.load(stored, &mut |number, prepared, _| saved.fit(&self.applications, number, prepared));
        // The state of the others is restored below, and leaves memory as it is. What is kept is copied: pieces that
        // were read together share their memory.
        unrestored.pieces.retain(|number, _| self.applications.numbered(*number).is_none());
        let kept = unrestored.pieces.values_mut().flatten();
        kept.for_each(|piece| *piece = Bytes::copy_from_slice(piece));
        // A catalog that is older than the state, as one from a store can be, would give these numbers to new queries,
        // which would then get that state.
        self.catalog.pass(saved.used())?;
        let lifecycle_log = self.queries.lifecycle_log(position)?;
        let loading = Loading { saved: &saved, lifecycle_log: &lifecycle_log, restores_at_once: None };
        let queries = self.queries.load(&loading)?;
        if queries > 0 {
            tracing::info!(
                queries,
                applications = self.applications.running().len(),
                elapsed_ms = begun.elapsed().as_millis() as u64,
                "queries run again"
            );
        }
        if let Some(checkpoints) = &self.checkpoints {
            let (threads, state) = (self.config.workers.threads, self.queries.state.lock());
            let slot_of = |query: QueryId| state.registry.get(query).and_then(|entry| entry.life.slot());
            checkpoints.restore_all(&saved, &self.applications, &slot_of, threads, &mut found);
        }
        self.queries.expect_replayed(&saved, lifecycle_log)?;
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.report_recovery(found);
        }
        self.applications.keep_unrestored(unrestored);
        Ok(position)
    }

    /// Stops reading, processes the events that have come, sends their results, and ends all threads. Further calls do
    /// nothing.
    ///
    /// # Errors
    /// Which rows of big queries, and which events, are lost.
    fn stop(&self) -> Result<(), ServiceError> {
        if self.is_stopped.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.big_queries.begin_to_stop();
        self.messaging.close_input();
        self.routing.sources().stop();
        self.event_log.end_replay();
        let mut lost = self.big_queries.stop(|| self.coordinator.save_big_queries_at_the_end());
        self.workers.stop();
        // Those of the log are replayed after the start.
        let shared = self.routing.shared_groups();
        let waiting = self.workers.groups().into_iter().filter_map(|group| {
            let events = group.unlogged() as u64;
            let of = match shared.iter().any(|one| Arc::ptr_eq(one, &group)) {
                true => "applications that read the same topics".to_owned(),
                false => format!("the application '{}'", group.name()),
            };
            (events > 0).then(|| format!("{} that wait for {of}", counted(events, "event")))
        });
        lost.extend(waiting);
        self.messaging.stop();
        self.outlets.finish();
        // All results are sent. From here on nothing changes, and no periodic work runs.
        self.threads.end();
        self.accounts.iter().for_each(|accounts| accounts.save_last_use());
        self.audit.iter().for_each(|audit| audit.close());
        self.coordinator.end();
        self.outlets.end();
        self.event_log.close();
        if lost.is_empty() {
            return Ok(());
        }
        let message = format!("rows were lost when the server stopped: {}", lost.join("; "));
        Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint(
            "stop the server when all sinks and outputs work, as `rivulet status` says; of inputs with durability => \
                 'log' nothing is lost",
        ))
    }
}

/// Fails if there is saved state of queries that a new catalog would not know: that state would be taken for the state
/// of dropped queries, and deleted.
fn refuse_orphans(config: &Config, checkpoints: Option<&Checkpoints>) -> Result<(), ServiceError> {
    let log = config.data_dir.join(LOG);
    let place = match checkpoints {
        Some(checkpoints) if checkpoints.has_orphans()? => checkpoints.store().0.place().to_owned(),
        _ if std::fs::read_dir(&log).is_ok_and(|mut files| files.next().is_some()) => log.display().to_string(),
        _ => return Ok(()),
    };
    Err(orphans(config, &place))
}

/// The error if `place` has files that belong to a missing catalog.
fn orphans(config: &Config, place: &str) -> ServiceError {
    let folder = config.data_dir.display();
    let message = format!("{folder} has no catalog, and {place} has what was saved of queries that are in one");
    ServiceError::new(ErrorKind::Conflict, message).with_hint(format!(
        "put {} back into {folder}, or make all of it of a backup with `rivulet restore`; to begin anew, move {place} away",
        crate::catalog::FILE_NAME
    ))
}

impl Drop for Engine {
    fn drop(&mut self) {
        // What is lost is in the log.
        let _ = self.stop();
    }
}
