//! The hostile tenant: every input through every door that it fits.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rivulet::api;
use serde_json::{Value, json};

use super::super::callers::Mqtt;
use super::super::websocket::{BINARY, frame, request};
use super::corpus::Input;
use super::{ANSWER_MAX, ELSEWHERE, MARK, Site, connect_from, read};

/// What the victim has, by the part of a path behind which its name stands. Its token is known by its id.
const NAMES: [(&str, &str); 6] = [
    ("applications", "copy"),
    ("queries", "q0"),
    ("tables", "rooms"),
    ("secrets", "hook"),
    ("users", "owner"),
    ("tenants", "victim"),
];

/// Fuzzers whose inputs are texts for requests; each goes to every operation that takes a body.
const TEXTS: [&str; 8] = ["sql", "rest", "json", "config", "secrets", "accounts", "grants", "reach"];

/// How long the answer to a SELECT that has no end is read, from its head on.
const SELECT_MAX: Duration = Duration::from_millis(50);

/// Not one of this machine's programs, as far as pauses after wrong tokens go.
const STRANGER: [u8; 4] = [127, 0, 0, 9];

/// Sources of the hostile tenant: a name, columns, and the format of payloads.
const FORMATS: [(&str, &str, &str); 11] = [
    ("json", "t TIMESTAMP, v DOUBLE, n BIGINT, s TEXT, f BOOLEAN", "JSON"),
    ("nested", "m MAP<TEXT, DOUBLE>, r ROW<x DOUBLE, tags TEXT ARRAY>, a BIGINT ARRAY, j MAP<TEXT, JSON>", "JSON"),
    ("exact", "d DECIMAL(10, 2), day DATE, i INT, x REAL", "JSON"),
    ("csv", "t TIMESTAMP, v DOUBLE, n BIGINT, s TEXT, f BOOLEAN", "CSV"),
    ("senml", "name TEXT, unit TEXT, value DOUBLE, text TEXT, flag BOOLEAN", "SENML"),
    ("pivot", "t DOUBLE, v DOUBLE, s TEXT", "SENML_PIVOT"),
    ("text", "x DOUBLE", "TEXT"),
    ("raw", "bytes TEXT", "RAW (encoding => 'base64')"),
    ("avro", "n BIGINT, s TEXT", "AVRO (schema_file => 'row.avsc')"),
    ("protobuf", "n BIGINT, s TEXT", "PROTOBUF (schema_file => 'row.proto', message => 'Row')"),
    ("changes", "id BIGINT, s TEXT, PRIMARY KEY (id)", "DEBEZIUM"),
];

const AVRO: &str = r#"{"type": "record", "name": "Row", "fields": [
    {"name": "n", "type": ["null", "long"]}, {"name": "s", "type": ["null", "string"]}]}"#;
const PROTO: &str = r#"syntax = "proto3"; message Row { optional sint64 n = 1; optional string s = 2; }"#;

/// See the module.
pub(super) struct Hostile<'s> {
    site: &'s Site,
    token: String,
    /// The id of a token of the victim.
    known: String,
    taken: AtomicUsize,
    refused: AtomicUsize,
}

impl<'s> Hostile<'s> {
    pub(super) fn new(site: &'s Site, token: &str, known: &str) -> Self {
        let (token, known) = (token.to_owned(), known.to_owned());
        Self { site, token, known, taken: AtomicUsize::new(0), refused: AtomicUsize::new(0) }
    }

    /// How many requests were granted, and how many refused.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.taken.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Sends a request, and checks its answer.
    fn ask(&self, what: &str, method: &str, path: &str, body: &[u8], longest: Duration) -> (u16, String) {
        let (status, answer, has_ended) = self.site.ask(&self.token, method, path, body, longest);
        let text = String::from_utf8_lossy(&answer).into_owned();
        let what = format!("{what}, {method} {path}");
        assert!(has_ended || path.ends_with("/select"), "{what}: no end of the answer within {longest:?}");
        assert!(!text.contains(MARK), "{what} is told what another tenant has: {text}");
        assert!(status < 500 || status == 503, "{what}: {status} {text}");
        let errors = text.lines().filter(|line| line.starts_with('{')).filter_map(|line| {
            let answer: Value = serde_json::from_str(line).ok()?;
            answer.get("error").filter(|error| !error.is_null()).cloned()
        });
        let errors: Vec<Value> = errors.collect();
        let is_clear = |error: &Value| {
            let message = error["message"].as_str().unwrap_or_default();
            let jargon = ["panicked", "Internal error", "unwrap()", "This was likely caused by", "PoisonError"];
            !message.is_empty() && !jargon.iter().any(|word| message.contains(word))
        };
        assert!(errors.iter().all(is_clear), "{what}: {status} {text}");
        assert!(status < 400 || !errors.is_empty(), "{what}: {status} without an error: {text}");
        if [429, 503].contains(&status) {
            assert!(errors.iter().all(|error| error["hint"].is_string()), "{what} does not say which limit: {text}");
        }
        let counter = if status < 400 { &self.taken } else { &self.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        (status, text)
    }

    /// A client of the broker, and the code in its CONNACK.
    fn mqtt(&self, version: u8, id: &str) -> (Mqtt, u8) {
        Mqtt::connect_over(connect_from(ELSEWHERE, self.site.mqtt), version, &self.token, id, None)
    }

    fn sql(&self, script: &str) -> (u16, String) {
        self.ask(script, "POST", "/api/v1/sql", script.as_bytes(), ANSWER_MAX)
    }

    /// Names what the other tenant has: it does not exist here, or is not permitted.
    pub(super) fn asks_for_what_is_of_others(&self) {
        let known = &self.known;
        for (status, statement) in [
            (404, "DESCRIBE QUERY q0"),
            (404, "PAUSE QUERY q0"),
            (404, "DROP QUERY q0"),
            (404, "ALTER QUERY q0 SET (id => 'b')"),
            (404, "DROP QUERY big"),
            (404, "DESCRIBE APPLICATION copy"),
            (404, "DROP APPLICATION copy CASCADE"),
            (404, "CREATE QUERY mine FROM APPLICATION copy WITH (id => 'a')"),
            (404, "DROP SOURCE numbers"),
            (404, "DROP SINK copies"),
            (404, "DROP VIEW marked"),
            (404, "DROP SECRET hook"),
            (404, &format!("DROP TOKEN '{known}'")),
            (404, &format!("ALTER TOKEN '{known}' ROTATE")),
            (403, "CREATE TOKEN FOR victim.owner"),
            (403, "GRANT ALL TO victim.device"),
            (403, "DROP USER victim.device"),
            (403, "CREATE TENANT another"),
            (403, "DROP TENANT victim"),
            (403, "CHECKPOINT"),
            (403, "CREATE SOURCE spy (n BIGINT) FROM 'mqtt:victim/#' FORMAT JSON"),
            (403, "CREATE SOURCE spy (n BIGINT) FROM 'mqtt:#' FORMAT JSON"),
            (403, "CREATE SINK flood TO 'mqtt:victim/device/a' FORMAT JSON"),
            (400, "GRANT subscribe ON TOPIC 'victim/#' TO eve"),
            (400, "GRANT subscribe ON TOPIC '+/out/#' TO eve"),
            (400, "GRANT administer ON SERVER TO eve"),
            (400, "CREATE SOURCE s (n BIGINT) FROM 'file:../../victim/files/x' FORMAT CSV"),
            (400, "CREATE SINK s TO 'http://127.0.0.1:9/' FORMAT JSON WITH (token => SECRET hook)"),
        ] {
            let (answered, text) = self.sql(statement);
            let is_expected = answered == status || (400..500).contains(&answered) && status == 400;
            assert!(is_expected, "{statement}: {answered} {text}");
        }
        for statement in
            ["SHOW USERS", "SHOW TOKENS", "SHOW GRANTS", "SHOW APPLICATIONS", "SHOW QUERIES", "SHOW SECRETS"]
        {
            let (status, text) = self.sql(statement);
            assert!(status == 200 && !text.contains("owner") && !text.contains("copy"), "{statement}: {text}");
        }
        let (status, text) = self.ask("its own status", "GET", "/api/v1/status", b"", ANSWER_MAX);
        let status: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status} {text}"));
        assert_eq!((&status["total"]["events"], &status["applications"]), (&json!(0), &json!([])), "{status}");
        for version in [4, 5] {
            let (mut client, code) = self.mqtt(version, "eve");
            assert_eq!(code, 0);
            for filters in [["victim/#", "#"], ["+/out/#", "victim/out/a"], ["$share/g/victim/#", "$SYS/#"]] {
                assert!(client.subscribe(filters).iter().all(|code| *code >= 0x80), "{filters:?}");
            }
            let code = client.publish("victim/device/a", "{\"n\":666}");
            assert!(version == 4 || code >= 0x80, "{code:x}");
        }
    }

    /// The inputs as bodies of requests, as names in paths, and as statements about topics of its own and of others.
    pub(super) fn sends_requests(&self, inputs: &[Input]) {
        let document = serde_json::to_value(api::openapi()).expect("a document");
        let mut with_body: Vec<(String, String)> = Vec::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            let mut parts = path.split("{name}");
            let before = parts.next().unwrap_or_default().trim_end_matches('/');
            let kind = before.rsplit('/').next().unwrap_or_default();
            let known = NAMES.iter().find(|(named, _)| *named == kind).map_or(self.known.as_str(), |(_, name)| name);
            let named = path.replace("{name}", known);
            for method in methods.as_object().expect("methods").keys().map(|method| method.to_uppercase()) {
                if ["POST", "PUT", "PATCH"].contains(&method.as_str()) {
                    with_body.push((method.clone(), named.clone()));
                }
                // What has no body is asked once for each name.
                let longest = if path.ends_with("/results") { SELECT_MAX } else { ANSWER_MAX };
                self.ask("no body", &method, &named, b"", longest);
            }
        }
        assert!(with_body.len() > 15, "{with_body:?}");
        for input in inputs {
            let is_text = input.is_of(&TEXTS);
            for form in input.forms() {
                for (method, path) in &with_body {
                    let is_general = path.ends_with("/sql") || path.ends_with("/bulk") || path.contains("/secrets/");
                    if is_text || is_general {
                        let longest = if path.ends_with("/select") { SELECT_MAX } else { ANSWER_MAX };
                        self.ask(&input.name, method, path, &form, longest);
                    }
                }
                let name: String = form.iter().take(300).map(|byte| format!("%{byte:02x}")).collect();
                for kind in ["applications", "queries"] {
                    self.ask(&input.name, "GET", &format!("/api/v1/{kind}/{name}"), b"", ANSWER_MAX);
                }
            }
            if input.is_of(&["sql", "accounts"]) {
                let script = String::from_utf8_lossy(&input.bytes);
                for place in ["hostile/", "victim/"] {
                    let script = script.replace("mqtt:", &format!("mqtt:{place}"));
                    self.sql(&script);
                    // A script ends with its first error, so each statement comes alone as well.
                    script.split(';').filter(|one| !one.trim().is_empty()).take(40).for_each(|one| drop(self.sql(one)));
                }
            }
        }
    }

    /// The inputs as packets behind a login, over TCP and over WebSocket, and their lines as topics and filters.
    pub(super) fn sends_packets(&self, inputs: &[Input]) {
        for input in inputs {
            for form in input.forms() {
                for version in [4, 5] {
                    let (client, code) = self.mqtt(version, "packets");
                    assert_eq!(code, 0, "{}: it is let in again", input.name);
                    let mut stream = client.into_stream();
                    // A broker that has seen enough may close before all is sent.
                    let _ = stream.write_all(&form).and_then(|()| stream.shutdown(Shutdown::Write));
                    self.check_end(&input.name, &mut stream);
                }
                self.sends_frames(&input.name, &form, input.is_of(&["websocket"]));
            }
            if input.is_of(&["mqtt_topics", "reach", "grants"]) {
                self.uses_topics(&input.bytes);
            }
        }
    }

    /// The connection ends, and nothing of the other tenant was said before.
    fn check_end(&self, what: &str, stream: &mut std::net::TcpStream) {
        let (answer, has_ended) = read(stream, ANSWER_MAX);
        assert!(has_ended, "{what}: the connection does not end");
        assert!(!String::from_utf8_lossy(&answer).contains(MARK), "{what} is sent what another tenant has");
    }

    /// Bytes over a WebSocket, as they are or as frames.
    fn sends_frames(&self, what: &str, bytes: &[u8], are_frames: bool) {
        let mut stream = connect_from(ELSEWHERE, self.site.websocket);
        let text = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
        let body = [&text("MQTT")[..], &[4, 0xc2, 0, 60], &text("frames"), &text("user"), &text(&self.token)].concat();
        let connect = [&[0x10, body.len() as u8][..], &body].concat();
        let hostile = if are_frames { bytes.to_vec() } else { frame(BINARY, bytes) };
        let all = [request("GET /mqtt", &[]).into_bytes(), frame(BINARY, &connect), hostile].concat();
        let _ = stream.write_all(&all).and_then(|()| stream.shutdown(Shutdown::Write));
        self.check_end(what, &mut stream);
    }

    /// Lines as topics and filters of version 3.1.1, below its own level and elsewhere.
    fn uses_topics(&self, bytes: &[u8]) {
        for line in bytes.split(|&byte| byte == b'\n').filter(|line| line.len() < 1_000).take(40) {
            for before in [&b""[..], b"hostile/", b"victim/", b"$share/g/victim/"] {
                let topic = [before, line].concat();
                let named = [&(topic.len() as u16).to_be_bytes(), &topic[..]].concat();
                let (client, code) = self.mqtt(4, "topics");
                assert_eq!(code, 0);
                let mut stream = client.into_stream();
                let subscribe = packet(0x82, &[&[0, 1], &named[..], &[1]].concat());
                let publish = packet(0x31, &[&named[..], b"{\"n\":666}"].concat());
                let _ = stream.write_all(&[subscribe, publish].concat());
                let _ = stream.shutdown(Shutdown::Write);
                self.check_end("topics", &mut stream);
            }
        }
    }

    /// The inputs as heads of requests and as first packets, of somebody who has no token.
    pub(super) fn sends_as_a_stranger(&self, inputs: &[Input]) {
        let Site { server, mqtt, websocket, .. } = self.site;
        for input in inputs {
            for form in input.forms() {
                let line = [b"GET ", &form[..], b" HTTP/1.1\r\nhost: localhost\r\n\r\n"].concat();
                let header = [b"GET /api/v1/queries HTTP/1.1\r\nhost: localhost\r\n", &form[..], b"\r\n\r\n"].concat();
                for (door, bytes) in [
                    (server.http, &form),
                    (server.http, &line),
                    (server.http, &header),
                    (*mqtt, &form),
                    (*websocket, &form),
                    (*websocket, &header),
                ] {
                    let mut stream = connect_from(STRANGER, door);
                    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
                    self.check_end(&input.name, &mut stream);
                }
            }
        }
    }

    /// Makes an application or a big query for each format; their topics.
    pub(super) fn prepares_queries(&self, folder: &Path) -> BTreeMap<&'static str, String> {
        let files = folder.join("data/tenants/hostile/files");
        std::fs::create_dir_all(&files).expect("a folder");
        for (name, content) in [("row.avsc", AVRO), ("row.proto", PROTO)] {
            std::fs::write(files.join(name), content).expect("a file");
        }
        let mut topics = BTreeMap::new();
        for (name, columns, format) in FORMATS {
            let topic = format!("hostile/in/{name}");
            // Rows that are taken back are written as such.
            let written = if name == "changes" { format } else { "JSON" };
            let (status, text) = self.sql(&format!(
                "CREATE SOURCE in_{name} ({columns}) FROM 'mqtt:{topic}' FORMAT {format};
                 CREATE SINK out_{name} TO 'mqtt:hostile/out/{name}' FORMAT {written};
                 CREATE QUERY copy_{name} AS SELECT * FROM in_{name} INTO out_{name}"
            ));
            assert_eq!(status, 200, "{name}: {text}");
            topics.insert(name, topic);
        }
        for (name, columns, format) in FORMATS.iter().filter(|(name, ..)| ["json", "csv", "text"].contains(name)) {
            let (status, text) = self.sql(&format!(
                "CREATE APPLICATION app_{name} (id TEXT) INPUT rows ({columns}) FROM 'mqtt:hostile/in/{{id}}' FORMAT {format}
                   OUTPUT 'mqtt:hostile/app/{{id}}' FORMAT JSON AS SELECT * FROM rows;
                 CREATE QUERY app_{name}_q FROM APPLICATION app_{name} WITH (id => '{name}')"
            ));
            assert_eq!(status, 200, "{name}: {text}");
        }
        topics
    }

    /// The inputs as payloads of each format. Each is an event of the applications that read it, refused or not.
    pub(super) fn sends_payloads(&self, inputs: &[Input], topics: &BTreeMap<&'static str, String>) {
        let (client, code) = self.mqtt(4, "payloads");
        assert_eq!(code, 0);
        let mut stream = client.into_stream();
        let mut events = 0;
        for input in inputs {
            for form in input.forms() {
                let parts = form.split(|&byte| byte == 0).take(16).filter(|part| !part.is_empty());
                for payload in std::iter::once(&form[..]).chain(parts) {
                    for topic in topics.values() {
                        let named = [&(topic.len() as u16).to_be_bytes(), topic.as_bytes()].concat();
                        stream.write_all(&packet(0x30, &[&named[..], payload].concat())).expect("it is taken");
                    }
                    events += 1;
                }
            }
        }
        // Three of the formats are read by an application, too.
        let (expected, deadline) = (3 * events, Instant::now() + ANSWER_MAX);
        loop {
            let total = self.site.get(&self.token, "/api/v1/status")["total"].clone();
            if total["events"] == json!(expected) {
                break;
            }
            assert!(Instant::now() < deadline, "{expected} events were sent: {total}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let big = self.site.get(&self.token, "/api/v1/big-queries");
        for name in topics.keys() {
            let query = format!("copy_{name}");
            let found = big["big_queries"].as_array().expect("a list").iter().find(|one| one["name"] == query);
            assert_eq!(found.expect("the query")["state"], "running", "{big}");
        }
    }
}

/// A packet of MQTT, of any length.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let (mut packet, mut rest) = (vec![first], body.len());
    loop {
        packet.push((rest % 128) as u8 | if rest >= 128 { 128 } else { 0 });
        rest /= 128;
        if rest == 0 {
            break;
        }
    }
    packet.extend_from_slice(body);
    packet
}
