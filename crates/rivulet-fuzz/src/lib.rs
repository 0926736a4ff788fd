//! The fuzz targets: for every place where our code reads bytes from outside, one function that takes any bytes and
//! panics if anything is wrong.
//!
//! - [`Target`]: such a function with its name; [`TARGETS`]: all of them;
//! - [`targets`]: one file for each, which says what must hold;
//! - [`input`]: bytes read as a list of choices; [`edits`]: changes to intact files; [`reference`]: simple doubles of
//!   tested code;
//! - [`mutate`]: bytes into other bytes, for the test, which has no fuzzer.
//!
//! `cargo xtask fuzz TARGET` runs one under libFuzzer, which looks for inputs that reach new code (`fuzz/`). The test
//! of this crate runs all of them over the committed inputs (`fuzz/corpus/TARGET/`) and a number of mutations of these.
//!
//! Input that only the code of others parses has no target: HTTP itself (hyper), the protocol of Kafka (librdkafka),
//! and the XML of object stores, which is searched for a few words (`rivulet-storage`, `store/s3/answer.rs`, with a
//! test of every cut). Bodies that are posted to an HTTP source go to the formats.
//!
//! The invariant: a target is a function of its bytes. It leaves nothing behind, neither in memory nor on disk, opens
//! no socket, and reads and writes no file but its own.

pub mod edits;
pub mod input;
pub mod mutate;
pub mod reference;
mod rows;
pub mod scratch;
mod target;
pub mod targets;

pub use target::Target;

/// All targets.
pub const TARGETS: &[Target] = &[
    targets::mqtt_packets::TARGET,
    targets::mqtt_topics::TARGET,
    targets::mqtt_broker::TARGET,
    targets::json::TARGET,
    targets::debezium::TARGET,
    targets::csv::TARGET,
    targets::plain_payloads::TARGET,
    targets::binary_payloads::TARGET,
    targets::files::TARGET,
    targets::event_log::TARGET,
    targets::epochs::TARGET,
    targets::state_frames::TARGET,
    targets::sql::TARGET,
    targets::rest::TARGET,
    targets::config::TARGET,
    targets::catalog::TARGET,
    targets::backup::TARGET,
    targets::reach::TARGET,
    targets::secrets::TARGET,
    targets::websocket::TARGET,
    targets::wire::TARGET,
    targets::proxies::TARGET,
    targets::accounts::TARGET,
    targets::grants::TARGET,
    targets::audit::TARGET,
    targets::certificates::TARGET,
    targets::mqtt_journal::TARGET,
    targets::nested_payloads::TARGET,
    targets::jwt::TARGET,
    targets::model::TARGET,
    targets::burst::TARGET,
];

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
