//! `rivulet bench`: how much this machine carries.

mod bulk;
mod burst;
mod debs;
mod hibench;
mod nexmark;
mod recovery;
mod relay;
mod report;
mod riot;
mod streams;
mod tenants;
mod webhooks;
mod written;

use std::io::{self, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rivulet_bench::BrokerOptions;
use rivulet_bench::applications::{EVALUATION_APPLICATIONS, SHARED_TOPIC_APPLICATION};
use rivulet_bench::generator::{GeneratorOptions, run_generator};
use rivulet_bench::workload::Distribution;
use rivulet_connectors::mqtt::codec::Qos;
use rivulet_sql::Durability;

use crate::bench::bulk::BulkOptions;
use crate::bench::recovery::RecoveryOptions;
use crate::bench::tenants::TenantOptions;
use crate::bench::webhooks::WebhookOptions;
use crate::bench::{Door, GENERATOR_USERS, ManyOptions, Model, Variant, durability, many, run_many, setting};

use crate::cli::config::Overrides;
use crate::cli::error::CliError;
use crate::cli::options::{Global, duration};
use crate::cli::serve::{self, Start};

use burst::BurstArguments;
use debs::DebsArguments;
use hibench::HibenchArguments;
use nexmark::NexmarkArguments;
use relay::{ForwardArguments, RelayArguments};
use riot::RiotArguments;
use written::{cannot_write, may_write};

/// What to measure.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum BenchCommand {
    /// How many small queries, at an event a second each
    #[command(after_help = COLUMNS)]
    Many(ManyArguments),
    /// The queries of the NEXMark benchmark
    #[command(after_help = streams::COLUMNS)]
    Nexmark(NexmarkArguments),
    /// The streaming workloads of HiBench
    #[command(after_help = streams::COLUMNS)]
    Hibench(HibenchArguments),
    /// The dataflows of RIoTBench, fused and operator by operator, and the most that each way carries
    #[command(after_help = riot::COLUMNS)]
    Riot(RiotArguments),
    /// The job of the DEBS 2012 challenge, many at once, with every answer checked
    #[command(after_help = debs::COLUMNS)]
    Debs(DebsArguments),
    /// How long a server that was killed takes until it works again
    #[command(after_help = recovery::COLUMNS)]
    Recovery(RecoveryOptions),
    /// How many queries are created and changed in bulk a second
    #[command(after_help = bulk::COLUMNS)]
    Bulk(BulkOptions),
    /// What one slow receiver of webhooks costs all others
    #[command(after_help = webhooks::COLUMNS)]
    Webhooks(WebhookOptions),
    /// What a tenant that goes wild costs another one
    #[command(after_help = tenants::COLUMNS)]
    Tenants(TenantOptions),
    /// What links carry: messages to a relay and back, beside plain sockets
    #[command(after_help = relay::COLUMNS)]
    Relay(RelayArguments),
    /// What bursts cost, in time and money, on borrowed workers and without them
    #[command(after_help = burst::COLUMNS)]
    Burst(BurstArguments),
    /// A process that passes on what comes at a plain socket, which `relay` starts
    #[command(hide = true)]
    Forward(ForwardArguments),
    /// One script in a process of its own, which the other commands start
    #[command(hide = true)]
    Script,
    /// A server that executes queries as a model does, which `many` starts
    #[command(hide = true)]
    Server(ServerArguments),
    /// The generator of events, which the other commands start
    #[command(hide = true)]
    Generator(GeneratorArguments),
}

/// What the columns of the table are.
const COLUMNS: &str = "\
The columns of the table:
  sustained  whether p50 <= 100 ms and p99 <= 1 s, and every event is accounted for
  p50 ms     median time from an event's creation in the generator to the end of its processing
  p99 ms     its 99th percentile
  max ms     the longest
  engine     CPU time of the server while events were sent
  gener.     CPU time of the generator meanwhile; both share the machine
  batch      events that were processed together, in the mean
  us/event   CPU time of the server for each event, in microseconds
  B/query    by how much the server's memory has grown since before the first query, divided by the queries;
             of few queries that is mostly what does not grow with them (threads, buffers, code), so look at
             100,000 or more
  submit/s   queries submitted a second
Below it, of the largest sustained step: CPU time by kind of thread, context switches, page faults, and misses of the last
cache where the kernel offers a counter for them.

Models with a connection for each query (tp, tpq) take two open files a query, in the engine and in the generator: `ulimit -n`
bounds them. Models with a thread for each query (tpq...) are bounded by the system's limits of threads and memory mappings.
What is beyond is refused, and the step is a row of the report that says so.";

/// Arguments of `rivulet bench many`.
#[derive(Debug, Args)]
pub(super) struct ManyArguments {
    /// One step with so many events a second, which at --rate 1 is the number of queries; by default there are steps
    /// until the limit is found
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    queries: Option<u32>,
    /// How long events are sent in each step
    #[arg(long, default_value = "20s", value_parser = duration)]
    duration: Duration,
    /// Compare 1, 10, 100, 1,000, 10,000 and 100,000 events a second for each query at the same number of events
    #[arg(long, conflicts_with = "rates")]
    rate_sweep: bool,
    /// Events a second for each query, in the mean; several are compared at the same number of events
    #[arg(long = "rate", value_delimiter = ',', default_value = "1", value_name = "RATES")]
    rates: Vec<f64>,
    /// How queries are executed: group (Rivulet), group-rows (no batches), tp+nc, tp+n, tp (a task for each query,
    /// thread pool), tpq+nc, tpq+n, tpq (a thread for each query), where +n is one connection for all and +c one plan;
    /// several, with commas between, are compared. All but the first two need a program that was built with the feature
    /// baselines
    #[arg(long, value_delimiter = ',', default_value = "group", value_name = "MODELS")]
    model: Vec<Model>,
    /// Whether load is evened out between workers; both are compared if both are given
    #[arg(long, value_enum, value_delimiter = ',', default_value = "on")]
    balance: Vec<Balance>,
    /// Applications, separated by commas; by default the four of the demo
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with_all = ["apps", "shared_topic"])]
    applications: Vec<String>,
    /// Copies of each application; to the engine they are different applications
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "apps")]
    copies: u32,
    /// So many applications: copies of the fifteen of the Pluto evaluation, at least one of each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    apps: Option<u32>,
    /// All queries read one topic, and each takes the events of its own device; latency is to the receipt of the result
    #[arg(long, conflicts_with = "apps")]
    shared_topic: bool,
    /// Shrink --queries, --apps and --duration together, to this part of them
    #[arg(long, value_name = "PART", default_value_t = 1.0)]
    scale: f64,
    /// How queries are spread over the applications
    #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform")]
    distribution: Vec<Spread>,
    /// Cut a single query in parts from so many hundredths of a worker's time on, 0 for never; by default as a server
    /// does
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    cut_above: Option<u32>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What of inputs survives the end of the server: none, checkpoint, log; as configured by default. Several are
    /// compared
    #[arg(long, value_delimiter = ',', value_name = "DURABILITIES", value_parser = durability)]
    durability: Vec<Durability>,
    /// The generator delivers events at this quality of service; at 1 the server acknowledges each, durable ones when
    /// they are on disk
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1), conflicts_with = "external_broker")]
    qos: u8,
    /// How events come into the server; several are compared. What accounts cost is `--door broker,accounts`
    #[arg(long, value_enum, value_delimiter = ',', default_value = "client", value_name = "DOORS")]
    door: Vec<Door>,
    /// Address of a real broker between generator and engine
    #[arg(long, value_name = "HOST:PORT")]
    external_broker: Option<SocketAddr>,
    /// Divide the engine's CPU time into the stages of an event's way, by samples of the kernel's `perf`
    #[arg(long)]
    profile: bool,
    /// Configuration of the engine that is measured, for example checkpoint.enabled=false
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Write the report as a page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Whether load is evened out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Balance {
    /// As configured
    On,
    /// Never
    Off,
}

/// How queries are spread over applications.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spread {
    /// All applications alike
    Uniform,
    /// Zipf with parameter 1
    Zipf,
}

/// Arguments of the server.
#[derive(Debug, Args)]
pub(super) struct ServerArguments {
    /// How queries are executed
    #[arg(long)]
    model: Model,
    #[command(flatten)]
    overrides: Overrides,
}

/// Arguments of the generator.
#[derive(Debug, Args)]
pub(super) struct GeneratorArguments {
    /// Publish to this broker instead of being one
    #[arg(long)]
    broker: Option<SocketAddr>,
    /// Be a broker for thousands of connections
    #[arg(long)]
    crowd: bool,
    /// Deliver events at this quality of service
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    qos: u8,
    /// Listen here
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// The rates of the sweep, events a second for each query.
const SWEEP: [f64; 6] = [1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0];
/// What `--scale` leaves of a duration.
const DURATION_MIN: Duration = Duration::from_secs(2);

/// Connections with which the generator publishes to a real broker.
const GENERATOR_CONNECTIONS: usize = 4;

pub(in crate::cli) fn run(global: Global, command: BenchCommand, start: Start) -> Result<(), CliError> {
    match command {
        BenchCommand::Many(arguments) => run_many_command(global, arguments),
        BenchCommand::Nexmark(arguments) => nexmark::run(global, arguments),
        BenchCommand::Hibench(arguments) => hibench::run(global, arguments),
        BenchCommand::Riot(arguments) => riot::run(global, arguments),
        BenchCommand::Debs(arguments) => debs::run(global, arguments),
        BenchCommand::Recovery(arguments) => recovery::run(global, arguments),
        BenchCommand::Bulk(arguments) => bulk::run(global, arguments),
        BenchCommand::Webhooks(arguments) => webhooks::run(global, arguments),
        BenchCommand::Tenants(arguments) => tenants::run(global, arguments),
        BenchCommand::Relay(arguments) => relay::run(global, arguments),
        BenchCommand::Burst(arguments) => burst::run(global, arguments),
        BenchCommand::Forward(arguments) => relay::run_forward(&arguments),
        BenchCommand::Script => streams::run_job(),
        BenchCommand::Server(arguments) => {
            let mut config = arguments.overrides.load()?.config;
            let extensions = arguments.model.apply(&mut config)?;
            serve::serve(config, extensions, start, None)
        }
        BenchCommand::Generator(arguments) => {
            let options = match arguments.broker {
                Some(broker) => GeneratorOptions::Client(BrokerOptions {
                    users: users(&std::env::var(GENERATOR_USERS).unwrap_or_default()),
                    ..BrokerOptions::new(broker.to_string(), GENERATOR_CONNECTIONS, "rivulet-generator")
                }),
                None if arguments.crowd => GeneratorOptions::Crowd(arguments.listen),
                None => GeneratorOptions::Broker { address: arguments.listen, qos: qos(arguments.qos) },
            };
            run_generator(options, BufReader::new(io::stdin()), io::stdout())
                .map(drop)
                .map_err(|error| CliError::new(error.to_string()))
        }
    }
}

fn run_many_command(global: Global, arguments: ManyArguments) -> Result<(), CliError> {
    if !arguments.rates.iter().all(|rate| *rate > 0.0 && rate.is_finite()) {
        return Err(CliError::new("a rate is not a positive number").with_hint("--rate 1 is one event a second"));
    }
    if !(arguments.scale > 0.0 && arguments.scale <= 1.0) {
        return Err(CliError::new("--scale is not above 0 and at most 1").with_hint("--scale 0.01 is a hundredth"));
    }
    let is_own_broker = arguments.door.iter().any(|door| *door != Door::Client);
    if is_own_broker && (arguments.qos > 0 || arguments.external_broker.is_some()) {
        return Err(CliError::new("with --door the generator publishes to the server itself, with QoS 0")
            .with_hint("leave out --qos and --external-broker"));
    }
    let scaled = |number: u32| ((f64::from(number) * arguments.scale).round() as u32).max(1);
    let rates = if arguments.rate_sweep { SWEEP.to_vec() } else { arguments.rates.clone() };
    let (applications, copies) = match arguments.apps {
        Some(apps) => {
            let copies = scaled(apps).div_ceil(EVALUATION_APPLICATIONS.len() as u32);
            (EVALUATION_APPLICATIONS.map(str::to_owned).to_vec(), copies)
        }
        None if arguments.shared_topic => (vec![SHARED_TOPIC_APPLICATION.to_owned()], arguments.copies),
        None => (arguments.applications, arguments.copies),
    };
    let mut durabilities: Vec<Option<Durability>> = arguments.durability.iter().copied().map(Some).collect();
    if durabilities.is_empty() {
        durabilities.push(None);
    }
    let mut variants = Vec::new();
    for &model in &arguments.model {
        for spread in &arguments.distribution {
            let distribution = match spread {
                Spread::Uniform => Distribution::Uniform,
                Spread::Zipf => Distribution::Zipf,
            };
            for &balance in &arguments.balance {
                let balances = balance == Balance::On;
                for &durability in &durabilities {
                    for &door in &arguments.door {
                        variants.extend(rates.iter().map(|&rate_per_query| Variant {
                            model,
                            distribution,
                            balances,
                            door,
                            durability,
                            rate_per_query,
                        }));
                    }
                }
            }
        }
    }
    let options = ManyOptions {
        queries: arguments.queries.map(scaled),
        duration: arguments.duration.mul_f64(arguments.scale).max(DURATION_MIN.min(arguments.duration)),
        applications,
        copies,
        seed: arguments.seed,
        qos: qos(arguments.qos),
        external_broker: arguments.external_broker,
        profiles: arguments.profile,
        settings: arguments.settings,
        cut_above_percent: arguments.cut_above,
        variants,
    };
    arguments.html.as_deref().map_or(Ok(()), may_write)?;
    let report = run_many(&options, |line| eprintln!("{line}")).map_err(CliError::new)?;
    let text = if global.json { format!("{}\n", report.to_json()) } else { many::table(&report) };
    // A reader that went away does not want the report any more.
    let _ = io::stdout().write_all(text.as_bytes());
    if let Some(file) = &arguments.html {
        std::fs::write(file, many::html(&report)).map_err(|error| cannot_write(file, &error))?;
    }
    match report.failed_steps() {
        (0, _) => Ok(()),
        (failed, steps) => Err(CliError::new(format!("{failed} of {steps} steps failed"))
            .with_hint("the report says why; what was measured stands there too")),
    }
}

/// Users with their passwords, as a generator is given them.
fn users(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, password)| (name.to_owned(), password.to_owned())).collect()
}

fn qos(level: u8) -> Qos {
    match level {
        0 => Qos::AtMostOnce,
        _ => Qos::AtLeastOnce,
    }
}
