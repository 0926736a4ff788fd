//! Conversion between text and its meaning: single statements, constants and parameter values.

use std::borrow::Cow;

use rivulet_connectors::formats::FormatError;
use rivulet_operators::application::{Application, FormatSpec, Literal, Tables};
use rivulet_sql::{CreateTable, Outdated, StateWish, Statement, Stored};

use crate::service::{ErrorKind, Parameter, ParameterValue, ServiceError};

/// Plans the only `CREATE APPLICATION` in a text. Returns also whether the text says that it replaces the application
/// of its name.
pub(super) fn plan_new(sql: &str, tables: &Tables) -> Result<(Application, Option<StateWish>), ServiceError> {
    match only_statement(sql)? {
        Some(Statement::CreateApplication(create)) => {
            let application = rivulet_sql::plan_application_with(&create, tables).map_err(ServiceError::from)?;
            Ok((application, create.replaces))
        }
        _ => Err(ServiceError::invalid("expected the text of one CREATE APPLICATION")
            .with_hint("a script of several statements is for `rivulet sql FILE`")),
    }
}

/// The only statement of a text.
pub(super) fn only_statement(sql: &str) -> Result<Option<Statement>, ServiceError> {
    let mut statements = rivulet_sql::statements(sql);
    let first = statements.next().transpose()?;
    let second = statements.next().transpose()?;
    Ok(first.map(|(statement, _)| statement).filter(|_| second.is_none()))
}

/// Reads a table's statement from the catalog. Returns also which parts of its text have a newer spelling.
pub(super) fn stored_table(sql: &str) -> Result<(CreateTable, Vec<Outdated>), ServiceError> {
    let Stored { statement, outdated, .. } = rivulet_sql::parse_stored(sql)?;
    match statement {
        Statement::CreateTable(create) => Ok((*create, outdated)),
        _ => Err(ServiceError::invalid("expected the text of one CREATE TABLE")),
    }
}

/// Reads the only `CREATE TABLE` in a text.
pub(super) fn parse_table(sql: &str) -> Result<CreateTable, ServiceError> {
    match only_statement(sql)? {
        Some(Statement::CreateTable(create)) => Ok(*create),
        _ => Err(ServiceError::invalid("expected the text of one CREATE TABLE")
            .with_hint("a script of several statements is for `rivulet sql FILE`")),
    }
}

pub(crate) fn format_error(error: &FormatError, spec: &FormatSpec) -> ServiceError {
    ServiceError::from_text(ErrorKind::Invalid, &error.to_string()).at_place(spec.position)
}

/// A constant as the catalog keeps it: intervals and timestamps as text that reads back as the same value.
fn as_written(literal: &Literal) -> ParameterValue<'_> {
    match literal {
        Literal::Null => ParameterValue::Null,
        Literal::Boolean(value) => ParameterValue::Bool(*value),
        Literal::Integer(value) => ParameterValue::Int(*value),
        Literal::Float(value) => ParameterValue::Float(*value),
        Literal::Text(value) => ParameterValue::Text(Cow::Borrowed(value)),
        Literal::Interval(_) | Literal::Timestamp(_) | Literal::Secret(_) => {
            ParameterValue::Text(Cow::Owned(literal.plain_text()))
        }
    }
}

/// Parameter values given in SQL, as the catalog and the API know them.
pub(super) fn parameters_of(values: &[(rivulet_sql::Name, Literal, rivulet_sql::Position)]) -> Vec<Parameter<'_>> {
    values.iter().map(|(name, literal, _)| (name.text.as_str().into(), as_written(literal))).collect()
}
