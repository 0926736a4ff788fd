//! Statements about accounts. Whether the caller may run them was checked before.

use std::sync::Arc;

use rivulet_sql::{AccountStatement, GRANT_ACTIONS, GRANT_KINDS, GrantedRights, UserName};

use super::record::{GrantRecord, TokenRecord, UserRecord, action_of, kind_of};
use super::tenants::{at, check_name, done, limit, no_tenant};
use super::token::{self, NewToken};
use super::{Accounts, now_s, text_of};
use crate::catalog::Catalog;
use crate::service::{
    AccountAnswer, Action, Caller, ErrorKind, FullName, GrantInfo, ResourceKind, ServiceError, Tenant, TokenInfo,
    UserInfo, has_expired, is_below,
};

/// The longest pattern of a right, in bytes.
const PATTERN_BYTES_MAX: usize = 1_024;

/// The most users.
const USERS_MAX: usize = 100_000;

/// The most tokens of a user. One more takes the place of one that has expired, if there is one.
const TOKENS_MAX: usize = 32;

/// The most tokens that a user has for its password.
const LOGINS_MAX: usize = 16;

/// The most rights of a user: each is looked at for each message.
const GRANTS_MAX: usize = 256;

impl Accounts {
    /// Carries out a statement of a caller. It speaks of the caller's tenant, unless it names another.
    ///
    /// # Errors
    /// Why it is refused; then nothing has changed.
    pub fn run(&self, caller: &Caller, statement: &AccountStatement) -> Result<AccountAnswer, ServiceError> {
        use AccountStatement as S;
        let full = |user: &UserName| full_name(caller, user);
        match statement {
            S::CreateTenant { name, if_not_exists, limits } => self.create_tenant(name, *if_not_exists, limits),
            S::AlterTenant { name, limits } => self.alter_tenant(name, limits),
            S::DropTenant { name, if_exists, .. } => self.drop_tenant(name, *if_exists),
            S::CreateUser { user, if_not_exists, is_admin } => {
                self.create_user(&full(user), user, *if_not_exists, *is_admin)
            }
            S::DropUser { user, if_exists } => {
                let name = full(user);
                let dropped = self.change(&name, |record| record.take().map(drop).ok_or_else(|| no_user(&name, user)));
                match dropped {
                    Err(error) if *if_exists && error.kind == ErrorKind::NotFound => {
                        Ok(done(format!("there is no user {name}, nothing was done")))
                    }
                    dropped => dropped.map(|()| done(format!("user {name} dropped"))),
                }
            }
            S::SetPassword { user, password } => self.set_password(&full(user), user, password.as_ref()),
            S::CreateToken { user, expires_in_s } => self.create_token(&full(user), user, *expires_in_s),
            S::RotateToken { id, grace_s, position } => {
                self.rotate_token(caller, id, *grace_s).map_err(|error| error.at_place((*position).into()))
            }
            S::DropToken { id, if_exists, position } => match self.drop_token(caller, id) {
                Err(error) if *if_exists && error.kind == ErrorKind::NotFound => {
                    Ok(done(format!("there is no token '{id}', nothing was done")))
                }
                dropped => dropped.map_err(|error| error.at_place((*position).into())),
            },
            S::Grant { rights, user } => self.grant(&full(user), user, rights),
            S::Revoke { rights, user } => self.revoke(&full(user), user, rights),
            S::ShowTenants => Ok(AccountAnswer::Tenants(self.tenants())),
            S::ShowUsers => Ok(AccountAnswer::Users(self.show(caller, None, |name, record, users| {
                users.push(UserInfo {
                    tenant: name.tenant.to_string(),
                    name: name.name.clone(),
                    is_admin: record.all,
                    tokens: record.tokens.len() as u64,
                    grants: record.grants.len() as u64,
                    has_password: record.password.is_some(),
                    created_s: record.created_s,
                });
            })?)),
            S::ShowTokens(user) => {
                let now_s = now_s();
                let mut tokens = self.show(caller, user.as_ref(), |name, record, tokens| {
                    tokens.extend(record.tokens.iter().map(|token| info_of(name, token, now_s)));
                })?;
                let known = self.known.read();
                for info in &mut tokens {
                    let login = token::id_of(&info.id).and_then(|id| known.tokens.get(&id));
                    let used_s =
                        login.map_or(0, |one| one.login.last_used_s.load(std::sync::atomic::Ordering::Relaxed));
                    info.last_used_s = (used_s > 0).then_some(used_s);
                }
                Ok(AccountAnswer::Tokens(tokens))
            }
            S::ShowGrants(user) => {
                Ok(AccountAnswer::Grants(self.show(caller, user.as_ref(), |name, record, grants| {
                    let (tenant, user) = (name.tenant.to_string(), name.name.clone());
                    let of = |actions: Vec<String>, kind: Option<String>, pattern: Option<String>| GrantInfo {
                        tenant: tenant.clone(),
                        user: user.clone(),
                        actions,
                        kind,
                        pattern,
                    };
                    if record.all {
                        grants.push(of(vec!["all".into()], None, None));
                    }
                    let rest = record.grants.iter();
                    grants.extend(rest.map(|one| of(one.actions.clone(), Some(one.kind.clone()), one.pattern.clone())));
                })?))
            }
        }
    }

    pub(super) fn catalog(&self) -> Result<&Arc<Catalog>, ServiceError> {
        let not_loaded = || ServiceError::new(ErrorKind::Unavailable, "the accounts are not read yet");
        self.catalog.get().ok_or_else(not_loaded)
    }

    /// Whether a user or token is among those that a caller knows of: those of its tenant, or all.
    fn sees(caller: &Caller, tenant: &Tenant) -> bool {
        let sees_all = || caller.login().is_none_or(|login| login.rights.has_server());
        tenant == caller.tenant() || (!caller.is_operator_in_tenant() && sees_all())
    }

    /// What is told of one user, or of all that the caller knows of.
    fn show<T>(
        &self,
        caller: &Caller,
        user: Option<&UserName>,
        tell: impl Fn(&FullName, &UserRecord, &mut Vec<T>),
    ) -> Result<Vec<T>, ServiceError> {
        let known = self.known.read();
        let mut told = Vec::new();
        match user {
            Some(user) => {
                let name = full_name(caller, user);
                let found = known.users.get(&name).ok_or_else(|| no_user(&name, user))?;
                tell(&name, &found.record, &mut told);
            }
            None => {
                let users = known.users.iter().filter(|(name, _)| Self::sees(caller, &name.tenant));
                users.for_each(|(name, user)| tell(name, &user.record, &mut told));
            }
        }
        Ok(told)
    }

    /// Changes the record of a user, `None` for no user: on disk, then in memory. The last administrator who can log
    /// in stays.
    pub(super) fn change<T>(
        &self,
        name: &FullName,
        change: impl FnOnce(&mut Option<UserRecord>) -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        let catalog = self.catalog()?;
        let _changing = self.changing.lock();
        let before = self.known.read().users.get(name).map(|user| user.record.clone());
        let mut record = before.clone();
        let done = change(&mut record)?;
        if record == before {
            return Ok(done);
        }
        let now_s = now_s();
        let holds = |token: &TokenRecord| !has_expired(token.expires_s, now_s);
        let remains = |is_token: &dyn Fn(&TokenRecord) -> bool| {
            let known = self.known.read();
            let mut others = known.users.iter().filter(|(other, _)| *other != name);
            record.as_ref().is_some_and(|record| record.can_administer(name, is_token))
                || others.any(|(other, user)| user.record.can_administer(other, is_token))
        };
        let was = before.as_ref().is_some_and(|record| record.can_administer(name, holds));
        // Without any password or token of an administrator, expired ones too, nobody would have to log in any more.
        let opens = self.are_in_force() && !remains(&|_| true);
        if opens || was && !remains(&holds) {
            let message = format!("'{name}' is the last administrator of the server who can log in");
            return Err(ServiceError::new(ErrorKind::Conflict, message).with_hint(
                "give another user all rights and a token first: CREATE USER name ADMIN, CREATE TOKEN FOR name",
            ));
        }
        let text = record.as_ref().map(text_of);
        catalog.put_users(&[(name, text.as_deref())])?;
        let mut known = self.known.write();
        known.put(name, record);
        self.is_in_force.store(known.has_administrator(), std::sync::atomic::Ordering::Release);
        drop(known);
        self.changed.send_modify(|count| *count += 1);
        Ok(done)
    }

    fn create_user(
        &self,
        name: &FullName,
        written: &UserName,
        if_not_exists: bool,
        is_admin: bool,
    ) -> Result<AccountAnswer, ServiceError> {
        check_name("a user", &written.name)?;
        let is_new = self.change(name, |record| {
            // Looked at here, where no tenant can be dropped meanwhile: its users would be those of the next one of
            // that name.
            let known = self.known.read();
            // It would be a user of the tenant that is not named, and perhaps an administrator of the server.
            if let Some((tenant, user)) = name.name.split_once('.')
                && known.has_tenant(&Tenant::new(tenant))
            {
                let message = format!("'{name}' would be a user of the tenant '{}'", name.tenant);
                let hint = format!(
                    "for the user {user} of the tenant {tenant} write `{user} --tenant {tenant}`, in SQL {tenant}.{user}, \
                     in REST the field tenant"
                );
                return Err(at(ServiceError::invalid(message).with_hint(hint), &written.name));
            }
            if !known.has_tenant(&name.tenant) {
                return Err(at(no_tenant(&name.tenant), written.tenant.as_ref().unwrap_or(&written.name)));
            }
            match record {
                Some(_) if if_not_exists => Ok(false),
                Some(_) => {
                    let error = ServiceError::new(ErrorKind::AlreadyExists, format!("the user '{name}' exists"));
                    Err(at(error, &written.name))
                }
                None if known.users.len() >= USERS_MAX => {
                    Err(limit(format!("there are {USERS_MAX} users, which is the limit"), "drop one"))
                }
                None => {
                    *record = Some(UserRecord { created_s: now_s(), all: is_admin, ..UserRecord::default() });
                    Ok(true)
                }
            }
        })?;
        if !is_new {
            return Ok(done(format!("user {name} exists, nothing was done")));
        }
        let as_what = match is_admin {
            true if name.tenant.is_default() => " as an administrator of the server".to_owned(),
            true => format!(" as an administrator of the tenant {}", name.tenant),
            false => String::new(),
        };
        let note = match self.are_in_force() {
            true => "",
            false => "; nobody has to log in before an administrator of the server has a token or a password",
        };
        Ok(done(format!("user {name} created{as_what}{note}")))
    }

    fn create_token(
        &self,
        name: &FullName,
        written: &UserName,
        expires_in_s: Option<u64>,
    ) -> Result<AccountAnswer, ServiceError> {
        self.change(name, |record| {
            let record = record.as_mut().ok_or_else(|| no_user(name, written))?;
            let now_s = now_s();
            add_token(name, record, expires_in_s.map(|after_s| now_s.saturating_add(after_s)), false)
        })
    }

    /// The user of a token that the caller knows of.
    fn owner_of(&self, caller: &Caller, id: &str) -> Result<FullName, ServiceError> {
        let known = self.known.read();
        let user = token::id_of(id).and_then(|id| known.tokens.get(&id)).map(|token| token.user.clone());
        user.filter(|user| Self::sees(caller, &user.tenant)).ok_or_else(|| no_token(id))
    }

    fn rotate_token(&self, caller: &Caller, id: &str, grace_s: u64) -> Result<AccountAnswer, ServiceError> {
        let name = self.owner_of(caller, id)?;
        self.change(&name, |record| {
            let record = record.as_mut().ok_or_else(|| no_token(id))?;
            let place = record.tokens.iter().position(|token| token.id == id).ok_or_else(|| no_token(id))?;
            let now_s = now_s();
            let old = &mut record.tokens[place];
            let lifetime_s = old.expires_s.map(|expires_s| expires_s.saturating_sub(old.created_s));
            let by_password = old.by_password;
            if grace_s == 0 {
                record.tokens.remove(place);
            } else {
                let end_s = now_s.saturating_add(grace_s);
                old.expires_s = Some(old.expires_s.map_or(end_s, |expires_s| expires_s.min(end_s)));
            }
            add_token(&name, record, lifetime_s.map(|after_s| now_s.saturating_add(after_s)), by_password)
        })
    }

    fn drop_token(&self, caller: &Caller, id: &str) -> Result<AccountAnswer, ServiceError> {
        let name = self.owner_of(caller, id)?;
        self.change(&name, |record| {
            record.iter_mut().for_each(|record| record.tokens.retain(|token| token.id != id));
            Ok(done(format!("token {id} of {name} dropped")))
        })
    }

    fn grant(
        &self,
        name: &FullName,
        written: &UserName,
        rights: &GrantedRights,
    ) -> Result<AccountAnswer, ServiceError> {
        let grant = grant_of(&name.tenant, rights)?;
        self.change(name, |record| {
            let record = record.as_mut().ok_or_else(|| no_user(name, written))?;
            let Some(grant) = grant else {
                record.all = true;
                return Ok(done(format!("{name} has all rights")));
            };
            let is_over_same = |one: &GrantRecord| one.kind == grant.kind && one.pattern == grant.pattern;
            match record.grants.iter().position(is_over_same) {
                // One right for each pattern, with all that it allows.
                Some(place) => {
                    let known = &record.grants[place].actions;
                    let both = |action: &&&str| known.iter().chain(&grant.actions).any(|one| one == **action);
                    let actions = GRANT_ACTIONS.iter().filter(both).map(|action| (*action).to_owned()).collect();
                    record.grants[place].actions = actions;
                }
                None if record.grants.len() >= GRANTS_MAX => {
                    let message = format!("{name} has {GRANTS_MAX} rights, which is the limit");
                    return Err(limit(message, "grant a pattern that covers several names"));
                }
                None => record.grants.push(grant),
            }
            Ok(done(format!("granted to {name}")))
        })
    }

    fn revoke(
        &self,
        name: &FullName,
        written: &UserName,
        rights: &GrantedRights,
    ) -> Result<AccountAnswer, ServiceError> {
        self.change(name, |record| {
            let record = record.as_mut().ok_or_else(|| no_user(name, written))?;
            let GrantedRights::Some { actions, kind, pattern, position } = rights else {
                record.all = false;
                record.grants.clear();
                return Ok(done(format!("{name} has no rights")));
            };
            let has = |one: &GrantRecord| {
                one.kind == *kind
                    && one.pattern == *pattern
                    && actions.iter().all(|action| one.actions.contains(action))
            };
            let Some(place) = record.grants.iter().position(has) else {
                return Err(ServiceError::not_found(format!("'{name}' was not granted this"))
                    .with_hint(format!("SHOW GRANTS FOR {written} shows what is granted, as it is revoked"))
                    .at_place((*position).into()));
            };
            record.grants[place].actions.retain(|action| !actions.contains(action));
            record.grants.retain(|grant| !grant.actions.is_empty());
            Ok(done(format!("revoked from {name}")))
        })
    }
}

fn full_name(caller: &Caller, user: &UserName) -> FullName {
    match &user.tenant {
        Some(tenant) => Tenant::new(&tenant.text).named(&user.name.text),
        None => caller.tenant().named(&user.name.text),
    }
}

/// Gives a user one more token, which ends at this time. Tokens that were given for its password have places of their
/// own, of which a new one takes the oldest.
pub(super) fn add_token(
    name: &FullName,
    record: &mut UserRecord,
    expires_s: Option<u64>,
    by_password: bool,
) -> Result<AccountAnswer, ServiceError> {
    let now_s = now_s();
    let max = if by_password { LOGINS_MAX } else { TOKENS_MAX };
    let count = |record: &UserRecord| record.tokens.iter().filter(|token| token.by_password == by_password).count();
    if count(record) >= max {
        record.tokens.retain(|token| !has_expired(token.expires_s, now_s));
    }
    if count(record) >= max {
        let oldest = record.tokens.iter().position(|token| token.by_password && by_password);
        let Some(oldest) = oldest else {
            return Err(limit(
                format!("{name} has {TOKENS_MAX} tokens, which is the limit"),
                "drop one: SHOW TOKENS, DROP TOKEN",
            ));
        };
        record.tokens.remove(oldest);
    }
    let NewToken { id, text, hash } = token::generate()?;
    let id = token::id_text(id);
    let hash = hex::encode(hash);
    let token = TokenRecord { id, hash, created_s: now_s, expires_s, last_used_s: None, by_password };
    let info = info_of(name, &token, now_s);
    record.tokens.push(token);
    Ok(AccountAnswer::Token { text, info })
}

fn info_of(name: &FullName, token: &TokenRecord, now_s: u64) -> TokenInfo {
    TokenInfo {
        id: token.id.clone(),
        tenant: name.tenant.to_string(),
        user: name.name.clone(),
        created_s: token.created_s,
        expires_s: token.expires_s,
        last_used_s: token.last_used_s,
        has_expired: has_expired(token.expires_s, now_s),
    }
}

/// The right that is to be saved; `None` for all rights.
fn grant_of(tenant: &Tenant, rights: &GrantedRights) -> Result<Option<GrantRecord>, ServiceError> {
    let GrantedRights::Some { actions, kind, pattern, position } = rights else { return Ok(None) };
    let refused =
        |message: String, hint: &str| Err(ServiceError::invalid(message).with_hint(hint).at_place((*position).into()));
    let Some(of) = kind_of(kind) else {
        return refused(format!("there are no rights over '{kind}'"), &format!("kinds are {}", GRANT_KINDS.join(", ")));
    };
    let allowed: &[Action] = match of {
        ResourceKind::Topic => &[Action::Subscribe, Action::Publish],
        ResourceKind::Server => &[Action::Read, Action::Administer],
        ResourceKind::Sink => &[Action::Read, Action::Change, Action::Subscribe, Action::Publish],
        _ => &[Action::Read, Action::Change, Action::Subscribe],
    };
    for action in actions {
        if !action_of(action).is_some_and(|action| allowed.contains(&action)) {
            let words = GRANT_ACTIONS.iter().filter(|word| action_of(word).is_some_and(|one| allowed.contains(&one)));
            let hint = format!("rights over a {kind} are {}", words.copied().collect::<Vec<_>>().join(" and "));
            return refused(format!("there is no right to {action} a {kind}"), &hint);
        }
    }
    if actions.is_empty() {
        return refused("the grant allows nothing".into(), "name one or more of read, change, subscribe and publish");
    }
    if of == ResourceKind::Server {
        if pattern.is_some() {
            return refused(
                "a right over the server has no pattern".into(),
                "leave the pattern out: GRANT read ON SERVER TO alice",
            );
        }
        if !tenant.is_default() && actions.iter().any(|action| action == "administer") {
            return refused(
                "only users of the default tenant administer the server".into(),
                "checkpoints and backups have the data of every tenant; GRANT ALL gives everything within a tenant",
            );
        }
    }
    if let Some(pattern) = pattern {
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX {
            let message = format!("a pattern has between 1 and {PATTERN_BYTES_MAX} bytes");
            return refused(message, "leave it out for every name");
        }
        if of == ResourceKind::Topic
            && let Err((message, hint)) = check_filter(tenant, pattern)
        {
            return refused(message, &hint);
        }
    } else if of == ResourceKind::Topic && !tenant.is_default() {
        let hint = format!("write ON TOPIC '{tenant}/#'");
        return refused(format!("topics of the tenant '{tenant}' begin with {tenant}/"), &hint);
    }
    // In their own order, so that what is the same looks the same.
    let in_order = GRANT_ACTIONS.iter().filter(|word| actions.iter().any(|action| action == *word));
    let actions = in_order.map(|word| (*word).to_owned()).collect();
    Ok(Some(GrantRecord { actions, kind: kind.clone(), pattern: pattern.clone() }))
}

/// Checks the filter of a right over topics. The error has the hint beside it.
fn check_filter(tenant: &Tenant, filter: &str) -> Result<(), (String, String)> {
    let levels: Vec<&str> = filter.split('/').collect();
    for (place, level) in levels.iter().enumerate() {
        let is_last = place + 1 == levels.len();
        let rest = level.replacen("%u", "", 1).replacen("%c", "", 1);
        if level.contains('#') && (*level != "#" || !is_last) || level.contains('+') && *level != "+" {
            let hint = "'+' stands for one whole level, and '#' as the last level for all below".to_owned();
            return Err((format!("'{filter}' is no filter of topics"), hint));
        }
        if rest.contains('%') || rest.contains(char::is_control) {
            let hint = "%u stands for the user's name, %c for the client's id; other levels are literal, or + and #";
            return Err((format!("the level '{level}' of '{filter}' is none of a filter"), hint.to_owned()));
        }
    }
    if !tenant.is_default() && !is_below(filter, tenant.as_str()) {
        let hint = format!("write '{tenant}/{filter}'");
        return Err((format!("topics of the tenant '{tenant}' begin with {tenant}/"), hint));
    }
    Ok(())
}

pub(super) fn no_user(name: &FullName, written: &UserName) -> ServiceError {
    let error = ServiceError::not_found(format!("there is no user '{name}'"));
    // Commands and REST have no place in a script, and say the tenant beside the name.
    let hint = match (written.name.position.line, name.name.split_once(['.', '/'])) {
        (0, Some((tenant, user))) => {
            format!("`{user} --tenant {tenant}` is the user {user} of the tenant {tenant}, in REST the field tenant")
        }
        (0, None) => {
            "`rivulet user list` lists them; one of another tenant needs --tenant, in REST the field tenant".into()
        }
        _ => "SHOW USERS lists them; one of another tenant is written tenant.name".into(),
    };
    at(error.with_hint(hint), &written.name)
}

fn no_token(id: &str) -> ServiceError {
    // Somebody may have given the whole token.
    let id: String = id.chars().take(16).collect();
    ServiceError::not_found(format!("there is no token with the id '{id}'"))
        .with_hint("SHOW TOKENS lists the ids, of 16 characters each")
}
