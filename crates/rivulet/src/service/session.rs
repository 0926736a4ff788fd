//! The requests of a caller to the service, checked before they are passed on.
//!
//! What must hold: each method asks for the permit that it passes on.

use std::sync::Arc;

use rivulet_connectors::mqtt::{ClientFilter, ClientInfo};
use rivulet_dataflow::QueryId;
use rivulet_sql::{AccountStatement, StateWish, Statement, StatementTexts, UserName};
use serde_json::Value;
use tokio::sync::broadcast;

use super::access::{Access, Permit};
use super::audit::{AuditEntry, Auditor, without_values};
use super::caller::Caller;
use super::needed::{calls_models, declared_by, needed, read_by, written_by};
use super::resource::Action::{self, Administer, Change, Publish, Read, Subscribe};
use super::resource::Resource;
use super::resource::ResourceKind::{self, Application, Query, Secret, Server, Sink, Source, Table, Tenant, User};
use super::{
    AccountAnswer, Alteration, ApplicationInfo, Backup, BigQueryInfo, CheckpointInfo, Code, DataflowNode, ErrorKind,
    LiveResult, QueryChange, QueryFilter, QueryInfo, QueryRequest, SecretInfo, Selection, Service, ServiceError,
    StatementResult, Status, TableInfo,
};

/// The filter of every topic.
const EVERY_TOPIC: &str = "#";

/// What is done to what of which name.
type What<'a> = (Action, ResourceKind, Option<&'a str>);

/// The service for one caller. Its methods are those of [`Service`]; each refuses what the caller may not do with
/// [`ErrorKind::Forbidden`], and has then changed nothing.
pub struct Session<'s> {
    service: &'s dyn Service,
    permit: Permit,
    /// `None` if the caller may do everything.
    access: Option<Arc<Access>>,
    /// `None` if nobody keeps a record of what callers do.
    auditor: Option<Arc<dyn Auditor>>,
}

impl dyn Service {
    /// The service for this caller. Cheap: REST makes one for each request.
    pub fn session(&self, caller: Caller) -> Session<'_> {
        let access = self.access();
        let auditor = access.auditor().cloned();
        let access = Some(access).filter(|access| !access.may_everything(&caller));
        Session { service: self, permit: Permit::new(caller), access, auditor }
    }
}

impl Session<'_> {
    /// Runs an SQL script. Returns one result for each statement, up to the first error. If the caller may not run one
    /// of the statements, nothing of the script is run.
    pub fn execute(&self, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        match self.permit_script(script) {
            Ok(permit) => self.service.execute(permit, script),
            Err(error) => vec![Err(error)],
        }
    }

    /// See [`Service::create_application`]. Name, inputs and outputs in code that is no statement are known only when
    /// it is loaded: the caller must be allowed to change applications, sources and sinks of any name, and to subscribe
    /// to all tables; for other languages than SQL, to name all secrets, too.
    pub fn create_application(
        &self,
        code: Code<'_>,
        replaces: Option<StateWish>,
    ) -> Result<ApplicationInfo, ServiceError> {
        let permit = match code {
            Code::Statement(sql) => self.permit_script(sql)?,
            Code::Of(kind, code) => self.permit_code(kind, code)?,
        };
        self.service.create_application(permit, code, replaces)
    }

    /// See [`Service::secrets`].
    pub fn secrets(&self) -> Result<Vec<SecretInfo>, ServiceError> {
        Ok(self.service.secrets(self.permit(Read, Secret, None)?))
    }

    /// See [`Service::put_secret`].
    pub fn put_secret(&self, name: &str, value: String) -> Result<SecretInfo, ServiceError> {
        self.service.put_secret(self.permit(Change, Secret, Some(name))?, name, value)
    }

    /// See [`Service::drop_secret`].
    pub fn drop_secret(&self, name: &str) -> Result<(), ServiceError> {
        self.service.drop_secret(self.permit(Change, Secret, Some(name))?, name)
    }

    /// See [`Service::create_table`].
    pub fn create_table(&self, sql: &str) -> Result<TableInfo, ServiceError> {
        self.service.create_table(self.permit_script(sql)?, sql)
    }

    /// See [`Service::refresh_table`].
    pub fn refresh_table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.service.refresh_table(self.permit(Change, Table, Some(name))?, name)
    }

    /// See [`Service::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<(), ServiceError> {
        self.service.drop_table(self.permit(Change, Table, Some(name))?, name)
    }

    /// See [`Service::tables`].
    pub fn tables(&self) -> Result<Vec<TableInfo>, ServiceError> {
        Ok(self.service.tables(self.permit(Read, Table, None)?))
    }

    /// See [`Service::table`].
    pub fn table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.service.table(self.permit(Read, Table, Some(name))?, name)
    }

    /// See [`Service::applications`].
    pub fn applications(&self) -> Result<Vec<ApplicationInfo>, ServiceError> {
        Ok(self.service.applications(self.permit(Read, Application, None)?))
    }

    /// See [`Service::application`].
    pub fn application(&self, name_or_id: &str) -> Result<ApplicationInfo, ServiceError> {
        self.service.application(self.permit(Read, Application, Some(name_or_id))?, name_or_id)
    }

    /// See [`Service::drop_application`].
    pub fn drop_application(&self, name: &str, cascade: bool) -> Result<(), ServiceError> {
        self.service.drop_application(self.permit(Change, Application, Some(name))?, name, cascade)
    }

    /// See [`Service::explain`].
    pub fn explain(&self, application: &str) -> Result<String, ServiceError> {
        self.service.explain(self.permit(Read, Application, Some(application))?, application)
    }

    /// See [`Service::submit`]. A request that is refused harms none of the others.
    pub fn submit(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        self.permitted(requests, |request| request.name, |permitted| self.service.submit(&self.permit, permitted))
    }

    /// Passes on those requests to change queries that are permitted.
    fn permitted<R: Copy, A>(
        &self,
        requests: &[R],
        name_of: impl Fn(&R) -> Option<&str>,
        pass_on: impl FnOnce(&[R]) -> Vec<Result<A, ServiceError>>,
    ) -> Vec<Result<A, ServiceError>> {
        if self.access.is_none() && self.auditor.is_none() {
            return pass_on(requests);
        }
        let permit = |request: &R| self.check(Change, Query, name_of(request));
        let permits: Vec<Result<&Permit, ServiceError>> = requests.iter().map(permit).collect();
        let permitted = requests.iter().zip(&permits).filter(|(_, permit)| permit.is_ok());
        let permitted: Vec<R> = permitted.map(|(request, _)| *request).collect();
        let refused = permits.iter().find_map(|permit| permit.as_ref().err());
        // Of many, the first stands for all.
        for (count, refused) in [(permitted.len(), None), (requests.len() - permitted.len(), refused)] {
            if count > 0 {
                let is_one = |permit: &Result<&Permit, ServiceError>| permit.is_ok() == refused.is_none();
                let first =
                    requests.iter().zip(&permits).find(|(_, permit)| is_one(permit)).map(|(request, _)| request);
                let what = (Change, Query, first.and_then(&name_of));
                self.note(what, count, None, refused);
            }
        }
        let answers = if permitted.is_empty() { Vec::new() } else { pass_on(&permitted) };
        let mut answers = answers.into_iter();
        let unanswered = || Err(ServiceError::new(ErrorKind::Internal, "the query was not answered"));
        permits.into_iter().map(|permit| permit.and_then(|_| answers.next().unwrap_or_else(unanswered))).collect()
    }

    /// See [`Service::alter`]. A change that is refused harms none of the others.
    pub fn alter(&self, changes: &[QueryChange<'_>]) -> Vec<Result<Alteration, ServiceError>> {
        self.permitted(changes, |change| Some(change.name), |permitted| self.service.alter(&self.permit, permitted))
    }

    /// See [`Service::query`].
    pub fn query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        self.service.query(self.permit(Read, Query, Some(name))?, name)
    }

    /// See [`Service::describe_query`].
    pub fn describe_query(&self, name: &str) -> Result<QueryInfo, ServiceError> {
        self.service.describe_query(self.permit(Read, Query, Some(name))?, name, self.access.is_none())
    }

    /// See [`Service::queries`].
    pub fn queries(&self, filter: &QueryFilter) -> Result<Vec<QueryInfo>, ServiceError> {
        Ok(self.service.queries(self.permit(Read, Query, None)?, filter))
    }

    /// See [`Service::big_queries`].
    pub fn big_queries(&self) -> Result<Vec<BigQueryInfo>, ServiceError> {
        Ok(self.service.big_queries(self.permit(Read, Query, None)?))
    }

    /// See [`Service::dataflow`].
    pub fn dataflow(&self, query: &str) -> Result<Vec<DataflowNode>, ServiceError> {
        self.service.dataflow(self.permit(Read, Query, Some(query))?, query)
    }

    /// See [`Service::create_big_query`].
    pub fn create_big_query(&self, sql: &str) -> Result<(BigQueryInfo, String), ServiceError> {
        self.service.create_big_query(self.permit_script(sql)?, sql)
    }

    /// See [`Service::pause`].
    pub fn pause(&self, query: &str) -> Result<(), ServiceError> {
        self.service.pause(self.permit(Change, Query, Some(query))?, query)
    }

    /// See [`Service::resume`].
    pub fn resume(&self, query: &str) -> Result<(), ServiceError> {
        self.service.resume(self.permit(Change, Query, Some(query))?, query)
    }

    /// See [`Service::drop_query`].
    pub fn drop_query(&self, query: &str) -> Result<(), ServiceError> {
        self.service.drop_query(self.permit(Change, Query, Some(query))?, query)
    }

    /// See [`Service::status`].
    pub fn status(&self, operators: bool) -> Result<Status, ServiceError> {
        Ok(self.service.status(self.permit(Read, Server, None)?, operators))
    }

    /// Whether the caller may do this to what has the name, or to everything of a kind. A `false` does not count as a
    /// refusal.
    pub fn may(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> bool {
        let resource = Resource { kind, name };
        self.access.as_ref().is_none_or(|access| access.allows(self.permit.caller(), action, resource))
    }

    /// Fails unless the caller may administer the server.
    pub fn check_administers(&self) -> Result<(), ServiceError> {
        self.permit(Administer, Server, None).map(drop)
    }

    /// Fails unless the caller may read what the server does for all tenants.
    pub fn check_sees_server(&self) -> Result<(), ServiceError> {
        match self.permit(Read, Server, None)?.tenant().is_default() {
            true => Ok(()),
            false => {
                Err(ServiceError::new(ErrorKind::Forbidden, "what is of all tenants is for operators of the server"))
            }
        }
    }

    /// Whether the caller may be told the [`Service::problems`], which name what the default tenant has. A `false` does
    /// not count as a refusal.
    pub fn sees_problems(&self) -> bool {
        self.permit.tenant().is_default() && self.may(Read, Server, None)
    }

    /// See [`Service::metrics`].
    pub fn metrics(&self) -> Result<String, ServiceError> {
        Ok(self.service.metrics(self.permit(Read, Server, None)?))
    }

    /// See [`Service::clients`].
    pub fn clients(&self, filter: ClientFilter) -> Result<Vec<ClientInfo>, ServiceError> {
        self.service.clients(self.permit(Read, Server, None)?, filter)
    }

    /// The last entries of the record of what callers do, newest first; of the caller's tenant, and all for the default
    /// tenant. At most `limit`, and those that the newest files have.
    pub fn audit(&self, limit: usize) -> Result<Vec<Value>, ServiceError> {
        let tenant = self.permit_look(User, None, None)?.tenant();
        let access = self.service.access();
        let Some(auditor) = access.auditor() else {
            let error = ServiceError::not_found("no record is kept of what is done");
            return Err(error.with_hint("audit.enabled keeps one, once there are accounts"));
        };
        let found = auditor.last(Some(tenant.as_str()).filter(|_| !tenant.is_default()), limit);
        found.map_err(|error| ServiceError::new(ErrorKind::Internal, format!("the audit cannot be read: {error}")))
    }

    /// See [`Service::results`]. The caller is checked here and not again while results come.
    pub fn results(&self, query: &str) -> Result<broadcast::Receiver<Arc<LiveResult>>, ServiceError> {
        self.service.results(self.permit(Subscribe, Query, Some(query))?, query)
    }

    /// See [`Service::select`]. The caller is checked here and not again while rows come.
    pub fn select(&self, sql: &str) -> Result<Selection, ServiceError> {
        self.service.select(self.permit_select(sql)?, sql)
    }

    /// See [`Service::account`].
    pub fn account(&self, statement: &AccountStatement) -> Result<AccountAnswer, ServiceError> {
        self.service.account(self.permit_account(statement)?, statement)
    }

    /// See [`Service::checkpoint`].
    pub fn checkpoint(&self) -> Result<CheckpointInfo, ServiceError> {
        self.service.checkpoint(self.permit(Administer, Server, None)?)
    }

    /// See [`Service::back_up`].
    pub fn back_up(&self) -> Result<Box<dyn Backup>, ServiceError> {
        self.service.back_up(self.permit(Administer, Server, None)?)
    }

    fn permit(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> Result<&Permit, ServiceError> {
        self.permit_statement((action, kind, name), None)
    }

    /// The same for what a statement does.
    fn permit_statement(&self, what: What<'_>, statement: Option<&str>) -> Result<&Permit, ServiceError> {
        let permitted = self.check(what.0, what.1, what.2);
        self.note(what, 1, statement, permitted.as_ref().err());
        permitted
    }

    /// The same for a look that is for who administers what it shows. It is recorded as what it is.
    fn permit_look(
        &self,
        kind: ResourceKind,
        name: Option<&str>,
        statement: Option<&str>,
    ) -> Result<&Permit, ServiceError> {
        let permitted = self.check_right(Administer, kind, name);
        self.note((Read, kind, name), 1, statement, permitted.as_ref().err());
        permitted
    }

    /// Has a request recorded.
    fn note(
        &self,
        (action, kind, name): What<'_>,
        count: usize,
        statement: Option<&str>,
        refused: Option<&ServiceError>,
    ) {
        let Some(auditor) = &self.auditor else { return };
        let caller = self.permit.caller();
        auditor.note(&AuditEntry {
            caller: Some(caller),
            origin: caller.origin(),
            action: Some(action),
            resource: Some(Resource { kind, name }),
            count,
            statement,
            refused: refused.map(|error| error.message.as_str()),
        });
    }

    fn check(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> Result<&Permit, ServiceError> {
        if matches!(action, Change | Administer) {
            self.auditor.iter().try_for_each(|auditor| auditor.admits_changes())?;
        }
        self.check_right(action, kind, name)
    }

    fn check_right(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> Result<&Permit, ServiceError> {
        let Some(access) = &self.access else { return Ok(&self.permit) };
        let is_application = kind == Application;
        // The authorizer knows names, and a request may name an application by its id.
        let found = name.filter(|_| is_application).and_then(|name| self.service.application(&self.permit, name).ok());
        let name = found.as_ref().map(|application| application.name.as_str()).or(name);
        access.may(self.permit.caller(), action, Resource { kind, name }).map(|()| &self.permit)
    }

    /// Checks that the caller may register code in which the service alone finds names, sources, sinks and tables. Code
    /// that is the text of a statement is also checked as that statement; other code may name any topic and secret.
    fn permit_code(&self, kind: &str, code: &[u8]) -> Result<&Permit, ServiceError> {
        self.permit(Change, Source, None)?;
        self.permit(Change, Sink, None)?;
        self.permit(Subscribe, Table, None)?;
        let permit = self.permit(Change, Application, None)?;
        if kind == rivulet_sql::SQL {
            return str::from_utf8(code).map_or(Ok(permit), |text| self.permit_script(text));
        }
        self.permit(Read, Secret, None)?;
        if let Some(access) = &self.access {
            let named = access.may_name_topic(self.permit.caller(), Subscribe, EVERY_TOPIC);
            let hint = "write the application in SQL, with the addresses of its topics";
            named.map_err(|error| error.with_hint(hint))?;
        }
        Ok(permit)
    }

    /// Checks that the caller may name the topics of a statement, whose rows go there with the rights of the server.
    fn permit_topics(&self, statement: &Statement) -> Result<(), ServiceError> {
        let Some(access) = &self.access else { return Ok(()) };
        let [read, written] = statement.topics();
        let read = read.into_iter().map(|topic| (Subscribe, topic));
        for (action, (topic, place)) in read.chain(written.into_iter().map(|topic| (Action::Publish, topic))) {
            // What queries name themselves is any topic.
            let named = access.may_name_topic(self.permit.caller(), action, topic.unwrap_or(EVERY_TOPIC));
            named.map_err(|error| {
                let error = error.at(place.line, place.column);
                let tenant = self.permit.tenant();
                match topic {
                    Some(_) => error,
                    None => error.with_hint(format!(
                        "without an address each query names any topic: write the address: 'mqtt:{tenant}/...'"
                    )),
                }
            })?;
        }
        Ok(())
    }

    /// Checks that the caller may run a statement about accounts. Users of other tenants belong to the one who runs the
    /// server.
    fn permit_account(&self, statement: &AccountStatement) -> Result<&Permit, ServiceError> {
        let other = |user: &UserName| user.tenant.clone().filter(|tenant| tenant.text != self.permit.tenant().as_str());
        let tenant = statement.tenant().cloned().or_else(|| statement.user().and_then(other));
        let name = tenant.as_ref().or_else(|| statement.user().map(|user| &user.name));
        let kind = if tenant.is_some() || *statement == AccountStatement::ShowTenants { Tenant } else { User };
        let (text, name_text) = (statement.text(), name.map(|name| name.text.as_str()));
        let permitted = match statement.shows() {
            true => self.permit_look(kind, name_text, Some(&text)),
            false => self.permit_statement((Administer, kind, name_text), Some(&text)),
        };
        permitted.map_err(|error| name.map_or(error.clone(), |name| error.at_place(name.position.into())))
    }

    /// Checks that the caller may have the rows of what a statement reads, because whoever reads its results has them,
    /// and may write to its sinks. `declared` has the names that earlier statements of a script declare.
    fn permit_rows(&self, statement: &Statement, declared: &[(ResourceKind, String)]) -> Result<(), ServiceError> {
        if self.access.is_none() {
            return Ok(());
        }
        // The files of models are read as those of sources are.
        if calls_models(statement) {
            self.permit(Change, Source, None)?;
        }
        let read = read_by(statement).into_iter().map(|name| (Subscribe, name));
        for (action, name) in read.chain(written_by(statement).into_iter().map(|name| (Publish, name))) {
            let of_script = declared.iter().filter(|(_, known)| *known == name.text).map(|(kind, _)| *kind);
            let mut kinds = self.service.kinds_of(&self.permit, &name.text);
            kinds.extend(of_script);
            for kind in kinds.into_iter().filter(|kind| (action == Publish) == (*kind == Sink)) {
                let why = if action == Publish { "to which the statement writes" } else { "which the statement reads" };
                self.permit(action, kind, Some(&name.text)).map_err(|mut error| {
                    error.message = format!("{}, {why}", error.message);
                    error.at_place(name.position.into())
                })?;
            }
        }
        Ok(())
    }

    /// Checks that the caller may have the rows of a SELECT, as far as they are of sources, views and tables. The
    /// service asks for the rights over topics and queries, which it alone finds.
    fn permit_select(&self, sql: &str) -> Result<&Permit, ServiceError> {
        // The service refuses a text of several statements.
        let first = rivulet_sql::statements(sql).next().and_then(Result::ok).map(|(statement, _)| statement);
        match (&self.access, &first) {
            (Some(_), Some(select @ Statement::RunQuery(query))) if !read_by(select).is_empty() => {
                self.permit_rows(select, &[])?;
                // It reads files by their paths, as a declared source would.
                match query.files().is_empty() {
                    true => Ok(&self.permit),
                    false => self.permit(Change, Source, None),
                }
            }
            // One that reads nothing is run, too.
            _ => self.permit(Subscribe, Source, None),
        }
    }

    /// Checks that the caller may run all statements of a script. Errors in its text are left to the service, which
    /// then runs nothing of it.
    fn permit_script(&self, script: &str) -> Result<&Permit, ServiceError> {
        if self.access.is_none() && self.auditor.is_none() {
            return Ok(&self.permit);
        }
        let mut texts = self.auditor.as_ref().map(|_| StatementTexts::new(script));
        let mut declared = Vec::new();
        // One statement after the other: all of them may take a thousand times the memory of their text.
        let quota = self.access.as_ref().map(|access| access.quotas().of(self.permit.tenant()));
        let statements = rivulet_sql::statements(script).map_while(Result::ok);
        for (number, (statement, position)) in statements.enumerate() {
            // A script counts as its statements.
            quota.iter().for_each(|quota| quota.charge_requests(u64::from(number > 0)));
            let text = texts.as_mut().and_then(|texts| texts.at(position)).map(without_values);
            let text = text.as_deref();
            if let Statement::Account(account) = &statement {
                self.permit_account(account).map_err(|error| error.or_at(position))?;
                continue;
            }
            let (action, kind, name) = needed(&statement);
            let position = name.map_or(position, |name| name.position);
            self.permit_statement((action, kind, name.map(|name| name.text.as_str())), text)
                .map_err(|error| error.at(position.line, position.column))?;
            for (secret, position) in statement.secrets() {
                self.permit(Read, Secret, Some(secret)).map_err(|error| error.at(position.line, position.column))?;
            }
            self.permit_topics(&statement)?;
            self.permit_rows(&statement, &declared)?;
            declared.extend(declared_by(&statement).map(|(kind, name)| (kind, name.text.clone())));
            // An input that reads no topic connects to another server, or listens, as a source does; and an output that
            // is no topic is a sink.
            let Statement::CreateApplication(create) = &statement else { continue };
            let sources = create.source_positions().map(|place| (Source, place));
            for (kind, place) in sources.chain(create.sink_positions().map(|place| (Sink, place))) {
                self.permit(Change, kind, None).map_err(|error| error.at(place.line, place.column))?;
            }
        }
        Ok(&self.permit)
    }
}
