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
        let Some(authorizer) = authorizer.filter(|_| login.password.is_some()) else {
            return in_turn(&self.failed, authorizer.map(|authorizer| &**authorizer), &login);
        };
        let turns = if authorizer.takes_long(&login) { &self.slow_turns } else { &self.turns };
        // It is never closed.
        let Ok(turn) = Arc::clone(turns).acquire_owned().await else { return Err(Refused::Busy) };
        let (authorizer, failed) = (authorizer.clone(), self.failed.clone());
        let check = move || {
            // Kept to the end of the check, even if the client is gone by then.
            let _turn = turn;
            in_turn(&failed, Some(&*authorizer), &login)
        };
        // If the authorizer panics, the client is refused.
        tokio::task::spawn_blocking(check).await.unwrap_or(Err(Refused::Login))
    }
}

/// Looks at a login, and counts it if it fails. If its user at its address has to wait, it is admitted at once or not
/// at all.
fn in_turn(
    failed: &FailedLogins,
    authorizer: Option<&dyn ClientAuthorizer>,
    login: &ClientLogin,
) -> Result<Rights, Refused> {
    // What cannot be guessed is of nobody: names given with it make no password wait, and take no place among those.
    let is_guess = authorizer.is_none_or(|authorizer| authorizer.may_be_guessed(login));
    let (address, user) = (login.address, login.user.as_deref().filter(|_| is_guess));
    if failed.must_wait(address, user).is_some() {
        return authorizer.and_then(|authorizer| authorizer.admit_at_once(login)).ok_or(Refused::Busy);
    }
    let admitted = match authorizer {
        Some(authorizer) => authorizer.admit(login),
        None if login.is_configured == Some(false) => Err(NotAdmitted::Unknown),
        None => Ok(None),
    };
    if let (Ok(_), Some(user), true) = (&admitted, user, login.password.is_some()) {
        failed.note_right(address, user);
    }
    admitted.map_err(|refused| match refused {
        NotAdmitted::Unknown => {
            failed.note(address, user, PLACE);
            Refused::Login
        }
        NotAdmitted::Busy => Refused::Busy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows nobody. What begins with `token` cannot be guessed.
    #[derive(Debug)]
    struct KnowsNobody;

    impl ClientAuthorizer for KnowsNobody {
        fn admit(&self, _: &ClientLogin) -> Result<Rights, NotAdmitted> {
            Err(NotAdmitted::Unknown)
        }

        fn may_be_guessed(&self, login: &ClientLogin) -> bool {
            login.password.as_ref().is_some_and(|password| !password.starts_with(b"token"))
        }
    }

    #[test]
    fn old_tokens_with_names_of_users_make_no_password_wait() {
        let failed = FailedLogins::default();
        let log_in = |user: String, password: &str| {
            let (password, address) = (Some(password.into()), std::net::Ipv4Addr::LOCALHOST.into());
            let (user, certificate, client_id, is_configured) = (Some(user), None, String::new(), None);
            let login = ClientLogin { user, password, certificate, client_id, address, is_configured };
            in_turn(&failed, Some(&KnowsNobody), &login).err()
        };
        let of_tokens: Vec<_> = (0..1000).map(|number| log_in(format!("{}", number % 500), "token")).collect();
        assert_eq!((of_tokens[0], of_tokens[999]), (Some(Refused::Login), Some(Refused::Busy)));
        assert_eq!(log_in("7".into(), "a word"), Some(Refused::Login), "it was looked at");
    }
}
