//! What the engine offers: [`Service`], the trait that the API, the command line and the demo are written against.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_dataflow::QueryId;
use rivulet_operators::application::Application;
use rivulet_sql::{CreateBigQuery, StateWish};
use tokio::sync::broadcast;

use super::queries::why::{ServerFacts, why_big};
use super::running::Running;
use super::{Engine, exposition, texts};
use crate::data_folder::archive::Backup;
use crate::service::{
    Access, ApplicationInfo, BigQueryInfo, CheckpointInfo, LiveResult, QueryFilter, QueryInfo, QueryReplacement,
    QueryRequest, Replacement, Selection, Service, ServiceError, StatementResult, Status, TableInfo,
};

impl Service for Engine {
    fn access(&self) -> Arc<Access> {
        self.access.clone()
    }

    fn execute(&self, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        self.execute_script(script)
    }

    fn create_application(&self, sql: &str) -> Result<ApplicationInfo, ServiceError> {
        let (application, replaces) = texts::plan_new(sql, &self.tables.loaded())?;
        let running = match replaces {
            Some(wish) => self.replace(application, wish)?.0,
            None => self.applications.register(application)?.0,
        };
        Ok(running.info())
    }

    fn replace_application(
        &self,
        sql: &str,
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError> {
        let (application, replaces) = texts::plan_new(sql, &self.tables.loaded())?;
        let wish = if discards_state { StateWish::Discard } else { replaces.unwrap_or_default() };
        let (running, replacement) = self.replace(application, wish)?;
        Ok((running.info(), replacement))
    }

    fn create_application_of(&self, kind: &str, code: &[u8]) -> Result<ApplicationInfo, ServiceError> {
        let application = self.applications.plan(kind, code)?;
        Ok(self.applications.register(application)?.0.info())
    }

    fn replace_application_of(
        &self,
        kind: &str,
        code: &[u8],
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError> {
        let application = self.applications.plan(kind, code)?;
        let wish = if discards_state { StateWish::Discard } else { StateWish::Keep };
        let (running, replacement) = self.replace(application, wish)?;
        Ok((running.info(), replacement))
    }

    fn create_table(&self, sql: &str) -> Result<TableInfo, ServiceError> {
        let create = texts::parse_table(sql)?;
        let name = create.name.text.clone();
        self.queries.create_table(create)?;
        self.table(&name)
    }

    fn refresh_table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.queries.refresh_table(name)?;
        self.table(name)
    }

    fn drop_table(&self, name: &str) -> Result<(), ServiceError> {
        self.big_queries.drop_table(name)
    }

    fn tables(&self) -> Vec<TableInfo> {
        self.applications.tables()
    }

    fn table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.applications.table(name)
    }

    fn applications(&self) -> Vec<ApplicationInfo> {
        self.applications.infos()
    }

    fn application(&self, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        self.applications.info(name_or_id)
    }

    fn drop_application(&self, name: &str, cascade: bool) -> Result<(), ServiceError> {
        self.queries.drop_application(name, cascade)
    }

    fn explain(&self, application: &str) -> Result<String, ServiceError> {
        Ok(self.applications.find(application)?.application.explain())
    }

    fn submit(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        self.queries.submit(requests)
    }

    fn query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        if let Some(big) = self.big_queries.info(name) {
            return Ok(big.into());
        }
        self.queries.info(name)
    }

    fn describe_query(&self, name: &str, names_topics: bool) -> Result<QueryInfo, ServiceError> {
        if let Some(big) = self.big_queries.info(name) {
            let why = why_big(&big);
            return Ok(QueryInfo { why, ..big.into() });
        }
        let facts = ServerFacts {
            broker_problem: self.messaging.ready().err().map(|error| error.message),
            strays: if names_topics { self.messaging.router().strays() } else { Vec::new() },
        };
        self.queries.described(name, facts)
    }

    fn queries(&self, filter: &QueryFilter) -> Vec<QueryInfo> {
        let mut all = self.queries.infos(filter);
        let big = self.big_queries.infos_of(filter);
        if !big.is_empty() {
            all.extend(big);
            all.sort_by(|one, other| one.name.cmp(&other.name));
            all.truncate(filter.limit);
        }
        all
    }

    fn big_queries(&self) -> Vec<BigQueryInfo> {
        self.big_queries.infos()
    }

    fn create_big_query(&self, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        self.create_big_query_of(sql)
    }

    fn pause(&self, query: &str) -> Result<(), ServiceError> {
        if self.big_queries.pause(query)? {
            return Ok(());
        }
        self.queries.set_paused(query, true)
    }

    fn resume(&self, query: &str) -> Result<(), ServiceError> {
        if self.big_queries.resume(query)?.is_some() {
            return Ok(());
        }
        self.queries.set_paused(query, false)
    }

    fn drop_query(&self, query: &str) -> Result<(), ServiceError> {
        if self.big_queries.drop_query(query)? {
            return Ok(());
        }
        self.queries.drop_query(query)
    }

    fn status(&self) -> Status {
        self.current_status()
    }

    fn metrics(&self) -> String {
        exposition::text(self.snapshot())
    }

    fn results(&self, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        self.queries.watch(query)
    }

    fn select(&self, sql: &str) -> Result<Selection, ServiceError> {
        self.big_queries.begin_select(sql)
    }

    fn checkpoint(&self) -> Result<CheckpointInfo, ServiceError> {
        self.coordinator.make_whole()
    }

    fn back_up(&self) -> Result<Backup, ServiceError> {
        self.backups.begin()
    }

    fn problems(&self) -> Vec<String> {
        let of_checkpoints = self.checkpoints.iter().flat_map(|checkpoints| checkpoints.problems());
        let of_checkpoints = of_checkpoints.chain(self.event_log.loss());
        of_checkpoints.chain(self.big_queries.problems()).chain(self.big_queries.troubled_ends()).collect()
    }

    fn announce_stop(&self) {
        self.stops_soon.store(true, Ordering::Release);
    }

    fn ready(&self) -> Result<(), ServiceError> {
        self.are_events_processed()
    }

    fn shutdown(&self) {
        self.stop();
    }
}

impl Engine {
    /// Registers an application, or lets it take over the queries of the one of its name. What it has taken over is
    /// saved.
    pub(super) fn replace(
        &self,
        application: Application,
        wish: StateWish,
    ) -> Result<(Arc<Running>, Replacement), ServiceError> {
        let (running, replacement) = self.queries.replace(application, wish)?;
        if replacement.is_changed && running.group.is_checkpointed() {
            self.coordinator.make_behind_upgrade();
        }
        Ok((running, replacement))
    }

    /// Creates a big query, or lets it take over from the one of its name. What it has taken over is saved.
    pub(super) fn replace_big_query(
        &self,
        create: CreateBigQuery,
        wish: StateWish,
    ) -> Result<QueryReplacement, ServiceError> {
        let replaced = self.big_queries.replace(create, wish)?;
        if replaced.is_changed {
            self.coordinator.make_behind_upgrade();
        }
        Ok(replaced)
    }
}
