//! Hints of big queries that are refused: they say what to do about the query as it is, and never what it has already.

use crate::query_plans::{error, planned};

/// Each query with where and what is wrong, and with the hint.
fn check(before: &str, table: &[(&str, &str, &str)]) {
    let line = before.lines().count() + 1;
    let mut wrong = String::new();
    for (query, error_there, hint) in table {
        let found = error(&format!("{before}{query}"));
        if found != format!("error at line {line}, column {error_there}\nhint: {hint}") {
            wrong.push_str(&format!("{query}\n{found}\n\n"));
        }
    }
    assert!(wrong.is_empty(), "other errors than expected\n{wrong}");
}

#[test]
fn the_hint_of_a_join_without_an_equality_looks_at_its_condition() {
    let no_equality = "a join without an equality would pair every row with every other";
    let join = "join ON a.key = b.key, with further conditions behind AND; without an equality only rows of one time \
                meet: b.ts BETWEEN a.ts AND a.ts + INTERVAL '1 minute'";
    let exists = "compare with the outer query: WHERE b.key = a.key, with further conditions behind AND";
    let sides = "each side of = must name columns of one input alone: a.key = b.key + 1 instead of a.key - b.key = 1";
    let or = "no equality holds for all alternatives of the OR: write a query for each, with UNION ALL between them, \
              and leave out in each the rows that those before it give";
    let alone = "an equality finds partners if it stands by itself, or joined to other conditions by AND";
    let select = "SELECT a.id FROM auction AS a";
    for (rest, column, hint) in [
        ("JOIN person AS p ON a.seller > p.id", 51, join),
        ("CROSS JOIN person AS p", 37, join),
        ("JOIN person AS p", 31, join),
        (", person AS p", 33, join),
        ("CROSS JOIN (SELECT max(id) AS m FROM person) AS one CROSS JOIN person AS p", 89, join),
        ("JOIN (SELECT p.id FROM person AS p CROSS JOIN bid AS b) AS p ON p.id = a.id", 72, join),
        ("JOIN person AS p ON a.seller - p.id = 0", 51, sides),
        ("LEFT JOIN person AS p ON a.seller - p.id = 0", 56, sides),
        ("JOIN person AS p ON a.seller = p.id OR a.item_name = p.name", 51, or),
        (", person AS p WHERE a.seller = p.id OR a.item_name = p.name", 62, or),
        ("JOIN person AS p ON (a.date_time = p.date_time) IS NOT FALSE", 52, alone),
        ("WHERE EXISTS (SELECT 1 FROM person AS p WHERE p.id > a.seller)", 1, exists),
        ("WHERE EXISTS (SELECT 1 FROM person AS p WHERE p.id - a.seller = 0)", 1, sides),
    ] {
        check("", &[(&format!("{select} {rest}"), &format!("{column}: {no_equality}"), hint)]);
    }
    // What the hints say to write.
    for rest in [
        "JOIN person AS p ON a.seller = p.id + 1 AND 1 = 0",
        "WHERE EXISTS (SELECT 1 FROM person AS p WHERE p.id = a.seller AND p.id > a.id)",
        "JOIN person AS p ON a.seller = p.id UNION ALL \
         SELECT a.id FROM auction AS a JOIN person AS p ON a.item_name = p.name AND a.seller <> p.id",
    ] {
        planned(&format!("{select} {rest}"));
    }
}

#[test]
fn the_hint_of_a_subquery_looks_at_its_aggregate() {
    let many = "a subquery that stands for a value may give more than one row";
    let unequal = "an aggregate over rows that are not found by an equality with the outer query is not supported yet";
    let group = "leave GROUP BY out, or compare each of its keys with = to a column of the outer query";
    let select = "SELECT price FROM bid AS b WHERE price >";
    for (rest, column, message, hint) in [
        ("(SELECT reserve FROM auction)", 50, many, "aggregate in it, for example SELECT max(...)"),
        ("(SELECT max(reserve) FROM auction GROUP BY seller)", 85, many, group),
        ("(SELECT max(reserve) FROM auction AS a WHERE a.id = b.auction GROUP BY a.seller)", 113, many, group),
        (
            "(SELECT max(reserve) FROM auction AS a WHERE a.id > b.auction)",
            87,
            unequal,
            "compare a column of the subquery with = to the outer query; or join, and aggregate then",
        ),
        (
            "(SELECT max(reserve) FROM auction AS a WHERE a.id + 1 = b.auction)",
            87,
            unequal,
            "on one side of = there must be a column of the subquery, on the other the outer query alone; \
             or join, and aggregate then",
        ),
    ] {
        check("", &[(&format!("{select} {rest}"), &format!("{column}: {message}"), hint)]);
    }
    planned(
        "SELECT price FROM bid AS b WHERE price > (SELECT max(reserve) FROM auction AS a WHERE a.id = b.auction - 1)",
    );
}

#[test]
fn the_hint_of_a_table_looks_at_the_join() {
    let alone = "1: the table 'side_input' cannot be read alone";
    let value = "a subquery over the table 'side_input' in this place is not supported yet";
    let not_in = "rows are looked up by IN, EXISTS or NOT EXISTS as conditions of their own, by NOT IN where both \
                  columns are NOT NULL, and by JOIN table ON table.key = source.key";
    check(
        "",
        &[
            (
                "SELECT price FROM bid EXCEPT SELECT key FROM side_input",
                "1: EXCEPT over the table 'side_input' is not supported yet",
                "write WHERE NOT EXISTS (SELECT 1 FROM table WHERE table.key = source.key)",
            ),
            (
                "SELECT price FROM bid INTERSECT SELECT key FROM side_input",
                "1: INTERSECT over the table 'side_input' is not supported yet",
                "write WHERE source.key IN (SELECT key FROM table)",
            ),
            (
                "SELECT key FROM side_input",
                alone,
                "a table is looked up: FROM source JOIN table ON table.key = source.key",
            ),
            (
                "SELECT b.price FROM bid AS b JOIN (SELECT key, max(value) AS v FROM side_input GROUP BY key) AS t \
                 ON t.key = b.auction",
                alone,
                "join the table itself with the source, and aggregate, unite or join further behind that",
            ),
            (
                "SELECT price FROM bid WHERE price > 5 OR auction IN (SELECT key FROM side_input)",
                &format!("42: {value}"),
                not_in,
            ),
            ("SELECT price FROM bid WHERE EXISTS (SELECT 1 FROM side_input)", &format!("1: {value}"), not_in),
            (
                "SELECT price FROM bid WHERE nullif(auction, 3) NOT IN (SELECT key FROM side_input)",
                &format!("1: {value}"),
                not_in,
            ),
            (
                "SELECT key FROM side_input WHERE key IN (SELECT auction FROM bid)",
                "34: the rows of the table 'side_input' would come without partner",
                "the source stands outside: FROM source WHERE source.key IN (SELECT key FROM table)",
            ),
        ],
    );
    // What the hints say to write.
    planned("SELECT price FROM bid WHERE auction IN (SELECT key FROM side_input)");
    planned("SELECT price FROM bid WHERE auction NOT IN (SELECT key FROM side_input)");
    planned("SELECT price FROM bid WHERE NOT EXISTS (SELECT 1 FROM side_input WHERE key = nullif(auction, 3))");
}

const SOURCES: &str = "CREATE SOURCE a (id BIGINT, k BIGINT, ts TIMESTAMP EVENT TIME) FROM 'nexmark:bid';
CREATE SOURCE b (id BIGINT, v BIGINT, ts TIMESTAMP EVENT TIME) FROM 'nexmark:bid';
CREATE SOURCE c (id BIGINT, w BIGINT, ts TIMESTAMP EVENT TIME) FROM 'nexmark:bid';
";

#[test]
fn an_input_may_have_the_name_of_a_column() {
    for query in [
        "SELECT v.id FROM a AS v JOIN b ON b.id = v.id",
        "SELECT v.id, v.k + b.v AS s FROM a AS v JOIN b ON b.id = v.id AND b.v = v.k",
        "SELECT v.id FROM b JOIN a AS v ON b.id = v.id WHERE v > v.k",
        "SELECT v.v FROM b AS v WHERE v > 1 AND v.v < 9",
        "SELECT v.id FROM a AS v WHERE EXISTS (SELECT 1 FROM c WHERE c.id = v.id)",
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b AS v WHERE v.id = a.id AND v.v = 3)",
        "SELECT id FROM a AS v WHERE EXISTS (SELECT 1 FROM b WHERE v = k AND b.id = 3)",
        "SELECT v.id FROM a AS v WHERE NOT EXISTS (SELECT 1 FROM b WHERE v.id = b.id AND v.k = 1)",
        "SELECT id FROM (SELECT v.id FROM a AS v WHERE EXISTS (SELECT 1 FROM b WHERE b.id = v.id)) AS t",
        "SELECT k.id FROM a AS k WHERE EXISTS \
         (SELECT 1 FROM a AS v WHERE v.id = k.id AND EXISTS (SELECT 1 FROM b WHERE b.id = v.k))",
    ] {
        planned(&format!("{SOURCES}{query}"));
    }
    // Columns are called as they are written, without the input if they are only that.
    let names = |items: &str| -> Vec<String> {
        let from = "FROM a AS v WHERE EXISTS (SELECT 1 FROM b WHERE b.id = v.id)";
        let plan = planned(&format!("{SOURCES}SELECT {items} {from}"));
        plan.output.schema.fields().iter().map(|field| field.name().clone()).collect()
    };
    assert_eq!(names("v.*"), ["id", "k", "ts"]);
    assert_eq!(names("v.id, v.k + 1, v.k AS v"), ["id", "v.k + 1", "v"]);
    assert_eq!(names("max(v.k), (SELECT max(v.w) FROM c AS v)"), ["max(v.k)", "max(v.w)"]);
    let inner = "SELECT v.id FROM a AS v WHERE EXISTS (SELECT 1 FROM b WHERE b.id = v.id)";
    check(
        SOURCES,
        &[
            (
                "SELECT v.x FROM b",
                "8: 'v.x' would be a part of the column 'v', and columns have no parts",
                "write v for the column, or input.v",
            ),
            (
                "SELECT b.id FROM a AS v JOIN b ON b.id = v.nothing",
                "42: unknown column 'v.nothing'",
                "the columns here are v.id, b.id, k, v.ts, b.ts and v",
            ),
            (
                "SELECT v.id FROM a AS v WHERE EXISTS \
                 (SELECT 1 FROM b WHERE b.id = 1 AND EXISTS (SELECT 1 FROM c WHERE c.w = v.id))",
                "104: 'v.id' is a column of a query further out than the one around this subquery, \
                 which is not supported yet",
                "select the column in the query between, and name it there",
            ),
            (&format!("{inner} AND v.idd = 3"), "78: unknown column 'v.idd'", "did you mean 'v.id'?"),
            (
                &format!("{inner} AND v.ts > 3"),
                "78: TIMESTAMP and BIGINT cannot be compared",
                "write TIMESTAMP '...' for a time and INTERVAL '...' for a time span",
            ),
        ],
    );
}

#[test]
fn computed_columns_that_would_have_one_name_get_numbers() {
    for (items, names) in [
        ("id, CAST(id AS TEXT)", &["id", "id_1"][..]),
        ("CAST(id AS TEXT), a.id, CAST(a.id AS DOUBLE)", &["id_1", "id", "id_2"]),
        ("CAST(k AS TEXT), CAST(k AS DOUBLE), k AS k_1", &["k", "k_2", "k_1"]),
        ("k + 1, CAST(k AS BIGINT) + 1", &["k + 1", "k + 1_1"]),
        ("'v', 1, (k + 1) * 2, abs(a.id)", &["'v'", "1", "(k + 1) * 2", "abs(a.id)"]),
        ("'v', a.*, ts + INTERVAL '1' DAY", &["'v'", "id", "k", "ts", "ts + INTERVAL '1' DAY"]),
        ("count(*), count(*), count(*)", &["count(*)", "count(*)_1", "count(*)_2"]),
        (
            "k, max(id), 1 + max(id), MAX(id) FROM a GROUP BY k UNION ALL SELECT 1, 2, 3, 4",
            &["k", "max(id)", "1 + max(id)", "MAX(id)_1"],
        ),
    ] {
        let from = if items.contains("FROM") { "" } else { "FROM a" };
        let plan = planned(&format!("{SOURCES}SELECT {items} {from}"));
        let found: Vec<&str> = plan.output.schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(found, names, "{items}");
    }
    check(
        SOURCES,
        &[(
            "SELECT id, id FROM a",
            "12: two columns of a SELECT have one name",
            "name one of them anew, as in SELECT v, v AS again",
        )],
    );
}

#[test]
fn the_hint_of_an_unknown_column_has_each_name_once() {
    check(
        SOURCES,
        &[
            ("SELECT nothing FROM a", "8: unknown column 'nothing'", "the columns here are id, k and ts"),
            ("SELECT idd FROM a", "8: unknown column 'idd'", "did you mean 'id'?"),
            (
                "SELECT nothing FROM a JOIN b ON a.id = b.id",
                "8: unknown column 'nothing'",
                "the columns here are a.id, b.id, k, a.ts, b.ts and v",
            ),
            ("SELECT idd FROM a JOIN b ON a.id = b.id", "8: unknown column 'idd'", "did you mean 'a.id' or 'b.id'?"),
            ("SELECT a.idd FROM a JOIN b ON a.id = b.id", "8: unknown column 'a.idd'", "did you mean 'a.id'?"),
            ("SELECT x.k FROM a JOIN b ON a.id = b.id", "8: unknown column 'x.k'", "did you mean 'a.k'?"),
            ("SELECT a.v FROM a JOIN b ON a.id = b.id", "8: unknown column 'a.v'", "did you mean 'b.v'?"),
            ("SELECT x.id FROM a JOIN b ON a.id = b.id", "8: unknown column 'x.id'", "did you mean 'a.id' or 'b.id'?"),
            (
                "SELECT k, count(*) FROM a GROUP BY k HAVING nothing > 1",
                "45: unknown column 'nothing'",
                "the columns here are k, id, ts and count(*)",
            ),
            (
                "SELECT k, count(*) AS n FROM a GROUP BY k, tumble(ts, INTERVAL '1 s') ORDER BY nothing",
                "80: unknown column 'nothing'",
                "the columns here are k, id, ts and n",
            ),
            (
                "SELECT id FROM a JOIN b ON a.id = b.id",
                "8: more than one input has a column 'id'",
                "write which one: input.id",
            ),
            (
                "SELECT a.id FROM a JOIN b AS a ON a.id = a.v",
                "30: two inputs are called 'a'",
                "give one of them another name: FROM ... AS other",
            ),
        ],
    );
}

#[test]
fn functions_that_follow_rows_say_where_they_stand() {
    let group = "follows rows one by one";
    let over = "in a big query write kalman(x, 0.125, 0.32) OVER (PARTITION BY k ORDER BY ts ROWS UNBOUNDED PRECEDING)";
    let mean = "in a big query write avg_last(x, 5) OVER (PARTITION BY k ORDER BY ts ROWS UNBOUNDED PRECEDING)";
    let frame = "write ROWS UNBOUNDED PRECEDING behind ORDER BY ts";
    let ordered = |call: &str| {
        format!(
            "write {call} OVER (PARTITION BY key ORDER BY ts), over a source whose event time is ts; over results of \
             windows, order by window_end"
        )
    };
    let constants = ("the variances of kalman are constants above 0", "write for example kalman(x, 0.125, 0.32)");
    let last = ("avg_last takes the last 1 to 8 values, a constant number", "write for example avg_last(x, 5)");
    let w = "OVER (ORDER BY date_time ROWS UNBOUNDED PRECEDING)";
    let other = "in another order than that of the event time is not supported yet";
    for (query, error, hint) in [
        ("kalman(price, 1, 1) FROM bid".to_owned(), format!("kalman {group}"), over.to_owned()),
        ("avg_last(price, 3) FROM bid GROUP BY auction".into(), format!("avg_last {group}"), mean.into()),
        ("avg_last(price, 3) OVER (PARTITION BY auction) FROM bid".into(), format!("avg_last {group}"), mean.into()),
        (
            "avg_last(price, 3) OVER (ORDER BY date_time ROWS 3 PRECEDING) FROM bid".into(),
            "avg_last follows all rows of a partition, and this frame has not all".into(),
            frame.into(),
        ),
        (
            "kalman(price, 1, 1) OVER (ORDER BY price ROWS UNBOUNDED PRECEDING) FROM bid".into(),
            format!("kalman {other}"),
            ordered("kalman(x, 0.125, 0.32)"),
        ),
        (
            "last_value(price) OVER (ORDER BY price) FROM bid".into(),
            format!("last_value {other}"),
            ordered("last_value(x)"),
        ),
        (
            format!("last_value(price) RESPECT NULLS {w} FROM bid"),
            "RESPECT NULLS in last_value is not supported yet".into(),
            String::new(),
        ),
        (format!("kalman(price, 0, 1) {w} FROM bid"), constants.0.into(), constants.1.into()),
        (format!("kalman(price, 1, price) {w} FROM bid"), constants.0.into(), constants.1.into()),
        (format!("kalman(price, 1, 1e308 * 10) {w} FROM bid"), constants.0.into(), constants.1.into()),
        (format!("avg_last(price, 9) {w} FROM bid"), last.0.into(), last.1.into()),
        (format!("avg_last(price, 2.5) {w} FROM bid"), last.0.into(), last.1.into()),
        (format!("avg_last(price, NULL) {w} FROM bid"), last.0.into(), last.1.into()),
    ] {
        let text = format!("SELECT {query}");
        let told = super::query_plans::error(&text);
        assert!(told.contains(&error) && told.contains(&hint), "{text}\n{told}");
    }
    planned(&format!("SELECT first_value(channel) IGNORE NULLS {w}, avg_last(price, 8) {w} FROM bid"));
}

#[test]
fn calls_of_models_are_checked() {
    check(
        "",
        &[
            (
                "SELECT predict('air.json', price) FROM bid",
                "8: the model 'air.json' has 2 inputs, and 1 are given",
                "write predict('air.json', dust, air)",
            ),
            (
                "SELECT predict('other.json', price) FROM bid",
                "8: the model 'other.json' is not read in this place",
                "call predict in a SELECT around it",
            ),
            (
                "SELECT predict(channel, price) FROM bid",
                "8: the file of a model is a constant text",
                "write predict('model.json', x, y)",
            ),
            (
                "SELECT predict('air.json', channel, price) FROM bid",
                "8: predict does not take (TEXT, TEXT, BIGINT)",
                "write numbers without quotes; convert with CAST(... AS DOUBLE) or CAST(... AS TEXT)",
            ),
            (
                "SELECT predict('air.json', price, price) OVER () FROM bid",
                "8: predict is not an aggregate",
                "OVER is for aggregates: leave it out",
            ),
            (
                "SELECT predct('air.json', price, price) FROM bid",
                "8: unknown function 'predct'",
                "did you mean 'predict'?",
            ),
        ],
    );
    let plan =
        planned("SELECT predict('air.json', price, NULL) AS air FROM bid WHERE PREDICT('air.json', 1, price) > 'B'");
    assert_eq!(plan.output.schema.field(0).name(), "air");
}
