//! Objects by name in a folder of this machine ([`local`]) or a bucket of an object store ([`s3`]), and the server they
//! belong to ([`owner`]).
//!
//! What must hold: when [`Store::put`] has returned, the object survives a loss of power. An object exists as a whole
//! or not at all.

mod local;
mod owner;
mod s3;

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;

use crate::{Disk, RealDisk, StorageError};
use local::{Folder, io_error};
pub use owner::Owner;
#[cfg(test)]
pub(crate) use s3::test_settings;
use s3::{Bucket, Failure, explained};
pub use s3::{BucketName, Credentials, S3Settings};

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket of an object store, or the objects in it whose names begin with a prefix.
    S3(S3Settings),
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(formatter, "{}", folder.display()),
            Self::S3(settings) => write!(formatter, "{}", settings.name),
        }
    }
}

/// Objects by name. Calls wait for the disk or the network, so they belong on threads of their own, never in a task of
/// an asynchronous runtime.
#[derive(Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    home: Home,
    place: String,
    runtime: Waiting,
    /// The number of [`Hold`]s; nothing is deleted while there are any.
    holds: AtomicUsize,
}

/// The kind of store.
#[derive(Debug)]
enum Home {
    Memory,
    Folder(Folder),
    Bucket(Bucket),
}

/// The most requests to an object store, or system calls, in progress at a time.
const WAITING_THREADS_MAX: usize = 8;

/// The most objects in a list.
const LISTED_MAX: usize = 10_000_000;

/// Runs asynchronous calls of an object store and waits for them.
#[derive(Debug)]
struct Waiting(Option<Runtime>);

impl Waiting {
    /// The crate panics if credentials do not fit into a request; the caller gets an error instead.
    fn block_on<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let runtime = self.0.as_ref().expect("it is taken only when it is dropped");
        catch_unwind(AssertUnwindSafe(|| runtime.block_on(future))).unwrap_or_else(|_| {
            let source = "the request could not be made: look at the credentials and their files".into();
            Err(Error::Generic { store: "S3", source })
        })
    }
}

/// May be dropped by a task of an asynchronous runtime, where waiting for the end of this runtime would panic.
impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// While this exists, nothing in the store is deleted.
#[derive(Debug)]
pub struct Hold(Arc<Store>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Store {
    /// Opens a store. A missing folder is made; an object store gets no request yet.
    ///
    /// # Errors
    /// The folder cannot be made or opened, or the settings of the object store are invalid.
    pub fn open(place: &Place) -> Result<Self, StorageError> {
        match place {
            Place::Folder(folder) => Self::folder(folder),
            Place::S3(settings) => {
                let (objects, bucket) = s3::open(settings)?;
                Self::new(place.to_string(), objects, Home::Bucket(bucket))
            }
        }
    }

    /// Opens a folder, and makes it if it does not exist.
    ///
    /// # Errors
    /// The folder cannot be made or opened.
    pub fn folder(folder: &Path) -> Result<Self, StorageError> {
        let place = folder.display().to_string();
        let failed = |source| StorageError::from_io(format!("cannot open the folder {place}"), &place, source);
        RealDisk.make_folder(folder).map_err(failed)?;
        let path = folder.canonicalize().map_err(failed)?;
        let objects = LocalFileSystem::new_with_prefix(&path).map_err(|error| failed(io_error(error)))?;
        Self::new(place, Arc::new(objects), Home::Folder(Folder { disk: Arc::new(RealDisk), path }))
    }

    /// A store in memory, for tests and runs that leave nothing behind.
    ///
    /// # Errors
    /// None in practice; the type is that of [`Store::folder`].
    pub fn in_memory() -> Result<Self, StorageError> {
        Self::new("(memory)".into(), Arc::new(InMemory::new()), Home::Memory)
    }

    /// A store over an object store, which messages call `place`. If its objects are files in a folder of a disk, they
    /// are forced to disk there.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn over(
        objects: Arc<dyn ObjectStore>,
        folder: Option<(Arc<dyn Disk>, PathBuf)>,
        place: String,
    ) -> Result<Self, StorageError> {
        let home = folder.map_or(Home::Memory, |(disk, path)| Home::Folder(Folder { disk, path }));
        Self::new(place, objects, home)
    }

    fn new(place: String, objects: Arc<dyn ObjectStore>, home: Home) -> Result<Self, StorageError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WAITING_THREADS_MAX)
            .build()
            .map_err(|source| StorageError::from_io("cannot start the store of checkpoints", &place, source))?;
        Ok(Self { objects, home, place, runtime: Waiting(Some(runtime)), holds: AtomicUsize::new(0) })
    }

    fn failed(&self, verb: &str, name: &str, error: Error) -> StorageError {
        if !matches!(self.home, Home::Bucket(_)) {
            let what = format!("cannot {verb} {name} in {}", self.place);
            return StorageError::from_io(what, &self.place, io_error(error));
        }
        match Failure::status(&error) {
            Some(404) if Failure::is_missing(&error) => {
                StorageError::damaged(&self.place, format!("{name} is not there"))
            }
            Some(416) => StorageError::damaged(name, "it ends early"),
            _ => {
                let slash = if name.is_empty() { "" } else { "/" };
                explained(&error, format!("cannot {verb} {}{slash}{name}", self.place), &self.place)
            }
        }
    }

    /// Prevents all deletions while the answer exists, for a backup that reads the whole store. New objects may be
    /// written.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.holds.fetch_add(1, Ordering::AcqRel);
        Hold(self.clone())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }

    /// The name of the store in messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Removes the remains of objects that killed processes were writing, which no list shows. Only for the sole writer
    /// of the store.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn remove_unfinished(&self) -> Result<(), StorageError> {
        let Home::Folder(folder) = &self.home else { return Ok(()) };
        let failed = |source| StorageError::from_io(format!("cannot tidy up {}", self.place), &self.place, source);
        folder.remove_unfinished().map_err(failed)
    }

    /// The names of all objects, in order, and their sizes.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn names(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let mut names = self.list("")?;
        names.sort_unstable();
        Ok(names)
    }

    /// Reads a part of an object.
    ///
    /// # Errors
    /// The object does not exist, is shorter, or cannot be read.
    pub fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.get_range(name, range)
    }

    /// Writes a new object as a whole and forces it to disk. An existing object of that name is kept and is an error.
    pub(crate) fn put(&self, name: &str, parts: Vec<Bytes>) -> Result<(), StorageError> {
        let path = Name::from(name);
        let written = match &self.home {
            Home::Bucket(bucket) => self.runtime.block_on(bucket.put(&*self.objects, &path, &parts)),
            Home::Memory | Home::Folder(_) => {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                let written = self.objects.put_opts(&path, parts.into_iter().collect(), options);
                self.runtime.block_on(written).map(drop)
            }
        };
        match written {
            Ok(()) => self.make_durable(name),
            Err(Error::AlreadyExists { .. }) => Err(StorageError::Taken { what: format!("{}/{name}", self.place) }),
            Err(error) => Err(self.failed("write", name, error)),
        }
    }

    /// Forces an object to disk that was found: whoever wrote it may have failed before that.
    pub(crate) fn make_durable(&self, name: &str) -> Result<(), StorageError> {
        match &self.home {
            Home::Folder(folder) => folder
                .sync(name)
                .map_err(|source| StorageError::from_io(format!("cannot write {name}"), &self.place, source)),
            Home::Memory | Home::Bucket(_) => Ok(()),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Result<Bytes, StorageError> {
        let read = async { self.objects.get(&Name::from(name)).await?.bytes().await };
        self.runtime.block_on(read).map_err(|error| self.failed("read", name, error))
    }

    pub(crate) fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            return Ok(Bytes::new());
        }
        let read = self.runtime.block_on(self.objects.get_range(&Name::from(name), range));
        let read = read.map_err(|error| self.failed("read", name, error))?;
        match read.len() as u64 == length {
            true => Ok(read),
            false => Err(StorageError::damaged(name, "it ends early")),
        }
    }

    /// The size of an object.
    pub(crate) fn bytes(&self, name: &str) -> Result<u64, StorageError> {
        let found = self.runtime.block_on(self.objects.head(&Name::from(name)));
        found.map(|found| found.size).map_err(|error| self.failed("read", name, error))
    }

    /// The names of the objects in a folder, and their sizes.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let prefix = Name::from(folder);
        let mut listed = self.objects.list(Some(&prefix).filter(|_| !folder.is_empty())).take(LISTED_MAX + 1);
        let wait = match &self.home {
            Home::Bucket(bucket) => bucket.list_wait,
            Home::Memory | Home::Folder(_) => Duration::MAX,
        };
        let endless = |problem: &str| Error::Generic { store: "S3", source: format!("the list {problem}").into() };
        let named = self.runtime.block_on(async {
            let mut named = Vec::<(String, u64)>::new();
            loop {
                let next = tokio::time::timeout(wait, listed.try_next()).await;
                let next = next.map_err(|_| endless("goes on without an object"))??;
                let Some(object) = next else { return Ok(named) };
                let name = object.location.to_string();
                // A store without paging gives its first page again.
                if named.first().is_some_and(|(first, _)| *first == name) {
                    return Err(endless("begins again, and does not end"));
                }
                named.push((name, object.size));
            }
        });
        let named = named.map_err(|error| self.failed("list", folder, error))?;
        if named.len() > LISTED_MAX {
            return Err(StorageError::Remote {
                what: format!("cannot list {}", self.place),
                detail: format!("it has more than {LISTED_MAX} objects"),
                hint: "give the server a prefix of its own".into(),
            });
        }
        Ok(named)
    }

    /// Deletes an object; it is not an error if the object does not exist.
    pub(crate) fn delete(&self, name: &str) -> Result<(), StorageError> {
        match self.runtime.block_on(self.objects.delete(&Name::from(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) if Failure::is_missing(&error) => Ok(()),
            Err(error) => Err(self.failed("delete", name, error)),
        }
    }
}
