//! A restart brings state to where its rows come: by what divides them among the instances, which may be a part of the
//! key, in another order, or the end of a window.

use rivulet_dataflow::EdgeKind;
use rivulet_sql::{QueryPlan, explain_query};

use super::engine::{Course, declaration, planned, run, run_through};
use super::query::{Column, MIDNIGHT_US, SECOND_US, Table, Type, Value};

fn table(name: &str, rows: i64) -> Table {
    let column = |name: &str, ty, nullable| Column { name: name.to_owned(), ty, nullable };
    let columns = vec![
        column("id", Type::Int, false),
        column("ts", Type::Time, false),
        column("k", Type::Int, true),
        column("j", Type::Int, true),
    ];
    let row = |id: i64| {
        let key = |keys: i64| if id % 11 == 0 { Value::Null } else { Value::Int(id * 7 % keys) };
        let time = Value::Time(MIDNIGHT_US + id / 2 * SECOND_US);
        (usize::from(id % 3 == 0), vec![Value::Int(id), time, key(5), key(3)])
    };
    Table { name: name.to_owned(), columns, rows: (0..rows).map(row).collect(), lateness_s: 0 }
}

#[test]
fn state_comes_to_where_its_rows_come() {
    let tables = [table("a", 120), table("b", 60)];
    let joined = "SELECT x.k, x.j, x.ts, y.id FROM a AS x JOIN b AS y ON x.k = y.k";
    let windows = "SELECT k, window_end, count(*) AS n FROM a GROUP BY k, tumble(ts, INTERVAL '5 seconds')";
    let first = format!(
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC, k) AS p
            FROM ({windows}) AS w) AS q WHERE p <= 2"
    );
    let queries = [
        // Keys of which those before are a part.
        format!("SELECT k, j, count(*) AS n, max(id) AS m FROM ({joined}) AS q GROUP BY k, j"),
        format!("SELECT j, k, count(*) AS n FROM ({joined}) AS q GROUP BY j, k"),
        format!("SELECT DISTINCT k, j FROM ({joined}) AS q"),
        format!(
            "SELECT k, j, window_end, count(*) AS n FROM ({joined} AND x.ts = y.ts) AS q
            GROUP BY k, j, tumble(ts, INTERVAL '5 seconds')"
        ),
        format!(
            "SELECT k, j, count(*) AS n FROM ({joined} AND x.ts = y.ts) AS q
            GROUP BY k, j, session(ts, INTERVAL '3 seconds')"
        ),
        // A join by more than divides one of its sides.
        "SELECT g.k, g.m, x.id FROM (SELECT k, max(j) AS m FROM a GROUP BY k) AS g
            LEFT JOIN b AS x ON x.j = g.m AND x.k = g.k"
            .into(),
        "SELECT x.id FROM b AS x WHERE NOT EXISTS
            (SELECT 1 FROM (SELECT k, max(j) AS m FROM a GROUP BY k) AS g WHERE x.j = g.m AND x.k = g.k)"
            .into(),
        // Ranks, and values of rows before.
        format!(
            "SELECT k, j, id FROM (SELECT k, j, id, ROW_NUMBER() OVER (PARTITION BY j, k ORDER BY id DESC, ts) AS n
            FROM ({joined}) AS q) AS r WHERE n <= 2"
        ),
        format!(
            "SELECT k, j, id, sum(id) OVER (PARTITION BY j, k ORDER BY id, ts ROWS 2 PRECEDING) AS s
            FROM ({joined}) AS q"
        ),
        format!(
            "SELECT k, j, id, ts, count(*) OVER (PARTITION BY j, k ORDER BY ts RANGE UNBOUNDED PRECEDING) AS s
            FROM ({joined} AND x.ts = y.ts) AS q"
        ),
        // Rows of windows, by the end alone and with a key.
        format!("SELECT window_end, sum(n) AS s FROM ({windows}) AS w GROUP BY window_end"),
        format!("SELECT window_end, n, count(DISTINCT k) AS s FROM ({windows}) AS w GROUP BY window_end, n"),
        format!(
            "SELECT w.window_end, w.k, w.n FROM ({windows}) AS w
            JOIN (SELECT window_end, max(n) AS m FROM ({windows}) AS v GROUP BY window_end) AS t
            ON w.window_end = t.window_end AND w.n = t.m"
        ),
        // The first rows of windows, and windows of those.
        format!("SELECT k, n, window_end FROM ({first}) AS r"),
        format!(
            "SELECT count(k) AS c, sum(n) AS s FROM ({first}) AS r GROUP BY tumble(window_end, INTERVAL '12 seconds')"
        ),
    ];
    check(&plans(&queries, &tables), &tables);
}

#[test]
fn what_all_instances_have_is_saved_once_and_given_to_all() {
    let tables = [table("a", 120), table("b", 60)];
    let joined = "SELECT x.k, x.j, x.id, y.id AS other FROM a AS x LEFT JOIN b AS y ON x.k = y.k";
    let all = "SELECT max(id) / 2 FROM b";
    let queries = [
        // Rows that come in turn: in WHERE, in SELECT, and where the value is found by an equality.
        format!("SELECT id, k FROM a WHERE id > ({all})"),
        format!("SELECT id, ({all}) AS half FROM a"),
        "SELECT id FROM a WHERE id = (SELECT max(id) FROM b)".into(),
        "SELECT id, m FROM a LEFT JOIN (SELECT max(id) AS m FROM b) AS y ON a.id >= y.m".into(),
        "SELECT m, id FROM (SELECT max(id) AS m FROM b) AS y RIGHT JOIN a ON a.id >= y.m".into(),
        "SELECT m, id FROM (SELECT max(id) AS m FROM b) AS y JOIN a ON a.id >= y.m".into(),
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM (SELECT max(id) AS m FROM b) AS y WHERE a.id > y.m)".into(),
        "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM (SELECT max(id) AS m FROM b) AS y WHERE a.id > y.m)".into(),
        // Rows of groups, which are divided by their key already, and an aggregate of what comes out.
        format!("SELECT k, sum(id) AS s FROM a GROUP BY k HAVING sum(id) > ({all})"),
        format!("SELECT j, count(*) AS n FROM a WHERE id > ({all}) GROUP BY j"),
        // Rows that are taken back and are divided by no key, in WHERE and in SELECT.
        format!("SELECT k, j, id, other FROM ({joined}) AS q WHERE id > ({all})"),
        format!("SELECT k, other, ({all}) AS half FROM ({joined}) AS q"),
        // One behind the other.
        format!("SELECT id FROM (SELECT id, k FROM a WHERE id > ({all})) AS q WHERE k < (SELECT max(j) FROM b)"),
    ];
    check_broadcast(&plans(&queries, &tables), &tables);
}

/// The other side is divided by no key of the join: each of its rows meets all rows of the small side where it is.
#[test]
fn a_small_side_is_in_all_instances() {
    let tables = [table("a", 120), table("s", 30)];
    let of_groups = "(SELECT k, max(j) AS m FROM s GROUP BY k)";
    let queries = [
        "SELECT a.id, s.id AS other FROM a JOIN s ON a.k = s.k".into(),
        "SELECT a.id, s.id AS other FROM s JOIN a ON a.k = s.k AND a.id > s.id".into(),
        "SELECT a.id, s.id AS other FROM a LEFT JOIN s ON a.k = s.k AND s.j > 0".into(),
        "SELECT a.id, s.id AS other FROM s RIGHT JOIN a ON a.k = s.k".into(),
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM s WHERE s.k = a.k AND s.id > a.id)".into(),
        "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.k = a.k AND s.j = a.j)".into(),
        "SELECT a.j, count(*) AS n FROM a JOIN s ON a.k = s.k GROUP BY a.j".into(),
        // Rows of the small side that are taken back.
        format!("SELECT a.id, g.m FROM a JOIN {of_groups} AS g ON a.k = g.k"),
        format!("SELECT a.id, g.m FROM a LEFT JOIN {of_groups} AS g ON a.k = g.k"),
    ];
    let small = declaration(&tables[1]).replace("WITH (", "WITH (size => 'small', ");
    let queries = queries.map(|query: String| format!("{small}{query}"));
    check_broadcast(&plans(&queries, &tables[..1]), &tables);
    let hashed = [
        // A row of this side that has no partner would come out of every instance.
        "SELECT s.id, a.id AS other FROM s LEFT JOIN a ON a.k = s.k",
        "SELECT s.id, a.id AS other FROM s FULL JOIN a ON a.k = s.k",
        // Rows that are divided by the key already stay where they are.
        "SELECT g.k, g.n, s.id FROM (SELECT k, count(*) AS n FROM a GROUP BY k) AS g JOIN s ON g.k = s.k",
        // Rows expire.
        "SELECT a.id, s.id AS other FROM a JOIN s ON a.k = s.k AND a.ts BETWEEN s.ts AND s.ts + INTERVAL '5 seconds'",
        "SELECT a.id, s.id AS other FROM a JOIN s ON a.k = s.k WITH (state_ttl => INTERVAL '1 hour')",
    ];
    for (query, plan) in plans(&hashed.map(|query| format!("{small}{query}")), &tables[..1]) {
        let is_broadcast = plan.dataflow.edges().iter().any(|edge| edge.kind == EdgeKind::Broadcast);
        assert!(!is_broadcast, "{query}\n{}", explain_query(&plan));
    }
}

/// After how many steps there is a restart, and in how many instances it goes on.
type Restarts = &'static [(usize, usize)];

/// Queries and their plans.
type Plans = Vec<(String, QueryPlan)>;

fn plans(queries: &[String], tables: &[Table]) -> Plans {
    let plan = |query: &String| planned(query, tables).unwrap_or_else(|error| panic!("{query}: {error}"));
    queries.iter().map(|query| (query.clone(), plan(query))).collect()
}

/// Checks queries of which some side is in all instances.
fn check_broadcast(plans: &Plans, tables: &[Table]) {
    for (query, plan) in plans {
        let is_broadcast = plan.dataflow.edges().iter().any(|edge| edge.kind == EdgeKind::Broadcast);
        assert!(is_broadcast, "{query}\n{}", explain_query(plan));
    }
    check(plans, tables);
}

/// Compares what queries answer straight through one instance with what they answer through restarts.
fn check(plans: &Plans, tables: &[Table]) {
    let mut wrong = Vec::new();
    for (query, plan) in plans {
        let course = |seed, parallelism| Course {
            seed,
            parallelism,
            batch_rows: 2,
            rows_max: 16,
            restart: None,
            endless: false,
        };
        let straight = run(plan, tables, &course(1, 1)).unwrap();
        assert!(!straight.rows.is_empty() && straight.refused.is_none(), "{query}: {straight:?}");
        let ways: [(u64, usize, Restarts); 8] = [
            (1, 1, &[(100, 3)]),
            (2, 3, &[(150, 2)]),
            (3, 3, &[(200, 3)]),
            (4, 2, &[(250, 3)]),
            (5, 2, &[(60, 1)]),
            (6, 3, &[(300, 2)]),
            (7, 2, &[(80, 3), (80, 1)]),
            (8, 2, &[(40, 3), (60, 2), (60, 3)]),
        ];
        let mut restarted = 0;
        for (seed, from, restarts) in ways {
            let course = course(seed, from);
            let answered = run_through(plan, tables, &course, restarts);
            restarted += answered.as_ref().map_or(0, |answered| answered.restarts);
            match answered {
                Ok(answered) if answered.rows == straight.rows && answered.refused.is_none() => {}
                Ok(answered) => wrong.push(format!("{query}\n  {course:?} {restarts:?}: {:?}", answered.refused)),
                Err(error) => wrong.push(format!("{query}\n  {course:?} {restarts:?}: {error}")),
            }
        }
        if restarted == 0 {
            wrong.push(format!("{query}\n  it was never restarted in another number of instances"));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong\n{}", wrong.len(), wrong.join("\n"));
}
