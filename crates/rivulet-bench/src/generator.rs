//! The generator: a separate process that creates the events of a run. It speaks MQTT as a broker does, so that an
//! engine is measured as an ordinary client. With a real broker in between, the generator is an ordinary client.
//!
//! It reads commands as lines of JSON from its standard input ([`commands`]), and ends when that is closed. It
//! receives, counts and drops the engine's results. It reports its own lateness and CPU time, so that a reader can tell
//! a slow engine from a slow generator.

pub mod commands;
mod broker;
mod crowd;
mod filters;
mod results;
pub mod handle;

use std::io::{self, BufRead, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rivulet_connectors::mqtt::codec::Qos;

use crate::arrivals::PoissonArrivals;
use crate::clients::{BrokerOptions, Clients};
use crate::random::Random;
use crate::sender::{Outlets, Progress, Sender, epoch_us};
use crate::sensors::{QUERIES_MAX, Sensors};
use crate::workload::{Workload, WorkloadOptions};

use broker::{Broker, Subscribers};
use commands::{Answer, Command, Report};
use crowd::Crowd;
use results::Results;

/// The longest line of the standard input, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// The longest wait for subscriptions that a command may ask for.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The role of a generator.
#[derive(Clone, Debug)]
pub enum GeneratorOptions {
    /// It is the broker.
    Broker {
        /// The address where it listens (port 0 for any).
        address: SocketAddr,
        /// The quality of service of events: at most once, or at least once.
        qos: Qos,
    },
    /// It is the broker for an engine that makes connections for each query.
    Crowd(SocketAddr),
    /// It is a client of this broker.
    Client(BrokerOptions),
}

impl GeneratorOptions {
    /// Returns the options of a broker on a free port of this machine.
    pub fn broker(qos: Qos) -> Self {
        Self::Broker { address: ([127, 0, 0, 1], 0).into(), qos }
    }
}

/// Why a generator cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    /// It cannot listen.
    #[error("the generator cannot listen on {address}: {error}\nhint: choose port 0 for any free port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// It cannot connect to the broker.
    #[error("the generator cannot connect to the broker at {address}: {error}\nhint: is the broker running there?")]
    Connect {
        /// The address of the broker.
        address: String,
        /// The reason.
        error: io::Error,
    },
    /// Its input or output failed.
    #[error("the generator cannot talk to whoever started it: {0}")]
    Control(#[from] io::Error),
}

/// Runs a generator until `input` ends; answers go to `output`, one line each. Returns its last report.
pub fn run_generator(
    options: GeneratorOptions,
    mut input: impl BufRead,
    mut output: impl Write,
) -> Result<Report, GeneratorError> {
    let mut generator = Generator::new(options)?;
    answer(&mut output, &Answer::Listening { address: generator.address() })?;
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let result = serde_json::from_slice::<Command>(&line)
            .map_err(|error| {
                format!("this is no command: {error}\nhint: commands are prepare, wait, start, report and stop")
            })
            .and_then(|command| generator.obey(command));
        answer(&mut output, &result.unwrap_or_else(|message| Answer::Error { message }))?;
    }
    generator.stop();
    Ok(generator.report())
}

fn answer(output: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.flush()
}

/// The connections of a generator: those it accepts, or those it makes.
enum Side {
    Broker(Broker),
    Crowd(Box<Crowd>),
    Client(BrokerOptions),
}

struct Generator {
    side: Side,
    seed: u64,
    /// The sending thread has it during a run.
    sensors: Option<Sensors>,
    queries: u32,
    run: Option<Run>,
    progress: Arc<Mutex<Progress>>,
    cpu_start_s: Option<f64>,
    runs: u64,
}

/// A run in progress.
struct Run {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Sensors>,
}

impl Generator {
    fn new(options: GeneratorOptions) -> Result<Self, GeneratorError> {
        let side = match options {
            GeneratorOptions::Broker { address, qos } => {
                let listening = Broker::listen(address, qos);
                Side::Broker(listening.map_err(|error| GeneratorError::Listen { address, error })?)
            }
            GeneratorOptions::Crowd(address) => Side::Crowd(Box::new(
                Crowd::listen(address).map_err(|error| GeneratorError::Listen { address, error })?,
            )),
            GeneratorOptions::Client(broker) => {
                // This fails now rather than in the middle of a run.
                Clients::connect(broker.clone())
                    .map_err(|error| GeneratorError::Connect { address: broker.address.clone(), error })?;
                Side::Client(broker)
            }
        };
        let progress = Arc::new(Mutex::new(Progress { is_finished: true, ..Progress::default() }));
        let (sensors, cpu_start_s) = (Some(Sensors::default()), process_cpu_s());
        Ok(Self { side, seed: 0, sensors, queries: 0, run: None, progress, cpu_start_s, runs: 0 })
    }

    fn address(&self) -> Option<SocketAddr> {
        match &self.side {
            Side::Broker(broker) => Some(broker.address()),
            Side::Crowd(crowd) => Some(crowd.address()),
            Side::Client(_) => None,
        }
    }

    fn obey(&mut self, command: Command) -> Result<Answer, String> {
        match command {
            Command::Prepare { queries, workload } => self.prepare(queries, workload),
            Command::Wait { timeout_ms } => self.wait(Duration::from_millis(timeout_ms).min(WAIT_MAX)),
            Command::Start { rate_per_query, duration_ms, episode_factor } => {
                self.start(rate_per_query, Duration::from_millis(duration_ms), episode_factor)
            }
            Command::Report {} => Ok(Answer::Report(self.report())),
            Command::Stop {} => {
                self.stop();
                Ok(Answer::Report(self.report()))
            }
        }
    }

    fn prepare(&mut self, queries: u32, options: WorkloadOptions) -> Result<Answer, String> {
        if queries > QUERIES_MAX {
            return Err(format!("{queries} queries are too many\nhint: at most {QUERIES_MAX} for one generator"));
        }
        self.stop();
        self.seed = options.seed;
        let workload = Workload::new(options).map_err(|error| error.to_string())?;
        // The old sensors are dropped first: two would double the memory.
        self.sensors = None;
        let sensors = Sensors::new(&workload, queries);
        let memory_bytes = sensors.memory_bytes() as u64;
        self.queries = queries;
        self.sensors = Some(sensors);
        Ok(Answer::Prepared { queries, memory_bytes })
    }

    fn wait(&mut self, timeout: Duration) -> Result<Answer, String> {
        let broker = match &self.side {
            Side::Broker(broker) => broker,
            Side::Crowd(crowd) => return self.wait_for_crowd(crowd, timeout),
            Side::Client(_) => return Ok(Answer::Subscribed { queries: self.queries }),
        };
        let Some(sensors) = &self.sensors else { return Ok(Answer::Subscribed { queries: self.queries }) };
        let deadline = Instant::now() + timeout;
        // The topics of all queries below `subscribed` are subscribed to. The search starts again when subscriptions
        // change.
        let (mut seen_version, mut subscribed) = (None, 0);
        let mut outlets = broker.outlets(self.queries);
        loop {
            let version = broker.version();
            if seen_version != Some(version) {
                seen_version = Some(version);
                outlets.refresh();
                subscribed = (0..sensors.queries())
                    .find(|&query| sensors.topics(query).any(|topic| outlets.look_up(topic) == 0))
                    .unwrap_or(sensors.queries());
            }
            if subscribed == sensors.queries() {
                return Ok(Answer::Subscribed { queries: subscribed });
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "after {} ms nobody has subscribed to {}\nhint: connect the engine and submit the queries first",
                    timeout.as_millis(),
                    String::from_utf8_lossy(&sensors.topics(subscribed).collect::<Vec<_>>().join(&b" and "[..]))
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Every query subscribes to its own topics and to nothing else.
    fn wait_for_crowd(&self, crowd: &Crowd, timeout: Duration) -> Result<Answer, String> {
        let deadline = Instant::now() + timeout;
        let topics = self.sensors.as_ref().map_or(self.queries, Sensors::topic_count);
        while crowd.filters() < topics as usize {
            if Instant::now() >= deadline {
                return Err(format!(
                    "after {} ms there are {} subscriptions for {} queries\n\
                     hint: is the limit of open files (ulimit -n) high enough for two connections for each?",
                    timeout.as_millis(),
                    crowd.filters(),
                    self.queries
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Answer::Subscribed { queries: self.queries })
    }

    fn start(&mut self, rate_per_query: f64, duration: Duration, episode_factor: f32) -> Result<Answer, String> {
        if !(rate_per_query > 0.0 && rate_per_query.is_finite() && episode_factor >= 0.0) {
            return Err("a rate is a positive number\nhint: 1.0 is one event a second for each query".into());
        }
        self.stop();
        let Some(mut sensors) = self.sensors.take() else {
            return Err("the last run has failed\nhint: prepare again".into());
        };
        let send: Box<dyn FnOnce(Sender<'_>) + Send> = match &self.side {
            Side::Broker(broker) => {
                broker.reset_results();
                let mut outlets: Subscribers = broker.outlets(sensors.queries());
                Box::new(move |sender| sender.run(&mut outlets))
            }
            Side::Crowd(crowd) => {
                crowd.reset();
                let mut outlet = crowd.outlet();
                Box::new(move |sender| sender.run(&mut outlet))
            }
            Side::Client(options) => match Clients::connect(options.clone()) {
                Ok(mut clients) => Box::new(move |sender| sender.run(&mut clients)),
                Err(error) => {
                    self.sensors = Some(sensors);
                    return Err(format!("the broker at {} is not there: {error}\nhint: start it", options.address));
                }
            },
        };
        self.runs += 1;
        let seed = Random::of(self.seed, self.runs).bits();
        self.progress = Arc::new(Mutex::new(Progress::default()));
        self.cpu_start_s = process_cpu_s();
        let (stop, progress) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.progress));
        let stop_seen = Arc::clone(&stop);
        let arrivals = PoissonArrivals::new(sensors.queries(), rate_per_query, duration, seed);
        let time_us = epoch_us();
        let spawned = thread::Builder::new().name("generator-send".into()).spawn(move || {
            let random = Random::of(seed, 1);
            let sender = Sender {
                sensors: &mut sensors,
                arrivals,
                random,
                episode_factor,
                stop: &stop_seen,
                progress: &progress,
            };
            send(sender);
            sensors
        });
        let thread = spawned.map_err(|error| format!("no thread to send with: {error}\nhint: prepare again"))?;
        self.run = Some(Run { stop, thread });
        Ok(Answer::Started { time_us })
    }

    /// Ends a run in progress and takes the sensors back.
    fn stop(&mut self) {
        if let Some(run) = self.run.take() {
            run.stop.store(true, Ordering::Relaxed);
            // A sender that panicked leaves no sensors: the next start reports that.
            self.sensors = run.thread.join().ok();
        }
    }

    fn report(&self) -> Report {
        let (connections, filters, results) = match &self.side {
            Side::Broker(broker) => (broker.connections(), broker.filters(), broker.results()),
            Side::Crowd(crowd) => (crowd.connections(), crowd.filters(), crowd.results()),
            Side::Client(options) => (options.connection_count(), 0, Results::default()),
        };
        let dropped = match &self.side {
            Side::Crowd(crowd) => crowd.dropped(),
            Side::Broker(_) | Side::Client(_) => 0,
        };
        let latency = (results.latency.count() > 0).then(|| results.latency.summary());
        let cpu_s = process_cpu_s().zip(self.cpu_start_s).map(|(now_s, start_s)| now_s - start_s);
        let progress = self.progress.lock().expect("nobody panics while holding the progress");
        Report {
            is_running: !progress.is_finished,
            queries: self.queries,
            connections,
            filters,
            events_sent: progress.events_sent - dropped.min(progress.events_sent),
            events_unrouted: progress.events_unrouted,
            events_lost: progress.events_lost + dropped,
            bytes_sent: progress.bytes_sent,
            results_received: results.received,
            result_bytes: results.bytes,
            result_latency_us_p50: latency.map(|latency| latency.us_p50),
            result_latency_us_p95: latency.map(|latency| latency.us_p95),
            result_latency_us_p99: latency.map(|latency| latency.us_p99),
            result_latency_us_max: latency.map(|latency| latency.us_max),
            lateness_us_p50: progress.lateness.percentile_us(50.0),
            lateness_us_p99: progress.lateness.percentile_us(99.0),
            lateness_us_max: progress.lateness.summary().us_max,
            cpu_s,
            sender_cpu_s: progress.sender_cpu_s,
        }
    }
}

/// The CPU time of this process so far, in seconds, if the system tells it (Linux).
pub fn process_cpu_s() -> Option<f64> {
    /// The unit in which the kernel reports times to programs (USER_HZ), on every architecture in use.
    const TICKS_PER_S: f64 = 100.0;
    let statistics = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program is in parentheses and may contain anything. Behind it, fields 12 and 13 are user and
    // system time.
    let (_, fields) = statistics.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS_PER_S)
}
