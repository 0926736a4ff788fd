//! The errors of files that cannot be opened.

use std::io;

use crate::connector::ConnectorError;
use crate::files::words;

/// The name of the connector.
pub(super) const NAME: &str = "file";

/// The error for a file that cannot be read or may not be used.
pub(super) fn unreadable(address: &str, error: &io::Error) -> ConnectorError {
    let (problem, hint) = words(error);
    let hint = hint.unwrap_or_else(|| {
        "`rivulet run` takes paths from the folder that it was started in, a server from the first of files.allow, \
         which is the folder files of its data folder by default"
            .into()
    });
    cannot_open(address, problem, &hint)
}

pub(super) fn cannot_open(address: &str, problem: String, hint: &str) -> ConnectorError {
    ConnectorError::open(NAME, address, problem, hint)
}
