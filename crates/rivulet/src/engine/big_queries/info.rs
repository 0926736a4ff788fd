//! What is shown of big queries: their state, and their figures.
//!
//! What must hold: figures are read without any lock of the engine. The reader waits for a busy task.

use std::collections::BTreeSet;

use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::{Clock, Seconds};
use rivulet_runtime::{FlowReport, Histogram, TaskReport};
use rivulet_sql::{Declared, ObjectKind, QueryPlan};

use super::{BigQueries, OneQuery};
use crate::burst::moves;
use crate::counted::counted;
use crate::engine::running::{by_reason, latency, named};
use crate::like::like;
use crate::service::{
    BigQueryInfo, FullName, QueryFilter, QueryInfo, QueryState, ResourceKind, ServiceError, TaskUsage, Tenant,
    WindowWait,
};

/// A big query with details that the summary omits.
#[derive(Debug)]
pub(in crate::engine) struct BigQuerySnapshot {
    pub(in crate::engine) tenant: Tenant,
    pub(in crate::engine) info: BigQueryInfo,
    /// Its stages by number and name, each with what its tasks have done.
    pub(in crate::engine) stages: Vec<(String, Vec<TaskReport>)>,
    pub(in crate::engine) latency_us: Histogram,
}

impl OneQuery {
    /// Where the tasks of this plan of it run, and where they might, as the last part of its plan. `stays` says why
    /// none of them may go.
    pub(super) fn placement(&self, plan: &QueryPlan, stays: Option<ServiceError>) -> String {
        let Some(running) = self.life.flow().filter(|_| self.life.state() == QueryState::Running) else {
            return String::new();
        };
        let tasks = running.report().tasks;
        let places: BTreeSet<(usize, Option<usize>)> =
            tasks.iter().filter_map(|task| Some((task.worker?, task.node))).collect();
        let places: Vec<String> = places
            .into_iter()
            .map(|(worker, node)| match node {
                Some(node) => format!("{worker} (node {node})"),
                None => worker.to_string(),
            })
            .collect();
        let workers = if places.is_empty() { "any".into() } else { places.join(", ") };
        let bursts = moves::explain(plan, running.flow().stages(), &tasks, stays);
        format!("{bursts}\n\nruns in {} on the workers {workers}\n", counted(tasks.len() as u64, "task"))
    }

    /// The sources whose times are most likely seconds that were read as milliseconds.
    pub(super) fn seconds_by_source(&self) -> Vec<(String, Seconds)> {
        let (Some(plan), Some(running)) = (&self.plan, self.life.flow()) else { return Vec::new() };
        let names: Vec<String> = plan.sources.iter().map(|source| source.declaration.name.text.clone()).collect();
        named(&names, &running.report().seconds)
    }

    /// With `operators` it says what each task does with its time.
    fn snapshot(&self, FullName { tenant, name }: &FullName, operators: bool) -> BigQuerySnapshot {
        let (state, reason) = (self.life.state(), self.life.reason());
        let report = self.life.flow().map_or_else(FlowReport::default, |running| running.report());
        let is_open = matches!(state, QueryState::Running | QueryState::Paused);
        let behind_us =
            |watermark_us: i64| u64::try_from(SystemClock.now_us().saturating_sub(watermark_us)).unwrap_or(0);
        let (sources, sink): (Vec<String>, _) = match &self.plan {
            Some(plan) => (
                plan.sources.iter().map(|source| source.declaration.name.text.clone()).collect(),
                plan.output.sink.as_ref().map_or_else(String::new, |sink| sink.name.text.clone()),
            ),
            None => Default::default(),
        };
        let seconds = named(&sources, &report.seconds);
        let told = seconds.iter().map(|(source, seconds)| format!("source '{source}': {seconds}"));
        let told: Vec<String> = told.chain(self.troubles()).collect();
        let told = (!told.is_empty()).then(|| told.join("; "));
        let info = BigQueryInfo {
            name: name.clone(),
            state,
            reason: reason.or(told),
            sql: self.query.text.clone(),
            sources,
            sink,
            rows_in: report.rows_in,
            rows_out: report.rows_out,
            health: self.health(),
            refused: by_reason(&report.refused),
            refusal: report.refusals.first().cloned(),
            times_in_seconds: seconds.iter().map(|(source, seconds)| (source.clone(), seconds.rows)).collect(),
            latency: latency(&report.latency_us),
            window_wait: WindowWait {
                results: report.waits.rows,
                sum_us: report.waits.sum_us,
                mean_us: report.waits.mean_us(),
                max_us: (report.waits.rows > 0).then_some(report.waits.max_us),
            },
            state_bytes: report.state_bytes as u64,
            waiting_rows: report.tasks.iter().map(|task| task.waiting_rows as u64).sum(),
            watermark_us: report.watermark_us,
            watermark_lag_us: report.watermark_us.filter(|_| is_open).map(behind_us),
            tasks: if is_open { report.tasks.len() as u64 } else { 0 },
            operators: if operators { TaskUsage::all(&report) } else { Vec::new() },
            utilisation_cv: report.utilisation_cv(),
        };
        let of_stage = |tasks: &[TaskReport]| (format!("{} {}", tasks[0].stage + 1, tasks[0].name), tasks.to_vec());
        let stages = report.tasks.chunk_by(|one, other| one.stage == other.stage).map(of_stage).collect();
        BigQuerySnapshot { tenant: tenant.clone(), info, stages, latency_us: report.latency_us }
    }
}

impl From<BigQueryInfo> for QueryInfo {
    fn from(info: BigQueryInfo) -> Self {
        Self {
            id: None,
            name: info.name.clone(),
            application: String::new(),
            state: info.state,
            parameters: serde_json::Map::new(),
            label: None,
            input_topic: String::new(),
            output_topic: String::new(),
            events: None,
            results: None,
            refused: None,
            parts: None,
            never_cut: None,
            big: Some(info),
            activity: None,
            why: Vec::new(),
        }
    }
}

impl BigQueries {
    /// The kinds of what is declared by a name.
    pub(in crate::engine) fn kinds_of(&self, name: &FullName) -> Vec<ResourceKind> {
        let known = self.known.lock();
        let Some(space) = known.spaces.get(&name.tenant) else { return Vec::new() };
        let declared = Declared::ALL.into_iter().filter(|what| space.scope.has(*what, &name.name));
        declared.map(|what| ObjectKind::Declared(what).into()).collect()
    }

    /// For each big query that reads this source, what is probably wrong with the times of its rows.
    pub(in crate::engine) fn warnings_of_source(&self, FullName { tenant, name: source }: &FullName) -> Vec<String> {
        let reads = |one: &OneQuery| {
            let plan = one.plan.as_ref().filter(|_| one.life.flow().is_some());
            plan.is_some_and(|plan| plan.sources.iter().any(|read| read.declaration.name.text == *source))
        };
        let of_tenant = self.that(reads).into_iter().filter(|(name, _)| name.tenant == *tenant);
        let found = of_tenant.flat_map(|(name, one)| {
            let warned = one.seconds_by_source().into_iter().filter(|(of, _)| of == source);
            warned.map(move |(_, seconds)| format!("read by the query '{name}': {seconds}")).collect::<Vec<_>>()
        });
        found.collect()
    }
}

/// The most queries that are named as not running.
const NAMED_MAX: usize = 16;

impl BigQueries {
    /// The big queries that do not run though they are not paused, and why, in words that any user may read.
    pub(in crate::engine) fn problems(&self) -> Vec<String> {
        let does_not_run = |one: &OneQuery| !one.life.problem().is_empty();
        let all = self.that(does_not_run);
        let more = all.len().saturating_sub(NAMED_MAX);
        let say = |(name, one): &(FullName, OneQuery)| {
            let (is_public, name) = (name.tenant.is_default(), name.in_public());
            let state = match one.life.state() {
                QueryState::Failed => "has failed".to_owned(),
                other => format!("is {}", other.name()),
            };
            match is_public {
                true => format!("the query {name} {state}: {}", one.life.reason().unwrap_or_default()),
                false => format!("the query {name} {state}"),
            }
        };
        let more = (more > 0).then(|| format!("{more} more queries do not run"));
        all.iter().take(NAMED_MAX).map(say).chain(more).collect()
    }

    /// The big queries of the tenants for which `is_wanted` holds, by tenant and name; `operators` as for one.
    pub(in crate::engine) fn snapshots(
        &self,
        is_wanted: impl Fn(&Tenant) -> bool,
        operators: bool,
    ) -> Vec<BigQuerySnapshot> {
        let all = self.that(|_| true);
        let wanted = all.iter().filter(|(name, _)| is_wanted(&name.tenant));
        wanted.map(|(name, one)| one.snapshot(name, operators)).collect()
    }

    /// Every big query of a tenant, by name.
    pub(in crate::engine) fn infos(&self, tenant: &Tenant, operators: bool) -> Vec<BigQueryInfo> {
        self.snapshots(|of| of == tenant, operators).into_iter().map(|one| one.info).collect()
    }

    /// One big query.
    pub(in crate::engine) fn info(&self, name: &FullName) -> Option<BigQueryInfo> {
        let one = self.known.lock().query(name)?;
        Some(one.snapshot(name, true).info)
    }

    /// The first big queries of a tenant, by name, that pass the filter. They belong to no application.
    pub(in crate::engine) fn infos_of(&self, tenant: &Tenant, filter: &QueryFilter) -> Vec<QueryInfo> {
        if filter.application.is_some() || filter.label.is_some() {
            return Vec::new();
        }
        let is_wanted = |FullName { tenant: of, name }: &FullName| {
            of == tenant
                && filter.after.as_ref().is_none_or(|after| name > after)
                && filter.like.as_ref().is_none_or(|pattern| like(name, pattern))
        };
        let wanted: Vec<(FullName, OneQuery)> = {
            let mut known = self.known.lock();
            let names: Vec<FullName> =
                known.queries.keys().filter(|name| is_wanted(name)).take(filter.limit).cloned().collect();
            names.into_iter().filter_map(|name| known.query(&name).map(|one| (name, one))).collect()
        };
        wanted.iter().map(|(name, one)| one.snapshot(name, true).info.into()).collect()
    }
}
