//! Statements of a data folder that the server cannot carry out as they are: written by an earlier version, or over
//! storage that is slow to come.

use std::path::Path;
use std::time::Duration;

use rivulet::catalog::{Catalog, NewApplication, NewQuery};
use rivulet::service::{Parameter, ParameterValue, Tenant};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::{Publisher, Server, rivulet, wait, wait_for};

/// What the server has written to its log.
fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap()
}

fn json_lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The value of a property that DESCRIBE shows.
fn property(server: &Server, thing: &str, property: &str) -> Option<String> {
    let shown = server.sql_ok(&format!("DESCRIBE {thing}"));
    let rows = shown["results"][0]["rows"].as_array().unwrap();
    Some(rows.iter().find(|row| row[0] == property)?[1].as_str().unwrap().to_owned())
}

/// A data folder as the version before left it, which read types without their lengths and precisions.
fn left_by_an_earlier_version(folder: &Path) {
    std::fs::write(folder.join("readings.csv"), "longer than nine,abcdef,2026-11-21T08:30:00.123456Z\n").unwrap();
    std::fs::write(folder.join("rooms.csv"), "kitchen,0\n").unwrap();
    let catalog = Catalog::open(&folder.join("data")).unwrap();
    for statement in [
        "CREATE SOURCE readings (device VARCHAR(9), note CHAR(4), ts TIMESTAMP(0) EVENT TIME) \
         FROM 'file:readings.csv' FORMAT CSV",
        "CREATE SINK out (device CHAR(9), note TEXT, ts TIMESTAMP(0)) TO 'file:out.json' FORMAT JSON",
        "CREATE VIEW noted AS SELECT device, CAST(note AS CHAR(2)) AS note, ts FROM readings",
        "CREATE QUERY whole AS SELECT device, note, CAST(ts AS TIMESTAMP(0)) AS ts FROM noted INTO out",
        // What no version reads.
        "CREATE SOURCE bids (price MONEY) FROM 'file:bids.csv' WITH (secret => 'swordfish')",
        "CREATE SINK lost (price MONEY) TO 'file:lost.csv'",
        "CREATE VIEW cheap AS SELEKT price FROM bids",
        "CREATE QUERY of_bids AS SELECT price FROM bids INTO out",
        "CREATE QUERY broken AS SELECT price FROM bids WHERE INTO out",
    ] {
        catalog.insert_statement(&Tenant::default(), statement).unwrap();
    }
    catalog
        .insert_table(
            &Tenant::default().named("rooms"),
            "CREATE TABLE rooms (id VARCHAR(2), floor INT(3)) FROM 'file:rooms.csv' FORMAT CSV",
        )
        .unwrap();
    let application = "CREATE APPLICATION floors (home VARCHAR(3)) INPUT readings (room CHAR(9)) FROM 'mqtt:in/{home}' \
                       FORMAT JSON OUTPUT 'mqtt:out/{home}' FORMAT JSON AS SELECT CAST(r.id AS CHAR(2)) AS id, r.floor \
                       FROM readings JOIN rooms AS r ON r.id = readings.room";
    let application = catalog.insert_application(NewApplication::sql("floors", "id-of-floors", application)).unwrap();
    let home: [Parameter<'static>; 1] = [("home".into(), ParameterValue::Text("longer".into()))];
    let query = NewQuery { application, name: "q", parameters: &home, label: None };
    catalog.insert_queries(&[query], None).unwrap();
}

#[test]
fn statements_of_an_earlier_version_run_as_they_did_and_others_can_be_dropped() {
    let folder = TempDir::new().unwrap();
    left_by_an_earlier_version(folder.path());
    let server = Server::start(folder.path());

    let out = folder.path().join("out.json");
    wait("the row", || !json_lines(&out).is_empty());
    let whole = json!({"device": "longer than nine", "note": "abcdef", "ts": 1_795_249_800_123.456});
    assert_eq!(json_lines(&out), [whole], "values are as long as they were");
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("out/longer");
    Publisher::connect(server.mqtt).publish("in/longer", "{\"room\": \"kitchen\"}");
    let floor: Value = serde_json::from_slice(&listener.next().1).unwrap();
    assert_eq!(floor, json!({"id": "kitchen", "floor": 0}));

    // What to write instead is in the log, and with applications where they are looked at.
    let said = log(folder.path());
    for warning in [
        "the source 'readings' was created by an earlier version: line 1, column 32: VARCHAR(9) is read as TEXT, \
         as in earlier versions; write TEXT",
        "the sink 'out' was created by an earlier version: line 1, column 25: CHAR(9) is read as TEXT",
        "the view 'noted' was created by an earlier version",
        "the query 'whole' was created by an earlier version: line 1, column 55: TIMESTAMP(0) is read as TIMESTAMP",
        "INT(3) is read as BIGINT",
        "the source 'bids' is not understood by this version; drop it, and create it anew: ",
    ] {
        assert!(said.contains(warning), "{warning}\n{said}");
    }
    assert!(!said.contains("swordfish"), "{said}");
    let described = server.sql_ok("DESCRIBE APPLICATION floors").to_string();
    assert!(described.contains("VARCHAR(3) is read as TEXT"), "{described}");
    let refused = server.sql("CREATE SOURCE more (device VARCHAR(9)) FROM 'file:readings.csv' FORMAT CSV").to_string();
    assert!(refused.contains("with a length or precision (9) is not supported"), "{refused}");

    // What cannot be read is shown, keeps its name, and goes.
    assert!(property(&server, "SOURCE bids", "problem").unwrap().contains("unknown type 'MONEY'"));
    assert!(!server.sql_ok("DESCRIBE SOURCE bids").to_string().contains("swordfish"));
    assert_eq!(property(&server, "SOURCE bids", "needed by").unwrap(), "cheap, of_bids, broken");
    assert!(server.sql_ok("SHOW SINKS").to_string().contains("lost"));
    let taken = server.sql("CREATE SOURCE bids (price BIGINT) FROM 'file:bids.csv' FORMAT CSV").to_string();
    assert!(
        taken.contains("'bids' is declared already, and not in use") && taken.contains("DROP SOURCE bids"),
        "{taken}"
    );
    assert!(server.sql("DROP SOURCE bids").to_string().contains("'cheap' needs it"));
    server.sql_ok("DROP QUERY broken; DROP QUERY of_bids; DROP VIEW cheap; DROP SOURCE bids; DROP SINK lost");
    server.sql_ok("CREATE SOURCE bids (price BIGINT) FROM 'file:bids.csv' FORMAT CSV");
    // So does what is read otherwise than it is written.
    assert!(server.sql("DROP SOURCE readings").to_string().contains("'noted' needs it"));
    server.sql_ok("DROP QUERY whole; DROP VIEW noted; DROP SOURCE readings; DROP SINK out; DROP SOURCE bids");
    server.sql_ok("DROP APPLICATION floors CASCADE; DROP TABLE rooms");
    drop(server);

    let server = Server::start(folder.path());
    for things in ["SOURCES", "SINKS", "VIEWS", "QUERIES", "APPLICATIONS", "TABLES"] {
        assert_eq!(server.sql_ok(&format!("SHOW {things}"))["results"][0]["rows"], json!([]), "{things}");
    }
}

#[test]
fn a_source_whose_columns_cannot_be_read_at_the_start_is_tried_again() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("readings.csv"), "a,1\nb,2\n").unwrap();
    let script = "CREATE SOURCE readings (device TEXT, value BIGINT) FROM 'file:readings.csv' FORMAT CSV; \
                  CREATE SINK whole TO 'file:readings.parquet' FORMAT PARQUET; \
                  INSERT INTO whole SELECT * FROM readings";
    let done = rivulet().current_dir(folder.path()).args(["run", "-q", "-c", script]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let server = Server::start(folder.path());
    server.sql_ok("CREATE SOURCE readings FROM 'file:readings.parquet'");
    server.sql_ok("CREATE VIEW large AS SELECT device, value FROM readings WHERE value > 1");
    server.sql_ok("CREATE SINK out TO 'file:out.json' FORMAT JSON");
    drop(server);
    // The storage is not there when the server starts.
    let (file, away) = (folder.path().join("readings.parquet"), folder.path().join("away"));
    std::fs::rename(&file, &away).unwrap();
    let catalog = Catalog::open(&folder.path().join("data")).unwrap();
    catalog.insert_statement(&Tenant::default(), "CREATE QUERY q AS SELECT device FROM large INTO out").unwrap();
    drop(catalog);
    let server = Server::start(folder.path());
    assert!(property(&server, "SOURCE readings", "problem").is_some());
    assert!(property(&server, "VIEW large", "problem").unwrap().contains("readings"));
    assert_eq!(property(&server, "QUERY q", "state").as_deref(), Some("not running"));
    assert!(log(folder.path()).contains("the source 'readings' is not in use, and is tried again until it is"));
    let needed = server.sql("DROP SOURCE readings").to_string();
    assert!(needed.contains("'large' needs it"), "{needed}");
    let is_there = server.sql_ok("CREATE SOURCE IF NOT EXISTS readings FROM 'file:readings.parquet'").to_string();
    assert!(is_there.contains("nothing was done; it is not in use: "), "{is_there}");

    std::fs::rename(&away, &file).unwrap();
    let out = folder.path().join("out.json");
    // The longer it was away the longer is the pause before it is tried again, up to a minute. On a busy machine that
    // may be long.
    wait_for(Duration::from_secs(120), "the query to run", || !json_lines(&out).is_empty());
    assert_eq!(json_lines(&out), [json!({"device": "b"})]);
    assert_eq!(property(&server, "SOURCE readings", "problem"), None);
    assert_eq!(property(&server, "SOURCE readings", "column device").as_deref(), Some("TEXT"));
}
