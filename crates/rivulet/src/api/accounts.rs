//! Users, tokens and rights over HTTP.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use rivulet_sql::{AccountStatement, GrantedRights, Position, UserName};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::service::{AccountAnswer, GrantInfo, ServiceError, TokenInfo, UserInfo};

use super::call::{Authenticated, Name, Parameters};
use super::error::ApiError;
use super::types::ErrorAnswer;

/// The most seconds of a lifetime: a hundred years.
const LIFETIME_S_MAX: u64 = 100 * 365 * 86_400;

/// Every user that the caller knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UserList {
    /// Users by tenant and name.
    pub users: Vec<UserInfo>,
}

/// A user to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewUser {
    /// Its name: 1 to 64 letters, digits, `_`, `-`, `.` and `@`.
    #[schema(example = "alice")]
    pub name: String,
    /// Its tenant; that of the caller without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Whether it gets all rights at once.
    #[serde(default)]
    pub admin: bool,
}

/// Every token that the caller knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Tokens by user.
    pub tokens: Vec<TokenInfo>,
}

/// A token to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// The user that gets it.
    #[schema(example = "alice")]
    pub user: String,
    /// The user's tenant; that of the caller without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// After how many seconds it ends; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 7776000)]
    pub expires_in_s: Option<u64>,
}

/// A token that was created, with its secret, which is shown this once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// What is to be sent as `Authorization: Bearer`, or as password of MQTT.
    pub token: String,
    /// What is known of it.
    pub info: TokenInfo,
}

/// How a token is rotated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// For how many seconds the old token still holds.
    #[serde(default)]
    pub grace_s: u64,
}

/// Every right that the caller knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrantList {
    /// Rights by user.
    pub grants: Vec<Grant>,
}

/// A right of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The user.
    #[schema(example = "alice")]
    pub user: String,
    /// The user's tenant; that of the caller without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// `read`, `change`, `subscribe`, `publish`, `administer`; or `all` alone for everything.
    #[schema(example = json!(["read", "subscribe"]))]
    pub actions: Vec<String>,
    /// `application`, `query`, `table`, `source`, `sink`, `view`, `topic` or `server`; not with `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "query")]
    pub kind: Option<String>,
    /// The names: a pattern as for LIKE, of topics a filter with `%u` for the user and `%c` for the client's id; every
    /// name without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "home-7-%")]
    pub pattern: Option<String>,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccountChanged {
    /// In words.
    #[schema(example = "user alice created")]
    pub message: String,
}

/// Of which user a list is.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OfUser {
    /// Only of this user.
    pub(super) user: Option<String>,
    /// Its tenant; that of the caller without.
    pub(super) tenant: Option<String>,
}

/// In which tenant a user is.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct InTenant {
    /// Its tenant; that of the caller without.
    pub(super) tenant: Option<String>,
}

impl From<GrantInfo> for Grant {
    fn from(info: GrantInfo) -> Self {
        let GrantInfo { tenant, user, actions, kind, pattern } = info;
        Self { user, tenant: Some(tenant), actions, kind, pattern }
    }
}

/// A name that stands in no SQL text.
pub(super) fn named(name: String) -> rivulet_sql::Name {
    rivulet_sql::Name { text: name, position: Position::default() }
}

pub(super) fn user_name(tenant: Option<String>, name: String) -> UserName {
    UserName { tenant: tenant.map(named), name: named(name) }
}

impl Grant {
    /// The rights and the user of a statement.
    ///
    /// # Errors
    /// It has no kind.
    pub(crate) fn rights(self) -> Result<(GrantedRights, UserName), ServiceError> {
        let Self { user, tenant, actions, kind, pattern } = self;
        let rights = match (actions.as_slice(), kind) {
            ([all], None) if all == "all" && pattern.is_none() => GrantedRights::All,
            (_, Some(kind)) => GrantedRights::Some { actions, kind, pattern, position: Position::default() },
            (_, None) => {
                return Err(ServiceError::invalid("the grant does not say what it is for")
                    .with_hint("add for example \"kind\": \"query\"; only \"actions\": [\"all\"] has no kind"));
            }
        };
        Ok((rights, user_name(tenant, user)))
    }
}

impl Authenticated {
    /// Reads a small JSON body.
    pub(super) async fn read_json<T: DeserializeOwned>(&self, body: Body) -> Result<T, ApiError> {
        let text = self.read_text(body).await?;
        let text = if text.trim().is_empty() { "{}" } else { &*text };
        serde_json::from_str(text).map_err(|error| {
            ApiError::invalid(format!("the body is not what is expected: {error}"))
                .with_hint("/api/docs shows the body of each request")
        })
    }

    pub(super) async fn account(&self, statement: AccountStatement) -> Result<AccountAnswer, ApiError> {
        Ok(self.blocking(move |session| session.account(&statement)).await??)
    }

    pub(super) async fn change_account(&self, statement: AccountStatement) -> Result<Json<AccountChanged>, ApiError> {
        match self.account(statement).await? {
            AccountAnswer::Done(message) => Ok(Json(AccountChanged { message })),
            _ => Err(unexpected()),
        }
    }

    async fn make_token(&self, statement: AccountStatement) -> Result<(StatusCode, Json<TokenCreated>), ApiError> {
        token_created(self.account(statement).await?)
    }
}

/// The answer that has a token.
pub(super) fn token_created(answer: AccountAnswer) -> Result<(StatusCode, Json<TokenCreated>), ApiError> {
    match answer {
        AccountAnswer::Token { text, info } => Ok((StatusCode::CREATED, Json(TokenCreated { token: text, info }))),
        _ => Err(unexpected()),
    }
}

pub(super) fn unexpected() -> ApiError {
    ApiError::internal("the statement was answered otherwise than it should be")
}

/// List the users
///
/// Those of the caller's tenant; those of all tenants if the caller administers the server.
#[utoipa::path(
    get, path = "/api/v1/users", tag = "accounts",
    responses((status = 200, description = "Users by tenant and name", body = UserList)),
)]
pub(super) async fn list_users(api: Authenticated) -> Result<Json<UserList>, ApiError> {
    match api.account(AccountStatement::ShowUsers).await? {
        AccountAnswer::Users(users) => Ok(Json(UserList { users })),
        _ => Err(unexpected()),
    }
}

/// Create a user
#[utoipa::path(
    post, path = "/api/v1/users", tag = "accounts",
    request_body = NewUser,
    responses((status = 201, description = "It was created", body = AccountChanged)),
)]
pub(super) async fn create_user(
    api: Authenticated,
    body: Body,
) -> Result<(StatusCode, Json<AccountChanged>), ApiError> {
    let NewUser { name, tenant, admin } = api.read_json(body).await?;
    let user = user_name(tenant, name);
    let created = AccountStatement::CreateUser { user, if_not_exists: false, is_admin: admin };
    Ok((StatusCode::CREATED, api.change_account(created).await?))
}

/// Drop a user
///
/// With its tokens and rights. Its connections and streams end within a second.
#[utoipa::path(
    delete, path = "/api/v1/users/{name}", tag = "accounts",
    params(("name" = String, Path, description = "Its name"), InTenant),
    responses(
        (status = 204, description = "Dropped"),
        (status = "default", description = "An error; a conflict if it is the last administrator", body = ErrorAnswer),
    ),
)]
pub(super) async fn drop_user(
    api: Authenticated,
    Name(name): Name,
    Parameters(InTenant { tenant }): Parameters<InTenant>,
) -> Result<StatusCode, ApiError> {
    api.account(AccountStatement::DropUser { user: user_name(tenant, name), if_exists: false }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the tokens
#[utoipa::path(
    get, path = "/api/v1/tokens", tag = "accounts",
    params(OfUser),
    responses((status = 200, description = "Tokens by user, without their secrets", body = TokenList)),
)]
pub(super) async fn list_tokens(
    api: Authenticated,
    Parameters(OfUser { user, tenant }): Parameters<OfUser>,
) -> Result<Json<TokenList>, ApiError> {
    match api.account(AccountStatement::ShowTokens(user.map(|user| user_name(tenant, user)))).await? {
        AccountAnswer::Tokens(tokens) => Ok(Json(TokenList { tokens })),
        _ => Err(unexpected()),
    }
}

/// Create a token
///
/// The answer is the only one that has its secret.
#[utoipa::path(
    post, path = "/api/v1/tokens", tag = "accounts",
    request_body = NewToken,
    responses((status = 201, description = "The token", body = TokenCreated)),
)]
pub(super) async fn create_token(api: Authenticated, body: Body) -> Result<(StatusCode, Json<TokenCreated>), ApiError> {
    let NewToken { user, tenant, expires_in_s } = api.read_json(body).await?;
    if expires_in_s.is_some_and(|seconds| !(1..=LIFETIME_S_MAX).contains(&seconds)) {
        return Err(ApiError::invalid(format!("expires_in_s is from 1 to {LIFETIME_S_MAX}"))
            .with_hint("leave it out for a token that does not expire"));
    }
    api.make_token(AccountStatement::CreateToken { user: user_name(tenant, user), expires_in_s }).await
}

/// Rotate a token
///
/// Its user gets another one, for as long as the old one was made for. The old one ends at once, or after a grace.
#[utoipa::path(
    post, path = "/api/v1/tokens/{name}/rotate", tag = "accounts",
    params(("name" = String, Path, description = "Its id")),
    request_body = Rotation,
    responses((status = 201, description = "The new token", body = TokenCreated)),
)]
pub(super) async fn rotate_token(
    api: Authenticated,
    Name(id): Name,
    body: Body,
) -> Result<(StatusCode, Json<TokenCreated>), ApiError> {
    let Rotation { grace_s } = api.read_json(body).await?;
    api.make_token(AccountStatement::RotateToken { id, grace_s, position: Position::default() }).await
}

/// Drop a token
///
/// Connections and streams that were opened with it end within a second.
#[utoipa::path(
    delete, path = "/api/v1/tokens/{name}", tag = "accounts",
    params(("name" = String, Path, description = "Its id")),
    responses(
        (status = 204, description = "Dropped"),
        (status = "default", description = "An error; a conflict if it is the last administrator's", body = ErrorAnswer),
    ),
)]
pub(super) async fn drop_token(api: Authenticated, Name(id): Name) -> Result<StatusCode, ApiError> {
    let position = Position::default();
    api.account(AccountStatement::DropToken { id, if_exists: false, position }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the rights
#[utoipa::path(
    get, path = "/api/v1/grants", tag = "accounts",
    params(OfUser),
    responses((status = 200, description = "Rights by user", body = GrantList)),
)]
pub(super) async fn list_grants(
    api: Authenticated,
    Parameters(OfUser { user, tenant }): Parameters<OfUser>,
) -> Result<Json<GrantList>, ApiError> {
    match api.account(AccountStatement::ShowGrants(user.map(|user| user_name(tenant, user)))).await? {
        AccountAnswer::Grants(grants) => Ok(Json(GrantList { grants: grants.into_iter().map(Grant::from).collect() })),
        _ => Err(unexpected()),
    }
}

/// Grant a right
#[utoipa::path(
    post, path = "/api/v1/grants", tag = "accounts",
    request_body = Grant,
    responses((status = 200, description = "It is granted", body = AccountChanged)),
)]
pub(super) async fn grant(api: Authenticated, body: Body) -> Result<Json<AccountChanged>, ApiError> {
    let (rights, user) = api.read_json::<Grant>(body).await?.rights()?;
    api.change_account(AccountStatement::Grant { rights, user }).await
}

/// Revoke a right
///
/// The body is a right as it was granted; `all` takes every right of the user.
#[utoipa::path(
    post, path = "/api/v1/grants/revoke", tag = "accounts",
    request_body = Grant,
    responses((status = 200, description = "It is revoked", body = AccountChanged)),
)]
pub(super) async fn revoke(api: Authenticated, body: Body) -> Result<Json<AccountChanged>, ApiError> {
    let (rights, user) = api.read_json::<Grant>(body).await?.rights()?;
    api.change_account(AccountStatement::Revoke { rights, user }).await
}
