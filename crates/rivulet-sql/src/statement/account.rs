//! Statements about tenants, users, tokens and rights.

use std::fmt;

use super::{Name, SecretValue};
use crate::Position;
use crate::reserved::name_in_sql;

/// What rights are about: words of `GRANT`, in small letters.
pub const GRANT_KINDS: [&str; 9] =
    ["application", "query", "table", "source", "sink", "view", "secret", "topic", "server"];

/// What rights allow: words of `GRANT`, in small letters.
pub const GRANT_ACTIONS: [&str; 5] = ["read", "change", "subscribe", "publish", "administer"];

/// A user as statements name it: `alice` of the caller's own tenant, or `acme.alice`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserName {
    /// The tenant, if it is named.
    pub tenant: Option<Name>,
    /// The user's name within its tenant.
    pub name: Name,
}

impl fmt::Display for UserName {
    /// As it is written in SQL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tenant) = &self.tenant {
            write!(f, "{}.", name_in_sql(&tenant.text))?;
        }
        f.write_str(&name_in_sql(&self.name.text))
    }
}

/// What a GRANT gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantedRights {
    /// `ALL`: everything in the user's tenant; in the default tenant, the whole server.
    All,
    /// `read, subscribe ON QUERY 'home-7-%'`
    Some {
        /// Some of [`GRANT_ACTIONS`].
        actions: Vec<String>,
        /// One of [`GRANT_KINDS`].
        kind: String,
        /// The pattern of the names: as for LIKE, and for topics a filter, with `%u` for the user's name and `%c` for
        /// the client's id. `None` for every name.
        pattern: Option<String>,
        /// The position of the first action.
        position: Position,
    },
}

impl fmt::Display for GrantedRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Some { actions, kind, pattern, .. } = self else { return f.write_str("ALL") };
        write!(f, "{} ON {}", actions.join(", "), kind.to_uppercase())?;
        match pattern {
            Some(pattern) => write!(f, " '{}'", pattern.replace('\'', "''")),
            None => Ok(()),
        }
    }
}

/// The id of a token; of a whole token, which somebody may have written instead, nothing that is secret.
fn shown_id(id: &str) -> String {
    id.chars().take(16).filter(|one| *one != '\'').collect()
}

/// A limit of a tenant as a statement sets it; `None` removes it.
pub type TenantLimit = (Name, Option<u64>);

/// A limit of a tenant as text: a whole number with the unit KiB, MiB or GiB, or without.
pub fn limit_of(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return None,
    };
    digits.trim_end().parse::<u64>().ok()?.checked_mul(unit)
}

/// A statement about accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountStatement {
    /// `CREATE TENANT [IF NOT EXISTS] t [WITH (queries => 1000, ...)]`
    CreateTenant {
        /// The name of the tenant.
        name: Name,
        /// Do nothing if there is a tenant of that name.
        if_not_exists: bool,
        /// Its limits.
        limits: Vec<TenantLimit>,
    },
    /// `ALTER TENANT t SET (queries => 1000, ...)`, or `RESET (queries, ...)`
    AlterTenant {
        /// The name of the tenant.
        name: Name,
        /// The limits that change.
        limits: Vec<TenantLimit>,
    },
    /// `DROP TENANT [IF EXISTS] t [CASCADE]`
    DropTenant {
        /// The name of the tenant.
        name: Name,
        /// Do nothing if there is none.
        if_exists: bool,
        /// Drop its users and all that it has, too.
        cascade: bool,
    },
    /// `SHOW TENANTS`
    ShowTenants,
    /// `CREATE USER [IF NOT EXISTS] u [ADMIN]`
    CreateUser {
        /// The user.
        user: UserName,
        /// Do nothing if there is a user of that name.
        if_not_exists: bool,
        /// Whether it gets all rights at once.
        is_admin: bool,
    },
    /// `DROP USER [IF EXISTS] u`
    DropUser {
        /// The user.
        user: UserName,
        /// Do nothing if there is none.
        if_exists: bool,
    },
    /// Gives a user a password, or takes it away. There is no SQL for it, because texts of statements are kept in
    /// scripts and histories.
    SetPassword {
        /// The user.
        user: UserName,
        /// The password; `None` to take it away.
        password: Option<SecretValue>,
    },
    /// `SHOW USERS`: those of the caller's tenant, or of all tenants if the caller administers the server.
    ShowUsers,
    /// `CREATE TOKEN FOR u [EXPIRES IN INTERVAL '90 days']`
    CreateToken {
        /// The user.
        user: UserName,
        /// After how many seconds it ends; never without.
        expires_in_s: Option<u64>,
    },
    /// `ALTER TOKEN 'id' ROTATE [GRACE INTERVAL '1 hour']`
    RotateToken {
        /// The id of the token.
        id: String,
        /// For how many seconds the old token still holds.
        grace_s: u64,
        /// The position of the id.
        position: Position,
    },
    /// `DROP TOKEN [IF EXISTS] 'id'`
    DropToken {
        /// The id of the token.
        id: String,
        /// Do nothing if there is none.
        if_exists: bool,
        /// The position of the id.
        position: Position,
    },
    /// `SHOW TOKENS [FOR u]`
    ShowTokens(Option<UserName>),
    /// `GRANT rights TO u`
    Grant {
        /// The rights.
        rights: GrantedRights,
        /// The user that gets them.
        user: UserName,
    },
    /// `REVOKE rights FROM u`; `REVOKE ALL` takes every right.
    Revoke {
        /// The rights, as they were granted.
        rights: GrantedRights,
        /// The user that loses them.
        user: UserName,
    },
    /// `SHOW GRANTS [FOR u]`
    ShowGrants(Option<UserName>),
}

impl AccountStatement {
    /// The user that the statement names.
    pub fn user(&self) -> Option<&UserName> {
        match self {
            Self::CreateUser { user, .. }
            | Self::DropUser { user, .. }
            | Self::SetPassword { user, .. }
            | Self::CreateToken { user, .. }
            | Self::Grant { user, .. }
            | Self::Revoke { user, .. } => Some(user),
            Self::ShowTokens(user) | Self::ShowGrants(user) => user.as_ref(),
            _ => None,
        }
    }

    /// Whether it only shows something.
    pub fn shows(&self) -> bool {
        matches!(self, Self::ShowTenants | Self::ShowUsers | Self::ShowTokens(_) | Self::ShowGrants(_))
    }

    /// It in words, without secrets, as it could be written.
    pub fn text(&self) -> String {
        let of = |user: &Option<UserName>| user.as_ref().map_or_else(String::new, |user| format!(" FOR {user}"));
        match self {
            Self::CreateTenant { name, limits, .. } if limits.is_empty() => {
                format!("CREATE TENANT {}", name_in_sql(&name.text))
            }
            Self::CreateTenant { name, limits, .. } => {
                format!("CREATE TENANT {} WITH ({})", name_in_sql(&name.text), written(limits))
            }
            Self::AlterTenant { name, limits } => {
                format!("ALTER TENANT {} SET ({})", name_in_sql(&name.text), written(limits))
            }
            Self::DropTenant { name, cascade, .. } => {
                format!("DROP TENANT {}{}", name_in_sql(&name.text), if *cascade { " CASCADE" } else { "" })
            }
            Self::ShowTenants => "SHOW TENANTS".into(),
            Self::CreateUser { user, is_admin, .. } => {
                format!("CREATE USER {user}{}", if *is_admin { " ADMIN" } else { "" })
            }
            Self::DropUser { user, .. } => format!("DROP USER {user}"),
            Self::SetPassword { user, password } => {
                format!("ALTER USER {user} {} PASSWORD", if password.is_some() { "SET" } else { "DROP" })
            }
            Self::ShowUsers => "SHOW USERS".into(),
            Self::CreateToken { user, expires_in_s } => {
                let expires = expires_in_s.map(|seconds| format!(" EXPIRES IN INTERVAL '{seconds} seconds'"));
                format!("CREATE TOKEN FOR {user}{}", expires.unwrap_or_default())
            }
            Self::RotateToken { id, .. } => format!("ALTER TOKEN '{}' ROTATE", shown_id(id)),
            Self::DropToken { id, .. } => format!("DROP TOKEN '{}'", shown_id(id)),
            Self::ShowTokens(user) => format!("SHOW TOKENS{}", of(user)),
            Self::Grant { rights, user } => format!("GRANT {rights} TO {user}"),
            Self::Revoke { rights, user } => format!("REVOKE {rights} FROM {user}"),
            Self::ShowGrants(user) => format!("SHOW GRANTS{}", of(user)),
        }
    }

    /// The tenant that it creates, changes or drops.
    pub fn tenant(&self) -> Option<&Name> {
        match self {
            Self::CreateTenant { name, .. } | Self::AlterTenant { name, .. } | Self::DropTenant { name, .. } => {
                Some(name)
            }
            _ => None,
        }
    }
}

fn written(limits: &[TenantLimit]) -> String {
    let one = |(name, most): &TenantLimit| match most {
        Some(most) => format!("{} => {most}", name_in_sql(&name.text)),
        None => format!("{} => NULL", name_in_sql(&name.text)),
    };
    limits.iter().map(one).collect::<Vec<_>>().join(", ")
}
