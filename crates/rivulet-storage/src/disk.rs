//! What the log asks of a disk, and the disk of this machine.
//!
//! What must hold, for every implementation: bytes of a file survive the loss of power once [`DiskFile::sync`] has
//! answered, and that a file is there, is not any more, or has its name, once [`Disk::sync_folder`] has. Of all else
//! any part may be lost. Whoever writes relies on nothing more, which a disk that loses whatever it may lose can show.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files in folders.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a folder, and those that it is in, where they are not there. That survives the loss of power when this
    /// returns.
    ///
    /// # Errors
    /// What the system says; so it is with all that follow.
    fn make_folder(&self, folder: &Path) -> io::Result<()>;

    /// The files and folders in a folder, and their sizes in bytes.
    fn list(&self, folder: &Path) -> io::Result<Vec<(PathBuf, u64)>>;

    /// All of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Begins a file for writing; one of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that is there, for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes final which files are in a folder.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// A file that is open for writing.
pub trait DiskFile: Send {
    /// Writes all of `bytes`, the first at the place `at`.
    ///
    /// # Errors
    /// What the system says; any part may have been written then. So it is with all that follow.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Cuts the file, or fills it with zeros, to so many bytes.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes final what was written, and how long the file is.
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
        // Innermost last; the folder itself may have been made by a process that did not come to this.
        let made = if missing.is_empty() { &[folder][..] } else { &missing };
        made.iter().rev().filter_map(|made| made.parent()).try_for_each(|outer| {
            match self.sync_folder(if outer == Path::new("") { Path::new(".") } else { outer }) {
                // A folder of somebody else's, which may be searched and not read.
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
        // Of the metadata only the length matters, which this includes.
        self.sync_data()
    }
}
