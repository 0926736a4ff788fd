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
fn start(folder: &Path, settings: &[(&str, String)]) -> Server {
    let mqtt = free_port();
    let own = [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_HOSTS_ALLOW", "127.0.0.1".to_owned())];
    let server = Server::spawn(folder, mqtt, &[&own[..], settings].concat());
    server.wait_until_ready();
    server
}

/// A server in the cloud, at this address, with a query that publishes what comes over a link.
fn start_cloud(folder: &Path, link: SocketAddr) -> Server {
    let cloud = start(folder, &[("RIVULET_LINK_ADDRESS", link.to_string())]);
    cloud.sql_ok("CREATE SOURCE up (n BIGINT, name TEXT) FROM 'link:readings'");
    cloud.sql_ok("CREATE SINK there TO 'mqtt:there' FORMAT JSON");
    cloud.sql_ok("CREATE QUERY q AS SELECT n, name FROM up INTO there");
    cloud
}

/// A gateway that sends what comes to its broker.
fn start_gateway(folder: &Path, link: SocketAddr, options: &str) -> Server {
    let gateway = start(folder, &[]);
    gateway.sql_ok("CREATE SOURCE readings (n BIGINT, name TEXT) FROM 'mqtt:in' FORMAT JSON");
    gateway.sql_ok(&format!("CREATE SINK up TO 'link:{link}/readings' WITH ({options})"));
    gateway.sql_ok("CREATE QUERY q AS SELECT name, n FROM readings INTO up");
    gateway
}

fn publish(gateway: &Server, numbers: std::ops::Range<u64>) {
    let mut publisher = Publisher::connect(gateway.mqtt);
    numbers.for_each(|n| publisher.publish("in", &format!("{{\"n\":{n},\"name\":\"sensor {n}\"}}")));
    publisher.wait_until_taken();
}

/// The next numbers that come out.
fn expect(there: &mut Publisher, numbers: std::ops::Range<u64>) {
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

/// A way to a server, which breaks after so many bytes.
struct Way {
    address: SocketAddr,
    breaks: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Way {
    fn to(target: SocketAddr, bytes_max: usize) -> Self {
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
                let Ok(to) = TcpStream::connect(target) else { continue };
                carry(from, to, bytes_max, &over);
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

/// Carries bytes in both directions, until so many have been carried or it is over.
fn carry(from: TcpStream, to: TcpStream, bytes_max: usize, is_over: &AtomicBool) {
    let mut carried = 0;
    let mut bytes = vec![0; 1_024];
    for socket in [&from, &to] {
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    }
    while carried < bytes_max && !is_over.load(Ordering::Relaxed) {
        for (mut source, mut target) in [(&from, &to), (&to, &from)] {
            match source.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) if target.write_all(&bytes[..length]).is_ok() => carried += length,
                Ok(_) => return,
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
