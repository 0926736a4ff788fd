//! SQL scripts: each statement becomes a call of the engine, and its answer a small table.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use rivulet_connectors::formats::FormatError;
use rivulet_sql::{Application, CreateTable, FormatSpec, Literal, Name, Position, SqlError, Statement, Tables};
use serde_json::{Value, json};

use super::submit::parameters_of;
use super::{Engine, Running};
use crate::service::{
    ApplicationInfo, ErrorKind, ParameterValue, QUERIES_PAGE_MAX, QueryFilter, QueryInfo, QueryRequest, Service,
    ServiceError, StatementResult, TableInfo,
};

/// How many applications are registered together.
const APPLICATIONS_AT_ONCE: usize = 1_000;

/// How many rows `SHOW` gives without a `LIMIT`.
const SHOW_ROWS_DEFAULT: usize = 100;

/// Plans the one `CREATE APPLICATION` in a text.
pub(super) fn plan(sql: &str, tables: &Tables) -> Result<Application, ServiceError> {
    let mut statements = rivulet_sql::parse_script(sql).map_err(sql_error)?;
    match (statements.len(), statements.pop()) {
        (1, Some((Statement::CreateApplication(create), _))) => {
            rivulet_sql::plan_application_with(&create, tables).map_err(sql_error)
        }
        _ => Err(ServiceError::invalid("expected the text of one CREATE APPLICATION")
            .with_hint("a script of several statements is for `rivulet sql FILE`")),
    }
}

/// Reads the one `CREATE TABLE` in a text.
pub(super) fn parse_table(sql: &str) -> Result<CreateTable, ServiceError> {
    let mut statements = rivulet_sql::parse_script(sql).map_err(sql_error)?;
    match (statements.len(), statements.pop()) {
        (1, Some((Statement::CreateTable(create), _))) => Ok(*create),
        _ => Err(ServiceError::invalid("expected the text of one CREATE TABLE")
            .with_hint("a script of several statements is for `rivulet sql FILE`")),
    }
}

pub(super) fn sql_error(error: SqlError) -> ServiceError {
    let refused = ServiceError::invalid(error.message).at(error.line, error.column);
    match error.hint {
        Some(hint) => refused.with_hint(hint),
        None => refused,
    }
}

pub(super) fn format_error(error: &FormatError, spec: &FormatSpec) -> ServiceError {
    ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).at(spec.position.line, spec.position.column)
}

/// A constant as the catalog keeps it: intervals and timestamps as text that reads back as the same value.
pub(super) fn as_written(literal: &Literal) -> ParameterValue<'_> {
    match literal {
        Literal::Null => ParameterValue::Null,
        Literal::Boolean(value) => ParameterValue::Bool(*value),
        Literal::Integer(value) => ParameterValue::Int(*value),
        Literal::Float(value) => ParameterValue::Float(*value),
        Literal::Text(value) => ParameterValue::Text(Cow::Borrowed(value)),
        Literal::Interval(_) | Literal::Timestamp(_) => ParameterValue::Text(Cow::Owned(literal_text(literal))),
    }
}

/// A constant as plain text.
pub(super) fn literal_text(literal: &Literal) -> String {
    match literal {
        Literal::Null => String::new(),
        Literal::Boolean(value) => value.to_string(),
        Literal::Integer(value) => value.to_string(),
        Literal::Float(value) => value.to_string(),
        Literal::Text(value) => value.clone(),
        Literal::Interval(value) => rivulet_sql::interval_text(*value),
        Literal::Timestamp(us) => {
            let array = arrow::array::TimestampMicrosecondArray::from(vec![*us]);
            arrow::util::display::array_value_to_string(&array, 0).unwrap_or_else(|_| us.to_string())
        }
    }
}

fn registered(running: &Running, is_new: bool) -> StatementResult {
    let name = &running.application.name;
    said(match is_new {
        true => format!("application {name} created"),
        false => format!("application {name} is registered already"),
    })
}

impl Engine {
    /// Runs a script; one result for each statement, stopping at the first error.
    pub(super) fn execute_script(&self, script: &str) -> Vec<Result<StatementResult, ServiceError>> {
        let statements = match rivulet_sql::parse_script(script) {
            Ok(statements) => statements,
            Err(error) => return vec![Err(sql_error(error))],
        };
        let mut results = Vec::with_capacity(statements.len());
        let mut statements = VecDeque::from(statements);
        loop {
            let applications = self.create_applications(&mut statements);
            let has_failed = applications.last().is_some_and(Result::is_err);
            results.extend(applications);
            if has_failed {
                break;
            }
            let Some((statement, position)) = statements.pop_front() else { break };
            let result = self.execute_statement(statement).map_err(|error| match error.line {
                Some(_) => error,
                None => error.at(position.line, position.column),
            });
            let failed = result.is_err();
            results.push(result);
            if failed {
                break;
            }
        }
        results
    }

    /// Takes the statements at the front that create applications of different names, as far as they can be planned, and
    /// registers those together: a script of thousands waits for the disk a few times, not thousands of times.
    fn create_applications(
        &self,
        statements: &mut VecDeque<(Statement, Position)>,
    ) -> Vec<Result<StatementResult, ServiceError>> {
        let tables = self.known_tables();
        let (mut names, mut planned, mut positions) = (HashSet::new(), Vec::new(), Vec::new());
        while let Some((Statement::CreateApplication(create), position)) = statements.front()
            && planned.len() < APPLICATIONS_AT_ONCE
            && !create.if_not_exists
            && names.insert(create.name.text.clone())
            // What cannot be planned is refused when it is its turn.
            && let Ok(application) = rivulet_sql::plan_application_with(create, &tables)
        {
            planned.push(application);
            positions.push(*position);
            statements.pop_front();
        }
        if planned.is_empty() {
            return Vec::new();
        }
        let answers = self.register_all(planned).into_iter().zip(positions);
        let answer = |(answer, position): (Result<(Arc<Running>, bool), ServiceError>, Position)| match answer {
            Ok((running, is_new)) => Ok(registered(&running, is_new)),
            Err(error) if error.line.is_none() => Err(error.at(position.line, position.column)),
            Err(error) => Err(error),
        };
        answers.map(answer).collect()
    }

    fn execute_statement(&self, statement: Statement) -> Result<StatementResult, ServiceError> {
        match statement {
            Statement::CreateApplication(create) => {
                let name = create.name.text.clone();
                if create.if_not_exists && self.application(&name).is_ok() {
                    return Ok(said(format!("application {name} exists, nothing was done")));
                }
                let (running, is_new) = self
                    .register(rivulet_sql::plan_application_with(&create, &self.known_tables()).map_err(sql_error)?)?;
                Ok(registered(&running, is_new))
            }
            Statement::CreateTable(create) => {
                let name = create.name.clone();
                if create.if_not_exists && self.table(&name.text).is_ok() {
                    return Ok(said(format!("table {name} exists, nothing was done")));
                }
                Ok(said(match self.register_table(*create).map_err(|error| at(error, &name))? {
                    Some(rows) => format!("table {name} created, {rows} rows"),
                    None => format!("table {name} is there already"),
                }))
            }
            Statement::RefreshTable(name) => {
                let rows = self.load_again(&name.text).map_err(|error| at(error, &name))?;
                Ok(said(format!("table {name} refreshed, {rows} rows")))
            }
            Statement::DropTable { name, if_exists } => match self.drop_table(&name.text) {
                Err(error) if if_exists && error.kind == ErrorKind::NotFound => {
                    Ok(said(format!("there is no table {name}, nothing was done")))
                }
                result => result.map(|()| said(format!("table {name} dropped"))).map_err(|error| at(error, &name)),
            },
            Statement::ShowTables { like, limit } => {
                let limit = limit.map_or(SHOW_ROWS_DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
                let is_like =
                    |one: &TableInfo| like.as_ref().is_none_or(|pattern| super::registry::like(&one.name, pattern));
                let row = |one: TableInfo| {
                    vec![json!(one.name), json!(one.state()), json!(one.rows), json!(one.bytes), json!(one.file)]
                };
                let columns = ["name", "state", "rows", "bytes", "file"];
                Ok(table(&columns, self.tables().into_iter().filter(is_like).take(limit).map(row)))
            }
            Statement::DescribeTable(name) => {
                Ok(describe_table(self.table(&name.text).map_err(|error| at(error, &name))?))
            }
            Statement::CreateQuery { name, if_not_exists, application, values } => {
                if if_not_exists && self.query(&name.text).is_ok() {
                    return Ok(said(format!("query {name} exists, nothing was done")));
                }
                let parameters = parameters_of(&values);
                let request =
                    QueryRequest { name: Some(&name.text), application: &application.text, parameters: &parameters };
                let answer = self.submit(&[request]).pop().expect("one answer for one request");
                answer.map_err(|error| {
                    // The position of the value that the error speaks of, or of the application's name.
                    let about = values.iter().find(|(parameter, ..)| error.message.contains(&format!("'{parameter}'")));
                    match (error.kind, about) {
                        (ErrorKind::Invalid, Some((parameter, ..))) => at(error, parameter),
                        (ErrorKind::AlreadyExists, _) => at(error, &name),
                        _ => at(error, &application),
                    }
                })?;
                Ok(said(format!("query {name} created")))
            }
            Statement::ShowApplications { like, limit } => {
                let limit = limit.map_or(SHOW_ROWS_DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
                let rows = self
                    .applications()
                    .into_iter()
                    .filter(|one| like.as_ref().is_none_or(|pattern| super::registry::like(&one.name, pattern)));
                Ok(table(
                    &["name", "state", "queries_running", "queries_paused", "input", "output", "id"],
                    rows.take(limit).map(|one| {
                        vec![
                            json!(one.name),
                            json!(one.state()),
                            json!(one.queries_running),
                            json!(one.queries_paused),
                            json!(one.input_topic),
                            json!(one.output_topic),
                            json!(one.id.get(..12).unwrap_or(&one.id)),
                        ]
                    }),
                ))
            }
            Statement::ShowQueries { application, like, limit } => {
                if let Some(application) = &application {
                    self.application(&application.text).map_err(|error| at(error, application))?;
                }
                let limit = limit.map_or(SHOW_ROWS_DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
                if limit > QUERIES_PAGE_MAX {
                    return Err(ServiceError::invalid(format!(
                        "LIMIT is {limit}, and SHOW QUERIES gives {QUERIES_PAGE_MAX} rows at most"
                    ))
                    .with_hint(format!("`rivulet query list --limit {limit}` goes on from page to page")));
                }
                let filter = QueryFilter { application: application.map(|name| name.text), like, after: None, limit };
                Ok(table(
                    &["name", "application", "state", "parameters"],
                    self.queries(&filter).into_iter().map(|one| {
                        let parameters = Value::Object(one.parameters);
                        vec![json!(one.name), json!(one.application), json!(one.state.name()), parameters]
                    }),
                ))
            }
            Statement::DescribeApplication(name) => {
                Ok(describe_application(self.application(&name.text).map_err(|error| at(error, &name))?))
            }
            Statement::DescribeQuery(name) => {
                Ok(describe_query(self.query(&name.text).map_err(|error| at(error, &name))?))
            }
            Statement::ExplainApplication(name) => {
                Ok(lines("plan", &self.explain(&name.text).map_err(|error| at(error, &name))?))
            }
            Statement::ExplainCreate(create) => {
                let application =
                    rivulet_sql::plan_application_with(&create, &self.known_tables()).map_err(sql_error)?;
                Ok(lines("plan", &rivulet_sql::explain(&application)))
            }
            Statement::ExplainQuery(name) => {
                let query = self.query(&name.text).map_err(|error| at(error, &name))?;
                let of = format!(
                    "query {} ({}), a slot of application {}\n  reads {}\n  writes {}\n\n",
                    query.name,
                    query.state.name(),
                    query.application,
                    query.input_topic,
                    query.output_topic
                );
                Ok(lines("plan", &(of + &self.explain(&query.application)?)))
            }
            Statement::PauseQuery(name) => {
                self.pause(&name.text).map_err(|error| at(error, &name))?;
                Ok(said(format!("query {name} is paused")))
            }
            Statement::ResumeQuery(name) => {
                self.resume(&name.text).map_err(|error| at(error, &name))?;
                Ok(said(format!("query {name} runs")))
            }
            Statement::DropQuery { name, if_exists } => match self.drop_query(&name.text) {
                Err(error) if if_exists && error.kind == ErrorKind::NotFound => {
                    Ok(said(format!("there is no query {name}, nothing was done")))
                }
                result => result.map(|()| said(format!("query {name} dropped"))).map_err(|error| at(error, &name)),
            },
            Statement::DropApplication { name, if_exists, cascade } => {
                match self.drop_application(&name.text, cascade) {
                    Err(error) if if_exists && error.kind == ErrorKind::NotFound => {
                        Ok(said(format!("there is no application {name}, nothing was done")))
                    }
                    result => {
                        result.map(|()| said(format!("application {name} dropped"))).map_err(|error| at(error, &name))
                    }
                }
            }
        }
    }
}

fn at(error: ServiceError, name: &Name) -> ServiceError {
    match error.line {
        Some(_) => error,
        None => error.at(name.position.line, name.position.column),
    }
}

fn said(message: String) -> StatementResult {
    StatementResult { message: Some(message), ..StatementResult::default() }
}

fn table(columns: &[&str], rows: impl Iterator<Item = Vec<Value>>) -> StatementResult {
    StatementResult {
        columns: columns.iter().map(|&name| name.to_owned()).collect(),
        rows: rows.collect(),
        message: None,
    }
}

fn lines(column: &str, text: &str) -> StatementResult {
    table(&[column], text.lines().map(|line| vec![json!(line)]))
}

fn describe_application(one: ApplicationInfo) -> StatementResult {
    let mut rows = vec![
        vec![json!("name"), json!(one.name)],
        vec![json!("id"), json!(one.id)],
        vec![json!("state"), json!(one.state())],
        vec![json!("input"), json!(one.input_topic)],
        vec![json!("output"), json!(one.output_topic)],
        vec![json!("queries"), json!(one.queries())],
    ];
    for parameter in one.parameters {
        let default = parameter.default.map_or_else(|| "required".to_owned(), |default| format!("DEFAULT {default}"));
        rows.push(vec![
            json!(format!("parameter {}", parameter.name)),
            json!(format!("{} {default}", parameter.data_type)),
        ]);
    }
    rows.push(vec![json!("sql"), json!(one.sql)]);
    table(&["property", "value"], rows.into_iter())
}

fn describe_table(one: TableInfo) -> StatementResult {
    let mut rows = vec![
        vec![json!("name"), json!(one.name)],
        vec![json!("state"), json!(one.state())],
        vec![json!("file"), json!(one.file)],
        vec![json!("rows"), json!(one.rows)],
        vec![json!("bytes"), json!(one.bytes)],
        vec![json!("applications"), json!(one.applications.join(", "))],
    ];
    for (name, data_type) in one.columns {
        rows.push(vec![json!(format!("column {name}")), json!(data_type)]);
    }
    rows.push(vec![json!("sql"), json!(one.sql)]);
    table(&["property", "value"], rows.into_iter())
}

fn describe_query(one: QueryInfo) -> StatementResult {
    let mut rows = vec![
        vec![json!("name"), json!(one.name)],
        vec![json!("id"), json!(one.id)],
        vec![json!("application"), json!(one.application)],
        vec![json!("state"), json!(one.state.name())],
        vec![json!("input"), json!(one.input_topic)],
        vec![json!("output"), json!(one.output_topic)],
    ];
    for (name, value) in one.parameters {
        rows.push(vec![json!(format!("parameter {name}")), value]);
    }
    table(&["property", "value"], rows.into_iter())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::IntervalMonthDayNano;

    use super::*;

    #[test]
    fn intervals_are_kept_as_text_that_reads_back_as_the_same_value() {
        for (months, days, nanoseconds) in
            [(0, 0, 90_000_000_000), (1, 2, 1), (0, -3, -500_000_000), (0, 0, -1_500_000_000), (0, 0, 0)]
        {
            let value = IntervalMonthDayNano::new(months, days, nanoseconds);
            let text = literal_text(&Literal::Interval(value));
            let array = arrow::array::StringArray::from(vec![text.as_str()]);
            let read = arrow::compute::cast(
                &array,
                &arrow::datatypes::DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano),
            )
            .unwrap();
            let read = arrow::array::AsArray::as_primitive::<arrow::datatypes::IntervalMonthDayNanoType>(&read);
            assert_eq!(read.value(0), value, "{text}");
        }
    }
}
