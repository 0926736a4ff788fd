//! Tests of behaviour, as users and other programs see it: real HTTP over loopback, the real program.

mod support;

mod api;
mod bench;
mod big_queries;
mod big_query_recovery;
mod bench_streams;
mod bulk;
mod capture_property;
mod catalog_crash;
mod checkpoints;
mod cli;
mod comparison;
mod cut;
mod engine;
mod key_property;
mod kill;
mod patterns;
mod readme;
mod reference;
mod run;
mod run_state;
mod memory;
mod mqtt_queries;
mod nexmark;
mod nexmark_files;
mod sql_answers;
mod server;
mod shared_topics;
mod simulation;
mod several;
mod tables;
mod twins;
