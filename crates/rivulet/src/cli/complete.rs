//! Completion by Tab at the prompt of `rivulet sql`: keywords, functions, and names that the server has.
//!
//! What must hold: the server is asked when Tab is pressed, and never for more names than a screen takes. Where it does
//! not answer, there are no names, and the prompt goes on.

use rivulet_sql::{functions, name_in_sql};
use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};

use crate::api::types::{Application, Query};
use crate::http_client::{Client, segment};

/// Names of a kind that are offered at a time.
const NAMES_MAX: usize = 100;

/// The words with which statements begin.
#[rustfmt::skip]
const STATEMENTS: &[&str] = &[
    "ALTER", "CHECKPOINT", "CREATE", "DESCRIBE", "DROP", "EXPLAIN", "GRANT", "INSERT INTO", "PAUSE QUERY",
    "REFRESH TABLE", "RESUME QUERY", "REVOKE", "SELECT", "SHOW", "WITH",
];

/// The kinds of what statements are about.
const KINDS: &[&str] = &["APPLICATION", "QUERY", "SECRET", "SINK", "SOURCE", "TABLE", "VIEW"];

/// What DROP drops.
const DROPPED: &[&str] =
    &["APPLICATION", "QUERY", "SECRET", "SINK", "SOURCE", "TABLE", "TENANT", "TOKEN", "USER", "VIEW"];

/// What is granted and revoked.
const RIGHTS: &[&str] = &["ADMINISTER ON SERVER", "ALL", "CHANGE", "PUBLISH ON TOPIC", "READ", "SUBSCRIBE"];

/// What may follow a word that opens a statement.
const FOLLOWERS: &[(&str, &[&str])] = &[
    ("ALTER", &["APPLICATION", "QUERY", "TOKEN"]),
    (
        "CREATE",
        &[
            "APPLICATION",
            "OR REPLACE",
            "QUERY",
            "SECRET",
            "SINK",
            "SOURCE",
            "TABLE",
            "TENANT",
            "TOKEN FOR",
            "USER",
            "VIEW",
        ],
    ),
    ("REPLACE", KINDS),
    ("DESCRIBE", &["APPLICATION", "FUNCTION", "QUERY", "SINK", "SOURCE", "TABLE", "VIEW"]),
    ("DROP", DROPPED),
    ("EXPLAIN", &["ANALYZE", "APPLICATION", "CREATE", "QUERY", "SELECT"]),
    ("GRANT", RIGHTS),
    ("REVOKE", RIGHTS),
    (
        "SHOW",
        &[
            "APPLICATIONS",
            "BURST WORKERS",
            "BURSTS",
            "CHECKPOINTS",
            "FUNCTIONS",
            "GRANTS",
            "QUERIES",
            "SECRETS",
            "SINKS",
            "SOURCES",
            "TABLES",
            "TENANTS",
            "TOKENS",
            "USERS",
            "VIEWS",
        ],
    ),
];

/// Words within statements.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "ADMIN", "AND", "APPLICATION", "AS", "ASC", "AVRO", "BACK", "BETWEEN", "BIGINT", "BOOLEAN", "BY", "CASCADE", "CASE",
    "CAST", "CHANGE", "CSV", "CUBE", "DATE", "DEBEZIUM", "DECIMAL", "DEFAULT", "DESC", "DISTINCT", "DOUBLE", "ELSE",
    "EMIT ON CHANGE", "END", "EVENT TIME", "EXCEPT", "EXISTS", "EXPIRES IN INTERVAL", "FALSE", "FILTER", "FORMAT",
    "FROM", "GRACE INTERVAL", "GROUP BY", "GROUPING SETS", "HAVING", "IF EXISTS", "IF NOT EXISTS", "IN", "INPUT",
    "INTERSECT", "INTERVAL", "INTO", "IS NOT NULL", "IS NULL", "JOIN", "JSON", "KEY", "LABEL", "LEFT JOIN", "LIKE",
    "LIMIT", "MATCH_RECOGNIZE", "NOT", "NULL", "OFFSET", "ON", "OR", "ORDER BY", "OUTPUT", "OVER", "PARTITION BY",
    "PRIMARY KEY", "PUBLISH", "QUALIFY", "READ", "REDIRECT", "ROLLUP", "ROTATE", "ROWS", "SELECT", "SERVER", "SET",
    "SUBSCRIBE", "TEXT", "THEN", "TIME", "TIMESTAMP", "TO", "TO BURST", "TOPIC", "TRUE", "UNION ALL", "UNNEST",
    "WATERMARK", "WHEN", "WHERE", "WITH",
];

/// What the server is asked for, by the word in front of the cursor.
const NAMED: &[(&str, &[&str])] = &[
    ("APPLICATION", &["APPLICATIONS"]),
    ("QUERY", &["QUERIES"]),
    ("TABLE", &["TABLES"]),
    ("SOURCE", &["SOURCES"]),
    ("SINK", &["SINKS"]),
    ("SECRET", &["SECRETS"]),
    ("VIEW", &["VIEWS"]),
    ("INTO", &["SINKS"]),
    ("FROM", &["SOURCES", "VIEWS", "TABLES", "QUERIES", "APPLICATIONS"]),
    ("JOIN", &["SOURCES", "VIEWS", "TABLES", "QUERIES", "APPLICATIONS"]),
];

/// What may stand at the cursor.
#[derive(Debug, PartialEq)]
enum Expected<'t> {
    /// One of these words.
    Words(&'static [&'static str]),
    /// One of these words, or a name of what the server shows under these.
    Names(&'static [&'static str], &'static [&'static str]),
    /// The name of a function.
    Functions,
    /// A parameter of this application.
    ParametersOf(&'t str),
    /// A parameter of this query.
    ParametersOfQuery(&'t str),
    /// An expression or a clause.
    Anything,
    /// What only the user knows.
    Nothing,
}

/// The words and signs of a statement up to the cursor; `None` within a text, a quoted name or a comment.
fn tokens(text: &str) -> Option<Vec<&str>> {
    let is_of_word = |one: char| one.is_alphanumeric() || "_$".contains(one);
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return Some(tokens) };
        let end = match first {
            '\'' | '"' => 1 + rest[1..].find(first)? + 1,
            '-' if rest.starts_with("--") => {
                rest = &rest[rest.find('\n')?..];
                continue;
            }
            '/' if rest.starts_with("/*") => {
                rest = &rest[rest.find("*/")? + 2..];
                continue;
            }
            _ if is_of_word(first) => rest.find(|one| !is_of_word(one)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        tokens.push(&rest[..end]);
        rest = &rest[end..];
    }
}

/// What is expected behind these words and signs of a statement.
fn expected<'t>(tokens: &[&'t str]) -> Expected<'t> {
    let is = |token: Option<&&str>, word: &str| token.is_some_and(|token| token.eq_ignore_ascii_case(word));
    let first = tokens.first();
    let Some(last) = tokens.last() else { return Expected::Words(STATEMENTS) };
    let before = tokens.len().checked_sub(2).and_then(|place| tokens.get(place));
    if let (true, Some((_, words))) = (tokens.len() == 1 || is(Some(last), "REPLACE"), of(FOLLOWERS, last)) {
        return Expected::Words(words);
    }
    if is(Some(last), "FUNCTION") {
        return Expected::Functions;
    }
    // A column, or an input or output of an application.
    if *last == "." {
        return Expected::Nothing;
    }
    if let Some(owner) = owner_of_parameters(tokens) {
        return owner;
    }
    // What is created gets a new name.
    if is(before, "CREATE") && KINDS.iter().any(|kind| is(Some(last), kind)) {
        return Expected::Nothing;
    }
    if is(first, "SHOW") {
        return match of(NAMED, last) {
            Some((_, names)) if is(Some(last), "APPLICATION") => Expected::Names(&[], names),
            _ if is(Some(last), "FROM") => Expected::Words(&["APPLICATION"]),
            _ => Expected::Words(&["FROM APPLICATION", "LIKE", "LIMIT"]),
        };
    }
    match of(NAMED, last) {
        Some((_, names)) if is(Some(last), "FROM") => Expected::Names(&["APPLICATION"], names),
        Some((_, names)) => Expected::Names(&[], names),
        None => Expected::Anything,
    }
}

/// Whose parameters are named within the parentheses that are open: those of `CREATE QUERY ... FROM APPLICATION a WITH
/// (` and of `ALTER QUERY q SET (`.
fn owner_of_parameters<'t>(tokens: &[&'t str]) -> Option<Expected<'t>> {
    let open = tokens.iter().rposition(|token| *token == "(").filter(|open| !tokens[*open..].contains(&")"))?;
    // A name begins behind the parenthesis and behind each comma.
    if !["(", ","].contains(tokens.last()?) {
        return None;
    }
    let words: Vec<String> = tokens[..open].iter().map(|token| token.to_ascii_uppercase()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["CREATE", .., "FROM", "APPLICATION", _, "WITH"] => Some(Expected::ParametersOf(tokens[open - 2])),
        ["ALTER", "QUERY", _, "SET"] => Some(Expected::ParametersOfQuery(tokens[open - 2])),
        _ => None,
    }
}

type Table = [(&'static str, &'static [&'static str])];

fn of(table: &'static Table, word: &str) -> Option<&'static (&'static str, &'static [&'static str])> {
    table.iter().find(|(known, _)| known.eq_ignore_ascii_case(word))
}

/// Completes the last word of what was typed.
pub(super) struct Completion {
    client: Client,
    /// The lines of the statement before the one that is edited.
    pub(super) earlier_lines: String,
}

impl Completion {
    pub(super) fn new(client: Client) -> Self {
        Self { client, earlier_lines: String::new() }
    }

    /// The candidates for the word that begins at the end of the tokens and is typed so far.
    fn candidates(&self, tokens: &[&str], word: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        match expected(tokens) {
            Expected::Words(words) => found.extend(in_case_of(words, word)),
            Expected::Names(words, kinds) => {
                found.extend(in_case_of(words, word));
                found.extend(self.names(kinds, word));
            }
            Expected::Functions => found.extend(function_names().map(str::to_owned)),
            Expected::ParametersOf(application) => found.extend(self.parameters(application)),
            Expected::ParametersOfQuery(query) => {
                let path = format!("/api/v1/queries/{}", segment(&plain(query)));
                let query = self.client.get::<Query>(&path, &[]).ok();
                found.extend(query.into_iter().flat_map(|query| self.parameters(&name_in_sql(&query.application))));
            }
            Expected::Anything => {
                found.extend(in_case_of(WORDS, word));
                found.extend(function_names().map(|name| format!("{name}(")));
            }
            Expected::Nothing => {}
        }
        let typed = word.to_lowercase();
        found.retain(|candidate| candidate.trim_start_matches('"').to_lowercase().starts_with(&typed));
        found.sort();
        found.dedup();
        found
    }

    /// Names that begin with a word, as they are written in SQL.
    fn names(&self, kinds: &[&str], word: &str) -> Vec<String> {
        // A name that is not in quotes has small letters.
        let word = word.to_lowercase();
        let statements = kinds.iter().map(|kind| format!("SHOW {kind} LIKE '{word}%' LIMIT {NAMES_MAX};"));
        let Ok(answer) = self.client.run_script(&statements.collect::<String>()) else { return Vec::new() };
        let rows = answer.results.iter().flat_map(|result| &result.rows);
        rows.filter_map(|row| row.first()?.as_str()).map(|name| name_in_sql(name).into_owned()).collect()
    }

    /// The parameters of an application, each with what follows its name.
    fn parameters(&self, application: &str) -> Vec<String> {
        let path = format!("/api/v1/applications/{}", segment(&plain(application)));
        let Ok(application) = self.client.get::<Application>(&path, &[]) else { return Vec::new() };
        application.parameters.iter().map(|one| format!("{} => ", name_in_sql(&one.name))).collect()
    }
}

/// What is called by a single word.
fn function_names() -> impl Iterator<Item = &'static str> {
    functions().iter().map(|one| one.name.as_str()).filter(|name| !name.contains(' '))
}

/// The name that is written so in SQL.
fn plain(name: &str) -> String {
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => name.to_lowercase(),
    }
}

/// Keywords in small letters for a user who writes small letters.
fn in_case_of<'w>(words: &'w [&str], word: &str) -> impl Iterator<Item = String> + use<'w> {
    let is_small = word.starts_with(|first: char| first.is_lowercase());
    words.iter().map(move |keyword| if is_small { keyword.to_lowercase() } else { (*keyword).to_owned() })
}

impl Completer for Completion {
    type Candidate = String;

    fn complete(&self, line: &str, cursor: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let before = &line[..cursor];
        let start = before
            .rfind(|one: char| !one.is_alphanumeric() && one != '_')
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        let text = format!("{}{}", self.earlier_lines, &before[..start]);
        let candidates = tokens(&text).map_or_else(Vec::new, |tokens| {
            // Of several statements on a line the last one.
            let begun = tokens.iter().rposition(|token| *token == ";").map_or(0, |end| end + 1);
            self.candidates(&tokens[begun..], &before[start..])
        });
        Ok((start, candidates))
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}

impl Validator for Completion {}

impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_depends_on_what_stands_before() {
        let sources = &["SOURCES", "VIEWS", "TABLES", "QUERIES", "APPLICATIONS"][..];
        for (text, wanted) in [
            ("", Expected::Words(STATEMENTS)),
            ("drop", Expected::Words(DROPPED)),
            ("grant", Expected::Words(RIGHTS)),
            ("CREATE OR REPLACE", Expected::Words(KINDS)),
            ("DROP APPLICATION", Expected::Names(&[], &["APPLICATIONS"])),
            ("CREATE APPLICATION", Expected::Nothing),
            ("CREATE OR REPLACE APPLICATION", Expected::Names(&[], &["APPLICATIONS"])),
            ("PAUSE query", Expected::Names(&[], &["QUERIES"])),
            ("DESCRIBE FUNCTION", Expected::Functions),
            ("SELECT * FROM alerts.", Expected::Nothing),
            ("SHOW QUERIES FROM", Expected::Words(&["APPLICATION"])),
            ("SHOW QUERIES FROM APPLICATION", Expected::Names(&[], &["APPLICATIONS"])),
            ("CREATE QUERY q FROM", Expected::Names(&["APPLICATION"], sources)),
            ("SELECT count(*) FROM", Expected::Names(&["APPLICATION"], sources)),
            ("SELECT 'it''s' /* ( */ -- ;\n FROM a JOIN", Expected::Names(&[], sources)),
            ("CREATE QUERY q FROM APPLICATION Ac WITH (", Expected::ParametersOf("Ac")),
            ("CREATE QUERY q FROM APPLICATION ac WITH (home => '4)2',", Expected::ParametersOf("ac")),
            ("CREATE QUERY q FROM APPLICATION ac WITH (home =>", Expected::Anything),
            ("ALTER QUERY \"Kims (AC)\" SET (", Expected::ParametersOfQuery("\"Kims (AC)\"")),
            ("SELECT", Expected::Anything),
            ("SELECT a FROM s WHERE", Expected::Anything),
        ] {
            assert_eq!(expected(&tokens(text).expect("no text is open")), wanted, "{text}");
        }
        for open in ["SELECT 'a", "SELECT \"a", "SELECT a -- b", "SELECT /* a"] {
            assert_eq!(tokens(open), None, "{open}");
        }
    }

    #[test]
    fn keywords_come_as_the_user_writes() {
        let nobody = Completion::new(Client::new("http://127.0.0.1:9").expect("an address"));
        assert_eq!(nobody.candidates(&[], "de"), ["describe"]);
        assert_eq!(nobody.candidates(&["DESCRIBE"], "F"), ["FUNCTION"]);
        assert!(nobody.candidates(&["SELECT"], "date_t").contains(&"date_trunc(".to_owned()));
        // A server that does not answer has no names.
        assert_eq!(nobody.candidates(&["DROP", "QUERY"], ""), [""; 0]);
    }
}
