//! The counters of big queries.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use rivulet_connectors::connector::{Condition, Direction};
use rivulet_runtime::TaskReport;

use super::{Labels, Latency, Series, Snapshot, counts};
use crate::engine::big_queries::BigQuerySnapshot;
use crate::service::QueryState;

const SECONDS: Option<&Unit> = Some(&Unit::Seconds);

/// A figure of a stage, which is the sum over its tasks: its name, its unit, what it is, and how much of it a task has,
/// in microseconds where it is a time.
type StageSum = (&'static str, Option<&'static Unit>, &'static str, fn(&TaskReport) -> u64);

/// Every state, so that a series does not vanish when a query leaves one.
const STATES: [QueryState; 5] =
    [QueryState::Running, QueryState::Paused, QueryState::Ended, QueryState::Failed, QueryState::NotRunning];

impl Snapshot {
    pub(super) fn encode_big_queries(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = self.big_queries.iter().map(|one| Labels(Some(&one.tenant), vec![("query", &one.info.name)]));
        let queries = Series(labels.zip(&self.big_queries).collect());
        let help = "Whether a big query is in this state";
        queries.states(encoder, "big_query_state", help, STATES, QueryState::name, |one| one.info.state)?;
        let help = "Rows of a big query that the receiver behind its sink has acknowledged";
        queries.counters(
            encoder,
            &[
                ("big_query_window_results", "Results of windows that waited for the end of their window", |one| {
                    one.info.window_wait.results
                }),
                ("big_query_rows_in", "Rows read from the sources of a big query", |one| one.info.rows_in),
                ("big_query_rows_out", help, |one| one.info.rows_out),
            ],
        )?;
        let help = "Rows of a big query that were not processed, by reason";
        let refused = queries.by("reason", |one| counts(&one.info.refused));
        refused.counters(encoder, &[("big_query_refused", help, |count| count)])?;
        let help = "Rows that a big query read whose times are most likely seconds that were taken for milliseconds";
        let seconds = queries.by("source", |one| counts(&one.info.times_in_seconds));
        seconds.counters(encoder, &[("big_query_times_in_seconds", help, |count| count)])?;
        let help = "Rows that wait between the tasks of a big query";
        queries.gauges(
            encoder,
            &[
                ("big_query_state_bytes", "Memory of the operators of a big query", |one| one.info.state_bytes),
                ("big_query_waiting_rows", help, |one| one.info.waiting_rows),
                ("big_query_tasks", "Parallel tasks of a big query", |one| one.info.tasks),
            ],
        )?;
        Self::encode_stages(&queries, encoder)?;
        let seconds = Some(&Unit::Seconds);
        let help = "How far the time of the results of a big query is, since 1970";
        let watermark = |one: &BigQuerySnapshot| Some(ConstGauge::new(one.info.watermark_us? as f64 / 1e6));
        queries.family(encoder, "big_query_watermark", help, seconds, watermark)?;
        Self::encode_ends(&queries, encoder)?;
        let help = "From the arrival of the newest row of a window of a big query to its end: the sum over its results";
        let wait = |one: &BigQuerySnapshot| Some(ConstCounter::new(one.info.window_wait.sum_us as f64 / 1e6));
        queries.family(encoder, "big_query_window_wait", help, seconds, wait)?;
        let help = "From the arrival of the newest row that a result of a big query is made of, or from the end of its \
                    window, to its handing to the sink";
        queries.family(encoder, "big_query_latency", help, seconds, |one| Some(Latency(&one.latency_us)))
    }

    /// What stages do with their time, the tasks of each together.
    fn encode_stages<'a>(
        queries: &Series<'a, &'a BigQuerySnapshot>,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let stages = queries.by("stage", |one| one.stages.iter().map(|(name, tasks)| (&**name, &tasks[..])));
        let sums: [StageSum; 6] = [
            ("rows_in", None, "Rows that a stage of a big query has received", |task| task.rows_in),
            ("busy", SECONDS, "Time in which a stage of a big query ran", |task| task.busy_us),
            ("ready", SECONDS, "Time in which a stage of a big query had work and waited for a worker", |task| {
                task.ready_us
            }),
            ("blocked", SECONDS, "Time in which a stage of a big query had work and no room for its results", |task| {
                task.blocked_us
            }),
            (
                "row_queued",
                SECONDS,
                "Time that rows waited in the queues of a stage, without that of scheduling",
                |task| task.queued_row_us,
            ),
            ("row_scheduling", SECONDS, "Time that rows waited while their stage waited for a worker", |task| {
                task.scheduled_row_us
            }),
        ];
        for (name, unit, help, of) in sums {
            // Of whole numbers, which never fall: a counter that falls was reset.
            let sum = |tasks: &[TaskReport]| tasks.iter().map(of).sum::<u64>() as f64;
            let sum =
                |tasks: &[TaskReport]| Some(ConstCounter::new(sum(tasks) / if unit.is_some() { 1e6 } else { 1.0 }));
            stages.family(encoder, &format!("big_query_stage_{name}"), help, unit, sum)?;
        }
        let waiting = |tasks: &[TaskReport]| tasks.iter().map(|task| task.waiting_rows as u64).sum();
        stages
            .gauges(encoder, &[("big_query_stage_waiting_rows", "Rows that wait for a stage of a big query", waiting)])
    }

    /// The health of sources and sinks.
    fn encode_ends<'a>(queries: &Series<'a, &'a BigQuerySnapshot>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ends = |kind, direction| {
            queries.by(kind, move |one| {
                let ends = one.info.health.iter().filter(move |end| end.direction == direction);
                ends.map(|end| (&*end.name, end))
            })
        };
        let (sources, sinks) = (ends("source", Direction::Source), ends("sink", Direction::Sink));
        for (kind, ends) in [("source", &sources), ("sink", &sinks)] {
            let help = format!("Whether a {kind} of a big query is in this state");
            let name = format!("{kind}_state");
            ends.states(encoder, &name, &help, Condition::ALL, Condition::name, |end| end.condition)?;
            let help = format!("Attempts of a {kind} of a big query that failed");
            ends.counters(encoder, &[(&format!("{kind}_failures"), &help, |end| end.failures)])?;
        }
        let help = "Rows that the receiver has rejected and that were left out";
        sinks.counters(
            encoder,
            &[
                ("sink_rows", "Rows that the receiver behind a sink has acknowledged", |end| end.rows),
                ("sink_bytes", "Bytes of rows that the receiver behind a sink has acknowledged", |end| end.bytes),
                ("sink_rejected_rows", help, |end| end.rejected_rows),
            ],
        )?;
        let help = "How long the oldest row waits that the receiver has not acknowledged";
        sinks.gauges(
            encoder,
            &[
                ("sink_waiting_rows", "Rows that the receiver behind a sink has not acknowledged", |end| {
                    end.waiting_rows
                }),
                ("sink_waiting_bytes", "Bytes of these on disk, of a sink that keeps them there", |end| {
                    end.waiting_bytes.unwrap_or(0)
                }),
                ("sink_oldest_ms", help, |end| end.oldest_ms.unwrap_or(0)),
            ],
        )
    }
}

#[cfg(test)]
mod tests {
    use rivulet_runtime::Histogram;
    use serde_json::json;

    use super::super::text;
    use super::*;
    use crate::service::Tenant;

    #[test]
    fn the_time_that_rows_waited_never_falls() {
        let mut before = 0.0;
        for rows_in in 1..2_000 {
            let task = TaskReport { rows_in, queued_row_us: 10, has_queue: true, ..TaskReport::default() };
            let info = json!({
                "name": "q", "state": "running", "sql": "", "sources": [], "sink": "", "rows_in": 0, "rows_out": 0,
                "refused": {}, "latency": {}, "state_bytes": 0, "waiting_rows": 0, "tasks": 1,
            });
            let info = serde_json::from_value(info).unwrap();
            let stages = vec![("1 window".to_owned(), vec![task])];
            let query = BigQuerySnapshot { tenant: Tenant::default(), info, stages, latency_us: Histogram::default() };
            let text = text(Snapshot { big_queries: vec![query], ..Snapshot::default() });
            let line = text.lines().find(|line| line.starts_with("rivulet_big_query_stage_row_queued_seconds_total{"));
            let seconds: f64 = line.and_then(|line| line.rsplit_once(' ')).unwrap().1.parse().unwrap();
            assert!(seconds >= before, "{seconds} after {before}");
            before = seconds;
        }
        assert!(before > 0.0);
    }
}
