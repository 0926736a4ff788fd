//! One zero and one NaN through the real program: made of texts, through every operator that compares, groups or
//! orders, into files. A format takes none for a number.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::server::{Publisher, Server};

/// What `rivulet run` writes for a script.
fn run(parallelism: usize, script: &str) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .args(["run", "-q", "--format", "csv", "-p", &parallelism.to_string(), "-c", script])
        .output()
        .expect("the program");
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{script}: {errors}");
    String::from_utf8(done.stdout).expect("text")
}

/// The lines of a result in no order.
fn sorted(result: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = result.lines().skip(1).collect();
    lines.sort_unstable();
    lines
}

const ROWS: &str =
    "ts,id,w\n1000,1,-0.0\n2000,2,0.0\n3000,3,NaN\n4000,4,nan\n5000,5,inf\n6000,6,-Infinity\n7000,7,1.5\n8000,8,-0\n";

#[test]
fn there_is_one_zero_and_one_nan_in_every_operator() {
    let folder = TempDir::new().unwrap();
    let (one, other) = (folder.path().join("one.csv"), folder.path().join("other.csv"));
    fs::write(&one, ROWS).unwrap();
    fs::write(&other, ROWS).unwrap();
    let source = |name: &str, path: &std::path::Path| {
        format!(
            "CREATE SOURCE {name} (ts TIMESTAMP EVENT TIME, id BIGINT, w TEXT, v AS CAST(w AS DOUBLE)) FROM 'file:{}' \
             FORMAT CSV (header => true);",
            path.display()
        )
    };
    let levels = folder.path().join("levels.csv");
    fs::write(&levels, "v,name\n-0.0,zero\n77,some\n").unwrap();
    let sources = format!(
        "{} {} CREATE TABLE levels (v DOUBLE, name TEXT) FROM 'file:{}' FORMAT CSV (header => true);",
        source("t", &one),
        source("u", &other),
        levels.display()
    );
    // As they are read, and as they are computed: with the other sign, and doubled.
    for v in ["v", "(0.0 - v)", "(v * -2.0)", "(-v)"] {
        let is_negated = v != "v";
        for parallelism in [1, 3] {
            let run = |query: &str| run(parallelism, &format!("{sources} {}", query.replace("$v", v)));
            let ordered = run("SELECT $v AS x, min(id) AS id FROM t GROUP BY $v ORDER BY x");
            let lines: Vec<&str> = ordered.lines().skip(1).collect();
            assert_eq!(lines.len(), 5, "{v}: {ordered}");
            let ends = if is_negated { ["-Infinity,5", "Infinity,6"] } else { ["-Infinity,6", "Infinity,5"] };
            assert_eq!([lines[0], lines[3], lines[4]], [ends[0], ends[1], "NaN,3"], "{v}: {ordered}");
            assert!(lines[1..3].contains(&"0.0,1"), "{v}: {ordered}");
            assert_eq!(sorted(&run("SELECT DISTINCT $v AS x FROM t")).len(), 5, "{v}");
            assert_eq!(run("SELECT count(DISTINCT $v) AS n FROM t"), "n\n5\n", "{v}");
            assert_eq!(run("SELECT max($v) AS n FROM t"), "n\nNaN\n", "{v}");
            assert_eq!(run("SELECT min($v) AS n FROM t"), "n\n-Infinity\n", "{v}");
            let pairs = run(
                "SELECT count(*) AS n FROM (SELECT $v AS x FROM t) AS a JOIN (SELECT $v AS x FROM u) AS b ON a.x = b.x",
            );
            assert_eq!(pairs, "n\n16\n", "{v}: three zeros, two NaN, three others");
            let ranks =
                "SELECT id, r FROM (SELECT id, RANK() OVER (ORDER BY $v DESC) AS r FROM t) WHERE r <= 2 ORDER BY id";
            assert_eq!(run(ranks), "id,r\n3,1\n4,1\n", "{v}");
            let zeros = "SELECT id FROM t WHERE $v IN (-0.0, 77.0) AND $v BETWEEN 0.0 AND -0.0 ORDER BY id";
            assert_eq!(run(zeros), "id\n1\n2\n8\n", "{v}");
            let names = run("SELECT id, name FROM (SELECT id, $v AS x FROM t) AS a JOIN levels ON levels.v = a.x");
            assert_eq!(sorted(&names), ["1,zero", "2,zero", "8,zero"], "{v}: {names}");
            let windows = run("SELECT $v AS x, count(*) AS n FROM t GROUP BY tumble(ts, INTERVAL '1 minute'), $v");
            let windows = sorted(&windows);
            assert!(windows.contains(&"0.0,3") && windows.contains(&"NaN,2"), "{v}: {windows:?}");
        }
    }
}

/// What is not finite is written by its name. No format reads the name as a number, and a cast does.
#[test]
fn what_is_not_finite_is_read_as_a_text_alone() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rows.csv");
    fs::write(&file, ROWS).unwrap();
    for (format, line) in [("JSON", "{\"id\":3,\"v\":\"NaN\"}"), ("CSV", "3,NaN")] {
        let out = folder.path().join(format);
        let script = |column: &str, v: &str| {
            format!(
                "CREATE SOURCE t (ts TIMESTAMP EVENT TIME, id BIGINT, w TEXT) FROM 'file:{}' FORMAT CSV (header => true);
                 CREATE SINK s TO 'file:{out}' FORMAT {format}; INSERT INTO s SELECT id, CAST(w AS DOUBLE) AS v FROM t;
                 CREATE SOURCE again (id BIGINT, v {column}) FROM 'file:{out}' FORMAT {format};
                 SELECT id, {v} AS v FROM again WHERE abs({v}) > 1 ORDER BY id;",
                file.display(),
                out = out.display()
            )
        };
        assert_eq!(run(1, &script("DOUBLE", "v")), "id,v\n7,1.5\n", "{format}");
        let written = fs::read_to_string(&out).unwrap();
        assert!(written.lines().any(|found| found == line), "{format}: {written}");
        let of_texts = run(1, &script("TEXT", "CAST(v AS DOUBLE)"));
        assert!(of_texts.starts_with("id,v\n3,NaN\n4,NaN\n5,Infinity\n6,-Infinity\n"), "{format}: {of_texts}");
    }
}

/// The sums of these cancel, and come out exactly: the average is 0.75.
const CANCELLING: [i64; 4] = [1 << 62, 1, -(1 << 62), 2];

#[test]
fn averages_of_whole_numbers_are_exact_in_big_queries() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("large.csv");
    // As many groups as it takes for each instance to have some, in windows of four rows.
    let rows = (0..4).flat_map(|row| (0..20).map(move |group| (row, group)));
    let lines = rows.map(|(row, group)| format!("{},{group},{}\n", 1_000 * row, CANCELLING[row as usize]));
    fs::write(&file, lines.collect::<String>()).unwrap();
    let source = format!(
        "CREATE SOURCE t (ts TIMESTAMP EVENT TIME, g BIGINT, n BIGINT) FROM 'file:{}' FORMAT CSV;",
        file.display()
    );
    let each: Vec<String> = (0..20).map(|group| format!("{group},0.75")).collect();
    for parallelism in [1, 3] {
        let run = |query: &str| run(parallelism, &format!("{source} {query}"));
        for query in [
            "SELECT g, avg(n) AS mean FROM t GROUP BY g ORDER BY g",
            "SELECT g, avg(n) AS mean FROM t GROUP BY g, tumble(ts, INTERVAL '1 minute') ORDER BY g",
            "SELECT g, avg(n) AS mean FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '4' SECOND)) \
             GROUP BY g, window_end ORDER BY g",
            "SELECT g, mean FROM (SELECT g, ts, avg(n) OVER (PARTITION BY g ORDER BY ts \
             ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS mean FROM t) \
             WHERE ts >= TIMESTAMP '1970-01-01 00:00:03' \
             ORDER BY g",
            // Sums that change are taken back from the average.
            "SELECT g, avg(s) AS mean FROM (SELECT g, n, sum(n) AS s FROM t GROUP BY g, n) GROUP BY g ORDER BY g",
        ] {
            let found = run(query);
            assert_eq!(found.lines().skip(1).collect::<Vec<_>>(), each, "{query} in {parallelism} instances");
        }
        assert_eq!(run("SELECT avg(n) AS mean FROM t"), "mean\n0.75\n");
    }
}

#[test]
fn averages_of_whole_numbers_are_exact_in_small_queries() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("large.csv"), CANCELLING.map(|number| format!("{number}\n")).concat()).unwrap();
    let server = Server::start(folder.path());
    server.sql_ok("CREATE TABLE large (n BIGINT) FROM 'file:large.csv' FORMAT CSV");
    let selects = [
        ("windows", "SELECT avg(n) AS mean FROM t GROUP BY tumble(ts, INTERVAL '10 seconds')"),
        (
            "patterns",
            "SELECT mean FROM t MATCH_RECOGNIZE (MEASURES avg(A.n) AS mean PATTERN (A{4} B) DEFINE B AS B.n = 0) AS m",
        ),
        ("tables", "SELECT mean FROM t CROSS JOIN LATERAL (SELECT avg(large.n) AS mean FROM large) AS l WHERE t.n = 0"),
    ];
    for (name, select) in selects {
        server.sql_ok(&format!(
            "CREATE APPLICATION {name} (id TEXT) INPUT t (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{{id}}' \
             FORMAT JSON OUTPUT 'mqtt:out/{name}/{{id}}' FORMAT JSON AS {select}; \
             CREATE QUERY one_of_{name} FROM APPLICATION {name} WITH (id => 'a')"
        ));
    }
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("out/#");
    let mut sensor = Publisher::connect(server.mqtt);
    let begin = 1_795_000_000_000_u64;
    for (second, number) in (0..).zip(CANCELLING) {
        sensor.publish("in/a", &format!("{{\"ts\": {}, \"n\": {number}}}", begin + 1_000 * second));
    }
    sensor.publish("in/a", &format!("{{\"ts\": {}, \"n\": 0}}", begin + 20_000));
    let mut found: Vec<(String, String)> = (0..selects.len())
        .map(|_| listener.next())
        .map(|(topic, payload)| (topic, String::from_utf8(payload).unwrap()))
        .collect();
    found.sort();
    let expected =
        ["patterns", "tables", "windows"].map(|name| (format!("out/{name}/a"), "{\"mean\":0.75}".to_owned()));
    assert_eq!(found, expected);
}
