//! `CREATE OR REPLACE`: a new version of an application, or of a big query, takes over from the version that runs. Both
//! go through the same steps:
//!
//! 1. **Check.** Everything that can be refused is, while the version before goes on: a text that cannot be planned,
//!    state that would be lost. What was checked is an [`Upgrade`].
//! 2. **Quiesce.** The version before processes nothing more, and what it has done is saved.
//! 3. **Start.** The new version is made, with the state that it can use.
//! 4. **Store.** The catalog is told. From here on the new version counts, also after a crash.
//! 5. **Switch.** Input goes to the new version, and the one before is gone. Nothing can fail any more.
//!
//! An error in steps 2 to 4 rolls back: the version before goes on. Others make no checkpoint between the first and the
//! last step; one is made behind them.
//!
//! What must hold: each event or row is processed by one of the two versions, first by the one and then by the other.

use crate::service::{ErrorKind, ServiceError};

/// How many losses an error names.
const NAMED_MAX: usize = 3;

/// A new version that was found good, of something that runs.
pub(super) trait Upgrade {
    /// What is told of it.
    type Told;

    /// The version before processes nothing more, and what it has done is saved.
    ///
    /// # Errors
    /// It cannot be brought to rest or saved.
    fn quiesce(&mut self) -> Result<(), ServiceError>;

    /// Makes the new version with the state of the one before.
    ///
    /// # Errors
    /// The state does not fit, or something cannot be opened.
    fn start(&mut self) -> Result<(), ServiceError>;

    /// Has the catalog have the new version.
    ///
    /// # Errors
    /// It does not have it.
    fn store(&mut self) -> Result<(), ServiceError>;

    /// Input goes to the new version. Lets go of all that was held.
    fn switch(self) -> Self::Told;

    /// The version before goes on, however far this has come. Returns what is told of the error.
    fn roll_back(self, error: ServiceError) -> ServiceError;
}

/// Lets a new version take over.
///
/// # Errors
/// It could not, and the version before goes on.
pub(super) fn upgrade<U: Upgrade>(mut upgrade: U) -> Result<U::Told, ServiceError> {
    match upgrade.quiesce().and_then(|()| upgrade.start()).and_then(|()| upgrade.store()) {
        Ok(()) => Ok(upgrade.switch()),
        Err(error) => Err(upgrade.roll_back(error)),
    }
}

/// Refuses a version with which state would be lost, which `statement` would allow: `whose` state of what is named.
pub(super) fn state_would_be_lost(name: &str, whose: &str, lost: &[String], statement: &str) -> ServiceError {
    let shown = lost.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join("; ");
    let message = format!("'{name}' is not replaced, for {whose} would lose state: {shown}");
    ServiceError::new(ErrorKind::Conflict, message)
        .with_hint(format!("leave these parts as they are, or let them begin anew: {statement}"))
}

/// What is told of an error that left the version before as it was.
pub(super) fn stays(name: &str, error: ServiceError) -> ServiceError {
    ServiceError { message: format!("'{name}' stays as it was: {}", error.message), ..error }
}
