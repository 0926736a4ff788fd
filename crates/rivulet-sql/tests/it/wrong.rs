//! Statements that are wrong, each in an application and in a big query: the message, the place and the hint of either
//! planner.
//!
//! `wrong.txt` has a paragraph for each: the SELECT, and below it what each planner says, or `both` where they say the
//! same. With `RIVULET_UPDATE=1` in the environment the answers are written anew, to be read before they are committed.

use std::fmt::Write;
use std::path::Path;

use crate::query_plans::big_query_error;
use crate::slt::select_error;

const COLUMNS: &str = "(ts TIMESTAMP EVENT TIME, device TEXT, value DOUBLE, units BIGINT, ok BOOLEAN, other TIMESTAMP)";

/// Words of the planner below that say nothing to whoever has written the query.
const FOREIGN: [&str; 11] = [
    "user-defined coercion",
    "non-boolean",
    "infix parser",
    "While expanding",
    "qualified field",
    "You might need",
    "Utf8",
    "Int64",
    "coerce",
    "No function matches",
    "common argument type",
];

fn said(select: &str) -> String {
    let application = select_error("t", COLUMNS, select);
    let big_query = big_query_error(&format!("CREATE SOURCE t {COLUMNS} FROM 'file:x' FORMAT CSV;"), select);
    let mut text = String::new();
    let mut tell = |who: &str, error: &str| {
        let error = error.trim_start_matches("error at line 1, column ").replace('\n', "\n    ");
        let _ = writeln!(text, "{who}: {error}");
    };
    if application == big_query {
        tell("both", &application);
    } else {
        tell("application", &application);
        tell("big query", &big_query);
    }
    text
}

#[test]
fn what_is_wrong_is_said_in_our_words_and_at_its_place() {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is"))
        .join("tests/it/wrong.txt");
    let expected = std::fs::read_to_string(&path).unwrap();
    let mut found = String::new();
    for paragraph in expected.split("\n\n") {
        let Some(select) = paragraph.trim().lines().next() else { continue };
        let _ = writeln!(found, "{select}\n{}", said(select));
    }
    let found = format!("{}\n", found.trim_end());
    if std::env::var_os("RIVULET_UPDATE").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let wrong: Vec<&str> =
        found.split("\n\n").filter(|one| !expected.split("\n\n").any(|other| other.trim() == one.trim())).collect();
    assert!(wrong.is_empty(), "other errors than expected\n{}", wrong.join("\n\n"));
    let foreign = FOREIGN.into_iter().find(|word| found.contains(word));
    assert_eq!(foreign, None, "a message is in words of the planner below");
    assert!(found.split("\n\n").count() > 150, "the statements were found");
}
