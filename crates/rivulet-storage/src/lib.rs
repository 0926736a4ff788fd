//! What outlives the process: checkpoints, and the log of events that cannot be asked for again.
//!
//! [`Store`] is where bytes lie: a folder, or an object store. [`Epochs`] is a line of checkpoints in it, each complete
//! or not there at all. [`log`] has events in the order in which they came, on a [`Disk`]. Nothing is known here of
//! what the bytes say.

mod disk;
mod epochs;
mod error;
pub mod log;
mod store;

pub use disk::{Disk, DiskFile, RealDisk};
pub use epochs::{Committed, Epoch, EpochSettings, Epochs, Piece, Restored};
pub use error::StorageError;
pub use store::{BucketName, Credentials, Hold, Owner, Place, S3Settings, Store};
