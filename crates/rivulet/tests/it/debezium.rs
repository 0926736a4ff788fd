//! Sources of changes, as Debezium writes them: every query over the changes of a table gives what it gives over the
//! table as it is in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::kafka_broker::Broker;
use super::server::{Server, free_port, rivulet, wait};

/// A table and the changes that made it.
struct Table {
    changes: String,
    rows: BTreeMap<u64, String>,
    random: u64,
    made: u64,
}

impl Table {
    fn new(seed: u64) -> Self {
        Self { changes: String::new(), rows: BTreeMap::new(), random: seed, made: 0 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// The row with this number, with other values each time; its time stays.
    fn row(&mut self, id: u64) -> String {
        let (city, amount) = (self.random(5), self.random(1000));
        let city = if city == 4 { "null".into() } else { format!("\"city {city}\"") };
        format!("{{\"id\":{id},\"ts\":{},\"city\":{city},\"amount\":{amount}}}", 1_700_000_000_000 + id * 61_000)
    }

    /// One more change, in a form that Debezium has.
    fn change(&mut self) {
        let known = self.rows.len() as u64;
        let kind = if known < 3 { 0 } else { self.random(5) };
        let (before, after, op) = match kind {
            0 | 1 => {
                self.made += 1;
                let (id, row) = (self.made, self.row(self.made));
                self.rows.insert(id, row.clone());
                ("null".to_owned(), row, if id % 7 == 0 { "r" } else { "c" })
            }
            2 => {
                let place = self.random(known) as usize;
                let id = *self.rows.keys().nth(place).unwrap();
                (self.rows.remove(&id).unwrap(), "null".to_owned(), "d")
            }
            _ => {
                let place = self.random(known) as usize;
                let id = *self.rows.keys().nth(place).unwrap();
                let row = self.row(id);
                (self.rows.insert(id, row.clone()).unwrap(), row, "u")
            }
        };
        let source = "\"source\":{\"db\":\"shop\",\"table\":\"orders\"}";
        let change = format!("{{\"before\":{before},\"after\":{after},{source},\"op\":\"{op}\",\"ts_ms\":1}}");
        let line = match self.random(2) {
            0 => change,
            _ => format!("{{\"schema\":{{\"type\":\"struct\",\"fields\":[]}},\"payload\":{change}}}"),
        };
        self.changes += &line;
        self.changes.push('\n');
        if op == "d" && self.random(2) == 0 {
            self.changes += "null\n";
        }
    }
}

const COLUMNS: &str = "id BIGINT NOT NULL, ts TIMESTAMP EVENT TIME, city TEXT, amount DOUBLE, dear AS amount > 500";

const QUERIES: &[&str] = &[
    "SELECT * FROM orders ORDER BY id",
    "SELECT count(*) AS n, sum(amount) AS s, avg(amount) AS a FROM orders",
    "SELECT city, count(*) AS n, min(amount) AS l, max(amount) AS h, median(amount) AS m, count(DISTINCT amount) AS d \
     FROM orders GROUP BY city ORDER BY city",
    "SELECT DISTINCT city FROM orders ORDER BY city",
    "SELECT dear, count(*) FILTER (WHERE city IS NULL) AS n FROM orders WHERE amount > 100 GROUP BY dear ORDER BY dear",
    "SELECT a.id, b.id AS other FROM orders a JOIN orders b ON a.city = b.city AND a.amount < b.amount ORDER BY a.id, b.id",
    "SELECT o.id, p.amount FROM orders o LEFT JOIN (SELECT id, amount FROM orders WHERE dear) p ON o.id = p.id ORDER BY o.id",
    "SELECT id, city, n FROM (SELECT *, row_number() OVER (PARTITION BY city ORDER BY amount DESC, id) AS n FROM orders) \
     WHERE n <= 2 ORDER BY city, n",
    "SELECT window_start, city, count(*) AS n, sum(amount) AS s FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), \
     INTERVAL '1 hour')) GROUP BY window_start, window_end, city ORDER BY window_start, city",
    "SELECT window_end, count(*) AS n FROM TABLE(HOP(TABLE orders, DESCRIPTOR(ts), INTERVAL '10 minutes', \
     INTERVAL '30 minutes')) GROUP BY window_start, window_end ORDER BY window_end",
    "SELECT city, array_agg(id) AS ids, string_agg(CAST(amount AS TEXT), '+' ORDER BY amount, id) AS s, \
     first_value(amount) AS f FROM orders GROUP BY city ORDER BY city",
    "SELECT id, sum(amount) OVER (PARTITION BY city ORDER BY id) AS s FROM orders ORDER BY id",
    "SELECT id FROM orders WHERE city IN (SELECT city FROM orders WHERE amount > 900) ORDER BY id",
    "SELECT city, count(*) AS n FROM (SELECT city FROM orders UNION ALL SELECT upper(city) AS city FROM orders) \
     GROUP BY city ORDER BY city",
    "SELECT n, count(*) AS cities FROM (SELECT city, count(*) AS n FROM orders GROUP BY city) GROUP BY n ORDER BY n",
];

fn run(arguments: &[&str], script: &str) -> (String, String) {
    let done =
        rivulet().args(["run", "-q", "--json"]).args(arguments).args(["-c", script]).output().expect("the program");
    let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{script}: {error}");
    (out.into_owned(), error.into_owned())
}

fn source(folder: &Path, file: &str, format: &str) -> String {
    format!(
        "CREATE SOURCE orders ({COLUMNS}) FROM 'file:{}' FORMAT {format} WITH (lateness => INTERVAL '100 days');",
        folder.join(file).display()
    )
}

#[test]
fn a_query_over_changes_gives_what_it_gives_over_the_table() {
    let folder = TempDir::new().unwrap();
    let mut table = Table::new(7);
    (0..2000).for_each(|_| table.change());
    // Changes of a row go on in the next file.
    let half = table.changes.len() / 2;
    let half = half + table.changes[half..].find('\n').unwrap() + 1;
    fs::create_dir(folder.path().join("changes")).unwrap();
    fs::write(folder.path().join("changes/1.json"), &table.changes[..half]).unwrap();
    fs::write(folder.path().join("changes/2.json"), &table.changes[half..]).unwrap();
    let rows: Vec<&str> = table.rows.values().map(String::as_str).collect();
    fs::write(folder.path().join("rows.json"), rows.join("\n")).unwrap();
    let queries = QUERIES.join(";\n");
    let (rows, changes) = (source(folder.path(), "rows.json", "JSON"), source(folder.path(), "changes/", "DEBEZIUM"));
    let (expected, _) = run(&[], &format!("{rows} {queries}"));
    assert!(expected.lines().count() > 500, "{expected}");
    for parallelism in ["1", "2", "3"] {
        let (found, _) = run(&["-p", parallelism], &format!("{changes} {queries}"));
        let differs = expected.lines().zip(found.lines()).find(|(one, other)| one != other);
        assert!(expected == found, "with {parallelism}: {differs:?}");
    }
    let (explained, _) = run(&[], &format!("{changes} EXPLAIN SELECT id FROM orders"));
    assert!(explained.contains("rows may be taken back"), "{explained}");
}

#[test]
fn broken_changes_become_dead_letters_and_harm_no_other() {
    let folder = TempDir::new().unwrap();
    let mut changes = String::new();
    for id in 0..10 {
        writeln!(changes, "{{\"op\":\"c\",\"after\":{{\"id\":{id},\"ts\":1,\"city\":\"a\",\"amount\":1}}}}").unwrap();
    }
    for broken in [
        r#"{"op":"u","before":null,"after":{"id":1,"ts":1,"city":"b","amount":2}}"#,
        r#"{"op":"d","before":{"id":1,"ts":1,"amount":"one"}}"#,
        r#"{"op":"u","before":{"id":3,"ts":1,"city":"a","amount":1},"after":{"id":3,"ts":1,"city":7}}"#,
        r#"{"op":"t","before":null,"after":null}"#,
        r#"{"id":11,"ts":1,"city":"a","amount":1}"#,
        r#"{"op":"c","after":{"id":4"#,
    ] {
        writeln!(changes, "{broken}").unwrap();
    }
    changes += "{\"op\":\"d\",\"before\":{\"id\":2,\"ts\":1,\"city\":\"a\",\"amount\":1}}\n";
    fs::write(folder.path().join("changes.json"), changes).unwrap();
    let letters = folder.path().join("letters.json");
    let script = format!(
        "CREATE SINK letters TO 'file:{}' FORMAT JSON;
         CREATE SOURCE orders ({COLUMNS}) FROM 'file:{}' FORMAT DEBEZIUM WITH (dead_letter => 'letters');
         SELECT city, count(*) AS n, sum(amount) AS s FROM orders GROUP BY city",
        letters.display(),
        folder.path().join("changes.json").display()
    );
    assert_eq!(run(&[], &script).0, "{\"city\":\"a\",\"n\":9,\"s\":9.0}\n");
    let letters = fs::read_to_string(letters).unwrap();
    let details: Vec<String> = letters
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["detail"].as_str().unwrap().to_owned())
        .collect();
    for (detail, expected) in details.iter().zip([
        "without 'before'",
        "field 'amount' at byte 43: expected a number, found \"",
        "field 'city' at byte 87: expected a string, found a number",
        "found \"t\"",
        "it has no 'op'",
        "expected ',' or '}', found the end",
    ]) {
        assert!(detail.contains(expected), "{details:?}");
    }
    assert_eq!(details.len(), 6, "{letters}");
}

/// A source may begin in the middle, and so take back rows that never came. Other rows are unharmed.
#[test]
fn a_row_that_never_came_may_be_taken_back() {
    let folder = TempDir::new().unwrap();
    let mut table = Table::new(11);
    (0..300).for_each(|_| table.change());
    let strange: String = (0..50)
        .map(|n| {
            let row = format!("{{\"id\":{n},\"ts\":{},\"city\":\"gone\",\"amount\":{n}}}", 1_700_000_000_000_i64 + n);
            format!("{{\"op\":\"d\",\"before\":{row}}}\n")
        })
        .collect();
    fs::write(folder.path().join("changes.json"), format!("{strange}{}{strange}", table.changes)).unwrap();
    let changes = source(folder.path(), "changes.json", "DEBEZIUM");
    for query in QUERIES {
        run(&["-p", "2"], &format!("{changes} {query}"));
    }
    let (found, _) = run(&[], &format!("{changes} SELECT count(*) AS n FROM orders WHERE city <> 'gone'"));
    let rows = table.rows.values().filter(|row| row.contains("\"city ")).count();
    assert_eq!(found, format!("{{\"n\":{rows}}}\n"));
}

#[test]
fn what_goes_by_arrival_is_refused() {
    let refused = |query: &str| {
        let script = format!(
            "CREATE SOURCE t (id BIGINT, v TEXT) FROM 'file:t.json' FORMAT DEBEZIUM;
             CREATE SOURCE timed (id BIGINT, at TIMESTAMP EVENT TIME) FROM 'file:t.json' FORMAT DEBEZIUM; {query}"
        );
        let done = rivulet().args(["run", "-c", &script]).output().expect("the program");
        assert!(!done.status.success(), "{query}");
        String::from_utf8(done.stderr).unwrap()
    };
    let list = refused("SELECT array_agg(v) AS x FROM t");
    assert!(list.contains("array_agg goes by event time") && list.contains("array_agg(DISTINCT x)"), "{list}");
    assert!(refused("SELECT id, last_value(v) AS x FROM t GROUP BY id").contains("declare an EVENT TIME"));
    let session = refused("SELECT id, count(*) AS n FROM timed GROUP BY id, session(at, INTERVAL '1 minute')");
    assert!(session.contains("a session over rows that may be taken back"), "{session}");
    let limited =
        "CREATE SOURCE limited (id BIGINT) FROM 'file:t.json' FORMAT DEBEZIUM WITH (future_limit => INTERVAL '1 s')";
    assert!(refused(limited).contains("future_limit does not go with FORMAT DEBEZIUM"));
    let clock = refused(
        "SELECT count(*) AS n FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(PROCTIME()), INTERVAL '1 minute')) \
                         GROUP BY window_end",
    );
    assert!(clock.contains("by the clock") || clock.contains("hint"), "{clock}");
}

#[test]
fn a_primary_key_tells_rows_apart() {
    let explain = |columns: &str, query: &str| {
        let script = format!("CREATE SOURCE t ({columns}) FROM 'file:t.json' FORMAT DEBEZIUM; EXPLAIN {query}");
        let done = rivulet().args(["run", "-c", &script]).output().expect("the program");
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    for columns in
        ["id BIGINT PRIMARY KEY, region TEXT, v TEXT", "id BIGINT, region TEXT, v TEXT, PRIMARY KEY (id) NOT ENFORCED"]
    {
        let shown = explain(columns, "SELECT v AS w, id FROM t WHERE v <> 'x'");
        assert!(shown.contains("rows may be taken back, one row for each (id)"), "{shown}");
    }
    let two = "id BIGINT, region TEXT, v TEXT, PRIMARY KEY (region, id)";
    assert!(explain(two, "SELECT * FROM t").contains("one row for each (region, id)"));
    assert!(explain(two, "SELECT id, v FROM t").contains("  rows may be taken back\n"), "a part of the key is none");
    let joined = "SELECT a.id, b.v FROM t a JOIN t b ON a.id = b.id";
    assert!(explain("id BIGINT PRIMARY KEY, v TEXT", joined).contains("one row for each (id)"));
    let wrong = explain("id BIGINT, PRIMARY KEY (it)", "SELECT id FROM t");
    assert!(wrong.contains("unknown column 'it'") && wrong.contains("did you mean 'id'?"), "{wrong}");
}

/// What a sink of changes writes is what a source of changes reads, through the partitions of a topic.
#[test]
fn changes_go_through_a_broker() {
    let Some(broker) = Broker::start_or_skip() else { return };
    let folder = TempDir::new().unwrap();
    let mut table = Table::new(23);
    (0..2000).for_each(|_| table.change());
    fs::write(folder.path().join("changes.json"), &table.changes).unwrap();
    let rows: Vec<&str> = table.rows.values().map(String::as_str).collect();
    fs::write(folder.path().join("rows.json"), rows.join("\n")).unwrap();
    let changes =
        source(folder.path(), "changes.json", "DEBEZIUM").replace("id BIGINT NOT NULL", "id BIGINT PRIMARY KEY");
    run(
        &["-p", "2"],
        &format!(
            "{changes}
             CREATE SINK orders_out TO 'kafka:{0}/orders' FORMAT DEBEZIUM;
             CREATE SINK cities TO 'kafka:{0}/cities' FORMAT DEBEZIUM;
             INSERT INTO orders_out SELECT id, ts, city, amount FROM orders;
             INSERT INTO cities SELECT city, count(*) AS n FROM orders GROUP BY city",
            broker.address
        ),
    );
    let from = |topic: &str, columns: &str| {
        let address = format!("'kafka:{}/{topic}' FORMAT DEBEZIUM WITH (bounded => true", broker.address);
        format!("CREATE SOURCE {topic} ({columns}) FROM {address}")
    };
    let through = from("orders", COLUMNS) + ", lateness => INTERVAL '100 days');";
    let queries = QUERIES.join(";\n");
    let expected = run(&[], &format!("{} {queries}", source(folder.path(), "rows.json", "JSON"))).0;
    assert!(expected == run(&["-p", "2"], &format!("{through} {queries}")).0);
    let cities = from("cities", "city TEXT, n BIGINT") + ");";
    let sum = run(&[], &format!("{cities} SELECT count(*) AS cities, sum(n) AS n FROM cities")).0;
    let city = |row: &String| serde_json::from_str::<Value>(row).unwrap()["city"].to_string();
    let cities: BTreeSet<String> = table.rows.values().map(city).collect();
    assert_eq!(sum, format!("{{\"cities\":{},\"n\":{}}}\n", cities.len(), table.rows.len()));
}

/// What the lines of a result that changes come to: the number of each city.
fn totals(folder: &Path) -> BTreeMap<String, i64> {
    let mut totals = BTreeMap::new();
    let Ok(files) = fs::read_dir(folder) else { return totals };
    let files = files.map(|file| file.unwrap().path());
    for file in files.filter(|file| !file.file_name().unwrap().to_string_lossy().starts_with('.')) {
        for line in fs::read_to_string(file).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let sign = if line["op"] == "-" { -1 } else { 1 };
            *totals.entry(line["city"].to_string()).or_default() += sign * line["n"].as_i64().unwrap();
        }
    }
    totals.retain(|_, n| *n != 0);
    totals
}

#[test]
fn counts_are_exact_through_kills() {
    let folder = TempDir::new().unwrap();
    let start = || Server::start_at(folder.path(), free_port(), 1);
    let mut table = Table::new(3);
    let file = folder.path().join("changes.json");
    // A row of the year 2100, which no limit refuses.
    let far = "{\"id\":0,\"ts\":4100000000000,\"city\":\"far\",\"amount\":1}";
    fs::write(&file, format!("{{\"op\":\"c\",\"after\":{far}}}\n")).unwrap();
    let mut server = start();
    server.sql_ok(&format!(
        "CREATE SOURCE orders ({COLUMNS}) FROM 'file:{}' FORMAT DEBEZIUM WITH (follow => true)",
        file.display()
    ));
    server.sql_ok("CREATE SINK totals TO 'file:totals/' FORMAT JSON WITH (commit_interval => '300 ms')");
    server.sql_ok("CREATE QUERY counts AS SELECT city, count(*) AS n FROM orders GROUP BY city INTO totals");
    for round in 0..4 {
        let before = table.changes.len();
        (0..1500).for_each(|_| table.change());
        // Some changes come while the server is away.
        let (now, later) = table.changes[before..].split_at((table.changes.len() - before) / 2);
        let append = |text: &str| {
            fs::OpenOptions::new().append(true).open(&file).unwrap().write_all(text.as_bytes()).unwrap();
        };
        append(now);
        if round % 2 == 0 {
            server.sql_ok("CHECKPOINT");
        }
        drop(server);
        append(later);
        if round == 3 {
            append(&format!("{{\"op\":\"d\",\"before\":{far}}}\n"));
        }
        server = start();
        let far = if round == 3 { None } else { Some(("\"far\"".to_owned(), 1)) };
        let mut expected: BTreeMap<String, i64> = far.into_iter().collect();
        for row in table.rows.values() {
            let row: Value = serde_json::from_str(row).unwrap();
            *expected.entry(row["city"].to_string()).or_default() += 1;
        }
        wait("the counts", || totals(&folder.path().join("totals")) == expected);
    }
}
