//! Tenants, and the names of a tenant.
//!
//! What must hold: a name is found only together with its tenant. A [`FullName`] is made once, where a caller's session
//! or the catalog determines the tenant, and is the key of every table of names from there on.

use std::borrow::{Borrow, Cow};
use std::fmt::{self, Write};
use std::sync::{Arc, LazyLock};

/// A space of names: that of the callers who belong to it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

/// The tenant of the person who runs the server, which is neither typed nor shown.
const DEFAULT: &str = "default";

/// The first character of a saved name that is not of the default tenant, or that has this first character itself. No
/// name in SQL has it.
const MARK: char = '\0';

impl Default for Tenant {
    fn default() -> Self {
        Self::of_operator().clone()
    }
}

impl Borrow<str> for Tenant {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Tenant {
    /// The default tenant.
    pub(crate) fn of_operator() -> &'static Self {
        static TENANT: LazyLock<Tenant> = LazyLock::new(|| Tenant::new(DEFAULT));
        &TENANT
    }

    /// The tenant of this name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the default tenant, which is neither typed nor shown.
    pub fn is_default(&self) -> bool {
        *self.0 == *DEFAULT
    }

    /// Its name as the name of a folder. Different tenants have different folders, also where names of files ignore
    /// case, and none leads out of its folder.
    pub(crate) fn file_name(&self) -> String {
        let mut name = String::new();
        for byte in self.0.bytes() {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
                // Writing to a text does not fail.
                _ => _ = write!(name, "%{byte:02x}"),
            }
        }
        if name.is_empty() { "%".to_owned() } else { name }
    }

    /// A name of this tenant.
    pub fn named(&self, name: impl Into<String>) -> FullName {
        FullName { tenant: self.clone(), name: name.into() }
    }

    /// The form in which a text of this tenant is saved. A text of the default tenant is unchanged, so that texts that
    /// were saved before there were tenants belong to that one.
    pub(crate) fn encode<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.is_default() && !text.starts_with(MARK) {
            true => Cow::Borrowed(text),
            // The length tells where the tenant's name ends, whatever characters it has.
            false => Cow::Owned(format!("{MARK}{}:{}{text}", self.0.len(), self.0)),
        }
    }

    /// Reverses [`Tenant::encode`]; `None` if the text was damaged since.
    pub(crate) fn decode(saved: &str) -> Option<(Self, &str)> {
        let Some(marked) = saved.strip_prefix(MARK) else { return Some((Self::default(), saved)) };
        let (length, rest) = marked.split_once(':')?;
        let (tenant, text) = rest.split_at_checked(length.parse().ok()?)?;
        Some((Self::new(tenant), text))
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name, and the tenant that it belongs to. It is displayed as the tenant's callers write it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FullName {
    /// The tenant.
    pub tenant: Tenant,
    /// The name within the tenant.
    pub name: String,
}

impl FullName {
    /// The user that a client calls itself where it says no tenant: `user`, or `tenant/user` outside of the default
    /// tenant. No name of a user or tenant has a slash.
    pub(crate) fn from_login(name: &str) -> Self {
        match name.split_once('/') {
            Some((tenant, name)) => Tenant::new(tenant).named(name),
            None => Tenant::default().named(name),
        }
    }

    /// The name in the log of the server, whose reader knows all tenants: `acme/floors`, and the plain name for the
    /// default tenant.
    pub fn in_log(&self) -> String {
        match self.tenant.is_default() {
            true => self.name.clone(),
            false => format!("{}/{}", self.tenant, self.name),
        }
    }

    /// The name for any user: only names of the default tenant are given.
    pub(crate) fn in_public(&self) -> String {
        match self.tenant.is_default() {
            true => format!("'{}'", self.name),
            false => "of a tenant".to_owned(),
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
    fn what_is_saved_of_a_tenant_is_read_as_its_own() {
        let names = ["floors", "", "a/b", "\u{0}", "\u{0}4:acmefloors", "7:q", "Größe", "acme"];
        let tenants = ["default", "acme", "a", "", "4:acme", "\u{0}", "Größe", "default "];
        let mut saved: Vec<String> = Vec::new();
        for tenant in tenants.map(Tenant::new) {
            for name in names {
                let encoded = tenant.encode(name).into_owned();
                assert_eq!(Tenant::decode(&encoded), Some((tenant.clone(), name)));
                assert!(!saved.contains(&encoded), "{encoded:?} is one name of one tenant");
                saved.push(encoded);
            }
        }
        assert_eq!(Tenant::default().encode("floors"), "floors", "as before there were tenants");
        for damaged in ["\u{0}", "\u{0}4", "\u{0}9:acme", "\u{0}x:acme", "\u{0}2:aß", "\u{0}-1:a"] {
            assert_eq!(Tenant::decode(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_folder_of_a_tenant_is_its_own() {
        let name = |tenant: &str| Tenant::new(tenant).file_name();
        assert_eq!(name("acme-2_x"), "acme-2_x");
        let names = ["..", ".", "", "a/b", "a%2fb", "A", "a", "\0", "%", "%25"].map(name);
        for (number, one) in names.iter().enumerate() {
            let path = std::path::Path::new(one);
            assert_eq!(path.file_name().and_then(|name| name.to_str()), Some(one.as_str()), "{one}");
            assert!(!names[..number].contains(one) && one.to_lowercase() == *one, "{one}");
        }
    }

    #[test]
    fn only_the_log_shows_a_tenant() {
        let (own, other) = (Tenant::default().named("floors"), Tenant::new("acme").named("floors"));
        assert_eq!((own.to_string(), other.to_string()), ("floors".into(), "floors".into()));
        assert_eq!((own.in_log(), other.in_log()), ("floors".into(), "acme/floors".into()));
        assert_eq!((own.in_public(), other.in_public()), ("'floors'".into(), "of a tenant".into()));
    }
}
