//! Files that a benchmark writes.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use crate::cli::error::CliError;

/// What cannot be written is found out before the minutes of measuring, not after them.
pub(super) fn may_write(file: &Path) -> Result<(), CliError> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened.map(drop).map_err(|error| cannot_write(file, &error))
}

pub(super) fn cannot_write(file: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("cannot write {}: {error}", file.display()))
}
