//! What an application in SQL answers to the engine.

use arrow::array::RecordBatch;

use super::join_bounds::BoundCheck;
use super::window::LengthCheck;
use crate::application::{Application, ApplicationCode, BindError};
use crate::explain::explain;

/// The kind of applications in SQL. The catalog keeps their statement.
pub const SQL: &str = "sql";

/// The code of an application in SQL.
pub(super) struct SqlCode {
    /// The window that results come from, if any, in the words of `EXPLAIN`; for example `tumble(ts, $width)`.
    pub(super) window: Option<String>,
    /// Whether a row equal to the last one is held back (`EMIT ON CHANGE`).
    pub(super) emit_on_change: bool,
    pub(super) checks: Vec<LengthCheck>,
    pub(super) bound_checks: Vec<BoundCheck>,
    /// What each operator of the dataflow does for all queries, in SQL.
    pub(super) steps: Vec<Vec<String>>,
    /// The same, derived from the plan: texts that mean the same have equal meanings.
    pub(super) meanings: Vec<Vec<String>>,
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
        explain(application, self.window.as_deref(), self.emit_on_change, &self.steps)
    }

    fn steps(&self, place: usize) -> &[String] {
        &self.steps[place]
    }

    fn meaning(&self, place: usize) -> &[String] {
        &self.meanings[place]
    }
}
