//! Tests of behaviour, as users and other programs see it: real HTTP over loopback, the real program.

mod support;

mod api;
mod bench;
mod bulk;
mod catalog_crash;
mod cli;
mod engine;
mod key_property;
mod patterns;
mod readme;
mod reference;
mod memory;
mod server;
mod shared_topics;
mod simulation;
mod several;
mod tables;
