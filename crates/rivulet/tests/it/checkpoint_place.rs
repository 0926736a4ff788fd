//! A server remembers where its checkpoints were: it does not begin with empty state because it is told another place,
//! unless that is requested.

use std::path::Path;

use rivulet::config::Config;
use rivulet::engine::Engine;
use rivulet::service::ServiceError;
use rivulet_sql::Durability;
use rivulet_storage::Place;
use rivulet_testing_s3::S3Server;
use serde_json::Value;
use tempfile::TempDir;

use super::checkpoint_store::configuration as in_a_bucket;
use super::checkpoints::{STEPS, Steps, checkpoints, on_demand, run};
use super::server::{Publisher, rivulet};
use super::support::{AsOperator, wait_until};

/// A configuration with checkpoints in another folder.
fn in_folder(folder: &Path, name: &str) -> Config {
    let mut config = on_demand(folder);
    config.checkpoint.as_mut().expect("checkpoints are on by default").place = Place::Folder(folder.join(name));
    config
}

/// The next step of the query; its state is what it saw before.
fn step(config: Config, n: i64) -> Value {
    let engine = Engine::open(config).expect("an engine");
    let step = Steps::of(&engine).step("a", n);
    engine.shutdown();
    step
}

fn refusal(config: Config) -> ServiceError {
    Engine::open(config).err().expect("it does not start")
}

fn begin(config: Config) {
    let engine = Engine::open(config).expect("an engine");
    run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
    Steps::of(&engine).step("a", 1);
    engine.shutdown();
}

#[test]
fn another_folder_is_refused_with_both_names_until_it_is_right_or_accepted() {
    let folder = TempDir::new().expect("a folder");
    begin(on_demand(folder.path()));
    let refused = refusal(in_folder(folder.path(), "other"));
    let hint = refused.hint.expect("a hint");
    assert!(refused.message.contains("/other") && refused.message.contains("/data/checkpoints"), "{}", refused.message);
    assert!(hint.contains("move all that is in") && hint.contains("--accept-empty-checkpoints"), "{hint}");
    assert_eq!(step(on_demand(folder.path()), 3), 2, "set back");
    std::fs::remove_dir_all(folder.path().join("other")).expect("it was made, and is empty");
    std::fs::rename(folder.path().join("data/checkpoints"), folder.path().join("other")).expect("moved");
    assert_eq!(step(in_folder(folder.path(), "other"), 6), 3, "moved");
    let refused = refusal(on_demand(folder.path()));
    assert!(refused.message.contains("were last in") && refused.message.contains("/other"), "{}", refused.message);
    let mut accepting = on_demand(folder.path());
    accepting.accepts_empty_checkpoints = true;
    assert_eq!(step(accepting, 10), Value::Null, "with empty state, as it was wished");
    assert_eq!(step(on_demand(folder.path()), 14), 4);
    let refused = refusal(in_folder(folder.path(), "other"));
    assert!(refused.message.contains("an earlier copy"), "{}", refused.message);
}

#[test]
fn a_bucket_and_a_folder_are_told_apart_in_both_directions() {
    let server = S3Server::start();
    let (folder, new) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    begin(on_demand(folder.path()));
    let refused = refusal(in_a_bucket(folder.path(), &server));
    assert!(refused.message.contains("s3://") && refused.message.contains("/data/checkpoints"), "{}", refused.message);
    let mut accepting = in_a_bucket(folder.path(), &server);
    accepting.accepts_empty_checkpoints = true;
    assert_eq!(step(accepting, 2), Value::Null);
    let refused = refusal(on_demand(folder.path()));
    assert!(refused.message.contains("an earlier copy") && refused.message.contains("s3://"), "{}", refused.message);
    // A machine with nothing but the bucket, and one that has been elsewhere with nothing to lose.
    drop(Engine::open(on_demand(new.path())).expect("an empty engine"));
    assert_eq!(step(in_a_bucket(new.path(), &server), 7), 5);
    // The bucket is that server's now, whatever a third one has.
    let third = TempDir::new().expect("a folder");
    begin(on_demand(third.path()));
    let refused = refusal(in_a_bucket(third.path(), &server));
    assert!(refused.message.contains("do not belong to this data folder"), "{}", refused.message);
}

#[test]
fn a_folder_that_is_not_mounted_is_not_taken_for_empty_state() {
    let folder = TempDir::new().expect("a folder");
    begin(in_folder(folder.path(), "mounted"));
    std::fs::rename(folder.path().join("mounted"), folder.path().join("elsewhere")).expect("taken away");
    // The doctor says so before a server is started, and makes nothing.
    let set = format!("RIVULET_CHECKPOINT_FOLDER={}", folder.path().join("mounted").display());
    let (key, value) = set.split_once('=').expect("a variable");
    let mut doctor = rivulet();
    let output = doctor
        .arg("doctor")
        .env(key, value)
        .env("RIVULET_DATA_DIR", folder.path().join("data"))
        .output()
        .expect("it runs");
    let found = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.code() == Some(1) && found.contains("not there any more"), "{found}");
    assert!(!folder.path().join("mounted").exists());
    let refused = refusal(in_folder(folder.path(), "mounted"));
    assert!(refused.message.contains("not there any more") && refused.hint.expect("a hint").contains("mounted"));
    std::fs::remove_dir_all(folder.path().join("mounted")).expect("it was made, and is empty");
    std::fs::rename(folder.path().join("elsewhere"), folder.path().join("mounted")).expect("mounted");
    assert_eq!(step(in_folder(folder.path(), "mounted"), 5), 4);
    let engine = Engine::open(in_folder(folder.path(), "mounted")).expect("an engine");
    assert!(checkpoints(&engine).recovered.is_some());
}

#[test]
fn a_log_that_was_cut_off_behind_other_checkpoints_is_not_taken_for_a_loss() {
    let folder = TempDir::new().expect("a folder");
    let logged = |mut config: Config| {
        config.durability.default = Durability::Log;
        config.durability.log_bytes_max = 1 << 20;
        config
    };
    begin(logged(on_demand(folder.path())));
    let mut config = logged(in_folder(folder.path(), "other"));
    config.accepts_empty_checkpoints = true;
    let engine = Engine::open(config).expect("an engine");
    let mut device = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    let padding = "x".repeat(20_000);
    let before = engine.status().total.events;
    for round in 1..=4 {
        (0..5).for_each(|n| device.publish("in/a", &format!("{{\"n\": {n}, \"padding\": \"{padding}\"}}")));
        wait_until("the events", || engine.status().total.events >= before + 5 * round);
        engine.checkpoint().expect("a checkpoint");
    }
    engine.shutdown();
    drop(engine);
    // As the server does some seconds later: no checkpoint that is kept needs it.
    let log = std::fs::read_dir(folder.path().join("data/log")).expect("a log");
    let mut segments: Vec<_> = log.map(|entry| entry.expect("a file").path()).collect();
    segments.sort();
    assert!(segments.len() > 1, "{segments:?}");
    std::fs::remove_file(&segments[0]).expect("removed");
    let doctor = |place: Option<&str>| {
        let mut doctor = rivulet();
        doctor.current_dir(folder.path()).arg("doctor").env("RIVULET_DATA_DIR", "data");
        place.map(|place| doctor.env("RIVULET_CHECKPOINT_FOLDER", place));
        let output = doctor.output().expect("it runs");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, found) = doctor(Some("other"));
    assert!(code == Some(0) && !found.contains("positions 1 to"), "it was cut off, and nothing is wrong: {found}");
    let (code, found) = doctor(None);
    assert!(code == Some(1) && found.contains("an earlier copy") && !found.contains("were deleted"), "{found}");
}
