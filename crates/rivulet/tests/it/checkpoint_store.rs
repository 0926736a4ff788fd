//! Checkpoints in an object store: another machine continues from them, and a failing store costs only time.

use std::path::Path;
use std::sync::Arc;

use rivulet::config::{Config, FlagValue, Sources};
use rivulet::engine::Engine;
use rivulet::service::{ParameterValue, QueryRequest};
use rivulet_storage::Place;
use rivulet_testing_s3::{ACCESS_KEY_ID, BUCKET, Fault, REGION, S3Server, SECRET_ACCESS_KEY};
use serde_json::Value;
use tempfile::TempDir;

use super::checkpoints::{STEPS, Steps, checkpoints, on_demand, run};
use super::support::AsOperator;

/// The environment of programs that use the bucket of this store.
fn environment(server: &S3Server) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_REGION", REGION.into()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID.into()),
        ("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY.into()),
    ]
}

pub(super) fn configuration(folder: &Path, server: &S3Server) -> Config {
    let flag = |key: &str, value: &str| FlagValue { key: key.into(), value: value.into(), flag: "test".into() };
    let sources = Sources {
        file: None,
        environment: environment(server).into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        flags: vec![
            flag("checkpoint.folder", &format!("s3://{BUCKET}/of a plant")),
            flag("checkpoint.s3.allow_http", "true"),
            flag("checkpoint.s3.timeout_s", "1"),
        ],
    };
    let checkpoint = rivulet::config::load(&sources).expect("a configuration").config.checkpoint.expect("a place");
    assert!(matches!(checkpoint.place, Place::S3(_)));
    let mut config = on_demand(folder);
    config.checkpoint.as_mut().expect("checkpoints are on by default").place = checkpoint.place;
    config
}

fn open(folder: &Path, server: &S3Server) -> Arc<Engine> {
    Engine::open(configuration(folder, server)).expect("an engine")
}

const COPY: &str = "CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:numbers' FORMAT JSON; \
                    CREATE SINK copies TO 'mqtt:copies' FORMAT JSON; \
                    CREATE QUERY s AS SELECT n FROM numbers INTO copies";

#[test]
fn a_machine_without_a_data_folder_goes_on_from_the_bucket() {
    let server = S3Server::start();
    let (lost, new) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    {
        let engine = open(lost.path(), &server);
        run(
            &engine,
            &format!(
                "{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a'); CREATE QUERY b FROM APPLICATION steps WITH (id => 'b')"
            ),
        );
        let mut steps = Steps::of(&engine);
        steps.step("a", 1);
        run(&engine, "CHECKPOINT; PAUSE QUERY b");
        steps.step("a", 5);
        assert!(engine.checkpoint().expect("a checkpoint").written_bytes > 0);
        // One more may put together what several have written.
        let written = [(); 2].map(|()| engine.checkpoint().expect("a checkpoint").written_bytes);
        assert_eq!(written[1], 0, "neither state nor catalog has changed");
        steps.step("a", 100);
        // What is not in the bucket is lost with the machine: there is no last checkpoint.
        server.set_fault(Some(Fault::Denied));
        engine.shutdown();
        server.set_fault(None);
    }
    assert!(!lost.path().join("data/checkpoints").exists());
    let engine = open(new.path(), &server);
    let recovered = checkpoints(&engine).recovered.expect("something was found");
    assert_eq!((recovered.lost, recovered.problems), (0, Vec::new()));
    assert_eq!(Steps::of(&engine).step("a", 8), 3, "as it was at the last checkpoint");
    run(&engine, "RESUME QUERY b; CHECKPOINT");
    assert!(checkpoints(&engine).place.starts_with("s3://"), "{}", checkpoints(&engine).place);
}

#[test]
fn what_was_created_behind_the_saved_catalog_does_not_lend_its_number_to_others() {
    let server = S3Server::start();
    let (lost, new) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let create = |engine: &Engine, name: &str| {
        let parameters = [("id".into(), ParameterValue::Text("a".into()))];
        let request = QueryRequest { name: Some(name), application: "steps", parameters: &parameters, label: None };
        engine.submit(&[request]).pop().expect("an answer").expect("a query")
    };
    let number = {
        let engine = open(lost.path(), &server);
        run(&engine, STEPS);
        run(&engine, "CHECKPOINT");
        create(&engine, "one");
        let number = create(&engine, "two");
        let mut steps = Steps::of(&engine);
        steps.step("a", 1);
        steps.next();
        run(&engine, COPY);
        // The state gets through, the catalog does not: as if the machine were lost between the two.
        server.set_fault(Some(Fault::NoPutOf("/catalog/")));
        let error = engine.checkpoint().expect_err("the catalog is not saved");
        assert!(error.message.contains("the catalog is not saved"), "{error:?}");
        server.set_fault(Some(Fault::Denied));
        engine.shutdown();
        server.set_fault(None);
        number
    };
    {
        let engine = open(new.path(), &server);
        assert!(engine.query("two").is_err(), "it is lost with the machine");
        assert!(create(&engine, "three") > number, "its number is not given out again");
        run(&engine, COPY);
        server.set_fault(Some(Fault::Denied));
        engine.shutdown();
        server.set_fault(None);
    }
    // Before anything of it was saved.
    let engine = open(new.path(), &server);
    assert_eq!(Steps::of(&engine).step("a", 9), Value::Null, "nobody else's state is its own");
    assert!(engine.problems().is_empty(), "{:?}", engine.problems());
}

#[test]
fn state_in_a_bucket_without_a_catalog_is_not_dropped() {
    let server = S3Server::start();
    let (first, second) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    {
        let engine = open(first.path(), &server);
        run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
        Steps::of(&engine).step("a", 1);
        server.set_fault(Some(Fault::NoPutOf("/catalog/")));
        engine.shutdown();
        server.set_fault(None);
    }
    for _ in 0..2 {
        let error = Engine::open(configuration(second.path(), &server)).err().expect("it would drop what is there");
        assert!(error.message.contains("has no catalog") && error.message.contains("s3://"), "{error:?}");
    }
    let engine = open(first.path(), &server);
    assert_eq!(Steps::of(&engine).step("a", 3), 2);
}

#[test]
fn a_bucket_that_fails_is_said_and_tried_again_while_the_server_goes_on() {
    let mut server = S3Server::start();
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path(), &server);
    run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
    let mut steps = Steps::of(&engine);
    steps.step("a", 0);
    run(&engine, "CHECKPOINT");
    let mut last = 0;
    for (fault, words) in [
        (Fault::Denied, "AccessDenied"),
        (Fault::NoBucket, "NoSuchBucket"),
        (Fault::Full, "the disk is full"),
        (Fault::NoPutOf(".manifest"), "AccessDenied"),
        (Fault::Silent, "does not answer"),
    ] {
        server.set_fault(Some(fault.clone()));
        last += 1;
        assert_eq!(steps.step("a", last), 1, "events are processed");
        let error = engine.checkpoint().expect_err("the store fails");
        assert!(error.message.contains(words) && error.hint.is_some(), "{fault:?}: {error:?}");
        let problems = engine.problems();
        assert!(problems.iter().any(|problem| problem.contains(words) && problem.contains("hint: ")), "{problems:?}");
        server.set_fault(None);
        assert_eq!(engine.checkpoint().expect("the store works again").queries, 1, "behind {fault:?}");
        assert!(engine.problems().is_empty());
    }
    // A big query that could not be saved is not taken for one that is.
    server.set_fault(Some(Fault::Denied));
    let refused = engine.execute(COPY).pop().expect("an answer").expect_err("its checkpoints have no place");
    assert!(refused.message.contains("AccessDenied"), "{refused}");
    server.set_fault(None);
    run(&engine, COPY.split(';').next_back().expect("the query"));
    server.stop();
    steps.step("a", last + 1);
    assert!(engine.checkpoint().expect_err("nobody is there").message.contains("cannot be reached"));
    engine.shutdown();
    drop(engine);
    let config = configuration(folder.path(), &server);
    let error = Engine::open(config.clone()).err().expect("nobody is there");
    assert!(error.message.contains("cannot be reached") && error.hint.is_some(), "{error:?}");
    server.restart();
    let engine = Engine::open(config).expect("it is there again");
    assert_eq!(Steps::of(&engine).step("a", last + 3), 3, "of the last checkpoint that was made");
}

#[test]
fn the_doctor_looks_into_the_bucket_and_a_backup_takes_it_along() {
    let server = S3Server::start();
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path(), &server);
        run(&engine, &format!("{STEPS}; CREATE QUERY a FROM APPLICATION steps WITH (id => 'a')"));
        Steps::of(&engine).step("a", 1);
        engine.shutdown();
    }
    let settings = format!(
        "data_dir = \"data\"\ncheckpoint.folder = \"s3://{BUCKET}/of a plant\"\ncheckpoint.s3.allow_http = true\n\
         checkpoint.s3.timeout_s = 1\n"
    );
    std::fs::write(folder.path().join("rivulet.toml"), settings).expect("written");
    let program = |arguments: &[&str]| {
        let mut command = super::server::rivulet();
        command.current_dir(folder.path()).args(arguments).envs(environment(&server));
        let output = command.output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, found, _) = program(&["doctor"]);
    assert!(code == Some(0) && found.contains("s3://") && found.contains("1 query with state"), "{found}");
    let (code, _, said) = program(&["backup", "all"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, shown, _) = program(&["config"]);
    assert!(code == Some(0) && shown.contains("AWS_ACCESS_KEY_ID") && !shown.contains(SECRET_ACCESS_KEY), "{shown}");
    server.set_fault(Some(Fault::Denied));
    let (code, found, _) = program(&["doctor"]);
    assert!(code == Some(1) && found.contains("AccessDenied") && found.contains("s3:ListBucket"), "{found}");
    server.set_fault(None);
    // Without the data folder the doctor knows where a catalog is.
    std::fs::rename(folder.path().join("data"), folder.path().join("aside")).expect("moved");
    std::fs::create_dir(folder.path().join("data")).expect("a folder");
    let (_, found, _) = program(&["doctor"]);
    assert!(found.contains("takes the one in s3://"), "{found}");
    // And a backup is enough to go on without the bucket, or with another.
    let (code, _, said) = program(&["restore", "all", "--data-dir", "copy/data"]);
    assert!(code == Some(1) && said.contains("is not empty") && said.contains("--set checkpoint.folder="), "{said}");
    let other = format!("checkpoint.folder=s3://{BUCKET}/of another");
    let (code, _, said) = program(&["restore", "all", "--data-dir", "other/data", "--set", &other]);
    assert!(
        code == Some(0) && said.contains("of another") && !folder.path().join("other/data/checkpoints").exists(),
        "{said}"
    );
    let (code, found, _) = program(&["doctor", "--data-dir", "other/data", "--set", &other]);
    assert!(code == Some(0) && found.contains("of another") && found.contains("1 query with state"), "{found}");
    let inside = ["--data-dir", "copy/data", "--set", "checkpoint.folder=copy/data/checkpoints"];
    let (code, _, said) = program(&[&["restore", "all"], &inside[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    let (code, found, _) = program(&[&["doctor"], &inside[..]].concat());
    assert!(code == Some(0) && found.contains("copy/data/checkpoints is whole: 1 query"), "{found}");
    let engine = Engine::open(on_demand(&folder.path().join("copy"))).expect("an engine");
    assert_eq!(Steps::of(&engine).step("a", 5), 4);
}
