//! MQTT client and embedded broker; payload formats.
//!
//! - [`mqtt`]: the client, the embedded broker, topic templates and routing;
//! - [`formats`]: payload bytes to rows and rows to payload bytes.

pub mod mqtt;
pub mod formats;
