//! `EXPLAIN ANALYZE`: the plan, and what each of its tasks and operators did.

use std::fmt::Write;

use rivulet_runtime::TaskReport;
use rivulet_sql::{QueryPlan, explain_query};

use crate::bench::streams::report::grouped as count;
use crate::cli::output::{bytes, duration_us, table};
use crate::counted::noun;
use crate::run::{RunReport, Runner, Running};

/// The plan and the figures of a run.
pub(super) fn text(plan: &QueryPlan, running: &Running, report: &RunReport) -> String {
    let mut text = explain_query(plan);
    let flow = &report.flow;
    let rows = flow.tasks.iter().flat_map(|task| {
        let place = format!("{}.{}", task.stage + 1, task.instance + 1);
        let head = [
            place,
            stage_name(running, task.stage),
            worker(task),
            count(task.rows_in),
            count(task.rows_out),
            duration_us(task.busy_us),
            count(task.waiting_rows_max as u64),
        ];
        let operators = task.operators.iter().map(move |operator| {
            let time = duration_us(operator.busy_ns / 1_000);
            let batches = format!("{} {}", count(operator.batches), noun(operator.batches, "batch"));
            [
                String::new(),
                format!("  {}", operator.operator),
                String::new(),
                count(operator.rows_in),
                count(operator.rows_out),
                time,
                batches,
            ]
        });
        std::iter::once(head).chain(operators)
    });
    let headers = ["task", "what", "worker", "rows in", "rows out", "busy", "queue at most"];
    let tasks = table(headers, &[3, 4, 5, 6], rows);
    let latency = &flow.latency_us;
    let _ = write!(
        text,
        "\n\n{tasks}\n\n{} {} read in {:.3} s, {} written, {} of state; latency p50 {}, p99 {}\n",
        count(flow.rows_in),
        noun(flow.rows_in, "row"),
        report.elapsed.as_secs_f64(),
        count(flow.rows_out),
        bytes(flow.state_bytes as u64),
        duration_us(latency.quantile_us(0.5)),
        duration_us(latency.quantile_us(0.99)),
    );
    text
}

/// The worker that a task belongs to, with its node where there are several.
fn worker(task: &TaskReport) -> String {
    match (task.worker, task.node) {
        (Some(worker), Some(node)) => format!("{worker}, node {node}"),
        (Some(worker), None) => worker.to_string(),
        (None, _) => "any".into(),
    }
}

/// On which cores and nodes workers stand, where that is known.
pub(super) fn workers(runner: &Runner) -> String {
    let stands = runner.workers().into_iter().filter_map(|worker| {
        let (core, node) = (worker.core?, worker.node?);
        Some(format!("worker {} stays on core {core}, node {node}\n", worker.worker))
    });
    stands.collect()
}

/// What a stage does, in the names of its nodes.
fn stage_name(running: &Running, stage: usize) -> String {
    let nodes = running.flow().dataflow().nodes();
    let stage = &running.flow().stages()[stage];
    stage.nodes.iter().map(|&node| nodes[node].work.name()).collect::<Vec<_>>().join(" > ")
}
