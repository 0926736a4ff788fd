//! The sources and sinks of one flow: how they get on, and which rows wait for them.

use std::time::Duration;

use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::connector::{Condition, Direction};
use rivulet_dataflow::Clock;

use crate::counted::counted;
use crate::run::Running;
use crate::service::EndHealth;
use crate::times::span;

/// The sinks of a flow that do not work, in words.
pub(super) fn troubled_sinks(running: &Running) -> Option<String> {
    let ends = health_of(running).into_iter();
    let troubled = ends.filter(|end| end.direction == Direction::Sink && end.condition != Condition::Ok);
    let texts: Vec<String> = troubled.map(|end| end.text()).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// The sinks of a flow for which rows wait, in words, and the number of these rows.
pub(super) fn waiting_rows(running: &Running) -> (String, u64) {
    let ends = health_of(running).into_iter().filter(|end| end.direction == Direction::Sink && end.waiting_rows > 0);
    let ends: Vec<EndHealth> = ends.collect();
    let names: Vec<String> = ends.iter().map(|end| format!("'{}'", end.name)).collect();
    (names.join(" and "), ends.iter().map(|end| end.waiting_rows).sum())
}

/// The health of each source and sink of a flow.
pub(super) fn health_of(running: &Running) -> Vec<EndHealth> {
    running.ends().iter().map(|end| EndHealth::new(&end.name, end.direction, end.health.report())).collect()
}

impl EndHealth {
    /// The health from the report of a source or sink with this name.
    pub(in crate::engine) fn new(
        name: &str,
        direction: Direction,
        report: rivulet_connectors::connector::HealthReport,
    ) -> Self {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            name: name.to_owned(),
            direction,
            condition: report.condition,
            since_ms: report.since_us / 1_000,
            last_error: report.last_error,
            retries: report.retries,
            failures: report.failures,
            rows: report.rows,
            bytes: report.bytes,
            rejected_rows: report.left_out,
            waiting_rows: report.waiting_rows,
            waiting_bytes: report.waiting_bytes,
            oldest_ms: report.oldest.map(ms),
            stands_still_since_ms: None,
        }
    }

    /// Its problem, in a sentence.
    pub(in crate::engine) fn text(&self) -> String {
        let Self { name, direction, condition, last_error, waiting_rows, retries, .. } = self;
        let waiting = match (direction, waiting_rows) {
            (Direction::Sink, 1..) => format!("{} wait, ", counted(*waiting_rows, "row")),
            _ => String::new(),
        };
        let for_s = (SystemClock.now_us() / 1_000 - self.since_ms).max(0) / 1_000;
        let tried = format!("{} in {for_s} s", counted(*retries, "failed attempt"));
        let error = last_error.as_deref().unwrap_or_default().replace("\nhint: ", "; ");
        let stands = self.stands_still().map(|stands| format!("{stands}; ")).unwrap_or_default();
        format!("{stands}the {direction} '{name}' is {condition} ({waiting}{tried}): {error}")
    }

    /// That the application stands still on account of it, in a sentence.
    pub(in crate::engine) fn stands_still(&self) -> Option<String> {
        let for_us = SystemClock.now_us() - self.stands_still_since_ms?.saturating_mul(1_000);
        let for_s = span(for_us.max(0) / 1_000_000 * 1_000_000);
        Some(format!("the application has stood still for {for_s}: the receiver of '{}' takes nothing", self.name))
    }

    /// That rows were left out, and how many, in a sentence.
    pub(in crate::engine) fn left_out(&self) -> Option<String> {
        let last = self.last_error.as_deref().unwrap_or_default().replace("\nhint: ", "; ");
        let left_out = counted(self.rejected_rows, "row");
        let text = format!("since the start '{}' has left out {left_out}; its last error was: {last}", self.name);
        (self.rejected_rows > 0).then_some(text)
    }

    /// Whether it works, as far as is known.
    pub(in crate::engine) fn is_well(&self) -> bool {
        self.condition == Condition::Ok && self.stands_still_since_ms.is_none()
    }

    /// Its health in words, working or not, for its description.
    pub(in crate::engine) fn description(&self) -> String {
        if !self.is_well() {
            return self.text();
        }
        let last = self.last_error.as_ref().map(|error| format!("; its last error was: {error}")).unwrap_or_default();
        match self.direction {
            Direction::Source if self.rows > 0 => {
                format!("ok: {}, {} refused{last}", counted(self.rows, "message"), self.rejected_rows)
            }
            Direction::Source => format!("ok{last}"),
            Direction::Sink => {
                let (rows, waiting_rows) = (counted(self.rows, "row"), self.waiting_rows);
                format!("ok: {rows} acknowledged, {waiting_rows} waiting{last}")
            }
        }
    }
}
