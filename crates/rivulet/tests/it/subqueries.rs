//! Subqueries in conditions and results: `EXISTS`, `IN`, `ANY`, values, over rows and over aggregates, with every tail,
//! in every place. Each case of `data/subqueries.slt` is a query and what two other engines, DuckDB and SQLite, answer
//! alike over the same rows; or the error by which it is refused.
//!
//! With `RIVULET_UPDATE=1` in the environment a query that is refused gets its error in the place of its answer. An
//! answer is never replaced by another one.

use std::path::Path;

use crate::sql_answers::{answer, files, rows};

/// The rows that the queries are about: keys that are null, keys without rows, values that are null.
const A: &str = "1,1,0 2,,1 3,0,2 4,5,3 5,2,0 ,7,1 6,3,2";
const B: &str = "1,1,4 1,3,2 2,,1 4,0,0 4,5,5 4,5,2 ,2,3 5,,7";

#[test]
#[ignore = "slow"]
fn subqueries_say_what_other_engines_say() {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/data/subqueries.slt");
    let text = std::fs::read_to_string(&path).unwrap();
    let (_folder, sources) = files(&[
        ("a", "id BIGINT, x BIGINT, y BIGINT NOT NULL", A),
        ("b", "id BIGINT, v BIGINT, w BIGINT NOT NULL", B),
    ]);
    let is_updated = std::env::var_os("RIVULET_UPDATE").is_some();
    let (mut updated, mut wrong, mut answered) = (String::new(), Vec::new(), 0);
    for case in text.split_inclusive("\n\n") {
        let Some((query, expected)) = case.trim_end().split_once("\n----") else {
            updated.push_str(case);
            continue;
        };
        let expected: Vec<&str> = expected.lines().skip(1).collect();
        let script = format!("{sources}{}", query.trim_start_matches("query\n"));
        let mut refused = None;
        for parallelism in [1, 3] {
            match answer(&script, parallelism) {
                Ok(found) if rows(&found) == expected && found.refused == 0 => answered += 1,
                Ok(found) => {
                    wrong.push(format!("{query}\nat {parallelism}: {:?}, not {expected:?}", rows(&found)));
                }
                Err(error) => {
                    // The place is that in the query itself.
                    let lines = sources.lines().count();
                    let error = without_sources(&error, lines);
                    if error != expected.join("\n") && !is_updated {
                        wrong.push(format!("{query}\n{error}"));
                    }
                    refused = Some(error);
                    break;
                }
            }
        }
        match refused {
            Some(error) => updated.push_str(&format!("{query}\n----\n{error}\n\n")),
            None => updated.push_str(case),
        }
    }
    if is_updated {
        std::fs::write(&path, updated.trim_end().to_owned() + "\n").unwrap();
    }
    assert!(wrong.is_empty(), "{} of {answered} are wrong:\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(answered > 100, "the queries were found");
}

/// An error with its line counted from the first one behind the declarations.
fn without_sources(error: &str, lines: usize) -> String {
    let Some((before, rest)) = error.split_once("line ") else { return error.to_owned() };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    match rest[..digits].parse::<usize>() {
        Ok(line) if line > lines => format!("{before}line {}{}", line - lines, &rest[digits..]),
        _ => error.to_owned(),
    }
}
