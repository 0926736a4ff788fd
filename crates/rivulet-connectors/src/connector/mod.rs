//! Sources and sinks of big queries, by name: the name is the part of an address before the colon.
//!
//! A connector is a folder with a [`ConnectorDescription`], and a line in the list below. Checks, errors and the
//! reference are made from the description; no other code knows the connector. Topics of the server's own broker are
//! the exception: applications read and write them past this module. A connector is opened for one statement
//! ([`Connectors::open_source`], [`Connectors::open_sink`]); from then on the host runs its partitions like operators.
//! The program adds the generators of its benchmarks ([`Connectors::with`]).
//!
//! What must hold: sources and sinks never block for long and hold a bounded amount of data (code that waits for a
//! device does so in its own thread, behind a bounded queue); no input from outside makes them panic; unreadable input
//! is refused with a reason and counted, and undeliverable output is an error.
//!
//! - [`description`]: the descriptions of connectors;
//! - [`health`]: whether sources and sinks work, and what waits;
//! - [`spec`]: what a statement asks for; [`options`]: its options, checked; [`secrets`]: values that they name;
//!   [`error`]: what is wrong with it;
//! - [`registry`]: all connectors by name; [`mod@reference`]: all connectors as a page;
//! - then one connector each.

pub mod description;
pub mod error;
pub mod health;
pub mod registry;
mod reference;
pub mod option;
pub mod options;
pub mod secrets;
pub mod spec;
mod certificates;
mod convert;
mod given_format;
mod intake;
mod instances;
mod outgoing;
mod waiting;
mod lines;
mod blackhole;
mod file;
mod standard;
mod message;
mod kafka;
mod http;
mod link;
mod mqtt;

pub use description::{ByRow, ConnectorDescription, DirectionDescription, Guarantee, MessagePlace, Messages};
pub use error::{ConnectorError, whole_address};
pub use file::{InferredFile, infer_file};
pub use health::{Condition, Health, HealthReport};
pub use mqtt::{MqttConnection, publish_options};
pub use option::{Direction, OptionDescription, OptionKind};
pub use options::Options;
pub use registry::Connectors;
pub use secrets::{Secrets, secret_named};
pub use spec::{ConnectorContext, FinalUpTo, FormatText, OutputRows, PayloadCheck, SinkSpec, SourceSpec};
pub use standard::{is_reader_gone, output_failed};

/// The connectors of this crate.
static OWN: [ConnectorDescription; 9] = [
    file::CONNECTOR,
    kafka::CONNECTOR,
    mqtt::CONNECTOR,
    http::HTTP,
    http::HTTPS,
    link::CONNECTOR,
    standard::STDIN,
    standard::STDOUT,
    blackhole::CONNECTOR,
];

/// The metadata key for the name of the event time column, in a schema that a source brings itself
/// ([`Connectors::declared_schema`]).
pub const EVENT_TIME_KEY: &str = "event_time";
