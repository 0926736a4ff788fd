//! Tenants and users in the catalog.

use super::tables::{TENANTS, USERS};
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

    /// Stores a tenant.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn insert_tenant(&self, tenant: &Tenant) -> Result<(), CatalogError> {
        self.write(|transaction| Ok(transaction.open_table(TENANTS)?.insert(tenant.as_str(), ()).map(drop)?))
    }

    /// Removes a tenant.
    ///
    /// # Errors
    /// Disk errors, and damage; nothing is changed then.
    pub fn remove_tenant(&self, tenant: &Tenant) -> Result<(), CatalogError> {
        self.write(|transaction| Ok(transaction.open_table(TENANTS)?.remove(tenant.as_str()).map(drop)?))
    }
}
