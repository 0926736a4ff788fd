//! The applications of a server: those that run, and those that are registered and cannot run.
//!
//! What must hold: an application is in the catalog before it runs, and dropping a table finds all its users.
//!
//! Its lock is taken after that of the queries and before those of tables and routing. A new application needs this
//! lock only. Code that ends or replaces an application holds the lock of the queries too. So for code that holds that
//! lock, an application that it has found stays.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use rivulet_operators::application::{Application, Tables};
use rivulet_runtime::{Group, GroupParts, Workers};

use super::languages::Languages;
use super::not_running::{NotRunning, Refusal, Unrestored};
use super::outlets::Outlets;
use super::prepare::Preparation;
use super::routing::Routing;
use super::running::{Prepared, Running, Warned};
use super::tables::ReferenceTables;
use crate::catalog::{ApplicationNumber, Catalog, NewApplication, StoredApplication, VERSIONS_MAX};
use crate::service::{ApplicationInfo, ApplicationStatus, ErrorKind, FullName, Limit, ServiceError, TableInfo, Tenant};

/// The shortest beginning of an id that stands for it.
const ID_CHARACTERS_MIN: usize = 8;

/// The applications of a server.
pub(super) struct Applications {
    preparation: Preparation,
    pub(super) workers: Arc<Workers>,
    tables: Arc<ReferenceTables>,
    routing: Arc<Routing>,
    pub(super) outlets: Arc<Outlets>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    named: BTreeMap<FullName, Arc<Running>>,
    /// The same by the number that queries and the catalog use.
    numbered: BTreeMap<ApplicationNumber, Arc<Running>>,
    /// The same by tenant and the hash of their text.
    hashed: HashMap<(Tenant, String), Arc<Running>>,
    /// Applications that cannot run. There are few if any, so a name is found by a linear search.
    not_running: BTreeMap<ApplicationNumber, NotRunning>,
    /// As [`Unrestored`] has it.
    altered_next: u64,
}

/// An application in the catalog, and what it is made of or why it cannot be prepared.
pub(super) type Stored = (StoredApplication, Result<Prepared, ServiceError>);

/// Fails if the saved state of an application has no place in it. Gets also that state, if it was kept until now.
pub(super) type Fits<'a> = &'a mut dyn FnMut(ApplicationNumber, &Prepared, Option<&[Bytes]>) -> Result<(), Refusal>;

impl Applications {
    /// Without applications until [`Applications::load`].
    pub(super) fn new(
        preparation: Preparation,
        workers: Arc<Workers>,
        tables: Arc<ReferenceTables>,
        routing: Arc<Routing>,
        outlets: Arc<Outlets>,
    ) -> Self {
        Self { preparation, workers, tables, routing, outlets, known: Mutex::default() }
    }

    /// Prepares the applications in the catalog. One that this version cannot prepare any more stays in the catalog,
    /// and the others run.
    pub(super) fn stored(&self) -> Result<Vec<Stored>, ServiceError> {
        let tables = self.tables.loaded_by_tenant();
        let prepared = |stored: StoredApplication| {
            let prepared = self.prepare_stored(&stored, &tables);
            (stored, prepared)
        };
        Ok(self.catalog().applications()?.into_iter().map(prepared).collect())
    }

    /// Starts these applications, if their saved state `fits` them.
    pub(super) fn load(&self, stored: Vec<Stored>, fits: Fits<'_>) {
        let mut known = self.known.lock();
        for (stored, prepared) in stored {
            let prepared = prepared.map_err(Refusal::from);
            match prepared.and_then(|prepared| fits(stored.number, &prepared, None).map(|()| prepared)) {
                Ok(prepared) => drop(self.start(&mut known, stored.number, prepared)),
                Err(refusal) => {
                    let application = stored.name.in_log();
                    tracing::error!(application, "a registered application is not running: {}", refusal.error);
                    let shown = self.languages().shown(&stored.kind, &stored.bytes);
                    known.not_running.insert(stored.number, NotRunning::new(stored, shown, refusal));
                }
            }
        }
    }

    /// Keeps the saved state of the applications that cannot run.
    pub(super) fn keep_unrestored(&self, mut unrestored: Unrestored) {
        let mut known = self.known.lock();
        known.altered_next = unrestored.altered_next;
        for (number, other) in &mut known.not_running {
            other.saved = unrestored.pieces.remove(number);
        }
    }

    /// As [`Unrestored`] has it.
    pub(super) fn altered_next(&self) -> u64 {
        self.known.lock().altered_next
    }

    /// Starts applications that could not run because of a table or a secret, if their saved state `fits` them. Returns
    /// the numbers of those that run now. For callers that hold the lock of the queries.
    pub(super) fn start_again(&self, fits: Fits<'_>) -> Vec<ApplicationNumber> {
        let tables = self.tables.loaded_by_tenant();
        let mut known = self.known.lock();
        let mut started = Vec::new();
        for (number, other) in std::mem::take(&mut known.not_running) {
            if other.is_final {
                known.not_running.insert(number, other);
                continue;
            }
            let prepared = self.prepare_stored(&other.stored, &tables).map_err(Refusal::from);
            match prepared.and_then(|prepared| fits(number, &prepared, other.saved.as_deref()).map(|()| prepared)) {
                Ok(prepared) => {
                    self.start(&mut known, number, prepared);
                    started.push(number);
                }
                Err(refusal) => {
                    known.not_running.insert(number, other.again(refusal));
                }
            }
        }
        started
    }

    fn prepare_stored(
        &self,
        stored: &StoredApplication,
        tables: &BTreeMap<Tenant, Tables>,
    ) -> Result<Prepared, ServiceError> {
        let (tenant, none) = (&stored.name.tenant, Tables::new());
        let application = self.languages().load_stored(stored, tables.get(tenant).unwrap_or(&none))?;
        self.prepare(tenant, application)
    }

    /// Makes an application from new code, with the current tables.
    pub(super) fn plan(&self, tenant: &Tenant, kind: &str, code: &[u8]) -> Result<Application, ServiceError> {
        self.languages().load_new(kind, code, &self.tables.loaded(tenant))
    }

    /// Prepares an application, and finds the errors that its planner cannot know.
    pub(super) fn prepare(&self, tenant: &Tenant, application: Application) -> Result<Prepared, ServiceError> {
        self.preparation.prepare(tenant, application)
    }

    /// Registers an application. One that is registered already with the same text is returned. Returns also whether it
    /// is new.
    pub(super) fn register(
        &self,
        tenant: &Tenant,
        application: Application,
    ) -> Result<(Arc<Running>, bool), ServiceError> {
        self.register_all(tenant, vec![application]).pop().expect("an answer for each")
    }

    /// Registers applications of a tenant, of different names, and records them together, which takes as long as
    /// recording one. Stops at the first that is refused: the last answer says why.
    pub(super) fn register_all(
        &self,
        tenant: &Tenant,
        applications: Vec<Application>,
    ) -> Vec<Result<(Arc<Running>, bool), ServiceError>> {
        // Everything that can be refused is checked before the catalog records it.
        let prepared: Vec<_> = applications.into_iter().map(|application| self.prepare(tenant, application)).collect();
        let quota = self.preparation.permitted.quota(tenant);
        let mut known = self.known.lock();
        let of_tenant = known.count_of(tenant);
        // `None` if an answer is not known before the catalog's.
        let mut answers: Vec<Option<Result<_, ServiceError>>> = Vec::with_capacity(prepared.len());
        let mut new = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            let checked = prepared.and_then(|prepared| {
                self.tables.check_current(tenant, &prepared.application.tables)?;
                let same = known.check_new(tenant, &prepared.application)?;
                if same.is_none() {
                    quota.admit(Limit::Applications, (of_tenant + new.len()) as u64)?;
                    quota.admit_measured(Limit::StateBytes)?;
                }
                Ok((same, prepared))
            });
            match checked {
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
        let stored: Vec<_> =
            new.iter().map(|(_, prepared)| NewApplication::of(tenant, &prepared.application)).collect();
        let first = match stored.is_empty() {
            true => Ok(0),
            false => self.catalog().insert_applications(&stored).map_err(ServiceError::from),
        };
        for (number, (place, prepared)) in (0..).zip(new) {
            let name = tenant.named(&prepared.application.name).in_log();
            let running = first.clone().map(|first| self.start(&mut known, first + number, prepared));
            if running.is_ok() {
                tracing::info!(application = name, "registered");
            }
            answers[place] = Some(running.map(|running| (running, true)));
        }
        answers.into_iter().flatten().collect()
    }

    /// A group of queries that takes the time of a tenant.
    pub(super) fn create_group(&self, tenant: &Tenant, parts: GroupParts) -> Arc<Group> {
        let group = self.workers.create_group(parts);
        self.preparation.permitted.share(tenant).into_iter().for_each(|share| group.set_share(share));
        group
    }

    fn start(&self, known: &mut Known, number: ApplicationNumber, prepared: Prepared) -> Arc<Running> {
        let Prepared { tenant, application, topics, outputs, shape, parts, shown, warnings } = prepared;
        let group = self.create_group(&tenant, parts);
        let inboxes = self.routing.register_inboxes(&group, &topics);
        let running = Arc::new(Running {
            number,
            tenant,
            application,
            group,
            inboxes,
            topics,
            outputs,
            event_log: self.routing.event_log.clone(),
            shape,
            queries_running: AtomicU64::new(0),
            queries_paused: AtomicU64::new(0),
            queries_not_running: AtomicU64::new(0),
            shown,
            warnings,
            warned: Warned::default(),
            sources: OnceLock::new(),
        });
        running.log_warnings();
        self.outlets.begin(number, running.outputs.outlets().cloned().collect());
        self.routing.open(&running);
        self.routing.keep_results(&running, true);
        self.routing.sources().begin_of(&running);
        known.insert(&running);
        running
    }

    /// Replaces an application by its next version. For callers that hold the lock of the queries.
    pub(super) fn succeed(&self, before: &Running, after: &Arc<Running>) {
        let mut known = self.known.lock();
        known.hashed.remove(&before.id());
        self.outlets.begin(after.number, after.outputs.outlets().cloned().collect());
        known.insert(after);
    }

    /// Ends an application without queries that is no longer in the catalog. For callers that hold the lock of the
    /// queries.
    pub(super) fn end(&self, number: ApplicationNumber) {
        let mut known = self.known.lock();
        known.not_running.remove(&number);
        self.outlets.drop_of(number);
        if let Some(running) = known.numbered.remove(&number) {
            self.routing.close(&running);
            self.workers.remove_group(running.group.id());
            known.named.remove(&running.full_name());
            known.hashed.remove(&running.id());
        }
    }

    /// The running applications, in order of tenant and name.
    pub(super) fn running(&self) -> Vec<Arc<Running>> {
        self.known.lock().named.values().cloned().collect()
    }

    /// The running applications, and the numbers of all registered ones.
    pub(super) fn all(&self) -> (Vec<Arc<Running>>, Vec<ApplicationNumber>) {
        let known = self.known.lock();
        let numbers = known.numbered.keys().chain(known.not_running.keys()).copied().collect();
        (known.numbered.values().cloned().collect(), numbers)
    }

    /// The sources of inputs and the outputs that do not work, as anybody may know.
    pub(super) fn troubled_ends(&self) -> Vec<String> {
        /// The most that are named.
        const NAMED_MAX: usize = 16;
        let running = self.running();
        let troubles = running.iter().flat_map(|one| {
            let (is_public, name) = (one.tenant.is_default(), one.full_name().in_public());
            let ends = one.health().into_iter().filter(|end| !end.is_well());
            ends.map(move |end| match is_public {
                true => format!("the application {name} runs, and {}", end.text()),
                false => format!("the application {name} runs, and a source or sink of it does not work"),
            })
        });
        troubles.take(NAMED_MAX).collect()
    }

    /// The running application with this number.
    pub(super) fn numbered(&self, number: ApplicationNumber) -> Option<Arc<Running>> {
        self.known.lock().numbered.get(&number).cloned()
    }

    /// The running application with this name.
    pub(super) fn named(&self, name: &FullName) -> Option<Arc<Running>> {
        self.known.lock().named.get(name).cloned()
    }

    /// The running application of a tenant whose text has this hash.
    pub(super) fn hashed(&self, tenant: &Tenant, id: &str) -> Option<Arc<Running>> {
        self.known.lock().hashed(tenant, id).cloned()
    }

    /// A running application, by name or by id.
    pub(super) fn find(&self, name_or_id: &FullName) -> Result<Arc<Running>, ServiceError> {
        self.known.lock().find(name_or_id)
    }

    /// Number and name of an application, whether it runs or not, by name or by id.
    pub(super) fn registered(&self, name_or_id: &FullName) -> Result<(ApplicationNumber, FullName), ServiceError> {
        let known = self.known.lock();
        match known.not_running(name_or_id) {
            Some(other) => Ok((other.stored.number, other.stored.name.clone())),
            None => known.find(name_or_id).map(|running| (running.number, running.full_name())),
        }
    }

    /// The name of an application that does not run.
    pub(super) fn name_not_running(&self, number: ApplicationNumber) -> Option<String> {
        self.known.lock().not_running.get(&number).map(|other| other.stored.name.name.clone())
    }

    /// The tenants of applications, whether they run or not.
    pub(super) fn tenants(&self) -> BTreeMap<ApplicationNumber, Tenant> {
        let known = self.known.lock();
        let running = known.numbered.iter().map(|(number, one)| (*number, one.tenant.clone()));
        let not_running = known.not_running.iter().map(|(number, one)| (*number, one.stored.name.tenant.clone()));
        running.chain(not_running).collect()
    }

    /// Counts a query that cannot run.
    pub(super) fn leave_out(&self, number: ApplicationNumber) {
        self.known.lock().count_not_running(number, |count| count + 1);
    }

    /// Subtracts gone queries from those that cannot run.
    pub(super) fn forget_left_out(&self, number: ApplicationNumber, queries: u64) {
        self.known.lock().count_not_running(number, |count| count.saturating_sub(queries));
    }

    /// The entry of an application in a list, whether it runs or not, by name or by id.
    pub(super) fn info(&self, name_or_id: &FullName) -> Result<ApplicationInfo, ServiceError> {
        let known = self.known.lock();
        match known.not_running(name_or_id) {
            Some(other) => Ok(other.info()),
            None => known.find(name_or_id).map(|running| running.info()),
        }
    }

    /// All applications of a tenant, by name.
    pub(super) fn infos(&self, tenant: &Tenant) -> Vec<ApplicationInfo> {
        let known = self.known.lock();
        let running = known.running_of(tenant).map(|running| running.info());
        let mut all: Vec<ApplicationInfo> = running.chain(known.not_running_of(tenant).map(NotRunning::info)).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// The number of applications of a tenant.
    pub(super) fn count_of(&self, tenant: &Tenant) -> usize {
        self.known.lock().count_of(tenant)
    }

    /// The status of a tenant's applications that do not run, by name.
    pub(super) fn statuses_not_running(&self, tenant: &Tenant) -> Vec<ApplicationStatus> {
        self.known.lock().not_running_of(tenant).map(NotRunning::status).collect()
    }

    /// Drops a table that neither `users` nor an application uses. No application can begin to use it meanwhile. For
    /// callers that hold the lock of the queries.
    pub(super) fn drop_table(&self, name: &FullName, mut users: Vec<String>) -> Result<(), ServiceError> {
        let known = self.known.lock();
        users.extend(known.users_of_table(name, self.languages()));
        self.tables.remove(name, &users)
    }

    /// The reference tables of a tenant, with the applications that look events up in them, whether they run or not.
    pub(super) fn tables(&self, tenant: &Tenant) -> Vec<TableInfo> {
        let known = self.known.lock();
        let users = |one: &TableInfo| known.users_of_table(&tenant.named(&one.name), self.languages());
        let with_users = |one: TableInfo| TableInfo { applications: users(&one), ..one };
        self.tables.infos(tenant).into_iter().map(with_users).collect()
    }

    /// One reference table of a tenant.
    pub(super) fn table(&self, name: &FullName) -> Result<TableInfo, ServiceError> {
        let known = self.known.lock();
        Ok(TableInfo { applications: known.users_of_table(name, self.languages()), ..self.tables.info(name)? })
    }

    /// The versions of an application from the one with this id to the last one in the catalog, oldest first; none if
    /// the catalog may have forgotten that one.
    ///
    /// # Errors
    /// The catalog never had it, or it cannot be planned.
    pub(super) fn versions_since(
        &self,
        number: ApplicationNumber,
        tenant: &Tenant,
        id: &str,
    ) -> Result<Vec<Application>, Refusal> {
        let versions = self.catalog().versions(number).map_err(ServiceError::from)?;
        let tables = self.tables.loaded(tenant);
        let plan = |version: &StoredApplication| {
            self.languages().load_stored(version, &tables).map_err(|error| {
                let message = format!("its saved state is of an earlier version, which cannot run: {}", error.message);
                // Its place is in that version's text, which is not shown.
                Refusal::from(ServiceError { message, line: None, column: None, ..error })
            })
        };
        match versions.iter().rposition(|version| version.id == id) {
            Some(first) => versions[first..].iter().map(plan).collect(),
            None if versions.len() == VERSIONS_MAX => Ok(Vec::new()),
            None => {
                let message = "the catalog is older than its saved state, and lacks the version that saved it";
                let error = ServiceError::new(ErrorKind::Conflict, message)
                    .with_hint("put the catalog in place that was there when the state was saved");
                Err(Refusal { error, is_final: true })
            }
        }
    }

    fn catalog(&self) -> &Catalog {
        &self.preparation.catalog
    }

    fn languages(&self) -> &Languages {
        &self.preparation.languages
    }
}

impl Known {
    /// Adds an application to all indexes.
    fn insert(&mut self, running: &Arc<Running>) {
        self.named.insert(running.full_name(), running.clone());
        self.hashed.insert(running.id(), running.clone());
        self.numbered.insert(running.number, running.clone());
    }

    /// Checks a new application: returns the running one with the same text, `None` if it is new, or an error if it is
    /// refused.
    fn check_new(&self, tenant: &Tenant, application: &Application) -> Result<Option<Arc<Running>>, ServiceError> {
        if let Some(running) = self.hashed(tenant, &application.id) {
            return Ok(Some(running.clone()));
        }
        let (name, full_name) = (&application.name, tenant.named(&application.name));
        if self.named.contains_key(&full_name) {
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
        match self.not_running.values().find(|other| other.stored.name == full_name) {
            Some(other) => Err(ServiceError { kind: ErrorKind::AlreadyExists, ..other.conflict() }),
            None => Ok(None),
        }
    }

    fn hashed(&self, tenant: &Tenant, id: &str) -> Option<&Arc<Running>> {
        self.hashed.get(&(tenant.clone(), id.to_owned()))
    }

    /// The running applications of a tenant, by name.
    fn running_of(&self, tenant: &Tenant) -> impl Iterator<Item = &Arc<Running>> + Clone {
        let of_tenant = self.named.range(tenant.named("")..).take_while(move |(name, _)| name.tenant == *tenant);
        of_tenant.map(|(_, running)| running)
    }

    /// The applications of a tenant that cannot run.
    fn not_running_of(&self, tenant: &Tenant) -> impl Iterator<Item = &NotRunning> + Clone {
        self.not_running.values().filter(move |other| other.stored.name.tenant == *tenant)
    }

    fn count_of(&self, tenant: &Tenant) -> usize {
        self.running_of(tenant).count() + self.not_running_of(tenant).count()
    }

    fn find(&self, name_or_id: &FullName) -> Result<Arc<Running>, ServiceError> {
        let FullName { tenant, name } = name_or_id;
        if let Some(running) = self.named.get(name_or_id).or_else(|| self.hashed(tenant, name)) {
            return Ok(running.clone());
        }
        if let Some(other) = self.not_running(name_or_id) {
            return Err(other.conflict());
        }
        if let Some(running) = self.by_short_id(name_or_id) {
            return Ok(running.clone());
        }
        let error = ServiceError::not_found(format!("there is no application '{name_or_id}'"));
        let not_running = self.not_running_of(tenant).map(|other| &*other.stored.name.name);
        let names = self.running_of(tenant).map(|running| &*running.application.name).chain(not_running);
        let hint = match names.clone().next() {
            None => "register one first: rivulet app register FILE.sql",
            Some(_) => "SHOW APPLICATIONS lists them",
        };
        Err(error.suggesting(name, names, hint))
    }

    /// The application whose id has this beginning, if it is the only one: lists show the beginning of an id.
    fn by_short_id(&self, FullName { tenant, name: beginning }: &FullName) -> Option<&Arc<Running>> {
        let is_meant = |id: &str| beginning.len() >= ID_CHARACTERS_MIN && id.starts_with(beginning);
        let mut meant = self.running_of(tenant).filter(|running| is_meant(&running.application.id));
        meant.next().filter(|_| meant.next().is_none())
    }

    /// An application that does not run, by name or by id.
    fn not_running(&self, name_or_id: &FullName) -> Option<&NotRunning> {
        let mut of_tenant = self.not_running_of(&name_or_id.tenant);
        let by_id = of_tenant.clone().find(|one| one.stored.id == name_or_id.name);
        of_tenant.find(|one| one.stored.name == *name_or_id).or(by_id)
    }

    /// Changes the number of an application's queries that cannot run.
    fn count_not_running(&mut self, number: ApplicationNumber, change: impl Fn(u64) -> u64) {
        if let Some(running) = self.numbered.get(&number) {
            let count = &running.queries_not_running;
            count.store(change(count.load(Ordering::Relaxed)), Ordering::Relaxed);
        } else if let Some(other) = self.not_running.get_mut(&number) {
            other.queries = change(other.queries);
        }
    }

    fn users_of_table(&self, FullName { tenant, name }: &FullName, languages: &Languages) -> Vec<String> {
        let uses = |one: &Application| one.tables.iter().any(|used| used.table.name() == name);
        let running = self.running_of(tenant).filter(|one| uses(&one.application));
        let not_running = self.not_running_of(tenant).filter(|one| languages.names_table(&one.stored, name));
        let names = running.map(|one| &one.application.name).chain(not_running.map(|one| &one.stored.name.name));
        let mut names: Vec<String> = names.cloned().collect();
        names.sort();
        names
    }
}
