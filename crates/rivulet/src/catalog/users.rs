//! Tenants and users in the catalog.

use super::tables::{QUOTAS, TENANTS, USERS};
use super::{Catalog, CatalogError, full_name};
use crate::service::{FullName, Tenant};

impl Catalog {
    /// Every user and the text of its record, by tenant and name.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn users(&self) -> Result<Vec<(FullName, String)>, CatalogError> {
        use redb::ReadableTable;
        self.look(|transaction| {
            let mut users = Vec::new();
            for entry in transaction.open_table(USERS)?.iter()? {
                let (name, record) = entry?;
                users.push((full_name(name.value())?, record.value().to_owned()));
            }
            Ok(users)
        })
    }

    /// Stores the records of users, or removes users that have none; all or nothing.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn put_users(&self, users: &[(&FullName, Option<&str>)]) -> Result<(), CatalogError> {
        self.write(|transaction| {
            let mut table = transaction.open_table(USERS)?;
            for (name, record) in users {
                let key = name.tenant.encode(&name.name);
                match record {
                    Some(record) => table.insert(&*key, *record).map(drop)?,
                    None => table.remove(&*key).map(drop)?,
                }
            }
            Ok(())
        })
    }

    /// Every tenant besides the default one, by name.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn tenants(&self) -> Result<Vec<Tenant>, CatalogError> {
        use redb::ReadableTable;
        self.look(|transaction| {
            let table = transaction.open_table(TENANTS)?;
            table.iter()?.map(|entry| Ok(Tenant::new(entry?.0.value()))).collect()
        })
    }

    /// The limits of tenants that have any, as text.
    ///
    /// # Errors
    /// Disk errors, and damage.
    pub fn quotas(&self) -> Result<Vec<(Tenant, String)>, CatalogError> {
        use redb::ReadableTable;
        self.look(|transaction| {
            let mut quotas = Vec::new();
            for entry in transaction.open_table(QUOTAS)?.iter()? {
                let (tenant, limits) = entry?;
                quotas.push((Tenant::new(tenant.value()), limits.value().to_owned()));
            }
            Ok(quotas)
        })
    }

    /// Stores a tenant, which may be there, with the text of its limits, if it has any.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn put_tenant(&self, tenant: &Tenant, limits: Option<&str>) -> Result<(), CatalogError> {
        self.write(|transaction| {
            if !tenant.is_default() {
                transaction.open_table(TENANTS)?.insert(tenant.as_str(), ())?;
            }
            let mut quotas = transaction.open_table(QUOTAS)?;
            match limits {
                Some(limits) => quotas.insert(tenant.as_str(), limits).map(drop)?,
                None => quotas.remove(tenant.as_str()).map(drop)?,
            }
            Ok(())
        })
    }

    /// Removes a tenant with its limits.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn remove_tenant(&self, tenant: &Tenant) -> Result<(), CatalogError> {
        self.write(|transaction| {
            transaction.open_table(QUOTAS)?.remove(tenant.as_str())?;
            Ok(transaction.open_table(TENANTS)?.remove(tenant.as_str()).map(drop)?)
        })
    }
}
