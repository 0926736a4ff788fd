//! What browsers are told, and what they may send: a web page that a user of this machine has open is no user.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use rivulet_connectors::http_server::{Encrypted, is_of_other_site};

use super::error::ApiError;

/// The kinds of bodies. `curl` calls everything a form that is not told its type. Of those that a page may send without
/// asking, this leaves out forms with files.
const CONTENT_TYPES: [&str; 6] = [
    "text/plain",
    "application/json",
    "application/x-ndjson",
    "application/sql",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
];

/// What the console may load: its own files, and nothing within them.
const CONSOLE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                              form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

/// What the page of the API may load: its own parts, and the styles and pictures within them.
const PAGE_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                           form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

/// An answer of the API is no page.
const ANSWER_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// Refuses what a page of another site asks for, and bodies of kinds that no call takes.
pub(super) fn check(request: &Request) -> Result<(), ApiError> {
    let is_encrypted = request.extensions().get::<Encrypted>().is_some();
    if is_of_other_site(request.method(), request.headers(), is_encrypted) {
        let message = "the request comes from a page of another site";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let has_body = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
    let Some(given) = request.headers().get(header::CONTENT_TYPE).filter(|_| has_body) else { return Ok(()) };
    let kind = given.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if CONTENT_TYPES.iter().any(|known| known.eq_ignore_ascii_case(kind)) {
        return Ok(());
    }
    let message = "the body is of a content type that no call takes";
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
        .with_hint("SQL is text/plain, anything else application/json"))
}

/// Tells browsers to take an answer for what it is, to show it in no frame of a page, and to keep nothing of it.
pub(super) fn protect(path: &str, headers: &mut HeaderMap) {
    let is_console = path == "/" || path.starts_with("/console/");
    let is_page = is_console || path.starts_with("/api/docs") || path == "/api/openapi.json";
    let policy = match is_page {
        true if is_console => CONSOLE_POLICY,
        true => PAGE_POLICY,
        false => ANSWER_POLICY,
    };
    let mut say = |name: header::HeaderName, value: &'static str| {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    };
    say(header::CONTENT_SECURITY_POLICY, policy);
    say(header::X_FRAME_OPTIONS, "DENY");
    say(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    say(header::REFERRER_POLICY, "no-referrer");
    say(header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    if !is_page {
        say(header::CACHE_CONTROL, "no-store");
    }
}
