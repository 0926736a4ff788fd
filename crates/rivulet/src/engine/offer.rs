//! What the engine offers: [`Service`], the trait that the API, the command line and the demo are written against.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_connectors::mqtt::{ClientFilter, ClientInfo};
use rivulet_dataflow::QueryId;
use rivulet_operators::application::Application;
use rivulet_sql::{AccountStatement, Declared, Name, StateWish, Statement, UserName};
use tokio::sync::broadcast;

use super::queries::why::{ServerFacts, why_big};
use super::quotas::state_bytes;
use super::running::Running;
use super::warnings::{have_contents, hide_contents};
use super::{Engine, exposition, texts};
use crate::config::Config;
use crate::service::{
    Access, AccountAnswer, Alteration, ApplicationInfo, Backup, BigQueryInfo, Caller, CheckpointInfo, Code,
    DataflowNode, ErrorKind, LiveResult, Permit, QueryChange, QueryFilter, QueryInfo, QueryRequest, Replacement,
    Resource, ResourceKind, SecretInfo, Selection, Service, ServiceError, Session, StatementResult, Status, TableInfo,
    Tenant,
};

impl Service for Engine {
    fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    fn execute(&self, permit: &Permit, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        self.execute_script(permit, script)
    }

    fn create_application(
        &self,
        permit: &Permit,
        code: Code<'_>,
        replaces: Option<StateWish>,
    ) -> Result<ApplicationInfo, ServiceError> {
        let tenant = permit.tenant();
        let (application, written) = match code {
            Code::Statement(sql) => texts::plan_new(sql, &self.tables.loaded(tenant))?,
            Code::Of(kind, code) => (self.applications.plan(tenant, kind, code)?, None),
        };
        self.big_queries.check_application(tenant, &application)?;
        // Either may say that state is discarded.
        let Some(wish) = replaces.filter(|wish| *wish == StateWish::Discard).or(written).or(replaces) else {
            return Ok(self.applications.register(tenant, application)?.0.info());
        };
        let (running, replacement) = self.replace(tenant, application, wish, None)?;
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
        let name = permit.tenant().named(name);
        let table = self.applications.table(&name)?;
        Ok(TableInfo { needed_by: self.big_queries.users_of_table(&name), ..table })
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
        Ok(self.applications.find(&permit.tenant().named(application))?.application.explain())
    }

    fn submit(&self, permit: &Permit, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        self.queries.submit(permit.tenant(), requests)
    }

    fn alter(&self, permit: &Permit, changes: &[QueryChange<'_>]) -> Vec<Result<Alteration, ServiceError>> {
        self.queries.alter(permit.tenant(), changes)
    }

    fn query(&self, permit: &Permit, name: &str) -> Result<QueryInfo, ServiceError> {
        let name = permit.tenant().named(name);
        match self.big_queries.info(&name) {
            Some(mut big) => {
                self.hide_refusals(permit, [&mut big]);
                Ok(big.into())
            }
            None => self.queries.info(&name),
        }
    }

    fn describe_query(&self, permit: &Permit, name: &str, names_topics: bool) -> Result<QueryInfo, ServiceError> {
        let full_name = permit.tenant().named(name);
        if let Some(mut big) = self.big_queries.info(&full_name) {
            self.hide_refusals(permit, [&mut big]);
            let why = why_big(&big);
            return Ok(QueryInfo { why, ..big.into() });
        }
        // Only the default tenant is told the topics of others.
        let names_topics = names_topics && full_name.tenant.is_default();
        let facts = ServerFacts {
            broker_problem: self.messaging.ready().err().map(|error| error.message),
            strays: if names_topics { self.messaging.router().strays() } else { Vec::new() },
        };
        self.queries.described(&full_name, facts, permit.shows_results(&self.access, Some(name)))
    }

    fn queries(&self, permit: &Permit, filter: &QueryFilter) -> Vec<QueryInfo> {
        let mut all = self.queries.infos(permit.tenant(), filter);
        let mut big = self.big_queries.infos_of(permit.tenant(), filter);
        if !big.is_empty() {
            self.hide_refusals(permit, big.iter_mut().flat_map(|info| &mut info.big));
            all.extend(big);
            all.sort_by(|one, other| one.name.cmp(&other.name));
            all.truncate(filter.limit);
        }
        all
    }

    fn big_queries(&self, permit: &Permit) -> Vec<BigQueryInfo> {
        // A list of very many queries does not say what each of their tasks does.
        let mut infos = self.big_queries.infos(permit.tenant(), false);
        self.hide_refusals(permit, &mut infos);
        infos
    }

    fn dataflow(&self, permit: &Permit, query: &str) -> Result<Vec<DataflowNode>, ServiceError> {
        self.big_queries.dataflow(&permit.tenant().named(query))
    }

    fn create_big_query(&self, permit: &Permit, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        let Some(Statement::CreateBigQuery(create)) = texts::only_statement(sql)? else {
            return Err(ServiceError::invalid("expected the text of one CREATE QUERY name AS SELECT ... INTO sink")
                .with_hint("sources, sinks and views are created by a script at /api/v1/sql"));
        };
        let name = permit.tenant().named(&create.name.text);
        let done = self.execute_statement(permit, Statement::CreateBigQuery(create))?;
        let gone = || ServiceError::not_found(format!("the query '{name}' was dropped meanwhile"));
        Ok((self.big_queries.info(&name).ok_or_else(gone)?, done.message.unwrap_or_default()))
    }

    fn pause(&self, permit: &Permit, query: &str) -> Result<(), ServiceError> {
        let query = permit.tenant().named(query);
        if self.big_queries.pause(&query)? {
            return Ok(());
        }
        self.queries.set_paused(&query, true)
    }

    fn resume(&self, permit: &Permit, query: &str) -> Result<(), ServiceError> {
        let query = permit.tenant().named(query);
        if self.big_queries.resume(&query)?.is_some() {
            return Ok(());
        }
        self.queries.set_paused(&query, false)
    }

    fn drop_query(&self, permit: &Permit, query: &str) -> Result<(), ServiceError> {
        let query = permit.tenant().named(query);
        if self.big_queries.drop_query(&query)? {
            return Ok(());
        }
        self.queries.drop_query(&query)
    }

    fn status(&self, permit: &Permit, operators: bool) -> Status {
        let mut status = self.current_status(permit.tenant(), operators);
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

    fn clients(&self, permit: &Permit, filter: ClientFilter) -> Result<Vec<ClientInfo>, ServiceError> {
        let tenant = Some(permit.tenant()).filter(|tenant| !tenant.is_default());
        self.messaging.clients(&ClientFilter { tenant: tenant.map(Tenant::to_string), ..filter })
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
        let Some(accounts) = &self.accounts else {
            return Err(ServiceError::invalid("this server has no accounts of its own")
                .with_hint("the program that runs it decides who gets in"));
        };
        let mut files = None;
        if let AccountStatement::DropTenant { name, cascade, .. } = statement {
            let tenant = Tenant::new(&name.text);
            if *cascade && !tenant.is_default() && self.access.has_tenant(&name.text) {
                let dropped = self.drop_all_of(permit, name).and_then(|()| self.permitted.set_aside_files(&tenant));
                files = dropped.map_err(|error| error.at_place(name.position.into()))?;
            }
            let cleared = self.refuse_to_drop(&tenant).and_then(|()| match accounts.can_drop(name)? {
                true => self.clear(&tenant),
                false => Ok(()),
            });
            cleared.map_err(|error| error.at_place(name.position.into()))?;
        }
        let mut answer = accounts.run(permit.caller(), statement)?;
        if let AccountStatement::DropTenant { name, .. } = statement {
            let tenant = Tenant::new(&name.text);
            self.permitted.forget(&tenant);
            self.access.auditor().iter().for_each(|auditor| auditor.set_aside(&tenant));
        }
        if let (Some(files), AccountAnswer::Done(message)) = (files, &mut answer) {
            message.push_str(&format!("; its files are in {} now", files.display()));
        }
        if let AccountAnswer::Tenants(tenants) = &mut answer {
            let of_tables = self.tables.memory_bytes(|_| true);
            self.add_used(tenants, &state_bytes(&self.applications, &self.big_queries, of_tables, |_| true));
        }
        Ok(answer)
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

    /// What a tenant has, by kind and name. What needs others comes before them, except that a view may read another.
    fn all_of(&self, tenant: &Tenant) -> Vec<(&'static str, String)> {
        let mut all: Vec<_> =
            self.big_queries.infos(tenant, false).into_iter().map(|one| ("query", one.name)).collect();
        all.extend(self.applications.infos(tenant).into_iter().map(|one| ("application", one.name)));
        for what in [Declared::View, Declared::Sink, Declared::Source] {
            all.extend(self.big_queries.declared(tenant, what).into_iter().map(|(name, _)| (what.word(), name)));
        }
        all.extend(self.applications.tables(tenant).into_iter().map(|one| ("table", one.name)));
        // Its values would be those of the next tenant of this name.
        all.extend(self.secrets.infos(tenant).into_iter().map(|one| ("secret", one.name)));
        all
    }

    /// Fails if a tenant has anything that would be left without one.
    fn refuse_to_drop(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        let all = self.all_of(tenant);
        let Some((kind, first)) = all.first() else { return Ok(()) };
        let message = match all.len() {
            1 => format!("the tenant '{tenant}' has the {kind} '{first}'"),
            more => format!("the tenant '{tenant}' has the {kind} '{first}' and {} more", more - 1),
        };
        let hint = "DROP TENANT ... CASCADE drops all that it has, and its users";
        Err(ServiceError::new(ErrorKind::Conflict, message).with_hint(hint))
    }

    /// Drops the users of a tenant, and all that it has, each recorded. Where something cannot be dropped, the rest is
    /// gone.
    fn drop_all_of(&self, permit: &Permit, name: &Name) -> Result<(), ServiceError> {
        let (tenant, service): (_, &dyn Service) = (Tenant::new(&name.text), self);
        let Some(accounts) = &self.accounts else { return Ok(()) };
        // Nobody creates anything more.
        let operator = service.session(permit.caller().clone());
        for user in accounts.users_of(&tenant) {
            let user = UserName { tenant: Some(name.clone()), name: Name { text: user, ..name.clone() } };
            operator.account(&AccountStatement::DropUser { user, if_exists: true })?;
        }
        let own = service.session(permit.caller().in_tenant(&tenant));
        let mut left = usize::MAX;
        loop {
            let all = self.all_of(&tenant);
            if all.is_empty() {
                return Ok(());
            }
            let mut refused = None;
            for (kind, name) in &all {
                let cascade = if *kind == "application" { " CASCADE" } else { "" };
                let statement = format!("DROP {} {}{cascade}", kind.to_uppercase(), rivulet_sql::name_in_sql(name));
                if let Some(Err(error)) = own.execute(&statement).pop() {
                    refused = Some(error);
                }
            }
            // A view that another one reads goes with the next round.
            match refused {
                Some(error) if all.len() >= left => return Err(error),
                _ => left = all.len(),
            }
        }
    }

    /// Ends the sessions and removes the retained messages of a tenant that is about to be dropped, which the next one
    /// of its name would get. Fails if it has files, which are not for the server to delete.
    fn clear(&self, tenant: &Tenant) -> Result<(), ServiceError> {
        self.permitted.check_has_no_files(tenant)?;
        self.messaging.forget_sessions(tenant.as_str());
        self.messaging.forget_retained(tenant.as_str())
    }

    /// Removes the content of refused rows of big queries that the caller may not see.
    fn hide_refusals<'i>(&self, permit: &Permit, infos: impl IntoIterator<Item = &'i mut BigQueryInfo>) {
        for info in infos.into_iter().filter(|info| info.refusal.is_some()) {
            if !permit.shows_results(&self.access, Some(&info.name)) {
                info.refusal = None;
            }
        }
    }
}
