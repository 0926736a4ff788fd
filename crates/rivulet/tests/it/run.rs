//! `rivulet run`: the real program, on scripts as a user would write them.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn rivulet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .arg("run")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// A file of readings: of two devices, three in ten seconds and one later.
fn readings(folder: &TempDir) -> String {
    let file = folder.path().join("readings.csv");
    fs::write(&file, "ts,device,value\n1000,a,20.5\n2000,b,7\n3000,a,21.5\n15000,a,30\n").expect("written");
    format!(
        "CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, device TEXT, value DOUBLE) FROM 'file:{}' \
         FORMAT CSV (header => true);",
        file.display()
    )
}

#[test]
fn a_select_over_a_file_gives_its_final_result() {
    let folder = TempDir::new().unwrap();
    let source = readings(&folder);
    let query = "SELECT device, count(*) AS n, avg(value) AS mean FROM readings GROUP BY device ORDER BY n DESC";
    let csv = rivulet(&["--format", "csv", "-q", "-c", &format!("{source} {query}")]);
    assert_eq!(text(&csv.stdout), "device,n,mean\na,3,24.0\nb,1,7.0\n", "{}", text(&csv.stderr));
    let json = rivulet(&["--json", "-c", &format!("{source} {query} LIMIT 1")]);
    assert_eq!(text(&json.stdout), "{\"device\":\"a\",\"n\":3,\"mean\":24.0}\n");
    assert!(text(&json.stderr).contains("4 rows read"), "{}", text(&json.stderr));
    let table = rivulet(&["-c", &format!("{source} {query}")]);
    assert_eq!(text(&table.stdout), "device  n  mean\na       3  24.0\nb       1   7.0\n");
    assert!(text(&table.stderr).contains("(2 rows)"), "{}", text(&table.stderr));
}

#[test]
fn changes_are_shown_to_whoever_asks_for_them() {
    let folder = TempDir::new().unwrap();
    let source = readings(&folder);
    let out = rivulet(&[
        "--json",
        "-q",
        "--changes",
        "-p",
        "1",
        "-c",
        &format!("{source} SELECT count(*) AS n FROM readings"),
    ]);
    let lines = text(&out.stdout);
    assert!(lines.ends_with("{\"op\":\"+\",\"n\":4}\n"), "{lines} {}", text(&out.stderr));
    let refused = |query: &str| text(&rivulet(&["--json", "--changes", "-c", &format!("{source} {query}")]).stderr);
    let twice = refused("SELECT device AS op, count(*) AS n FROM readings GROUP BY device");
    assert!(twice.contains("no place for the column 'op'") && twice.contains("hint"), "{twice}");
    let ordered = refused("SELECT device, value FROM readings ORDER BY value");
    assert!(ordered.contains("--changes") && ordered.contains("ORDER BY"), "{ordered}");
}

#[test]
fn results_go_to_a_sink_and_are_read_by_the_next_statement() {
    let folder = TempDir::new().unwrap();
    let source = readings(&folder);
    let out = folder.path().join("windows.jsonl");
    let script = folder.path().join("script.sql");
    fs::write(
        &script,
        format!(
            "{source}
             CREATE SINK windows TO 'file:{out}' FORMAT JSON;
             INSERT INTO windows SELECT device, count(*) AS n, window_end FROM readings
               GROUP BY device, tumble(ts, INTERVAL '10 seconds');
             CREATE SOURCE again (device TEXT, n BIGINT) FROM 'file:{out}' FORMAT JSON;
             SELECT device, sum(n) AS n FROM again GROUP BY device ORDER BY device;",
            out = out.display()
        ),
    )
    .unwrap();
    let done = rivulet(&["--format", "csv", script.to_str().unwrap()]);
    assert_eq!(text(&done.stdout), "device,n\na,3\nb,1\n", "{}", text(&done.stderr));
    assert_eq!(text(&fs::read(out).unwrap()).lines().count(), 3);
}

#[test]
fn arrays_go_through_avro_files_as_arrays() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("packs.json");
    let packs = "{\"tags\":[\"a\",null,\"b\"],\"readings\":[1.5,-2],\"counts\":[]}\n{\"tags\":null,\"counts\":[7]}\n";
    fs::write(&file, packs).unwrap();
    let columns = "tags TEXT ARRAY, readings DOUBLE[], counts ARRAY<BIGINT>";
    let avro = folder.path().join("packs.avro");
    let script = format!(
        "CREATE SOURCE packs ({columns}) FROM 'file:{}' FORMAT JSON;
         CREATE SINK avro TO 'file:{avro}' FORMAT AVRO;
         INSERT INTO avro SELECT *, string_to_array(tags[1], ',') AS first FROM packs;
         CREATE SOURCE again ({columns}, first TEXT[]) FROM 'file:{avro}' FORMAT AVRO;
         SELECT * FROM again;
         SELECT tag, number FROM again CROSS JOIN UNNEST(tags) WITH ORDINALITY AS t (tag, number) ORDER BY number;",
        file.display(),
        avro = avro.display()
    );
    let done = rivulet(&["--json", "-q", "-p", "1", "-c", &script]);
    assert_eq!(
        text(&done.stdout),
        "{\"tags\":[\"a\",null,\"b\"],\"readings\":[1.5,-2.0],\"counts\":[],\"first\":[\"a\"]}\n\
         {\"tags\":null,\"readings\":null,\"counts\":[7],\"first\":null}\n\
         {\"tag\":\"a\",\"number\":1}\n{\"tag\":null,\"number\":2}\n{\"tag\":\"b\",\"number\":3}\n",
        "{}",
        text(&done.stderr)
    );
    assert!(String::from_utf8_lossy(&fs::read(&avro).unwrap()).contains("\"type\":\"array\""));
}

#[test]
fn no_query_replaces_what_another_of_its_script_has_written() {
    let folder = TempDir::new().unwrap();
    let (source, out) = (readings(&folder), folder.path().join("out.json"));
    let sink = format!("CREATE SINK one TO 'file:{0}'; CREATE SINK two TO 'file:{0}';", out.display());
    let done = rivulet(&[
        "-c",
        &format!(
            "{source} {sink} INSERT INTO one SELECT device FROM readings; INSERT INTO two SELECT value FROM readings"
        ),
    ]);
    let error = text(&done.stderr);
    assert!(
        !done.status.success() && error.contains("is what 'query_1' writes") && error.contains("UNION ALL"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&out).unwrap().lines().count(), 4, "the first has written");
    let sink = format!("CREATE SINK both TO 'file:{}/out/' FORMAT JSON;", folder.path().display());
    let done = rivulet(&[
        "-c",
        &format!(
            "{source} {sink} INSERT INTO both SELECT device FROM readings; INSERT INTO both SELECT device FROM readings"
        ),
    ]);
    assert!(done.status.success(), "a folder takes both: {}", text(&done.stderr));
}

#[test]
fn a_result_without_rows_does_not_replace_others_in_silence() {
    let folder = TempDir::new().unwrap();
    let (source, out) = (readings(&folder), folder.path().join("out.json"));
    let script = |condition: &str| {
        let sink = format!("CREATE SINK kept TO 'file:{}';", out.display());
        rivulet(&[
            "-q",
            "-c",
            &format!("{source} {sink} INSERT INTO kept SELECT device FROM readings WHERE {condition}"),
        ])
    };
    assert_eq!(text(&script("value < 0").stderr), "", "there was nothing to replace");
    assert_eq!(text(&script("value > 0").stderr), "");
    let said = text(&script("value < 0").stderr);
    assert!(said.contains("no row was written") && said.contains("out.json, which had 60 bytes"), "{said}");
}

#[test]
fn a_query_that_refuses_all_of_its_rows_has_failed() {
    let folder = TempDir::new().unwrap();
    let script = |value: &str| {
        let file = folder.path().join("numbers.csv");
        fs::write(&file, format!("n\n{value}\n")).unwrap();
        let source =
            format!("CREATE SOURCE numbers (n BIGINT) FROM 'file:{}' FORMAT CSV (header => true);", file.display());
        rivulet(&["-q", "--format", "csv", "-c", &format!("{source} SELECT n FROM numbers")])
    };
    assert_eq!(text(&script("12").stdout), "n\n12\n");
    let failed = script("twelve");
    assert_eq!(failed.status.code(), Some(1));
    let said = text(&failed.stderr);
    assert!(said.contains("wrote no row and refused 1 row") && said.contains("hint: "), "{said}");
}

/// The files of several sensors have the same hours: what is new in one is not late in another, whichever task reads
/// them.
#[test]
fn results_do_not_depend_on_how_many_tasks_read() {
    let folder = TempDir::new().unwrap();
    const SENSORS: u64 = 3;
    const ROWS: u64 = 20_000;
    let mut random: u64 = 7;
    for sensor in 0..SENSORS {
        let rows: String = (0..ROWS)
            .map(|row| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Up to two seconds out of order.
                format!("{},s{sensor}\n", 1_000_000 + row * 180 - (random >> 33) % 2000)
            })
            .collect();
        fs::write(folder.path().join(format!("{sensor}.csv")), format!("ts,device\n{rows}")).unwrap();
    }
    let script = format!(
        "CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, device TEXT) FROM 'file:{}' FORMAT CSV (header => true) \
         WITH (lateness => INTERVAL '2 seconds'); \
         SELECT sum(n) AS rows FROM (SELECT device, count(*) AS n FROM readings GROUP BY device, tumble(ts, INTERVAL '1 minute'))",
        folder.path().display()
    );
    for parallelism in ["1", "2", "4"] {
        let out = rivulet(&["--json", "-q", "-p", parallelism, "-c", &script]);
        assert_eq!(text(&out.stdout), format!("{{\"rows\":{}}}\n", SENSORS * ROWS), "{}", text(&out.stderr));
    }
}

#[test]
fn a_file_gets_all_rows_however_many_instances_write_it() {
    let folder = TempDir::new().unwrap();
    let source = readings(&folder);
    // One instance behind a small file, one behind all rows together, and as many as there are workers behind keys.
    let queries = [
        ("SELECT device, value FROM readings", "value DOUBLE", 4),
        ("SELECT 'all' AS device, count(*) AS n FROM readings GROUP BY tumble(ts, INTERVAL '1 hour')", "n BIGINT", 1),
        ("SELECT device, count(*) AS n FROM readings GROUP BY device, tumble(ts, INTERVAL '1 hour')", "n BIGINT", 2),
    ];
    for (number, (query, column, rows)) in queries.into_iter().enumerate() {
        for parallelism in ["1", "2", "3"] {
            for format in ["json", "csv", "parquet"] {
                let out = folder.path().join(format!("{number}-{parallelism}.{format}"));
                let address = format!("'file:{}' FORMAT {format}", out.display());
                let script = format!(
                    "{source} CREATE SINK out TO {address}; INSERT INTO out {query};
                     CREATE SOURCE again (device TEXT, {column}) FROM {address};
                     SELECT count(*) AS n FROM again"
                );
                let done = rivulet(&["--format", "csv", "-q", "-p", parallelism, "-c", &script]);
                assert_eq!(text(&done.stdout), format!("n\n{rows}\n"), "{script} {}", text(&done.stderr));
            }
        }
    }
}

#[test]
fn a_parquet_file_that_is_not_there_is_told_so() {
    let folder = TempDir::new().unwrap();
    for (name, told) in [("missing.parquet", "cannot open 'file:"), ("missing.csv", "the source 's' has no columns")] {
        let path = folder.path().join(name).display().to_string();
        let done = rivulet(&["-c", &format!("CREATE SOURCE s FROM 'file:{path}'; SELECT count(*) AS n FROM s")]);
        let said = text(&done.stderr);
        assert!(!done.status.success() && said.contains(told) && said.contains("hint: "), "{said}");
        let column = if name.ends_with("parquet") { 22 } else { 15 };
        assert!(said.contains(&format!("line 1, column {column}")), "{said}");
    }
}

#[test]
fn rows_that_are_taken_back_do_not_overtake_those_they_take_back() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("numbers.csv");
    let lines: String = (0..100_000).map(|number| format!("{},{}\n", number % 7, number % 10)).collect();
    fs::write(&file, lines).unwrap();
    // One stream that changes has a single instance, and the other one as many as there are workers.
    let script = format!(
        "CREATE SOURCE numbers (g BIGINT, v BIGINT) FROM 'file:{}' FORMAT CSV;
         SELECT n FROM (SELECT n, ROW_NUMBER() OVER (ORDER BY n DESC) AS place FROM
           (SELECT count(*) AS n FROM numbers UNION ALL SELECT sum(v) AS n FROM numbers GROUP BY g)) WHERE place <= 3
         ORDER BY n DESC",
        file.display()
    );
    for _ in 0..5 {
        let done = rivulet(&["--format", "csv", "-q", "-p", "2", "-c", &script]);
        assert_eq!(text(&done.stdout), "n\n100000\n64291\n64289\n", "{}", text(&done.stderr));
    }
}

#[test]
fn sums_that_do_not_fit_are_refused_and_do_not_wrap_around() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("large.csv");
    fs::write(&file, "9223372036854775806\n9223372036854775807\n-5\n").unwrap();
    let script = format!(
        "CREATE SOURCE large (x BIGINT) FROM 'file:{}' FORMAT CSV; SELECT x + 1 AS y FROM large ORDER BY y",
        file.display()
    );
    let done = rivulet(&["--format", "csv", "-c", &script]);
    assert_eq!(text(&done.stdout), "y\n-4\n9223372036854775807\n");
    assert!(text(&done.stderr).to_lowercase().contains("overflow"), "{}", text(&done.stderr));
}

#[test]
fn standard_input_is_a_source() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .args(["run", "--json", "-q", "-c"])
        .arg("CREATE SOURCE input (x BIGINT) FROM 'stdin:' FORMAT JSON; SELECT x * 2 AS y FROM input WHERE x > 1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    child.stdin.take().unwrap().write_all(b"{\"x\": 1}\n{\"x\": 2}\nnonsense\n{\"x\": 3}\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), "{\"y\":4}\n{\"y\":6}\n");
    let said = text(&out.stderr);
    assert!(said.contains("1 decode") && said.contains("nonsense"), "what is refused is said: {said}");
}

#[test]
fn piped_input_that_ends_has_a_final_result() {
    let script = "CREATE SOURCE input (x BIGINT) FROM 'stdin:' FORMAT JSON WITH (bounded => true);
        SELECT x % 2 AS odd, count(*) AS n FROM input GROUP BY x % 2 ORDER BY n DESC";
    let mut child = Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .args(["run", "--format", "csv", "-q", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let lines: String = (1..=5).map(|x| format!("{{\"x\": {x}}}\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), "odd,n\n1,3\n0,2\n", "{}", text(&out.stderr));
}

#[test]
fn who_stops_reading_ends_the_query_and_that_is_no_failure() {
    for format in ["json", "csv"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rivulet"))
            .args(["run", "-q", "--format", format, "-c"])
            .arg("CREATE SOURCE bids FROM 'nexmark:bid' WITH (events => 1000000000); SELECT auction, price FROM bids")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut first = [0];
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut first).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{format}: {}", text(&out.stderr));
    }
}

#[test]
fn what_is_wrong_has_its_place_and_a_hint() {
    let folder = TempDir::new().unwrap();
    let source = readings(&folder);
    let cases = [
        (format!("{source}\nSELECT devize FROM readings"), "line 2, column 8", "device"),
        (format!("{source}\nSELECT * FROM reading"), "line 2, column 15", "readings"),
        ("CREATE SOURCE s (a BIGINT) FROM 'fil:x' FORMAT JSON; SELECT * FROM s".into(), "line 1, column", "file"),
        (
            "CREATE SOURCE s (a BIGINT) FROM 'file:/no/such/file' FORMAT JSON; SELECT * FROM s".into(),
            "line 1, column",
            "/no/such/file",
        ),
        ("PAUSE QUERY q".into(), "line 1, column 1", "rivulet serve"),
        ("CREATE QUERY q FROM APPLICATION a WITH (x => 1)".into(), "line 1, column 33", "CREATE APPLICATION a"),
        (
            format!("{source} CREATE SINK out TO 'blackhole:';\nINSERT INTO out SELECT device FROM readings LIMIT 2"),
            "line 2, column 13",
            "ORDER BY x LIMIT 10",
        ),
        ("SELEKT 1".into(), "line 1, column 1", "SELECT"),
    ];
    for (script, place, hint) in cases {
        let out = rivulet(&["-c", &script]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{script}: {said}");
        assert!(said.contains(place) && said.contains(hint), "{script}: {said}");
    }
}

#[test]
fn a_plan_is_explained_and_measured() {
    let folder = TempDir::new().unwrap();
    let source = readings(&folder);
    let query = "SELECT device, count(*) AS n FROM readings GROUP BY device";
    let plan = text(&rivulet(&["-c", &format!("{source} EXPLAIN {query}")]).stdout);
    assert!(plan.contains("readings") && plan.contains("hash"), "{plan}");
    let measured = rivulet(&["-q", "-p", "2", "-c", &format!("{source} EXPLAIN ANALYZE {query}")]);
    let (out, said) = (text(&measured.stdout), text(&measured.stderr));
    assert!(out.contains("rows in") && out.contains("4 rows read") && out.contains("bottleneck: "), "{out} {said}");
    let measured = rivulet(&["--json", "-q", "-p", "2", "-c", &format!("{source} EXPLAIN ANALYZE {query}")]);
    let measured: Value = serde_json::from_str(&text(&measured.stdout)).expect("JSON");
    assert_eq!(measured["rows_in"], 4, "{measured}");
    let tasks = measured["operators"].as_array().expect("the tasks");
    let counting = tasks.iter().filter(|task| task["operator"].as_str().is_some_and(|name| name.contains("aggregate")));
    assert_eq!(counting.map(|task| task["rows_in"].as_u64().unwrap()).sum::<u64>(), 4, "{measured}");
    assert!(tasks.iter().all(|task| (0.0..=1.0).contains(&task["utilisation"].as_f64().unwrap())), "{measured}");
}

#[test]
fn input_without_an_end_is_shown_as_it_comes_and_stops_at_a_limit() {
    let source = "CREATE SOURCE bids FROM 'nexmark:bid' WITH (rate => 2000);";
    let out = rivulet(&["--json", "-q", "-c", &format!("{source} SELECT auction FROM bids LIMIT 3")]);
    assert_eq!(text(&out.stdout).lines().count(), 3, "{}", text(&out.stderr));
    let changing = rivulet(&["--json", "-q", "-c", &format!("{source} SELECT count(*) AS n FROM bids LIMIT 3")]);
    assert!(text(&changing.stdout).starts_with("{\"op\":\"+\",\"n\":"), "{}", text(&changing.stdout));
    let ordered = rivulet(&["-q", "-c", &format!("{source} SELECT auction FROM bids ORDER BY auction")]);
    assert!(text(&ordered.stderr).contains("ORDER BY needs input that ends"), "{}", text(&ordered.stderr));
}

#[test]
fn a_second_query_of_a_name_is_refused_and_replaces_nothing() {
    let folder = TempDir::new().unwrap();
    let sink = |name: &str| format!("CREATE SINK {name} TO 'file:{}/{name}.json';", folder.path().display());
    let declared = format!("{} {} {}", readings(&folder), sink("one"), sink("two"));
    let run = |script: &str| rivulet(&["-q", "-c", &format!("{declared} {script}")]);
    let rows = |name: &str| fs::read_to_string(folder.path().join(format!("{name}.json"))).unwrap_or_default();
    // Where there is none, it is one like any other.
    let first = run("CREATE OR REPLACE QUERY q AS INSERT INTO one SELECT device FROM readings WHERE value > 25");
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert_eq!(rows("one"), "{\"device\":\"a\"}\n");
    for (second, expected) in [
        ("CREATE OR REPLACE QUERY q AS", "the query 'q' runs already, and without a server none is replaced"),
        ("CREATE QUERY q AS", "there is a query 'q' already"),
    ] {
        let script = format!(
            "CREATE QUERY q AS INSERT INTO one SELECT device FROM readings;\n{second} INSERT INTO two SELECT device FROM readings"
        );
        let out = run(&script);
        let said = text(&out.stderr);
        assert!(!out.status.success() && said.contains(expected) && said.contains("hint: "), "{said}");
        assert!(said.contains("line 2, column "), "{said}");
        assert_eq!(rows("two"), "");
    }
    let again = run("CREATE QUERY q AS INSERT INTO one SELECT device FROM readings WHERE value < 10;
         CREATE QUERY IF NOT EXISTS q AS INSERT INTO two SELECT device FROM readings");
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!((rows("one").as_str(), rows("two").as_str()), ("{\"device\":\"b\"}\n", ""));
}

/// A job in JSON over readings and places, with results in a folder.
fn job(folder: &TempDir, select: &str) -> String {
    let place = folder.path().display();
    let sources = format!(
        r#"{{"name": "readings", "address": "file:{place}/readings.csv", "format": "CSV (header => true)",
             "columns": ["ts TIMESTAMP EVENT TIME", "device TEXT", "value DOUBLE"],
             "with": ["lateness => INTERVAL '1 second'"]}},
           {{"name": "places", "address": "file:{place}/places.csv", "format": "CSV (header => true)",
             "columns": ["device TEXT NOT NULL", "place TEXT"]}}"#
    );
    let high = "SELECT device, max(value) AS highest FROM rated GROUP BY device, tumble(ts, INTERVAL '10 seconds')";
    let low = "SELECT place, value FROM rated JOIN places ON places.device = rated.device";
    let operators = format!(
        r#"{{"name": "high", "select": "{high}"}}, {{"name": "low", "select": "{low}"}},
           {{"name": "rated", "select": "{select}"}}"#
    );
    let sink = |name: &str| format!(r#"{{"name": "{name}", "address": "file:{place}/{name}.json", "format": "JSON"}}"#);
    let links = r#"{"from": "readings", "to": "rated", "partitioning": "round_robin"},
        {"from": "rated", "to": "high", "partitioning": {"route": "kind"}},
        {"from": "rated", "to": "low", "partitioning": {"route": "kind"}},
        {"from": "places", "to": "low", "partitioning": "broadcast"},
        {"from": "high", "to": "highest", "partitioning": {"hash": ["device"]}},
        {"from": "low", "to": "lowest", "partitioning": "forward"}"#;
    let (highest, lowest) = (sink("highest"), sink("lowest"));
    format!(
        r#"{{"sources": [{sources}], "operators": [{operators}], "sinks": [{highest}, {lowest}], "links": [{links}]}}"#
    )
}

const RATED: &str = "SELECT *, CASE WHEN value > 10 THEN 'high' ELSE 'low' END AS kind FROM readings";

#[test]
fn a_job_in_json_gives_what_its_statements_give() {
    let folder = TempDir::new().unwrap();
    let source = readings(&folder);
    fs::write(folder.path().join("places.csv"), "device,place\na,attic\nb,cellar\n").unwrap();
    let file = folder.path().join("job.json");
    fs::write(&file, job(&folder, RATED)).unwrap();
    let place = folder.path().display();
    let script = format!(
        "{source}
         CREATE SOURCE places (device TEXT NOT NULL, place TEXT) FROM 'file:{place}/places.csv'
           FORMAT CSV (header => true);
         CREATE SINK highest TO 'file:{place}/highest.json' FORMAT JSON;
         CREATE SINK lowest TO 'file:{place}/lowest.json' FORMAT JSON;
         CREATE VIEW rated AS {RATED};
         INSERT INTO highest SELECT device, max(value) AS highest FROM rated WHERE kind = 'high'
           GROUP BY device, tumble(ts, INTERVAL '10 seconds');
         INSERT INTO lowest SELECT place, value FROM rated JOIN places ON places.device = rated.device
           WHERE kind = 'low';"
    );
    let results = |arguments: &[&str]| {
        let done = rivulet(arguments);
        assert!(done.status.success(), "{}", text(&done.stderr));
        ["highest", "lowest"].map(|name| {
            let file = folder.path().join(format!("{name}.json"));
            let text = fs::read_to_string(&file).unwrap();
            fs::remove_file(file).unwrap();
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        })
    };
    let expected = results(&["-q", "-c", &script]);
    assert_eq!(expected.each_ref().map(Vec::len), [2, 1], "{expected:?}");
    for parallelism in ["1", "3"] {
        assert_eq!(results(&["-q", "-p", parallelism, file.to_str().unwrap()]), expected);
    }
}

#[test]
fn what_is_wrong_in_a_job_has_its_pointer() {
    let folder = TempDir::new().unwrap();
    readings(&folder);
    fs::write(folder.path().join("places.csv"), "device,place\n").unwrap();
    let file = folder.path().join("job.json");
    let said = |job: &str| {
        fs::write(&file, job).unwrap();
        let out = rivulet(&[file.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(1), "{job}");
        text(&out.stderr)
    };
    let wrong = said(&job(&folder, "SELECT *, 'low' AS kind\\nFROM readings WHERE devize = 'a'"));
    assert!(wrong.contains(", at /operators/2/select") && wrong.contains("line 2, column 21"), "{wrong}");
    assert!(wrong.contains("FROM readings WHERE devize = 'a'\n") && wrong.contains("did you mean 'device'"), "{wrong}");
    let back = r#""links": [{"from": "high", "to": "rated"}, "#;
    let circle = said(&job(&folder, RATED).replace(r#""links": ["#, back));
    assert!(circle.contains("a circle: ") && circle.contains(", at /links/") && circle.contains("hint: "), "{circle}");
    let broken = said("{\"sources\": [],\n]");
    assert!(broken.contains("not JSON: ") && broken.contains("line 2, column 1\n2 | ]\n"), "{broken}");
}
