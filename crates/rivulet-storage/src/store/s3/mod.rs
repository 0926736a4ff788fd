//! Objects in a bucket of an S3-compatible object store.
//!
//! A client of our own, because it needs six requests, over the HTTP client and the TLS that are there anyway: that of the `object_store`
//! crate brings a second HTTP client with fourteen crates, and has all of Arrow compiled anew by a feature of `chrono`.
//!
//! In reading order: [`settings`]: which bucket and where; here: requests; [`signature`]: who asks; [`answer`]: what comes back.
//!
//! What must hold: an object is written only where none is of its name ([`Bucket::put`]), and whoever is told that it was written finds it.
//! Who waits for a store that says nothing is told so after a few [`S3Settings::timeout`]s.

mod answer;
mod settings;
mod signature;

use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use ring::rand::{SecureRandom, SystemRandom};
use ureq::http::{Method, Request};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, SendBody};

use super::Objects;
use crate::StorageError;
use answer::{Answer, Page};
use settings::Endpoint;
use signature::{Signed, authorization, hexadecimal, moment, sha256};

pub use settings::{BucketName, Credentials, S3Settings};

/// How often a request is made that is not answered, or that the store asks to make again.
const ATTEMPTS_MAX: u32 = 3;

/// The pause behind the first attempt; behind each further one it is four times as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The largest object that one request can put.
const PUT_BYTES_MAX: u64 = 5 << 30;

/// The largest answer that is read whose size is not known before: manifests, lists, errors.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The most pages of a list, with a thousand names each.
const PAGES_MAX: usize = 10_000;

/// Tells who has put an object, so that one whose answer was lost is known again.
const MARK: &str = "x-amz-meta-rivulet-put";

/// A bucket, or what begins with a prefix in it.
#[derive(Debug)]
pub(super) struct Bucket {
    settings: S3Settings,
    endpoint: Endpoint,
    place: String,
    agent: Agent,
    /// Whether the store knows how to put an object only where none is.
    puts_on_condition: AtomicBool,
}

/// What is asked of the store.
#[derive(Debug, Default)]
struct Asked<'a> {
    method: Method,
    /// The name of the object; empty for the bucket.
    name: &'a str,
    /// In the order of their names.
    query: Vec<(&'static str, String)>,
    /// Beside those that every request has.
    headers: Vec<(&'static str, String)>,
    body: &'a [Bytes],
    /// How many bytes the answer may have.
    answer_bytes_max: u64,
}

impl<'a> Asked<'a> {
    fn new(method: Method, name: &'a str) -> Self {
        Self { method, name, answer_bytes_max: ANSWER_BYTES_MAX, ..Self::default() }
    }

    fn with_header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

impl Bucket {
    pub(super) fn new(settings: S3Settings) -> Result<Self, StorageError> {
        let place = settings.name.to_string();
        let failed = |detail: String, hint: &str| StorageError::Remote {
            what: format!("cannot use {place}"),
            detail,
            hint: hint.to_owned(),
        };
        let endpoint = settings.endpoint().map_err(|(detail, hint)| failed(detail, hint))?;
        let mut tls = TlsConfig::builder();
        if let Some(path) = &settings.ca_file {
            let certificates = certificates(path).map_err(|problem| {
                failed(
                    format!("'{}' cannot be read as PEM: {problem}", path.display()),
                    "checkpoint.s3.ca_file must exist, be readable, and hold certificates",
                )
            })?;
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let timeout = Some(settings.timeout);
        let agent = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(timeout)
            .timeout_connect(timeout)
            .timeout_per_read(timeout)
            .timeout_per_write(timeout)
            .build()
            .new_agent();
        Ok(Self { settings, endpoint, place, agent, puts_on_condition: AtomicBool::new(true) })
    }

    /// Makes a request, again if need be.
    fn ask(&self, verb: &str, asked: &Asked<'_>) -> Result<Answer, StorageError> {
        let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
        for attempt in 1.. {
            let outcome = self.attempt(asked);
            let is_over = attempt == ATTEMPTS_MAX || begun.elapsed() + pause > self.settings.timeout;
            match outcome {
                Ok(answer) if !answer.is_transient() || is_over => return Ok(answer),
                Err(error) if is_over => return Err(self.unreachable(verb, asked.name, &error)),
                _ => std::thread::sleep(pause),
            }
            pause *= 4;
        }
        unreachable!("the last attempt returns")
    }

    fn attempt(&self, asked: &Asked<'_>) -> Result<Answer, ureq::Error> {
        let Endpoint { scheme, host, path } = &self.endpoint;
        let path = format!("{path}/{}", encoded(&self.full_name(asked.name), true));
        let query: Vec<String> =
            asked.query.iter().map(|(name, value)| format!("{name}={}", encoded(value, false))).collect();
        let query = query.join("&");
        let (now, body) = (moment(SystemTime::now()), sha256(asked.body.iter().map(|part| &part[..])));
        let mut headers = asked.headers.clone();
        headers.extend([("host", host.clone()), ("x-amz-content-sha256", body.clone()), ("x-amz-date", now.clone())]);
        headers.extend(self.settings.credentials.session_token.clone().map(|token| ("x-amz-security-token", token)));
        headers.sort_unstable();
        let method = asked.method.as_str();
        let signed = Signed { method, path: &path, query: &query, headers: &headers, body: &body };
        let signature = authorization(&self.settings.credentials, &self.settings.region, &now, &signed);
        let question = if query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(asked.method.clone())
            .uri(format!("{scheme}://{host}{path}{question}{query}"))
            .header("authorization", signature);
        for (name, value) in &headers {
            request = request.header(*name, value);
        }
        let mut response = if asked.method == Method::PUT {
            let length: u64 = asked.body.iter().map(|part| part.len() as u64).sum();
            let mut parts = Parts { parts: asked.body, at: 0 };
            let request = request.header("content-length", length).body(SendBody::from_reader(&mut parts))?;
            self.agent.run(request)?
        } else {
            self.agent.run(request.body(())?)?
        };
        let header = |name: &str| response.headers().get(name)?.to_str().ok().map(str::to_owned);
        let (length, mark, region) = (header("content-length"), header(MARK), header("x-amz-bucket-region"));
        let status = response.status().as_u16();
        let body = match asked.method == Method::HEAD {
            true => Vec::new(),
            false => response.body_mut().with_config().limit(asked.answer_bytes_max).read_to_vec()?,
        };
        Ok(Answer { status, length: length.and_then(|length| length.parse().ok()), mark, region, body })
    }

    /// The name of an object in the bucket.
    fn full_name(&self, name: &str) -> String {
        match (self.settings.name.prefix.as_str(), name) {
            (_, "") => String::new(),
            ("", name) => name.to_owned(),
            (prefix, name) => format!("{prefix}/{name}"),
        }
    }

    fn what(&self, verb: &str, name: &str) -> String {
        format!("cannot {verb} {}{}{name}", self.place, if name.is_empty() { "" } else { "/" })
    }

    fn refused(&self, verb: &str, name: &str, answer: &Answer) -> StorageError {
        answer.refusal(self.what(verb, name), &self.place)
    }

    fn unreachable(&self, verb: &str, name: &str, error: &ureq::Error) -> StorageError {
        let Endpoint { scheme, host, .. } = &self.endpoint;
        let detail = match error {
            ureq::Error::Timeout(_) => format!("{scheme}://{host} does not answer within {:?}", self.settings.timeout),
            error => format!("{scheme}://{host} cannot be reached: {error}"),
        };
        let hint =
            "check checkpoint.s3.endpoint and the network; a checkpoint that failed is made again at the next interval";
        StorageError::Remote { what: self.what(verb, name), detail, hint: hint.into() }
    }

    /// The head of an object; `None` if there is no such object.
    fn head(&self, name: &str) -> Result<Option<Answer>, StorageError> {
        let answer = self.ask("read", &Asked::new(Method::HEAD, name))?;
        match answer.status {
            _ if answer.is_success() => Ok(Some(answer)),
            // Without a body nobody knows what is not there; who asks next is told.
            404 => Ok(None),
            _ => Err(self.refused("read", name, &answer)),
        }
    }

    fn has_mark(&self, name: &str, mark: &str) -> Result<bool, StorageError> {
        Ok(self.head(name)?.is_some_and(|head| head.mark.as_deref() == Some(mark)))
    }
}

impl Objects for Bucket {
    fn put(&self, name: &str, parts: Vec<Bytes>) -> Result<(), StorageError> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if bytes > PUT_BYTES_MAX {
            return Err(StorageError::Remote {
                what: self.what("write", name),
                detail: format!("it has {bytes} bytes, and an object store takes {PUT_BYTES_MAX} at once"),
                hint: "keep less state, or make checkpoints in a folder".into(),
            });
        }
        let taken = || StorageError::Taken { what: format!("{}/{name}", self.place) };
        let on_condition = self.puts_on_condition.load(Ordering::Relaxed);
        if !on_condition && self.head(name)?.is_some() {
            return Err(taken());
        }
        let mut random = [0; 16];
        let filled = SystemRandom::new().fill(&mut random);
        let failed = |_| io::Error::other("the system gives no random numbers");
        filled.map_err(failed).map_err(|error| StorageError::from_io(self.what("write", name), &self.place, error))?;
        let mark = hexadecimal(&random);
        let mut asked = Asked::new(Method::PUT, name).with_header(MARK, mark.clone());
        asked.body = &parts;
        if on_condition {
            asked = asked.with_header("if-none-match", "*".into());
        }
        match self.ask("write", &asked) {
            Ok(answer) if answer.is_success() => Ok(()),
            // An attempt whose answer was lost may have written it.
            Ok(answer) if answer.status == 412 => {
                if self.has_mark(name, &mark)? {
                    Ok(())
                } else {
                    Err(taken())
                }
            }
            Ok(answer) if answer.status == 501 && on_condition => {
                tracing::warn!(
                    place = self.place,
                    "the object store cannot put an object only where none is; two servers on one prefix would not notice each other at once"
                );
                self.puts_on_condition.store(false, Ordering::Relaxed);
                self.put(name, parts)
            }
            Ok(answer) if !answer.is_transient() => Err(self.refused("write", name, &answer)),
            // Nobody knows whether it was written.
            unsure => match self.has_mark(name, &mark) {
                Ok(true) => Ok(()),
                _ => Err(unsure.map_or_else(|error| error, |answer| self.refused("write", name, &answer))),
            },
        }
    }

    fn get(&self, name: &str) -> Result<Bytes, StorageError> {
        let answer = self.ask("read", &Asked::new(Method::GET, name))?;
        match answer.status {
            200 => Ok(answer.body.into()),
            _ if answer.is_missing() => Err(StorageError::damaged(&self.place, format!("{name} is not there"))),
            _ => Err(self.refused("read", name, &answer)),
        }
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        let length = range.end.saturating_sub(range.start);
        let wanted = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let mut asked = Asked::new(Method::GET, name).with_header("range", wanted);
        // One more is allowed than is expected, for a limit that is met exactly may count as exceeded.
        asked.answer_bytes_max = length.max(ANSWER_BYTES_MAX) + 1;
        let answer = self.ask("read", &asked)?;
        match answer.status {
            206 if answer.body.len() as u64 == length => Ok(answer.body.into()),
            206 | 416 => Err(StorageError::damaged(name, "it ends early")),
            _ if answer.is_missing() => Err(StorageError::damaged(&self.place, format!("{name} is not there"))),
            _ => Err(self.refused("read", name, &answer)),
        }
    }

    fn bytes(&self, name: &str) -> Result<u64, StorageError> {
        let head =
            self.head(name)?.ok_or_else(|| StorageError::damaged(&self.place, format!("{name} is not there")))?;
        head.length.ok_or_else(|| self.refused("read", name, &head))
    }

    fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let with_end = |name: &str| if name.is_empty() { String::new() } else { format!("{name}/") };
        let (root, begin) = (with_end(&self.settings.name.prefix), with_end(folder));
        let (mut objects, mut next) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let mut asked = Asked::new(Method::GET, "");
            asked.query.extend(next.map(|next| ("continuation-token", next)));
            asked.query.extend([("encoding-type", "url".into()), ("list-type", "2".into())]);
            asked.query.push(("prefix", format!("{root}{begin}")));
            let answer = self.ask("list", &asked)?;
            let page = Page::read(&answer.body).filter(|_| answer.is_success());
            let page = page.ok_or_else(|| self.refused("list", folder, &answer))?;
            objects.extend(
                page.objects
                    .into_iter()
                    .filter_map(|(name, bytes)| Some((name.strip_prefix(&root)?.to_owned(), bytes))),
            );
            next = page.next;
            if next.is_none() {
                return Ok(objects);
            }
        }
        let detail = format!("it has more than {PAGES_MAX} thousand objects");
        Err(StorageError::Remote {
            what: self.what("list", folder),
            detail,
            hint: "give the server a prefix of its own".into(),
        })
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        let answer = self.ask("delete", &Asked::new(Method::DELETE, name))?;
        match answer.is_success() || answer.is_missing() {
            true => Ok(()),
            false => Err(self.refused("delete", name, &answer)),
        }
    }
}

/// The certificates in a file.
fn certificates(path: &std::path::Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| error.to_string())? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() { Err("there is no certificate in it".into()) } else { Ok(certificates) }
}

/// Percent encoding as signatures want it; `/` stands for itself in paths.
fn encoded(text: &str, is_path: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            b'/' if is_path => out.push('/'),
            _ => out.extend(format!("%{byte:02X}").chars()),
        }
    }
    out
}

/// Reads parts one behind the other, without putting them together.
struct Parts<'p> {
    parts: &'p [Bytes],
    /// How much of the first was read.
    at: usize,
}

impl Read for Parts<'_> {
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
mod tests;
#[cfg(test)]
pub(crate) use tests::settings as test_settings;
