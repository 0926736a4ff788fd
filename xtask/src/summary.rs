//! What took how long and what was skipped, told behind all tests.
//!
//! Cargo starts each test program through this program as its runner. The runner passes on what the test program
//! writes, and adds a line to a report; at the end of the tests the report is shown.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// The first argument of the runner. Behind it are the test program and its arguments.
const RUNNER: &str = "run-test-program";
/// Names the file of the report to the runner.
const REPORT: &str = "RIVULET_TEST_REPORT";
/// What a test writes to the standard error, past the capture of its output, when it cannot run here.
const SKIPPED: &str = "skipped: ";

/// Runs a test program, if this program was started as a runner.
pub(crate) fn wrapped() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != *RUNNER {
        return None;
    }
    let program = PathBuf::from(arguments.next()?);
    match run(&program, arguments.collect()) {
        Ok(true) => Some(ExitCode::SUCCESS),
        Ok(false) => Some(ExitCode::FAILURE),
        Err(message) => {
            eprintln!("error: {}: {message}", program.display());
            Some(ExitCode::FAILURE)
        }
    }
}

/// Whether the test program succeeded.
fn run(program: &Path, arguments: Vec<std::ffi::OsString>) -> std::io::Result<bool> {
    let begin = Instant::now();
    let mut child = Command::new(program).args(arguments).stderr(Stdio::piped()).spawn()?;
    let mut skipped = Vec::new();
    for line in BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        skipped.extend(line.strip_prefix(SKIPPED).map(str::to_owned));
    }
    let status = child.wait()?;
    if let Some(report) = std::env::var_os(REPORT) {
        let mut lines = format!("{:.1}\t{}\n", begin.elapsed().as_secs_f64(), name(program));
        skipped.iter().for_each(|reason| _ = writeln!(lines, "{SKIPPED}\t{}: {reason}", name(program)));
        OpenOptions::new().append(true).create(true).open(report)?.write_all(lines.as_bytes())?;
    }
    Ok(status.success())
}

/// The package, whose folder is the current one, and the program's name without the hash of its build.
fn name(program: &Path) -> String {
    let folder = std::env::current_dir().unwrap_or_default();
    let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let target = stem.rsplit_once('-').map_or(stem.as_str(), |(target, _)| target);
    let is_unit = target.replace('_', "-") == package;
    if is_unit { format!("{package} (units)") } else { format!("{package} {target}") }
}

/// The report of one run of tests. The file goes with it.
pub(crate) struct Report(PathBuf);

impl Report {
    /// Has `cargo test` write a report.
    pub(crate) fn of(cargo: &mut Command) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let path = std::env::temp_dir().join(format!("rivulet-tests-{}", std::process::id()));
        fs::write(&path, "").map_err(|error| format!("{}: {error}", path.display()))?;
        let runner = format!("target.'cfg(all())'.runner=[{:?}, {RUNNER:?}]", own.display().to_string());
        cargo.args(["--config", &runner]).env(REPORT, &path);
        Ok(Self(path))
    }

    /// What is shown: the slowest programs first, then what was skipped.
    pub(crate) fn summary(&self) -> String {
        summary(&fs::read_to_string(&self.0).unwrap_or_default())
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn summary(report: &str) -> String {
    let lines = || report.lines().filter_map(|line| line.split_once('\t'));
    let mut times: Vec<(f64, &str)> =
        lines().filter_map(|(seconds, name)| Some((seconds.parse().ok()?, name))).collect();
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    let skipped: Vec<&str> = lines().filter(|(mark, _)| *mark == SKIPPED).map(|(_, reason)| reason).collect();
    let mut text = format!("{:>8.1} s  all test programs\n", times.iter().map(|(seconds, _)| seconds).sum::<f64>());
    times.iter().for_each(|(seconds, name)| _ = writeln!(text, "{seconds:>8.1} s  {name}"));
    match skipped.as_slice() {
        [] => text.push_str("nothing was skipped\n"),
        _ => {
            _ = writeln!(text, "SKIPPED, not tested on this machine:");
            skipped.iter().for_each(|reason| _ = writeln!(text, "  {reason}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_summary_has_times_and_skips() {
        let report = "1.5\tstorage (units)\n20.0\tserver it\nskipped: \tserver it: no broker\n";
        let told = "    21.5 s  all test programs\n    20.0 s  server it\n     1.5 s  storage (units)\n\
                    SKIPPED, not tested on this machine:\n  server it: no broker\n";
        assert_eq!(super::summary(report), told);
        assert!(super::summary("1.0\ta it\n").ends_with("nothing was skipped\n"));
    }
}
