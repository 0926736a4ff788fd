//! The data folder of a server: what is where in it ([`lines`] for checkpoints), whether a place has its checkpoints
//! ([`home`]), and all of it as one file ([`archive`]).
//!
//! ```text
//! catalog.redb    applications and queries
//! checkpoints/    their state
//! secrets         values that options of sources and sinks name
//! log/            events since, of inputs that are logged
//! starts          big queries that have been started and have yet to show that they can run
//! crashed         whether the last process has crashed
//! restored        a text for the identities of results, if the folder was restored
//! functions       what functions that are burst workers have cost today
//! links/          what waits to be sent to other servers, in a folder for each query
//! mqtt/           sessions and retained messages of the embedded broker
//! backup.partial/ what a backup needs, while one is written of a running server
//! files/          what statements read and write, unless files.allow names other folders
//! tenants/        the same of tenants but the default one, in a folder for each
//! ```

pub(crate) mod lines;
pub(crate) mod home;
pub(crate) mod restored;
pub mod archive;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::catalog::OWNER_ONLY;
pub use crate::config::CHECKPOINTS;

/// The folder in a data folder for the data that a backup of a running server needs while it is written.
const BACKUP: &str = "backup.partial";

/// The folder of files that statements read and write in a data folder, unless it is configured otherwise.
pub const FILES: &str = "files";

/// The folder in a data folder with a folder for each tenant but the default one.
pub const TENANTS: &str = "tenants";

/// The file of secrets in a data folder.
pub const SECRETS: &str = "secrets";

/// The folder of the log of events in a data folder.
pub const LOG: &str = "log";

/// The file of what functions have cost in a data folder.
pub const FUNCTIONS: &str = "functions";

/// The folder of what waits to be sent to other servers in a data folder.
pub const SPOOLS: &str = "links";

/// The folder of the embedded broker's data in a data folder.
pub const MQTT: &str = "mqtt";

/// Gives the folder of a tenant a name that no tenant's folder has, for none has a `~`. Returns where it is then.
pub(crate) fn set_aside(folder: &Path) -> io::Result<PathBuf> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let aside = |number: u32| folder.with_file_name(format!("{name}~{number}"));
    let free = (1..).map(aside).find(|folder| !folder.exists()).expect("some name is free");
    fs::rename(folder, &free)?;
    Ok(free)
}

/// Gives a file another content: after a crash it has either the one or the other.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let _ = fs::remove_file(&partial);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&partial)?;
    file.write_all(content).and_then(|()| file.sync_all())?;
    fs::rename(&partial, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
