//! The part of HTTP/1.1 that a client of an object store needs.

use std::io::{self, BufRead, Write};
use std::net::TcpStream;
use std::ops::Range;

/// The largest body that is read, in bytes.
const BODY_BYTES_MAX: usize = 256 << 20;

/// A request.
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path as received.
    pub(crate) path: String,
    /// The query as received.
    pub(crate) raw_query: String,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// Reads the next request; `None` if there is none, or it is invalid.
    pub(crate) fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
            Some(line.trim_end().to_owned())
        };
        let first = line()?;
        let mut parts = first.split(' ');
        let (method, target) = (parts.next()?.to_owned(), parts.next()?);
        let (path, raw_query) = target.split_once('?').unwrap_or((target, ""));
        let (path, raw_query) = (path.to_owned(), raw_query.to_owned());
        let mut headers = Vec::new();
        loop {
            let header = line()?;
            let Some((name, value)) = header.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Self { method, path, raw_query, headers, body: Vec::new() };
        let length = request.header("content-length").map_or(Some(0), |length| length.parse().ok())?;
        request.body = vec![0; Some(length).filter(|&length| length <= BODY_BYTES_MAX)?];
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The parameters, decoded.
    pub(crate) fn query_pairs(&self) -> Vec<(String, String)> {
        let pairs = self.raw_query.split('&').filter(|pair| !pair.is_empty());
        let decoded = |text: &str| from_percent(&text.replace('+', " "));
        pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decoded(name), decoded(value)))
            .collect()
    }

    /// A parameter, decoded.
    pub(crate) fn query(&self, name: &str) -> Option<String> {
        self.query_pairs().into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn new(status: u16, body: Vec<u8>) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>");
        Self::new(status, text.into_bytes())
    }

    pub(crate) fn write(&self, to: &mut TcpStream, is_head: bool) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {} Answer\r\n", self.status);
        if self.status != 204 {
            head += &format!("content-length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        let mut bytes = head.into_bytes();
        if !is_head {
            bytes.extend_from_slice(&self.body);
        }
        to.write_all(&bytes)
    }
}

/// Returns the range that a header requests, of an object with this number of bytes.
pub(crate) fn range(header: &str, bytes: usize) -> Option<Range<usize>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    (first < bytes && first <= last).then(|| first..bytes.min(last + 1))
}

/// Decodes percent encoding; invalid sequences stay as they are.
pub(crate) fn from_percent(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        (rest, _) = match digits.filter(|_| byte == b'%') {
            Some(decoded) => (&behind[2..], bytes.push(decoded)),
            None => (behind, bytes.push(byte)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Encodes a text with percent signs, as signatures need it.
pub(crate) fn to_percent(text: &str) -> String {
    let encoded = |byte: u8| match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}
