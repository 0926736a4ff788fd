//! Sends the events of a schedule at their times, in large writes, and measures its own lateness.
//!
//! It uses one thread and blocking sockets. Due events are gathered for half a millisecond and written together. If a
//! receiver does not take what is written, the sender waits and sends later, in order and completely. Every event keeps
//! its intended time, and the delay shows in the sender's lateness.

use std::io;
use std::num::NonZeroU16;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_connectors::mqtt::codec::{Publish, Qos, Version};

use crate::arrivals::{Arrival, PoissonArrivals};
use crate::latency::LatencyHistogram;
use crate::random::Random;
use crate::sensors::Sensors;

/// The most outlets of a sender: a set of targets has one bit for each.
pub(crate) const OUTLETS_MAX: usize = 15;

/// How long events are gathered before they are written.
const TICK: Duration = Duration::from_micros(500);
/// The longest sleep of the sender, so that it notices when it has to stop.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// How often the CPU time is read, which costs as much as sending fifty events.
const CPU_READ_US: i64 = 100_000;
/// For how many events the data of their queries is loaded into the caches together.
const WARM_EVENTS: usize = 32;
/// The most events in one write.
pub(crate) const CHUNK_EVENTS: usize = 4096;

/// The connections to which packets are written, numbered below [`OUTLETS_MAX`].
pub(crate) trait Outlets {
    /// Called before each chunk: connections may have come or gone.
    fn refresh(&mut self);

    /// Returns the set of outlets for an event of this query, one bit for each.
    fn targets(&mut self, query: u32, topic: &[u8]) -> u16;

    /// The MQTT version of an outlet.
    fn version(&self, outlet: usize) -> Version;

    /// Returns the identifier of the next packet for an outlet that acknowledges packets (QoS 1); `None` for other
    /// outlets.
    #[inline]
    fn next_packet_id(&mut self, _outlet: usize) -> Option<NonZeroU16> {
        None
    }

    /// Writes whole packets. An error means that the outlet is gone and that it received none, some or all of them.
    fn write(&mut self, outlet: usize, packets: &[u8], stop: &AtomicBool) -> io::Result<()>;
}

/// The progress of a sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Events written, counted for each outlet that they were written to.
    pub events_sent: u64,
    /// Events that no outlet wanted.
    pub events_unrouted: u64,
    /// Events whose outlet failed while they were written.
    pub events_lost: u64,
    /// Bytes of the packets written.
    pub bytes_sent: u64,
    /// How long after their intended times events were written.
    pub lateness: LatencyHistogram,
    /// The CPU time of the sending thread, if the system tells it.
    pub sender_cpu_s: Option<f64>,
    /// Whether the schedule is done.
    pub is_finished: bool,
}

/// One run of a sender.
pub(crate) struct Sender<'a> {
    pub(crate) sensors: &'a mut Sensors,
    pub(crate) arrivals: PoissonArrivals,
    /// For readings.
    pub(crate) random: Random,
    /// How much more often than usual rare events happen.
    pub(crate) episode_factor: f32,
    /// Ends the run early.
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a Mutex<Progress>,
}

impl Sender<'_> {
    /// Sends all events, or sends until it is stopped.
    pub(crate) fn run<O: Outlets>(mut self, outlets: &mut O) {
        // Intended times count from here. The wall clock is read only once, so that setting it does not change the
        // schedule.
        let start = Instant::now();
        let start_us = epoch_us();
        let cpu_start_s = thread_cpu_s();
        let cpu_used_s = || thread_cpu_s().zip(cpu_start_s).map(|(now_s, start_s)| now_s - start_s);
        let mut cpu_read_us = 0;
        let mut buffers: [Vec<u8>; OUTLETS_MAX] = Default::default();
        let mut counts = [0_u64; OUTLETS_MAX];
        let mut chunk: Vec<Arrival> = Vec::with_capacity(CHUNK_EVENTS);
        let mut pending = self.arrivals.next();

        while !self.stop.load(Ordering::Relaxed) {
            let now_us = elapsed_us(start);
            chunk.clear();
            while chunk.len() < CHUNK_EVENTS
                && let Some(arrival) = pending
                && arrival.offset_us <= now_us
            {
                chunk.push(arrival);
                pending = self.arrivals.next();
            }
            let unrouted = self.fill(&chunk, start_us, outlets, &mut buffers, &mut counts);
            let (mut sent, mut lost, mut bytes) = (0, 0, 0);
            for (outlet, (buffer, count)) in buffers.iter_mut().zip(&mut counts).enumerate() {
                if buffer.is_empty() {
                    continue;
                }
                match outlets.write(outlet, buffer, self.stop) {
                    Ok(()) => {
                        sent += *count;
                        bytes += buffer.len() as u64;
                    }
                    Err(_) => lost += *count,
                }
                buffer.clear();
                *count = 0;
            }
            if !chunk.is_empty() {
                let written_us = elapsed_us(start);
                let mut progress = self.progress.lock().expect("nobody panics while holding the progress");
                progress.events_sent += sent;
                progress.events_unrouted += unrouted;
                progress.events_lost += lost;
                progress.bytes_sent += bytes;
                for arrival in &chunk {
                    progress.lateness.record_us(written_us - arrival.offset_us);
                }
                if written_us >= cpu_read_us {
                    progress.sender_cpu_s = cpu_used_s();
                    cpu_read_us = written_us + CPU_READ_US;
                }
            }
            let Some(next) = pending else { break };
            if chunk.len() < CHUNK_EVENTS {
                // The next tick counts from the beginning of this one, including its writing.
                let wake_us = next.offset_us.max(now_us + TICK.as_micros() as i64);
                let sleep_us = (wake_us - elapsed_us(start)).max(0).unsigned_abs();
                thread::sleep(Duration::from_micros(sleep_us).min(SLEEP_MAX));
            }
        }
        let mut progress = self.progress.lock().expect("nobody panics while holding the progress");
        progress.sender_cpu_s = cpu_used_s();
        progress.is_finished = true;
    }

    /// Appends the packets of a chunk to the buffers of their outlets; returns the number of events without an outlet.
    fn fill<O: Outlets>(
        &mut self,
        chunk: &[Arrival],
        start_us: i64,
        outlets: &mut O,
        buffers: &mut [Vec<u8>; OUTLETS_MAX],
        counts: &mut [u64; OUTLETS_MAX],
    ) -> u64 {
        outlets.refresh();
        let mut unrouted = 0;
        for group in chunk.chunks(WARM_EVENTS) {
            self.sensors.warm(group.iter().map(|arrival| arrival.query));
            for arrival in group {
                let (topic, payload) = self.sensors.next(
                    arrival.query,
                    start_us + arrival.offset_us,
                    &mut self.random,
                    self.episode_factor,
                );
                let mut targets = outlets.targets(arrival.query, topic);
                unrouted += u64::from(targets == 0);
                while targets != 0 {
                    let outlet = targets.trailing_zeros() as usize;
                    targets &= targets - 1;
                    let mut publish = Publish { topic, payload, ..Publish::default() };
                    if let Some(packet_id) = outlets.next_packet_id(outlet) {
                        (publish.qos, publish.packet_id) = (Qos::AtLeastOnce, packet_id.get());
                    }
                    publish
                        .encode(outlets.version(outlet), &mut buffers[outlet])
                        .expect("topics and payloads of the workload are short");
                    counts[outlet] += 1;
                }
            }
        }
        unrouted
    }
}

/// Writes all bytes to a socket with a short write timeout, however long it takes, unless it is stopped.
pub(crate) fn write_patiently(socket: &mut impl io::Write, mut bytes: &[u8], stop: &AtomicBool) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                if stop.load(Ordering::Relaxed) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn elapsed_us(start: Instant) -> i64 {
    start.elapsed().as_micros() as i64
}

/// The wall clock, in microseconds since the epoch.
pub(crate) fn epoch_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// The CPU time of this thread so far, in seconds, if the system tells it (Linux).
fn thread_cpu_s() -> Option<f64> {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let on_cpu_ns: u64 = statistics.split_ascii_whitespace().next()?.parse().ok()?;
    Some(on_cpu_ns as f64 / 1e9)
}
