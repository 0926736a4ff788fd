//! Runs the fuzzers of `fuzz/`, one after another.
//!
//! Only Rivulet's own crates are instrumented, by this program as the compiler's wrapper: what they call is compiled as for the product, and so in
//! minutes, and no other toolchain is needed. `cargo +nightly fuzz run TARGET` (cargo-fuzz) has everything instrumented, and memory checked.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Says to this program that it is the compiler's wrapper.
const IS_WRAPPER: &str = "RIVULET_FUZZ_WRAPPER";

/// How long each target is fuzzed without `--seconds`.
const SECONDS: u64 = 60;

/// What libFuzzer needs to see of a program: which branches it takes and what it compares. Arithmetic that overflows is found as well.
const INSTRUMENTATION: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "--cfg=fuzzing",
];

/// Bounds of one execution; what takes longer than a second is written down.
const BOUNDS: &[&str] =
    &["-timeout=10", "-report_slow_units=1", "-rss_limit_mb=4096", "-malloc_limit_mb=1024", "-max_len=16384"];

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

/// `[TARGET] [--seconds N]`
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let (wanted, seconds) = match arguments {
        [] => (None, SECONDS),
        [target] if !target.starts_with('-') => (Some(*target), SECONDS),
        ["--seconds", count] => (None, number(count)?),
        [target, "--seconds", count] | ["--seconds", count, target] => (Some(*target), number(count)?),
        _ => {
            return Err(
                "cargo xtask fuzz takes a target and --seconds\nhint: cargo xtask fuzz csv --seconds 600".into()
            );
        }
    };
    let folder = root().join("fuzz");
    let targets = targets(&folder)?;
    if let Some(wanted) = wanted
        && !targets.iter().any(|name| name == wanted)
    {
        return Err(format!("there is no target '{wanted}'\nhint: targets are {}", targets.join(", ")));
    }
    for name in targets.iter().filter(|name| wanted.is_none_or(|wanted| wanted == *name)) {
        fuzz(&folder, name, seconds)?;
    }
    Ok(())
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is no number of seconds"))
}

fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&own).parent().map(Path::to_owned).unwrap_or_default()
}

/// The names of the programs.
fn targets(folder: &Path) -> Result<Vec<String>, String> {
    let path = folder.join("Cargo.toml");
    let manifest = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let programs = manifest.split("[[bin]]").skip(1);
    let name = |program: &str| {
        let value = program.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))?;
        Some(value.to_owned())
    };
    Ok(programs.filter_map(name).collect())
}

fn fuzz(folder: &Path, name: &str, seconds: u64) -> Result<(), String> {
    // Apart from what is not instrumented.
    let shared = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let built = shared.join("fuzz");
    let own = env::current_exe().map_err(|error| format!("this program is not found: {error}"))?;
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--bin", name]).current_dir(folder);
    build.env("CARGO_TARGET_DIR", &built).env("RUSTC_WRAPPER", own).env(IS_WRAPPER, "1");
    eprintln!("+ cargo build --release --bin {name} (in fuzz/, instrumented)");
    succeed(&mut build, "the program could not be built")?;

    let (found, artifacts) = (built.join("corpus").join(name), folder.join("artifacts").join(name));
    for folder in [&found, &artifacts] {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    let mut program = Command::new(built.join("release").join(name));
    program.args(BOUNDS).arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    program.arg(format!("-artifact_prefix={}/", artifacts.display()));
    // What is new is added to the first folder; the committed inputs stay as they are.
    program.arg(&found).arg(folder.join("corpus").join(name));
    eprintln!("+ {name} for {seconds} s");
    let failed = format!(
        "{name} has found an input that fails\nhint: mend it, and commit the input from {} in fuzz/corpus/{name}",
        artifacts.display()
    );
    succeed(&mut program, &failed)
}

fn succeed(command: &mut Command, failed: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(failed.to_owned()),
        Err(error) => Err(format!("{failed}: {error}")),
    }
}
