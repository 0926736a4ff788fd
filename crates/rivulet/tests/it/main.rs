//! Tests of behaviour, as users and other programs see it: real HTTP over loopback, the real program.

mod support;

mod api;
mod backup;
mod bench;
mod big_queries;
mod big_query_checkpoints;
mod big_query_recovery;
mod bench_streams;
mod bulk;
mod capture_property;
mod catalog_crash;
mod checkpoint_store;
mod checkpoints;
mod cli;
mod comparison;
mod cut;
mod engine;
mod key_property;
#[path = "../../../rivulet-connectors/tests/connectors/kafka_broker.rs"]
mod kafka_broker;
mod kill;
mod kill_disk;
mod kill_kafka;
mod kill_mqtt;
mod patterns;
mod readme;
mod reference;
mod replace;
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
