//! The TLS of a client: the authorities that it trusts, its own identity, and why a handshake has failed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::{KeyFile, TlsError, authorities, certificates, provider};

/// An encrypted connection to a server.
pub type TlsStream = tokio_rustls::client::TlsStream<TcpStream>;

/// The authorities that a client trusts, and its own identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// A PEM file with the certificates of the authorities to trust; without it, those that browsers trust.
    pub ca_file: Option<PathBuf>,
    /// A PEM file with the client's own certificate and one with its key, if the server requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The files of a [`ClientTls`].
struct Contents {
    authorities: Option<Vec<CertificateDer<'static>>>,
    identity: Option<(Vec<CertificateDer<'static>>, KeyFile)>,
}

impl Contents {
    fn read(options: &ClientTls) -> Result<Self, TlsError> {
        let authorities = options.ca_file.as_deref().map(certificates).transpose()?;
        let identity = options.identity.as_ref();
        let identity =
            identity.map(|(chain, key_file)| Ok::<_, TlsError>((certificates(chain)?, KeyFile::read(key_file)?)));
        Ok(Self { authorities, identity: identity.transpose()? })
    }

    /// Checks that they can be used, and makes of them what connects to servers.
    fn config(&self, options: &ClientTls) -> Result<ClientConfig, TlsError> {
        let roots = match (&self.authorities, &options.ca_file) {
            (Some(certificates), Some(path)) => authorities(certificates, path)?,
            _ => RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        Ok(match &self.identity {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.key()?)?,
            None => builder.with_no_client_auth(),
        })
    }
}

impl ClientTls {
    /// The same for requests by `ureq`.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn for_requests(&self) -> Result<TlsConfig, TlsError> {
        let contents = Contents::read(self)?;
        // What cannot be used is found here; `ureq` panics at the first request.
        contents.config(self)?;
        let own = |given: &[CertificateDer<'static>]| {
            given.iter().map(|one| Certificate::from_der(one).to_owned()).collect::<Vec<_>>()
        };
        let mut config = TlsConfig::builder().unversioned_rustls_crypto_provider(provider());
        if let Some(authorities) = &contents.authorities {
            config = config.root_certs(RootCerts::new_with_certs(&own(authorities)));
        }
        if let Some((chain, key)) = &contents.identity {
            let key = PrivateKey::from_pem(&key.pem).map_err(|error| key.unusable(&error))?;
            config = config.client_cert(Some(ClientCert::new_with_certs(&own(chain), key)));
        }
        Ok(config.build())
    }
}

/// Makes what connects to a server called `host`.
pub(crate) fn connector(options: &ClientTls, host: &str) -> Result<(TlsConnector, ServerName<'static>), TlsError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))?;
    let config = Contents::read(options)?.config(options)?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Encrypts a connection to a server called `host`, which must have a certificate for that name.
///
/// # Errors
/// Files that cannot be used, or a failed handshake: see [`Fault::of`].
pub async fn connect(options: &ClientTls, host: &str, stream: TcpStream) -> io::Result<TlsStream> {
    let (connector, name) = connector(options, host).map_err(io::Error::other)?;
    connector.connect(name, stream).await
}

/// Why a handshake has failed, as far as a user can do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No trusted authority has signed the server's certificate.
    UnknownIssuer,
    /// The server's certificate is for other names.
    OtherName,
    /// The server's certificate is not valid any more.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// The server's certificate is an authority's, as a simple self-signed one is.
    IsAuthority,
    /// The server asks for a certificate, and the client has none.
    CertificateRequired,
    /// The server does not take the client's certificate.
    CertificateRefused,
    /// The server does not speak TLS on this port.
    NoTls,
    /// The server speaks only versions that are too old.
    OldVersion,
}

impl Fault {
    /// The fault behind an error of a connection, if it is one of these.
    pub fn of(error: &io::Error) -> Option<Self> {
        Self::of_tls(error.get_ref()?.downcast_ref::<Error>()?)
    }

    /// The same for an error of the handshake.
    fn of_tls(error: &Error) -> Option<Self> {
        Some(match error {
            Error::InvalidCertificate(certificate) => match certificate {
                CertificateError::UnknownIssuer => Self::UnknownIssuer,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Self::OtherName,
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
                CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => Self::IsAuthority,
                _ => return None,
            },
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired => Self::CertificateRequired,
                AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::UnknownCA
                | AlertDescription::AccessDenied => Self::CertificateRefused,
                AlertDescription::ProtocolVersion => Self::OldVersion,
                _ => return None,
            },
            Error::InvalidMessage(_) => Self::NoTls,
            Error::PeerIncompatible(_) => Self::OldVersion,
            _ => return None,
        })
    }

    /// What is wrong.
    pub fn problem(self) -> &'static str {
        match self {
            Self::UnknownIssuer => "the server's certificate is signed by an authority that is not trusted",
            Self::OtherName => "the server's certificate is for another name",
            Self::Expired => "the server's certificate has expired",
            Self::NotYetValid => "the server's certificate is not valid yet",
            Self::IsAuthority => "the server's certificate is that of an authority, not of a server",
            Self::CertificateRequired => "the server asks for a client certificate",
            Self::CertificateRefused => "the server does not take the client certificate",
            Self::NoTls => "the server does not speak TLS on this port",
            Self::OldVersion => "the server has neither TLS 1.2 nor 1.3",
        }
    }

    /// What to do about it. `ca` and `identity` name the settings for trusted authorities and for the client's own
    /// certificate.
    pub fn hint(self, ca: &str, identity: &str) -> String {
        match self {
            Self::UnknownIssuer => format!("name the authority that has signed it, as a file in PEM, with {ca}"),
            Self::OtherName => "use a name that is in the certificate, or put this name into it".into(),
            Self::Expired => "renew it, and check the clock of this machine".into(),
            Self::NotYetValid => "check the clocks of both machines".into(),
            Self::IsAuthority => format!("have an authority sign one for the server, and name the authority with {ca}"),
            Self::CertificateRequired => format!("give one with {identity}"),
            Self::CertificateRefused => {
                format!("give one with {identity} that an authority has signed which the server trusts")
            }
            Self::NoTls => "check the port, or use the address without TLS".into(),
            Self::OldVersion => "update the server".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_missing_or_wrong_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "no certificate").unwrap();
        for path in [folder.path().join("missing.pem"), empty] {
            let options = ClientTls { ca_file: Some(path.clone()), identity: None };
            let error = connector(&options, "localhost").err().unwrap().to_string();
            assert!(error.contains(path.to_str().unwrap()) && error.contains("hint:"), "{error}");
        }
    }

    #[test]
    fn the_default_trusts_what_browsers_trust() {
        assert!(connector(&ClientTls::default(), "broker.example").is_ok());
        assert!(connector(&ClientTls::default(), "127.0.0.1").is_ok());
        assert!(matches!(connector(&ClientTls::default(), "not a name"), Err(TlsError::Name(_))));
    }
}
