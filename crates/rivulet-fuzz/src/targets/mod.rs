//! What is fuzzed, one file each. Each says what must hold for any bytes.

pub mod backup;
pub mod binary_payloads;
pub mod catalog;
pub mod config;
pub mod csv;
pub mod debezium;
pub mod epochs;
pub mod event_log;
pub mod files;
pub mod json;
pub mod mqtt_broker;
pub mod mqtt_packets;
pub mod mqtt_topics;
pub(crate) mod payload;
pub mod plain_payloads;
pub mod reach;
pub mod rest;
pub mod secrets;
pub mod sql;
pub mod state_frames;
pub mod websocket;
