//! What took how long and what was skipped, told behind all tests.
//!
//! Cargo starts each test program through this program as its runner. The runner passes on what the test program
//! writes, and adds a line to a report; at the end of the tests the report is shown.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The first argument of the runner. Behind it are the test program and its arguments.
const RUNNER: &str = "run-test-program";
/// Names the file of the report to the runner.
const REPORT: &str = "RIVULET_TEST_REPORT";
/// What a test writes to the standard error, past the capture of its output, when it cannot run here.
const SKIPPED: &str = "skipped: ";

/// How long the standard error of a test program is read behind its end.
const LEFT_MAX: Duration = Duration::from_secs(5);

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
    let (status, skipped) = pass_on(Command::new(program).args(arguments), LEFT_MAX)?;
    if let Some(report) = std::env::var_os(REPORT) {
        let mut lines = format!("{:.1}\t{}\n", begin.elapsed().as_secs_f64(), name(program));
        skipped.iter().for_each(|reason| _ = writeln!(lines, "{SKIPPED}\t{}: {reason}", name(program)));
        OpenOptions::new().append(true).create(true).open(report)?.write_all(lines.as_bytes())?;
    }
    Ok(status.success())
}

/// Runs a program and passes on what it writes to its standard error; how it ended, and what it skipped. A process that
/// the program has left behind may hold its standard error for ever: that is waited for no longer than `left_max`.
fn pass_on(program: &mut Command, left_max: Duration) -> std::io::Result<(ExitStatus, Vec<String>)> {
    let mut child = program.stderr(Stdio::piped()).spawn()?;
    let lines = BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n');
    let (skips, skipped) = channel();
    let read = move || {
        for line in lines.map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            eprintln!("{line}");
            line.strip_prefix(SKIPPED).into_iter().for_each(|reason| drop(skips.send(reason.to_owned())));
        }
    };
    thread::spawn(read);
    let status = child.wait()?;
    let deadline = Instant::now() + left_max;
    let mut reasons = Vec::new();
    loop {
        match skipped.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(reason) => reasons.push(reason),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("warning: a test has left a process behind, which still holds the standard error");
                break;
            }
        }
    }
    Ok((status, reasons))
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
    use super::*;

    #[test]
    fn a_process_that_a_test_leaves_behind_holds_up_nothing() {
        let mut program = Command::new("sh");
        // It holds the standard error, and nobody ends it but this test.
        program.args(["-c", "sleep 600 & echo \"skipped: $!\" >&2; exit 3"]);
        let (status, skipped) = pass_on(&mut program, Duration::from_secs(1)).unwrap();
        assert!(Command::new("kill").args(&skipped).status().unwrap().success());
        assert_eq!((status.code(), skipped.len()), (Some(3), 1));
        let (status, skipped) =
            pass_on(Command::new("sh").args(["-c", "echo 'skipped: no sh' >&2"]), LEFT_MAX).unwrap();
        assert_eq!((status.code(), skipped), (Some(0), vec!["no sh".to_owned()]));
    }

    #[test]
    fn a_summary_has_times_and_skips() {
        let report = "1.5\tstorage (units)\n20.0\tserver it\nskipped: \tserver it: no broker\n";
        let told = "    21.5 s  all test programs\n    20.0 s  server it\n     1.5 s  storage (units)\n\
                    SKIPPED, not tested on this machine:\n  server it: no broker\n";
        assert_eq!(summary(report), told);
        assert!(summary("1.0\ta it\n").ends_with("nothing was skipped\n"));
    }
}
