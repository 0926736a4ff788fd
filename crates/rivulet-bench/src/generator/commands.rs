//! What a generator is told and what it answers: one JSON object a line, one answer to each command.
//!
//! ```text
//! -> (the process starts)                                  {"listening":{"address":"127.0.0.1:41234"}}
//! {"prepare":{"queries":1000,"workload":{"seed":7}}}       {"prepared":{"queries":1000,"memory_bytes":59012}}
//! {"wait":{"timeout_ms":10000}}                            {"subscribed":{"queries":1000}}
//! {"start":{"rate_per_query":1.0,"duration_ms":20000}}     {"started":{"time_us":1763712345678901}}
//! {"report":{}}                                            {"report":{"is_running":true,"events_sent":512,...}}
//! {"stop":{}}                                              {"report":{"is_running":false,...}}
//! ```
//!
//! A command that cannot be carried out is answered by `{"error":{"message":"..."}}`, and the generator goes on.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::workload::WorkloadOptions;

/// A command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Make sensors and topics for queries `0..queries` of a workload. Ends a run that is under way.
    Prepare {
        /// How many queries, at most [`crate::sensors::QUERIES_MAX`].
        queries: u32,
        /// Which.
        #[serde(default)]
        workload: WorkloadOptions,
    },
    /// Wait until every query's topic is subscribed to. (With a broker in between: nothing to wait for.)
    Wait {
        /// How long, at most 600,000.
        timeout_ms: u64,
    },
    /// Begin to send, with all counters at zero. Ends a run that is under way.
    Start {
        /// Events a second for each query, in the mean.
        rate_per_query: f64,
        /// How long.
        duration_ms: u64,
        /// How much more often than usual rare things happen.
        #[serde(default = "one")]
        episode_factor: f32,
    },
    /// Say how far it is.
    Report {},
    /// End the run that is under way, and say how far it came.
    Stop {},
}

fn one() -> f32 {
    1.0
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Said once at the start: where the engine shall connect. Absent from a generator that is a client itself.
    Listening {
        /// Address and port.
        address: Option<SocketAddr>,
    },
    /// Sensors and topics are ready.
    Prepared {
        /// How many queries are fed.
        queries: u32,
        /// What sensors and topics occupy.
        memory_bytes: u64,
    },
    /// Every query is subscribed to.
    Subscribed {
        /// How many.
        queries: u32,
    },
    /// Events are being sent.
    Started {
        /// The moment from which the schedule counts, microseconds since the epoch.
        time_us: i64,
    },
    /// How far it is.
    Report(Report),
    /// The command could not be carried out.
    Error {
        /// Why, and what to do.
        message: String,
    },
}

/// What a generator has done since the last start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Whether events are still being sent.
    pub is_running: bool,
    /// How many queries it feeds.
    pub queries: u32,
    /// How many connections it has.
    pub connections: usize,
    /// How many filters are subscribed to.
    pub filters: usize,
    /// Events written, counted for each connection that they were written to.
    pub events_sent: u64,
    /// Events that nobody has subscribed to.
    pub events_unrouted: u64,
    /// Events whose connection broke while they were written: received or not, nobody knows.
    pub events_lost: u64,
    /// Bytes of the packets written.
    pub bytes_sent: u64,
    /// Messages received from the engine.
    pub results_received: u64,
    /// Their payload bytes.
    pub result_bytes: u64,
    /// How long after the time in their field `ts`, which is that of an event, messages from the engine were received:
    /// half of them at most this, microseconds; absent if none has such a field.
    #[serde(default)]
    pub result_latency_us_p50: Option<u64>,
    /// 95 % of them.
    #[serde(default)]
    pub result_latency_us_p95: Option<u64>,
    /// 99 % of them.
    #[serde(default)]
    pub result_latency_us_p99: Option<u64>,
    /// All of them.
    #[serde(default)]
    pub result_latency_us_max: Option<u64>,
    /// How long after their intended times events were written: half of them at most this, microseconds.
    pub lateness_us_p50: u64,
    /// 99 % of them.
    pub lateness_us_p99: u64,
    /// All of them.
    pub lateness_us_max: u64,
    /// CPU time of this process since the last start, seconds; where the system tells.
    pub cpu_s: Option<f64>,
    /// CPU time of the sending thread alone.
    pub sender_cpu_s: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_documented() {
        let parse = |line: &str| serde_json::from_str::<Command>(line);
        assert_eq!(
            parse(r#"{"start":{"rate_per_query":1.0,"duration_ms":20000}}"#).unwrap(),
            Command::Start { rate_per_query: 1.0, duration_ms: 20_000, episode_factor: 1.0 }
        );
        assert_eq!(
            parse(r#"{"prepare":{"queries":1000,"workload":{"seed":7}}}"#).unwrap(),
            Command::Prepare { queries: 1000, workload: WorkloadOptions { seed: 7, ..WorkloadOptions::default() } }
        );
        assert_eq!(parse(r#"{"report":{}}"#).unwrap(), Command::Report {});
        assert!(parse(r#"{"prepare":{"queries":1000,"sed":7}}"#).is_err());
        let answer = serde_json::to_string(&Answer::Started { time_us: 5 }).unwrap();
        assert_eq!(answer, r#"{"started":{"time_us":5}}"#);
    }
}
