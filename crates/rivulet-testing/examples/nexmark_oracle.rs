//! Computes the known answers of the NEXMark queries again, with DuckDB: `cargo xtask oracle`.
//!
//! Writes each corpus to files, has DuckDB answer all queries over them, twice, with the rows in two different orders,
//! and writes `answers/`. An answer that depends on the order of rows cannot be compared with and is an error
//! here.

mod duckdb;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use rivulet_bench::nexmark::{FileFormat, QUERIES, write_side_input, write_stream};
use rivulet_testing::Answer;
use rivulet_testing::corpus::{CORPORA, Corpus};

fn main() -> Result<(), Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let work = std::env::temp_dir().join(format!("rivulet-oracle-{}", std::process::id()));
    for corpus in &CORPORA {
        eprintln!("{}: {}", corpus.name, corpus.description);
        let text = answers(corpus, &package.join("oracle"), &work.join(corpus.name))?;
        fs::write(package.join(format!("answers/{}.txt", corpus.name)), text)?;
    }
    fs::remove_dir_all(&work)?;
    Ok(())
}

/// The known answers of all queries over one corpus.
fn answers(corpus: &Corpus, oracle: &Path, folder: &Path) -> Result<String, Box<dyn Error>> {
    write_stream(&corpus.stream(), folder, FileFormat::Csv)?;
    let side_input = folder.join("side_input.csv");
    write_side_input(&side_input)?;
    let setup = fs::read_to_string(oracle.join("setup.sql"))?
        .replace("{folder}", &folder.display().to_string())
        .replace("{side_input}", &side_input.display().to_string());
    let in_time = run(&setup.replace("{order}", "date_time"), oracle, &folder.join("in_time"))?;
    let mixed = run(&setup.replace("{order}", "hash(extra)"), oracle, &folder.join("mixed"))?;
    let mut text = String::new();
    for (query, (first, second)) in QUERIES.iter().zip(in_time.iter().zip(&mixed)) {
        let section = Answer::of_text(&fs::read_to_string(first)?).section(query.name);
        if Answer::of_text(&fs::read_to_string(second)?).section(query.name) != section {
            let name = query.name;
            return Err(format!("the answer of {name} over {} depends on the order of rows", corpus.name).into());
        }
        eprintln!("  {}", section.lines().next().unwrap_or_default());
        text.push_str(&section);
    }
    Ok(text)
}

/// The files with the results of all queries, in their order.
fn run(setup: &str, oracle: &Path, results: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    fs::create_dir_all(results)?;
    let mut script = format!("{setup}\n");
    let mut files = Vec::new();
    for query in &QUERIES {
        let own = oracle.join(format!("{}.sql", query.name));
        let text = if own.is_file() { fs::read_to_string(own)? } else { query.select().to_owned() };
        let file = results.join(query.name);
        script.push_str(&duckdb::copy(&text, file.display()));
        files.push(file);
    }
    duckdb::run(&script)?;
    Ok(files)
}
