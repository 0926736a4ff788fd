//! Test programs side by side, and what took how long and what was skipped, told behind all of them.
//!
//! Cargo starts one test program behind the other, with this program as its runner. The runner only notes the program
//! in a list, and when cargo is done the programs of the list run, some at a time. A program of documentation examples
//! is gone after its turn, so that one runs at once. Each adds a line to a report, which is shown at the end.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The first argument of the runner. Behind it are the test program and its arguments.
const RUNNER: &str = "run-test-program";
/// Names the folder of the report to the runner.
const REPORT: &str = "RIVULET_TEST_REPORT";
/// In that folder: seconds and name of each program that ran, and what it skipped.
const TIMES: &str = "times";
/// In that folder: a line for each program that is to run, with its folder, its path and its arguments.
const PROGRAMS: &str = "programs";
/// What cargo calls a program of documentation examples.
const DOCUMENTATION: &str = "rust_out";
/// What a test writes to the standard error, past the capture of its output, when it cannot run here.
const SKIPPED: &str = "skipped: ";

/// How long the standard error of a test program is read behind its end.
const LEFT_MAX: Duration = Duration::from_secs(5);

/// How many test programs run at a time. The program of the crate `rivulet` takes longer than the half of all.
const PROGRAMS_AT_A_TIME: usize = 2;

/// Runs a test program, if this program was started as a runner.
pub(crate) fn wrapped() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != *RUNNER {
        return None;
    }
    let program = PathBuf::from(arguments.next()?);
    let arguments: Vec<OsString> = arguments.collect();
    let report = PathBuf::from(std::env::var_os(REPORT)?);
    let is_documentation = program.file_stem().is_some_and(|stem| stem == DOCUMENTATION);
    let done = std::env::current_dir().and_then(|folder| match is_documentation {
        true => run(&report, &folder, &program, Command::new(&program).args(arguments)),
        false => note(&report, &folder, &program, &arguments).map(|()| true),
    });
    match done {
        Ok(true) => Some(ExitCode::SUCCESS),
        Ok(false) => Some(ExitCode::FAILURE),
        Err(message) => {
            eprintln!("error: {}: {message}", program.display());
            Some(ExitCode::FAILURE)
        }
    }
}

/// Adds a test program to the list of those that are to run.
fn note(report: &Path, folder: &Path, program: &Path, arguments: &[OsString]) -> std::io::Result<()> {
    let words = [folder.as_os_str(), program.as_os_str()].into_iter().chain(arguments.iter().map(OsString::as_os_str));
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    append(&report.join(PROGRAMS), &format!("{}\n", words.join("\t")))
}

fn append(file: &Path, lines: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).create(true).open(file)?.write_all(lines.as_bytes())
}

/// Runs a test program of the package in `folder`. Returns whether it succeeded.
fn run(report: &Path, folder: &Path, program: &Path, command: &mut Command) -> std::io::Result<bool> {
    let begin = Instant::now();
    let (status, skipped) = pass_on(command, LEFT_MAX)?;
    let name = name(folder, program);
    let mut lines = format!("{:.1}\t{name}\n", begin.elapsed().as_secs_f64());
    skipped.iter().for_each(|reason| _ = writeln!(lines, "{SKIPPED}\t{name}: {reason}"));
    append(&report.join(TIMES), &lines)?;
    Ok(status.success())
}

/// Runs a program of the list. What it writes is shown at its end, because several programs run at a time.
fn run_noted(report: &Path, line: &str, environment: &[(&str, &str)], shown: &Mutex<()>) -> std::io::Result<bool> {
    let mut words = line.split('\t');
    let (folder, program) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (folder, program) = (Path::new(folder), Path::new(program));
    let name = name(folder, program);
    let written = report.join(name.replace(' ', "-"));
    eprintln!("     Running {name}; until it ends its output is in {}", written.display());
    let mut command = Command::new(program);
    command.args(words).current_dir(folder).env("CARGO_MANIFEST_DIR", folder).envs(environment.iter().copied());
    let succeeded = run(report, folder, program, command.stdout(File::create(&written)?))?;
    let text = fs::read(&written)?;
    let _one_at_a_time = shown.lock().unwrap_or_else(PoisonError::into_inner);
    println!("\n     Output of {name}");
    std::io::stdout().write_all(&text)?;
    Ok(succeeded)
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

/// The package, whose folder this is, and the program's name without the hash of its build.
fn name(folder: &Path, program: &Path) -> String {
    let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let target = stem.rsplit_once('-').map_or(stem.as_str(), |(target, _)| target);
    let is_unit = target.replace('_', "-") == package;
    if is_unit { format!("{package} (units)") } else { format!("{package} {target}") }
}

/// The report of one run of tests. Its folder goes with it.
pub(crate) struct Report(PathBuf);

impl Report {
    /// Has `cargo test` list the test programs instead of running them.
    pub(crate) fn of(cargo: &mut Command) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let folder = std::env::temp_dir().join(format!("rivulet-tests-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let runner = format!("target.'cfg(all())'.runner=[{:?}, {RUNNER:?}]", own.display().to_string());
        cargo.args(["--config", &runner]).env(REPORT, &folder);
        Ok(Self(folder))
    }

    /// Runs the programs of the list. Returns the names of those that failed.
    pub(crate) fn run(&self, environment: &[(&str, &str)]) -> Vec<String> {
        let list = fs::read_to_string(self.0.join(PROGRAMS)).unwrap_or_default();
        let (lines, failed, shown) = (Mutex::new(list.lines()), Mutex::new(Vec::new()), Mutex::new(()));
        let next = || lines.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some(line) = next() {
                let failure = match run_noted(&self.0, line, environment, &shown) {
                    Ok(true) => continue,
                    Ok(false) => line.to_owned(),
                    Err(error) => format!("{line}: {error}"),
                };
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(failure.replace('\t', " "));
            }
        };
        thread::scope(|scope| (0..PROGRAMS_AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is shown: the slowest programs first, then what was skipped.
    pub(crate) fn summary(&self) -> String {
        summary(&fs::read_to_string(self.0.join(TIMES)).unwrap_or_default())
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
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
    fn programs_of_the_list_run_in_their_folders_and_failures_are_named() {
        let folder = std::env::temp_dir().join(format!("rivulet-report-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let report = Report(folder);
        let shell = Path::new("/bin/sh");
        for (package, script) in [("/", "exit 3"), ("/tmp", "test \"$PWD$CARGO_MANIFEST_DIR$WORD\" = /tmp/tmpsaid")] {
            note(&report.0, Path::new(package), shell, &["-c".into(), script.into()]).unwrap();
        }
        assert_eq!(report.run(&[("WORD", "said")]), ["/ /bin/sh -c exit 3"]);
        let told = report.summary();
        assert!(told.contains("s  all test programs") && told.contains("s  tmp sh"), "{told}");
        assert!(report.run(&[]).len() == 2, "both are still in the list");
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
