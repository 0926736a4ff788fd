//! Configuration files and environment variables. Settings that cannot be used are refused with a hint; others are in
//! force as they are shown.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rivulet::config::{Sources, read};

use crate::{Target, scratch};

/// See the module.
pub const TARGET: Target = Target {
    name: "config",
    run,
    words: &[
        "workers = 2\n",
        "http.address = \"",
        "[mqtt.embedded]\n",
        "[mqtt.broker]\n",
        "url = \"mqtt://a:b@c:1\"\n",
        "true",
        "\"1 MiB\"",
        "\"5 s\"",
        "\"never\"",
        "\"off\"",
        "-1",
        "1e9",
        "9223372036854775808",
        "[",
        "]",
        "=",
        "\"",
        "\0RIVULET_WORKERS=",
        "\0RIVULET_",
        "[[",
        "{",
        "}",
    ],
    mutations: 3_000,
};

fn run(bytes: &[u8]) {
    // A file, then variables, with zeros between.
    let mut parts = bytes.split(|&byte| byte == 0);
    let folder = scratch::folder();
    let file = folder.path().join("rivulet.toml");
    std::fs::write(&file, parts.next().unwrap_or_default()).expect("the file can be written");
    let environment = parts.filter_map(|variable| {
        let at = variable.iter().position(|&byte| byte == b'=')?;
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(&variable[..at]), text(&variable[at + 1..])))
    });
    let sources = Sources { file: Some(file), environment: environment.collect(), flags: Vec::new() };
    match read(&sources) {
        Ok(values) => {
            let settings = values.settings();
            assert!(!settings.is_empty());
            // Files of passwords are not read: they are no files of this target's.
            if settings.iter().all(|setting| !setting.key.ends_with("_file") || setting.value.is_none())
                && let Ok(loaded) = values.check()
            {
                let again = read(&sources).and_then(|values| values.check()).expect("it was right before");
                assert_eq!(loaded, again);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty() && !error.hint().is_empty()),
    }
}
