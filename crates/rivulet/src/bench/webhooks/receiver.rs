//! A server of many receivers of webhooks, one of which may be slow, or give no answer.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use rivulet_bench::LatencyHistogram;
use serde_json::Value;

/// The longest body, in bytes.
const BODY_BYTES_MAX: u64 = 1 << 20;

/// How long the others are waited for after the last of their requests.
const OTHERS_WAIT: Duration = Duration::from_secs(2);

/// How the one receiver answers; all others answer at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    AtOnce,
    After(Duration),
    Never,
}

/// The receivers. They end with this.
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// The path of the one receiver.
    path: String,
    state: Mutex<State>,
    /// Notified when a request has come, and when the one receiver answers in another way.
    changed: Condvar,
    is_over: AtomicBool,
}

struct State {
    answers: Answers,
    /// The keys of all requests that were answered.
    keys: HashSet<String>,
    /// Of requests to the other receivers.
    latencies: LatencyHistogram,
    again: u64,
}

/// A request as it came.
struct Request {
    path: String,
    key: String,
    body: Vec<u8>,
}

impl Receiver {
    /// Listens. `path` is that of the one receiver.
    pub(super) fn start(path: &str) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (keys, latencies) = (HashSet::new(), LatencyHistogram::new());
        let state = Mutex::new(State { answers: Answers::AtOnce, keys, latencies, again: 0 });
        let (changed, is_over) = (Condvar::new(), AtomicBool::new(false));
        let shared = Arc::new(Shared { path: path.to_owned(), state, changed, is_over });
        let of_thread = shared.clone();
        thread::spawn(move || {
            // The server under measurement has a bound for its connections, and each of them has a thread here.
            while let Ok((stream, _)) = listener.accept() {
                if of_thread.is_over.load(Ordering::Acquire) {
                    return;
                }
                let shared = of_thread.clone();
                thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Ok(Self { address, shared })
    }

    /// Counts from zero, and lets the one receiver answer like this.
    pub(super) fn begin(&self, answers: Answers) {
        let mut state = self.shared.state.lock();
        *state = State { answers, keys: HashSet::new(), latencies: LatencyHistogram::new(), again: 0 };
    }

    /// Lets the one receiver answer like this.
    pub(super) fn answer(&self, answers: Answers) {
        self.shared.state.lock().answers = answers;
        self.shared.changed.notify_all();
    }

    /// Waits until so many requests have come, or all but those of the one receiver: then no more come for a while.
    pub(super) fn let_others_come(&self, events: u64, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        while (state.keys.len() as u64) < events && Instant::now() < deadline {
            let before = state.latencies.count();
            let is_late = self.shared.changed.wait_for(&mut state, OTHERS_WAIT).timed_out();
            if is_late && state.latencies.count() == before {
                return;
            }
        }
    }

    /// The number of different requests that were answered.
    pub(super) fn came(&self) -> u64 {
        self.shared.state.lock().keys.len() as u64
    }

    /// The number of requests that came again after they were answered.
    pub(super) fn again(&self) -> u64 {
        self.shared.state.lock().again
    }

    /// The latencies at the other receivers.
    pub(super) fn latencies(&self) -> LatencyHistogram {
        self.shared.state.lock().latencies.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.answer(Answers::AtOnce);
        // So that the thread that accepts looks.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Answers the requests of one connection until it ends.
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        while let Some(Request { path, key, body }) = read(&mut stream)? {
            let (latency_us, is_the_one) = (latency_us(&body), path == self.path);
            let mut state = self.state.lock();
            let answers = state.answers;
            match answers {
                _ if !is_the_one => state.latencies.record_us(latency_us),
                Answers::AtOnce => {}
                Answers::After(wait) => {
                    let until = Instant::now() + wait;
                    while state.answers == answers && !self.changed.wait_until(&mut state, until).timed_out() {}
                }
                // The server gives up, and tries again with another connection.
                Answers::Never => {
                    drop(state);
                    return stream.read_to_end(&mut Vec::new()).map(drop);
                }
            }
            state.again += u64::from(!state.keys.insert(key));
            drop(state);
            self.changed.notify_all();
            stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        }
        Ok(())
    }
}

/// Reads a request; `None` at the end of the connection.
fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut key, mut length) = (String::new(), 0);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "idempotency-key" => key = value.to_owned(),
            "content-length" => length = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    let mut body = Vec::new();
    stream.take(length.min(BODY_BYTES_MAX)).read_to_end(&mut body)?;
    Ok(Some(Request { path, key, body }))
}

/// From the time in a body, in milliseconds since the epoch, to now.
fn latency_us(body: &[u8]) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    now.as_micros() as i64 - (body["ts"].as_f64().unwrap_or(0.0) * 1e3) as i64
}
