//! The first packet of a connection: who the client is, and whether it is let in.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use tokio::io::AsyncRead;

use super::super::buffer::ReadBuffer;
use super::super::codec;
use super::options::allows;
use super::packets::{self, Login};
use super::rights::{ClientLogin, Rights, may_publish};
use super::shared::Shared;
use super::system::SYSTEM;

/// The largest CONNECT, in bytes.
const CONNECT_BYTES_MAX: usize = 1 << 20;

/// The refusal of a client.
pub(super) struct Refusal {
    pub(super) answer: Vec<u8>,
    /// Whether it broke the protocol.
    pub(super) counts: bool,
}

/// Reads the CONNECT of a client, and decides whether it is let in.
pub(super) async fn read_login(
    shared: &Shared,
    (address, certificate): (IpAddr, Option<&str>),
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut ReadBuffer,
) -> Result<(Login, Rights), Refusal> {
    let mut memory = shared.login_memory.share();
    loop {
        // A peer that does not begin with a CONNECT gets no answer: it may not speak MQTT at all, and the bytes that
        // look like a packet's length may announce a packet that never comes.
        let refusal = || Refusal { answer: Vec::new(), counts: true };
        if buffer.data().first().is_some_and(|&byte| byte != codec::CONNECT) {
            return Err(refusal());
        }
        let packet_bytes_max = shared.options.packet_bytes_max.min(CONNECT_BYTES_MAX);
        let frame = codec::split_frame(buffer.data(), packet_bytes_max).map_err(|_| refusal())?;
        if let Some(frame) = frame {
            let mut login = packets::login(&frame).map_err(|answer| Refusal { answer, counts: true })?;
            let version = login.version;
            let refuse = |reason| {
                let mut answer = Vec::new();
                packets::refuse(version, reason, &mut answer);
                Err(Refusal { answer, counts: false })
            };
            let rights = match admit(shared, &login, (address, certificate)).await {
                Ok(rights) => rights,
                Err(refused) => {
                    shared.core.lock().counters.drops.logins_refused += u64::from(refused == packets::Refused::Login);
                    return refuse(refused);
                }
            };
            let may = |topic: &[u8]| !topic.starts_with(SYSTEM.as_bytes()) && may_publish(&rights, topic);
            if login.will_topic().is_some_and(|topic| !may(topic)) {
                return refuse(packets::Refused::WillNotAuthorized);
            }
            let scope = rights.as_deref().and_then(|rights| rights.session_scope());
            if scope.is_some_and(|scope| !login.keep_apart(&scope)) {
                return refuse(packets::Refused::ClientId);
            }
            let consumed = frame.whole.len();
            buffer.consume(consumed);
            return Ok((login, rights));
        }
        match buffer.fill(stream).await {
            Ok(0) | Err(_) => return Err(Refusal { answer: Vec::new(), counts: false }),
            Ok(bytes) => shared.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed),
        };
        if !memory.grow(buffer.memory_bytes()) {
            shared.notices.say(|| {
                tracing::warn!(
                    "a connection was closed before its CONNECT had come: those without a login hold as much memory \
                     as they may, which is a part of mqtt.embedded.memory_bytes_max"
                );
            });
            return Err(Refusal { answer: Vec::new(), counts: false });
        }
    }
}

/// Checks the identity of a client, and returns its rights.
async fn admit(
    shared: &Shared,
    login: &Login,
    (address, certificate): (IpAddr, Option<&str>),
) -> Result<Rights, packets::Refused> {
    let is_configured = {
        let users = shared.users.read();
        (!users.is_empty()).then(|| allows(&users, login.user.as_deref(), login.password.as_deref()))
    };
    let (user, password, client_id) = (login.user.clone(), login.password.clone(), login.client_id.clone());
    let certificate = certificate.map(str::to_owned);
    let login = ClientLogin { user, password, certificate, client_id, address, is_configured };
    shared.logins.admit(shared.options.authorizer.as_ref(), login).await
}
