//! What new users see: messages for mistaken commands, and hints that say what to do.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use tempfile::TempDir;

use crate::server::{Server, rivulet};

const LOOKS: &str = "CREATE TABLE rooms (room TEXT, floor BIGINT) FROM 'file:rooms.csv' FORMAT CSV (header => true);
CREATE APPLICATION looks (home TEXT)
INPUT readings (room TEXT, v DOUBLE) FROM 'mqtt:look/{home}/t' FORMAT JSON
OUTPUT 'mqtt:home/{home}/look' FORMAT JSON
AS SELECT readings.room, rooms.floor, v FROM readings JOIN rooms ON readings.room = rooms.room;";

fn run(server: &Server, folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = rivulet();
    command.args(arguments).current_dir(folder).env("RIVULET_SERVER", server.url());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// What a command says on standard error.
fn says(server: &Server, folder: &Path, arguments: &[&str]) -> String {
    String::from_utf8(run(server, folder, arguments, "").stderr).unwrap()
}

fn sql(server: &Server, text: &str) -> String {
    says(server, Path::new("."), &["sql", "-c", text])
}

#[test]
fn a_second_register_says_what_it_did_and_what_else_there_is() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    let file = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let register = |arguments: &[&str]| says(&server, folder.path(), &[&["app", "register"], arguments].concat());
    file("rooms.csv", "room,floor\na,1\n");
    file("looks.sql", LOOKS);
    assert!(register(&["looks.sql"]).contains("application looks is registered\n"));
    assert!(register(&["looks.sql"]).contains("registered already with this text, nothing was done"));
    file("looks.sql", &LOOKS.replace("floor, v", "floor, v * 2 AS v"));
    let said = register(&["looks.sql"]);
    assert!(said.contains("with another text exists") && said.contains("register --replace looks.sql"), "{said}");
    file("rooms.csv", "room,floor\na,2\n");
    let said = register(&["looks.sql"]);
    assert!(said.contains("a table 'rooms' with another text") && said.contains("--replace looks.sql"), "{said}");
    assert!(register(&["--replace", "looks.sql"]).contains("application looks replaced"));

    let said = sql(&server, "DROP TABLE rooms");
    assert!(said.contains("drop them first, or put other rows in the place of these with CREATE OR REPLACE"), "{said}");
    fs::remove_file(folder.path().join("rooms.csv")).unwrap();
    file("looks.sql", &LOOKS.replace("TABLE rooms", "TABLE halls"));
    let said = register(&["looks.sql"]);
    assert!(said.contains("note: there is no file ") && said.contains("rooms.csv here\n"), "{said}");
    file("rooms.csv", "room,floor\na,2\n");
    file("looks.sql", &LOOKS.replace("TABLE rooms", "TABLE halls").replace("(header => true)", ""));
    let said = register(&["looks.sql"]);
    assert!(said.contains("found floor, its name: a first line with names is declared by"), "{said}");
}

#[test]
fn nothing_of_a_script_is_run_that_a_server_never_runs_as_a_whole() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    for (second, at) in [
        ("SELEC n FROM t;", "line 2, column 1"),
        ("SELECT n FRM t;", "line 2, column 14"),
        ("SELECT n FROM t;", "line 2, column 1"),
        ("EXPLAIN ANALYZE SELECT n FROM t;", "line 2, column 1"),
    ] {
        let script = format!("CREATE SINK s TO 'blackhole:';\n{second}\n");
        let said = run(&server, folder.path(), &["sql"], &script);
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(said.contains(at) && said.contains("no statement ran"), "{script}{said}");
    }
    assert!(!server.sql_ok("SHOW SINKS").to_string().contains("blackhole"));
}

#[test]
fn errors_stand_where_they_belong_and_say_what_to_do() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION warm (home TEXT, most DOUBLE, width INTERVAL DEFAULT INTERVAL '1 minute')
         INPUT readings (ts TIMESTAMP EVENT TIME, v DOUBLE) FROM 'mqtt:home/{home}/t' FORMAT JSON
         OUTPUT 'mqtt:home/{home}/mean' FORMAT JSON
         AS SELECT avg(v) AS v, window_end FROM readings WHERE v > $most GROUP BY tumble(ts, $width);
         CREATE QUERY q FROM APPLICATION warm WITH (home => '1', most => 1.0)",
    );
    let create = "CREATE QUERY p FROM APPLICATION warm\nWITH (home => '1', most => 1.0, width => '0 seconds')";
    for (statement, parts) in [
        (create, &["the width of the window must be greater than zero", "line 2, column 33"][..]),
        ("ALTER QUERY q SET (width => '-5 seconds')", &["line 1, column 20"]),
        ("ALTER APPLICATION warm lateness INTERVAL '1 second'", &["SET (lateness => INTERVAL '5 seconds')"]),
        (
            "ALTER APPLICATION warm SET (lateness => INTERVAL '1 second')",
            &["application warm replaced, 1 query goes on"],
        ),
        ("ALTER QUERY q SET (most => NULL)", &["warning: the parameter most is NULL, and no comparison with NULL"]),
    ] {
        let said = sql(&server, statement);
        assert!(parts.iter().all(|part| said.contains(part)), "{statement}: {said}");
    }
    server.sql_ok("ALTER QUERY q SET (most => 1)");
    let set = says(&server, folder.path(), &["query", "set", "q", "most=NULL"]);
    let json = run(&server, folder.path(), &["--json", "query", "show", "q"], "");
    assert!(String::from_utf8(json.stdout).unwrap().contains("\"why\""), "{set}");

    let functions = server.sql_ok("SHOW FUNCTIONS LIKE 'ROW%'").to_string();
    assert!(functions.contains("row_number"), "{functions}");
    let described = server.sql_ok("DESCRIBE FUNCTION Dense_Rank").to_string();
    assert!(described.contains("dense_rank() OVER (PARTITION BY window_start, window_end ORDER BY x)"), "{described}");
    let help = run(&server, folder.path(), &["query", "--help"], "");
    assert!(String::from_utf8(help.stdout).unwrap().contains("rivulet query why north_1"));
}
