//! Catalog, log and backup in every form that a version has written: each is read, and the present forms are among
//! them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use rivulet::catalog::Catalog;
use rivulet::data_folder::archive;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::{Publisher, Server, free_port, rivulet, wait};

/// Everything that a catalog keeps. The names of queries go by their numbers.
const SCRIPT: &str = "
    CREATE TABLE rooms (id TEXT, floor BIGINT) FROM 'data:,hall,1%0Aattic,2' FORMAT CSV;
    CREATE APPLICATION totals (low BIGINT, name TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/all' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON
    AS SELECT sum(n) AS total FROM readings WHERE n > $low GROUP BY count_window(8);
    CREATE OR REPLACE APPLICATION totals (low BIGINT, name TEXT DEFAULT 'none')
    INPUT readings (n BIGINT) FROM 'mqtt:in/all' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON
    AS SELECT sum(n) AS total FROM readings WHERE n > $low GROUP BY count_window(8);
    CREATE QUERY a FROM APPLICATION totals WITH (low => 0, name => 'a') LABEL 'home 42';
    CREATE QUERY b FROM APPLICATION totals WITH (low => 0, name => 'b');
    PAUSE QUERY b;
    CREATE SOURCE numbers FROM 'sensors:' WITH (rate => 10);
    CREATE VIEW copies AS SELECT * FROM numbers;
    CREATE SINK nowhere TO 'blackhole:';
    CREATE QUERY big AS SELECT * FROM copies INTO nowhere;
    PAUSE QUERY big;
    CREATE TENANT acme;
    ALTER TENANT acme SET (queries => 7);
    CREATE USER acme.ann;
    GRANT read ON QUERY 'a%' TO acme.ann;
    CREATE TOKEN FOR acme.ann EXPIRES IN INTERVAL '36500 days'";

fn saved() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    Path::new(&package).join("tests/data/saved-forms")
}

fn done(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// Sends a number, and waits until it is on disk.
fn send(server: &Server, n: i64) {
    let durable = || server.status()["log"]["durable"].as_u64().unwrap_or(0);
    let before = durable();
    Publisher::connect(server.mqtt).publish("in/all", &json!({ "n": n }).to_string());
    wait("an event in the log", || durable() > before);
}

/// Writes the backup of a server that was killed. No checkpoint has its events.
fn write(to: &Path) {
    let folder = TempDir::new().unwrap();
    let mut server = Server::start_at(folder.path(), free_port(), 0);
    server.sql_ok(SCRIPT);
    [1, 2, 3].iter().for_each(|&n| send(&server, n));
    server.sql_ok("ALTER QUERY a SET (low => 2)");
    [4, 1, 5].iter().for_each(|&n| send(&server, n));
    server.kill_9();
    fs::create_dir_all(saved()).unwrap();
    done(&rivulet().arg("backup").arg(to).arg("--data-dir").arg(folder.path().join("data")).output().unwrap());
}

/// The fixture is written by `RIVULET_WRITE_SAVED=1`, once for each new number; older ones stay as they are.
#[test]
fn the_present_forms_of_catalog_log_and_backup_have_a_fixture() {
    let (log, backup) = (rivulet_storage::log::FORMAT, archive::FORMAT);
    let name = format!("catalog-{}-log-{log}-backup-{backup}.backup", Catalog::FORMAT);
    let path = saved().join(&name);
    if std::env::var_os("RIVULET_WRITE_SAVED").is_some() && !path.exists() {
        write(&path);
    }
    assert!(
        path.exists(),
        "tests/data/saved-forms has no {name}: a form of what is saved has a new number\n\
         hint: run this test with RIVULET_WRITE_SAVED=1, and commit the file"
    );
}

#[test]
fn what_every_version_saved_is_read() {
    let paths: Vec<PathBuf> = fs::read_dir(saved()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!paths.is_empty());
    for path in paths {
        let folder = TempDir::new().unwrap();
        done(&rivulet().arg("restore").arg(&path).arg("--data-dir").arg(folder.path().join("data")).output().unwrap());
        let mqtt = free_port();
        let server = Server::start_at(folder.path(), mqtt, 0);
        wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
        let get = |path: &str| -> Value {
            let mut answer = ureq::get(format!("{}/api/v1/{path}", server.url())).call().unwrap();
            serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
        };
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("catalog-10") {
            assert_eq!(get("tenants")["limits"][1]["limits"]["queries"]["most"], 7);
        }
        if name.starts_with("catalog-9") || name.starts_with("catalog-10") {
            let users = get("users");
            assert_eq!((&users["users"][0]["tenant"], &users["users"][0]["tokens"]), (&json!("acme"), &json!(1)));
            assert_eq!(get("grants")["grants"][0]["pattern"], "a%");
        }
        let a = get("queries/a");
        assert_eq!((&a["parameters"], &a["label"]), (&json!({ "low": 2, "name": "a" }), &json!("home 42")), "{a}");
        assert_eq!(get("queries/b")["state"], "paused");
        assert_eq!(get("queries/big")["state"], "paused");
        assert_eq!(get("tables/rooms")["rows"], 2);
        assert!(get("applications/totals")["parameters"][1]["default"].to_string().contains("none"));
        let mut listener = Publisher::connect(mqtt);
        listener.subscribe("out/+");
        // With 1, 2, 3 before the change, and 4, 5 behind it.
        [10, 20, 30].iter().for_each(|&n| send(&server, n));
        let (topic, payload) = listener.next();
        assert_eq!((topic.as_str(), &*payload), ("out/a", &b"{\"total\":75}"[..]), "{}", path.display());
    }
}
