//! Where bytes lie: a folder of this machine, or an object store.
//!
//! What must hold: what [`Store::put`] has answered survives the loss of power, and an object is there whole or not at all.

use std::fs::File;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::runtime::Runtime;

use crate::StorageError;

/// Objects by name. Its calls wait for the disk or the network, so they are for threads of their own, and never for a task of an
/// asynchronous runtime.
#[derive(Debug)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    /// Of a folder, to force to disk what the object store only writes.
    folder: Option<PathBuf>,
    place: String,
    runtime: Runtime,
}

impl Store {
    /// A folder, which is made if need be.
    ///
    /// # Errors
    /// The folder cannot be made or opened.
    pub fn folder(folder: &FilePath) -> Result<Self, StorageError> {
        let place = folder.display().to_string();
        let failed = |source| StorageError::from_io(format!("cannot open the folder {place}"), &place, source);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        let objects = LocalFileSystem::new_with_prefix(&folder).map_err(|error| failed(io_error(error)))?;
        Self::new(Arc::new(objects), Some(folder), place)
    }

    /// Memory, for tests and runs that leave nothing behind.
    ///
    /// # Errors
    /// None that memory could cause, but the same type as [`Store::folder`].
    pub fn in_memory() -> Result<Self, StorageError> {
        Self::new(Arc::new(InMemory::new()), None, "(memory)".into())
    }

    /// An object store that `place` names to people.
    ///
    /// # Errors
    /// The system gives no thread of control.
    pub fn new(objects: Arc<dyn ObjectStore>, folder: Option<PathBuf>, place: String) -> Result<Self, StorageError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| StorageError::from_io("cannot start the store of checkpoints", &place, source))?;
        Ok(Self { objects, folder, place, runtime })
    }

    /// Its name for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Writes a new object, all of it or nothing, and forces it to disk. What is there under its name stays, and is an error.
    pub(crate) fn put(&self, name: &str, parts: Vec<Bytes>) -> Result<(), StorageError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let payload: PutPayload = parts.into_iter().collect();
        let written = self.runtime.block_on(self.objects.put_opts(&Path::from(name), payload, options));
        match written {
            Ok(_) => {}
            Err(object_store::Error::AlreadyExists { .. }) => {
                return Err(StorageError::Taken { what: format!("{}/{name}", self.place) });
            }
            Err(error) => return Err(self.failed("write", name, error)),
        }
        let Some(folder) = &self.folder else { return Ok(()) };
        let file = folder.join(name);
        let inside = file.parent().unwrap_or(folder);
        // The file, and its name in its folder.
        [&file, inside]
            .into_iter()
            .try_for_each(|path| File::open(path)?.sync_all())
            .map_err(|source| StorageError::from_io(format!("cannot write {name}"), &self.place, source))
    }

    pub(crate) fn get(&self, name: &str) -> Result<Bytes, StorageError> {
        let read = async { self.objects.get(&Path::from(name)).await?.bytes().await };
        self.runtime.block_on(read).map_err(|error| self.failed("read", name, error))
    }

    pub(crate) fn get_range(&self, name: &str, range: std::ops::Range<u64>) -> Result<Bytes, StorageError> {
        let read = self.runtime.block_on(self.objects.get_range(&Path::from(name), range));
        read.map_err(|error| self.failed("read", name, error))
    }

    /// How large an object is.
    pub(crate) fn bytes(&self, name: &str) -> Result<u64, StorageError> {
        let found = self.runtime.block_on(self.objects.head(&Path::from(name)));
        found.map(|found| found.size).map_err(|error| self.failed("read", name, error))
    }

    /// The names of the objects whose names begin with `folder`, and their sizes.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let listed = self.objects.list(Some(&Path::from(folder)));
        let named = listed.map_ok(|object| (object.location.to_string(), object.size)).try_collect();
        self.runtime.block_on(named).map_err(|error| self.failed("list", folder, error))
    }

    /// Deletes an object; one that is not there is no error.
    pub(crate) fn delete(&self, name: &str) -> Result<(), StorageError> {
        match self.runtime.block_on(self.objects.delete(&Path::from(name))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", name, error)),
        }
    }

    fn failed(&self, verb: &str, name: &str, error: object_store::Error) -> StorageError {
        StorageError::from_io(format!("cannot {verb} {name} in {}", self.place), &self.place, io_error(error))
    }
}

/// What the system said, if it was the system.
fn io_error(error: object_store::Error) -> io::Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut kind = io::ErrorKind::Other;
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            kind = error.kind();
        }
        source = error.source();
    }
    io::Error::new(kind, error)
}
