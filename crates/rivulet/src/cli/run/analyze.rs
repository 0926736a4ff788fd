//! `EXPLAIN ANALYZE`: the plan, and what each of its tasks and operators did.

use std::fmt::Write;

use rivulet_sql::{QueryPlan, explain_query};
use serde_json::{Value, json};

use crate::bench::streams::report::grouped as count;
use crate::cli::output::{bytes, duration_us};
use crate::cli::usage;
use crate::counted::noun;
use crate::run::{RunReport, Runner};
use crate::service::TaskUsage;

/// The plan and the figures of a run.
pub(super) fn text(plan: &QueryPlan, report: &RunReport) -> String {
    let mut text = explain_query(plan);
    let flow = &report.flow;
    let tasks = usage::text(&TaskUsage::all(flow), flow.utilisation_cv());
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

/// The same for programs.
pub(super) fn json(plan: &QueryPlan, report: &RunReport) -> Value {
    let flow = &report.flow;
    json!({
        "plan": explain_query(plan),
        "elapsed_s": report.elapsed.as_secs_f64(),
        "rows_in": flow.rows_in,
        "rows_out": flow.rows_out,
        "state_bytes": flow.state_bytes,
        "latency_us_p50": flow.latency_us.quantile_us(0.5),
        "latency_us_p99": flow.latency_us.quantile_us(0.99),
        "window_us": flow.window_us,
        "utilisation_cv": flow.utilisation_cv(),
        "operators": TaskUsage::all(flow),
    })
}

/// On which cores and nodes workers stand, where that is known.
pub(super) fn workers(runner: &Runner) -> String {
    let stands = runner.workers().into_iter().filter_map(|worker| {
        let (core, node) = (worker.core?, worker.node?);
        Some(format!("worker {} stays on core {core}, node {node}\n", worker.worker))
    });
    stands.collect()
}
