//! What the engine is doing, for users ([`Status`]) and for monitoring systems ([`Snapshot`]).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use rivulet_connectors::clock::SystemClock;
use rivulet_connectors::tls;
use rivulet_dataflow::Clock;
use rivulet_runtime::{GroupMetrics, Spill, WorkerStatus};

use super::Engine;
use super::exposition::{ApplicationSnapshot, Snapshot};
use super::memory::memory_rss_bytes;
use super::running::of_metrics;
use crate::allocations::allocations;
use crate::burst::roster;
use crate::service::{ApplicationStatus, BurstWorker, ErrorKind, ServiceError, Status, Tenant, WorkerInfo};
use crate::times::at;

impl Engine {
    /// The status of the server, as a tenant sees it: figures of the whole server are for the default tenant.
    pub(super) fn current_status(&self, tenant: &Tenant, operators: bool) -> Status {
        let mut total = GroupMetrics::default();
        let mut total_status = ApplicationStatus { name: "total".into(), ..ApplicationStatus::default() };
        let mut applications = Vec::new();
        for running in self.applications.running().into_iter().filter(|running| running.tenant == *tenant) {
            let metrics = running.group.metrics();
            total.merge(&metrics);
            let status = running.status(&metrics);
            total_status.queries_running += status.queries_running;
            total_status.queries_paused += status.queries_paused;
            total_status.queries_spilled += status.queries_spilled;
            total_status.inbox_rows += status.inbox_rows;
            total_status.inbox_bytes += status.inbox_bytes;
            applications.push(status);
        }
        applications.extend(self.applications.statuses_not_running(tenant));
        applications.sort_by(|one, other| one.name.cmp(&other.name));
        let last_minute = self.last_minutes.lock().of(tenant, &total.event_latency_us);
        let total = ApplicationStatus {
            name: total_status.name,
            queries_running: total_status.queries_running,
            queries_paused: total_status.queries_paused,
            queries_spilled: total_status.queries_spilled,
            inbox_rows: total_status.inbox_rows,
            inbox_bytes: total_status.inbox_bytes,
            ..of_metrics(&total)
        };
        let of_tenant = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            queries_running: total.queries_running,
            queries_paused: total.queries_paused,
            total,
            applications,
            last_minute,
            big_queries: self.big_queries.infos(tenant, operators),
            checkpoints: self.checkpoints.as_ref().map(|checkpoints| checkpoints.status(tenant)),
            ..Status::default()
        };
        if !tenant.is_default() {
            return of_tenant;
        }
        Status {
            data_dir: self.config.data_dir.display().to_string(),
            memory_rss_bytes: memory_rss_bytes(),
            messages_unrouted: self.messaging.messages_unrouted(),
            workers: self.workers.status().into_iter().map(worker_info).collect(),
            burst_workers: self.burst_workers(tenant),
            connections: self.messaging.connections(),
            functions: self.big_queries.functions.as_ref().map(|functions| functions.status()),
            log: Some(self.event_log.status()).filter(|log| log.next > 1 || log.problem.is_some()),
            ..of_tenant
        }
    }

    /// The burst workers that are connected, as a tenant sees them: all are of the default tenant.
    pub(super) fn burst_workers(&self, tenant: &Tenant) -> Vec<BurstWorker> {
        let (ahead_us, number) = (SystemClock.now_us() - SystemClock.steady_us(), |count: usize| count as u64);
        let told = |one: roster::WorkerInfo| BurstWorker {
            name: one.name,
            address: one.address.map(|address| address.to_string()),
            threads: number(one.threads),
            tasks: number(one.tasks),
            until: one.ends_us.map(|ends_us| at(ends_us.saturating_add(ahead_us))),
        };
        let workers = if tenant.is_default() { self.permitted.links().roster().workers() } else { Vec::new() };
        workers.into_iter().map(told).collect()
    }

    /// Fails if events are not being processed. The catalog is loaded in any case: there is no engine before that.
    pub(super) fn are_events_processed(&self) -> Result<(), ServiceError> {
        let unavailable = |message: &str| Err(ServiceError::new(ErrorKind::Unavailable, message));
        if self.stops_soon.load(Ordering::Acquire) || self.is_stopped.load(Ordering::Acquire) {
            return unavailable("the server is stopping");
        }
        if !self.workers.are_alive() {
            return unavailable("a worker thread has ended by a defect; its groups wait");
        }
        if let Some(problem) = self.event_log.problem() {
            let hint = match self.event_log.waits_for_checkpoint() {
                true => {
                    "rivulet status says what a checkpoint waits for; durability.log_bytes_max gives the log more room"
                }
                false => {
                    "free space on the disk of the data folder if it is full; else look at the files of the log, with rivulet doctor"
                }
            };
            return Err(ServiceError::new(ErrorKind::Unavailable, problem).with_hint(hint));
        }
        self.catalog.check_writable()?;
        self.messaging.ready()
    }

    /// All counters: of all tenants for the default tenant, and for another tenant its own only.
    pub(super) fn snapshot(&self, tenant: &Tenant) -> Snapshot {
        let is_shown = |of: &Tenant| tenant.is_default() || of == tenant;
        let applications: Vec<ApplicationSnapshot> = self
            .applications
            .running()
            .iter()
            .filter(|running| is_shown(&running.tenant))
            .map(|running| {
                let (inbox_rows, inbox_bytes) = running.group.waiting();
                ApplicationSnapshot {
                    tenant: running.tenant.clone(),
                    name: running.application.name.clone(),
                    running: running.queries_running.load(Ordering::Relaxed),
                    paused: running.queries_paused.load(Ordering::Relaxed),
                    inbox_rows: inbox_rows as u64,
                    inbox_bytes: inbox_bytes as u64,
                    memory_bytes: running.group.memory_bytes() as u64,
                    spill: running.group.spill_status(),
                    further: running.group.further_queries() as u64,
                    tasks: running.group.tasks().filter(|task| task.queries() > 0).count() as u64,
                    parts: running.group.tasks().map(|task| task.parts() as u64).filter(|&parts| parts > 1).sum(),
                    metrics: running.group.metrics(),
                    times_in_seconds: running.times_in_seconds(),
                    outputs: running.output_rows(),
                    sources: running.sources().iter().map(|one| one.figures()).collect(),
                    ends: running.outputs.health().collect(),
                }
            })
            .collect();
        let big_queries = self.big_queries.snapshots(is_shown, false);
        let mut state_bytes: BTreeMap<Tenant, u64> = BTreeMap::new();
        let of_applications = applications.iter().map(|one| (&one.tenant, one.memory_bytes));
        let of_big_queries = big_queries.iter().map(|one| (&one.tenant, one.info.state_bytes));
        let tables = self.tables.memory_bytes(is_shown);
        let of_tables = tables.iter().map(|(tenant, bytes)| (tenant, *bytes));
        for (tenant, bytes) in of_applications.chain(of_big_queries).chain(of_tables) {
            *state_bytes.entry(tenant.clone()).or_default() += bytes;
        }
        let tenants = self.tenant_snapshots(is_shown, &state_bytes);
        if !tenant.is_default() {
            return Snapshot { applications, big_queries, tenants, ..Snapshot::default() };
        }
        let router = self.messaging.router().stats();
        let (shared_topics, shared_queries) = self.routing.shared_counts();
        let log = self.event_log.stats();
        let replay = self.event_log.status();
        let checkpoints = self.checkpoints.as_ref().map(|checkpoints| checkpoints.status(tenant)).unwrap_or_default();
        let last = checkpoints.last.unwrap_or_default();
        let recovered = checkpoints.recovered.unwrap_or_default();
        let (tls, lent) = (tls::counts(), self.burst_workers(tenant));
        let mut numbers = vec![
            ("checkpoints", "Checkpoints made", true, checkpoints.made),
            ("checkpoint_failures", "Checkpoints that failed", true, checkpoints.failed),
            (
                "checkpoint_age_ms",
                "Time since the last checkpoint; 0 before the first",
                false,
                checkpoints.age_ms.unwrap_or(0),
            ),
            ("checkpoint_duration_ms", "How long the last checkpoint took", false, last.duration_ms),
            ("checkpoint_queries", "Slots of queries that the last checkpoint wrote", false, last.queries),
            ("checkpoint_written_bytes", "Bytes that the last checkpoint wrote", false, last.written_bytes),
            ("checkpoint_live_bytes", "Bytes of checkpoints that a restart would read", false, last.live_bytes),
            ("recovered_queries", "Slots of queries that had their state again at the start", false, recovered.queries),
            ("lost_queries", "Slots of queries whose state could not be read at the start", false, recovered.lost),
            ("recovery_ms", "How long the restoring of state took at the start", false, recovered.duration_ms),
            ("log_appended", "Events that went to the log since the first start", true, log.next - 1),
            (
                "log_waiting",
                "Events that are in the log and not on disk yet",
                false,
                (log.next - 1).saturating_sub(log.durable),
            ),
            ("log_disk_bytes", "Size of the log of events on disk", false, log.disk_bytes),
            ("log_written_bytes", "Bytes written to the log of events", true, log.written_bytes),
            ("log_failures", "How often the disk refused the log of events", true, log.failures),
            ("log_full_waits", "How often an event found no room in the log", true, log.refused),
            ("log_replayed", "Events that were replayed at the start", true, replay.replayed_events),
            ("log_replay_ms", "How long the replay of the log took", false, replay.replay_ms),
            ("log_lost", "Events of the log that were lost or damaged on disk", true, replay.lost_events),
            ("memory_rss_bytes", "Resident memory of the process", false, memory_rss_bytes().unwrap_or(0)),
            (
                "memory_bytes_max",
                "Resident memory from which on queries are refused; 0 for no bound",
                false,
                self.queries.memory.bytes_max().unwrap_or(0),
            ),
            ("logins_refused", "Logins that the authorizer refused", true, self.access.logins_refused()),
            ("audit_lost", "Entries of the audit that were lost", true, self.access.audit_lost()),
            ("requests_refused", "Requests that their caller may not make", true, self.access.requests_refused()),
            (
                "tls_files_refused",
                "How often changed files of certificates could not be used; the earlier ones stay in force",
                true,
                tls.files_refused,
            ),
            ("tls_handshakes_failed", "Failed TLS handshakes of clients", true, tls.handshakes_failed),
            ("burst_workers", "Burst workers that are connected", false, lent.len() as u64),
            ("burst_tasks", "Tasks on burst workers", false, lent.iter().map(|one| one.tasks).sum()),
            ("waiting_tasks", "Tasks that wait for a worker", false, self.workers.waiting_tasks() as u64),
            ("messages_routed", "Messages that at least one query asked for", true, router.routed_messages),
            ("messages_unrouted", "Messages that no query asked for", true, router.unrouted_messages),
            ("routed_payload_bytes", "Payload bytes of all messages received", true, router.payload_bytes),
            ("inbox_full_waits", "How often a message waited for a full inbox", true, router.full_waits),
            ("routes", "Routes from topics to queries", false, router.routes as u64),
            ("shared_topics", "Topics that many queries read, decoded once", false, shared_topics as u64),
            ("shared_topic_queries", "Queries that read shared topics, equal ones once", false, shared_queries as u64),
            ("routes_bytes", "Memory of the routes", false, router.routes_bytes as u64),
            (
                "registry_bytes",
                "Memory of the list of queries",
                false,
                self.queries.state.lock().registry.memory_bytes() as u64,
            ),
            (
                "spill_file_bytes",
                "State of silent queries on disk",
                false,
                self.workers.spill().map_or(0, Spill::file_bytes),
            ),
        ];
        if let Some(functions) = self.big_queries.functions.as_ref().map(|functions| functions.status()) {
            let (spent, reserved) = (functions.spent_today_microdollars, functions.reserved_microdollars);
            numbers.extend([
                ("burst_functions", "Functions that run as burst workers", false, functions.running),
                ("burst_functions_invoked", "Functions invoked", true, functions.invoked),
                ("burst_functions_microdollars", "Spent on functions today, in millionths of a dollar", false, spent),
                (
                    "burst_functions_reserved_microdollars",
                    "The most that functions that run can cost, in millionths of a dollar",
                    false,
                    reserved,
                ),
            ]);
        }
        let help = "Allocations of memory, in a program that was built with the feature baselines";
        numbers.extend(allocations().map(|count| ("memory_allocations", help, true, count)));
        Snapshot {
            applications,
            big_queries,
            tenants,
            connections: self.messaging.connections(),
            workers: self.workers.status(),
            log,
            numbers,
        }
    }
}

fn worker_info(status: WorkerStatus) -> WorkerInfo {
    WorkerInfo {
        worker: status.worker as u64,
        load: status.load,
        tasks: status.tasks as u64,
        core: status.core.map(|core| core as u64),
        node: status.node.map(|node| node as u64),
    }
}
