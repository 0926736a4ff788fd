//! Checks the logins of clients, a few at a time.
//!
//! What must hold: guesses that come together are counted as if they came one after the other, but for those that are
//! looked at at the same time; and no client waits for the slow check of another one's password.

use std::net::IpAddr;
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
        let address = login.address;
        let Some(authorizer) = authorizer else {
            let check = || if login.is_configured == Some(false) { Err(NotAdmitted::Unknown) } else { Ok(None) };
            return in_turn(&self.failed, address, check);
        };
        if login.password.is_none() {
            return in_turn(&self.failed, address, || authorizer.admit(&login));
        }
        let turns = if authorizer.takes_long(&login) { &self.slow_turns } else { &self.turns };
        // It is never closed.
        let Ok(turn) = Arc::clone(turns).acquire_owned().await else { return Err(Refused::Busy) };
        let (authorizer, failed) = (authorizer.clone(), self.failed.clone());
        let check = move || {
            // Kept to the end of the check, even if the client is gone by then.
            let _turn = turn;
            in_turn(&failed, address, || authorizer.admit(&login))
        };
        // If the authorizer panics, the client is refused.
        tokio::task::spawn_blocking(check).await.unwrap_or(Err(Refused::Login))
    }
}

/// Looks at a login, unless its address has to wait, and counts it if it fails.
fn in_turn(
    failed: &FailedLogins,
    address: IpAddr,
    check: impl FnOnce() -> Result<Rights, NotAdmitted>,
) -> Result<Rights, Refused> {
    if failed.must_wait(address).is_some() {
        return Err(Refused::Busy);
    }
    check().map_err(|refused| match refused {
        NotAdmitted::Unknown => {
            failed.note(address, PLACE);
            Refused::Login
        }
        NotAdmitted::Busy => Refused::Busy,
    })
}
