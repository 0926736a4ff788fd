//! The surroundings of an engine in a trial: results go to a list, and there is no disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rivulet_connectors::mqtt::{PublishBatch, Publisher, RoomCallback};
use rivulet_storage::{Disk, DiskFile};

use crate::engine::stepped::Network;

/// Collects results.
#[derive(Default)]
pub(crate) struct Results(Arc<List>);

#[derive(Default)]
struct List {
    waiting: Mutex<Vec<(String, Vec<u8>)>>,
    count: AtomicU64,
}

impl Results {
    /// The results since the last call: topics and payloads.
    pub(crate) fn take(&self) -> Vec<(String, Vec<u8>)> {
        std::mem::take(&mut self.0.waiting.lock())
    }
}

impl Network for Results {
    fn publisher(&self) -> Arc<dyn Publisher> {
        self.0.clone()
    }
}

impl Publisher for List {
    fn submit(&self, batch: &mut PublishBatch) {
        let messages = (0..batch.len()).filter_map(|index| batch.get(index));
        let mut waiting = self.waiting.lock();
        waiting.extend(messages.map(|message| (message.topic.to_owned(), message.payload.to_vec())));
        self.count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        batch.clear();
    }

    fn has_room(&self) -> bool {
        true
    }

    fn on_room(&self, _callback: RoomCallback) {}

    fn next(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn first_left(&self) -> u64 {
        self.next()
    }
}

/// The disk of a log to which nothing is written: a trial makes no input durable.
#[derive(Debug)]
pub(super) struct NoDisk;

impl Disk for NoDisk {
    fn make_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
        Ok(Vec::new())
    }

    fn read(&self, _path: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open(path)
    }

    fn open(&self, _path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }
}
