//! The errors of the catalog, each kind with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::service::{ErrorKind, ServiceError};

/// Why the catalog could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The data folder could not be made or read.
    #[error("cannot use the data folder {}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file or its folder may not be written.
    #[error("the catalog {} is read-only", path.display())]
    ReadOnly {
        /// The file or folder that may not be written.
        path: PathBuf,
    },
    /// Another server has it open.
    #[error("the catalog in {} is in use by another Rivulet server", folder.display())]
    Locked {
        /// The data folder.
        folder: PathBuf,
    },
    /// The content is not what Rivulet wrote.
    #[error("the catalog {} is damaged: {detail}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// A later Rivulet wrote it.
    #[error("the catalog {} has format {found}, this Rivulet knows formats up to {supported}", path.display())]
    LaterVersion {
        /// The file.
        path: PathBuf,
        /// Format version in the file.
        found: u64,
        /// The latest this program knows.
        supported: u64,
    },
    /// The file is of another version of the storage library.
    #[error("the catalog {} has storage format {found}, which this Rivulet cannot read", path.display())]
    OtherStorage {
        /// The file.
        path: PathBuf,
        /// Storage format in the file.
        found: u8,
    },
    /// The disk is full.
    #[error("no space left on the disk of the catalog {}", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Any other failure of the disk; after one, the next change tries again.
    #[error("the catalog {} cannot be read or written: {detail}", path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        detail: String,
    },
}

impl CatalogError {
    /// What to do about it, in one sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::Folder { .. } => {
                "choose a folder that can be written with data_dir in rivulet.toml or RIVULET_DATA_DIR".into()
            }
            Self::ReadOnly { path } => format!(
                "make {} writable for the user that runs the server, or choose another folder with RIVULET_DATA_DIR",
                path.display()
            ),
            Self::Locked { folder } => format!(
                "stop the other server, or give this one a folder of its own: RIVULET_DATA_DIR={}-2",
                folder.display()
            ),
            Self::Corrupt { path, .. } => format!(
                "restore {0} from a backup, or move it away (mv {0} {0}.damaged) to start with an empty catalog",
                path.display()
            ),
            Self::LaterVersion { .. } | Self::OtherStorage { .. } => {
                "run the version of Rivulet that wrote it, or choose another folder with RIVULET_DATA_DIR".into()
            }
            Self::Full { .. } => "free some space, then try again; nothing that was acknowledged is lost".into(),
            Self::Storage { .. } => {
                "look at the disk and the system log, then try again; nothing that was acknowledged is lost".into()
            }
        }
    }

    /// The error for an error of the file system on `path`.
    pub(super) fn from_io(path: &Path, error: io::Error) -> Self {
        let path = path.to_path_buf();
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            // The storage library reads at positions that its own header names, so a file that is too short is damaged.
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Self::Corrupt { path, detail: error.to_string() }
            }
            _ => Self::Storage { path, detail: error.to_string() },
        }
    }

    /// The error for any error of the storage library on `path`.
    pub(super) fn from_redb(path: &Path, error: redb::Error) -> Self {
        let owned = path.to_path_buf();
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::Locked { folder: path.parent().unwrap_or(path).to_path_buf() },
            redb::Error::Io(error) => Self::from_io(path, error),
            redb::Error::UpgradeRequired(found) => Self::OtherStorage { path: owned, found },
            redb::Error::PreviousIo => Self::Storage {
                path: owned,
                detail: "the last change was not written, and the next one tries again".into(),
            },
            error @ (redb::Error::Corrupted(_)
            | redb::Error::RepairAborted
            | redb::Error::UnorderedKey
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableDoesNotExist(_)
            | redb::Error::TypeDefinitionChanged { .. }) => Self::Corrupt { path: owned, detail: error.to_string() },
            error => Self::Storage { path: owned, detail: error.to_string() },
        }
    }
}

impl From<CatalogError> for ServiceError {
    fn from(error: CatalogError) -> Self {
        let kind = match error {
            CatalogError::Corrupt { .. } => ErrorKind::Internal,
            _ => ErrorKind::Unavailable,
        };
        ServiceError::new(kind, error.to_string()).with_hint(error.hint())
    }
}
