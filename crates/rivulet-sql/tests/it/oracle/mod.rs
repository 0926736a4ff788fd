//! Random big queries over random rows: the engine, at several parallelisms, with batches of several sizes and with a
//! checkpoint and a restart in the middle, against an interpreter that shares no code with it.
//!
//! In reading order: [`query`]: queries as trees, and how they are written; [`generate`]: random ones; [`interpret`]:
//! what the answer is; [`nulls`]: random joins and subqueries over tables full of nulls; [`engine`]: what the engine
//! answers; [`shrink`]: the least that fails; [`bounds`], [`restarts`], [`versions`], [`patterns`] and
//! [`null_answers`]: queries whose answer is known without an interpreter.
//!
//! `RIVULET_ORACLE_QUERIES` says how many queries are tried, `RIVULET_ORACLE_SEED` with which seed they begin. With
//! `RIVULET_ORACLE_FOLDER` each of them is written to a file there, in the words of DuckDB: its rows, the query, and
//! the engine's answer to compare.

mod bounds;
mod engine;
mod generate;
mod interpret;
mod null_answers;
mod nulls;
mod patterns;
mod query;
mod restarts;
mod shrink;
mod versions;

use std::collections::BTreeMap;
use std::fmt::Write;

use engine::{Answered, Course, planned, run};
use generate::{Case, case};
use query::{Dialect, MIDNIGHT_US, Query, Table, Value, literal, sql};

/// Queries that are tried when nobody says how many.
const QUERIES: u64 = 400;
/// Differences that are made small and told.
const TOLD_MAX: usize = 5;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

/// What came of a case.
enum Outcome {
    /// The planner does not take it, and why.
    Refused(String),
    /// The interpreter has no answer to it.
    Unknown,
    Same(Answered),
    Different(String),
}

fn text_of(query: &Query) -> String {
    sql(query, Dialect::Rivulet).expect("it has words for everything")
}

fn tried(case: &Case) -> Outcome {
    let plan = match planned(&text_of(&case.query), &case.tables) {
        Ok(plan) => plan,
        Err(error) => return Outcome::Refused(error),
    };
    let Ok(expected) = interpret::answer(&case.query, &case.tables) else { return Outcome::Unknown };
    let mut counted: BTreeMap<Vec<Value>, i64> = BTreeMap::new();
    expected.into_iter().for_each(|row| *counted.entry(row).or_insert(0) += 1);
    let mut last = None;
    for course in &case.courses {
        match run(&plan, &case.tables, course) {
            Err(error) => return Outcome::Different(format!("{course:?}: {error}")),
            Ok(answered) if answered.refused.is_some() => {
                return Outcome::Different(format!("{course:?}: {:?}", answered.refused));
            }
            Ok(answered) if answered.rows != counted => {
                return Outcome::Different(format!("{course:?}\n{}", differences(&counted, &answered.rows)));
            }
            Ok(answered) => last = Some(answered),
        }
    }
    last.map_or(Outcome::Unknown, Outcome::Same)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Time(us) => query::written_time(*us)[11..].to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Text(text) => format!("'{text}'"),
        Value::Mean(text) => text.clone(),
    }
}

fn shown_row(row: &[Value]) -> String {
    row.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn differences(expected: &BTreeMap<Vec<Value>, i64>, found: &BTreeMap<Vec<Value>, i64>) -> String {
    let mut text = String::new();
    for row in expected.keys().chain(found.keys().filter(|row| !expected.contains_key(*row))) {
        let times = |rows: &BTreeMap<Vec<Value>, i64>| rows.get(row).copied().unwrap_or(0);
        if times(expected) != times(found) {
            let _ = writeln!(text, "  ({}): {} expected, {} found", shown_row(row), times(expected), times(found));
        }
    }
    text
}

/// A case as a person reads it.
fn written(case: &Case) -> String {
    let mut text = String::new();
    for table in &case.tables {
        if !table.rows.is_empty() {
            let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
            let _ = writeln!(text, "{} ({}), lateness {} s", table.name, names.join(", "), table.lateness_s);
        }
        for (partition, row) in &table.rows {
            let _ = writeln!(text, "  {partition}: {}", shown_row(row));
        }
    }
    let _ = writeln!(text, "{}", text_of(&case.query));
    text
}

/// The reason without the names in it, to count by.
fn kind_of(refusal: &str) -> String {
    let line = refusal.lines().next().unwrap_or_default();
    let line = line.split(" at ").last().unwrap_or_default();
    line.chars().filter(|c| !c.is_ascii_digit()).take(90).collect()
}

#[test]
fn random_queries_answer_as_an_interpreter_does() {
    let [queries, same, with_rows, changing] = compared("", case);
    assert!(same * 2 > queries && with_rows * 3 > queries && changing * 16 > queries, "too little was tried");
}

#[test]
fn joins_and_subqueries_over_nulls_answer_as_an_interpreter_does() {
    let [queries, same, with_rows, changing] = compared("nulls_", nulls::case);
    assert!(same * 2 > queries && with_rows * 4 > queries && changing * 16 > queries, "too little was tried");
}

/// Compares the answers to as many queries as are wanted. Returns how many these are, to how many the answer is the
/// same, and how many of these have rows, and rows that are taken back. Names of files begin with `name`.
fn compared(name: &str, case: impl Fn(u64) -> Case) -> [u64; 4] {
    let first = number("RIVULET_ORACLE_SEED", 1);
    let queries = number("RIVULET_ORACLE_QUERIES", QUERIES);
    let folder = std::env::var_os("RIVULET_ORACLE_FOLDER").map(std::path::PathBuf::from);
    let mut refusals: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let (mut same, mut unknown, mut with_rows, mut changing) = (0, 0, 0, 0);
    let mut wrong = Vec::new();
    for seed in first..first + queries {
        let case = case(seed);
        match tried(&case) {
            Outcome::Refused(error) => {
                refusals.entry(kind_of(&error)).or_insert((0, format!("{error}\n    {}", text_of(&case.query)))).0 += 1;
            }
            Outcome::Unknown => unknown += 1,
            Outcome::Same(answered) => {
                same += 1;
                with_rows += u64::from(!answered.rows.is_empty());
                changing += u64::from(answered.retractions > 0);
                if let Some(folder) = &folder
                    && let Some(text) = for_another_engine(&case, &answered)
                {
                    std::fs::write(folder.join(format!("{name}{seed}.sql")), text).expect("the folder is there");
                }
            }
            Outcome::Different(_) => {
                let least = shrink::least(&case, |case| matches!(tried(case), Outcome::Different(_)));
                let Outcome::Different(difference) = tried(&least) else { panic!("seed {seed} fails now and then") };
                wrong.push(format!("seed {seed}:\n{}{difference}", written(&least)));
                if wrong.len() == TOLD_MAX {
                    break;
                }
            }
        }
    }
    let refused: u64 = refusals.values().map(|refusal| refusal.0).sum();
    eprintln!("{same} the same, {with_rows} of them with rows, {changing} with rows taken back");
    eprintln!("{refused} refused, {unknown} without answer");
    if std::env::var_os("RIVULET_ORACLE_SEED").is_some() {
        refusals.iter().for_each(|(kind, (times, first))| eprintln!("{times} times {kind}\n    {first}"));
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
    [queries, same, with_rows, changing]
}

/// What random queries have found.
#[test]
fn a_condition_over_one_row_of_nothing_is_a_condition_over_that_row() {
    let tables = case(1).tables;
    let constants = "SELECT TIMESTAMP '2026-01-01 00:01:30' AS x, 7 AS y, m FROM (SELECT max(v) AS m FROM a) AS t";
    for (condition, rows) in [("NOT (x >= x)", 0), ("y < 5", 0), ("y > 5", 1), ("y > 5 AND x <> x", 0)] {
        let plan = planned(&format!("SELECT m FROM ({constants}) AS q WHERE {condition}"), &tables).unwrap();
        for course in case(1).courses {
            let answered = run(&plan, &tables, &course).unwrap();
            assert_eq!(answered.rows.values().sum::<i64>(), rows, "{condition}: {answered:?}");
        }
    }
}

/// The two sides of a join that pairs nothing become a union, whose columns have the names of both sides.
#[test]
fn columns_of_one_name_are_found_behind_a_union() {
    let tables = case(1).tables;
    for (query, same) in [
        (
            "SELECT a.v AS x, b.v AS y, c.v AS z FROM a FULL JOIN b ON a.k = b.k AND 3 < -1 JOIN c ON b.id = c.id",
            "SELECT CAST(NULL AS BIGINT) AS x, b.v AS y, c.v AS z FROM b JOIN c ON b.id = c.id",
        ),
        (
            "SELECT b.k AS x, count(b.v) AS n FROM a FULL JOIN b ON a.k = b.k AND 1 = 0 GROUP BY b.k",
            "SELECT x, sum(n) AS n FROM (SELECT k AS x, count(v) AS n FROM b GROUP BY k \
             UNION ALL SELECT CAST(NULL AS BIGINT) AS x, CAST(0 AS BIGINT) AS n FROM a WHERE id = 0) AS t GROUP BY x",
        ),
        (
            "SELECT y FROM (SELECT a.v, b.v FROM a JOIN b ON a.id = b.id UNION ALL SELECT c.v, c.k FROM c) AS t (x, y)",
            "SELECT b.v AS y FROM a JOIN b ON a.id = b.id UNION ALL SELECT k AS y FROM c",
        ),
        (
            "SELECT y, count(*) AS n FROM (SELECT a.v, b.v FROM a JOIN b ON a.id = b.id UNION SELECT c.v, c.k FROM c) \
             AS t (x, y) GROUP BY y",
            "SELECT y, count(*) AS n FROM (SELECT a.v AS x, b.v AS y FROM a JOIN b ON a.id = b.id \
             UNION SELECT c.v AS x, c.k AS y FROM c) AS t GROUP BY y",
        ),
    ] {
        let planned = |query: &str| planned(query, &tables).unwrap_or_else(|error| panic!("{query}: {error}"));
        let (plan, expected) = (planned(query), planned(same));
        for course in case(1).courses {
            let (found, expected) = (run(&plan, &tables, &course), run(&expected, &tables, &course));
            assert_eq!(found.unwrap().rows, expected.unwrap().rows, "{query}");
        }
    }
}

/// A value of the outer query that is compared with itself says whether it is null.
#[test]
fn a_value_of_the_outer_query_may_be_compared_with_itself() {
    let tables = case(1).tables;
    let query = |asked: &str, selected: &str, condition: &str| {
        format!("SELECT id, s FROM a WHERE {asked} (SELECT {selected} FROM b WHERE a.j = b.k AND {condition})")
    };
    for (asked, selected) in [("NOT EXISTS", "1"), ("EXISTS", "1"), ("k IN", "b.v")] {
        let answers = ["a.s = a.s", "a.s IS NOT NULL", "b.id = b.id"].map(|condition| {
            let query = query(asked, selected, condition);
            let plan = planned(&query, &tables).unwrap_or_else(|error| panic!("{query}: {error}"));
            let rows = |course: &Course| run(&plan, &tables, course).unwrap().rows;
            case(1).courses.iter().map(rows).collect::<Vec<_>>()
        });
        assert_eq!(answers[0], answers[1], "{asked}");
        assert_ne!(answers[0], answers[2], "{asked}: there are nulls that are found");
    }
}

/// Which side of a comparison a constant stands on says nothing.
#[test]
fn a_constant_may_stand_on_either_side_of_a_condition() {
    let tables = case(1).tables;
    for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
        for (one, other) in [
            ("a.k = 2", "2 = a.k"),
            ("b.k = 2", "2 = b.k"),
            ("b.k > 1 AND a.k >= 1", "1 < b.k AND 1 <= a.k"),
            ("a.k < 2 AND b.k <= 2", "2 > a.k AND b.k <= 2"),
            ("a.k = 2 AND b.k = 2 AND a.v <> 1", "2 = a.k AND b.k = 2 AND 1 <> a.v"),
        ] {
            let rows = [one, other].map(|condition| {
                let query = format!("SELECT a.id AS x, b.id AS y FROM a {join} b ON a.k = b.k AND {condition}");
                let plan = planned(&query, &tables).unwrap_or_else(|error| panic!("{query}: {error}"));
                let rows = |course: &Course| run(&plan, &tables, course).unwrap().rows;
                case(1).courses.iter().map(rows).collect::<Vec<_>>()
            });
            assert_eq!(rows[0], rows[1], "{join} {one}");
            let is_pair = |row: &&Vec<Value>| !row.contains(&Value::Null);
            assert!(rows[0].iter().all(|rows| rows.keys().any(|row| is_pair(&row))), "{join} {one}: there are pairs");
        }
    }
}

/// Sessions of two keys may end together and begin apart. A group by the end is one group, whatever an aggregate reads.
#[test]
fn sessions_that_end_together_are_one_group_of_their_end() {
    let second = |second: i64| Value::Time(MIDNIGHT_US + second * 1_000_000);
    let rows = [(1, 39, true), (2, 39, false), (3, 38, false), (4, 50, true), (5, 61, false), (6, 62, true)];
    let mut tables = case(1).tables;
    let table = tables.iter_mut().find(|table| table.name == "c").expect("there is one");
    let columns: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
    let row = |(id, at, key): (i64, i64, bool)| {
        let value = |name: &String| match name.as_str() {
            "id" => Value::Int(id),
            "ts" => second(at),
            "f" => Value::Bool(key),
            _ => Value::Null,
        };
        (0, columns.iter().map(value).collect())
    };
    table.rows = rows.into_iter().map(row).collect();
    let sessions = "SELECT window_start AS s, window_end AS e FROM c GROUP BY f, session(ts, INTERVAL '5 seconds')";
    let late = "TIMESTAMP '2026-01-01 00:00:39'";
    for query in [
        format!("SELECT count(*) AS n, count(*) FILTER (WHERE s >= {late}) AS m FROM ({sessions}) AS t GROUP BY e"),
        format!("SELECT count(*) AS n, count(CASE WHEN s >= {late} THEN 1 END) AS m FROM ({sessions}) AS t GROUP BY e"),
    ] {
        let plan = planned(&query, &tables).unwrap_or_else(|error| panic!("{query}: {error}"));
        for course in case(1).courses {
            let answered = run(&plan, &tables, &course).unwrap();
            let expected = [([2, 1], 1), ([1, 1], 3)].map(|(row, times)| (row.map(Value::Int).to_vec(), times));
            assert_eq!(answered.rows, BTreeMap::from(expected), "{query}");
        }
    }
}

/// Views over views that each make a text ten times as long do not take memory by that: rows are refused.
#[test]
fn a_text_that_grows_from_view_to_view_is_refused() {
    let tables = case(1).tables;
    let longer = ["x"; 10].join(" || ");
    let grown = (0..12).fold("SELECT id, s AS x FROM a".to_owned(), |inner, view| {
        format!("SELECT id, {longer} AS x FROM ({inner}) AS t{view}")
    });
    let plan = planned(&format!("SELECT id, octet_length(x) AS n FROM ({grown}) AS t"), &tables).unwrap();
    let is_short =
        |row: &&(usize, Vec<Value>)| matches!(&row.1[5], Value::Null) || row.1[5] == Value::Text(String::new());
    let short = tables[0].rows.iter().filter(is_short).count() as i64;
    assert!(short > 0 && short < tables[0].rows.len() as i64, "there are texts of both kinds");
    for course in case(1).courses {
        let answered = run(&plan, &tables, &course).unwrap();
        assert!(answered.refused.as_ref().is_some_and(|why| why.contains("the text from ||")), "{answered:?}");
        // A restart counts anew, so only those that came out are compared.
        assert_eq!(answered.rows.values().sum::<i64>(), short, "{answered:?}");
    }
}

/// Tables, the query and the engine's answer as SQL of another engine: of the rows that come out of it, the difference
/// to the answer.
fn for_another_engine(case: &Case, answered: &Answered) -> Option<String> {
    let mut text = String::new();
    for Table { name, columns, rows, .. } in &case.tables {
        let declared = columns.iter().map(|column| {
            let null = literal(&Value::Null, column.ty);
            format!("{} {}", column.name, null.trim_start_matches("CAST(NULL AS ").trim_end_matches(')'))
        });
        let _ = writeln!(text, "CREATE OR REPLACE TABLE {name} ({});", declared.collect::<Vec<_>>().join(", "));
        let rows = rows.iter().map(|(_, row)| {
            let values = row.iter().zip(columns).map(|(value, column)| literal(value, column.ty));
            format!("({})", values.collect::<Vec<_>>().join(", "))
        });
        let rows = rows.collect::<Vec<_>>().join(", ");
        if !rows.is_empty() {
            let _ = writeln!(text, "INSERT INTO {name} VALUES {rows};");
        }
    }
    let _ = writeln!(text, "-- query\n{}", sql(&case.query, Dialect::DuckDb)?);
    text.push_str("-- answer\n");
    for (row, times) in &answered.rows {
        (0..*times).for_each(|_| _ = writeln!(text, "{}", row.iter().map(plain).collect::<Vec<_>>().join("|")));
    }
    Some(text)
}

/// A value as it is compared with another engine's.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "\\N".into(),
        Value::Time(us) => query::written_time(*us),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Text(text) | Value::Mean(text) => text.clone(),
    }
}
