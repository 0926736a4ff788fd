//! Who gets in, and what they may do: the accounts as the authorizer of a server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_connectors::logins::is_secret;
use tokio::sync::watch;

use super::token::{self, Hash};
use super::{Accounts, now_s};
use crate::service::{
    AccountAnswer, Action, Authorizer, Caller, Credentials, FullName, Login, LoginProof, LoginToken, Refused, Resource,
    ServiceError, is_below,
};

impl Accounts {
    /// The user of a token.
    fn of_token(&self, text: &str) -> Result<Caller, Refused> {
        let mistyped = "characters of the token are missing or wrong; copy it again as it was shown";
        let (id, hash) = token::read(text.as_bytes()).ok_or_else(|| Refused::with_hint(mistyped))?;
        let (token, rights) = {
            let known = self.known.read();
            let token = known.tokens.get(&id).cloned();
            let rights = token.as_ref().and_then(|token| known.users.get(&token.user)).map(|user| user.rights.clone());
            (token, rights)
        };
        // An id is no secret, and is shown; that which must not be guessed is compared as a whole.
        let is_same = is_secret(&hash, &token.as_ref().map_or(Hash::default(), |token| token.hash));
        let (Some(token), Some(rights), true) = (token, rights, is_same) else { return Err(Refused::default()) };
        let now_s = now_s();
        if token.login.has_ended() || token.login.is_expired_at(now_s) {
            let hint = "the token has expired; ask an administrator for another, or have it rotated before it ends";
            return Err(Refused { user: Some(token.user.in_log()), ..Refused::with_hint(hint) });
        }
        token.login.last_used_s.store(now_s, Ordering::Relaxed);
        Ok(Caller::logged_in(token.user, Login { rights, token: token.login }))
    }

    /// The user that a verified certificate names: `user`, or `tenant/user` outside of the default tenant. It is logged
    /// in for as long as there is such a user.
    fn of_certificate(&self, name: &str) -> Option<Caller> {
        let user = FullName::from_login(name);
        let rights = self.known.read().users.get(&user)?.rights.clone();
        let token = Arc::new(LoginToken::new(LoginProof::Certificate, None, None));
        Some(Caller::logged_in(user, Login { rights, token }))
    }
}

impl Authorizer for Accounts {
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        if self.are_open() {
            return Ok(Caller::local_operator());
        }
        let Some(secret) = credentials.secret else {
            return credentials.certificate.and_then(|name| self.of_certificate(name)).ok_or_else(Refused::default);
        };
        match str::from_utf8(secret) {
            Ok(text) if text.starts_with(token::PREFIX) => self.of_token(text),
            Ok(text) if self.is_for_issuer(secret) => self.of_jwt(text),
            _ => self.of_password(credentials),
        }
    }

    fn takes_long(&self, credentials: &Credentials<'_>) -> bool {
        let is_password = credentials.user.is_some() && self.may_be_guessed(credentials);
        is_password && !self.are_open() && self.have_passwords()
    }

    fn may_be_guessed(&self, credentials: &Credentials<'_>) -> bool {
        let is_guess = |secret: &[u8]| !secret.starts_with(token::PREFIX.as_bytes()) && !self.is_for_issuer(secret);
        credentials.secret.is_some_and(is_guess)
    }

    fn check_password(&self, credentials: &Credentials<'_>) -> Result<Caller, Refused> {
        self.of_password(credentials)
    }

    fn issue_token(&self, caller: &Caller) -> Result<AccountAnswer, ServiceError> {
        self.issue(caller)
    }

    fn end_login(&self, caller: &Caller) -> Result<(), ServiceError> {
        let Some(LoginProof::Token(id)) = caller.login().map(|login| &login.token.proof) else { return Ok(()) };
        // The caller may be an operator in the place of a tenant.
        let Some(user) = self.known.read().tokens.get(id).map(|token| token.user.clone()) else { return Ok(()) };
        let id = token::id_text(*id);
        self.change(&user, |record| {
            let tokens = record.iter_mut().map(|record| &mut record.tokens);
            tokens.for_each(|tokens| tokens.retain(|token| !(token.by_password && token.id == id)));
            Ok(())
        })
    }

    fn may_everything(&self, caller: &Caller) -> bool {
        match caller.login() {
            None => self.are_open(),
            Some(login) => self.rights_of(login).is_some_and(|rights| rights.has_server()),
        }
    }

    fn may(&self, caller: &Caller, action: Action, resource: Resource<'_>) -> Result<(), Refused> {
        let Some(login) = caller.login() else {
            return if self.are_open() { Ok(()) } else { Err(Refused::default()) };
        };
        // On the way of a message: no lock and no allocation as long as nothing has changed.
        let is_allowed = match login.rights.is_outdated() || login.token.has_ended() {
            false => login.rights.allow(action, resource, caller.client_id()),
            true => self.rights_of(login).is_some_and(|rights| rights.allow(action, resource, caller.client_id())),
        };
        if is_allowed {
            return Ok(());
        }
        Err(Refused::default())
    }

    fn may_name_topic(&self, caller: &Caller, topic: &str) -> Result<(), Refused> {
        let tenant = caller.tenant();
        if tenant.is_default() || is_below(topic, tenant.as_str()) {
            return Ok(());
        }
        let hint = format!("topics of the tenant '{tenant}' begin with {tenant}/: write 'mqtt:{tenant}/{topic}'");
        Err(Refused::with_hint(hint))
    }

    fn holds(&self, caller: &Caller) -> bool {
        match caller.login() {
            None => self.are_open(),
            Some(login) => self.rights_of(login).is_some(),
        }
    }

    fn has_accounts(&self) -> bool {
        !self.are_open()
    }

    fn has_tenant(&self, name: &str) -> bool {
        self.known.read().tenants.contains(name)
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.changed.subscribe())
    }
}
