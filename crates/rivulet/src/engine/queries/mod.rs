//! The queries of applications: which there are, and how they are created, paused, resumed, dropped and shown.
//!
//! What must hold: a query is in the catalog before it runs, and a name belongs to one query, small or big.
//!
//! The lock of the queries is the first of the engine's parts. Code that ends or replaces an application holds it too,
//! so code that holds it may rely on the application of a query. It is held while the catalog is written, and during no
//! other wait for anything outside the process.
//!
//! In reading order: [`submit`] (queries are created, paused, resumed and dropped), [`alter`] (they get other values),
//! [`replayed_changes`] (and get them again after a restart), [`change`] (what that does to them), [`checked`] (values
//! are bound and checked), [`lifecycle_log`] (what each gets of the log after a restart), [`list`] (how they are
//! shown), [`activity`] and [`why`] (what becomes of the events of one).

mod alter;
mod replayed_changes;
mod change;
pub(super) mod checked;
pub(super) mod lifecycle_log;
mod activity;
mod list;
mod nulls;
pub(super) mod submit;
pub(super) mod why;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rivulet_dataflow::slot_host::Absences;
use rivulet_dataflow::{QueryId, Slot};
use rivulet_sql::CreateTable;
use tokio::sync::broadcast;

use super::applications::Applications;
use super::checkpoints::{Checkpoints, WayOut};
use super::companion::Companion;
use super::event_log::EventLog;
use super::memory::MemoryBound;
use super::registry::Registry;
use super::routing::Routing;
use super::running::Running;
use super::tables::ReferenceTables;
use super::taps::{Taps, Watched};
use crate::catalog::Catalog;
use crate::counted::counted;
use crate::service::{ErrorKind, FullName, LiveResult, Quotas, ServiceError, Tenant};
use checked::ReplayedChange;

/// The queries of applications.
pub(super) struct Queries {
    pub(super) applications: Arc<Applications>,
    pub(super) tables: Arc<ReferenceTables>,
    pub(super) routing: Arc<Routing>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) event_log: Arc<EventLog>,
    pub(super) taps: Arc<Taps>,
    pub(super) memory: MemoryBound,
    pub(super) checkpoints: Option<Arc<Checkpoints>>,
    pub(super) way_out: Arc<WayOut>,
    pub(super) companion: Option<Arc<dyn Companion>>,
    pub(super) quotas: Arc<Quotas>,
    pub(super) state: Mutex<State>,
    /// The position of the first change of values that is yet to be made again; the highest position there can be if
    /// there is none.
    pub(super) next_change: AtomicU64,
}

/// The queries that exist.
#[derive(Default)]
pub(super) struct State {
    pub(super) registry: Registry,
    /// The last query that is older than the run of the server; 0 if there is none.
    restored_to: QueryId,
    /// Names of big queries, which queries of applications may not have.
    pub(super) big_query_names: BTreeSet<FullName>,
    /// What else a SELECT names in FROM, by tenant: sources, views and tables. No query may have such a name.
    relations: HashMap<Tenant, HashMap<String, &'static str>>,
    /// Paused queries that get events of the log from before their pause, until the log is replayed.
    replayed_paused: BTreeSet<QueryId>,
    /// When queries were paused; until the log is replayed.
    absences: Vec<(Arc<Running>, Absences)>,
    /// Changes of values that are made again while the log is replayed, by position.
    replayed_changes: VecDeque<ReplayedChange>,
    /// Until then: topics that these changes lead to.
    awaited_topics: Vec<(Arc<Running>, Vec<Vec<String>>)>,
}

impl Queries {
    /// The application and slot of a query. A query that does not run has none, which is an error.
    fn place(&self, state: &State, id: QueryId) -> Result<(Arc<Running>, Slot), ServiceError> {
        let entry = state.registry.get(id).expect("the query is in the registry");
        match (self.applications.numbered(entry.application), entry.life.slot()) {
            (Some(running), Some(slot)) => Ok((running, slot)),
            _ => {
                let name = state.registry.name(id);
                Err(ServiceError::new(ErrorKind::Conflict, format!("the query '{name}' is not running")).with_hint(
                    format!(
                        "SHOW APPLICATIONS and the server's log say why; DROP QUERY {} removes it",
                        rivulet_sql::name_in_sql(&name)
                    ),
                ))
            }
        }
    }

    /// Tells the companion that queries read these topics: for each query one per input.
    fn companion_begins(&self, queries: &[QueryId], topics: &[Vec<String>]) {
        if let Some(companion) = &self.companion {
            companion.begin(queries, topics);
        }
    }

    fn companion_ends(&self, queries: &[QueryId]) {
        if let Some(companion) = &self.companion {
            companion.end(queries);
        }
    }

    /// Ends an application; with `cascade` its queries too.
    pub(super) fn drop_application(&self, name_or_id: &FullName, cascade: bool) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        let (number, name) = self.applications.registered(name_or_id)?;
        let queries: Vec<QueryId> = state.registry.of_application(number).collect();
        if !queries.is_empty() && !cascade {
            return Err(ServiceError::new(
                ErrorKind::Conflict,
                format!("the application '{name}' has {}", counted(queries.len() as u64, "query")),
            )
            .with_hint(format!("drop them too: DROP APPLICATION {} CASCADE", rivulet_sql::name_in_sql(&name.name))));
        }
        self.catalog.remove_application(&name, &queries)?;
        self.end(&mut state, number, &queries);
        self.applications.end(number);
        tracing::info!(application = name.in_log(), queries = queries.len(), "dropped");
        Ok(())
    }

    /// Creates a table, for which applications may have waited. Returns the number of its rows, or `None` if the table
    /// exists already.
    pub(super) fn create_table(&self, tenant: &Tenant, create: CreateTable) -> Result<Option<usize>, ServiceError> {
        let name = tenant.named(&create.name.text);
        let is_new = self.state.lock().take_relation(&name, "table")?;
        let created = self.tables.create(tenant, create);
        let rows = created.inspect_err(|_| {
            if is_new {
                self.state.lock().give_relation_back(&name);
            }
        })?;
        if rows.is_some() {
            self.start_again()?;
        }
        Ok(rows)
    }

    /// Notes the tables that are in the catalog.
    pub(super) fn note_tables(&self) {
        let mut state = self.state.lock();
        for (tenant, tables) in self.tables.loaded_by_tenant() {
            tables.keys().for_each(|name| state.note_relation(&tenant.named(name), "table"));
        }
    }

    /// Loads a table again, for which applications may have waited. Returns the number of its rows.
    pub(super) fn refresh_table(&self, table: &FullName) -> Result<(), ServiceError> {
        if self.tables.refresh(table)? {
            self.start_again()?;
        }
        Ok(())
    }

    /// Drops a table that neither `users` nor an application uses. No application is replaced meanwhile.
    pub(super) fn drop_table(&self, name: &FullName, users: Vec<String>) -> Result<(), ServiceError> {
        let mut state = self.state.lock();
        self.applications.drop_table(name, users)?;
        state.give_relation_back(name);
        Ok(())
    }

    /// How many queries and big queries each tenant has.
    pub(super) fn counts(&self) -> BTreeMap<Tenant, (u64, u64)> {
        let state = self.state.lock();
        let mut counts: BTreeMap<Tenant, (u64, u64)> =
            state.registry.counts().map(|(tenant, queries)| (tenant.clone(), (queries as u64, 0))).collect();
        for name in &state.big_query_names {
            counts.entry(name.tenant.clone()).or_default().1 += 1;
        }
        counts
    }

    /// A receiver of the results of a query from now on.
    pub(super) fn watch(&self, query: &FullName) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        let state = self.state.lock();
        if state.big_query_names.contains(query) {
            return Ok(self.taps.watch(Watched::BigQuery(query.clone())));
        }
        let id = state.query(query)?;
        self.place(&state, id)?;
        Ok(self.taps.watch(Watched::Query(id)))
    }
}

impl State {
    /// The number of queries of a tenant, small and big.
    pub(super) fn queries(&self, tenant: &Tenant) -> usize {
        self.registry.count_of(tenant) + self.big_queries(tenant)
    }

    /// The number of big queries of a tenant.
    pub(super) fn big_queries(&self, tenant: &Tenant) -> usize {
        self.big_query_names.iter().filter(|name| name.tenant == *tenant).count()
    }

    /// Whether there is a query of this name, small or big.
    pub(super) fn has_query(&self, name: &FullName) -> bool {
        self.registry.contains(&name.tenant, &name.name) || self.big_query_names.contains(name)
    }

    /// Notes a source, view or table. Returns whether its name is new. A name that an earlier version gave to a query
    /// too stays.
    ///
    /// # Errors
    /// The name is new, and a query has it.
    pub(super) fn take_relation(&mut self, name: &FullName, what: &'static str) -> Result<bool, ServiceError> {
        let is_known = self.relation(&name.tenant, &name.name).is_some();
        if !is_known && self.has_query(name) {
            return Err(ambiguous(&format!("a query '{name}' exists"), what));
        }
        self.note_relation(name, what);
        Ok(!is_known)
    }

    /// Notes a source, view or table that the catalog has.
    pub(super) fn note_relation(&mut self, name: &FullName, what: &'static str) {
        self.relations.entry(name.tenant.clone()).or_default().insert(name.name.clone(), what);
    }

    /// A source, view or table is gone, or was not created.
    pub(super) fn give_relation_back(&mut self, name: &FullName) {
        if let Some(of_tenant) = self.relations.get_mut(&name.tenant) {
            of_tenant.remove(&name.name);
        }
    }

    /// What a tenant's source, view or table of this name is; `None` if there is none.
    fn relation(&self, tenant: &Tenant, name: &str) -> Option<&'static str> {
        if self.relations.is_empty() { None } else { self.relations.get(tenant)?.get(name).copied() }
    }

    /// A query by name.
    fn query(&self, name: &FullName) -> Result<QueryId, ServiceError> {
        self.registry.id_of(&name.tenant, &name.name).ok_or_else(|| {
            ServiceError::not_found(format!("there is no query '{name}'")).with_hint("SHOW QUERIES lists them")
        })
    }
}

/// The error where FROM with this name would mean two things.
fn ambiguous(exists: &str, what: &str) -> ServiceError {
    let message = format!("{exists}, and FROM with that name would mean either");
    ServiceError::new(ErrorKind::Conflict, message)
        .with_hint(format!("give the {what} another name: a SELECT reads sources, views, tables and queries by name"))
}
