//! JSON Web Tokens, and the set of keys of their issuer. A token is taken only if a key of the set has signed it, with
//! an algorithm of that key's kind. Its claims are looked at only then: it must be for this server and hold now, and it
//! means the user in its claim. A refusal has nothing of the token in it.
//!
//! An input has a head, claims and a set of keys, each on a line of its own, and then tokens, one a line. No fuzzer can
//! sign what it makes, so this target signs the head and the claims with a key of its own.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rivulet::accounts::{Identity, identity_of_jwt};
use rivulet::config::{JwtConfig, JwtKeys};
use rivulet::service::Tenant;
use serde_json::{Map, Value, json};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "jwt",
    run,
    words: &[
        "{\"alg\":\"EdDSA\",\"kid\":\"own\"}",
        "\"alg\":\"none\"",
        "\"alg\":\"HS256\"",
        "\"crit\":[\"b64\"],",
        "\"typ\":\"JWT\",",
        "\"iss\":\"https://login.example.org/\",",
        "\"aud\":[\"rivulet\"],",
        "\"exp\":1800000600",
        "\"nbf\":1800000060,",
        "\"iat\":1800000061,",
        "1e300",
        "-0.5",
        "\"user\":\"MARKER\"",
        "\"sub\":\"MARKER\"",
        "{\"keys\":[",
        "]}",
        "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"",
        "\"use\":\"enc\",",
        "\"key_ops\":[\"sign\"],",
        "null",
        "eyJ",
        ".",
        "\n",
    ],
    mutations: 4_000,
};

/// A whole input, whose tokens are signed with a key of each kind, and taken.
const KINDS: &str = include_str!("../../../../fuzz/corpus/jwt/kinds");

const ISSUER: &str = "https://login.example.org/";
const AUDIENCE: &str = "rivulet";
const TENANT: &str = "acme";
const LEEWAY_S: u64 = 60;

/// The time at which tokens are looked at: some day in 2027.
const NOW_S: u64 = 1_800_000_000;

/// The longest token.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// A head that is always taken with the key of this target.
const HEAD: &[u8] = br#"{"alg":"EdDSA","kid":"own"}"#;

/// Claims that are always taken.
const CLAIMS: &[u8] = br#"{"iss":"https://login.example.org/","aud":"rivulet","exp":1800000600,"user":"ann"}"#;

fn run(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let [head, claims, keys] = [(); 3].map(|()| lines.next().unwrap_or_default());
    let own = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed has 32 bytes");
    let public = encode(own.public_key());
    let own_keys = json!({"keys": [{"kty": "OKP", "kid": "own", "crv": "Ed25519", "x": public}]}).to_string();
    check_claims(&signed(&own, HEAD, claims), claims, own_keys.as_bytes());
    check_head(&signed(&own, head, CLAIMS), head, own_keys.as_bytes());
    // Another issuer's set: it takes a token of this key only if it has the key, and has it for signatures.
    if look(keys, &signed(&own, HEAD, CLAIMS)).is_ok()
        && let Ok(set) = serde_json::from_slice::<Value>(keys)
    {
        let is_usable = |key: &Value| has_text(key, &public) && (key["use"].is_null() || key["use"] == "sig");
        let is_there = set["keys"].as_array().map_or(has_text(&set, &public), |keys| keys.iter().any(is_usable));
        assert!(is_there, "{set} has not the key {public}");
    }
    for token in lines.filter_map(|line| str::from_utf8(line).ok()) {
        let found = look(keys, token);
        assert!(found.is_err() || is_of_kinds(token), "{token} was signed by nobody");
        assert!(found.is_ok() || bytes != KINDS.as_bytes() || token.is_empty(), "{token}: {found:?}");
        assert!(look(own_keys.as_bytes(), token).is_err() || is_of_kinds(token), "{token} was signed by nobody");
    }
}

/// What becomes of a token. A refusal is a sentence, and tells nothing of the token.
fn look(keys: &[u8], token: &str) -> Result<Identity, String> {
    let config = JwtConfig {
        issuer: ISSUER.into(),
        audience: AUDIENCE.into(),
        keys: JwtKeys::File("no file is read".into()),
        tenant: TENANT.into(),
        user_claim: "user".into(),
        leeway_s: LEEWAY_S,
    };
    let found = identity_of_jwt(&config, keys, token, NOW_S);
    if let Err(problem) = &found {
        // Keys are public, and what is wrong with them may be told.
        let is_of_keys = problem.starts_with("it is no JSON Web Key Set");
        assert!(!problem.is_empty() && (is_of_keys || !problem.contains("MARKER")), "{problem}");
    }
    found
}

/// Claims that were signed are taken if they are for this server and hold now, and not otherwise.
fn check_claims(token: &str, claims: &[u8], own_keys: &[u8]) {
    let found = look(own_keys, token);
    let expected = meant(claims).filter(|_| token.len() <= TOKEN_BYTES_MAX);
    assert_eq!(found.as_ref().ok(), expected.as_ref(), "{found:?} of {}", String::from_utf8_lossy(claims));
}

/// A head that names another algorithm or key, or asks for more than is understood, is not taken with the right
/// signature either.
fn check_head(token: &str, head: &[u8], own_keys: &[u8]) {
    let Ok(found) = look(own_keys, token) else { return };
    assert_eq!(Some(found), meant(CLAIMS));
    // A number that nobody looks at may be too large for a value.
    let Ok(head) = serde_json::from_slice::<Value>(head) else { return };
    assert_eq!(head["alg"], "EdDSA");
    assert!(head["kid"].is_null() || head["kid"] == "own", "{head}");
    assert!(head["crit"].is_null(), "{head}");
    let kind = head["typ"].as_str().map(str::to_lowercase);
    assert!(
        head["typ"].is_null() || kind.is_some_and(|kind| ["jwt", "at+jwt", "application/at+jwt"].contains(&&*kind)),
        "{head}"
    );
}

/// Whom claims mean that were signed; `None` if they are not for this server, or do not hold now.
fn meant(claims: &[u8]) -> Option<Identity> {
    let claims: Map<String, Value> = serde_json::from_slice(claims).ok()?;
    let time = |name: &str| claims.get(name).map(|time| time.as_f64().filter(|time| *time >= 0.0));
    // A time that is there is one, and has come.
    let has_come =
        |name: &str| time(name).is_none_or(|time| time.is_some_and(|time| time < (NOW_S + LEEWAY_S + 1) as f64));
    let audience = Value::from(AUDIENCE);
    let is_meant = match claims.get("aud")? {
        Value::Array(several) => several.contains(&audience),
        one => *one == audience,
    };
    let ends_s = (time("exp")??.floor() as u64).saturating_add(LEEWAY_S);
    let user = claims.get("user")?.as_str()?;
    let subject = claims.get("sub").and_then(Value::as_str).unwrap_or(user).to_owned();
    let holds = claims.get("iss")? == ISSUER && is_meant && NOW_S < ends_s && has_come("nbf") && has_come("iat");
    holds.then(|| Identity { user: Tenant::new(TENANT).named(user), subject, ends_s })
}

/// Whether what was signed of a token stands in the whole input. A signature itself may be written in another way.
fn is_of_kinds(token: &str) -> bool {
    let signed = |token: &str| token.rsplit_once('.').map(|(signed, _)| signed.to_owned());
    KINDS.lines().skip(3).any(|known| signed(known) == signed(token))
}

/// Whether a text stands anywhere in a value.
fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(one) => one == text,
        Value::Array(values) => values.iter().any(|one| has_text(one, text)),
        Value::Object(fields) => fields.values().any(|one| has_text(one, text)),
        _ => false,
    }
}

fn signed(key: &Ed25519KeyPair, head: &[u8], claims: &[u8]) -> String {
    let message = format!("{}.{}", encode(head), encode(claims));
    format!("{message}.{}", encode(key.sign(message.as_bytes())))
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
