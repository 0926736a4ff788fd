//! Project chores: `cargo xtask <chore>`. The one way to run them; there is no second script language.

mod fuzz;
mod numa;

use std::process::{Command, ExitCode};

const HELP: &str = "\
cargo xtask <chore>

  lint      formatting and clippy, warnings are errors
  test      every test of the workspace
  ci        lint, then test
  docs      write the generated references in docs/reference again
  bench     the canonical benchmark: many small queries, one step
  sim       simulations of the whole engine: SEED, or --seeds N [--from SEED]; every failure has a seed
  fuzz      fuzzers for every place where bytes come from outside: [TARGET]... [--seconds N] [--json], or TARGET --input FILE
  numa      the program on an emulated machine with two memory nodes; needs QEMU, and says what to install
  oracle    compute the known answers of NEXMark and of other queries again, with DuckDB
";

fn main() -> ExitCode {
    if let Some(status) = fuzz::wrapped() {
        return status;
    }
    let chores: Vec<String> = std::env::args().skip(1).collect();
    let result = match chores.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["lint"] => lint(),
        ["test", rest @ ..] => test(rest),
        ["ci"] => lint().and_then(|()| test(&[])),
        ["docs"] => docs(),
        ["bench", rest @ ..] => bench(rest),
        ["sim", rest @ ..] => sim(rest),
        ["fuzz", rest @ ..] => fuzz::run(rest),
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

fn lint() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
}

fn test(rest: &[&str]) -> Result<(), String> {
    if which("mosquitto").is_none() {
        eprintln!(
            "note: mosquitto is not installed, so the tests that compare with it say so and skip\n\
             hint: apt-get install mosquitto mosquitto-clients"
        );
    }
    cargo(&[&["test", "--release", "--workspace"], rest].concat(), &[])
}

fn docs() -> Result<(), String> {
    let packages = ["--package", "rivulet", "--package", "rivulet-connectors"];
    let tests = ["--test", "it", "--test", "connectors", "reference"];
    cargo(&[&["test", "--release"][..], &packages, &tests].concat(), &[("RIVULET_UPDATE", "1")])
}

fn bench(rest: &[&str]) -> Result<(), String> {
    let arguments = ["run", "--release", "--package", "rivulet", "--", "bench", "many"];
    let one_step = ["--queries", "100000", "--duration", "20s"];
    cargo(&[&arguments[..], if rest.is_empty() { &one_step } else { rest }].concat(), &[])
}

fn sim(rest: &[&str]) -> Result<(), String> {
    cargo(&[&["run", "--release", "--package", "rivulet-simulation", "--"], rest].concat(), &[])
}

fn numa() -> Result<(), String> {
    cargo(&["build", "--release", "--workspace"], &[])?;
    // Beside this chore, which is built with the others.
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("rivulet");
    numa::run(&program)
}

fn oracle() -> Result<(), String> {
    let oracle = |name| cargo(&["run", "--release", "--package", "rivulet-bench", "--example", name], &[]);
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

/// Cargo, without what it has told this program of itself: build scripts that look at that would run again each time that somebody builds
/// without this program.
fn plain_cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
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
mod tidy;
