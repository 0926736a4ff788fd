//! Errors of the API: always JSON, with the HTTP status that fits.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::service::{ErrorKind, ServiceError};

use super::types::{ErrorAnswer, ErrorDetail};

/// After how many seconds a client may ask again that was told that it is not possible at present, and not when it is.
const RETRY_AFTER_S: u32 = 1;

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) detail: ErrorDetail,
    /// After how many seconds the client may ask again, if that is known.
    retry_after_s: Option<u32>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, kind: &str, message: impl Into<String>) -> Self {
        let detail =
            ErrorDetail { kind: kind.to_owned(), message: message.into(), line: None, column: None, hint: None };
        Self::of(status, detail)
    }

    pub(super) fn of(status: StatusCode, detail: ErrorDetail) -> Self {
        Self { status, detail, retry_after_s: None }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            .with_hint("this is a defect of Rivulet; the server's log has more")
    }

    /// The service is not there yet.
    pub(super) fn starting() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "the server is starting: queries get back their state",
        )
        .with_hint("try again in some seconds; /health/ready says when it is ready")
    }

    /// The address of the client has given so many wrong tokens, or passwords of a user, that its next one is not
    /// looked at for so long.
    pub(super) fn after_wrong_ones(wait: Duration, has_user: bool) -> Self {
        let which = match has_user {
            true => "wrong passwords of this user, or of all users together",
            false => "wrong tokens",
        };
        let message = format!("this address has given too many {which}: none is looked at for a while");
        let error = ServiceError::new(ErrorKind::LimitReached, message)
            .with_hint("wait for as long as Retry-After says, and look for the client that sends them");
        error.until(wait).into()
    }

    /// The bound of memory for requests is reached.
    pub(super) fn no_room(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).with_hint(
            "try again in a moment, with fewer requests at a time; http.bytes_max is what they may hold together",
        )
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.detail.hint = Some(hint.into());
        self
    }
}

/// The HTTP status of a kind of error.
pub(super) fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::AlreadyExists | ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::LimitReached => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::Forbidden => StatusCode::FORBIDDEN,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        Self { retry_after_s: error.retry_after_s, ..Self::of(status_of(error.kind), error.into()) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut answer = (self.status, Json(ErrorAnswer { error: self.detail })).into_response();
        let not_now = (self.status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_S);
        if let Some(retry_after_s) = self.retry_after_s.or(not_now) {
            answer.headers_mut().insert(header::RETRY_AFTER, retry_after_s.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use rivulet_dataflow::Reason;

    use super::*;

    const PAGE: &str = include_str!("../../../../docs/errors.md");

    /// The first two columns of the tables in a section of the page.
    fn rows(section: &str) -> BTreeSet<(String, String)> {
        let text = PAGE.split(section).nth(1).unwrap_or_else(|| panic!("docs/errors.md has no section {section}"));
        let text = text.split("\n## ").next().unwrap_or_default();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        rows.map(|(name, rest)| (name.to_owned(), rest.split('|').next().unwrap_or_default().trim().to_owned()))
            .collect()
    }

    /// The number of a status that code names as a constant of [`StatusCode`].
    fn number(constant: &str) -> String {
        let is_it = |status: &StatusCode| {
            let reason = status.canonical_reason().unwrap_or_default();
            reason.to_uppercase().replace(' ', "_") == constant
        };
        let status = (100..600).filter_map(|number| StatusCode::from_u16(number).ok()).find(is_it);
        status.unwrap_or_else(|| panic!("there is no status {constant}")).as_u16().to_string()
    }

    /// The kinds that the code of the API names in words, each with its status: `StatusCode::NOT_FOUND, "not_found"`.
    fn named_in_code() -> BTreeSet<(String, String)> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
        let folder = Path::new(&package).join("src/api");
        let files = std::fs::read_dir(folder).expect("the code of the API").map(|entry| entry.expect("a file").path());
        let texts = files.map(|path| std::fs::read_to_string(&path).expect("a file of Rust"));
        let code = texts.map(|text| text.split("#[cfg(test)]").next().unwrap_or_default().to_owned());
        let mut named = BTreeSet::new();
        for text in code {
            for piece in text.split("StatusCode::").skip(1) {
                let Some((constant, rest)) = piece.split_once(',') else { continue };
                let Some(rest) = rest.trim_start().strip_prefix('"') else { continue };
                let kind = rest.split('"').next().unwrap_or_default();
                if constant.chars().all(|one| one.is_ascii_uppercase() || one == '_') {
                    named.insert((kind.to_owned(), number(constant)));
                }
            }
        }
        assert!(named.len() >= 6, "the kinds were found: {named:?}");
        named
    }

    #[test]
    fn the_page_of_errors_has_every_kind_and_every_reason_and_no_other() {
        let of_service = |kind: ErrorKind| (kind.name().to_owned(), status_of(kind).as_u16().to_string());
        // Those of the command line have no status.
        let of_commands = ["usage", "failed"].map(|kind| (kind.to_owned(), String::new()));
        let command_line = include_str!("../cli/error.rs");
        assert!(of_commands.iter().all(|(kind, _)| command_line.contains(&format!("\"{kind}\""))));
        let mut kinds = named_in_code();
        kinds.extend(ErrorKind::ALL.map(of_service));
        kinds.extend(of_commands);
        assert_eq!(rows("## Kinds of errors"), kinds, "docs/errors.md, and what the code has");
        let of_page: BTreeSet<String> = rows("## Refused events").into_iter().map(|(reason, _)| reason).collect();
        let reasons: BTreeSet<String> = Reason::ALL.iter().map(|reason| reason.name().to_owned()).collect();
        assert_eq!(of_page, reasons, "docs/errors.md, and what the code has");
    }
}
