//! What the tasks of a big query do with their time, as EXPLAIN ANALYZE and `rivulet status --operators` show it.

use crate::bench::streams::report::grouped as count;
use crate::counted::noun;
use crate::service::TaskUsage;

use super::output::{NOTHING, duration_us, table};

/// A table of the tasks and their operators, and the bottleneck.
pub(super) fn text(tasks: &[TaskUsage], cv: Option<f64>) -> String {
    let mean = |time_us: Option<f64>| time_us.map_or_else(|| NOTHING.into(), |time_us| duration_us(time_us as u64));
    let micros = |seconds: f64| duration_us((seconds * 1e6) as u64);
    let rows = tasks.iter().flat_map(|task| {
        let head = [
            format!("{}.{}", task.stage, task.instance),
            task.operator.clone(),
            count(task.rows_in),
            count(task.rows_out),
            mean(task.queued_us),
            mean(task.scheduling_us),
            micros(task.busy_s),
            format!("{:.0} %", task.utilisation * 100.0),
            count(task.rows_waiting_max),
        ];
        // Of a task with one operator all is said.
        let several = if task.fused.len() > 1 { &task.fused[..] } else { &[] };
        let operators = several.iter().map(move |one| {
            let batches = format!("{} {}", count(one.batches), noun(one.batches, "batch"));
            let (none, name) = (String::new, format!("  {} {}", one.node, one.operator));
            [none(), name, count(one.rows_in), count(one.rows_out), none(), none(), micros(one.busy_s), none(), batches]
        });
        std::iter::once(head).chain(operators)
    });
    let headers = ["task", "what", "rows in", "rows out", "queued", "for worker", "busy", "used", "at most"];
    let mut text = table(headers, &[2, 3, 4, 5, 6, 7, 8], rows);
    let limit = |task: &TaskUsage| task.source_rows_per_s_max.unwrap_or(f64::INFINITY);
    if let Some(least) = tasks.iter().min_by(|one, other| limit(one).total_cmp(&limit(other)))
        && let Some(rows) = least.source_rows_per_s_max
    {
        let cv = cv.map_or_else(String::new, |cv| format!("; utilisation varies by {cv:.2} of its mean"));
        let rows = count(rows as u64);
        text += &format!("\nbottleneck: {}.{} {}, at {rows} rows/s{cv}", least.stage, least.instance, least.operator);
    }
    text
}
