//! A certificate authority for tests.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd};

/// An authority whose certificates are PEM files in a folder.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub(crate) file: PathBuf,
}

/// The files of a certificate and its key.
pub(crate) type Identity = (PathBuf, PathBuf);

impl Authority {
    /// An authority, whose file is called so.
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        let file = folder.join(format!("{name}.pem"));
        fs::write(&file, parameters.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder: folder.to_owned(), issuer: Issuer::new(parameters, key), file }
    }

    /// A certificate for localhost and 127.0.0.1.
    pub(crate) fn server(&self, name: &str) -> Identity {
        self.sign(name, Self::of_loopback())
    }

    /// One for another host.
    pub(crate) fn other_server(&self, name: &str) -> Identity {
        self.sign(name, CertificateParams::new(vec!["other.example".to_owned()]).unwrap())
    }

    /// One for localhost that has expired.
    pub(crate) fn expired_server(&self, name: &str) -> Identity {
        let mut parameters = Self::of_loopback();
        parameters.not_before = date_time_ymd(2019, 1, 1);
        parameters.not_after = date_time_ymd(2020, 1, 1);
        self.sign(name, parameters)
    }

    /// A client's, with this common name, and the same as a URI `urn:NAME`.
    pub(crate) fn client(&self, name: &str) -> Identity {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.subject_alt_names.push(SanType::URI(Ia5String::try_from(format!("urn:{name}")).unwrap()));
        self.sign(name, parameters)
    }

    fn of_loopback() -> CertificateParams {
        CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
    }

    fn sign(&self, name: &str, parameters: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let write = |end: &str, text: String| {
            let path = self.folder.join(format!("{name}{end}"));
            fs::write(&path, text).unwrap();
            path
        };
        (write(".pem", certificate.pem()), write(".key", key.serialize_pem()))
    }
}
