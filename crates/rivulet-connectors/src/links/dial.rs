//! Connections that this process makes.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rivulet_wire::{Connection, Hello};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

use super::peer::{Common, Failure, GREETING_MAX, Peer, greet, random, told};
use crate::reach::AllowedHosts;
use crate::sockets::keep_alive;
use crate::tls::{self, ClientTls};

/// The pause before the next attempt; it doubles up to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is dialled, and as whom.
#[derive(Clone)]
pub struct Target {
    /// Whose streams these are, on this side.
    pub scope: String,
    /// The host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How the connection is encrypted; `None` if it is not.
    pub tls: Option<ClientTls>,
    /// The token that says for whom the streams are.
    pub token: Option<Token>,
    /// The addresses that may be dialled.
    pub reach: AllowedHosts,
}

impl Target {
    /// What tells one target from another.
    fn key(&self) -> (&str, &str, u16, &Option<ClientTls>, Option<&str>) {
        (&self.scope, &self.host, self.port, &self.tls, self.token.as_ref().map(|token| &*token.name))
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Target {}

impl std::hash::Hash for Target {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let (scope, host, port, _, token) = self.key();
        (scope, host, port, token).hash(state);
    }
}

/// A token, which may have another value with each connection.
#[derive(Clone)]
pub struct Token {
    /// Its identity: the text, or the name of the secret.
    pub name: String,
    /// Its present value, or why there is none.
    pub value: Arc<dyn Fn() -> Result<String, String> + Send + Sync>,
}

/// Dials for as long as the peer exists.
pub(super) async fn dial(common: Arc<Common>, target: Target, peer: Weak<Peer>) {
    let mut pause = PAUSE_MIN;
    // The other side knows this peer by this number from others that this process may have there.
    let run = random();
    while peer.strong_count() > 0 {
        let attempt = {
            let (common, target, peer) = (common.clone(), target.clone(), peer.clone());
            tokio::spawn(async move { connect(&common, &target, run, &peer).await })
        };
        let ended = attempt.await.unwrap_or_else(|panic| Err((format!("a defect of this program: {panic}"), false)));
        if ended.is_ok() {
            pause = PAUSE_MIN;
        }
        if let Some(peer) = peer.upgrade() {
            peer.fail(ended.map_or_else(|failure| failure, |end| (end, false)));
        }
        sleep(pause).await;
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Makes a connection, and works it until it ends. Returns why it has ended.
///
/// # Errors
/// The other side has not let this one in.
async fn connect(common: &Arc<Common>, target: &Target, run: u64, peer: &Weak<Peer>) -> Result<String, Failure> {
    let passing = |problem: String| (problem, false);
    let token = target.token.as_ref().map(|token| (token.value)()).transpose().map_err(passing)?;
    let me = &Hello { name: common.name.clone(), run, token };
    let stream = timeout(GREETING_MAX, open(target)).await.map_err(|_| passing("it does not answer".into()))?;
    let stream = stream.map_err(|error| passing(error.to_string()))?;
    let Some(options) = &target.tls else { return work(common, me, stream, peer).await };
    let handshake = timeout(GREETING_MAX, tls::connect(options, &target.host, stream)).await;
    let stream = handshake.map_err(|_| passing("the TLS handshake takes too long".into()))?;
    let stream = stream.map_err(|error| match told(&error) {
        (problem, false) => passing(format!("{problem} in the TLS handshake: it may not be encrypted there")),
        lasting => lasting,
    })?;
    work(common, me, stream, peer).await
}

async fn work(
    common: &Arc<Common>,
    me: &Hello,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: &Weak<Peer>,
) -> Result<String, Failure> {
    let mut connection = Connection::new(common.now_us());
    connection.say_hello(me);
    let rest = greet(&mut connection, &mut stream, common).await?;
    Ok(match peer.upgrade() {
        Some(peer) => peer.work(common, connection, rest, stream).await,
        None => "nobody needs it any more".into(),
    })
}

/// Connects to one of the addresses of the host that may be dialled.
async fn open(target: &Target) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host has no address");
    for address in lookup_host((target.host.as_str(), target.port)).await? {
        if let Err(refused) = target.reach.check(&target.host, address.ip()) {
            last = io::Error::other(format!("it is out of reach: {}", refused.why));
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                keep_alive(&stream);
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
