//! Numbers and names that pages state and the program knows: each is compared with the code.
//!
//! A fact is a piece of a page with the number in braces, and what has it in the code: a constant or the default of a
//! configuration key. Whoever changes one of them finds the page by the test that fails.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::root;
use crate::tidy::rust_files;

/// Where the code has a number.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A constant in a file below `crates/`.
    Constant(&'static str, &'static str),
    /// The default of a configuration key.
    Key(&'static str),
}

use Source::{Constant, Key};

const KEYS: &str = "rivulet/src/config/keys.rs";
const CALL: &str = "rivulet/src/api/call.rs";
const JWT_KEYS: &str = "rivulet/src/accounts/jwt/keys.rs";
const JWT_TOKEN: &str = "rivulet/src/accounts/jwt/token.rs";
const JWT: &str = "rivulet/src/accounts/jwt/mod.rs";
const AUDIT: &str = "rivulet/src/accounts/audit.rs";
const CHANGE: &str = "rivulet/src/accounts/change.rs";
const SECRETS: &str = "rivulet/src/secrets.rs";
const RECEIVERS: &str = "rivulet-connectors/src/connector/http/receivers.rs";

const ACCOUNTS: &str = "docs/accounts.md";
const OPERATIONS: &str = "docs/operations.md";
const APPLICATIONS: &str = "docs/sql/applications.md";
const DURABILITY: &str = "docs/durability.md";
const PRODUCTION: &str = "docs/tutorial/production.md";
const SECURITY: &str = "SECURITY.md";

/// The facts: a page, its words with one number in braces, and where the code has that.
const FACTS: &[(&str, &str, Source)] = &[
    // docs/accounts.md
    (
        ACCOUNTS,
        "A user that sends {five} wrong passwords from an address waits there",
        Constant("rivulet-connectors/src/logins.rs", "FAILURES_FREE"),
    ),
    (
        ACCOUNTS,
        "before the next is looked at, for up to {a minute}.",
        Constant("rivulet-connectors/src/logins.rs", "PAUSE_MAX"),
    ),
    (ACCOUNTS, "a token that ends after {12 hours}", Constant("rivulet/src/accounts/login.rs", "LOGIN_S")),
    (ACCOUNTS, "at most {32} for a user", Constant(CHANGE, "TOKENS_MAX")),
    (ACCOUNTS, "at most {256} patterns for a user", Constant(CHANGE, "GRANTS_MAX")),
    (
        ACCOUNTS,
        "After {20} wrong passwords from wherever",
        Constant("rivulet/src/accounts/password.rs", "FAILURES_FREE"),
    ),
    (ACCOUNTS, "A JWT has {8 KiB} at most", Constant(JWT_TOKEN, "BYTES_MAX")),
    (ACCOUNTS, "a JSON Web Key Set of {64} keys", Constant(JWT_KEYS, "KEYS_MAX")),
    (ACCOUNTS, "and {256 KiB} at most", Constant(JWT_KEYS, "BYTES_MAX")),
    (ACCOUNTS, "A URL is asked every {five minutes}", Constant(JWT, "FETCH_PERIOD")),
    (ACCOUNTS, "at most every {ten seconds}; that JWT", Constant(JWT, "FETCH_PERIOD_MIN")),
    (ACCOUNTS, "with `jwt.leeway_s` ({60 s})", Key("jwt.leeway_s")),
    (ACCOUNTS, "up to {16,384} entries wait", Constant(AUDIT, "QUEUE_MAX")),
    (ACCOUNTS, "while {15,360} entries wait", Constant(AUDIT, "QUEUE_ADMITS")),
    (ACCOUNTS, "beyond {1,024} refused logins", Constant(AUDIT, "LOGINS_COUNTED_MAX")),
    (ACCOUNTS, "(`audit.file_bytes_max`, {64 MiB})", Key("audit.file_bytes_max")),
    (ACCOUNTS, "take `audit.files_max` ({10}) times as much", Key("audit.files_max")),
    // SECURITY.md
    (SECURITY, "{8 KiB} a token", Constant(JWT_TOKEN, "BYTES_MAX")),
    (SECURITY, "{64} keys and 256 KiB a set", Constant(JWT_KEYS, "KEYS_MAX")),
    (SECURITY, "64 keys and {256 KiB} a set", Constant(JWT_KEYS, "BYTES_MAX")),
    (SECURITY, "Calls over HTTP: {64} at a time", Constant(CALL, "CALLS_MAX")),
    (SECURITY, "at a time, {48} of them of one tenant", Constant(CALL, "CALLS_OF_TENANT_MAX")),
    (SECURITY, "{16,384} entries wait at most", Constant(AUDIT, "QUEUE_MAX")),
    (SECURITY, "is cut at {500} characters", Constant(AUDIT, "TEXT_CHARACTERS_MAX")),
    (
        SECURITY,
        "a user of whom {20} passwords were guessed",
        Constant("rivulet/src/accounts/password.rs", "FAILURES_FREE"),
    ),
    (SECURITY, "{Two} hashes of passwords at a time", Constant(CALL, "PASSWORDS_MAX")),
    // docs/operations.md
    (OPERATIONS, "`stop.limit_s` ({60 s} by default", Key("stop.limit_s")),
    (OPERATIONS, "`stop.delay_s` ({0 s} by default)", Key("stop.delay_s")),
    (
        OPERATIONS,
        "Members of a shared subscription** (bound: {1000})",
        Constant("rivulet-connectors/src/mqtt/broker/subscriptions.rs", "MEMBERS_MAX"),
    ),
    (
        OPERATIONS,
        "CONNECTs above {8 KiB}",
        Constant("rivulet-connectors/src/mqtt/broker/memory.rs", "LOGIN_BYTES_FREE"),
    ),
    (
        OPERATIONS,
        "each may still have {64 KiB} waiting",
        Constant("rivulet-connectors/src/mqtt/broker/outbox.rs", "SCARCE_BYTES_MAX"),
    ),
    (
        OPERATIONS,
        "`topic_aliases_max`, and {64 KiB} of topics",
        Constant("rivulet-connectors/src/mqtt/aliases.rs", "TOPIC_BYTES_MAX"),
    ),
    (OPERATIONS, "once {8 MiB} have gathered", Constant("rivulet/src/engine/broker_journal.rs", "GATHERED_BYTES_MAX")),
    (
        OPERATIONS,
        "`memory_bytes_max` and {256 MiB}",
        Constant("rivulet/src/engine/broker_journal.rs", "DISK_BYTES_MIN"),
    ),
    (OPERATIONS, "the file `reserve` ({16 MiB})", Constant("rivulet/src/engine/reserve.rs", "BYTES")),
    (
        OPERATIONS,
        "that wait, {16 MiB} are read ahead",
        Constant("rivulet-connectors/src/mqtt/client/turn.rs", "READ_AHEAD_BYTES_MAX"),
    ),
    (OPERATIONS, "{64 KiB} a value", Constant(SECRETS, "VALUE_BYTES_MAX")),
    (OPERATIONS, "and {1,000} secrets", Constant(SECRETS, "SECRETS_MAX")),
    (OPERATIONS, "and {4 MiB} for a tenant", Constant(SECRETS, "TENANT_BYTES_MAX")),
    (OPERATIONS, "open files on it for at most {60 s} each", Constant("rivulet/src/engine/outside.rs", "OPEN_MAX")),
    (OPERATIONS, "a server for at most {30 s} in all", Constant("rivulet/src/engine/outside.rs", "START_MAX")),
    (
        OPERATIONS,
        "A big query has {10 s} to come to rest",
        Constant("rivulet/src/engine/big_queries/saved.rs", "REST_MAX"),
    ),
    (
        OPERATIONS,
        "and {4 s} where a sink of it does not work",
        Constant("rivulet/src/engine/big_queries/saved.rs", "TROUBLED_REST_MAX"),
    ),
    (
        OPERATIONS,
        "After {two} such deaths in a row",
        Constant("rivulet/src/engine/big_queries/starts.rs", "DEATHS_MAX"),
    ),
    (
        OPERATIONS,
        "have at most `address_share_percent` of memory and of subscriptions, {half} by default",
        Key("mqtt.embedded.address_share_percent"),
    ),
    (OPERATIONS, "at most `http.address_share_percent` of them, {half} by default", Key("http.address_share_percent")),
    (OPERATIONS, "failed more than {five} times at", Constant("rivulet-connectors/src/logins.rs", "FAILURES_FREE")),
    // docs/durability.md
    (DURABILITY, "Every {10 s} (`checkpoint.interval_s`)", Key("checkpoint.interval_s")),
    (
        DURABILITY,
        "no way out for {10 s} are not covered",
        Constant("rivulet/src/engine/checkpoints/way_out.rs", "WAY_OUT_MAX"),
    ),
    (
        DURABILITY,
        "Objects over {64 MiB} are uploaded in parts",
        Constant("rivulet-storage/src/store/s3/mod.rs", "PART_BYTES"),
    ),
    (
        DURABILITY,
        "After {30 s} without that it is answered with 429",
        Constant("rivulet-connectors/src/connector/http/listener.rs", "CONFIRM_MAX"),
    ),
    (DURABILITY, "what waits has {three seconds} to leave", Constant("rivulet/src/engine/outlets.rs", "FINISH_MAX")),
    (PRODUCTION, "Every {10 s} (`checkpoint.interval_s`)", Key("checkpoint.interval_s")),
    // docs/sql/applications.md
    (APPLICATIONS, "or {1 MiB} wait", Constant(RECEIVERS, "SLOW_BYTES")),
    (APPLICATIONS, "and of all slow ones {64 MiB}", Constant(RECEIVERS, "SLOW_BYTES_ALL")),
    (APPLICATIONS, "requests or {4 MiB} do", Constant("rivulet-connectors/src/connector/http/sink.rs", "ROOM_BYTES")),
    (APPLICATIONS, "`SHOW QUERIES` gives {100} rows", Constant(CALL, "PAGE_LIMIT_DEFAULT")),
    (APPLICATIONS, "up to {1,000}; `rivulet query list", Constant("rivulet/src/service.rs", "QUERIES_PAGE_MAX")),
    (
        APPLICATIONS,
        "Where {16} or more queries read one topic",
        Constant("rivulet/src/engine/shared_input/mod.rs", "QUERIES_MIN"),
    ),
    (
        APPLICATIONS,
        "at most {100,000} panes",
        Constant("rivulet-operators/src/window/length.rs", "PANES_PER_WINDOW_MAX"),
    ),
    (APPLICATIONS, "up to {eight} SELECTs", Constant("rivulet-sql/src/parse/subquery.rs", "CHAIN_MAX")),
    (APPLICATIONS, "so many rows ago, 1 to {100}.", Constant("rivulet-operators/src/history/mod.rs", "LAG_ROWS_MAX")),
    (SECURITY, "{20,000} steps of a plan", Constant("rivulet-relational/src/planning.rs", "STEPS_MAX")),
    (
        "docs/sql/big-queries.md",
        "may consist of at most {100,000} panes",
        Constant("rivulet-operators/src/window/length.rs", "PANES_PER_WINDOW_MAX"),
    ),
    (
        "docs/sql/big-queries.md",
        "by them, it may be in at most {10,000}.",
        Constant("rivulet-sql/src/plan/query/builder.rs", "WINDOWS_OF_ROW_MAX"),
    ),
    (
        "docs/sql/big-queries.md",
        "its number if that is asked for, at most {10,000}.",
        Constant("rivulet-operators/src/unnest.rs", "ELEMENTS_MAX"),
    ),
    (
        "docs/sql/big-queries.md",
        "A match has at most {10,000} rows",
        Constant("rivulet-operators/src/pattern/spec.rs", "MATCH_ROWS_MAX"),
    ),
    (
        "docs/sql/big-queries.md",
        "somebody reads, at most {16} at a time",
        Constant("rivulet/src/engine/big_queries/select.rs", "SELECTS_MAX"),
    ),
    (
        "docs/sql/big-queries.md",
        "at a time and {4} of a tenant",
        Constant("rivulet/src/engine/big_queries/select.rs", "SELECTS_OF_TENANT_MAX"),
    ),
    (
        "docs/sql/big-queries.md",
        "are taken back, are at most {64 MiB}",
        Constant("rivulet/src/engine/big_queries/select_rows.rs", "COLLECTED_BYTES_MAX"),
    ),
    ("docs/reference/mqtt.md", "Every `system_interval_s` ({10 s};", Key("mqtt.embedded.system_interval_s")),
    (
        "docs/reference/mqtt.md",
        "A group has {1000} members at most",
        Constant("rivulet-connectors/src/mqtt/broker/subscriptions.rs", "MEMBERS_MAX"),
    ),
    (
        "docs/reference/mqtt.md",
        "beyond {4} identifiers more",
        Constant("rivulet-connectors/src/mqtt/broker/message.rs", "IDENTIFIERS_MAX"),
    ),
];

/// A number in words.
const IN_WORDS: [(&str, u64); 14] = [
    ("a", 1),
    ("an", 1),
    ("one", 1),
    ("two", 2),
    ("three", 3),
    ("four", 4),
    ("five", 5),
    ("six", 6),
    ("eight", 8),
    ("ten", 10),
    ("sixteen", 16),
    ("twenty", 20),
    // Of a hundred.
    ("half", 50),
    ("all", 100),
];

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A number with its unit: bytes, milliseconds, or what is counted.
fn quantity(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let first = words.next()?.replace([',', '_'], "").to_lowercase();
    let number = IN_WORDS.iter().find(|(word, _)| *word == first).map(|(_, number)| *number);
    let number = number.or_else(|| first.parse().ok())?;
    let factor = match words.next().unwrap_or_default() {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "s" | "second" | "seconds" => 1_000,
        "minute" | "minutes" => 60_000,
        "hour" | "hours" => 3_600_000,
        _ => 1,
    };
    Some(number * factor)
}

/// A constant of a file: bytes, milliseconds, or what is counted.
fn constant(text: &str, name: &str) -> Option<u64> {
    let begin = format!("const {name}: ");
    let value = text.lines().find_map(|line| line.split_once(&begin))?.1.split_once(" = ")?.1.split_once(';')?.0;
    let factor = if name.ends_with("_S") { 1_000 } else { 1 };
    Some(evaluated(text, value)? * factor)
}

/// What an expression of a constant is: sums are not needed.
fn evaluated(text: &str, value: &str) -> Option<u64> {
    let value = value.trim();
    if let Some((of, unit)) = [("Duration::from_secs(", 1_000), ("Duration::from_millis(", 1)]
        .iter()
        .find_map(|(begin, unit)| Some((value.strip_prefix(begin)?.strip_suffix(')')?, *unit)))
    {
        return Some(evaluated(text, of)? * unit);
    }
    let parts =
        |sign: &str| value.split_once(sign).map(|(left, right)| (evaluated(text, left), evaluated(text, right)));
    if let Some((left, right)) = parts(" - ") {
        return Some(left? - right?);
    }
    if let Some((left, right)) = parts(" << ") {
        return Some(left? << right?);
    }
    if let Some((left, right)) = parts(" * ") {
        return Some(left? * right?);
    }
    value.replace('_', "").parse().ok().or_else(|| constant(text, value))
}

/// The names of the configuration keys, each with its default.
fn keys() -> Vec<(String, Option<String>)> {
    let text = read(&format!("crates/{KEYS}"));
    let keys = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once("Key { name: \"")?.1.split_once('"')?;
        let default = rest.split_once("default: Some(\"").and_then(|(_, rest)| rest.split_once('"'));
        Some((name.to_owned(), default.map(|(default, _)| default.to_owned())))
    });
    let keys: Vec<_> = keys.collect();
    assert!(keys.len() > 90, "the keys were found: {}", keys.len());
    keys
}

impl Source {
    fn number(self) -> Option<u64> {
        match self {
            Constant(file, name) => constant(&read(&format!("crates/{file}")), name),
            Key(key) => {
                let default = keys().into_iter().find(|(name, _)| name == key)?.1?;
                Some(quantity(&default)? * if key.ends_with("_s") { 1_000 } else { 1 })
            }
        }
    }
}

#[test]
fn numbers_on_pages_are_those_of_the_code() {
    let mut problems = Vec::new();
    for (page, words, source) in FACTS {
        let number = words.split_once('{').and_then(|(_, rest)| Some(rest.split_once('}')?.0));
        let stated = number.and_then(quantity);
        let piece = words.replace(['{', '}'], "");
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.contains(&piece) {
            problems.push(format!("{page} does not say {piece:?} any more: change the fact, too"));
        }
        let known = source.number();
        if stated.is_none() || known != stated {
            problems.push(format!("{page} says {piece:?} ({stated:?}), and {source:?} is {known:?}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn constants_are_read_as_the_compiler_reads_them() {
    let text = "const A: u64 = 4 << 10;\npub const B: Duration = Duration::from_secs(2 * 60);\n\
                const C: usize = A - 1_024;\n\
                pub(super) const D_S: u64 = 300;\n";
    let found = ["A", "B", "C", "D_S", "E"].map(|name| constant(text, name));
    assert_eq!(found, [Some(4_096), Some(120_000), Some(3_072), Some(300_000), None]);
    let found = ["64 KiB", "1,024 requests", "five minutes", "half", "a minute", "many"].map(quantity);
    assert_eq!(found, [Some(65_536), Some(1_024), Some(300_000), Some(50), Some(60_000), None]);
}

/// The format of the catalog that pages for users name: what is decided once keeps its number.
#[test]
fn pages_name_the_format_of_the_catalog_that_is_written() {
    let known = Constant("rivulet/src/catalog/mod.rs", "FORMAT_VERSION").number().expect("the format");
    for (page, before) in [("CHANGELOG.md", "The catalog has format "), ("docs/upgrades.md", "the catalog in format ")]
    {
        let text = read(page).split_whitespace().collect::<Vec<_>>().join(" ");
        // The newest version stands first.
        let stated: Vec<&str> =
            text.split(before).skip(1).map(|rest| rest.split([',', ':', ' ']).next().unwrap()).collect();
        assert_eq!(stated, [known.to_string()], "{page}, behind {before:?}");
    }
}

#[test]
fn the_changelog_says_nothing_twice() {
    let text = read("CHANGELOG.md");
    for version in text.split("\n## ") {
        let mut seen = BTreeSet::new();
        let items = version.replace("\n  ", " ");
        for item in items.lines().filter(|line| line.starts_with("- ")) {
            let begin: String = item.chars().take(50).collect();
            assert!(seen.insert(begin), "CHANGELOG.md says this twice: {item}");
        }
    }
}

/// Words in backquotes that begin as a configuration key does.
fn named_keys<'t>(text: &'t str, sections: &BTreeSet<String>) -> Vec<&'t str> {
    let words = text.split('`').skip(1).step_by(2).filter_map(|code| code.split(['=', ' ']).next());
    words
        .filter(|word| {
            let is_plain =
                word.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || "._".contains(one));
            is_plain && word.split_once('.').is_some_and(|(section, _)| sections.contains(section))
        })
        .collect()
}

/// What looks like a key and is none: files, columns, properties of Kafka, and keys that were removed.
const NO_KEYS: &[&str] = &[
    "audit.jsonl",
    "memory.events",
    "connections.max.idle.ms",
    "table.key",
    "files.sql",
    "mqtt.broker.connections",
    "scheduler.task_queries_max",
    "scheduler.batch_rows_max",
    "scheduler.share_code",
];

#[test]
fn keys_that_pages_and_messages_name_are_there() {
    let keys: Vec<String> = keys().into_iter().map(|(name, _)| name).collect();
    let sections: BTreeSet<String> = keys.iter().filter_map(|key| Some(key.split_once('.')?.0.to_owned())).collect();
    let is_known = |word: &str| {
        let word = word.trim_end_matches('.');
        keys.iter().any(|key| key == word || key.starts_with(&format!("{word}."))) || NO_KEYS.contains(&word)
    };
    let mut problems = Vec::new();
    for page in crate::tidy::pages() {
        // What a decision or a changelog names may have been renamed since.
        if page.starts_with("docs/decisions/") || page.starts_with("bench/") || page == "CHANGELOG.md" {
            continue;
        }
        // Blocks of code have backquotes of their own.
        let text = crate::tidy::prose(&read(&page)).collect::<Vec<_>>().join("\n");
        problems.extend(
            named_keys(&text, &sections)
                .into_iter()
                .filter(|word| !is_known(word))
                .map(|word| format!("{page}: {word}")),
        );
    }
    let is_product = |file: &PathBuf| {
        let path = file.to_string_lossy();
        path.contains("/src/") && !path.contains("/tests")
    };
    for file in rust_files(&root().join("crates")).into_iter().filter(is_product) {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            // Inside of quotes, words are those of a message.
            let messages = line.split('"').skip(1).step_by(2);
            let words = messages.flat_map(|message| {
                message.split(|one: char| !one.is_ascii_lowercase() && !one.is_ascii_digit() && !"._".contains(one))
            });
            for word in words.filter(|word| {
                word.split_once('.').is_some_and(|(section, rest)| sections.contains(section) && !rest.is_empty())
            }) {
                if !is_known(word) {
                    problems.push(format!("{}: {word}", file.display()));
                }
            }
        }
    }
    assert!(problems.is_empty(), "no configuration key:\n{}", problems.join("\n"));
}
