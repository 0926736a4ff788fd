//! The requests of a caller to the service, checked before they are passed on.
//!
//! What must hold: each method asks for the permit that it passes on.

use std::sync::Arc;

use rivulet_connectors::mqtt::{ClientFilter, ClientInfo};
use rivulet_dataflow::QueryId;
use rivulet_sql::{AccountStatement, Name, StateWish, Statement, StatementTexts, UserName};
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
            Ok(permit) => {
                let results = self.service.execute(permit, script);
                self.note_script(script, &results);
                results
            }
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
        let created = self.service.create_application(permit, code, replaces);
        let text = match code {
            Code::Statement(sql) => Some(sql),
            Code::Of(rivulet_sql::SQL, code) => str::from_utf8(code).ok(),
            Code::Of(..) => None,
        };
        match text {
            Some(sql) => self.note_script(sql, std::slice::from_ref(&created)),
            None => {
                let name = created.as_ref().ok().map(|application| application.name.as_str());
                self.note_done((Change, Application, name), Some("CREATE APPLICATION"), created.as_ref().err());
            }
        }
        created
    }

    /// See [`Service::secrets`].
    pub fn secrets(&self) -> Result<Vec<SecretInfo>, ServiceError> {
        Ok(self.service.secrets(self.permit(Read, Secret, None)?))
    }

    /// See [`Service::put_secret`].
    pub fn put_secret(&self, name: &str, value: String) -> Result<SecretInfo, ServiceError> {
        self.change("CREATE OR REPLACE SECRET", (Change, Secret, Some(name)), |permit| {
            self.service.put_secret(permit, name, value)
        })
    }

    /// See [`Service::drop_secret`].
    pub fn drop_secret(&self, name: &str) -> Result<(), ServiceError> {
        self.change("DROP SECRET", (Change, Secret, Some(name)), |permit| self.service.drop_secret(permit, name))
    }

    /// See [`Service::create_table`].
    pub fn create_table(&self, sql: &str) -> Result<TableInfo, ServiceError> {
        self.run(sql, |permit| self.service.create_table(permit, sql))
    }

    /// See [`Service::refresh_table`].
    pub fn refresh_table(&self, name: &str) -> Result<TableInfo, ServiceError> {
        self.change("REFRESH TABLE", (Change, Table, Some(name)), |permit| self.service.refresh_table(permit, name))
    }

    /// See [`Service::drop_table`].
    pub fn drop_table(&self, name: &str) -> Result<(), ServiceError> {
        self.change("DROP TABLE", (Change, Table, Some(name)), |permit| self.service.drop_table(permit, name))
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
        let what = (Change, Application, Some(name));
        self.change("DROP APPLICATION", what, |permit| self.service.drop_application(permit, name, cascade))
    }

    /// See [`Service::explain`].
    pub fn explain(&self, application: &str) -> Result<String, ServiceError> {
        self.service.explain(self.permit(Read, Application, Some(application))?, application)
    }

    /// See [`Service::submit`]. A request that is refused harms none of the others.
    pub fn submit(&self, requests: &[QueryRequest<'_>]) -> Vec<Result<QueryId, ServiceError>> {
        self.permitted(
            "CREATE QUERY",
            requests,
            |request| request.name,
            |permitted| self.service.submit(&self.permit, permitted),
        )
    }

    /// Passes on those requests to change queries that are permitted.
    fn permitted<R: Copy, A>(
        &self,
        words: &str,
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
        let answers = if permitted.is_empty() { Vec::new() } else { pass_on(&permitted) };
        let mut answers = answers.into_iter();
        let unanswered = || Err(ServiceError::new(ErrorKind::Internal, "the query was not answered"));
        let are_allowed: Vec<bool> = permits.iter().map(Result::is_ok).collect();
        let answers: Vec<Result<A, ServiceError>> =
            permits.into_iter().map(|permit| permit.and_then(|_| answers.next().unwrap_or_else(unanswered))).collect();
        // Of many that went the same way, the first stands for all.
        let way = |place: usize| (are_allowed[place], answers[place].as_ref().err().map(|error| error.kind));
        let mut ways = Vec::new();
        for (place, request) in requests.iter().enumerate() {
            let own = way(place);
            if ways.contains(&own) {
                continue;
            }
            ways.push(own);
            let count = (place..requests.len()).filter(|other| way(*other) == own).count();
            let what = (Change, Query, name_of(request));
            match own {
                (true, failed) => self.note(what, count, Some(words), None, failed),
                (false, _) => self.note(what, count, Some(words), answers[place].as_ref().err(), None),
            }
        }
        answers
    }

    /// See [`Service::alter`]. A change that is refused harms none of the others.
    pub fn alter(&self, changes: &[QueryChange<'_>]) -> Vec<Result<Alteration, ServiceError>> {
        self.permitted(
            "ALTER QUERY",
            changes,
            |change| Some(change.name),
            |permitted| self.service.alter(&self.permit, permitted),
        )
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
        self.run(sql, |permit| self.service.create_big_query(permit, sql))
    }

    /// See [`Service::pause`].
    pub fn pause(&self, query: &str) -> Result<(), ServiceError> {
        self.change("PAUSE QUERY", (Change, Query, Some(query)), |permit| self.service.pause(permit, query))
    }

    /// See [`Service::resume`].
    pub fn resume(&self, query: &str) -> Result<(), ServiceError> {
        self.change("RESUME QUERY", (Change, Query, Some(query)), |permit| self.service.resume(permit, query))
    }

    /// See [`Service::drop_query`].
    pub fn drop_query(&self, query: &str) -> Result<(), ServiceError> {
        self.change("DROP QUERY", (Change, Query, Some(query)), |permit| self.service.drop_query(permit, query))
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
        let what = (Read, Server, None);
        if self.require(what, None)?.tenant().is_default() {
            self.note_done(what, None, None);
            return Ok(());
        }
        let error = ServiceError::new(ErrorKind::Forbidden, "what is of all tenants is for operators of the server");
        self.note(what, 1, None, Some(&error), None);
        Err(error)
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
        let tenant = self.require_look(User, None, None)?.tenant();
        self.note_done((Read, User, None), None, None);
        let access = self.service.access();
        let Some(auditor) = access.auditor() else {
            let error = ServiceError::not_found("no record is kept of what is done");
            return Err(error.with_hint("audit.enabled keeps one, once there are accounts"));
        };
        let found = auditor.last(Some(tenant).filter(|tenant| !tenant.is_default()), limit);
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
        let done = self.service.account(self.permit_account(statement)?, statement);
        let (action, kind, name) = about(statement, &self.permit);
        let what = (action, kind, name.as_ref().map(|name| name.text.as_str()));
        self.note_done(what, Some(&statement.text()), done.as_ref().err());
        done
    }

    /// See [`Service::checkpoint`].
    pub fn checkpoint(&self) -> Result<CheckpointInfo, ServiceError> {
        self.change("CHECKPOINT", (Administer, Server, None), |permit| self.service.checkpoint(permit))
    }

    /// See [`Service::back_up`].
    pub fn back_up(&self) -> Result<Box<dyn Backup>, ServiceError> {
        self.change("BACKUP", (Administer, Server, None), |permit| self.service.back_up(permit))
    }

    /// Checks that the caller may look at something, and has that recorded.
    fn permit(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> Result<&Permit, ServiceError> {
        let permitted = self.require((action, kind, name), None);
        if permitted.is_ok() {
            self.note_done((action, kind, name), None, None);
        }
        permitted
    }

    /// Makes a change that the caller may make, and has recorded what came of it. `words` and the name are the
    /// statement that does the same.
    fn change<A>(
        &self,
        words: &str,
        what: What<'_>,
        make: impl FnOnce(&Permit) -> Result<A, ServiceError>,
    ) -> Result<A, ServiceError> {
        let name = what.2.map_or_else(String::new, |name| format!(" {}", rivulet_sql::name_in_sql(name)));
        let statement = self.auditor.as_ref().map(|_| without_values(&format!("{words}{name}")));
        let made = make(self.require(what, statement.as_deref())?);
        self.note_done(what, statement.as_deref(), made.as_ref().err());
        made
    }

    /// The same for a statement.
    fn run<A>(&self, sql: &str, run: impl FnOnce(&Permit) -> Result<A, ServiceError>) -> Result<A, ServiceError> {
        let done = run(self.permit_script(sql)?);
        self.note_script(sql, std::slice::from_ref(&done));
        done
    }

    /// Checks that the caller may do something, and has a refusal recorded.
    fn require(&self, what: What<'_>, statement: Option<&str>) -> Result<&Permit, ServiceError> {
        self.check(what.0, what.1, what.2).inspect_err(|error| match error.kind {
            // There is the right to it, and no record can be written.
            ErrorKind::Unavailable => self.note_done(what, statement, Some(error)),
            _ => self.note(what, 1, statement, Some(error), None),
        })
    }

    /// The same for a look that is for who administers what it shows. It is recorded as what it is.
    fn require_look(
        &self,
        kind: ResourceKind,
        name: Option<&str>,
        statement: Option<&str>,
    ) -> Result<&Permit, ServiceError> {
        let permitted = self.check_right(Administer, kind, name);
        permitted.inspect_err(|error| self.note((Read, kind, name), 1, statement, Some(error), None))
    }

    /// Has recorded what came of something that the caller may do. The message of an error may quote values.
    fn note_done(&self, what: What<'_>, statement: Option<&str>, error: Option<&ServiceError>) {
        self.note(what, 1, statement, None, error.map(|error| error.kind));
    }

    /// Has the statements of a script recorded that were run, and what came of each.
    fn note_script<A>(&self, script: &str, results: &[Result<A, ServiceError>]) {
        if self.auditor.is_none() {
            return;
        }
        // An error in the text of a script is its only result, and nothing was run.
        if matches!(results, [Err(_)]) && rivulet_sql::statements(script).any(|statement| statement.is_err()) {
            return;
        }
        let mut texts = StatementTexts::new(script);
        let statements = rivulet_sql::statements(script).map_while(Result::ok);
        for ((statement, position), result) in statements.zip(results) {
            let (action, kind, name) = match &statement {
                Statement::Account(account) => about(account, &self.permit),
                statement => {
                    let (action, kind, name) = needed(statement);
                    (action, kind, name.cloned())
                }
            };
            let text = match &statement {
                Statement::Account(account) => Some(account.text()),
                _ => texts.at(position).map(without_values),
            };
            let what = (action, kind, name.as_ref().map(|name| name.text.as_str()));
            self.note_done(what, text.as_deref(), result.as_ref().err());
        }
    }

    /// Has a request recorded.
    fn note(
        &self,
        (action, kind, name): What<'_>,
        count: usize,
        statement: Option<&str>,
        refused: Option<&ServiceError>,
        failed: Option<ErrorKind>,
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
            failed,
        });
    }

    fn check(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> Result<&Permit, ServiceError> {
        let permit = self.check_right(action, kind, name)?;
        if matches!(action, Change | Administer) {
            self.auditor.iter().try_for_each(|auditor| auditor.admits_changes())?;
        }
        Ok(permit)
    }

    fn check_right(&self, action: Action, kind: ResourceKind, name: Option<&str>) -> Result<&Permit, ServiceError> {
        // An operator in a tenant does there what the tenant's administrators do.
        if self.permit.caller().is_operator_in_tenant() && action == Administer && matches!(kind, Server | Tenant) {
            let message =
                format!("in the place of the tenant '{}' nothing is changed of the server", self.permit.tenant());
            let error = ServiceError::new(ErrorKind::Forbidden, message);
            return Err(error.with_hint("leave out --as-tenant, the header rivulet-tenant"));
        }
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
        self.require((Change, Source, None), None)?;
        self.require((Change, Sink, None), None)?;
        self.require((Subscribe, Table, None), None)?;
        let permit = self.require((Change, Application, None), None)?;
        if kind == rivulet_sql::SQL {
            return str::from_utf8(code).map_or(Ok(permit), |text| self.permit_script(text));
        }
        self.require((Read, Secret, None), None)?;
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

    /// Checks that the caller may run a statement about accounts.
    fn permit_account(&self, statement: &AccountStatement) -> Result<&Permit, ServiceError> {
        let (action, kind, name) = about(statement, &self.permit);
        let (text, name_text) = (statement.text(), name.as_ref().map(|name| name.text.as_str()));
        let permitted = match action {
            Read => self.require_look(kind, name_text, Some(&text)),
            _ => self.require((action, kind, name_text), Some(&text)),
        };
        permitted.map_err(|error| match &name {
            Some(name) => error.at_place(name.position.into()),
            None => error,
        })
    }

    /// Checks that the caller may have the rows of what a statement reads, because whoever reads its results has them,
    /// and may write to its sinks. `declared` has the names that earlier statements of a script declare.
    fn permit_rows(&self, statement: &Statement, declared: &[(ResourceKind, String)]) -> Result<(), ServiceError> {
        if self.access.is_none() {
            return Ok(());
        }
        // The files of models are read as those of sources are.
        if calls_models(statement) {
            self.require((Change, Source, None), None)?;
        }
        let read = read_by(statement).into_iter().map(|name| (Subscribe, name));
        for (action, name) in read.chain(written_by(statement).into_iter().map(|name| (Publish, name))) {
            let of_script = declared.iter().filter(|(_, known)| *known == name.text).map(|(kind, _)| *kind);
            let mut kinds = self.service.kinds_of(&self.permit, &name.text);
            kinds.extend(of_script);
            for kind in kinds.into_iter().filter(|kind| (action == Publish) == (*kind == Sink)) {
                let why = if action == Publish { "to which the statement writes" } else { "which the statement reads" };
                self.require((action, kind, Some(&name.text)), None).map_err(|mut error| {
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
                if !query.files().is_empty() {
                    self.require((Change, Source, None), None)?;
                }
                let first = read_by(select).into_iter().next();
                self.note_done((Subscribe, Source, first.as_ref().map(|name| name.text.as_str())), None, None);
                Ok(&self.permit)
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
            self.require((action, kind, name.map(|name| name.text.as_str())), text)
                .map_err(|error| error.at(position.line, position.column))?;
            for (secret, position) in statement.secrets() {
                self.require((Read, Secret, Some(secret)), None)
                    .map_err(|error| error.at(position.line, position.column))?;
            }
            self.permit_topics(&statement)?;
            self.permit_rows(&statement, &declared)?;
            declared.extend(declared_by(&statement).map(|(kind, name)| (kind, name.text.clone())));
            // An input that reads no topic connects to another server, or listens, as a source does; and an output that
            // is no topic is a sink.
            let Statement::CreateApplication(create) = &statement else { continue };
            let sources = create.source_positions().map(|place| (Source, place));
            for (kind, place) in sources.chain(create.sink_positions().map(|place| (Sink, place))) {
                self.require((Change, kind, None), None).map_err(|error| error.at(place.line, place.column))?;
            }
        }
        Ok(&self.permit)
    }
}

/// What a statement about accounts does to what: to another tenant than the caller's, or to a user. Users of other
/// tenants belong to the one who runs the server.
fn about(statement: &AccountStatement, permit: &Permit) -> (Action, ResourceKind, Option<Name>) {
    let other = |user: &UserName| user.tenant.clone().filter(|tenant| tenant.text != permit.tenant().as_str());
    let tenant = statement.tenant().cloned().or_else(|| statement.user().and_then(other));
    let kind = if tenant.is_some() || *statement == AccountStatement::ShowTenants { Tenant } else { User };
    let action = if statement.shows() { Read } else { Administer };
    (action, kind, tenant.or_else(|| statement.user().map(|user| user.name.clone())))
}
