//! The health of the sources and sinks of big queries: for the status, for the readiness check of the server, and for
//! the description of a source or sink.

use std::time::Duration;

use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::connector::{Condition, Direction};
use rivulet_dataflow::Clock;

use super::{BigQueries, OneQuery};
use crate::counted::counted;
use crate::run::Running;
use crate::service::{EndHealth, FullName, QueryState};

impl OneQuery {
    /// The health of each of its sources and sinks; nothing while they are not open.
    pub(super) fn health(&self) -> Vec<EndHealth> {
        self.life.flow().map_or_else(Vec::new, |running| health_of(running))
    }

    /// Its sources and sinks that do not work, though the query runs.
    pub(super) fn troubles(&self) -> Vec<String> {
        match self.life.state() {
            QueryState::Running | QueryState::Paused => {
                self.health().iter().filter(|end| end.condition != Condition::Ok).map(EndHealth::text).collect()
            }
            _ => Vec::new(),
        }
    }
}

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

fn health_of(running: &Running) -> Vec<EndHealth> {
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
            oldest_ms: report.oldest.map(ms),
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
        format!("the {direction} '{name}' is {condition} ({waiting}{tried}): {error}")
    }

    /// Its health in words, working or not, for its description.
    pub(in crate::engine) fn description(&self) -> String {
        if self.condition != Condition::Ok {
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

impl BigQueries {
    /// The sources and sinks that do not work, of big queries that run, in words that any user may read.
    pub(in crate::engine) fn troubled_ends(&self) -> Vec<String> {
        /// The most that are named.
        const NAMED_MAX: usize = 16;
        let all = self.that(|one| one.life.flow().is_some());
        let troubles = all.iter().flat_map(|(name, one)| {
            let (is_public, name) = (name.tenant.is_default(), name.in_public());
            one.troubles().into_iter().map(move |trouble| match is_public {
                true => format!("the query {name} runs, and {trouble}"),
                false => format!("the query {name} runs, and a source or sink of it does not work"),
            })
        });
        let mut troubles: Vec<String> = troubles.collect();
        let more = troubles.len().saturating_sub(NAMED_MAX);
        troubles.truncate(NAMED_MAX);
        troubles.extend((more > 0).then(|| format!("{more} more sources and sinks do not work")));
        troubles
    }

    /// The health of a source or sink of a tenant in each query that has it open: the worst condition of all, and each
    /// in words.
    pub(in crate::engine) fn health_of_end(
        &self,
        direction: Direction,
        FullName { tenant, name }: &FullName,
    ) -> (Option<Condition>, Vec<(String, String)>) {
        let mut worst = None;
        let mut shown = Vec::new();
        let all = self.that(|one| one.life.flow().is_some());
        for (query, one) in all.into_iter().filter(|(query, _)| query.tenant == *tenant) {
            for end in one.health().iter().filter(|end| end.direction == direction && end.name == *name) {
                worst = worst.max(Some(end.condition));
                shown.push((query.name.clone(), end.description()));
            }
        }
        (worst, shown)
    }
}
