//! The file operations that the log needs, and their implementation for this machine.
//!
//! What must hold for every implementation: bytes of a file survive a loss of power once [`DiskFile::sync`] has
//! returned. The existence, deletion and name of a file survive it once [`Disk::sync_folder`] has returned. Anything
//! else may be lost, in any part. Code that writes relies on nothing more; a simulated disk that loses everything it
//! may lose tests that.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files in folders.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a folder and its missing parents. They survive a loss of power when this returns.
    ///
    /// # Errors
    /// The error of the system, as in all methods below.
    fn make_folder(&self, folder: &Path) -> io::Result<()>;

    /// The files and folders in a folder, and their sizes in bytes.
    fn list(&self, folder: &Path) -> io::Result<Vec<(PathBuf, u64)>>;

    /// The content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Creates a file for writing, or empties the file of that name.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name in the same folder; the file that had that name is gone.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names of the files in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// A file opened for writing.
pub trait DiskFile: Send {
    /// Writes all of `bytes` at the offset `at`.
    ///
    /// # Errors
    /// The error of the system, as in all methods below; any part may have been written.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Truncates the file to this many bytes, or extends it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes the content and the length of the file durable.
    fn sync(&self) -> io::Result<()>;
}

/// The disk of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        let is_there = |folder: &&Path| folder.exists();
        let missing: Vec<&Path> = folder.ancestors().take_while(|outer| !is_there(outer)).collect();
        fs::create_dir_all(folder)?;
        // Parents are synced from the outermost on. The parent of the folder itself always is: an earlier process may
        // have made the folder and stopped before its name was durable.
        let made = if missing.is_empty() { &[folder][..] } else { &missing };
        made.iter().rev().filter_map(|made| made.parent()).try_for_each(|outer| {
            match self.sync_folder(if outer == Path::new("") { Path::new(".") } else { outer }) {
                // A folder of another user that may be searched but not read.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                done => done,
            }
        })
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
        fs::read_dir(folder)?
            .map(|entry| {
                let entry = entry?;
                Ok((entry.path(), entry.metadata()?.len()))
            })
            .collect()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).create(true).truncate(true).open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

impl DiskFile for File {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        Self::set_len(self, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        // `sync_data` includes the length, the only metadata that matters.
        self.sync_data()
    }
}
