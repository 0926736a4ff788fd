//! Bulk submission over real sockets.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use rivulet::api::types::BulkAnswer;
use rivulet::http_client::ClientError;
use rivulet::service::SUBMIT_BATCH_MAX;

use crate::support::{AsOperator, MemoryService, TestServer, WAIT_MAX, wait_until};

fn submit(server: &TestServer, lines: impl Read + Send + 'static) -> Result<Vec<BulkAnswer>, ClientError> {
    let mut answers = Vec::new();
    server.client().submit_bulk(lines, false, |answer| {
        answers.push(answer);
        Ok::<_, ClientError>(())
    })?;
    Ok(answers)
}

#[test]
fn every_line_is_answered_in_order() {
    let (server, service) = TestServer::with_memory();
    let count = 20_000;
    let lines: String = (0..count)
        .map(|home| format!("{{\"name\":\"home_{home}\",\"application\":\"ac_control\",\"parameters\":{{\"home\":\"{home}\",\"target\":22.5}}}}\n"))
        .collect();
    let answers = submit(&server, io::Cursor::new(lines)).expect("answers");
    assert_eq!(answers.len(), count);
    for (place, answer) in answers.iter().enumerate() {
        assert_eq!((answer.line, answer.id), (place as u64 + 1, Some(place as u64 + 1)));
        assert_eq!(answer.name.as_deref(), Some(format!("home_{place}").as_str()));
    }
    assert_eq!(service.queries_count(), count);
    assert!(service.batch_max.load(Ordering::Relaxed) <= SUBMIT_BATCH_MAX);
}

#[test]
fn a_wrong_line_harms_only_itself() {
    let (server, service) = TestServer::with_memory();
    let long = "x".repeat(100 << 10);
    let lines = format!(
        "{{\"application\":\"ac_control\"}}\r\n\nnonsense\n{{\"application\":\"nobody\"}}\n{long}\n\
         {{\"application\":\"ac_control\",\"name\":\"say \\\"hi\\\"\"}}\n{{\"application\":\"ac_control\",\"parameters\":{{\"home\":[]}}}}\n\
         {{\"application\":\"ac_control\"}}"
    );
    let answers = submit(&server, io::Cursor::new(lines)).expect("answers");
    let seen: Vec<(u64, String)> = answers
        .into_iter()
        .map(|answer| (answer.line, answer.name.or(answer.error.map(|error| error.message)).unwrap_or_default()))
        .collect();
    assert_eq!(
        seen,
        [
            (1, "query_1".to_owned()),
            (3, "not JSON: expected value".to_owned()),
            (4, "there is no app nobody".to_owned()),
            (5, "the line is longer than 65536 bytes".to_owned()),
            (6, "say \"hi\"".to_owned()),
            (7, "invalid type: sequence, expected a text, number, boolean or null as a parameter's value".to_owned()),
            (8, "query_3".to_owned()),
        ]
    );
    assert_eq!(service.queries_count(), 3);
}

#[test]
fn an_empty_body_is_no_answer() {
    let (server, service) = TestServer::with_memory();
    assert_eq!(submit(&server, io::empty()).expect("answers"), []);
    assert_eq!(submit(&server, io::Cursor::new("\n\n")).expect("answers"), []);
    assert_eq!(service.batches.load(Ordering::Relaxed), 0);
}

/// Gives its lines one by one, each when it is told to.
struct OnDemand {
    lines: std::sync::mpsc::Receiver<Vec<u8>>,
}

impl Read for OnDemand {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Ok(line) = self.lines.recv() else { return Ok(0) };
        buffer[..line.len()].copy_from_slice(&line);
        Ok(line.len())
    }
}

#[test]
fn answers_come_while_the_request_is_still_being_sent() {
    let (server, _) = TestServer::with_memory();
    let (send, lines) = channel();
    let line = b"{\"application\":\"ac_control\"}\n".to_vec();
    send.send(line.clone()).expect("a line");
    let mut send = Some(send);
    let mut answered = 0;
    server
        .client()
        .submit_bulk(OnDemand { lines }, false, |answer| {
            answered += 1;
            assert_eq!(answer.line, answered);
            // The next line is sent only now, and the end after the third one.
            match (&send, answered) {
                (Some(send), 1..3) => send.send(line.clone()).expect("a line"),
                _ => send = None,
            }
            Ok::<_, ClientError>(())
        })
        .expect("answers");
    assert_eq!(answered, 3);
}

#[test]
fn input_that_breaks_off_is_an_error_and_nothing_half_is_submitted() {
    struct Broken<F> {
        given: bool,
        is_submitted: F,
    }
    impl<F: Fn() -> bool> Read for Broken<F> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.given {
                // What is on its way when the input breaks off may get lost with the connection.
                wait_until("the whole line is submitted", &self.is_submitted);
                return Err(io::Error::other("the disk is gone"));
            }
            self.given = true;
            let text = b"{\"application\":\"ac_control\",\"name\":\"whole\"}\n{\"application\":\"ac_control\"}";
            buffer[..text.len()].copy_from_slice(text);
            Ok(text.len())
        }
    }
    let (server, service) = TestServer::with_memory();
    let is_submitted = {
        let service = service.clone();
        move || service.queries_count() == 1
    };
    let error = submit(&server, Broken { given: false, is_submitted }).expect_err("input that breaks off");
    assert!(matches!(&error, ClientError::Input(error) if error.to_string() == "the disk is gone"), "{error:?}");
    assert_eq!(service.queries_count(), 1);
}

#[test]
fn a_client_that_does_not_read_is_not_read_either() {
    let (server, service) = TestServer::with_memory();
    let mut stream = TcpStream::connect(server.address).expect("a connection");
    stream.set_nonblocking(true).expect("a socket");
    let head = "POST /api/v1/queries/bulk HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("a head");
    // Short lines with long answers: an unknown application is named in the message.
    let line = "{\"application\":\"nobody\"}\n";
    let chunk = format!("{:x}\r\n{}\r\n", line.len() * 1000, line.repeat(1000));
    let mut sent_bytes = 0_usize;
    let mut rest: &[u8] = chunk.as_bytes();
    let mut full_since = None;
    let started = std::time::Instant::now();
    // Until the server has taken nothing for a while; without a bound it would take everything.
    let is_full = loop {
        match stream.write(rest) {
            Ok(length) => {
                full_since = None;
                sent_bytes += length;
                rest = if length == rest.len() { chunk.as_bytes() } else { &rest[length..] };
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let since = *full_since.get_or_insert_with(std::time::Instant::now);
                if since.elapsed().as_millis() > 500 {
                    break true;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
        if sent_bytes > 256 << 20 || started.elapsed() > WAIT_MAX {
            break false;
        }
    };
    assert!(is_full, "the server took {sent_bytes} bytes without an answer being read");
    let batches = service.batches.load(Ordering::Relaxed);
    // Reading makes room, and the server goes on.
    let mut answers = vec![0; 1 << 20];
    wait_until("the server goes on", || {
        let _ = stream.read(&mut answers);
        service.batches.load(Ordering::Relaxed) > batches
    });
}

#[test]
fn a_client_that_waits_for_a_slow_server_is_not_too_slow() {
    let service = Arc::new(MemoryService::default());
    service.create_application("CREATE APPLICATION ac_control (home TEXT)").expect("an application");
    // Each batch takes longer than a client may.
    *service.submit_time.lock().expect("a lock") = Duration::from_millis(1_500);
    let server = TestServer::start_with(service, &[("http.body_timeout_s", "1")]);
    let mut stream = TcpStream::connect(server.address).expect("a connection");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
    let line = "{\"application\":\"ac_control\"}\n";
    let head = "POST /api/v1/queries/bulk HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n", 2 * line.len()).expect("a head");
    stream.write_all(line.as_bytes()).expect("a line");
    let mut answer = String::new();
    while !answer.contains("\"line\":1") {
        let mut bytes = [0; 1 << 10];
        let read = stream.read(&mut bytes).expect("an answer");
        assert!(read > 0, "{answer}");
        answer.push_str(std::str::from_utf8(&bytes[..read]).expect("text"));
    }
    // It goes on when it has its answer.
    stream.write_all(line.as_bytes()).expect("a line");
    stream.read_to_string(&mut answer).expect("the end");
    assert!(answer.contains("\"line\":2,\"id\":2") && !answer.contains("error"), "{answer}");
}

#[test]
fn stopping_tells_which_line_was_not_read() {
    let (mut server, service) = TestServer::with_memory();
    let (send, lines) = channel();
    send.send(b"{\"application\":\"ac_control\"}\n".to_vec()).expect("a line");
    let mut answers = Vec::new();
    let client = server.client();
    let server = &mut server;
    client
        .submit_bulk(OnDemand { lines }, false, |answer| {
            answers.push((answer.line, answer.error.map(|error| error.kind)));
            server.stop();
            Ok::<_, ClientError>(())
        })
        .expect("answers");
    assert_eq!(answers, [(1, None), (2, Some("unavailable".to_owned()))]);
    assert_eq!(service.queries_count(), 1);
    drop(send);
}
