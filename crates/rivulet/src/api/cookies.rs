//! The cookie of a session.
//!
//! What must hold: it is a token, and counts only with a header that no page of another site can send. It is named by
//! the port, because browsers send the cookies of all ports of a host.

use axum::http::{HeaderMap, header};

/// The header that a page sends with its cookie.
const OF_PAGE: &str = "x-rivulet-console";

/// The name of the cookie.
pub(super) fn name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let port: String = port.chars().filter(char::is_ascii_digit).collect();
    format!("rivulet{port}")
}

/// The token of the session that a request belongs to.
pub(super) fn token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(OF_PAGE)?;
    let name = name(headers);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(of, token)| *of == name && !token.is_empty()).map(|(_, token)| token.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_counts_only_for_its_port_and_with_the_header_of_the_page() {
        let headers = |with: &[(&'static str, &str)]| {
            HeaderMap::from_iter(with.iter().map(|(name, text)| (name.parse().unwrap(), text.parse().unwrap())))
        };
        let cookies = ("cookie", "a=b; rivulet8080=secret; rivulet=other");
        let of_page = (OF_PAGE, "1");
        assert_eq!(token(&headers(&[("host", "localhost:8080"), cookies])), None);
        assert_eq!(token(&headers(&[("host", "localhost:8080"), cookies, of_page])), Some(&b"secret"[..]));
        assert_eq!(token(&headers(&[("host", "rivulet.example"), cookies, of_page])), Some(&b"other"[..]));
        assert_eq!(token(&headers(&[("host", "localhost:8081"), cookies, of_page])), None);
    }
}
