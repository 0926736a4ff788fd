//! Statements made of the language's own words in random order: every one is planned or refused, none panics, and
//! every error stands inside the script.

use proptest::prelude::*;
use rivulet_sql::{Statement, parse_script, plan_application};

/// What SELECTs are made of. Some words are wrong on purpose.
const WORDS: [&str; 89] = [
    "v",
    "n",
    "ts",
    "d",
    "ok",
    "nope",
    "$p",
    "$q",
    "$w",
    "t",
    "x",
    "1",
    "0",
    "2.5",
    "1e9",
    "'a'",
    "'5'",
    "NULL",
    "TRUE",
    "*",
    "+",
    "-",
    "/",
    "%",
    "=",
    "<>",
    "<",
    ">=",
    "||",
    "~",
    ",",
    ",",
    "(",
    ")",
    "(",
    ")",
    ".",
    "::",
    "AND",
    "OR",
    "NOT",
    "IS",
    "IN",
    "LIKE",
    "BETWEEN",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "AS",
    "CAST",
    "DOUBLE",
    "TEXT",
    "INTERVAL",
    "'1 second'",
    "avg",
    "count",
    "sum",
    "min",
    "median",
    "percentile_cont",
    "first_value",
    "tumble",
    "hop",
    "session",
    "count_window",
    "window_start",
    "abs",
    "coalesce",
    "now",
    "DISTINCT",
    "FILTER",
    "WHERE",
    "GROUP",
    "BY",
    "HAVING",
    "FROM",
    "EMIT",
    "ON",
    "CHANGE",
    "ORDER",
    "JOIN",
    "OVER",
    "lag",
    "changed",
    "hysteresis",
    "PARTITION BY",
    "QUALIFY",
];

/// Pieces that are right by themselves, so that more than the parser is reached.
const PIECES: [&str; 35] = [
    "v",
    "n",
    "d",
    "ok",
    "$p",
    "$w",
    "1",
    "0.5",
    "'a'",
    "NULL",
    "avg(v)",
    "count(*)",
    "sum(n + 1)",
    "min(d)",
    "percentile_cont(v, 0.5)",
    "count(DISTINCT d)",
    "sum(v) FILTER (WHERE ok)",
    "abs(v)",
    "coalesce(v, $p)",
    "CASE WHEN ok THEN v ELSE $p END",
    "CAST(v AS BIGINT)",
    "d || 'x'",
    "upper(d)",
    "v > $p",
    "ok AND v < 3",
    "d LIKE 'a%'",
    "n IN (1, 2)",
    "v IS NULL",
    "window_end",
    "last_value(v)",
    "lag(v, 2)",
    "lag(d) OVER (PARTITION BY ok)",
    "changed(avg(v))",
    "hysteresis(v, 1, $p)",
    "hysteresis(count(*), $p, 3) OVER (PARTITION BY d, $p)",
];

/// What MATCH_RECOGNIZE is made of.
const PATTERN_WORDS: [&str; 62] = [
    "MEASURES",
    "PATTERN (",
    "DEFINE",
    "WITHIN",
    "AFTER MATCH SKIP",
    "TO NEXT ROW",
    "TO LAST",
    "PAST LAST ROW",
    "ONE ROW PER MATCH",
    "PARTITION BY",
    "ORDER BY",
    "SUBSET",
    "ALL ROWS",
    "A",
    "B",
    "c",
    "A",
    "B",
    "(",
    ")",
    "(",
    ")",
    "|",
    "+",
    "*",
    "?",
    "??",
    "+?",
    "{2}",
    "{2,}",
    "{,3}",
    "{9,1}",
    "{1,99999999}",
    "^",
    "$w",
    "$p",
    "v",
    "d",
    "ts",
    "n",
    "A.v",
    "B.n",
    "C.v",
    "LAST(A.v)",
    "FIRST(v, 2)",
    "PREV(v)",
    "avg(A.v)",
    "count(*)",
    "count(B.*)",
    "sum(n)",
    "CLASSIFIER()",
    "MATCH_NUMBER()",
    "RUNNING",
    "AS",
    "AS",
    ",",
    ",",
    ">",
    "=",
    "AND",
    "INTERVAL '1 second'",
    "1",
];

/// Conditions and measures that are right by themselves.
const PATTERN_PIECES: [&str; 22] = [
    "v > 1",
    "A.v > $p",
    "B.v > A.v",
    "LAST(B.v, 2) < FIRST(v)",
    "PREV(v, 3) = v",
    "avg(A.v) > B.v",
    "count(*) < 5",
    "count(B.*) > 1 AND ok",
    "max(ts) > ts",
    "CLASSIFIER() = 'a'",
    "A.d LIKE 'x%' OR B.ok",
    "lag(v) > 1",
    "stddev(A.v) > 1",
    "LAST(A.v + B.v) > 1",
    "v / (n - 1) > PREV(n)",
    "NOT A.ok",
    "v",
    "A.d || LAST(B.d)",
    "sum(A.n) - sum(B.n)",
    "LAST(ts) - FIRST(ts)",
    "MATCH_NUMBER() * $p",
    "LAST(arrival_time)",
];

const WINDOWS: [&str; 6] = [
    "tumble(ts, $w)",
    "hop(ts, INTERVAL '1 second', $w)",
    "session(ts, INTERVAL '2 seconds')",
    "count_window(3)",
    "count_window(n)",
    "tumble(ts, $p)",
];

fn statement(select: &str) -> String {
    format!(
        "CREATE APPLICATION a (p DOUBLE DEFAULT 1, w INTERVAL DEFAULT INTERVAL '5 seconds')\n\
         INPUT t (ts TIMESTAMP EVENT TIME, d TEXT, v DOUBLE, n BIGINT, ok BOOLEAN) FROM 'mqtt:i' FORMAT JSON\n\
         OUTPUT 'mqtt:o' FORMAT JSON AS\n{select}"
    )
}

/// Plans a script; whether all of it could be.
fn check(script: &str) -> Result<bool, TestCaseError> {
    let planned = parse_script(script).and_then(|statements| {
        statements.iter().try_for_each(|(statement, _)| match statement {
            Statement::CreateApplication(create) => plan_application(create).map(|application| {
                // What is planned can be explained and instantiated.
                application.explain();
                application.dataflow.chain();
            }),
            _ => Ok(()),
        })
    });
    let Err(error) = planned else { return Ok(true) };
    let lines: Vec<&str> = script.split('\n').collect();
    let line = (error.line as usize).checked_sub(1).and_then(|line| lines.get(line));
    prop_assert!(line.is_some(), "line of: {error}\n{script}");
    let width = line.unwrap().chars().count();
    prop_assert!((1..=width + 1).contains(&(error.column as usize)), "column of: {error}\n{script}");
    // No jargon of the libraries below.
    for word in ["Utf8", "Int64", "Float64", "Expr", "Span(", "PhysicalExpr", "Internal error", "Arrow"] {
        prop_assert!(!error.to_string().contains(word), "{error}\n{script}");
    }
    error.render(script);
    Ok(false)
}

/// At least 2000 cases; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: default.cases.max(2000), failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn words_in_any_order(words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..24)) {
        check(&statement(&format!("SELECT {} FROM t", words.join(" "))))?;
        check(&statement(&format!("SELECT v FROM t {}", words.join(" "))))?;
    }

    #[test]
    fn statements_with_a_part_missing(from in 0usize..400, length in 0usize..40) {
        let script = statement("SELECT d, avg(v) AS a FROM t WHERE v > $p GROUP BY hop(ts, INTERVAL '1 second', $w), d HAVING count(*) > 2 EMIT ON CHANGE");
        let kept: String = script.chars().enumerate().filter(|(at, _)| !(from..from + length).contains(at)).map(|(_, one)| one).collect();
        check(&kept)?;
    }

    #[test]
    fn patterns_of_words_in_any_order(words in prop::collection::vec(prop::sample::select(&PATTERN_WORDS[..]), 0..24)) {
        let words = words.join(" ");
        check(&statement(&format!("SELECT * FROM t MATCH_RECOGNIZE ({words})")))?;
        check(&statement(&format!("SELECT * FROM t MATCH_RECOGNIZE (MEASURES A.v AS x PATTERN (A {words}) DEFINE A AS v > 1)")))?;
        check(&statement(&format!("SELECT * FROM t MATCH_RECOGNIZE (MEASURES A.v AS x PATTERN (A B) DEFINE A AS {words}")))?;
    }

    #[test]
    fn any_text(text in "\\PC{0,60}") {
        check(&text)?;
        check(&statement(&text))?;
    }
}

#[test]
fn right_pieces_in_any_combination() {
    let mut runner = proptest::test_runner::TestRunner::new(config());
    let piece = || prop::sample::select(&PIECES[..]);
    let operator = prop::sample::select(vec!["+", "=", "AND", "||", ">", "%", "OR"]);
    let strategy = (
        piece(),
        operator,
        piece(),
        piece(),
        piece(),
        prop::option::of(prop::sample::select(&WINDOWS[..])),
        any::<[bool; 4]>(),
    );
    let planned = std::cell::Cell::new(0u32);
    runner
        .run(&strategy, |(a, operator, b, c, condition, window, [joined, filtered, keyed, qualified])| {
            let first = if joined { format!("({a}) {operator} ({b})") } else { a.to_owned() };
            let mut select = format!("SELECT {first} AS one, {c} AS two FROM t");
            if filtered {
                select.push_str(&format!(" WHERE {condition}"));
            }
            if let Some(window) = window {
                select.push_str(&format!(" GROUP BY {window}"));
                if keyed {
                    select.push_str(&format!(", {c}"));
                }
            }
            if qualified {
                select.push_str(&format!(" QUALIFY {condition} OR changed(one)"));
            }
            if window.is_some() {
                select.push_str(" EMIT ON CHANGE");
            }
            planned.set(planned.get() + u32::from(check(&statement(&select))?));
            Ok(())
        })
        .unwrap();
    // The test means nothing if all of them are refused.
    assert!(planned.get() > 100, "only {} were planned", planned.get());
}

#[test]
fn right_pieces_of_patterns_in_any_combination() {
    let mut runner = proptest::test_runner::TestRunner::new(config());
    let piece = || prop::sample::select(&PATTERN_PIECES[..]);
    let pattern = prop::sample::select(vec!["A B", "A+ B*?", "(A | B){2,4}", "A ANY*? B", "((A? B)+ | ANY A)"]);
    let clauses = (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY);
    let planned = std::cell::Cell::new(0u32);
    runner
        .run(&(piece(), piece(), piece(), pattern, clauses), |(a, b, measure, pattern, (keyed, within, skips))| {
            let keys = if keyed { "PARTITION BY d" } else { "" };
            let within = if within { "WITHIN $w" } else { "" };
            let skip = if skips { "AFTER MATCH SKIP TO LAST B" } else { "" };
            let select = format!(
                "SELECT * FROM t MATCH_RECOGNIZE ({keys} MEASURES {measure} AS one {skip} \
                 PATTERN ({pattern}) {within} DEFINE A AS {a}, B AS {b})"
            );
            planned.set(planned.get() + u32::from(check(&statement(&select))?));
            Ok(())
        })
        .unwrap();
    assert!(planned.get() > 100, "only {} were planned", planned.get());
}

#[test]
fn the_deepest_expressions_that_are_accepted_are_planned_on_a_small_stack() {
    let run = || {
        for deep in [
            format!("v{}", " + n".repeat(199)),
            format!("{}ok", "NOT ".repeat(40)),
            format!("CASE WHEN ok{} THEN 1 END", " AND v > 1".repeat(99)),
            format!("{}v{}", "abs(".repeat(20), ")".repeat(20)),
            format!("{}v{}", "(".repeat(20), ")".repeat(20)),
            format!("{}v{}", "CASE WHEN ok THEN ".repeat(12), " END".repeat(12)),
            format!("d{}", " || 'x'".repeat(199)),
            format!("sum(v{})", " * n".repeat(199)),
            format!("changed(v{})", " * n".repeat(199)),
        ] {
            let window = if deep.starts_with("sum") { " GROUP BY tumble(ts, $w)" } else { "" };
            // QUALIFY may use the name, so that the expression is as deep as both.
            let qualify = if deep.contains("changed") { "" } else { " QUALIFY changed(CAST(deep AS TEXT) || 'x')" };
            let select = format!("SELECT {deep} AS deep FROM t{window}{qualify}");
            let pattern = |measure: &str, condition: &str| {
                format!(
                    "SELECT * FROM t MATCH_RECOGNIZE (MEASURES {measure} AS deep PATTERN (A B) DEFINE B AS {condition})"
                )
            };
            let mut selects = vec![select];
            if !deep.contains("changed") {
                selects.push(pattern(&deep, "ok"));
                selects.push(pattern("v", &format!("({deep}) IS NULL")));
            }
            for select in selects {
                let script = statement(&select);
                let application = rivulet_sql::parse_application(&script).and_then(|create| plan_application(&create));
                assert!(application.is_ok(), "{}", application.unwrap_err().render(&script));
            }
        }
    };
    // The stack that threads commonly have, and half of it to spare.
    std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap();
}
