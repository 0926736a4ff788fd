//! Simulated homes for a demonstration: sensors that publish over ordinary MQTT connections to a broker, one event a
//! second each, with more fires and arrhythmias than in reality.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::arrivals::PoissonArrivals;
use crate::clients::{BrokerOptions, Clients};
use crate::random::Random;
use crate::sender::{Progress, Sender};
use crate::sensors::Sensors;
use crate::workload::Workload;

/// The settings of the homes.
#[derive(Clone, Debug)]
pub struct HomesOptions {
    /// The broker to which they publish.
    pub broker: BrokerOptions,
    /// The number of queries of the workload that they feed.
    pub queries: u32,
    /// Events per second for each query, on average.
    pub rate_per_query: f64,
    /// After how long they stop by themselves.
    pub duration: Duration,
    /// How much more often than in reality there is a fire, an arrhythmia or rain.
    pub episode_factor: f32,
}

/// Homes that publish until they are stopped or their time is over.
pub struct SimulatedHomes {
    stop: Arc<AtomicBool>,
    progress: Arc<Mutex<Progress>>,
    thread: Option<JoinHandle<()>>,
}

/// The progress of the homes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HomesProgress {
    /// Events published.
    pub events_sent: u64,
    /// Events lost because a connection was broken.
    pub events_lost: u64,
    /// 99 % of the events were published at most this many microseconds after their time.
    pub lateness_us_p99: u64,
    /// Whether they have stopped.
    pub is_finished: bool,
}

impl SimulatedHomes {
    /// Connects, and starts the homes.
    ///
    /// Fails if the broker cannot be reached or refuses a connection.
    pub fn start(workload: &Workload, options: HomesOptions) -> io::Result<Self> {
        let mut clients = Clients::connect(options.broker)?;
        let seed = workload.options().seed;
        let mut sensors = Sensors::new(workload, options.queries);
        let (stop, progress) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Progress::default())));
        let (stop_seen, progress_made) = (Arc::clone(&stop), Arc::clone(&progress));
        let thread = thread::Builder::new().name("simulated-homes".into()).spawn(move || {
            let sender = Sender {
                arrivals: PoissonArrivals::new(sensors.queries(), options.rate_per_query, options.duration, seed),
                sensors: &mut sensors,
                random: Random::of(seed, 1),
                episode_factor: options.episode_factor,
                stop: &stop_seen,
                progress: &progress_made,
            };
            sender.run(&mut clients);
        })?;
        Ok(Self { stop, progress, thread: Some(thread) })
    }

    /// Their progress so far.
    pub fn progress(&self) -> HomesProgress {
        let progress = self.progress.lock().expect("nobody panics while holding the progress");
        HomesProgress {
            events_sent: progress.events_sent,
            events_lost: progress.events_lost,
            lateness_us_p99: progress.lateness.percentile_us(99.0),
            is_finished: progress.is_finished,
        }
    }

    /// Stops them, and returns their progress.
    pub fn stop(mut self) -> HomesProgress {
        self.join();
        self.progress()
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for SimulatedHomes {
    fn drop(&mut self) {
        self.join();
    }
}

impl fmt::Debug for SimulatedHomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimulatedHomes").field(&self.progress()).finish()
    }
}
