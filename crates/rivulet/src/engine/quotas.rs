//! What tenants use of their quotas, where it is not counted by who uses it: what exists, and memory.
//!
//! Memory is measured from time to time, and only of tenants for which it is limited. Of a tenant above that limit
//! nothing is created any more, and its MQTT clients are not read until it is below it again: no event is lost.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::applications::Applications;
use super::big_queries::BigQueries;
use super::exposition::TenantSnapshot;
use super::tables::ReferenceTables;
use crate::service::{Limit, LimitUse, Quota, Quotas, Tenant, TenantInfo};

/// How often rates and memory are measured.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// How often files are measured.
const FILES_PERIOD: Duration = Duration::from_secs(10);

/// The memory of the queries of these tenants: parameters, state, what waits for them, and that of their reference
/// tables.
pub(super) fn state_bytes(
    applications: &Applications,
    big_queries: &BigQueries,
    of_tables: Vec<(Tenant, u64)>,
    is_asked: impl Fn(&Tenant) -> bool,
) -> BTreeMap<Tenant, u64> {
    let mut bytes: BTreeMap<Tenant, u64> = BTreeMap::new();
    for running in applications.running().iter().filter(|one| is_asked(&one.tenant)) {
        *bytes.entry(running.tenant.clone()).or_default() += running.group.memory_bytes() as u64;
    }
    for (tenant, held) in big_queries.state_bytes(&is_asked).into_iter().chain(of_tables) {
        *bytes.entry(tenant).or_default() += held;
    }
    bytes
}

impl Engine {
    /// Measures what tenants use, from time to time.
    pub(super) fn watch_quotas(&self) -> io::Result<()> {
        let quotas = self.access.quotas().clone();
        let (applications, big_queries) = (self.applications.clone(), self.big_queries.clone());
        let tables = self.tables.clone();
        let event_log = self.event_log.clone();
        let permitted = self.permitted.clone();
        permitted.measure_files();
        self.threads.start("rivulet-files", FILES_PERIOD, move || permitted.measure_files())?;
        self.threads.start("rivulet-quotas", LOOK_PERIOD, move || {
            quotas.look(event_log.forgotten());
            look_at_memory(&quotas, &applications, &big_queries, &tables);
        })
    }

    /// The limits of these tenants, as far as they have any or did anything, for monitoring systems.
    pub(super) fn tenant_snapshots(
        &self,
        is_shown: impl Fn(&Tenant) -> bool,
        state_bytes: &BTreeMap<Tenant, u64>,
    ) -> Vec<TenantSnapshot> {
        let quotas = self.access.quotas().all().into_iter().filter(|quota| is_shown(quota.tenant()));
        let (quotas, mut infos): (Vec<_>, Vec<_>) = quotas
            .map(|quota| {
                let limit = |limit| LimitUse { limit, used: None, most: quota.most(limit) };
                let limits = Limit::ALL.into_iter().map(limit).collect();
                let info = TenantInfo { name: quota.tenant().to_string(), limits };
                (quota, info)
            })
            .unzip();
        self.add_used(&mut infos, state_bytes);
        let snapshot = |(quota, info): (Arc<Quota>, TenantInfo)| TenantSnapshot {
            tenant: quota.tenant().clone(),
            limits: info.limits,
            reached: Limit::ALL.map(|limit| (limit, quota.reached(limit))),
            waited_us: quota.rates().waited().as_micros() as u64,
        };
        quotas.into_iter().zip(infos).map(snapshot).collect()
    }

    /// Adds what tenants use of their limits.
    pub(super) fn add_used(&self, tenants: &mut [TenantInfo], state_bytes: &BTreeMap<Tenant, u64>) {
        let quotas = self.access.quotas();
        let all = self.queries.counts();
        for one in tenants {
            let tenant = Tenant::new(&one.name);
            let (queries, big_queries) = all.get(&tenant).copied().unwrap_or_default();
            let quota = quotas.of(&tenant);
            for LimitUse { limit, used, .. } in &mut one.limits {
                *used = Some(match *limit {
                    Limit::Applications => self.applications.count_of(&tenant) as u64,
                    Limit::Queries => queries,
                    Limit::BigQueries => big_queries,
                    Limit::Workers if big_queries == 0 => 0,
                    Limit::Workers => quota.workers(self.config.workers.threads) as u64,
                    Limit::StateBytes => state_bytes.get(&tenant).copied().unwrap_or(0),
                    Limit::Weight => continue,
                    limit => quota.used(limit),
                });
            }
        }
    }
}

fn look_at_memory(quotas: &Quotas, applications: &Applications, big_queries: &BigQueries, tables: &ReferenceTables) {
    let limited: Vec<Arc<Quota>> = quotas
        .all()
        .into_iter()
        .filter(|quota| quota.most(Limit::StateBytes).is_some() || quota.rates().is_held())
        .collect();
    if limited.is_empty() {
        return;
    }
    let is_limited = |tenant: &Tenant| limited.iter().any(|quota| quota.tenant() == tenant);
    let of_tables = tables.memory_bytes(is_limited);
    let bytes = state_bytes(applications, big_queries, of_tables.clone(), is_limited);
    let of_tables: BTreeMap<Tenant, u64> = of_tables.into_iter().collect();
    for quota in &limited {
        let of = |bytes: &BTreeMap<Tenant, u64>| bytes.get(quota.tenant()).copied().unwrap_or(0);
        let (held, most) = (of(&bytes), quota.most(Limit::StateBytes));
        quota.measure(Limit::StateBytes, held);
        // Tables do not grow by events: to read none would help nobody.
        let held = held.saturating_sub(of(&of_tables));
        let (was_over, is_over) = (quota.rates().is_held(), most.is_some_and(|most| held > most));
        quota.rates().hold(is_over);
        let tenant = quota.tenant().as_str();
        match (was_over, is_over) {
            (false, true) => tracing::warn!(
                tenant,
                bytes = held,
                limit = most,
                "the queries of a tenant hold more memory than it may have: its MQTT clients wait, and nothing is \
                 created for it\nhint: drop queries of it, or raise the limit: ALTER TENANT ... SET (state_bytes => ...)"
            ),
            (true, false) => tracing::info!(tenant, bytes = held, "the MQTT clients of a tenant are read again"),
            _ => {}
        }
    }
}
