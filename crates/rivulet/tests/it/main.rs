//! Tests of behaviour, as users and other programs see it: real HTTP over loopback, the real program.

mod support;

mod api;
mod bench;
mod big_queries;
mod bench_streams;
mod bulk;
mod catalog_crash;
mod cli;
mod engine;
mod key_property;
mod patterns;
mod readme;
mod reference;
mod run;
mod memory;
mod nexmark;
mod nexmark_files;
mod server;
mod shared_topics;
mod simulation;
mod several;
mod tables;
