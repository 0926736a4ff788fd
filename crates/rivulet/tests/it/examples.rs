//! Every example is registered, by the real program, and so is the query that its comments show.

use rivulet_testing::page::root;
use tempfile::TempDir;

use crate::server::{Server, free_port};

#[test]
fn every_example_runs_and_so_does_its_query() {
    let folder = TempDir::new().expect("a folder");
    let mqtt = free_port();
    let settings =
        [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_FILES_ALLOW", root().display().to_string())];
    let server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    let mut count = 0;
    let folders = ["examples", "examples/recipes"].map(|folder| std::fs::read_dir(root().join(folder)));
    for entry in folders.into_iter().flat_map(|entries| entries.expect("the examples")) {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "sql") {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("text");
        server.sql_ok(&text);
        let query: String =
            text.lines().skip_while(|line| !line.contains("-- CREATE QUERY")).map(|line| &line[3..]).collect();
        server.sql_ok(&query);
        count += 1;
    }
    assert!(count >= 4);
    assert_eq!(server.status()["queries_running"], count);
}
