//! TLS of every listener and client of the program.
//!
//! - [`server`]: certificates of a listener, which are read again when their files change;
//! - [`client`]: the authorities that a client trusts, and what is wrong with a server's certificate;
//! - [`names`]: the name in a client's certificate.
//!
//! What must hold: the `ring` provider is passed explicitly, because another crate in the program may bring a second
//! one, and then rustls refuses to choose. Versions before TLS 1.2 are not spoken. Files that cannot be used change
//! nothing for a listener that runs.

mod client;
mod names;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub(crate) use client::connector;
pub use client::{ClientTls, Fault, TlsStream, connect};
pub use names::NameKind;
pub(crate) use server::{Acceptor, begins_tls, take_leave};
pub use server::{Certificates, ClientCertificates, Prepared, ServerTls, TlsCounts, counts};

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
    /// The certificates of authorities cannot be used.
    #[error("the authorities in '{}' cannot be used: {problem}\nhint: the file must hold certificates of authorities in PEM", .path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The host is not a name that a certificate can have.
    #[error("'{0}' is no host name that a certificate can be for\nhint: use the server's DNS name or IP address")]
    Name(String),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
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

/// A file with a private key.
struct KeyFile {
    path: PathBuf,
    pem: Vec<u8>,
}

impl KeyFile {
    fn read(path: &Path) -> Result<Self, TlsError> {
        let mut file = Self { path: path.to_owned(), pem: Vec::new() };
        file.pem = std::fs::read(path).map_err(|error| file.unusable(&error))?;
        Ok(file)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.pem).map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, problem: &dyn std::fmt::Display) -> TlsError {
        TlsError::File { path: self.path.clone(), problem: problem.to_string(), wanted: "a private key" }
    }
}

/// The authorities that a file holds.
fn authorities(certificates: &[CertificateDer<'static>], path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| TlsError::Authorities { path: path.to_owned(), problem: error.to_string() })?;
    }
    Ok(roots)
}
