//! Event times in seconds instead of milliseconds: there are no results, and the server says why.

use serde_json::json;
use tempfile::TempDir;

use crate::server::{Publisher, Server, now_ms, wait};

/// A line of the metrics.
fn metric(server: &Server, line: &str) -> bool {
    let url = format!("{}/metrics", server.url());
    let text = ureq::get(url).call().unwrap().body_mut().read_to_string().unwrap();
    text.lines().any(|one| one == line)
}

#[test]
fn times_in_seconds_are_told_of_the_input_and_the_source_that_has_them() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION sums (id TEXT)
         INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         INPUT others (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:others/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON
         AS SELECT readings.n FROM readings JOIN others
         ON others.ts BETWEEN readings.ts AND readings.ts + INTERVAL '1 minute';
         CREATE QUERY kim FROM APPLICATION sums WITH (id => 'kim');
         CREATE SOURCE readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/+' FORMAT JSON;
         CREATE SOURCE others (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:others/+' FORMAT JSON;
         CREATE SINK nowhere TO 'blackhole:';
         CREATE QUERY big AS SELECT count(*) AS c
         FROM (SELECT ts, n FROM readings UNION ALL SELECT ts, n FROM others) AS both
         GROUP BY tumble(ts, INTERVAL '1 minute') INTO nowhere",
    );
    let mut publisher = Publisher::connect(server.mqtt);
    let told = || {
        let status = server.status();
        let of_application = status["applications"][0]["warnings"].to_string();
        let of_query = status["big_queries"][0]["reason"].to_string();
        [of_application, of_query].map(|text| if text == "null" { String::new() } else { text })
    };
    let rows = || server.status()["big_queries"][0]["rows_in"].as_u64();
    for topic in ["in/kim", "others/kim"] {
        publisher.publish(topic, &json!({"ts": now_ms() as u64, "n": 1}).to_string());
    }
    wait("the events", || server.status()["total"]["events"] == 2 && rows() == Some(2));
    assert_eq!(told(), ["", ""], "milliseconds are as they should be");
    for _ in 0..3 {
        publisher.publish("others/kim", &json!({"ts": now_ms() as u64 / 1_000, "n": 1}).to_string());
    }
    let expected = "'others': 3 events have times of January 1970";
    wait("both to be told", || told().iter().all(|text| text.contains(expected)));
    assert!(told().iter().all(|text| !text.contains("readings")), "{:?}", told());
    let status = server.status();
    for one in [&status["applications"][0], &status["big_queries"][0]] {
        assert_eq!(one["times_in_seconds"], json!({"others": 3}), "{one}");
    }
    assert!(metric(&server, "rivulet_times_in_seconds_total{application=\"sums\",input=\"others\"} 3"));
    assert!(metric(&server, "rivulet_big_query_times_in_seconds_total{query=\"big\",source=\"others\"} 3"));

    let described = |statement: &str| server.sql_ok(statement).to_string();
    let text = described("DESCRIBE APPLICATION sums");
    assert!(text.contains(expected), "{text}");
    let text = described("DESCRIBE QUERY big");
    assert!(text.contains(expected) && text.contains("running"), "{text}");
    let text = described("DESCRIBE SOURCE others");
    assert!(text.contains("read by the query 'big': 3 events have times of January 1970"), "{text}");
    let text = described("DESCRIBE SOURCE readings");
    assert!(!text.contains("January 1970"), "{text}");
}
