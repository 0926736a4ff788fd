//! The other end of a generator's input and output: starts one, tells it what to do, never waits for ever.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::commands::{Answer, Command, Report};
use super::{GeneratorOptions, run_generator};
use crate::workload::WorkloadOptions;

/// How long a generator may take to answer, beyond what the command itself takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a generator may take to end after its input was closed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A generator in another process (or, for tests, in a thread). Dropping it ends the generator.
pub struct GeneratorHandle {
    /// `None` once the generator has been told to end.
    commands: Option<Box<dyn Write + Send>>,
    answers: Receiver<io::Result<String>>,
    address: Option<SocketAddr>,
    child: Option<Child>,
}

/// Why a generator does not do what it is told.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// It could not be started, or its input or output failed.
    #[error("the generator cannot be spoken to: {0}\nhint: what it wrote to its standard error may tell why")]
    Io(#[from] io::Error),
    /// It has ended.
    #[error("the generator has ended\nhint: what it wrote to its standard error may tell why")]
    Ended,
    /// It does not answer.
    #[error("the generator has not answered for {} s\nhint: is the machine overloaded?", .0.as_secs())]
    Timeout(Duration),
    /// It refuses.
    #[error("the generator says: {0}")]
    Refused(String),
    /// It says something else than what was asked.
    #[error("the generator gives an answer that nobody understands: {0}\nhint: use a generator of the same version")]
    Answer(String),
}

impl GeneratorHandle {
    /// Starts a process that calls [`run_generator`] on its standard input and output. `command` is the program with
    /// its arguments; its standard error is left as it is.
    pub fn spawn(mut command: std::process::Command) -> Result<Self, HandleError> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { return Err(HandleError::Ended) };
        Self::new(input, output, Some(child))
    }

    /// Starts a generator in threads of this process: for tests, where its CPU time does not matter.
    pub fn in_this_process(options: GeneratorOptions) -> Result<Self, HandleError> {
        let ((input, commands), (answers, output)) = (io::pipe()?, io::pipe()?);
        thread::Builder::new().name("generator".into()).spawn(move || {
            // The other side sees its failure as an end.
            let _ = run_generator(options, BufReader::new(input), output);
        })?;
        Self::new(commands, answers, None)
    }

    fn new(
        commands: impl Write + Send + 'static,
        answers: impl Read + Send + 'static,
        child: Option<Child>,
    ) -> Result<Self, HandleError> {
        // Each command has one answer, so a second one is never waiting.
        let (sender, receiver) = sync_channel(2);
        thread::Builder::new().name("generator-answers".into()).spawn(move || {
            for line in BufReader::new(answers).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        })?;
        let commands: Box<dyn Write + Send> = Box::new(BufWriter::new(commands));
        let mut handle = Self { commands: Some(commands), answers: receiver, address: None, child };
        match handle.answer(ANSWER_TIMEOUT)? {
            Answer::Listening { address } => handle.address = address,
            other => return Err(unexpected(&other)),
        }
        Ok(handle)
    }

    /// The address for the engine to connect to; `None` if the generator is a client of another broker.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The process id of the generator, if it is a separate process.
    pub fn process_id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Makes the sensors and topics of queries `0..queries` of a workload. Returns their memory in bytes.
    pub fn prepare(&mut self, queries: u32, workload: WorkloadOptions) -> Result<u64, HandleError> {
        match self.tell(&Command::Prepare { queries, workload }, ANSWER_TIMEOUT)? {
            Answer::Prepared { memory_bytes, .. } => Ok(memory_bytes),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until every query's topic is subscribed to.
    pub fn wait_for_subscriptions(&mut self, timeout: Duration) -> Result<(), HandleError> {
        let timeout_ms = timeout.as_millis().try_into().unwrap_or(u64::MAX);
        match self.tell(&Command::Wait { timeout_ms }, timeout.saturating_add(ANSWER_TIMEOUT))? {
            Answer::Subscribed { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts sending. Returns when the schedule began, in microseconds since the epoch.
    pub fn start(&mut self, rate_per_query: f64, duration: Duration, episode_factor: f32) -> Result<i64, HandleError> {
        let duration_ms = duration.as_millis().try_into().unwrap_or(u64::MAX);
        match self.tell(&Command::Start { rate_per_query, duration_ms, episode_factor }, ANSWER_TIMEOUT)? {
            Answer::Started { time_us } => Ok(time_us),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns its progress.
    pub fn report(&mut self) -> Result<Report, HandleError> {
        self.told_report(&Command::Report {})
    }

    /// Ends the run in progress.
    pub fn stop(&mut self) -> Result<Report, HandleError> {
        self.told_report(&Command::Stop {})
    }

    /// Waits until the run in progress has sent everything, however late, but at most `timeout`; then ends it.
    pub fn finish(&mut self, timeout: Duration) -> Result<Report, HandleError> {
        let deadline = Instant::now() + timeout;
        while self.report()?.is_running && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        self.stop()
    }

    fn told_report(&mut self, command: &Command) -> Result<Report, HandleError> {
        match self.tell(command, ANSWER_TIMEOUT)? {
            Answer::Report(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn tell(&mut self, command: &Command, timeout: Duration) -> Result<Answer, HandleError> {
        let commands = self.commands.as_mut().ok_or(HandleError::Ended)?;
        let mut line = serde_json::to_vec(command).map_err(io::Error::from)?;
        line.push(b'\n');
        commands.write_all(&line)?;
        commands.flush()?;
        self.answer(timeout)
    }

    fn answer(&mut self, timeout: Duration) -> Result<Answer, HandleError> {
        let line = match self.answers.recv_timeout(timeout) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Timeout) => {
                // A late answer would be taken for the answer to the next command.
                self.commands = None;
                return Err(HandleError::Timeout(timeout));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(HandleError::Ended),
        };
        match serde_json::from_str(&line) {
            Ok(Answer::Error { message }) => Err(HandleError::Refused(message)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(HandleError::Answer(line)),
        }
    }
}

fn unexpected(answer: &Answer) -> HandleError {
    HandleError::Answer(format!("{answer:?}"))
}

impl Drop for GeneratorHandle {
    fn drop(&mut self) {
        // The end of its input ends the generator.
        self.commands = None;
        let Some(child) = &mut self.child else { return };
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline {
            match child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(10)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl std::fmt::Debug for GeneratorHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GeneratorHandle")
            .field("address", &self.address)
            .field("process_id", &self.process_id())
            .finish_non_exhaustive()
    }
}
