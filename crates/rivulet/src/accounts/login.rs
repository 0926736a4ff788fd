//! Passwords of users, and the tokens that are given for them.
//!
//! What must hold: a password is good for a login and nothing else, and whatever was given for it ends with it.

use rivulet_sql::{SecretValue, UserName};

use super::change::{add_token, no_user};
use super::{Accounts, EndedLogins, now_s};
use crate::service::{
    AccountAnswer, Caller, Credentials, ErrorKind, FullName, Login, LoginProof, Refused, ServiceError,
};

/// How long a token holds that is given for a password.
const LOGIN_S: u64 = 12 * 3_600;

impl Accounts {
    /// Whether any user has a password.
    pub(super) fn have_passwords(&self) -> bool {
        self.known.read().with_password > 0
    }

    /// The user of this name and password.
    pub(super) fn of_password(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        let (Some(name), Some(given)) = (credentials.user, credentials.secret) else { return Err(Refused::default()) };
        if !self.have_passwords() {
            return Err(Refused::default());
        }
        let user = FullName::from_login(name);
        let known_user = || self.known.read().users.contains_key(&user).then(|| user.in_log());
        let address = credentials.origin.and_then(|origin| origin.address);
        if let Some(wait) = self.passwords.must_wait(&user, address) {
            let seconds = wait.as_secs() + 1;
            let hint = format!("none is looked at for {seconds} s; a token of the user is looked at all the same");
            return Err(Refused { hint: Some(hint), wait: Some(wait), user: known_user() });
        }
        let saved = self.known.read().users.get(&user).and_then(|user| user.record.password.clone());
        let is_right = self.passwords.is_right(given, saved.as_deref());
        let login = {
            let known = self.known.read();
            // Another one may have been set meanwhile.
            let found = known.users.get(&user).filter(|user| is_right && user.record.password == saved);
            found.and_then(|user| Some(Login { rights: user.rights.clone(), token: user.password.clone()? }))
        };
        let Some(login) = login else {
            let named = known_user();
            self.passwords.note_wrong(user, saved.is_some());
            let hint = "the user name or the password is wrong; a user of another tenant than the default one is written \
                        tenant/name";
            return Err(Refused { user: named, ..Refused::with_hint(hint) });
        };
        self.passwords.note_right(&user, address);
        Ok(Caller::logged_in(user, login))
    }

    /// Makes a token for a caller who has just shown its password.
    pub(super) fn issue(&self, caller: &Caller) -> Result<AccountAnswer, ServiceError> {
        let shown = caller.login().map(|login| &login.token);
        let name = caller.tenant().named(caller.name());
        self.change(&name, |record| {
            let is_shown = shown.is_some_and(|token| token.proof == LoginProof::Password && !token.has_ended());
            let record = record.as_mut().filter(|_| is_shown).ok_or_else(|| {
                let message = "the password has changed meanwhile";
                ServiceError::new(ErrorKind::Unauthenticated, message).with_hint("log in with the new one")
            })?;
            add_token(&name, record, Some(now_s().saturating_add(LOGIN_S)), true)
        })
    }

    /// Gives a user a password, or takes it away. Tokens and connections that the one before was shown for end.
    pub(super) fn set_password(
        &self,
        name: &FullName,
        written: &UserName,
        password: Option<&SecretValue>,
    ) -> Result<AccountAnswer, ServiceError> {
        // This takes long, and is done before anything is locked.
        let password = password.map(|password| self.passwords.hash(&password.0)).transpose()?;
        let done = match password {
            Some(_) => format!("{name} has its password"),
            None => format!("{name} has no password"),
        };
        self.change(name, |record| {
            let record = record.as_mut().ok_or_else(|| no_user(name, written))?;
            record.tokens.retain(|token| !token.by_password);
            record.password = password;
            Ok(AccountAnswer::Done(done))
        })
    }

    /// Ends all tokens and passwords, on disk too. An expired token of each user stays, so that callers still have to
    /// log in.
    ///
    /// # Errors
    /// That cannot be written. Then they hold.
    pub fn end_logins(&self) -> Result<EndedLogins, ServiceError> {
        let Some(catalog) = self.catalog.get() else { return Ok(EndedLogins::default()) };
        let _changing = self.changing.lock();
        let now_s = now_s();
        let (mut users, mut ended) = (Vec::new(), EndedLogins::default());
        for (name, user) in &self.known.read().users {
            let mut record = user.record.clone();
            if record.password.take().is_some() {
                ended.passwords += 1;
                if record.tokens.is_empty() {
                    // Nobody gets its text: it says that the user could log in.
                    add_token(name, &mut record, Some(now_s), true)?;
                }
            }
            for token in &mut record.tokens {
                if token.expires_s.is_none_or(|expires_s| expires_s > now_s) {
                    token.expires_s = Some(now_s);
                    ended.tokens += 1;
                }
            }
            if record != user.record {
                users.push((name.clone(), record));
            }
        }
        self.put(catalog, users)?;
        Ok(ended)
    }
}
