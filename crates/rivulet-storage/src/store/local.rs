//! Objects in a folder of this machine, or in memory.
//!
//! What must hold: an object that was put is on disk, and so is its name, when the call returns.

use std::io;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::runtime::Runtime;

use super::Objects;
use crate::{Disk, RealDisk, StorageError};

#[derive(Debug)]
pub(super) struct Local {
    objects: Arc<dyn ObjectStore>,
    /// Of a folder, to force to disk what the object store only writes.
    folder: Option<(Arc<dyn Disk>, PathBuf)>,
    place: String,
    runtime: Waiting,
}

/// Lets a thread wait for what an object store does.
#[derive(Debug)]
struct Waiting(Option<Runtime>);

impl Waiting {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.as_ref().expect("it is taken only when it is dropped").block_on(future)
    }
}

/// May be dropped by a task of an asynchronous runtime, in which nobody may wait for the end of this one.
impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Local {
    /// A folder, which is made if need be.
    pub(super) fn folder(folder: &FilePath) -> Result<Self, StorageError> {
        let place = folder.display().to_string();
        let failed = |source| StorageError::from_io(format!("cannot open the folder {place}"), &place, source);
        RealDisk.make_folder(folder).map_err(failed)?;
        let folder = folder.canonicalize().map_err(failed)?;
        let objects = LocalFileSystem::new_with_prefix(&folder).map_err(|error| failed(io_error(error)))?;
        Self::new(Arc::new(objects), Some((Arc::new(RealDisk), folder)), place)
    }

    pub(super) fn in_memory() -> Result<Self, StorageError> {
        Self::new(Arc::new(InMemory::new()), None, "(memory)".into())
    }

    /// An object store; if its objects are files in a folder of a disk, they are forced to disk there.
    pub(super) fn new(
        objects: Arc<dyn ObjectStore>,
        folder: Option<(Arc<dyn Disk>, PathBuf)>,
        place: String,
    ) -> Result<Self, StorageError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| StorageError::from_io("cannot start the store of checkpoints", &place, source))?;
        Ok(Self { objects, folder, place, runtime: Waiting(Some(runtime)) })
    }

    fn failed(&self, verb: &str, name: &str, error: object_store::Error) -> StorageError {
        StorageError::from_io(format!("cannot {verb} {name} in {}", self.place), &self.place, io_error(error))
    }
}

impl Objects for Local {
    fn put(&self, name: &str, parts: Vec<Bytes>) -> Result<(), StorageError> {
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
        let Some((disk, folder)) = &self.folder else { return Ok(()) };
        let file = folder.join(name);
        let outer = file.ancestors().skip(1).take_while(|outer| outer.starts_with(folder));
        // The file, its name in its folder, and the names of folders that came with it.
        disk.open(&file)
            .and_then(|file| file.sync())
            .and_then(|()| outer.into_iter().try_for_each(|outer| disk.sync_folder(outer)))
            .map_err(|source| StorageError::from_io(format!("cannot write {name}"), &self.place, source))
    }

    fn get(&self, name: &str) -> Result<Bytes, StorageError> {
        let read = async { self.objects.get(&Path::from(name)).await?.bytes().await };
        self.runtime.block_on(read).map_err(|error| self.failed("read", name, error))
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        let read = self.runtime.block_on(self.objects.get_range(&Path::from(name), range));
        read.map_err(|error| self.failed("read", name, error))
    }

    fn bytes(&self, name: &str) -> Result<u64, StorageError> {
        let found = self.runtime.block_on(self.objects.head(&Path::from(name)));
        found.map(|found| found.size).map_err(|error| self.failed("read", name, error))
    }

    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let listed = self.objects.list(Some(&Path::from(folder)).filter(|_| !folder.is_empty()));
        let named = listed.map_ok(|object| (object.location.to_string(), object.size)).try_collect();
        self.runtime.block_on(named).map_err(|error| self.failed("list", folder, error))
    }

    fn remove_unfinished(&self) -> Result<(), StorageError> {
        /// Of names: a folder, a line, an object.
        const DEPTH: usize = 3;
        let Some((_, folder)) = &self.folder else { return Ok(()) };
        let removed = remove_unfinished(folder, DEPTH);
        removed.map_err(|source| StorageError::from_io(format!("cannot tidy up {}", self.place), &self.place, source))
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        match self.runtime.block_on(self.objects.delete(&Path::from(name))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", name, error)),
        }
    }
}

/// Objects are written under their names with a number behind a `#`, and then renamed.
fn remove_unfinished(folder: &FilePath, depth: usize) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let (path, is_folder) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?.is_dir())))?;
        let number = path.file_name().and_then(|name| Some(name.to_str()?.rsplit_once('#')?.1));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_folder && depth > 1 {
            remove_unfinished(&path, depth - 1)?;
        } else if !is_folder && number.is_some_and(is_number) {
            match std::fs::remove_file(&path) {
                Ok(()) => tracing::info!("removed {}, which was not written in full", path.display()),
                Err(error) => tracing::warn!("{} is not removed: {error}", path.display()),
            }
        }
    }
    Ok(())
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
