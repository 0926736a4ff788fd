//! The inputs of the fuzzers, sent by one tenant to a real server through every door, while another tenant works. The
//! server goes on, each refusal says what is wrong, and the other tenant loses nothing: nothing of it is seen, changed
//! or counted, and every event of it gives its results, in order and once.

mod corpus;
mod doors;
mod victim;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use super::accounts::first_administrator;
use super::server::{Server, free_port, wait_for};
use super::support::wait_until;
use corpus::inputs;
use doors::Hostile;
use victim::{INPUTS, Victim};

/// Stands in what the victim has and sends, and in nothing that the hostile tenant sends.
const MARK: &str = "thorn-7f3a";

/// The most memory that the server may take for all of it, in MiB.
const MEMORY_MIB_MAX: u64 = 700;

/// No answer takes longer, but for those that have no end.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long a server may take to stop whose queries have sources that are not there.
const STOP_MAX: Duration = Duration::from_secs(120);

/// Where connections come from, which are thousands: they leave the ports of 127.0.0.1 to other tests.
const ELSEWHERE: [u8; 4] = [127, 0, 0, 8];

/// What the victim has.
const OF_VICTIM: &str = "
    CREATE APPLICATION copy (id TEXT, mark TEXT DEFAULT 'thorn-7f3a')
      INPUT numbers (n BIGINT) FROM 'mqtt:victim/device/{id}' FORMAT JSON
      OUTPUT 'mqtt:victim/out/{id}' FORMAT JSON AS SELECT n, $mark AS mark FROM numbers;
    CREATE QUERY q0 FROM APPLICATION copy WITH (id => 'a');
    CREATE QUERY q1 FROM APPLICATION copy WITH (id => 'b');
    CREATE QUERY q2 FROM APPLICATION copy WITH (id => 'c');
    CREATE QUERY q3 FROM APPLICATION copy WITH (id => 'd');
    CREATE SOURCE numbers (n BIGINT) FROM 'mqtt:victim/device/a' FORMAT JSON;
    CREATE VIEW marked AS SELECT n, 'thorn-7f3a' AS mark FROM numbers;
    CREATE SINK copies TO 'mqtt:victim/big' FORMAT JSON;
    CREATE QUERY big AS SELECT n, mark FROM marked INTO copies;
    CREATE SECRET hook AS 'thorn-7f3a'";

/// A real server with accounts, and its doors.
struct Site {
    server: Server,
    mqtt: SocketAddr,
    websocket: SocketAddr,
}

impl Site {
    fn start(folder: &Path) -> Self {
        let (mqtt, websocket) = (free_port(), free_port());
        let settings = [
            ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()),
            ("RIVULET_MQTT_EMBEDDED_WEBSOCKET_ADDRESS", websocket.to_string()),
            // Each tenant has a folder of its own.
            ("RIVULET_FILES_ALLOW", String::new()),
        ];
        let server = Server::spawn(folder, mqtt, &settings);
        server.wait_until_ready();
        Self { server, mqtt, websocket }
    }

    /// The status and the body of an answer, and whether it came to its end in time: the body has so `long` from its
    /// head on.
    fn ask(&self, token: &str, method: &str, path: &str, body: &[u8], long: Duration) -> (u16, Vec<u8>, bool) {
        let mut stream = connect_from(ELSEWHERE, self.server.http);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\
             content-type: text/plain\r\nauthorization: Bearer {token}\r\n\r\n",
            body.len()
        );
        // A server that has seen enough may close before all is sent.
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        let end_of_head = |answer: &[u8]| answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        // A machine with other work may take its time to begin an answer, however short the look at its body is.
        let (mut answer, mut has_ended) = read_until(&mut stream, ANSWER_MAX, |answer| end_of_head(answer).is_some());
        if !has_ended && end_of_head(&answer).is_some() {
            let (rest, ended) = read(&mut stream, long);
            answer.extend(rest);
            has_ended = ended;
        }
        let head_end = end_of_head(&answer).unwrap_or(answer.len());
        let status = String::from_utf8_lossy(&answer[..head_end]).split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("{method} {path} was not answered"));
        (status, answer[head_end..].to_vec(), has_ended)
    }

    /// The answer to a request that is granted.
    fn get(&self, token: &str, path: &str) -> Value {
        let (status, body, _) = self.ask(token, "GET", path, b"", ANSWER_MAX);
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        serde_json::from_slice(&body).expect("JSON")
    }

    /// Runs a script that is granted; the rows of its last statement.
    fn sql(&self, token: &str, script: &str) -> Value {
        let (status, body, _) = self.ask(token, "POST", "/api/v1/sql", script.as_bytes(), ANSWER_MAX);
        assert_eq!(status, 200, "{script}: {}", String::from_utf8_lossy(&body));
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        answer["results"].as_array().and_then(|results| results.last()).expect("a result")["rows"].clone()
    }

    fn token(&self, admin: &str, user: &str) -> String {
        let made = self.sql(admin, &format!("CREATE TOKEN FOR {user}"));
        made[0][0].as_str().expect("a token").to_owned()
    }
}

/// What comes until the other side closes the connection, for so long at most, and whether it has.
fn read(stream: &mut TcpStream, longest: Duration) -> (Vec<u8>, bool) {
    read_until(stream, longest, |_| false)
}

/// The same, but at most until what has come is enough.
fn read_until(stream: &mut TcpStream, longest: Duration, is_enough: impl Fn(&[u8]) -> bool) -> (Vec<u8>, bool) {
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let (deadline, mut read, mut part) = (Instant::now() + longest, Vec::new(), [0; 16 << 10]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => return (read, true),
            Ok(count) => {
                read.extend_from_slice(&part[..count]);
                if is_enough(&read) {
                    return (read, false);
                }
            }
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted => {}
                _ => return (read, true),
            },
        }
        if Instant::now() > deadline {
            return (read, false);
        }
    }
}

/// A connection of another machine, as far as the server can tell: an address that guesses has to wait.
fn connect_from(host: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((host, 0)).into()).expect("an address of this machine");
    socket.connect(&to.into()).expect("a connection");
    socket.into()
}

/// What somebody has, without what only counts.
fn things(site: &Site, token: &str) -> Value {
    let chosen = |list: &str, keys: &[&str]| {
        let answer = site.get(token, &format!("/api/v1/{list}"));
        let items = answer[list].as_array().unwrap_or_else(|| panic!("{list}: {answer}")).clone();
        items.iter().map(|item| keys.iter().map(|key| item[key].clone()).collect()).collect::<Vec<Value>>()
    };
    let shown = |what: &str| {
        site.sql(token, &format!("SHOW {what}"))
            .as_array()
            .map(|rows| rows.iter().map(|row| row[0].clone()).collect::<Vec<Value>>())
    };
    let others = ["SOURCES", "SINKS", "VIEWS"].map(shown);
    json!({
        "applications": chosen("applications", &["id", "name", "sql", "parameters", "queries_running"]),
        "queries": chosen("queries", &["id", "name", "application", "state", "parameters", "label"]),
        "tables": chosen("tables", &["name", "sql"]),
        "secrets": chosen("secrets", &["name", "changed_at_ms"]),
        "users": chosen("users", &["name", "tenant", "admin", "grants"]),
        "grants": chosen("grants", &["user", "actions", "kind", "pattern"]),
        "tokens": chosen("tokens", &["id", "user", "expires_s"]),
        "others": others,
    })
}

#[test]
fn a_hostile_tenant_sends_what_fuzzers_found_and_another_loses_nothing() {
    let folder = TempDir::new().expect("a folder");
    let admin = first_administrator(&folder.path().join("data"));
    let site = Site::start(folder.path());
    site.sql(
        &admin,
        "CREATE TENANT victim; CREATE USER victim.owner ADMIN; CREATE USER victim.device;
         GRANT publish ON TOPIC 'victim/%u/#' TO victim.device;
         CREATE TENANT hostile; CREATE USER hostile.eve ADMIN",
    );
    let [owner, device, eve] = ["victim.owner", "victim.device", "hostile.eve"].map(|user| site.token(&admin, user));
    site.sql(&owner, OF_VICTIM);
    let before = things(&site, &owner);
    let memory_before = site.server.memory_mib_max();
    let victim = Victim::start(&site, &owner, &device);

    let hostile = Hostile::new(&site, &eve, &owner[4..20]);
    hostile.asks_for_what_is_of_others();
    let inputs = inputs();
    let payloads = hostile.prepares_queries(folder.path());
    std::thread::scope(|scope| {
        scope.spawn(|| hostile.sends_requests(&inputs));
        scope.spawn(|| hostile.sends_packets(&inputs));
        scope.spawn(|| hostile.sends_as_a_stranger(&inputs));
        scope.spawn(|| hostile.sends_payloads(&inputs, &payloads));
    });
    let (taken, refused) = hostile.counts();
    assert!(taken > 500 && refused > 1_000, "{taken} requests were granted and {refused} refused: they do arrive");

    let rounds = victim.finish();
    assert!(rounds > 100, "the other tenant worked meanwhile: {rounds} rounds");
    let events = (rounds + 1) * INPUTS.len() as u64;
    let total = site.get(&owner, "/api/v1/status")["total"].clone();
    assert_eq!((&total["events"], &total["results"]), (&json!(events), &json!(events)), "{total}");
    let refused: u64 = total["refused"].as_object().expect("reasons").values().filter_map(Value::as_u64).sum();
    assert_eq!(refused, 0, "{total}");
    assert_eq!(things(&site, &owner), before);
    let taken = site.server.memory_mib_max() - memory_before;
    assert!(taken < MEMORY_MIB_MAX, "{taken} MiB");

    // What the hostile tenant has left behind is no reason not to start again.
    let Site { mut server, .. } = site;
    server.signal("-TERM");
    wait_for(STOP_MAX, "the server to end", || server.has_ended());
    drop(server);
    let log = std::fs::read_to_string(folder.path().join("log")).expect("the log");
    assert!(!log.contains("panicked"), "{log}");
    let site = Site::start(folder.path());
    assert_eq!(things(&site, &owner), before);
    let victim = Victim::start(&site, &owner, &device);
    wait_until("some events", || victim.rounds() > 10);
    victim.finish();
}
