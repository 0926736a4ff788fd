//! The address of the broker, and the options of the connection.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;

use super::super::codec::{Qos, Version};
use super::super::linger::Linger;
use crate::reach::AllowedHosts;
use crate::tls::ClientTls;

/// The address of a broker: `mqtt://user:password@host:port`, or `mqtts://` for TLS.
///
/// User and password may contain any character, percent-encoded (for example `%40`) where it would end them. The
/// default port is 1883, or 8883 for TLS. The address is shown without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerAddress {
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The user to log in as.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<String>,
}

/// Why a text is not the address of a broker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is no address of an MQTT broker: {problem}\nhint: write 'mqtt://host:1883', 'mqtts://host:8883' for TLS, 'mqtt://user:password@host' to log in ('%40' for an '@' in them)"
)]
pub struct AddressError {
    /// The text, without anything that might be a password.
    pub text: String,
    /// The problem.
    pub problem: &'static str,
}

impl FromStr for BrokerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let error = |problem| AddressError {
            text: if login.is_some() { format!("{scheme}://...@{place}") } else { text.to_owned() },
            problem,
        };
        let tls = match scheme {
            "mqtt" => false,
            "mqtts" => true,
            "" => return Err(error("it does not begin with 'mqtt://' or 'mqtts://'")),
            _ => return Err(error("only 'mqtt' and 'mqtts' are known before the '://'")),
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = match place.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']').ok_or_else(|| error("a '[' is not closed"))?;
                match after {
                    "" => (host, None),
                    _ => (host, Some(after.strip_prefix(':').ok_or_else(|| error("after ']' comes ':' and a port"))?)),
                }
            }
            None => match place.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(error("an IPv6 address stands in '[' and ']'")),
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        if host.is_empty() || host.contains(['/', '?', '#', ' ']) {
            return Err(error("the host is missing or has characters that no host has"));
        }
        let port = match port {
            Some(port) => match port.parse::<u16>() {
                Ok(port) if port > 0 => port,
                _ => return Err(error("the port is not a number from 1 to 65535")),
            },
            None if tls => 8883,
            None => 1883,
        };
        let decode =
            |text: &str| percent_decode(text).ok_or_else(|| error("a '%' is not followed by two hex digits of UTF-8"));
        let (user, password) =
            match login.map(|login| login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)))) {
                None => (None, None),
                Some((user, password)) => (Some(decode(user)?), password.map(decode).transpose()?),
            };
        Ok(Self { tls, host: host.to_owned(), port, user, password })
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>()?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "mqtts" } else { "mqtt" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Debug for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} (user {:?})", self.user)
    }
}

/// The configuration of a [`Client`](super::Client).
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The broker.
    pub address: BrokerAddress,
    /// The version of the protocol. Default: 5.
    ///
    /// With 5, messages say which subscriptions they were sent for, so an event arrives once however many filters match
    /// it. With 3.1.1 that depends on the broker: Mosquitto sends one copy unless `allow_duplicate_messages` is set;
    /// others may send one for each filter. Therefore a filter that another one covers is not subscribed to, and the
    /// status and the log name filters that overlap in part (`a/+` and `+/b`).
    pub version: Version,
    /// The name by which the broker knows the session. Two clients with one name disconnect each other. Default:
    /// random.
    pub client_id: String,
    /// Quality of service of the subscriptions. Default: 0. With 1, the broker keeps events while the connection is
    /// down (if [`ClientOptions::clean_session`] is off), and an event may come twice.
    pub qos: Qos,
    /// Whether every connection starts without the state of the last one. Default: yes.
    pub clean_session: bool,
    /// How long a broker of version 5 keeps a session that is not clean, in seconds. Default: one hour.
    pub session_expiry_s: u32,
    /// After how many seconds of silence a keep-alive packet is exchanged. 0: never. Default: 30.
    pub keep_alive_s: u16,
    /// The certificates to trust, with `mqtts://`.
    pub tls: ClientTls,
    /// The hosts that the broker's name may lead to. Default: every host.
    pub reach: AllowedHosts,
    /// How long connecting may take, up to the broker's answer, in milliseconds. Default: 10,000.
    pub connect_timeout_ms: u64,
    /// The wait before the first attempt to connect again, in milliseconds; it doubles with every failure. Default:
    /// 100.
    pub reconnect_wait_ms_min: u64,
    /// The longest wait between attempts, in milliseconds. Default: 30,000. After a connection that the broker had
    /// accepted it is 5 s at most, unless another client has the same id.
    pub reconnect_wait_ms_max: u64,
    /// The largest packet accepted, in bytes. Larger messages are passed over and counted. Default: 16 MiB.
    pub packet_bytes_max: usize,
    /// The most bytes read from the socket at a time. Default: 256 KiB.
    pub read_buffer_bytes: usize,
    /// The high mark of the queue of results, in bytes. Default: 8 MiB.
    pub outbound_bytes_max: usize,
    /// The pauses of the thread on which it runs. Whoever starts that thread makes it pause.
    pub linger: Arc<Linger>,
    /// How long a circle of full queues may be stuck before an event is dropped to break it, in milliseconds. Default:
    /// 5000.
    pub deadlock_ms: u64,
}

impl ClientOptions {
    /// The defaults for this broker.
    pub fn new(address: BrokerAddress) -> Self {
        Self {
            address,
            version: Version::V5,
            client_id: format!("rivulet-{:016x}", random()),
            qos: Qos::AtMostOnce,
            clean_session: true,
            session_expiry_s: 3600,
            keep_alive_s: 30,
            tls: ClientTls::default(),
            reach: AllowedHosts::everything(),
            connect_timeout_ms: 10_000,
            reconnect_wait_ms_min: 100,
            reconnect_wait_ms_max: 30_000,
            packet_bytes_max: 16 << 20,
            read_buffer_bytes: 256 << 10,
            outbound_bytes_max: 8 << 20,
            linger: Arc::default(),
            deadlock_ms: 5000,
        }
    }
}

/// Returns a random number: the standard library seeds its hash maps with one.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood() {
        let address: BrokerAddress = "mqtt://kim:p%40ss:w%C3%B6rd@broker.example:1999".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port, address.tls), ("broker.example", 1999, false));
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("kim"), Some("p@ss:wörd")));
        assert_eq!(address.to_string(), "mqtt://broker.example:1999");
        assert!(!format!("{address:?}").contains("p@ss"));
        let address: BrokerAddress = "mqtts://[::1]".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port, address.tls), ("::1", 8883, true));
        assert_eq!(address.to_string(), "mqtts://[::1]:8883");
        let address: BrokerAddress = "mqtt://10.0.0.1/".parse().unwrap();
        assert_eq!((address.host.as_str(), address.port, address.user), ("10.0.0.1", 1883, None));
    }

    #[test]
    fn what_is_no_address_is_refused_without_showing_the_password() {
        for text in [
            "host:1883",
            "http://host",
            "mqtt://",
            "mqtt://host:0",
            "mqtt://host:x",
            "mqtt://a:b:c",
            "mqtt://[::1",
            "mqtt://u:%zz@h",
        ] {
            let error = text.parse::<BrokerAddress>().unwrap_err();
            assert!(error.to_string().contains("hint:"), "{text}");
        }
        let error = "mqtt://kim:secret@host:x".parse::<BrokerAddress>().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
