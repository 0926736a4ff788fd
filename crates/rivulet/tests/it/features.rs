//! What of the SQL of other engines works: every feature in `features/list.txt` is tried on a server, and
//! `docs/reference/sql-features.md` says what came of it. `cargo xtask docs` writes the page again.
//!
//! The list has sections (`#`), features with the engines that have them (`##`), and statements: the SELECT of an
//! application (`app`), a SELECT over sources (`big`), or a declaration (`declare`). A feature works for applications
//! or big queries if all its statements of that kind are accepted.

use std::fmt::Write;

use rivulet_testing::page::{check, wrapped};
use serde_json::Value;
use tempfile::TempDir;

use crate::server::{Server, free_port};

/// The sources, and the table of applications, that the statements read.
const DECLARATIONS: &str = "
CREATE SOURCE a (ts TIMESTAMP EVENT TIME, k TEXT, n BIGINT, v DOUBLE) FROM 'mqtt:a' FORMAT JSON;
CREATE SOURCE b (ts TIMESTAMP EVENT TIME, k TEXT, w DOUBLE) FROM 'mqtt:b' FORMAT JSON;
CREATE SOURCE c (k TEXT NOT NULL, x DOUBLE) FROM 'file:c.csv' FORMAT CSV (header => true);
CREATE TABLE p (t TEXT NOT NULL, x DOUBLE) FROM 'data:,t,x' FORMAT CSV (header => true);";

/// An application with this SELECT. It declares the inputs that the SELECT reads.
fn application(select: &str) -> String {
    let words: Vec<&str> = select.split(|c: char| !c.is_alphanumeric()).collect();
    let reads = |name: &str| {
        words.windows(2).any(|two| ["FROM", "JOIN", "LATEST", "TABLE"].contains(&two[0]) && two[1] == name)
    };
    let inputs = [("r", "t TEXT, n BIGINT, v DOUBLE"), ("s", "t TEXT, w DOUBLE"), ("u", "t TEXT, z DOUBLE")];
    let inputs = inputs.iter().filter(|(name, _)| reads(name)).map(|(name, columns)| {
        format!("INPUT {name} (ts TIMESTAMP EVENT TIME, {columns}) FROM 'mqtt:{name}/{{device}}' FORMAT JSON\n")
    });
    let inputs: String = inputs.collect();
    format!("CREATE APPLICATION feature (device TEXT)\n{inputs}OUTPUT 'mqtt:o/{{device}}' FORMAT JSON\nAS {select};")
}

/// What a server says of a statement: nothing if it accepts it.
fn refusal(server: &Server, kind: &str, statement: &str) -> Option<String> {
    let (tried, undo) = match kind {
        "app" => (application(statement), "DROP APPLICATION feature CASCADE"),
        "big" => (format!("EXPLAIN {statement};"), ""),
        "declare" => (format!("{statement};"), "DROP SOURCE feature"),
        other => panic!("'{other}' is no kind of statement"),
    };
    let answer: Value = server.sql(&tried);
    match answer.get("error") {
        None if undo.is_empty() => None,
        None => {
            server.sql_ok(undo);
            None
        }
        Some(error) => {
            let text = |key: &str| error[key].as_str().unwrap_or_default().lines().collect::<Vec<_>>().join(" ");
            let hint = text("hint");
            Some(if hint.is_empty() { text("message") } else { format!("{}; {hint}", text("message")) })
        }
    }
}

/// The words of SQL in the name of a feature that none of its statements has. What a name says works was tried.
fn untried_words<'n>(name: &'n str, statements: &str) -> Vec<&'n str> {
    let (tried, (of, _)) = (statements.to_lowercase(), name.rsplit_once(" (").unwrap_or((name, "")));
    let words = of.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    let is_of_sql = |word: &&str| word.len() > 2 && word.chars().all(|sign| sign.is_ascii_uppercase() || sign == '_');
    words.filter(is_of_sql).filter(|word| !tried.contains(&word.to_lowercase())).collect()
}

#[test]
fn the_reference_of_features_of_other_engines_is_current() {
    let folder = TempDir::new().unwrap();
    let mqtt = free_port();
    let server = Server::spawn(folder.path(), mqtt, &[("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string())]);
    server.wait_until_ready();
    let files = folder.path().join("data/files");
    std::fs::create_dir_all(&files).unwrap();
    std::fs::write(files.join("c.csv"), "k,x\n").unwrap();
    server.sql_ok(DECLARATIONS);
    let mut page = String::new();
    let (mut tried, mut outcomes_of_all, mut works) = (0, 0, 0);
    for section in include_str!("features/list.txt").split("\n# ").filter(|section| !section.trim().is_empty()) {
        let (title, features) = section.split_once('\n').unwrap();
        let _ = write!(page, "\n## {}\n\n", title.trim_start_matches("# "));
        for feature in features.split("## ").filter(|feature| !feature.trim().is_empty()) {
            let (name, statements) = feature.split_once('\n').unwrap();
            let untried = untried_words(name, statements);
            assert!(untried.is_empty(), "no statement of '{name}' tries {untried:?}");
            let mut outcomes: Vec<(&str, Option<String>)> = Vec::new();
            for statement in statements.lines().filter(|line| !line.is_empty()) {
                let (kind, statement) = statement.split_once(' ').unwrap();
                let outcome = refusal(&server, kind, statement);
                tried += 1;
                match outcomes.iter_mut().find(|(of, _)| *of == kind) {
                    Some((_, before)) => *before = before.take().or(outcome),
                    None => outcomes.push((kind, outcome)),
                }
            }
            let in_words = outcomes.iter().map(|(kind, outcome)| {
                let of = match *kind {
                    "app" => "applications",
                    "big" => "big queries",
                    _ => "declarations",
                };
                match outcome {
                    None => format!("{of}: works"),
                    Some(error) => format!("{of}: **refused**, \"{}\"", error.replace('*', "\\*")),
                }
            });
            let _ = writeln!(page, "- {name}. {}", in_words.collect::<Vec<_>>().join("; "));
            outcomes_of_all += outcomes.len();
            works += outcomes.iter().filter(|(_, outcome)| outcome.is_none()).count();
        }
    }
    assert!(tried > 100, "the list was read: {tried} statements");
    let head = format!(
        "<!-- Generated by `cargo xtask docs`. -->\n\
         # Features of other engines\n\n\
         What users of Apache Flink SQL, Arroyo and eKuiper know, and what comes of it here, in applications and in big \
         queries. Each line was tried on a server: {works} of {outcomes_of_all} work. Where a statement is refused, the \
         line has the words of the error.\n"
    );
    check("sql-features.md", &wrapped(&format!("{head}{page}")));
}
