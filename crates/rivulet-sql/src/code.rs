//! Applications in SQL: they are made from the text in the catalog.

use crate::application::{Application, CodeLoader, LoadError, ShownOption, Tables};
use crate::shown::{NOT_UNDERSTOOD, shown_application};
use crate::{CreateApplication, Name, Outdated, SqlError, Statement, Stored, parse_stored, plan_application_with};

/// Makes applications from the text of a `CREATE APPLICATION`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SqlLoader;

impl CodeLoader for SqlLoader {
    fn load(&self, bytes: &[u8], tables: &Tables) -> Result<Application, LoadError> {
        let (create, outdated) = read(bytes)?;
        let mut application = plan_application_with(&create, tables)?;
        application.warnings.extend(outdated.iter().map(ToString::to_string));
        Ok(application)
    }

    fn table_names(&self, bytes: &[u8]) -> Vec<String> {
        let text = |name: &Name| name.text.clone();
        let names = |(create, _): (CreateApplication, _)| create.table_names().into_iter().map(text).collect();
        read(bytes).map_or_else(|_| Vec::new(), names)
    }

    fn warnings(&self, bytes: &[u8]) -> Vec<String> {
        read(bytes).map_or_else(|_| Vec::new(), |(_, outdated)| outdated.iter().map(ToString::to_string).collect())
    }

    fn shown(&self, bytes: &[u8], shown: &ShownOption<'_>) -> String {
        text_of(bytes).map_or_else(|_| NOT_UNDERSTOOD.to_owned(), |text| shown_application(text, shown))
    }
}

/// Reads the statement in the catalog. An earlier version may have written it.
fn read(bytes: &[u8]) -> Result<(CreateApplication, Vec<Outdated>), LoadError> {
    let Stored { statement, outdated, .. } = parse_stored(text_of(bytes)?)?;
    match statement {
        Statement::CreateApplication(create) => Ok((*create, outdated)),
        _ => Err(LoadError { message: "expected a CREATE APPLICATION".to_owned(), position: (1, 1), hint: None }),
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, LoadError> {
    let message = || "the statement is not UTF-8".to_owned();
    std::str::from_utf8(bytes).map_err(|_| LoadError { message: message(), position: (0, 0), hint: None })
}

impl From<SqlError> for LoadError {
    fn from(SqlError { message, line, column, hint }: SqlError) -> Self {
        Self { message, position: (line, column), hint }
    }
}
