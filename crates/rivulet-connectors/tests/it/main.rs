//! One test program for the crate: each links Arrow, librdkafka and TLS.

mod connectors;
mod formats;
mod generators;
mod mqtt;
