//! Clauses of big queries, each with its answer in order, at one instance and at several: what is ordered by, left out
//! and limited; sets of keys; windows of windows; joins within a span of time; aggregates over whole partitions.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::util::display::array_value_to_string;
use parking_lot::Mutex;
use rivulet::run::results::{FinalRows, Results};
use rivulet::run::{RunOptions, Runner};
use rivulet::script::{Script, Step};
use rivulet_dataflow::Batch;
use rivulet_sql::PlannedOutput;

use crate::sql_answers::{files, told};

const PATIENCE: Duration = Duration::from_secs(300);

/// The rows that are there in the end.
#[derive(Clone)]
pub(crate) struct Kept(Arc<Mutex<FinalRows>>);

impl Kept {
    /// Without rows yet.
    pub(crate) fn of(output: &PlannedOutput) -> Self {
        Self(Arc::new(Mutex::new(FinalRows::new(output.schema.clone()).unwrap())))
    }

    /// The rows, as the query orders them.
    pub(crate) fn rows(&self, output: &PlannedOutput) -> RecordBatch {
        self.0.lock().rows(output).unwrap()
    }
}

impl Results for Kept {
    fn write(&mut self, batch: &Batch) -> Result<(), String> {
        self.0.lock().add(batch).map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// What a script's last query says in the end, cells separated by `|`, null as nothing.
fn in_the_end(script: &str, parallelism: usize) -> Vec<String> {
    let mut options = RunOptions::new(parallelism);
    options.limits.batch_rows = 2;
    let runner = Runner::new(options).unwrap();
    let mut script = Script::parse(script).unwrap_or_else(|error| panic!("{}", told(&error)));
    let mut lines = Vec::new();
    while let Some(step) = script.next_step().unwrap_or_else(|error| panic!("{}", told(&error))) {
        let Step::Run(planned) = step else { panic!("only queries are run") };
        let output = &planned.plan.output;
        let kept = Kept::of(output);
        let running = runner.start(&planned.host, &planned.plan, &planned.name, Some(Box::new(kept.clone()))).unwrap();
        let report = running.wait(PATIENCE).expect("it ends").unwrap();
        assert_eq!(report.flow.refused.iter().sum::<u64>(), 0);
        let rows = kept.rows(output);
        let cell = |column: usize, row: usize| array_value_to_string(rows.column(column), row).unwrap();
        let line = |row: usize| (0..rows.num_columns()).map(|column| cell(column, row)).collect::<Vec<_>>().join("|");
        lines = (0..rows.num_rows()).map(line).collect();
    }
    lines
}

/// Times are milliseconds since 1970.
const ROWS: &str = "1000,x,5 2000,y,3 12000,x,9 13000,z,1 25000,y,5";

fn check(cases: &[(&str, &[&str])]) {
    check_over(("a", "ts TIMESTAMP EVENT TIME, k TEXT, v BIGINT", ROWS), cases);
}

/// The same over another source: its name, its columns and its lines.
fn check_over(source: (&str, &str, &str), cases: &[(&str, &[&str])]) {
    let (_folder, sources) = files(&[source]);
    let mut wrong = Vec::new();
    for (query, expected) in cases {
        for parallelism in [1, 2, 3] {
            let found = in_the_end(&format!("{sources} {query}"), parallelism);
            if found != *expected {
                wrong.push(format!("{query}\nat {parallelism}: {found:?}, not {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_result_is_ordered_by_what_is_not_selected_and_begins_behind_an_offset() {
    check(&[
        ("SELECT k FROM a ORDER BY v DESC, ts", &["x", "x", "y", "y", "z"]),
        ("SELECT k, v FROM a ORDER BY v % 5, k", &["x|5", "y|5", "z|1", "y|3", "x|9"]),
        ("SELECT k, v FROM a ORDER BY v, k LIMIT 2 OFFSET 1", &["y|3", "x|5"]),
        ("SELECT v FROM a ORDER BY v OFFSET 3", &["5", "9"]),
        ("SELECT v FROM a ORDER BY v LIMIT 3 OFFSET 9", &[]),
        ("SELECT k, sum(v) AS s FROM a GROUP BY k ORDER BY count(*) DESC, sum(v) DESC", &["x|14", "y|8", "z|1"]),
        ("SELECT k, sum(v) AS s FROM a GROUP BY k ORDER BY abs(sum(v) - 9)", &["y|8", "x|14", "z|1"]),
    ]);
}

#[test]
fn keys_are_casts_of_one_column_orders_are_times_of_day_and_patterns_those_of_the_standard() {
    check(&[
        (
            "SELECT CAST(v AS DOUBLE) AS d, CAST(v AS TEXT) AS t, count(*) AS n FROM a
             GROUP BY CAST(v AS DOUBLE), CAST(v AS TEXT) ORDER BY CAST(v AS TEXT)",
            &["1.0|1|1", "3.0|3|1", "5.0|5|2", "9.0|9|1"],
        ),
        (
            "SELECT CAST(v AS TEXT) AS t, v, v + 1, CAST(v + 1 AS TEXT) AS u, count(*) AS n FROM a
             GROUP BY t, 2, 3, 4 HAVING CAST(v AS TEXT) <> '9' ORDER BY v",
            &["1|1|2|2|1", "3|3|4|4|1", "5|5|6|6|2"],
        ),
        (
            "SELECT k, v FROM (SELECT k, v, ROW_NUMBER() OVER (PARTITION BY k ORDER BY CAST(ts AS TIME) DESC) AS n FROM a)
             WHERE n = 1 ORDER BY k",
            &["x|9", "y|5", "z|1"],
        ),
        ("SELECT sum(v) OVER (ORDER BY CAST(ts AS TIME)) AS s FROM a ORDER BY s", &["5", "8", "17", "18", "23"]),
        ("SELECT v FROM a WHERE k SIMILAR TO '[xy]' AND CAST(v AS TEXT) NOT SIMILAR TO '(3|9)%' ORDER BY v", &["5", "5"]),
    ]);
}

#[test]
fn a_limit_inside_of_a_query_keeps_its_first_rows() {
    check(&[
        (
            "SELECT k, count(*) AS n FROM (SELECT * FROM a ORDER BY ts DESC LIMIT 3) GROUP BY k ORDER BY k",
            &["x|1", "y|1", "z|1"],
        ),
        ("SELECT v FROM (SELECT v FROM a ORDER BY ts DESC LIMIT 2 OFFSET 1) ORDER BY v", &["1", "9"]),
        ("SELECT k FROM a WHERE v = (SELECT v FROM a ORDER BY ts DESC LIMIT 1) ORDER BY ts", &["x", "y"]),
        ("SELECT k FROM a WHERE v IN (SELECT v FROM a ORDER BY v LIMIT 2) ORDER BY k", &["y", "z"]),
        (
            "SELECT k, v, (SELECT b.v FROM a AS b WHERE b.k = a.k AND b.v > 1 ORDER BY b.ts DESC LIMIT 1) AS last FROM a
             ORDER BY ts",
            &["x|5|9", "y|3|5", "x|9|9", "z|1|", "y|5|5"],
        ),
        (
            "SELECT k, (SELECT b.v FROM a AS b WHERE b.k = a.k ORDER BY b.ts LIMIT 1 OFFSET 1) AS second FROM a ORDER BY ts",
            &["x|9", "y|5", "x|9", "z|", "y|5"],
        ),
        (
            "SELECT v FROM (SELECT v FROM a ORDER BY v LIMIT 1) UNION ALL
             SELECT v FROM (SELECT v FROM a ORDER BY v DESC LIMIT 1)",
            &["1", "9"],
        ),
        ("CREATE VIEW w AS SELECT k, v FROM a ORDER BY v DESC LIMIT 2; SELECT sum(v) AS s FROM w", &["14"]),
        ("SELECT count(*) AS n FROM (SELECT v FROM a ORDER BY v LIMIT 0)", &["0"]),
    ]);
}

#[test]
fn keys_are_casts_of_one_column_also_more_than_once() {
    let keys = [
        "CAST(v AS DOUBLE), CAST(v AS TEXT)",
        "CAST(v AS DOUBLE), CAST(v AS TEXT), CAST(v AS TEXT)",
        "CAST(v AS DOUBLE), CAST(v AS TEXT), upper(CAST(v AS TEXT)), upper(CAST(v AS TEXT))",
    ];
    let queries = keys.map(|keys| format!("SELECT count(*) AS n FROM a GROUP BY {keys} ORDER BY n"));
    let cases: Vec<(&str, &[&str])> = queries.iter().map(|query| (query.as_str(), &["1", "1", "1", "2"][..])).collect();
    check(&cases);
}

#[test]
fn sets_of_keys_have_a_result_each() {
    check(&[
        (
            "SELECT k, v > 4 AS big, count(*) AS n, GROUPING(k, v > 4) AS g FROM a GROUP BY CUBE (k, v > 4)
             ORDER BY g, k, big",
            &[
                "x|true|2|0",
                "y|false|1|0",
                "y|true|1|0",
                "z|false|1|0",
                "x||2|1",
                "y||2|1",
                "z||1|1",
                "|false|2|2",
                "|true|3|2",
                "||5|3",
            ],
        ),
        (
            "SELECT k, window_end, count(*) AS n FROM a GROUP BY ROLLUP (k), tumble(ts, INTERVAL '10 seconds')
             ORDER BY window_end, k",
            &[
                "x|1970-01-01T00:00:10|1",
                "y|1970-01-01T00:00:10|1",
                "|1970-01-01T00:00:10|2",
                "x|1970-01-01T00:00:20|1",
                "z|1970-01-01T00:00:20|1",
                "|1970-01-01T00:00:20|2",
                "y|1970-01-01T00:00:30|1",
                "|1970-01-01T00:00:30|1",
            ],
        ),
        (
            "SELECT window_end, k, max(v) AS m FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '20' SECOND))
             GROUP BY GROUPING SETS ((window_start, window_end, k), (window_start, window_end))
             HAVING GROUPING(k) = 1 OR k = 'x' ORDER BY window_end, k",
            &["1970-01-01T00:00:20|x|9", "1970-01-01T00:00:20||9", "1970-01-01T00:00:40||5"],
        ),
        ("SELECT k FROM a GROUP BY ROLLUP (k) ORDER BY k", &["x", "y", "z", ""]),
        ("SELECT count(*) AS n FROM a WHERE v > 100 GROUP BY GROUPING SETS ((k), (), ())", &["0", "0"]),
        ("SELECT k, GROUPING(k) AS g FROM a GROUP BY k ORDER BY k", &["x|0", "y|0", "z|0"]),
    ]);
}

#[test]
fn the_last_moment_of_a_window_is_the_time_of_its_result() {
    check(&[
        (
            "SELECT k, window_time FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND)) AS w
             WHERE w.window_time < TIMESTAMP '1970-01-01 00:00:10' ORDER BY k",
            &["x|1970-01-01T00:00:09.999999", "y|1970-01-01T00:00:09.999999"],
        ),
        (
            "SELECT count(*) AS n, window_end FROM
               (SELECT k, window_time AS t FROM a GROUP BY k, tumble(ts, INTERVAL '10 seconds'))
             GROUP BY tumble(t, INTERVAL '20 seconds') ORDER BY window_end",
            &["4|1970-01-01T00:00:20", "1|1970-01-01T00:00:40"],
        ),
        (
            "SELECT window_end, sum(n) AS n FROM TABLE(TUMBLE(TABLE (
               SELECT window_time AS t, count(*) AS n FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '10' SECOND))
               GROUP BY window_start, window_end, window_time), DESCRIPTOR(t), INTERVAL '20' SECOND))
             GROUP BY window_start, window_end ORDER BY window_end",
            &["1970-01-01T00:00:20|4", "1970-01-01T00:00:40|1"],
        ),
    ]);
}

#[test]
fn rows_of_a_span_of_time_meet_without_an_equality() {
    let on = "b.ts > a.ts AND b.ts <= a.ts + INTERVAL '10 seconds'";
    let query = |kind: &str| format!("SELECT a.v AS x, b.v AS y FROM a {kind} JOIN a AS b ON {on} ORDER BY 1, 2");
    check(&[
        (&query(""), &["3|9", "5|3", "9|1"]),
        (&query("LEFT"), &["1|", "3|9", "5|3", "5|", "9|1"]),
        (&query("FULL"), &["1|", "3|9", "5|3", "5|", "9|1", "|5", "|5"]),
        (&format!("SELECT v FROM a WHERE NOT EXISTS (SELECT 1 FROM a AS b WHERE {on}) ORDER BY v"), &["1", "5"]),
        (&format!("SELECT v FROM a WHERE EXISTS (SELECT 1 FROM a AS b WHERE {on}) ORDER BY v"), &["3", "5", "9"]),
        (
            &format!(
                "SELECT count(*) AS n, window_end FROM (SELECT a.v, b.ts FROM a JOIN a AS b ON {on})
                 GROUP BY tumble(ts, INTERVAL '10 seconds') ORDER BY window_end"
            ),
            &["1|1970-01-01T00:00:10", "2|1970-01-01T00:00:20"],
        ),
        // By the time of the earlier row, and windows of those windows.
        (
            &format!(
                "SELECT count(*) AS n, window_end FROM (SELECT b.v, a.ts FROM a JOIN a AS b ON {on})
                 GROUP BY tumble(ts, INTERVAL '10 seconds') ORDER BY window_end"
            ),
            &["2|1970-01-01T00:00:10", "1|1970-01-01T00:00:20"],
        ),
        // Rows without a partner are of the window of their own time.
        (
            &format!(
                "SELECT count(*) AS n, count(v) AS m, window_end FROM (SELECT b.v, a.ts FROM a LEFT JOIN a AS b ON {on})
                 GROUP BY tumble(ts, INTERVAL '10 seconds') ORDER BY window_end"
            ),
            &["2|2|1970-01-01T00:00:10", "2|1|1970-01-01T00:00:20", "1|0|1970-01-01T00:00:30"],
        ),
        (
            &format!(
                "SELECT count(*) AS n, count(v) AS m, window_end FROM (SELECT a.v, b.ts FROM a RIGHT JOIN a AS b ON {on})
                 GROUP BY tumble(ts, INTERVAL '10 seconds') ORDER BY window_end"
            ),
            &["2|1|1970-01-01T00:00:10", "2|2|1970-01-01T00:00:20", "1|0|1970-01-01T00:00:30"],
        ),
        (
            &format!(
                "SELECT count(*) AS n, window_end FROM (SELECT ts FROM a WHERE NOT EXISTS (SELECT 1 FROM a AS b WHERE {on}))
                 GROUP BY tumble(ts, INTERVAL '10 seconds') ORDER BY window_end"
            ),
            &["1|1970-01-01T00:00:20", "1|1970-01-01T00:00:30"],
        ),
        (
            &format!(
                "SELECT count(*) AS n, window_end FROM (
                   SELECT window_time AS t, v FROM (SELECT b.v, a.ts FROM a JOIN a AS b ON {on})
                   GROUP BY v, tumble(ts, INTERVAL '10 seconds'))
                 GROUP BY tumble(t, INTERVAL '20 seconds') ORDER BY window_end"
            ),
            &["3|1970-01-01T00:00:20"],
        ),
    ]);
}

#[test]
fn aggregates_are_over_different_values_over_what_changes_and_over_whole_partitions() {
    let counts = "SELECT k, count(*) AS n FROM a GROUP BY k";
    check(&[
        ("SELECT sum(DISTINCT v) AS s, avg(DISTINCT v) AS m, median(v) AS d FROM a", &["18|4.5|5.0"]),
        ("SELECT bit_and(v) AS x, bit_or(v) AS y, bit_xor(v) AS z FROM a", &["1|15|11"]),
        ("SELECT sum(CAST(v / 2.0 AS BIGINT)), sum(v / 2.0), count(*), count(*) FROM a", &["9|11.5|5|5"]),
        (
            "SELECT percentile_cont(0.75) WITHIN GROUP (ORDER BY v) AS p, percentile_cont(0.75) WITHIN GROUP
                    (ORDER BY v DESC) AS q FROM a",
            &["5.0|3.0"],
        ),
        (
            "SELECT v, percentile_cont(0.5) WITHIN GROUP (ORDER BY v) OVER (ORDER BY ts ROWS 1 PRECEDING) AS p FROM a
             ORDER BY ts",
            &["5|5.0", "3|4.0", "9|6.0", "1|5.0", "5|3.0"],
        ),
        (
            &format!("SELECT median(n) AS m, percentile_cont(n, 0.25) AS p, sum(DISTINCT n) AS s FROM ({counts})"),
            &["2.0|1.5|3"],
        ),
        ("SELECT v, sum(v) OVER () AS s FROM a ORDER BY v LIMIT 2", &["1|23", "3|23"]),
        (
            "SELECT k, v - min(v) OVER (PARTITION BY k) AS d, count(*) OVER (PARTITION BY k) AS n FROM a ORDER BY k, d",
            &["x|0|2", "x|4|2", "y|0|2", "y|2|2", "z|0|1"],
        ),
        (&format!("SELECT k, n, max(n) OVER () AS m FROM ({counts}) ORDER BY k"), &["x|2|2", "y|2|2", "z|1|2"]),
        (
            "SELECT k, v, LEAD(v) OVER (ORDER BY ts) AS next, LEAD(v, 2) OVER (ORDER BY ts) AS other FROM a ORDER BY ts",
            &["x|5|3|9", "y|3|9|1", "x|9|1|5", "z|1|5|", "y|5||"],
        ),
        (
            "SELECT v, sum(v) OVER (ORDER BY ts ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS s,
                    sum(v) OVER (ORDER BY ts ROWS 1 PRECEDING) AS own,
                    count(*) OVER (ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING) AS n FROM a
             ORDER BY ts",
            &["5||5|0", "3|5|8|0", "9|8|12|1", "1|12|10|2", "5|10|6|3"],
        ),
        (
            "SELECT k, v FROM (SELECT k, v, avg(v) FILTER (WHERE v < 9) OVER (PARTITION BY k ORDER BY ts
             ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING) AS m FROM a) WHERE v > m ORDER BY v",
            &["y|5", "x|9"],
        ),
        (
            "SELECT k, v, LEAD(v) OVER (PARTITION BY k ORDER BY ts) AS next FROM a ORDER BY ts",
            &["x|5|9", "y|3|5", "x|9|", "z|1|", "y|5|"],
        ),
    ]);
}

#[test]
fn lists_are_in_order_of_time_or_as_said_over_windows_changes_and_rows_before() {
    let counts = "SELECT k, count(*) AS n FROM a GROUP BY k";
    check(&[
        (
            "SELECT array_agg(v) AS l, array_agg(v ORDER BY k DESC, v) AS o, string_agg(k, '/') AS s FROM a",
            &["[5,3,9,1,5]|[1,3,5,5,9]|x/y/x/z/y"],
        ),
        (
            "SELECT array_agg(v) WITHIN GROUP (ORDER BY k DESC, v) AS o, listagg(k, '/') AS s,
                    listagg(k, '/') WITHIN GROUP (ORDER BY v DESC, k) AS t FROM a",
            &["[1,3,5,5,9]|x/y/x/z/y|x/x/y/y/z"],
        ),
        (
            "SELECT array_agg(DISTINCT v) AS l, string_agg(DISTINCT k, '' ORDER BY k DESC) AS s,
                    array_agg(k) FILTER (WHERE v > 4) AS f, array_agg(k) FILTER (WHERE v > 9) AS none FROM a",
            &["[1,3,5,9]|zyx|[\"x\",\"x\",\"y\"]|"],
        ),
        (
            "SELECT l FROM (SELECT array_agg(v) AS l, window_end AS e FROM a
             GROUP BY tumble(ts, INTERVAL '10 seconds')) ORDER BY e",
            &["[5,3]", "[9,1]", "[5]"],
        ),
        (
            "SELECT l FROM (SELECT array_agg(v) AS l, window_end AS e FROM a
             GROUP BY hop(ts, INTERVAL '10 seconds', INTERVAL '20 seconds')) ORDER BY e",
            &["[5,3]", "[5,3,9,1]", "[9,1,5]", "[5]"],
        ),
        (
            "SELECT l, k FROM (SELECT array_agg(v ORDER BY v) AS l, array_agg(DISTINCT k) AS k, window_end AS e FROM a
             GROUP BY session(ts, INTERVAL '10500 milliseconds')) ORDER BY e",
            &["[1,3,5,9]|[\"x\",\"y\",\"z\"]", "[5]|[\"y\"]"],
        ),
        (
            &format!(
                "SELECT array_agg(n ORDER BY k) AS l, array_agg(DISTINCT n) AS d, string_agg(k, ',') AS s
                      FROM ({counts})"
            ),
            &["[2,2,1]|[1,2]|x,z,y"],
        ),
        (
            "SELECT v, array_agg(v) OVER (ORDER BY ts ROWS 1 PRECEDING) AS l,
                    array_agg(DISTINCT v) OVER (ORDER BY ts) AS d FROM a ORDER BY ts",
            &["5|[5]|[5]", "3|[5,3]|[3,5]", "9|[3,9]|[3,5,9]", "1|[9,1]|[1,3,5,9]", "5|[1,5]|[1,3,5,9]"],
        ),
        ("SELECT k, string_agg(k, '') OVER () AS s FROM a ORDER BY ts LIMIT 2", &["x|xyxzy", "y|xyxzy"]),
        (
            "SELECT json_object('all', array_agg(v), 'n', count(*)) AS o FROM a GROUP BY k ORDER BY k",
            &["{\"all\":[5,9],\"n\":2}", "{\"all\":[3,5],\"n\":2}", "{\"all\":[1],\"n\":1}"],
        ),
    ]);
}

#[test]
fn an_array_has_elements_and_gives_rows_of_them() {
    let lists = "SELECT k, array_agg(v) AS l FROM a GROUP BY k";
    check(&[
        (
            "SELECT k, x, n FROM a CROSS JOIN UNNEST(string_to_array(k || '+' || k, '+')) WITH ORDINALITY AS r (x, n)
             WHERE v > 4 ORDER BY ts, n",
            &["x|x|1", "x|x|2", "x|x|1", "x|x|2", "y|y|1", "y|y|2"],
        ),
        // Typed elements, also of lists that change: 5, 9, 3, 5 and 1 are left.
        (&format!("SELECT sum(x) AS s, count(*) AS n FROM ({lists}) CROSS JOIN UNNEST(l) AS r (x)"), &["23|5"]),
        (
            &format!("SELECT k, r.x + 1 AS x FROM ({lists}) AS t, UNNEST(t.l) AS r (x) WHERE r.x > 3 ORDER BY k, x"),
            &["x|6", "x|10", "y|6"],
        ),
        (
            "SELECT p, count(*) AS n FROM a JOIN UNNEST(string_to_array(k || ',y', ',')) AS r (p) ON p <> 'z'
             GROUP BY p, tumble(ts, INTERVAL '1 minute') ORDER BY p",
            &["x|2", "y|7"],
        ),
        (
            "SELECT b.k, x, y FROM a AS b CROSS JOIN UNNEST(json_array(b.v, b.v + 1)) AS r (x)
             CROSS JOIN UNNEST(json_array(x)) AS s (y) WHERE b.v = 9 ORDER BY x",
            // The elements are numbers, as the values are.
            &["x|9|9", "x|10|10"],
        ),
        ("SELECT x FROM a CROSS JOIN UNNEST(CASE WHEN v > 5 THEN json_array(v) END) AS r (x)", &["9"]),
        (
            &format!(
                "SELECT l[1] + l[-1] AS s, l[3] AS none, cardinality(l) AS n, array_contains(l, 5) AS has,
                      array_to_string(l, '-') AS t FROM ({lists}) ORDER BY k"
            ),
            &["14||2|true|5-9", "8||2|true|3-5", "2||1|false|1"],
        ),
    ]);
}

#[test]
fn columns_may_be_called_as_the_bounds_of_windows() {
    let columns = "window_start TIMESTAMP, window_end TIMESTAMP EVENT TIME, arrival_time BIGINT, k TEXT, v BIGINT";
    let rows = "0,10000,1,x,1 10000,20000,2,y,4 20000,30000,3,x,3 80000,90000,4,x,8";
    let seconds = |name: &str| format!("date_part('epoch', {name})");
    let (start, end) = (seconds("window_start"), seconds("window_end"));
    check_over(
        ("m", columns, rows),
        &[
            (&format!("SELECT {start} AS s, {end} AS e, arrival_time FROM m ORDER BY e LIMIT 1"), &["0.0|10.0|1"]),
            (&format!("SELECT count(*) AS n, {end} AS e FROM m GROUP BY window_end ORDER BY e LIMIT 1"), &["1|10.0"]),
            // With a window the name alone is its bound, and the qualified name is the column.
            (
                &format!(
                    "SELECT {start} AS s, {end} AS e, max(v) AS v, max(m.window_end) - max(m.window_start) AS d FROM m
                     WHERE window_end > window_start GROUP BY tumble(window_end, INTERVAL '25 seconds')
                     HAVING {end} > 30 ORDER BY e"
                ),
                &[
                    "25.0|50.0|3|0 days 0 hours 0 mins 10.000000 secs",
                    "75.0|100.0|8|0 days 0 hours 0 mins 10.000000 secs",
                ],
            ),
            (
                &format!(
                    "SELECT k, {} AS own, {end} AS e, count(*) AS n FROM m AS b
                     GROUP BY k, b.window_end, tumble(window_end, INTERVAL '25 seconds') ORDER BY own",
                    seconds("b.window_end")
                ),
                &["x|10.0|25.0|1", "y|20.0|25.0|1", "x|30.0|50.0|1", "x|90.0|100.0|1"],
            ),
            (
                &format!(
                    "SELECT {end} AS e, count(*) AS n FROM
                     TABLE(TUMBLE(TABLE (SELECT window_end AS t, v FROM m), DESCRIPTOR(t), INTERVAL '25 seconds'))
                     GROUP BY window_start, window_end ORDER BY e"
                ),
                &["25.0|2", "50.0|1", "100.0|1"],
            ),
            (
                &format!(
                    "SELECT k, {} AS own, {end} AS e, count(*) AS n FROM m AS b
                     GROUP BY k, b.window_end, session(window_end, INTERVAL '15 seconds') ORDER BY own LIMIT 2",
                    seconds("b.window_end")
                ),
                &["x|10.0|25.0|1", "y|20.0|35.0|1"],
            ),
        ],
    );
}
