//! Tokens as texts: `rvt_`, 16 hex digits of the id, `_`, 64 of 256 random bits, and 8 of a check sum.
//!
//! What must hold: the server keeps the hash of the text and never the text. The prefix and the check sum are for
//! programs that look for secrets where there should be none, and for typing errors.

use std::sync::LazyLock;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::service::{ErrorKind, ServiceError};

/// The first characters of every token.
pub const PREFIX: &str = "rvt_";

const ID_DIGITS: usize = 16;
const SECRET_BYTES: usize = 32;
const CHECK_SUM_BYTES: usize = 4;

/// The SHA-256 of a token's text.
pub(super) type Hash = [u8; 32];

/// A token that nobody has seen yet.
pub(super) struct NewToken {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) hash: Hash,
}

/// Makes a token. Its id is not 0.
pub(super) fn generate() -> Result<NewToken, ServiceError> {
    static RANDOM: LazyLock<SystemRandom> = LazyLock::new(SystemRandom::new);
    let mut bytes = [0; 8 + SECRET_BYTES];
    RANDOM
        .fill(&mut bytes)
        .map_err(|_| ServiceError::new(ErrorKind::Unavailable, "the system gives no random bits for a token"))?;
    let (id, secret) = bytes.split_at(8);
    let id = u64::from_le_bytes(id.try_into().expect("8 bytes")).max(1);
    let body = format!("{PREFIX}{}_{}", id_text(id), hex::encode(secret));
    let text = format!("{body}{}", check_sum(&body));
    let hash = hash(text.as_bytes());
    Ok(NewToken { id, text, hash })
}

/// The id of a token as users see it.
pub(super) fn id_text(id: u64) -> String {
    format!("{id:0ID_DIGITS$x}")
}

/// The id that is written so; `None` if it is none.
pub(super) fn id_of(text: &str) -> Option<u64> {
    let is_id = text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// The id and the hash of a token's text; `None` if it is no token.
pub(super) fn read(text: &[u8]) -> Option<(u64, Hash)> {
    let text = str::from_utf8(text).ok().filter(|text| is_whole(text))?;
    let id = id_of(text.strip_prefix(PREFIX)?.get(..ID_DIGITS)?)?;
    Some((id, hash(text.as_bytes())))
}

/// Whether a text begins as a token does and is none: characters are missing or wrong.
pub fn is_mistyped(text: &str) -> bool {
    text.starts_with(PREFIX) && !is_whole(text)
}

fn is_whole(text: &str) -> bool {
    let length = PREFIX.len() + ID_DIGITS + 1 + 2 * (SECRET_BYTES + CHECK_SUM_BYTES);
    text.len() == length
        && text.is_ascii()
        && text.as_bytes()[PREFIX.len() + ID_DIGITS] == b'_'
        && check_sum(&text[..length - 2 * CHECK_SUM_BYTES]) == text[length - 2 * CHECK_SUM_BYTES..]
}

fn check_sum(body: &str) -> String {
    hex::encode(&digest(&SHA256, body.as_bytes()).as_ref()[..CHECK_SUM_BYTES])
}

fn hash(text: &[u8]) -> Hash {
    digest(&SHA256, text).as_ref().try_into().expect("32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_made_and_a_mistyped_one_is_none() {
        let NewToken { id, text, hash } = generate().expect("a token");
        assert_eq!(text.len(), 93);
        assert_eq!(read(text.as_bytes()), Some((id, hash)));
        assert_eq!(id_of(&id_text(id)), Some(id));
        assert!(!is_mistyped(&text) && !is_mistyped("another secret"));
        for place in 0..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[place] = if wrong[place] == b'0' { b'1' } else { b'0' };
            assert_eq!(read(&wrong), None, "{place}");
            assert_eq!(read(&text.as_bytes()[..place]), None);
        }
        assert!(is_mistyped(&text[..90]) && is_mistyped(&format!("{text}0")));
        assert_ne!(hash, generate().expect("another").hash);
        for wrong in ["", "rvt_", "rvt_ü", "\u{0}"] {
            assert_eq!(read(wrong.as_bytes()), None);
        }
    }
}
