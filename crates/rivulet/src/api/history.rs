//! What the server did in the last hour, for plots.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::call::{Api, Authenticated};
use super::error::ApiError;
use super::moments::{self, Moment};
use crate::service::{Permit, Service};

/// How far moments are apart.
const STEP: Duration = Duration::from_secs(5);

/// The moments of the last hour, one index for each. What is counted is counted since the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub(super) struct History {
    /// When they were, milliseconds since 1970.
    pub at_ms: Vec<i64>,
    /// Events of applications.
    pub events: Vec<u64>,
    /// Results of applications.
    pub results: Vec<u64>,
    /// Rows that big queries have read.
    pub rows: Vec<u64>,
    /// Median of the time from an event to its results in the minute before, microseconds.
    pub p50_us: Vec<Option<u64>>,
    /// The 99th percentile of that.
    pub p99_us: Vec<Option<u64>>,
    /// Resident memory, bytes.
    pub memory_bytes: Vec<Option<u64>>,
    /// Queries that run, without the big ones.
    pub queries: Vec<u64>,
    /// Mean load of the workers, from 0 to 1.
    pub load: Vec<f64>,
}

/// Notes the moments, for ever.
pub(super) async fn note(api: Api) {
    let mut ticks = tokio::time::interval(STEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let look = |service: &Arc<dyn Service>| Moment::of(&service.status(&Permit::of_operator(), false));
        // A server that still starts is asked again.
        if let Ok(moment) = api.call(&api.look_permits, look).await {
            moments::add(&api.moments, moment);
        }
    }
}

/// The last hour
///
/// Moments 5 s apart, for plots. What is counted is counted since the start; the difference of two moments is what
/// happened between them.
#[utoipa::path(
    get, path = "/api/v1/history", tag = "server",
    responses((status = 200, description = "The moments, oldest first", body = History)),
)]
pub(super) async fn show_history(api: Authenticated) -> Result<Json<History>, ApiError> {
    api.looking(|session| session.check_sees_server()).await??;
    let moments = api.moments.lock();
    let mut history = History::default();
    for moment in &*moments {
        history.at_ms.push(moment.at_ms);
        history.events.push(moment.events);
        history.results.push(moment.results);
        history.rows.push(moment.rows);
        history.p50_us.push(moment.latency_us[0]);
        history.p99_us.push(moment.latency_us[1]);
        history.memory_bytes.push(moment.memory_bytes);
        history.queries.push(moment.queries);
        history.load.push(moment.load);
    }
    Ok(Json(history))
}
