//! What outlives the process: checkpoints, and the log of events that no source can repeat.
//!
//! A [`Store`] holds objects, in a folder or an object store. [`Epochs`] is a line of checkpoints in it, each complete
//! or absent. The [`log`] holds events in the order in which they came, on a [`Disk`]. This crate does not know what
//! the bytes mean.

mod disk;
mod epochs;
mod error;
pub mod log;
mod store;

pub use disk::{Disk, DiskFile, RealDisk};
pub use epochs::{Committed, Epoch, EpochSettings, Epochs, Piece, Restored};
pub use error::StorageError;
pub use store::{BucketName, Credentials, Hold, Owner, Place, S3Settings, Store};
