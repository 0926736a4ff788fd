//! The console in a real browser: Chromium, driven by `console/test/console.mjs`.

use std::io::{BufRead, BufReader, Write, stderr};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::accounts::first_administrator;
use super::callers::Mqtt;
use super::server::{Publisher, Server, free_port, wait};

const APPLICATION: &str = "CREATE APPLICATION warm (home TEXT, above DOUBLE)
    INPUT t (celsius DOUBLE) FROM 'mqtt:homes/{home}/t' FORMAT JSON OUTPUT 'mqtt:homes/{home}/warm' FORMAT JSON
    AS SELECT celsius FROM t WHERE celsius > $above";

/// A name, label and value that would be code in a page that takes it for HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// The folder of the console, if a browser and what drives it are there; where they are not, the test says so and
/// skips, except in CI.
fn console() -> Option<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    let folder = Path::new(&package).join("../../console");
    let is_there = Path::new("/usr/bin/chromium").exists() && folder.join("node_modules/playwright-core").exists();
    if !is_there {
        assert!(std::env::var_os("CI").is_none(), "CI installs Chromium and runs `cargo xtask console --check` before");
        _ = writeln!(stderr(), "skipped: chromium is not installed, or `npm ci` was not run in console/");
    }
    is_there.then_some(folder)
}

/// Drives a part of the test. Dropping it ends it.
struct Driver(Child);

impl Driver {
    fn start(folder: &Path, part: &str, url: &str, with: &[(&str, &str)]) -> Self {
        let mut command = Command::new("node");
        command.arg("test/console.mjs").current_dir(folder).env("CONSOLE_URL", url).env("CONSOLE_PART", part);
        command.envs(with.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.spawn().expect("node"))
    }

    /// Does what the driver says, line by line, until it ends well.
    fn asks(mut self, mut act: impl FnMut(&str)) {
        let said = BufReader::new(self.0.stdout.take().expect("it is piped"));
        said.lines().map_while(Result::ok).for_each(|line| act(&line));
        self.ends_well();
    }

    fn ends_well(mut self) {
        assert!(self.0.wait().expect("an end").success(), "the browser says why above");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn drive(folder: &Path, part: &str, url: &str, with: &[(&str, &str)]) {
    Driver::start(folder, part, url, with).ends_well();
}

fn submit(server: &Server, name: &str, label: &str) {
    let parameters = json!({ "home": name.replace(['<', '>', '/', ' '], "_"), "above": 20.5 });
    let query = json!({ "name": name, "application": "warm", "label": label, "parameters": parameters });
    ureq::post(format!("{}/api/v1/queries", server.url())).send(query.to_string()).expect("a query");
}

#[test]
fn every_page_shows_what_the_server_has_and_takes_text_for_text() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(APPLICATION);
    (0..60).for_each(|home| submit(&server, &format!("home-{home}"), "homes"));
    submit(&server, HOSTILE, HOSTILE);
    server.sql_ok(
        "CREATE SOURCE bid FROM 'nexmark:bid' WITH (rate => 2000); CREATE SINK counted TO 'blackhole:';
         CREATE QUERY counts AS SELECT auction, count(*) AS n FROM bid GROUP BY auction, tumble(date_time, INTERVAL '1 second')
         INTO counted",
    );
    drive(&console, "pages", &server.url(), &[]);
}

#[test]
fn sql_runs_with_its_errors_at_their_place_and_rows_are_bounded() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok("CREATE SOURCE fast FROM 'nexmark:bid' WITH (rate => 10000)");
    drive(&console, "sql", &server.url(), &[]);
}

#[test]
fn a_session_begins_with_a_password_or_a_token_and_ends() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    let (data, password) = (folder.path().join("data"), "correct horse battery staple");
    let token = first_administrator(&data).trim().to_owned();
    let server = Server::start(folder.path());
    let put = ureq::put(format!("{}/api/v1/users/admin/password", server.url()));
    let put = put.header("authorization", format!("Bearer {token}"));
    put.send(json!({ "password": password }).to_string()).expect("a password");
    let with = [("CONSOLE_USER", "admin"), ("CONSOLE_PASSWORD", password), ("CONSOLE_TOKEN", &token)];
    drive(&console, "accounts", &server.url(), &with);
}

#[test]
fn a_page_goes_on_when_its_server_comes_back() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    let (http, mqtt): (SocketAddr, SocketAddr) = (free_port(), free_port());
    let settings = [("RIVULET_HTTP_ADDRESS", http.to_string()), ("RIVULET_MQTT_EMBEDDED_ADDRESS", mqtt.to_string())];
    let start = || {
        let server = Server::spawn(folder.path(), mqtt, &settings);
        wait("the server", || ureq::get(format!("http://{http}/health/ready")).call().is_ok());
        server
    };
    let mut server = start();
    Driver::start(&console, "away", &format!("http://{http}"), &[]).asks(|line| match line {
        "stop" => server.kill_9(),
        "start" => server = start(),
        _ => {}
    });
}

#[test]
fn topics_and_clients_are_shown_whatever_they_are_called_and_send() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    let (_client, code) = Mqtt::connect(server.mqtt, 4, "", HOSTILE, None);
    assert_eq!(code, 0);
    let mut publisher = Publisher::connect(server.mqtt);
    let large = "x".repeat(1 << 20);
    Driver::start(&console, "messages", &server.url(), &[]).asks(|line| {
        if line == "publish" {
            publisher.publish(HOSTILE, HOSTILE);
            publisher.publish("large", &large);
            publisher.publish_bytes("bytes", &[0xff, 0, 0xfe]);
        }
    });
}

/// A server of another version, and one that is slow, are what the driver makes of the answers of this one.
#[test]
fn a_page_says_that_its_server_is_of_another_version_and_waits_for_a_slow_one() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    drive(&console, "other", &Server::start(folder.path()).url(), &[]);
}

#[test]
fn a_query_is_found_among_a_million() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path());
    server.sql_ok(APPLICATION);
    for begin in (0..1_000_000).step_by(5_000) {
        let line = |home: u32| {
            let label = if home == 999_990 { "one" } else { "all" };
            format!(
                "{{\"name\":\"query-{home}\",\"application\":\"warm\",\"label\":\"{label}\",\
                 \"parameters\":{{\"home\":\"{home}\",\"above\":20.5}}}}\n"
            )
        };
        let lines: String = (begin..begin + 5_000).map(line).collect();
        let posted = ureq::post(format!("{}/api/v1/queries/bulk", server.url()));
        let answer = posted.content_type("application/x-ndjson").send(lines).expect("an answer");
        let summary = answer.into_body().read_to_string().expect("a summary");
        assert!(!summary.contains("error"), "{}", &summary[..summary.len().min(500)]);
    }
    drive(&console, "million", &server.url(), &[]);
}

#[test]
fn what_a_user_may_not_do_is_not_offered() {
    let Some(console) = console() else { return };
    let folder = TempDir::new().unwrap();
    let admin = first_administrator(&folder.path().join("data")).trim().to_owned();
    let server = Server::start(folder.path());
    let sql = |text: &str| {
        let asked = ureq::post(format!("{}/api/v1/sql", server.url()));
        let asked = asked.header("authorization", format!("Bearer {admin}"));
        let answer = asked.send(text).expect("an answer").body_mut().read_to_string().expect("text");
        serde_json::from_str::<Value>(&answer).expect("JSON")
    };
    sql(APPLICATION);
    for name in ["own", "other"] {
        sql(&format!("CREATE QUERY {name} FROM APPLICATION warm WITH (home => '{name}', above => 20.5)"));
    }
    sql("CREATE USER ann; GRANT read ON QUERY TO ann; GRANT change, subscribe ON QUERY 'own' TO ann;
         GRANT read ON APPLICATION TO ann");
    let made = sql("CREATE TOKEN FOR ann");
    let token = made["results"][0]["rows"][0][0].as_str().expect("a token");
    drive(&console, "rights", &server.url(), &[("CONSOLE_TOKEN", token)]);
}
