//! JSON Web Tokens of the one issuer that is configured.
//!
//! What must hold: a token is taken if its signature is by a key of the issuer, with an algorithm of that key's kind;
//! if it is for this server; and if it holds now. Whatever its head says of other keys (`jku`, `jwk`, `x5u`, `x5c`) is
//! not looked at. No login waits for the network: keys are fetched by a thread of their own.

mod algorithm;
mod keys;
mod source;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value};

use crate::config::JwtConfig;
use crate::service::{ErrorKind, FullName, ServiceError, Tenant};
use keys::{Found, Keys};
use source::{Source, Stamp};
use token::Token;

/// How often the keys of a URL are fetched, so that a new one is known before it is used.
const FETCH_PERIOD: Duration = Duration::from_secs(300);

/// How often at most: when a token names a key that is not known, or when they could not be fetched.
const FETCH_PERIOD_MIN: Duration = Duration::from_secs(10);

/// Whether a text looks like a token: three parts, of which the first is JSON.
pub(super) fn is_like_one(text: &str) -> bool {
    text.starts_with("eyJ") && text.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// Who issues tokens for users of this server.
pub(super) struct Issuer {
    config: JwtConfig,
    name: Arc<str>,
    source: Source,
    /// `None` until they were fetched once.
    keys: RwLock<Option<Arc<Keys>>>,
    fetching: Mutex<Fetching>,
    /// Whether a token named a key that is not known.
    is_key_wanted: AtomicBool,
}

#[derive(Default)]
struct Fetching {
    /// When that was tried last.
    tried: Option<Instant>,
    is_under_way: bool,
    is_failing: bool,
    /// What was read last.
    text: Vec<u8>,
    /// What of the file was seen when it was read, and at the last look.
    read: Option<Stamp>,
    seen: Option<Stamp>,
}

/// Whom a token means.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub user: FullName,
    /// Its claim `sub`, or the name of the user if it has none.
    pub subject: String,
    /// When it ends, with the leeway, in seconds since the epoch.
    pub ends_s: u64,
}

/// Whom a token means to an issuer whose keys are this text, at this time. A server reads the keys from their place,
/// and the time from its clock; this is for whoever has both.
///
/// # Errors
/// Why the keys or the token are not taken, in words.
pub fn identity_of_jwt(config: &JwtConfig, keys: &[u8], token: &str, now_s: u64) -> Result<Identity, String> {
    if !is_like_one(token) {
        return Err("it is no JSON Web Token".into());
    }
    let issuer = Issuer::new(config).map_err(|error| error.to_string())?;
    *issuer.keys.write() = Some(Arc::new(Keys::read(keys)?));
    issuer.check(token, now_s)
}

impl Issuer {
    /// The issuer of a configuration. Keys in a file are read; those of a URL are fetched soon.
    ///
    /// # Errors
    /// The file cannot be used, or the authorities of the URL.
    pub(super) fn open(config: &JwtConfig) -> Result<Arc<Self>, ServiceError> {
        let issuer = Self::new(config)?;
        if let Some(stamp) = issuer.source.stamp() {
            let mut fetching = issuer.fetching.lock();
            (fetching.read, fetching.seen) = (Some(stamp), Some(stamp));
        }
        if matches!(issuer.source, Source::File(_)) {
            issuer.fetch().map_err(|problem| {
                let message = format!("the keys of jwt.issuer in {} cannot be used: {problem}", issuer.source.name());
                ServiceError::new(ErrorKind::Invalid, message)
                    .with_hint("jwt.keys_file names a JSON Web Key Set, as the issuer publishes it")
            })?;
        }
        Ok(Arc::new(issuer))
    }

    /// The issuer of a configuration, with no keys yet.
    fn new(config: &JwtConfig) -> Result<Self, ServiceError> {
        Ok(Self {
            config: config.clone(),
            name: config.issuer.as_str().into(),
            source: Source::of(&config.keys)?,
            keys: RwLock::default(),
            fetching: Mutex::default(),
            is_key_wanted: AtomicBool::default(),
        })
    }

    /// Whether this is the issuer of a configuration.
    pub(super) fn is_of(&self, config: &JwtConfig) -> bool {
        self.config == *config
    }

    /// How it names itself.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whom a token means.
    ///
    /// # Errors
    /// Why it is not taken, in words. Nothing of the token is in them.
    pub(super) fn check(&self, text: &str, now_s: u64) -> Result<Identity, String> {
        let token = Token::read(text)?;
        let keys = self.keys.read().clone().ok_or("the keys of its issuer were not fetched yet")?;
        let candidates = match keys.find(token.key_id(), token.algorithm()) {
            Found::Keys(keys) => keys,
            Found::OtherAlgorithm => return Err("the key that it names is not for its algorithm".into()),
            Found::Unknown => {
                self.is_key_wanted.store(true, Ordering::Relaxed);
                return Err("its key is none of those that its issuer had published when they were last read".into());
            }
        };
        let claims = token.claims_signed_by(candidates)?;
        self.identity(&claims, now_s)
    }

    /// Whom claims mean that were signed, if they are for this server and hold.
    fn identity(&self, claims: &Map<String, Value>, now_s: u64) -> Result<Identity, String> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let seconds = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(time) => match time.as_f64() {
                // The seconds of a time are cut off. A cast keeps to the bounds of its type.
                Some(seconds) if seconds >= 0.0 => Ok(Some(seconds as u64)),
                _ => Err(format!("its {name} is no time")),
            },
        };
        let JwtConfig { issuer, audience, tenant, user_claim, leeway_s, .. } = &self.config;
        if text("iss") != Some(issuer.as_str()) {
            return Err("it is of another issuer".into());
        }
        let is_meant = match claims.get("aud") {
            Some(Value::Array(several)) => several.iter().any(|one| one.as_str() == Some(audience.as_str())),
            one => one.and_then(Value::as_str) == Some(audience.as_str()),
        };
        if !is_meant {
            return Err("it is for another audience".into());
        }
        let ends_s = seconds("exp")?.ok_or("it has no claim exp, and never ends")?.saturating_add(*leeway_s);
        if now_s >= ends_s {
            return Err("it has expired".into());
        }
        let latest_s = now_s.saturating_add(*leeway_s);
        if seconds("nbf")?.is_some_and(|begins_s| begins_s > latest_s) {
            return Err("it does not hold yet".into());
        }
        if seconds("iat")?.is_some_and(|issued_s| issued_s > latest_s) {
            return Err("it was issued in the future: the clocks differ by more than jwt.leeway_s".into());
        }
        let user = text(user_claim).ok_or_else(|| format!("it has no claim {user_claim} with the name of a user"))?;
        let subject = text("sub").unwrap_or(user).to_owned();
        Ok(Identity { user: Tenant::new(tenant).named(user), subject, ends_s })
    }

    /// Has the keys read again where it is time for that. To be called once in a second.
    pub(super) fn look(self: &Arc<Self>) {
        let now = Instant::now();
        {
            let mut fetching = self.fetching.lock();
            let is_due = match &self.source {
                Source::File(_) => {
                    let stamp = self.source.stamp();
                    // A file that is being written is left alone.
                    let is_at_rest = std::mem::replace(&mut fetching.seen, stamp) == stamp;
                    let is_new = is_at_rest && fetching.read != stamp;
                    if is_new {
                        fetching.read = stamp;
                    }
                    is_new
                }
                Source::Url { .. } => {
                    let is_wanted = fetching.is_failing || self.is_key_wanted.load(Ordering::Relaxed);
                    let period = if is_wanted { FETCH_PERIOD_MIN } else { FETCH_PERIOD };
                    fetching.tried.is_none_or(|tried| now.saturating_duration_since(tried) >= period)
                }
            };
            if fetching.is_under_way || !is_due {
                return;
            }
            (fetching.is_under_way, fetching.tried) = (true, Some(now));
        }
        self.is_key_wanted.store(false, Ordering::Relaxed);
        let issuer = self.clone();
        let fetch = move || {
            let fetched = issuer.fetch();
            issuer.tell(fetched);
        };
        if let Err(error) = std::thread::Builder::new().name("jwt-keys".into()).spawn(fetch) {
            self.tell(Err(error.to_string()));
        }
    }

    /// Has the keys read again at the next look.
    pub(super) fn ask_anew(&self) {
        let mut fetching = self.fetching.lock();
        (fetching.tried, fetching.read) = (None, None);
    }

    /// Reads the keys. Those that are there stay if that fails. Returns whether others have taken their place.
    fn fetch(&self) -> Result<bool, String> {
        let text = self.source.read()?;
        let keys = Keys::read(&text)?;
        let mut fetching = self.fetching.lock();
        let are_new = fetching.text != text;
        fetching.text = text;
        *self.keys.write() = Some(Arc::new(keys));
        Ok(are_new)
    }

    /// Logs how reading the keys ended, where that is new.
    fn tell(&self, fetched: Result<bool, String>) {
        let mut fetching = self.fetching.lock();
        fetching.is_under_way = false;
        let was_failing = std::mem::replace(&mut fetching.is_failing, fetched.is_err());
        drop(fetching);
        let (issuer, source) = (&self.name, self.source.name());
        match fetched {
            Ok(are_new) if are_new || was_failing => {
                let keys = self.keys.read().as_ref().map_or(0, |keys| keys.count());
                tracing::info!(%issuer, keys, "the keys of the issuer were read from {source}");
            }
            Ok(_) => {}
            Err(problem) if !was_failing || matches!(self.source, Source::File(_)) => {
                tracing::error!(%issuer, "the keys of the issuer stay, those of {source} failed: {problem}");
            }
            Err(_) => {}
        }
    }
}
