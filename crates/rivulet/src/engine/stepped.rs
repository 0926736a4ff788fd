//! An engine without threads: whoever has it says what happens when, and on which disk, network and clock. Simulations
//! do, and so does the [trial](crate::trial) of an application.
//!
//! Everything else is what a server runs: catalog, statements, routes, groups, log, checkpoints, recovery. Nothing
//! happens between two calls, so the same calls have the same results.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rivulet_connectors::mqtt::Router;
use rivulet_dataflow::{Clock, LogPosition};
use rivulet_operators::application::{Application, Tables};
use rivulet_runtime::{Group, Workers};
use rivulet_sql::Statement;
use rivulet_storage::log::LogSettings;
use rivulet_storage::{Disk, Store};

use super::big_queries::Starts;
use super::checkpoints::Checkpoints;
use super::event_log::EventLog;
use super::memory::MemoryBound;
use super::messaging::Messaging;
use super::{Engine, Extensions, Parts};
use crate::catalog::Catalog;
use crate::config::Config;
use crate::service::{ServiceError, StatementResult, Tenant};

pub use super::messaging::Network;

/// What an engine that is run by hand stands on.
pub struct Surroundings {
    /// Its time.
    pub clock: Arc<dyn Clock>,
    /// Where the log is, in the folder `log` of the configured one.
    pub disk: Arc<dyn Disk>,
    /// How large it becomes.
    pub log: LogSettings,
    /// Where checkpoints are.
    pub store: Arc<Store>,
    /// Applications and queries.
    pub catalog: Catalog,
    /// Where messages come from and go to.
    pub network: Arc<dyn Network>,
}

impl Engine {
    /// Opens an engine by hand: it has recovered what was saved, and what the log has beyond that waits for
    /// [`Engine::replay_some`].
    ///
    /// # Errors
    /// What is on the disk cannot be used.
    pub fn stepped(config: Config, surroundings: Surroundings) -> Result<Arc<Self>, ServiceError> {
        let Surroundings { clock, disk, log, store, catalog, network } = surroundings;
        let parts = Parts {
            extensions: Extensions::default(),
            messaging: Messaging::stepped(network, &config),
            catalog: Arc::new(catalog),
            workers: Workers::stepped(clock.clone()),
            memory: MemoryBound::new(&config),
            checkpoints: config
                .checkpoint
                .as_ref()
                .map(|settings| Checkpoints::open_in(store, settings))
                .transpose()?,
            event_log: EventLog::stepped(disk, Path::new("log"), log, clock)?,
            starts: Starts::default(),
        };
        Self::assemble(config, parts)
    }

    /// Where messages enter.
    pub fn router(&self) -> &Arc<Router> {
        self.messaging.router()
    }

    /// The groups of its applications and shared inputs, to split, merge and spill.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.workers.groups()
    }

    /// Runs one of the tasks that are ready, for a slice: see [`Workers::run_one`].
    pub fn run_one(&self, choose: impl FnOnce(usize) -> usize, slice: Duration) -> bool {
        self.workers.run_one(choose, slice)
    }

    /// Has timers look at the clock.
    pub fn keep_time_once(&self) {
        self.workers.keep_time_once();
    }

    /// When the next timer of an application is due, microseconds since the epoch.
    pub fn next_timer_us(&self) -> Option<i64> {
        self.workers.next_timer_us()
    }

    /// Carries out one statement of a script.
    ///
    /// # Errors
    /// It is refused.
    pub fn carry_out(&self, statement: Statement) -> Result<StatementResult, ServiceError> {
        self.execute_statement(Tenant::of_operator(), statement, &|_| true)
    }

    /// The reference tables that an application may be planned with.
    pub fn loaded_tables(&self) -> Tables {
        self.tables.loaded(Tenant::of_operator())
    }

    /// Registers an application that was planned already.
    ///
    /// # Errors
    /// It is refused.
    pub fn register(&self, application: Application) -> Result<(), ServiceError> {
        self.applications.register(Tenant::of_operator(), application).map(drop)
    }

    /// Tries to write what has gathered for the log; whether nothing is left.
    pub fn commit_log(&self) -> bool {
        self.event_log.commit()
    }

    /// Up to where the log is on disk.
    pub fn logged_to(&self) -> LogPosition {
        self.event_log.stats().durable
    }

    /// Up to where the log was on disk when it was opened.
    pub fn found_to(&self) -> LogPosition {
        self.event_log.found_to()
    }

    /// Replays at most so many events, and if it `ends` all that are left; whether the replay is over.
    pub fn replay_some(&self, events_max: u64, ends: bool) -> bool {
        self.event_log.replay_some(events_max, ends)
    }
}
