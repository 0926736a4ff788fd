//! What a measurement of rows found, for machines.

use rivulet_bench::Circumstances;
use serde::Serialize;
use serde_json::{Value, json};

/// The outcomes, or why a server came to no end.
#[derive(Clone, Debug)]
pub struct Report<Row> {
    /// Where and when.
    pub circumstances: Circumstances,
    /// How many queries, where all rows have as many.
    pub queries: Option<u64>,
    /// In the order in which it was done.
    pub rows: Vec<Result<Row, String>>,
}

impl<Row: Serialize> Report<Row> {
    /// A report without rows, of now.
    pub(super) fn begin(queries: Option<u64>) -> Self {
        Self { circumstances: Circumstances::now(), queries, rows: Vec::new() }
    }

    /// The report as one JSON object.
    pub fn to_json(&self) -> Value {
        let row =
            |row: &Result<Row, String>| row.as_ref().map_or_else(|error| json!({ "error": error }), |row| json!(row));
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let mut report = json!({ "circumstances": self.circumstances, "rows": rows });
        if let Some(queries) = self.queries {
            report["queries"] = json!(queries);
        }
        report
    }
}
