//! A backup of a server under load, and the content of a server that is restored from it.

use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::kill::{DAY_MS, Device, TOTALS, WINDOW_BEGIN_MS};
use super::server::{Publisher, Server, free_port, rivulet, wait};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_backup_under_load_has_every_event_that_was_acknowledged_before_it_once() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mqtt = free_port();
    let server = Server::start_at(folder.path(), mqtt, 1);
    server.sql_ok(&format!("{TOTALS}; CREATE QUERY d FROM APPLICATION totals WITH (device => 'd')"));
    let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let device = {
        let (is_over, acknowledged) = (is_over.clone(), acknowledged.clone());
        thread::spawn(move || {
            let mut device = Device::new("d".into(), mqtt);
            device.run(&is_over, &acknowledged);
            device.sent
        })
    };
    let program = |arguments: &[&str]| rivulet().current_dir(elsewhere.path()).args(arguments).output().unwrap();
    let mut least = 0;
    for round in 0..2 {
        wait("more acknowledgements", || acknowledged.load(Ordering::Relaxed) > least + 500);
        least = acknowledged.load(Ordering::Relaxed);
        let output = program(&["--json", "backup", "all", "--server", &server.url()]);
        assert!(output.status.success(), "round {round}: {}", said(&output));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(answer["files"].as_u64() > Some(2), "{answer}");
    }
    wait("its copies to be gone", || !folder.path().join("data/backup.partial").exists());
    is_over.store(true, Ordering::Relaxed);
    let sent = device.join().unwrap();
    drop(server);

    let output = program(&["restore", "all", "--data-dir", "data"]);
    assert!(output.status.success(), "{}", said(&output));
    let output = program(&["doctor", "--data-dir", "data"]);
    assert!(output.status.success() && said(&output).contains("a start replays"), "{}", said(&output));
    let mqtt = free_port();
    let server = Server::start_at(elsewhere.path(), mqtt, 1);
    wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
    let mut listener = Publisher::connect(mqtt);
    listener.subscribe("out/+");
    Publisher::connect(mqtt).publish("in/d", &json!({"ts": WINDOW_BEGIN_MS + DAY_MS, "n": 0}).to_string());
    let (_, payload) = listener.next();
    let result: Value = serde_json::from_slice(&payload).unwrap();
    let events = result["events"].as_u64().unwrap();
    assert!((least..=sent).contains(&events), "{least} were acknowledged before, {sent} sent: {result}");
    assert_eq!(
        result["total"].as_u64(),
        Some(events * (events + 1) / 2),
        "each once, and none is missing between: {result}"
    );
}

/// Written in November 2026 by the version before backups were tars, of a server that had been killed: a query with a
/// durable input, whose checkpoint has the event 20 and whose log has 23.
#[test]
fn a_backup_of_the_first_form_is_restored() {
    let folder = TempDir::new().unwrap();
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    let saved = std::path::Path::new(&package).join("tests/data/backup-1/rivulet.backup");
    let output =
        rivulet().current_dir(folder.path()).arg("restore").arg(saved).args(["--data-dir", "data"]).output().unwrap();
    assert!(output.status.success() && said(&output).contains("5 files"), "{}", said(&output));
    let mqtt = free_port();
    let server = Server::start_at(folder.path(), mqtt, 0);
    wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
    let mut listener = Publisher::connect(mqtt);
    listener.subscribe("out/+");
    Publisher::connect(mqtt).publish("in/a", &json!({"n": 30}).to_string());
    // What the replay gave may come behind the subscription.
    let results = std::iter::repeat_with(|| serde_json::from_slice::<Value>(&listener.next().1).unwrap());
    let last = results.take(2).find(|result| *result != json!({"step": 3}));
    assert_eq!(last, Some(json!({"step": 7})));
}

#[test]
fn what_is_no_server_or_breaks_off_leaves_no_file() {
    let folder = TempDir::new().unwrap();
    let nobody = format!("http://{}", free_port());
    let output = rivulet().current_dir(folder.path()).args(["backup", "all", "--server", &nobody]).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("hint:"), "{}", said(&output));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
