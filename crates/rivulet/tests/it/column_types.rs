//! Types of columns of sources and sinks, and columns that sources compute: by the real program, on files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

pub(crate) fn run(folder: &Path, script: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .args(["run", "--json", "-c", script])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("the program")
}

pub(crate) fn out(folder: &Path, script: &str) -> String {
    let done = run(folder, script);
    let error = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{error}\n{script}");
    String::from_utf8(done.stdout).expect("text")
}

fn error(folder: &Path, script: &str) -> String {
    let done = run(folder, script);
    assert!(!done.status.success(), "{script}");
    String::from_utf8(done.stderr).expect("text")
}

const ORDERS: &str = "CREATE SINK letters TO 'file:letters.jsonl' FORMAT JSON; \
                      CREATE SOURCE orders (id INT, day DATE, at TIME, price DECIMAL(10, 2), weight REAL, \
                      qty SMALLINT) FROM 'file:orders.jsonl' FORMAT JSON WITH (dead_letter => 'letters');";

fn orders(folder: &Path) {
    let lines = [
        r#"{"id":1,"day":"2026-11-21","at":"08:30","price":0.10,"weight":0.1,"qty":3}"#,
        r#"{"id":2,"day":"2026-11-21","at":"09:00:00.5","price":"0.20","weight":2.5,"qty":1}"#,
        r#"{"id":3,"day":"2026-11-22","at":"23:59:59","price":99999999.99,"weight":null,"qty":2}"#,
        r#"{"id":4,"day":"2026-11-22","at":"00:00","price":0.01,"weight":1,"qty":-1}"#,
        r#"{"id":3000000000,"day":"2026-11-22","price":1}"#,
        r#"{"id":5,"day":"22.11.2026","price":1}"#,
        r#"{"id":6,"at":"25:00","price":1}"#,
        r#"{"id":7,"price":0.001}"#,
        r#"{"id":8,"price":1,"qty":40000}"#,
    ];
    fs::write(folder.join("orders.jsonl"), lines.join("\n")).unwrap();
}

#[test]
fn decimals_dates_and_times_are_exact_from_source_to_result() {
    let folder = TempDir::new().unwrap();
    orders(folder.path());
    let script = format!(
        "{ORDERS} SELECT day, sum(price) AS total, sum(price * qty) AS worth, avg(price) AS mean, min(price) AS least, \
         max(at) AS latest, count(DISTINCT price) AS prices, max(id) AS last FROM orders GROUP BY day ORDER BY day"
    );
    assert_eq!(
        out(folder.path(), &script),
        "{\"day\":\"2026-11-21\",\"total\":0.30,\"worth\":0.50,\"mean\":0.150000,\"least\":0.10,\
         \"latest\":\"09:00:00.500\",\"prices\":2,\"last\":2}\n\
         {\"day\":\"2026-11-22\",\"total\":100000000.00,\"worth\":199999999.97,\"mean\":50000000.000000,\
         \"least\":0.01,\"latest\":\"23:59:59\",\"prices\":2,\"last\":4}\n"
    );
    let letters = fs::read_to_string(folder.path().join("letters.jsonl")).unwrap();
    for expected in [
        "field 'id' at byte 6: number 3000000000 does not fit INT",
        "field 'day' at byte 14: expected a date (as 2026-11-21), found \\\"22.11.2026\\\"",
        "field 'at' at byte 13: expected a time of day (as 08:30:00), found \\\"25:00\\\"",
        "field 'price' at byte 16: number 0.001 has more digits behind the point than DECIMAL(10, 2)",
        "field 'qty' at byte 24: number 40000 does not fit SMALLINT",
    ] {
        assert!(letters.contains(expected), "{expected}\n{letters}");
    }
    assert_eq!(letters.lines().count(), 5);
}

#[test]
fn numbers_beside_a_decimal_are_the_decimals_that_are_written() {
    let folder = TempDir::new().unwrap();
    let prices = ["1234567.89", "0.30", "9.99", "19.99"].map(|price| format!("{{\"price\":{price}}}"));
    fs::write(folder.path().join("prices.jsonl"), prices.join("\n")).unwrap();
    let source = "CREATE SOURCE prices (price DECIMAL(10, 2)) FROM 'file:prices.jsonl' FORMAT JSON;";
    for (query, expected) in [
        ("SELECT price * 1.19 AS x FROM prices WHERE price = 1234567.89", "{\"x\":1469135.7891}\n"),
        ("SELECT price + 0.1 AS x FROM prices WHERE price < 0.31", "{\"x\":0.40}\n"),
        ("SELECT count(*) AS n FROM prices WHERE price BETWEEN 9.99 AND 1234567.89", "{\"n\":3}\n"),
        ("SELECT count(*) AS n FROM prices WHERE price IN (0.3, 19.99, 1234567.891)", "{\"n\":2}\n"),
        ("SELECT -price AS x FROM prices WHERE price >= 19.99 AND price < 20.0", "{\"x\":-19.99}\n"),
        ("SELECT CAST(price AS DOUBLE) / 2 AS x FROM prices WHERE price = 0.3", "{\"x\":0.15}\n"),
        ("SELECT sum(price) AS x FROM (SELECT price * 0.5 AS price FROM prices) AS half", "{\"x\":617299.085}\n"),
        ("SELECT sum(CASE WHEN price > 1 THEN price ELSE 0.0 END) AS x FROM prices", "{\"x\":1234597.87}\n"),
        ("SELECT coalesce(price, 0.5) AS x FROM prices WHERE price > 20", "{\"x\":1234567.89}\n"),
        ("SELECT CASE price WHEN 0.3 THEN 0.125 ELSE price END AS x FROM prices WHERE price < 1", "{\"x\":0.125}\n"),
        (
            "SELECT least(price, 1.5) AS x, nullif(price, 0.3) AS y FROM prices WHERE price < 1",
            "{\"x\":0.30,\"y\":null}\n",
        ),
    ] {
        assert_eq!(out(folder.path(), &format!("{source} {query}")), expected, "{query}");
    }
}

#[test]
fn decimals_dates_and_times_are_keys_orders_and_results_that_change() {
    let folder = TempDir::new().unwrap();
    orders(folder.path());
    for (query, expected) in [
        (
            "SELECT a.id, b.id AS other FROM orders AS a JOIN orders AS b ON a.price = b.price AND a.at = b.at \
             ORDER BY id",
            "{\"id\":1,\"other\":1}\n{\"id\":2,\"other\":2}\n{\"id\":3,\"other\":3}\n{\"id\":4,\"other\":4}\n",
        ),
        (
            "SELECT id, price, day FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY day ORDER BY price DESC) AS n \
             FROM orders WHERE day IS NOT NULL) AS ranked WHERE n <= 1 ORDER BY id",
            "{\"id\":2,\"price\":0.20,\"day\":\"2026-11-21\"}\n\
             {\"id\":3,\"price\":99999999.99,\"day\":\"2026-11-22\"}\n",
        ),
        (
            "SELECT max(total) AS most, sum(mean) AS means, min(latest) AS latest FROM (SELECT day, \
             sum(price) AS total, avg(price) AS mean, max(at) AS latest FROM orders WHERE id < 5 GROUP BY day) AS days",
            "{\"most\":100000000.00,\"means\":50000000.150000,\"latest\":\"09:00:00.500\"}\n",
        ),
        (
            "SELECT at, count(*) AS n FROM orders WHERE at >= TIME '08:30' AND CAST(at AS TEXT) <> 'x' GROUP BY at \
             ORDER BY at DESC LIMIT 1",
            "{\"at\":\"23:59:59\",\"n\":1}\n",
        ),
        (
            "SELECT count(*) AS n FROM orders WHERE id < 5 AND day = DATE '2026-11-22' AND CAST(day AS TIMESTAMP) < \
             TIMESTAMP '2026-11-22 01:00:00'",
            "{\"n\":2}\n",
        ),
    ] {
        assert_eq!(out(folder.path(), &format!("{ORDERS} {query}")), expected, "{query}");
    }
}

#[test]
fn sinks_have_the_types_that_they_declare() {
    let folder = TempDir::new().unwrap();
    orders(folder.path());
    let script = format!(
        "{ORDERS} CREATE SINK typed (id SMALLINT, price DECIMAL(12, 4), day DATE, at TIME, weight REAL) \
           TO 'file:typed.parquet' FORMAT PARQUET;
         INSERT INTO typed SELECT id * 10000, price, day, at, weight FROM orders;
         DESCRIBE 'typed.parquet';
         SELECT * FROM 'typed.parquet' ORDER BY id"
    );
    let text = out(folder.path(), &script);
    for column in ["id BIGINT", "price DECIMAL(12, 4)", "day DATE", "at TIME", "weight DOUBLE"] {
        assert!(text.contains(&format!("  {column}")), "{text}");
    }
    // An id of 40000 does not fit SMALLINT.
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(rows.len(), 3, "{text}");
    assert_eq!(
        rows[1],
        "{\"id\":20000,\"price\":0.2000,\"day\":\"2026-11-21\",\"at\":\"09:00:00.500\",\"weight\":2.5}"
    );
    for (columns, query, expected) in [
        ("n INT", "SELECT weight FROM orders", "the column 'n' of the sink 's' is INT, and 'weight' is DOUBLE"),
        (
            "p DECIMAL(10, 1)",
            "SELECT price FROM orders",
            "the column 'p' of the sink 's' is DECIMAL(10, 1), and 'price' is DECIMAL(10, 2)",
        ),
        ("d DATE", "SELECT at FROM orders", "the column 'd' of the sink 's' is DATE, and 'at' is TIME"),
    ] {
        let script = format!("{ORDERS} CREATE SINK s ({columns}) TO 'blackhole:'; INSERT INTO s {query}");
        let error = error(folder.path(), &script);
        assert!(error.contains(expected) && error.contains("convert it with CAST"), "{error}");
    }
}

#[test]
fn types_that_are_not_there_are_refused_with_what_to_write() {
    let folder = TempDir::new().unwrap();
    let source = |column: &str| format!("CREATE SOURCE s ({column}) FROM 'file:a.jsonl' FORMAT JSON");
    let input = |column: &str| {
        format!(
            "CREATE APPLICATION a INPUT i ({column}, x DOUBLE) FROM 'mqtt:a' FORMAT JSON OUTPUT 'mqtt:b' FORMAT JSON \
             AS SELECT x FROM i"
        )
    };
    for (script, message, hint) in [
        (source("tags DATE[]"), "an array of DATE is not supported yet", "write TEXT ARRAY"),
        (source("tags ARRAY<DECIMAL(3, 1)>"), "an array of DECIMAL(3, 1) is not supported yet", "write TEXT ARRAY"),
        (source("radio MAP<INT, TEXT>"), "the keys of a map are TEXT", "MAP<TEXT, DOUBLE>"),
        (source("radio MAP<TEXT, TIME>"), "a map of TIME is not supported yet", "parts are"),
        (source("radio JSON"), "a column of type JSON is not supported yet", "MAP<TEXT, JSON>"),
        (source("points ROW<x DOUBLE>[]"), "expected ',' or ')' behind the parts of 'points'", "ARRAY<ROW<...>>"),
        (source("radio ROW(rssi)"), "expected a type, found ')'", "types are"),
        (source("radio ROW(rssi INT DEFAULT 1)"), "behind a part of 'radio'", "error"),
        (source("radio ROW(rssi INT, rssi TEXT)"), "the column 'radio.rssi' is declared twice", "error"),
        (input("radio ROW(rssi INT, at TIME)"), "a column of an application cannot be TIME", "declare it TEXT"),
        (source("b BYTEA"), "a column of type BYTEA is not supported yet", "declare it TEXT"),
        (source("p DECIMAL"), "expected '(' and the digits of the DECIMAL", "DECIMAL(10, 2)"),
        (source("p DECIMAL(2, 5)"), "there is no DECIMAL(2, 5)", "1 to 38 digits"),
        (source("p NUMERIC(99)"), "there is no DECIMAL(99, 0)", "1 to 38 digits"),
        (source("d DATE EVENT TIME"), "the event time 'd' must be a TIMESTAMP", "hint"),
        (input("p DECIMAL(10, 2)"), "a column of an application cannot be DECIMAL(10, 2)", "declare it DOUBLE"),
        (input("t TIME"), "a column of an application cannot be TIME", "declare it TEXT"),
        (
            "CREATE TABLE t (k TEXT, p DECIMAL(10, 2)) FROM 'file:t.csv' FORMAT CSV".into(),
            "a column of a table cannot be DECIMAL(10, 2)",
            "declare it TEXT",
        ),
        (
            "CREATE SINK s (a BIGINT, b AS a + 1) TO 'blackhole:'".into(),
            "a computed column is not supported here yet",
            "inputs of applications and sources have them",
        ),
    ] {
        let error = error(folder.path(), &script);
        assert!(error.contains(message) && error.contains(hint), "{script}\n{error}");
    }
}

#[test]
fn objects_are_declared_by_their_parts_and_fields_are_columns() {
    let folder = TempDir::new().unwrap();
    let lines = [
        r#"{"id": 1, "radio": {"rssi": -70, "gps": {"lat": 52.5, "at": "08:30"}}}"#,
        r#"{"id": 2, "radio": {"rssi": -80}}"#,
        r#"{"id": 3, "radio": {"rssi": "far"}}"#,
    ];
    fs::write(folder.path().join("in.jsonl"), lines.join("\n")).unwrap();
    for declared in [
        "id INT, radio ROW(rssi SMALLINT NOT NULL, gps ROW(lat DOUBLE, at TIME))",
        "id INT, radio STRUCT<rssi SMALLINT NOT NULL, gps ROW(lat DOUBLE, at TIME)>",
        "id INT, \"radio.rssi\" SMALLINT NOT NULL, \"radio.gps.lat\" DOUBLE, \"radio.gps.at\" TIME",
    ] {
        let source = format!("CREATE SOURCE devices ({declared}) FROM 'file:in.jsonl' FORMAT JSON;");
        for (query, expected) in [
            (
                "SELECT id, radio.rssi, d.radio.gps.lat AS lat, Radio.GPS.at FROM devices AS d WHERE radio.rssi < 0 \
                 ORDER BY id",
                "{\"id\":1,\"radio.rssi\":-70,\"lat\":52.5,\"radio.gps.at\":\"08:30:00\"}\n\
                 {\"id\":2,\"radio.rssi\":-80,\"lat\":null,\"radio.gps.at\":null}\n",
            ),
            (
                "SELECT radio.rssi / 10 AS tens, count(*) AS n FROM devices GROUP BY radio.rssi / 10 ORDER BY tens",
                "{\"tens\":-8,\"n\":1}\n{\"tens\":-7,\"n\":1}\n",
            ),
            (
                "SELECT a.id FROM devices AS a JOIN devices AS radio \
                 ON a.radio.rssi = radio.radio.rssi AND radio.id = 1",
                "{\"id\":1}\n",
            ),
        ] {
            assert_eq!(out(folder.path(), &format!("{source} {query}")), expected, "{query}");
        }
        let unknown = error(folder.path(), &format!("{source} SELECT radio.snr FROM devices"));
        assert!(unknown.contains("unknown column 'radio.snr'"), "{unknown}");
    }
}

#[test]
fn dates_are_columns_of_applications() {
    let folder = TempDir::new().unwrap();
    fs::write(
        folder.path().join("app.sql"),
        "CREATE APPLICATION due (day TEXT)
         INPUT bills (due DATE, n INT) FROM 'mqtt:bills' FORMAT JSON
         OUTPUT 'mqtt:due' FORMAT JSON
         AS SELECT due, n FROM bills WHERE due >= CAST($day AS DATE);",
    )
    .unwrap();
    let events = ["{\"due\":\"2026-11-20\",\"n\":1}", "{\"due\":\"2026-11-21\",\"n\":5000000000}", "{\"due\":5}"];
    fs::write(folder.path().join("events.ndjson"), events.join("\n")).unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_rivulet"))
        .args(["app", "test", "app.sql", "--input", "events.ndjson", "--parameters", "{\"day\": \"2026-11-21\"}"])
        .args(["--json"])
        .current_dir(folder.path())
        .output()
        .expect("the program");
    let (text, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(text.contains("2026-11-21") && text.contains("5000000000"), "{text}{error}");
    assert!(!text.contains("\"due\":\"2026-11-20\",\"n\":1}}"), "{text}");
    assert!(format!("{text}{error}").contains("expected a date (as 2026-11-21), found 5"), "{text}{error}");
}

const EVENTS: &str = "CREATE SINK letters TO 'file:letters.jsonl' FORMAT JSON; \
                      CREATE SOURCE events (ts BIGINT, room TEXT, n BIGINT, \
                      event AS to_timestamp(ts / 1000) EVENT TIME, share AS 100 / n, \
                      WATERMARK FOR event AS event - INTERVAL '1' SECOND) \
                      FROM 'file:in/' FORMAT JSON WITH (dead_letter => 'letters');";

fn event(second: i64, n: i64) -> String {
    format!("{{\"ts\":{},\"room\":\"r\",\"n\":{n}}}\n", 1_700_000_000_000_i64 + second * 1000)
}

#[test]
fn computed_columns_are_columns_and_event_times() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("in")).unwrap();
    // Two files over the same time: neither makes rows of the other late.
    for (file, first) in [("a.jsonl", 0), ("b.jsonl", 1)] {
        let lines: String = (0..60).map(|at| event(first + 2 * at, 1 + at % 4)).collect();
        fs::write(folder.path().join("in").join(file), lines).unwrap();
    }
    let query = "SELECT window_start, count(*) AS n, sum(share) AS shares FROM events \
                 GROUP BY tumble(event, INTERVAL '1 minute') ORDER BY window_start";
    let script = format!("{EVENTS} {query}");
    let counts: Vec<u64> = out(folder.path(), &script)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["n"].as_u64().unwrap())
        .collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (3, 120));
    let all = out(folder.path(), &format!("{EVENTS} SELECT * FROM events ORDER BY ts LIMIT 1"));
    assert_eq!(all, "{\"ts\":1700000000000,\"room\":\"r\",\"n\":1,\"event\":1700000000000,\"share\":100}\n");
    // What is not used is not computed, and what fails is refused.
    fs::write(folder.path().join("in/c.jsonl"), event(5, 0)).unwrap();
    let count = |column: &str| out(folder.path(), &format!("{EVENTS} SELECT count({column}) AS n FROM events"));
    assert_eq!(count("room"), "{\"n\":121}\n");
    assert_eq!(count("share"), "{\"n\":120}\n");
    let letters = fs::read_to_string(folder.path().join("letters.jsonl")).unwrap();
    assert!(letters.contains("Divide by zero") && letters.contains("\\\"n\\\":0"), "{letters}");
}

#[test]
fn computed_columns_are_checked_where_they_stand() {
    let folder = TempDir::new().unwrap();
    for (columns, message) in [
        ("ts BIGINT, event AS ts EVENT TIME", "the event time 'event' must be a TIMESTAMP, not BIGINT"),
        ("ts BIGINT, event AS to_timestamp(tz)", "unknown column 'tz'"),
        ("ts BIGINT, ts AS to_timestamp(ts)", "the column 'ts' is declared twice"),
        ("a AS b + 1, b BIGINT, a TEXT", "the column 'a' is declared twice"),
        ("b BIGINT, a AS b + 1, c AS a + 1", "unknown column 'a'"),
        ("b BIGINT, a AS sum(b)", "sum"),
        ("b BIGINT, a AS (SELECT 1)", "a subquery is not supported yet"),
        ("ts TIMESTAMP EVENT TIME, event AS ts EVENT TIME", "an input has one EVENT TIME, and that is 'ts' already"),
        ("event AS to_timestamp(1) EVENT TIME", "the source has no columns"),
    ] {
        let script = format!("CREATE SOURCE s ({columns}) FROM 'file:a.jsonl' FORMAT JSON");
        let error = error(folder.path(), &script);
        assert!(error.contains(message) && error.contains("\"line\":1"), "{columns}\n{error}");
    }
}

#[test]
fn arrays_are_columns_of_sources_and_sinks() {
    let folder = TempDir::new().unwrap();
    let lines = [
        r#"{"k":"a","tags":["x", "y\"z"],"values":[1.5, 2],"counts":[3, 4]}"#,
        r#"{"k":"b","tags":[],"values":null,"counts":[null, 7]}"#,
        r#"{"k":"c","tags":["x"],"values":[-0.5]}"#,
        r#"{"k":"d","tags":["x", 1]}"#,
        r#"{"k":"e","counts":[1.5]}"#,
        r#"{"k":"f","tags":"x"}"#,
        r#"{"k":"g","values":["NaN"]}"#,
    ];
    fs::write(folder.path().join("in.jsonl"), lines.join("\n")).unwrap();
    fs::write(folder.path().join("in.csv"), "k,values\na,\"[1, 2.5]\"\nb,\nc,[true]\n").unwrap();
    const SOURCE: &str = "CREATE SINK letters TO 'file:letters.jsonl' FORMAT JSON;
        CREATE SOURCE s (k TEXT, tags TEXT ARRAY, values DOUBLE[], counts ARRAY<INT>) FROM 'file:in.jsonl' FORMAT JSON
        WITH (dead_letter => 'letters');";
    let of = |query: &str| out(folder.path(), &format!("{SOURCE} {query}"));
    assert_eq!(
        of("SELECT k, tags, values, counts FROM s ORDER BY k"),
        "{\"k\":\"a\",\"tags\":[\"x\",\"y\\\"z\"],\"values\":[1.5,2],\"counts\":[3,4]}\n\
         {\"k\":\"b\",\"tags\":[],\"values\":null,\"counts\":[null,7]}\n\
         {\"k\":\"c\",\"tags\":[\"x\"],\"values\":[-0.5],\"counts\":null}\n"
    );
    let letters = fs::read_to_string(folder.path().join("letters.jsonl")).unwrap();
    for reason in [
        "expected a string, found a number",
        "expected a whole number",
        "expected an array, found a string",
        "expected a finite number",
    ] {
        assert!(letters.contains(reason), "{reason} in {letters}");
    }
    assert_eq!(
        of("SELECT k, tags[2] AS t, values[1] + 1 AS v, counts[-1] * 2 AS c, cardinality(tags) AS n,
                   array_contains(counts, 4) AS has FROM s ORDER BY k LIMIT 2"),
        "{\"k\":\"a\",\"t\":\"y\\\"z\",\"v\":2.5,\"c\":8,\"n\":2,\"has\":true}\n\
         {\"k\":\"b\",\"t\":null,\"v\":null,\"c\":14,\"n\":0,\"has\":false}\n"
    );
    assert_eq!(
        of("SELECT k, sum(c) AS s FROM s CROSS JOIN UNNEST(counts) AS r (c) GROUP BY k ORDER BY k"),
        "{\"k\":\"a\",\"s\":7}\n{\"k\":\"b\",\"s\":7}\n"
    );
    // Through keys, joins and views the column stays an array.
    assert_eq!(
        of("CREATE VIEW v AS SELECT tags, count(*) AS n FROM s GROUP BY tags;
            SELECT a.tags, a.n FROM v AS a JOIN v AS b ON a.tags = b.tags WHERE cardinality(a.tags) < 2 ORDER BY n, tags"),
        "{\"tags\":[\"x\"],\"n\":1}\n{\"tags\":[],\"n\":1}\n"
    );
    // What a sink writes a source reads.
    of("CREATE SINK o (k TEXT, tags TEXT ARRAY, all BIGINT ARRAY) TO 'file:out.jsonl' FORMAT JSON;
        SELECT k, tags, counts FROM s INTO o;");
    let script = "CREATE SOURCE o (k TEXT, tags TEXT ARRAY, all BIGINT[]) FROM 'file:out.jsonl' FORMAT JSON;
                  SELECT k, tags[1] AS t, all[1] AS c FROM o ORDER BY k LIMIT 1";
    assert_eq!(out(folder.path(), script), "{\"k\":\"a\",\"t\":\"x\",\"c\":3}\n");
    let script = "CREATE SOURCE c (k TEXT, values DOUBLE ARRAY) FROM 'file:in.csv' FORMAT CSV (header => true);
                  SELECT k, values, values[2] AS v FROM c ORDER BY k";
    assert_eq!(
        out(folder.path(), script),
        "{\"k\":\"a\",\"values\":[1,2.5],\"v\":2.5}\n{\"k\":\"b\",\"values\":null,\"v\":null}\n"
    );
    // Whole numbers fit floating-point ones, and lists of values of one type are arrays of it.
    of("CREATE SINK d (k TEXT, a DOUBLE ARRAY, b BIGINT ARRAY, c TEXT[], n BOOLEAN[]) TO 'file:d.jsonl' FORMAT JSON;
        SELECT k, counts, array_agg(values[1]::BIGINT), json_array(k, 'z'), NULL FROM s GROUP BY k, counts INTO d;");
    let script =
        "CREATE SOURCE d (k TEXT, a DOUBLE[], b BIGINT[], c TEXT[], n BOOLEAN[]) FROM 'file:d.jsonl' FORMAT JSON;
                  SELECT k, a[1] AS a, b[1] AS b, c[2] AS c, n FROM d ORDER BY k LIMIT 1";
    assert_eq!(out(folder.path(), script), "{\"k\":\"a\",\"a\":3.0,\"b\":1,\"c\":\"z\",\"n\":null}\n");
    // An element of a list has its type too, in an expression as behind UNNEST.
    assert_eq!(
        of("SELECT k, array_agg(counts[1])[1] + 1 AS c, array_agg(json_object('k', k))[1] AS o FROM s GROUP BY k
            ORDER BY k LIMIT 1"),
        "{\"k\":\"a\",\"c\":4,\"o\":{\"k\":\"a\"}}\n"
    );
    // A union is what all its parts are.
    assert_eq!(
        of("SELECT a FROM (SELECT k, counts AS a FROM s UNION ALL SELECT 'b2', json_array(k, 1) FROM s WHERE k = 'b'
            UNION ALL SELECT 'b1', tags FROM s WHERE k = 'a') AS u WHERE k < 'c' ORDER BY k"),
        "{\"a\":[3,4]}\n{\"a\":[null,7]}\n{\"a\":[\"x\",\"y\\\"z\"]}\n{\"a\":[\"b\",1]}\n"
    );
    assert_eq!(
        of("SELECT a FROM (SELECT k, counts AS a FROM s UNION ALL SELECT 'b1', 'text' FROM s WHERE k = 'a') AS u
            WHERE k > 'a' AND k < 'c' ORDER BY k"),
        "{\"a\":\"[null,7]\"}\n{\"a\":\"text\"}\n"
    );
    assert_eq!(
        of("SELECT a[1] AS a FROM (SELECT k, tags AS a FROM s UNION ALL SELECT k, NULL FROM s WHERE k = 'b' UNION ALL
            SELECT 'a2', counts FROM s WHERE k = 'a') AS u WHERE k < 'b' ORDER BY k"),
        "{\"a\":\"x\"}\n{\"a\":\"3\"}\n"
    );
    assert_eq!(
        of("SELECT a[1] + 1 AS a FROM (SELECT k, counts AS a FROM s UNION ALL SELECT k, NULL FROM s WHERE k = 'a')
            AS u WHERE k < 'b' ORDER BY a"),
        "{\"a\":4}\n{\"a\":null}\n"
    );
    // A column that is computed stays an array, and so do the declared ones beside it.
    let script = "CREATE SOURCE s (k TEXT, counts BIGINT[], parts AS string_to_array(k, ','), twice AS
                  json_array(counts[1] * 2)) FROM 'file:in.jsonl' FORMAT JSON; SELECT counts, parts, twice[1] + 1 AS t
                  FROM s WHERE k = 'a'";
    assert_eq!(out(folder.path(), script), "{\"counts\":[3,4],\"parts\":[\"a\"],\"t\":7}\n");
    // A Parquet file has the arrays as texts.
    of("CREATE SINK p (k TEXT, all BIGINT ARRAY) TO 'file:out.parquet' FORMAT PARQUET;
        SELECT k, counts FROM s INTO p;");
    let script = "CREATE SOURCE p (k TEXT, all BIGINT[]) FROM 'file:out.parquet' FORMAT PARQUET;
                  SELECT k, all[2] AS c FROM p ORDER BY k LIMIT 1";
    assert_eq!(out(folder.path(), script), "{\"k\":\"a\",\"c\":4}\n");
    for (script, expected) in [
        ("CREATE SOURCE x (a TIMESTAMP ARRAY) FROM 'file:x' FORMAT JSON", "an array of TIMESTAMP is not supported yet"),
        ("CREATE SOURCE x (a TEXT ARRAY) FROM 'file:x' FORMAT JSON; SELECT a[1][1] AS x FROM y", "there is no source"),
        ("CREATE SOURCE x (a ARRAY) FROM 'file:x' FORMAT JSON", "expected '<' and the types of the parts"),
        (
            &format!("{SOURCE} CREATE SINK o (k TEXT ARRAY) TO 'file:o.jsonl' FORMAT JSON; SELECT k FROM s INTO o;"),
            "the column 'k' of the sink 'o' is an array, and 'k' is none",
        ),
        (
            &format!("{SOURCE} CREATE SINK o (k TEXT[]) TO 'file:o.jsonl' FORMAT JSON; SELECT counts FROM s INTO o;"),
            "the column 'k' of the sink 'o' is TEXT ARRAY, and 'counts' is BIGINT ARRAY",
        ),
        (
            &format!("{SOURCE} CREATE SINK o (k INT[]) TO 'file:o.jsonl' FORMAT JSON; SELECT values FROM s INTO o;"),
            "the column 'k' of the sink 'o' is BIGINT ARRAY, and 'values' is DOUBLE ARRAY",
        ),
        (
            &format!(
                "{SOURCE} CREATE SINK o (k INT[]) TO 'file:o.jsonl' FORMAT JSON;
                 SELECT json_array(k, 1) AS pair FROM s INTO o;"
            ),
            "the column 'k' of the sink 'o' is BIGINT ARRAY, and 'pair' may have elements of other types",
        ),
        (
            &format!(
                "{SOURCE} CREATE SINK o (k INT[]) TO 'file:o.jsonl' FORMAT JSON;
                 SELECT json_object('k', k) AS doc FROM s INTO o;"
            ),
            "the column 'k' of the sink 'o' is BIGINT ARRAY, and 'doc' is ROW<k TEXT>",
        ),
    ] {
        let error = error(folder.path(), script);
        assert!(error.contains(expected), "{script}\n{error}");
    }
}

#[test]
fn a_decimal_beside_a_floating_point_number_is_one_wherever_one_of_them_is_given() {
    let folder = TempDir::new().unwrap();
    orders(folder.path());
    let of = |select: &str| out(folder.path(), &format!("{ORDERS} {select}"));
    assert_eq!(
        of("SELECT CASE WHEN id = 1 THEN price ELSE weight END AS a, COALESCE(weight, price) AS b,
                   greatest(price, weight, 0.5) AS c, COALESCE(price, 0.5) AS d FROM orders WHERE id IN (1, 3)
            ORDER BY id"),
        "{\"a\":0.1,\"b\":0.1,\"c\":0.5,\"d\":0.10}\n\
         {\"a\":null,\"b\":99999999.99,\"c\":99999999.99,\"d\":99999999.99}\n"
    );
    assert_eq!(
        of("SELECT x FROM (SELECT price AS x FROM orders UNION ALL SELECT weight FROM orders) WHERE x > 2 ORDER BY x"),
        "{\"x\":2.5}\n{\"x\":99999999.99}\n"
    );
    let union = of("SELECT price AS x FROM orders WHERE id = 1 UNION SELECT weight FROM orders WHERE id = 1");
    assert_eq!(union, "{\"x\":0.1}\n");
}
