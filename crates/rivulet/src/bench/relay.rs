//! `rivulet bench relay`: messages from this process over a relay back to it. The relay is a server with a running
//! query, and both ways are links. Beside each run the same number of bytes goes through three processes by plain
//! sockets: no relay can be faster than that.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use parking_lot::Mutex;
use rivulet_bench::{Circumstances, LatencyHistogram};
use rivulet_connectors::links::{
    Asked, Compression, Keep, LinkAuthorizer, LinkLogin, LinkRights, Links, Listening, Peer, Receive, Received,
    SendOptions, Target,
};
use rivulet_connectors::reach::AllowedHosts;
use rivulet_connectors::tls::{Certificates, Prepared};
use rivulet_dataflow::{Batch, Element};
use serde::Serialize;

use super::process::{ServerProcess, free_port};

/// The bytes of a message before its filling: its time, and its number.
const HEAD_BYTES: usize = 16;

/// The most messages of a batch of the sender.
const BATCH_ROWS_MAX: usize = 8_192;

/// How long what is on its way may take at the end of a run.
const SETTLE_MAX: Duration = Duration::from_secs(20);

/// The bytes that plain sockets are given at once.
const PLAIN_BYTES: usize = 256 << 10;

/// What is measured.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The sizes of messages.
    pub message_bytes: Vec<usize>,
    /// The sizes of buffers, in KiB; 0: each message by itself.
    pub buffer_kib: Vec<usize>,
    /// How long messages are sent in each run.
    pub duration: Duration,
}

/// One size of messages with one size of buffers.
#[derive(Clone, Debug, Serialize)]
pub struct RelayRun {
    /// Bytes of a message: its time, its number, and a text.
    pub message_bytes: usize,
    /// KiB of a buffer.
    pub buffer_kib: usize,
    /// Messages that came back a second.
    pub messages_per_s: f64,
    /// Messages of this size a second by plain sockets.
    pub ceiling_messages_per_s: f64,
    /// From the sending of a message to its return.
    pub latency_us_p50: u64,
    /// Its 99th percentile.
    pub latency_us_p99: u64,
    /// Context switches of the relay for a million messages.
    pub context_switches_per_million: f64,
    /// Processor time of the relay for a message, nanoseconds.
    pub relay_ns_per_message: f64,
    /// Messages that did not come back.
    pub lost: u64,
}

/// All runs.
#[derive(Clone, Debug, Serialize)]
pub struct RelayReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// In the order in which they were made.
    pub runs: Vec<RelayRun>,
}

/// Makes all runs; `progress` gets a line for each.
///
/// # Errors
/// The relay does not start, or messages come back changed, twice or in another order.
pub fn run_relay(options: &RelayOptions, mut progress: impl FnMut(&str)) -> Result<RelayReport, String> {
    let mut report = RelayReport { circumstances: Circumstances::now(), runs: Vec::new() };
    for &message_bytes in &options.message_bytes {
        let ceiling = ceiling(message_bytes, options.duration)?;
        for &buffer_kib in &options.buffer_kib {
            progress(&format!("messages of {message_bytes} bytes, buffers of {buffer_kib} KiB ..."));
            report.runs.push(measure(message_bytes, buffer_kib, options.duration, ceiling)?);
        }
    }
    Ok(report)
}

fn schema() -> SchemaRef {
    let field = |name, data_type| Field::new(name, data_type, false);
    Arc::new(Schema::new(vec![
        field("at", DataType::Int64),
        field("number", DataType::Int64),
        field("filling", DataType::Utf8),
    ]))
}

/// Texts of so many bytes that cannot be compressed well.
fn fillings(bytes: usize, rows: usize) -> StringArray {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut letter = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 59) as u8)
    };
    (0..rows).map(|_| Some((0..bytes).map(|_| letter()).collect::<String>())).collect()
}

/// What comes back.
struct Returned {
    start: Instant,
    fillings: StringArray,
    streams: Mutex<Vec<(Arc<Peer>, Received)>>,
    came: AtomicU64,
    /// Latencies of messages that were sent before the end, in microseconds.
    latencies: Mutex<LatencyHistogram>,
    problem: Mutex<Option<String>>,
    is_over: AtomicBool,
}

impl Receive for Returned {
    fn accept(&self, peer: &Arc<Peer>, asked: &Asked) -> Result<Option<u64>, String> {
        self.streams.lock().push((peer.clone(), asked.stream));
        Ok(None)
    }
}

impl Returned {
    fn take_all(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let streams = self.streams.lock().clone();
            let mut is_idle = true;
            for (peer, stream) in streams {
                let Some(buffer) = peer.take(stream) else { continue };
                is_idle = false;
                if let Err(problem) = buffer.elements().map_err(|error| error.to_string()).and_then(|mut elements| {
                    while let Some(element) = elements.next_element().map_err(|error| error.to_string())? {
                        if let Element::Batch(batch) = element {
                            self.check(&batch.columns)?;
                        }
                    }
                    Ok(())
                }) {
                    *self.problem.lock() = Some(problem);
                    return;
                }
            }
            if is_idle {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Checks that these are the next messages, as they were sent.
    fn check(&self, columns: &RecordBatch) -> Result<(), String> {
        let now_us = self.start.elapsed().as_micros() as i64;
        let [at, numbers] = [0, 1].map(|column| columns.column(column).as_primitive::<Int64Type>().values());
        let texts = columns.column(2).as_string::<i32>();
        let mut latencies = self.latencies.lock();
        let before = self.came.load(Ordering::Relaxed);
        for (row, (at, number)) in at.iter().zip(numbers).enumerate() {
            if *number as u64 != before + row as u64 {
                return Err(format!("message {number} came where {} was next", before + row as u64));
            }
            if texts.value(row) != self.fillings.value(*number as usize % self.fillings.len()) {
                return Err(format!("message {number} has changed"));
            }
            latencies.record_us(now_us - at);
        }
        self.came.fetch_add(columns.num_rows() as u64, Ordering::Release);
        Ok(())
    }
}

/// Lets everybody in, who can only be of this machine.
struct Anybody;

impl LinkAuthorizer for Anybody {
    fn admit(&self, _login: &LinkLogin) -> Result<Arc<dyn LinkRights>, String> {
        Ok(Arc::new(Self))
    }
}

impl LinkRights for Anybody {
    fn scope(&self) -> &str {
        "bench"
    }

    fn may_send(&self, _stream: &str) -> Result<(), String> {
        Ok(())
    }
}

fn measure(message_bytes: usize, buffer_kib: usize, duration: Duration, ceiling: f64) -> Result<RelayRun, String> {
    let failed = |error: std::io::Error| error.to_string();
    let buffer_bytes = (buffer_kib << 10).max(1);
    let filling_bytes = message_bytes.saturating_sub(HEAD_BYTES);
    let rows = (buffer_bytes / (message_bytes + 24)).clamp(1, BATCH_ROWS_MAX);
    let start = Instant::now();
    let returned = Arc::new(Returned {
        start,
        fillings: fillings(filling_bytes, rows),
        streams: Mutex::default(),
        came: AtomicU64::new(0),
        latencies: Mutex::new(LatencyHistogram::new()),
        problem: Mutex::default(),
        is_over: AtomicBool::new(false),
    });
    let links = Links::new("bench", None, None);
    let receiver: Arc<dyn Receive> = returned.clone();
    links.receive("bench", "down", &receiver)?;
    let door = links.listen(Listening {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        certificates: Certificates::new("the benchmark", Prepared::default()),
        authorizer: Arc::new(Anybody),
    });
    let door = door.map_err(failed)?;
    let to = free_port()?;
    let settings = [("RIVULET_LINK_ADDRESS", to.to_string()), ("RIVULET_HOSTS_ALLOW", "127.0.0.1".to_owned())];
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut relay = ServerProcess::start(&["serve"], None, &settings)?;
    let script = format!(
        "CREATE SOURCE up (at BIGINT NOT NULL, number BIGINT NOT NULL, filling TEXT NOT NULL) FROM 'link:up';
         CREATE SINK down TO 'link:{}/down' WITH (delivery => 'none', compression => 'none', buffer_bytes => {buffer_bytes});
         CREATE QUERY relay AS SELECT at, number, filling FROM up INTO down",
        door.address()
    );
    relay.post("/api/v1/sql", script.as_bytes())?;
    let target = Target {
        scope: String::new(),
        host: to.ip().to_string(),
        port: to.port(),
        tls: None,
        token: None,
        reach: AllowedHosts::everything(),
    };
    let options = SendOptions { buffer_bytes, flush_us: 10_000, compression: Compression::None };
    let outgoing = links.send(target, "up".into(), schema(), Keep::InMemory(options)).map_err(failed)?;
    let taking = returned.clone();
    let taker = thread::spawn(move || taking.take_all());
    let waits = Instant::now();
    while !outgoing.has_room() {
        if waits.elapsed() > SETTLE_MAX {
            return Err(outgoing.problem().unwrap_or_else(|| "the relay does not take the stream".into()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    let (used, begun) = (relay.usage(), Instant::now());
    let mut sent = 0_u64;
    while begun.elapsed() < duration && returned.problem.lock().is_none() {
        if !outgoing.has_room() {
            thread::sleep(Duration::from_micros(20));
            continue;
        }
        outgoing.push(&Element::Batch(messages(&returned, sent, rows))).map_err(|error| error.to_string())?;
        sent += rows as u64;
    }
    outgoing.flush();
    let came_in_time = returned.came.load(Ordering::Acquire);
    let elapsed_s = begun.elapsed().as_secs_f64();
    let used = relay.usage() - used;
    let waits = Instant::now();
    let is_settled = || returned.came.load(Ordering::Acquire) >= sent || returned.problem.lock().is_some();
    while !is_settled() && waits.elapsed() < SETTLE_MAX {
        thread::sleep(Duration::from_millis(1));
    }
    returned.is_over.store(true, Ordering::Relaxed);
    let _ = taker.join();
    if let Some(problem) = returned.problem.lock().take() {
        return Err(problem);
    }
    let latencies = returned.latencies.lock();
    Ok(RelayRun {
        message_bytes,
        buffer_kib,
        messages_per_s: (came_in_time as f64 / elapsed_s).round(),
        ceiling_messages_per_s: ceiling.round(),
        latency_us_p50: latencies.percentile_us(50.0),
        latency_us_p99: latencies.percentile_us(99.0),
        context_switches_per_million: (used.context_switches as f64 * 1e6 / came_in_time.max(1) as f64).round(),
        relay_ns_per_message: (used.cpu_s * 1e9 / came_in_time.max(1) as f64).round(),
        lost: sent - returned.came.load(Ordering::Acquire).min(sent),
    })
}

/// The messages from this number on, sent now.
fn messages(returned: &Returned, from: u64, rows: usize) -> Batch {
    let at = returned.start.elapsed().as_micros() as i64;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![at; rows])),
        Arc::new(Int64Array::from_iter_values((from..from + rows as u64).map(|number| number as i64))),
        Arc::new(returned.fillings.clone()),
    ];
    let columns = RecordBatch::try_new(schema(), columns).expect("they have one length");
    Batch::new(vec![0; rows].into(), vec![at; rows].into(), vec![at; rows].into(), columns)
}

/// Messages of this size a second through three processes by plain sockets: this one sends and receives, another one
/// passes on.
fn ceiling(message_bytes: usize, duration: Duration) -> Result<f64, String> {
    let failed = |error: std::io::Error| format!("plain sockets: {error}");
    let (from, back) = (free_port()?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?);
    let program = std::env::current_exe().map_err(failed)?;
    let arguments = ["bench", "forward", &from.to_string(), &back.local_addr().map_err(failed)?.to_string()];
    let child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn().map_err(failed)?;
    let _ends = Ends(child);
    let (mut returning, _) = back.accept().map_err(failed)?;
    let mut sending = TcpStream::connect(from).map_err(failed)?;
    let message = vec![7_u8; message_bytes];
    let sender = thread::spawn(move || {
        let mut buffer = Vec::with_capacity(PLAIN_BYTES);
        let begun = Instant::now();
        while begun.elapsed() < duration {
            buffer.clear();
            while buffer.len() + message.len() <= PLAIN_BYTES {
                buffer.extend_from_slice(&message);
            }
            if sending.write_all(&buffer).is_err() {
                break;
            }
        }
    });
    let (mut buffer, mut bytes, begun) = (vec![0; PLAIN_BYTES], 0, Instant::now());
    while let Ok(read @ 1..) = returning.read(&mut buffer) {
        bytes += read;
    }
    let elapsed_s = begun.elapsed().as_secs_f64();
    sender.join().map_err(|_| "plain sockets: the sender failed".to_owned())?;
    Ok(bytes as f64 / message_bytes as f64 / elapsed_s)
}

/// Ends a child when it is dropped.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Passes what comes at one address on to the other, until it ends.
///
/// # Errors
/// Those of sockets.
pub fn forward(from: SocketAddr, to: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind(from)?;
    let mut onwards = TcpStream::connect(to)?;
    let (mut coming, _) = listener.accept()?;
    let mut buffer = vec![0; PLAIN_BYTES];
    loop {
        match coming.read(&mut buffer)? {
            0 => return Ok(()),
            read => onwards.write_all(&buffer[..read])?,
        }
    }
}
