//! Accounts: tenants, users, their tokens and rights, kept in the catalog and asked from memory.
//!
//! What must hold: a change that is answered is on disk, and counts from then on: for requests at once, and for
//! connections and streams at their next message or within a second. Once an administrator of the server has a token
//! or a password, every door asks for one, and that never goes away again: there is always an administrator who can
//! log in.
//!
//! In reading order: [`token`] (the text of a token), `password`, `record` (what is saved of a user), this file (who is
//! who, and what they may do), `tenants` (with their limits), `login` (passwords, and the tokens that are given for
//! them), `jwt` and `single_sign_on` (tokens of an issuer elsewhere), `authorizer` (who gets in), `change`
//! (statements), `audit` (the record of what callers do).

mod audit;
mod authorizer;
mod change;
mod jwt;
mod login;
mod password;
mod record;
mod single_sign_on;
mod tenants;
pub mod token;

pub(crate) use audit::AuditLog;
pub use audit::audit_line;
pub use jwt::{Identity, identity_of_jwt};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::catalog::Catalog;
use crate::service::{ErrorKind, FullName, Login, LoginProof, LoginToken, Quotas, Rights, ServiceError, Tenant};
use jwt::Issuer;
use password::Passwords;
use record::UserRecord;
use token::Hash;

/// How often what expires is looked at: for so long a connection may outlive its token.
pub const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// How exact the last use of a token is after a restart: it is written at most so often.
const LAST_USE_PERIOD_S: u64 = 300;

/// The accounts of one server.
#[derive(Default)]
pub struct Accounts {
    /// Empty until they are loaded; then nobody gets in.
    catalog: OnceLock<Arc<Catalog>>,
    known: RwLock<Known>,
    /// Whether callers have to log in.
    is_in_force: AtomicBool,
    /// What tenants may have and use.
    quotas: Arc<Quotas>,
    /// Held by a change while it is written.
    changing: Mutex<()>,
    /// Counts changes after which somebody may do less.
    changed: watch::Sender<u64>,
    last_use_saved_s: Mutex<u64>,
    passwords: Passwords,
    /// Who issues tokens elsewhere, if anybody does.
    issuer: RwLock<Option<Arc<Issuer>>>,
    /// Those who have logged in with one, as long as they are there.
    passing: Mutex<Vec<Weak<LoginToken>>>,
}

/// What a restore has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedLogins {
    /// Tokens that were valid.
    pub tokens: usize,
    /// Passwords.
    pub passwords: usize,
}

#[derive(Default)]
struct Known {
    tenants: BTreeSet<Tenant>,
    users: BTreeMap<FullName, User>,
    tokens: HashMap<u64, Token>,
    /// How many users have a password.
    with_password: usize,
}

struct User {
    record: UserRecord,
    rights: Arc<Rights>,
    /// What those have shown who have logged in with its password, if it has one.
    password: Option<Arc<LoginToken>>,
}

#[derive(Clone)]
struct Token {
    hash: Hash,
    user: FullName,
    login: Arc<LoginToken>,
}

impl Known {
    /// Replaces the record of a user, or removes the user. Whoever has logged in goes on with a token that is still
    /// there, and with the rights that there are now.
    fn put(&mut self, name: &FullName, record: Option<UserRecord>) {
        let before = self.users.remove(name);
        for token in before.iter().flat_map(|user| &user.record.tokens) {
            let Some(id) = token::id_of(&token.id) else { continue };
            let is_kept = record.as_ref().is_some_and(|record| record.tokens.iter().any(|kept| kept.id == token.id));
            if !is_kept && let Some(gone) = self.tokens.remove(&id) {
                gone.login.end();
            }
        }
        let of_before = before.as_ref().and_then(|user| user.password.clone());
        self.with_password -= usize::from(of_before.is_some());
        let has_same = |user: &User| record.as_ref().is_some_and(|record| record.password == user.record.password);
        let password = of_before.filter(|login| {
            let is_same = before.as_ref().is_some_and(has_same);
            if !is_same {
                login.end();
            }
            is_same
        });
        let Some(record) = record else {
            before.iter().for_each(|user| user.rights.end());
            return;
        };
        for token in &record.tokens {
            let mut hash = Hash::default();
            let (Some(id), Ok(())) = (token::id_of(&token.id), hex::decode_to_slice(&token.hash, &mut hash)) else {
                tracing::error!(user = name.in_log(), id = token.id, "a token cannot be read, and is left out");
                continue;
            };
            let login = || Arc::new(LoginToken::new(LoginProof::Token(id), token.expires_s, token.last_used_s));
            let entry = self.tokens.entry(id).or_insert_with(|| Token { hash, user: name.clone(), login: login() });
            entry.login.expires_s.store(token.expires_s.unwrap_or(u64::MAX), Ordering::Release);
        }
        let has_same_rights = |user: &User| user.record.all == record.all && user.record.grants == record.grants;
        let rights = match before {
            Some(user) if has_same_rights(&user) => user.rights,
            Some(user) => Arc::new(user.rights.replace(record.rights(name))),
            None => Arc::new(record.rights(name)),
        };
        let new_login = || Arc::new(LoginToken::new(LoginProof::Password, None, None));
        let password = password.or_else(|| record.password.is_some().then(new_login));
        self.with_password += usize::from(password.is_some());
        self.users.insert(name.clone(), User { record, rights, password });
    }

    /// Whether callers have to log in.
    fn has_administrator(&self) -> bool {
        // Expired tokens count too: otherwise nobody would have to log in once the last one has expired.
        self.users.iter().any(|(name, user)| user.record.can_administer(name, |_| true))
    }
}

impl Accounts {
    /// The accounts in a catalog.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn open(catalog: Arc<Catalog>) -> Result<Self, ServiceError> {
        let accounts = Self::default();
        accounts.load(catalog)?;
        Ok(accounts)
    }

    /// Reads them from a catalog. Until then nobody gets in.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn load(&self, catalog: Arc<Catalog>) -> Result<(), ServiceError> {
        let mut known = self.known.write();
        known.tenants.extend(catalog.tenants()?);
        for (tenant, text) in catalog.quotas()? {
            let limits = record::read_limits(&text).map_err(|error| {
                let message = format!("the limits of the tenant '{tenant}' in the catalog cannot be read: {error}");
                ServiceError::new(ErrorKind::Internal, message)
                    .with_hint("was it written by a later version? Otherwise restore the catalog from a backup")
            })?;
            self.quotas.set(&tenant, limits);
        }
        for (name, text) in catalog.users()? {
            let record = serde_json::from_str(&text).map_err(|error| {
                let message = format!("the user {} in the catalog cannot be read: {error}", name.in_log());
                ServiceError::new(ErrorKind::Internal, message)
                    .with_hint("was it written by a later version? Otherwise restore the catalog from a backup")
            })?;
            known.put(&name, Some(record));
        }
        self.is_in_force.store(known.has_administrator(), Ordering::Release);
        drop(known);
        *self.last_use_saved_s.lock() = now_s();
        // There is one catalog.
        let _ = self.catalog.set(catalog);
        Ok(())
    }

    /// What tenants may have and use.
    pub fn quotas(&self) -> &Arc<Quotas> {
        &self.quotas
    }

    /// Whether callers have to log in: an administrator of the server has a token or a password.
    pub fn are_in_force(&self) -> bool {
        self.is_in_force.load(Ordering::Acquire)
    }

    /// Ends the tokens that have expired, and writes from time to time when tokens were last used. To be called once in
    /// a [`LOOK_PERIOD`].
    pub fn look(&self) {
        let now_s = now_s();
        let mut has_ended = self.look_at_issuer(now_s);
        let known = self.known.read();
        let expired = known.tokens.values().filter(|one| !one.login.has_ended() && one.login.is_expired_at(now_s));
        expired.for_each(|token| {
            token.login.end();
            has_ended = true;
        });
        drop(known);
        if has_ended {
            self.changed.send_modify(|count| *count += 1);
        }
        if now_s.saturating_sub(*self.last_use_saved_s.lock()) >= LAST_USE_PERIOD_S {
            self.save_last_use();
        }
    }

    /// Writes when tokens were last used. What fails is tried again the next time: it is a note, and no right hangs on
    /// it.
    pub fn save_last_use(&self) {
        let Some(catalog) = self.catalog.get() else { return };
        let _changing = self.changing.lock();
        *self.last_use_saved_s.lock() = now_s();
        let mut users: Vec<(FullName, UserRecord)> = Vec::new();
        {
            let known = self.known.read();
            for (name, user) in &known.users {
                let mut record = user.record.clone();
                for token in &mut record.tokens {
                    let login = token::id_of(&token.id).and_then(|id| known.tokens.get(&id));
                    let used_s = login.map_or(0, |token| token.login.last_used_s.load(Ordering::Relaxed));
                    token.last_used_s = token.last_used_s.max((used_s > 0).then_some(used_s));
                }
                if record != user.record {
                    users.push((name.clone(), record));
                }
            }
        }
        let _ = self.put(catalog, users);
    }

    /// Replaces the records of users, on disk and in memory.
    fn put(&self, catalog: &Catalog, users: Vec<(FullName, UserRecord)>) -> Result<(), ServiceError> {
        let texts: Vec<String> = users.iter().map(|(_, record)| text_of(record)).collect();
        let rows: Vec<_> = users.iter().zip(&texts).map(|((name, _), text)| (name, Some(text.as_str()))).collect();
        if !rows.is_empty() {
            catalog.put_users(&rows)?;
        }
        let mut known = self.known.write();
        users.into_iter().for_each(|(name, record)| known.put(&name, Some(record)));
        Ok(())
    }

    /// The present rights of a login, if it still holds.
    fn rights_of(&self, login: &Login) -> Option<Arc<Rights>> {
        match login.token.has_ended() {
            true => None,
            false if !login.rights.is_outdated() => Some(login.rights.clone()),
            false => Some(self.known.read().users.get(login.rights.user())?.rights.clone()),
        }
    }

    /// Whether nobody has to log in, and the accounts are loaded.
    fn are_open(&self) -> bool {
        !self.are_in_force() && self.catalog.get().is_some()
    }
}

fn text_of(record: &UserRecord) -> String {
    serde_json::to_string(record).expect("a record is text and numbers")
}

/// Seconds since the epoch.
fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
