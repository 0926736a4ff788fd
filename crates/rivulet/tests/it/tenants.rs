//! Two tenants with the same names: each has its own, sees and counts nothing of the other, and keeps what it has when
//! the other drops its own, also after a restart.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rivulet::engine::{Engine, Extensions};
use rivulet::service::{
    Access, Action, Authorizer, Caller, Credentials, ErrorKind, QUERIES_PAGE_MAX, QueryFilter, QueryRequest, Refused,
    Resource, ResourceKind, ServiceError, Session,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::broadcast::error::TryRecvError;

use super::engine::{configuration, open};
use super::server::{Publisher, free_port};
use super::support::{AsOperator, TestServer, exchange, request, wait_until};

const OWN: &str = "default";
const ACME: &str = "acme";

/// An application with this very text in both tenants.
const SAME: &str = "CREATE APPLICATION same (home TEXT) INPUT readings (v BIGINT) FROM 'mqtt:same/{home}' FORMAT JSON \
                    OUTPUT 'mqtt:same/{home}/out' FORMAT JSON AS SELECT v FROM readings";

/// What each tenant creates: everything that has a name, by the same names, over files of its own.
fn script(folder: &Path, tenant: &str) -> String {
    let folder = folder.display();
    format!(
        "CREATE TABLE rooms (id TEXT, floor BIGINT) FROM 'file:{folder}/{tenant}.csv' FORMAT CSV (header => true);
         CREATE APPLICATION floors (home TEXT) INPUT readings (room TEXT) FROM 'mqtt:in/{{home}}' FORMAT JSON
           OUTPUT 'mqtt:{tenant}/{{home}}' FORMAT JSON
           AS SELECT r.floor FROM readings JOIN rooms AS r ON r.id = readings.room;
         {SAME};
         CREATE QUERY q FROM APPLICATION floors WITH (home => 'a');
         CREATE SOURCE numbers (n BIGINT) FROM 'file:{folder}/{tenant}.jsonl' FORMAT JSON WITH (follow => true);
         CREATE SINK copies TO 'file:{folder}/{tenant}-out.jsonl' FORMAT JSON;
         CREATE VIEW doubled AS SELECT n * 2 AS n FROM numbers;
         CREATE QUERY b AS SELECT n FROM doubled INTO copies"
    )
}

const DROP_ALL: &str = "DROP QUERY b; DROP VIEW doubled; DROP SINK copies; DROP SOURCE numbers; \
                        DROP APPLICATION floors CASCADE; DROP APPLICATION same; DROP TABLE rooms";

fn as_tenant<'e>(engine: &'e Engine, tenant: &str) -> Session<'e> {
    engine.session(Caller::new(tenant, "ann"))
}

fn run(session: &Session<'_>, script: &str) {
    for answer in session.execute(script) {
        answer.unwrap_or_else(|error| panic!("{script}: {error}"));
    }
}

fn refused(session: &Session<'_>, statement: &str) -> ServiceError {
    session.execute(statement).pop().expect("an answer").expect_err(statement)
}

/// All names that a caller of a tenant is shown, by the statement that shows them.
fn shown(session: &Session<'_>) -> Vec<(&'static str, Vec<String>)> {
    let statements = ["SHOW APPLICATIONS", "SHOW QUERIES", "SHOW TABLES", "SHOW SOURCES", "SHOW SINKS", "SHOW VIEWS"];
    let names = |statement: &'static str| {
        let rows = session.execute(statement).pop().expect("an answer").expect(statement).rows;
        (statement, rows.iter().map(|row| row[0].as_str().expect("a name").to_owned()).collect())
    };
    statements.into_iter().map(names).collect()
}

/// What [`shown`] shows of a tenant that has run its [`script`].
fn everything() -> Vec<(&'static str, Vec<String>)> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    vec![
        ("SHOW APPLICATIONS", names(&["floors", "same"])),
        ("SHOW QUERIES", names(&["b", "q"])),
        ("SHOW TABLES", names(&["rooms"])),
        ("SHOW SOURCES", names(&["numbers"])),
        ("SHOW SINKS", names(&["copies"])),
        ("SHOW VIEWS", names(&["doubled"])),
    ]
}

fn nothing() -> Vec<(&'static str, Vec<String>)> {
    everything().into_iter().map(|(statement, _)| (statement, Vec::new())).collect()
}

/// The files that both tenants read, with other rows each.
fn write_files(folder: &Path) {
    for (tenant, floor, numbers) in [(OWN, 3, "{\"n\":1}\n"), (ACME, 7, "{\"n\":1}\n{\"n\":2}\n")] {
        fs::write(folder.join(format!("{tenant}.csv")), format!("id,floor\nattic,{floor}\n")).expect("a file");
        fs::write(folder.join(format!("{tenant}.jsonl")), numbers).expect("a file");
    }
}

/// What the query `q` of a tenant says of an event that the queries of both read.
fn floor_of_attic(engine: &Engine, tenant: &str) -> String {
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe(&format!("{tenant}/a"));
    Publisher::connect(broker).publish("in/a", r#"{"room": "attic"}"#);
    String::from_utf8(listener.next().1).expect("text")
}

/// The query's rows, as far as they are there.
fn rows_out(session: &Session<'_>) -> u64 {
    session.query("b").expect("the query").big.expect("a big query").rows_out
}

fn is_whole(engine: &Engine, tenant: &str, floor: i64) {
    let session = as_tenant(engine, tenant);
    assert_eq!(shown(&session), everything(), "{tenant}");
    assert_eq!(floor_of_attic(engine, tenant), format!("{{\"floor\":{floor}}}"), "{tenant}");
    for query in ["q", "b"] {
        assert_eq!(session.query(query).expect("the query").state.name(), "running", "{tenant}");
    }
}

#[test]
fn tenants_use_the_same_names_and_keep_what_they_have_when_another_drops_its_own() {
    let folder = TempDir::new().expect("a folder");
    write_files(folder.path());
    {
        let engine = open(folder.path());
        for tenant in [OWN, ACME] {
            run(&as_tenant(&engine, tenant), &script(folder.path(), tenant));
        }
        is_whole(&engine, OWN, 3);
        is_whole(&engine, ACME, 7);
        let ids = [OWN, ACME].map(|tenant| as_tenant(&engine, tenant).application("same").expect("there").id);
        assert_eq!(ids[0], ids[1], "the same text has the same id");
        for (tenant, rows) in [(OWN, 1), (ACME, 2)] {
            let session = as_tenant(&engine, tenant);
            assert_eq!(session.application(&ids[0][..12]).expect("by its id").name, "same");
            wait_until("the rows are copied", || rows_out(&session) == rows);
        }
        engine.operator().checkpoint().expect("a checkpoint");
        engine.shutdown();
    }
    {
        let engine = open(folder.path());
        is_whole(&engine, OWN, 3);
        is_whole(&engine, ACME, 7);
        let acme = as_tenant(&engine, ACME);
        let version = script(folder.path(), ACME).replace("n * 2", "n * 3");
        let view = version.split(";\n").find(|one| one.contains("CREATE VIEW")).expect("the view");
        run(&acme, &format!("PAUSE QUERY q; PAUSE QUERY b; DROP QUERY b; DROP VIEW doubled; {view}"));
        is_whole(&engine, OWN, 3);
        run(&acme, "CREATE QUERY b AS SELECT n FROM doubled INTO copies");
        run(&acme, DROP_ALL);
        assert_eq!(shown(&acme), nothing());
        is_whole(&engine, OWN, 3);
        engine.shutdown();
    }
    let engine = open(folder.path());
    assert_eq!(shown(&as_tenant(&engine, ACME)), nothing());
    is_whole(&engine, OWN, 3);
    run(&as_tenant(&engine, OWN), DROP_ALL);
    assert_eq!(shown(&as_tenant(&engine, OWN)), nothing());
    engine.shutdown();
}

#[test]
fn a_version_of_one_tenant_replaces_nothing_of_another() {
    let folder = TempDir::new().expect("a folder");
    write_files(folder.path());
    let engine = open(folder.path());
    for tenant in [OWN, ACME] {
        run(&as_tenant(&engine, tenant), &script(folder.path(), tenant));
    }
    let acme = as_tenant(&engine, ACME);
    let version = script(folder.path(), ACME).replace("SELECT r.floor", "SELECT r.floor + 10 AS floor");
    let version = version.split(";\n").find(|one| one.contains("CREATE APPLICATION floors")).expect("the application");
    run(&acme, &version.replace("CREATE", "CREATE OR REPLACE"));
    fs::write(folder.path().join("acme.csv"), "id,floor\nattic,8\n").expect("a file");
    run(&acme, "REFRESH TABLE rooms; CREATE OR REPLACE QUERY b AS SELECT n FROM doubled WHERE n > 0 INTO copies");
    is_whole(&engine, OWN, 3);
    is_whole(&engine, ACME, 18);
    let text = |tenant| as_tenant(&engine, tenant).query("b").expect("the query").big.expect("a big query").sql;
    assert!(text(ACME).contains("WHERE n > 0") && !text(OWN).contains("WHERE"));
    engine.shutdown();
    drop(engine);
    let engine = open(folder.path());
    is_whole(&engine, OWN, 3);
    is_whole(&engine, ACME, 18);
    engine.shutdown();
}

#[test]
fn nothing_that_a_caller_is_told_tells_of_another_tenant() {
    let folder = TempDir::new().expect("a folder");
    write_files(folder.path());
    let engine = open(folder.path());
    run(&as_tenant(&engine, ACME), &script(folder.path(), ACME));
    let id = as_tenant(&engine, ACME).application("same").expect("the application").id;
    let others = as_tenant(&engine, OWN);
    let parameters = [("home".into(), rivulet::service::ParameterValue::Text("a".into()))];
    let unnamed = QueryRequest { name: None, application: "same", parameters: &parameters, label: None };
    let number = as_tenant(&engine, ACME).submit(&[unnamed]).pop().expect("an answer").expect("a query");
    let generated = format!("query_{number}");
    assert_eq!(as_tenant(&engine, ACME).query(&generated).expect("the query").name, generated);

    assert_eq!(shown(&others), nothing());
    for statement in [
        "DESCRIBE APPLICATION floors",
        "DESCRIBE APPLICATION floor",
        &format!("DESCRIBE APPLICATION \"{id}\""),
        &format!("DESCRIBE APPLICATION \"{}\"", &id[..12]),
        "EXPLAIN APPLICATION floors",
        "DROP APPLICATION floors CASCADE",
        "CREATE QUERY x FROM APPLICATION floors WITH (home => 'a')",
        "CREATE QUERY x FROM APPLICATION floor WITH (home => 'a')",
        "DESCRIBE QUERY q",
        "DESCRIBE QUERY b",
        "EXPLAIN QUERY b",
        "PAUSE QUERY b",
        "RESUME QUERY q",
        "DROP QUERY b",
        &format!("DROP QUERY {generated}"),
        "DESCRIBE TABLE rooms",
        "DESCRIBE TABLE room",
        "REFRESH TABLE rooms",
        "DROP TABLE rooms",
        "DESCRIBE SOURCE numbers",
        "DROP SOURCE numbers",
        "DESCRIBE SINK copies",
        "DROP SINK copies",
        "DESCRIBE VIEW doubled",
        "DROP VIEW doubled",
    ] {
        let error = refused(&others, statement);
        assert_eq!(error.kind, ErrorKind::NotFound, "{statement}: {error}");
        let hint = error.hint.unwrap_or_default();
        assert!(!hint.contains("did you mean"), "{statement}: {hint}");
    }
    for statement in [
        "CREATE QUERY c AS SELECT n FROM numbers INTO copies",
        "CREATE VIEW v AS SELECT n FROM number",
        "CREATE APPLICATION f (home TEXT) INPUT readings (room TEXT) FROM 'mqtt:in/{home}' FORMAT JSON \
         OUTPUT 'mqtt:f/{home}' FORMAT JSON AS SELECT r.floor FROM readings JOIN room AS r ON r.id = readings.room",
    ] {
        let error = refused(&others, statement);
        let told = format!("{error} {}", error.hint.clone().unwrap_or_default());
        assert!(!told.contains("did you mean") && !told.contains("rooms"), "{statement}: {told}");
    }
    assert_eq!(others.results("q").map(drop).expect_err("not its own").kind, ErrorKind::NotFound);
    let near = refused(&as_tenant(&engine, ACME), "DESCRIBE APPLICATION floor");
    assert_eq!(near.hint.as_deref(), Some("did you mean 'floors'?"), "its own names are near");

    let filter = QueryFilter { limit: QUERIES_PAGE_MAX, ..QueryFilter::default() };
    for (tenant, queries) in [(OWN, 0), ("nobody", 0), (ACME, 3)] {
        let session = as_tenant(&engine, tenant);
        assert_eq!(session.queries(&filter).expect("a list").len(), queries, "{tenant}");
        let status = session.status(false).expect("the status");
        assert_eq!(status.applications.len() + status.big_queries.len(), queries, "{tenant}: 2 and 1, or none");
        let running = queries.saturating_sub(1) as u64;
        assert_eq!((status.queries_running, status.total.queries_running), (running, running), "{tenant}");
        let saved = status.checkpoints.expect("checkpoints are made");
        assert!(saved.big_queries.iter().all(|one| tenant == ACME && one.query == "b"), "{tenant}: {saved:?}");
        let more = session.execute("SHOW QUERIES LIMIT 1").pop().expect("an answer").expect("queries").message;
        assert_eq!(more.is_some_and(|more| more.contains('2')), tenant == ACME, "{tenant} counts its own");
    }
    // The person who runs the server sees whose what is.
    let series = "rivulet_queries{tenant=\"acme\",application=\"floors\",state=\"running\"} 1\n";
    let of_big = "rivulet_big_query_tasks{tenant=\"acme\",query=\"b\"}";
    for (tenant, is_shown) in [(OWN, true), (ACME, true), ("nobody", false)] {
        let metrics = as_tenant(&engine, tenant).metrics().expect("metrics");
        assert_eq!((metrics.contains(series), metrics.contains(of_big)), (is_shown, is_shown), "{tenant}: {metrics}");
        assert_eq!(metrics.contains("rivulet_routes "), tenant == OWN, "{tenant}: {metrics}");
    }
    engine.shutdown();
}

#[test]
fn what_a_caller_watches_selects_and_describes_is_of_its_own_tenant() {
    let folder = TempDir::new().expect("a folder");
    write_files(folder.path());
    fs::write(folder.path().join("acme.jsonl"), "{\"n\":5}\n{\"n\":6}\n").expect("a file");
    let append = |tenant: &str, line: &str| {
        let mut file = fs::OpenOptions::new().append(true).open(folder.path().join(format!("{tenant}.jsonl")));
        writeln!(file.as_mut().expect("the file"), "{line}").expect("a line");
    };
    let engine = open(folder.path());
    for tenant in [OWN, ACME] {
        run(&as_tenant(&engine, tenant), &script(folder.path(), tenant));
    }
    let [own, acme, nobody] = [OWN, ACME, "nobody"].map(|tenant| as_tenant(&engine, tenant));
    for (session, limit, expected) in [(&own, 1, &["{\"n\":1}"][..]), (&acme, 2, &["{\"n\":5}", "{\"n\":6}"])] {
        let mut selection = session.select(&format!("SELECT n FROM numbers LIMIT {limit}")).expect("a SELECT");
        let mut rows = Vec::new();
        wait_until("the rows are there", || {
            rows.extend(selection.rows.try_recv().map(|row| row.text.clone()));
            rows.len() == limit
        });
        assert_eq!(rows, expected);
        for (statement, name) in [("DESCRIBE SOURCE", "numbers"), ("DESCRIBE SINK", "copies")] {
            let answer = session.execute(&format!("{statement} {name}")).pop().expect("an answer").expect(statement);
            let users = answer.rows.iter().filter(|row| row[0] == "query b").count();
            assert_eq!(users, 1, "{statement}: {:?}", answer.rows);
        }
        assert!(!session.describe_query("q").expect("the query").why.is_empty());
    }
    assert!(nobody.select("SELECT n FROM numbers LIMIT 1").map(drop).is_err());
    for query in ["q", "b"] {
        assert_eq!(nobody.describe_query(query).map(drop).expect_err("not its own").kind, ErrorKind::NotFound);
        assert_eq!(nobody.results(query).map(drop).expect_err("not its own").kind, ErrorKind::NotFound);
    }

    wait_until("the rows are copied", || (rows_out(&own), rows_out(&acme)) == (1, 2));
    let mut rows = own.results("b").expect("rows to come");
    append(ACME, "{\"n\":7}");
    wait_until("the other tenant's row is copied", || rows_out(&acme) == 3);
    append(OWN, "{\"n\":2}");
    let mut seen = None;
    wait_until("the row is there", || {
        seen = rows.try_recv().ok().map(|row| row.text.clone());
        seen.is_some()
    });
    assert_eq!(seen.as_deref(), Some("{\"n\":4}"), "and not the other tenant's");
    run(&acme, "DROP QUERY b");
    assert_eq!(rows.try_recv().map(drop), Err(TryRecvError::Empty), "its own query goes on");
    assert_eq!(acme.results("b").map(drop).expect_err("it was dropped").kind, ErrorKind::NotFound);

    fs::write(folder.path().join("acme.csv"), "id,floor\nattic,9\n").expect("a file");
    let script = script(folder.path(), ACME);
    let table = script.split(";\n").next().expect("the table").replace("CREATE", "CREATE OR REPLACE");
    run(&acme, &table);
    assert_eq!(floor_of_attic(&engine, ACME), "{\"floor\":9}");
    is_whole(&engine, OWN, 3);
    engine.shutdown();
}

#[test]
fn anybody_may_know_that_a_query_of_a_tenant_does_not_run_and_not_which() {
    let folder = TempDir::new().expect("a folder");
    write_files(folder.path());
    // With checkpoints it would be known that the queries had come to their end.
    let config = rivulet::config::Config { checkpoint: None, ..configuration(folder.path()) };
    {
        let engine = Engine::open(config.clone()).expect("an engine");
        for tenant in [OWN, ACME] {
            let script = script(folder.path(), tenant).replace(" WITH (follow => true)", "");
            run(&as_tenant(&engine, tenant), &script);
        }
        engine.shutdown();
    }
    for tenant in [OWN, ACME] {
        fs::remove_file(folder.path().join(format!("{tenant}.jsonl"))).expect("the file is taken away");
    }
    let engine = Engine::open(config).expect("an engine");
    let problems = engine.problems();
    assert!(problems.iter().any(|one| one.starts_with("the query 'b' is ")), "{problems:?}");
    assert!(problems.iter().any(|one| one.starts_with("the query of a tenant is ")), "{problems:?}");
    assert!(!problems.iter().any(|one| one.contains("acme")), "{problems:?}");
    engine.shutdown();
}

#[test]
fn anybody_may_know_that_a_sink_of_a_tenant_does_not_work_and_not_which() {
    let folder = TempDir::new().expect("a folder");
    write_files(folder.path());
    let engine = open(folder.path());
    let port = free_port();
    for tenant in [OWN, ACME] {
        let sink = format!("CREATE SINK away TO 'kafka:127.0.0.1:{port}/{tenant}' FORMAT JSON");
        let session = as_tenant(&engine, tenant);
        run(&session, &format!("{}; {sink}", script(folder.path(), tenant)));
        run(&session, "CREATE QUERY c AS SELECT n FROM numbers INTO away");
    }
    let of_tenant = "the query of a tenant runs, and a source or sink of it does not work";
    wait_until("both are said not to work", || {
        let problems = engine.problems();
        assert!(!problems.iter().any(|one| one.contains("acme")), "{problems:?}");
        problems.iter().any(|one| one == of_tenant)
            && problems.iter().any(|one| one.starts_with("the query 'c' runs, and the sink 'away' is "))
    });
    engine.shutdown();
}

/// A tenant, and what it wanted to do with what.
type Question = (String, Action, ResourceKind, Option<String>);

/// Knows a token for each tenant, lets everybody do everything, and remembers what it was asked.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Question>>>);

impl Authorizer for Asked {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        let token =
            credentials.secret.and_then(|secret| std::str::from_utf8(secret).ok()).ok_or_else(Refused::default)?;
        Ok(Caller::new(token, "ann"))
    }

    fn may_everything(&self, _caller: &Caller) -> bool {
        false
    }

    fn may(&self, caller: &Caller, action: Action, resource: Resource<'_>) -> Result<(), Refused> {
        let asked = (caller.tenant().to_string(), action, resource.kind, resource.name.map(str::to_owned));
        self.0.lock().expect("a lock").push(asked);
        Ok(())
    }
}

#[test]
fn the_authorizer_is_asked_with_the_tenant_whose_names_the_request_speaks_of() {
    let folder = TempDir::new().expect("a folder");
    let asked = Asked::default();
    let access = Arc::new(Access::new(Arc::new(asked.clone())));
    let extensions = Extensions { access: Some(access), ..Extensions::default() };
    let engine = Engine::open_with(configuration(folder.path()), extensions).expect("an engine");
    let server = TestServer::start(engine.clone());
    let ask = |tenant: &str, method: &str, path: &str, body: &str| {
        let head = format!("authorization: Bearer {tenant}\r\n");
        let (status, text) = exchange(server.address, &request(method, path, &head, body));
        (status, serde_json::from_str::<Value>(&text).unwrap_or(Value::String(text)))
    };
    for tenant in [OWN, ACME] {
        assert_eq!(ask(tenant, "POST", "/api/v1/applications", SAME).0, 200);
        let query = r#"{"name":"q","application":"same","parameters":{"home":"a"}}"#;
        assert_eq!(ask(tenant, "POST", "/api/v1/queries", query).0, 201);
    }
    let id = ask(ACME, "GET", "/api/v1/applications/same", "").1["id"].as_str().expect("an id").to_owned();
    asked.0.lock().expect("a lock").clear();
    assert_eq!(ask(ACME, "GET", &format!("/api/v1/applications/{id}"), "").1["name"], "same");
    assert_eq!(ask(ACME, "POST", "/api/v1/sql", "PAUSE QUERY q").0, 200);
    assert_eq!(ask(ACME, "DELETE", "/api/v1/queries/q", "").0, 204);
    assert_eq!(ask(ACME, "GET", "/api/v1/queries/q", "").0, 404);
    assert_eq!(ask(OWN, "GET", "/api/v1/queries/q", "").1["state"], json!("running"));
    let expected = [
        (ACME, Action::Read, ResourceKind::Application, "same"),
        (ACME, Action::Change, ResourceKind::Query, "q"),
        (ACME, Action::Change, ResourceKind::Query, "q"),
        (ACME, Action::Read, ResourceKind::Query, "q"),
        (ACME, Action::Subscribe, ResourceKind::Query, "q"),
        (OWN, Action::Read, ResourceKind::Query, "q"),
        (OWN, Action::Subscribe, ResourceKind::Query, "q"),
    ];
    let expected =
        expected.map(|(tenant, action, kind, name)| (tenant.to_owned(), action, kind, Some(name.to_owned())));
    assert_eq!(*asked.0.lock().expect("a lock"), expected);
    drop(server);
    engine.shutdown();
}
