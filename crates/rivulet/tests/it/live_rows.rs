//! Rows as they come: the results of a big query that somebody watches, and a SELECT that runs for its reader alone.

use std::fs;
use std::io::Write;
use std::path::Path;

use rivulet::catalog::Catalog;
use rivulet::engine::Engine;
use rivulet::http_client::{Client, ClientError, WatchEvent};
use rivulet::service::Tenant;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::engine::open;
use super::server::{Publisher, Server, rivulet};
use super::support::{AsOperator, TestServer, wait_until};
use super::tables::said;

fn declare(engine: &Engine, folder: &Path, lines: &str) {
    let input = folder.join("in.jsonl");
    fs::write(&input, lines).unwrap();
    let input = input.display();
    said(engine, &format!("CREATE SOURCE numbers (n BIGINT) FROM 'file:{input}' FORMAT JSON WITH (follow => true)"));
    said(engine, &format!("CREATE SOURCE few (n BIGINT) FROM 'file:{input}' FORMAT JSON"));
    said(engine, "CREATE SINK nowhere TO 'blackhole:'");
}

fn append(folder: &Path, lines: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(folder.join("in.jsonl")).unwrap();
    file.write_all(lines.as_bytes()).unwrap();
}

/// The rows of a SELECT, and why there were no more.
fn select(client: &Client, sql: &str) -> Result<(Vec<String>, String), ClientError> {
    let (mut rows, mut end) = (Vec::new(), String::new());
    client.select::<ClientError>(sql, |event| {
        match event {
            WatchEvent::Result(row) => rows.push(row.to_owned()),
            WatchEvent::Lost(count) => panic!("{count} rows were lost"),
            WatchEvent::Refused(_) => {}
            WatchEvent::End(reason) => reason.clone_into(&mut end),
        }
        Ok(())
    })?;
    Ok((rows, end))
}

#[test]
fn a_big_query_is_watched_as_a_small_one() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    declare(&engine, folder.path(), "");
    said(&engine, "CREATE QUERY plain AS SELECT n FROM numbers INTO nowhere");
    said(&engine, "CREATE QUERY total AS SELECT sum(n) AS total FROM numbers INTO nowhere");
    let watch = |query: &'static str, limit: u64| {
        let client = server.client();
        std::thread::spawn(move || {
            let mut rows = Vec::new();
            let done = client.watch::<ClientError>(query, Some(limit), |event| {
                if let WatchEvent::Result(row) = event {
                    rows.push(row.to_owned());
                }
                Ok(())
            });
            done.map(|()| rows)
        })
    };
    let (plain, total) = (watch("plain", 2), watch("total", 3));
    // Until both are there, rows pass unseen.
    wait_until("both are watched", || {
        append(folder.path(), "{\"n\":1}\n");
        plain.is_finished() && total.is_finished()
    });
    assert_eq!(plain.join().unwrap().unwrap(), ["{\"n\":1}", "{\"n\":1}"]);
    let total = total.join().unwrap().unwrap();
    assert!(total.iter().all(|row| row.starts_with("{\"op\":\"")), "rows are taken back: {total:?}");
}

#[test]
fn a_select_gives_its_rows_until_its_input_ends_or_its_reader_goes() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    let client = server.client();
    declare(&engine, folder.path(), "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
    let (rows, end) = select(&client, "SELECT n * 10 AS n FROM few WHERE n > 1").unwrap();
    assert_eq!((rows, end.as_str()), (vec!["{\"n\":20}".to_owned(), "{\"n\":30}".to_owned()], "ended"));
    let (rows, end) = select(&client, "SELECT n FROM numbers LIMIT 2;").unwrap();
    assert_eq!((rows.len(), end.as_str()), (2, "ended"), "enough of input without an end");
    // More than may run at a time, each given up by its reader.
    for _ in 0..40 {
        let mut seen = 0;
        wait_until("there is a place", || {
            let done = client.select::<ClientError>("SELECT n FROM numbers", |event| match event {
                WatchEvent::Result(_) => {
                    seen += 1;
                    Err(ClientError::Lost { server: String::new() })
                }
                _ => Ok(()),
            });
            matches!(done, Err(ClientError::Lost { .. }))
        });
        assert_eq!(seen, 1);
    }
    assert!(engine.status().big_queries.is_empty(), "none of them is a query that stays");
}

#[test]
fn the_command_line_shows_the_rows_of_a_select() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    declare(&engine, folder.path(), "{\"n\":1}\n{\"n\":2}\n");
    let sql = |command: &str| rivulet().args(["sql", "--server", &server.url(), "-c", command]).output().unwrap();
    let shown = sql("SELECT n FROM few");
    assert_eq!(String::from_utf8_lossy(&shown.stdout), "{\"n\":1}\n{\"n\":2}\n");
    assert!(shown.status.success());
    let refused = sql("SELECT m FROM few");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains("line 1, column 8") || said.contains("1:8"), "{said}");
}

#[test]
fn a_select_over_tables_alone_is_complete() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    let client = server.client();
    // Many times as many rows as wait for a reader.
    let lines: String = (0..5_000).map(|device| format!("{device},{}\n", device % 7)).collect();
    fs::write(folder.path().join("limits.csv"), lines).unwrap();
    fs::write(folder.path().join("names.csv"), "3,attic\n10,hall\n").unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    said(
        &engine,
        &format!("CREATE TABLE limits (device BIGINT, most BIGINT) FROM 'file:{}' FORMAT CSV", file("limits.csv")),
    );
    said(&engine, &format!("CREATE TABLE names (id BIGINT, name TEXT) FROM 'file:{}' FORMAT CSV", file("names.csv")));
    let rows = |sql: &str| {
        let (rows, end) = select(&client, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(end, "ended", "{sql}");
        rows
    };
    let all = rows("SELECT * FROM limits");
    assert_eq!((all.len(), all[4_999].as_str()), (5_000, "{\"device\":4999,\"most\":1}"), "in the order of the file");
    for (sql, expected) in [
        ("SELECT device FROM limits WHERE most > 5 LIMIT 2", &["{\"device\":6}", "{\"device\":13}"][..]),
        ("SELECT device FROM limits LIMIT 1 OFFSET 70", &["{\"device\":70}"]),
        (
            "SELECT device FROM limits WHERE most = 0 ORDER BY most, device DESC LIMIT 2 OFFSET 1",
            &["{\"device\":4991}", "{\"device\":4984}"],
        ),
        (
            "SELECT most, count(*) AS n FROM limits GROUP BY most HAVING count(*) > 714",
            &["{\"most\":0,\"n\":715}", "{\"most\":1,\"n\":715}"],
        ),
        ("WITH high AS (SELECT device FROM limits WHERE most = 6) SELECT count(*) AS n FROM high", &["{\"n\":714}"]),
        (
            "SELECT n.name, l.most FROM limits AS l JOIN names AS n ON n.id = l.device ORDER BY name",
            &["{\"name\":\"attic\",\"most\":3}", "{\"name\":\"hall\",\"most\":3}"],
        ),
        ("SELECT name FROM names WHERE id = 4", &[]),
    ] {
        assert_eq!(rows(sql), expected, "{sql}");
    }
    let shown = rivulet().args(["sql", "--server", &server.url(), "-c", "SELECT name FROM names"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout), "{\"name\":\"attic\"}\n{\"name\":\"hall\"}\n");
    // Beside a source they are looked up.
    declare(&engine, folder.path(), "{\"n\":3}\n{\"n\":4}\n");
    assert_eq!(
        rows("SELECT f.n, t.name FROM few AS f JOIN names AS t ON t.id = f.n"),
        ["{\"n\":3,\"name\":\"attic\"}"]
    );
    let error = engine.select("SELECT nmae FROM names").map(|_| ()).unwrap_err();
    assert_eq!((error.line, error.column), (Some(1), Some(8)), "{error:?}");
}

#[test]
fn a_select_over_input_that_ends_is_complete() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    let client = server.client();
    // Many times as many rows as wait for a reader, and as may wait for a slow one.
    const ROWS: usize = 40_000;
    let lines: String = (0..ROWS).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    declare(&engine, folder.path(), &lines);
    let rows = |sql: &str| {
        let (rows, end) = select(&client, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert_eq!(end, "ended", "{sql}");
        rows
    };
    for (sql, expected) in [
        ("SELECT count(*) AS rows, max(n) AS most FROM few", &["{\"rows\":40000,\"most\":39999}"][..]),
        (
            "SELECT n % 3 AS part, count(*) AS rows FROM few GROUP BY n % 3 ORDER BY part DESC LIMIT 2",
            &["{\"part\":2,\"rows\":13333}", "{\"part\":1,\"rows\":13333}"],
        ),
        ("SELECT n FROM few ORDER BY n DESC LIMIT 1 OFFSET 1", &["{\"n\":39998}"]),
    ] {
        assert_eq!(rows(sql), expected, "{sql}");
    }
    let all = rows("SELECT n FROM few");
    let last = format!("{{\"n\":{}}}", ROWS - 1);
    assert_eq!((all.len(), all.last()), (ROWS, Some(&last)), "none is skipped");
    assert_eq!(rows("SELECT n FROM few WHERE n > 100 LIMIT 3").len(), 3);
    let path = folder.path().join("in.jsonl");
    let file = rows(&format!("SELECT sum(n) AS n FROM '{}'", path.display()));
    assert_eq!(file, ["{\"n\":799980000}"], "of a file that is not declared");
}

#[test]
fn what_is_no_select_that_can_be_watched_is_refused() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    declare(&engine, folder.path(), "");
    let refused = |sql: &str| engine.select(sql).map(|_| ()).unwrap_err();
    let error = refused("SELECT n FROM numbers\nINTO nowhere");
    assert_eq!((error.line, error.column), (Some(2), Some(6)), "{error:?}");
    for sql in ["SELECT n FROM numbers ORDER BY n", "SELECT sum(n) AS n FROM numbers LIMIT 1"] {
        let error = refused(sql);
        assert!(error.message.contains("this one has no end"), "{error:?}");
        assert!(error.hint.is_some_and(|hint| hint.contains("bounded => true")), "{sql}");
    }
    assert!(refused("SHOW QUERIES").message.contains("expected one SELECT"));
    assert!(refused("SELECT n FROM few; SELECT n FROM few").message.contains("expected one SELECT"));
    assert!(refused("SELECT n FROM fwe").line.is_some());
}

#[test]
fn a_name_in_from_is_of_one_thing() {
    let folder = TempDir::new().unwrap();
    {
        let engine = open(folder.path());
        declare(&engine, folder.path(), "{\"n\":1}\n");
        said(&engine, "CREATE VIEW high AS SELECT n FROM few WHERE n > 10");
        said(
            &engine,
            "CREATE APPLICATION plain (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
             OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers",
        );
        said(&engine, "CREATE QUERY small FROM APPLICATION plain WITH (id => '1')");
        said(&engine, "CREATE QUERY big AS SELECT n FROM numbers INTO nowhere");
        fs::write(folder.path().join("t.csv"), "1\n").unwrap();
        let table = format!("(n BIGINT) FROM 'file:{}' FORMAT CSV", folder.path().join("t.csv").display());
        said(&engine, &format!("CREATE TABLE limits {table}"));
        let refused = |sql: &str| engine.execute(sql).pop().unwrap().expect_err(sql);
        for (sql, message) in [
            ("CREATE QUERY high FROM APPLICATION plain WITH (id => '2')", "a view 'high' exists, and FROM"),
            ("CREATE QUERY few AS SELECT n FROM numbers INTO nowhere", "a source 'few' exists, and FROM"),
            ("CREATE QUERY limits FROM APPLICATION plain WITH (id => '2')", "a table 'limits' exists, and FROM"),
            ("CREATE VIEW small AS SELECT n FROM few", "a query 'small' exists, and FROM"),
            ("CREATE SOURCE big (n BIGINT) FROM 'file:in.jsonl' FORMAT JSON", "a query 'big' exists, and FROM"),
            (&format!("CREATE TABLE small {table}"), "a query 'small' exists, and FROM"),
        ] {
            let error = refused(sql);
            assert!(error.message.starts_with(message), "{sql}: {error:?}");
            assert!(error.hint.is_some_and(|hint| hint.contains("another name")), "{sql}");
        }
        // What is refused takes no name, and what is dropped gives its name back.
        refused("CREATE VIEW other AS SELECT m FROM few");
        said(&engine, "CREATE QUERY other FROM APPLICATION plain WITH (id => '3')");
        said(&engine, "DROP VIEW high");
        said(&engine, "DROP TABLE limits");
        said(&engine, "CREATE QUERY high FROM APPLICATION plain WITH (id => '4')");
        said(&engine, "CREATE QUERY limits FROM APPLICATION plain WITH (id => '4')");
        engine.shutdown();
    }
    // A catalog of an earlier version may have both; the view is read, as it was.
    let catalog = Catalog::open(&folder.path().join("data")).unwrap();
    catalog.insert_statement(&Tenant::default(), "CREATE VIEW small AS SELECT n + 1 AS n FROM few").unwrap();
    drop(catalog);
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    assert_eq!(engine.query("small").unwrap().application, "plain");
    assert_eq!(select(&server.client(), "SELECT n FROM small").unwrap().0, ["{\"n\":2}"]);
    said(&engine, "DROP QUERY small");
    let error = engine.execute("CREATE QUERY small FROM APPLICATION plain WITH (id => '1')").pop().unwrap();
    assert!(error.unwrap_err().message.starts_with("a view 'small' exists"));
}

/// Rows of a SELECT on a server, once they come; `publish` is called until they do.
fn rows_of(server: &Server, sql: &str, limit: usize, mut publish: impl FnMut()) -> Vec<Value> {
    let (client, sql) = (Client::new(&server.url()).unwrap(), format!("{sql} LIMIT {limit}"));
    let selected = std::thread::spawn(move || select(&client, &sql));
    wait_until("the SELECT has its rows", || {
        publish();
        selected.is_finished()
    });
    let (rows, end) = selected.join().unwrap().unwrap();
    assert_eq!((rows.len(), end.as_str()), (limit, "ended"));
    rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect()
}

#[test]
fn a_select_reads_topics_what_applications_read_and_write_and_results_of_queries() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION warm (home TEXT)
         INPUT readings (ts TIMESTAMP EVENT TIME, v DOUBLE) FROM 'mqtt:home/{home}/t' FORMAT JSON
         OUTPUT 'mqtt:home/{home}/warm' FORMAT JSON
         AS SELECT ts, v * 2 AS twice FROM readings;
         CREATE QUERY seven FROM APPLICATION warm WITH (home => '7');
         CREATE SOURCE all_readings (home TEXT, v DOUBLE) FROM 'mqtt:home/+/t' FORMAT JSON
           WITH (level_columns => 'home');
         CREATE SINK nowhere TO 'blackhole:';
         CREATE QUERY sums AS SELECT home, sum(v) AS v FROM all_readings GROUP BY home INTO nowhere;
         CREATE QUERY plain AS SELECT home, v + 1 AS v FROM all_readings INTO nowhere",
    );
    let mut publisher = Publisher::connect(server.mqtt);
    let mut publish = || publisher.publish("home/7/t", "{\"ts\": 1700000000000, \"v\": 2.5}");
    let mut first = |sql: &str| rows_of(&server, sql, 1, &mut publish).remove(0);
    let topic = first("SELECT * FROM \"mqtt:home/+/t\"");
    assert_eq!(topic["topic"], "home/7/t");
    assert!(topic["payload"].as_str().unwrap().contains("\"v\": 2.5"), "{topic}");
    let input = first("SELECT topic, v FROM warm.readings");
    assert_eq!(input, json!({"topic": "home/7/t", "v": 2.5}));
    let output = first("SELECT topic, twice FROM warm.output");
    assert_eq!(output, json!({"topic": "home/7/warm", "twice": 5.0}));
    let result = first("SELECT ts, twice + 1 AS more FROM seven WHERE twice > 1");
    assert_eq!(result, json!({"ts": 1_700_000_000_000_u64, "more": 6.0}));
    assert_eq!(first("SELECT v FROM plain WHERE home = '7'")["v"], 3.5);
    assert_eq!(first("SELECT op, home FROM sums WHERE op = '-'"), json!({"op": "-", "home": "7"}));

    let client = Client::new(&server.url()).unwrap();
    let refused = |sql: &str| select(&client, sql).unwrap_err().to_string();
    assert!(refused("SELECT v FROM warm.nothing").contains("has no input or output 'nothing'"));
    assert!(refused("SELECT v FROM warm").contains("'warm' is an application"));
    let own = "WITH warm AS (SELECT v FROM all_readings) SELECT v FROM warm";
    assert_eq!(rows_of(&server, own, 1, || publisher.publish("home/7/t", "{\"v\": 1.5}")), [json!({"v": 1.5})]);
    assert!(refused("SELECT * FROM 'mqtt:home/+/t'").contains("is a topic, and a text in single quotes is a file"));
    assert!(refused("SELECT v FROM eight").contains("there is no source, view or table 'eight'"));
    server.sql_ok("DROP QUERY seven; DROP QUERY plain; DROP QUERY sums");
    assert!(refused("SELECT v FROM plain").contains("there is no source, view or table 'plain'"));
}

#[test]
fn a_select_says_what_it_refused() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine.clone());
    declare(&engine, folder.path(), "{\"n\":\"one\"}\n{\"n\":\"two\"}\n");
    let shown = rivulet().args(["sql", "--server", &server.url(), "-c", "SELECT n FROM few"]).output().unwrap();
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success() && shown.stdout.is_empty(), "{said}");
    assert!(said.contains("2 rows were refused (2 decode); one of them: field 'n'"), "{said}");
}
