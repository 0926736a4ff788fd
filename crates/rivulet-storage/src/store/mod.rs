//! Where bytes lie: a folder of this machine ([`local`]), or a bucket of an object store ([`s3`]); and whose they are ([`owner`]).
//!
//! What must hold: what [`Store::put`] has answered survives the loss of power, and an object is there whole or not at all.

mod local;
mod owner;
mod s3;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use object_store::ObjectStore;

use crate::{Disk, Epochs, StorageError};
use local::Local;
pub use owner::Owner;
use s3::Bucket;
#[cfg(test)]
pub(crate) use s3::test_settings;
pub use s3::{BucketName, Credentials, S3Settings};

/// What a [`Store`] needs of the place where its objects lie. Names are parts with `/` between them, without one at either end.
trait Objects: fmt::Debug + Send + Sync {
    fn put(&self, name: &str, parts: Vec<Bytes>) -> Result<(), StorageError>;

    fn get(&self, name: &str) -> Result<Bytes, StorageError>;

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError>;

    fn bytes(&self, name: &str) -> Result<u64, StorageError>;

    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError>;

    fn delete(&self, name: &str) -> Result<(), StorageError>;

    /// Removes what is left of objects that were not written in full, where there can be any.
    fn remove_unfinished(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

/// Which place is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket of an object store, or what begins with a prefix in it.
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

/// Objects by name. Its calls wait for the disk or the network, so they are for threads of their own, and never for a task of an
/// asynchronous runtime.
#[derive(Debug)]
pub struct Store {
    objects: Box<dyn Objects>,
    place: String,
    /// How many want that nothing is deleted.
    holds: AtomicUsize,
}

/// As long as this is there, nothing is deleted that is in the store.
#[derive(Debug)]
pub struct Hold(Arc<Store>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Store {
    /// Opens a place. A folder is made if need be; of an object store nothing is asked yet.
    ///
    /// # Errors
    /// The folder cannot be made or opened, or what was set for the object store makes no sense.
    pub fn open(place: &Place) -> Result<Self, StorageError> {
        match place {
            Place::Folder(folder) => Self::folder(folder),
            Place::S3(settings) => Ok(Self::new(place.to_string(), Bucket::new(settings.clone())?)),
        }
    }

    /// A folder, which is made if need be.
    ///
    /// # Errors
    /// The folder cannot be made or opened.
    pub fn folder(folder: &Path) -> Result<Self, StorageError> {
        Ok(Self::new(folder.display().to_string(), Local::folder(folder)?))
    }

    /// Memory, for tests and runs that leave nothing behind.
    ///
    /// # Errors
    /// None that memory could cause, but the same type as [`Store::folder`].
    pub fn in_memory() -> Result<Self, StorageError> {
        Ok(Self::new("(memory)".into(), Local::in_memory()?))
    }

    /// An object store that `place` names to people. If its objects are files in a folder of a disk, they are forced to disk there.
    ///
    /// # Errors
    /// The system gives no thread of control.
    pub fn over(
        objects: Arc<dyn ObjectStore>,
        folder: Option<(Arc<dyn Disk>, PathBuf)>,
        place: String,
    ) -> Result<Self, StorageError> {
        Ok(Self::new(place.clone(), Local::new(objects, folder, place)?))
    }

    fn new(place: String, objects: impl Objects + 'static) -> Self {
        Self { objects: Box::new(objects), place, holds: AtomicUsize::new(0) }
    }

    /// From now on nothing is deleted, for who reads all of it meanwhile. What is written comes beside it.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.holds.fetch_add(1, Ordering::AcqRel);
        Hold(self.clone())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Acquire) > 0
    }

    /// Its name for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Removes what processes that were killed have left of objects that they were writing, which no listing shows. Only for who alone writes here.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn remove_unfinished(&self) -> Result<(), StorageError> {
        self.objects.remove_unfinished()
    }

    /// The names of all objects, in their order, and their sizes.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn names(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let mut names = self.objects.list("")?;
        names.sort_unstable();
        Ok(names)
    }

    /// A part of an object.
    ///
    /// # Errors
    /// The object is not there, is shorter, or cannot be read.
    pub fn read(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        match range.is_empty() {
            true => Ok(Bytes::new()),
            false => self.objects.get_range(name, range),
        }
    }

    /// Fills an empty store with objects of another, which `read` gives, and then has `finish` do what they are of no use without. What says that an
    /// epoch is there comes behind what that needs, and after an error nothing is there.
    ///
    /// # Errors
    /// What `read` or `finish` says, or the store.
    pub fn fill<E: From<StorageError>>(
        &self,
        mut names: Vec<String>,
        mut read: impl FnMut(&str) -> Result<Bytes, E>,
        finish: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        names.sort_by_key(|name| Epochs::line_of(name).is_some());
        let filled = names.iter().try_for_each(|name| Ok(self.put(name, vec![read(name)?])?)).and_then(|()| finish());
        if filled.is_err() {
            for name in names.iter().rev() {
                if let Err(error) = self.delete(name) {
                    tracing::warn!("{name} is left in {}, and of no use: {error}", self.place);
                }
            }
        }
        filled
    }

    /// Writes a new object, all of it or nothing, and forces it to disk. What is there under its name stays, and is an error.
    pub(crate) fn put(&self, name: &str, parts: Vec<Bytes>) -> Result<(), StorageError> {
        self.objects.put(name, parts)
    }

    pub(crate) fn get(&self, name: &str) -> Result<Bytes, StorageError> {
        self.objects.get(name)
    }

    pub(crate) fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        self.objects.get_range(name, range)
    }

    /// How large an object is.
    pub(crate) fn bytes(&self, name: &str) -> Result<u64, StorageError> {
        self.objects.bytes(name)
    }

    /// The names of the objects in a folder, and their sizes.
    pub(crate) fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError> {
        self.objects.list(folder)
    }

    /// Deletes an object; one that is not there is no error.
    pub(crate) fn delete(&self, name: &str) -> Result<(), StorageError> {
        self.objects.delete(name)
    }
}
