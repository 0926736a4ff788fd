//! Secrets: made, named in options, replaced, dropped, kept by restarts and backups, and never shown.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rivulet::engine::Engine;
use rivulet::service::{Caller, ErrorKind, ServiceError, Session};
use tempfile::TempDir;

use super::cli::rivulet_with_input;
use super::engine::{configuration, open};
use super::outlets::Receiver;
use super::server::{Publisher, wait};
use super::support::{AsOperator, TestServer, exchange, request};

/// What no text may have.
const VALUE: &str = "Bearer rose-garden-7";

const APPLICATION: &str = "CREATE APPLICATION hooks (room TEXT) INPUT r (n BIGINT) FROM 'mqtt:in/{room}' FORMAT JSON \
                           OUTPUT 'http://127.0.0.1:PORT/hook' FORMAT JSON \
                           WITH (headers.authorization => SECRET hook_token) AS SELECT n FROM r";

fn run(session: &Session<'_>, statement: &str) -> Result<String, ServiceError> {
    let answer = session.execute(statement).pop().expect("an answer")?;
    Ok(format!("{answer:?}"))
}

fn session<'e>(engine: &'e Arc<Engine>, tenant: &str) -> Session<'e> {
    let service: &'e dyn rivulet::service::Service = &**engine;
    service.session(Caller::new(tenant, "ann"))
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files
}

fn authorizations(receiver: &Receiver) -> Vec<String> {
    receiver.requests.lock().iter().map(|request| request.authorization.clone()).collect()
}

fn has(path: &Path, text: &str) -> bool {
    fs::read(path).unwrap().windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn a_secret_is_sent_and_never_shown() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let engine = open(folder.path());
    let own = session(&engine, "default");
    let application = APPLICATION.replace("PORT", &receiver.port.to_string());
    let unknown = run(&own, &application).unwrap_err();
    assert!(unknown.message.contains("'hook_token', and there is none") && unknown.line.is_some(), "{unknown}");
    let mut said = vec![
        run(&own, &format!("CREATE SECRET hook_token AS '{VALUE}'")).unwrap(),
        run(&own, &format!("CREATE SECRET IF NOT EXISTS hook_token AS '{VALUE}'")).unwrap(),
        format!("{:?}", run(&own, &format!("CREATE SECRET hook_token AS '{VALUE}'")).unwrap_err()),
        format!("{:?}", run(&own, &format!("CREATE SECRET other AS {}", VALUE.replace(' ', "_"))).unwrap_err()),
        format!("{:?}", run(&own, &format!("CREATE SECRET other AS 'x' '{VALUE}'")).unwrap_err()),
        format!("{:?}", run(&own, &format!("CREATE SECRET AS '{VALUE}'")).unwrap_err()),
    ];
    said.push(run(&own, &application).unwrap());
    said.push(run(&own, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')").unwrap());
    let sink = "CREATE SINK alarms TO 'http://127.0.0.1:9/x' WITH (headers.authorization => SECRET hook_token)";
    said.push(run(&own, sink).unwrap());
    let mut device = Publisher::connect(engine.embedded_broker_address().expect("a broker"));
    device.publish("in/a", r#"{"n": 1}"#);
    wait("the request", || receiver.count() == 1);
    assert_eq!(authorizations(&receiver), [VALUE]);
    for statement in [
        "SHOW SECRETS",
        "SHOW APPLICATIONS",
        "SHOW SINKS",
        "DESCRIBE APPLICATION hooks",
        "DESCRIBE SINK alarms",
        "DESCRIBE QUERY q",
        "EXPLAIN APPLICATION hooks",
        "SHOW CHECKPOINTS",
    ] {
        said.push(run(&own, statement).unwrap());
    }
    said.push(format!("{:?}", own.applications()));
    said.push(format!("{:?} {:?}", engine.status(), engine.metrics()));
    assert!(said.iter().all(|text| !text.contains("rose-garden")), "{said:?}");
    assert!(said.iter().any(|text| text.contains("sink 'alarms', ") || text.contains("application 'hooks', ")));
    // A secret does not go where it would be shown.
    for (statement, words) in [
        ("CREATE SINK s TO 'http://127.0.0.1:9/x' WITH (timeout => SECRET hook_token)", "cannot be a secret"),
        (
            "CREATE SINK s TO 'kafka:127.0.0.1/x' FORMAT JSON WITH (properties.client.id => SECRET hook_token)",
            "cannot be",
        ),
        ("CREATE QUERY r FROM APPLICATION hooks WITH (room => SECRET hook_token)", "expected a value"),
        ("ALTER QUERY q SET (room => SECRET hook_token)", "expected a value"),
        ("CREATE SOURCE s (n BIGINT) FROM 'file:x' FORMAT CSV (delimiter => SECRET hook_token)", "expected a value"),
    ] {
        let error = run(&own, statement).unwrap_err();
        assert!(error.message.contains(words) && !format!("{error:?}").contains("rose"), "{statement}: {error}");
    }
    engine.checkpoint().unwrap();
    engine.shutdown();
    let with: Vec<_> = files_below(folder.path()).into_iter().filter(|path| has(path, "rose-garden")).collect();
    assert_eq!(with, [folder.path().join("data/secrets")], "in no catalog, copy of it, checkpoint and log");
}

#[test]
fn another_value_is_taken_with_the_next_request_and_what_is_in_use_stays() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    let engine = open(folder.path());
    let own = session(&engine, "default");
    run(&own, "CREATE SECRET hook_token AS 'one'").unwrap();
    run(&own, &APPLICATION.replace("PORT", &receiver.port.to_string())).unwrap();
    run(&own, "CREATE QUERY q FROM APPLICATION hooks WITH (room => 'a')").unwrap();
    let publish = |engine: &Engine| {
        Publisher::connect(engine.embedded_broker_address().expect("a broker")).publish("in/a", r#"{"n": 1}"#);
    };
    publish(&engine);
    wait("the first request", || receiver.count() == 1);
    let twice = run(&own, "CREATE SECRET hook_token AS 'two'").unwrap_err();
    assert_eq!(twice.kind, ErrorKind::AlreadyExists);
    assert!(run(&own, "CREATE OR REPLACE SECRET hook_token AS 'two'").unwrap().contains("opened next"));
    publish(&engine);
    wait("the second request", || receiver.count() == 2);
    assert_eq!(authorizations(&receiver), ["one", "two"], "a header is that of the present value");
    run(&own, "CREATE OR REPLACE SECRET hook_token AS 'three'").unwrap();
    let error = run(&own, "DROP SECRET hook_token").unwrap_err();
    assert!(error.kind == ErrorKind::Conflict && error.message.contains("application 'hooks'"), "{error}");
    engine.shutdown();
    drop(own);
    drop(engine);
    let engine = open(folder.path());
    publish(&engine);
    wait("the third request", || receiver.count() == 3);
    assert_eq!(authorizations(&receiver), ["one", "two", "three"]);
    let own = session(&engine, "default");
    run(&own, "DROP APPLICATION hooks CASCADE").unwrap();
    run(&own, "DROP SECRET hook_token").unwrap();
    assert!(run(&own, "DROP SECRET IF EXISTS hook_token").unwrap().contains("nothing was done"));
    assert_eq!(run(&own, "DROP SECRET hook_token").unwrap_err().kind, ErrorKind::NotFound);
    engine.shutdown();
}

#[test]
fn an_application_whose_secret_was_wrong_at_the_start_runs_when_it_has_a_good_value() {
    let folder = TempDir::new().unwrap();
    let engine = open(folder.path());
    let own = session(&engine, "default");
    run(&own, "CREATE SECRET cloud AS 'rose'").unwrap();
    let application = "CREATE APPLICATION up INPUT r (n BIGINT) FROM 'mqtt:in' FORMAT JSON
                       OUTPUT 'link:127.0.0.1:9/x' WITH (token => SECRET cloud) AS SELECT n FROM r";
    run(&own, application).unwrap();
    run(&own, "CREATE QUERY q FROM APPLICATION up").unwrap();
    run(&own, "CREATE OR REPLACE SECRET cloud AS 'two words'").unwrap();
    engine.shutdown();
    drop(own);
    drop(engine);
    let engine = open(folder.path());
    let own = session(&engine, "default");
    let one = || own.applications().unwrap().remove(0);
    assert!(one().not_running.is_some_and(|why| why.contains("has a blank")), "{:?}", one());
    run(&own, "CREATE OR REPLACE SECRET cloud AS 'lily'").unwrap();
    assert_eq!((one().not_running, one().queries_running), (None, 1));
    engine.shutdown();
}

#[test]
fn a_tenant_uses_and_sees_its_own() {
    let folder = TempDir::new().unwrap();
    let engine = Engine::open(configuration(folder.path())).unwrap();
    let (own, acme) = (session(&engine, "default"), session(&engine, "acme"));
    run(&own, "CREATE SECRET token AS 'of the operator'").unwrap();
    let sink = "CREATE SINK s TO 'https://hooks.example.org/x' WITH (headers.authorization => SECRET token)";
    let error = run(&acme, sink).unwrap_err();
    assert!(error.message.contains("and there is none"), "{error}");
    assert!(acme.secrets().unwrap().is_empty());
    assert_eq!(run(&acme, "DROP SECRET token").unwrap_err().kind, ErrorKind::NotFound);
    acme.put_secret("token", "of acme".into()).unwrap();
    run(&acme, sink).unwrap();
    assert_eq!(acme.secrets().unwrap()[0].used_by, ["sink 's'"]);
    assert!(own.secrets().unwrap()[0].used_by.is_empty());
    own.drop_secret("token").unwrap();
    assert_eq!(acme.drop_secret("token").unwrap_err().kind, ErrorKind::Conflict);
    drop((own, acme));
    engine.shutdown();
}

#[test]
fn rest_and_command_line_take_values_and_give_none() {
    let folder = TempDir::new().unwrap();
    let server = TestServer::start(open(folder.path()));
    let ask = |method: &str, body: &str| exchange(server.address, &request(method, "/api/v1/secrets/web", "", body));
    let (status, answer) = ask("PUT", VALUE);
    assert!(status == 200 && answer.contains("\"name\":\"web\"") && !answer.contains("rose"), "{answer}");
    assert_eq!(ask("PUT", "").0, 400);
    assert_eq!(ask("GET", "").0, 405, "no value is read");
    let program = |arguments: &[&str], input: &str| rivulet_with_input(&server, arguments, input);
    let file = folder.path().join("value");
    fs::write(&file, format!("{VALUE}\n")).unwrap();
    let (code, out, said) = program(&["secret", "create", "from_file", "--from-file", file.to_str().unwrap()], "");
    assert!(code == 0 && out.is_empty() && said.contains("from_file has its value"), "{said}");
    let (code, out, _) = program(&["secret", "create", "typed", "--json"], "rose-garden\n");
    assert!(code == 0 && out.contains("\"typed\"") && !out.contains("rose"), "{out}");
    let (code, list, _) = program(&["secret", "list"], "");
    assert!(code == 0 && ["web", "from_file", "typed"].iter().all(|name| list.contains(name)), "{list}");
    assert!(!list.contains("rose"), "{list}");
    let (code, ..) = program(&["secret", "create", "typed", VALUE], "");
    assert_eq!(code, 2, "no value on the command line");
    assert_eq!(program(&["secret", "drop", "typed"], "").0, 0);
    assert_eq!(program(&["secret", "drop", "typed"], "").0, 1);
    assert_eq!(ask("DELETE", "").0, 204);
    assert_eq!(ask("DELETE", "").0, 404);
}

#[test]
fn a_secret_of_a_script_lasts_as_long_as_the_script() {
    let (folder, receiver) = (TempDir::new().unwrap(), Receiver::start());
    fs::write(folder.path().join("in.jsonl"), "{\"n\": 1}\n").unwrap();
    let script = format!(
        "CREATE SECRET token AS '{VALUE}';
         CREATE SOURCE s (n BIGINT) FROM 'file:in.jsonl' FORMAT JSON;
         CREATE SINK k TO 'http://127.0.0.1:{}/x' FORMAT JSON WITH (headers.authorization => SECRET token);
         INSERT INTO k SELECT n FROM s",
        receiver.port
    );
    fs::write(folder.path().join("script.sql"), script).unwrap();
    let run = |script: &str| {
        let done = super::cli::command(&["run", script]).current_dir(folder.path()).output().unwrap();
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    let (is_done, said) = run("script.sql");
    assert!(is_done && !said.contains("rose"), "{said}");
    assert_eq!(authorizations(&receiver), [VALUE]);
    let application = APPLICATION.replace("PORT", "9");
    fs::write(folder.path().join("hooks.sql"), application).unwrap();
    let tried =
        super::cli::command(&["app", "test", "hooks.sql", "--input", "in.jsonl", "--parameters", r#"{"room": "a"}"#]);
    let said = format!("{:?}", { tried }.current_dir(folder.path()).output().unwrap());
    assert!(!said.contains("there is none"), "{said}");
}

#[test]
fn a_backup_has_the_secrets() {
    let (folder, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let engine = open(folder.path());
    run(&session(&engine, "default"), &format!("CREATE SECRET token AS '{VALUE}'")).unwrap();
    let mut file = fs::File::create(elsewhere.path().join("all")).unwrap();
    engine.back_up().unwrap().write(&mut file).unwrap();
    engine.shutdown();
    let data = elsewhere.path().join("data");
    let place = rivulet_storage::Place::Folder(data.join("checkpoints"));
    rivulet::data_folder::archive::restore(&elsewhere.path().join("all"), &data, &place).unwrap();
    let engine = open(elsewhere.path());
    let infos = session(&engine, "default").secrets().unwrap();
    assert_eq!(infos.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["token"]);
    engine.shutdown();
    assert!(has(&data.join("secrets"), VALUE));
}
