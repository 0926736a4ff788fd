//! The generators from outside: over MQTT, and as sources of big queries.

mod generator;
mod sources;
mod support;
