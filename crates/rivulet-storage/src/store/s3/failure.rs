//! Why a request to an object store, or to a service that gives credentials for it, failed, and what to do about it.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{HeaderMap, StatusCode};

use crate::StorageError;

/// Why a request failed. The error of the `object_store` crate has it as its source.
#[derive(Debug, thiserror::Error)]
pub(in crate::store) enum Failure {
    /// A server did not answer for this time.
    #[error("{0} does not answer within {1:?}")]
    Silent(String, Duration),
    /// A server cannot be reached, or the connection broke.
    #[error("{0} cannot be reached: {1}")]
    Unreachable(String, ureq::Error),
    /// A server refused the request.
    #[error("{0}")]
    Refused(Refusal),
}

impl Failure {
    /// The failure that is the source of an error, if any.
    pub(super) fn of(error: &object_store::Error) -> Option<&Self> {
        let mut source: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = source {
            if let Some(failure) = error.downcast_ref() {
                return Some(failure);
            }
            source = error.source();
        }
        None
    }

    /// The status with which the bucket refused the request, if that is the source of the error.
    pub(in crate::store) fn status(error: &object_store::Error) -> Option<u16> {
        match Self::of(error)? {
            Self::Refused(refusal) if refusal.server.is_none() => Some(refusal.status.as_u16()),
            _ => None,
        }
    }

    /// Whether the object does not exist while its bucket does.
    pub(in crate::store) fn is_missing(error: &object_store::Error) -> bool {
        let is_bucket = || matches!(Self::of(error), Some(Self::Refused(refusal)) if refusal.code == "NoSuchBucket");
        Self::status(error) == Some(404) && !is_bucket()
    }

    /// Whether the same request may succeed in a moment.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Silent(..) => true,
            Self::Unreachable(_, error) => !matches!(error, ureq::Error::BodyExceedsLimit(_)),
            Self::Refused(refusal) => matches!(refusal.status.as_u16(), 409 | 429 | 500 | 502..=504),
        }
    }
}

/// The error for a user, where `what` could not be done in the bucket called `place`.
pub(in crate::store) fn explained(error: &object_store::Error, what: String, place: &str) -> StorageError {
    let (detail, hint) = match Failure::of(error) {
        Some(Failure::Refused(refusal)) if refusal.is_full() => {
            return StorageError::Full { what, place: place.to_owned() };
        }
        Some(failure @ Failure::Refused(refusal)) => (failure.to_string(), refusal.hint()),
        Some(failure) => {
            let hint = "check checkpoint.s3 and the network; a checkpoint that failed is made again at the next \
                        interval. Requests go to checkpoint.s3.endpoint, and to what gives credentials where that is \
                        no key";
            (failure.to_string(), hint.into())
        }
        None => (error.to_string(), NO_STORE.into()),
    };
    StorageError::Remote { what, detail, hint }
}

const NO_STORE: &str = "check checkpoint.s3.endpoint: what answers there is perhaps no S3-compatible object store";

/// An answer with a status other than success.
#[derive(Debug)]
pub(in crate::store) struct Refusal {
    status: StatusCode,
    /// The server, if the request did not go to the bucket.
    server: Option<String>,
    /// The region of the bucket, where the answer names it.
    region: Option<String>,
    code: String,
    message: String,
}

/// The body of a refusal: `Error`, or `ErrorResponse` around it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ErrorBody {
    code: String,
    message: String,
    error: Option<Box<ErrorBody>>,
}

impl Refusal {
    pub(super) fn read(status: StatusCode, headers: &HeaderMap, body: &[u8], server: Option<String>) -> Self {
        let region = headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok()).map(str::to_owned);
        // A body that cannot be parsed gives no details.
        let outer: ErrorBody = quick_xml::de::from_reader(body).unwrap_or_default();
        let ErrorBody { code, message, .. } =
            outer.error.map_or_else(|| ErrorBody { error: None, ..outer }, |inner| *inner);
        Self { status, server, region, code, message }
    }

    fn is_full(&self) -> bool {
        self.status == StatusCode::INSUFFICIENT_STORAGE
            || ["XMinioStorageFull", "QuotaExceeded", "InsufficientStorage"].contains(&self.code.as_str())
    }

    fn hint(&self) -> String {
        if self.server.is_some() {
            return "check the role of the server and what gives it credentials: checkpoint.s3.role_arn and \
                    web_identity_token_file, container_credentials, or instance_role"
                .into();
        }
        match self.code.as_str() {
            "NoSuchBucket" => "create the bucket, or check its name in checkpoint.folder".into(),
            "RequestTimeTooSkewed" => "set the clock of this machine".into(),
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" => {
                "check checkpoint.s3.access_key_id and the secret that belongs to it (or AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY)"
                    .into()
            }
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => {
                "start the server with new credentials, or give it a role, whose credentials it renews: \
                 checkpoint.s3.role_arn, container_credentials or instance_role"
                    .into()
            }
            code => match (self.status.as_u16(), &self.region) {
                (300..=400, Some(region)) => {
                    format!("the bucket is in another region: set checkpoint.s3.region to {region}")
                }
                (300..=400, None) if code.contains("Redirect") || code.contains("Malformed") => {
                    "check checkpoint.s3.region and checkpoint.s3.endpoint: the bucket is elsewhere".into()
                }
                (401 | 403, _) => "let these credentials list the bucket (s3:ListBucket), and read, write and delete \
                                   its objects (s3:GetObject, s3:PutObject, s3:DeleteObject)"
                    .into(),
                (404, _) => {
                    "create the bucket, or check its name in checkpoint.folder and checkpoint.s3.endpoint".into()
                }
                (429 | 500..=599, _) => {
                    "it is tried again with the next checkpoint; look at the object store if that goes on".into()
                }
                _ => NO_STORE.into(),
            },
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.server.as_deref().unwrap_or("the object store");
        match (self.code.as_str(), self.message.as_str()) {
            ("", _) => write!(formatter, "{server} answers with status {}", self.status.as_u16()),
            (code, "") => write!(formatter, "{server} says {code}"),
            (code, said) => write!(formatter, "{server} says {code}: {said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::client::{HttpError, HttpErrorKind};

    use super::*;

    fn refusal(status: u16, code: &str, region: Option<&str>) -> Refusal {
        let body = format!(
            "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>said &amp; done</Message>\
             <RequestId>1</RequestId></Error>"
        );
        let mut headers = HeaderMap::new();
        if let Some(region) = region {
            headers.insert("x-amz-bucket-region", region.parse().unwrap());
        }
        Refusal::read(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes(), None)
    }

    fn said(refusal: Refusal) -> String {
        let error = HttpError::new(HttpErrorKind::Unknown, Failure::Refused(refusal));
        let error = object_store::Error::Generic { store: "S3", source: error.into() };
        explained(&error, "cannot write a".into(), "s3://state").to_string()
    }

    #[test]
    fn refusals_say_what_to_do() {
        for (status, code, hint) in [
            (404, "NoSuchBucket", "create the bucket"),
            (403, "AccessDenied", "s3:ListBucket"),
            (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
            (403, "RequestTimeTooSkewed", "clock"),
            (400, "ExpiredToken", "new credentials"),
            (503, "SlowDown", "next checkpoint"),
            (405, "MethodNotAllowed", "checkpoint.s3.endpoint"),
            (507, "XMinioStorageFull", "free space"),
        ] {
            let text = said(refusal(status, code, None));
            let (before, behind) = text.split_once("\nhint: ").expect("a hint");
            assert!(before.contains("cannot write a") && behind.contains(hint), "{text}");
        }
        let moved = said(refusal(301, "PermanentRedirect", Some("eu-west-1")));
        assert!(moved.contains("checkpoint.s3.region to eu-west-1"), "{moved}");
        assert!(said(refusal(403, "AccessDenied", None)).contains("AccessDenied: said & done"));
        assert!(Failure::Refused(refusal(409, "ConditionalRequestConflict", None)).is_transient());
    }

    #[test]
    fn bodies_of_any_form_are_read() {
        let read = |body: &str| {
            let server = Some("https://sts.example".into());
            Refusal::read(StatusCode::FORBIDDEN, &HeaderMap::new(), body.as_bytes(), server).to_string()
        };
        let nested = "<ErrorResponse xmlns=\"x\"><Error><Type>Sender</Type><Code>AccessDenied</Code>\
                      <Message>no</Message></Error></ErrorResponse>";
        assert_eq!(read(nested), "https://sts.example says AccessDenied: no");
        for other in ["", "{\"code\": 1}", "<html><body>no</body>", "<Error><Code>", "\u{0}<<<&"] {
            assert_eq!(read(other), "https://sts.example answers with status 403", "{other}");
        }
    }
}
