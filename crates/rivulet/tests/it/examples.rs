//! The real program registers every example, and the query in its comments.

use rivulet_testing::page::root;
use tempfile::TempDir;

use crate::server::{Server, free_port, rivulet};

/// The server may read no file of the examples: the rows of their tables are sent to it, and are there after a restart.
#[test]
fn every_example_runs_and_so_does_its_query() {
    let folder = TempDir::new().expect("a folder");
    let mqtt = free_port();
    let settings = [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string())];
    let mut server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    let mut count = 0;
    let folders = ["examples", "examples/recipes"].map(|folder| std::fs::read_dir(root().join(folder)));
    for entry in folders.into_iter().flat_map(|entries| entries.expect("the examples")) {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "sql") {
            continue;
        }
        // From another folder: paths of tables begin where the script is.
        let mut register = rivulet();
        register.current_dir(folder.path()).args(["app", "register", "--server", &server.url()]).arg(&path);
        let done = register.output().expect("the program");
        assert!(done.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&done.stderr));
        let text = std::fs::read_to_string(path).expect("text");
        let query: String =
            text.lines().skip_while(|line| !line.contains("-- CREATE QUERY")).map(|line| &line[3..]).collect();
        server.sql_ok(&query);
        count += 1;
    }
    assert!(count >= 30);
    assert_eq!(server.status()["queries_running"], count);
    let tables = || {
        let answer = ureq::get(format!("{}/api/v1/tables", server.url())).call().expect("an answer");
        let text = answer.into_body().read_to_string().expect("text");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["tables"].clone()
    };
    let before = tables();
    let rows: Vec<u64> = before.as_array().expect("a list").iter().filter_map(|one| one["rows"].as_u64()).collect();
    assert_eq!(rows, [4, 300, 1_000, 200], "{before}");
    assert!(before.to_string().len() < 10_000, "the rows are not shown: {before}");
    server.kill_9();
    let server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    assert_eq!(server.status()["queries_running"], count, "{before}");
}
