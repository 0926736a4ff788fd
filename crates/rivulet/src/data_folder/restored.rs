//! Whether a data folder was made from a backup, or from a catalog in a bucket. Its server has lost what came since,
//! and numbers its results as the server of before did: with the same identities they would be taken for repeats of
//! other results. So the file has a text that goes into the identities of results from then on.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;

/// The file in a data folder.
const RESTORED: &str = "restored";

/// Notes that the folder was restored just now.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn note(folder: &Path) -> io::Result<()> {
    fs::write(folder.join(RESTORED), format!("{:016x}", RandomState::new().build_hasher().finish()))
}

/// What distinguishes results since the folder was restored from those before; empty if it never was.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn mark(folder: &Path) -> io::Result<String> {
    match fs::read_to_string(folder.join(RESTORED)) {
        // It becomes a part of names.
        Ok(mark) => Ok(mark.chars().filter(char::is_ascii_hexdigit).take(16).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}
