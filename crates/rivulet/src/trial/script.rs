//! A script of applications, as a user registers it: tables, applications, and queries of them.

use std::path::Path;

use rivulet_sql::{Statement, parse_script};

use super::Trial;
use crate::service::ServiceError;

/// A trial of a script. Files of tables are looked for beside the script, in `folder`.
///
/// # Errors
/// A statement is refused, or a trial cannot run it. The error has its position.
pub fn of_script(text: &str, folder: &Path) -> Result<Trial, ServiceError> {
    let mut trial = Trial::new()?;
    for (statement, position) in parse_script(text).map_err(ServiceError::from)? {
        let done = match statement {
            Statement::CreateTable(create) => trial.create_table(*create, folder),
            Statement::CreateApplication(create) => trial.create_application(&create),
            Statement::CreateQuery { .. } => trial.create_query(statement, position),
            _ => Err(ServiceError::invalid("an application is tried with its tables and queries, and nothing else")
                .with_hint("leave this statement out; rivulet run runs big queries")),
        };
        done.map_err(|error| error.or_at(position))?;
    }
    Ok(trial)
}
