//! The record of what callers did, over HTTP.

use axum::Json;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::call::{Authenticated, Parameters, page_limit};
use super::error::ApiError;

/// How many entries.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditParameters {
    /// At most so many: 100 unless told, 1000 at most.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
}

/// What callers did last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub(super) struct AuditEntries {
    /// The entries, newest first, as the files of the audit have them.
    #[schema(value_type = Vec<Object>, example = json!([{
        "time": "2026-11-30T18:00:00Z", "tenant": "default", "user": "alice", "door": "http", "address": "127.0.0.1",
        "action": "change", "kind": "query", "name": "warm", "allowed": true
    }]))]
    pub entries: Vec<Value>,
}

/// What callers did last
///
/// For who administers accounts: of the own tenant, and of all for the default tenant. Of each tenant the newest files
/// are read, a MiB at most; of all, those of the 16 that were written last.
#[utoipa::path(
    get, path = "/api/v1/audit", tag = "accounts",
    params(AuditParameters),
    responses((status = 200, description = "The entries, newest first", body = AuditEntries)),
)]
pub(super) async fn show_audit(
    api: Authenticated,
    Parameters(AuditParameters { limit }): Parameters<AuditParameters>,
) -> Result<Json<AuditEntries>, ApiError> {
    let limit = page_limit(limit)?;
    let entries = api.blocking(move |session| session.audit(limit)).await??;
    Ok(Json(AuditEntries { entries }))
}
