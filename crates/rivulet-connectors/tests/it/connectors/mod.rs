//! Sources and sinks of big queries against the real thing: files, streams, sockets, brokers.

mod file;
mod http;
mod kafka;
mod kafka_broker;
mod kafka_secure;
mod mqtt;
mod nested;
mod reach;
mod resume;
mod support;
mod types;
