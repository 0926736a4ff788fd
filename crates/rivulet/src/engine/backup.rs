//! A backup of the server while it runs: what a restart would find if the process were killed at one moment.
//!
//! First it makes a checkpoint (if none can be made now, the last one is used). Then it copies catalog and secrets,
//! then the log and the embedded broker's journal, so that each has what the one before it needs: the log has all
//! events after the checkpoint, and the journal has the checkpoint's results for absent subscribers. Queries that were
//! created after the checkpoint begin anew, as after a crash. Objects of checkpoints and complete frames of logs never
//! change, so they are read while the server continues. The server deletes no checkpoint meanwhile. It may shorten its
//! logs: the backup has names of its own for their files.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::checkpoints::coordinator::Coordinator;
use super::event_log::EventLog;
use super::messaging::Messaging;
use crate::catalog::Catalog;
use crate::data_folder::archive::{ArchiveError, Copies, LiveBackup};
use crate::data_folder::{LOG, MQTT};
use crate::secrets::Secrets;
use crate::service::{Backup, ErrorKind, ServiceError};

/// How long a backup waits for a log to be on disk.
const DISK_WAIT_MAX: Duration = Duration::from_secs(30);

/// Makes backups of a server.
pub(super) struct Backups {
    pub(super) data_dir: PathBuf,
    pub(super) secrets: Arc<Secrets>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) messaging: Arc<Messaging>,
    pub(super) event_log: Arc<EventLog>,
    pub(super) coordinator: Arc<Coordinator>,
    /// Held by the backup that is being made.
    pub(super) current: Mutex<Weak<()>>,
}

impl Backups {
    /// Begins a backup of everything as it is now.
    pub(super) fn begin(&self) -> Result<Box<dyn Backup>, ServiceError> {
        let token = {
            let mut current = self.current.lock();
            if current.strong_count() > 0 {
                return Err(ServiceError::new(ErrorKind::Conflict, "a backup is being made already")
                    .with_hint("wait until it is there: one at a time is enough for disk and network"));
            }
            let token = Arc::new(());
            *current = Arc::downgrade(&token);
            token
        };
        // From here on nothing is deleted, so that everything that the checkpoint needs still exists when it is listed.
        let _kept = self.event_log.hold();
        let checkpoints = self.coordinator.checkpoints.as_ref();
        let store = checkpoints.map(|checkpoints| checkpoints.store().0);
        let held = store.map(|store| (store, store.hold()));
        let notices = self.checkpoint_for_backup();
        notices.iter().for_each(|notice| tracing::warn!("{notice}"));
        // No epoch may be half written while the store is listed.
        let _no_checkpoint = checkpoints.map(|checkpoints| checkpoints.pause());
        let refused =
            |error: ArchiveError| ServiceError::new(ErrorKind::Unavailable, error.to_string()).with_hint(error.hint());
        let copies = Copies::new(&self.data_dir).map_err(refused)?;
        self.catalog.copy_to(&copies.catalog())?;
        self.secrets.copy_to(&copies.secrets()).map_err(|error| {
            ServiceError::new(ErrorKind::Unavailable, format!("the secrets cannot be copied: {error}"))
        })?;
        let journal = self.messaging.journal();
        let not_on_disk = if !self.event_log.wait_all_durable(DISK_WAIT_MAX) {
            Some("the log of events is not on disk yet")
        } else if journal.is_some_and(|journal| !journal.wait_all_durable(DISK_WAIT_MAX)) {
            Some("the embedded broker's journal is not on disk yet")
        } else {
            None
        };
        if let Some(message) = not_on_disk {
            return Err(ServiceError::new(ErrorKind::Unavailable, message).with_hint("look at the disk, and try again"));
        }
        let journal = journal.map(|journal| (MQTT, journal.hold()));
        let logs: Vec<_> = [(LOG, self.event_log.hold())].into_iter().chain(journal).collect();
        let backup = LiveBackup::new(copies, held, &logs, token, notices).map_err(refused)?;
        tracing::info!("a backup is being made");
        Ok(Box::new(backup))
    }

    /// Makes a checkpoint, so that a restored backup has little to replay. Returns for which queries none can be made
    /// now. Then their last one is used: the log is kept from there on, so both together are what a crash would leave.
    fn checkpoint_for_backup(&self) -> Vec<String> {
        if self.coordinator.checkpoints.is_none() {
            return Vec::new();
        }
        match self.coordinator.make_of_most() {
            Ok((_, failures)) => failures
                .iter()
                .map(|failure| format!("the backup has an older checkpoint of a big query: {failure}"))
                .collect(),
            Err(error) => vec![format!(
                "the backup has the checkpoint before, and the log of what durable inputs have received since, for {}",
                error.message
            )],
        }
    }
}
