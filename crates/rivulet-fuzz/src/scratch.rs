//! Folders for files of a target: in memory, where the system has such a place, because a million executions write a
//! million files.

use std::path::Path;

use tempfile::TempDir;

/// A folder that is there until it is dropped.
///
/// # Panics
/// If the system gives none.
pub fn folder() -> TempDir {
    let in_memory = Path::new("/dev/shm");
    let made = if in_memory.is_dir() { tempfile::tempdir_in(in_memory) } else { tempfile::tempdir() };
    made.expect("a folder can be made")
}
