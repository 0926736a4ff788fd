//! Reference tables in the engine: created, used, refreshed while queries run, kept over restarts, dropped.

use std::path::Path;
use std::sync::Arc;

use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, ServiceError, StatementResult};
use tempfile::TempDir;

use super::cli::command;
use super::engine::{configuration, open};
use super::server::{Publisher, now_ms};
use super::support::{AsOperator, TestServer, exchange, request};

const APPLICATION: &str = "CREATE APPLICATION floors (home TEXT) INPUT readings (room TEXT) FROM 'mqtt:in/{home}' \
     FORMAT JSON OUTPUT 'mqtt:out/{home}' FORMAT JSON AS SELECT r.floor FROM readings JOIN rooms AS r ON r.id = readings.room";

fn write(folder: &Path, text: &str) {
    std::fs::write(folder.join("rooms.csv"), text).expect("a file");
}

fn create_table(folder: &Path) -> String {
    let file = folder.join("rooms.csv");
    format!("CREATE TABLE rooms (id TEXT, floor BIGINT) FROM 'file:{}' FORMAT CSV (header => true)", file.display())
}

pub(crate) fn run(engine: &Engine, script: &str) -> Result<StatementResult, ServiceError> {
    engine.execute(script).pop().expect("an answer")
}

pub(crate) fn said(engine: &Engine, script: &str) -> String {
    run(engine, script).unwrap_or_else(|error| panic!("{script}: {error}")).message.expect("a message")
}

fn refused(engine: &Engine, script: &str) -> ServiceError {
    run(engine, script).expect_err(script)
}

/// A table of two rooms, an application that uses it, and a query.
fn with_rooms(folder: &Path) -> Arc<Engine> {
    write(folder, "id,floor\nkitchen,0\nattic,3\n");
    let engine = open(folder);
    assert_eq!(said(&engine, &create_table(folder)), "table rooms created, 2 rows");
    said(&engine, APPLICATION);
    said(&engine, "CREATE QUERY q FROM APPLICATION floors WITH (home => 'a')");
    engine
}

/// What the query says of an event in this room.
fn floor_of(engine: &Engine, room: &str) -> String {
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe("out/a");
    Publisher::connect(broker).publish("in/a", &format!("{{\"room\": \"{room}\"}}"));
    String::from_utf8(listener.next().1).expect("text")
}

#[test]
fn a_table_is_refreshed_while_its_queries_run() {
    let folder = TempDir::new().expect("a folder");
    let engine = with_rooms(folder.path());
    assert_eq!(floor_of(&engine, "attic"), "{\"floor\":3}");

    write(folder.path(), "id,floor\nattic,4\n");
    assert_eq!(floor_of(&engine, "attic"), "{\"floor\":3}", "a file is read when somebody says so");
    assert_eq!(said(&engine, "REFRESH TABLE rooms"), "table rooms refreshed, 1 row");
    assert_eq!(floor_of(&engine, "attic"), "{\"floor\":4}");

    // Nothing of a file that is wrong somewhere is used.
    write(folder.path(), "id,floor\nattic,5\ncellar,below\n");
    let error = refused(&engine, "REFRESH TABLE rooms");
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("line 3: field 'floor' at byte 7: expected a number"), "{}", error.message);
    std::fs::remove_file(folder.path().join("rooms.csv")).expect("removed");
    assert!(refused(&engine, "REFRESH TABLE rooms").message.contains("cannot read"));
    assert_eq!(floor_of(&engine, "attic"), "{\"floor\":4}");
}

/// Rows that stand in the statement lie in the catalog, and others take their place while queries run.
#[test]
fn a_table_with_its_rows_is_replaced_while_its_queries_run_and_kept_over_a_restart() {
    let folder = TempDir::new().expect("a folder");
    let engine = with_rooms(folder.path());
    let with_rows = |what: &str, rows: &str| {
        format!("CREATE {what} rooms (id TEXT, floor BIGINT) FROM 'data:,{rows}' FORMAT CSV (header => true)")
    };
    let error = refused(&engine, &with_rows("TABLE", "id,floor\nattic,5"));
    assert!(error.hint.is_some_and(|hint| hint.contains("CREATE OR REPLACE TABLE rooms")));
    let replaced = said(&engine, &with_rows("OR REPLACE TABLE", "id,floor\nattic,5\n100%25,1\nit''s,2\n"));
    assert_eq!(replaced, "table rooms replaced, 3 rows");
    assert_eq!(floor_of(&engine, "attic"), "{\"floor\":5}");
    let error = refused(&engine, "REFRESH TABLE rooms");
    assert!(error.message.contains("its rows stand in the statement"), "{error}");
    assert!(error.hint.is_some_and(|hint| hint.contains("CREATE OR REPLACE TABLE rooms")));
    for (wrong, message) in [
        (with_rows("OR REPLACE TABLE", "id,floor\nattic,high"), "line 2: field 'floor'"),
        (with_rows("OR REPLACE TABLE", "id,floor\nattic,%"), "two hexadecimal digits"),
        (with_rows("OR REPLACE TABLE", "id,floor").replace("BIGINT", "TEXT"), "has other columns"),
        (with_rows("OR REPLACE TABLE IF NOT EXISTS", "id,floor"), "contradict each other"),
        (with_rows("OR REPLACE TABLE", "x").replace("rooms", "rooms WITH (state => 'keep')"), "a table has no state"),
    ] {
        let error = refused(&engine, &wrong);
        assert!(error.message.contains(message) && error.line.is_some(), "{wrong}: {error:?}");
    }
    drop(engine);
    std::fs::remove_file(folder.path().join("rooms.csv")).expect("removed");
    let engine = open(folder.path());
    assert_eq!(floor_of(&engine, "it's"), "{\"floor\":2}");
    assert_eq!(floor_of(&engine, "100%"), "{\"floor\":1}");
}

#[test]
fn a_table_is_shown_and_dropped_when_nobody_uses_it() {
    let folder = TempDir::new().expect("a folder");
    let engine = with_rooms(folder.path());
    assert_eq!(said(&engine, &create_table(folder.path())), "table rooms is there already");
    let other = create_table(folder.path()).replace("BIGINT", "DOUBLE");
    assert_eq!(refused(&engine, &other).kind, ErrorKind::AlreadyExists);
    let shown = run(&engine, "SHOW TABLES").expect("rows");
    assert_eq!(shown.rows.len(), 1);
    assert_eq!(
        (&shown.rows[0][0], &shown.rows[0][1], &shown.rows[0][2]),
        (&"rooms".into(), &"running".into(), &2.into())
    );
    let described = run(&engine, "DESCRIBE TABLE rooms").expect("rows");
    assert!(described.rows.contains(&vec!["applications".into(), "floors".into()]), "{described:?}");
    assert!(described.rows.contains(&vec!["column floor".into(), "BIGINT".into()]), "{described:?}");
    assert!(described.rows.contains(&vec!["needed by".into(), "".into()]), "{described:?}");
    said(&engine, "CREATE SOURCE readings (room TEXT) FROM 'mqtt:in/+' FORMAT JSON");
    said(&engine, "CREATE SINK nowhere TO 'blackhole:'");
    said(&engine, "CREATE VIEW up AS SELECT r.floor FROM readings JOIN rooms AS r ON r.id = readings.room");
    let query = "SELECT r.floor AS rooms FROM readings JOIN rooms AS r ON r.id = readings.room INTO nowhere";
    said(&engine, &format!("CREATE QUERY big AS {query}"));
    said(&engine, "CREATE QUERY other AS SELECT room AS rooms FROM readings INTO nowhere");
    let described = run(&engine, "DESCRIBE TABLE rooms").expect("rows");
    assert!(described.rows.contains(&vec!["needed by".into(), "up, big".into()]), "{described:?}");
    assert!(engine.tables()[0].needed_by.is_empty(), "not in a list");
    said(&engine, "DROP QUERY big");
    said(&engine, "DROP VIEW up");
    let plan = run(&engine, "EXPLAIN APPLICATION floors").expect("a plan");
    let plan: Vec<&str> = plan.rows.iter().filter_map(|row| row[0].as_str()).collect();
    assert!(plan.iter().any(|line| line.contains("2 rows") && line.contains("by id in a hash index")), "{plan:?}");

    let error = refused(&engine, "DROP TABLE rooms");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Conflict, "the table 'rooms' is used by floors"));
    said(&engine, "DROP APPLICATION floors CASCADE");
    assert_eq!(said(&engine, "DROP TABLE rooms"), "table rooms dropped");
    assert_eq!(refused(&engine, "DROP TABLE rooms").kind, ErrorKind::NotFound);
    assert!(said(&engine, "DROP TABLE IF EXISTS rooms").contains("nothing was done"));
    assert!(refused(&engine, APPLICATION).message.contains("unknown table 'rooms'"));
    drop(engine);
    assert!(open(folder.path()).tables().is_empty());
}

#[test]
fn a_table_that_a_view_or_a_query_reads_or_is_about_to_read_is_not_dropped() {
    let folder = TempDir::new().expect("a folder");
    write(folder.path(), "id,floor\nkitchen,0\n");
    std::fs::write(folder.path().join("in.jsonl"), "{\"room\":\"kitchen\"}\n").expect("a file");
    let engine = open(folder.path());
    let source = format!("CREATE SOURCE readings (room TEXT) FROM 'file:{}/in.jsonl'", folder.path().display());
    let declared = format!("{source}; CREATE SINK nowhere TO 'blackhole:'; {}", create_table(folder.path()));
    said(&engine, &declared);
    const SELECT: &str = "SELECT r.floor FROM readings JOIN rooms AS r ON r.id = readings.room";
    said(&engine, &format!("CREATE VIEW floors AS {SELECT}"));
    let error = refused(&engine, "DROP TABLE rooms");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Conflict, "the table 'rooms' is used by floors"));
    said(&engine, "DROP VIEW floors");
    // Whichever comes first, there is no query without its table.
    for round in 0..30 {
        std::thread::scope(|scope| {
            let created = scope.spawn(|| run(&engine, &format!("CREATE QUERY q AS {SELECT} INTO nowhere")).is_ok());
            std::thread::sleep(std::time::Duration::from_micros(500 * round));
            let dropped = run(&engine, "DROP TABLE rooms").is_ok();
            let created = created.join().expect("no panic");
            assert!(created != dropped, "round {round}: created {created}, dropped {dropped}");
            match created {
                true => said(&engine, "DROP QUERY q"),
                false => said(&engine, &create_table(folder.path())),
            };
        });
    }
}

#[test]
fn tables_that_cannot_be_loaded_are_refused() {
    let folder = TempDir::new().expect("a folder");
    write(folder.path(), "id,floor\nkitchen,0\n");
    let engine = open(folder.path());
    let create = create_table(folder.path());
    for (wrong, message) in [
        (create.replace("file:", "mqtt:"), "a table is read from a local file"),
        (create.replace("rooms.csv", "room.csv"), "cannot read"),
        (create.replace("rooms.csv", ""), "is not a file"),
        (create.replace("CSV (header => true)", "SENML"), "a table cannot be written in SENML"),
        (create.replace("true", "'yes'"), "header is true or false"),
        (
            create.replace("floor BIGINT", "level BIGINT"),
            "line 1: the header 'id,floor' does not name the column 'level'",
        ),
        (create.replace(" (header => true)", ""), "line 1: field 'floor'"),
    ] {
        let error = refused(&engine, &wrong);
        assert!(error.message.contains(message), "{wrong}: {}", error.message);
        assert!(error.line.is_some(), "{wrong}");
    }
    assert!(engine.tables().is_empty());
    drop(engine);

    let mut config = configuration(folder.path());
    config.table_bytes_max = 10;
    let engine = Engine::open(config).expect("an engine");
    let error = refused(&engine, &create);
    assert_eq!(error.kind, ErrorKind::LimitReached);
    assert!(error.message.contains("more than 10 bytes"), "{}", error.message);
}

#[test]
fn a_table_is_there_again_after_a_restart_and_waits_for_its_file() {
    let folder = TempDir::new().expect("a folder");
    drop(with_rooms(folder.path()));
    let engine = open(folder.path());
    assert_eq!(floor_of(&engine, "kitchen"), "{\"floor\":0}");
    drop(engine);

    std::fs::remove_file(folder.path().join("rooms.csv")).expect("removed");
    let engine = open(folder.path());
    let table = engine.table("rooms").expect("it is known");
    assert!(table.state().starts_with("not running: cannot read"), "{}", table.state());
    assert_eq!(table.applications, ["floors"]);
    let error = engine.select("SELECT * FROM rooms").map(drop).expect_err("it has no rows");
    assert!(error.message.starts_with("the table 'rooms' is not running: cannot read"), "{error:?}");
    let application = engine.application("floors").expect("it is known");
    assert!(application.state().contains("the table 'rooms' is not running: cannot read"), "{}", application.state());
    assert_eq!((application.queries_running, application.queries_not_running), (0, 1));
    assert_eq!(refused(&engine, "DROP TABLE rooms").kind, ErrorKind::Conflict);
    assert!(refused(&engine, "REFRESH TABLE rooms").message.contains("cannot read"));

    write(folder.path(), "id,floor\nkitchen,7\n");
    said(&engine, "REFRESH TABLE rooms");
    let application = engine.application("floors").expect("it is known");
    assert_eq!((application.state().as_str(), application.queries_running), ("running", 1));
    assert_eq!(application.queries_not_running, 0);
    assert_eq!(floor_of(&engine, "kitchen"), "{\"floor\":7}");
}

#[test]
fn a_line_that_cannot_be_read_at_a_start_is_left_out_and_said() {
    let folder = TempDir::new().expect("a folder");
    drop(with_rooms(folder.path()));
    write(folder.path(), "id,floor\nkitchen,0\nattic,3\ncellar,below\n");
    let engine = open(folder.path());
    let table = engine.table("rooms").expect("it is known");
    assert_eq!(table.rows, 2);
    let state = table.state();
    assert!(state.starts_with("running without lines") && state.contains("line 4: field 'floor'"), "{state}");
    assert_eq!(engine.application("floors").expect("it runs").state(), "running");
    assert_eq!(floor_of(&engine, "attic"), "{\"floor\":3}");
    write(folder.path(), "id,floor\nkitchen,0\n");
    said(&engine, "REFRESH TABLE rooms");
    assert_eq!(engine.table("rooms").expect("it is known").state(), "running");
    drop(engine);
    write(folder.path(), "id,floor\ncellar,below\n");
    let state = open(folder.path()).table("rooms").expect("it is known").state();
    assert!(state.starts_with("not running: ") && state.contains("line 2"), "no line is left: {state}");
}

#[test]
fn tables_are_resources_of_the_api() {
    let folder = TempDir::new().expect("a folder");
    write(folder.path(), "id,floor\nkitchen,0\n");
    let server = TestServer::start(open(folder.path()));
    let ask = |method: &str, path: &str, body: &str| exchange(server.address, &request(method, path, "", body));
    let (status, created) = ask("POST", "/api/v1/tables", &create_table(folder.path()));
    assert_eq!(status, 200, "{created}");
    let (_, all) = ask("GET", "/api/v1/tables", "");
    assert_eq!(all, format!("{{\"tables\":[{created}]}}"));
    assert!(created.contains("{\"name\":\"floor\",\"type\":\"BIGINT\"}"), "{created}");
    write(folder.path(), "id,floor\nkitchen,0\nattic,3\n");
    let (status, refreshed) = ask("POST", "/api/v1/tables/rooms/refresh", "");
    assert!(status == 200 && refreshed.contains("\"rows\":2"), "{refreshed}");
    assert_eq!(ask("GET", "/api/v1/tables/rooms", "").1, refreshed);
    assert_eq!(ask("POST", "/api/v1/tables", "SHOW TABLES").0, 400);
    assert_eq!(ask("DELETE", "/api/v1/tables/rooms", "").0, 204);
    assert_eq!(ask("POST", "/api/v1/tables/rooms/refresh", "").0, 404);
}

/// The places in a file of the examples with their distances in metres, the nearest first.
fn nearest(file: &str, latitude: f64, longitude: f64, price: std::ops::RangeInclusive<f64>) -> Vec<(f64, String)> {
    let text = std::fs::read_to_string(examples().join("data").join(file)).expect("the file of an example");
    let mut places: Vec<(f64, String)> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect::<Vec<_>>())
        .filter(|cells| cells.get(3).is_none_or(|cell| price.contains(&cell.parse().expect("a price"))))
        .map(|cells| {
            let degrees = |index: usize| cells[index].parse::<f64>().expect("degrees").to_radians();
            let (lat, lon) = (latitude.to_radians(), longitude.to_radians());
            let half = |one: f64, other: f64| ((one - other) / 2.0).sin().powi(2);
            let share = half(degrees(1), lat) + lat.cos() * degrees(1).cos() * half(degrees(2), lon);
            (2.0 * 6_371_000.0 * share.sqrt().asin(), cells[0].to_owned())
        })
        .collect();
    places.sort_by(|one, other| one.0.total_cmp(&other.0));
    places
}

fn examples() -> std::path::PathBuf {
    Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is")).join("../../examples")
}

fn three(places: Vec<(f64, String)>) -> String {
    places.into_iter().take(3).map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_examples_find_what_is_nearest() {
    let folder = TempDir::new().expect("a folder");
    let mut config = configuration(folder.path());
    config.files.allow = vec![examples()];
    let engine = Engine::open(config).expect("an engine");
    for example in ["gas_station.sql", "parking_lots.sql"] {
        let text = std::fs::read_to_string(examples().join(example)).expect("an example");
        engine.execute(&text).into_iter().for_each(|answer| drop(answer.expect(example)));
    }
    said(&engine, "CREATE QUERY s FROM APPLICATION gas_station WITH (car => 'rui', lowest => 1.5, radius => 3000)");
    said(&engine, "CREATE QUERY p FROM APPLICATION parking_lots WITH (car => 'rui', slow => 2)");
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listeners = ["stations", "parking"].map(|topic| {
        let mut listener = Publisher::connect(broker);
        listener.subscribe(&format!("car/rui/{topic}"));
        listener
    });
    let mut car = Publisher::connect(broker);
    let (latitude, longitude) = (41.1579, -8.6291);
    for (age_ms, speed) in [(60_000, 1.0), (55_000, 2.0), (40_000, 30.0)] {
        let ts = now_ms() - age_ms;
        car.publish(
            "car/rui/position",
            &format!("{{\"ts\": {ts}, \"lat\": {latitude}, \"lon\": {longitude}, \"speed\": {speed}}}"),
        );
    }
    let mut stations = nearest("stations.csv", latitude, longitude, 1.5..=1.8);
    stations.retain(|(distance, _)| *distance < 3000.0);
    assert!(stations.len() > 3, "the example has something to choose from");
    let answer = String::from_utf8(listeners[0].next().1).expect("text");
    assert_eq!(answer, format!("{{\"stations\":\"{}\"}}", three(stations)));
    let answer = String::from_utf8(listeners[1].next().1).expect("text");
    assert_eq!(answer, format!("{{\"lots\":\"{}\"}}", three(nearest("lots.csv", latitude, longitude, 0.0..=0.0))));
}

/// A script of somebody else does not send any file of this machine.
#[test]
fn only_files_below_the_folder_of_a_script_are_sent() {
    let folder = TempDir::new().expect("a folder");
    let (data, scripts) = (folder.path().join("data"), folder.path().join("scripts"));
    for folder in [&data, &scripts] {
        std::fs::create_dir(folder).expect("a folder");
    }
    for folder in [folder.path(), &scripts] {
        write(folder, "id\nkitchen\n");
    }
    let engine = open(&data);
    let server = TestServer::start(engine.clone());
    let script = scripts.join("app.sql");
    let registered = |comment: &str, path: &str| {
        let format = "FORMAT CSV (header => true)";
        let table = format!("/* é */ CREATE TABLE rooms (id TEXT) {comment}\n /* é */ FROM 'file:{path}' {format};");
        std::fs::write(&script, format!("-- first\n{table}\n{APPLICATION}").replace("r.floor", "r.id"))
            .expect("a script");
        let mut register = command(&["app", "register"]);
        register.current_dir(&scripts).env("RIVULET_SERVER", server.url()).arg(&script);
        let done = register.output().expect("the program");
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let absolute = scripts.join("rooms.csv").display().to_string();
    for path in [&absolute, "../rooms.csv", "./../scripts/rooms.csv"] {
        let (is_done, said) = registered("", path);
        assert!(!is_done && said.contains("cannot read"), "{path}: {said}");
    }
    // The rows go where the address stands, not into what is before it.
    let (is_done, said) = registered("/* from 'file:./rooms.csv' */", "./rooms.csv");
    assert!(is_done && said.contains("table rooms has 1 row"), "{said}");
}
