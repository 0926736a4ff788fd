//! Where the engine's time goes, by stage of the way of an event: samples of the call stacks of the running server,
//! taken by the kernel's `perf`. Without `--profile` there is none of it, and the engine itself knows nothing of it.
//!
//! A sample belongs to the innermost function that says which stage it is: a copy of memory belongs to the decoder that
//! asked for it. What the compiler has put into its caller counts as the caller.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Samples a second of each thread that runs: no divisor of the periods that things have.
const SAMPLES_PER_S: &str = "397";
/// How much of a stack is kept with each sample, in bytes.
const STACK: &str = "dwarf,16384";
/// How long `perf` may take to begin, before events are sent.
const BEGIN: Duration = Duration::from_millis(500);

/// The stages in the order in which an event comes through them, each with what the names of its functions contain. Of
/// a function's name the first stage that knows it counts.
const STAGES: [(&str, &[&str]); 9] = [
    ("emit", &["Encoder", "::encoder", "engine::output", "encode_row", "OutgoingMessage", "write_text"]),
    ("send", &["sys_send", "sys_write", "link::Writer", "mqtt::publisher", "Publish::encode"]),
    ("receive", &["sys_recv", "sys_read", "link::Reader", "mqtt::buffer", "mqtt::codec", "mqtt::client"]),
    ("route", &["mqtt::router", "mqtt::index", "mqtt::exact", "mqtt::topic"]),
    ("queue", &["rivulet_runtime::inbox", "dataflow::Inbox", "Group as", "event::Events"]),
    ("decode", &["Decoder", "::decoder", "connectors::formats"]),
    (
        "state",
        &["operators::window", "operators::history", "operators::change_only", "operators::join", "dataflow::state"],
    ),
    ("evaluate", &["operators::", "datafusion", "arrow_", "dataflow::slots"]),
    ("measure", &["metrics::Histogram", "GroupMetrics"]),
];
/// What is left, by whether it is known to be waiting and waking, the rest of the runtime, or nothing of that.
const REST: [(&str, &[&str]); 2] = [
    ("schedule", &["futex", "epoll", "rivulet_runtime", "sys_sched", "schedule", "tokio", "nanosleep"]),
    ("other", &[""]),
];

/// A profile under way.
pub(super) struct Profiler {
    perf: Child,
    file: PathBuf,
}

impl Profiler {
    /// Begins to sample a process.
    ///
    /// # Errors
    /// In words: there is no `perf`, or it may not.
    pub(super) fn start(process_id: u32, folder: &Path) -> Result<Self, String> {
        let file = folder.join("perf.data");
        let arguments = ["record", "--quiet", "--event", "cpu-clock", "--freq", SAMPLES_PER_S, "--call-graph", STACK];
        let mut command = Command::new("perf");
        command.args(arguments).args(["--pid", &process_id.to_string(), "--output"]).arg(&file);
        let mut perf = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("no profile: perf cannot be started: {error}"))?;
        std::thread::sleep(BEGIN);
        match perf.try_wait() {
            Ok(None) => Ok(Self { perf, file }),
            _ => Err("no profile: perf cannot sample the server; try `perf record -e cpu-clock sleep 1`".into()),
        }
    }

    /// Ends sampling and returns the part of the samples (of 1) in each stage, in order; nothing if there is no sample.
    pub(super) fn finish(mut self) -> Result<Vec<(&'static str, f64)>, String> {
        // perf writes the end of its file when it is interrupted.
        let _ = Command::new("kill").arg("-INT").arg(self.perf.id().to_string()).status();
        let _ = self.perf.wait();
        let mut script = Command::new("perf")
            .args(["script", "--no-inline", "--fields", "ip,sym", "--input"])
            .arg(&self.file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("no profile: perf cannot be started: {error}"))?;
        let samples = script.stdout.take().map(|output| count(BufReader::new(output))).unwrap_or_default();
        let _ = script.wait();
        let all: u64 = samples.values().sum();
        let stages = STAGES.iter().chain(&REST).map(|(stage, _)| *stage);
        let mut shares: Vec<(&str, f64)> =
            stages.filter_map(|stage| Some((stage, *samples.get(stage)? as f64 / all as f64))).collect();
        // In the order of the way, though sending is asked for first.
        let order = ["receive", "route", "queue", "decode", "evaluate", "state", "emit", "send"];
        shares.sort_by_key(|(stage, _)| order.iter().position(|one| one == stage).unwrap_or(order.len()));
        Ok(shares)
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        let _ = self.perf.kill();
        let _ = self.perf.wait();
    }
}

/// Samples by stage, from the stacks that `perf script` prints: a line for each function, innermost first, and an empty
/// line behind each stack.
fn count(script: impl BufRead) -> HashMap<&'static str, u64> {
    let mut samples = HashMap::new();
    let mut stack: Vec<String> = Vec::new();
    let mut sample = |stack: &mut Vec<String>| {
        if !stack.is_empty() {
            *samples.entry(stage_of(stack)).or_insert(0) += 1;
            stack.clear();
        }
    };
    for line in script.lines().map_while(Result::ok) {
        match line.trim().split_once(' ') {
            Some((_, function)) => stack.push(function.to_owned()),
            None if line.trim().is_empty() => sample(&mut stack),
            None => {}
        }
    }
    sample(&mut stack);
    samples
}

fn stage_of(stack: &[String]) -> &'static str {
    let known = |stages: &[(&'static str, &[&str])], function: &String| {
        stages.iter().find(|(_, names)| names.iter().any(|name| function.contains(name))).map(|(stage, _)| *stage)
    };
    let by = |stages: &[(&'static str, &[&str])]| stack.iter().find_map(|function| known(stages, function));
    by(&STAGES).or_else(|| by(&REST[..1])).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_belongs_to_the_innermost_function_that_is_known() {
        let script = "\
            \t    7f10 __memmove_avx_unaligned\n\
            \t    55aa rivulet_connectors::formats::json::decoder::JsonDecoder::row\n\
            \t    55ab rivulet_runtime::task::Task::run\n\
            \n\
            \tffffffff8100 tcp_sendmsg\n\
            \tffffffff8101 __x64_sys_sendto\n\
            \t    55ac rivulet_connectors::mqtt::client::link::Writer::write\n\
            \n\
            \tffffffff8102 futex_wait\n\
            \t    55ad rivulet_runtime::workers::Shared::work\n\
            \n\
            \t    55ae [unknown]\n\
            \n";
        let samples = count(script.as_bytes());
        let expected = HashMap::from([("decode", 1), ("send", 1), ("schedule", 1), ("other", 1)]);
        assert_eq!(samples, expected);
    }
}
