//! SQL scripts: each statement becomes a call of the engine, and its answer a small table.

use std::collections::HashSet;
use std::iter::Peekable;
use std::sync::Arc;

use rivulet_connectors::connector::Direction;
use rivulet_sql::{Declared, Literal, Name, ObjectKind, Position, Show, SqlError, StateWish, Statement};
use serde_json::{Value, json};

use super::Engine;
use super::answers::{
    self, describe_application, describe_query, describe_table, first, lines, more, result_bytes, rows_max, said, table,
};
use super::big_queries::Resumed;
use super::running::Running;
use super::sources::Sources;
use super::texts::parameters_of;
use crate::counted::counted;
use crate::like;
use crate::service::{
    ApplicationInfo, ErrorKind, Permit, QUERIES_PAGE_MAX, QueryChange, QueryFilter, QueryRequest, Service,
    ServiceError, StatementResult, TableInfo, Tenant,
};

/// The most applications that are registered together.
const APPLICATIONS_AT_ONCE: usize = 1_000;

/// The most memory that the results of a script may take before it ends.
const RESULTS_BYTES_MAX: usize = 16 << 20;

fn registered(running: &Running, is_new: bool) -> StatementResult {
    let name = &running.application.name;
    said(running.answer(match is_new {
        true => format!("application {name} created"),
        false => format!("application {name} is registered already"),
    }))
}

impl Engine {
    /// Runs a script. Returns one result for each statement, up to the first error.
    pub(super) fn execute_script(&self, permit: &Permit, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        // If any part of a script is wrong, nothing of it is run. The script is read twice, because all its statements
        // at once may take a thousand times the memory of their text.
        let read = |count: usize, one: Result<(Statement, Position), SqlError>| {
            let (statement, position) = one.map_err(ServiceError::from)?;
            match never_runs(&statement) {
                Some(error) => Err(error.at(position.line, position.column)),
                None => Ok(count + 1),
            }
        };
        let count = match rivulet_sql::statements(script).try_fold(0, read) {
            Ok(count) => count,
            Err(error) => return vec![Err(error)],
        };
        let (mut results, mut bytes) = (Vec::new(), 0);
        let mut statements = rivulet_sql::statements(script).map_while(Result::ok).peekable();
        loop {
            let applications = self.create_applications(permit.tenant(), &mut statements);
            let has_failed = applications.last().is_some_and(Result::is_err);
            results.extend(applications);
            if has_failed {
                break;
            }
            let Some((statement, position)) = statements.next() else { break };
            let done = if bytes > RESULTS_BYTES_MAX {
                let message = format!("the results before it have more than {} MiB", RESULTS_BYTES_MAX >> 20);
                Err(ServiceError::new(ErrorKind::LimitReached, message)
                    .with_hint("ask for less with LIMIT, or cut the script into several"))
            } else {
                self.execute_statement(permit, statement)
            };
            let result = done.map_err(|error| error.or_at(position));
            bytes += result.as_ref().map_or(0, result_bytes);
            let failed = result.is_err();
            results.push(result);
            if failed {
                break;
            }
        }
        let results_count = results.len();
        if let Some(Err(error)) = results.last_mut() {
            error.statements_not_run = count - results_count;
        }
        results
    }

    /// Takes the first statements as long as they create applications of different names and can be planned, and
    /// registers these applications together: a script of thousands waits for the disk a few times, not thousands of
    /// times.
    fn create_applications(
        &self,
        tenant: &Tenant,
        statements: &mut Peekable<impl Iterator<Item = (Statement, Position)>>,
    ) -> Vec<Result<StatementResult, ServiceError>> {
        let tables = self.tables.loaded(tenant);
        let (mut names, mut planned, mut positions) = (HashSet::new(), Vec::new(), Vec::new());
        while let Some((Statement::CreateApplication(create), position)) = statements.peek()
            && planned.len() < APPLICATIONS_AT_ONCE
            && !create.if_not_exists
            && create.replaces.is_none()
            && names.insert(create.name.text.clone())
            // A statement that cannot be planned is refused when it is its turn.
            && let Ok(application) = rivulet_sql::plan_application_with(create, &tables)
            // One that reads a stream is checked when those before it are registered.
            && !application.inputs.iter().any(Sources::needs_log)
        {
            planned.push(application);
            positions.push(*position);
            statements.next();
        }
        if planned.is_empty() {
            return Vec::new();
        }
        let answers = self.applications.register_all(tenant, planned).into_iter().zip(positions);
        let answer = |(answer, position): (Result<(Arc<Running>, bool), ServiceError>, Position)| match answer {
            Ok((running, is_new)) => Ok(registered(&running, is_new)),
            Err(error) => Err(error.or_at(position)),
        };
        answers.map(answer).collect()
    }

    /// Runs one statement.
    pub(super) fn execute_statement(
        &self,
        permit: &Permit,
        statement: Statement,
    ) -> Result<StatementResult, ServiceError> {
        let tenant = permit.tenant();
        let full = |name: &Name| tenant.named(&name.text);
        match statement {
            Statement::CreateApplication(create) => {
                let name = create.name.text.clone();
                if create.if_not_exists && self.applications.info(&full(&create.name)).is_ok() {
                    return Ok(said(format!("application {name} exists, nothing was done")));
                }
                let application = rivulet_sql::plan_application_with(&create, &self.tables.loaded(tenant))
                    .map_err(ServiceError::from)?;
                let checked = self.big_queries.check_application(tenant, &application);
                checked.map_err(|error| at(error, &create.name))?;
                if let Some(wish) = create.replaces {
                    let (running, replacement) =
                        self.replace(tenant, application, wish, None).map_err(|error| at(error, &create.name))?;
                    return Ok(said(running.answer(replacement.text(&name))));
                }
                let (running, is_new) = self.applications.register(tenant, application)?;
                Ok(registered(&running, is_new))
            }
            Statement::CreateTable(create) => {
                let name = create.name.clone();
                let is_there = self.applications.table(&full(&name)).is_ok();
                let done = if create.replaces && is_there { "replaced" } else { "created" };
                if create.if_not_exists && is_there {
                    return Ok(said(format!("table {name} exists, nothing was done")));
                }
                Ok(said(match self.queries.create_table(tenant, *create).map_err(|error| at(error, &name))? {
                    Some(rows) => format!("table {name} {done}, {}", counted(rows as u64, "row")),
                    None => format!("table {name} is there already"),
                }))
            }
            Statement::Checkpoint => {
                let made = self.checkpoint(permit)?;
                Ok(said(format!(
                    "checkpoint {} made: {}, {}, {}, {} ms",
                    made.epoch,
                    counted(made.queries, "query"),
                    counted(made.big_queries, "big query"),
                    counted(made.written_bytes, "byte"),
                    made.duration_ms
                )))
            }
            Statement::ShowCheckpoints => {
                Ok(answers::checkpoints(self.checkpoints.as_ref().map(|checkpoints| checkpoints.status(tenant))))
            }
            Statement::RefreshTable(name) => {
                let table = self.refresh_table(permit, &name.text).map_err(|error| at(error, &name))?;
                Ok(said(format!("table {name} refreshed, {}", counted(table.rows, "row"))))
            }
            Statement::CreateQuery { name, if_not_exists, application, values, label } => {
                if if_not_exists && self.query(permit, &name.text).is_ok() {
                    return Ok(said(format!("query {name} exists, nothing was done")));
                }
                let parameters = parameters_of(&values);
                let request = QueryRequest {
                    name: Some(&name.text),
                    application: &application.text,
                    parameters: &parameters,
                    label: label.as_ref().map(|(text, _)| text.as_str()),
                };
                let answer = self.submit(permit, &[request]).pop().expect("one answer for one request");
                answer.map_err(|error| {
                    // The position of the value that the error names, or of the application's name.
                    match (error.kind, about(&error, &values)) {
                        (ErrorKind::Invalid, Some(parameter)) => at(error, parameter),
                        (ErrorKind::AlreadyExists, _) => at(error, &name),
                        _ => at(error, &application),
                    }
                })?;
                Ok(said(format!("query {name} created")))
            }
            Statement::AlterQuery { name, values, label } => {
                let parameters = parameters_of(&values);
                let change = QueryChange {
                    name: &name.text,
                    parameters: &parameters,
                    label: label.as_ref().map(|label| label.as_ref().map(|(text, _)| text.as_str())),
                    whole_of: None,
                };
                let answer = self.alter(permit, &[change]).pop().expect("one answer for one change");
                let altered = answer.map_err(|error| match about(&error, &values) {
                    Some(parameter) if error.kind == ErrorKind::Invalid => at(error, parameter),
                    _ => at(error, &name),
                })?;
                Ok(said(altered.text(&name.text)))
            }
            Statement::RedirectQuery { name, operators, ratio } => {
                let done = self.big_queries.move_tasks(&full(&name), &operators, ratio);
                Ok(said(format!("query {name}: {}", done.map_err(|error| at(error, &name))?)))
            }
            Statement::ShowBursts { of_workers: true, like, limit } => {
                Ok(answers::burst_workers(self.burst_workers(tenant), like.as_deref(), rows_max(limit)))
            }
            Statement::ShowBursts { like, limit, .. } => {
                Ok(answers::bursts(self.big_queries.bursts(tenant), like.as_deref(), rows_max(limit)))
            }
            Statement::AlterApplication { name, input, options, wish } => {
                self.alter_application(tenant, &name, input.as_ref(), &options, wish).map(said)
            }
            Statement::Show(show) => self.show(permit, show),
            Statement::Describe(kind, name) => self.describe(permit, kind, &name).map_err(|error| at(error, &name)),
            Statement::Drop { kind, name, if_exists, cascade } => {
                let done = match kind {
                    ObjectKind::Application => self.drop_application(permit, &name.text, cascade),
                    ObjectKind::Query => self.drop_query(permit, &name.text),
                    ObjectKind::Table => self.drop_table(permit, &name.text),
                    ObjectKind::Declared(what) => match self.big_queries.drop_declared(tenant, what, &name) {
                        Ok(false) => Err(not_declared(what, &name)),
                        done => done.map(drop),
                    },
                };
                dropped(kind.word(), &name, if_exists, done)
            }
            Statement::DescribeFunction(name) => {
                answers::describe_function(&name.text).map_err(|error| at(error, &name))
            }
            Statement::ShowFunctions { like, limit } => Ok(answers::functions(like.as_deref(), rows_max(limit))),
            Statement::DescribeFile { path, position } => {
                Ok(lines("statement", &self.big_queries.describe_file(tenant, &path, position)?))
            }
            Statement::ExplainApplication(name) => {
                Ok(lines("plan", &self.explain(permit, &name.text).map_err(|error| at(error, &name))?))
            }
            Statement::ExplainCreate(create) => {
                let application = rivulet_sql::plan_application_with(&create, &self.tables.loaded(tenant))
                    .map_err(ServiceError::from)?;
                Ok(lines("plan", &application.explain()))
            }
            Statement::ExplainQuery(name) => {
                if let Some(plan) = self.big_queries.explain(&full(&name)) {
                    return Ok(lines("plan", &plan.map_err(|error| at(error, &name))?));
                }
                let query = self.query(permit, &name.text).map_err(|error| at(error, &name))?;
                let of = format!(
                    "query {} ({}), a slot of application {}\n  reads {}\n  writes {}\n\n",
                    query.name,
                    query.state.name(),
                    query.application,
                    query.input_topic,
                    query.output_topic
                );
                Ok(lines("plan", &(of + &self.explain(permit, &query.application)?)))
            }
            Statement::PauseQuery(name) => {
                self.pause(permit, &name.text).map_err(|error| at(error, &name))?;
                Ok(said(format!("query {name} is paused")))
            }
            Statement::ResumeQuery(name) => {
                let resumed = self.big_queries.resume(&full(&name)).map_err(|error| at(error, &name))?;
                if resumed.is_none() {
                    self.queries.set_paused(&full(&name), false).map_err(|error| at(error, &name))?;
                }
                Ok(said(match resumed {
                    Some(Resumed::FromCheckpoint(epoch)) => {
                        format!("query {name} runs again, from its checkpoint {epoch}")
                    }
                    Some(Resumed::FromTheStart) => format!("query {name} runs again, from the start of its sources"),
                    _ => format!("query {name} runs"),
                }))
            }
            statement @ (Statement::CreateSource(_) | Statement::CreateSink(_) | Statement::CreateView(_)) => {
                self.big_queries.declare(tenant, statement).map(said)
            }
            Statement::CreateBigQuery(create) => {
                let name = create.name.clone();
                if let Some(wish) = create.replaces {
                    let replaced = self.big_queries.replace(tenant, *create, wish).map_err(|error| at(error, &name))?;
                    if replaced.is_changed {
                        self.coordinator.make_behind_upgrade();
                    }
                    let rows = replaced.rows().into_iter().map(|row| row.map(|text| json!(text)).to_vec());
                    let shown = match replaced.is_changed {
                        true => table(&["change", "what"], rows),
                        false => StatementResult::default(),
                    };
                    return Ok(StatementResult { message: Some(replaced.text(&name.text)), ..shown });
                }
                let is_new = self.big_queries.create(tenant, *create).map_err(|error| at(error, &name))?;
                Ok(said(match is_new {
                    true => format!("query {name} created"),
                    false => format!("query {name} exists, nothing was done"),
                }))
            }
            Statement::ExplainBigQuery { query, analyze: false } => {
                Ok(lines("plan", &self.big_queries.explain_text(tenant, &query)?))
            }
            statement @ (Statement::RunQuery(_) | Statement::ExplainBigQuery { analyze: true, .. }) => {
                Err(never_runs(&statement).unwrap_or_else(|| ServiceError::invalid("this statement is not run here")))
            }
            Statement::CreateSecret(create) => self.create_secret(tenant, create),
            Statement::DropSecret { name, if_exists } => {
                dropped("secret", &name, if_exists, self.drop_secret(permit, &name.text))
            }
            Statement::ShowSecrets { like, limit } => Ok(self.show_secrets(tenant, like.as_deref(), limit)),
            Statement::Account(statement) => Ok(answers::account(self.account(permit, &statement)?)),
        }
    }

    /// Gives inputs of an application other options, which makes a new version of it.
    fn alter_application(
        &self,
        tenant: &Tenant,
        name: &Name,
        input: Option<&Name>,
        options: &[(Name, Literal, Position)],
        wish: StateWish,
    ) -> Result<String, ServiceError> {
        let running = self.applications.find(&tenant.named(&name.text)).map_err(|error| at(error, name))?;
        let before = &running.application;
        if before.kind != rivulet_sql::SQL {
            let message = format!("the application '{}' is not written in SQL", before.name);
            return Err(at(ServiceError::new(ErrorKind::Conflict, message), name));
        }
        let text = rivulet_sql::with_input_options(&before.text(), input, options)?;
        // An error in an option is reported with its position in this statement.
        let planned = rivulet_sql::parse_application(&text)
            .and_then(|create| rivulet_sql::plan_application_with(&create, &self.tables.loaded(tenant)));
        let application = planned.map_err(|error| {
            let option = rivulet_sql::option_at(&text, &error, options);
            at(ServiceError { hint: error.hint, ..ServiceError::invalid(error.message) }, option.unwrap_or(name))
        })?;
        // The text that this was made from may have been replaced by now, which must not be undone.
        let (running, replacement) = self.replace(tenant, application, wish, Some(&running)).map_err(|error| {
            let allowing = |hint: String| match hint.find("CREATE OR REPLACE APPLICATION") {
                Some(place) => {
                    format!("{}ALTER APPLICATION {name} SET (...) WITH (state => 'discard')", &hint[..place])
                }
                None => hint,
            };
            at(ServiceError { hint: error.hint.map(allowing), line: None, column: None, ..error }, name)
        })?;
        Ok(match replacement.is_changed {
            true => running.answer(replacement.text(&running.application.name)),
            false => format!("application {name} has these options already, nothing was done"),
        })
    }

    /// Lists what there is of a kind.
    fn show(&self, permit: &Permit, show: Show) -> Result<StatementResult, ServiceError> {
        let tenant = permit.tenant();
        let limit = rows_max(show.limit);
        let is_like = |name: &str| show.like.as_ref().is_none_or(|pattern| like::like(name, pattern));
        Ok(match show.kind {
            ObjectKind::Application => {
                let columns = ["name", "state", "queries_running", "queries_paused", "input", "output", "id"];
                let row = |one: ApplicationInfo| {
                    vec![
                        json!(one.name),
                        json!(one.state()),
                        json!(one.queries_running),
                        json!(one.queries_paused),
                        json!(one.input_topic),
                        json!(one.output_topic),
                        json!(one.id.get(..12).unwrap_or(&one.id)),
                    ]
                };
                let rows = self.applications(permit).into_iter().filter(|one| is_like(&one.name));
                first(limit, &columns, rows.map(row))
            }
            ObjectKind::Table => {
                let row = |one: TableInfo| {
                    vec![json!(one.name), json!(one.state()), json!(one.rows), json!(one.bytes), json!(one.file)]
                };
                let rows = self.tables(permit).into_iter().filter(|one| is_like(&one.name));
                first(limit, &["name", "state", "rows", "bytes", "file"], rows.map(row))
            }
            ObjectKind::Declared(what) => {
                let rows = self.big_queries.declared(tenant, what).into_iter().filter(|(name, _)| is_like(name));
                let Some(direction) = direction(what) else {
                    let row = |(name, text)| vec![json!(name), json!(text)];
                    return Ok(first(limit, &["name", "sql"], rows.map(row)));
                };
                let row = |(name, address): (String, String)| {
                    let state = self.big_queries.health_of_end(direction, &tenant.named(&name)).0;
                    vec![json!(name), json!(address), json!(state.map(|state| state.name()))]
                };
                first(limit, &["name", "address", "state"], rows.map(row))
            }
            ObjectKind::Query => self.show_queries(permit, show)?,
        })
    }

    fn show_queries(&self, permit: &Permit, show: Show) -> Result<StatementResult, ServiceError> {
        let tenant = permit.tenant();
        if let Some(application) = &show.application {
            self.applications.info(&tenant.named(&application.text)).map_err(|error| at(error, application))?;
        }
        let limit = rows_max(show.limit);
        if limit > QUERIES_PAGE_MAX {
            return Err(ServiceError::invalid(format!(
                "LIMIT is {limit}, and SHOW QUERIES gives {QUERIES_PAGE_MAX} rows at most"
            ))
            .with_hint(format!("`rivulet query list --limit {limit}` goes on from page to page")));
        }
        // One row more, to find out whether there are more.
        let Show { like, label, .. } = show;
        let application = show.application.map(|name| name.text);
        let filter = QueryFilter { application, like, label, after: None, limit: limit + 1 };
        let rows = self.queries(permit, &filter).into_iter().map(|one| {
            let (application, parameters) = match one.big {
                Some(_) => (Value::Null, Value::Null),
                None => (json!(one.application), Value::Object(one.parameters)),
            };
            vec![json!(one.name), application, json!(one.state.name()), parameters]
        });
        let mut shown = first(limit, &["name", "application", "state", "parameters"], rows);
        if shown.message.is_some() {
            // The number of further rows is known only if all queries are meant.
            let are_all = filter.application.is_none() && filter.like.is_none() && filter.label.is_none();
            shown.message = match are_all.then(|| self.queries.state.lock().queries(tenant).saturating_sub(limit)) {
                Some(count) => more(count),
                None => Some("and more; LIMIT says how many are shown".into()),
            };
        }
        Ok(shown)
    }

    fn describe(&self, permit: &Permit, kind: ObjectKind, name: &Name) -> Result<StatementResult, ServiceError> {
        let what = match kind {
            ObjectKind::Application => return self.application(permit, &name.text).map(describe_application),
            ObjectKind::Query => return self.describe_query(permit, &name.text, false).map(describe_query),
            ObjectKind::Table => return self.table(permit, &name.text).map(describe_table),
            ObjectKind::Declared(what) => what,
        };
        let full_name = permit.tenant().named(&name.text);
        let one = self.big_queries.describe_declared(what, &full_name).ok_or_else(|| not_declared(what, name))?;
        let mut rows = vec![vec![json!("name"), json!(name.text)]];
        rows.extend(one.problem.map(|problem| vec![json!("problem"), json!(problem)]));
        rows.extend(one.address.map(|address| vec![json!("address"), json!(address)]));
        if let Some(direction) = direction(what) {
            let (state, of_queries) = self.big_queries.health_of_end(direction, &full_name);
            rows.extend(state.map(|state| vec![json!("state"), json!(state.name())]));
            rows.extend(of_queries.into_iter().map(|(query, text)| vec![json!(format!("query {query}")), json!(text)]));
        }
        rows.push(vec![json!("needed by"), json!(one.needed_by.join(", "))]);
        rows.extend(one.warnings.into_iter().map(|warning| vec![json!("warning"), json!(warning)]));
        rows.extend(
            one.columns.into_iter().map(|(name, data_type)| vec![json!(format!("column {name}")), json!(data_type)]),
        );
        rows.push(vec![json!("sql"), json!(one.text)]);
        Ok(table(&["property", "value"], rows.into_iter()))
    }
}

/// The answer to the DROP of what `word` says.
fn dropped(
    word: &str,
    name: &Name,
    if_exists: bool,
    done: Result<(), ServiceError>,
) -> Result<StatementResult, ServiceError> {
    match done {
        Err(error) if if_exists && error.kind == ErrorKind::NotFound => {
            Ok(said(format!("there is no {word} {name}, nothing was done")))
        }
        done => done.map(|()| said(format!("{word} {name} dropped"))).map_err(|error| at(error, name)),
    }
}

/// Why a server never runs a statement; `None` if it does. Nothing of a script with such a statement is run.
fn never_runs(statement: &Statement) -> Option<ServiceError> {
    let (message, hint) = match statement {
        Statement::RunQuery(query) if query.sink.is_some() => (
            "a query that goes on needs a name on a server",
            "write CREATE QUERY name AS INSERT INTO ..., or run the script with `rivulet run`",
        ),
        Statement::RunQuery(_) => (
            "a script on a server has no SELECT that writes nowhere",
            "send the SELECT alone: `rivulet sql` shows its rows as they come, and POST /api/v1/select gives them; or \
             write CREATE QUERY name AS SELECT ... INTO sink",
        ),
        Statement::ExplainBigQuery { analyze: true, .. } => (
            "EXPLAIN ANALYZE runs the query, which a server does not do",
            "run it with `rivulet run`; what the operators of a running query do is shown by `rivulet status --operators`",
        ),
        _ => return None,
    };
    Some(ServiceError::invalid(message).with_hint(hint))
}

/// The one of several given values that an error is about, or names.
fn about<'v>(error: &ServiceError, values: &'v [(Name, Literal, Position)]) -> Option<&'v Name> {
    let mut names = values.iter().map(|(name, ..)| name);
    match &error.parameter {
        Some(parameter) => names.find(|name| name.text == *parameter),
        None => names.find(|name| error.message.contains(&format!("'{name}'"))),
    }
}

/// The direction of the rows; a view has none.
fn direction(what: Declared) -> Option<Direction> {
    match what {
        Declared::Source => Some(Direction::Source),
        Declared::Sink => Some(Direction::Sink),
        Declared::View => None,
    }
}

fn not_declared(what: Declared, name: &Name) -> ServiceError {
    let word = what.word();
    at(ServiceError::not_found(format!("there is no {word} '{name}'")), name)
        .with_hint(format!("SHOW {}S lists them", word.to_uppercase()))
}

fn at(error: ServiceError, name: &Name) -> ServiceError {
    error.or_at(name.position)
}
