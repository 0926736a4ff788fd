//! Joins and subqueries over a few rows with nulls, whose answers are known, over sources that end and such as do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rivulet_sql::{Model, Name, Position, Scope};

use super::engine::{Course, planned_beside, run};
use super::query::{Column, MIDNIGHT_US, SECOND_US, Table, Type, Value};

/// A row: `id`, `k TEXT`, `x BIGINT`, `f BOOLEAN`.
type Row = (i64, Option<&'static str>, Option<i64>, Option<bool>);

/// Tables of these rows.
fn tables<const N: usize>(tables: [(&str, &[Row]); N]) -> Vec<Table> {
    let column = |name: &str, ty| Column { name: name.to_owned(), ty, nullable: name != "id" };
    let columns = vec![
        column("id", Type::Int),
        column("ts", Type::Time),
        column("k", Type::Text),
        column("x", Type::Int),
        column("f", Type::Bool),
    ];
    let row = |(id, k, x, f): &Row| {
        let time = Value::Time(MIDNIGHT_US + id * SECOND_US);
        let values = [
            Value::Int(*id),
            time,
            k.map_or(Value::Null, |k| Value::Text(k.to_owned())),
            x.map_or(Value::Null, Value::Int),
            f.map_or(Value::Null, Value::Bool),
        ];
        (0, values.to_vec())
    };
    let table = |(name, rows): (&str, &[Row])| Table {
        name: name.to_owned(),
        columns: columns.clone(),
        rows: rows.iter().map(row).collect(),
        lateness_s: 0,
    };
    tables.into_iter().map(table).collect()
}

/// Runs each query in several ways, over sources that end and that do not; its rows are numbers.
fn check(tables: &[Table], queries: &[(&str, &[&[i64]])]) {
    check_beside(&Scope::new(), tables, true, queries);
}

/// Does the same beside what is in scope, over sources that do not end only if they `may_stay` open.
fn check_beside(scope: &Scope, tables: &[Table], may_stay: bool, queries: &[(&str, &[&[i64]])]) {
    for (query, expected) in queries {
        let plan = planned_beside(scope.clone(), query, tables).unwrap_or_else(|error| panic!("{query}: {error}"));
        let expected: BTreeMap<Vec<Value>, i64> =
            expected.iter().map(|row| (row.iter().map(|one| Value::Int(*one)).collect(), 1)).collect();
        for seed in 0..8 {
            let restart = (seed % 4 > 1).then_some((seed as usize * 3, 1 + seed as usize % 3));
            let parallelism = 1 + seed as usize % 3;
            let course =
                Course { seed, parallelism, batch_rows: 2, rows_max: 16, restart, endless: may_stay && seed % 2 == 1 };
            let answered = run(&plan, tables, &course).unwrap_or_else(|error| panic!("{query}: {error}"));
            assert_eq!(answered.rows, expected, "{query}\n{course:?}");
            assert_eq!(answered.refused, None, "{query}");
        }
    }
}

const THREE: &[Row] =
    &[(1, Some("a"), None, None), (2, None, Some(1), Some(true)), (3, Some("a"), Some(1), Some(true))];

#[test]
fn null_equals_null_in_the_equality_that_says_so_and_in_no_other() {
    let tables = tables([("a", THREE), ("b", THREE), ("c", THREE)]);
    check(
        &tables,
        &[
            (
                "SELECT a.id, b.id AS o FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k WHERE a.f = b.f",
                &[&[2, 2], &[3, 3]],
            ),
            (
                "SELECT a.id, b.id AS o, c.id AS p FROM a JOIN b ON a.k = b.k JOIN c ON a.x IS NOT DISTINCT FROM c.x",
                &[&[1, 1, 1], &[1, 3, 1], &[3, 1, 2], &[3, 1, 3], &[3, 3, 2], &[3, 3, 3]],
            ),
            (
                "SELECT a.id, b.id AS o, c.id AS p FROM a JOIN b ON a.x IS NOT DISTINCT FROM b.x JOIN c ON a.k = c.k",
                &[&[1, 1, 1], &[1, 1, 3], &[3, 2, 1], &[3, 2, 3], &[3, 3, 1], &[3, 3, 3]],
            ),
            (
                "SELECT a.id, b.id AS o, c.id AS p FROM a JOIN (b JOIN c ON b.x = c.x) ON a.k IS NOT DISTINCT FROM c.k \
                 WHERE b.k = c.k",
                &[&[1, 3, 3], &[3, 3, 3]],
            ),
            (
                "SELECT a.id, b.id AS o FROM a LEFT JOIN b ON a.x IS NOT DISTINCT FROM b.x \
                 WHERE b.f = a.f AND a.k = b.k",
                &[&[3, 3]],
            ),
            // A view is planned before the query that reads it.
            (
                "CREATE VIEW v AS SELECT a.id, a.k FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k AND a.id = b.id; \
                 SELECT v.id, c.id AS o FROM v JOIN c ON v.k = c.k",
                &[&[1, 1], &[1, 3], &[3, 1], &[3, 3]],
            ),
            (
                "CREATE VIEW v AS SELECT a.x, a.k FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k; \
                 SELECT c.id FROM c WHERE c.f AND 'b' NOT IN (SELECT v.k FROM v)",
                &[],
            ),
        ],
    );
}

#[test]
fn a_subquery_without_rows_silences_no_query_without_an_end() {
    let queries = [
        "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE x > 1000)",
        "SELECT id FROM a WHERE k NOT IN (SELECT k FROM b WHERE x > 1000)",
        "SELECT id FROM a WHERE k <> ALL (SELECT k FROM b WHERE x > 1000)",
        "SELECT id FROM a WHERE (SELECT count(*) FROM b WHERE x > 1000) = 0",
        "SELECT id FROM a WHERE id < 0 OR NOT EXISTS (SELECT 1 FROM b WHERE x > 1000)",
        "SELECT id FROM a WHERE coalesce((SELECT max(x) FROM b WHERE x > 1000), 0) < 5",
        "SELECT a.id FROM a, (SELECT count(*) AS n FROM b WHERE x > 1000) AS c WHERE n = 0",
        "SELECT id FROM a \
         WHERE NOT EXISTS (SELECT 1 FROM (SELECT count(*) AS n FROM b WHERE x > 1000) AS c WHERE n > 0)",
    ];
    let without = tables([("a", THREE), ("b", THREE)]);
    let forgetful = format!("{} WITH (state_ttl => INTERVAL '1 second')", queries[0]);
    check(&without, &[(&forgetful, &[&[1], &[2], &[3]])]);
    let with = tables([("a", THREE), ("b", &[(1, None, Some(2000), None), (2, Some("a"), Some(3000), None)])]);
    for query in queries {
        check(&without, &[(query, &[&[1], &[2], &[3]])]);
        check(&with, &[(query, &[])]);
    }
}

#[test]
fn rows_of_values_are_compared_part_by_part() {
    let tables = tables([("a", THREE), ("b", THREE)]);
    check(
        &tables,
        &[
            ("SELECT id FROM a WHERE NOT ((k, x) = ('a', 1))", &[]),
            ("SELECT id FROM a WHERE NOT ((k, x) = ('b', 1))", &[&[1], &[3]]),
            ("SELECT id FROM a WHERE (k, x) NOT IN (('a', 1), ('b', 2))", &[]),
            ("SELECT id FROM a WHERE (k, x) NOT IN (('b', 1), ('c', 2))", &[&[1], &[3]]),
            ("SELECT id FROM a WHERE (k, x) < ('b', 5)", &[&[1], &[3]]),
            ("SELECT id FROM a WHERE (k, x) <= ('a', 1)", &[&[3]]),
            ("SELECT id FROM a WHERE (x, (k, id)) > (1, ('a', 2))", &[&[3]]),
            ("SELECT id FROM a WHERE ROW(k, x) <> ROW('a', 2)", &[&[2], &[3]]),
            ("SELECT id FROM a WHERE (k, x) IS NULL", &[]),
            ("SELECT id FROM a WHERE (k, x) IS NOT NULL", &[&[3]]),
            ("SELECT id FROM a WHERE (k, x) IS NOT DISTINCT FROM ('a', CAST(NULL AS BIGINT))", &[&[1]]),
            ("SELECT id FROM a WHERE (x, id) BETWEEN (1, 2) AND (1, 2)", &[&[2]]),
            ("SELECT a.id, b.id AS o FROM a JOIN b ON (a.k, a.x) = (b.k, b.x)", &[&[3, 3]]),
            (
                "SELECT a.id, b.id AS o FROM a JOIN b ON (a.k, a.x) IS NOT DISTINCT FROM (b.k, b.x)",
                &[&[1, 1], &[2, 2], &[3, 3]],
            ),
        ],
    );
}

/// The optimizer finds the columns of a subquery by their names.
#[test]
fn inputs_of_a_subquery_may_have_columns_of_one_name() {
    let tables = tables([("a", THREE), ("b", THREE)]);
    check(
        &tables,
        &[
            (
                "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b AS t JOIN b AS u ON t.x = u.x WHERE u.k = a.k)",
                &[&[1], &[3]],
            ),
            (
                "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b AS t JOIN b AS u ON t.x = u.x \
                 WHERE u.k = a.k AND t.id = a.id)",
                &[&[1], &[2]],
            ),
            (
                "SELECT id, (SELECT count(*) FROM b AS t JOIN b AS u ON t.x = u.x \
                 WHERE u.id = a.id AND t.id = a.id - 1) AS n FROM a",
                &[&[1, 0], &[2, 0], &[3, 1]],
            ),
        ],
    );
}

#[test]
fn a_table_is_looked_up_by_in_and_exists_with_null_as_in_sql() {
    let keys: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("c"), None, Some("a")]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 2, 5]));
    let rows = RecordBatch::try_from_iter([("k", keys), ("n", numbers)]).unwrap();
    let mut scope = Scope::new();
    let name = Name { text: "t".into(), position: Position::default() };
    scope.add_table(&name, Arc::new(rivulet_sql::Table::new("t", rows))).unwrap();
    check_beside(
        &scope,
        &tables([("a", THREE)]),
        true,
        &[
            ("SELECT id FROM a WHERE k IN (SELECT k FROM t)", &[&[1], &[3]]),
            ("SELECT id FROM a WHERE k IN (SELECT k FROM t WHERE n BETWEEN 2 AND 4)", &[]),
            ("SELECT id FROM a WHERE k IN (SELECT k FROM t WHERE n > x)", &[&[3]]),
            ("SELECT id FROM a WHERE id + 1 IN (SELECT n FROM t)", &[&[1]]),
            ("SELECT id FROM a WHERE EXISTS (SELECT 1 FROM t WHERE t.k = a.k)", &[&[1], &[3]]),
            ("SELECT id FROM a WHERE EXISTS (SELECT 1 FROM t WHERE n > id + 3)", &[&[1]]),
            ("SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.k = a.k)", &[&[2]]),
            ("SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.k = a.k AND n = x)", &[&[1], &[2]]),
            ("SELECT id FROM a WHERE id NOT IN (SELECT n FROM t)", &[&[3]]),
            ("SELECT id FROM a WHERE x IS NOT NULL AND x NOT IN (SELECT n FROM t WHERE n > 1)", &[&[2], &[3]]),
            ("SELECT id FROM a WHERE k = 'a' AND k NOT IN (SELECT k FROM t WHERE k IS NOT NULL)", &[]),
            // What comes behind is joined, and counted, as it would be without.
            (
                "CREATE VIEW v AS SELECT * FROM a WHERE k IN (SELECT k FROM t); \
                 SELECT v.id, w.id AS o FROM v JOIN v AS w ON v.k = w.k AND v.id < w.id",
                &[&[1, 3]],
            ),
            ("SELECT count(*) AS n FROM a WHERE k IN (SELECT k FROM t) AND id NOT IN (SELECT n FROM t)", &[&[1]]),
        ],
    );
}

/// Rows of one time follow each other in the order that the query says, and through restarts.
#[test]
fn the_last_value_is_that_of_the_order() {
    let rows: &[Row] = &[
        (1, Some("b"), Some(3), None),
        (2, Some("a"), None, Some(true)),
        (3, Some("b"), Some(1), Some(true)),
        (4, Some("a"), Some(7), None),
        (5, None, Some(5), None),
        (6, Some("b"), None, None),
    ];
    let mut tables = tables([("a", rows)]);
    // The first three have one time.
    (0..2).for_each(|row| tables[0].rows[row].1[1] = tables[0].rows[2].1[1].clone());
    let check = |value: &str, partition: &str, frame: &str, expected: [i64; 6]| {
        let rows: Vec<[i64; 2]> = expected.into_iter().enumerate().map(|(row, one)| [row as i64 + 1, one]).collect();
        let query =
            format!("SELECT id, {value} AS v FROM a WINDOW w AS ({partition} ORDER BY ts, id ROWS {frame} PRECEDING)");
        check_beside(
            &Scope::new(),
            &tables,
            false,
            &[(&query, &rows.iter().map(<[i64; 2]>::as_slice).collect::<Vec<_>>())],
        );
    };
    let all = "UNBOUNDED";
    check("last_value(x) OVER w", "", all, [3, 3, 1, 7, 5, 5]);
    check("first_value(x) IGNORE NULLS OVER w", "", all, [3; 6]);
    check("coalesce(last_value(x) OVER w, 0)", "PARTITION BY k", all, [3, 0, 1, 7, 5, 1]);
    check("first_value(x) OVER w", "", "1", [3, 3, 1, 1, 7, 5]);
    check("CAST(avg_last(x, 2) OVER w AS BIGINT)", "", all, [3, 3, 2, 4, 6, 6]);
    check("coalesce(x, CAST(avg_last(x, 2) OVER w AS BIGINT))", "", all, [3, 3, 1, 7, 5, 6]);
    check("CAST(round(kalman(x, 0.125, 0.32) OVER w * 1000) AS BIGINT)", "", all, [2968, 2968, 1827, 4375, 4668, 4668]);
}

#[test]
fn a_model_gives_null_for_null_and_refuses_what_is_no_number() {
    let mut scope = Scope::new();
    let models = [
        (
            "tree.json",
            r#"{"kind": "tree", "inputs": ["a", "b"], "nodes": [{"input": 1, "le": 0, "then": 1, "else": 2},
                         {"leaf": "low"}, {"leaf": "high"}]}"#,
        ),
        ("line.json", r#"{"kind": "linear", "inputs": ["a"], "coefficients": [2], "intercept": 1}"#),
    ];
    scope.add_models(models.map(|(file, model)| {
        (file.to_owned(), Arc::new(Model::parse(model.as_bytes()).unwrap_or_else(|error| panic!("{error}"))))
    }));
    let tables = tables([("a", THREE)]);
    check_beside(
        &scope,
        &tables,
        true,
        &[
            ("SELECT id FROM a WHERE predict('tree.json', id, x) = 'high'", &[&[2], &[3]]),
            ("SELECT id FROM a WHERE predict('tree.json', id, x - id) = 'high'", &[]),
            ("SELECT id FROM a WHERE predict('tree.json', x, id) IS NULL", &[&[1]]),
            ("SELECT id, CAST(predict('line.json', id) AS BIGINT) AS v FROM a", &[&[1, 3], &[2, 5], &[3, 7]]),
            (
                "CREATE VIEW v AS SELECT id, predict('line.json', id) AS y FROM a; \
                 SELECT CAST(max(predict('line.json', y)) AS BIGINT) AS v FROM v",
                &[&[15]],
            ),
        ],
    );
    let query =
        "SELECT id FROM a WHERE predict('line.json', CASE WHEN id > 1 THEN CAST('NaN' AS DOUBLE) ELSE 0 END) = 1";
    let plan = planned_beside(scope, query, &tables).unwrap();
    let course = Course { seed: 1, parallelism: 1, batch_rows: 3, rows_max: 16, restart: None, endless: false };
    let answered = run(&plan, &tables, &course).unwrap();
    assert_eq!(answered.rows.keys().collect::<Vec<_>>(), [&vec![Value::Int(1)]]);
    let refused = answered.refused.unwrap();
    assert!(refused.contains("the input 'a' of the model 'line.json' is NaN"), "{refused}");
}
