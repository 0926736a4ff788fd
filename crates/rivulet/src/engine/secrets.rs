//! Secrets as statements and requests know them: made, shown without their values, and dropped if nothing names them.

use rivulet_connectors::clock::SystemClock;
use rivulet_dataflow::Clock;
use rivulet_sql::{CreateSecret, parse_stored};
use serde_json::json;

use super::Engine;
use super::answers::{first, rows_max, said};
use crate::like;
use crate::service::{ErrorKind, FullName, SecretInfo, ServiceError, StatementResult, Tenant};

impl Engine {
    /// Carries out `CREATE SECRET`.
    pub(super) fn create_secret(&self, tenant: &Tenant, create: CreateSecret) -> Result<StatementResult, ServiceError> {
        let CreateSecret { name, if_not_exists, replaces, value } = create;
        let done = self.put(&tenant.named(&name.text), value.0, replaces);
        Ok(said(match done {
            Ok(false) => format!("secret {name} created"),
            Ok(true) => {
                format!(
                    "secret {name} replaced; headers of HTTP take it with the next request, links when they connect, \
                     other sources and sinks when opened next"
                )
            }
            Err(error) if if_not_exists && error.kind == ErrorKind::AlreadyExists => {
                format!("secret {name} exists, nothing was done")
            }
            Err(error) => return Err(error.at(name.position.line, name.position.column)),
        }))
    }

    /// Gives a secret its value, whether there is one of its name or not.
    pub(super) fn put_secret_of(&self, name: &FullName, value: String) -> Result<SecretInfo, ServiceError> {
        self.put(name, value, true)?;
        let mut infos = self.secret_infos(&name.tenant).into_iter();
        let gone = || ServiceError::not_found(format!("the secret '{name}' was dropped meanwhile"));
        infos.find(|info| info.name == name.name).ok_or_else(gone)
    }

    /// The same, for which applications may have waited since the start. Returns whether there was one of its name.
    fn put(&self, name: &FullName, value: String, replaces: bool) -> Result<bool, ServiceError> {
        let is_replaced = self.secrets.put(name, value, replaces, now_ms())?;
        self.queries.start_again()?;
        Ok(is_replaced)
    }

    /// Drops a secret that nothing names. What is declared meanwhile and names it cannot be opened.
    pub(super) fn drop_secret_of(&self, name: &FullName) -> Result<(), ServiceError> {
        let used_by = self.uses_of_secrets(&name.tenant).into_iter();
        let used_by: Vec<String> = used_by.filter(|(secret, _)| *secret == name.name).map(|(_, user)| user).collect();
        if used_by.is_empty() || self.secrets.value(name).is_none() {
            return self.secrets.remove(name);
        }
        let message = format!("the secret '{name}' is in use: {}", used_by.join(", "));
        Err(ServiceError::new(ErrorKind::Conflict, message)
            .with_hint("drop what names it first; CREATE OR REPLACE SECRET gives it another value"))
    }

    /// The secrets of a tenant, by name.
    pub(super) fn secret_infos(&self, tenant: &Tenant) -> Vec<SecretInfo> {
        let uses = self.uses_of_secrets(tenant);
        let mut infos = self.secrets.infos(tenant);
        for info in &mut infos {
            let used_by = uses.iter().filter(|(secret, _)| *secret == info.name);
            info.used_by = used_by.map(|(_, user)| user.clone()).collect();
        }
        infos
    }

    pub(super) fn show_secrets(&self, tenant: &Tenant, like: Option<&str>, limit: Option<u64>) -> StatementResult {
        let infos = self.secret_infos(tenant).into_iter();
        let infos = infos.filter(|one| like.is_none_or(|pattern| like::like(&one.name, pattern)));
        let row = |one: SecretInfo| vec![json!(one.name), json!(one.changed_at_ms), json!(one.used_by.join(", "))];
        first(rows_max(limit), &["name", "changed_at_ms", "used_by"], infos.map(row))
    }

    /// The secrets that statements of a tenant name, each with what names it.
    fn uses_of_secrets(&self, tenant: &Tenant) -> Vec<(String, String)> {
        let mut uses = self.big_queries.uses_of_secrets(tenant);
        for info in self.applications.infos(tenant) {
            // The text has no values of secrets, and their names.
            let Ok(stored) = parse_stored(&info.sql) else { continue };
            let user = format!("application '{}'", info.name);
            uses.extend(stored.statement.secrets().into_iter().map(|(secret, _)| (secret.to_owned(), user.clone())));
        }
        uses.sort();
        uses.dedup();
        uses
    }
}

fn now_ms() -> i64 {
    SystemClock.now_us() / 1_000
}
