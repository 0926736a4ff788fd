//! Keys, and the services that give temporary ones: for a role with a token, for a pod, and for a machine.

use crate::http::{Answer, Request};

/// The key that may do everything.
pub const ACCESS_KEY_ID: &str = "test-key";

/// Its secret.
pub const SECRET_ACCESS_KEY: &str = "a secret / with + signs";

/// The role that a token gives.
pub const ROLE: &str = "arn:aws:iam::123456789012:role/of the test";

/// The token that gives the role.
pub const WEB_IDENTITY_TOKEN: &str = "header.claims+and/more=.signature";

/// The token of a pod.
pub const POD_TOKEN: &str = "of the pod";

/// The token with which a client of the machine's service asks for credentials.
const MACHINE_TOKEN: &str = "of the machine";

/// A key that requests may be signed with.
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) secret: String,
    /// The token that must be sent with a temporary key.
    pub(crate) token: Option<String>,
}

impl Key {
    /// Returns the permanent key, which may do everything.
    pub(crate) fn lasting() -> Self {
        Self { id: ACCESS_KEY_ID.into(), secret: SECRET_ACCESS_KEY.into(), token: None }
    }

    fn given(number: usize) -> Self {
        let secret = format!("secret {number}");
        Self { id: format!("given-{number}"), secret, token: Some(format!("session/+{number}")) }
    }
}

/// Answers a request for a key, and adds the key to `keys`; `None` if the request is for something else. `expiry` is
/// when the key ends, as text of ISO 8601.
pub(crate) fn answer(request: &Request, keys: &mut Vec<Key>, expiry: &str) -> Option<Answer> {
    let denied = || Some(Answer::error(403, "AccessDenied", "this token is not known"));
    let json = |key: &Key| {
        let Key { id, secret, token } = key;
        let token = token.as_deref().unwrap_or_default();
        format!(
            "{{\"AccessKeyId\":\"{id}\",\"SecretAccessKey\":\"{secret}\",\"Token\":\"{token}\",\
             \"Expiration\":\"{expiry}\",\"Code\":\"Success\"}}"
        )
    };
    let key = Key::given(keys.len());
    let text = match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/") => {
            let is_known = request.query("Action").as_deref() == Some("AssumeRoleWithWebIdentity")
                && request.query("RoleArn").as_deref() == Some(ROLE)
                && request.query("WebIdentityToken").as_deref() == Some(WEB_IDENTITY_TOKEN);
            if !is_known {
                return denied();
            }
            let Key { id, secret, token } = &key;
            let token = token.as_deref().unwrap_or_default();
            format!(
                "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
                 <AssumeRoleWithWebIdentityResult><Credentials><SessionToken>{token}</SessionToken>\
                 <SecretAccessKey>{secret}</SecretAccessKey><Expiration>{expiry}</Expiration>\
                 <AccessKeyId>{id}</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>\
                 </AssumeRoleWithWebIdentityResponse>"
            )
        }
        ("GET", "/v1/credentials") => {
            if request.header("authorization") != Some(POD_TOKEN) {
                return denied();
            }
            json(&key)
        }
        ("PUT", "/latest/api/token") => return Some(Answer::new(200, MACHINE_TOKEN.into())),
        ("GET", path) => {
            let path = path.strip_prefix("/latest/meta-data/iam/security-credentials/")?;
            if request.header("x-aws-ec2-metadata-token") != Some(MACHINE_TOKEN) {
                return denied();
            }
            match path {
                "" => return Some(Answer::new(200, "its-role".into())),
                "its-role" => json(&key),
                _ => return Some(Answer::new(404, Vec::new())),
            }
        }
        _ => return None,
    };
    keys.push(key);
    Some(Answer::new(200, text.into_bytes()))
}
