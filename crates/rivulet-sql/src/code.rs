//! Applications in SQL: what their code answers to the engine.

use arrow::array::RecordBatch;

use crate::application::{Application, ApplicationCode, BindError};
use crate::explain::explain;
use crate::plan::{BoundCheck, LengthCheck};

/// The kind of applications in SQL; what the catalog keeps of them is the statement.
pub const SQL: &str = "sql";

/// The code of an application in SQL.
pub(crate) struct SqlCode {
    /// Whether results come from windows, in the words of `EXPLAIN`; for example `tumble(ts, $width)`.
    pub(crate) window: Option<String>,
    /// Whether rows equal to the last one are held back (`EMIT ON CHANGE`).
    pub(crate) emit_on_change: bool,
    pub(crate) checks: Vec<LengthCheck>,
    pub(crate) bound_checks: Vec<BoundCheck>,
    /// What each operator of the dataflow does for all queries, in SQL.
    pub(crate) steps: Vec<Vec<String>>,
}

impl ApplicationCode for SqlCode {
    /// The lengths of windows must be positive and fit each other, and bounds of joins must have a length.
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
}
