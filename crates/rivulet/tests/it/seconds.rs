//! Event times in seconds where milliseconds are meant: nothing comes out, and it is said why.

use serde_json::json;
use tempfile::TempDir;

use crate::server::{Publisher, Server, now_ms, wait};

#[test]
fn times_in_seconds_are_told() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION sums (id TEXT) INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON \
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT sum(n) AS total FROM readings GROUP BY tumble(ts, INTERVAL '1 minute'); \
         CREATE QUERY kim FROM APPLICATION sums WITH (id => 'kim'); \
         CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/+' FORMAT JSON; \
         CREATE SINK nowhere TO 'blackhole:'; \
         CREATE QUERY big AS SELECT count(*) AS c FROM readings GROUP BY tumble(ts, INTERVAL '1 minute') INTO nowhere",
    );
    let mut publisher = Publisher::connect(server.mqtt);
    let told = || {
        let status = server.status();
        let of_application = status["applications"][0]["warnings"][0].as_str().map(str::to_owned);
        let of_query = status["big_queries"][0]["reason"].as_str().map(str::to_owned);
        (of_application, of_query)
    };
    publisher.publish("in/kim", &json!({"ts": now_ms() as u64, "n": 1}).to_string());
    wait("the event", || server.status()["total"]["events"] == 1 && server.status()["big_queries"][0]["rows_in"] == 1);
    assert_eq!(told(), (None, None), "milliseconds are as they should be");
    for _ in 0..3 {
        publisher.publish("in/kim", &json!({"ts": now_ms() as u64 / 1_000, "n": 1}).to_string());
    }
    let expected = "3 events have times of January 1970";
    let is_told = |text: &Option<String>| text.as_ref().is_some_and(|text| text.starts_with(expected));
    wait("both to be told", || {
        let (of_application, of_query) = told();
        is_told(&of_application) && is_told(&of_query)
    });
    let described = server.sql_ok("DESCRIBE APPLICATION sums").to_string();
    assert!(described.contains(expected), "{described}");
    let described = server.sql_ok("DESCRIBE QUERY big").to_string();
    assert!(described.contains(expected) && described.contains("running"), "{described}");
}
