//! Links whose other side is not what it should be: the user reads why, nobody else is harmed, and nothing is lost
//! afterwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::authority::{Authority, Identity};
use super::checkpoints::copy_all;
use super::links::{Way, carry, declare_cloud, expect, numbers, publish, start, start_cloud, start_gateway};
use super::server::{Publisher, Server, free_port, wait};

/// The health of the sink of a query.
pub(super) fn sink(server: &Server, query: &str) -> Value {
    let status = server.status();
    let queries = status["big_queries"].as_array().unwrap();
    let query = queries.iter().find(|one| one["name"] == query).unwrap();
    let ends = query["health"].as_array().cloned().unwrap_or_default();
    ends.into_iter().find(|end| end["kind"] == "sink").unwrap_or_default()
}

/// Waits until the sink of a query says so.
pub(super) fn wait_told(server: &Server, query: &str, expected: &str) {
    wait(expected, || sink(server, query)["last_error"].as_str().is_some_and(|error| error.contains(expected)));
}

/// A server in the cloud, and a gateway with the query `q` that sends to it. The rows of a second query, `r`, take a
/// straight way: they must come whatever becomes of the first.
struct Pair {
    cloud: Server,
    gateway: Server,
    there: Publisher,
    beside: Publisher,
    next: u64,
    gateway_folder: TempDir,
    cloud_folder: TempDir,
}

impl Pair {
    /// The cloud listens at `link`. The query sends to the address `up` with these options.
    fn start(link: SocketAddr, up: SocketAddr, options: &str) -> Self {
        let (cloud_folder, gateway_folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let cloud = start_cloud(cloud_folder.path(), link);
        cloud.sql_ok("CREATE SOURCE beside (n BIGINT) FROM 'link:beside'");
        cloud.sql_ok("CREATE SINK aside TO 'mqtt:aside' FORMAT JSON");
        cloud.sql_ok("CREATE QUERY r AS SELECT n FROM beside INTO aside");
        let [there, beside] = ["there", "aside"].map(|topic| subscribed(&cloud, topic));
        let gateway = start_gateway(gateway_folder.path(), up, options);
        gateway.sql_ok("CREATE SOURCE beside (n BIGINT) FROM 'mqtt:beside' FORMAT JSON");
        gateway.sql_ok(&format!("CREATE SINK aside TO 'link:{link}/beside' WITH (delivery => 'none')"));
        gateway.sql_ok("CREATE QUERY r AS SELECT n FROM beside INTO aside");
        Self { cloud, gateway, there, beside, next: 0, gateway_folder, cloud_folder }
    }

    /// A row takes the straight way.
    fn goes_on(&mut self) {
        self.next += 1;
        let mut publisher = Publisher::connect(self.gateway.mqtt);
        publisher.publish("beside", &format!("{{\"n\":{}}}", self.next));
        publisher.wait_until_taken();
        assert_eq!(self.beside.next_json().1["n"], self.next);
    }
}

pub(super) fn subscribed(server: &Server, topic: &str) -> Publisher {
    let mut subscriber = Publisher::connect(server.mqtt);
    subscriber.subscribe(topic);
    subscriber
}

/// Reads until the other side closes the connection, or it is over.
fn read_to_end(mut from: &TcpStream, is_over: &AtomicBool) {
    let mut bytes = [0; 1_024];
    from.set_nonblocking(false).unwrap();
    from.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    while !is_over.load(Ordering::Relaxed) && !matches!(from.read(&mut bytes), Ok(0)) {}
}

/// Carries all that comes to the server and back.
fn pass(from: &TcpStream, to: SocketAddr, is_over: &AtomicBool) {
    if let Ok(to) = TcpStream::connect(to) {
        carry(from, &to, usize::MAX, is_over, &mut |_| ());
    }
}

#[test]
fn a_server_of_another_version_and_what_is_no_server_are_told_apart() {
    let link = free_port();
    let answer = Arc::new(Mutex::new(Some(&b"RVWIRE\x09\x00"[..])));
    let given = answer.clone();
    let way = Way::that(move |mut from, _, is_over| {
        let answer = *given.lock().unwrap();
        match answer {
            Some(bytes) => {
                let _ = from.write_all(bytes);
                read_to_end(from, is_over);
            }
            None => pass(from, link, is_over),
        }
    });
    let mut pair = Pair::start(link, way.address, "");
    publish(&pair.gateway, 0..10);
    wait_told(&pair.gateway, "q", "speaks version 9 of the wire, this one version 1: upgrade the older one");
    pair.goes_on();
    *answer.lock().unwrap() = Some(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    wait_told(&pair.gateway, "q", "what answers there is no link of Rivulet");
    pair.goes_on();
    // A peer of another version learns which one the cloud speaks, and is sent away.
    let mut stranger = TcpStream::connect(link).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stranger.write_all(b"RVWIRE\x09\x00").unwrap();
    let mut told = Vec::new();
    stranger.read_to_end(&mut told).unwrap();
    assert_eq!(told, b"RVWIRE\x01\x00");
    *answer.lock().unwrap() = None;
    expect(&mut pair.there, 0..10);
}

/// The first connection flips a bit, the second repeats bytes, the third ends within a frame.
#[test]
fn frames_that_are_flipped_repeated_or_cut_end_the_connection_and_every_row_comes_once() {
    let link = free_port();
    let way = Way::that(move |from, number, is_over| {
        let Ok(to) = TcpStream::connect(link) else { return };
        let (mut carried, bytes_max) = (0, if number == 2 { 10_001 } else { usize::MAX });
        carry(from, &to, bytes_max, is_over, &mut |bytes| {
            let before = carried;
            carried += bytes.len();
            // In what is sent when the streams are open.
            if before <= 10_000 && carried > 10_000 {
                match number {
                    0 => bytes[0] ^= 1,
                    1 => bytes.extend_from_within(..),
                    _ => {}
                }
            }
        });
    });
    let mut pair = Pair::start(link, way.address, "compression => 'none', flush => '1 ms'");
    for from in [0, 1_000, 2_000] {
        publish(&pair.gateway, from..from + 1_000);
        expect(&mut pair.there, from..from + 1_000);
        pair.goes_on();
    }
    wait("all three to end", || way.breaks.load(Ordering::Relaxed) >= 3);
    wait("the cloud to log why", || {
        let log = std::fs::read_to_string(pair.cloud_folder.path().join("log")).unwrap();
        log.contains("the other side sent a frame that is not as it was sent")
    });
}

/// Carries a byte now and then, until nobody holds it up any more.
fn trickle(from: &TcpStream, to: &TcpStream, is_over: impl Fn() -> bool) {
    let mut byte = [0];
    while !is_over() {
        for (mut source, mut target) in [(from, to), (to, from)] {
            match source.read(&mut byte) {
                Ok(1) if target.write_all(&byte).is_ok() => {}
                Ok(_) => return,
                Err(_) => {}
            }
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// One other side never reads, one stops to in the middle, and one passes on a byte at a time; a stranger never says
/// who it is.
#[test]
fn peers_that_do_not_read_or_send_a_byte_at_a_time_hold_up_only_their_own_streams() {
    /// When so many bytes were carried, both sides have said who they are.
    const BEGUN: usize = 400;
    let link = free_port();
    let is_released = Arc::new(AtomicBool::new(false));
    let ways = ["silent", "stalled", "slow"].map(|kind| {
        let released = is_released.clone();
        let way = Way::that(move |from, _, is_over| {
            let holds_up = || !released.load(Ordering::Relaxed) && !is_over.load(Ordering::Relaxed);
            if !holds_up() {
                return pass(from, link, is_over);
            }
            let Ok(to) = TcpStream::connect(link) else { return };
            if kind != "silent" {
                carry(from, &to, BEGUN, is_over, &mut |_| ());
            }
            if kind == "slow" {
                trickle(from, &to, || !holds_up());
            }
            while kind != "slow" && holds_up() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        (kind, way)
    });
    let mut pair = Pair::start(link, link, "");
    let subscribers = ways.each_ref().map(|(kind, way)| {
        pair.cloud.sql_ok(&format!("CREATE SOURCE {kind}_up (n BIGINT, name TEXT) FROM 'link:{kind}'"));
        pair.cloud.sql_ok(&format!("CREATE SINK {kind}_there TO 'mqtt:{kind}' FORMAT JSON"));
        pair.cloud.sql_ok(&format!("CREATE QUERY {kind} AS SELECT n, name FROM {kind}_up INTO {kind}_there"));
        pair.gateway.sql_ok(&format!("CREATE SINK {kind}_up TO 'link:{}/{kind}'", way.address));
        pair.gateway.sql_ok(&format!("CREATE QUERY {kind} AS SELECT name, n FROM readings INTO {kind}_up"));
        subscribed(&pair.cloud, kind)
    });
    let stranger = TcpStream::connect(link).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let is_sent_away = || match (&stranger).read(&mut [0; 64]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    let mut rows = 0;
    for (kind, told) in [("silent", "the other side does not say who it is"), ("stalled", "nothing was heard")] {
        wait(told, || {
            // Others go on meanwhile.
            publish(&pair.gateway, rows..rows + 1);
            expect(&mut pair.there, rows..rows + 1);
            rows += 1;
            if rows % 40 == 1 {
                pair.goes_on();
                // After the mark and the version.
                let _ = (&stranger).write_all(&b"RVWIRE\x01\x00\x36"[rows as usize / 40 % 9..][..1]);
            }
            sink(&pair.gateway, kind)["last_error"].as_str().is_some_and(|error| error.contains(told))
        });
    }
    wait("the stranger to be sent away", is_sent_away);
    assert!(sink(&pair.gateway, "silent")["waiting_bytes"].as_u64() > Some(0), "they wait on disk");
    is_released.store(true, Ordering::Relaxed);
    for mut subscriber in subscribers {
        expect(&mut subscriber, 0..rows);
    }
}

/// Stops a server as its user does, and starts it again.
fn restart(mut server: Server, folder: &Path) -> Server {
    server.signal("-TERM");
    server.wait_for_end();
    start(folder, &[])
}

/// Whether a gateway has noted on disk that its rows need other numbers.
fn has_noted(folder: &Path) -> bool {
    let below = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().map(|entry| entry.unwrap().path());
    let spools = below(folder.join("data/links")).flat_map(below).flat_map(below);
    let mut notes = spools.filter_map(|spool| std::fs::read_to_string(spool.join("spool.json")).ok());
    notes.any(|note| note.contains("\"is_parted\":true"))
}

/// The data folder of a gateway was copied, and both run.
#[test]
fn of_two_gateways_with_one_identity_the_last_one_sends_and_neither_loses_a_row() {
    let link = free_port();
    let mut pair = Pair::start(link, link, "flush => '1 ms'");
    let acknowledged = |server: &Server, cloud: &Server| {
        cloud.sql_ok("CHECKPOINT");
        wait("all to be acknowledged", || sink(server, "q")["waiting_rows"] == 0);
    };
    publish(&pair.gateway, 0..10);
    expect(&mut pair.there, 0..10);
    acknowledged(&pair.gateway, &pair.cloud);
    let copy_folder = TempDir::new().unwrap();
    pair.gateway.signal("-TERM");
    pair.gateway.wait_for_end();
    copy_all(&pair.gateway_folder.path().join("data"), &copy_folder.path().join("data"));
    pair.gateway = start(pair.gateway_folder.path(), &[]);
    publish(&pair.gateway, 10..20);
    expect(&mut pair.there, 10..20);
    acknowledged(&pair.gateway, &pair.cloud);

    let copy = start(copy_folder.path(), &[]);
    wait_told(&pair.gateway, "q", "another process with the same identity sends this stream");
    wait_told(&copy, "q", "the other server has other rows of this stream");
    publish(&pair.gateway, 20..30);
    publish(&copy, 30..40);
    for server in [&pair.gateway, &copy] {
        wait("the rows to wait", || sink(server, "q")["waiting_rows"] == 10);
    }
    (0..10).for_each(|_| pair.goes_on());
    // They do not take the stream from each other again and again.
    for server in [&pair.gateway, &copy] {
        assert!(sink(server, "q")["failures"].as_u64() <= Some(3), "{}", sink(server, "q"));
    }
    wait("the copy to note it", || has_noted(copy_folder.path()));
    let _copy = restart(copy, copy_folder.path());
    expect(&mut pair.there, 30..40);
    pair.gateway = restart(pair.gateway, pair.gateway_folder.path());
    expect(&mut pair.there, 20..30);
    pair.goes_on();
    // The same in the cloud: a stream has one reader.
    pair.cloud.sql_ok("CREATE SINK nowhere TO 'blackhole:'");
    let refused = pair.cloud.sql("CREATE QUERY again AS SELECT n FROM up INTO nowhere")["error"].to_string();
    assert!(refused.contains("'q' reads the stream 'readings' already, and a stream has one reader"), "{refused}");
}

#[test]
fn each_wrong_certificate_is_told_and_the_right_one_gets_every_row() {
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    // Files of the gateway are in a folder that its statements may name.
    let own = Authority::new(gateway_folder.path(), "own");
    let foreign = Authority::new(gateway_folder.path(), "foreign");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (certificate, key) = own.other_server("cloud");
    let settings = [
        ("RIVULET_LINK_ADDRESS", link.to_string()),
        ("RIVULET_LINK_TLS_CERTIFICATE_FILE", text(&certificate)),
        ("RIVULET_LINK_TLS_KEY_FILE", text(&key)),
        ("RIVULET_LINK_TLS_CLIENT_CA_FILE", text(&own.file)),
    ];
    let cloud = start(cloud_folder.path(), &settings);
    declare_cloud(&cloud);
    let mut there = subscribed(&cloud, "there");
    let trusts = |authority: &Authority| format!("tls => true, ca_file => '{}'", text(&authority.file));
    let shows = |(certificate, key): &Identity| {
        format!(", certificate_file => '{}', key_file => '{}'", text(certificate), text(key))
    };
    let (kim, eve) = (shows(&own.client("kim")), shows(&foreign.client("eve")));
    let gateway = start_gateway(gateway_folder.path(), link, &(trusts(&own) + &kim));
    let others = [
        ("plain", String::new(), "links to this server are encrypted: write tls => true, or --tls"),
        ("anonymous", trusts(&own), "the server asks for a client certificate: give one with certificate_file"),
        ("eve", trusts(&own) + &eve, "the server does not take the client certificate"),
        ("mistrustful", trusts(&foreign) + &kim, "signed by an authority that is not trusted: name the authority"),
    ];
    for (name, options, _) in &others {
        gateway.sql_ok(&format!("CREATE SINK {name}_up TO 'link:{link}/readings' WITH ({options})"));
        gateway.sql_ok(&format!("CREATE QUERY {name} AS SELECT name, n FROM readings INTO {name}_up"));
    }
    publish(&gateway, 0..10);
    wait_told(&gateway, "q", "the server's certificate is for another name");
    let right = own.server("right");
    std::fs::copy(&right.0, &certificate).unwrap();
    std::fs::copy(&right.1, &key).unwrap();
    expect(&mut there, 0..10);
    for (name, _, told) in others {
        wait_told(&gateway, name, told);
        wait("the rows to wait", || sink(&gateway, name)["waiting_rows"] == 10);
    }
    publish(&gateway, 10..20);
    expect(&mut there, 10..20);
}

/// Runs a script with a token, and returns the first value of its last answer as text.
pub(super) fn sql_as(server: &Server, token: &str, script: &str) -> String {
    let request = ureq::post(format!("{}/api/v1/sql", server.url())).header("authorization", format!("Bearer {token}"));
    let mut answer = request.config().http_status_as_error(false).build().send(script).unwrap();
    let answer: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
    let last = answer["results"].as_array().and_then(|results| results.last());
    let last = last.unwrap_or_else(|| panic!("{script}: {answer}"));
    last["rows"][0][0].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_wrong_token_and_a_missing_right_are_told_and_a_link_ends_with_its_token() {
    let (cloud_folder, gateway_folder, link) = (TempDir::new().unwrap(), TempDir::new().unwrap(), free_port());
    let often = ("RIVULET_CHECKPOINT_INTERVAL_S", "1".to_owned());
    let cloud = start(cloud_folder.path(), &[("RIVULET_LINK_ADDRESS", link.to_string()), often]);
    for stream in ["readings", "beside"] {
        cloud.sql_ok(&format!("CREATE SOURCE {stream} (n BIGINT) FROM 'link:{stream}'"));
        cloud.sql_ok(&format!(
            "CREATE SINK {stream}_out TO 'file:{stream}/' FORMAT JSON WITH (commit_interval => '300 ms')"
        ));
        cloud.sql_ok(&format!("CREATE QUERY {stream}_in AS SELECT n FROM {stream} INTO {stream}_out"));
    }
    let arrived = |stream: &str, all: std::ops::Range<u64>| {
        let folder = cloud_folder.path().join(stream);
        wait("the rows", || numbers(&folder).len() as u64 >= all.end);
        assert_eq!(numbers(&folder), all.clone().collect::<Vec<_>>());
    };
    cloud.sql_ok("CREATE USER admin ADMIN");
    let made = cloud.sql_ok("CREATE TOKEN FOR admin");
    let admin = made["results"][0]["rows"][0][0].as_str().unwrap().to_owned();
    let run = |script: &str| sql_as(&cloud, &admin, script);
    run("CREATE USER gateways; CREATE USER others; GRANT publish ON TOPIC 'link/beside' TO others");
    let drop_token = |token: &str| run(&format!("DROP TOKEN '{}'", &token[4..20]));
    let (others, gone) = (run("CREATE TOKEN FOR others"), run("CREATE TOKEN FOR gateways"));
    drop_token(&gone);

    let gateway = start(gateway_folder.path(), &[]);
    for (stream, topic, token) in [("beside", "beside", &others), ("readings", "in", &gone)] {
        gateway.sql_ok(&format!("CREATE SECRET t_{stream} AS '{token}'"));
        gateway.sql_ok(&format!("CREATE SOURCE {stream} (n BIGINT) FROM 'mqtt:{topic}' FORMAT JSON"));
        gateway.sql_ok(&format!("CREATE SINK {stream}_up TO 'link:{link}/{stream}' WITH (token => SECRET t_{stream})"));
        gateway.sql_ok(&format!("CREATE QUERY {stream}_q AS SELECT n FROM {stream} INTO {stream}_up"));
    }
    let mut next = 0;
    let mut goes_on = |gateway: &Server| {
        let mut publisher = Publisher::connect(gateway.mqtt);
        publisher.publish("beside", &format!("{{\"n\":{next}}}"));
        publisher.wait_until_taken();
        next += 1;
        arrived("beside", 0..next);
    };
    let waits = |gateway: &Server, rows: u64| {
        wait("rows to wait", || sink(gateway, "readings_q")["waiting_rows"] == rows);
    };
    // The next connection takes it, without a restart.
    let replace_secret = |gateway: &Server, token: &str| {
        gateway.sql_ok(&format!("CREATE OR REPLACE SECRET t_readings AS '{token}'"));
    };
    let is_unknown = "the server does not know the token, or it has ended: make one there (`rivulet token";
    publish(&gateway, 0..10);
    wait_told(&gateway, "readings_q", is_unknown);
    wait("each attempt to count", || sink(&gateway, "readings_q")["retries"].as_u64() > Some(2));
    goes_on(&gateway);
    waits(&gateway, 10);
    let why = gateway.sql_ok("DESCRIBE QUERY readings_q").to_string();
    assert!(why.contains("10 rows came; the sink readings_up keeps 10 rows, and has delivered none"), "{why}");

    let token = run("CREATE TOKEN FOR gateways");
    replace_secret(&gateway, &format!("two lines\n{token}"));
    wait_told(&gateway, "readings_q", "the token has a blank or a line break in it");
    let refused =
        gateway.sql(&format!("CREATE SINK w TO 'link:{link}/w' WITH (token => SECRET t_readings)")).to_string();
    assert!(refused.contains("has a blank or a line break in it") && !refused.contains(&token), "{refused}");
    replace_secret(&gateway, &token);
    wait_told(&gateway, "readings_q", "the user of the token may not publish to 'link/readings'");
    goes_on(&gateway);
    run("GRANT publish ON TOPIC 'link/readings' TO gateways");
    arrived("readings", 0..10);
    waits(&gateway, 0);

    // It ends while the link is up.
    drop_token(&token);
    wait_told(&gateway, "readings_q", is_unknown);
    publish(&gateway, 10..20);
    goes_on(&gateway);
    waits(&gateway, 10);
    replace_secret(&gateway, &run("CREATE TOKEN FOR gateways"));
    arrived("readings", 0..20);
    goes_on(&gateway);
}
