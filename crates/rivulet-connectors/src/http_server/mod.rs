//! Serves HTTP/1.1 within bounds. The REST API and HTTP sources listen by this.
//!
//! What must hold: a client that sends nothing, sends too slowly, or does not take its answer, keeps no connection.
//! Where there are as many connections as allowed, a new one takes the place of the connection that has waited longest
//! for its client. A request for the name of another server is recognised ([`Hosts`]), so that a web page whose name
//! was made to resolve to this machine (DNS rebinding) gets nothing.

mod body;
mod hosts;
mod progress;
mod seats;

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::descriptors::Descriptors;
pub use body::{BodyError, Budget, Held, Keeping, next_data, read_body};
pub use hosts::{Hosts, is_host_list, is_of_other_site};
use progress::{Awaited, Taken};
pub use progress::{ClientWait, Pause};
use seats::{Seat, Seats};

/// The largest head of a request, and about what a connection keeps of an answer that its client does not take.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// What the system keeps of an answer that a client does not take; without it up to some MiB a connection.
const SEND_BUFFER_BYTES: u32 = 256 << 10;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// The pause after a connection could not be accepted, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is answered where there are as many connections as allowed, and none gives way.
const NO_ROOM: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Most connections at a time.
    pub connections_max: usize,
    /// How long the head of a request may take, and how long a connection may wait for its next request.
    pub head_timeout: Duration,
    /// How long the server waits for each KiB of a body, and for a client to take each KiB of its answer.
    pub stall_timeout: Duration,
    /// Descriptors that other servers take from as well, where there are such.
    pub shared: Option<&'static Descriptors>,
}

/// Takes an address to serve at; port 0 takes any free port. Outside of a tokio runtime it panics.
///
/// # Errors
/// Those of the system: mostly that the port is in use.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Connections have what their listener has.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `stop` completes; then finishes the requests under way. Dropped, it serves no new connections. A new
/// connection keeps to what the options are then.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: watch::Receiver<ServerOptions>,
    stop: impl Future<Output = ()>,
) {
    let begun_with = *options.borrow();
    let seats = Seats::new(begun_with.connections_max, begun_with.shared);
    let (stopping, stopped) = watch::channel(false);
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        seats.wait_closed().await;
        let options = *options.borrow();
        seats.set_connections_max(options.connections_max);
        match seats.take() {
            Some(seat) => {
                tokio::spawn(serve_connection(stream, peer, router.clone(), seat, options, stopped.clone()));
            }
            // A client that does not get the answer sees a closed connection.
            None => drop(stream.try_write(NO_ROOM)),
        }
    }
    drop((listener, stopped));
    stopping.send_replace(true);
    stopping.closed().await;
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    seat: Seat,
    options: ServerOptions,
    mut stopped: watch::Receiver<bool>,
) {
    // Answers are small and wanted at once.
    let _ = stream.set_nodelay(true);
    let place = seat.place();
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        let turn = place.begin_request();
        let awaited = |body| Awaited::new(body, options.stall_timeout, place.clone());
        let request = request.map(awaited);
        let wait = request.body().wait();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(wait);
        let answer = router.call(request);
        async move { answer.await.map(|answer| answer.map(|body| Keeping::new(body, turn))) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(options.head_timeout).max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(Taken::new(stream, options.stall_timeout));
    let mut connection = pin!(builder.serve_connection(stream, service));
    let mut is_stopping = false;
    loop {
        tokio::select! {
            // A client that breaks off or takes too long is gone and cannot be told.
            _ = connection.as_mut() => return,
            () = place.gives_way() => return,
            _ = stopped.wait_for(|stopped| *stopped), if !is_stopping => {
                if !place.has_request() {
                    return;
                }
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
