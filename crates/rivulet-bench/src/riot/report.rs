//! What came of it, for people and machines.

use std::collections::BTreeMap;

use serde::Serialize;

use super::measured::{Measured, Task};
use super::{FORMS, Form, Topology};
use crate::Circumstances;

/// All curves.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RiotReport {
    /// Where and when.
    pub circumstances: Circumstances,
    /// Whether the results of all topologies are golden.
    pub is_golden: bool,
    /// The same by topology.
    pub golden: BTreeMap<&'static str, bool>,
    /// Why results are not golden.
    pub differences: Vec<String>,
    /// The 99th percentile of latencies that is borne, by topology.
    pub bound_ms: BTreeMap<&'static str, u64>,
    /// Each way to run a topology, on each number of cores.
    pub curves: Vec<Curve>,
}

/// A topology, run in one way on so many cores.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The topology.
    pub topology: &'static str,
    /// Whether operators are fused: `auto` or `none`.
    pub fuse: &'static str,
    /// Which task a worker runs next.
    pub policy: &'static str,
    /// How many cores, and workers.
    pub cpus: usize,
    /// The most events a second within the bound; the last rate that was measured, if they were not looked for.
    #[serde(flatten)]
    pub point: Point,
    /// Whether that is the most.
    pub is_saturation: bool,
    /// Everything that was measured, in order.
    pub points: Vec<Point>,
    /// What each task did at that point.
    pub operators: Vec<Task>,
    /// Rows that waited for each task then, by the seconds since the start.
    pub pending: Vec<(f64, Vec<u64>)>,
    /// Why it came to no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// One rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Events a second that were sent.
    pub input_per_s: u32,
    /// Results a second.
    pub sink_per_s: f64,
    /// Results for each event.
    pub sink_per_input: f64,
    /// From the time in the schedule to the result.
    pub latency_us_p50: u64,
    /// Its 95th percentile.
    pub latency_us_p95: u64,
    /// Its 99th percentile.
    pub latency_us_p99: u64,
    /// The longest.
    pub latency_us_max: u64,
    /// Processor time of the whole process for each event.
    pub cpu_us_per_event: f64,
    /// How differently tasks are used: the standard deviation of their utilisations, as a part of their mean.
    pub utilisation_cv: f64,
    /// Whether all events were taken in time, and the bound was kept.
    pub is_sustained: bool,
}

impl Point {
    pub(super) fn of(rate: u32, elapsed_s: f64, is_sustained: bool, measured: &Measured) -> Self {
        let events = measured.events.max(1) as f64;
        let [p50, p95, p99, max] = measured.latency_us;
        let rounded = |number: f64| (number * 1e3).round() / 1e3;
        Self {
            input_per_s: rate,
            sink_per_s: (measured.results as f64 / elapsed_s.max(1e-9)).round(),
            sink_per_input: rounded(measured.results as f64 / events),
            latency_us_p50: p50,
            latency_us_p95: p95,
            latency_us_p99: p99,
            latency_us_max: max,
            cpu_us_per_event: rounded(measured.cpu_s * 1e6 / events),
            utilisation_cv: rounded(variation(measured.tasks.iter().map(|task| task.utilisation))),
            is_sustained,
        }
    }
}

/// The standard deviation of numbers as a part of their mean.
fn variation(numbers: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = numbers.clone().count().max(1) as f64;
    let mean = numbers.clone().sum::<f64>() / count;
    let variance = numbers.map(|number| (number - mean).powi(2)).sum::<f64>() / count;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}

impl Curve {
    pub(super) fn new(topology: Topology, form: &Form, cpus: usize) -> Self {
        Self {
            topology: topology.name(),
            fuse: form.fuse,
            policy: form.policy,
            cpus,
            point: Point::default(),
            is_saturation: false,
            points: Vec::new(),
            operators: Vec::new(),
            pending: Vec::new(),
            failure: None,
        }
    }

    /// With the median of the last runs as what counts.
    pub(super) fn finish(mut self, mut last: Vec<(Point, Measured)>, is_saturation: bool) -> Self {
        last.sort_by_key(|(point, _)| point.latency_us_p99);
        if !last.is_empty() {
            let (point, measured) = last.swap_remove(last.len() / 2);
            self.point = point;
            self.is_saturation = is_saturation;
            self.operators = measured.tasks;
            self.pending = measured.pending;
        }
        self
    }

    /// The name of the way in which operators are run.
    pub fn form(&self) -> &'static str {
        let form = FORMS.iter().find(|form| form.fuse == self.fuse && form.policy == self.policy);
        form.map_or(self.policy, |form| form.name)
    }
}

impl RiotReport {
    /// Why something came to no end or has other results, a line for each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let failure = |curve: &Curve| {
            let reason = curve.failure.as_ref()?.trim_start_matches("error: ");
            let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
            Some(format!("{} {} on {}: {reason}", curve.topology, curve.form(), curve.cpus))
        };
        self.differences.iter().cloned().chain(self.curves.iter().filter_map(failure))
    }

    /// The rows of a table: topology, way, cores, events a second, results a second, latencies, processor time, CV.
    pub fn rows(&self) -> impl Iterator<Item = [String; 9]> {
        self.curves.iter().map(|curve| {
            let point = &curve.point;
            let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
            [
                curve.topology.to_owned(),
                curve.form().to_owned(),
                curve.cpus.to_string(),
                point.input_per_s.to_string(),
                format!("{:.0}", point.sink_per_s),
                ms(point.latency_us_p50),
                ms(point.latency_us_p99),
                format!("{:.2}", point.cpu_us_per_event),
                format!("{:.2}", point.utilisation_cv),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variation_is_relative() {
        assert_eq!(variation([1.0, 3.0].into_iter()), 0.5);
        assert_eq!(variation([2.0, 2.0].into_iter()), 0.0);
        assert_eq!(variation(std::iter::empty()), 0.0);
    }
}
