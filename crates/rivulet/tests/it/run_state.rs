//! `rivulet run`: the state of operators of big queries and how long it is kept; windows of rows; values and ranks
//! among earlier rows.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// The results of a script as CSV, without the header.
fn csv(arguments: &[&str], script: &str) -> Vec<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .args(["run", "--format", "csv", "-q"])
        .args(arguments)
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .expect("the program");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{script}\n{said}");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines().skip(1).map(str::to_owned).collect()
}

fn source(folder: &TempDir, rows: &str) -> String {
    let file = folder.path().join("readings.csv");
    fs::write(&file, format!("ts,device,value\n{rows}")).expect("written");
    format!(
        "CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, device TEXT, value BIGINT) FROM 'file:{}' \
         FORMAT CSV (header => true);",
        file.display()
    )
}

/// A device that comes first and last, and between them one reading a second of others.
fn long(folder: &TempDir) -> String {
    let mut rows = String::from("0,x,1\n");
    for second in 1..100_000 {
        writeln!(rows, "{},d{},{second}", second * 1000, second / 1000).expect("text");
    }
    rows.push_str("100000000,x,2\n");
    source(folder, &rows)
}

#[test]
fn state_with_a_time_to_live_is_forgotten_and_without_is_not() {
    let folder = TempDir::new().unwrap();
    let source = long(&folder);
    for (options, times, sums) in
        [("", 1, vec!["x,3"]), ("WITH (state_ttl => INTERVAL '1 hour')", 2, vec!["x,1", "x,2"])]
    {
        let distinct = csv(&[], &format!("{source} SELECT DISTINCT device FROM readings {options}"));
        assert_eq!(distinct.iter().filter(|device| *device == "x").count(), times, "{options}");
        assert_eq!(distinct.len(), 100 + times, "{options}");

        let query = format!("SELECT device, sum(value) AS total FROM readings GROUP BY device {options}");
        let mut found = csv(&["-p", "2"], &format!("{source} {query}"));
        found.retain(|row| row.starts_with('x'));
        found.sort_unstable();
        assert_eq!(found, sums, "{options}");

        let joined = csv(
            &[],
            &format!(
                "{source} SELECT a.value AS one, b.value AS other FROM readings AS a JOIN readings AS b ON a.device = b.device \
                 WHERE a.device = 'x' {options}"
            ),
        );
        assert_eq!(joined.len(), if times == 1 { 4 } else { 2 }, "{options}: {joined:?}");
    }
}

#[test]
fn a_plan_says_what_bounds_its_state() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, "");
    let explained = |query: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_rivulet"))
            .args(["run", "-q", "-c", &format!("{source} EXPLAIN {query}")])
            .stdin(Stdio::null())
            .output()
            .expect("the program");
        String::from_utf8(out.stdout).expect("text")
    };
    let query = "SELECT device, count(*) AS n FROM readings GROUP BY device";
    assert!(explained(query).contains("state: unbounded"), "{}", explained(query));
    let bounded = explained(&format!("{query} WITH (state_ttl => INTERVAL '90 s')"));
    assert!(bounded.contains("state: forgotten 90 s after the last row of a key"), "{bounded}");
    let windows = explained("SELECT count(*) AS n FROM readings GROUP BY tumble(ts, INTERVAL '1 s')");
    assert!(!windows.contains("state: unbounded"), "{windows}");
}

const READINGS: &str = "1000,a,5\n2000,b,7\n3000,a,9\n4000,a,4\n15000,a,6\n16000,b,7\n17000,a,1\n";

#[test]
fn windows_of_so_many_rows_are_of_each_key() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, READINGS);
    let query = "SELECT device, count(*) AS n, sum(value) AS total FROM readings GROUP BY device";
    let mut found = csv(&["-p", "2"], &format!("{source} {query}, count_window(2)"));
    found.sort_unstable();
    assert_eq!(found, ["a,1,1", "a,2,10", "a,2,14", "b,2,14"]);
    let mut found = csv(&["-p", "2"], &format!("{source} {query}, count_window(3, 2)"));
    found.sort_unstable();
    assert_eq!(found, ["a,1,1", "a,3,11", "a,3,18", "b,2,14"]);
}

#[test]
fn windows_over_results_that_change_see_what_is_left_when_they_close() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, READINGS);
    // The first reading of each device, and how many of them there are in ten seconds.
    let first = csv(
        &[],
        &format!(
            "{source} SELECT count(*) AS devices, sum(value) AS total FROM \
             (SELECT *, ROW_NUMBER() OVER (PARTITION BY device ORDER BY ts) AS n FROM readings) AS r \
             WHERE n = 1 GROUP BY tumble(ts, INTERVAL '10 s')"
        ),
    );
    assert_eq!(first, ["2,12"]);
    let overlapping = csv(
        &[],
        &format!(
            "{source} SELECT count(*) AS devices FROM \
             (SELECT *, ROW_NUMBER() OVER (PARTITION BY device ORDER BY ts) AS n FROM readings) AS r \
             WHERE n = 1 GROUP BY hop(ts, INTERVAL '5 s', INTERVAL '10 s')"
        ),
    );
    assert_eq!(overlapping, ["2", "2"]);
    // Each device once, in the window of its latest reading.
    let latest = csv(
        &[],
        &format!(
            "{source} SELECT count(*) AS devices, sum(n) AS readings FROM \
             (SELECT device, max(ts) AS latest, count(*) AS n FROM readings GROUP BY device) AS r \
             GROUP BY tumble(latest, INTERVAL '1 minute')"
        ),
    );
    assert_eq!(latest, ["2,7"]);
    let joined = csv(
        &[],
        &format!(
            "{source} SELECT count(*) AS pairs, count(other) AS found FROM \
             (SELECT a.ts, b.value AS other FROM readings AS a LEFT JOIN readings AS b ON a.device = b.device AND b.value > a.value) AS r \
             GROUP BY tumble(ts, INTERVAL '1 minute')"
        ),
    );
    // Of a: 5 finds 9 and 6; 9 nothing; 4 finds 5, 9 and 6; 6 finds 9; 1 finds 5, 9, 4 and 6. Of b: 7 nothing, twice.
    assert_eq!(joined, ["13,10"]);
}

#[test]
fn values_and_ranks_are_among_the_rows_of_a_partition() {
    let folder = TempDir::new().unwrap();
    let source = source(&folder, READINGS);
    let mut lags = csv(
        &["-p", "2"],
        &format!(
            "{source} SELECT device, value, value - LAG(value) OVER (PARTITION BY device ORDER BY ts) AS step, \
             LAG(value, 2) OVER (PARTITION BY device ORDER BY ts) AS before FROM readings"
        ),
    );
    lags.sort_unstable();
    assert_eq!(lags, ["a,1,-5,4", "a,4,-5,5", "a,5,,", "a,6,2,9", "a,9,4,", "b,7,,", "b,7,0,"]);
    for (ranking, expected) in
        [("RANK", vec!["a,9,1", "b,7,1", "b,7,1"]), ("DENSE_RANK", vec!["a,6,2", "a,9,1", "b,7,1", "b,7,1"])]
    {
        let mut found = csv(
            &["-p", "2"],
            &format!(
                "{source} SELECT device, value, place FROM (SELECT *, {ranking}() OVER (PARTITION BY device ORDER BY value DESC) AS place \
                 FROM readings) AS r WHERE place <= {}",
                if ranking == "RANK" { 1 } else { 2 }
            ),
        );
        found.sort_unstable();
        assert_eq!(found, expected, "{ranking}");
    }
}
