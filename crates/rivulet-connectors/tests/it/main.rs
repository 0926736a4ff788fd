//! One test program for the crate: each links Arrow, librdkafka and TLS.

#[allow(dead_code, reason = "the tests of the program use more of it")]
mod authority;
mod connectors;
mod formats;
mod mqtt;
