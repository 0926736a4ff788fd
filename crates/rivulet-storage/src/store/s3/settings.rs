//! Settings of a bucket: its name, its endpoint and the credentials.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A bucket and the prefix of its objects' names: `s3://bucket/prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketName {
    pub(super) bucket: String,
    /// Without `/` at either end; may be empty.
    pub(super) prefix: String,
}

impl BucketName {
    /// The scheme of an address that names a bucket.
    pub const SCHEME: &str = "s3://";

    /// Parses `s3://bucket` or `s3://bucket/prefix`.
    ///
    /// # Errors
    /// What is wrong with the text: it is no such address, or no bucket can have that name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix(Self::SCHEME).ok_or_else(|| format!("'{text}' does not begin with s3://"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_usual = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        let has_ends =
            |name: &str| !name.starts_with(['.', '-']) && !name.ends_with(['.', '-']) && !name.contains("..");
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_usual) || !has_ends(bucket) {
            return Err(format!(
                "'{bucket}' is no name of a bucket: those have 3 to 63 lower-case letters, digits, points and hyphens"
            ));
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(char::is_control);
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(format!("'{prefix}' is no prefix of names: one of its parts is empty, '.' or '..'"));
        }
        Ok(Self { bucket: bucket.into(), prefix: prefix.into() })
    }
}

impl fmt::Display for BucketName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", Self::SCHEME, self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(formatter, "/{}", self.prefix) }
    }
}

/// Credentials. Their secrets are never printed. All kinds but a key give keys that are valid for some hours and are
/// renewed.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A key, which is not renewed.
    Key {
        /// Its name.
        access_key_id: String,
        /// Its secret.
        secret_access_key: String,
        /// The token of a key that is valid for some hours only.
        session_token: Option<String>,
    },
    /// A role, for a token in a file (of Kubernetes, for instance). The file is read again for each key.
    WebIdentity {
        /// The role.
        role_arn: String,
        /// The file with the token.
        token_file: PathBuf,
        /// The service that exchanges the token for keys; by default Amazon's in the region.
        sts_endpoint: Option<String>,
    },
    /// The role of a task in Amazon ECS.
    Task {
        /// The path at which the machine gives keys.
        path: String,
    },
    /// The role of a pod in Amazon EKS.
    Pod {
        /// The address at which the machine gives keys.
        url: String,
        /// The file with the token for that address. It is read again for each key.
        token_file: PathBuf,
    },
    /// The role of an Amazon virtual machine.
    Instance {
        /// The service of the machine that gives keys; by default the usual one.
        endpoint: Option<String>,
    },
}

impl Credentials {
    /// The file that must be readable, and the configuration key that names it.
    pub(super) fn token_file(&self) -> Option<(&Path, &'static str)> {
        match self {
            Self::WebIdentity { token_file, .. } => Some((token_file, "checkpoint.s3.web_identity_token_file")),
            Self::Pod { token_file, .. } => Some((token_file, "checkpoint.s3.container_token_file")),
            Self::Key { .. } | Self::Task { .. } | Self::Instance { .. } => None,
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { access_key_id, .. } => write!(formatter, "Key({access_key_id}, hidden)"),
            Self::WebIdentity { role_arn, .. } => write!(formatter, "WebIdentity({role_arn})"),
            Self::Task { path } => write!(formatter, "Task({path})"),
            Self::Pod { url, .. } => write!(formatter, "Pod({url})"),
            Self::Instance { .. } => write!(formatter, "Instance"),
        }
    }
}

/// Hosts that are reached without a network: the machine itself, and the services that give keys to containers.
const NEAR: [&str; 5] = ["127.0.0.1", "localhost", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

/// How to reach a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Settings {
    /// The bucket.
    pub name: BucketName,
    /// `https://host:port` of the object store; by default Amazon's in the region.
    pub endpoint: Option<String>,
    /// The region, which is part of each signature.
    pub region: String,
    /// The credentials.
    pub credentials: Credentials,
    /// Whether an endpoint may be `http://`. Then anybody on the way can read and change what is saved.
    pub allows_http: bool,
    /// A PEM file with the certificate authorities of the servers that the settings name: the endpoint, and the service
    /// that gives keys if it is set. By default the usual public authorities; these always serve for Amazon's own
    /// service that exchanges tokens for keys.
    pub ca_file: Option<PathBuf>,
    /// How long the object store may be silent before a request fails.
    pub timeout: Duration,
}

/// The target of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) scheme: &'static str,
    /// The host and its port, as in the header `Host`.
    pub(super) host: String,
    /// The path before the name of an object: the bucket, unless it is part of the host.
    pub(super) path: String,
}

impl S3Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// What is wrong, and what to do about it.
    pub fn check(&self) -> Result<(), (String, &'static str)> {
        if let Credentials::WebIdentity { sts_endpoint: Some(endpoint), .. } = &self.credentials {
            self.server("sts_endpoint", endpoint)?;
        }
        self.check_credentials()?;
        self.endpoint().map(drop)
    }

    /// Checks that credentials fit into a request, and that they are not sent over a network in clear.
    fn check_credentials(&self) -> Result<(), (String, &'static str)> {
        let is_sendable = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        match &self.credentials {
            Credentials::Key { access_key_id, session_token, .. } => {
                match is_sendable(access_key_id) && session_token.as_deref().is_none_or(is_sendable) {
                    true => Ok(()),
                    false => Err((
                        "the key of the object store is empty, or has a space or a line end".into(),
                        "look for a line end behind checkpoint.s3.access_key_id or session_token",
                    )),
                }
            }
            Credentials::Task { path } if !is_sendable(path) || !path.starts_with('/') => Err((
                format!("'{path}' in checkpoint.s3.container_credentials is no path"),
                "write a path that begins with / or an address",
            )),
            Credentials::Pod { url, .. } => {
                let host = url.strip_prefix("http://").map(|rest| rest.split('/').next().unwrap_or_default());
                let is_near = |host: &str| {
                    NEAR.iter().any(|near| {
                        host.strip_prefix(near).is_some_and(|port| port.is_empty() || port.starts_with(':'))
                    })
                };
                match host {
                    _ if !is_sendable(url) || !(url.starts_with("http://") || url.starts_with("https://")) => Err((
                        format!("'{url}' in checkpoint.s3.container_credentials is no address"),
                        "write https://host/path",
                    )),
                    Some(host) if !self.allows_http && !is_near(host) => Err((
                        format!("the token would go to {host} in clear"),
                        "write https://, or set checkpoint.s3.allow_http to true in a network that you trust",
                    )),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The target of requests; the error says what is wrong, and what to do.
    pub(super) fn endpoint(&self) -> Result<Endpoint, (String, &'static str)> {
        let BucketName { bucket, .. } = &self.name;
        if self.region.is_empty() || !self.region.bytes().all(is_word) {
            return Err((format!("'{}' is no name of a region", self.region), "write one such as eu-central-1"));
        }
        let Some(endpoint) = &self.endpoint else {
            // With a dot in its name a bucket would be in a host name that no certificate covers.
            let host = format!("s3.{}.amazonaws.com", self.region);
            return Ok(match bucket.contains('.') {
                true => Endpoint { scheme: "https", host, path: format!("/{bucket}") },
                false => Endpoint { scheme: "https", host: format!("{bucket}.{host}"), path: String::new() },
            });
        };
        let (scheme, host) = self.server("endpoint", endpoint)?;
        Ok(Endpoint { scheme, host, path: format!("/{bucket}") })
    }

    /// Scheme and host of an address, given by a key of the configuration.
    fn server(&self, key: &str, address: &str) -> Result<(&'static str, String), (String, &'static str)> {
        let no_endpoint = |hint| Err((format!("'{address}' in checkpoint.s3.{key} is no endpoint"), hint));
        let (scheme, host, usual_port) = match (address.strip_prefix("https://"), address.strip_prefix("http://")) {
            (Some(host), _) => ("https", host, ":443"),
            (None, Some(host)) if self.allows_http => ("http", host, ":80"),
            (None, Some(_)) => {
                let hint = "write https://, or set checkpoint.s3.allow_http to true in a network that you trust: \
                            everybody on the way can read and change what is saved";
                return Err((format!("the {key} {address} is not encrypted"), hint));
            }
            (None, None) => return no_endpoint("write https://host or https://host:port"),
        };
        let host = host.strip_suffix('/').unwrap_or(host);
        let host = host.strip_suffix(usual_port).unwrap_or(host);
        let is_host = |byte: u8| is_word(byte) || b".:[]_".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host) {
            return no_endpoint("write https://host or https://host:port, without a path");
        }
        Ok((scheme, host.into()))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_wrong_ones_refused() {
        for text in ["s3://state", "s3://my.state-1/a/b", "s3://state/with space"] {
            assert_eq!(BucketName::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(BucketName::parse("s3://state/").unwrap().to_string(), "s3://state");
        for text in [
            "",
            "state",
            "s3://",
            "s3://ab",
            "s3://State",
            "s3://-abc",
            "s3://a..b",
            "s3://state//a",
            "s3://state/../x",
            "s3:///a",
        ] {
            assert!(BucketName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn requests_go_where_the_settings_say() {
        let of = |name: &str, endpoint: Option<&str>, allows_http: bool| {
            let settings = S3Settings {
                name: BucketName::parse(name).unwrap(),
                endpoint: endpoint.map(str::to_owned),
                region: "eu-central-1".into(),
                credentials: Credentials::Key {
                    access_key_id: "key".into(),
                    secret_access_key: "rose".into(),
                    session_token: Some("rose".into()),
                },
                allows_http,
                ca_file: None,
                timeout: Duration::from_secs(1),
            };
            assert!(!format!("{settings:?}").contains("rose"));
            settings.endpoint().map(|endpoint| format!("{}://{}{}", endpoint.scheme, endpoint.host, endpoint.path))
        };
        assert_eq!(of("s3://state/a", None, false).unwrap(), "https://state.s3.eu-central-1.amazonaws.com");
        assert_eq!(of("s3://my.state", None, false).unwrap(), "https://s3.eu-central-1.amazonaws.com/my.state");
        assert_eq!(of("s3://state", Some("https://minio:443/"), false).unwrap(), "https://minio/state");
        assert_eq!(of("s3://state", Some("http://[::1]:9000"), true).unwrap(), "http://[::1]:9000/state");
        for (endpoint, allows_http) in
            [("http://minio", false), ("minio:9000", true), ("https://", true), ("https://a/b", true)]
        {
            assert!(of("s3://state", Some(endpoint), allows_http).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn credentials_fit_into_a_request_and_are_sent_to_nobody_in_clear() {
        let key = |id: &str, token: Option<&str>| Credentials::Key {
            access_key_id: id.into(),
            secret_access_key: "rose".into(),
            session_token: token.map(str::to_owned),
        };
        let pod = |url: &str| Credentials::Pod { url: url.into(), token_file: "token".into() };
        for (credentials, fits) in [
            (key("key", Some("token")), true),
            (key("key\n", None), false),
            (key("key", Some("token\n")), false),
            (key("", None), false),
            (Credentials::Task { path: "/v2/credentials/1".into() }, true),
            (Credentials::Task { path: "/v2/a b".into() }, false),
            (pod("https://keys.example/a"), true),
            (pod("http://169.254.170.23/v1/credentials"), true),
            (pod("http://127.0.0.1:80/a"), true),
            (pod("http://127.0.0.1.example/a"), false),
            (pod("http://keys.example/a"), false),
            (pod("keys.example"), false),
        ] {
            let settings = S3Settings {
                name: BucketName::parse("s3://state").unwrap(),
                endpoint: None,
                region: "eu-central-1".into(),
                credentials: credentials.clone(),
                allows_http: false,
                ca_file: None,
                timeout: Duration::from_secs(1),
            };
            assert_eq!(settings.check().is_ok(), fits, "{credentials:?}");
        }
    }
}
