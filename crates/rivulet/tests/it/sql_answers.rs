//! Answers of big queries that were wrong once, and such as must be refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet::run::results::Results;
use rivulet::run::{RunOptions, Runner};
use rivulet::script::{Script, Step};
use rivulet::service::ServiceError;
use rivulet_dataflow::{Batch, Reason};
use rivulet_testing::Answer;
use tempfile::TempDir;

/// A query over a few rows is over at once.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a script's last query says.
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    /// Rows that were refused, for whatever reason.
    pub(crate) refused: u64,
    late: u64,
    /// Whether rows may be taken back, by the plan.
    changes: bool,
}

/// Results as the answer that they are.
#[derive(Clone, Default)]
pub(crate) struct Collected(pub(crate) Arc<Mutex<Answer>>);

impl Results for Collected {
    fn write(&mut self, batch: &Batch) -> Result<(), String> {
        self.0.lock().add(&batch.columns, batch.retracts.as_ref()).map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Runs a script, in batches small enough that a lot happens.
pub(crate) fn answer(script: &str, parallelism: usize) -> Result<Answered, String> {
    let mut options = RunOptions::new(parallelism);
    options.limits.batch_rows = 16;
    options.limits.rows_max = 256;
    let runner = Runner::new(options).map_err(|error| error.to_string())?;
    let mut script = Script::parse(script).map_err(|error| told(&error))?;
    let mut answered = Answered { answer: Answer::default(), refused: 0, late: 0, changes: false };
    while let Some(step) = script.next_step().map_err(|error| told(&error))? {
        let Step::Run(planned) = step else { return Err("only queries are run".into()) };
        let collected = Collected::default();
        let results = planned.plan.output.sink.is_none().then(|| Box::new(collected.clone()) as _);
        let running =
            runner.start(&planned.host, &planned.plan, &planned.name, results).map_err(|error| error.to_string())?;
        let report = running.wait(PATIENCE).ok_or("it does not end")?.map_err(|error| error.to_string())?;
        answered = Answered {
            answer: std::mem::take(&mut *collected.0.lock()),
            refused: report.flow.refused.iter().sum(),
            late: report.flow.refused[Reason::Late as usize],
            changes: planned.plan.output.changes,
        };
    }
    Ok(answered)
}

/// What is wrong with a script, where, and what to do.
pub(crate) fn told(error: &ServiceError) -> String {
    let place = match (error.line, error.column) {
        (Some(line), Some(column)) => format!("line {line}, column {column}: "),
        _ => String::new(),
    };
    let hint = error.hint.as_ref().map_or_else(String::new, |hint| format!("\nhint: {hint}"));
    format!("{place}{error}{hint}")
}

/// A folder with files, and the script that declares them: each a name, its columns and its lines.
pub(crate) fn files(files: &[(&str, &str, &str)]) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let mut script = String::new();
    for (name, columns, lines) in files {
        let file = folder.path().join(format!("{name}.csv"));
        fs::write(&file, lines.replace(' ', "\n")).unwrap();
        script.push_str(&format!("CREATE SOURCE {name} ({columns}) FROM 'file:{}' FORMAT CSV;\n", file.display()));
    }
    (folder, script)
}

/// The rows of an answer, sorted, cells separated by `|`.
pub(crate) fn rows(answered: &Answered) -> Vec<String> {
    answered.answer.section("q").lines().skip(1).map(str::to_owned).collect()
}

/// What a query says at one and at two instances, with how many rows it refused.
fn check(script: &str, expected: &[&str], refused: u64) {
    for parallelism in [1, 2] {
        let answered = answer(script, parallelism).unwrap_or_else(|error| panic!("{error}\n{script}"));
        assert_eq!(rows(&answered), expected, "at parallelism {parallelism}\n{script}");
        assert_eq!(answered.refused, refused, "at parallelism {parallelism}\n{script}");
    }
}

fn error_of(script: &str) -> String {
    match answer(script, 1) {
        Ok(answered) => panic!("it was taken, and gave {:?}\n{script}", rows(&answered)),
        Err(error) => error,
    }
}

#[test]
fn a_failing_argument_is_null_for_its_own_aggregate() {
    let (_folder, source) =
        files(&[("t", "ts TIMESTAMP EVENT TIME, k TEXT, g BIGINT NOT NULL", "1000,a,5 2000,a,0 3000,b,0 20000,a,10")]);
    check(
        &format!("{source} SELECT k, count(*), sum(100 / g), count(DISTINCT 100 / g) FROM t GROUP BY k"),
        &["a|3|30|2", "b|1|\\N|0"],
        2,
    );
    let windows = "TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY window_start, window_end";
    check(&format!("{source} SELECT count(*), sum(100 / g) FROM {windows}"), &["1|10", "3|20"], 2);
    // Where no column is read, too.
    check(&format!("{source} SELECT 1 / 0 FROM t"), &[], 4);
    // A filter keeps the argument from being computed.
    check(&format!("{source} SELECT count(*), sum(100 / g) FILTER (WHERE g > 0) FROM {windows}"), &["1|10", "3|20"], 0);
}

#[test]
fn sums_come_back_from_beyond_all_numbers() {
    let (_folder, source) =
        files(&[("t", "ts TIMESTAMP EVENT TIME, k TEXT, d DOUBLE", "1000,a,1e308 2000,b,1.7e308 3000,a,3 4000,b,5")]);
    let query = "SELECT sum(m) FROM (SELECT k, last_value(d) AS m FROM t GROUP BY k)";
    check(&format!("{source} {query}"), &["8.00000000e0"], 0);
}

#[test]
fn late_rows_of_a_join_that_forgets_are_refused_and_counted() {
    let columns = "ts TIMESTAMP EVENT TIME, k TEXT, n BIGINT";
    let on_time = (0..20_000).map(|n| format!("{},y{n},0", 70_000 + n * 10_000)).collect::<Vec<_>>().join(" ");
    let lines = format!("1000,x,1 2000,x,2 60000,x,3 {on_time} 3000,x,4");
    let (_folder, sources) = files(&[("a", columns, &lines), ("b", columns, &lines)]);
    for kind in ["JOIN", "LEFT JOIN", "FULL JOIN"] {
        let query = format!(
            "{sources} SELECT count(*), max(a.n), max(b.n) FROM a {kind} b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '5 seconds'"
        );
        let answered = answer(&query, 1).unwrap();
        // The last row of the side that ends first may come before the watermark of the other has passed it.
        assert!((1..=2).contains(&answered.late), "{kind}: {} late", answered.late);
        if kind == "JOIN" || answered.late == 2 {
            assert_eq!(rows(&answered), ["20004|3|3"], "{kind}");
        }
    }
}

#[test]
fn a_window_behind_an_order_by_its_end_takes_the_last_row() {
    // The watermark stands at the very end of each window.
    let (_folder, source) = files(&[("t", "ts TIMESTAMP EVENT TIME, k TEXT", "1000,a 10000,a 20000,a 30000,a")]);
    check(
        &format!(
            "{source} SELECT window_start, sum(s) FROM (SELECT window_start, window_end, sum(n) OVER (ORDER BY window_end ROWS 1 PRECEDING) AS s
             FROM (SELECT window_start, window_end, count(*) AS n FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' SECOND))
             GROUP BY window_start, window_end)) GROUP BY window_start, window_end"
        ),
        &["1970-01-01 00:00:00|1", "1970-01-01 00:00:10|2", "1970-01-01 00:00:20|2", "1970-01-01 00:00:30|2"],
        0,
    );
}

#[test]
fn a_scalar_subquery_follows_its_value() {
    let (_folder, source) = files(&[("t", "ts TIMESTAMP EVENT TIME, v BIGINT", "1000,1 2000,9 3000,5 4000,7 5000,20")]);
    check(&format!("{source} SELECT v FROM t WHERE v > (SELECT avg(v) FROM t)"), &["20", "9"], 0);
    check(&format!("{source} SELECT v, v - (SELECT max(v) FROM t) FROM t WHERE v < 6"), &["1|-19", "5|-15"], 0);
    check(&format!("{source} SELECT v FROM t WHERE v > (SELECT sum(v) FROM t WHERE v > 100)"), &[], 0);
    let error = error_of(&format!("{source} SELECT sum(v - (SELECT max(v) FROM t)) FROM t"));
    assert!(error.contains("a subquery in this place is not supported yet") && error.contains("hint"), "{error}");
}

#[test]
fn what_a_sink_does_not_take_is_refused() {
    let (folder, source) =
        files(&[("t", "ts TIMESTAMP EVENT TIME, k TEXT, v BIGINT, d DOUBLE", "1000,a,1,2.5 2000,,2,3.5 3000,c,,4")]);
    let sink = |columns: &str, name: &str| {
        let file = folder.path().join(name);
        (format!("{source} CREATE SINK s ({columns}) TO 'file:{}' FORMAT CSV;", file.display()), file)
    };
    for (columns, select) in
        [("n BIGINT", "d"), ("n BIGINT", "ts"), ("n TIMESTAMP", "v"), ("n BOOLEAN", "v"), ("n BIGINT", "k")]
    {
        let error = error_of(&format!("{} INSERT INTO s SELECT {select} FROM t", sink(columns, "refused.csv").0));
        assert!(error.contains("CAST"), "{columns} from {select}: {error}");
    }
    let (script, file) = sink("x DOUBLE, y TEXT", "widened.csv");
    answer(&format!("{script} INSERT INTO s SELECT v, d FROM t"), 1).unwrap();
    assert_eq!(read(&file), "1.0,2.5\n2.0,3.5\n,4.0\n");
    let (script, file) = sink("k TEXT NOT NULL, v BIGINT", "not_null.csv");
    let answered = answer(&format!("{script} INSERT INTO s SELECT k, v FROM t"), 1).unwrap();
    assert_eq!((read(&file).as_str(), answered.refused), ("a,1\nc,\n", 1));
}

#[test]
fn a_changing_result_with_a_key_comes_whole_to_a_sink_of_several_instances() {
    let lines: Vec<String> = (0..200).map(|n| format!("{},{},{}", 1000 + n * 10, n % 20, n * 7 % 5)).collect();
    let (folder, source) = files(&[("t", "ts TIMESTAMP EVENT TIME, k BIGINT, v BIGINT", &lines.join(" "))]);
    let query = "SELECT x.k, x.m, y.n FROM (SELECT k, max(v) AS m FROM t GROUP BY k) AS x
                 JOIN (SELECT v, count(*) AS n FROM t GROUP BY v) AS y ON x.m = y.v";
    let expected = rows(&answer(&format!("{source} {query}"), 1).unwrap());
    assert_eq!(expected.len(), 20);
    for parallelism in [1, 2] {
        let file = folder.path().join(format!("changes_{parallelism}.csv"));
        let sink = format!("CREATE SINK s TO 'file:{}' FORMAT CSV;", file.display());
        answer(&format!("{source} {sink} INSERT INTO s {query}"), parallelism).unwrap();
        let mut left: Vec<String> = Vec::new();
        let text = read(&file);
        let (came, gone): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('+'));
        left.extend(came.iter().map(|line| line[2..].replace(',', "|")));
        for line in gone {
            let row = line[2..].replace(',', "|");
            left.swap_remove(left.iter().position(|one| *one == row).unwrap_or_else(|| panic!("{row} never came")));
        }
        left.sort();
        assert_eq!(left, expected, "at parallelism {parallelism}");
    }
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap()
}

#[test]
fn what_would_be_misread_is_refused_with_another_way() {
    let columns = "ts TIMESTAMP EVENT TIME, k TEXT, v BIGINT";
    let (_folder, sources) = files(&[("a", columns, "1000,a,1"), ("b", columns, "1000,a,1")]);
    let cases = [
        ("SELECT k FROM a RIGHT JOIN b USING (k)", "RIGHT JOIN ... USING", "COALESCE"),
        ("SELECT k FROM a FULL JOIN b USING (k)", "FULL JOIN ... USING", "COALESCE"),
        ("SELECT k FROM a NATURAL FULL JOIN b", "NATURAL FULL JOIN", "COALESCE"),
        (
            "SELECT window_start, v FROM TABLE(HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '1' SECOND, INTERVAL '1' DAY))",
            "86400 windows",
            "group by window_start",
        ),
        ("CREATE VIEW w AS SELECT k FROM a LIMIT 3", "LIMIT inside of a query needs an ORDER BY", "ORDER BY ts DESC"),
        ("CREATE VIEW w AS SELECT a.k FROM a, b", "without an equality", "join ON"),
        ("SELECT k FROM a WHERE v > (SELECT v FROM b)", "may give more than one row", "max("),
    ];
    for (query, problem, hint) in cases {
        let error = error_of(&format!("{sources} {query}"));
        assert!(error.contains(problem) && error.contains(hint), "{query}: {error}");
    }
    // A view may leave the bound of its ranks to who reads it.
    let ranked = "CREATE VIEW w AS SELECT k, ROW_NUMBER() OVER (ORDER BY v) AS r FROM a; SELECT k FROM w WHERE r <= 1";
    check(&format!("{sources} {ranked}"), &["a"], 0);
}

#[test]
fn the_first_rows_of_a_window_come_once_and_are_rows_of_that_window() {
    let (_folder, sources) = files(&[(
        "a",
        "ts TIMESTAMP EVENT TIME, k TEXT, v BIGINT",
        "1000,x,1 2000,y,2 3000,y,3 12000,x,9 13000,z,1 14000,z,1 25000,z,5 31000,y,4",
    )]);
    let ranked = "SELECT * FROM (
        SELECT k, n, window_end, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n DESC, k) AS p
        FROM (SELECT k, count(*) AS n, window_start, window_end FROM a GROUP BY k, tumble(ts, INTERVAL '10 seconds'))
    ) WHERE p <= 1";
    let end = |second: u32| format!("1970-01-01 00:00:{second}");
    let first = [("y", 2, 10), ("z", 2, 20), ("z", 1, 30), ("y", 1, 40)];
    let mut expected: Vec<String> = first.iter().map(|(k, n, at)| format!("{k}|{n}|{}|1", end(*at))).collect();
    expected.sort();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let rows = |query: &str| {
        let answered = answer(&format!("{sources} {query}"), 2).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((answered.refused, answered.changes), (0, false), "{query}");
        rows(&answered)
    };
    assert_eq!(rows(ranked), expected);
    // The end of the window is the event time of its first rows: they have windows and neighbours in time.
    let minutes =
        format!("SELECT count(*), sum(n) FROM ({ranked}) AS r GROUP BY tumble(window_end, INTERVAL '20 seconds')");
    assert_eq!(rows(&minutes), ["1|1", "1|2", "2|3"]);
    let before = format!("SELECT k, LAG(k) OVER (ORDER BY window_end) AS last FROM ({ranked}) AS r");
    assert_eq!(rows(&before), ["y|\\N", "y|z", "z|y", "z|z"]);
    let joined = format!(
        "SELECT r.k, s.v FROM ({ranked}) AS r JOIN a AS s
        ON r.k = s.k AND s.ts < r.window_end AND s.ts >= r.window_end - INTERVAL '10 seconds'"
    );
    assert_eq!(rows(&joined), ["y|2", "y|3", "y|4", "z|1", "z|1", "z|5"]);
}

#[test]
fn what_can_be_answered_is_not_refused() {
    let (_folder, sources) = files(&[
        ("a", "k TEXT, v BIGINT, d DOUBLE", "x,1,1.5 y,2,2.5 x,3,0.5"),
        ("b", "k TEXT, w BIGINT", "x,10 z,20"),
    ]);
    let cases: [(&str, &[&str]); 14] = [
        // One row of nothing.
        ("SELECT count(*) FROM (SELECT max(v) AS m FROM a) AS t", &["1"]),
        ("SELECT count(*) FROM (SELECT max(v) AS m FROM a HAVING max(v) > 5) AS t", &["0"]),
        ("SELECT a.v FROM a, (SELECT max(w) AS m FROM b) AS t", &["1", "2", "3"]),
        ("SELECT v FROM a UNION ALL SELECT 7", &["1", "2", "3", "7"]),
        // Two aggregates that differ by a conversion.
        ("SELECT sum(d) AS x, sum(CAST(d AS BIGINT)) AS y FROM a", &["4.50000000e0|3"]),
        (
            "SELECT k, sum(CAST(v AS DOUBLE)) AS x, sum(v) AS y FROM a GROUP BY k HAVING sum(CAST(v AS DOUBLE)) > 2.0",
            &["x|4.00000000e0|4"],
        ),
        // A join that nothing fulfils.
        ("SELECT a.v, b.w FROM a JOIN b ON a.k = b.k AND 1 = 0", &[]),
        ("SELECT a.v, b.w FROM a, b WHERE a.k = b.k AND 1 = 0", &[]),
        ("SELECT a.v, b.w FROM a LEFT JOIN b ON a.k = b.k AND 1 = 0", &["1|\\N", "2|\\N", "3|\\N"]),
        ("SELECT a.v, b.w FROM a RIGHT JOIN b ON a.k = b.k AND NULL", &["\\N|10", "\\N|20"]),
        ("SELECT a.v, b.w FROM a FULL JOIN b ON 1 = 0", &["1|\\N", "2|\\N", "3|\\N", "\\N|10", "\\N|20"]),
        ("SELECT v FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND 1 = 0)", &["1", "2", "3"]),
        // ORDER BY the place of an expression over aggregates.
        ("SELECT k, count(*) + 1 FROM a GROUP BY k ORDER BY 2 DESC", &["x|3", "y|2"]),
        ("SELECT k, sum(v) * 2 AS s FROM a GROUP BY k ORDER BY 2, 1", &["x|8", "y|4"]),
    ];
    for (query, expected) in cases {
        check(&format!("{sources} {query}"), expected, 0);
    }
}
