//! Links between servers: two programs, real sockets, and a network between them that breaks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::server::{Publisher, Server, free_port, wait};

/// A server with these settings.
pub(super) fn start(folder: &Path, settings: &[(&str, String)]) -> Server {
    let mqtt = free_port();
    let own = [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_HOSTS_ALLOW", "127.0.0.1".to_owned())];
    let server = Server::spawn(folder, mqtt, &[&own[..], settings].concat());
    server.wait_until_ready();
    server
}

/// A server in the cloud, at this address, with a query that publishes what comes over a link.
pub(super) fn start_cloud(folder: &Path, link: SocketAddr) -> Server {
    let cloud = start(folder, &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    declare_cloud(&cloud);
    cloud
}

pub(super) fn declare_cloud(cloud: &Server) {
    cloud.sql_ok("CREATE SOURCE up (n BIGINT, name TEXT) FROM 'link:readings'");
    cloud.sql_ok("CREATE SINK there TO 'mqtt:there' FORMAT JSON");
    cloud.sql_ok("CREATE QUERY q AS SELECT n, name FROM up INTO there");
}

/// A gateway that sends what comes to its broker.
pub(super) fn start_gateway(folder: &Path, link: SocketAddr, options: &str) -> Server {
    let gateway = start(folder, &[]);
    gateway.sql_ok("CREATE SOURCE readings (n BIGINT, name TEXT) FROM 'mqtt:in' FORMAT JSON");
    gateway.sql_ok(&format!("CREATE SINK up TO 'link:{link}/readings' WITH ({options})"));
    gateway.sql_ok("CREATE QUERY q AS SELECT name, n FROM readings INTO up");
    gateway
}

pub(super) fn publish(gateway: &Server, numbers: std::ops::Range<u64>) {
    let mut publisher = Publisher::connect(gateway.mqtt);
    numbers.for_each(|n| publisher.publish("in", &format!("{{\"n\":{n},\"name\":\"sensor {n}\"}}")));
    publisher.wait_until_taken();
}

/// The next numbers that come out.
pub(super) fn expect(there: &mut Publisher, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (_, row) = there.next_json();
        assert_eq!((row["n"].as_u64(), row["name"].as_str()), (Some(number), Some(&*format!("sensor {number}"))));
    }
}

/// The health of the sink of the only query.
fn sink(server: &Server) -> Value {
    let status = server.status();
    let ends = status["big_queries"][0]["health"].as_array().cloned().unwrap_or_default();
    ends.into_iter().find(|end| end["kind"] == "sink").unwrap_or_default()
}

/// A way to a server, which has one connection at a time.
pub(super) struct Way {
    pub(super) address: SocketAddr,
    /// How many connections are over.
    pub(super) breaks: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Way {
    /// Breaks after so many bytes.
    fn to(target: SocketAddr, bytes_max: usize) -> Self {
        Self::that(move |from, _, is_over| {
            if let Ok(to) = TcpStream::connect(target) {
                carry(from, &to, bytes_max, is_over, &mut |_| ());
            }
        })
    }

    /// Does this with each connection, which gets the number of those before it. It has to return when it is over.
    pub(super) fn that(mut serve: impl FnMut(&TcpStream, usize, &AtomicBool) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (breaks, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counted, over) = (breaks.clone(), is_over.clone());
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let Ok((from, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                serve(&from, counted.load(Ordering::Relaxed), &over);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { address, breaks, is_over, thread: Some(thread) }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Carries bytes in both directions, until so many have been carried or it is over. What goes to the server is changed
/// before.
pub(super) fn carry(
    from: &TcpStream,
    to: &TcpStream,
    bytes_max: usize,
    is_over: &AtomicBool,
    change: &mut dyn FnMut(&mut Vec<u8>),
) {
    let mut carried = 0;
    for socket in [from, to] {
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    while carried < bytes_max && !is_over.load(Ordering::Relaxed) {
        for (mut source, mut target, is_up) in [(from, to, true), (to, from, false)] {
            let mut bytes = vec![0; 1_024];
            match source.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => {
                    carried += length;
                    bytes.truncate(length);
                    if is_up {
                        change(&mut bytes);
                    }
                    if target.write_all(&bytes).is_err() {
                        return;
                    }
                }
                Err(_) => {}
            }
        }
    }
}

#[test]
fn rows_cross_a_way_that_breaks_again_and_again_once_and_in_order() {
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let cloud = start_cloud(cloud_folder.path(), link);
    let mut there = Publisher::connect(cloud.mqtt);
    there.subscribe("there");
    let way = Way::to(link, 20_000);
    let gateway = start_gateway(gateway_folder.path(), way.address, "buffer_bytes => 1000, flush => '1 ms'");
    for hundred in 0..40 {
        publish(&gateway, hundred * 100..(hundred + 1) * 100);
        expect(&mut there, hundred * 100..(hundred + 1) * 100);
    }
    assert!(way.breaks.load(Ordering::Relaxed) >= 3, "it broke {:?} times", way.breaks);
    wait("all to be acknowledged", || sink(&gateway)["rows"] == 4_000);
}

#[test]
fn a_server_that_is_away_is_waited_for_and_what_is_wrong_is_told() {
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let gateway = start_gateway(gateway_folder.path(), link, "compression => 'none'");
    publish(&gateway, 0..10);
    wait("the gateway to say that nobody answers", || {
        sink(&gateway)["last_error"].as_str().is_some_and(|error| error.contains("refused"))
    });
    // Another door: the first byte of a link is no request.
    let mut cloud = start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    wait("that no source reads the stream", || {
        sink(&gateway)["last_error"]
            .as_str()
            .is_some_and(|error| error.contains("no source reads the stream 'readings'"))
    });
    cloud.sql_ok("CREATE SOURCE wrong (n BOOLEAN, name TEXT) FROM 'link:readings'");
    cloud.sql_ok("CREATE SINK nowhere TO 'blackhole:'");
    cloud.sql_ok("CREATE QUERY w AS SELECT n FROM wrong INTO nowhere");
    wait("that its columns do not fit", || {
        let told = sink(&gateway)["last_error"].to_string();
        told.contains("the stream has the columns (name Utf8, n Int64), and its source reads (n Boolean)")
    });
    cloud.sql_ok("DROP QUERY w");
    cloud.sql_ok("CREATE SOURCE up (n BIGINT, name TEXT) FROM 'link:readings'");
    cloud.sql_ok("CREATE SINK there TO 'mqtt:there' FORMAT JSON");
    let mut there = Publisher::connect(cloud.mqtt);
    there.subscribe("there");
    cloud.sql_ok("CREATE QUERY q AS SELECT n, name FROM up INTO there");
    expect(&mut there, 0..10);
    publish(&gateway, 10..20);
    expect(&mut there, 10..20);
    wait("the gateway to say that it works", || sink(&gateway)["state"] == "ok");
    cloud.signal("-TERM");
    assert_eq!(cloud.wait_for_end(), Some(0));
}

/// The numbers in the files of a folder, as far as they are final.
pub(super) fn numbers(folder: &Path) -> Vec<u64> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let files = files.map(|entry| entry.unwrap().path());
    let whole = files.filter(|file| !file.file_name().unwrap().to_string_lossy().starts_with('.'));
    // A file may have been renamed since.
    let texts: Vec<String> = whole.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()["n"].as_u64().unwrap();
    let mut numbers: Vec<u64> = texts.iter().flat_map(|text| text.lines()).map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn every_row_comes_once_although_both_sides_are_killed_and_the_way_breaks() {
    let (came, all) = numbers_after_kills(
        "CREATE SOURCE up (n BIGINT) FROM 'link:numbers';
         CREATE SINK there TO 'file:out/' FORMAT JSON WITH (commit_interval => '300 ms');
         CREATE QUERY q AS SELECT n FROM up INTO there",
    );
    let expected: Vec<u64> = (0..all).collect();
    assert!(came == expected, "{} rows of {all} came", came.len());
}

#[test]
fn every_row_comes_once_as_an_object_although_both_sides_are_killed_and_the_way_breaks() {
    let (came, all) = numbers_after_kills(
        "CREATE SOURCE up (object TEXT) FROM 'link:numbers' FORMAT RAW;
         CREATE SINK there TO 'file:out/' FORMAT JSON WITH (commit_interval => '300 ms');
         CREATE QUERY q AS SELECT CAST(json_value(object, '$.n') AS BIGINT) AS n FROM up INTO there",
    );
    let expected: Vec<u64> = (0..all).collect();
    assert!(came == expected, "{} rows of {all} came", came.len());
}

#[test]
fn an_input_of_an_application_loses_no_row_although_both_sides_are_killed_and_the_way_breaks() {
    let (mut came, all) = numbers_after_kills(
        "CREATE APPLICATION up INPUT numbers (n BIGINT) FROM 'link:numbers' FORMAT JSON WITH (durability => 'log')
           OUTPUT 'file:out/' FORMAT JSON WITH (commit_interval => '300 ms') AS SELECT n FROM numbers WHERE n >= 0;
         CREATE QUERY q FROM APPLICATION up",
    );
    let rows = came.len();
    came.dedup();
    let expected: Vec<u64> = (0..all).collect();
    assert!(came == expected, "{} of {all} came, in {rows} rows", came.len());
}

/// The numbers that come over a link to what a script makes of the stream `numbers`, in the folder `out`, and how many
/// were sent. `RIVULET_KILLS` says how often each side is killed. The way breaks meanwhile.
fn numbers_after_kills(script: &str) -> (Vec<u64>, u64) {
    let kills: u64 = std::env::var("RIVULET_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(2);
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let interval = ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned());
    let start_cloud = || start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string()), interval.clone()]);
    let start_gateway = || start(gateway_folder.path(), std::slice::from_ref(&interval));
    let mut cloud = start_cloud();
    cloud.sql_ok(script);
    let way = Way::to(link, 200_000);
    let input = gateway_folder.path().join("in.jsonl");
    std::fs::write(&input, "").unwrap();
    let mut gateway = start_gateway();
    gateway.sql_ok("CREATE SOURCE numbers (n BIGINT) FROM 'file:in.jsonl' FORMAT JSON WITH (follow => true)");
    gateway.sql_ok(&format!(
        "CREATE SINK up TO 'link:{}/numbers' WITH (delivery => 'exactly_once', flush => '1 ms')",
        way.address
    ));
    gateway.sql_ok("CREATE QUERY q AS SELECT n FROM numbers INTO up");
    let mut next = 0;
    let mut write = |many: u64| {
        let lines: String = (next..next + many).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        std::fs::OpenOptions::new().append(true).open(&input).unwrap().write_all(lines.as_bytes()).unwrap();
        next += many;
        next
    };
    for kill in 0..kills {
        for step in 0..10 {
            write(1_000);
            // At another moment each time, between checkpoints and within them.
            thread::sleep(Duration::from_millis(50 + (kill * 10 + step) * 577 % 130));
        }
        if kill % 3 != 1 {
            gateway.kill_9();
            gateway = start_gateway();
        }
        if kill % 3 != 0 {
            cloud.kill_9();
            cloud = start_cloud();
        }
    }
    let all = write(1_000);
    let out = cloud_folder.path().join("out");
    wait("all rows to come", || numbers(&out).chunk_by(|one, other| one == other).count() as u64 >= all);
    wait("all to be acknowledged", || sink(&gateway)["waiting_rows"] == 0);
    (numbers(&out), all)
}

#[test]
fn rows_wait_on_disk_for_a_server_that_is_away_and_a_killed_gateway_loses_none() {
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let gateway = start_gateway(gateway_folder.path(), link, "");
    publish(&gateway, 0..5_000);
    wait("the rows to wait on disk", || {
        let sink = sink(&gateway);
        sink["waiting_rows"] == 5_000 && sink["waiting_bytes"].as_u64() > Some(0)
    });
    gateway.sql_ok("CHECKPOINT");
    drop(gateway);
    let gateway = start(gateway_folder.path(), &[]);
    assert_eq!(sink(&gateway)["waiting_rows"], 5_000);
    publish(&gateway, 5_000..5_010);
    let cloud = start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    cloud.sql_ok("CREATE SINK there TO 'mqtt:there' FORMAT JSON");
    let mut there = Publisher::connect(cloud.mqtt);
    there.subscribe("there");
    cloud.sql_ok("CREATE SOURCE up (n BIGINT, name TEXT) FROM 'link:readings'");
    cloud.sql_ok("CREATE QUERY q AS SELECT n, name FROM up INTO there");
    expect(&mut there, 0..5_010);
    cloud.sql_ok("CHECKPOINT");
    wait("all to be acknowledged", || sink(&gateway)["waiting_rows"] == 0);
    // What waits of a query that is dropped goes with it.
    gateway.sql_ok("DROP QUERY q");
    let left = std::fs::read_dir(gateway_folder.path().join("data/links")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "folders of spools");
}

#[test]
fn a_stream_has_one_declared_reader_whether_that_runs_or_not() {
    let (folder, link) = (TempDir::new().unwrap(), free_port());
    let settings = [("RIVULET_LINK_ADDRESS", link.to_string())];
    let mut cloud = start(folder.path(), &settings);
    let application = |name: &str| {
        format!(
            "CREATE APPLICATION {name} INPUT numbers (n BIGINT) FROM 'link:readings' FORMAT JSON
             WITH (durability => 'log') OUTPUT 'mqtt:{name}' FORMAT JSON AS SELECT n FROM numbers WHERE n >= 0"
        )
    };
    let refused = |cloud: &Server, script: &str, reader: &str| {
        let answer = cloud.sql(script).to_string();
        let why = format!("the {reader} reads the stream 'readings' already, and a stream has one reader");
        assert!(answer.contains(&why), "{answer}");
    };
    refused(&cloud, &format!("{}; {}", application("one"), application("two")), "application 'one'");
    cloud.sql_ok("CREATE SOURCE up (n BIGINT) FROM 'link:readings'; CREATE SINK there TO 'mqtt:there' FORMAT JSON");
    let query = "CREATE QUERY q AS SELECT n FROM up INTO there";
    refused(&cloud, query, "application 'one'");
    cloud.sql_ok(&application("one").replace("CREATE", "CREATE OR REPLACE").replace("n >= 0", "n >= 1"));
    cloud.sql_ok("DROP APPLICATION one");
    // The reader of the application may be about to end.
    wait("the stream to be free", || cloud.sql(query)["error"].is_null());
    cloud.sql_ok("PAUSE QUERY q");
    cloud.signal("-TERM");
    assert_eq!(cloud.wait_for_end(), Some(0));
    cloud = start(folder.path(), &settings);
    refused(&cloud, &application("two"), "query 'q'");
    refused(&cloud, &query.replace("q AS", "r AS"), "query 'q'");
    cloud.sql_ok("CREATE OR REPLACE QUERY q AS SELECT n + 1 AS n FROM up INTO there");
    cloud.sql_ok("DROP QUERY q");
    cloud.sql_ok(&application("two"));
}

#[test]
fn windows_of_two_gateways_are_put_together_and_others_do_not_fit() {
    const DAY_MS: u64 = 86_400_000;
    let (cloud_folder, link) = (TempDir::new().unwrap(), free_port());
    let cloud = start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    let columns = "device TEXT, ts TIMESTAMP EVENT TIME, value BIGINT";
    let query = |aggregate: &str, sink: &str| {
        format!(
            "CREATE QUERY q AS SELECT device, count(*) AS n, {aggregate} AS x, window_end
             FROM TABLE(TUMBLE(TABLE readings, DESCRIPTOR(ts), INTERVAL '10 SECONDS'))
             GROUP BY device, window_end HAVING count(*) > 1 INTO {sink}"
        )
    };
    cloud.sql_ok(&format!(
        "CREATE SOURCE readings ({columns}) FROM 'link:states' WITH (partial => true, lateness => INTERVAL '9 days')"
    ));
    cloud.sql_ok("CREATE SINK there TO 'mqtt:there' FORMAT JSON");
    cloud.sql_ok(&query("avg(value)", "there"));
    let mut there = Publisher::connect(cloud.mqtt);
    there.subscribe("there");
    let mut expected = std::collections::BTreeMap::<(u64, u64), (u64, u64)>::new();
    let mut gateways = Vec::new();
    for gateway in 0..2 {
        let folder = TempDir::new().unwrap();
        let mut event = |n: u64, ts: u64| {
            let (device, value) = (n % 3, 7 * n + gateway);
            let sum = expected.entry((device, ts / 10_000)).or_default();
            *sum = (sum.0 + 1, sum.1 + value);
            format!("{{\"device\":\"{device}\",\"ts\":{ts},\"value\":{value}}}\n")
        };
        let lines: String = (0..2_000).map(|n| event(n, n * 50 + gateway)).collect();
        std::fs::write(folder.path().join("in.jsonl"), lines).unwrap();
        // Only those that are asked for.
        let server = start(folder.path(), &[("RIVULET_CHECKPOINT_INTERVAL_S", "0".to_owned())]);
        server.sql_ok(&format!(
            "CREATE SOURCE readings ({columns}) FROM 'file:in.jsonl' FORMAT JSON WITH (follow => true)"
        ));
        server.sql_ok(&format!("CREATE SINK up TO 'link:{link}/states' WITH (partial => true)"));
        server.sql_ok(&query("avg(value)", "up"));
        gateways.push((server, folder));
    }
    // With a checkpoint come the states of windows that are open.
    let bring = |rows: u64, (server, _): &(Server, TempDir)| {
        wait("all rows to be read", || server.status()["big_queries"][0]["rows_in"] == rows);
        let given = || {
            let sink = sink(server);
            sink["rows"].as_u64().unwrap_or(0) + sink["waiting_rows"].as_u64().unwrap_or(0)
        };
        let before = given();
        server.sql_ok("CHECKPOINT");
        wait("states of open windows", || given() > before);
        wait("states to be acknowledged", || {
            cloud.sql_ok("CHECKPOINT");
            sink(server)["waiting_rows"] == 0
        });
    };
    gateways.iter().for_each(|gateway| bring(2_000, gateway));
    // A window of a month later closes all others.
    let later = format!("{{\"device\":\"0\",\"ts\":{},\"value\":0}}\n", 30 * DAY_MS);
    let file = gateways[0].1.path().join("in.jsonl");
    std::fs::OpenOptions::new().append(true).open(file).unwrap().write_all(later.as_bytes()).unwrap();
    bring(2_001, &gateways[0]);
    for _ in 0..expected.len() {
        let (_, row) = there.next_json();
        let device = row["device"].as_str().unwrap().parse().unwrap();
        let window = row["window_end"].as_u64().unwrap() / 10_000 - 1;
        let (n, sum) = expected.remove(&(device, window)).unwrap_or_else(|| panic!("{row}"));
        assert_eq!((row["n"].as_u64(), row["x"].as_f64()), (Some(n), Some(sum as f64 / n as f64)), "{row}");
    }
    assert!(expected.is_empty(), "{expected:?}");
    let states = |server: &Server| server.status()["big_queries"][0]["rows_out"].as_u64().unwrap();
    assert!(gateways.iter().all(|(server, _)| states(server) < 500), "of 2,001 rows");

    // States of another aggregate.
    let (other, _folder) = &gateways[0];
    other.sql_ok("DROP QUERY q");
    other.sql_ok(&query("sum(value)", "up"));
    wait("that other states do not fit", || {
        sink(other)["last_error"].as_str().is_some_and(|error| error.contains("and its source reads (key_0 Utf8, "))
    });
    let refused = |statement: &str, why: &str| {
        let answer = other.sql(statement).to_string();
        assert!(answer.contains(why), "{answer}");
    };
    refused("CREATE QUERY r AS SELECT device FROM readings INTO up", "needs one window");
    refused("CREATE SINK wrong TO 'mqtt:x' FORMAT JSON WITH (partial => true)", "goes with 'link:'");
    refused(&format!("CREATE SINK wrong (n BIGINT) TO 'link:{link}/x' WITH (partial => true)"), "columns of states");
}

#[test]
fn a_stranger_at_the_door_harms_nobody() {
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let cloud = start_cloud(cloud_folder.path(), link);
    let mut there = Publisher::connect(cloud.mqtt);
    there.subscribe("there");
    let gateway = start_gateway(gateway_folder.path(), link, "");
    let _silent = TcpStream::connect(link).unwrap();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"RVWIRE\x09\x00", &[0xff; 4096]] {
        let mut stranger = TcpStream::connect(link).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = stranger.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        publish(&gateway, 0..5);
        expect(&mut there, 0..5);
    }
}
