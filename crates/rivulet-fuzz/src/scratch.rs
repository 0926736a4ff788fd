//! Folders for the files of a target. They are in memory if the system has such a place, because a million executions
//! write a million files.

use std::path::Path;

use tempfile::TempDir;

/// Makes a folder that exists until it is dropped.
///
/// # Panics
///
/// If the system cannot make one.
pub fn folder() -> TempDir {
    let in_memory = Path::new("/dev/shm");
    let made = if in_memory.is_dir() { tempfile::tempdir_in(in_memory) } else { tempfile::tempdir() };
    made.expect("a folder can be made")
}
