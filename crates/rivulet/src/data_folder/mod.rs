//! The data folder of a server that does not run: what is in it and whether it is whole ([`examine`]), and the whole of
//! it as one file ([`archive`]).
//!
//! ```text
//! catalog.redb    applications and queries
//! checkpoints/    their state
//! log/            events since, of inputs that are logged
//! starts          big queries that have been started and have yet to show that they can run
//! crashed         whether the last process has crashed
//! mqtt/           sessions and retained messages of the embedded broker
//! backup.partial/ what a backup needs, while one is written of a running server
//! files/          what statements read and write, unless files.allow names other folders
//! ```
//!
//! What must hold: nothing here changes a folder that has anything in it.

pub mod archive;
pub mod examine;

/// The folder of a data folder in which a backup of a running server has what it needs, as long as it is written.
const BACKUP: &str = "backup.partial";

/// The folder of checkpoints in a data folder, unless it is configured otherwise.
pub const CHECKPOINTS: &str = "checkpoints";

/// The folder of files that statements read and write in a data folder, unless it is configured otherwise.
pub const FILES: &str = "files";

/// The folder of the log of events in a data folder.
pub const LOG: &str = "log";

/// The folder of what the embedded broker keeps in a data folder.
pub const MQTT: &str = "mqtt";
