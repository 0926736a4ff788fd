//! What the README and the examples say is done: by the real program, with what they show as the expected answers.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{Publisher, Server, free_port, now_ms, rivulet, said};

fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this")).join("../..")
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("the README")
}

/// What stands in a text between `begin` and the next `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).unwrap_or_else(|| panic!("the README has {begin}")).1;
    rest.split_once(end).unwrap_or_else(|| panic!("the README has {end} after {begin}")).0
}

#[test]
fn the_five_minutes_of_the_readme_end_as_it_says() {
    let readme = readme();
    let folder = TempDir::new().expect("a folder");
    let server = Server::start(folder.path());

    let script = between(&readme, "rivulet sql -c \"", "\n\"\n").replace("\\$", "$");
    let output = rivulet().args(["sql", "-c", &script]).env("RIVULET_SERVER", server.url()).output().expect("its end");
    assert!(output.status.success(), "{}", said(&output));
    let query = between(&readme, "rivulet query watch ", "\n");
    let mut results = server.watch(query);
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe(between(&readme, "mosquitto_sub -v -t '", "'"));

    let times: u64 = between(&readme, "for i in $(seq ", ")").parse().expect("a number");
    let topic = between(&readme, "mosquitto_pub -t ", " ");
    let payload = between(&readme, "-m \"", "\"; sleep 1").replace("\\\"", "\"");
    assert!(payload.contains("$(date +%s%3N)"), "{payload}");
    let mut sensor = Publisher::connect(server.mqtt);
    for second in 0..times {
        // The thermometer's clock goes on for a second where the README sleeps for one.
        let time_ms = now_ms() as u64 + second * 1000;
        sensor.publish(topic, &payload.replace("$(date +%s%3N)", &time_ms.to_string()));
    }
    let shown = between(&readme, "\n`{", "` arrives on the topic");
    let shown: Value = serde_json::from_str(&format!("{{{shown}")).expect("a result in JSON");
    assert_eq!(results.next(), Some(shown.clone()), "on the screen that watches");
    let (topic, payload) = listener.next();
    assert_eq!(topic, between(&readme, "arrives on the topic `", "`"));
    assert_eq!(serde_json::from_slice::<Value>(&payload).expect("JSON"), shown);
}

#[test]
fn the_big_query_of_the_readme_runs() {
    let script = between(&readme(), "rivulet run -c \"", "\"\n").to_owned();
    let output = rivulet().args(["run", "--json", "-c", &script]).output().expect("its end");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 5, "{}", said(&output));
}

#[test]
fn the_big_query_over_mqtt_of_the_readme_runs_on_a_server() {
    let readme = readme();
    let folder = TempDir::new().expect("a folder");
    let server = Server::start(folder.path());
    server.sql_ok(&format!(
        "CREATE SOURCE readings (home{}INTO means",
        between(&readme, "CREATE SOURCE readings (home", "INTO means")
    ));
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("mean/#");
    let mut sensor = Publisher::connect(server.mqtt);
    for (ts, value) in [(0, 20), (1_000, 22), (60_000, 30)] {
        sensor.publish("home/7/temperature", &json!({"ts": ts, "value": value}).to_string());
    }
    let (topic, payload) = listener.next();
    let mean: Value = serde_json::from_slice(&payload).expect("JSON");
    assert_eq!((topic.as_str(), &mean), ("mean/7", &json!({"mean": 21.0, "window_end": 60_000})));
}

#[test]
fn queries_name_their_own_topics_as_the_readme_shows() {
    let readme = readme();
    let folder = TempDir::new().expect("a folder");
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION hot INPUT readings (value DOUBLE) FORMAT JSON OUTPUT FORMAT JSON
         AS SELECT value FROM readings WHERE value > 30",
    );
    let with = between(&readme, "names its own, as in `", "`");
    server.sql_ok(&format!("CREATE QUERY q FROM APPLICATION hot {with}"));
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe(&between(with, "output => '", "'").replace("mqtt:", ""));
    let topic = between(with, "input => '", "'").replace("mqtt:", "").replace('+', "oven");
    Publisher::connect(server.mqtt).publish(&topic, "{\"value\": 31.5}");
    assert_eq!(listener.next().1, b"{\"value\":31.5}");
}

#[test]
fn the_configuration_in_the_readme_is_one() {
    let folder = TempDir::new().expect("a folder");
    let password = folder.path().join("password");
    std::fs::write(&password, "rose").expect("a file");
    let readme = readme();
    let configuration = between(&readme, "```toml\n", "```");
    let password_file = between(configuration, "password_file = \"", "\"");
    let configuration = configuration.replace(password_file, password.to_str().expect("a path"));
    let file = folder.path().join("rivulet.toml");
    std::fs::write(&file, configuration).expect("a file");
    let output = rivulet().arg("config").current_dir(folder.path()).output().expect("its end");
    assert!(output.status.success(), "{}", said(&output));
    let shown = String::from_utf8(output.stdout).expect("text");
    for value in ["\"0.0.0.0:8080\"", "\"mqtts://broker.example:8883\""] {
        assert!(shown.contains(value), "{value} in {shown}");
    }
}

#[test]
fn every_example_runs_and_so_does_its_query() {
    let folder = TempDir::new().expect("a folder");
    let mqtt = free_port();
    let settings =
        [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_FILES_ALLOW", root().display().to_string())];
    let server = Server::spawn(folder.path(), mqtt, &settings);
    server.wait_until_ready();
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("examples")).expect("the examples") {
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
