//! MATCH_RECOGNIZE over random rows, against loops that find the same by hand.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::differences;
use super::engine::{Course, planned, run};
use super::query::{MIDNIGHT_US, SECOND_US, Table, Value};
use super::versions::{ID, KEY, Row, TEXT, TIME, VALUE, counted, number, table};

/// The rows of each key, in order of time.
fn by_key(table: &Table) -> BTreeMap<Value, Vec<&Row>> {
    let mut keys: BTreeMap<Value, Vec<&Row>> = BTreeMap::new();
    table.rows.iter().for_each(|(_, row)| keys.entry(row[KEY].clone()).or_default().push(row));
    keys.values_mut().for_each(|rows| rows.sort_by_key(|row| row[TIME].clone()));
    keys
}

fn value(row: &Row) -> Option<i64> {
    number(&row[VALUE])
}

fn time_us(row: &Row) -> i64 {
    let Value::Time(us) = row[TIME] else { panic!("a row without a time") };
    us
}

/// `A B+ WITHIN 12 seconds` with A greater than 5 and B at most 5: key, first row, number of B, last text of B.
fn high_and_low(table: &Table) -> BTreeMap<Row, i64> {
    let mut found = Vec::new();
    for (key, rows) in by_key(table) {
        let mut at = 0;
        while at < rows.len() {
            let low = rows[at + 1..].iter().take_while(|row| {
                value(row).is_some_and(|value| value <= 5) && time_us(row) < time_us(rows[at]) + 12 * SECOND_US
            });
            match (value(rows[at]).is_some_and(|value| value > 5), low.count()) {
                (true, low) if low > 0 => {
                    let text = rows[at + low][TEXT].clone();
                    found.push(vec![key.clone(), rows[at][ID].clone(), Value::Int(low as i64), text]);
                    at += low + 1;
                }
                _ => at += 1,
            }
        }
    }
    counted(found.into_iter())
}

/// `A D+ U+`: a fall and then a rise. Key, first, lowest and last row. Behind a match it goes on with the row after the
/// first, or the last.
fn fall_and_rise<'t>(parts: impl IntoIterator<Item = (Value, Vec<&'t Row>)>, to_next_row: bool) -> BTreeMap<Row, i64> {
    let mut found = Vec::new();
    for (key, rows) in parts {
        let moves = |at: usize, falls: bool| {
            let (Some(before), Some(now)) = (value(rows[at - 1]), value(rows[at])) else { return false };
            if falls { now < before } else { now > before }
        };
        let mut at = 0;
        while at < rows.len() {
            let low = (at + 1..rows.len()).take_while(|&next| moves(next, true)).last();
            let last = low.and_then(|low| (low + 1..rows.len()).take_while(|&next| moves(next, false)).last());
            at = match (low, last) {
                (Some(low), Some(last)) => {
                    let ids = [at, low, last].map(|row| rows[row][ID].clone());
                    found.push([vec![key.clone()], ids.to_vec()].concat());
                    if to_next_row { at + 1 } else { last + 1 }
                }
                _ => at + 1,
            };
        }
    }
    counted(found.into_iter())
}

#[test]
fn matches_are_found_in_each_partition_in_order_of_time() {
    let fall = "DEFINE D AS D.v < PREV(D.v), U AS U.v > PREV(U.v)";
    let mut wrong = Vec::new();
    for seed in 0..10 {
        let mut random = StdRng::seed_from_u64(seed);
        let tables = [table("a", random.random_range(60..130), 4, &mut random)];
        let all = || {
            let mut rows: Vec<&Row> = tables[0].rows.iter().map(|(_, row)| row).collect();
            rows.sort_by_key(|row| row[TIME].clone());
            [(Value::Int(0), rows)]
        };
        let queries = [
            (
                "SELECT m.k, m.first, m.low, m.s FROM a MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
                    MEASURES A.id AS first, count(B.id) AS low, LAST(B.s) AS s ONE ROW PER MATCH
                    AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+) WITHIN INTERVAL '12 seconds'
                    DEFINE A AS v > 5, B AS v <= 5) AS m"
                    .to_owned(),
                high_and_low(&tables[0]),
            ),
            (
                format!(
                    "SELECT k, first, low, last FROM a MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
                    MEASURES A.id AS first, LAST(D.id) AS low, LAST(U.id) AS last PATTERN (A D+ U+) {fall})"
                ),
                fall_and_rise(by_key(&tables[0]), false),
            ),
            (
                format!(
                    "SELECT k, first, low, last FROM (SELECT k, id, ts, v FROM a) MATCH_RECOGNIZE (
                    PARTITION BY k MEASURES A.id AS first, LAST(D.id) AS low, LAST(U.id) AS last
                    AFTER MATCH SKIP TO NEXT ROW PATTERN (A D+ U+) {fall}) AS m WHERE first >= 0"
                ),
                fall_and_rise(by_key(&tables[0]), true),
            ),
            (
                format!(
                    "SELECT 0 AS k, first, low, last FROM a MATCH_RECOGNIZE (
                    MEASURES A.id AS first, LAST(D.id) AS low, LAST(U.id) AS last PATTERN (A D+ U+) {fall})"
                ),
                fall_and_rise(all(), false),
            ),
        ];
        for (query, expected) in queries {
            let plan = planned(&query, &tables).unwrap_or_else(|error| panic!("{query}: {error}"));
            for (parallelism, batch_rows, restart) in
                [(1, 16, None), (3, 4, None), (2, 3, Some((120, 3))), (3, 2, Some((200, 1))), (1, 2, Some((60, 2)))]
            {
                let course = Course { seed, parallelism, batch_rows, rows_max: 32, restart, endless: false };
                match run(&plan, &tables, &course) {
                    Ok(answered) if answered.rows == expected && answered.refused.is_none() => {}
                    Ok(answered) => wrong.push(format!(
                        "{query}\n  {course:?}: {:?}\n{}",
                        answered.refused,
                        differences(&expected, &answered.rows)
                    )),
                    Err(error) => wrong.push(format!("{query}\n  {course:?}: {error}")),
                }
            }
            assert!(expected.len() > 3, "{query}: too little was tried");
        }
    }
    assert!(wrong.is_empty(), "{} are wrong\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
}

/// Rows of one time are in an order of their own, whichever comes first.
#[test]
fn rows_of_one_time_are_matched_in_one_order() {
    let mut random = StdRng::seed_from_u64(11);
    let mut tables = [table("a", 200, 3, &mut random)];
    for (_, row) in &mut tables[0].rows {
        let second = (time_us(row) - MIDNIGHT_US) / SECOND_US;
        row[TIME] = Value::Time(MIDNIGHT_US + second / 8 * 8 * SECOND_US);
    }
    let query = "SELECT k, n, first, last FROM a MATCH_RECOGNIZE (PARTITION BY k
        MEASURES count(*) AS n, A.id AS first, LAST(B.id) AS last PATTERN (A B B*) WITHIN INTERVAL '30 seconds'
        DEFINE A AS v < 7, B AS B.v >= PREV(B.v))";
    let plan = planned(query, &tables).unwrap();
    let mut first = None;
    for seed in 0..12 {
        let restart = (seed % 2 == 0).then_some((100 + seed as usize * 10, 1 + seed as usize % 3));
        let parallelism = 1 + seed as usize % 3;
        let course = Course { seed, parallelism, batch_rows: 1 + seed as usize, rows_max: 32, restart, endless: false };
        let rows = run(&plan, &tables, &course).unwrap().rows;
        assert!(rows.len() > 10);
        assert_eq!(*first.get_or_insert_with(|| rows.clone()), rows, "{course:?}");
    }
}

/// Matches among results of windows, in order of the ends of windows.
#[test]
fn matches_are_found_in_results_of_windows() {
    let mut random = StdRng::seed_from_u64(4);
    let tables = [table("a", 200, 2, &mut random)];
    let query = "WITH w AS (SELECT k, sum(v) AS v, window_end FROM a GROUP BY k, tumble(ts, INTERVAL '10 seconds'))
        SELECT k, before, after, at FROM w MATCH_RECOGNIZE (PARTITION BY k ORDER BY window_end
            MEASURES A.v AS before, B.v AS after, B.window_end AS at PATTERN (A B) DEFINE B AS B.v > A.v)";
    let mut found = Vec::new();
    for (key, rows) in by_key(&tables[0]) {
        let mut windows: BTreeMap<i64, Option<i64>> = BTreeMap::new();
        for row in rows {
            let end = (time_us(row).div_euclid(10 * SECOND_US) + 1) * 10 * SECOND_US;
            let sum = windows.entry(end).or_insert(None);
            *sum = value(row).map(|value| sum.unwrap_or(0) + value).or(*sum);
        }
        let windows: Vec<(i64, Option<i64>)> = windows.into_iter().collect();
        let mut at = 0;
        while at + 1 < windows.len() {
            let ((_, before), (end, after)) = (windows[at], windows[at + 1]);
            if let (Some(before), Some(after)) = (before, after)
                && after > before
            {
                found.push(vec![key.clone(), Value::Int(before), Value::Int(after), Value::Time(end)]);
                at += 1;
            }
            at += 1;
        }
    }
    let expected = counted(found.into_iter());
    assert!(expected.len() > 3);
    let plan = planned(query, &tables).unwrap();
    for (parallelism, restart) in [(1, None), (2, Some((150, 3))), (3, Some((250, 1)))] {
        let course = Course { seed: 5, parallelism, batch_rows: 3, rows_max: 32, restart, endless: false };
        let answered = run(&plan, &tables, &course).unwrap();
        assert_eq!(answered.rows, expected, "{course:?} {:?}", answered.refused);
    }
}

/// With a time-to-live a partition that has been silent for longer has no row before its next one.
#[test]
fn partitions_are_forgotten_after_the_time_to_live() {
    let mut random = StdRng::seed_from_u64(1);
    let mut tables = [table("a", 70, 3, &mut random)];
    // Key 1 has rows at 0, 10, 300 and 310 seconds. The rows of key 2 let time pass.
    for (at, (partition, row)) in tables[0].rows.iter_mut().enumerate() {
        let (key, second) = match at {
            0 => (1, 0),
            1 => (1, 10),
            65 => (1, 300),
            66 => (1, 310),
            other => (2, other as i64 * 5),
        };
        *partition = 0;
        row[KEY] = Value::Int(key);
        row[TIME] = Value::Time(MIDNIGHT_US + second * SECOND_US);
        row[ID] = Value::Int(second);
        row[VALUE] = Value::Int(if key == 1 { second } else { 0 });
    }
    tables[0].rows.sort_by_key(|(_, row)| row[TIME].clone());
    let query = "SELECT at FROM a MATCH_RECOGNIZE (PARTITION BY k MEASURES U.id AS at PATTERN (U)
        DEFINE U AS v > PREV(v))";
    for (with, expected) in [("", vec![10, 300, 310]), (" WITH (state_ttl => INTERVAL '60 seconds')", vec![10, 310])] {
        let plan = planned(&format!("{query}{with}"), &tables).unwrap();
        let expected = counted(expected.into_iter().map(|id| vec![Value::Int(id)]));
        for (parallelism, restart) in [(1, None), (2, Some((40, 3))), (3, Some((80, 1)))] {
            let course = Course { seed: 2, parallelism, batch_rows: 2, rows_max: 8, restart, endless: false };
            let answered = run(&plan, &tables, &course).unwrap();
            assert_eq!(answered.rows, expected, "{with} {course:?} {:?}", answered.refused);
        }
    }
}
