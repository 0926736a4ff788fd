//! Runs the fuzzers of `fuzz/`, one after another.
//!
//! Only Rivulet's own crates are instrumented, by this program as the compiler's wrapper: what they call is compiled as
//! for the product, so it is there already where the product or its tests have been built, and no other toolchain is
//! needed. `cargo +nightly fuzz run TARGET` (cargo-fuzz) has everything instrumented, and memory checked.
//!
//! In reading order: [`compile`]: the wrapper, and how programs are built; [`run`]: one of them; [`outcome`]: what it
//! says.

mod compile;
mod outcome;
mod run;

use std::path::{Path, PathBuf};

pub(crate) use compile::wrapped;
use outcome::Outcome;

/// How long each target is fuzzed without `--seconds`.
const SECONDS: u64 = 60;

const USAGE: &str = "cargo xtask fuzz takes targets, --seconds and --json, or one target and --input\n\
                     hint: cargo xtask fuzz csv json --seconds 600";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    /// All of them if there is none.
    targets: Vec<String>,
    seconds: u64,
    is_json: bool,
    /// The one input that is to be run.
    input: Option<PathBuf>,
}

impl Wish {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let mut wish = Self { targets: Vec::new(), seconds: SECONDS, is_json: false, input: None };
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} wants a value"));
            match argument {
                "--seconds" => {
                    let count = value()?;
                    let seconds = count.parse().ok().filter(|&seconds| seconds > 0);
                    wish.seconds = seconds.ok_or_else(|| format!("'{count}' is no number of seconds"))?;
                }
                "--input" => wish.input = Some(PathBuf::from(value()?)),
                "--json" => wish.is_json = true,
                other if other.starts_with('-') => return Err(USAGE.into()),
                target => wish.targets.push(target.to_owned()),
            }
        }
        if wish.input.is_some() && wish.targets.len() != 1 { Err(USAGE.into()) } else { Ok(wish) }
    }
}

/// `[TARGET]... [--seconds N] [--json]`, or `TARGET --input FILE`.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let mut wish = Wish::parse(arguments)?;
    let folder = crate::root().join("fuzz");
    let known = targets(&folder)?;
    if let Some(unknown) = wish.targets.iter().find(|name| !known.contains(name)) {
        return Err(format!("there is no target '{unknown}'\nhint: targets are {}", known.join(", ")));
    }
    if wish.targets.is_empty() {
        wish.targets = known;
    }
    // Relative to where the user is; programs are run elsewhere.
    let input = wish.input.as_deref().map(std::path::absolute).transpose();
    if let Some(input) = input.map_err(|error| error.to_string())? {
        if !input.is_file() {
            return Err(format!("there is no file {}", input.display()));
        }
        let programs = compile::build(&folder, &wish.targets)?;
        return run::once(&programs.join(&wish.targets[0]), &input);
    }
    let programs = compile::build(&folder, &wish.targets)?;
    let mut outcomes = Vec::new();
    for name in &wish.targets {
        let outcome = run::fuzz(&programs, &folder, name, wish.seconds)?;
        if wish.is_json {
            println!("{}", outcome.to_json());
        }
        outcomes.push(outcome);
    }
    if !wish.is_json {
        print!("{}", outcome::table(&outcomes));
    }
    let failed: Vec<&str> = outcomes.iter().filter(|one| one.finding.is_some()).map(Outcome::target).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("inputs that fail were found for {}", failed.join(", "))),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_understood() {
        let wish = Wish::parse(&["csv", "--seconds", "5", "json", "--json"]).unwrap();
        assert_eq!((wish.targets, wish.seconds, wish.is_json), (vec!["csv".into(), "json".into()], 5, true));
        assert_eq!(Wish::parse(&[]).unwrap().seconds, SECONDS);
        assert!(Wish::parse(&["csv", "--input", "a"]).unwrap().input.is_some());
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--quick"], &["--input", "a"], &["--input"]] {
            assert!(Wish::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
