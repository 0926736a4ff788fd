//! The client of the REST API, as the commands use it. Blocking: a command does one thing at a time.
//!
//! Plain requests go through `ureq`. Bulk submission writes and reads at the same time, which `ureq` does not and hyper
//! does, see [`duplex`].

mod duplex;
mod events;

use std::fmt::Write as _;
use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rivulet_connectors::reach::check_port;
use rivulet_connectors::tls::{ClientTls, Fault};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::header::AUTHORIZATION;
use ureq::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use ureq::middleware::MiddlewareNext;
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, SendBody};

use crate::api::types::{BulkAnswer, ErrorAnswer, ErrorDetail, NOTICE_HEADER, SqlAnswer, TENANT_HEADER};
use crate::service::{ErrorKind, ServiceError};

use duplex::PostError;
pub use events::WatchEvent;

/// The server that commands talk to unless told otherwise.
pub const SERVER_DEFAULT: &str = "http://127.0.0.1:8080";

/// The environment variable with the token that commands show to the server. It is no option, because everybody on a
/// machine sees the options of a program that runs.
pub const TOKEN_VARIABLE: &str = "RIVULET_TOKEN";

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// So much of a download is read at once.
const DOWNLOAD_PART_BYTES: usize = 256 << 10;

/// The largest answer that is read as a whole.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address of the server is not one.
    #[error("{0} is not the address of a server, expected http://host:port or https://host:port")]
    Address(String),
    /// The token cannot be sent.
    #[error("the token in {TOKEN_VARIABLE} has characters that a header cannot have")]
    Token,
    /// The name of a tenant cannot be sent.
    #[error("--as-tenant has characters that a header cannot have")]
    Tenant,
    /// Nobody answers there.
    #[error("cannot reach a Rivulet server at {server}: {detail}")]
    Unreachable {
        /// The server.
        server: String,
        /// What the system said.
        detail: String,
    },
    /// Certificates that this client was given cannot be used.
    #[error("{}", .0.message)]
    Certificates(ServiceError),
    /// The TLS handshake failed.
    #[error("no secure connection to {server}: {}", fault.problem())]
    Tls {
        /// The server.
        server: String,
        /// What was wrong.
        fault: Fault,
    },
    /// The server refused the request.
    #[error("{}", .0.message)]
    Refused(ErrorDetail),
    /// The connection broke, or what answers is no Rivulet server.
    #[error("the answer of {server} could not be read: {detail}")]
    Answer {
        /// The server.
        server: String,
        /// What was wrong.
        detail: String,
    },
    /// The server ended the connection in the middle of an answer.
    #[error("the connection to the server at {server} was lost")]
    Lost {
        /// The server.
        server: String,
    },
    /// What was received could not be written.
    #[error("cannot write what is received: {0}")]
    Output(io::Error),
    /// What was to be sent could not be read.
    #[error("cannot read what is to be sent: {0}")]
    Input(io::Error),
}

impl ClientError {
    /// What to do about it, if there is something to say.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Address(_) => Some(format!("for example --server {SERVER_DEFAULT}, or RIVULET_SERVER")),
            Self::Tenant => Some("`rivulet tenant list` shows the names of tenants".into()),
            Self::Token => Some("a token is visible ASCII, without line ends".into()),
            Self::Unreachable { .. } => {
                Some("start one with `rivulet serve`, or name another with --server or RIVULET_SERVER".into())
            }
            Self::Certificates(error) => error.hint.clone(),
            Self::Tls { fault, .. } => {
                Some(fault.hint("--ca or RIVULET_CA", "--cert and --key, or RIVULET_CERT and RIVULET_KEY"))
            }
            Self::Refused(error) => error.hint.clone(),
            Self::Lost { .. } => Some("perhaps it was stopped; `rivulet status` says whether it is there".into()),
            Self::Answer { .. } => Some("is it a Rivulet server of this version?".into()),
            Self::Output(_) => Some("make room on the disk, or name a place that can be written".into()),
            Self::Input(_) => None,
        }
    }

    /// Whether the server is not there, or not any more.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Lost { .. })
    }
}

/// How requests are encrypted.
fn requests_of(tls: Option<&ClientTls>) -> Result<TlsConfig, ClientError> {
    let requests = tls.map_or_else(|| Ok(TlsConfig::builder().build()), ClientTls::for_requests);
    requests.map_err(|error| ClientError::Certificates(ServiceError::from_text(ErrorKind::Invalid, &error.to_string())))
}

/// What sends requests, each with these headers.
fn agent(tls: TlsConfig, headers: &HeaderMap) -> Agent {
    let headers = headers.clone();
    let add = move |mut request: Request<SendBody<'_>>, next: MiddlewareNext<'_>| {
        request.headers_mut().extend(headers.clone());
        next.handle(request)
    };
    let config = Agent::config_builder()
        .middleware(add)
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_connect(Some(CONNECT_TIMEOUT))
        // The server is on this machine or near it; a proxy of the environment is for other things.
        .proxy(None)
        .build();
    config.new_agent()
}

/// A client of one server. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    /// Without a slash at the end.
    server: String,
    agent: Agent,
    /// The authorities that are trusted, if connections are encrypted.
    tls: Option<ClientTls>,
    /// What is sent with each request, such as `Authorization`.
    headers: HeaderMap,
    /// Ends streams of rows when it is set.
    stop: Option<&'static AtomicBool>,
}

/// A stream that ends when `stop` is set and a read was interrupted by a signal.
struct Stoppable<R> {
    reader: R,
    stop: Option<&'static AtomicBool>,
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.is_stopped() {
            true => Ok(0),
            false => self.reader.read(buffer),
        };
        match read {
            // Whoever reads would try again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted && self.is_stopped() => Ok(0),
            read => read,
        }
    }
}

impl<R> Stoppable<R> {
    fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

impl Client {
    /// A client of the server at `http://host:port` or `https://host:port`, which trusts the authorities that browsers
    /// trust. Nothing is sent yet.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn new(server: &str) -> Result<Self, ClientError> {
        Self::with(server, None, &ClientTls::default())
    }

    /// The same, showing a token to the server with each request, and with authorities and a certificate of its own.
    ///
    /// # Errors
    /// [`ClientError::Address`], [`ClientError::Token`] and [`ClientError::Certificates`].
    pub fn with(server: &str, token: Option<&str>, tls: &ClientTls) -> Result<Self, ClientError> {
        let server = server.trim_end_matches('/').to_owned();
        let is_address = |host: &str| {
            !host.contains(['/', '?', '#', '@', ' ']) && host.parse().is_ok_and(|uri| check_port(&uri).is_ok())
        };
        let (scheme, host) = server.split_once("://").unwrap_or_default();
        if !["http", "https"].contains(&scheme) || !is_address(host) {
            return Err(ClientError::Address(server));
        }
        let tls = (scheme == "https").then_some(tls);
        let requests = requests_of(tls)?;
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| ClientError::Token)?;
            // Then it is not shown where this is printed.
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Self { agent: agent(requests, &headers), tls: tls.cloned(), server, headers, stop: None })
    }

    /// The same in the place of a tenant, for an operator of the server.
    ///
    /// # Errors
    /// [`ClientError::Tenant`] and [`ClientError::Certificates`].
    pub fn in_tenant(mut self, tenant: &str) -> Result<Self, ClientError> {
        self.headers.insert(TENANT_HEADER, HeaderValue::from_str(tenant).map_err(|_| ClientError::Tenant)?);
        self.agent = agent(requests_of(self.tls.as_ref())?, &self.headers);
        Ok(self)
    }

    /// The server's address.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Gets JSON.
    ///
    /// # Errors
    /// [`ClientError`]; what the server refuses is [`ClientError::Refused`].
    pub fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, ClientError> {
        let request = self.agent.get(self.url(path)).query_pairs(query.iter().copied());
        self.json(self.accepted(request.call())?)
    }

    /// Posts text and gets JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post_text<T: DeserializeOwned>(&self, path: &str, text: &str) -> Result<T, ClientError> {
        let request = self.agent.post(self.url(path)).content_type("text/plain; charset=utf-8");
        self.json(self.accepted(request.send(text))?)
    }

    /// The same for any bytes.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post_bytes<T: DeserializeOwned>(&self, path: &str, bytes: &[u8]) -> Result<T, ClientError> {
        let request = self.agent.post(self.url(path)).content_type("application/octet-stream");
        self.json(self.accepted(request.send(bytes))?)
    }

    /// Posts nothing, and writes what is answered, whatever its size. Returns what is to be known beside it.
    ///
    /// # Errors
    /// As [`Client::get`]; or `out` cannot be written.
    pub fn download(&self, path: &str, out: &mut dyn io::Write) -> Result<Vec<String>, ClientError> {
        let response = self.accepted(self.agent.post(self.url(path)).send_empty())?;
        let notices = response.headers().get_all(NOTICE_HEADER).iter();
        let notices = notices.map(|notice| String::from_utf8_lossy(notice.as_bytes()).into_owned()).collect();
        let mut body = response.into_body().into_reader();
        let mut part = vec![0; DOWNLOAD_PART_BYTES];
        loop {
            match body.read(&mut part).map_err(|error| self.broken(error))? {
                0 => return Ok(notices),
                bytes => out.write_all(&part[..bytes]).map_err(ClientError::Output)?,
            }
        }
    }

    /// Puts text in the place of what is there, and gets JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn put_text<T: DeserializeOwned>(&self, path: &str, text: &str) -> Result<T, ClientError> {
        let request = self.agent.put(self.url(path)).content_type("text/plain; charset=utf-8");
        self.json(self.accepted(request.send(text))?)
    }

    /// Puts JSON in the place of what is there, and gets JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn put_json<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let text = serde_json::to_string(body).map_err(|error| ClientError::Input(error.into()))?;
        let request = self.agent.put(self.url(path)).query_pairs(query.iter().copied());
        self.json(self.accepted(request.content_type("application/json").send(text.as_str()))?)
    }

    /// Posts JSON and gets JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post_json<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let text = serde_json::to_string(body).map_err(|error| ClientError::Input(error.into()))?;
        let request = self.agent.post(self.url(path)).content_type("application/json");
        self.json(self.accepted(request.send(text.as_str()))?)
    }

    /// Sends JSON that changes what is there, and gets JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn patch_json<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let text = serde_json::to_string(body).map_err(|error| ClientError::Input(error.into()))?;
        let request = self.agent.patch(self.url(path)).content_type("application/json");
        self.json(self.accepted(request.send(text.as_str()))?)
    }

    /// Posts nothing and gets nothing.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post_empty(&self, path: &str) -> Result<(), ClientError> {
        self.accepted(self.agent.post(self.url(path)).send_empty()).map(drop)
    }

    /// Deletes.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn delete(&self, path: &str, query: &[(&str, &str)]) -> Result<(), ClientError> {
        self.accepted(self.agent.delete(self.url(path)).query_pairs(query.iter().copied()).call()).map(drop)
    }

    /// Runs an SQL script. A statement that is refused is no error here: the answer holds it, after the results of the
    /// statements before it.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn run_script(&self, script: &str) -> Result<SqlAnswer, ClientError> {
        let request = self.agent.post(self.url("/api/v1/sql")).content_type("text/plain; charset=utf-8");
        let response = request.send(script).map_err(|error| self.error(error))?;
        let status = response.status();
        let text = self.text(response)?;
        match serde_json::from_str(&text) {
            Ok(answer) => Ok(answer),
            Err(_) if status != StatusCode::OK => Err(self.refusal(status, &text)),
            Err(error) => Err(self.answer_error(error)),
        }
    }

    /// Watches the results of a query; `visit` says whether to go on. Returns when the server has said that it ends the
    /// stream ([`WatchEvent::End`]).
    ///
    /// # Errors
    /// As [`Client::get`], [`ClientError::Lost`] if the stream breaks off, and errors of `visit`.
    pub fn watch<E: From<ClientError>>(
        &self,
        query: &str,
        limit: Option<u64>,
        visit: impl FnMut(WatchEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut request = self.agent.get(self.url(&format!("/api/v1/queries/{}/results", segment(query))));
        if let Some(limit) = limit {
            request = request.query("limit", limit.to_string());
        }
        self.read_events(self.accepted(request.call())?, visit)
    }

    /// Runs one SELECT on the server and calls `visit` with its rows as they come.
    ///
    /// # Errors
    /// As [`Client::watch`].
    pub fn select<E: From<ClientError>>(
        &self,
        sql: &str,
        visit: impl FnMut(WatchEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let request = self.agent.post(self.url("/api/v1/select")).header("content-type", "text/plain");
        self.read_events(self.accepted(request.send(sql))?, visit)
    }

    /// The same client, whose streams of rows end when `stop` is set and the wait for the next row is interrupted.
    #[must_use]
    pub(crate) fn stopped_by(&self, stop: &'static AtomicBool) -> Self {
        Self { stop: Some(stop), ..self.clone() }
    }

    fn read_events<E: From<ClientError>>(
        &self,
        response: Response<Body>,
        visit: impl FnMut(WatchEvent<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Watching has no end, so it has no limit of bytes; a single event has one.
        let reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let reader = Stoppable { reader, stop: self.stop };
        let lost = |_| ClientError::Lost { server: self.server.clone() }.into();
        events::read(BufReader::new(reader), lost, visit)
    }

    /// Submits queries, one JSON object a line, and calls `visit` with each answer as it comes. If it
    /// `replaces_existing`, queries whose name exists get the values of their line.
    ///
    /// # Errors
    /// As [`Client::get`], and errors of `visit`. Lines that the server refuses are answers, not errors.
    pub fn submit_bulk<E: From<ClientError>>(
        &self,
        lines: impl Read + Send + 'static,
        replaces_existing: bool,
        mut visit: impl FnMut(BulkAnswer) -> Result<(), E>,
    ) -> Result<(), E> {
        let host = self.server.split_once("://").map_or("", |(_, host)| host);
        let path = match replaces_existing {
            true => "/api/v1/queries/bulk?replace_existing=true",
            false => "/api/v1/queries/bulk",
        };
        let exchange = duplex::post((host, self.tls.as_ref()), path, &self.headers, lines, CONNECT_TIMEOUT);
        let mut answer = exchange.map_err(|error| match error {
            PostError::Connect(error) => self.unreachable(&error),
            PostError::Input(error) => ClientError::Input(error),
            PostError::Answer(error) => self.broken(error),
        })?;
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = answer.read_line(&mut line).map_err(|error| match answer.input_error() {
                Some(input) => ClientError::Input(input),
                None => self.broken(error),
            })?;
            // A refusal may have no body: that of a server with no room, or of a proxy.
            if length == 0 && status == StatusCode::OK {
                break;
            }
            if status != StatusCode::OK {
                return Err(self.refusal(status, &String::from_utf8_lossy(&line)).into());
            }
            match serde_json::from_slice(&line) {
                Ok(answer) => visit(answer)?,
                // An answer without a line number is about the whole request.
                Err(_) => {
                    return Err(self
                        .refusal(StatusCode::INTERNAL_SERVER_ERROR, &String::from_utf8_lossy(&line))
                        .into());
                }
            }
        }
        match answer.input_error() {
            Some(input) => Err(ClientError::Input(input).into()),
            None => Ok(()),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server)
    }

    fn accepted(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>, ClientError> {
        let response = response.map_err(|error| self.error(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = self.text(response)?;
        Err(self.refusal(status, &text))
    }

    fn refusal(&self, status: StatusCode, text: &str) -> ClientError {
        match serde_json::from_str::<ErrorAnswer>(text) {
            Ok(answer) => ClientError::Refused(answer.error),
            Err(_) => self.answer_error(format!("HTTP status {status}")),
        }
    }

    fn json<T: DeserializeOwned>(&self, response: Response<Body>) -> Result<T, ClientError> {
        serde_json::from_str(&self.text(response)?).map_err(|error| self.answer_error(error))
    }

    fn text(&self, mut response: Response<Body>) -> Result<String, ClientError> {
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        body.read_to_string().map_err(|error| self.answer_error(error))
    }

    /// There is no connection.
    fn unreachable(&self, error: &io::Error) -> ClientError {
        let server = self.server.clone();
        match Fault::of(error) {
            Some(fault) => ClientError::Tls { server, fault },
            None => ClientError::Unreachable { server, detail: error.to_string() },
        }
    }

    /// An answer that ends before its end.
    fn broken(&self, error: io::Error) -> ClientError {
        if let Some(fault) = Fault::of(&error) {
            return ClientError::Tls { server: self.server.clone(), fault };
        }
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => {
                ClientError::Lost { server: self.server.clone() }
            }
            _ => self.answer_error(error),
        }
    }

    fn answer_error(&self, detail: impl ToString) -> ClientError {
        ClientError::Answer { server: self.server.clone(), detail: detail.to_string() }
    }

    fn error(&self, error: ureq::Error) -> ClientError {
        let server = self.server.clone();
        match error {
            ureq::Error::Protocol(_) | ureq::Error::BodyExceedsLimit(_) => self.answer_error(error),
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => ClientError::Address(server),
            ureq::Error::Io(error) => self.unreachable(&error),
            other => ClientError::Unreachable { server, detail: other.to_string() },
        }
    }
}

/// The path of an application.
pub fn application_path(name: &str) -> String {
    format!("/api/v1/applications/{}", segment(name))
}

/// A name as a segment of a path.
pub fn segment(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) || (byte == b'.' && name.len() > 2) {
            encoded.push(char::from(byte));
        } else {
            // Writing to memory does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded() {
        assert_eq!(segment("kims_ac"), "kims_ac");
        assert_eq!(segment("a/b c?d%é"), "a%2Fb%20c%3Fd%25%C3%A9");
        assert_eq!(segment(".."), "%2E%2E");
    }

    #[test]
    fn addresses_are_checked() {
        for wrong in [
            "",
            "host",
            "ftp://host",
            "https://",
            "http://",
            "http://host/path",
            "http://user@host",
            "http://host:70000",
        ] {
            assert!(matches!(Client::new(wrong), Err(ClientError::Address(_))), "{wrong}");
        }
        assert_eq!(Client::new("http://host:1/").expect("an address").server(), "http://host:1");
        assert_eq!(Client::new("https://host").expect("an address").server(), "https://host");
    }
}
