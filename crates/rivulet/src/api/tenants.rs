//! Tenants and their limits over HTTP.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use rivulet_sql::AccountStatement;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::service::{AccountAnswer, LimitUse, TenantInfo};

use super::accounts::{AccountChanged, named, unexpected};
use super::call::{Authenticated, Name, Parameters};
use super::error::ApiError;
use super::types::DropParameters;

/// Every tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantList {
    /// Names of the tenants.
    #[schema(example = json!(["default", "acme"]))]
    pub tenants: Vec<String>,
    /// The same with their limits.
    #[serde(default)]
    pub limits: Vec<TenantLimits>,
}

/// A tenant and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantLimits {
    /// Its name.
    #[schema(example = "acme")]
    pub name: String,
    /// How much it uses and may use, by the name of the limit.
    #[schema(example = json!({"queries": {"used": 12, "most": 1000}}))]
    pub limits: BTreeMap<String, LimitUsed>,
}

/// How much of a limit is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LimitUsed {
    /// How much is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// How much may be used; there is no limit without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

/// Limits to be set, by name; `null` removes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"queries": 1000, "streams": null}))]
pub struct LimitChanges(pub BTreeMap<String, Option<u64>>);

/// A tenant to be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// Its name: 1 to 64 letters, digits, `_`, `-`, `.` and `@`.
    #[schema(example = "acme")]
    pub name: String,
    /// Its limits by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(example = json!({"queries": 1000, "big_queries": 2}))]
    pub limits: BTreeMap<String, u64>,
}

impl From<Vec<TenantInfo>> for TenantList {
    fn from(tenants: Vec<TenantInfo>) -> Self {
        let used = |one: &LimitUse| (one.limit.name().to_owned(), LimitUsed { used: one.used, most: one.most });
        let limits =
            |one: &TenantInfo| TenantLimits { name: one.name.clone(), limits: one.limits.iter().map(used).collect() };
        Self {
            limits: tenants.iter().map(limits).collect(),
            tenants: tenants.into_iter().map(|one| one.name).collect(),
        }
    }
}

/// List the tenants
///
/// Each with its limits, and how much of them it uses.
#[utoipa::path(
    get, path = "/api/v1/tenants", tag = "accounts",
    responses((status = 200, description = "Tenants by name", body = TenantList)),
)]
pub(super) async fn list_tenants(api: Authenticated) -> Result<Json<TenantList>, ApiError> {
    match api.account(AccountStatement::ShowTenants).await? {
        AccountAnswer::Tenants(tenants) => Ok(Json(tenants.into())),
        _ => Err(unexpected()),
    }
}

/// Create a tenant
#[utoipa::path(
    post, path = "/api/v1/tenants", tag = "accounts",
    request_body = NewTenant,
    responses((status = 201, description = "It was created", body = AccountChanged)),
)]
pub(super) async fn create_tenant(
    api: Authenticated,
    body: Body,
) -> Result<(StatusCode, Json<AccountChanged>), ApiError> {
    let NewTenant { name, limits } = api.read_json(body).await?;
    let limits = limits.into_iter().map(|(limit, most)| (named(limit), Some(most))).collect();
    let created = AccountStatement::CreateTenant { name: named(name), if_not_exists: false, limits };
    Ok((StatusCode::CREATED, api.change_account(created).await?))
}

/// Set limits of a tenant
///
/// Those that are not named stay as they are. The tenant may be `default`.
#[utoipa::path(
    patch, path = "/api/v1/tenants/{name}", tag = "accounts",
    params(("name" = String, Path, description = "Its name")),
    request_body = LimitChanges,
    responses((status = 200, description = "They are set", body = AccountChanged)),
)]
pub(super) async fn alter_tenant(
    api: Authenticated,
    Name(name): Name,
    body: Body,
) -> Result<Json<AccountChanged>, ApiError> {
    let LimitChanges(limits) = api.read_json(body).await?;
    let limits = limits.into_iter().map(|(limit, most)| (named(limit), most)).collect();
    api.change_account(AccountStatement::AlterTenant { name: named(name), limits }).await
}

/// Drop a tenant
///
/// It must have no users, applications, queries, tables, sources, sinks and views any more, unless they are dropped
/// with it.
#[utoipa::path(
    delete, path = "/api/v1/tenants/{name}", tag = "accounts",
    params(("name" = String, Path, description = "Its name"), DropParameters),
    responses((status = 204, description = "Dropped")),
)]
pub(super) async fn drop_tenant(
    api: Authenticated,
    Name(name): Name,
    Parameters(DropParameters { cascade }): Parameters<DropParameters>,
) -> Result<StatusCode, ApiError> {
    api.account(AccountStatement::DropTenant { name: named(name), if_exists: false, cascade }).await?;
    Ok(StatusCode::NO_CONTENT)
}
