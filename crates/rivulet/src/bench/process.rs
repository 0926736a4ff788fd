//! A server under measurement: a child process, what it costs, and an end for it in every case.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::usage::{Meter, Usage};
use crate::data_folder::FILES;

/// How long a server may take to start, and to end.
const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(10);

/// Where its embedded broker listens; on any free port, if that is not among its settings.
pub(super) const EMBEDDED_ADDRESS: &str = "RIVULET_MQTT_EMBEDDED_ADDRESS";

/// A server in a process of its own. Dropping it ends it and removes its data.
pub(super) struct ServerProcess {
    child: Child,
    /// Prints what it says, and remembers the last of it.
    messages: Option<JoinHandle<String>>,
    http: SocketAddr,
    folder: PathBuf,
    /// The command that is the server.
    command: Vec<String>,
    /// Its environment variables.
    settings: Vec<(String, String)>,
    agent: ureq::Agent,
    /// What it is asked with, once it has accounts.
    token: Option<String>,
    meter: Meter,
}

impl ServerProcess {
    /// Starts `command`, which is `serve` or one that does the same, as a client of the broker at `broker` if there is
    /// one, with these environment variables, which may say where its own broker listens, and waits until it is ready.
    pub(super) fn start(
        command: &[&str],
        broker: Option<SocketAddr>,
        settings: &[(&str, &str)],
    ) -> Result<Self, String> {
        let http = free_port()?;
        let folder = std::env::temp_dir().join(format!("rivulet-bench-{}-{}", std::process::id(), http.port()));
        let mut settings: Vec<(String, String)> =
            settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        // What is given stands behind, and counts.
        let network = match broker {
            Some(broker) => ("RIVULET_MQTT_BROKER_URL".into(), format!("mqtt://{broker}")),
            None => (EMBEDDED_ADDRESS.into(), "127.0.0.1:0".into()),
        };
        settings.insert(0, network);
        let command: Vec<String> = command.iter().map(|&part| part.to_owned()).collect();
        let (child, messages) = spawn(http, &folder, &command, &settings)?;
        let meter = Meter::new(child.id());
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(600)))
            .http_status_as_error(false)
            .build()
            .new_agent();
        let mut server = Self { child, messages, http, folder, command, settings, agent, token: None, meter };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Kills it as the loss of power would, and starts it on what is left. Returns how long it took to be ready.
    pub(super) fn kill_and_start(&mut self) -> Result<Duration, String> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map_err(|error| format!("the server cannot be killed: {error}"))?;
        let begun = Instant::now();
        (self.child, self.messages) = spawn(self.http, &self.folder, &self.command, &self.settings)?;
        self.meter = Meter::new(self.child.id());
        self.wait_until_ready()?;
        Ok(begun.elapsed())
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_MAX;
        while self.get("/health/ready").is_err() {
            if let Some(end) = self.end() {
                return Err(end);
            }
            if Instant::now() >= deadline {
                return Err(format!("the server was not ready within {} s", START_MAX.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Makes requests as the user of a token from now on.
    pub(super) fn log_in(&mut self, token: &str) {
        self.token = Some(token.to_owned());
    }

    /// A folder for files; it goes away with the server.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the files that statements name; it goes away with the server.
    pub(super) fn files(&self) -> PathBuf {
        self.folder.join(FILES)
    }

    /// Why the server is not there any more; `None` as long as it is.
    fn end(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        // A thread that only prints does not fail, and ends with the server.
        let last = self.messages.take().and_then(|messages| messages.join().ok()).unwrap_or_default();
        Some(format!("the server ended ({status}) and said last: {last}"))
    }

    /// Why there was no answer: a server that ends closes its connections a moment before it has ended.
    fn failure(&mut self, error: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            match self.end() {
                Some(end) => return end,
                None if Instant::now() >= deadline => return error.to_owned(),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The body of an answer, or what the server said instead.
    pub(super) fn get(&mut self, path: &str) -> Result<String, String> {
        let mut request = self.agent.get(format!("http://{}{path}", self.http));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.call();
        let answer = answer.map_err(|error| self.failure(&format!("GET {path}: {error}")));
        text(answer?)
    }

    /// Posts a text.
    pub(super) fn post(&mut self, path: &str, body: &[u8]) -> Result<String, String> {
        let mut request = self.agent.post(format!("http://{}{path}", self.http)).content_type("text/plain");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.send(body);
        let answer = answer.map_err(|error| self.failure(&format!("POST {path}: {error}")));
        text(answer?)
    }

    /// The address of its HTTP server.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    /// The server's status.
    pub(super) fn status(&mut self) -> Result<Value, String> {
        serde_json::from_str(&self.get("/api/v1/status")?).map_err(|error| format!("the server's status: {error}"))
    }

    /// What it has used so far.
    pub(super) fn usage(&mut self) -> Usage {
        self.meter.read()
    }

    /// Its number in the system.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory, in bytes.
    pub(super) fn rss_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) * 1024
    }
}

/// An address on which a server can listen.
pub(super) fn free_port() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_err(|error| format!("no free port for a server: {error}"))
}

/// Starts a server, and what passes on what it says.
fn spawn(
    http: SocketAddr,
    folder: &Path,
    arguments: &[String],
    settings: &[(String, String)],
) -> Result<(Child, Option<JoinHandle<String>>), String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("RIVULET_")))
        .env("RIVULET_HTTP_ADDRESS", http.to_string())
        .env("RIVULET_DATA_DIR", folder)
        .env("RIVULET_LOG_LEVEL", "warn")
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start the server: {error}"))?;
    let messages = child.stderr.take().map(|said| std::thread::spawn(move || pass_on(BufReader::new(said))));
    Ok((child, messages))
}

/// Prints what the server says, except that it came and went (who measures has not started one), and returns the last
/// line.
fn pass_on(messages: impl BufRead) -> String {
    let mut last = String::new();
    for line in messages.lines().map_while(Result::ok).filter(|line| !line.starts_with("Rivulet ")) {
        eprintln!("{line}");
        last = line;
    }
    last
}

/// What an answer of the server says is wrong, with the hint; the answer itself where it has another form.
pub(super) fn error_of(answer: &str) -> String {
    let parsed: Value = serde_json::from_str(answer).unwrap_or_default();
    let part = |name: &str| parsed["error"][name].as_str();
    match (part("message"), part("hint")) {
        (Some(message), Some(hint)) => format!("{message} (hint: {hint})"),
        (Some(message), None) => message.to_owned(),
        _ => answer.to_owned(),
    }
}

fn text(mut answer: ureq::http::Response<ureq::Body>) -> Result<String, String> {
    let status = answer.status();
    let mut body = String::new();
    let read = answer.body_mut().as_reader().read_to_string(&mut body);
    read.map_err(|error| format!("the server's answer broke off: {error}"))?;
    if status.is_success() { Ok(body) } else { Err(format!("the server answered {status}: {}", error_of(&body))) }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Asked first, so that it closes its catalog; then made to.
        let _ = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + END_MAX;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
