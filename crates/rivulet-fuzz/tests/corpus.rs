//! Runs every target over its committed inputs, including those that once failed, and over a number of mutations of
//! these. So targets stay valid, and what a fuzzer would find first is found here. `RIVULET_FUZZ_MUTATIONS` in the
//! environment sets the number of mutations of each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rivulet_fuzz::{TARGETS, Target, mutate::mutate};

/// The folder of the fuzzer, beside the crates.
fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this")).join("../../fuzz")
}

/// The committed inputs of a target, in the order of their names.
fn inputs(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = folder().join("corpus").join(target.name);
    let listed = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<(String, Vec<u8>)> = listed
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} has inputs", folder.display());
    inputs
}

/// Runs a target. What fails is written to a file, to be looked at and to become an input.
fn run(target: &Target, name: &str, bytes: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))) {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-failed", target.name));
        let _ = std::fs::write(&path, bytes);
        eprintln!("{} fails with {name}; the input is in {}", target.name, path.display());
        std::panic::resume_unwind(panic);
    }
}

fn exercise(name: &str) {
    let target = rivulet_fuzz::target(name).unwrap();
    let inputs = inputs(target);
    inputs.iter().for_each(|(name, bytes)| run(target, name, bytes));
    let inputs: Vec<Vec<u8>> = inputs.into_iter().map(|(_, bytes)| bytes).collect();
    let asked = std::env::var("RIVULET_FUZZ_MUTATIONS").ok().and_then(|count| count.parse().ok());
    for number in 0..asked.unwrap_or(target.mutations) {
        let mut random = StdRng::seed_from_u64(number as u64);
        let mut bytes = inputs[number % inputs.len()].clone();
        mutate(&mut bytes, &inputs, target.words, &mut |end| random.random_range(0..end));
        run(target, &format!("mutation {number}"), &bytes);
    }
}

/// A test of each target, so that they run beside each other and fail one by one.
macro_rules! exercise {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                exercise(stringify!($name));
            }
        )*

        const EXERCISED: &[&str] = &[$($(#[$attribute])* stringify!($name)),*];
    };
}

exercise!(
    mqtt_packets,
    mqtt_topics,
    mqtt_broker,
    json,
    debezium,
    csv,
    plain_payloads,
    binary_payloads,
    files,
    event_log,
    epochs,
    state_frames,
    sql,
    rest,
    config,
    catalog,
    backup,
    reach,
    secrets,
    websocket,
    wire,
    proxies,
    accounts,
    grants,
    audit,
    certificates,
    mqtt_journal,
    nested_payloads,
    jwt,
    model,
    burst,
);

#[test]
fn every_target_is_exercised_and_has_a_program() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, EXERCISED);
    let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml has the program {name}");
        assert!(folder().join(format!("fuzz_targets/{name}.rs")).is_file());
    }
}
