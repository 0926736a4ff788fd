//! A server under measurement: a child process, what it costs, and an end for it in every case.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a server may take to start, and to end.
const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(10);
/// Clock ticks a second in /proc, the same on every Linux that Rust runs on.
const TICKS_PER_S: f64 = 100.0;

/// A server in a process of its own. Dropping it ends it and removes its data.
pub(super) struct ServerProcess {
    child: Child,
    /// Prints what it says.
    messages: Option<JoinHandle<()>>,
    http: SocketAddr,
    folder: PathBuf,
    agent: ureq::Agent,
}

impl ServerProcess {
    /// Starts `rivulet serve` as a client of the broker at `broker` with these environment variables, and waits until it is
    /// ready.
    pub(super) fn start(broker: SocketAddr, settings: &[(&str, &str)]) -> Result<Self, String> {
        let http = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(|error| format!("no free port for the server: {error}"))?;
        let folder = std::env::temp_dir().join(format!("rivulet-bench-{}-{}", std::process::id(), http.port()));
        let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("RIVULET_")))
            .env("RIVULET_HTTP_ADDRESS", http.to_string())
            .env("RIVULET_DATA_DIR", &folder)
            .env("RIVULET_MQTT_BROKER_URL", format!("mqtt://{broker}"))
            .env("RIVULET_LOG_LEVEL", "warn")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot start the server: {error}"))?;
        let messages = child.stderr.take().map(|said| std::thread::spawn(move || pass_on(BufReader::new(said))));
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(600)))
            .http_status_as_error(false)
            .build()
            .new_agent();
        let mut server = Self { child, messages, http, folder, agent };
        let deadline = Instant::now() + START_MAX;
        while server.get("/health/ready").is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                // A thread that only prints does not fail, and ends with the server.
                let _ = server.messages.take().map(JoinHandle::join);
                return Err(format!("the server ended while it started ({status}); what it said stands above"));
            }
            if Instant::now() >= deadline {
                return Err(format!("the server was not ready within {} s", START_MAX.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// A folder for files; it goes away with the server.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The body of an answer, or what the server said instead.
    pub(super) fn get(&self, path: &str) -> Result<String, String> {
        let answer = self.agent.get(format!("http://{}{path}", self.http)).call();
        text(answer.map_err(|error| format!("GET {path}: {error}"))?)
    }

    /// Posts a text.
    pub(super) fn post(&self, path: &str, body: &[u8]) -> Result<String, String> {
        let request = self.agent.post(format!("http://{}{path}", self.http)).content_type("text/plain");
        text(request.send(body).map_err(|error| format!("POST {path}: {error}"))?)
    }

    /// The server's status.
    pub(super) fn status(&self) -> Result<Value, String> {
        serde_json::from_str(&self.get("/api/v1/status")?).map_err(|error| format!("the server's status: {error}"))
    }

    /// CPU time so far, in seconds.
    pub(super) fn cpu_s(&self) -> f64 {
        let statistics = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let fields = statistics.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut ticks = fields.split_ascii_whitespace().skip(11).map(|field| field.parse::<f64>().unwrap_or(0.0));
        (ticks.next().unwrap_or(0.0) + ticks.next().unwrap_or(0.0)) / TICKS_PER_S
    }

    /// Context switches so far, of all threads that live.
    pub(super) fn context_switches(&self) -> u64 {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.child.id())) else { return 0 };
        let of_thread = |folder: std::fs::DirEntry| {
            let status = std::fs::read_to_string(folder.path().join("status")).unwrap_or_default();
            let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
            lines.filter_map(|line| line.rsplit('\t').next()?.trim().parse::<u64>().ok()).sum::<u64>()
        };
        threads.flatten().map(of_thread).sum()
    }

    /// Resident memory, in bytes.
    pub(super) fn rss_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) * 1024
    }
}

/// Prints what the server says, except that it came and went: who measures has not started one.
fn pass_on(messages: impl BufRead) {
    let is_news = |line: &String| !line.starts_with("Rivulet ");
    messages.lines().map_while(Result::ok).filter(is_news).for_each(|line| eprintln!("{line}"));
}

fn text(mut answer: ureq::http::Response<ureq::Body>) -> Result<String, String> {
    let status = answer.status();
    let mut body = String::new();
    let read = answer.body_mut().as_reader().read_to_string(&mut body);
    read.map_err(|error| format!("the server's answer broke off: {error}"))?;
    if status.is_success() { Ok(body) } else { Err(format!("the server answered {status}: {body}")) }
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
