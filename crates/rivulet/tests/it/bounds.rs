//! A statement and two rows cannot use up the memory of the machine: every request is carried out, or refused with a
//! reason.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::server::rivulet;

/// The most memory that the program may ask for, KiB. What it takes without any query is a small part of it.
const MEMORY_KIB: u64 = 4 << 20;

const SOURCE: &str = "CREATE SOURCE two (k BIGINT, t TEXT, ts TIMESTAMP EVENT TIME) FROM 'file:two.json' FORMAT JSON;";

/// Each view uses the one before ten times.
fn chain(views: u32) -> String {
    let view = |number: u32| {
        format!("CREATE VIEW v{} AS SELECT k, {} AS t FROM v{number};", number + 1, ["t"; 10].join(" || "))
    };
    let views_text: String = (0..views).map(view).collect();
    format!("CREATE VIEW v0 AS SELECT k, t FROM two; {views_text} EXPLAIN SELECT max(length(t)) AS n FROM v{views}")
}

#[test]
fn a_statement_and_two_rows_take_up_little_memory() {
    let folder = TempDir::new().unwrap();
    let rows = "{\"k\":1,\"t\":\"abcdefgh\",\"ts\":1700000000000}\n{\"k\":1,\"t\":\"abcdefgh\",\"ts\":1700000005000}\n";
    fs::write(folder.path().join("two.json"), rows).unwrap();
    let select = |what: &str| format!("SELECT {what} AS x FROM two");
    let grouped = |by: &str| format!("SELECT count(*) AS x FROM two GROUP BY {by}");
    let scripts = [
        grouped("hop(ts, INTERVAL '1 microsecond', INTERVAL '1 hour')"),
        grouped("cumulate(ts, INTERVAL '1 microsecond', INTERVAL '1 hour')"),
        grouped("hop(ts, INTERVAL '1 microsecond', INTERVAL '100 milliseconds')"),
        grouped("k, hop(ts, INTERVAL '1 hour', INTERVAL '36500 days')"),
        grouped("tumble(ts, INTERVAL '1 microsecond')"),
        grouped("session(ts, INTERVAL '36500 days')"),
        grouped("k, count_window(1000000, 1)"),
        "SELECT * FROM HOP(TABLE two, DESCRIPTOR(ts), INTERVAL '1 microsecond', INTERVAL '1 hour')".into(),
        "SELECT * FROM HOP(TABLE two, DESCRIPTOR(ts), INTERVAL '1 microsecond', INTERVAL '10 milliseconds')".into(),
        select("repeat(t, 1000000000)"),
        select("repeat(repeat(repeat(t, 1000), 1000), 1000)"),
        select("repeat('x', 1000000000)"),
        select("lpad(t, 1000000000)"),
        select("rpad(t, 1000000000, 'x')"),
        select("replace(replace(t, 'a', repeat('b', 10000)), 'b', repeat('c', 10000))"),
        select("regexp_replace(repeat(t, 1000), '.', repeat('x', 10000), 'g')"),
        select("t ~ '((((((a{100}){100}){100}){100}){100}){100})'"),
        select("encode(repeat(t, 1000000000), 'hex')"),
        select("split_index(t, 'b', 1000000000)"),
        select("concat_ws(repeat('x', 1000000000), t, t)"),
        select("to_char(ts, repeat('%Y', 1000000000))"),
        select("lag(t, 1000000000) OVER (PARTITION BY k ORDER BY ts)"),
        select("sum(k) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 1000000000 PRECEDING AND CURRENT ROW)"),
        "SELECT k, t FROM (SELECT k, t, row_number() OVER (PARTITION BY k ORDER BY ts) AS r FROM two) WHERE r <= 1000000000".into(),
        "SELECT k, t FROM two ORDER BY t LIMIT 1000000000".into(),
        "SELECT x FROM generate_series(1, 1000000000000) AS g(x)".into(),
        "SELECT a.t FROM two a JOIN two b ON a.k = b.k JOIN two c ON a.k = c.k JOIN two d ON a.k = d.k".into(),
        chain(12),
    ];
    for script in scripts {
        // A shell sets the limit for itself and what it becomes.
        let limited = format!("ulimit -v {MEMORY_KIB} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limited]).arg(rivulet().get_program());
        command.args(["run", "--json", "-q", "-c", &format!("{SOURCE} {script}")]).current_dir(folder.path());
        let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code().is_some_and(|code| code <= 2), "{script}: {:?}: {said}", ended.status);
    }
}
