//! Objects in a folder of this machine: the parts that the object store of folders does not do.
//!
//! What must hold: when [`Folder::sync`] returns, the object and its name are on disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Disk;

/// A folder of a disk.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) path: PathBuf,
}

impl Folder {
    /// Forces an object to disk: the file, its name in its folder, and the names of new folders.
    pub(super) fn sync(&self, name: &str) -> io::Result<()> {
        let file = self.path.join(name);
        let mut outer = file.ancestors().skip(1).take_while(|outer| outer.starts_with(&self.path));
        self.disk.open(&file)?.sync()?;
        outer.try_for_each(|outer| self.disk.sync_folder(outer))
    }

    /// Removes the remains of objects that were not written in full.
    pub(super) fn remove_unfinished(&self) -> io::Result<()> {
        /// The depth of names: a folder, a line, an object.
        const DEPTH: usize = 3;
        remove_unfinished(&self.path, DEPTH)
    }
}

/// The crate writes an object under its name with `#` and a number appended, and then renames it.
fn remove_unfinished(folder: &Path, depth: usize) -> io::Result<()> {
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

/// The error of the system in an error of the crate, if there is one.
pub(super) fn io_error(error: object_store::Error) -> io::Error {
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
