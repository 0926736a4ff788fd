//! Why there is no backup, and what is in one.

use std::io;
use std::path::{Path, PathBuf};

use rivulet_storage::StorageError;

use crate::catalog::CatalogError;
use crate::service::ServiceError;

fn without_hint(error: &StorageError) -> String {
    error.to_string().split("\nhint: ").next().unwrap_or_default().to_owned()
}

/// Why a folder could not become a file, or a file a folder.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The catalog cannot be used, for example because a server is using it.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The checkpoints of the catalog are not at their place.
    #[error("{}", .0.message)]
    Checkpoints(ServiceError),
    /// What was to be changed in the restored catalog cannot be changed.
    #[error("{}", .0.message)]
    Change(ServiceError),
    /// There is no data in the folder.
    #[error("there is no catalog in {}", .0.display())]
    NoData(PathBuf),
    /// An error of the system.
    #[error("{what}: {source}")]
    Io {
        /// The attempted action.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Checkpoints cannot be read.
    #[error("{}", without_hint(.0))]
    Store(#[from] StorageError),
    /// The folder is not empty.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The place for the checkpoints is not empty.
    #[error("{0}, where the checkpoints are to be, is not empty")]
    PlaceNotEmpty(String),
    /// The file is not a backup, or not a complete one.
    #[error("{} is not a whole backup: {detail}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How the damage shows.
        detail: String,
    },
    /// A later Rivulet wrote the file.
    #[error("{} has format {found} of backups, this Rivulet knows formats up to {known}", path.display())]
    LaterVersion {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
        /// The latest version that this one reads.
        known: u64,
    },
}

impl ArchiveError {
    /// What to do about it, in one sentence.
    pub fn hint(&self) -> String {
        match self {
            Self::Catalog(CatalogError::Locked { .. }) => {
                "have the server make it, with --server and its address, or stop it first".into()
            }
            Self::Catalog(error) => error.hint(),
            Self::Store(error) => match error.to_string().split_once("\nhint: ") {
                Some((_, hint)) => hint.to_owned(),
                None => "`rivulet doctor` explains what it finds".into(),
            },
            Self::Checkpoints(_) => {
                "give the place that the server has them in, with its --config or with --set checkpoint.folder=PLACE"
                    .into()
            }
            Self::Change(error) => error.hint.clone().unwrap_or_else(|| "restore another backup".into()),
            Self::NoData(_) => "name the data folder of a server with --data-dir".into(),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "look at the path: the file, or the folder that it is to be in, has another name".into()
            }
            Self::Io { .. } => "make room on the disk, or name a place that can be written".into(),
            Self::NotEmpty(_) => "restore into a new folder, and start the server with that".into(),
            Self::PlaceNotEmpty(_) => {
                "empty it, or name another place, here and when the server is started: --set checkpoint.folder=PLACE"
                    .into()
            }
            Self::Damaged { .. } => "use another backup; nothing was restored".into(),
            Self::LaterVersion { .. } => "restore it with the version of Rivulet that wrote it".into(),
        }
    }
}

/// The content of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

pub(super) fn failed<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> ArchiveError + 'a {
    move |source| ArchiveError::Io { what: format!("{what} {}", path.display()), source }
}
