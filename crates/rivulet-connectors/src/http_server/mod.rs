//! Serves HTTP/1.1 within bounds. The REST API and HTTP sources listen by this.
//!
//! What must hold: a client that sends nothing, sends too slowly, or does not take its answer, keeps no connection.
//! Where there are as many connections as allowed, a new one takes the place of the connection that has waited longest
//! for its client, and an address that has its share of them takes places of its own alone. A connection that has not
//! finished its TLS handshake waits for its client. A request for the name of another server is recognised ([`Hosts`]),
//! so that a web page whose name was made to resolve to this machine (DNS rebinding) gets nothing.

mod addresses;
mod body;
mod hosts;
mod progress;
mod seats;

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::descriptors::Descriptors;
use crate::reach::AllowedHosts;
use crate::tls::{Acceptor, Certificates, begins_tls, take_leave};
pub use addresses::{ByAddress, Counted, share_of};
pub use body::{BodyError, Budget, Held, Keeping, next_data, read_body};
pub use hosts::{Hosts, Origins, is_host_list, is_of_other_site};
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
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
    content-type: application/json\r\ncontent-length: 205\r\n\r\n\
    {\"error\":{\"kind\":\"unavailable\",\"message\":\"all connections are taken, or all of this address\",\
    \"hint\":\"http.connections_max says how many there are, and http.address_share_percent how many one address has\"}}";

/// What is answered to a request that is not encrypted, where requests have to be. It is an error as the REST API gives
/// it. There is no redirect: a client that followed it would show its token to everybody on the way each time.
const NO_TLS: &str =
    r#"{"error":{"kind":"invalid","message":"this port speaks HTTPS","hint":"write https:// in the address"}}"#;

/// How long a client may take to read that.
const NO_TLS_MAX: Duration = Duration::from_secs(2);

/// What a request has among its extensions if its connection is encrypted.
#[derive(Clone, Debug)]
pub struct Encrypted {
    /// The name in the client's certificate, if TLS has verified one.
    pub certificate: Option<Arc<str>>,
}

/// The token of a request, if it has one. The scheme may be written in any case (RFC 7235, 2.1).
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_first_chunk::<7>()?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// The address of the client that a request is of. Each proxy writes behind the addresses in `X-Forwarded-For` where it
/// has the request from. So the last address that is none of the trusted `proxies` is the client's; what stands before
/// it, anybody may have written.
pub fn client_address(peer: IpAddr, headers: &HeaderMap, proxies: &AllowedHosts) -> IpAddr {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let mut entries = lines.flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
    let mut address = peer.to_canonical();
    while proxies.has_address(address)
        && let Some(from) = entries.next().and_then(|entry| forwarded(entry.trim()))
    {
        address = from.to_canonical();
    }
    address
}

/// An address in `X-Forwarded-For`, to which some proxies add the port.
fn forwarded(entry: &str) -> Option<IpAddr> {
    let with_port = || entry.parse::<SocketAddr>().ok().map(|address| address.ip());
    entry.trim_matches(['[', ']']).parse().ok().or_else(with_port)
}

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Most connections at a time.
    pub connections_max: usize,
    /// How many of them one address may have, in percent.
    pub address_share_percent: usize,
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
/// connection keeps to what the options and certificates are then.
pub async fn serve(
    listener: TcpListener,
    certificates: Arc<Certificates>,
    router: Router,
    options: watch::Receiver<ServerOptions>,
    stop: impl Future<Output = ()>,
) {
    let begun_with = *options.borrow();
    let seats = Seats::new(begun_with.connections_max, begun_with.address_share_percent, begun_with.shared);
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
        seats.set_bounds(options.connections_max, options.address_share_percent);
        match seats.take(peer.ip()) {
            Some(seat) => {
                let connection = Connection { peer, router: router.clone(), seat, options, stopped: stopped.clone() };
                tokio::spawn(connection.serve(stream, certificates.acceptor()));
            }
            // A client that does not get the answer sees a closed connection.
            None => drop(stream.try_write(NO_ROOM)),
        }
    }
    drop((listener, stopped));
    stopping.send_replace(true);
    stopping.closed().await;
}

/// One connection and what it keeps to.
struct Connection {
    peer: SocketAddr,
    router: Router,
    seat: Seat,
    options: ServerOptions,
    stopped: watch::Receiver<bool>,
}

impl Connection {
    async fn serve(mut self, stream: TcpStream, tls: Option<Acceptor>) {
        // Answers are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let Some(acceptor) = tls else {
            let stream = Taken::new(stream, self.options.stall_timeout);
            return self.answer(stream, None).await;
        };
        let (place, limit) = (self.seat.place(), self.options.stall_timeout);
        let handshake = async {
            if begins_tls(&stream).await.ok()? {
                // Inside of TLS, because what waits there to be written is not taken by the client yet.
                return acceptor.accept(Taken::new(stream, limit)).await;
            }
            acceptor.failed("it speaks plain HTTP");
            let _ = tokio::time::timeout(NO_TLS_MAX, refuse_plain(stream)).await;
            None
        };
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(self.options.head_timeout, handshake) => accepted,
            () = place.gives_way() => return,
            _ = self.stopped.wait_for(|stopped| *stopped) => return,
        };
        if let Ok(Some((stream, certificate))) = accepted {
            self.answer(stream, Some(Encrypted { certificate })).await;
        }
    }

    async fn answer(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, encrypted: Option<Encrypted>) {
        let Self { peer, router, seat, options, mut stopped } = self;
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
            if let Some(encrypted) = &encrypted {
                request.extensions_mut().insert(encrypted.clone());
            }
            let answer = router.call(request);
            async move { answer.await.map(|answer| answer.map(|body| Keeping::new(body, turn))) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(options.head_timeout).max_buf_size(BUFFER_BYTES_MAX);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
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
}

/// Tells a client that its request is not encrypted.
async fn refuse_plain(mut stream: TcpStream) -> std::io::Result<()> {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{NO_TLS}",
        NO_TLS.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    take_leave(stream).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_token_may_be_written_in_any_case() {
        let token = |given: &'static str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, header::HeaderValue::from_static(given))]);
            bearer(&headers).map(|token| String::from_utf8(token.to_vec()).unwrap())
        };
        for given in ["Bearer Ab1", "bearer Ab1", "BEARER Ab1", "bEaReR Ab1"] {
            assert_eq!(token(given).as_deref(), Some("Ab1"), "{given}");
        }
        assert_eq!(token("bearer ").as_deref().unwrap_or_default(), "");
        for given in ["", "Bearer", "BearerAb1", "Basic Ab1", "Bearer\tAb1", " Bearer Ab1"] {
            assert_eq!(token(given), None, "{given}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[test]
    fn a_client_is_where_the_last_trusted_proxy_has_it_from() {
        let proxies = AllowedHosts::listed("10.0.0.0/8, 2001:db8::7", "proxies").unwrap();
        let client = |peer: &str, lines: &[&'static str]| {
            let line = |line: &&'static str| {
                let name = header::HeaderName::from_static("x-forwarded-for");
                (name, header::HeaderValue::from_static(line))
            };
            let headers = HeaderMap::from_iter(lines.iter().map(line));
            client_address(peer.parse().unwrap(), &headers, &proxies).to_string()
        };
        let table: [(&str, &[&str], &str); 11] = [
            ("192.0.2.1", &[], "192.0.2.1"),
            ("192.0.2.1", &["198.51.100.9"], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.9"], "198.51.100.9"),
            ("::ffff:10.0.0.1", &["198.51.100.9:1234"], "198.51.100.9"),
            ("10.0.0.1", &["[2001:db8::9]:80"], "2001:db8::9"),
            ("10.0.0.1", &["[2001:db8::9]"], "2001:db8::9"),
            // What the client has written itself does not count.
            ("10.0.0.1", &["203.0.113.5, 198.51.100.9"], "198.51.100.9"),
            ("10.0.0.1", &["203.0.113.5", "198.51.100.9 , 10.2.3.4,2001:db8::7"], "198.51.100.9"),
            ("10.0.0.1", &["203.0.113.5, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["10.0.0.2"], "10.0.0.2"),
        ];
        for (peer, lines, expected) in table {
            assert_eq!(client(peer, lines), expected, "{peer} {lines:?}");
        }
        assert!(!AllowedHosts::everything().has_address("10.0.0.1".parse().unwrap()), "only a list trusts");
    }

    #[test]
    fn a_connection_without_a_place_is_told_which_bound_it_is() {
        let answer = std::str::from_utf8(NO_ROOM).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{answer}");
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(error["error"]["hint"].as_str().unwrap().contains("http.address_share_percent"), "{error}");
    }
}
