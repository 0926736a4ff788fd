//! Results that change, joined by time with rows that stay: of the rows that change none is forgotten, however far time
//! is, because any may be taken back.

use super::engine::{Course, planned, run};
use super::query::{Column, MIDNIGHT_US, SECOND_US, Table, Type, Value};

/// Rows of each table, a second apart.
const ROWS: i64 = 600;

/// Rows of three keys in turn; of the last `without` the key is null.
fn table(name: &str, without: i64) -> Table {
    let column = |name: &str, ty, nullable| Column { name: name.to_owned(), ty, nullable };
    let columns = vec![column("id", Type::Int, false), column("ts", Type::Time, false), column("j", Type::Int, true)];
    let row = |id: i64| {
        let key = if id < ROWS - without { Value::Int(id % 3) } else { Value::Null };
        (0, vec![Value::Int(id), Value::Time(MIDNIGHT_US + id * SECOND_US), key])
    };
    Table { name: name.to_owned(), columns, rows: (0..ROWS).map(row).collect(), lateness_s: 0 }
}

#[test]
fn a_join_forgets_no_row_that_may_be_taken_back() {
    // The last row of one key has a partner of its time, and those of the two others have none.
    let tables = [table("a", 0), table("b", 2)];
    let last_rows = [
        "SELECT j, max(ts) AS t FROM a GROUP BY j",
        "SELECT j, ts AS t FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY j ORDER BY ts DESC) AS n FROM a) AS r
            WHERE n = 1",
        "SELECT x.j, max(x.ts) AS t FROM a AS x LEFT JOIN b AS y ON x.id = y.id AND y.j > 5 GROUP BY x.j",
        "SELECT j, t FROM (SELECT j, max(ts) AS t FROM a GROUP BY j) AS m
            WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.j = m.j AND b.ts > m.t)",
    ];
    let conditions = [
        "b.j = g.j AND b.ts BETWEEN g.t - INTERVAL '1 second' AND g.t",
        "b.j = g.j AND b.ts >= g.t AND b.ts <= g.t + INTERVAL '1 second'",
        "b.j = g.j AND b.ts = g.t",
    ];
    let minutes = "SELECT date_trunc('minute', ts) AS t, count(*) AS n FROM a GROUP BY date_trunc('minute', ts)";
    let mut wrong = Vec::new();
    let mut check = |query: &str, rows: i64| {
        let plan = planned(query, &tables).unwrap_or_else(|error| panic!("{query}: {error}"));
        for (parallelism, batch_rows, restart) in [(1, 16, None), (2, 3, Some((200, 3))), (3, 7, None)] {
            let course = Course { seed: 7, parallelism, batch_rows, rows_max: 64, restart, endless: false };
            let answered = run(&plan, &tables, &course).unwrap();
            let found: i64 = answered.rows.values().sum();
            if found != rows || answered.rows.values().any(|times| *times < 0) || answered.refused.is_some() {
                wrong.push(format!("{found} rows for {rows}, refused {:?}: {course:?}\n{query}", answered.refused));
            }
        }
    };
    for g in last_rows {
        for condition in conditions {
            let (g, exists) = (format!("({g}) AS g"), format!("EXISTS (SELECT 1 FROM b WHERE {condition})"));
            for (kind, rows) in [("", 1), ("LEFT", 3), ("RIGHT", ROWS), ("FULL", ROWS + 2)] {
                check(&format!("SELECT g.j, g.t, b.ts FROM {g} {kind} JOIN b ON {condition}"), rows);
            }
            check(&format!("SELECT g.j, g.t FROM {g} WHERE {exists}"), 1);
            check(&format!("SELECT g.j, g.t FROM {g} WHERE NOT {exists}"), 2);
            let exists = format!("EXISTS (SELECT 1 FROM {g} WHERE {condition})");
            for (kind, rows) in [("", 1), ("LEFT", ROWS), ("RIGHT", 3), ("FULL", ROWS + 2)] {
                check(&format!("SELECT g.j, g.t, b.ts FROM b {kind} JOIN {g} ON {condition}"), rows);
            }
            check(&format!("SELECT b.id FROM b WHERE {exists}"), 1);
            check(&format!("SELECT b.id FROM b WHERE NOT {exists}"), ROWS - 1);
        }
    }
    // Each minute has a row of its begin.
    let on = "b.ts >= g.t AND b.ts <= g.t + INTERVAL '1 second' AND g.n > 59 AND b.id % 60 = 0 AND b.ts = g.t";
    check(&format!("SELECT g.t, g.n, b.id FROM ({minutes}) AS g LEFT JOIN b ON {on}"), 10);
    check(&format!("SELECT g.t, g.n FROM ({minutes}) AS g WHERE NOT EXISTS (SELECT 1 FROM b WHERE {on})"), 0);
    assert!(wrong.is_empty(), "{} are wrong\n{}", wrong.len(), wrong.join("\n"));
}
