//! What the server tells of tenants, users, tokens and rights. Times are seconds since the epoch.

use super::quotas::TenantInfo;

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserInfo {
    /// Its tenant.
    pub tenant: String,
    /// Its name within the tenant.
    pub name: String,
    /// Whether it has all rights in its tenant.
    pub is_admin: bool,
    /// The number of its tokens, those that have expired included.
    pub tokens: usize,
    /// The number of its other rights.
    pub grants: usize,
    /// Whether it has a password.
    pub has_password: bool,
    /// When it was created.
    pub created_s: u64,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Its id.
    pub id: String,
    /// The tenant of its user.
    pub tenant: String,
    /// Its user.
    pub user: String,
    /// When it was created.
    pub created_s: u64,
    /// When it ends; `None` for never.
    pub expires_s: Option<u64>,
    /// When it was last used; `None` for never.
    pub last_used_s: Option<u64>,
    /// Whether it has ended.
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
