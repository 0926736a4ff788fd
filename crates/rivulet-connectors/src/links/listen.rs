//! Connections that other processes make.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_wire::{Connection, Hello};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::peer::{Common, Failure, GREETING_MAX, Peer, greet, say};
use super::rights::{LinkAuthorizer, LinkLogin, LinkRights};
use crate::http_server::{ByAddress, Counted, listen};
use crate::logins::FailedLogins;
use crate::notices::Notices;
use crate::sockets::keep_alive;
use crate::tls::{Certificates, begins_tls, take_leave};

/// The most connections of which it is not known who is on the other side. Those beyond are closed at once.
const STRANGERS_MAX: usize = 256;

/// The most processes that are remembered.
const PEERS_MAX: usize = 4_096;

/// The processes that have linked to this one, by scope, name and run.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<(String, String, u64), Arc<Peer>>>);

impl Known {
    /// Streams of them may have found somebody who takes them.
    pub(super) fn tell_news(&self) {
        self.0.lock().values().for_each(|peer| peer.tell_news());
    }
}

/// The pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long the last word to a stranger may take.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// Where to listen, and who may come.
pub struct Listening {
    /// The address; port 0 takes any free port.
    pub address: SocketAddr,
    /// The certificate, if connections are encrypted.
    pub certificates: Arc<Certificates>,
    /// Who may link.
    pub authorizer: Arc<dyn LinkAuthorizer>,
}

/// Listens until it is dropped. Connections go on until [`super::Links`] are dropped.
pub struct Listener {
    address: SocketAddr,
    /// Dropping it ends it.
    _stop: oneshot::Sender<()>,
}

impl Listener {
    /// The address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

pub(super) fn start(
    runtime: &Handle,
    (common, known): (&Arc<Common>, &Arc<Known>),
    listening: Listening,
) -> io::Result<Listener> {
    let listener = {
        let _inside = runtime.enter();
        listen(listening.address)?
    };
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel();
    let door = Arc::new(Door {
        common: common.clone(),
        known: known.clone(),
        listening,
        strangers: Arc::default(),
        failed_logins: FailedLogins::default(),
        notices: Notices::default(),
    });
    runtime.spawn(async move {
        tokio::select! {
            () = accept(&door, listener) => {}
            _ = stopped => {}
        }
    });
    Ok(Listener { address, _stop: stop })
}

struct Door {
    common: Arc<Common>,
    known: Arc<Known>,
    listening: Listening,
    /// Connections of which it is not known who is on the other side, by their addresses.
    strangers: Arc<ByAddress>,
    failed_logins: FailedLogins,
    notices: Notices,
}

/// What a stranger has until it is known.
type Stranger = (OwnedSemaphorePermit, Counted);

async fn accept(door: &Arc<Door>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(STRANGERS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let place = places.clone().try_acquire_owned().ok();
                let place = place.filter(|_| !door.strangers.is_full(from.ip(), STRANGERS_MAX / 4));
                let Some(place) = place else { continue };
                let (door, stranger) = (door.clone(), (place, door.strangers.count(from.ip())));
                tokio::spawn(async move {
                    if let Err(problem) = serve(&door, stream, from.ip(), stranger).await {
                        door.notices.say(|| tracing::info!(%from, "a link has ended: {problem}"));
                    }
                });
            }
            Err(error) => {
                door.notices.say(|| tracing::warn!(%error, "a link could not be accepted"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(door: &Arc<Door>, stream: TcpStream, from: IpAddr, stranger: Stranger) -> Result<(), String> {
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    let Some(acceptor) = door.listening.certificates.acceptor() else {
        return answer(door, stream, (from, None), from.to_canonical().is_loopback(), stranger).await;
    };
    let handshake = async {
        match begins_tls(&stream).await {
            Ok(true) => acceptor.accept(stream).await,
            Ok(false) => {
                acceptor.failed("it is not encrypted");
                let mut connection = Connection::new(0);
                connection.say_bye("links to this server are encrypted: write tls => true, or --tls");
                refuse(door, connection, stream).await;
                None
            }
            Err(_) => None,
        }
    };
    let accepted = timeout(GREETING_MAX, handshake).await.map_err(|_| "its TLS handshake takes too long")?;
    // One that failed is in the log already.
    let Some((stream, certificate)) = accepted else { return Ok(()) };
    answer(door, stream, (from, certificate), true, stranger).await
}

/// Lets a process in that may link, and works its connection.
async fn answer(
    door: &Arc<Door>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    (address, certificate): (IpAddr, Option<Arc<str>>),
    is_private: bool,
    stranger: Stranger,
) -> Result<(), String> {
    let common = &door.common;
    let mut connection = Connection::new(common.now_us());
    let rest = greet(&mut connection, &mut stream, common).await.map_err(|(problem, _)| problem)?;
    let them = connection.them().expect("it has said who it is").clone();
    let login = LinkLogin { token: them.token.clone(), certificate, address };
    let admitting = door.clone();
    let admitted = tokio::task::spawn_blocking(move || admitting.listening.authorizer.admit(&login)).await;
    let admitted = match admitted.map_err(|_| "a defect of the server")? {
        Ok(rights) => peer_of(&door.known, (rights.clone(), is_private), &them).map(|peer| (peer, rights.changed())),
        Err(why) => {
            door.failed_logins.note(address, None, "the door of links");
            Err((why, true))
        }
    };
    match admitted {
        Ok((peer, changed)) => {
            drop(stranger);
            *peer.address.lock() = Some(address);
            connection.say_hello(&Hello { name: common.name.clone(), run: common.run, token: None });
            tokio::select! {
                end = peer.work(common, connection, rest, stream) => Err(end),
                () = changed => Err("what its user may do has changed".into()),
            }
        }
        Err((why, true)) => {
            connection.say_bye(&why);
            refuse(door, connection, stream).await;
            Err(why)
        }
        // The other side tries again if it is told nothing.
        Err((why, false)) => Err(why),
    }
}

/// Says the last word to a process that may not link.
async fn refuse(door: &Door, mut connection: Connection, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let farewell = async {
        say(&mut connection, &mut stream, &door.common).await?;
        take_leave(stream).await
    };
    let _ = timeout(FAREWELL_MAX, farewell).await;
}

/// The process with this name and run, known or not, with its rights and whether its connection is private.
pub(super) fn peer_of(
    known: &Known,
    (rights, is_private): (Arc<dyn LinkRights>, bool),
    them: &Hello,
) -> Result<Arc<Peer>, Failure> {
    let mut peers = known.0.lock();
    let key = (rights.scope().to_owned(), them.name.clone(), them.run);
    if let Some(peer) = peers.get(&key) {
        // It may have credentials, which must not be sent again over an open connection.
        if peer.is_private() && !is_private {
            let why = "this process was linked from this machine before; now it comes over an open connection";
            return Err((format!("{why}: start it again"), true));
        }
        *peer.rights.lock() = Some(rights);
        return Ok(peer.clone());
    }
    if peers.len() >= PEERS_MAX {
        let gone = peers.iter().find(|((scope, ..), peer)| *scope == key.0 && !peer.is_needed());
        let gone = gone.or_else(|| peers.iter().find(|(_, peer)| !peer.is_needed())).map(|(key, _)| key.clone());
        peers.remove(&gone.ok_or_else(|| ("too many processes are linked".to_owned(), false))?);
    }
    let peer = Arc::new(Peer::new(Some(rights), is_private));
    peers.insert(key, peer.clone());
    Ok(peer)
}
