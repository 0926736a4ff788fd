//! Tenants and their limits: a row of the catalog each, and a quota in memory.

use rivulet_sql::{Name, TenantLimit};

use super::record::limits_text;
use super::{Accounts, Known};
use crate::service::{AccountAnswer, ErrorKind, Limit, LimitUse, Limits, ServiceError, Tenant, TenantInfo};

/// The longest name of a user or tenant, in characters.
const NAME_CHARACTERS_MAX: usize = 64;

/// The most tenants.
const TENANTS_MAX: usize = 10_000;

impl Accounts {
    pub(super) fn create_tenant(
        &self,
        name: &Name,
        if_not_exists: bool,
        limits: &[TenantLimit],
    ) -> Result<AccountAnswer, ServiceError> {
        check_name("a tenant", name)?;
        let limits = changed(Limits::default(), limits)?;
        let tenant = Tenant::new(&name.text);
        let catalog = self.catalog()?;
        let _changing = self.changing.lock();
        let known = self.known.read();
        if known.has_tenant(&tenant) {
            return match if_not_exists {
                true => Ok(done(format!("tenant {name} exists, nothing was done"))),
                false => {
                    Err(at(ServiceError::new(ErrorKind::AlreadyExists, format!("the tenant '{name}' exists")), name))
                }
            };
        }
        if known.tenants.len() >= TENANTS_MAX {
            return Err(limit(format!("there are {TENANTS_MAX} tenants, which is the limit"), "drop one"));
        }
        drop(known);
        catalog.put_tenant(&tenant, limits_text(&limits).as_deref())?;
        self.quotas.set(&tenant, limits);
        self.known.write().tenants.insert(tenant);
        Ok(done(format!("tenant {name} created")))
    }

    /// Sets and removes limits of a tenant, which may be the default one.
    pub(super) fn alter_tenant(&self, name: &Name, limits: &[TenantLimit]) -> Result<AccountAnswer, ServiceError> {
        let tenant = Tenant::new(&name.text);
        let catalog = self.catalog()?;
        let _changing = self.changing.lock();
        if !self.known.read().has_tenant(&tenant) {
            return Err(at(no_tenant(&tenant), name));
        }
        let before = self.quotas.of(&tenant).own();
        let limits = changed(before, limits)?;
        if limits == before {
            return Ok(done(format!("tenant {name} has these limits already, nothing was done")));
        }
        catalog.put_tenant(&tenant, limits_text(&limits).as_deref())?;
        self.quotas.set(&tenant, limits);
        Ok(done(format!("limits of the tenant {name} changed")))
    }

    /// Whether there is a tenant, which may be dropped for all that accounts know.
    ///
    /// # Errors
    /// It is the default one, or has users.
    pub(crate) fn can_drop(&self, name: &Name) -> Result<bool, ServiceError> {
        let tenant = Tenant::new(&name.text);
        if tenant.is_default() {
            let error = ServiceError::new(ErrorKind::Conflict, "the default tenant cannot be dropped");
            return Err(at(error, name));
        }
        let known = self.known.read();
        if !known.has_tenant(&tenant) {
            return Ok(false);
        }
        let users = known.users.keys().filter(|user| user.tenant == tenant).count();
        if users > 0 {
            let message = format!("the tenant '{name}' has {}", crate::counted::counted(users as u64, "user"));
            let error = ServiceError::new(ErrorKind::Conflict, message)
                .with_hint("drop them first: DROP USER; DROP TENANT ... CASCADE drops all that it has");
            return Err(at(error, name));
        }
        Ok(true)
    }

    /// Its users.
    pub(crate) fn users_of(&self, tenant: &Tenant) -> Vec<String> {
        let known = self.known.read();
        known.users.keys().filter(|user| user.tenant == *tenant).map(|user| user.name.clone()).collect()
    }

    pub(super) fn drop_tenant(&self, name: &Name, if_exists: bool) -> Result<AccountAnswer, ServiceError> {
        let tenant = Tenant::new(&name.text);
        let catalog = self.catalog()?;
        let _changing = self.changing.lock();
        if !self.can_drop(name)? {
            return match if_exists {
                true => Ok(done(format!("there is no tenant {name}, nothing was done"))),
                false => Err(at(no_tenant(&tenant), name)),
            };
        }
        catalog.remove_tenant(&tenant)?;
        self.known.write().tenants.remove(&tenant);
        self.quotas.forget(&tenant);
        Ok(done(format!("tenant {name} dropped")))
    }

    /// Every tenant with its limits, the default one first. What is used of them is for the server to say.
    pub(super) fn tenants(&self) -> Vec<TenantInfo> {
        let known = self.known.read();
        let tenants = std::iter::once(Tenant::default()).chain(known.tenants.iter().cloned());
        let info = |tenant: Tenant| {
            let quota = self.quotas.of(&tenant);
            let limit = |limit| LimitUse { limit, used: None, most: quota.most(limit) };
            TenantInfo { name: tenant.to_string(), limits: Limit::ALL.into_iter().map(limit).collect() }
        };
        tenants.map(info).collect()
    }
}

impl Known {
    /// Whether a tenant exists.
    pub(super) fn has_tenant(&self, tenant: &Tenant) -> bool {
        tenant.is_default() || self.tenants.contains(tenant)
    }
}

/// Limits after a change.
fn changed(mut limits: Limits, changes: &[TenantLimit]) -> Result<Limits, ServiceError> {
    for (name, most) in changes {
        let Some(limit) = Limit::named(&name.text) else {
            let names = Limit::ALL.map(Limit::name);
            let error = ServiceError::invalid(format!("there is no limit '{name}'"));
            return Err(at(error.suggesting(&name.text, names, format!("limits are {}", names.join(", "))), name));
        };
        if let Some(most) = *most
            && !(limit.least()..=limit.greatest()).contains(&most)
        {
            let (least, greatest) = (limit.least(), limit.greatest());
            let message = format!("the limit {name} is a whole number from {least} to {greatest}");
            return Err(at(ServiceError::invalid(message).with_hint("NULL removes it"), name));
        }
        limits.set(limit, *most);
    }
    Ok(limits)
}

pub(super) fn check_name(what: &str, name: &Name) -> Result<(), ServiceError> {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "_-.@".contains(one);
    let length = name.text.chars().count();
    if (1..=NAME_CHARACTERS_MAX).contains(&length) && name.text.chars().all(is_plain) {
        return Ok(());
    }
    let message = format!("the name of {what} has 1 to {NAME_CHARACTERS_MAX} letters, digits, '_', '-', '.' and '@'");
    let hint = "it stands in topics and logs, so it has no other characters";
    Err(at(ServiceError::invalid(message).with_hint(hint), name))
}

pub(super) fn no_tenant(tenant: &Tenant) -> ServiceError {
    ServiceError::not_found(format!("there is no tenant '{tenant}'")).with_hint("SHOW TENANTS lists them")
}

pub(super) fn limit(message: String, hint: &str) -> ServiceError {
    ServiceError::new(ErrorKind::LimitReached, message).with_hint(hint)
}

pub(super) fn done(message: String) -> AccountAnswer {
    AccountAnswer::Done(message)
}

pub(super) fn at(error: ServiceError, name: &Name) -> ServiceError {
    error.at_place(name.position.into())
}
