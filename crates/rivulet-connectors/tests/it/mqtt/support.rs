//! What the tests share: waiting with a bound, an inbox that remembers, Mosquitto as a child process.

use std::fs;
use std::io::{Write, stderr};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{
    Broker, BrokerOptions, Client, ClientOptions, PublishBatch, PublishOptions, Publisher, Qos, Route, Router,
};
use rivulet_dataflow::{Clock, Inbox, ManualClock, Push, Slot};
pub(crate) use rivulet_testing_ports::free_port;

use crate::authority::Authority;

/// No wait is longer.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(300);

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A clock that shows the same time always.
pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::new(1_000_000))
}

/// An inbox that remembers what it took, and is full when told so.
#[derive(Default)]
pub(crate) struct Collector {
    state: Mutex<Collected>,
}

#[derive(Default)]
struct Collected {
    events: Vec<(Slot, Vec<u8>)>,
    arrivals_us: Vec<i64>,
    room: Option<usize>,
    refusals: usize,
    panics: usize,
}

impl Collector {
    /// Takes everything.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes this many more events, then none.
    pub(crate) fn limit(&self, room: usize) {
        self.state.lock().room = Some(room);
    }

    /// Panics at the next so many events.
    pub(crate) fn panic(&self, times: usize) {
        self.state.lock().panics = times;
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().events.len()
    }

    /// How often it was full.
    pub(crate) fn refusals(&self) -> usize {
        self.state.lock().refusals
    }

    /// What it took, as text, in order.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.state.lock().events.iter().map(|(_, payload)| String::from_utf8_lossy(payload).into_owned()).collect()
    }

    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.state.lock().events.iter().map(|(slot, _)| *slot).collect()
    }

    /// When they arrived, in microseconds.
    pub(crate) fn arrivals_us(&self) -> Vec<i64> {
        self.state.lock().arrivals_us.clone()
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        self.state.lock().events.iter().any(|(_, payload)| payload == text.as_bytes())
    }
}

impl Inbox for Collector {
    fn push(&self, slot: Slot, arrival_us: i64, payload: &[u8]) -> Push {
        let mut state = self.state.lock();
        if let Some(left) = state.panics.checked_sub(1) {
            state.panics = left;
            panic!("a defect, for the test");
        }
        if let Some(room) = &mut state.room {
            if *room == 0 {
                state.refusals += 1;
                return Push::Full;
            }
            *room -= 1;
        }
        state.events.push((slot, payload.to_vec()));
        state.arrivals_us.push(arrival_us);
        Push::Taken
    }
}

/// A router that sends these filters to one inbox, the first to slot 0, and so on.
pub(crate) fn router(filters: &[&str]) -> (Arc<Router>, Arc<Collector>) {
    let router = Arc::new(Router::new());
    let collector = Collector::new();
    let inbox = router.register_inbox(collector.clone());
    let routes: Vec<Route<'_>> =
        filters.iter().enumerate().map(|(slot, filter)| Route { filter, inbox, slot: slot as Slot }).collect();
    router.add(&routes).unwrap();
    (router, collector)
}

/// Our broker on a free port.
pub(crate) async fn broker(router: Arc<Router>, change: impl FnOnce(&mut BrokerOptions)) -> Broker {
    let mut options = BrokerOptions::new("127.0.0.1:0".parse().unwrap());
    change(&mut options);
    Broker::start(options, router, clock()).await.unwrap()
}

/// Our client, with short waits between its tries.
pub(crate) fn client(router: Arc<Router>, address: &str, change: impl FnOnce(&mut ClientOptions)) -> Client {
    client_with_clock(router, address, clock(), change)
}

/// The same with another clock.
pub(crate) fn client_with_clock(
    router: Arc<Router>,
    address: &str,
    clock: Arc<dyn Clock>,
    change: impl FnOnce(&mut ClientOptions),
) -> Client {
    let mut options = ClientOptions::new(address.parse().unwrap());
    options.reconnect_wait_ms_min = 5;
    options.reconnect_wait_ms_max = 50;
    change(&mut options);
    Client::start(options, router, clock).unwrap()
}

pub(crate) async fn until_subscribed(client: &Client) {
    until("the broker grants the subscriptions", || client.status().subscribed).await;
}

/// Hands one message to a publisher.
pub(crate) fn publish(publisher: &Arc<dyn Publisher>, topic: &str, payload: &str, qos: Qos) {
    let mut batch = PublishBatch::new();
    batch.push(topic, payload.as_bytes(), PublishOptions { qos, ..PublishOptions::default() }).unwrap();
    publisher.submit(&mut batch);
}

/// Where Mosquitto's programs are; `None` (with a word about it) where they are not installed. On a CI machine they
/// must be.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "'{name}' is not installed on a CI machine");
        _ = writeln!(stderr(), "skipped: '{name}' is not installed");
    }
    found
}

/// Runs one of Mosquitto's clients and waits for it.
pub(crate) async fn run(program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// One of Mosquitto's clients, running.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// What it printed, when it has ended by itself.
    pub(crate) async fn lines(mut self) -> Vec<String> {
        until("the client ends", || self.0.try_wait().unwrap().is_some()).await;
        let mut text = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut text).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Mosquitto broker of our own, ended when dropped.
pub(crate) struct Mosquitto {
    program: PathBuf,
    child: Option<Child>,
    folder: tempfile::TempDir,
    pub(crate) port: u16,
}

impl Mosquitto {
    /// Starts one with these further lines in its configuration; `None` where it is not installed.
    pub(crate) fn start(lines: &[&str]) -> Option<Self> {
        Self::start_in(tempfile::tempdir().unwrap(), lines)
    }

    /// As above, with files in `folder` that the lines name.
    pub(crate) fn start_in(folder: tempfile::TempDir, lines: &[&str]) -> Option<Self> {
        let program = program("mosquitto")?;
        let anonymous = if lines.iter().any(|line| line.contains("password_file")) { "false" } else { "true" };
        let mut broker = Self { program, child: None, folder, port: 0 };
        // Whoever asked for no port of ours may have taken it.
        for _ in 0..5 {
            broker.port = free_port();
            let configuration = format!(
                "listener {} 127.0.0.1\nallow_anonymous {anonymous}\npersistence false\nuser root\nlog_dest none\n{}\n",
                broker.port,
                lines.join("\n")
            );
            fs::write(broker.folder.path().join("mosquitto.conf"), configuration).unwrap();
            if broker.restart() {
                return Some(broker);
            }
        }
        panic!("mosquitto did not start");
    }

    /// Starts it again on the same port. Returns whether it listens.
    pub(crate) fn restart(&mut self) -> bool {
        let mut child = Command::new(&self.program)
            .arg("-c")
            .arg(self.folder.path().join("mosquitto.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while start.elapsed() < WAIT_MAX {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                self.child = Some(child);
                return true;
            }
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
        false
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An address as a client is told it.
pub(crate) fn url(address: SocketAddr) -> String {
    format!("mqtt://{address}")
}

/// A certificate authority and a certificate for 127.0.0.1 and localhost signed by it, as PEM files in `folder`: paths
/// of authority, certificate and key.
pub(crate) fn certificates(folder: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let authority = Authority::new(folder, "authority");
    let (certificate, key) = authority.server("certificate");
    (authority.file, certificate, key)
}

/// Our broker on a thread of its own, as the program runs it: a runtime with a single thread.
pub(crate) struct BrokerThread {
    broker: Option<Arc<Broker>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl BrokerThread {
    pub(crate) fn start(router: Arc<Router>, change: impl FnOnce(&mut BrokerOptions) + Send + 'static) -> Self {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                sender.send(Arc::new(broker(router, change).await)).unwrap();
                let _ = stopped.await;
            });
        });
        let broker = receiver.recv_timeout(WAIT_MAX).unwrap();
        Self { broker: Some(broker), stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn broker(&self) -> &Arc<Broker> {
        self.broker.as_ref().unwrap()
    }

    pub(crate) fn port(&self) -> u16 {
        self.broker().addresses()[0].port()
    }
}

impl Drop for BrokerThread {
    fn drop(&mut self) {
        self.broker = None;
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the broker's thread panicked");
    }
}

/// Waits until something holds, on a thread that may block.
pub(crate) fn block_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < WAIT_MAX, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs one of Mosquitto's clients to its end.
pub(crate) fn run_blocking(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap()
}
