//! `http:` both ways, over sockets of this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, StringArray, UInt64Array};
use rivulet_connectors::connector::{Condition, Connectors, OutputRows};
use rivulet_dataflow::{Batch, Source};
use rivulet_testing_ports::free_port;

use super::support::{
    Drained, PATIENCE, batch, fill, flush_until, format, options, poll_until, sink, sink_error, source, source_error,
};
use crate::authority::Authority;

/// An HTTP request or answer as it came.
#[derive(Clone, Debug)]
struct Message {
    first_line: String,
    /// Lower case, `name: value`.
    headers: Vec<String>,
    body: String,
}

impl Message {
    fn read(stream: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let headers: Vec<String> = lines[1..]
            .iter()
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                format!("{}:{value}", name.to_ascii_lowercase())
            })
            .collect();
        let mut message = Self { first_line: lines[0].clone(), headers, body: String::new() };
        let length = message.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        message.body = String::from_utf8(body).unwrap();
        Some(message)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|header| header.strip_prefix(&format!("{name}: ")))
    }
}

/// Posts a body; gives the status.
fn post(port: u16, path: &str, headers: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let answer = Message::read(&mut BufReader::new(stream)).expect("an answer");
    answer.first_line.split(' ').nth(1).unwrap().parse().unwrap()
}

fn listen(declared: &str, given: &[(&str, &str)], written: Option<&str>) -> (u16, Box<dyn Source>) {
    let port = free_port();
    let mut spec = source(&format!("http:127.0.0.1:{port}/events"), declared);
    spec.options = options(given);
    spec.format = written.map(format);
    let mut sources = Connectors::OWN.open_source(&spec, 4).unwrap();
    assert_eq!(sources.len(), 1);
    (port, sources.remove(0))
}

#[test]
fn posts_become_rows() {
    let (port, mut source) = listen("n BIGINT", &[], None);
    let post = |headers: &str, body: &str| post(port, "/events", headers, body);
    assert_eq!(post("", r#"{"n": 1}"#), 202);
    assert_eq!(post("content-type: application/json\r\n", "[{\"n\": 2},\n {\"n\": 3}]"), 202);
    assert_eq!(post("content-type: application/x-ndjson; charset=utf-8\r\n", "{\"n\":4}\r\n\nno\n{\"n\":5}"), 202);
    let mut drained = Drained::default();
    poll_until(&mut *source, &mut drained, |drained| drained.rows.len() >= 5).unwrap();
    assert_eq!((drained.rows, drained.refused), (["1", "2", "3", "4", "5"].map(String::from).to_vec(), 1));
    assert_eq!(super::http::post(port, "/other", "", "{}"), 404);
    drop(source);
    // The port is free again, in a moment.
    let deadline = Instant::now() + PATIENCE;
    while TcpListener::bind(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "the listener does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn posts_may_be_encrypted_and_their_senders_verified() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (Authority::new(folder.path(), "own"), Authority::new(folder.path(), "other"));
    let [server, client] = [own.server("server"), own.client("client")];
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let (port, mut from) = listen(
        "n BIGINT",
        &[("certificate_file", &text(&server.0)), ("key_file", &text(&server.1)), ("client_ca_file", &text(&own.file))],
        None,
    );
    let mut spec = sink(&format!("https://localhost:{port}/events"), numbers(0..1).columns.schema());
    let (ca, certificate, key) = (text(&own.file), text(&client.0), text(&client.1));
    spec.options = options(&[("ca_file", &ca), ("certificate_file", &certificate), ("key_file", &key)]);
    fill(&spec, &[numbers(0..3)]).unwrap();
    let mut drained = Drained::default();
    poll_until(&mut *from, &mut drained, |drained| drained.rows.len() == 3).unwrap();
    assert_eq!(drained.rows, ["0", "1", "2"]);
    for (given, expected) in [
        (options(&[("ca_file", &ca)]), "the server asks for a client certificate"),
        (options(&[("ca_file", &text(&other.file))]), "signed by an authority that is not trusted"),
        (options(&[]), "signed by an authority that is not trusted"),
    ] {
        spec.options = [given, options(&[("retry_for", "1 ms")])].concat();
        let error = fill(&spec, &[numbers(0..1)]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(post(port, "/events", "", "{\"n\": 4}"), 400, "a post that is not encrypted");
    spec.options = options(&[("certificate_file", &certificate)]);
    assert!(sink_error(&spec).contains("'key_file'"), "{}", sink_error(&spec));
    spec.options = options(&[("ca_file", &key)]);
    assert!(sink_error(&spec).contains("client.key"), "{}", sink_error(&spec));
}

#[test]
fn what_does_not_fit_is_told_to_the_sender() {
    let given = [("queue_bytes_max", "190"), ("body_bytes_max", "150"), ("token", "secret"), ("lines", "true")];
    let (port, mut source) = listen("name TEXT, n BIGINT", &given, Some("CSV"));
    let authorized = "authorization: Bearer secret\r\n";
    let body = format!("{},1\nb,2", "a".repeat(94));
    assert_eq!(post(port, "/events", "", &body), 401);
    assert_eq!(post(port, "/events", "authorization: Bearer secreT\r\n", &body), 401);
    assert_eq!(post(port, "/events", authorized, &"x".repeat(151)), 413);
    assert_eq!(post(port, "/events", authorized, &body), 202);
    assert_eq!(post(port, "/events", authorized, &body), 429, "the queue is full");
    let mut drained = Drained::default();
    poll_until(&mut *source, &mut drained, |drained| drained.rows.len() >= 2).unwrap();
    assert_eq!(post(port, "/events", authorized, &body), 202);
    poll_until(&mut *source, &mut drained, |drained| drained.rows.len() >= 4).unwrap();
    assert_eq!(drained.rows[3], "b|2");
    let taken = source_error(&super::support::source(&format!("http:127.0.0.1:{port}/x"), "n BIGINT"));
    assert!(taken.contains("in use") && taken.contains("hint: a source listens"), "{taken}");
}

/// A receiver of webhooks that answers what it is told; 200 when that is used up.
struct Receiver {
    port: u16,
    requests: Arc<Mutex<Vec<Message>>>,
    connections: Arc<AtomicUsize>,
}

impl Receiver {
    fn start(answers: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = Arc::new(Mutex::new(answers.iter().copied().rev().collect::<Vec<_>>()));
        let requests = Arc::<Mutex<Vec<Message>>>::default();
        let connections = Arc::<AtomicUsize>::default();
        let receiver = Self { port, requests: requests.clone(), connections: connections.clone() };
        // It ends with the program: nobody waits for it.
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                connections.fetch_add(1, Ordering::Relaxed);
                let (answers, requests) = (answers.clone(), requests.clone());
                std::thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    while let Some(request) = Message::read(&mut stream) {
                        requests.lock().unwrap().push(request);
                        let answer = answers.lock().unwrap().pop().unwrap_or("200 OK\r\n");
                        if answer == "hang up" {
                            return;
                        }
                        if stream
                            .get_mut()
                            .write_all(format!("HTTP/1.1 {answer}content-length: 0\r\n\r\n").as_bytes())
                            .is_err()
                        {
                            return;
                        }
                    }
                });
            }
        });
        receiver
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    fn bodies(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| request.body.clone()).collect()
    }
}

fn numbers(range: std::ops::Range<i64>) -> Batch {
    batch(vec![("n", Arc::new(Int64Array::from_iter_values(range)) as ArrayRef)])
}

#[test]
fn rows_are_posted_in_order_until_they_are_taken() {
    let receiver = Receiver::start(&[
        "200 OK\r\n",
        "500 Internal Server Error\r\n",
        "429 Too Many Requests\r\nretry-after: 0\r\n",
        "hang up",
    ]);
    let mut spec = sink(&receiver.address(), numbers(0..1).columns.schema());
    spec.options = options(&[("headers.x-token", "abc")]);
    fill(&spec, &[numbers(0..3), numbers(3..5)]).unwrap();
    let bodies = receiver.bodies();
    let expected: Vec<String> = [0, 1, 1, 1, 1, 2, 3, 4].iter().map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(bodies, expected);
    let requests = receiver.requests.lock().unwrap();
    assert!(requests.iter().all(|request| request.first_line == "POST /hook HTTP/1.1"));
    assert!(requests.iter().all(|request| request.header("content-type") == Some("application/json")));
    assert!(requests.iter().all(|request| request.header("x-token") == Some("abc")));
    let key = |index: usize| requests[index].header("idempotency-key").unwrap();
    assert!(key(1) == key(2) && key(1) == key(4) && key(0) != key(1) && key(1).len() == 32);
    drop(requests);
    // Rows may be equal, and deliveries are not.
    fill(&spec, &[batch(vec![("n", Arc::new(Int64Array::from(vec![7; 20])) as ArrayRef)])]).unwrap();
    fill(&spec, &[numbers(7..8)]).unwrap();
    let requests = receiver.requests.lock().unwrap();
    let keys = requests.iter().map(|request| request.header("idempotency-key").unwrap());
    assert_eq!(keys.collect::<std::collections::HashSet<_>>().len(), 5 + 21);
    // Connections are kept, of each of the three sinks.
    assert!(receiver.connections.load(Ordering::Relaxed) <= 5);
}

#[test]
fn rows_count_when_the_receiver_has_taken_them_and_a_receiver_that_refuses_is_told() {
    let receiver = Receiver::start(&["200 OK\r\n", "503 Service Unavailable\r\nretry-after: 1\r\n"]);
    let spec = sink(&receiver.address(), numbers(0..1).columns.schema());
    let health = spec.host.health.clone();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&numbers(0..3)).unwrap();
    flush_until(&mut *sink, &health, |health| health.condition == Condition::Retrying);
    let told = health.report();
    assert_eq!((told.rows, told.waiting_rows, told.retries, told.failures), (1, 2, 1, 1));
    let error = told.last_error.as_deref().unwrap();
    assert!(error.starts_with("http://127.0.0.1:"), "{error}: the address is in it");
    assert!(error.contains(" does not take rows: the receiver answers 503") && told.oldest.is_some(), "{told:?}");
    flush_until(&mut *sink, &health, |health| health.rows == 3);
    let told = health.report();
    assert_eq!((told.condition, told.waiting_rows, told.retries, told.failures), (Condition::Ok, 0, 0, 1));
    assert_eq!((told.bytes, told.oldest), (21, None));
}

#[test]
fn what_is_given_up_or_left_out_is_told() {
    let mut spec = sink(&format!("http:127.0.0.1:{}/x", free_port()), numbers(0..1).columns.schema());
    spec.options = options(&[("retry_for", "300 ms")]);
    fill(&spec, &[numbers(0..2)]).unwrap_err();
    let told = spec.host.health.report();
    assert_eq!((told.condition, told.rows, told.waiting_rows), (Condition::Failing, 0, 2));
    assert!(told.last_error.is_some_and(|error| error.contains("tried for 300ms")));
    let receiver = Receiver::start(&["400 Bad Request\r\n"]);
    let mut spec = super::support::sink(&receiver.address(), numbers(0..1).columns.schema());
    spec.options = options(&[("on_reject", "skip")]);
    fill(&spec, &[numbers(0..3)]).unwrap();
    let told = spec.host.health.report();
    assert_eq!((told.condition, told.rows, told.left_out, told.waiting_rows), (Condition::Ok, 2, 1, 0));
}

#[test]
fn rows_may_be_posted_together() {
    let receiver = Receiver::start(&[]);
    let mut spec = sink(&receiver.address(), numbers(0..1).columns.schema());
    spec.options = options(&[("batch_rows", "2")]);
    fill(&spec, &[numbers(0..3)]).unwrap();
    spec.format = Some(format("CSV"));
    fill(&spec, &[numbers(0..3)]).unwrap();
    assert_eq!(receiver.bodies(), ["[{\"n\":0},{\"n\":1}]", "[{\"n\":2}]", "0\n1", "2"]);
}

#[test]
fn what_is_not_taken_ends_the_query() {
    let mut spec = sink(&format!("http:127.0.0.1:{}/x", free_port()), numbers(0..1).columns.schema());
    spec.options = options(&[("retry_for", "300 ms")]);
    let error = fill(&spec, &[numbers(0..1)]).unwrap_err();
    assert!(error.contains("cannot post to http://127.0.0.1:") && error.contains("tried for 300ms"), "{error}");
    let receiver = Receiver::start(&["400 Bad Request\r\n", "200 OK\r\n", "404 Not Found\r\n"]);
    spec.address = receiver.address().strip_prefix("http:").unwrap().into();
    let error = fill(&spec, &[numbers(0..1)]).unwrap_err();
    assert!(error.contains("the receiver answers 400"), "{error}");
    spec.options = options(&[("on_reject", "skip")]);
    fill(&spec, &[numbers(0..3)]).unwrap();
    assert_eq!(receiver.bodies().len(), 4);
    spec.changes = true;
    assert!(sink_error(&spec).contains("'http:' cannot take rows back"));
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::start(&["200 OK\r\n"; 4]);
    let to = elsewhere.address().strip_prefix("http:").unwrap().to_owned();
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let moved = format!("{status}\r\nlocation: http://{}\r\n", to.trim_start_matches("//"));
        let receiver = Receiver::start(&[moved.leak(), "200 OK\r\n"]);
        let spec = sink(&receiver.address(), numbers(0..1).columns.schema());
        let error = fill(&spec, &[numbers(0..1)]).unwrap_err();
        assert!(error.contains(&format!("the receiver answers {}", &status[..3])), "{error}");
        assert_eq!((receiver.bodies().len(), elsewhere.bodies().len()), (1, 0));
    }
}

#[test]
fn a_slow_receiver_leaves_no_room() {
    let receiver = Receiver::start(&["503 Service Unavailable\r\n"; 100]);
    let mut spec = sink(&receiver.address(), numbers(0..1).columns.schema());
    spec.options = options(&[("retry_for", "1 minute")]);
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    assert!(sink.has_room());
    sink.write(&numbers(0..5000)).unwrap();
    assert!(!sink.has_room());
    // Ending does not wait for the receiver, and giving up neither: that would take the minute of `retry_for`.
    let start = Instant::now();
    assert!(!sink.finish().unwrap());
    drop(sink);
    assert!(start.elapsed() < Duration::from_secs(30));
    let posted = receiver.bodies().len();
    std::thread::sleep(Duration::from_millis(700));
    assert!(receiver.bodies().len() <= posted + 1, "the threads have ended");
}

/// More receivers hang at once than there are connections, and the time of their requests is not over.
#[test]
fn receivers_that_hang_hold_up_no_other() {
    // Connections wait in the kernel: nobody accepts them.
    let silent: Vec<TcpListener> = (0..39).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let fast = Receiver::start(&[]);
    let hooks = silent.iter().map(|one| one.local_addr().unwrap().port()).chain([fast.port]);
    let hooks: Vec<String> = hooks.map(|port| format!("http://127.0.0.1:{port}/hook")).collect();
    let mut spec = sink("http:{hook}", numbers(0..1).columns.schema());
    spec.output = Some(OutputRows { has_addresses: true });
    spec.options = options(&[("timeout", "1 hour")]);
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    let rounds = 5;
    for round in 0..rounds {
        let count = hooks.len();
        let columns: [(&str, ArrayRef); 4] = [
            ("n", Arc::new(Int64Array::from_value(round, count))),
            ("query", Arc::new(UInt64Array::from_iter_values(0..count as u64))),
            ("id", Arc::new(StringArray::from_iter_values((0..count).map(|n| format!("{round}-{n}"))))),
            ("address", Arc::new(StringArray::from_iter_values(&hooks))),
        ];
        sink.write(&batch(columns.into())).unwrap();
    }
    let waiting = silent.len() as u64 * rounds as u64;
    flush_until(&mut *sink, &spec.host.health, |told| told.waiting_rows == waiting);
    assert_eq!(fast.bodies(), (0..rounds).map(|round| format!("{{\"n\":{round}}}")).collect::<Vec<_>>());
    assert_eq!(spec.host.health.report().left_out, 0);
}
