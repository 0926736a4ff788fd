//! The data of the embedded broker that outlives the process: a log of its own in the data folder, with commits in
//! groups like the log of events.

use std::sync::Arc;
use std::time::Duration;

use rivulet_connectors::mqtt::{Journal, Room};
use rivulet_dataflow::LogPosition;
use rivulet_storage::log::{Appended, HeldLog, Log, LogSettings, Record};
use tokio::sync::Notify;

use crate::config::{Config, EmbeddedBrokerConfig};
use crate::data_folder::MQTT;
use crate::service::{ErrorKind, ServiceError};

/// The most data that waits in memory before the broker refuses anything that has to be saved. The rest of the log's
/// memory is for data that is in flight then.
const GATHERED_BYTES_MAX: usize = 8 << 20;

/// The kept data is written anew when it is less than half of the log. So there is up to three times as much while that
/// goes on, and one more share for data that comes meanwhile.
const DISK_SHARES: u64 = 4;

/// The least bound of the log.
const DISK_BYTES_MIN: u64 = 256 << 20;

pub(super) struct BrokerJournal {
    /// The log has no bound of its own: the records that shorten it have to be written first, however long it is.
    log: Log,
    bytes_max: u64,
}

impl BrokerJournal {
    /// Opens the journal in the data folder.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn open(config: &Config, broker: &EmbeddedBrokerConfig) -> Result<Arc<Self>, ServiceError> {
        let bytes_max =
            (broker.limits.memory_bytes_max as u64).saturating_mul(DISK_SHARES).saturating_add(DISK_BYTES_MIN);
        let settings = LogSettings {
            bytes_max: u64::MAX,
            commit_interval: config.durability.commit_interval,
            ..LogSettings::default()
        };
        let opened = Log::open(&config.data_dir.join(MQTT), settings);
        let (log, _) = opened.map_err(|error| ServiceError::from_text(ErrorKind::Unavailable, &error.to_string()))?;
        Ok(Arc::new(Self { log, bytes_max }))
    }

    /// Why nothing can be saved now.
    pub(super) fn problem(&self) -> Option<String> {
        self.log.stats().problem.or_else(|| {
            let (bytes, bytes_max) = (self.log.disk_bytes(), self.bytes_max);
            (bytes >= bytes_max).then(|| {
                format!(
                    "the embedded broker's journal has {bytes} bytes and may have {bytes_max}: it is being shortened"
                )
            })
        })
    }

    fn can_gather(&self) -> bool {
        self.log.gathered_bytes() < GATHERED_BYTES_MAX
    }

    /// Waits until all appended data is on disk; returns whether it is.
    pub(super) fn wait_all_durable(&self, limit: Duration) -> bool {
        self.log.wait_durable(self.log.next() - 1, limit)
    }

    /// Its current files. None is deleted as long as the returned value exists.
    pub(super) fn hold(&self) -> HeldLog {
        self.log.hold()
    }

    /// Writes the waiting data, and ends.
    pub(super) fn close(&self) {
        let left = self.log.close();
        if left > 0 {
            tracing::error!(changes = left, "changes of the embedded broker's sessions could not be saved");
        }
    }
}

impl Journal for BrokerJournal {
    fn append(&self, record: &[u8], may_exceed: bool) -> Option<LogPosition> {
        if !may_exceed && self.log.disk_bytes() >= self.bytes_max {
            return None;
        }
        let record = Record { position: 0, arrival_us: 0, client: b"", packet_id: 0, topic: b"", payload: record };
        match self.log.append(&record, may_exceed, |_| true) {
            Appended::At(position) => Some(position),
            Appended::NotTaken | Appended::Full => None,
        }
    }

    fn room(&self) -> Room {
        match self.can_gather() && self.log.disk_bytes() < self.bytes_max {
            true => Room::Free,
            false if self.log.is_broken() => Room::Broken,
            false => Room::Wait,
        }
    }

    fn can_rewrite(&self) -> bool {
        self.can_gather() && !self.log.is_broken()
    }

    fn next(&self) -> LogPosition {
        self.log.next()
    }

    fn durable(&self) -> LogPosition {
        self.log.durable()
    }

    fn committed(&self) -> &Notify {
        self.log.committed()
    }

    fn disk_bytes(&self) -> u64 {
        self.log.disk_bytes()
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn forget_before(&self, position: LogPosition) -> bool {
        self.log.forget_before(position)
    }

    fn read(&self, take: &mut dyn FnMut(LogPosition, &[u8])) -> Result<(), String> {
        let read = self.log.read(0, LogPosition::MAX, &mut |record| {
            take(record.position, record.payload);
            true
        });
        let read = read.map_err(|error| error.to_string())?;
        if read.lost > 0 {
            tracing::error!(
                changes = read.lost,
                "changes of the embedded broker's sessions were lost: its journal is damaged"
            );
        }
        Ok(())
    }
}
