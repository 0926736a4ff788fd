//! Passwords of users, and logins with them, over HTTP. No answer and no error has one.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use rivulet_sql::{AccountStatement, SecretValue};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::accounts::{AccountChanged, InTenant, TokenCreated, token_created, user_name};
use super::call::{Authenticated, Name, Parameters, Visitor};
use super::error::ApiError;
use super::types::ErrorAnswer;

/// A password for a user. It is not shown, in logs neither.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPassword {
    /// The password: 12 characters or more, at most 1,024 bytes.
    #[schema(example = "correct horse battery staple", format = Password)]
    pub password: String,
}

/// A login. The password is not shown, in logs neither.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLogin {
    /// The user.
    #[schema(example = "alice")]
    pub user: String,
    /// The user's tenant; the default tenant without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The user's password.
    #[schema(format = Password)]
    pub password: String,
}

/// Reads a body with a password, of which an error of the parser could show a part.
pub(super) fn from_secret_json<T: DeserializeOwned>(text: &str, form: &str) -> Result<T, ApiError> {
    serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        ApiError::invalid(format!("the body is not what is expected, at {place}")).with_hint(format!("send {form}"))
    })
}

/// Give a user a password
///
/// Tokens and connections that an earlier password was shown for end. No answer has a password.
#[utoipa::path(
    put, path = "/api/v1/users/{name}/password", tag = "accounts",
    params(("name" = String, Path, description = "Its name"), InTenant),
    request_body = NewPassword,
    responses((status = 200, description = "It has the password", body = AccountChanged)),
)]
pub(super) async fn put_password(
    api: Authenticated,
    Name(name): Name,
    Parameters(InTenant { tenant }): Parameters<InTenant>,
    body: Body,
) -> Result<Json<AccountChanged>, ApiError> {
    let text = api.read_text(body).await?;
    let NewPassword { password } = from_secret_json(&text, r#"{"password": "..."}"#)?;
    let password = Some(SecretValue(password));
    api.change_account(AccountStatement::SetPassword { user: user_name(tenant, name), password }).await
}

/// Take away the password of a user
///
/// Tokens and connections that it was shown for end.
#[utoipa::path(
    delete, path = "/api/v1/users/{name}/password", tag = "accounts",
    params(("name" = String, Path, description = "Its name"), InTenant),
    responses(
        (status = 204, description = "It has none"),
        (status = "default", description = "An error; a conflict if it is the last administrator's", body = ErrorAnswer),
    ),
)]
pub(super) async fn drop_password(
    api: Authenticated,
    Name(name): Name,
    Parameters(InTenant { tenant }): Parameters<InTenant>,
) -> Result<StatusCode, ApiError> {
    api.account(AccountStatement::SetPassword { user: user_name(tenant, name), password: None }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Log in with a password
///
/// The answer has a token that ends after 12 hours, or with the password. The 17th of a user ends the oldest.
#[utoipa::path(
    post, path = "/api/v1/login", tag = "accounts",
    request_body = NewLogin,
    responses((status = 201, description = "The token", body = TokenCreated)),
)]
pub(super) async fn log_in(visitor: Visitor, body: Body) -> Result<(StatusCode, Json<TokenCreated>), ApiError> {
    let text = visitor.read_text(body).await?;
    token_of(&visitor, from_secret_json(&text, r#"{"user": "...", "password": "..."}"#)?).await
}

/// The token for a login.
pub(super) async fn token_of(
    visitor: &Visitor,
    NewLogin { user, tenant, password }: NewLogin,
) -> Result<(StatusCode, Json<TokenCreated>), ApiError> {
    let user = match tenant {
        Some(tenant) => format!("{tenant}/{user}"),
        None => user,
    };
    token_created(visitor.log_in(user, password).await?)
}
