//! Users who log in with a JSON Web Token of the configured issuer.
//!
//! What must hold: the user must be there, with its own rights; and what was let in with a token ends with it, or when
//! its issuer is not trusted any more.

use std::sync::Arc;

use super::jwt::{self, Issuer};
use super::{Accounts, now_s};
use crate::config::JwtConfig;
use crate::service::{Caller, Login, LoginProof, LoginToken, Refused, ServiceError};

/// An issuer that can be trusted from now on; or none.
pub(crate) struct PreparedIssuer(Option<Arc<Issuer>>);

impl Accounts {
    /// Reads what is needed for the issuer of a configuration. The one that is trusted already stays what it is, and
    /// has its keys read again.
    ///
    /// # Errors
    /// Its keys cannot be used.
    pub(crate) fn prepare_issuer(&self, config: Option<&JwtConfig>) -> Result<PreparedIssuer, ServiceError> {
        let Some(config) = config else { return Ok(PreparedIssuer(None)) };
        let present = self.issuer.read().clone().filter(|issuer| issuer.is_of(config));
        match present {
            Some(present) => {
                present.ask_anew();
                Ok(PreparedIssuer(Some(present)))
            }
            None => Ok(PreparedIssuer(Some(Issuer::open(config)?))),
        }
    }

    /// Trusts this issuer from now on, and no other. Whoever came in with a token of another one is sent away.
    pub(crate) fn trust(&self, PreparedIssuer(issuer): PreparedIssuer) {
        if let Some(issuer) = &issuer {
            issuer.look();
        }
        let before = std::mem::replace(&mut *self.issuer.write(), issuer.clone());
        let is_same = match (&before, &issuer) {
            (Some(before), Some(issuer)) => Arc::ptr_eq(before, issuer),
            (before, issuer) => before.is_none() && issuer.is_none(),
        };
        if !is_same {
            self.passing.lock().drain(..).filter_map(|login| login.upgrade()).for_each(|login| login.end());
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Whether a text is to be taken for a token of the issuer.
    pub(super) fn is_for_issuer(&self, text: &[u8]) -> bool {
        str::from_utf8(text).is_ok_and(jwt::is_like_one) && self.issuer.read().is_some()
    }

    /// The user of a token of the issuer.
    pub(super) fn of_jwt(&self, token: &str) -> Result<Caller, Refused> {
        let Some(issuer) = self.issuer.read().clone() else { return Err(Refused::default()) };
        let refused = |why: String| Refused::with_hint(format!("the JSON Web Token is not taken: {why}"));
        let identity = issuer.check(token, now_s()).map_err(refused)?;
        let user = identity.user;
        let rights = self.known.read().users.get(&user).map(|user| user.rights.clone()).ok_or_else(|| {
            let tenant = &user.tenant;
            refused(format!("it is of '{user}', who is no user of the tenant '{tenant}'; CREATE USER makes it one"))
        })?;
        let proof = LoginProof::Jwt { issuer: issuer.name().clone(), subject: identity.subject };
        let token = Arc::new(LoginToken::new(proof, Some(identity.ends_s), None));
        let mut passing = self.passing.lock();
        // It may have been replaced while the token was looked at.
        let is_trusted = self.issuer.read().as_ref().is_some_and(|trusted| Arc::ptr_eq(trusted, &issuer));
        if !is_trusted {
            return Err(Refused::default());
        }
        passing.push(Arc::downgrade(&token));
        drop(passing);
        Ok(Caller::logged_in(user, Login { rights, token }))
    }

    /// Ends the logins whose tokens have expired, and has the keys of the issuer looked after. Returns whether one has
    /// ended.
    pub(super) fn look_at_issuer(&self, now_s: u64) -> bool {
        if let Some(issuer) = self.issuer.read().as_ref() {
            issuer.look();
        }
        let mut has_ended = false;
        self.passing.lock().retain(|login| {
            let Some(login) = login.upgrade() else { return false };
            let ends = login.is_expired_at(now_s);
            if ends {
                login.end();
                has_ended = true;
            }
            !ends
        });
        has_ended
    }
}
