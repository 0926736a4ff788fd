//! Links of a gateway whose clock is wrong, whose disk or spool is full, or which cannot deliver as it was told to: the
//! user reads why, nobody else is harmed, and nothing else is lost.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use super::kill_disk::Disk;
use super::links::{numbers, start};
use super::links_bad::{sink, subscribed, wait_told};
use super::server::{Publisher, Server, free_port, now_ms, rivulet, said, wait};

/// Rows have the times of their gateway. What is an hour ahead is refused, so that it makes no others late; what is an
/// hour behind is late where a window does not wait so long.
#[test]
fn a_clock_that_is_an_hour_wrong_stops_nothing_and_moves_no_other_row() {
    const HOUR_MS: u64 = 3_600_000;
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let cloud = start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    for (stream, query) in [
        ("timed", "SELECT count(*) AS many, sum(n) AS total FROM timed GROUP BY tumble(ts, INTERVAL '10 seconds')"),
        ("plain", "SELECT n FROM plain"),
    ] {
        let event_time = if stream == "timed" { " EVENT TIME" } else { "" };
        cloud.sql_ok(&format!("CREATE SOURCE {stream} (ts TIMESTAMP{event_time}, n BIGINT) FROM 'link:{stream}'"));
        cloud.sql_ok(&format!("CREATE SINK {stream}_there TO 'mqtt:{stream}' FORMAT JSON"));
        cloud.sql_ok(&format!("CREATE QUERY {stream}_q AS {query} INTO {stream}_there"));
    }
    let [mut windows, mut plain] = ["timed", "plain"].map(|topic| subscribed(&cloud, topic));
    let gateway = start(gateway_folder.path(), &[]);
    gateway.sql_ok("CREATE SOURCE readings (ts TIMESTAMP, n BIGINT) FROM 'mqtt:in' FORMAT JSON");
    for stream in ["timed", "plain"] {
        gateway.sql_ok(&format!("CREATE SINK {stream}_up TO 'link:{link}/{stream}'"));
        gateway.sql_ok(&format!("CREATE QUERY {stream}_q AS SELECT ts, n FROM readings INTO {stream}_up"));
    }
    let windowed = || {
        let status = cloud.status();
        let queries = status["big_queries"].as_array().unwrap();
        queries.iter().find(|one| one["name"] == "timed_q").unwrap().clone()
    };
    // A window of ten minutes ago.
    let begin_ms = (now_ms() as u64 - 600_000) / 10_000 * 10_000;
    let mut devices = Publisher::connect(gateway.mqtt);
    let mut send = |ts_ms: u64, n: u64| {
        devices.publish("in", &format!("{{\"ts\":{ts_ms},\"n\":{n}}}"));
        assert_eq!(plain.next_json().1["n"], n, "whatever its time is");
    };
    send(begin_ms, 1);
    send(begin_ms + 1_000, 2);
    wait("the first rows", || windowed()["rows_in"] == 2);
    send(now_ms() as u64 + HOUR_MS, 4);
    wait("one to be refused", || windowed()["refused"]["future"] == 1);
    send(begin_ms - HOUR_MS, 8);
    wait("one to be late", || windowed()["refused"]["late"] == 1);
    send(begin_ms + 2_000, 16);
    send(begin_ms + 20_000, 32);
    assert_eq!(windows.next_json().1, json!({"many": 3, "total": 19}));
    assert_eq!(sink(&gateway, "timed_q")["state"], "ok");
}

/// A gateway whose query `q` sends the rows of a file with these options, and how the file gets more rows: each has a
/// number and a thousand bytes.
fn follow_file(folder: &Path, link: SocketAddr, options: &str) -> (Server, impl Fn(std::ops::Range<u64>) + use<>) {
    let input = folder.join("in.jsonl");
    std::fs::write(&input, "").unwrap();
    let gateway = start(folder, &[]);
    gateway.sql_ok(
        "CREATE SOURCE numbers (n BIGINT, padding TEXT) FROM 'file:in.jsonl' FORMAT JSON WITH (follow => true)",
    );
    gateway.sql_ok(&format!("CREATE SINK up TO 'link:{link}/readings' WITH (compression => 'none', {options})"));
    gateway.sql_ok("CREATE QUERY q AS SELECT n, padding FROM numbers INTO up");
    let write = move |numbers: std::ops::Range<u64>| {
        let padding = "x".repeat(1_000);
        let lines: String = numbers.map(|n| format!("{{\"n\":{n},\"padding\":\"{padding}\"}}\n")).collect();
        std::fs::OpenOptions::new().append(true).open(&input).unwrap().write_all(lines.as_bytes()).unwrap();
    };
    (gateway, write)
}

/// The disk is a small file system in memory. The process needs the right to mount it.
#[test]
fn a_disk_that_is_full_holds_up_the_query_and_is_told_and_no_row_is_lost() {
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let Some(disk) = Disk::mount(&gateway_folder.path().join("data"), "200m") else { return };
    let often = ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned());
    let cloud = start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string()), often]);
    for (stream, to) in [
        ("readings", "'file:out/' FORMAT JSON WITH (commit_interval => '300 ms')"),
        ("beside", "'mqtt:aside' FORMAT JSON"),
    ] {
        cloud.sql_ok(&format!("CREATE SOURCE {stream} (n BIGINT) FROM 'link:{stream}'"));
        cloud.sql_ok(&format!("CREATE SINK {stream}_out TO {to}"));
        cloud.sql_ok(&format!("CREATE QUERY {stream}_in AS SELECT n FROM {stream} INTO {stream}_out"));
    }
    let mut aside = subscribed(&cloud, "aside");
    let (gateway, write) = follow_file(gateway_folder.path(), link, "flush => '10 ms'");
    gateway.sql_ok("CREATE SOURCE beside (n BIGINT) FROM 'mqtt:beside' FORMAT JSON");
    gateway.sql_ok(&format!("CREATE SINK aside TO 'link:{link}/beside' WITH (delivery => 'none')"));
    gateway.sql_ok("CREATE QUERY r AS SELECT n FROM beside INTO aside");
    let mut goes_on = |n: u64| {
        Publisher::connect(gateway.mqtt).publish("beside", &format!("{{\"n\":{n}}}"));
        assert_eq!(aside.next_json().1["n"], n);
    };
    write(0..1_000);
    wait("the first rows", || sink(&gateway, "q")["rows"] == 1_000);
    goes_on(0);

    disk.fill();
    // More than there is room for in memory.
    const ALL: u64 = 61_000;
    write(1_000..ALL);
    wait_told(&gateway, "q", "what waits to be sent cannot be written: there is no room");
    wait("rows to wait", || sink(&gateway, "q")["waiting_rows"].as_u64() > Some(1_000));
    wait("every way to look to say so", || {
        let told = [gateway.sql_ok("DESCRIBE QUERY q").to_string(), gateway.health("ready").unwrap().1];
        told.iter().all(|told| told.contains("what waits to be sent cannot be written"))
    });
    (1..20).for_each(&mut goes_on);
    let waiting = sink(&gateway, "q");
    assert!(waiting["rows"].as_u64().unwrap() + waiting["waiting_rows"].as_u64().unwrap() < ALL, "{waiting}");

    disk.make_room();
    wait("all to be acknowledged", || sink(&gateway, "q")["rows"] == ALL);
    wait("all to be final", || numbers(&cloud_folder.path().join("out")).len() as u64 >= ALL);
    assert!(numbers(&cloud_folder.path().join("out")).into_iter().eq(0..ALL));
    assert_eq!(sink(&gateway, "q")["state"], "ok");
    goes_on(20);
    // Before its disk goes.
    drop(gateway);
}

#[test]
fn a_full_spool_drops_the_oldest_rows_and_counts_them_and_the_others_come_in_order() {
    const ALL: u64 = 5_000;
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let options = "buffer_bytes => 10000, spool_bytes_max => '1 MiB', when_full => 'drop_oldest'";
    let (gateway, write) = follow_file(gateway_folder.path(), link, options);
    write(0..ALL);
    wait("all rows to be read", || {
        let sink = sink(&gateway, "q");
        sink["rejected_rows"].as_u64().unwrap() + sink["waiting_rows"].as_u64().unwrap() == ALL
    });
    // All of them come to the disk, and each checkpoint looks whether there is room.
    gateway.sql_ok("CHECKPOINT");
    wait("the spool to have room again", || {
        gateway.sql_ok("CHECKPOINT");
        sink(&gateway, "q")["waiting_bytes"].as_u64() < Some(1 << 20)
    });
    let dropped = sink(&gateway, "q")["rejected_rows"].as_u64().unwrap();
    assert!(dropped > ALL / 2 && dropped < ALL, "{dropped}");

    let cloud = start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    cloud.sql_ok("CREATE SINK there TO 'mqtt:there' FORMAT JSON");
    let mut there = subscribed(&cloud, "there");
    cloud.sql_ok("CREATE SOURCE up (n BIGINT) FROM 'link:readings'");
    cloud.sql_ok("CREATE QUERY q AS SELECT n FROM up INTO there");
    for n in dropped..ALL {
        assert_eq!(there.next_json().1["n"], n);
    }
    cloud.sql_ok("CHECKPOINT");
    wait("all to be acknowledged", || sink(&gateway, "q")["waiting_rows"] == 0);
    assert_eq!(sink(&gateway, "q")["rejected_rows"], dropped);
}

#[test]
fn a_delivery_that_cannot_be_kept_is_refused_when_the_query_is_created() {
    let folder = TempDir::new().unwrap();
    let server = start(folder.path(), &[("RIVULET_CHECKPOINT_ENABLED", "false".to_owned())]);
    server.sql_ok("CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:in' FORMAT JSON");
    server.sql_ok("CREATE SINK up TO 'link:127.0.0.1:9/readings' WITH (delivery => 'exactly_once')");
    let error = server.sql("CREATE QUERY q AS SELECT n FROM numbers INTO up")["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("is exactly_once, and no checkpoints are made"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("set checkpoint.enabled, or write 'at_least_once'"), "{error}");
    assert!(server.status()["big_queries"].as_array().is_none_or(Vec::is_empty), "nothing is left of it");

    // Without a server there is no folder for what waits.
    std::fs::write(folder.path().join("in.jsonl"), "{\"n\":1}\n").unwrap();
    for (delivery, problem) in [
        ("exactly_once", "is exactly_once, and no checkpoints are made"),
        ("at_least_once", "needs a data folder, which only a server has"),
    ] {
        let script = format!(
            "CREATE SOURCE numbers (n BIGINT) FROM 'file:in.jsonl' FORMAT JSON; \
             CREATE SINK up TO 'link:127.0.0.1:9/readings' WITH (delivery => '{delivery}'); \
             INSERT INTO up SELECT n FROM numbers"
        );
        let output = rivulet().args(["run", "-c", &script]).current_dir(folder.path()).output().unwrap();
        let told = said(&output);
        assert!(!output.status.success() && told.contains(problem) && told.contains("hint:"), "{told}");
    }
}
