//! The counters of big queries.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use rivulet_connectors::connector::{Condition, Direction};

use super::{Labels, OfEnd, Snapshot, encode_histogram};
use crate::engine::big_queries::BigQuerySnapshot;
use crate::service::{BigQueryInfo, QueryState};

/// Every state, so that a series does not vanish when a query leaves one.
const STATES: [QueryState; 5] =
    [QueryState::Running, QueryState::Paused, QueryState::Ended, QueryState::Failed, QueryState::NotRunning];

impl Snapshot {
    /// The health of sources and sinks.
    fn encode_ends(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ends = |direction: Direction| {
            let of_query = move |one: &BigQuerySnapshot| {
                let ends = one.info.health.iter().filter(move |end| end.direction == direction);
                ends.map(|end| (one.tenant.named(&one.info.name), end.clone())).collect::<Vec<_>>()
            };
            self.big_queries.iter().flat_map(of_query)
        };
        for direction in [Direction::Source, Direction::Sink] {
            let kind = direction.to_string();
            let name = format!("{kind}_state");
            let help = format!("Whether a {kind} of a big query is in this state");
            let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Gauge)?;
            for (query, end) in ends(direction) {
                for condition in Condition::ALL {
                    let labels = Labels(
                        Some(&query.tenant),
                        &[("query", &query.name), (&kind, &end.name), ("state", condition.name())],
                    );
                    family.encode_family(&labels)?.encode_gauge(&i64::from(end.condition == condition))?;
                }
            }
            let name = format!("{kind}_failures");
            let help = format!("Attempts of a {kind} of a big query that failed");
            let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Counter)?;
            for (query, end) in ends(direction) {
                let labels = Labels(Some(&query.tenant), &[("query", &query.name), (&kind, &end.name)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&end.failures, None)?;
            }
        }
        let counters: [(&str, &str, OfEnd); 3] = [
            ("sink_rows", "Rows that the receiver behind a sink has acknowledged", |end| end.rows),
            ("sink_bytes", "Bytes of rows that the receiver behind a sink has acknowledged", |end| end.bytes),
            ("sink_rejected_rows", "Rows that the receiver has rejected and that were left out", |end| {
                end.rejected_rows
            }),
        ];
        for (name, help, value) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (query, end) in ends(Direction::Sink) {
                let labels = Labels(Some(&query.tenant), &[("query", &query.name), ("sink", &end.name)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(&end), None)?;
            }
        }
        let gauges: [(&str, &str, OfEnd); 2] = [
            ("sink_waiting_rows", "Rows that the receiver behind a sink has not acknowledged", |end| end.waiting_rows),
            ("sink_oldest_ms", "How long the oldest row waits that the receiver has not acknowledged", |end| {
                end.oldest_ms.unwrap_or(0)
            }),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (query, end) in ends(Direction::Sink) {
                let value = i64::try_from(value(&end)).unwrap_or(i64::MAX);
                let labels = Labels(Some(&query.tenant), &[("query", &query.name), ("sink", &end.name)]);
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    pub(super) fn encode_big_queries(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Whether a big query is in this state";
        let mut family = encoder.encode_descriptor("big_query_state", help, None, MetricType::Gauge)?;
        for one in &self.big_queries {
            for state in STATES {
                let labels = Labels(Some(&one.tenant), &[("query", &one.info.name), ("state", state.name())]);
                family.encode_family(&labels)?.encode_gauge(&i64::from(one.info.state == state))?;
            }
        }
        type Count = fn(&BigQueryInfo) -> u64;
        let counters: [(&str, &str, Count); 3] = [
            ("big_query_window_results", "Results of windows that waited for the end of their window", |info| {
                info.window_wait.results
            }),
            ("big_query_rows_in", "Rows read from the sources of a big query", |info| info.rows_in),
            ("big_query_rows_out", "Rows of a big query that the receiver behind its sink has acknowledged", |info| {
                info.rows_out
            }),
        ];
        for (name, help, value) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for one in &self.big_queries {
                let labels = Labels(Some(&one.tenant), &[("query", &one.info.name)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(&one.info), None)?;
            }
        }
        let help = "Rows of a big query that were not processed, by reason";
        let mut family = encoder.encode_descriptor("big_query_refused", help, None, MetricType::Counter)?;
        for one in &self.big_queries {
            for (reason, count) in &one.info.refused {
                let labels = Labels(Some(&one.tenant), &[("query", &one.info.name), ("reason", reason)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        let help = "Rows that a big query read whose times are most likely seconds that were taken for milliseconds";
        let mut family = encoder.encode_descriptor("big_query_times_in_seconds", help, None, MetricType::Counter)?;
        for one in &self.big_queries {
            for (source, count) in &one.info.times_in_seconds {
                let labels = Labels(Some(&one.tenant), &[("query", &one.info.name), ("source", source)]);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        let gauges: [(&str, &str, Count); 3] = [
            ("big_query_state_bytes", "Memory of the operators of a big query", |info| info.state_bytes),
            ("big_query_waiting_rows", "Rows that wait between the tasks of a big query", |info| info.waiting_rows),
            ("big_query_tasks", "Parallel tasks of a big query", |info| info.tasks),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for one in &self.big_queries {
                let value = i64::try_from(value(&one.info)).unwrap_or(i64::MAX);
                family.encode_family(&Labels(Some(&one.tenant), &[("query", &one.info.name)]))?.encode_gauge(&value)?;
            }
        }
        let (name, seconds) = ("big_query_watermark", Some(&Unit::Seconds));
        let help = "How far the time of the results of a big query is, since 1970";
        let mut family = encoder.encode_descriptor(name, help, seconds, MetricType::Gauge)?;
        for one in &self.big_queries {
            if let Some(watermark_us) = one.info.watermark_us {
                let labels = Labels(Some(&one.tenant), &[("query", &one.info.name)]);
                family.encode_family(&labels)?.encode_gauge(&(watermark_us as f64 / 1e6))?;
            }
        }
        self.encode_ends(encoder)?;
        let help = "From the arrival of the newest row of a window of a big query to its end: the sum over its results";
        let mut family = encoder.encode_descriptor("big_query_window_wait", help, seconds, MetricType::Counter)?;
        for one in &self.big_queries {
            let labels = Labels(Some(&one.tenant), &[("query", &one.info.name)]);
            let sum = one.info.window_wait.sum_us as f64 / 1e6;
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&sum, None)?;
        }
        let help = "From the arrival of the newest row that a result of a big query is made of, or from the end of its \
                    window, to its handing to the sink";
        let mut family = encoder.encode_descriptor("big_query_latency", help, seconds, MetricType::Histogram)?;
        for one in &self.big_queries {
            encode_histogram(&mut family, &Labels(Some(&one.tenant), &[("query", &one.info.name)]), &one.latency_us)?;
        }
        Ok(())
    }
}
