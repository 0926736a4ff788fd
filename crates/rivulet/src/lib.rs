//! Rivulet: a stream processing engine for the Internet of Things.
//!
//! This is the binary's own crate: it wires the others together. In reading order:
//! - [`service`]: what the server offers, as a trait;
//! - [`engine`]: the trait's implementation: applications as groups, queries as slots;
//! - [`accounts`]: users, their tokens and rights;
//! - [`catalog`]: applications, queries and users on disk;
//! - [`secrets`]: values that options of sources and sinks name;
//! - [`data_folder`]: what is on disk, and a copy of it;
//! - [`examine`]: what is on disk, looked at without a server;
//! - [`config`]: what the server runs with, and where each value came from;
//! - [`api`]: REST, OpenAPI, live results;
//! - [`run`]: how a planned big query is run;
//! - [`burst`]: tasks of a query in other processes for a while;
//! - [`trial`]: applications over files in this process, without a server;
//! - [`script`]: scripts of big queries and applications in this process, without a server;
//! - [`http_client`]: the other end of it, for the command line;
//! - [`allocations`]: how often memory was allocated;
//! - [`mod@bench`]: everything together, to measure;
//! - [`cli`]: the command line, one command a file.

pub mod service;
pub mod engine;
pub mod accounts;
pub mod catalog;
pub mod secrets;
pub mod data_folder;
pub mod examine;
pub mod config;
pub mod api;
pub mod run;
pub mod burst;
pub mod trial;
pub mod script;
pub mod http_client;
pub mod allocations;
pub mod bench;
pub mod cli;
mod counted;
mod inline_rows;
mod like;
mod times;
