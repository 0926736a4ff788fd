//! The public keys of an issuer: a JSON Web Key Set.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use super::algorithm::{Algorithm, Curve, PublicKey};

/// The most bytes of a set.
pub(super) const BYTES_MAX: usize = 256 << 10;

/// The most keys of a set.
const KEYS_MAX: usize = 64;

/// The keys of an issuer that signatures can be checked with; never none.
pub(super) struct Keys(Vec<Key>);

struct Key {
    id: Option<String>,
    /// The only algorithm that it is for, if it says so.
    algorithm: Option<String>,
    key: PublicKey,
}

/// What a set has for a signature.
pub(super) enum Found<'k> {
    /// The keys that it may be of; most often one.
    Keys(Vec<&'k PublicKey>),
    /// No key of this id: it may be newer than the set.
    Unknown,
    /// None for this algorithm.
    OtherAlgorithm,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// A key as it is published. What else there is says nothing about signatures.
#[derive(Deserialize)]
struct Published {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Keys {
    /// Reads a set. Keys that are for something else are left out, as whoever publishes them may add any.
    ///
    /// # Errors
    /// It is no set, or has no key that can be used.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("it has more than {BYTES_MAX} bytes"));
        }
        let set: KeySet =
            serde_json::from_slice(text).map_err(|error| format!("it is no JSON Web Key Set: {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("it has {} keys, and {KEYS_MAX} are the most", set.keys.len()));
        }
        let published = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        match published.filter_map(Key::of).collect::<Vec<_>>() {
            keys if keys.is_empty() => Err("it has no public key for RS, PS, ES or EdDSA signatures".into()),
            keys => Ok(Self(keys)),
        }
    }

    /// The keys that a signature may be of.
    pub(super) fn find(&self, id: Option<&str>, algorithm: &Algorithm) -> Found<'_> {
        // Without an id there must be no choice.
        let named: Vec<&Key> = match id {
            Some(id) => self.0.iter().filter(|key| key.id.as_deref() == Some(id)).collect(),
            None if self.0.len() == 1 => self.0.iter().collect(),
            None => Vec::new(),
        };
        if named.is_empty() {
            return Found::Unknown;
        }
        let is_for = |key: &&Key| {
            algorithm.takes(&key.key) && key.algorithm.as_ref().is_none_or(|only| *only == algorithm.name())
        };
        let fitting: Vec<&PublicKey> = named.into_iter().filter(is_for).map(|key| &key.key).collect();
        if fitting.is_empty() { Found::OtherAlgorithm } else { Found::Keys(fitting) }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

impl Key {
    /// `None` for a key that checks no signatures, or is no public one.
    fn of(published: Published) -> Option<Self> {
        let Published { kty, kid, purpose, key_ops, alg, crv, n, e, x, y } = published;
        let is_for_signatures = purpose.is_none_or(|purpose| purpose == "sig");
        let verifies = key_ops.is_none_or(|operations| operations.iter().any(|one| one == "verify"));
        let bytes = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        let key = match (kty.as_str(), crv.as_deref()) {
            ("RSA", _) => PublicKey::Rsa { n: bytes(n)?, e: bytes(e)? },
            ("EC", Some("P-256")) => PublicKey::Point(Curve::P256, point(&bytes(x)?, &bytes(y)?)),
            ("EC", Some("P-384")) => PublicKey::Point(Curve::P384, point(&bytes(x)?, &bytes(y)?)),
            ("OKP", Some("Ed25519")) => PublicKey::Point(Curve::Ed25519, bytes(x)?),
            _ => return None,
        };
        let is_known = alg.as_ref().is_none_or(|name| Algorithm::named(name).is_some_and(|one| one.takes(&key)));
        (is_for_signatures && verifies && is_known).then_some(Self { id: kid, algorithm: alg, key })
    }
}

/// A point of a curve with both of its coordinates, which are checked when a signature is.
fn point(x: &[u8], y: &[u8]) -> Vec<u8> {
    const UNCOMPRESSED: u8 = 4;
    [&[UNCOMPRESSED], x, y].concat()
}
