//! Addresses of `http:` and `https:`.

use crate::connector::ConnectorError;

/// The scheme and the whole of an address as a URL, which is not parsed. One that begins with `https://` is encrypted,
/// whichever connector is named.
pub(super) fn url_from(connector: &'static str, address: &str) -> Result<(&'static str, String), ConnectorError> {
    let connector = if address.starts_with("https://") { "https" } else { connector };
    let own = address.strip_prefix(connector).and_then(|rest| rest.strip_prefix(':'));
    let rest = own.filter(|rest| rest.starts_with("//")).unwrap_or(address);
    if rest.split(['/', '?']).next().is_some_and(|host| host.ends_with(':')) {
        return Err(not_to_post_to(connector, address, "it is of another protocol"));
    }
    let (host, path) = parse_address(connector, rest)?;
    Ok((connector, format!("{connector}://{host}{path}")))
}

pub(super) fn not_to_post_to(connector: &'static str, address: &str, problem: &str) -> ConnectorError {
    let problem = format!("is no address to post to: {problem}");
    ConnectorError::address(connector, address, problem, format!("write '{connector}://host/path'"))
}

/// Splits an address into host (with port) and path.
pub(super) fn parse_address<'a>(
    connector: &'static str,
    address: &'a str,
) -> Result<(&'a str, &'a str), ConnectorError> {
    let rest = address.strip_prefix("//").unwrap_or(address);
    let (host, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    if host.is_empty() || host.contains(|character: char| character.is_whitespace() || character == '@') {
        let hint = format!("write for example '{connector}:127.0.0.1:8090/events'");
        return Err(ConnectorError::address(connector, address, "names no host", hint));
    }
    Ok((host, path))
}

/// Scheme and host of a URL: what is behind them may be a secret, also without a path.
pub(super) fn host_of(url: &str) -> &str {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..].find(['/', '?', '#']).map_or(url.len(), |at| begin + at);
    &url[..end]
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn a_host_is_named_without_what_may_be_a_secret() {
        for rest in ["", "/", "/hook?token=7", "?token=7", "#token"] {
            assert_eq!(host_of(&format!("https://example.org:8443{rest}")), "https://example.org:8443", "{rest}");
        }
    }
}
