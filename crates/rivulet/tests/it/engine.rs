//! The engine in this process, behind its trait: content of the catalog from an older version, lists, dead letters.

use std::path::Path;
use std::sync::Arc;

use rivulet::catalog::{Catalog, NewApplication, NewQuery};
use rivulet::config::{Config, FlagValue, Sources};
use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, Parameter, ParameterValue, QUERIES_PAGE_MAX, QueryFilter, QueryRequest, QueryState};
use tempfile::TempDir;

use super::support::AsOperator;

const COPY: &str = "CREATE APPLICATION copy (id TEXT, factor BIGINT DEFAULT 1) INPUT numbers (n BIGINT) \
                    FROM 'mqtt:in/{id}' FORMAT JSON OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n * $factor AS n FROM numbers";

/// Registered by a version that had the function.
const OLD: &str = "CREATE APPLICATION old (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON \
                   OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT function_of_old(n) AS n FROM numbers";

pub(crate) fn open(folder: &Path) -> Arc<Engine> {
    Engine::open(configuration(folder)).expect("an engine")
}

pub(crate) fn configuration(folder: &Path) -> Config {
    let file = folder.join("rivulet.toml");
    std::fs::write(&file, "").expect("a file");
    let flag = |key: &str, value: &str| FlagValue { key: key.into(), value: value.into(), flag: "test".into() };
    let flags = vec![
        flag("data_dir", folder.join("data").to_str().expect("a path")),
        flag("files.allow", folder.to_str().expect("a path")),
        flag("mqtt.embedded.address", "127.0.0.1:0"),
        // Receivers of tests are on this machine.
        flag("sink.http_allow", "*"),
    ];
    rivulet::config::load(&Sources { file: Some(file), environment: Vec::new(), flags })
        .expect("a configuration")
        .config
}

fn submit(engine: &Engine, name: Option<&str>, application: &str, id: &str) -> Result<u64, ErrorKind> {
    let parameters = [("id".into(), ParameterValue::Text(id.into()))];
    let answer = engine.submit(&[QueryRequest { name, application, parameters: &parameters, label: None }]).pop();
    answer.expect("an answer").map_err(|error| error.kind)
}

#[test]
fn applications_of_a_script_are_registered_together_up_to_the_first_that_is_refused() {
    let folder = TempDir::new().expect("a folder");
    let application = |name: &str, column: &str| {
        format!(
            "CREATE APPLICATION {name} (id TEXT) INPUT t (n BIGINT) FROM 'mqtt:t/{{id}}' FORMAT JSON \
             OUTPUT 'mqtt:o/{{id}}' FORMAT JSON AS SELECT {column} FROM t;\n"
        )
    };
    let script = [("a", "n"), ("b", "n"), ("a", "n"), ("c", "n"), ("a", "n + 1"), ("d", "n")]
        .map(|(name, column)| application(name, column))
        .concat();
    let names = |engine: &Engine| engine.applications().into_iter().map(|one| one.name).collect::<Vec<_>>();
    {
        let engine = open(folder.path());
        let mut answers = engine.execute(&script);
        let refused = answers.pop().expect("an answer").expect_err("another text");
        assert_eq!((refused.kind, refused.line), (ErrorKind::AlreadyExists, Some(5)));
        let said: Vec<String> =
            answers.into_iter().map(|answer| answer.expect("an answer").message.expect("a message")).collect();
        let expected = [
            "application a created",
            "application b created",
            "application a is registered already",
            "application c created",
        ];
        assert_eq!(said, expected);
        assert_eq!(names(&engine), ["a", "b", "c"]);
        engine.shutdown();
    }
    let engine = open(folder.path());
    assert_eq!(names(&engine), ["a", "b", "c"], "they are remembered");
}

fn states(engine: &Engine) -> Vec<(String, String, QueryState)> {
    let all = engine.queries(&QueryFilter { limit: 100, ..QueryFilter::default() });
    all.into_iter().map(|query| (query.name, query.application, query.state)).collect()
}

fn row(name: &str, application: &str, state: QueryState) -> (String, String, QueryState) {
    (name.into(), application.into(), state)
}

/// A catalog with an application that is not planned any more, and with a query of another one that does not fit any
/// more.
fn left_by_an_older_version(folder: &Path) {
    let catalog = Catalog::open(&folder.join("data")).expect("a catalog");
    let old = catalog.insert_application(NewApplication::sql("old", "id-of-old", OLD)).expect("stored");
    let copy = catalog.insert_application(NewApplication::sql("copy", "id-of-copy", COPY)).expect("stored");
    let text = |value: &'static str| -> [Parameter<'static>; 1] { [("id".into(), ParameterValue::Text(value.into()))] };
    let number: [Parameter<'static>; 1] = [("id".into(), ParameterValue::Int(7))];
    catalog
        .insert_queries(
            &[
                NewQuery { application: old, name: "kept", parameters: &text("a"), label: None },
                NewQuery { application: old, name: "", parameters: &text("b"), label: None },
                NewQuery { application: copy, name: "works", parameters: &text("c"), label: None },
                NewQuery { application: copy, name: "unfit", parameters: &number, label: None },
            ],
            None,
        )
        .expect("stored");
}

#[test]
fn an_application_that_is_not_planned_any_more_is_listed_and_can_be_dropped() {
    let folder = TempDir::new().expect("a folder");
    left_by_an_older_version(folder.path());
    let engine = open(folder.path());

    let applications = engine.applications();
    assert_eq!(applications.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["copy", "old"]);
    let old = engine.application("old").expect("it is known");
    assert_eq!(engine.application("id-of-old").expect("by id too"), old);
    assert!(old.state().starts_with("not running: ") && old.state().contains("function_of_old"), "{}", old.state());
    assert_eq!((old.queries_running, old.queries_not_running, old.sql.as_str()), (0, 2, OLD));
    let shown = engine.execute("SHOW APPLICATIONS").pop().expect("an answer").expect("rows");
    assert_eq!(shown.rows[0][1], "running");
    assert_eq!(shown.rows[1][1], old.state());
    let status = engine.status();
    assert_eq!(status.applications[1].not_running, old.not_running);
    assert_eq!((status.queries_running, status.applications[1].queries_not_running), (1, 2));
    assert_eq!(status.applications[0].queries_not_running, 1);

    // Its name and the names of its queries are taken.
    let again = engine.create_application(&OLD.replace("function_of_old(n)", "n")).expect_err("a taken name");
    assert_eq!(again.kind, ErrorKind::AlreadyExists);
    assert!(again.hint.is_some_and(|hint| hint.contains("DROP APPLICATION old CASCADE")));
    assert_eq!(submit(&engine, Some("kept"), "copy", "x"), Err(ErrorKind::AlreadyExists));
    assert_eq!(submit(&engine, None, "old", "x"), Err(ErrorKind::Conflict));
    assert_eq!(engine.explain("old").map_err(|error| error.kind), Err(ErrorKind::Conflict));

    // Its queries are listed, and nothing but dropping them is possible.
    let all = [
        row("kept", "old", QueryState::NotRunning),
        row("query_2", "old", QueryState::NotRunning),
        row("unfit", "copy", QueryState::NotRunning),
        row("works", "copy", QueryState::Running),
    ];
    assert_eq!(states(&engine), all);
    let kept = engine.query("kept").expect("it is known");
    assert_eq!((kept.parameters["id"].as_str(), kept.input_topic.as_str()), (Some("a"), ""));
    for refused in [engine.pause("kept"), engine.resume("unfit"), engine.results("kept").map(drop)] {
        assert_eq!(refused.map_err(|error| error.kind), Err(ErrorKind::Conflict));
    }
    let filter = QueryFilter { application: Some("old".into()), limit: 100, ..QueryFilter::default() };
    assert_eq!(engine.queries(&filter).len(), 2);

    engine.drop_query("query_2").expect("dropped");
    engine.drop_query("unfit").expect("dropped");
    assert_eq!(engine.application("old").expect("it is known").queries_not_running, 1);
    assert_eq!(engine.application("copy").expect("it is known").queries_not_running, 0);
    assert_eq!(engine.drop_application("old", false).map_err(|error| error.kind), Err(ErrorKind::Conflict));
    engine.drop_application("old", true).expect("dropped");
    assert_eq!(states(&engine), [row("works", "copy", QueryState::Running)]);
    engine.create_application(&OLD.replace("function_of_old(n)", "n")).expect("the name is free");
    submit(&engine, Some("kept"), "old", "a").expect("the name is free");

    // And so it is after the next start.
    drop(engine);
    let engine = open(folder.path());
    assert_eq!(states(&engine), [row("kept", "old", QueryState::Running), row("works", "copy", QueryState::Running)]);
}

#[test]
fn a_query_whose_topic_is_none_any_more_does_not_run_and_the_others_do() {
    let folder = TempDir::new().expect("a folder");
    let catalog = Catalog::open(&folder.path().join("data")).expect("a catalog");
    let copy = catalog.insert_application(NewApplication::sql("copy", "id-of-copy", COPY)).expect("stored");
    for (name, id) in [("a", "1"), ("b", "no+topic"), ("c", "3")] {
        let parameters: [Parameter<'_>; 1] = [("id".into(), ParameterValue::Text(id.into()))];
        catalog
            .insert_queries(&[NewQuery { application: copy, name, parameters: &parameters, label: None }], None)
            .expect("stored");
    }
    drop(catalog);
    let engine = open(folder.path());
    let expected = [("a", QueryState::Running), ("b", QueryState::NotRunning), ("c", QueryState::Running)];
    assert_eq!(states(&engine), expected.map(|(name, state)| row(name, "copy", state)));
    let copy = engine.application("copy").expect("it is known");
    assert_eq!((copy.queries_running, copy.queries_not_running), (2, 1));
    assert!(engine.metrics().lines().any(|line| line == "rivulet_routes 2"), "{}", engine.metrics());
    engine.drop_query("b").expect("dropped");
    assert_eq!(engine.application("copy").expect("it is known").queries_not_running, 0);
}

#[test]
fn what_does_not_run_is_kept_until_it_is_dropped() {
    let folder = TempDir::new().expect("a folder");
    left_by_an_older_version(folder.path());
    for _ in 0..2 {
        let engine = open(folder.path());
        assert_eq!(states(&engine).len(), 4);
    }
}

#[test]
fn lists_come_in_pages_and_a_page_has_a_limit() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    engine.create_application(COPY).expect("an application");
    let count = QUERIES_PAGE_MAX + 500;
    let names: Vec<String> = (0..count).map(|number| format!("q{number:05}")).collect();
    let parameters = [("id".into(), ParameterValue::Text("a".into()))];
    // Every third query has a label.
    let label = |number: usize| number.is_multiple_of(3).then_some("home=1");
    let requests = names.iter().enumerate().map(|(number, name)| QueryRequest {
        name: Some(name),
        application: "copy",
        parameters: &parameters,
        label: label(number),
    });
    let requests: Vec<QueryRequest<'_>> = requests.collect();
    assert!(engine.submit(&requests).iter().all(Result::is_ok));

    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = engine.queries(&QueryFilter { after, limit: QUERIES_PAGE_MAX, ..QueryFilter::default() });
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        seen.extend(page.into_iter().map(|query| query.name));
    }
    assert_eq!(seen, names);

    let labelled: Vec<&String> = names.iter().step_by(3).collect();
    let of_label = |after: Option<&String>| QueryFilter {
        label: Some("home=1".into()),
        after: after.cloned(),
        limit: 300,
        ..QueryFilter::default()
    };
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page = engine.queries(&of_label(after.as_ref()));
        assert!(page.iter().all(|query| query.label.as_deref() == Some("home=1")));
        let Some(last) = page.last() else { break };
        after = Some(last.name.clone());
        seen.extend(page.into_iter().map(|query| query.name));
    }
    assert_eq!(seen.iter().collect::<Vec<_>>(), labelled);
    let shown = |statement: &str| engine.execute(statement).pop().expect("an answer").expect("rows");
    let of_label = shown("SHOW QUERIES LIKE 'q0000%' LABEL 'home=1' LIMIT 3");
    let found: Vec<&str> = of_label.rows.iter().filter_map(|row| row[0].as_str()).collect();
    assert_eq!(found, ["q00000", "q00003", "q00006"]);
    assert!(of_label.message.is_some_and(|message| message.contains("and more")), "q00009 too");
    assert!(shown("SHOW QUERIES LABEL 'home=2'").rows.is_empty());

    let show = |limit: usize| engine.execute(&format!("SHOW QUERIES LIMIT {limit}")).pop().expect("an answer");
    assert_eq!(show(QUERIES_PAGE_MAX).expect("a page").rows.len(), QUERIES_PAGE_MAX);
    let error = show(QUERIES_PAGE_MAX + 1).expect_err("more than a page");
    assert_eq!(error.message, "LIMIT is 1001, and SHOW QUERIES gives 1000 rows at most");
    assert!(error.hint.is_some_and(|hint| hint.contains("--limit 1001")));
}

#[test]
fn topics_that_do_not_fit_are_refused_one_by_one() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    engine.create_application(COPY).expect("an application");
    let parameters: Vec<[Parameter<'_>; 1]> =
        ["a", "b/c", "d", "", "e+"].map(|id| [("id".into(), ParameterValue::Text(id.into()))]).into();
    let requests: Vec<QueryRequest<'_>> = parameters
        .iter()
        .map(|parameters| QueryRequest { name: None, application: "copy", parameters, label: None })
        .collect();
    let answers = engine.submit(&requests);
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false, false]);
    let topics: Vec<String> =
        ["query_1", "query_2"].map(|name| engine.query(name).expect("a query").input_topic).into();
    assert_eq!(topics, ["in/a", "in/d"]);
}

#[test]
fn a_batch_of_several_applications_is_answered_in_order_and_kept() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    engine.create_application(COPY).expect("an application");
    engine.create_application(&COPY.replace("copy", "other").replace("mqtt:", "mqtt:other/")).expect("an application");
    let parameters = [("id".into(), ParameterValue::Text("x".into()))];
    let requests: Vec<QueryRequest<'_>> =
        [("a", "copy"), ("b", "other"), ("a", "other"), ("c", "nobody"), ("d", "copy"), ("e", "other")]
            .map(|(name, application)| QueryRequest {
                name: Some(name),
                application,
                parameters: &parameters,
                label: None,
            })
            .into();
    let answers: Vec<Result<u64, ErrorKind>> =
        engine.submit(&requests).into_iter().map(|answer| answer.map_err(|error| error.kind)).collect();
    assert_eq!(
        answers,
        [Ok(1), Ok(3), Err(ErrorKind::AlreadyExists), Err(ErrorKind::NotFound), Ok(2), Ok(4)],
        "numbers go by application"
    );
    let all = [("a", "copy"), ("b", "other"), ("d", "copy"), ("e", "other")]
        .map(|(name, application)| row(name, application, QueryState::Running));
    assert_eq!(states(&engine), all);
    drop(engine);
    let engine = open(folder.path());
    assert_eq!(states(&engine), all);
    assert_eq!(engine.query("e").expect("a query").input_topic, "other/in/x");
}

#[test]
fn an_application_is_found_by_the_beginning_of_its_id() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    let id = engine.create_application(COPY).expect("an application").id;
    engine.create_application(&COPY.replace("copy", "other")).expect("another one");
    for known in [&id[..], &id[..12], &id[..8], "copy"] {
        assert_eq!(engine.application(known).expect("an application").name, "copy", "{known}");
    }
    for unknown in [&id[..7], &id[1..13], ""] {
        assert!(engine.application(unknown).is_err(), "{unknown}");
    }
}

#[test]
fn who_promises_what_the_external_broker_does_not_keep_is_warned() {
    let sql = |durability: &str| {
        format!(
            "CREATE APPLICATION {durability} (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{{id}}' FORMAT JSON WITH (durability => '{durability}') \
             OUTPUT 'mqtt:out/{{id}}' FORMAT JSON AS SELECT n FROM numbers"
        )
    };
    let said = |broker: &[(&str, &str)], durability: &str| {
        let folder = TempDir::new().expect("a folder");
        let flag =
            |(key, value): &(&str, &str)| FlagValue { key: (*key).into(), value: (*value).into(), flag: "test".into() };
        let sources = Sources { flags: broker.iter().map(flag).collect(), ..Sources::default() };
        let mut config = configuration(folder.path());
        config.broker = rivulet::config::load(&sources).expect("a configuration").config.broker;
        config.embedded = config.embedded.filter(|_| config.broker.is_none());
        let engine = Engine::open(config).expect("a broker that is not there is no error");
        let answer =
            engine.execute(&sql(durability)).pop().expect("an answer").expect("it runs").message.expect("a text");
        let warnings = engine.application(durability).expect("it is there").warnings;
        assert!(warnings.iter().all(|warning| answer.contains(warning)), "{answer}");
        warnings.join("; ")
    };
    // A port where nobody listens.
    let url = ("mqtt.broker.url", "mqtt://127.0.0.1:9");
    let warning = said(&[url], "log");
    assert!(warning.contains("'numbers'") && warning.contains("set mqtt.broker.client_id"), "{warning}");
    let named = ("mqtt.broker.client_id", "plant 7");
    assert!(said(&[url, named, ("mqtt.broker.qos", "0")], "log").contains("mqtt.broker.qos"));
    assert_eq!(said(&[url, named], "log"), "");
    assert_eq!(said(&[url], "checkpoint"), "", "nothing is promised");
    assert_eq!(said(&[], "log"), "", "the embedded broker keeps what was not acknowledged with its sender");
}

#[test]
fn a_label_is_shown_and_kept() {
    let folder = TempDir::new().expect("a folder");
    {
        let engine = open(folder.path());
        let create = "CREATE QUERY labelled FROM APPLICATION copy WITH (id => 'a') LABEL 'home 42'";
        assert!(engine.execute(&format!("{COPY}; {create}")).iter().all(Result::is_ok));
        let refused = engine.execute("CREATE QUERY other FROM APPLICATION copy WITH (id => 'b') LABEL ''").pop();
        let error = refused.expect("an answer").expect_err("an empty label").to_string();
        assert!(error.contains("a label has 1 to 255 bytes"), "{error}");
    }
    let engine = open(folder.path());
    let query = engine.query("labelled").expect("it is there");
    assert_eq!((query.label.as_deref(), query.parameters.len()), (Some("home 42"), 1));
    let described = format!("{:?}", engine.execute("DESCRIBE QUERY labelled"));
    assert!(described.contains("label") && described.contains("home 42"), "{described}");
}
