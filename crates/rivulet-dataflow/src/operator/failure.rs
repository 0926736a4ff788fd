//! A failure of an operator.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Slot;

/// A failure of an operator itself, not of a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OperatorError {
    /// What went wrong, in words.
    pub message: String,
    /// The slots that failed, in any order; empty if the operator does not know them.
    pub slots: Vec<Slot>,
    /// Whose code failed; the host sets it.
    pub fault: Fault,
}

/// Whose code failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The engine's own: a defect.
    Engine,
    /// The code of an application.
    UserCode,
}

impl OperatorError {
    /// A failure that cannot be attributed to slots.
    pub fn new(message: impl Into<String>) -> Self {
        Self::about(Vec::new(), message)
    }

    /// A failure of these slots. No row of the call was processed, and the call may be repeated without these slots.
    pub fn about(slots: Vec<Slot>, message: impl Into<String>) -> Self {
        Self { message: message.into(), slots, fault: Fault::Engine }
    }
}

impl From<arrow::error::ArrowError> for OperatorError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::new(error.to_string())
    }
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic")
}

/// Makes an error of a panic, so that no panic of an operator gets through a host.
pub(crate) fn caught<T>(act: impl FnOnce() -> Result<T, OperatorError>) -> Result<T, OperatorError> {
    let done = catch_unwind(AssertUnwindSafe(act));
    done.unwrap_or_else(|panic| Err(OperatorError::new(panic_text(&*panic))))
}
