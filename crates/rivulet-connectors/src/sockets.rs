//! Detects connections whose peer is gone: after a long silence the system asks the peer.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The silence after which the system asks, the interval of its questions, and how many go unanswered before it gives
/// up: a machine that has vanished is noticed within two minutes, even if the protocol has no keep-alive of its own.
const SILENCE: Duration = Duration::from_secs(60);
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(15);
const QUESTIONS: u32 = 4;

/// Makes the system notice when the peer of a connection is gone. Does nothing on a system that cannot.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(BETWEEN_QUESTIONS).with_retries(QUESTIONS);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, "connections are kept without signs of life");
    }
}
