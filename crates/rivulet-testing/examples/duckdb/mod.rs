//! Runs scripts with DuckDB.

use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::process::{Command, Stdio};

/// What runs DuckDB: its Python package, which the script goes into by standard input.
const DUCKDB: [&str; 3] = ["python3", "-c", "import duckdb, sys; duckdb.connect().execute(sys.stdin.read())"];

/// Runs a script to its end.
pub(crate) fn run(script: &str) -> Result<(), Box<dyn Error>> {
    let mut duckdb = Command::new(DUCKDB[0]).args(&DUCKDB[1..]).stdin(Stdio::piped()).spawn()?;
    duckdb.stdin.take().ok_or("DuckDB takes no input")?.write_all(script.as_bytes())?;
    if !duckdb.wait()?.success() {
        return Err("DuckDB failed\nhint: pip install duckdb".into());
    }
    Ok(())
}

/// The statement that writes the answer of a query to a file, as
/// [`Answer::of_text`](rivulet_testing::Answer::of_text) reads it.
pub(crate) fn copy(query: &str, file: impl Display) -> String {
    format!("COPY (\n{query}\n) TO '{file}' (DELIMITER '|', NULLSTR '\\N', HEADER true);\n")
}
