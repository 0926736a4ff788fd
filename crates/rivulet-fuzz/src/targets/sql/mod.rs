//! SQL scripts. Each statement is planned or refused, with a place inside the script and in words of SQL; what was read
//! is read again from its own text as the same; what is planned can be explained, and runs over a few rows, however
//! these are cut.

mod applications;
mod queries;

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use rivulet_sql::{
    Application, BigQuery, Literal, Name, ParamValue, ParameterRows, Position, Scope, SqlError, Statement, Table,
    explain_query, parse_script, plan_application, plan_query,
};

use crate::Target;
use crate::rows::BEGIN_US;

/// See the module.
pub const TARGET: Target = Target {
    name: "sql",
    run,
    words: &[
        " SELECT ",
        " FROM ",
        " WHERE ",
        " GROUP BY ",
        " HAVING ",
        " ORDER BY ",
        " LIMIT 3",
        " JOIN ",
        " LEFT JOIN ",
        " ON ",
        " UNION ALL ",
        " WITH x AS (",
        " OVER (PARTITION BY ",
        " QUALIFY ",
        " EMIT ON CHANGE",
        " MATCH_RECOGNIZE (",
        " CASE WHEN ",
        " END",
        " INTERVAL '1 second'",
        " CAST(",
        " AS TEXT)",
        " IN (",
        " BETWEEN ",
        " LIKE '%'",
        " EXISTS (",
        " LATEST(",
        "tumble(",
        "hop(",
        "session(",
        "cumulate(",
        "count_window(",
        "state_window(",
        "WITH m AS (SELECT ",
        "FROM (SELECT ",
        ") AS m ",
        "count(*)",
        "CREATE SECRET s AS 'x'; ",
        " WITH (token => SECRET s)",
        "avg(",
        "sum(",
        "max(",
        "lag(",
        "row_number() OVER (",
        "FILTER (WHERE ",
        "DISTINCT ",
        "$p",
        "$w",
        "'",
        "\"",
        "(",
        ")",
        ",",
        ";",
        "--",
        "/*",
        "*/",
        "::",
        "NULL",
        "9223372036854775808",
        "1e400",
        "-",
        "INSERT INTO ",
        "CREATE VIEW v AS ",
        "CREATE SINK k TO 'file:x' ",
        "EXPLAIN ",
        "TIMESTAMP '2026-01-01'",
        "é",
    ],
    mutations: 400,
};

/// Longer scripts take longer and say nothing new.
const SCRIPT_BYTES_MAX: usize = 8 << 10;

/// What scripts may name.
const PRELUDE: &str = "
    CREATE SOURCE t (ts TIMESTAMP EVENT TIME, d TEXT, v DOUBLE, n BIGINT, ok BOOLEAN) FROM 'file:t.json';
    CREATE SOURCE o (ts TIMESTAMP EVENT TIME, d TEXT, v DOUBLE) FROM 'file:o.json' WITH (lateness => '2 seconds');
    CREATE SOURCE s (d TEXT, v DOUBLE) FROM 'file:s.json';
    CREATE SINK k TO 'file:out/' FORMAT JSON;
    CREATE VIEW w AS SELECT ts, d, v + 1 AS u FROM t WHERE v > 0;";

fn run(bytes: &[u8]) {
    let Ok(script) = std::str::from_utf8(bytes) else { return };
    if script.len() > SCRIPT_BYTES_MAX {
        return;
    }
    let statements = match parse_script(script) {
        Ok(statements) => statements,
        Err(error) => return check_error(&error, script),
    };
    let mut scope = scope();
    let mut applications = Vec::new();
    for (statement, position) in &statements {
        check_position(*position, script);
        if let Err(error) = carry_out(statement, &mut scope, &mut applications) {
            check_error(&error, script);
        }
        check_text(statement);
    }
}

/// Does what a server does with a statement, as far as that is done in memory.
fn carry_out(statement: &Statement, scope: &mut Scope, applications: &mut Vec<Application>) -> Result<(), SqlError> {
    match statement {
        Statement::CreateApplication(create) | Statement::ExplainCreate(create) => {
            let application = plan_application(create)?;
            application.explain();
            if let Some(parameters) = parameters(&application, &usual_values(&application)) {
                applications::run(&application, &parameters);
            }
            applications.push(application);
        }
        Statement::CreateQuery { application, values, .. } => {
            if let Some(application) = applications.iter().find(|known| known.name == application.text)
                && let Some(parameters) = parameters(application, &given_values(values))
            {
                applications::run(application, &parameters);
            }
        }
        Statement::CreateSource(create) => scope.add_source(create.declare(|_, _| None)?)?,
        Statement::CreateSink(create) => scope.add_sink(create.declare()?)?,
        Statement::CreateView(create) => scope.add_view(create)?,
        Statement::CreateBigQuery(create) => run_query(&create.query, scope)?,
        Statement::RunQuery(query) | Statement::ExplainBigQuery { query, .. } => run_query(query, scope)?,
        _ => {}
    }
    Ok(())
}

/// A value for each parameter that has no default.
fn usual_values(application: &Application) -> Vec<(&str, ParamValue<'_>)> {
    let required = application.parameters.iter().filter(|parameter| parameter.default.is_none());
    let values = required.map(|parameter| {
        let value = match &parameter.data_type {
            DataType::Boolean => ParamValue::Boolean(true),
            DataType::Int64 => ParamValue::Integer(2),
            DataType::Float64 => ParamValue::Float(1.5),
            DataType::Timestamp(..) => ParamValue::Timestamp(BEGIN_US),
            DataType::Interval(_) => ParamValue::Text("5 seconds"),
            _ => ParamValue::Text("a"),
        };
        (parameter.name.as_str(), value)
    });
    values.collect()
}

/// Values as they stand in a statement.
fn given_values(values: &[(Name, Literal, Position)]) -> Vec<(&str, ParamValue<'_>)> {
    let given = values.iter().map(|(name, literal, _)| {
        let value = match literal {
            Literal::Null => ParamValue::Null,
            Literal::Boolean(value) => ParamValue::Boolean(*value),
            Literal::Integer(value) => ParamValue::Integer(*value),
            Literal::Float(value) => ParamValue::Float(*value),
            Literal::Text(value) => ParamValue::Text(value),
            Literal::Interval(value) => ParamValue::Interval(*value),
            Literal::Timestamp(time_us) => ParamValue::Timestamp(*time_us),
            Literal::Secret(name) => ParamValue::Text(name),
        };
        (name.text.as_str(), value)
    });
    given.collect()
}

/// The parameters of two queries with these values; `None` where they are refused.
fn parameters(application: &Application, values: &[(&str, ParamValue<'_>)]) -> Option<RecordBatch> {
    let mut rows = ParameterRows::new(application);
    for query in 0..2 {
        if rows.push(values.iter().copied()).is_err() {
            assert_eq!(rows.rows(), query, "a query that is refused leaves nothing");
            return None;
        }
    }
    let rows = rows.finish();
    assert_eq!(rows.num_rows(), 2);
    let checks = application.check(&rows);
    assert_eq!(checks.len(), 2);
    checks.iter().all(Result::is_ok).then_some(rows)
}

fn run_query(query: &BigQuery, scope: &Scope) -> Result<(), SqlError> {
    let plan = plan_query(query, scope)?;
    explain_query(&plan);
    queries::run(&plan);
    Ok(())
}

/// The text of a statement is that statement: it is what the catalog keeps.
fn check_text(statement: &Statement) {
    let text = match statement {
        Statement::CreateApplication(create) => &create.text,
        Statement::CreateTable(create) => &create.text,
        Statement::CreateSource(create) => &create.text,
        Statement::CreateSink(create) => &create.text,
        Statement::CreateView(create) => &create.text,
        Statement::CreateBigQuery(create) => &create.query.text,
        Statement::RunQuery(query) => &query.text,
        _ => return,
    };
    let again = parse_script(text).unwrap_or_else(|error| panic!("{}", error.render(text)));
    let [(again, _)] = &again[..] else { panic!("{} statements in {text}", again.len()) };
    match (statement, again) {
        (Statement::CreateApplication(one), Statement::CreateApplication(other)) => {
            assert_eq!((&one.id, &one.text), (&other.id, &other.text));
        }
        (Statement::CreateTable(one), Statement::CreateTable(other)) => {
            assert_eq!((&one.id, &one.text), (&other.id, &other.text))
        }
        (one, other) => assert_eq!(std::mem::discriminant(one), std::mem::discriminant(other), "{text}"),
    }
}

pub(super) fn check_error(error: &SqlError, script: &str) {
    check_position(Position { line: error.line, column: error.column }, script);
    assert!(!error.message.is_empty());
    // No jargon of the libraries below.
    for word in [
        "Utf8",
        "Int64",
        "Float64",
        "PhysicalExpr",
        "Internal error",
        "Arrow error",
        "This feature is not implemented",
        "This was likely caused by",
    ] {
        assert!(!error.to_string().contains(word) || script.contains(word), "{error}");
    }
    error.render(script);
}

fn check_position(position: Position, script: &str) {
    let line = (position.line as usize).checked_sub(1).and_then(|line| script.split('\n').nth(line));
    let line = line.unwrap_or_else(|| panic!("there is no line {}", position.line));
    let width = line.chars().count();
    assert!(
        (1..=width + 1).contains(&(position.column as usize)),
        "there is no column {} in {line:?}",
        position.column
    );
}

fn scope() -> Scope {
    let mut scope = Scope::new();
    let statements = parse_script(PRELUDE).unwrap_or_else(|error| panic!("{}", error.render(PRELUDE)));
    for (statement, _) in statements {
        carry_out(&statement, &mut scope, &mut Vec::new()).unwrap_or_else(|error| panic!("{}", error.render(PRELUDE)));
    }
    let keys = Arc::new(Int64Array::from(vec![0, 1, 2]));
    let texts = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let rows = RecordBatch::try_from_iter([("key", keys as _), ("value", texts as _)]).expect("columns of one length");
    let name = Name { text: "side_input".into(), position: Position::default() };
    scope.add_table(&name, Arc::new(Table::new("side_input", rows))).expect("the name is free");
    scope
}
