//! The URL of an external broker.

/// The parts of a broker's URL.
pub(super) struct BrokerUrl {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) credentials: Option<(String, Option<String>)>,
}

/// Takes `mqtt://[user[:password]@]host[:port]` apart; `None` if it is something else. Nothing is percent-decoded: a
/// password with `/` or `@` in it belongs into a file.
pub(super) fn broker_url(url: &str) -> Option<BrokerUrl> {
    let (scheme, rest) = url.split_once("://")?;
    let tls = match scheme {
        "mqtt" | "tcp" => false,
        "mqtts" | "ssl" | "tls" => true,
        _ => return None,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (credentials, address) = match rest.rsplit_once('@') {
        Some((user, address)) => {
            let (user, password) =
                user.split_once(':').map_or((user, None), |(user, word)| (user, Some(word.to_owned())));
            (Some((user.to_owned(), password)), address)
        }
        None => (None, rest),
    };
    let standard_port = if tls { 8883 } else { 1883 };
    // An IPv6 address stands in brackets, so that its colons are not taken for the port's.
    let (host, port) = match address.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, if port.is_empty() { standard_port } else { port.strip_prefix(':')?.parse().ok()? })
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (address, standard_port),
        },
    };
    let is_host =
        !host.is_empty() && !host.contains(|character: char| character.is_whitespace() || "/?#".contains(character));
    (is_host && port != 0).then(|| BrokerUrl { tls, host: host.to_owned(), port, credentials })
}
