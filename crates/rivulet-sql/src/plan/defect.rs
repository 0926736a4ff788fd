//! Errors that no check of the planner has caught.

use rivulet_operators::PlanError;

use crate::{Position, SqlError};

/// Converts an error of an operator that no check here has caught.
pub(super) fn defect(error: PlanError, position: Position) -> SqlError {
    let (message, hint) = split_hint(&error.to_string());
    SqlError { hint, ..SqlError::new(position, message) }
}

/// Splits the text of an error into its message and its hint.
pub(super) fn split_hint(text: &str) -> (String, Option<String>) {
    match text.split_once("\nhint: ") {
        Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
        None => (text.to_owned(), None),
    }
}
