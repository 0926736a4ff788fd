//! Applications in SQL: what their code answers to the engine.

use arrow::array::RecordBatch;

use crate::application::{Application, ApplicationCode, BindError, CodeLoader, LoadError, Tables};
use crate::explain::explain;
use crate::plan::{BoundCheck, LengthCheck};
use crate::{CreateApplication, Outdated, SqlError, Statement, Stored, parse_stored, plan_application_with};

/// The kind of applications in SQL. The catalog keeps their statement.
pub const SQL: &str = "sql";

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
        let names = |(create, _): (CreateApplication, _)| create.table_names().into_iter().map(str::to_owned).collect();
        read(bytes).map_or_else(|_| Vec::new(), names)
    }

    fn warnings(&self, bytes: &[u8]) -> Vec<String> {
        read(bytes).map_or_else(|_| Vec::new(), |(_, outdated)| outdated.iter().map(ToString::to_string).collect())
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

/// The code of an application in SQL.
pub(crate) struct SqlCode {
    /// The window that results come from, if any, in the words of `EXPLAIN`; for example `tumble(ts, $width)`.
    pub(crate) window: Option<String>,
    /// Whether a row equal to the last one is held back (`EMIT ON CHANGE`).
    pub(crate) emit_on_change: bool,
    pub(crate) checks: Vec<LengthCheck>,
    pub(crate) bound_checks: Vec<BoundCheck>,
    /// What each operator of the dataflow does for all queries, in SQL.
    pub(crate) steps: Vec<Vec<String>>,
    /// The same, derived from the plan: texts that mean the same have equal meanings.
    pub(crate) meanings: Vec<Vec<String>>,
}

impl ApplicationCode for SqlCode {
    /// Checks that lengths of windows are positive and fit each other, and that bounds of joins have a length.
    fn check(&self, rows: &RecordBatch) -> Vec<Result<(), BindError>> {
        let mut results = vec![Ok(()); rows.num_rows()];
        for check in &self.checks {
            check.run(rows, &mut results);
        }
        for check in &self.bound_checks {
            check.run(rows, &mut results);
        }
        results
    }

    fn explain(&self, application: &Application) -> String {
        explain(application, self)
    }

    fn steps(&self, place: usize) -> &[String] {
        &self.steps[place]
    }

    fn meaning(&self, place: usize) -> &[String] {
        &self.meanings[place]
    }
}
