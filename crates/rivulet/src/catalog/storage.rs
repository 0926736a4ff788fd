//! The file of the storage library, and two peculiarities of that library: it panics on some damaged pages instead of
//! returning an error, and after a failed write it writes nothing more until the file is opened again.
//!
//! What must hold: no panic leaves this file, and none is printed. The exception is a panic during another one, which
//! ends the process in any case: then the reason is printed. After a failed write the next one opens the file again, so
//! that a disk that was full and has space again is written to without a restart.

use std::cell::Cell;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use redb::Database;

use super::record;

/// Name of the catalog's file in the data folder.
pub const FILE_NAME: &str = "catalog.redb";

/// How long opening the file again waits for readers.
const READERS_WAIT_MAX: Duration = Duration::from_secs(1);

/// The errors of a transaction, before the file's name is added.
#[derive(Debug)]
pub(super) enum Failure {
    Storage(redb::Error),
    Damage(String),
}

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Storage(error.into())
    }
}

impl From<record::RecordError> for Failure {
    fn from(error: record::RecordError) -> Self {
        Self::Damage(error.to_string())
    }
}

/// Opens the file.
type Open = Box<dyn Fn() -> Result<Database, redb::Error> + Send + Sync>;

/// The open file.
pub(super) struct Storage {
    open: Open,
    /// `None` if it could not be opened again after a failed write.
    database: RwLock<Option<Database>>,
    /// Whether a write failed, so that the file has to be opened again before the next one.
    has_failed: AtomicBool,
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("has_failed", &self.has_failed).finish_non_exhaustive()
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        close(self.database.get_mut());
    }
}

/// Closes the file. That also writes, and reads pages that a panic may have left behind. Damage was reported before,
/// and acknowledged changes are on the disk.
fn close(database: &mut Option<Database>) {
    let closed = guard(|| {
        drop(database.take());
        Ok(())
    });
    if let Err(failure) = closed {
        tracing::debug!("the catalog was not closed: {failure:?}");
    }
}

impl Storage {
    /// Opens the file; `open` is called again after a failed write.
    pub(super) fn open(
        open: impl Fn() -> Result<Database, redb::Error> + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        let database = guard(|| Ok(open()?))?;
        Ok(Self { open: Box::new(open), database: RwLock::new(Some(database)), has_failed: AtomicBool::new(false) })
    }

    /// Whether the last write failed because of the disk.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Reads; `work` itself wraps its calls of the storage library in [`guard`].
    pub(super) fn read<T>(&self, work: impl FnOnce(&Database) -> Result<T, Failure>) -> Result<T, Failure> {
        match &*self.database.read_recursive() {
            Some(database) => work(database),
            None => Err(Failure::Storage(redb::Error::PreviousIo)),
        }
    }

    /// Writes. If the write before failed, the file is opened again first.
    pub(super) fn write<T>(&self, work: impl FnOnce(&Database) -> Result<T, Failure>) -> Result<T, Failure> {
        self.recover()?;
        let done = self.read(|database| guard(|| work(database)));
        if let Err(Failure::Storage(redb::Error::Io(_) | redb::Error::PreviousIo)) = &done {
            self.has_failed.store(true, Ordering::Release);
        }
        done
    }

    /// Opens the file again if the last write failed, for callers that read what they are about to write.
    pub(super) fn recover(&self) -> Result<(), Failure> {
        if self.has_failed() { self.open_again() } else { Ok(()) }
    }

    fn open_again(&self) -> Result<(), Failure> {
        // A reader may wait for a lock that the caller holds.
        let Some(mut database) = self.database.try_write_for(READERS_WAIT_MAX) else {
            return Err(Failure::Storage(redb::Error::PreviousIo));
        };
        // Another caller has opened it meanwhile.
        if !self.has_failed() {
            return Ok(());
        }
        // Closed first: an open file is locked.
        close(&mut database);
        *database = Some(guard(|| Ok((self.open)()?))?);
        self.has_failed.store(false, Ordering::Release);
        Ok(())
    }
}

thread_local! {
    /// Whether this thread is in a call of the storage library whose panics are caught.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
    /// Whether a panic is under way.
    static HAS_PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// The exit code of a process that ends because of its catalog.
const ENDED: i32 = 1;

/// Calls the storage library. It panics on some damaged pages instead of returning an error; that is damage to report,
/// not a reason to end the server. No code of the caller runs in here, so no other panic is taken for damage.
pub(super) fn guard<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match IS_GUARDED.get() {
            true if HAS_PANICKED.replace(true) => end(),
            true => tracing::debug!("the storage library: {panic}"),
            false => before(panic),
        }));
    });
    let (was_guarded, had_panicked) = (IS_GUARDED.replace(true), HAS_PANICKED.replace(false));
    let done = std::panic::catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was_guarded);
    HAS_PANICKED.set(had_panicked);
    done.unwrap_or_else(|_| Err(Failure::Damage("the storage library stopped at a page that makes no sense".into())))
}

/// The storage library has panicked while it cleaned up after a panic: nothing can catch that.
fn end() {
    eprintln!(
        "error: the catalog ({} in the data folder) is damaged so that whoever opens it ends\n\
         hint: restore it from a backup, or move it away to start with an empty catalog",
        FILE_NAME
    );
    std::process::exit(ENDED);
}
