//! Building the programs, and this program as the compiler's wrapper, which has our own crates instrumented.
//!
//! Programs are built in the target folder of the workspace. The lists of versions are the same, and so are features
//! and profile of what others have written, so that none of it is compiled a second time; our own crates have other
//! names of files than those of the workspace, for `fuzz/` is a workspace of its own.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::root;

/// Says to this program that it is the compiler's wrapper.
const IS_WRAPPER: &str = "RIVULET_FUZZ_WRAPPER";

/// What libFuzzer needs to see of a program: which branches it takes and what it compares. Arithmetic that overflows is
/// found as well.
const INSTRUMENTATION: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "--cfg=fuzzing",
];

/// If this program was started as the compiler's wrapper: compiles, and returns how that went.
pub(crate) fn wrapped() -> Option<ExitCode> {
    env::var_os(IS_WRAPPER)?;
    let mut arguments = env::args_os().skip(1);
    let mut compiler = Command::new(arguments.next()?);
    let arguments: Vec<_> = arguments.collect();
    let name = arguments.iter().position(|argument| argument == "--crate-name").and_then(|at| arguments.get(at + 1));
    let is_own =
        name.and_then(|name| name.to_str()).is_some_and(|name| name == "rivulet" || name.starts_with("rivulet_"));
    compiler.args(arguments);
    if is_own {
        compiler.args(INSTRUMENTATION);
    }
    let status = compiler.status().ok()?;
    Some(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Where what was found, and what is known of it, is kept between runs.
pub(super) fn kept() -> PathBuf {
    target().join("fuzz")
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Builds the programs of these targets; returns the folder that has them.
pub(super) fn build(folder: &Path, targets: &[String]) -> Result<PathBuf, String> {
    if env::var_os("CXX").is_none() && ["c++", "g++", "clang++"].iter().all(|name| crate::which(name).is_none()) {
        return Err("libFuzzer comes as C++ and there is no compiler for it\nhint: apt-get install g++".into());
    }
    let own = env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
    let mut build = crate::plain_cargo();
    build.args(["build", "--release"]).current_dir(folder);
    targets.iter().for_each(|name| {
        build.args(["--bin", name]);
    });
    build.env("CARGO_TARGET_DIR", target()).env("RUSTC_WRAPPER", own).env(IS_WRAPPER, "1");
    eprintln!("+ cargo build --release (in fuzz/, instrumented: {})", targets.join(", "));
    match build.status() {
        Ok(status) if status.success() => Ok(target().join("release")),
        Ok(_) => Err("the programs could not be built".into()),
        Err(error) => Err(format!("cargo could not be started: {error}")),
    }
}
