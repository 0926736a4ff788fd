//! `CREATE OR REPLACE`: a new version of an application, or of a big query, takes over from the version that runs. Both
//! go through the same steps:
//!
//! 1. **Check.** Everything that can be refused is checked while the version before continues: a text that cannot be
//!    planned, state that would be lost. A checked version is an [`Upgrade`].
//! 2. **Quiesce.** The version before stops processing, and its state is saved.
//! 3. **Start.** The new version is made, with the state that it can use.
//! 4. **Store.** The catalog records the new version. From here on it counts, also after a crash.
//! 5. **Switch.** Input goes to the new version, and the version before is gone. Nothing can fail any more.
//!
//! An error in steps 2 to 4 rolls back: the version before continues. No other checkpoint is made between the first and
//! the last step; one is made after them.
//!
//! What must hold: each event or row is processed by one of the two versions, first by the old one and then by the new
//! one.

use crate::service::{ErrorKind, ServiceError};

/// The most losses that an error names.
const NAMED_MAX: usize = 3;

/// A checked new version of something that runs.
pub(super) trait Upgrade {
    /// The answer to the statement.
    type Told;

    /// The version before stops processing, and its state is saved.
    ///
    /// # Errors
    /// It cannot be brought to rest or saved.
    fn quiesce(&mut self) -> Result<(), ServiceError>;

    /// Makes the new version with the state of the version before.
    ///
    /// # Errors
    /// The state does not fit, or something cannot be opened.
    fn start(&mut self) -> Result<(), ServiceError>;

    /// Records the new version in the catalog.
    ///
    /// # Errors
    /// The catalog cannot record it.
    fn store(&mut self) -> Result<(), ServiceError>;

    /// Input goes to the new version. Releases everything that was held.
    fn switch(self) -> Self::Told;

    /// Makes the version before continue, whatever step was reached. Returns the error for the answer.
    fn roll_back(self, error: ServiceError) -> ServiceError;
}

/// Makes a new version take over.
///
/// # Errors
/// It could not, and the version before continues.
pub(super) fn upgrade<U: Upgrade>(mut upgrade: U) -> Result<U::Told, ServiceError> {
    match upgrade.quiesce().and_then(|()| upgrade.start()).and_then(|()| upgrade.store()) {
        Ok(()) => Ok(upgrade.switch()),
        Err(error) => Err(upgrade.roll_back(error)),
    }
}

/// The error for a version with which `whose` state of `name` would be lost, which `statement` would allow.
pub(super) fn state_would_be_lost(name: &str, whose: &str, lost: &[String], statement: &str) -> ServiceError {
    let shown = lost.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    let message = format!("'{name}' is not replaced, for {whose} would lose state: {shown}");
    ServiceError::new(ErrorKind::Conflict, message)
        .with_hint(format!("leave these parts as they are, or let them begin anew: {statement}"))
}

/// The error after which the version before is unchanged.
pub(super) fn stays(name: &str, error: ServiceError) -> ServiceError {
    ServiceError { message: format!("'{name}' stays as it was: {}", error.message), ..error }
}
