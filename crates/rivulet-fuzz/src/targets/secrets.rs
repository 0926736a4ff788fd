//! The file of secrets in a data folder. What cannot be read is refused, and the error has nothing of its content.

use rivulet::secrets::try_read;

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "secrets",
    run,
    words: &[
        "{\"version\":1,\"secrets\":[",
        "{\"tenant\":\"default\",\"name\":\"a\",\"value\":\"MARKER\",\"changed_at_ms\":1}",
        "\"MARKER\"",
        "]}",
        ",",
        "null",
        "-9223372036854775809",
    ],
    mutations: 10_000,
};

fn run(bytes: &[u8]) {
    if let Some(error) = try_read(bytes) {
        assert!(!error.contains("MARKER"), "{error}");
    }
}
