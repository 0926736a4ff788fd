//! The health of the sources and sinks of big queries: for the status, for the readiness check of the server, and for
//! the description of a source or sink.

use rivulet_connectors::connector::{Condition, Direction};

use super::ends::health_of;
use super::{BigQueries, OneQuery};
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
