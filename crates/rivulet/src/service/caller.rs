//! Who asks, and from where.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use super::names::{FullName, Tenant};
use super::rights::{LoginToken, Rights};

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The client's address, where it is known.
    pub address: Option<IpAddr>,
    /// The door: `http` or `mqtt`.
    pub door: &'static str,
}

/// The client that a request comes from. Cheap to clone. Two with one name in one tenant are the same.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Identity>);

#[derive(Clone, Debug)]
struct Identity {
    name: FullName,
    login: Option<Login>,
    client_id: Option<String>,
    origin: Option<Origin>,
    /// Whether an operator of the server asks in the place of the tenant.
    is_operator: bool,
}

/// What a user has logged in with, and may do.
#[derive(Clone, Debug)]
pub struct Login {
    /// The rights of the user at that time.
    pub rights: Arc<Rights>,
    /// The token.
    pub token: Arc<LoginToken>,
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Caller {}

impl Caller {
    /// A caller of a tenant.
    pub fn new(tenant: &str, name: impl Into<String>) -> Self {
        let name = Tenant::new(tenant).named(name);
        Self(Arc::new(Identity { name, login: None, client_id: None, origin: None, is_operator: false }))
    }

    /// A user who has logged in.
    pub fn logged_in(user: FullName, login: Login) -> Self {
        Self(Arc::new(Identity { name: user, login: Some(login), client_id: None, origin: None, is_operator: false }))
    }

    /// The same caller, who is there.
    #[must_use]
    pub(super) fn at(self, origin: Origin) -> Self {
        Self(Arc::new(Identity { origin: Some(origin), ..(*self.0).clone() }))
    }

    /// The same caller, an operator of the server, who asks in the place of a tenant.
    #[must_use]
    pub(crate) fn in_tenant(&self, tenant: &Tenant) -> Self {
        Self(Arc::new(Identity { name: tenant.named(self.name()), is_operator: true, ..(*self.0).clone() }))
    }

    /// Whether it is an operator of the server who asks in the place of the tenant.
    pub fn is_operator_in_tenant(&self) -> bool {
        self.0.is_operator
    }

    /// Where it is, if its requests do not come from this process.
    pub fn origin(&self) -> Option<Origin> {
        self.0.origin
    }

    /// The same caller as an MQTT client of this id.
    #[must_use]
    pub(crate) fn with_client_id(self, client_id: &str) -> Self {
        Self(Arc::new(Identity { client_id: Some(client_id.to_owned()), ..(*self.0).clone() }))
    }

    /// The person who runs this server: every client, unless an [`Authorizer`](super::Authorizer) tells clients apart.
    pub fn local_operator() -> Self {
        static OPERATOR: LazyLock<Caller> = LazyLock::new(|| Caller::new(Tenant::default().as_str(), "operator"));
        OPERATOR.clone()
    }

    /// The tenant that the caller belongs to. All names that the caller writes and sees belong to this tenant, except
    /// topics.
    pub fn tenant(&self) -> &Tenant {
        &self.0.name.tenant
    }

    /// The caller's name within its tenant.
    pub fn name(&self) -> &str {
        &self.0.name.name
    }

    /// What the caller has logged in with, if the server's own accounts know it.
    pub fn login(&self) -> Option<&Login> {
        self.0.login.as_ref()
    }

    /// Its id if it is an MQTT client.
    pub fn client_id(&self) -> Option<&str> {
        self.0.client_id.as_deref()
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
