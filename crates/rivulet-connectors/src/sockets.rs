//! Connections that nobody uses for long: the system asks whether the other side is still there.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// After so much silence the system asks, and so often, and gives up after so many questions without an answer: a
/// machine that has vanished is noticed within two minutes also where its protocol has no signs of life of its own.
const SILENCE: Duration = Duration::from_secs(60);
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(15);
const QUESTIONS: u32 = 4;

/// Has the system notice when the other side of a connection is gone. A system that cannot is left as it is.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(BETWEEN_QUESTIONS).with_retries(QUESTIONS);
    if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, "connections are kept without signs of life");
    }
}
