//! Tests of behaviour, as users and other programs see it: real HTTP over loopback, the real program.

mod support;

mod api;
mod bulk;
mod catalog_crash;
mod cli;
mod engine;
mod key_property;
mod readme;
mod reference;
mod server;
mod tables;
