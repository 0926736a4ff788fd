//! One program of libFuzzer's: run for a while, watched, and what it finds tried again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::compile::kept;
use super::outcome::Outcome;

/// Bounds of one execution: the longest that it may take, what takes longer than a second is written down, memory, and
/// the size of inputs.
const BOUNDS: &[&str] =
    &["-timeout=10", "-report_slow_units=1", "-rss_limit_mb=4096", "-malloc_limit_mb=1024", "-max_len=16384"];

/// How often it is said how far it is.
const PROGRESS_PERIOD: Duration = Duration::from_secs(10);

/// So many of the last lines are shown of a run that failed.
const LINES_SHOWN: usize = 30;

/// How often a target goes on after an input that was too slow once and not again: a machine that does something else
/// is no defect of ours.
const SLOW_MAX: usize = 5;

/// Fuzzes a target for `seconds`, and says what it found.
pub(super) fn fuzz(programs: &Path, folder: &Path, name: &str, seconds: u64) -> Result<Outcome, String> {
    let (program, found) = (programs.join(name), kept().join("corpus").join(name));
    let artifacts = folder.join("artifacts").join(name);
    for folder in [&found, &artifacts] {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    let begun = Instant::now();
    let mut outcome = Outcome { target: name.to_owned(), ..Outcome::default() };
    let mut slow = 0;
    loop {
        let left = seconds.saturating_sub(begun.elapsed().as_secs()).max(1);
        let mut command = Command::new(&program);
        command.args(BOUNDS).arg(format!("-max_total_time={left}"));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        // What is new is added to the first folder; the committed inputs stay as they are.
        command.arg(&found).arg(folder.join("corpus").join(name));
        eprintln!("+ {name} for {left} s");
        let (later, last_lines) = watch(&mut command, name)?;
        outcome.add(later);
        outcome.seconds = begun.elapsed().as_secs();
        let Some(input) = &outcome.finding else { return Ok(outcome) };
        let is_timeout = input.file_name().is_some_and(|name| name.to_string_lossy().starts_with("timeout-"));
        if is_timeout && slow < SLOW_MAX && once(&program, input).is_ok() {
            eprintln!("note: {} was too slow once and not again: the machine was busy", input.display());
            outcome.finding = None;
            slow += 1;
            if outcome.seconds < seconds { continue } else { return Ok(outcome) }
        }
        eprintln!("{name} fails after {} executions; the last that it said:", outcome.executions);
        last_lines.iter().for_each(|line| eprintln!("  {line}"));
        eprintln!("input: {}", input.display());
        eprintln!("again: cargo xtask fuzz {name} --input {}", input.display());
        eprintln!("hint: mend it, and commit the input in fuzz/corpus/{name}");
        return Ok(outcome);
    }
}

/// Runs a target over one input.
pub(super) fn once(program: &Path, input: &Path) -> Result<(), String> {
    let status = Command::new(program).args(BOUNDS).arg(input).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{} fails", input.display())),
        Err(error) => Err(format!("{} could not be started: {error}", program.display())),
    }
}

/// Runs a fuzzer to its end; everything that it says goes to a file, and now and then how far it is to the terminal.
fn watch(command: &mut Command, name: &str) -> Result<(Outcome, VecDeque<String>), String> {
    let path = kept().join(format!("{name}.log"));
    let mut log = File::create(&path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let failed = |error: std::io::Error| format!("the fuzzer of {name} could not be run: {error}");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    let said = child.stderr.take().ok_or("the fuzzer says nothing")?;
    let (mut outcome, mut last_lines) = (Outcome::default(), VecDeque::new());
    let (begun, mut shown) = (Instant::now(), Instant::now());
    for line in BufReader::new(said).split(b'\n') {
        let line = line.map_err(failed)?;
        let line = String::from_utf8_lossy(&line);
        // A full disk ends no fuzzer.
        let _ = writeln!(log, "{line}");
        outcome.read(&line);
        if !line.starts_with('#') {
            last_lines.push_back(line.into_owned());
            if last_lines.len() > LINES_SHOWN {
                last_lines.pop_front();
            }
        }
        if shown.elapsed() >= PROGRESS_PERIOD {
            shown = Instant::now();
            let Outcome { executions, edges, inputs, .. } = outcome;
            let seconds = begun.elapsed().as_secs();
            eprintln!("{name}: {seconds} s, {executions} executions, {edges} edges, {inputs} inputs");
        }
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() && outcome.finding.is_none() {
        let said = last_lines.into_iter().collect::<Vec<_>>().join("\n  ");
        return Err(format!("the fuzzer of {name} ended ({status}) without an input:\n  {said}"));
    }
    Ok((outcome, last_lines))
}
