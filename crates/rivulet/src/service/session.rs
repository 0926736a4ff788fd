//! What a caller asks of the service, checked before it is passed on.

use std::sync::Arc;

use rivulet_dataflow::QueryId;
use rivulet_sql::{Name, Statement};
use tokio::sync::broadcast;

use super::access::{Access, Action, Caller, Resource, ResourceKind};
use super::{
    ApplicationInfo, BigQueryInfo, CheckpointInfo, ErrorKind, LiveResult, QueryFilter, QueryInfo, QueryRequest,
    Replacement, Selection, Service, ServiceError, StatementResult, Status, TableInfo,
};
use crate::data_folder::archive::Backup;

/// The service as one caller sees it. Its methods are those of [`Service`]; each refuses what the caller may not do
/// with [`ErrorKind::Forbidden`], and has then changed nothing.
pub struct Session {
    service: Arc<dyn Service>,
    caller: Caller,
    /// `None` if the caller may do everything.
    access: Option<Arc<Access>>,
}

impl dyn Service {
    /// The service as this caller sees it. Cheap: REST makes one for each request.
    pub fn session(self: &Arc<Self>, caller: Caller) -> Session {
        let access = Some(self.access()).filter(|access| !access.may_everything(&caller));
        Session { service: Arc::clone(self), caller, access }
    }
}

impl Session {
    /// Runs an SQL script; one result for each statement, stopping at the first error. If the caller may not run one of
    /// the statements, nothing of the script is run.
    pub fn execute(&self, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        match self.permit_script(script) {
            Ok(()) => self.service.execute(script),
            Err(error) => vec![Err(error)],
        }
    }

    /// See [`Service::create_application`].
    pub fn create_application(&self, sql: &str) -> Result<ApplicationInfo, ServiceError> {
        self.permit_script(sql)?;
        self.service.create_application(sql)
    }

    /// See [`Service::replace_application`].
    pub fn replace_application(
        &self,
        sql: &str,
        discards_state: bool,
    ) -> Result<(ApplicationInfo, Replacement), ServiceError> {
        self.permit_script(sql)?;
        self.service.replace_application(sql, discards_state)
    }

    /// See [`Service::create_table`].
    pub fn create_table(&self, sql: &str) -> Result<TableInfo, ServiceError> {
        self.permit_script(sql)?;
        self.service.create_table(sql)
    }

    /// See [`Service::refresh_table`].
    pub fn refresh_table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.permit(Action::Change, ResourceKind::Table, Some(name))?;
        self.service.refresh_table(name)
    }

    /// See [`Service::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<(), ServiceError> {
        self.permit(Action::Change, ResourceKind::Table, Some(name))?;
        self.service.drop_table(name)
    }

    /// See [`Service::tables`].
    pub fn tables(&self) -> Result<Vec<TableInfo>, ServiceError> {
        self.permit(Action::Read, ResourceKind::Table, None)?;
        Ok(self.service.tables())
    }

    /// See [`Service::table`].
    pub fn table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.permit(Action::Read, ResourceKind::Table, Some(name))?;
        self.service.table(name)
    }

    /// See [`Service::applications`].
    pub fn applications(&self) -> Result<Vec<ApplicationInfo>, ServiceError> {
        self.permit(Action::Read, ResourceKind::Application, None)?;
        Ok(self.service.applications())
    }

    /// See [`Service::application`].
    pub fn application(&self, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        self.permit(Action::Read, ResourceKind::Application, Some(name_or_id))?;
        self.service.application(name_or_id)
    }

    /// See [`Service::drop_application`].
    pub fn drop_application(&self, name: &str, cascade: bool) -> Result<(), ServiceError> {
        self.permit(Action::Change, ResourceKind::Application, Some(name))?;
        self.service.drop_application(name, cascade)
    }

    /// See [`Service::explain`].
    pub fn explain(&self, application: &str) -> Result<String, ServiceError> {
        self.permit(Action::Read, ResourceKind::Application, Some(application))?;
        self.service.explain(application)
    }

    /// See [`Service::submit`]. A request that is refused harms none of the others.
    pub fn submit(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        if self.access.is_none() {
            return self.service.submit(requests);
        }
        let permit = |request: &QueryRequest<'_>| self.permit(Action::Change, ResourceKind::Query, request.name);
        let permits: Vec<Result<(), ServiceError>> = requests.iter().map(permit).collect();
        let permitted = requests.iter().zip(&permits).filter(|(_, permit)| permit.is_ok());
        let permitted: Vec<QueryRequest<'_>> = permitted.map(|(request, _)| *request).collect();
        let answers = if permitted.is_empty() { Vec::new() } else { self.service.submit(&permitted) };
        let mut answers = answers.into_iter();
        let unanswered = || Err(ServiceError::new(ErrorKind::Internal, "the query was not answered"));
        permits.into_iter().map(|permit| permit.and_then(|()| answers.next().unwrap_or_else(unanswered))).collect()
    }

    /// See [`Service::query`].
    pub fn query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        self.permit(Action::Read, ResourceKind::Query, Some(name))?;
        self.service.query(name)
    }

    /// See [`Service::describe_query`].
    pub fn describe_query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        self.permit(Action::Read, ResourceKind::Query, Some(name))?;
        self.service.describe_query(name, self.access.is_none())
    }

    /// See [`Service::queries`].
    pub fn queries(&self, filter: &QueryFilter) -> Result<Vec<QueryInfo>, ServiceError> {
        self.permit(Action::Read, ResourceKind::Query, None)?;
        Ok(self.service.queries(filter))
    }

    /// See [`Service::big_queries`].
    pub fn big_queries(&self) -> Result<Vec<BigQueryInfo>, ServiceError> {
        self.permit(Action::Read, ResourceKind::Query, None)?;
        Ok(self.service.big_queries())
    }

    /// See [`Service::create_big_query`].
    pub fn create_big_query(&self, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        self.permit_script(sql)?;
        self.service.create_big_query(sql)
    }

    /// See [`Service::pause`].
    pub fn pause(&self, query: &str) -> Result<(), ServiceError> {
        self.permit(Action::Change, ResourceKind::Query, Some(query))?;
        self.service.pause(query)
    }

    /// See [`Service::resume`].
    pub fn resume(&self, query: &str) -> Result<(), ServiceError> {
        self.permit(Action::Change, ResourceKind::Query, Some(query))?;
        self.service.resume(query)
    }

    /// See [`Service::drop_query`].
    pub fn drop_query(&self, query: &str) -> Result<(), ServiceError> {
        self.permit(Action::Change, ResourceKind::Query, Some(query))?;
        self.service.drop_query(query)
    }

    /// See [`Service::status`].
    pub fn status(&self) -> Result<Status, ServiceError> {
        self.permit(Action::Read, ResourceKind::Server, None)?;
        Ok(self.service.status())
    }

    /// See [`Service::metrics`].
    pub fn metrics(&self) -> Result<String, ServiceError> {
        self.permit(Action::Read, ResourceKind::Server, None)?;
        Ok(self.service.metrics())
    }

    /// See [`Service::results`]. The caller is checked here and not again while results come.
    pub fn results(&self, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        self.permit(Action::Subscribe, ResourceKind::Query, Some(query))?;
        self.service.results(query)
    }

    /// See [`Service::select`]. The caller is checked here and not again while rows come.
    pub fn select(&self, sql: &str) -> Result<Selection, ServiceError> {
        self.permit(Action::Subscribe, ResourceKind::Source, None)?;
        self.service.select(sql)
    }

    /// See [`Service::checkpoint`].
    pub fn checkpoint(&self) -> Result<CheckpointInfo, ServiceError> {
        self.permit(Action::Administer, ResourceKind::Server, None)?;
        self.service.checkpoint()
    }

    /// See [`Service::back_up`].
    pub fn back_up(&self) -> Result<Backup, ServiceError> {
        self.permit(Action::Administer, ResourceKind::Server, None)?;
        self.service.back_up()
    }

    fn permit(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> Result<(), ServiceError> {
        let Some(access) = &self.access else { return Ok(()) };
        let is_application = kind == ResourceKind::Application;
        // The authorizer knows names, and an application can be asked for by its id.
        let found = name.filter(|_| is_application).and_then(|name| self.service.application(name).ok());
        let name = found.as_ref().map(|application| application.name.as_str()).or(name);
        access.may(&self.caller, action, Resource { kind, name })
    }

    /// Whether the caller may run all statements of a script. What is wrong with its text is left to the service, which
    /// then runs nothing of it.
    fn permit_script(&self, script: &str) -> Result<(), ServiceError> {
        if self.access.is_none() {
            return Ok(());
        }
        // One statement after the other: all of them may take a thousand times the memory of their text.
        for (statement, position) in rivulet_sql::statements(script).map_while(Result::ok) {
            let (action, kind, name) = needed(&statement);
            let position = name.map_or(position, |name| name.position);
            self.permit(action, kind, name.map(|name| name.text.as_str()))
                .map_err(|error| error.at(position.line, position.column))?;
        }
        Ok(())
    }
}

/// What a caller must be allowed to do to run a statement.
fn needed(statement: &Statement) -> (Action, ResourceKind, Option<&Name>) {
    use Action::{Administer, Change, Read};
    use ResourceKind::{Application, Query, Server, Sink, Source, Table, View};
    match statement {
        Statement::CreateApplication(create) => (Change, Application, Some(&create.name)),
        Statement::CreateTable(create) => (Change, Table, Some(&create.name)),
        Statement::CreateSource(create) => (Change, Source, Some(&create.name)),
        Statement::CreateSink(create) => (Change, Sink, Some(&create.name)),
        Statement::CreateView(create) => (Change, View, Some(&create.name)),
        Statement::CreateBigQuery(create) => (Change, Query, Some(&create.name)),
        Statement::CreateQuery { name, .. }
        | Statement::PauseQuery(name)
        | Statement::ResumeQuery(name)
        | Statement::DropQuery { name, .. } => (Change, Query, Some(name)),
        Statement::DropApplication { name, .. } => (Change, Application, Some(name)),
        Statement::DropTable { name, .. } | Statement::RefreshTable(name) => (Change, Table, Some(name)),
        Statement::DropSource { name, .. } => (Change, Source, Some(name)),
        Statement::DropSink { name, .. } => (Change, Sink, Some(name)),
        Statement::DropView { name, .. } => (Change, View, Some(name)),
        Statement::Checkpoint => (Administer, Server, None),
        Statement::ShowCheckpoints => (Read, Server, None),
        // What is in the documents.
        Statement::ShowFunctions { .. } | Statement::DescribeFunction(_) => (Read, Application, None),
        Statement::ShowApplications { .. } => (Read, Application, None),
        Statement::ShowTables { .. } => (Read, Table, None),
        Statement::ShowSources { .. } => (Read, Source, None),
        Statement::ShowSinks { .. } => (Read, Sink, None),
        Statement::ShowViews { .. } => (Read, View, None),
        // A server refuses to run a query without a name, whoever asks.
        Statement::ShowQueries { .. } | Statement::ExplainBigQuery { .. } | Statement::RunQuery(_) => {
            (Read, Query, None)
        }
        Statement::ExplainCreate(create) => (Read, Application, Some(&create.name)),
        Statement::DescribeApplication(name) | Statement::ExplainApplication(name) => (Read, Application, Some(name)),
        Statement::DescribeQuery(name) | Statement::ExplainQuery(name) => (Read, Query, Some(name)),
        Statement::DescribeTable(name) => (Read, Table, Some(name)),
        Statement::DescribeSource(name) => (Read, Source, Some(name)),
        Statement::DescribeSink(name) => (Read, Sink, Some(name)),
        Statement::DescribeView(name) => (Read, View, Some(name)),
    }
}
