//! Applications and queries in the catalog that this version cannot run, for example after an upgrade: applications
//! that cannot be planned any more (or whose reference table has no file), and queries whose parameters do not fit.
//! They are listed with the reason, keep their names, and can be dropped; nothing else can be done with them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::catalog::{ApplicationNumber, StoredApplication};
use crate::service::{ApplicationInfo, ApplicationStatus, ErrorKind, ServiceError};

/// The saved state of applications, as it was read.
#[derive(Default)]
pub(super) struct Unrestored {
    pub(super) pieces: BTreeMap<ApplicationNumber, Vec<Bytes>>,
    /// The catalog had the changes of values with numbers below this. It can be older than the state, as a catalog from
    /// a store can be. State that was saved with values that the catalog does not know is not restored.
    pub(super) altered_next: u64,
}

/// Why an application cannot run.
pub(super) struct Refusal {
    pub(super) error: ServiceError,
    /// Whether it cannot run whatever tables there are.
    pub(super) is_final: bool,
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        Self { error, is_final: false }
    }
}

/// An application that cannot run.
pub(super) struct NotRunning {
    pub(super) stored: StoredApplication,
    /// Its code as users see it.
    shown: String,
    /// The number of its queries.
    pub(super) queries: u64,
    /// The saved state of its queries, for when it can run.
    pub(super) saved: Option<Vec<Bytes>>,
    reason: String,
    /// The remedy, if one is known.
    remedy: Option<String>,
    /// As [`Refusal`] has it.
    pub(super) is_final: bool,
}

impl NotRunning {
    pub(super) fn new(stored: StoredApplication, shown: String, Refusal { error, is_final }: Refusal) -> Self {
        let reason = match (error.line, error.column) {
            (Some(line), Some(column)) => format!("{} (line {line}, column {column})", error.message),
            _ => error.message,
        };
        Self { stored, shown, queries: 0, saved: None, reason, remedy: error.hint, is_final }
    }

    /// The same application after another attempt to start it failed.
    pub(super) fn again(self, refusal: Refusal) -> Self {
        Self { queries: self.queries, saved: self.saved, ..Self::new(self.stored, self.shown, refusal) }
    }

    /// The answer to callers that want to use it.
    pub(super) fn conflict(&self) -> ServiceError {
        let name = &self.stored.name;
        let remedy = self.remedy.as_ref().map_or_else(String::new, |remedy| format!("{remedy}, or "));
        ServiceError::new(ErrorKind::Conflict, format!("the application '{name}' is not running: {}", self.reason))
            .with_hint(format!(
                "{remedy}drop it (DROP APPLICATION {} CASCADE) and register it as this version wants it",
                rivulet_sql::name_in_sql(&name.name)
            ))
    }

    /// Its entry in a list.
    pub(super) fn info(&self) -> ApplicationInfo {
        ApplicationInfo {
            id: self.stored.id.clone(),
            name: self.stored.name.name.clone(),
            sql: self.shown.clone(),
            queries_not_running: self.queries,
            not_running: Some(self.reason.clone()),
            ..ApplicationInfo::default()
        }
    }

    pub(super) fn status(&self) -> ApplicationStatus {
        ApplicationStatus {
            name: self.stored.name.name.clone(),
            queries_not_running: self.queries,
            not_running: Some(self.reason.clone()),
            ..ApplicationStatus::default()
        }
    }
}
