//! Computes the answers of the queries that are compared with another engine again, with DuckDB: `cargo xtask oracle`.

mod duckdb;

use std::error::Error;
use std::fs;
use std::path::Path;

use rivulet_testing::Answer;
use rivulet_testing::comparison::{comparisons, write_files};

fn main() -> Result<(), Box<dyn Error>> {
    let data =
        Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is")).join("comparison");
    let work = std::env::temp_dir().join(format!("rivulet-comparison-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    write_files(&work)?;
    let folder = work.display().to_string();
    let mut script = fs::read_to_string(data.join("setup.sql"))?.replace("{folder}", &folder);
    for comparison in comparisons() {
        script.push_str(&duckdb::copy(comparison.oracle, work.join(comparison.key()).display()));
    }
    duckdb::run(&script)?;
    let mut answers = String::new();
    for comparison in comparisons() {
        let key = comparison.key();
        answers.push_str(&Answer::of_text(&fs::read_to_string(work.join(&key))?).section(&key));
    }
    fs::write(data.join("answers.txt"), answers)?;
    fs::remove_dir_all(&work)?;
    Ok(())
}
