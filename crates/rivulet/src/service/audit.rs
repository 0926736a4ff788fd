//! What callers did, and what was refused to them, for a record that others keep.

use std::{fmt, io};

use serde_json::Value;

use super::caller::{Caller, Origin};
use super::error::{ErrorKind, ServiceError};
use super::names::Tenant;
use super::resource::{Action, Resource};

/// One thing that somebody did or tried to do, or was refused.
#[derive(Clone, Copy, Debug)]
pub struct AuditEntry<'a> {
    /// Who; `None` if a login was refused.
    pub caller: Option<&'a Caller>,
    /// Where the request comes from, if it does not come from this process.
    pub origin: Option<Origin>,
    /// What; `None` for a login.
    pub action: Option<Action>,
    /// What it is about; `None` for a login.
    pub resource: Option<Resource<'a>>,
    /// How many of the kind, as in a bulk submission.
    pub count: usize,
    /// The statement without its values.
    pub statement: Option<&'a str>,
    /// Why it was refused; `None` if it was allowed.
    pub refused: Option<&'a str>,
    /// What kind of error came of what was allowed; `None` if it was done. The error's message may quote values.
    pub failed: Option<ErrorKind>,
}

/// Keeps a record of what callers do.
pub trait Auditor: Send + Sync + 'static {
    /// Takes note of something. It must not wait: it is called on the way of messages too.
    fn note(&self, entry: &AuditEntry<'_>);

    /// Takes note of a client that was refused because it gave no credentials. There may be any number of them, and
    /// they must not take the place of other entries.
    fn note_anonymous(&self, origin: Option<Origin>, refused: &'static str);

    /// Keeps what is recorded of a tenant that was dropped from the next one of its name.
    fn set_aside(&self, tenant: &Tenant) {
        let _ = tenant;
    }

    /// Whether changes may be made now.
    ///
    /// # Errors
    /// The record cannot be written now, and no change is to be without it.
    fn admits_changes(&self) -> Result<(), ServiceError>;

    /// How many entries were lost since the start.
    fn lost(&self) -> u64;

    /// The last entries, newest first: of a tenant, or all. At most `limit`, and those that can be read at once.
    ///
    /// # Errors
    /// They cannot be read.
    fn last(&self, tenant: Option<&Tenant>, limit: usize) -> io::Result<Vec<Value>> {
        let _ = (tenant, limit);
        Ok(Vec::new())
    }
}

impl fmt::Debug for dyn Auditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auditor")
    }
}

/// The text of a statement for the record: up to its first value, which may be a secret, and of limited length.
pub fn without_values(statement: &str) -> String {
    const CHARACTERS_MAX: usize = 500;
    let end = statement.find(['\'', '$']).unwrap_or(statement.len());
    let mut text: String = statement[..end].split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((cut, _)) = text.char_indices().nth(CHARACTERS_MAX) {
        text.truncate(cut);
    }
    if text.len() < statement.trim_end().trim_end_matches(';').trim_end().len() && end < statement.len() {
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_recorded_up_to_its_first_value() {
        assert_eq!(without_values("DROP QUERY\n  q ;"), "DROP QUERY q ;");
        assert_eq!(
            without_values("CREATE SINK s TO 'http://user:rose@h/' FORMAT JSON WITH (token => 'tulip')"),
            "CREATE SINK s TO ..."
        );
        assert_eq!(without_values("CREATE SECRET s AS $$rose$$"), "CREATE SECRET s AS ...");
        assert!(without_values(&"x ".repeat(10_000)).len() <= 500);
    }
}
