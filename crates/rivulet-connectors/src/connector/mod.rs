//! Sources and sinks of big queries, by name: what stands before the colon of an address.
//!
//! A connector is a folder with a [`ConnectorDescription`], and a line in the list below: checks, errors and the
//! reference are made of the description, and nothing else knows the connector. It is opened for one statement
//! ([`Connectors::open_source`], [`Connectors::open_sink`]); from then on the host runs its partitions like operators.
//! A process may add connectors of its own ([`Connectors::with`]).
//!
//! What must hold: sources and sinks never block for long and hold a bounded amount (what waits for a device does so in
//! a thread of its own, behind a bounded queue); nothing from outside makes them panic; what cannot be read is refused
//! with a reason and counted, what cannot be delivered is an error.
//!
//! - [`description`]: what connectors say about themselves;
//! - [`health`]: how sources and sinks get on with what is behind them;
//! - [`spec`]: what a statement asks for; [`options`]: its options, checked; [`error`]: what is wrong with it;
//! - [`registry`]: all of them by their names; [`mod@reference`]: as a page;
//! - then one connector each.

pub mod description;
pub mod error;
pub mod health;
pub(crate) mod nearest;
pub mod registry;
mod reference;
pub mod options;
pub mod spec;
mod given_format;
mod intake;
mod instances;
mod outgoing;
mod lines;
mod blackhole;
mod file;
mod standard;
mod message;
mod kafka;
mod http;
mod mqtt;

pub use description::{
    ByRow, ConnectorDescription, Direction, DirectionDescription, Guarantee, MessagePlace, Messages, OptionDescription,
    OptionKind,
};
pub use error::{ConnectorError, whole_address};
pub use file::{InferredFile, infer_file};
pub use health::{Condition, Health, HealthReport};
pub use mqtt::{MqttHost, publish_options};
pub use options::Options;
pub use registry::Connectors;
pub use spec::{FinalUpTo, FormatText, Host, OutputRows, SinkSpec, SourceSpec};
pub use standard::{is_reader_gone, output_failed};

/// The connectors of this crate.
static OWN: [ConnectorDescription; 8] = [
    file::CONNECTOR,
    kafka::CONNECTOR,
    mqtt::CONNECTOR,
    http::HTTP,
    http::HTTPS,
    standard::STDIN,
    standard::STDOUT,
    blackhole::CONNECTOR,
];

/// Under this key, the metadata of a schema that a source brings itself ([`Connectors::declared_schema`]) has
/// the name of the event time column.
pub const EVENT_TIME_KEY: &str = "event_time";
