//! Big queries on a server that is killed again and again: they write the results of each row exactly once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::server::{Server, free_port, wait, wait_for};

/// Of each 50 events of the generator 46 are bids.
const EVENTS: u64 = 150_000;
const BIDS: i64 = 138_000;

/// How long a third of the kills may take to be made up for.
const END_MAX: Duration = Duration::from_secs(300);

fn start(folder: &Path) -> Server {
    Server::start_at(folder, free_port(), 1)
}

fn has_ended(server: &Server, query: &str) -> bool {
    let shown = server.sql_ok(&format!("DESCRIBE QUERY {query}"));
    let failed = shown.to_string().contains("\"failed\"") || shown.to_string().contains("not running");
    assert!(!failed, "{shown}");
    shown.to_string().contains("\"ended\"")
}

/// The lines of all files in a folder, or of a file, that are not hidden.
fn lines(path: &Path) -> Vec<Value> {
    let files = match path.is_dir() {
        true => std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect(),
        false => vec![path.to_owned()],
    };
    let whole = files.into_iter().filter(|file| !file.file_name().unwrap().to_string_lossy().starts_with('.'));
    let texts: Vec<String> = whole.map(|file| std::fs::read_to_string(file).unwrap()).collect();
    texts.iter().flat_map(|text| text.lines()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `RIVULET_KILLS` says how often it is killed.
#[test]
fn what_was_written_is_what_came_of_each_row_once() {
    let kills: u32 = std::env::var("RIVULET_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(3);
    let folder = TempDir::new().unwrap();
    let mut server = start(folder.path());
    // As long as it takes to kill it so often.
    let events = EVENTS * u64::from(kills).div_ceil(3);
    let bids = BIDS * i64::from(kills.div_ceil(3));
    server.sql_ok(&format!("CREATE SOURCE bids FROM 'nexmark:bid' WITH (events => {events}, rate => 25000)"));
    server.sql_ok("CREATE SINK windows TO 'file:windows/' FORMAT JSON WITH (commit_interval => '700 ms')");
    server.sql_ok("CREATE SINK totals TO 'file:totals.json' FORMAT JSON");
    server.sql_ok("CREATE SINK pairs TO 'file:pairs/' FORMAT JSON");
    server.sql_ok(
        "CREATE QUERY by_window AS SELECT auction, count(*) AS n, window_end \
         FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(date_time), INTERVAL '1' SECOND)) GROUP BY auction, window_end INTO windows",
    );
    server.sql_ok("CREATE QUERY by_channel AS SELECT channel, count(*) AS n FROM bids GROUP BY channel INTO totals");
    server.sql_ok(
        "CREATE QUERY joined AS SELECT a.auction, a.date_time, b.price FROM bids a JOIN bids b \
         ON a.auction = b.auction AND a.bidder = b.bidder AND a.date_time = b.date_time AND a.price = b.price \
         WHERE a.auction % 10 = 0 INTO pairs",
    );
    for kill in 0..kills {
        // At another moment each time, between checkpoints and within them.
        std::thread::sleep(Duration::from_millis(600 + u64::from(kill) * 577 % 1_300));
        drop(server);
        server = start(folder.path());
    }
    for query in ["by_window", "by_channel", "joined"] {
        wait_for(END_MAX * kills.div_ceil(3), &format!("{query} to end"), || has_ended(&server, query));
    }
    drop(server);

    let mut counted = 0;
    let mut windows: BTreeMap<String, u32> = BTreeMap::new();
    for line in lines(&folder.path().join("windows")) {
        counted += line["n"].as_i64().unwrap();
        *windows.entry(format!("{} {}", line["auction"], line["window_end"])).or_default() += 1;
    }
    assert_eq!(counted, bids, "each bid is in one window");
    assert!(windows.values().all(|&times| times == 1), "each window came once");

    // What was taken back is gone; what is left of each channel is one row.
    let mut totals: BTreeMap<String, i64> = BTreeMap::new();
    for line in lines(&folder.path().join("totals.json")) {
        let sign = if line["op"] == "-" { -1 } else { 1 };
        let row = format!("{}", line["channel"]);
        *totals.entry(row).or_default() += sign * line["n"].as_i64().unwrap();
    }
    assert_eq!(totals.values().sum::<i64>(), bids, "the last totals are those of all bids");
    let pairs = lines(&folder.path().join("pairs")).len() as i64;
    let expected = pairs_of(events);
    assert_eq!(pairs, expected, "each pair came once");
}

/// How many pairs a run without a server finds.
fn pairs_of(events: u64) -> i64 {
    let script = format!(
        "CREATE SOURCE bids FROM 'nexmark:bid' WITH (events => {events}, event_rate => 25000); \
         SELECT count(*) AS n FROM bids a JOIN bids b \
         ON a.auction = b.auction AND a.bidder = b.bidder AND a.date_time = b.date_time AND a.price = b.price \
         WHERE a.auction % 10 = 0"
    );
    let said = super::server::rivulet().args(["run", "--json", "-q", "-c", &script]).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let last = String::from_utf8(said.stdout).unwrap();
    let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    last["n"].as_i64().unwrap()
}

#[test]
fn a_query_that_has_ended_does_not_run_again_and_a_paused_one_goes_on() {
    let folder = TempDir::new().unwrap();
    let server = start(folder.path());
    server.sql_ok("CREATE SOURCE few FROM 'nexmark:bid' WITH (events => 1000)");
    server.sql_ok("CREATE SOURCE endless FROM 'nexmark:bid' WITH (rate => 5000)");
    server.sql_ok("CREATE SINK done TO 'file:done/' FORMAT JSON");
    server.sql_ok("CREATE SINK more TO 'file:more.json' FORMAT JSON");
    server.sql_ok("CREATE QUERY ends AS SELECT auction FROM few INTO done");
    server.sql_ok("CREATE QUERY goes_on AS SELECT count(*) AS n FROM endless INTO more");
    wait("the end", || has_ended(&server, "ends"));
    server.sql_ok("CHECKPOINT");
    server.sql_ok("PAUSE QUERY goes_on");
    server.sql_ok("CHECKPOINT");
    drop(server);
    assert_eq!(lines(&folder.path().join("done")).len(), 920);
    let server = start(folder.path());
    assert!(has_ended(&server, "ends"), "it had come to its end");
    let said = server.sql_ok("RESUME QUERY goes_on").to_string();
    assert!(said.contains("runs again, from its checkpoint"), "{said}");
    drop(server);
    assert_eq!(lines(&folder.path().join("done")).len(), 920, "its rows come once");
}
