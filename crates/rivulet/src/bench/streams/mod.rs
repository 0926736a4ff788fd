//! Big queries under measurement: each runs in a process of its own, so that its memory and its processor time are its
//! own.
//!
//! - [`job`]: what such a process is told, and what it answers;
//! - [`report`]: the answers of all, as a table or as JSON.

pub mod job;
pub mod report;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use job::{Job, Outcome};

/// Runs one job in a process of its own that ends within `timeout`.
///
/// # Errors
/// Why there is no outcome.
pub(super) fn run_apart(job: &Job, timeout: Duration) -> Result<Outcome, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(["bench", "script"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| format!("cannot start a process: {error}"))?;
    let mut apart = Apart(child);
    let mut input = apart.0.stdin.take().ok_or("the process has no input")?;
    // Read beside, so that nothing that it says can fill a pipe and stop it.
    let answer = beside(apart.0.stdout.take().ok_or("the process has no output")?);
    let messages = beside(apart.0.stderr.take().ok_or("the process has no messages")?);
    let text = serde_json::to_vec(job).map_err(|error| error.to_string())?;
    input.write_all(&text).map_err(|error| format!("the process takes no job: {error}"))?;
    drop(input);
    let Ok(answer) = answer.recv_timeout(timeout) else {
        return Err(format!(
            "it had not ended after {} s\nhint: fewer --events, or a longer --timeout",
            timeout.as_secs()
        ));
    };
    match serde_json::from_str::<Outcome>(&answer) {
        Ok(outcome) => Ok(outcome),
        Err(_) => Err(messages.recv_timeout(Duration::from_secs(1)).unwrap_or_default().trim().to_owned()),
    }
}

/// All that a process writes there, once it has ended.
fn beside(mut from: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        // What was said before the end is worth having whatever the end was, and nobody may wait for it any more.
        let _ = from.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    receiver
}

/// A process that ends with this.
pub(super) struct Apart(pub(super) Child);

impl Drop for Apart {
    fn drop(&mut self) {
        // One that has ended already is only waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder for files of one run. Dropping it removes it.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(kind: &str) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("rivulet-{kind}-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays for the system to clear away.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
