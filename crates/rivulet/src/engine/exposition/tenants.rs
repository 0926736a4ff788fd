//! The limits of tenants, and how much of them is used.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Labels, Series, Snapshot};

impl Snapshot {
    pub(super) fn encode_tenants(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = self.tenants.iter().map(|one| Labels(Some(&one.tenant), Vec::new()));
        let tenants = Series(labels.zip(&self.tenants).collect());
        let limits = tenants.by("limit", |one| one.limits.iter().map(|limit| (limit.limit.name(), limit)));
        let help = "How much of a limit a tenant uses; of a rate, how much there was in the last second";
        limits.gauges(encoder, &[("tenant_used", help, |one| one.used.unwrap_or(0))])?;
        let help = "A limit of a tenant; there is no series without a limit";
        limits.family(encoder, "tenant_limit", help, None, |one| {
            one.most.and_then(|most| i64::try_from(most).ok()).map(ConstGauge::new)
        })?;
        let reached = tenants.by("limit", |one| one.reached.map(|(limit, count)| (limit.name(), count)));
        let help = "How often something was refused to a tenant because of a limit";
        reached.counters(encoder, &[("tenant_limit_reached", help, |count| count)])?;
        let help = "For how long the MQTT clients of a tenant were not read because of a limit";
        tenants.counters(encoder, &[("tenant_held_back_microseconds", help, |one| one.waited_us)])
    }
}
