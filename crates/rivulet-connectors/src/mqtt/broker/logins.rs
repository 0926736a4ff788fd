//! Checks the logins of clients, a few at a time.
//!
//! What must hold: guesses that come together are counted as if they came one after the other, but for those that are
//! looked at at the same time; no client waits for the slow check of another one's password; and none that has right
//! credentials which cannot be guessed waits because others behind its address have wrong ones.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::packets::Refused;
use super::rights::{ClientAuthorizer, ClientLogin, NotAdmitted, Rights};
use crate::logins::FailedLogins;

/// Logins that are looked at at a time. The authorizer may ask a server elsewhere.
const LOGINS_MAX: usize = 8;

/// The same of those that [take long](super::ClientAuthorizer::takes_long).
const SLOW_LOGINS_MAX: usize = 2;

/// What the log calls the place of a failed login.
const PLACE: &str = "the embedded broker";

/// Whose turn it is, and who has failed.
#[derive(Debug)]
pub(super) struct Logins {
    failed: Arc<FailedLogins>,
    turns: Arc<Semaphore>,
    slow_turns: Arc<Semaphore>,
}

impl Default for Logins {
    fn default() -> Self {
        let [turns, slow_turns] = [LOGINS_MAX, SLOW_LOGINS_MAX].map(|places| Arc::new(Semaphore::new(places)));
        Self { failed: Arc::default(), turns, slow_turns }
    }
}

impl Logins {
    /// Checks the identity of a client, and returns its rights.
    pub(super) async fn admit(
        &self,
        authorizer: Option<&Arc<dyn ClientAuthorizer>>,
        login: ClientLogin,
    ) -> Result<Rights, Refused> {
        let Some(authorizer) = authorizer else {
            let check = || if login.is_configured == Some(false) { Err(NotAdmitted::Unknown) } else { Ok(None) };
            return in_turn(&self.failed, &login, check, || None);
        };
        if login.password.is_none() {
            let check = || authorizer.admit(&login);
            return in_turn(&self.failed, &login, check, || authorizer.admit_at_once(&login));
        }
        let turns = if authorizer.takes_long(&login) { &self.slow_turns } else { &self.turns };
        // It is never closed.
        let Ok(turn) = Arc::clone(turns).acquire_owned().await else { return Err(Refused::Busy) };
        let (authorizer, failed) = (authorizer.clone(), self.failed.clone());
        let check = move || {
            // Kept to the end of the check, even if the client is gone by then.
            let _turn = turn;
            in_turn(&failed, &login, || authorizer.admit(&login), || authorizer.admit_at_once(&login))
        };
        // If the authorizer panics, the client is refused.
        tokio::task::spawn_blocking(check).await.unwrap_or(Err(Refused::Login))
    }
}

/// Looks at a login, and counts it if it fails. If its user at its address has to wait, it is admitted `at_once` or not
/// at all.
fn in_turn(
    failed: &FailedLogins,
    login: &ClientLogin,
    check: impl FnOnce() -> Result<Rights, NotAdmitted>,
    at_once: impl FnOnce() -> Option<Rights>,
) -> Result<Rights, Refused> {
    let (address, user) = (login.address, login.user.as_deref());
    if failed.must_wait(address, user).is_some() {
        return at_once().ok_or(Refused::Busy);
    }
    check().map_err(|refused| match refused {
        NotAdmitted::Unknown => {
            failed.note(address, user, PLACE);
            Refused::Login
        }
        NotAdmitted::Busy => Refused::Busy,
    })
}
