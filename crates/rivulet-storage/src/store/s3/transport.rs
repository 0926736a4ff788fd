//! Sends the requests of the `object_store` crate with `ureq`, the HTTP client that the program has anyway, on threads
//! that may wait.
//!
//! What must hold: a request without an answer, or with an answer other than success, is a [`Failure`] to the caller.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use quick_xml::escape::unescape;
use ureq::http::header::{CONTENT_LENGTH, IF_NONE_MATCH, RANGE};
use ureq::http::request::Parts;
use ureq::http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, SendBody};

use super::failure::{Failure, Refusal};
use super::settings::{Credentials, S3Settings};

/// The largest answer that is read where the request does not state a size: manifests, lists, errors.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How many bytes of an answer are needed to see that it is a list.
const LIST_HEAD_BYTES: usize = 1 << 10;

/// Sends requests to a bucket and to services that give credentials for it.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    /// For servers that the configuration names.
    agent: Agent,
    /// For other services that give keys: their certificates are the usual public ones.
    public: Agent,
    /// For the machine's own service that gives keys: without a proxy.
    direct: Agent,
    /// Whether keys come from a server that the configuration names.
    own_keys: bool,
    timeout: Duration,
    /// The address of the bucket, with which the addresses of its objects begin.
    bucket: Arc<str>,
    /// Whether the end of an upload in parts has the condition that no object has that name.
    pub(super) uploads_on_condition: Arc<AtomicBool>,
}

impl Transport {
    /// A transport to the bucket at an address.
    ///
    /// # Errors
    /// The file with certificate authorities cannot be read as PEM.
    pub(super) fn new(bucket: &str, settings: &S3Settings) -> Result<Self, String> {
        let S3Settings { timeout, ca_file, credentials, .. } = settings;
        let timeout = *timeout;
        let mut tls = TlsConfig::builder();
        if let Some(path) = ca_file {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates(path)?));
        }
        let (tls, public_tls, wait) = (tls.build(), TlsConfig::builder().build(), Some(timeout));
        let config = |tls: TlsConfig| {
            Agent::config_builder()
                .tls_config(tls)
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .timeout_resolve(wait)
                .timeout_connect(wait)
                .timeout_per_read(wait)
                .timeout_per_write(wait)
        };
        Ok(Self {
            agent: config(tls).build().new_agent(),
            public: config(public_tls.clone()).build().new_agent(),
            direct: config(public_tls).proxy(None).build().new_agent(),
            own_keys: !matches!(credentials, Credentials::WebIdentity { sts_endpoint: None, .. }),
            timeout,
            bucket: bucket.into(),
            uploads_on_condition: Arc::new(AtomicBool::new(true)),
        })
    }

    fn agent_for(&self, uri: &Uri) -> &Agent {
        match uri.scheme_str() {
            _ if uri.to_string().starts_with(&*self.bucket) => &self.agent,
            Some("http") => &self.direct,
            _ if self.own_keys => &self.agent,
            _ => &self.public,
        }
    }

    fn send(&self, mut head: Parts, body: &[Bytes]) -> Result<HttpResponse, Failure> {
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let server =
            format!("{}://{}", uri.scheme_str().unwrap_or("http"), uri.authority().map_or("", |it| it.as_str()));
        if is_end_of_upload(&method, &uri) && self.uploads_on_condition.load(Ordering::Relaxed) {
            // The crate has no option for this header; it is not part of the signature.
            head.headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        let bytes_max = asked_bytes(&head.headers).map_or(ANSWER_BYTES_MAX, |bytes| bytes.max(ANSWER_BYTES_MAX));
        let failed = |error| match error {
            ureq::Error::Timeout(_) => Failure::Silent(server.clone(), self.timeout),
            error => Failure::Unreachable(server.clone(), error),
        };
        let agent = self.agent_for(&uri);
        let answer = if matches!(method, Method::PUT | Method::POST) {
            let bytes: u64 = body.iter().map(|part| part.len() as u64).sum();
            head.headers.insert(CONTENT_LENGTH, bytes.into());
            let mut reader = PartReader { parts: body, at: 0 };
            agent.run(Request::from_parts(head, SendBody::from_reader(&mut reader)))
        } else {
            agent.run(Request::from_parts(head, ()))
        };
        let (mut head, mut body) = answer.map_err(failed)?.into_parts();
        let body = match method {
            Method::HEAD => Vec::new(),
            // One byte more is allowed than expected, because a body of exactly the limit may count as exceeding it.
            _ => body.with_config().limit(bytes_max + 1).read_to_vec().map_err(failed)?,
        };
        let is_list = |body: &[u8]| {
            String::from_utf8_lossy(&body[..body.len().min(LIST_HEAD_BYTES)]).contains("<ListBucketResult")
        };
        let asks_for_list = asks_for_list(&uri);
        if !head.status.is_success() || (asks_for_list && !is_list(&body)) {
            let server = Some(server).filter(|_| !uri.to_string().starts_with(&*self.bucket));
            return Err(Failure::Refused(Refusal::read(head.status, &head.headers, &body, server)));
        }
        let body = if asks_for_list { without_foreign_names(body) } else { body };
        if method != Method::HEAD {
            head.headers.entry(CONTENT_LENGTH).or_insert(body.len().into());
        }
        Ok(Response::from_parts(head, body.into()))
    }
}

impl HttpConnector for Transport {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body: Vec<Bytes> = body.into_data_stream().try_collect().await?;
        let transport = self.clone();
        let sent = tokio::task::spawn_blocking(move || transport.send(head, &body)).await;
        let answer = sent.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        answer.map_err(|failure| {
            // Every object has the mark of its request, so every request may be repeated.
            let kind = if failure.is_transient() { HttpErrorKind::Request } else { HttpErrorKind::Unknown };
            HttpError::new(kind, failure)
        })
    }
}

/// Whether a request ends an upload in parts.
fn is_end_of_upload(method: &Method, uri: &Uri) -> bool {
    *method == Method::POST && uri.query().is_some_and(|query| query.starts_with("uploadId="))
}

fn asks_for_list(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "list-type=2"))
}

/// Removes objects from a list whose names the crate does not accept as a path, such as `a//b`. Other programs wrote
/// them, and one of them would make the whole list an error.
fn without_foreign_names(list: Vec<u8>) -> Vec<u8> {
    const OBJECT: (&str, &str) = ("<Contents>", "</Contents>");
    const NAME: (&str, &str) = ("<Key>", "</Key>");
    let Ok(text) = std::str::from_utf8(&list) else { return list };
    let (mut kept, mut rest) = (String::new(), text);
    while let Some((before, object, behind)) = split_around(rest, OBJECT) {
        let name = split_around(object, NAME).and_then(|(_, name, _)| unescape(name).ok());
        kept += before;
        match name {
            Some(name) if object_store::path::Path::parse(&name).is_err() => {
                tracing::debug!(name = &*name, "passed over an object of somebody else");
            }
            _ => kept.extend([OBJECT.0, object, OBJECT.1]),
        }
        rest = behind;
    }
    kept += rest;
    kept.into_bytes()
}

/// Splits a text into the parts before, in and behind an element.
fn split_around<'t>(text: &'t str, (begin, end): (&str, &str)) -> Option<(&'t str, &'t str, &'t str)> {
    let (before, rest) = text.split_once(begin)?;
    let (inside, behind) = rest.split_once(end)?;
    Some((before, inside, behind))
}

/// How many bytes of an object a request asks for, if it asks for a range.
fn asked_bytes(headers: &HeaderMap) -> Option<u64> {
    let (first, last) = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

/// The certificates in a file.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = fs::read(path).map_err(|error| error.to_string())?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() { Err("there is no certificate in it".into()) } else { Ok(certificates) }
}

/// Reads parts one after the other, without joining them.
struct PartReader<'p> {
    parts: &'p [Bytes],
    /// How many bytes of the first part were read.
    at: usize,
}

impl Read for PartReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some((first, rest)) = self.parts.split_first() {
            let left = &first[self.at..];
            if left.is_empty() {
                (self.parts, self.at) = (rest, 0);
                continue;
            }
            let bytes = left.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&left[..bytes]);
            self.at += bytes;
            return Ok(bytes);
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use rivulet_testing_s3::S3Server;

    use super::super::tests::settings;
    use super::*;

    #[test]
    fn the_certificate_authorities_are_those_of_servers_that_the_configuration_names() {
        let server = S3Server::start();
        let (bucket, sts) = ("https://minio.example/state", "https://sts.eu-test-1.amazonaws.com/");
        let transport = |sts_endpoint: Option<&str>| {
            let (role_arn, token_file) = ("a role".into(), "token".into());
            let credentials =
                Credentials::WebIdentity { role_arn, token_file, sts_endpoint: sts_endpoint.map(str::to_owned) };
            Transport::new(bucket, &S3Settings { credentials, ..settings(&server, "p") }).unwrap()
        };
        let is_own = |transport: &Transport, uri: &str| {
            std::ptr::eq(transport.agent_for(&uri.parse().unwrap()), &transport.agent)
        };
        let with_amazon = transport(None);
        assert!(is_own(&with_amazon, "https://minio.example/state/a") && !is_own(&with_amazon, sts));
        let with_own = transport(Some("https://minio.example"));
        assert!(is_own(&with_own, "https://minio.example/state/a") && is_own(&with_own, "https://minio.example/"));
        let of_machine: Uri = "http://169.254.169.254/latest/api/token".parse().unwrap();
        assert!(std::ptr::eq(with_own.agent_for(&of_machine), &with_own.direct));
    }
}
