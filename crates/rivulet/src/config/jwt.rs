//! Who may issue JSON Web Tokens for users of this server.

use std::net::IpAddr;
use std::path::PathBuf;

use rivulet_connectors::reach::check_port;
use ureq::http::Uri;

/// The issuer of JSON Web Tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtConfig {
    /// Its name: the claim `iss` of its tokens.
    pub issuer: String,
    /// Whom its tokens are for, as far as they are for this server: one of the claim `aud`.
    pub audience: String,
    /// Where its keys are.
    pub keys: JwtKeys,
    /// The tenant whose users it knows.
    pub tenant: String,
    /// The claim with the name of a user.
    pub user_claim: String,
    /// How many seconds its clock and that of this server may differ.
    pub leeway_s: u64,
}

/// Where the keys of an issuer are: a JSON Web Key Set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwtKeys {
    /// In a file.
    File(PathBuf),
    /// At a URL.
    Url {
        /// The URL: of https, or of http on this machine.
        url: String,
        /// The authorities that its certificate is verified by; those that browsers trust without.
        ca_file: Option<PathBuf>,
    },
}

/// Whether keys may be fetched from a URL: nobody on the way can change them.
pub(super) fn is_safe_url(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let Some(host) = uri.host().filter(|host| !host.is_empty()) else { return false };
    if check_port(&uri).is_err() {
        return false;
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match uri.scheme_str() {
        Some("https") => true,
        Some("http") => is_here,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_encrypted_or_from_this_machine() {
        for url in ["https://login.example.org/keys", "http://127.0.0.1:8180/k", "http://localhost/k", "http://[::1]/k"]
        {
            assert!(is_safe_url(url), "{url}");
        }
        for url in [
            "http://login.example.org/keys",
            "http://127.0.0.1.example.org/",
            "http://localhost.example.org/",
            "ftp://localhost/k",
            "/keys",
            "https://",
            "https://login.example.org:70000/keys",
            "keys",
            "",
        ] {
            assert!(!is_safe_url(url), "{url}");
        }
    }
}
