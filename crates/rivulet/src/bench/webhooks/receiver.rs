//! A server of many receivers of webhooks, one of which may be slow, or give no answer.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use parking_lot::{Condvar, Mutex};
use rivulet_bench::LatencyHistogram;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

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
    _runtime: Runtime,
}

struct Shared {
    /// The path of the one receiver.
    path: String,
    answers: watch::Sender<Answers>,
    counts: Mutex<Counts>,
    /// Notified when a request has come.
    changed: Condvar,
}

struct Counts {
    /// The keys of all requests that were answered.
    keys: HashSet<String>,
    /// Of requests to the other receivers.
    latencies: LatencyHistogram,
    again: u64,
}

impl Counts {
    fn new() -> Self {
        Self { keys: HashSet::new(), latencies: LatencyHistogram::new(), again: 0 }
    }
}

impl Receiver {
    /// Listens. `path` is that of the one receiver.
    pub(super) fn start(path: &str) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let (answers, counts) = (watch::Sender::new(Answers::AtOnce), Mutex::new(Counts::new()));
        let shared = Arc::new(Shared { path: path.to_owned(), answers, counts, changed: Condvar::new() });
        let router = Router::new().fallback(receive).with_state(shared.clone());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, shared, _runtime: runtime })
    }

    /// Counts from zero, and lets the one receiver answer like this.
    pub(super) fn begin(&self, answers: Answers) {
        *self.shared.counts.lock() = Counts::new();
        self.answer(answers);
    }

    /// Lets the one receiver answer like this.
    pub(super) fn answer(&self, answers: Answers) {
        self.shared.answers.send_replace(answers);
    }

    /// Waits until so many requests have come, or all but those of the one receiver: then no more come for a while.
    pub(super) fn let_others_come(&self, events: u64, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut counts = self.shared.counts.lock();
        while (counts.keys.len() as u64) < events && Instant::now() < deadline {
            let before = counts.latencies.count();
            let is_late = self.shared.changed.wait_for(&mut counts, OTHERS_WAIT).timed_out();
            if is_late && counts.latencies.count() == before {
                return;
            }
        }
    }

    /// The number of different requests that were answered.
    pub(super) fn came(&self) -> u64 {
        self.shared.counts.lock().keys.len() as u64
    }

    /// The number of requests that came again after they were answered.
    pub(super) fn again(&self) -> u64 {
        self.shared.counts.lock().again
    }

    /// The latencies at the other receivers.
    pub(super) fn latencies(&self) -> LatencyHistogram {
        self.shared.counts.lock().latencies.clone()
    }
}

/// Answers a request.
async fn receive(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> StatusCode {
    let (latency_us, is_the_one) = (latency_us(&body), uri.path() == shared.path);
    if is_the_one {
        let mut answers = shared.answers.subscribe();
        let now = *answers.borrow_and_update();
        match now {
            Answers::AtOnce => {}
            Answers::After(wait) => _ = tokio::time::timeout(wait, answers.wait_for(|next| *next != now)).await,
            // The server gives up, and tries again with another connection.
            Answers::Never => std::future::pending().await,
        }
    }
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    let mut counts = shared.counts.lock();
    if !is_the_one {
        counts.latencies.record_us(latency_us);
    }
    counts.again += u64::from(!counts.keys.insert(key.to_owned()));
    drop(counts);
    shared.changed.notify_all();
    StatusCode::OK
}

/// From the time in a body, in milliseconds since the epoch, to now.
fn latency_us(body: &[u8]) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    now.as_micros() as i64 - (body["ts"].as_f64().unwrap_or(0.0) * 1e3) as i64
}
