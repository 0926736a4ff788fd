//! `FOR SYSTEM_TIME AS OF` over random rows, against a search through all versions.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::differences;
use super::engine::{Course, planned, run};
use super::query::{Column, MIDNIGHT_US, SECOND_US, Table, Type, Value};

/// Rows a second apart, and out of order by less than the lateness.
const LATENESS_S: i64 = 8;

/// The columns of a row.
pub(super) const ID: usize = 0;
pub(super) const TIME: usize = 1;
pub(super) const KEY: usize = 2;
pub(super) const VALUE: usize = 3;
pub(super) const TEXT: usize = 4;

pub(super) type Row = Vec<Value>;

/// Rows of a few keys, each second at most one, some of them without key, value or text.
pub(super) fn table(name: &str, rows: i64, keys: i64, random: &mut StdRng) -> Table {
    let column = |name: &str, ty, nullable| Column { name: name.to_owned(), ty, nullable };
    let columns = vec![
        column("id", Type::Int, false),
        column("ts", Type::Time, false),
        column("k", Type::Int, true),
        column("v", Type::Int, true),
        column("s", Type::Text, true),
    ];
    let partitions = random.random_range(1..3_usize);
    let mut made: Vec<(i64, (usize, Row))> = Vec::new();
    for id in 0..rows {
        let second = id * 2 + random.random_range(0..2_i64);
        let mut nullable = |value: Value| if random.random_range(0..9) == 0 { Value::Null } else { value };
        let values = [Value::Int((id * 7 + second) % keys), Value::Int(second % 10), Value::Text(format!("{id}"))];
        let [key, value, text] = values.map(&mut nullable);
        let row = vec![Value::Int(id), Value::Time(MIDNIGHT_US + second * SECOND_US), key, value, text];
        let comes = second + random.random_range(0..LATENESS_S);
        made.push((comes, (random.random_range(0..partitions), row)));
    }
    made.sort_by_key(|(comes, _)| *comes);
    let rows = made.into_iter().map(|(_, row)| row).collect();
    Table { name: name.to_owned(), columns, rows, lateness_s: LATENESS_S }
}

/// The version of a key at a time.
fn version<'t>(versions: &'t Table, key: &Value, time: &Value) -> Option<&'t Row> {
    let rows = versions.rows.iter().map(|(_, row)| row);
    let held = rows.filter(|row| *key != Value::Null && row[KEY] == *key && row[TIME] <= *time);
    held.max_by_key(|row| row[TIME].clone())
}

pub(super) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(value) => Some(*value),
        _ => None,
    }
}

/// The value of a column of the version, or null.
fn of(version: Option<&Row>, column: usize) -> Value {
    version.map_or(Value::Null, |row| row[column].clone())
}

/// How often each row is in the answer.
pub(super) fn counted(rows: impl Iterator<Item = Row>) -> BTreeMap<Row, i64> {
    let mut counted = BTreeMap::new();
    rows.for_each(|row| *counted.entry(row).or_insert(0) += 1);
    counted
}

/// Queries, each with its answer.
fn queries(tables: &[Table]) -> Vec<(&'static str, BTreeMap<Row, i64>)> {
    let [a, b, c] = tables else { panic!("there are three tables") };
    let rows = || a.rows.iter().map(|(_, row)| row);
    let at = |row: &Row| version(b, &row[KEY], &row[TIME]);
    let greater = |value: &Value, than: i64| number(value).is_some_and(|value| value > than);
    let inner = rows().filter_map(|row| {
        let version = at(row)?;
        Some(vec![row[ID].clone(), row[TIME].clone(), version[TIME].clone(), version[VALUE].clone(), of(at(row), TEXT)])
    });
    let left = rows().map(|row| vec![row[ID].clone(), of(at(row), ID), of(at(row), VALUE)]);
    let left_if = rows().map(|row| {
        let fits = |version: &&Row| greater(&version[VALUE], 4) && greater(&row[VALUE], 1);
        vec![row[ID].clone(), of(at(row).filter(fits), ID), of(at(row).filter(fits), KEY)]
    });
    let filtered = rows().filter(|row| at(row).is_some_and(|version| greater(&version[VALUE], 4)));
    let filtered = filtered.map(|row| vec![row[ID].clone(), of(at(row), VALUE)]);
    let computed = rows().filter_map(|row| {
        let key = Value::Int(number(&row[KEY])? + 1);
        Some(vec![row[ID].clone(), version(b, &key, &row[TIME])?[ID].clone()])
    });
    let twice = rows().filter_map(|row| {
        let first = at(row)?;
        let second = version(c, &first[VALUE], &row[TIME]);
        Some(vec![row[ID].clone(), first[ID].clone(), of(second, ID), of(second, TEXT)])
    });
    let mut windows: BTreeMap<Row, i64> = BTreeMap::new();
    for row in rows().filter(|row| at(row).is_some()) {
        let Value::Time(us) = row[TIME] else { continue };
        let end = Value::Time((us.div_euclid(20 * SECOND_US) + 1) * 20 * SECOND_US);
        *windows.entry(vec![row[KEY].clone(), end]).or_insert(0) += 1;
    }
    let windows = windows.into_iter().map(|(mut row, rows)| {
        row.push(Value::Int(rows));
        row
    });
    vec![
        (
            "SELECT a.id, a.ts, r.ts AS since, r.v, r.s FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts AS r ON r.k = a.k",
            counted(inner),
        ),
        ("SELECT x.id, b.id AS r, b.v FROM a AS x LEFT JOIN b FOR SYSTEM_TIME AS OF x.ts ON x.k = b.k", counted(left)),
        (
            "SELECT a.id, r.id AS r, r.k FROM a LEFT JOIN b FOR SYSTEM_TIME AS OF ts AS r
                ON a.k = r.k AND r.v > 4 AND a.v > 1",
            counted(left_if),
        ),
        (
            "SELECT a.id, r.v FROM a LEFT JOIN b FOR SYSTEM_TIME AS OF a.ts AS r ON a.k = r.k WHERE r.v > 4",
            counted(filtered),
        ),
        ("SELECT a.id, r.id AS r FROM a, b FOR SYSTEM_TIME AS OF a.ts AS r WHERE r.k = a.k + 1", counted(computed)),
        (
            "SELECT a.id, r.id AS r, q.id AS q, q.s FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts AS r ON r.k = a.k
                LEFT JOIN c FOR SYSTEM_TIME AS OF a.ts AS q ON q.k = r.v",
            counted(twice),
        ),
        (
            "SELECT a.k, window_end, count(*) AS n FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts AS r ON r.k = a.k
                GROUP BY a.k, tumble(a.ts, INTERVAL '20 seconds')",
            counted(windows),
        ),
    ]
}

#[test]
fn rows_meet_the_version_of_their_time() {
    let mut wrong = Vec::new();
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let tables = [
            table("a", 90, 4, &mut random),
            table("b", random.random_range(5..80), 5, &mut random),
            table("c", 60, 10, &mut random),
        ];
        for (query, expected) in queries(&tables) {
            let plan = planned(query, &tables).unwrap_or_else(|error| panic!("{query}: {error}"));
            for (parallelism, batch_rows, restart) in
                [(1, 16, None), (3, 4, None), (2, 3, Some((150, 3))), (3, 2, Some((300, 1))), (1, 2, Some((60, 2)))]
            {
                let course = Course { seed, parallelism, batch_rows, rows_max: 32, restart, endless: false };
                match run(&plan, &tables, &course) {
                    Err(error) => wrong.push(format!("{query}\n  {course:?}: {error}")),
                    Ok(answered) => {
                        let is_right = answered.rows == expected && answered.refused.is_none();
                        if !is_right || answered.retractions > 0 {
                            let differences = differences(&expected, &answered.rows);
                            wrong.push(format!("{query}\n  {course:?}: {:?}\n{differences}", answered.refused));
                        }
                    }
                }
            }
            assert!(expected.len() > 3, "{query}: too little was tried");
        }
    }
    assert!(wrong.is_empty(), "{} are wrong\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

/// Versions may be results of windows: each holds from the end of its window on.
#[test]
fn results_of_windows_are_versions() {
    let mut random = StdRng::seed_from_u64(3);
    let tables = [table("a", 80, 3, &mut random), table("b", 80, 3, &mut random)];
    let query = "WITH w AS (SELECT k, count(*) AS n, window_end FROM b GROUP BY k, tumble(ts, INTERVAL '10 seconds'))
        SELECT a.id, w.n FROM a JOIN w FOR SYSTEM_TIME AS OF a.ts ON w.k = a.k";
    let mut windows: BTreeMap<(Value, i64), i64> = BTreeMap::new();
    for (_, row) in &tables[1].rows {
        let Value::Time(us) = row[TIME] else { continue };
        *windows.entry((row[KEY].clone(), (us.div_euclid(10 * SECOND_US) + 1) * 10 * SECOND_US)).or_insert(0) += 1;
    }
    let answer = tables[0].rows.iter().filter_map(|(_, row)| {
        let Value::Time(us) = row[TIME] else { return None };
        let held = windows.iter().filter(|((key, end), _)| *key != Value::Null && *key == row[KEY] && *end <= us);
        let ((_, _), rows) = held.max_by_key(|((_, end), _)| *end)?;
        Some(vec![row[ID].clone(), Value::Int(*rows)])
    });
    let expected = counted(answer);
    let plan = planned(query, &tables).unwrap();
    for (parallelism, restart) in [(1, None), (2, Some((150, 3))), (3, Some((200, 1)))] {
        let course = Course { seed: 5, parallelism, batch_rows: 3, rows_max: 32, restart, endless: false };
        let answered = run(&plan, &tables, &course).unwrap();
        assert_eq!(answered.rows, expected, "{course:?} {:?}", answered.refused);
    }
}
