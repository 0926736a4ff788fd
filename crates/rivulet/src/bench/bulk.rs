//! `rivulet bench bulk`: how many queries are created and changed in bulk a second.
//!
//! Queries are created in one bulk submission, and then get other values in further ones, in the order in which they
//! were created and in another order. All of it is done on one server, so the ratio of two rates means something on a
//! machine that does other things too.

use std::io::{self, Read};
use std::time::Instant;

use clap::Args;
use rivulet_sql::Durability;
use serde::Serialize;

use super::process::ServerProcess;
use super::report::Report;
use super::setting::setting;
use crate::api::types::{BulkAnswer, BulkOutcome};
use crate::http_client::{Client, ClientError};

/// How much is generated at once, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Lines that are far from each other in one submission are neighbours in another: a prime number, so each line comes
/// once if their number is no multiple of it.
const STRIDE: u64 = 7_368_787;

/// What is measured.
#[derive(Clone, Debug, Args)]
pub struct BulkOptions {
    /// How many queries
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub queries: u64,
    /// What of the input survives the end of the server: none, checkpoint, log. Several are measured one after the
    /// other
    #[arg(
        long = "durability", value_delimiter = ',', value_name = "DURABILITIES", value_parser = durability,
        default_value = "checkpoint"
    )]
    pub durabilities: Vec<Durability>,
    /// Configuration of the server that is measured, for example checkpoint.enabled=false
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub settings: Vec<(String, String)>,
}

/// Reads a durability by its name.
pub(crate) fn durability(text: &str) -> Result<Durability, String> {
    let found = Durability::ALL.into_iter().find(|durability| durability.name() == text);
    found.ok_or_else(|| format!("there are {}", Durability::ALL.map(Durability::name).join(", ")))
}

/// What one submission took.
#[derive(Clone, Debug, Serialize)]
pub struct BulkRow {
    /// What of the input survives the end of the server.
    pub durability: &'static str,
    /// What became of the queries.
    pub what: &'static str,
    /// From the first line to the last answer.
    pub seconds: f64,
    /// Lines a second.
    #[serde(rename = "lines_per_s")]
    pub rate: f64,
    /// The rate, divided by that of the creation.
    pub of_created: f64,
    /// CPU time of the server for a line, in microseconds.
    #[serde(rename = "server_us_per_line")]
    pub server_us: f64,
}

/// Runs the measurement; `progress` is told what is going on. What fails is in the report.
pub fn run_bulk(options: &BulkOptions, mut progress: impl FnMut(&str)) -> Report<BulkRow> {
    let mut report = Report::begin(Some(options.queries));
    for &durability in &options.durabilities {
        if let Err(error) = measure(options, durability, &mut report.rows, &mut progress) {
            report.rows.push(Err(error));
        }
    }
    report
}

/// A submission of all lines.
struct Step {
    what: &'static str,
    highest: u32,
    stride: u64,
    /// What the server answers to each line.
    outcome: Option<BulkOutcome>,
}

const STEPS: [Step; 4] = [
    Step { what: "created", highest: 30, stride: 1, outcome: None },
    Step { what: "changed", highest: 31, stride: 1, outcome: Some(BulkOutcome::Changed) },
    Step { what: "changed in another order", highest: 32, stride: STRIDE, outcome: Some(BulkOutcome::Changed) },
    Step { what: "unchanged", highest: 32, stride: 1, outcome: Some(BulkOutcome::Unchanged) },
];

fn measure(
    options: &BulkOptions,
    durability: Durability,
    rows: &mut Vec<Result<BulkRow, String>>,
    progress: &mut impl FnMut(&str),
) -> Result<(), String> {
    let settings: Vec<(&str, &str)> =
        options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut server = ServerProcess::start(&["serve"], None, &settings)?;
    let application = format!(
        "CREATE APPLICATION temperature_limit (plant TEXT, highest DOUBLE)
         INPUT temperature (ts TIMESTAMP EVENT TIME, value DOUBLE)
           FROM 'mqtt:plant/{{plant}}/temperature' FORMAT JSON WITH (durability => '{}')
         OUTPUT 'mqtt:plant/{{plant}}/too_hot' FORMAT JSON
         AS SELECT ts, value FROM temperature WHERE value > $highest;",
        durability.name()
    );
    server.post("/api/v1/sql", application.as_bytes())?;
    let client = Client::new(&server.url()).map_err(|error| error.to_string())?;
    let mut created = None;
    for step in STEPS {
        progress(&format!("durability {}: {} queries {} ...", durability.name(), options.queries, step.what));
        let (before, begun) = (server.usage(), Instant::now());
        submit(&client, options.queries, &step)?;
        let seconds = begun.elapsed().as_secs_f64();
        let cpu_s = (server.usage() - before).cpu_s;
        let rate = options.queries as f64 / seconds;
        rows.push(Ok(BulkRow {
            durability: durability.name(),
            what: step.what,
            seconds,
            rate,
            of_created: rate / *created.get_or_insert(rate),
            server_us: cpu_s * 1e6 / options.queries as f64,
        }));
    }
    Ok(())
}

/// Submits a line for each query, and checks each answer.
fn submit(client: &Client, queries: u64, step: &Step) -> Result<(), String> {
    let (mut answered, mut wrong) = (0, None);
    let take = |answer: BulkAnswer| {
        answered += 1;
        if answer.outcome != step.outcome || answer.error.is_some() {
            wrong.get_or_insert_with(|| format!("line {}: {:?} {:?}", answer.line, answer.outcome, answer.error));
        }
        Ok::<_, ClientError>(())
    };
    let lines = Lines { queries, highest: step.highest, stride: step.stride, next: 0, bytes: Vec::new(), read: 0 };
    let sent = client.submit_bulk(lines, step.outcome.is_some(), take);
    sent.map_err(|error| error.to_string())?;
    match wrong {
        Some(wrong) => Err(format!("a query was not {}: {wrong}", step.what)),
        None if answered != queries => Err(format!("{answered} of {queries} lines were answered")),
        None => Ok(()),
    }
}

/// The lines of a submission, generated while they are read.
struct Lines {
    queries: u64,
    highest: u32,
    stride: u64,
    /// The next line.
    next: u64,
    bytes: Vec<u8>,
    /// How many of the bytes were read.
    read: usize,
}

impl Read for Lines {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.read == self.bytes.len() {
            (self.read, self.bytes) = (0, std::mem::take(&mut self.bytes));
            self.bytes.clear();
            while self.next < self.queries && self.bytes.len() < PIECE_BYTES {
                self.write_line()?;
            }
        }
        let length = out.len().min(self.bytes.len() - self.read);
        out[..length].copy_from_slice(&self.bytes[self.read..self.read + length]);
        self.read += length;
        Ok(length)
    }
}

impl Lines {
    fn write_line(&mut self) -> io::Result<()> {
        use io::Write;
        let number = u128::from(self.next) * u128::from(self.stride) % u128::from(self.queries);
        self.next += 1;
        let highest = self.highest;
        writeln!(
            self.bytes,
            r#"{{"name":"limit_{number}","application":"temperature_limit","parameters":{{"plant":"plant-{number}","highest":{highest}.5}}}}"#,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_query_has_one_line_in_any_order() {
        for stride in [1, STRIDE] {
            let mut lines = Lines { queries: 3_000, highest: 7, stride, next: 0, bytes: Vec::new(), read: 0 };
            let mut text = String::new();
            lines.read_to_string(&mut text).expect("lines");
            assert!(text.starts_with(r#"{"name":"limit_0","#) && text.contains(r#""highest":7.5}}"#));
            assert_eq!((text.lines().count(), text.lines().collect::<BTreeSet<_>>().len()), (3_000, 3_000));
        }
    }
}
