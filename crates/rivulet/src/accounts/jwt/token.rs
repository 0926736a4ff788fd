//! A JSON Web Token as text: a head, claims and a signature, with dots between.
//!
//! What must hold: claims are read only if they were signed. Of the head nothing counts but its algorithm, the id of
//! its key, and whether it is of a kind that tells who somebody is.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::algorithm::{Algorithm, PublicKey};

/// The longest token.
const BYTES_MAX: usize = 8 << 10;

/// The kinds of tokens that tell who somebody is. Others of the same issuer are for something else, such as a logout.
const KINDS: [&str; 3] = ["JWT", "at+jwt", "application/at+jwt"];

/// A token whose signature is still to be checked.
pub(super) struct Token<'t> {
    algorithm: &'static Algorithm,
    key_id: Option<String>,
    /// The head and the claims as they were signed.
    signed: &'t str,
    claims: &'t str,
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Head {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<Value>,
}

impl<'t> Token<'t> {
    /// Takes a token apart.
    ///
    /// # Errors
    /// Why it is none that can be taken, in words. Nothing of it is in them.
    pub(super) fn read(text: &'t str) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("it has more than {BYTES_MAX} bytes"));
        }
        let parts =
            text.rsplit_once('.').and_then(|(signed, signature)| Some((signed, signed.split_once('.')?, signature)));
        let Some((signed, (head, claims), signature)) = parts else { return Err("it has not three parts".into()) };
        let head: Option<Head> = URL_SAFE_NO_PAD.decode(head).ok().and_then(|head| serde_json::from_slice(&head).ok());
        let Head { alg, kid: key_id, typ, crit } = head.ok_or("its head cannot be read")?;
        if crit.is_some() {
            return Err("its head has fields that must be understood, and are not".into());
        }
        if typ.is_some_and(|kind| !KINDS.iter().any(|known| kind.eq_ignore_ascii_case(known))) {
            return Err("it is of a kind that does not tell who somebody is".into());
        }
        let algorithm = Algorithm::named(&alg).ok_or("its algorithm is none of RS, PS, ES and EdDSA")?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| "its signature cannot be read")?;
        Ok(Self { algorithm, key_id, signed, claims, signature })
    }

    /// The algorithm that it says to be signed with.
    pub(super) fn algorithm(&self) -> &'static Algorithm {
        self.algorithm
    }

    /// The key that it says to be signed with.
    pub(super) fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// The claims, if one of these keys has signed them.
    ///
    /// # Errors
    /// None has, or they are no JSON object.
    pub(super) fn claims_signed_by(&self, keys: Vec<&PublicKey>) -> Result<Map<String, Value>, String> {
        let message = self.signed.as_bytes();
        if !keys.into_iter().any(|key| self.algorithm.has_signed(key, message, &self.signature)) {
            return Err("its signature is wrong".into());
        }
        let claims = URL_SAFE_NO_PAD.decode(self.claims).ok();
        let claims = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
        claims.ok_or_else(|| "its claims cannot be read".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_refused_without_its_content() {
        let head = |head: &str| format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode(head));
        for (text, why) in [
            (String::new(), "three parts"),
            ("a.b".into(), "three parts"),
            ("..".into(), "head"),
            ("secret.secret.secret".into(), "head"),
            (head(r#"{"alg":"EdDSA","alg":"none"}"#), "head"),
            (head(r#"{"kid":"secret"}"#), "head"),
            (head(r#"{"alg":["EdDSA"]}"#), "head"),
            (head("[]"), "head"),
            (head(r#"{"alg":"none"}"#), "algorithm"),
            (head(r#"{"alg":"HS256"}"#), "algorithm"),
            (head(r#"{"alg":"EdDSA","crit":[]}"#), "understood"),
            (head(r#"{"alg":"EdDSA","typ":"logout+jwt"}"#), "kind"),
            (format!("{}.e30.A A=", URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA"}"#)), "signature"),
            (head(&format!(r#"{{"alg":"EdDSA","more":"{}"}}"#, "x".repeat(BYTES_MAX))), "bytes"),
        ] {
            let problem = Token::read(&text).err().expect(&text);
            assert!(problem.contains(why) && !problem.contains("secret"), "{text}: {problem}");
        }
        let token = head(r#"{"alg":"ES256","kid":"k","typ":"at+JWT","jku":"https://evil.example.org/"}"#);
        let token = Token::read(&token).expect("a token");
        assert_eq!((token.algorithm().name(), token.key_id()), ("ES256", Some("k")));
        assert_eq!(token.claims_signed_by(Vec::new()).expect_err("no key"), "its signature is wrong");
    }
}
