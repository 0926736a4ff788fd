//! Workloads: the queries of a run, the streams that feed them, and their times; and the generator that measures an
//! engine with them.
//!
//! The invariants of this crate: everything random is a function of a seed. And no report hides lateness: the time of
//! an event is the intended one, whenever it was sent.
//!
//! In reading order:
//!
//! - [`streams`]: nine kinds of simulated sensors;
//! - [`applications`]: the scripts in `examples/` and the distribution of their queries' parameters;
//! - [`tables`]: the reference tables in which some of them look events up;
//! - [`workload`]: query number n of a run;
//! - [`arrivals`]: when events happen;
//! - [`generator`]: a process that creates them and speaks MQTT as a broker does;
//! - [`homes`]: simulated homes that publish to a broker, for a demonstration;
//! - [`sources`]: the generators as sources of big queries: `nexmark:`, `hibench:`, `riot:`, `debs:`, `sensors:`;
//! - [`nexmark`]: the queries of the NEXMark benchmark;
//! - [`hibench`]: the streaming workloads of HiBench;
//! - [`riot`]: RIoTBench, operator by operator, against its golden results;
//! - [`debs`]: the DEBS 2012 challenge, with its known alarms;
//! - [`latency`]: a histogram;
//! - [`search`]: for the largest load that is sustained;
//! - [`circumstances`]: where and when something was measured; [`plots`]: how pages show it;
//! - [`policies`]: what other engines run next.

pub mod streams;
pub mod applications;
pub mod tables;
pub mod workload;
pub mod arrivals;
pub mod generator;
pub mod homes;
pub mod sources;
pub mod nexmark;
pub mod hibench;
pub mod riot;
pub mod debs;
pub mod latency;
pub mod search;
pub mod circumstances;
pub mod plots;
pub mod policies;
pub mod random;
mod clients;
mod digits;
mod sensors;
mod sender;

pub use circumstances::Circumstances;
pub use clients::BrokerOptions;
pub use generator::commands::Report;
pub use generator::handle::{GeneratorHandle, HandleError};
pub use generator::{GeneratorError, GeneratorOptions, process_cpu_s, run_generator};
pub use homes::{HomesOptions, HomesProgress, SimulatedHomes};
pub use latency::{LatencyHistogram, LatencySummary};
pub use sensors::QUERIES_MAX;
pub use workload::{ApplicationSpec, Distribution, QuerySpec, Workload, WorkloadError, WorkloadOptions};
