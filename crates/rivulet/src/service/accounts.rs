//! What the server tells of tenants, users, tokens and rights. Times are seconds since the epoch.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::quotas::TenantInfo;

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = User)]
pub struct UserInfo {
    /// Its tenant.
    #[schema(example = "default")]
    pub tenant: String,
    /// Its name within the tenant.
    #[schema(example = "alice")]
    pub name: String,
    /// Whether it has all rights in its tenant; in the default tenant, on the whole server.
    #[serde(rename = "admin")]
    pub is_admin: bool,
    /// The number of its tokens, those that have expired included.
    pub tokens: u64,
    /// The number of its other rights.
    pub grants: u64,
    /// Whether it has a password.
    #[serde(default, rename = "password")]
    pub has_password: bool,
    /// When it was created, in seconds since the epoch.
    pub created_s: u64,
}

/// A token, without its secret. Times are seconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Token)]
pub struct TokenInfo {
    /// Its id, which is no secret.
    #[schema(example = "0123456789abcdef")]
    pub id: String,
    /// The tenant of its user.
    pub tenant: String,
    /// Its user.
    pub user: String,
    /// When it was created.
    pub created_s: u64,
    /// When it ends; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// When it was last used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_s: Option<u64>,
    /// Whether it has ended.
    #[serde(rename = "expired")]
    pub has_expired: bool,
}

/// A right of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantInfo {
    /// The user's tenant.
    pub tenant: String,
    /// The user.
    pub user: String,
    /// What it allows; `all` for everything.
    pub actions: Vec<String>,
    /// The kind of what it is about; `None` with `all`.
    pub kind: Option<String>,
    /// The pattern of the names; `None` for every name.
    pub pattern: Option<String>,
}

/// The answer to a statement about accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountAnswer {
    /// It was done, in words.
    Done(String),
    /// A token was made. Nobody can be told its text again.
    Token {
        /// What is to be sent.
        text: String,
        /// What is known of it.
        info: TokenInfo,
    },
    /// The tenants, with their limits.
    Tenants(Vec<TenantInfo>),
    /// Users by tenant and name.
    Users(Vec<UserInfo>),
    /// Tokens by user.
    Tokens(Vec<TokenInfo>),
    /// Rights by user.
    Grants(Vec<GrantInfo>),
}
