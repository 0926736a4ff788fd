//! Status and health over HTTP.

use axum::Json;

use super::call::{Authenticated, MaybeAuthenticated, Parameters};
use super::error::ApiError;
use super::types::{Checkpoint, ErrorAnswer, Health, Status, StatusParameters};
use crate::service::ServiceError;

/// What the server is doing
#[utoipa::path(
    get, path = "/api/v1/status", tag = "server", params(StatusParameters),
    responses((status = 200, description = "Queries, counters, latencies, memory and connections", body = Status)),
)]
pub(super) async fn show_status(
    api: Authenticated,
    Parameters(StatusParameters { operators }): Parameters<StatusParameters>,
) -> Result<Json<Status>, ApiError> {
    Ok(Json(api.looking(move |session| session.status(operators)).await??))
}

/// Whether the process answers
#[utoipa::path(get, path = "/health/live", tag = "server", responses((status = 200, description = "It does", body = Health)))]
pub(super) async fn live() -> Json<Health> {
    Json(Health { status: "ok".into(), problem_count: 0, problems: Vec::new() })
}

/// Whether events are being processed
///
/// A server that processes events though a sink cannot deliver, a query has failed or a checkpoint is not made is
/// `degraded` and still ready: to send its traffic elsewhere, or to restart it, would mend none of these. Where clients
/// have to log in, those who have not, and those who may not read the status of the server, are told how many problems
/// there are, and not what they are.
#[utoipa::path(
    get, path = "/health/ready", tag = "server",
    responses(
        (status = 200, description = "They are", body = Health),
        (status = 503, description = "They are not, and why", body = ErrorAnswer),
    ),
)]
pub(super) async fn ready(caller: MaybeAuthenticated) -> Result<Json<Health>, ApiError> {
    let (health, is_told) = caller.health().await?;
    let problems = health.map_err(|error| match is_told {
        true => error,
        false => ServiceError::new(error.kind, "events are not being processed")
            .with_hint("whoever may read the status of the server is told why: send a token"),
    })?;
    let (status, problem_count) = (if problems.is_empty() { "ok" } else { "degraded" }, problems.len());
    let problems = if is_told { problems } else { Vec::new() };
    Ok(Json(Health { status: status.into(), problem_count, problems }))
}

/// Save the state of queries now
///
/// The answer comes when a restart would find what is saved.
#[utoipa::path(
    post, path = "/api/v1/checkpoint", tag = "server",
    responses(
        (status = 200, description = "The checkpoint", body = Checkpoint),
        (status = "default", description = "An error; the checkpoint before stays in force", body = ErrorAnswer),
    ),
)]
pub(super) async fn make_checkpoint(api: Authenticated) -> Result<Json<Checkpoint>, ApiError> {
    let made = api.blocking(|session| session.checkpoint()).await??;
    Ok(Json(made))
}
