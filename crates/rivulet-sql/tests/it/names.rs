//! Columns, parameters and results may be called by words of the language, in both kinds of queries; a word that may
//! not is refused where it is declared, with what to write instead.

use std::fmt::Write;

use rivulet_sql::{parse_application, parse_stored, plan_application};

use crate::query_plans::big_query_error;

/// What fields of payloads, settings and results are often called, and every word that may not be a name elsewhere.
const WORDS: &str = "\
    action any array asc begin between by change check column count create current date day default desc else emit \
    end exists filter first format group having hour if in index input is join key last level like limit local \
    match max message min minute mode month name number offset on option order output partition path position \
    range rank row rows sequence set state status table text then time timestamp type union user value values when \
    year";

/// SELECTs over `t (NAME DOUBLE, other DOUBLE)`, with a parameter `$NAME` where they have one.
const SELECTS: [&str; 8] = [
    "SELECT NAME, NAME + 1 AS one, other FROM t",
    "SELECT other, t.NAME AS again FROM t WHERE NAME > 3 AND other < NAME",
    "SELECT other AS NAME FROM t WHERE other * NAME >= NAME - 1",
    "SELECT CASE WHEN NAME > 1 THEN NAME ELSE -NAME END AS x FROM t WHERE NAME BETWEEN 1 AND 2",
    "SELECT abs(NAME) AS x, (NAME) AS y FROM t WHERE NAME IS NOT NULL OR NAME IN (1, 2)",
    "SELECT max(NAME) AS x, count(*) AS n FROM t GROUP BY tumble(ts, INTERVAL '1 minute')",
    "SELECT NAME, count(*) AS n FROM t GROUP BY tumble(ts, INTERVAL '1 minute'), NAME HAVING max(NAME) > 1",
    "SELECT other FROM t WHERE NAME > $NAME",
];

fn application_error(select: &str, name: &str) -> String {
    let text = format!(
        "CREATE APPLICATION a ({name} DOUBLE) INPUT t (ts TIMESTAMP EVENT TIME, {name} DOUBLE, other DOUBLE) \
         FROM 'mqtt:t' FORMAT JSON OUTPUT 'mqtt:o' FORMAT JSON WHEN x > 1 AS {select}"
    );
    let text = match select.contains(" AS x") {
        true => text,
        false => text.replace(" WHEN x > 1", ""),
    };
    let planned = parse_application(&text).and_then(|create| plan_application(&create).map(drop));
    planned.map_or_else(|error| error.to_string(), |()| "no error".to_owned())
}

#[test]
fn words_of_the_language_are_names() {
    let mut wrong = String::new();
    for name in WORDS.split_whitespace() {
        for select in SELECTS.map(|select| select.replace("NAME", name)) {
            let mut tell = |what: &str, error: String| {
                if error != "no error" {
                    let _ = writeln!(wrong, "{what}: {select}\n  {error}");
                }
            };
            tell("application", application_error(&select, name));
            if !select.contains('$') {
                let source = format!(
                    "CREATE SOURCE t (ts TIMESTAMP EVENT TIME, {name} DOUBLE, other DOUBLE) FROM 'file:x' FORMAT CSV;"
                );
                tell("big query", big_query_error(&source, &select));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn other_words_need_quotes_and_are_told_so() {
    for name in ["select", "from", "where", "as", "and", "or", "not", "null", "case", "cast", "true", "distinct"] {
        let error = application_error("SELECT other FROM t", name);
        let hint = format!("hint: to use this word as a name, write it in double quotes: \"{name}\"");
        assert!(error.contains("column 23") && error.contains(&hint), "{error}");
        let quoted = format!("\"{name}\"");
        assert_eq!(application_error(&format!("SELECT {quoted} AS x FROM t"), &quoted), "no error");
    }
}

#[test]
fn what_could_be_read_without_such_names_is_read_as_it_was() {
    for name in ["from", "as", "qualify"] {
        for select in [
            "SELECT CASE WHEN other > 0 THEN t.NAME END AS x FROM t",
            "SELECT other AS x FROM t WHERE t.NAME IS NOT NULL",
            "SELECT CASE WHEN other > 0 THEN NAME END AS x FROM t",
            "SELECT other AS x FROM t WHERE NAME IS NOT NULL",
        ] {
            // Only this one of the words is no reserved one.
            if name != "qualify" && !select.contains("t.NAME") {
                continue;
            }
            let (select, quoted) = (select.replace("NAME", name), format!("\"{name}\""));
            assert_eq!(application_error(&select, &quoted), "no error", "{select}");
            let source = format!(
                "CREATE SOURCE t (ts TIMESTAMP EVENT TIME, {quoted} DOUBLE, other DOUBLE) FROM 'file:x' FORMAT CSV;"
            );
            assert_eq!(big_query_error(&source, &select), "no error", "{select}");
            assert_is_stored(&select);
        }
    }
    for name in ["output", "offset", "nulls", "asc"] {
        let source = format!("CREATE SOURCE {name} (ts TIMESTAMP EVENT TIME, x DOUBLE) FROM 'file:x' FORMAT CSV;");
        let select = format!(
            "SELECT window_start, count(*) AS n FROM TABLE(TUMBLE(TABLE {name}, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) \
             GROUP BY window_start, window_end"
        );
        assert_eq!(big_query_error(&source, &select), "no error", "{select}");
        assert_is_stored(&select);
    }
}

/// The query can be read from a catalog.
fn assert_is_stored(select: &str) {
    let stored = parse_stored(&format!("CREATE QUERY q AS {select} INTO s")).unwrap();
    assert!(stored.error.is_none(), "{select}: {:?}", stored.error);
}
