//! The certificates of a listener.
//!
//! What must hold: a new certificate counts for the connections that come after it, and those that are open stay. If
//! its files cannot be used, the earlier certificate stays in force, and that is logged and counted.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, Error, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::names::NameKind;
use super::{KeyFile, TlsError, authorities, certificates, provider};
use crate::notices::Notices;

/// How often the files are looked at. New ones are read when two looks in a row have found the same, so that a file
/// that is being written, or a certificate whose key comes a moment later, is not read half.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a client whose handshake has failed may take to read why.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// The number of bytes that are read of such a client. If the connection were closed before, the client's system could
/// discard what it was told.
const PASSED_OVER_MAX: usize = 64 << 10;

/// The first byte of a connection that begins with a TLS handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Changed files that could not be used.
static FILES_REFUSED: AtomicU64 = AtomicU64::new(0);

/// Failed handshakes.
static HANDSHAKES_FAILED: AtomicU64 = AtomicU64::new(0);

/// What has gone wrong at all listeners of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsCounts {
    /// How often changed files of certificates could not be used.
    pub files_refused: u64,
    /// Failed handshakes with clients.
    pub handshakes_failed: u64,
}

/// What has gone wrong so far.
pub fn counts() -> TlsCounts {
    TlsCounts {
        files_refused: FILES_REFUSED.load(Ordering::Relaxed),
        handshakes_failed: HANDSHAKES_FAILED.load(Ordering::Relaxed),
    }
}

/// A listener's certificate, and what it asks of its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// A PEM file with the certificate and its chain.
    pub certificate_file: PathBuf,
    /// A PEM file with the key.
    pub key_file: PathBuf,
    /// The certificates of clients, if they are asked for.
    pub clients: Option<ClientCertificates>,
}

impl ServerTls {
    /// A certificate whose clients are not asked for one.
    pub fn new(certificate_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        Self { certificate_file: certificate_file.into(), key_file: key_file.into(), clients: None }
    }

    fn stamps(&self) -> Stamps {
        let stamp = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        let authorities = self.clients.as_ref().map(|clients| &clients.ca_file);
        [Some(&self.certificate_file), Some(&self.key_file), authorities].map(|path| path.and_then(stamp))
    }
}

/// The certificates that clients have to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// A PEM file with the authorities of clients.
    pub ca_file: PathBuf,
    /// Whether a client without a certificate is refused.
    pub required: bool,
    /// Which name of a certificate tells who the client is.
    pub name: NameKind,
}

/// When each file was changed, and its size. `None` for a file that is missing or not configured.
type Stamps = [Option<(SystemTime, u64)>; 3];

struct InForce {
    options: ServerTls,
    acceptor: TlsAcceptor,
    /// The files that were read last, whether they could be used or not.
    read: Stamps,
    /// The files of the last look.
    seen: Stamps,
}

/// Certificates that were read and can be used; without any, as by default, connections are not encrypted.
#[derive(Default)]
pub struct Prepared(Option<InForce>);

impl Prepared {
    /// Reads the files.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn read(options: Option<&ServerTls>) -> Result<Self, TlsError> {
        let read = |options: &ServerTls| {
            let stamps = options.stamps();
            let acceptor = acceptor(options)?;
            Ok(InForce { options: options.clone(), acceptor, read: stamps, seen: stamps })
        };
        options.map(read).transpose().map(Self)
    }
}

fn acceptor(options: &ServerTls) -> Result<TlsAcceptor, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match &options.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let roots = Arc::new(authorities(&certificates(&clients.ca_file)?, &clients.ca_file)?);
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            if !clients.required {
                verifier = verifier.allow_unauthenticated();
            }
            let path = clients.ca_file.clone();
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| TlsError::Authorities { path, problem: error.to_string() })?,
            )
        }
    };
    let config =
        builder.with_single_cert(certificates(&options.certificate_file)?, KeyFile::read(&options.key_file)?.key()?)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The certificates of a listener. A thread looks whether the files have changed, for as long as this exists.
pub struct Certificates {
    /// The listener, for the log.
    listener: &'static str,
    in_force: RwLock<Option<InForce>>,
    is_watched: AtomicBool,
    notices: Notices,
}

impl Certificates {
    /// The certificates of `listener`, as the log calls it.
    pub fn new(listener: &'static str, prepared: Prepared) -> Arc<Self> {
        let certificates = Arc::new(Self {
            listener,
            in_force: RwLock::new(None),
            is_watched: AtomicBool::new(false),
            notices: Notices::default(),
        });
        certificates.set(prepared);
        certificates
    }

    /// Has connections use these from now on.
    pub fn set(self: &Arc<Self>, prepared: Prepared) {
        let needs_watch = prepared.0.is_some() && !self.is_watched.swap(true, Ordering::Relaxed);
        *self.in_force.write() = prepared.0;
        if needs_watch {
            let weak = Arc::downgrade(self);
            let watching = std::thread::Builder::new().name("certificates".into()).spawn(move || watch(&weak));
            if let Err(error) = watching {
                self.is_watched.store(false, Ordering::Relaxed);
                tracing::warn!(%error, "certificates of {} are read again at SIGHUP only", self.listener);
            }
        }
    }

    /// Whether connections are encrypted.
    pub fn are_set(&self) -> bool {
        self.in_force.read().is_some()
    }

    /// What accepts the next connection, if it is to be encrypted.
    pub(crate) fn acceptor(self: &Arc<Self>) -> Option<Acceptor> {
        let in_force = self.in_force.read();
        in_force.as_ref().map(|in_force| Acceptor {
            tls: in_force.acceptor.clone(),
            name: in_force.options.clients.as_ref().map(|clients| clients.name),
            certificates: self.clone(),
        })
    }

    /// Looks at the files, and reads them if they have changed and are at rest.
    fn look(&self) {
        let Some(options) = self.in_force.read().as_ref().map(|in_force| in_force.options.clone()) else { return };
        let stamps = options.stamps();
        {
            let mut in_force = self.in_force.write();
            let Some(in_force) = in_force.as_mut().filter(|in_force| in_force.options == options) else { return };
            let is_at_rest = std::mem::replace(&mut in_force.seen, stamps) == stamps;
            if in_force.read == stamps || !is_at_rest {
                return;
            }
            in_force.read = stamps;
        }
        // Without the lock: connections come meanwhile.
        let read = acceptor(&options);
        let mut in_force = self.in_force.write();
        let Some(in_force) = in_force.as_mut().filter(|in_force| in_force.options == options) else { return };
        match read {
            Ok(acceptor) => {
                in_force.acceptor = acceptor;
                tracing::info!("the certificates of {} have changed and were read again", self.listener);
            }
            Err(error) => {
                FILES_REFUSED.fetch_add(1, Ordering::Relaxed);
                tracing::error!("the certificates of {} stay as they were: {error}", self.listener);
            }
        }
    }
}

fn watch(certificates: &Weak<Certificates>) {
    loop {
        std::thread::sleep(LOOK_INTERVAL);
        let Some(certificates) = certificates.upgrade() else { return };
        certificates.look();
    }
}

/// Accepts one connection.
pub(crate) struct Acceptor {
    tls: TlsAcceptor,
    /// Which name of a client's certificate is wanted, if certificates are asked for.
    name: Option<NameKind>,
    certificates: Arc<Certificates>,
}

impl Acceptor {
    /// Makes the handshake, which takes as long as the client takes. Returns the stream, and the name in the client's
    /// certificate. A handshake that fails is counted and logged.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Option<(TlsStream<S>, Option<Arc<str>>)> {
        match self.tls.accept(stream).into_fallible().await {
            Ok(stream) => {
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let name = shown.zip(self.name).and_then(|(certificate, kind)| kind.of(certificate));
                Some((stream, name))
            }
            Err((error, stream)) => {
                self.failed(&problem_of(&error));
                let _ = tokio::time::timeout(FAREWELL_MAX, take_leave(stream)).await;
                None
            }
        }
    }

    /// Counts and logs a failed handshake.
    pub(crate) fn failed(&self, problem: &str) {
        HANDSHAKES_FAILED.fetch_add(1, Ordering::Relaxed);
        let listener = self.certificates.listener;
        self.certificates
            .notices
            .say(|| tracing::warn!("the TLS handshake of a client with {listener} failed: {problem}"));
    }
}

/// What is wrong with a handshake, as the log says it.
fn problem_of(error: &io::Error) -> String {
    use AlertDescription::{BadCertificate, CertificateUnknown, UnknownCA};
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(Error::AlertReceived(alert @ (BadCertificate | CertificateUnknown | UnknownCA))) => {
            format!("the client does not trust the certificate ({alert:?})")
        }
        _ => error.to_string(),
    }
}

/// Closes a connection to which the last word was written, and reads what the client still sends, within bounds.
pub(crate) async fn take_leave(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.shutdown().await?;
    let (mut bytes, mut passed) = (vec![0; 4 << 10], 0);
    loop {
        match stream.read(&mut bytes).await? {
            0 => return Ok(()),
            count => passed += count,
        }
        if passed > PASSED_OVER_MAX {
            return Ok(());
        }
    }
}

/// Whether a connection begins as TLS does. Waits for its first byte, and leaves it there.
///
/// # Errors
/// The client has closed the connection.
pub(crate) async fn begins_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == HANDSHAKE_RECORD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_trust_the_certificate_is_told_from_others() {
        let problem = |alert| problem_of(&io::Error::other(Error::AlertReceived(alert)));
        assert_eq!(problem(AlertDescription::UnknownCA), "the client does not trust the certificate (UnknownCA)");
        assert!(problem(AlertDescription::HandshakeFailure).contains("HandshakeFailure"));
    }
}
