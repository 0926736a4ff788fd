//! Files that a SELECT reads by their paths, without a declaration.

use std::fs;
use std::path::Path;

use rivulet::http_client::{Client, ClientError, WatchEvent};
use tempfile::TempDir;

use super::column_types::{out, run};
use super::engine::open;
use super::support::TestServer;

fn write_files(folder: &Path) {
    fs::create_dir(folder.join("data")).unwrap();
    fs::write(
        folder.join("data/readings.csv"),
        "ts;Room;celsius\n2026-11-21 08:00;kitchen;21.5\n2026-11-21 08:01;bath;24\n;hall;\n",
    )
    .unwrap();
    fs::write(
        folder.join("data/rooms.jsonl"),
        "{\"room\": \"kitchen\", \"radio\": {\"rssi\": -70}, \"tags\": [1]}\n{\"room\": \"bath\", \"floor\": 2}\n",
    )
    .unwrap();
}

#[test]
fn files_are_read_by_their_paths() {
    let folder = TempDir::new().unwrap();
    write_files(folder.path());
    let done = |query: &str| out(folder.path(), query);
    assert_eq!(
        done("SELECT * FROM 'data/readings.csv' ORDER BY celsius"),
        "{\"ts\":1795248000000,\"room\":\"kitchen\",\"celsius\":21.5}\n\
         {\"ts\":1795248060000,\"room\":\"bath\",\"celsius\":24.0}\n\
         {\"ts\":null,\"room\":\"hall\",\"celsius\":null}\n"
    );
    assert_eq!(
        done(
            "SELECT r.room, r.celsius, o.\"radio.rssi\" AS rssi FROM 'data/readings.csv' AS r \
             JOIN 'data/rooms.jsonl' AS o ON o.room = r.room WHERE o.floor IS NULL"
        ),
        "{\"room\":\"kitchen\",\"celsius\":21.5,\"rssi\":-70}\n"
    );
    // What was written by one statement is read by the next, also by a pattern.
    assert_eq!(
        done(
            "CREATE SINK warm TO 'file:warm.parquet' FORMAT PARQUET;
             INSERT INTO warm SELECT room, celsius FROM 'data/readings.csv' WHERE celsius > 22;
             SELECT count(*) AS n, max(celsius) AS most FROM 'war*.parquet'"
        ),
        "{\"n\":1,\"most\":24.0}\n"
    );
}

#[test]
fn a_file_is_told_as_the_source_that_it_would_be() {
    let folder = TempDir::new().unwrap();
    write_files(folder.path());
    let text = out(folder.path(), "DESCRIBE 'data/rooms.jsonl'");
    assert_eq!(
        text.trim_end(),
        "-- left out: tags: it is an array\nCREATE SOURCE rooms (\n  room TEXT,\n  \"radio.rssi\" BIGINT,\n  floor \
         BIGINT\n) FROM 'file:data/rooms.jsonl' FORMAT JSON;"
    );
    // It is a statement of the language.
    assert_eq!(out(folder.path(), &format!("{text} SELECT count(*) AS n FROM rooms")), "{\"n\":2}\n");
    let error = |script: &str| String::from_utf8(run(folder.path(), script).stderr).unwrap();
    let view = error("CREATE VIEW v AS SELECT * FROM 'data/rooms.jsonl'");
    assert!(view.contains("a file is read by its path in SELECT alone"), "{view}");
    let missing = error("SELECT * FROM 'data/none.csv'");
    assert!(missing.contains("data/none.csv") && missing.contains("\"line\":1"), "{missing}");
    let other = error("SELECT * FROM 'data'");
    assert!(!other.contains("panicked"), "{other}");
}

#[test]
fn results_of_windows_are_read_again_from_any_file() {
    let folder = TempDir::new().unwrap();
    write_files(folder.path());
    for (name, format) in [("m.parquet", "PARQUET"), ("m.ndjson", "JSON"), ("m.csv", "CSV (header => true)")] {
        let found = out(
            folder.path(),
            &format!(
                "CREATE SOURCE r (ts TIMESTAMP EVENT TIME, room TEXT, celsius DOUBLE)
                 FROM 'file:data/readings.csv' FORMAT CSV (header => true, delimiter => ';');
                 CREATE SINK s TO 'file:{name}' FORMAT {format};
                 INSERT INTO s SELECT room, 1 AS arrival_time, window_start, window_end FROM r
                 GROUP BY room, tumble(ts, INTERVAL '1 minute');
                 SELECT * FROM '{name}' WHERE window_end IS NOT NULL ORDER BY window_start LIMIT 1"
            ),
        );
        let row: serde_json::Value = serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found}"));
        let columns: Vec<&String> = row.as_object().unwrap().keys().collect();
        assert_eq!(columns.len(), 4, "{found}");
        assert_eq!(row["window_start"], 1_795_248_000_000_i64, "{found}");
        assert_eq!(row["window_end"], 1_795_248_060_000_i64, "{found}");
    }
}

/// The rows of a SELECT.
fn select(client: &Client, sql: &str) -> Result<Vec<String>, ClientError> {
    let mut rows = Vec::new();
    client.select::<ClientError>(sql, |event| {
        if let WatchEvent::Result(row) = event {
            rows.push(row.to_owned());
        }
        Ok(())
    })?;
    Ok(rows)
}

#[test]
fn a_server_reads_files_that_it_may() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let server = TestServer::start(engine);
    let file = folder.path().join("in.jsonl");
    fs::write(&file, "{\"n\": 1}\n{\"n\": 2.5}\n").unwrap();
    let rows = select(&server.client(), &format!("SELECT n FROM '{}'", file.display())).unwrap();
    assert_eq!(rows, ["{\"n\":1.0}", "{\"n\":2.5}"]);
    let described = server.client().run_script(&format!("DESCRIBE '{}'", file.display())).unwrap();
    assert!(format!("{:?}", described.results[0].rows).contains("n DOUBLE"), "{:?}", described.results);
    let denied = select(&server.client(), "SELECT * FROM '/etc/passwd.csv'").unwrap_err().to_string();
    assert!(
        denied.contains("/etc/passwd.csv") && denied.contains("outside of the folders that the server allows"),
        "{denied}"
    );
}
