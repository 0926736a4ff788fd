//! A file of the log was deleted: the next start and the doctor say what is missing.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use crate::kill::{TOTALS, WINDOW_BEGIN_MS};
use crate::server::{Publisher, Server, free_port, rivulet, said, wait};

const EVENTS: u64 = 16_000;

/// A server with a log of small files, which makes checkpoints when it is told to.
fn start(folder: &Path) -> Server {
    let mqtt = free_port();
    let settings = [
        ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
        ("RIVULET_CHECKPOINT_INTERVAL_S", "0".into()),
        ("RIVULET_DURABILITY_LOG_BYTES_MAX", "4MiB".into()),
    ];
    let server = Server::spawn(folder, mqtt, &settings);
    server.wait_until_ready();
    server
}

fn publish(server: &Server) {
    let durable = || server.status()["log"]["durable"].as_u64().unwrap_or(0);
    let until = durable() + EVENTS;
    let mut publisher = Publisher::connect(server.mqtt);
    for n in 0..EVENTS {
        publisher.publish("in/kim", &json!({"ts": WINDOW_BEGIN_MS + n, "n": n}).to_string());
    }
    wait("the events to be in the log", || durable() >= until);
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("data/log")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "log")).collect();
    files.sort();
    files
}

fn doctor(folder: &Path) -> String {
    said(&rivulet().arg("doctor").arg("--data-dir").arg(folder.join("data")).output().unwrap())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[test]
fn a_file_of_the_log_that_was_deleted_is_missed() {
    for with_checkpoint in [false, true] {
        let folder = TempDir::new().unwrap();
        let mut server = start(folder.path());
        server.sql_ok(TOTALS);
        server.sql_ok("CREATE QUERY kim FROM APPLICATION totals WITH (device => 'kim')");
        if with_checkpoint {
            publish(&server);
            server.sql_ok("CHECKPOINT");
        }
        // The larger the frames, the fewer bytes the same events take.
        for _ in 0..10 {
            publish(&server);
            if segments(folder.path()).len() >= 4 {
                break;
            }
        }
        server.kill_9();
        let files = segments(folder.path());
        assert!(files.len() >= 3, "{files:?}");
        let said = doctor(folder.path());
        assert!(!said.contains("were deleted") && !said.contains("missing"), "{said}");
        for place in [0, files.len() - 2, files.len() - 1] {
            let other = TempDir::new().unwrap();
            copy(&folder.path().join("data"), &other.path().join("data"));
            fs::remove_file(other.path().join("data/log").join(files[place].file_name().unwrap())).unwrap();
            let said = doctor(other.path());
            let is_told = said.contains("files of the log were deleted") || said.contains("the newest file is missing");
            // The checkpoint has what was in the first file.
            let is_needed = !with_checkpoint || place > 0;
            assert_eq!(is_told, is_needed, "file {place}: {said}");
            let server = start(other.path());
            wait("the end of the replay", || server.status()["log"]["is_replaying"] == json!(false));
            let log = server.status()["log"].clone();
            let (_, health) = server.health("ready").unwrap();
            assert_eq!((log["loss"].is_string(), health.contains("log")), (is_needed, is_needed), "{place}: {log}");
            // How many were in the newest file nothing says.
            let lost = log["lost_events"].as_u64().unwrap();
            assert_eq!(lost > 500, is_needed && place < files.len() - 1, "file {place}: {log}");
        }
    }
}
