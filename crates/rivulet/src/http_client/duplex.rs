//! One HTTP/1.1 request whose body is sent while its answer is read: a thread reads the input, and hyper sends and
//! receives while the caller waits for a line. Just what bulk submission needs, on a connection that is used once.

use std::error::Error as _;
use std::io::{self, Read};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::Request;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderMap};
use hyper_util::rt::TokioIo;
use rivulet_connectors::tls::ClientTls;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::ReceiverStream;

/// Bytes read from the input and sent as one chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// The most chunks that were read and wait to be sent.
const CHUNKS_MAX: usize = 1;

/// The longest line of the answer's body.
const LINE_BYTES_MAX: usize = 1 << 20;

/// An answer that is being read. The request is sent while a call of [`Answer::read_line`] waits.
pub(super) struct Answer {
    /// The HTTP status.
    pub(super) status: u16,
    body: Incoming,
    /// What was received of the body and not read.
    received: Bytes,
    input_errors: mpsc::Receiver<io::Error>,
    runtime: Runtime,
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

/// Sends the request and reads the head of its answer. A thread of its own reads the input; it ends with the input or
/// with the connection.
pub(super) fn post(
    (host, tls): (&str, Option<&ClientTls>),
    path: &str,
    headers: &HeaderMap,
    input: impl Read + Send + 'static,
    connect_timeout: Duration,
) -> Result<Answer, PostError> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(PostError::Connect)?;
    let connect = async { tokio::time::timeout(connect_timeout, connect(host, tls)).await? };
    let stream = runtime.block_on(connect).map_err(PostError::Connect)?;
    let (input_failed, input_errors) = mpsc::channel();
    let (sender, chunks) = tokio::sync::mpsc::channel(CHUNKS_MAX);
    let read = move || read_input(input, &sender, &input_failed);
    thread::Builder::new().name("bulk-sender".into()).spawn(read).map_err(PostError::Input)?;
    let mut request = Request::post(path)
        .header(HOST, host)
        .header(CONTENT_TYPE, "application/x-ndjson")
        .header(CONNECTION, "close")
        .body(StreamBody::new(ReceiverStream::new(chunks)))
        .map_err(|error| PostError::Connect(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    request.headers_mut().extend(headers.clone());
    let answered = runtime.block_on(async {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // How it ends is told to those who send and receive.
        tokio::spawn(async { drop(connection.await) });
        sender.send_request(request).await
    });
    match answered {
        Ok(answer) => {
            let (status, body) = (answer.status().as_u16(), answer.into_body());
            Ok(Answer { status, body, received: Bytes::new(), input_errors, runtime })
        }
        Err(error) => Err(input_errors.try_recv().map_or(PostError::Answer(io_error(&error)), PostError::Input)),
    }
}

/// A connection, encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

async fn connect(host: &str, tls: Option<&ClientTls>) -> io::Result<Box<dyn Stream>> {
    let port = if tls.is_some() { 443 } else { 80 };
    let given = host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?)));
    let (name, port) = given.unwrap_or((host, port));
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((name, port)).await?;
    stream.set_nodelay(true)?;
    Ok(match tls {
        Some(tls) => Box::new(rivulet_connectors::tls::connect(tls, name, stream).await?),
        None => Box::new(stream),
    })
}

/// Reads the input to its end, a chunk at a time, or until nobody takes chunks any more.
fn read_input(
    mut input: impl Read,
    sender: &tokio::sync::mpsc::Sender<io::Result<Frame<Bytes>>>,
    input_failed: &mpsc::Sender<io::Error>,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                let chunk = Frame::data(Bytes::copy_from_slice(&buffer[..length]));
                // If the server closed the connection, its answer says why.
                if sender.blocking_send(Ok(chunk)).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                // The server must not take a part for the whole: the body is broken off, not ended.
                let _ = input_failed.send(error);
                let _ = sender.blocking_send(Err(io::ErrorKind::BrokenPipe.into()));
                return;
            }
        }
    }
}

impl Answer {
    /// Appends the next line of the body with its line feed, and returns its length: 0 at the end. Waits for it.
    pub(super) fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<usize> {
        let before = line.len();
        loop {
            let end = self.received.iter().position(|&byte| byte == b'\n').map(|position| position + 1);
            line.extend_from_slice(&self.received.split_to(end.unwrap_or(self.received.len())));
            if end.is_some() {
                return Ok(line.len() - before);
            }
            if line.len() - before > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line of it is too long"));
            }
            match self.runtime.block_on(self.body.frame()) {
                Some(Ok(frame)) => self.received = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(io_error(&error)),
                None => return Ok(line.len() - before),
            }
        }
    }

    /// Why the input could not be read to its end, if so. Ask once, when the answer has ended or broken off.
    pub(super) fn input_error(&self) -> Option<io::Error> {
        self.input_errors.try_recv().ok()
    }
}

/// What the system said, if it was the system.
fn io_error(error: &hyper::Error) -> io::Error {
    let system = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    let ended = || (error.is_incomplete_message() || error.is_closed()).then_some(io::ErrorKind::UnexpectedEof);
    let text = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    io::Error::new(system.or_else(ended).unwrap_or(io::ErrorKind::InvalidData), text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
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
        let answer = post((&host, None), "/bulk", &HeaderMap::new(), "{\"a\":1}\n".as_bytes(), Duration::from_secs(10))
            .map_err(|error| match error {
                PostError::Connect(error) | PostError::Input(error) | PostError::Answer(error) => error,
            });
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

    #[test]
    fn a_refusal_is_read_while_there_is_still_much_to_send() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let host = listener.local_addr().expect("an address").to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            // What comes before there is a request is no answer to it.
            assert!(stream.read(&mut [0; 64]).expect("a request") > 0);
            stream.write_all(b"HTTP/1.1 401 No\r\ncontent-length: 3\r\n\r\nno\n").expect("an answer");
            // Until the client has its answer and goes, however that shows.
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let endless = io::repeat(b'x');
        let Ok(mut answer) = post((&host, None), "/bulk", &HeaderMap::new(), endless, Duration::from_secs(10)) else {
            panic!("no answer")
        };
        let mut line = Vec::new();
        answer.read_line(&mut line).expect("a line");
        assert_eq!((answer.status, line.as_slice()), (401, &b"no\n"[..]));
        drop(answer);
        server.join().expect("the server");
    }
}
