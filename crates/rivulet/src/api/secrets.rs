//! Secrets over HTTP. No answer has the value of one.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;

use super::call::{Authenticated, Name};
use super::error::ApiError;
use super::types::{ErrorAnswer, Secret, SecretList};

/// List the secrets
///
/// Their names, when they got their values, and what names them. No value is ever shown.
#[utoipa::path(
    get, path = "/api/v1/secrets", tag = "secrets",
    responses((status = 200, description = "Secrets by name", body = SecretList)),
)]
pub(super) async fn list_secrets(api: Authenticated) -> Result<Json<SecretList>, ApiError> {
    let secrets = api.blocking(|session| session.secrets()).await??;
    Ok(Json(SecretList { secrets }))
}

/// Create a secret, or give it another value
///
/// The body is the value, as it is. Sources and sinks that name the secret take it when they are opened next, links
/// when they connect next.
#[utoipa::path(
    put, path = "/api/v1/secrets/{name}", tag = "secrets",
    params(("name" = String, Path, description = "Its name")),
    request_body(content = String, content_type = "text/plain"),
    responses((status = 200, description = "The secret, without its value", body = Secret)),
)]
pub(super) async fn put_secret(api: Authenticated, Name(name): Name, body: Body) -> Result<Json<Secret>, ApiError> {
    let value = api.read_text(body).await?.to_owned();
    let secret = api.blocking(move |session| session.put_secret(&name, value)).await??;
    Ok(Json(secret))
}

/// Drop a secret
#[utoipa::path(
    delete, path = "/api/v1/secrets/{name}", tag = "secrets",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (status = 204, description = "Dropped"),
        (status = "default", description = "An error; a conflict if anything names it", body = ErrorAnswer),
    ),
)]
pub(super) async fn drop_secret(api: Authenticated, Name(name): Name) -> Result<StatusCode, ApiError> {
    api.blocking(move |session| session.drop_secret(&name)).await??;
    Ok(StatusCode::NO_CONTENT)
}
