//! What small queries are measured with: a generator in a process of its own, applications and queries of a workload,
//! and what a server's status says of their events.

use std::net::SocketAddr;
use std::process::Command;

use rivulet_bench::generator::handle::GeneratorHandle;
use rivulet_bench::workload::Workload;
use rivulet_connectors::mqtt::codec::Qos;
use serde_json::Value;

use super::process::{ServerProcess, error_of};

/// Lines in one bulk request: its answers fit into the buffers of a connection, so that a client which first writes and
/// then reads does not wait for a server that does the same.
const LINES_PER_REQUEST: u64 = 20_000;
/// Applications in one script, of a kilobyte each: a body has at most 4 MiB.
const APPLICATIONS_PER_REQUEST: usize = 1_000;

/// The tables and applications of a workload.
pub(super) fn register(server: &mut ServerProcess, workload: &Workload) -> Result<(), String> {
    for table in workload.tables() {
        let statement = table.write(&server.files()).map_err(|error| format!("a table's file: {error}"))?;
        server.post("/api/v1/tables", statement.as_bytes())?;
    }
    let statements: Vec<String> = workload.applications().map(|application| application.statement).collect();
    for script in statements.chunks(APPLICATIONS_PER_REQUEST) {
        server.post("/api/v1/sql", script.join("\n").as_bytes())?;
    }
    Ok(())
}

/// Where a generator finds the users as which it publishes: `NAME=PASSWORD`, with commas between. Not among its
/// arguments, which every user of the machine sees.
pub(crate) const GENERATOR_USERS: &str = "GENERATOR_USERS";

/// A generator that is a broker, for thousands of connections if `is_crowded`, or one that publishes to a broker, as
/// these users with their passwords.
pub(super) fn start_generator(
    external_broker: Option<SocketAddr>,
    is_crowded: bool,
    qos: Qos,
    users: &[(String, String)],
) -> Result<GeneratorHandle, String> {
    if is_crowded && qos == Qos::AtLeastOnce {
        return Err("queries with connections of their own are measured with events of QoS 0\nhint: leave out --qos, or choose other models".into());
    }
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut command = Command::new(program);
    command.args(["bench", "generator"]);
    if let Some(broker) = external_broker {
        command.args(["--broker", &broker.to_string()]);
    } else if is_crowded {
        command.arg("--crowd");
    } else if qos == Qos::AtLeastOnce {
        command.args(["--qos", "1"]);
    }
    let users: Vec<String> = users.iter().map(|(name, password)| format!("{name}={password}")).collect();
    command.env(GENERATOR_USERS, users.join(","));
    GeneratorHandle::spawn(command).map_err(|error| error.to_string())
}

/// The first so many queries of a workload.
pub(super) fn submit(server: &mut ServerProcess, workload: &Workload, queries: u64) -> Result<(), String> {
    let mut body = Vec::new();
    for first in (0..queries).step_by(LINES_PER_REQUEST as usize) {
        body.clear();
        for number in first..queries.min(first + LINES_PER_REQUEST) {
            workload.write_query_line(number, &mut body);
        }
        submit_lines(server, &body)?;
    }
    Ok(())
}

/// Queries as lines of a bulk submission; all of them are accepted.
pub(super) fn submit_lines(server: &mut ServerProcess, lines: &[u8]) -> Result<(), String> {
    let answers = server.post("/api/v1/queries/bulk", lines)?;
    match answers.lines().find(|line| line.contains("\"error\"")) {
        Some(refused) => Err(format!("a query was refused: {}", error_of(refused))),
        None => Ok(()),
    }
}

/// Events that queries have had.
pub(super) fn processed(status: &Value) -> u64 {
    status["total"]["events"].as_u64().unwrap_or(0)
}

/// Events that reached the engine and were counted as dropped.
pub(super) fn dropped(status: &Value) -> u64 {
    status["messages_unrouted"].as_u64().unwrap_or(0) + refused(&status["total"], |reason| reason == "overflow")
}

/// Rows that were refused for reasons `of` this kind.
pub(super) fn refused(total: &Value, of: impl Fn(&str) -> bool) -> u64 {
    let Some(reasons) = total["refused"].as_object() else { return 0 };
    reasons.iter().filter(|(reason, _)| of(reason)).filter_map(|(_, count)| count.as_u64()).sum()
}
