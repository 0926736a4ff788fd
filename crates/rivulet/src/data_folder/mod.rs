//! The data folder of a server that does not run: its content and whether it is intact ([`examine`]), and all of it as
//! one file ([`archive`]).
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
//! What must hold: nothing here changes a folder that is not empty.

pub mod archive;
pub mod examine;

/// The folder in a data folder for the data that a backup of a running server needs while it is written.
const BACKUP: &str = "backup.partial";

/// The folder of checkpoints in a data folder, unless it is configured otherwise.
pub const CHECKPOINTS: &str = "checkpoints";

/// The folder of files that statements read and write in a data folder, unless it is configured otherwise.
pub const FILES: &str = "files";

/// The folder of the log of events in a data folder.
pub const LOG: &str = "log";

/// The folder of the embedded broker's data in a data folder.
pub const MQTT: &str = "mqtt";
