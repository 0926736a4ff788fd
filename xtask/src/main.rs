//! Project chores: `cargo xtask <chore>`. The one way to run them; there is no second script language.

mod console;
mod dist;
mod fuzz;
mod kafka;
mod numa;
mod summary;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The crates that tests run most of their time in, and those that go deep into expressions on a small stack. Tests
/// optimise these a little, and our other crates not at all.
const OPTIMISED_IN_TESTS: &[&str] = &[
    "rivulet-connectors",
    "rivulet-dataflow",
    "rivulet-operators",
    "rivulet-relational",
    "rivulet-runtime",
    "rivulet-sql",
    "rivulet-storage",
];

/// How many tests of a program run at a time, for each core. Tests of servers wait most of the time: for clocks, disks
/// and other processes.
const TESTS_PER_CORE: usize = 3;

/// Has `test` leave out the slow tests.
const QUICK: &str = "--quick";

const HELP: &str = "\
cargo xtask <chore>

  lint      formatting and clippy, warnings are errors; compiles what `test` runs
  test      every test of the workspace; --quick leaves out the slow ones; NAME and options of `cargo test`
  ci        lint, then test
  docs      write the generated references in docs/reference again
  book      build the book in docs/ as HTML, in target/book; needs mdbook, and says how to install it
  bench     the canonical benchmark: many small queries, one step
  sim       simulations of the whole engine: SEED, or --seeds N [--from SEED]; every failure has a seed
  fuzz      fuzzers for every place where bytes come from outside: [TARGET]... [--seconds N] [--json], or TARGET --input FILE
  dist      the release archive, the Debian package, the image of a container, and checksums, in target/dist: [--try]
            installs and uses them; [--program FILE] is packed instead of the program that is built
  console   make the files of the console in console/dist again; --check only says whether they are as they should be;
            needs npm
  numa      the program on an emulated machine with two memory nodes; needs QEMU, and says what to install
  oracle    compute the known answers of NEXMark and of other queries again, with DuckDB
";

fn main() -> ExitCode {
    if let Some(status) = fuzz::wrapped().or_else(summary::wrapped) {
        return status;
    }
    let chores: Vec<String> = std::env::args().skip(1).collect();
    let result = match chores.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["lint"] => lint(),
        ["test", rest @ ..] => test(rest),
        ["ci"] => lint().and_then(|()| test(&[])),
        ["docs"] => docs(),
        ["book"] => book(),
        ["bench", rest @ ..] => bench(rest),
        ["sim", rest @ ..] => sim(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
        ["dist", rest @ ..] => dist::run(rest),
        ["console"] => console::make(false),
        ["console", "--check"] => console::make(true),
        ["numa"] => numa(),
        ["oracle"] => oracle(),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Checks formatting, and compiles the tests as [`test`] does, where a warning is an error.
fn lint() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    let mut build = checked_tests()?;
    build.arg("--no-run").stderr(Stdio::piped());
    eprintln!("+ cargo test --no-run, with clippy");
    let mut build = build.spawn().map_err(|error| format!("cargo could not be started: {error}"))?;
    // Cargo repeats the warnings of a crate that it need not compile again.
    let mut has_warnings = false;
    for line in BufReader::new(build.stderr.take().expect("it is piped")).lines() {
        let line = line.map_err(|error| format!("what cargo writes could not be read: {error}"))?;
        has_warnings |= line.starts_with("warning");
        eprintln!("{line}");
    }
    let status = build.wait().map_err(|error| format!("cargo was lost: {error}"))?;
    match (status.success(), has_warnings) {
        (true, false) => Ok(()),
        (true, true) => Err("there are warnings".into()),
        (false, _) => Err(format!("the build failed ({status})")),
    }
}

fn test(rest: &[&str]) -> Result<(), String> {
    if which("mosquitto").is_none() {
        eprintln!(
            "note: mosquitto is not installed, so the tests that compare with it say so and skip\n\
             hint: apt-get install mosquitto mosquitto-clients"
        );
    }
    match kafka::jars() {
        Ok(folder) => run_tests(rest, &[(kafka::JARS, &folder.to_string_lossy())]),
        Err(missing) => {
            eprintln!("note: no Kafka broker, so the tests with one say so and skip: {missing}");
            run_tests(rest, &[])
        }
    }
}

/// Slow tests are those that are marked `#[ignore = "slow"]`: `cargo test` leaves them out too.
fn run_tests(rest: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let split = rest.iter().position(|&argument| argument == "--").unwrap_or(rest.len());
    let (to_cargo, to_programs) = rest.split_at(split);
    let to_cargo: Vec<&str> = to_cargo.iter().copied().filter(|&argument| argument != QUICK).collect();
    let slow: &[&str] = if rest.contains(&QUICK) { &[] } else { &["--include-ignored"] };
    let to_programs = [&["--"], to_programs.get(1..).unwrap_or(&[]), slow].concat();
    eprintln!("+ cargo test {} {}", to_cargo.join(" "), to_programs.join(" "));
    let mut tests = checked_tests()?;
    let report = summary::Report::of(&mut tests)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = std::env::var("RUST_TEST_THREADS").unwrap_or_else(|_| (TESTS_PER_CORE * cores).to_string());
    let environment = [&[("RUST_TEST_THREADS", threads.as_str())], environment].concat();
    tests.arg("--no-fail-fast").args(to_cargo).args(to_programs).envs(environment.iter().copied());
    let status = tests.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    let failed = report.run(&environment);
    eprint!("{}", report.summary());
    match (status.success(), failed.as_slice()) {
        (true, []) => Ok(()),
        (false, []) => Err(format!("`cargo test` failed ({status})")),
        (_, failed) => Err(format!("tests failed in\n  {}", failed.join("\n  "))),
    }
}

/// `cargo test` of the whole workspace. It shares the dependencies with the program and optimises our own crates
/// less, because to compile the tests takes longer than to run them. Clippy compiles as rustc does and lints besides,
/// so one build serves tests and lints.
fn checked_tests() -> Result<Command, String> {
    let mut cargo = plain_cargo();
    cargo.args(["test", "--release", "--workspace"]).env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    for name in workspace_crates()? {
        let level = u32::from(OPTIMISED_IN_TESTS.contains(&name.as_str()));
        cargo.arg("--config").arg(format!("profile.release.package.{name}.opt-level={level}"));
    }
    Ok(cargo)
}

/// The folder of the workspace: the one that this program runs in, whichever clone has compiled it.
fn root() -> PathBuf {
    root_of(&std::env::current_dir().unwrap_or_default())
}

fn root_of(here: &Path) -> PathBuf {
    let is_root = |folder: &&Path| folder.join("Cargo.lock").is_file() && folder.join("xtask/Cargo.toml").is_file();
    here.ancestors().find(is_root).unwrap_or(here).to_owned()
}

/// The crates of this workspace, by their folders.
fn workspace_crates() -> Result<Vec<String>, String> {
    let folder = root().join("crates");
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let crates = entries.flatten().filter(|entry| entry.path().join("Cargo.toml").is_file());
    let mut names: Vec<String> = crates.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn docs() -> Result<(), String> {
    run_tests(&["--lib", "--test", "it", "reference"], &[("RIVULET_UPDATE", "1")])
}

fn book() -> Result<(), String> {
    if which("mdbook").is_none() {
        return Err("mdbook is not installed, and it builds the book\nhint: cargo install mdbook".into());
    }
    let folder = root().join("docs");
    let status = Command::new("mdbook").arg("build").arg(&folder).status();
    let status = status.map_err(|error| format!("mdbook could not be started: {error}"))?;
    if !status.success() {
        return Err(format!("`mdbook build` failed ({status})"));
    }
    eprintln!("the book is in {}", root().join("target/book/index.html").display());
    Ok(())
}

fn bench(rest: &[&str]) -> Result<(), String> {
    let arguments = ["run", "--release", "--package", "rivulet"];
    // What is measured is the program that users have, but for a comparison with what it does not have.
    let compares = rest.iter().any(|argument| argument.starts_with("--model"));
    let baselines: &[&str] = if compares { &["--features", "baselines"] } else { &[] };
    let one_step = ["--queries", "100000", "--duration", "20s"];
    let rest = if rest.is_empty() { &one_step } else { rest };
    cargo(&[&arguments[..], baselines, &["--", "bench", "many"], rest].concat(), &[])
}

fn sim(rest: &[&str]) -> Result<(), String> {
    cargo(&[&["run", "--release", "--package", "rivulet-simulation", "--"], rest].concat(), &[])
}

fn numa() -> Result<(), String> {
    numa::run(&built_program("release")?)
}

/// The program, built as everybody builds it.
/// Builds the program with a profile, and returns its file.
fn built_program(profile: &str) -> Result<PathBuf, String> {
    cargo(&["build", "--profile", profile, "--package", "rivulet"], &[])?;
    // This chore is in the folder of `release`; each profile has a folder beside it.
    let chore = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(chore.ancestors().nth(2).unwrap_or(Path::new("")).join(profile).join("rivulet"))
}

fn oracle() -> Result<(), String> {
    let oracle = |name| cargo(&["run", "--release", "--package", "rivulet-testing", "--example", name], &[]);
    oracle("nexmark_oracle")?;
    oracle("comparison_oracle")
}

fn cargo(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    eprintln!("+ cargo {}", arguments.join(" "));
    let status = plain_cargo()
        .args(arguments)
        .envs(environment.iter().copied())
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`cargo {}` failed ({status})", arguments.join(" "))) }
}

/// Cargo, without what it has told this program of itself: build scripts that look at that would run again each time
/// that somebody builds without this program.
fn plain_cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

fn which(program: &str) -> Option<std::path::PathBuf> {
    let sbin = ["/usr/sbin".into(), "/usr/local/sbin".into()];
    std::env::split_paths(&std::env::var_os("PATH")?)
        .chain(sbin)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod arrows;
#[cfg(test)]
mod facts;
#[cfg(test)]
mod tidy;

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_that_of_the_folder_and_not_of_the_build() {
        let clone = std::env::temp_dir().join(format!("rivulet-clone-{}", std::process::id()));
        let deep = clone.join("crates/rivulet/src");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::create_dir_all(clone.join("xtask")).unwrap();
        ["Cargo.lock", "xtask/Cargo.toml"].iter().for_each(|file| std::fs::write(clone.join(file), "").unwrap());
        let roots = [super::root_of(&clone), super::root_of(&deep)];
        std::fs::remove_dir_all(&clone).unwrap();
        assert_eq!(roots, [clone.clone(), clone]);
        assert!(super::root().join("xtask/src/main.rs").is_file(), "this test runs in its own workspace");
    }
}
