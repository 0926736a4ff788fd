//! What the engine offers: [`Service`], the trait that the API, the command line and the demo are written against.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::QueryId;
use rivulet_operators::application::Application;
use rivulet_sql::{AccountStatement, CreateBigQuery, StateWish};
use tokio::sync::broadcast;

use super::big_queries::Declared;
use super::queries::why::{ServerFacts, why_big};
use super::quotas::state_bytes;
use super::running::Running;
use super::warnings::{have_contents, hide_contents};
use super::{Engine, exposition, texts};
use crate::config::Config;
use crate::service::{
    Access, AccountAnswer, Alteration, ApplicationInfo, Backup, BigQueryInfo, Caller, CheckpointInfo, ErrorKind,
    FullName, LiveResult, Permit, QueryChange, QueryFilter, QueryInfo, QueryReplacement, QueryRequest, Replacement,
    Resource, ResourceKind, SecretInfo, Selection, Service, ServiceError, Session, StatementResult, Status, TableInfo,
    Tenant,
};

impl Service for Engine {
    fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    fn execute(&self, permit: &Permit, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        let shows_results = |query: Option<&str>| permit.shows_results(&self.access, query);
        self.execute_script(permit.caller(), script, &shows_results)
    }

    fn create_application(&self, permit: &Permit, sql: &str) -> Result<ApplicationInfo, ServiceError> {
        let (application, replaces) = texts::plan_new(sql, &self.tables.loaded(permit.tenant()))?;
        let running = match replaces {
            Some(wish) => self.replace(permit.tenant(), application, wish, None)?.0,
            None => self.applications.register(permit.tenant(), application)?.0,
        };
        Ok(running.info())
    }

    fn replace_application(
        &self,
        permit: &Permit,
        sql: &str,
        discards_state: bool,
    ) -> Result<ApplicationInfo, ServiceError> {
        let (application, replaces) = texts::plan_new(sql, &self.tables.loaded(permit.tenant()))?;
        let wish = if discards_state { StateWish::Discard } else { replaces.unwrap_or_default() };
        let (running, replacement) = self.replace(permit.tenant(), application, wish, None)?;
        Ok(ApplicationInfo { replacement: Some(replacement), ..running.info() })
    }

    fn create_application_of(&self, permit: &Permit, kind: &str, code: &[u8]) -> Result<ApplicationInfo, ServiceError> {
        let application = self.applications.plan(permit.tenant(), kind, code)?;
        Ok(self.applications.register(permit.tenant(), application)?.0.info())
    }

    fn replace_application_of(
        &self,
        permit: &Permit,
        kind: &str,
        code: &[u8],
        discards_state: bool,
    ) -> Result<ApplicationInfo, ServiceError> {
        let application = self.applications.plan(permit.tenant(), kind, code)?;
        let wish = if discards_state { StateWish::Discard } else { StateWish::Keep };
        let (running, replacement) = self.replace(permit.tenant(), application, wish, None)?;
        Ok(ApplicationInfo { replacement: Some(replacement), ..running.info() })
    }

    fn create_table(&self, permit: &Permit, sql: &str) -> Result<TableInfo, ServiceError> {
        let create = texts::parse_table(sql)?;
        let name = permit.tenant().named(&create.name.text);
        self.queries.create_table(permit.tenant(), create)?;
        self.applications.table(&name)
    }

    fn refresh_table(&self, permit: &Permit, name: &str) -> Result<TableInfo, ServiceError> {
        let name = permit.tenant().named(name);
        self.queries.refresh_table(&name)?;
        self.applications.table(&name)
    }

    fn drop_table(&self, permit: &Permit, name: &str) -> Result<(), ServiceError> {
        self.big_queries.drop_table(&permit.tenant().named(name))
    }

    fn tables(&self, permit: &Permit) -> Vec<TableInfo> {
        self.applications.tables(permit.tenant())
    }

    fn table(&self, permit: &Permit, name: &str) -> Result<TableInfo, ServiceError> {
        self.described_table(&permit.tenant().named(name))
    }

    fn kinds_of(&self, permit: &Permit, name: &str) -> Vec<ResourceKind> {
        let name = permit.tenant().named(name);
        let table = self.tables.info(&name).is_ok().then_some(ResourceKind::Table);
        self.big_queries.kinds_of(&name).into_iter().chain(table).collect()
    }

    fn secrets(&self, permit: &Permit) -> Vec<SecretInfo> {
        self.secret_infos(permit.tenant())
    }

    fn put_secret(&self, permit: &Permit, name: &str, value: String) -> Result<SecretInfo, ServiceError> {
        self.put_secret_of(&permit.tenant().named(name), value)
    }

    fn drop_secret(&self, permit: &Permit, name: &str) -> Result<(), ServiceError> {
        self.drop_secret_of(&permit.tenant().named(name))
    }

    fn applications(&self, permit: &Permit) -> Vec<ApplicationInfo> {
        let mut infos = self.applications.infos(permit.tenant());
        if infos.iter().any(|info| have_contents(&info.warnings)) && !permit.shows_results(&self.access, None) {
            infos.iter_mut().for_each(|info| hide_contents(&mut info.warnings));
        }
        infos
    }

    fn application(&self, permit: &Permit, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        let mut info = self.applications.info(&permit.tenant().named(name_or_id))?;
        if have_contents(&info.warnings) && !permit.shows_results(&self.access, None) {
            hide_contents(&mut info.warnings);
        }
        Ok(info)
    }

    fn drop_application(&self, permit: &Permit, name: &str, cascade: bool) -> Result<(), ServiceError> {
        self.queries.drop_application(&permit.tenant().named(name), cascade)
    }

    fn explain(&self, permit: &Permit, application: &str) -> Result<String, ServiceError> {
        self.explain_application(&permit.tenant().named(application))
    }

    fn submit(&self, permit: &Permit, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        self.queries.submit(permit.tenant(), requests)
    }

    fn alter(&self, permit: &Permit, changes: &[QueryChange<'_>]) -> Vec<Result<Alteration, ServiceError>> {
        self.queries.alter(permit.tenant(), changes)
    }

    fn query(&self, permit: &Permit, name: &str) -> Result<QueryInfo, ServiceError> {
        let mut info = self.query_info(&permit.tenant().named(name))?;
        self.hide_refusals(permit, &mut info.big);
        Ok(info)
    }

    fn describe_query(&self, permit: &Permit, name: &str, names_topics: bool) -> Result<QueryInfo, ServiceError> {
        let shows_results = permit.shows_results(&self.access, Some(name));
        self.query_described(&permit.tenant().named(name), names_topics, shows_results)
    }

    fn queries(&self, permit: &Permit, filter: &QueryFilter) -> Vec<QueryInfo> {
        let mut infos = self.query_infos(permit.tenant(), filter);
        self.hide_refusals(permit, infos.iter_mut().flat_map(|info| &mut info.big));
        infos
    }

    fn big_queries(&self, permit: &Permit) -> Vec<BigQueryInfo> {
        let mut infos = self.big_queries.infos(permit.tenant());
        self.hide_refusals(permit, &mut infos);
        infos
    }

    fn create_big_query(&self, permit: &Permit, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        self.create_big_query_of(permit.caller(), sql)
    }

    fn pause(&self, permit: &Permit, query: &str) -> Result<(), ServiceError> {
        self.pause_query(&permit.tenant().named(query))
    }

    fn resume(&self, permit: &Permit, query: &str) -> Result<(), ServiceError> {
        let query = permit.tenant().named(query);
        if self.big_queries.resume(&query)?.is_some() {
            return Ok(());
        }
        self.queries.set_paused(&query, false)
    }

    fn drop_query(&self, permit: &Permit, query: &str) -> Result<(), ServiceError> {
        self.end_query(&permit.tenant().named(query))
    }

    fn status(&self, permit: &Permit) -> Status {
        let mut status = self.current_status(permit.tenant());
        self.hide_refusals(permit, &mut status.big_queries);
        let has_contents = status.applications.iter().any(|one| one.last_refusal.is_some());
        if has_contents && !permit.shows_results(&self.access, None) {
            for application in &mut status.applications {
                hide_contents(&mut application.warnings);
                let last = application.last_refusal.take();
                application.last_refusal =
                    last.map(|last| last.split_once(": ").map_or(last.clone(), |(reason, _)| reason.to_owned()));
            }
        }
        status
    }

    fn metrics(&self, permit: &Permit) -> String {
        exposition::text(self.snapshot(permit.tenant()))
    }

    fn results(&self, permit: &Permit, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        self.queries.watch(&permit.tenant().named(query))
    }

    fn select(&self, permit: &Permit, sql: &str) -> Result<Selection, ServiceError> {
        let access = self.access();
        let may = |kind, name: &str| access.may_subscribe(permit.caller(), Resource { kind, name: Some(name) });
        self.big_queries.begin_select(permit.tenant(), sql, &may)
    }

    fn account(&self, permit: &Permit, statement: &AccountStatement) -> Result<AccountAnswer, ServiceError> {
        self.change_accounts(permit.caller(), statement)
    }

    fn checkpoint(&self, _permit: &Permit) -> Result<CheckpointInfo, ServiceError> {
        self.coordinator.make_whole()
    }

    fn back_up(&self, _permit: &Permit) -> Result<Box<dyn Backup>, ServiceError> {
        self.backups.begin()
    }

    fn problems(&self) -> Vec<String> {
        // A sink that does not work comes before the checkpoints that are not made because of it.
        let of_big = self.big_queries.problems().into_iter().chain(self.big_queries.troubled_ends());
        let of_ends = of_big.chain(self.applications.troubled_ends());
        let of_checkpoints = self.checkpoints.iter().flat_map(|checkpoints| checkpoints.problems());
        of_ends.chain(of_checkpoints).chain(self.event_log.loss()).collect()
    }

    fn take_over(&self, config: &Config) -> Result<(), ServiceError> {
        self.change_configuration(config)
    }

    fn announce_stop(&self) {
        self.stops_soon.store(true, Ordering::Release);
    }

    fn ready(&self) -> Result<(), ServiceError> {
        self.are_events_processed()
    }

    fn shutdown(&self) -> Result<(), ServiceError> {
        self.stop()
    }
}

impl Engine {
    /// The engine for this caller.
    pub fn session(&self, caller: Caller) -> Session<'_> {
        (self as &dyn Service).session(caller)
    }
}

/// Calls that statements use too.
impl Engine {
    /// Registers an application, or makes it take over the queries of the application of its name. If it was made from
    /// a running application, it takes over from that one only. After an upgrade a checkpoint is made.
    pub(super) fn replace(
        &self,
        tenant: &Tenant,
        application: Application,
        wish: StateWish,
        made_of: Option<&Running>,
    ) -> Result<(Arc<Running>, Replacement), ServiceError> {
        let (running, replacement) = self.queries.replace(tenant, application, wish, made_of)?;
        if replacement.is_changed && running.group.is_checkpointed() {
            self.coordinator.make_behind_upgrade();
        }
        Ok((running, replacement))
    }

    /// Creates a big query, or makes it take over from the query of its name. After an upgrade a checkpoint is made.
    pub(super) fn replace_big_query(
        &self,
        tenant: &Tenant,
        create: CreateBigQuery,
        wish: StateWish,
    ) -> Result<QueryReplacement, ServiceError> {
        let replaced = self.big_queries.replace(tenant, create, wish)?;
        if replaced.is_changed {
            self.coordinator.make_behind_upgrade();
        }
        Ok(replaced)
    }

    /// Carries out a statement about accounts.
    pub(super) fn change_accounts(
        &self,
        caller: &Caller,
        statement: &AccountStatement,
    ) -> Result<AccountAnswer, ServiceError> {
        let Some(accounts) = &self.accounts else {
            return Err(ServiceError::invalid("this server has no accounts of its own")
                .with_hint("the program that runs it decides who gets in"));
        };
        if let AccountStatement::DropTenant { name, .. } = statement {
            self.refuse_to_drop(&Tenant::new(&name.text)).map_err(|error| error.at_place(name.position.into()))?;
        }
        let mut answer = accounts.run(caller, statement)?;
        if let AccountAnswer::Tenants(tenants) = &mut answer {
            self.add_used(tenants, &state_bytes(&self.applications, &self.big_queries, |_| true));
        }
        Ok(answer)
    }

    /// Fails if a tenant has anything that would be left without one.
    fn refuse_to_drop(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        let mut names: Vec<String> = self.applications.infos(tenant).into_iter().map(|one| one.name).collect();
        names.extend(self.applications.tables(tenant).into_iter().map(|one| one.name));
        names.extend(self.big_queries.infos(tenant).into_iter().map(|one| one.name));
        for what in [Declared::Source, Declared::Sink, Declared::View] {
            names.extend(self.big_queries.declared(tenant, what).into_iter().map(|(name, _)| name));
        }
        // Its values would be those of the next tenant of this name.
        names.extend(self.secrets.infos(tenant).into_iter().map(|one| one.name));
        let Some(first) = names.first() else { return Ok(()) };
        let message = match names.len() {
            1 => format!("the tenant '{tenant}' has '{first}'"),
            more => format!("the tenant '{tenant}' has '{first}' and {} more", more - 1),
        };
        Err(ServiceError::new(ErrorKind::Conflict, message).with_hint(
            "let one of its users drop its applications, queries, tables, sources, sinks, views and secrets first",
        ))
    }

    /// Removes the content of refused rows of big queries that the caller may not see.
    fn hide_refusals<'i>(&self, permit: &Permit, infos: impl IntoIterator<Item = &'i mut BigQueryInfo>) {
        for info in infos.into_iter().filter(|info| info.refusal.is_some()) {
            if !permit.shows_results(&self.access, Some(&info.name)) {
                info.refusal = None;
            }
        }
    }

    /// The description of a query, small or big.
    pub(super) fn query_info(&self, name: &FullName) -> Result<QueryInfo, ServiceError> {
        if let Some(big) = self.big_queries.info(name) {
            return Ok(big.into());
        }
        self.queries.info(name)
    }

    /// The same with what became of its events, and why it gives its results: see [`Service::describe_query`]. Only the
    /// default tenant is told the topics of others.
    pub(super) fn query_described(
        &self,
        name: &FullName,
        names_topics: bool,
        shows_results: bool,
    ) -> Result<QueryInfo, ServiceError> {
        if let Some(mut big) = self.big_queries.info(name) {
            big.refusal = big.refusal.filter(|_| shows_results);
            let why = why_big(&big);
            return Ok(QueryInfo { why, ..big.into() });
        }
        let names_topics = names_topics && name.tenant.is_default();
        let facts = ServerFacts {
            broker_problem: self.messaging.ready().err().map(|error| error.message),
            strays: if names_topics { self.messaging.router().strays() } else { Vec::new() },
        };
        self.queries.described(name, facts, shows_results)
    }

    /// A reference table with all that uses it.
    pub(super) fn described_table(&self, name: &FullName) -> Result<TableInfo, ServiceError> {
        let table = self.applications.table(name)?;
        Ok(TableInfo { needed_by: self.big_queries.users_of_table(name), ..table })
    }

    /// The first queries of a tenant, by name, that pass the filter, small and big.
    pub(super) fn query_infos(&self, tenant: &Tenant, filter: &QueryFilter) -> Vec<QueryInfo> {
        let mut all = self.queries.infos(tenant, filter);
        let big = self.big_queries.infos_of(tenant, filter);
        if !big.is_empty() {
            all.extend(big);
            all.sort_by(|one, other| one.name.cmp(&other.name));
            all.truncate(filter.limit);
        }
        all
    }

    /// The plan of an application's queries, as text.
    pub(super) fn explain_application(&self, name_or_id: &FullName) -> Result<String, ServiceError> {
        Ok(self.applications.find(name_or_id)?.application.explain())
    }

    pub(super) fn pause_query(&self, query: &FullName) -> Result<(), ServiceError> {
        if self.big_queries.pause(query)? {
            return Ok(());
        }
        self.queries.set_paused(query, true)
    }

    pub(super) fn end_query(&self, query: &FullName) -> Result<(), ServiceError> {
        if self.big_queries.drop_query(query)? {
            return Ok(());
        }
        self.queries.drop_query(query)
    }
}
