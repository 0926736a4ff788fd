//! Checks the signature (AWS Signature Version 4) of a received request.

use ring::{digest, hmac};

use crate::http::{Request, to_percent};
use crate::keys::Key;

/// The region that signatures must be for.
pub const REGION: &str = "eu-test-1";

/// Checks that the sender knows the secret of one of the keys and has signed this very request; the error says what is
/// wrong.
pub(crate) fn check(request: &Request, keys: &[Key]) -> Result<(), String> {
    let header = |name: &str| request.header(name).ok_or_else(|| format!("there is no header {name}"));
    let authorization = header("authorization")?;
    let part = |name: &str| {
        let (_, rest) = authorization.split_once(&format!("{name}=")).ok_or_else(|| format!("there is no {name}"))?;
        Ok::<&str, String>(rest.split(',').next().unwrap_or(rest).trim())
    };
    let (credential, names, signature) = (part("Credential")?, part("SignedHeaders")?, part("Signature")?);
    let now = header("x-amz-date")?;
    let date = now.get(..8).unwrap_or_default();
    let scope = format!("{date}/{REGION}/s3/aws4_request");
    let key = keys.iter().find(|key| credential == format!("{}/{scope}", key.id));
    let key = key.ok_or_else(|| format!("the credential {credential} is not known"))?;
    if request.header("x-amz-security-token") != key.token.as_deref() {
        return Err("the session token is another".into());
    }
    for needed in ["host", "x-amz-content-sha256", "x-amz-date"] {
        if !names.split(';').any(|name| name == needed) {
            return Err(format!("{needed} is not signed"));
        }
    }
    let body = hexadecimal(digest::digest(&digest::SHA256, &request.body).as_ref());
    if header("x-amz-content-sha256")? != body {
        return Err("the body is another".into());
    }
    let encoded = |(name, value): &(String, String)| format!("{}={}", to_percent(name), to_percent(value));
    let mut query: Vec<String> = request.query_pairs().iter().map(encoded).collect();
    query.sort_unstable();
    let mut canonical = format!("{}\n{}\n{}\n", request.method, request.path, query.join("&"));
    for name in names.split(';') {
        canonical += &format!("{name}:{}\n", header(name)?);
    }
    canonical += &format!("\n{names}\n{body}");
    let hashed = hexadecimal(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
    let text = format!("AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashed}");
    let mut key = format!("AWS4{}", key.secret).into_bytes();
    for part in [date, REGION, "s3", "aws4_request", &text] {
        key = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    if hexadecimal(&key) == signature { Ok(()) } else { Err("the signature is another".into()) }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
