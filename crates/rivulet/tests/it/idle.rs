//! A server that has nothing to do sleeps.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::server::{Publisher, Server, free_port, now_ms, wait};

/// How often each thread of a process has waited for something, by its number. A load beside adds nothing: being
/// interrupted is counted elsewhere.
fn waits(process_id: u32) -> HashMap<String, (String, u64)> {
    let threads = std::fs::read_dir(format!("/proc/{process_id}/task")).unwrap();
    let of_thread = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let line = |start: &str| Some(status.lines().find_map(|line| line.strip_prefix(start))?.trim().to_owned());
        Some((path.display().to_string(), (line("Name:")?, line("voluntary_ctxt_switches:")?.parse().ok()?)))
    };
    threads.filter_map(|thread| of_thread(thread.ok()?.path())).collect()
}

#[test]
fn an_idle_server_wakes_at_most_ten_times_a_second() {
    let folder = TempDir::new().unwrap();
    // A checkpoint of what the event has changed is no idleness.
    let server = Server::start_at(folder.path(), free_port(), 0);
    server.sql_ok(
        "CREATE APPLICATION means (id TEXT)
         INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON
         AS SELECT avg(n) AS mean FROM readings GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '1 minute');
         CREATE QUERY kim FROM APPLICATION means WITH (id => 'kim')",
    );
    let mut publisher = Publisher::connect(server.mqtt);
    publisher.publish("in/kim", &json!({"ts": now_ms() as u64, "n": 1}).to_string());
    wait("the event", || server.status()["total"]["events"] == 1);
    drop(publisher);
    // The threads that have answered end, or find nothing more.
    std::thread::sleep(Duration::from_secs(2));
    let (before, begun) = (waits(server.id()), Instant::now());
    std::thread::sleep(Duration::from_secs(10));
    let (after, seconds) = (waits(server.id()), begun.elapsed().as_secs_f64());
    let mut by_name: HashMap<&str, u64> = HashMap::new();
    for (thread, (name, waits)) in &after {
        *by_name.entry(name).or_default() += waits - before.get(thread).map_or(0, |(_, waits)| *waits);
    }
    let all: u64 = by_name.values().sum();
    assert!(all as f64 <= 10.0 * seconds, "{all} in {seconds:.1} s: {by_name:?}");
}
