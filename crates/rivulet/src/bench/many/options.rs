//! What is measured.

use std::net::SocketAddr;
use std::time::Duration;

use clap::ValueEnum;
use rivulet_bench::workload::{Distribution, WorkloadOptions};
use rivulet_connectors::mqtt::codec::Qos;
use rivulet_sql::Durability;

use super::model::Model;

/// What is measured.
#[derive(Clone, Debug)]
pub struct ManyOptions {
    /// One step with so many events a second; without it steps until the limit is found. At one event a second for each
    /// query this is the number of queries.
    pub queries: Option<u32>,
    /// How long events are sent in each step.
    pub duration: Duration,
    /// Base applications; the default four without.
    pub applications: Vec<String>,
    /// Copies of each base application.
    pub copies: u32,
    /// Everything random comes from this.
    pub seed: u64,
    /// At which quality of service the generator delivers events.
    pub qos: Qos,
    /// A real broker between generator and engine.
    pub external_broker: Option<SocketAddr>,
    /// Whether the engine's time is divided into stages, with the kernel's `perf`.
    pub profiles: bool,
    /// Environment variables of the server under measurement, and their values.
    pub settings: Vec<(String, String)>,
    /// The part of a worker's time, in hundredths, from which on a single query is cut in parts; as configured without.
    pub cut_above_percent: Option<u32>,
    /// What is compared: one run for each.
    pub variants: Vec<Variant>,
}

impl ManyOptions {
    pub(super) fn workload(&self, distribution: Distribution) -> WorkloadOptions {
        WorkloadOptions { applications: self.applications.clone(), copies: self.copies, distribution, seed: self.seed }
    }
}

/// One way to run the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variant {
    /// How queries are executed.
    pub model: Model,
    /// How queries are spread over applications.
    pub distribution: Distribution,
    /// Whether load is evened out between workers.
    pub balances: bool,
    /// How events come into the server.
    pub door: Door,
    /// What of inputs survives the end of the server; as configured without.
    pub durability: Option<Durability>,
    /// Events a second for each query, in the mean; the number of queries is divided by it.
    pub rate_per_query: f64,
}

impl Variant {
    /// In a few words, for tables and plots.
    pub fn label(&self) -> String {
        format!("{} {}/s", self.label_without_rate(), self.rate_per_query)
    }

    /// The same without the events a second.
    pub(super) fn label_without_rate(&self) -> String {
        let distribution = match self.distribution {
            Distribution::Uniform => "uniform",
            Distribution::Zipf => "zipf",
        };
        let balance = if self.balances { "" } else { " unbalanced" };
        let durability = self.durability.map_or_else(String::new, |durability| format!(" {}", durability.name()));
        let door = if self.door == Door::Client { String::new() } else { format!(" {}", self.door.name()) };
        format!("{} {distribution}{balance}{durability}{door}", self.model)
    }
}

/// How events come into the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Door {
    /// The server is a client of the generator, or of a broker between them
    #[default]
    Client,
    /// The generator is a client of the server's embedded broker, which asks nobody who they are
    Broker,
    /// The same with accounts: each connection shows a token, and a right with `%u` allows each event
    Accounts,
}

impl Door {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Broker => "broker",
            Self::Accounts => "accounts",
        }
    }
}

/// The limits of the step test, in microseconds.
pub(super) const P50_MAX_US: u64 = 100_000;
pub(super) const P99_MAX_US: u64 = 1_000_000;
