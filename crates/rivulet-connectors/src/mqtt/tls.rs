//! TLS for client and broker, with the `ring` provider passed explicitly: another crate in the program may bring a
//! second provider, and then rustls refuses to choose.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The authorities that a client trusts, and its own identity.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// A PEM file with the certificates of the authorities to trust; without it, those that browsers trust.
    pub ca_file: Option<PathBuf>,
    /// A PEM file with the client's own certificate and one with its key, if the broker requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A broker's certificate.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// A PEM file with the certificate and its chain.
    pub certificate_file: PathBuf,
    /// A PEM file with the key.
    pub key_file: PathBuf,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("'{}' cannot be read as PEM: {problem}\nhint: the file must exist, be readable, and hold a '-----BEGIN ...' block of {wanted}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// What was looked for.
        wanted: &'static str,
    },
    /// Certificate and key do not match, or are of a kind that is not supported.
    #[error("TLS cannot be set up: {0}\nhint: certificate and key must belong together")]
    Setup(#[from] rustls::Error),
    /// The host is not a name that a certificate can have.
    #[error("'{0}' is no host name that a certificate can be for\nhint: use the broker's DNS name or IP address")]
    Name(String),
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wanted = "certificates";
    let error = |problem: String| TlsError::File { path: path.to_owned(), problem, wanted };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| error(e.to_string()));
    match certificates {
        Ok(none) if none.is_empty() => Err(error("there is no certificate in it".to_owned())),
        other => other,
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| TlsError::File {
        path: path.to_owned(),
        problem: error.to_string(),
        wanted: "a private key",
    })
}

/// Makes what connects to a broker called `host`.
pub(crate) fn connector(options: &ClientTls, host: &str) -> Result<(TlsConnector, ServerName<'static>), TlsError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))?;
    let mut roots = RootCertStore::empty();
    match &options.ca_file {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match &options.identity {
        Some((certificate, key_file)) => builder.with_client_auth_cert(certificates(certificate)?, key(key_file)?)?,
        None => builder.with_no_client_auth(),
    };
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Makes what accepts connections with this certificate.
pub(crate) fn acceptor(options: &ServerTls) -> Result<TlsAcceptor, TlsError> {
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates(&options.certificate_file)?, key(&options.key_file)?)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
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
