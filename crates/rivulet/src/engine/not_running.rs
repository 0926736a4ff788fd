//! What the catalog holds and this version cannot run, for example after an upgrade: applications that are not planned
//! any more (or whose reference table has no file), and queries whose parameters do not fit. They are listed with the
//! reason, their names stay taken, and they can be dropped; nothing else can be done with them.

use bytes::Bytes;
use rivulet_dataflow::QueryId;

use super::State;
use crate::catalog::{ApplicationNumber, StoredApplication};
use crate::service::{ApplicationInfo, ApplicationStatus, ErrorKind, ServiceError};

/// An application that cannot run.
pub(super) struct NotRunning {
    pub(super) stored: StoredApplication,
    /// What was saved of its queries, for when it can run.
    pub(super) saved: Option<Vec<Bytes>>,
    reason: String,
    /// What to do about the reason, where that is known.
    remedy: Option<String>,
}

impl NotRunning {
    pub(super) fn new(stored: StoredApplication, saved: Option<Vec<Bytes>>, error: &ServiceError) -> Self {
        let reason = match (error.line, error.column) {
            (Some(line), Some(column)) => format!("{} (line {line}, column {column})", error.message),
            _ => error.message.clone(),
        };
        Self { stored, saved, reason, remedy: error.hint.clone() }
    }

    /// What is answered to whoever wants to use it.
    pub(super) fn conflict(&self) -> ServiceError {
        let name = &self.stored.name;
        let remedy = self.remedy.as_ref().map_or_else(String::new, |remedy| format!("{remedy}, or "));
        ServiceError::new(ErrorKind::Conflict, format!("the application '{name}' is not running: {}", self.reason))
            .with_hint(format!(
                "{remedy}drop it (DROP APPLICATION {} CASCADE) and register it as this version wants it",
                rivulet_sql::name_in_sql(name)
            ))
    }

    pub(super) fn info(&self, queries_not_running: u64) -> ApplicationInfo {
        ApplicationInfo {
            id: self.stored.id.clone(),
            name: self.stored.name.clone(),
            sql: self.stored.text().into_owned(),
            parameters: Vec::new(),
            input_topic: String::new(),
            output_topic: String::new(),
            queries_running: 0,
            queries_paused: 0,
            queries_not_running,
            not_running: Some(self.reason.clone()),
            warnings: Vec::new(),
        }
    }
}

impl State {
    /// An application that does not run, by name or by id.
    pub(super) fn not_running(&self, name_or_id: &str) -> Option<&NotRunning> {
        let by_id = || self.not_running.values().find(|one| one.stored.id == name_or_id);
        self.not_running.get(name_or_id).or_else(by_id)
    }

    /// Notes that a query does not fit this version. It stays in the registry, without a slot.
    pub(super) fn leave_out(&mut self, application: ApplicationNumber, query: QueryId, error: &ServiceError) {
        tracing::error!(query, "a registered query is not running: {error}");
        *self.queries_not_running.entry(application).or_default() += 1;
    }

    /// How many queries of an application do not run.
    pub(super) fn queries_not_running(&self, application: ApplicationNumber) -> u64 {
        self.queries_not_running.get(&application).copied().unwrap_or(0)
    }

    /// Adds what does not run to the status of what does, applications in order of name.
    pub(super) fn complete_status(&self, applications: &mut Vec<ApplicationStatus>) {
        for status in applications.iter_mut() {
            if let Some(running) = self.applications.get(&status.name) {
                status.queries_not_running = self.queries_not_running(running.number);
            }
        }
        applications.extend(self.not_running.values().map(|one| ApplicationStatus {
            name: one.stored.name.clone(),
            queries_not_running: self.queries_not_running(one.stored.number),
            not_running: Some(one.reason.clone()),
            ..ApplicationStatus::default()
        }));
        applications.sort_by(|one, other| one.name.cmp(&other.name));
    }
}
