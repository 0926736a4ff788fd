//! MQTT client and embedded broker; sources and sinks of big queries; payload formats.
//!
//! - [`mqtt`]: the client, the embedded broker, topic templates and routing;
//! - [`connector`]: sources and sinks of big queries, by name;
//! - [`formats`]: payload bytes to rows and rows to payload bytes.

pub mod mqtt;
pub mod connector;
mod generator;
mod sockets;
pub mod formats;
