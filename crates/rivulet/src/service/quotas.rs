//! Quotas of tenants: what a tenant may have and use, and how much of it it does.
//!
//! What must hold: a limit is asked from memory. A tenant that reaches its limits is refused or slowed down, and no
//! other one is. Every refusal names the limit and how to raise it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rivulet_connectors::rates::{Bucket, Rates};
use rivulet_dataflow::LogPosition;
use rivulet_runtime::{Share, WEIGHT, WEIGHT_MAX};

use super::error::{ErrorKind, ServiceError};
use super::names::Tenant;
use crate::counted::counted;

/// The highest value of a limit: readers of JSON take every number up to here as it is.
pub const LIMIT_MAX: u64 = 1 << 53;

/// No limit.
const NONE: u64 = u64::MAX;

/// What may be limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    /// Applications.
    Applications,
    /// Queries of applications.
    Queries,
    /// Big queries.
    BigQueries,
    /// The workers on which one big query runs.
    Workers,
    /// Readers of live results, and `SELECT`.
    Streams,
    /// HTTP requests a second.
    RequestsPerSecond,
    /// Messages that MQTT clients publish a second.
    EventsPerSecond,
    /// Bytes that MQTT clients send a second.
    BytesPerSecond,
    /// Bytes that MQTT clients get a second.
    BytesOutPerSecond,
    /// Memory of queries: parameters, state and what waits.
    StateBytes,
    /// Events in the log that no checkpoint has yet.
    LogBytes,
    /// Files that its sinks write.
    FileBytes,
    /// The weight of its share of the workers' time, where those of several tenants have work: 100 without one.
    Weight,
}

impl Limit {
    /// Every limit, in the order in which they are shown.
    pub const ALL: [Self; 13] = [
        Self::Applications,
        Self::Queries,
        Self::BigQueries,
        Self::Workers,
        Self::Streams,
        Self::RequestsPerSecond,
        Self::EventsPerSecond,
        Self::BytesPerSecond,
        Self::BytesOutPerSecond,
        Self::StateBytes,
        Self::LogBytes,
        Self::FileBytes,
        Self::Weight,
    ];

    /// Its name in statements, REST, metrics and the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applications => "applications",
            Self::Queries => "queries",
            Self::BigQueries => "big_queries",
            Self::Workers => "workers",
            Self::Streams => "streams",
            Self::RequestsPerSecond => "requests_per_second",
            Self::EventsPerSecond => "events_per_second",
            Self::BytesPerSecond => "bytes_per_second",
            Self::BytesOutPerSecond => "bytes_out_per_second",
            Self::StateBytes => "state_bytes",
            Self::LogBytes => "log_bytes",
            Self::FileBytes => "file_bytes",
            Self::Weight => "weight",
        }
    }

    /// The limit of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// Its lowest value: a tenant may have none of what it creates; what flows is slowed down, and not stopped.
    pub fn least(self) -> u64 {
        match self {
            Self::Applications | Self::Queries | Self::BigQueries | Self::Streams => 0,
            _ => 1,
        }
    }

    /// Its highest value.
    pub fn greatest(self) -> u64 {
        if self == Self::Weight { WEIGHT_MAX } else { LIMIT_MAX }
    }

    /// Why no more is had, if a tenant uses so much and may use `most`.
    fn refusal(self, tenant: &Tenant, used: u64, most: u64) -> String {
        let of = |noun| format!("the tenant '{tenant}' has {}, and may have {most}", counted(used, noun));
        match self {
            Self::Applications => of("application"),
            Self::Queries => of("query"),
            Self::BigQueries => of("big query"),
            Self::Streams => of("stream of live results"),
            Self::Workers => format!("a big query of the tenant '{tenant}' may run on {}", counted(most, "worker")),
            Self::RequestsPerSecond => format!("the tenant '{tenant}' may send {} a second", counted(most, "request")),
            Self::EventsPerSecond => format!("the tenant '{tenant}' may publish {} a second", counted(most, "event")),
            Self::BytesPerSecond => format!("the tenant '{tenant}' may send {} a second", counted(most, "byte")),
            Self::BytesOutPerSecond => format!("the tenant '{tenant}' may get {} a second", counted(most, "byte")),
            Self::StateBytes => {
                format!("queries of the tenant '{tenant}' hold {}, and may hold {most}", counted(used, "byte"))
            }
            Self::LogBytes => {
                format!("the log has {} of the tenant '{tenant}', and may have {most}", counted(used, "byte"))
            }
            Self::FileBytes => {
                format!("the folders of the tenant '{tenant}' have {}, and may have {most}", counted(used, "byte"))
            }
            // Nothing is refused for it.
            Self::Weight => format!("the share of the tenant '{tenant}' has the weight {most}"),
        }
    }
}

/// Limits, each with its value or without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits([Option<u64>; Limit::ALL.len()]);

impl Limits {
    /// Limits by name. Names that there are not are left out.
    pub fn of(named: &[(&str, u64)]) -> Self {
        let mut limits = Self::default();
        for (name, most) in named {
            Limit::named(name).into_iter().for_each(|limit| limits.set(limit, Some(*most)));
        }
        limits
    }

    /// The value of a limit.
    pub fn get(&self, limit: Limit) -> Option<u64> {
        self.0[limit as usize]
    }

    /// Sets a limit, or removes it.
    pub fn set(&mut self, limit: Limit, most: Option<u64>) {
        self.0[limit as usize] = most;
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These limits, and where there is none, that of `others`.
    #[must_use]
    fn or(self, others: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].or(others.0[place])))
    }

    /// Those that are set, by name.
    pub fn by_name(&self) -> BTreeMap<&'static str, u64> {
        Limit::ALL.into_iter().filter_map(|limit| Some((limit.name(), self.get(limit)?))).collect()
    }
}

/// A limit, and how much of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitUse {
    /// What is limited.
    pub limit: Limit,
    /// How much is used; `None` where that is not known, as without a server.
    pub used: Option<u64>,
    /// How much may be used; `None` for no limit.
    pub most: Option<u64>,
}

impl LimitUse {
    /// It in words: `7 of 1000`, or how much is used where there is no limit.
    pub fn text(&self) -> String {
        match (self.used, self.most) {
            (Some(used), Some(most)) => format!("{used} of {most}"),
            (Some(used), None) => used.to_string(),
            (None, Some(most)) => format!("at most {most}"),
            (None, None) => "-".to_owned(),
        }
    }
}

/// A tenant and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantInfo {
    /// Its name.
    pub name: String,
    /// What it uses, in the order of [`Limit::ALL`].
    pub limits: Vec<LimitUse>,
}

/// What one tenant may have and use.
#[derive(Debug)]
pub struct Quota {
    tenant: Tenant,
    /// Its own limits.
    own: Mutex<Limits>,
    /// The limits in force, `NONE` for none.
    most: [AtomicU64; Limit::ALL.len()],
    /// How often each was reached.
    reached: [AtomicU64; Limit::ALL.len()],
    /// How much was used when it was last measured, of what is not counted here.
    measured: [AtomicU64; Limit::ALL.len()],
    streams: AtomicU64,
    requests: Bucket,
    rates: Arc<Rates>,
    share: Arc<Share>,
    /// When rates were last measured, and how much was used by then.
    last: Mutex<(Instant, [u64; RATES.len()])>,
}

/// How long requests wait at most for what one before them has asked for.
const OWED_MAX: Duration = Duration::from_secs(60);

/// What is limited a second.
const RATES: [Limit; 4] =
    [Limit::RequestsPerSecond, Limit::EventsPerSecond, Limit::BytesPerSecond, Limit::BytesOutPerSecond];

/// A stream of a tenant; it counts as long as this exists.
#[derive(Debug)]
pub struct LiveStream(Arc<Quota>);

impl Drop for LiveStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Quota {
    fn new(tenant: &Tenant) -> Self {
        Self {
            tenant: tenant.clone(),
            own: Mutex::default(),
            most: std::array::from_fn(|_| AtomicU64::new(NONE)),
            reached: Default::default(),
            measured: Default::default(),
            streams: AtomicU64::new(0),
            requests: Bucket::default(),
            rates: Arc::default(),
            share: Arc::default(),
            last: Mutex::new((Instant::now(), [0; RATES.len()])),
        }
    }

    fn set(&self, own: Limits, defaults: &Limits) {
        *self.own.lock() = own;
        self.put_in_force(&own.or(defaults));
    }

    fn put_in_force(&self, limits: &Limits) {
        for limit in Limit::ALL {
            self.most[limit as usize].store(limits.get(limit).unwrap_or(NONE), Ordering::Release);
        }
        self.requests.set(limits.get(Limit::RequestsPerSecond));
        self.rates.set(
            limits.get(Limit::EventsPerSecond),
            limits.get(Limit::BytesPerSecond),
            limits.get(Limit::BytesOutPerSecond),
        );
        self.rates.set_log(limits.get(Limit::LogBytes));
        self.share.set_weight(limits.get(Limit::Weight).unwrap_or(WEIGHT));
    }

    /// Its share of the workers' time.
    pub fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Whose quota it is.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Its own limits, without those that are for all tenants.
    pub fn own(&self) -> Limits {
        *self.own.lock()
    }

    /// The limit in force; `None` if there is none.
    pub fn most(&self, limit: Limit) -> Option<u64> {
        Some(self.most[limit as usize].load(Ordering::Acquire)).filter(|&most| most != NONE)
    }

    /// How many of `all` workers one big query runs on.
    pub fn workers(&self, all: usize) -> usize {
        self.most(Limit::Workers).and_then(|most| usize::try_from(most).ok()).map_or(all, |most| most.clamp(1, all))
    }

    /// How often a limit was reached.
    pub fn reached(&self, limit: Limit) -> u64 {
        self.reached[limit as usize].load(Ordering::Relaxed)
    }

    /// What its MQTT clients may send and get.
    pub fn rates(&self) -> &Arc<Rates> {
        &self.rates
    }

    /// Checks that a tenant that has `used` of something may have one more.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`].
    pub fn admit(&self, limit: Limit, used: u64) -> Result<(), ServiceError> {
        match self.most(limit) {
            Some(most) if used >= most => Err(self.refuse(limit, used, most)),
            _ => Ok(()),
        }
    }

    #[cold]
    fn refuse(&self, limit: Limit, used: u64, most: u64) -> ServiceError {
        self.reached[limit as usize].fetch_add(1, Ordering::Relaxed);
        let refusal = ServiceError::new(ErrorKind::LimitReached, limit.refusal(&self.tenant, used, most));
        refusal.with_hint(self.hint(limit))
    }

    /// What to do where a limit is reached.
    pub(crate) fn hint(&self, limit: Limit) -> String {
        let tenant = rivulet_sql::name_in_sql(self.tenant.as_str());
        let raise = format!(
            "an administrator of the server raises the limit: ALTER TENANT {tenant} SET ({} => ...)",
            limit.name()
        );
        match limit {
            Limit::Applications | Limit::Queries | Limit::BigQueries | Limit::StateBytes => {
                format!("drop what is not needed; or {raise}")
            }
            Limit::Streams => format!("end one of them; or {raise}"),
            Limit::FileBytes => format!("remove files from its folder, which counts within ten seconds; or {raise}"),
            _ => format!("ask less often; or {raise}"),
        }
    }

    /// Counts an HTTP request.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`], with how long to wait.
    pub fn request(&self) -> Result<(), ServiceError> {
        self.requests.take(1).map_err(|wait| {
            let most = self.requests.per_second().unwrap_or_default();
            self.refuse(Limit::RequestsPerSecond, 0, most).until(wait)
        })
    }

    /// Counts what a request asks for beyond one thing. It is not refused: those that follow wait for it, for a minute
    /// at most.
    pub fn charge_requests(&self, more: u64) {
        self.requests.owe(more, OWED_MAX);
    }

    /// Counts a stream for as long as what it returns exists.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`].
    pub fn stream(self: &Arc<Self>) -> Result<LiveStream, ServiceError> {
        let most = self.most(Limit::Streams).unwrap_or(NONE);
        let counted = |streams: u64| (streams < most).then_some(streams + 1);
        match self.streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, counted) {
            Ok(_) => Ok(LiveStream(self.clone())),
            Err(streams) => Err(self.refuse(Limit::Streams, streams, most)),
        }
    }

    /// Notes how much is used of something that is measured from time to time.
    pub fn measure(&self, limit: Limit, used: u64) {
        self.measured[limit as usize].store(used, Ordering::Relaxed);
    }

    /// Notes that so much more is used of something that is measured, if it may be.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`].
    pub fn take_measured(&self, limit: Limit, more: u64) -> Result<(), ServiceError> {
        let Some(most) = self.most(limit) else { return Ok(()) };
        let taken = |used: u64| used.checked_add(more).filter(|&used| used <= most);
        match self.measured[limit as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken) {
            Ok(_) => Ok(()),
            Err(used) => Err(self.refuse(limit, used, most)),
        }
    }

    /// How much is used, of what is counted or was measured here; of the rest the caller knows.
    pub fn used(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Streams => self.streams.load(Ordering::Acquire),
            Limit::LogBytes => self.rates.log_bytes(),
            _ => self.measured[limit as usize].load(Ordering::Relaxed),
        }
    }

    /// Checks that what was measured is below its limit.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`].
    pub fn admit_measured(&self, limit: Limit) -> Result<(), ServiceError> {
        self.admit(limit, self.used(limit))
    }

    /// Measures the rates.
    fn look(&self) {
        let used = [&self.requests, &self.rates.events, &self.rates.bytes, &self.rates.bytes_out].map(Bucket::used);
        let mut last = self.last.lock();
        let us = last.0.elapsed().as_micros().max(1);
        for ((limit, now), before) in RATES.into_iter().zip(used).zip(last.1) {
            self.measure(limit, (u128::from(now - before) * 1_000_000 / us) as u64);
        }
        *last = (Instant::now(), used);
    }
}

/// The quotas of all tenants of a server.
#[derive(Debug, Default)]
pub struct Quotas {
    /// The limits of tenants that have none of their own. They are not those of the default tenant.
    defaults: RwLock<Limits>,
    of_tenants: RwLock<HashMap<Tenant, Arc<Quota>>>,
}

impl Quotas {
    /// The quota of a tenant.
    pub fn of(&self, tenant: &Tenant) -> Arc<Quota> {
        if let Some(quota) = self.of_tenants.read().get(tenant) {
            return quota.clone();
        }
        let defaults = self.defaults.read();
        let mut of_tenants = self.of_tenants.write();
        let new = || {
            let quota = Quota::new(tenant);
            quota.put_in_force(&Self::defaults_of(tenant, &defaults));
            Arc::new(quota)
        };
        of_tenants.entry(tenant.clone()).or_insert_with(new).clone()
    }

    fn defaults_of(tenant: &Tenant, defaults: &Limits) -> Limits {
        if tenant.is_default() { Limits::default() } else { *defaults }
    }

    /// Sets the limits of a tenant.
    pub fn set(&self, tenant: &Tenant, own: Limits) {
        let quota = self.of(tenant);
        quota.set(own, &Self::defaults_of(tenant, &self.defaults.read()));
    }

    /// A tenant was dropped.
    pub fn forget(&self, tenant: &Tenant) {
        self.of_tenants.write().remove(tenant);
    }

    /// Sets the limits of tenants that have none of their own.
    pub fn set_defaults(&self, limits: Limits) {
        let mut defaults = self.defaults.write();
        *defaults = limits;
        for quota in self.of_tenants.read().values().filter(|quota| !quota.tenant.is_default()) {
            let own = *quota.own.lock();
            quota.put_in_force(&own.or(&defaults));
        }
    }

    /// All tenants that have limits, or did anything, by name.
    pub fn all(&self) -> Vec<Arc<Quota>> {
        let mut all: Vec<Arc<Quota>> = self.of_tenants.read().values().cloned().collect();
        all.sort_by(|one, other| one.tenant.cmp(&other.tenant));
        all
    }

    /// Measures the rates, and forgets events before this position of the log. To be called about every second.
    pub fn look(&self, forgotten: LogPosition) {
        for quota in self.all() {
            quota.look();
            quota.rates.forget_log_before(forgotten);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(of: &[(Limit, u64)]) -> Limits {
        let mut limits = Limits::default();
        of.iter().for_each(|&(limit, most)| limits.set(limit, Some(most)));
        limits
    }

    #[test]
    fn every_limit_has_a_name_of_its_own() {
        for (place, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!((limit as usize, Limit::named(limit.name())), (place, Some(limit)));
        }
        assert_eq!(Limit::named("everything"), None);
    }

    #[test]
    fn a_limit_is_reached_where_it_stands_and_the_error_says_how_to_raise_it() {
        let (quotas, acme) = (Quotas::default(), Tenant::new("acme"));
        let quota = quotas.of(&acme);
        for limit in Limit::ALL {
            assert_eq!((quota.most(limit), quota.admit(limit, 1 << 40)), (None, Ok(())));
        }
        quotas.set(&acme, limits(&[(Limit::Queries, 3), (Limit::Streams, 1), (Limit::BigQueries, 0)]));
        assert_eq!((quota.admit(Limit::Queries, 2), quota.reached(Limit::Queries)), (Ok(()), 0));
        let error = quota.admit(Limit::Queries, 3).expect_err("it has three");
        assert_eq!(error.kind, ErrorKind::LimitReached);
        assert_eq!(error.message, "the tenant 'acme' has 3 queries, and may have 3");
        assert!(error.hint.expect("a hint").contains("ALTER TENANT acme SET (queries => ...)"));
        assert!(quota.admit(Limit::BigQueries, 0).is_err());
        let stream = quota.stream().expect("one");
        assert!(quota.stream().is_err() && quota.used(Limit::Streams) == 1);
        drop(stream);
        assert!(quota.stream().is_ok());
        assert_eq!((quota.used(Limit::Streams), quota.reached(Limit::Streams)), (0, 1));
    }

    #[test]
    fn limits_of_a_tenant_come_before_those_of_all_which_are_not_those_of_the_default_tenant() {
        let (quotas, own, acme) = (Quotas::default(), Tenant::default(), Tenant::new("acme"));
        let before = quotas.of(&acme);
        quotas.set(&acme, limits(&[(Limit::Queries, 3)]));
        quotas.set_defaults(limits(&[(Limit::Queries, 2), (Limit::Streams, 2)]));
        let most = |tenant: &Tenant| [Limit::Queries, Limit::Streams].map(|limit| quotas.of(tenant).most(limit));
        assert_eq!(most(&acme), [Some(3), Some(2)]);
        assert_eq!(most(&Tenant::new("zoo")), [Some(2), Some(2)]);
        assert_eq!(most(&own), [None, None]);
        quotas.set(&acme, Limits::default());
        assert_eq!((most(&acme), before.most(Limit::Queries)), ([Some(2), Some(2)], Some(2)));
        quotas.set_defaults(Limits::default());
        assert_eq!(most(&acme), [None, None]);
        quotas.set(&own, limits(&[(Limit::Queries, 7)]));
        assert_eq!(most(&own), [Some(7), None]);
    }

    #[test]
    fn requests_over_their_rate_are_told_how_long_to_wait() {
        let (quotas, acme) = (Quotas::default(), Tenant::new("acme"));
        quotas.set(&acme, limits(&[(Limit::RequestsPerSecond, 1)]));
        let quota = quotas.of(&acme);
        assert_eq!(quota.request(), Ok(()));
        let error = quota.request().expect_err("not yet");
        assert_eq!(error.message, "the tenant 'acme' may send 1 request a second");
        assert!(error.retry_after_s.is_some_and(|seconds| (1..=2).contains(&seconds)), "{error:?}");
        quotas.set(&acme, Limits::default());
        (0..1_000).for_each(|_| assert!(quota.request().is_ok()));
        quota.look();
        assert!(quota.used(Limit::RequestsPerSecond) > 0);
        assert_eq!(quotas.of(&Tenant::new("zoo")).used(Limit::RequestsPerSecond), 0);
    }
}
