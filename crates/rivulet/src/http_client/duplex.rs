//! One HTTP/1.1 request whose body is written while its answer is read: a thread writes chunks, the caller reads lines.
//! Just what bulk submission needs, on a connection that is used once.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use ureq::http::HeaderValue;

/// Bytes read from the input and sent as one chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// The longest line of the answer's head.
const HEAD_LINE_BYTES_MAX: u64 = 8 << 10;

/// The most lines of the answer's head.
const HEAD_LINES_MAX: usize = 100;

/// The longest line of the answer's body.
const LINE_BYTES_MAX: usize = 1 << 20;

/// An answer that is being read.
pub(super) struct Answer {
    /// The HTTP status.
    pub(super) status: u16,
    stream: BufReader<TcpStream>,
    body: Remaining,
    input_errors: Receiver<io::Error>,
}

/// What is left of the body.
enum Remaining {
    /// Bytes of the chunk being read; the next chunk's size comes after it.
    Chunk(u64),
    /// Bytes of the whole body.
    Length(u64),
    Nothing,
}

/// Why there is no answer.
pub(super) enum PostError {
    /// Nobody answers there.
    Connect(io::Error),
    /// The input could not be read.
    Input(io::Error),
    /// What answers speaks something else, or broke off.
    Answer(io::Error),
}

/// Sends the request and reads the head of its answer; the body of the request is sent by a thread of its own, which
/// ends with the input or with the connection.
pub(super) fn post(
    host: &str,
    path: &str,
    authorization: Option<&HeaderValue>,
    mut input: impl Read + Send + 'static,
    connect_timeout: Duration,
) -> Result<Answer, PostError> {
    let stream = connect(host, connect_timeout).map_err(PostError::Connect)?;
    let clone = stream.set_nodelay(true).and_then(|()| stream.try_clone());
    let mut writer = clone.map_err(PostError::Connect)?;
    let mut head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\
         connection: close\r\n"
    )
    .into_bytes();
    if let Some(authorization) = authorization {
        head.extend([b"authorization: ", authorization.as_bytes(), b"\r\n"].concat());
    }
    head.extend(b"\r\n");
    writer.write_all(&head).map_err(PostError::Answer)?;
    let (input_failed, input_errors) = channel();
    let sender = move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let length = match input.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    // The server must not take a part for the whole: the body is broken off, not ended.
                    let _ = input_failed.send(error);
                    let _ = writer.shutdown(Shutdown::Both);
                    return;
                }
            };
            let sent = write!(writer, "{length:x}\r\n")
                .and_then(|()| writer.write_all(&buffer[..length]))
                .and_then(|()| writer.write_all(b"\r\n"));
            // If the server closed the connection, its answer says why.
            if length == 0 || sent.is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("bulk-sender".into()).spawn(sender).map_err(PostError::Input)?;
    let mut stream = BufReader::with_capacity(CHUNK_BYTES, stream);
    match read_head(&mut stream) {
        Ok((status, body)) => Ok(Answer { status, stream, body, input_errors }),
        Err(error) => Err(input_errors.try_recv().map_or(PostError::Answer(error), PostError::Input)),
    }
}

fn connect(host: &str, timeout: Duration) -> io::Result<TcpStream> {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let addresses = if has_port { host.to_socket_addrs()? } else { format!("{host}:80").to_socket_addrs()? };
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn read_head(stream: &mut impl BufRead) -> io::Result<(u16, Remaining)> {
    let start = head_line(stream)?;
    let status = start.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| invalid("it does not start like an answer of HTTP/1.1"))?;
    let mut body = Remaining::Nothing;
    for _ in 0..HEAD_LINES_MAX {
        let line = head_line(stream)?;
        if line.is_empty() {
            return Ok((status, body));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("a header line has no colon"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            body = Remaining::Chunk(0);
        } else if name.eq_ignore_ascii_case("content-length") && !matches!(body, Remaining::Chunk(_)) {
            body = Remaining::Length(value.parse().map_err(|_| invalid("the content length is no number"))?);
        }
    }
    Err(invalid("it has too many headers"))
}

/// A line that ends with CR LF, without them.
fn head_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.take(HEAD_LINE_BYTES_MAX).read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(content) => Ok(content.to_owned()),
        None if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(invalid("a line of its head is too long or broken off")),
    }
}

impl Answer {
    /// Appends the next line of the body with its line feed, and returns its length: 0 at the end. Waits for it.
    pub(super) fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<usize> {
        let before = line.len();
        loop {
            let left = match self.body {
                Remaining::Nothing | Remaining::Length(0) => return Ok(line.len() - before),
                Remaining::Length(left) => left,
                Remaining::Chunk(0) => {
                    let size = head_line(&mut self.stream)?;
                    let size = size.split(';').next().unwrap_or_default().trim();
                    let size =
                        u64::from_str_radix(size, 16).map_err(|_| invalid("the size of a chunk is no number"))?;
                    self.body = if size == 0 { Remaining::Nothing } else { Remaining::Chunk(size) };
                    continue;
                }
                Remaining::Chunk(left) => left,
            };
            let available = self.stream.fill_buf()?;
            if available.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let usable = &available[..available.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let end = usable.iter().position(|&byte| byte == b'\n').map(|position| position + 1);
            let taken = end.unwrap_or(usable.len());
            line.extend_from_slice(&usable[..taken]);
            self.stream.consume(taken);
            let left = left - taken as u64;
            self.body = match self.body {
                Remaining::Chunk(_) => {
                    if left == 0 && !head_line(&mut self.stream)?.is_empty() {
                        return Err(invalid("a chunk is longer than it says"));
                    }
                    Remaining::Chunk(left)
                }
                _ => Remaining::Length(left),
            };
            if end.is_some() {
                return Ok(line.len() - before);
            }
            if line.len() - before > LINE_BYTES_MAX {
                return Err(invalid("a line of it is too long"));
            }
        }
    }

    /// Why the input could not be read to its end, if so. Ask once, when the answer has ended or broken off.
    pub(super) fn input_error(&self) -> Option<io::Error> {
        self.input_errors.try_recv().ok()
    }
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one connection with `answer`, whatever it asks, and returns what `post` makes of it.
    fn exchange(answer: &'static [u8]) -> io::Result<(u16, Vec<String>)> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let host = listener.local_addr().expect("an address").to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            let mut request = Vec::new();
            while !request.ends_with(b"0\r\n\r\n") {
                let mut buffer = [0; 1024];
                let length = stream.read(&mut buffer).expect("the request");
                assert!(length > 0, "the request ended early");
                request.extend_from_slice(&buffer[..length]);
            }
            stream.write_all(answer).expect("an answer");
            String::from_utf8(request).expect("text")
        });
        let answer =
            post(&host, "/bulk", None, "{\"a\":1}\n".as_bytes(), Duration::from_secs(10)).map_err(
                |error| match error {
                    PostError::Connect(error) | PostError::Input(error) | PostError::Answer(error) => error,
                },
            );
        let read = answer.and_then(|mut answer| {
            let mut lines = Vec::new();
            let mut line = Vec::new();
            while answer.read_line(&mut line)? > 0 {
                lines.push(String::from_utf8(std::mem::take(&mut line)).expect("text"));
            }
            Ok((answer.status, lines))
        });
        let request = server.join().expect("the server");
        assert!(request.starts_with("POST /bulk HTTP/1.1\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\n8\r\n{\"a\":1}\n\r\n0\r\n\r\n"), "{request}");
        read
    }

    #[test]
    fn lines_are_put_together_from_chunks() {
        let answer =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n6;x=y\r\n\ntwo\nt\r\n4\r\nhree\r\n0\r\n\r\n";
        let (status, lines) = exchange(answer).expect("an answer");
        assert_eq!((status, lines), (200, vec!["one\n".into(), "two\n".into(), "three".into()]));
    }

    #[test]
    fn answers_with_a_length_are_read_too() {
        let (status, lines) =
            exchange(b"HTTP/1.1 429 No\r\ncontent-length: 5\r\n\r\nno\nnoand more").expect("an answer");
        assert_eq!((status, lines), (429, vec!["no\n".into(), "no".into()]));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for answer in [
            b"".as_slice(),
            b"SSH-2.0-x\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert!(exchange(answer).is_err(), "{}", String::from_utf8_lossy(answer));
        }
    }
}
