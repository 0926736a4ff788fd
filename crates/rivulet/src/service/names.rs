//! Tenants, and names in the space of a tenant.
//!
//! What must hold: a name is found only together with its tenant. A [`FullName`] is made once, where a caller's session
//! or the catalog says which tenant it is, and is the key of every table of names from there on.

use std::fmt;
use std::sync::{Arc, LazyLock};

/// A space of names: that of the callers who belong to it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

/// The tenant of the person who runs the server, which is neither typed nor shown.
const DEFAULT: &str = "default";

impl Default for Tenant {
    fn default() -> Self {
        static TENANT: LazyLock<Tenant> = LazyLock::new(|| Tenant::new(DEFAULT));
        TENANT.clone()
    }
}

impl Tenant {
    /// The tenant of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the one that is neither typed nor shown.
    pub fn is_default(&self) -> bool {
        *self.0 == *DEFAULT
    }

    /// What goes by this name in its space.
    pub fn named(&self, name: impl Into<String>) -> FullName {
        FullName { tenant: self.clone(), name: name.into() }
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name, and the tenant in whose space it is. It is displayed as the tenant's callers write it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FullName {
    /// The tenant.
    pub tenant: Tenant,
    /// The name in its space.
    pub name: String,
}

impl FullName {
    /// As it stands in the log of the server, whose reader knows all tenants: `acme/floors`, and the name by itself of
    /// the default tenant.
    pub fn in_log(&self) -> String {
        match self.tenant.is_default() {
            true => self.name.clone(),
            false => format!("{}/{}", self.tenant, self.name),
        }
    }
}

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_log_shows_a_tenant() {
        let (own, other) = (Tenant::default().named("floors"), Tenant::new("acme").named("floors"));
        assert_eq!((own.to_string(), other.to_string()), ("floors".into(), "floors".into()));
        assert_eq!((own.in_log(), other.in_log()), ("floors".into(), "acme/floors".into()));
    }
}
