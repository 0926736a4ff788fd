//! `rivulet run`: the real program, on scripts as a user would write them.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

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
        ("CREATE QUERY q FROM APPLICATION a WITH (x => 1)".into(), "line 1, column 1", "rivulet serve"),
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
    assert!(out.contains("rows in") && out.contains("4 rows read"), "{out} {said}");
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
