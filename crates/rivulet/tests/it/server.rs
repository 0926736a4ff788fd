//! The server as its users have it: the real program in a process of its own, real sockets, real files, real signals.

use std::io::{BufRead, BufReader, Read, Write, stderr};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use rivulet_testing_ports::free_address as free_port;
use serde_json::{Value, json};
use tempfile::TempDir;

const WAIT_MAX: Duration = Duration::from_secs(300);

const AC_CONTROL: &str = include_str!("../../../../examples/ac_control.sql");

/// A `rivulet serve`; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) http: SocketAddr,
    pub(crate) mqtt: SocketAddr,
}

impl Server {
    /// A server with an embedded broker, on free ports.
    pub(crate) fn start(folder: &Path) -> Self {
        let mqtt = free_port();
        let server = Self::spawn(folder, mqtt, &[("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string())]);
        server.wait_until_ready();
        server
    }

    /// The same with its broker at this address, and a checkpoint each so many seconds; 0 for none but those that are
    /// asked for.
    pub(crate) fn start_at(folder: &Path, mqtt: SocketAddr, checkpoint_interval_s: u32) -> Self {
        let interval_s = checkpoint_interval_s.to_string();
        let settings =
            [("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string()), ("RIVULET_CHECKPOINT_INTERVAL_S", interval_s)];
        let server = Self::spawn(folder, mqtt, &settings);
        server.wait_until_ready();
        server
    }

    pub(crate) fn spawn(folder: &Path, mqtt: SocketAddr, settings: &[(&str, String)]) -> Self {
        Self::spawn_by(rivulet(), folder, mqtt, settings)
    }

    /// A server that this command starts, with what it is given as arguments.
    pub(crate) fn spawn_by(mut command: Command, folder: &Path, mqtt: SocketAddr, settings: &[(&str, String)]) -> Self {
        let http = free_port();
        command.arg("serve").current_dir(folder).env("RIVULET_DATA_DIR", folder.join("data"));
        command.env("RIVULET_HTTP_ADDRESS", http.to_string()).env("RIVULET_FILES_ALLOW", folder);
        for (name, value) in settings {
            match value.as_str() {
                "" => command.env_remove(name),
                value => command.env(name, value),
            };
        }
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { child, http, mqtt }
    }

    pub(crate) fn wait_until_ready(&self) {
        wait("the server to be ready", || ureq::get(format!("http://{}/health/ready", self.http)).call().is_ok());
    }

    /// Waits until it says how it is, which one whose disk is full does as well.
    pub(crate) fn wait_until_started(&self) {
        wait("the server to start", || ureq::get(format!("http://{}/api/v1/status", self.http)).call().is_ok());
    }

    /// What a health check answers: whether it is satisfied, and its text.
    pub(crate) fn health(&self, path: &str) -> Option<(u16, String)> {
        let request = ureq::get(format!("http://{}/health/{path}", self.http));
        let mut answer = request.config().http_status_as_error(false).build().call().ok()?;
        Some((answer.status().as_u16(), answer.body_mut().read_to_string().ok()?))
    }

    pub(crate) fn sql(&self, script: &str) -> Value {
        let answer = ureq::post(format!("http://{}/api/v1/sql", self.http))
            .config()
            .http_status_as_error(false)
            .build()
            .send(script);
        serde_json::from_str(&answer.unwrap().body_mut().read_to_string().unwrap()).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    pub(crate) fn sql_ok(&self, script: &str) -> Value {
        let answer = self.sql(script);
        assert!(answer.get("error").is_none(), "{script}: {answer}");
        answer
    }

    pub(crate) fn status(&self) -> Value {
        let answer = ureq::get(format!("http://{}/api/v1/status", self.http)).call();
        serde_json::from_str(&answer.unwrap().body_mut().read_to_string().unwrap()).unwrap()
    }

    /// Live results of a query, as they come.
    pub(crate) fn watch(&self, query: &str) -> impl Iterator<Item = Value> + use<> {
        let agent = ureq::Agent::config_builder().timeout_global(Some(WAIT_MAX)).build().new_agent();
        let url = format!("http://{}/api/v1/queries/{query}/results", self.http);
        let body = agent.get(url).call().unwrap().into_body().into_reader();
        BufReader::new(body)
            .lines()
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("data:").and_then(|data| serde_json::from_str(data).ok()))
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// A line of what the system says of the process: `/proc/PID/FILE`.
    pub(crate) fn process(&self, file: &str, line: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap();
        text.lines().find(|found| found.starts_with(line)).unwrap_or_else(|| panic!("no {line} in {text}")).to_owned()
    }

    /// The most memory that the process ever had, in MiB.
    pub(crate) fn memory_mib_max(&self) -> u64 {
        let line = self.process("status", "VmHWM:");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill_9(&mut self) {
        self.signal("-KILL");
        self.wait_for_end();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn wait_for_end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status.code(),
                None if Instant::now() > deadline => panic!("the server did not end"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, without settings of whoever runs the tests.
pub(crate) fn rivulet() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_rivulet")))
}

/// A command that becomes the program, as `nohup` does, without the settings of whoever runs the tests.
pub(crate) fn rivulet_by(program: &str, arguments: &[&str]) -> Command {
    let mut command = without_settings(Command::new(program));
    command.args(arguments).arg(env!("CARGO_BIN_EXE_rivulet"));
    command
}

/// A command that gets no settings from whoever runs the tests.
fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RIVULET_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn wait(what: &str, is_so: impl FnMut() -> bool) {
    wait_for(WAIT_MAX, what, is_so);
}

pub(crate) fn wait_for(longest: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + longest;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {longest:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An MQTT client of a few lines, so that the tests do not speak to the server through its own codec.
pub(crate) struct Publisher(TcpStream);

impl Publisher {
    pub(crate) fn connect(broker: SocketAddr) -> Self {
        let mut socket = TcpStream::connect(broker).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        // Without an identifier of its own: the broker gives each client one. Without a time of silence after which the
        // broker ends the connection: a test that waits on a busy machine says nothing for long.
        socket.write_all(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00").unwrap();
        let mut answer = [0; 4];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x20, 2, 0, 0]);
        Self(socket)
    }

    pub(crate) fn publish(&mut self, topic: &str, payload: &str) {
        self.publish_bytes(topic, payload.as_bytes());
    }

    /// The same with a payload that may be no text.
    pub(crate) fn publish_bytes(&mut self, topic: &str, payload: &[u8]) {
        assert!(self.send(topic, payload), "the broker has closed the connection");
    }

    /// Publishes; whether the broker is there.
    pub(crate) fn try_publish(&mut self, topic: &str, payload: &str) -> bool {
        self.send(topic, payload.as_bytes())
    }

    fn send(&mut self, topic: &str, payload: &[u8]) -> bool {
        let length = 2 + topic.len() + payload.len();
        let mut packet = vec![0x30];
        let mut rest = length;
        loop {
            packet.push((rest % 128) as u8 | if rest >= 128 { 128 } else { 0 });
            rest /= 128;
            if rest == 0 {
                break;
            }
        }
        packet.extend_from_slice(&(topic.len() as u16).to_be_bytes());
        packet.extend_from_slice(topic.as_bytes());
        packet.extend_from_slice(payload);
        self.0.write_all(&packet).is_ok()
    }

    /// Waits until the broker has taken all that was published.
    pub(crate) fn wait_until_taken(&mut self) {
        self.0.write_all(&[0xc0, 0]).expect("a ping");
        let mut answer = [0; 2];
        self.0.read_exact(&mut answer).expect("an answer to it");
        assert_eq!(answer, [0xd0, 0], "nobody publishes and subscribes by the same connection");
    }

    /// Subscribes to one filter.
    pub(crate) fn subscribe(&mut self, filter: &str) {
        let mut packet = vec![0x82, u8::try_from(5 + filter.len()).unwrap(), 0, 1, 0, filter.len() as u8];
        packet.extend_from_slice(filter.as_bytes());
        packet.push(0);
        self.0.write_all(&packet).unwrap();
        let mut answer = [0; 5];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x90, 3, 0, 1, 0]);
    }

    /// The next message: topic, and payload as JSON.
    pub(crate) fn next_json(&mut self) -> (String, Value) {
        let (topic, payload) = self.next();
        (topic, serde_json::from_slice(&payload).expect("JSON"))
    }

    /// The next message: topic and payload. Both are short, so that their lengths have two bytes at most, and one.
    pub(crate) fn next(&mut self) -> (String, Vec<u8>) {
        let mut byte = || {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            usize::from(byte[0])
        };
        assert_eq!(byte() & 0xf6, 0x30, "a PUBLISH of QoS 0");
        let length = match byte() {
            low @ 0..128 => low,
            low => low - 128 + byte() * 128,
        };
        let mut packet = vec![0; length];
        self.0.read_exact(&mut packet).unwrap();
        let payload = packet.split_off(2 + usize::from(packet[1]));
        (String::from_utf8(packet.split_off(2)).unwrap(), payload)
    }
}

pub(crate) fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn events_come_over_mqtt_and_results_go_out_live() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(AC_CONTROL);
    server.sql_ok("CREATE QUERY kims_ac FROM APPLICATION ac_control WITH (home => '42', target => 22.5)");
    let mut results = server.watch("kims_ac");
    let mut sensor = Publisher::connect(server.mqtt);
    for second in 0..4 {
        sensor.publish("home/42/temperature", &json!({"ts": now_ms() as u64 + second * 1000, "value": 27}).to_string());
    }
    assert_eq!(results.next(), Some(json!({"action": "cool"})));
    sensor.publish("home/43/temperature", "nobody asked for this");
    sensor.publish("home/42/temperature", "{\"ts\": 1, ");
    wait("both to be counted", || {
        let status = server.status();
        status["messages_unrouted"] == 1 && status["total"]["refused"]["decode"] == 1
    });
    let status = server.status();
    assert_eq!((status["total"]["events"].as_u64(), status["queries_running"].as_u64()), (Some(5), Some(1)));
    let refusal = status["applications"][0]["last_refusal"].as_str().unwrap().to_owned();
    assert!(refusal.starts_with("decode: "), "{refusal}");
}

#[test]
fn a_dead_letter_names_the_query_and_what_was_wrong() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION share (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         WITH (dead_letter => 'mqtt:dead/{id}')
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT 100 / n AS n FROM numbers;
         CREATE QUERY kims_share FROM APPLICATION share WITH (id => 'a')",
    );
    let mut listener = Publisher::connect(server.mqtt);
    listener.subscribe("dead/#");
    Publisher::connect(server.mqtt).publish("in/a", "{\"n\":0}");
    let (topic, letter) = listener.next();
    let letter: Value = serde_json::from_slice(&letter).unwrap();
    assert_eq!((topic.as_str(), letter["query"].as_str()), ("dead/a", Some("kims_share")), "{letter}");
    assert_eq!((letter["reason"].as_str(), letter["query_id"].as_u64()), (Some("expression"), Some(1)), "{letter}");
    let detail = letter["detail"].as_str().unwrap();
    assert!(detail.contains("zero") && !detail.contains("Arrow"), "{detail}");
}

#[test]
fn a_script_that_fails_says_how_far_it_came() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    let script = |text: &str| {
        let output = rivulet().args(["sql", "-c", text]).env("RIVULET_SERVER", server.url()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap().lines().last().unwrap().to_owned()
    };
    assert_eq!(
        script("SHOW QUERIES; SHOW APPLICATIONS; DROP QUERY nobody; SHOW QUERIES"),
        "note: 2 statements before it ran, 1 statement after it did not"
    );
    assert_eq!(script("DROP QUERY nobody; SHOW QUERIES"), "note: no statement ran");
    assert_eq!(script("SHOW QUERIES; SHOW NONSENSE;"), "note: no statement ran");
    assert!(!script("DROP QUERY nobody;").starts_with("note:"));
}

#[test]
fn what_is_registered_runs_again_after_kill_9() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::start(folder.path());
    server.sql_ok(AC_CONTROL);
    server.sql_ok(
        "CREATE QUERY kims_ac FROM APPLICATION ac_control WITH (home => '42', target => 22.5);
         CREATE QUERY anns_ac FROM APPLICATION ac_control WITH (home => '43');
         CREATE QUERY gone FROM APPLICATION ac_control WITH (home => '44');
         PAUSE QUERY anns_ac; DROP QUERY gone;",
    );
    server.signal("-KILL");
    server.wait_for_end();
    let server = Server::start(folder.path());
    let status = server.status();
    assert_eq!((status["queries_running"].as_u64(), status["queries_paused"].as_u64()), (Some(1), Some(1)), "{status}");
    let shown = server.sql_ok("SHOW QUERIES")["results"][0]["rows"].clone();
    assert_eq!(shown[0][0], "anns_ac");
    assert_eq!(shown[0][2], "paused");
    assert_eq!(shown[1][3], json!({"home": "42", "target": 22.5}));
    let mut results = server.watch("kims_ac");
    let mut sensor = Publisher::connect(server.mqtt);
    for second in 0..4 {
        let payload = json!({"ts": now_ms() as u64 + second * 1000, "value": 20}).to_string();
        sensor.publish("home/43/temperature", &payload);
        sensor.publish("home/42/temperature", &payload);
    }
    assert_eq!(results.next(), Some(json!({"action": "heat"})));
    wait("the paused query's events to count as asked for by nobody", || server.status()["messages_unrouted"] == 4);
}

#[test]
fn queries_come_and_go_while_others_run() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(
        "CREATE APPLICATION copy (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers;
         CREATE QUERY steady FROM APPLICATION copy WITH (id => 'steady')",
    );
    let mut results = server.watch("steady");
    let mut sensor = Publisher::connect(server.mqtt);
    for n in 0..200 {
        sensor.publish("in/steady", &json!({"n": n}).to_string());
        sensor.publish("in/other", &json!({"n": n}).to_string());
        match n % 10 {
            0 => server.sql_ok("CREATE QUERY other FROM APPLICATION copy WITH (id => 'other')"),
            3 => server.sql_ok("PAUSE QUERY other"),
            6 => server.sql_ok("RESUME QUERY other"),
            9 => server.sql_ok("DROP QUERY other"),
            _ => Value::Null,
        };
    }
    for n in 0..200 {
        assert_eq!(results.next(), Some(json!({"n": n})), "no gap, nothing twice, in order");
    }
}

#[test]
fn errors_in_sql_say_where_and_what_to_do() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(AC_CONTROL);
    for (script, message, hint) in [
        ("CREATE QUERY q FROM APPLICATION ac_contrl WITH (home => '1')", "ac_contrl", "ac_control"),
        ("CREATE QUERY q FROM APPLICATION ac_control WITH (hme => '1')", "hme", "home"),
        ("CREATE QUERY q FROM APPLICATION ac_control", "home", ""),
        ("CREATE QUERY q FROM APPLICATION ac_control WITH (home => '1', target => 'warm')", "target", ""),
        ("CREATE QUERY q FROM APPLICATION ac_control WITH (home => 'a/b')", "a/b", "level"),
        ("CRATE QUERY q", "CRATE", "CREATE"),
        ("DROP QUERY nobody", "nobody", ""),
    ] {
        let error = server.sql(script)["error"].clone();
        assert_eq!(error["line"], 1, "{script}: {error}");
        assert!(error["column"].as_u64().is_some(), "{script}: {error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{script}: {error}");
        assert!(error["hint"].as_str().unwrap_or_default().contains(hint), "{script}: {error}");
    }
    let again = server.sql_ok(AC_CONTROL)["results"][0]["message"].clone();
    assert_eq!(again, "application ac_control is registered already");
    let other = server.sql(&AC_CONTROL.replace("0.5", "0.6"))["error"].clone();
    assert_eq!(other["kind"], "already_exists");
}

#[test]
fn a_taken_port_and_a_locked_catalog_are_said_clearly() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    let second = |http: String, mqtt: String, data: &Path| {
        rivulet()
            .arg("serve")
            .current_dir(folder.path())
            .env("RIVULET_DATA_DIR", data)
            .env("RIVULET_HTTP_ADDRESS", http)
            .env("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt)
            .output()
            .unwrap()
    };
    let other = folder.path().join("other");
    for (output, words) in [
        (second(server.http.to_string(), "127.0.0.1:0".into(), &other), ["in use", "hint:", "--http-address"]),
        (second("127.0.0.1:0".into(), server.mqtt.to_string(), &other), ["in use", "hint:", "--mqtt-address"]),
        (
            second("127.0.0.1:0".into(), "127.0.0.1:0".into(), &folder.path().join("data")),
            ["another", "hint:", "folder"],
        ),
    ] {
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        words.iter().for_each(|word| assert!(said(&output).contains(word), "{word} in {}", said(&output)));
    }
    assert!(!other.exists(), "a start that fails leaves no folder behind");
    assert_eq!(server.status()["queries_running"], 0, "the first server is unharmed");
}

#[test]
fn a_damaged_catalog_is_said_clearly_and_left_alone() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("catalog.redb"), b"this is no catalog").unwrap();
    let output = rivulet()
        .arg("serve")
        .current_dir(folder.path())
        .env("RIVULET_DATA_DIR", &data)
        .env("RIVULET_HTTP_ADDRESS", "127.0.0.1:0")
        .env("RIVULET_MQTT_EMBEDDED_ADDRESS", "127.0.0.1:0")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("damaged") && said(&output).contains("hint:"), "{}", said(&output));
    assert_eq!(std::fs::read(data.join("catalog.redb")).unwrap(), b"this is no catalog");
}

#[test]
fn ctrl_c_under_load_ends_cleanly() {
    let folder = TempDir::new().unwrap();
    let mut server = Server::start(folder.path());
    server.sql_ok(AC_CONTROL);
    server.sql_ok("CREATE QUERY kims_ac FROM APPLICATION ac_control WITH (home => '42')");
    let broker = server.mqtt;
    let load = std::thread::spawn(move || {
        let mut sensor = Publisher::connect(broker);
        let end = Instant::now() + WAIT_MAX;
        let payload = format!("\x30\x3a\x00\x13home/42/temperature{{\"ts\":{}, \"value\": 21.0}}", now_ms());
        let payload = format!("{payload:<60}");
        while Instant::now() < end && sensor.0.write_all(payload.as_bytes()).is_ok() {}
    });
    wait("events to be processed", || server.status()["total"]["events"].as_u64() > Some(1000));
    server.signal("-INT");
    assert_eq!(server.wait_for_end(), Some(0));
    load.join().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_broker_that_is_down_at_the_start_and_lost_in_the_middle_is_found_again() {
    let Some(program) = mosquitto() else { return };
    let folder = TempDir::new().unwrap();
    let broker = free_port();
    let start_broker = || start_mosquitto(&program, folder.path(), broker);
    let server = Server::spawn(folder.path(), broker, &[("RIVULET_MQTT_BROKER_URL", format!("mqtt://{broker}"))]);
    // It takes applications and queries without a broker, but no events come: alive, not ready.
    wait("the server to live", || server.health("live").is_some_and(|(code, _)| code == 200));
    wait("its start", || server.health("ready").is_some_and(|(_, text)| !text.contains("is starting")));
    let (code, text) = server.health("ready").unwrap();
    assert!(code == 503 && text.contains(&format!("not connected to the broker mqtt://{broker}")), "{code} {text}");
    server.sql_ok(
        "CREATE APPLICATION copy (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON
         OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n FROM numbers;
         CREATE QUERY a FROM APPLICATION copy WITH (id => 'a')",
    );
    let connection = |server: &Server| server.status()["connections"][0].clone();
    wait("the failure to be told", || connection(&server)["last_error"].is_string());
    assert_eq!(connection(&server)["connected"], false);
    for round in 0..2u64 {
        let running = start_broker();
        wait("the connection", || connection(&server)["connected"] == true);
        server.wait_until_ready();
        let before = server.status()["total"]["events"].as_u64().unwrap();
        let mut sensor = Publisher::connect(broker);
        wait("an event to arrive", || {
            sensor.publish("in/a", "{\"n\": 1}");
            server.status()["total"]["events"].as_u64().unwrap() > before
        });
        assert_eq!(connection(&server)["reconnects"], round);
        drop(running);
        wait("the loss to be noticed", || connection(&server)["connected"] == false);
        assert_eq!(server.health("ready").unwrap().0, 503);
    }
    assert_eq!(connection(&server)["gaps"], 1);
}

/// A Mosquitto that listens at an address.
pub(crate) fn start_mosquitto(program: &Path, folder: &Path, broker: SocketAddr) -> Killed {
    let configuration = folder.join("mosquitto.conf");
    std::fs::write(&configuration, format!("listener {} 127.0.0.1\nallow_anonymous true\n", broker.port())).unwrap();
    let child = Command::new(program).arg("-c").arg(&configuration).stderr(Stdio::null()).spawn().unwrap();
    wait("mosquitto to listen", || TcpStream::connect(broker).is_ok());
    Killed(child)
}

/// A process that is killed when dropped.
pub(crate) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where mosquitto is; where it is not, the test says so and skips, except in CI.
pub(crate) fn mosquitto() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .map(|folder| folder.join("mosquitto"))
        .find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "CI installs mosquitto");
        _ = writeln!(stderr(), "skipped: mosquitto is not installed");
    }
    found
}

#[test]
fn the_demo_processes_all_that_is_sent() {
    let folder = TempDir::new().unwrap();
    let output = rivulet()
        .args(["demo", "--queries", "400", "--duration", "3s", "--json"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["queries"], 400);
    assert!(report["events_sent"].as_u64() > Some(500), "{report}");
    assert_eq!(report["events_sent"], report["events_processed"], "{report}");
    assert_eq!(report["events_refused"], 0, "{report}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the demo leaves nothing behind");
}

#[test]
fn bench_many_accounts_for_every_event() {
    let output = rivulet().args(["bench", "many", "--queries", "2000", "--duration", "3s", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in [
        "queries_capacity",
        "latency_us_p50",
        "latency_us_p99",
        "engine_cpu_s",
        "bytes_per_query",
        "submit_per_s",
        "events_sent",
        "events_processed",
        "events_dropped",
    ] {
        assert!(report[key].is_number(), "{key} in {report}");
    }
    assert!(report["events_sent"].as_u64() > Some(4000), "{report}");
    assert_eq!(report["events_sent"], report["events_processed"], "{report}");
    assert_eq!(report["events_dropped"], 0, "{report}");
}
