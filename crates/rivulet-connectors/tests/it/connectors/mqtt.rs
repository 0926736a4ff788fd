//! `mqtt:` as a sink, against a broker of a few lines that acknowledges when it is told to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array};
use rivulet_connectors::connector::{Condition, Connectors};
use rivulet_dataflow::{Batch, Sink};

use super::support::{PATIENCE, batch, flush_until, options, sink};

fn rows(range: std::ops::Range<i64>) -> Batch {
    batch(vec![("n", Arc::new(Int64Array::from_iter_values(range)) as ArrayRef)])
}

/// Agrees to be connected with.
fn accept(listener: TcpListener) -> JoinHandle<TcpStream> {
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let (first, _) = packet(&mut socket);
        assert_eq!(first, 0x10, "CONNECT");
        socket.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
        socket
    })
}

/// The next packet, of less than 128 bytes.
fn packet(socket: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    socket.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(head[1])];
    socket.read_exact(&mut body).unwrap();
    (head[0], body)
}

fn await_drained(sink: &mut dyn Sink) {
    let deadline = Instant::now() + PATIENCE;
    while !sink.drain().unwrap() {
        assert!(Instant::now() < deadline, "it is not drained");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_checkpoint_waits_for_the_acknowledgements_of_what_was_written_before() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let broker = format!("mqtt://{}", listener.local_addr().unwrap());
    let accepted = accept(listener);
    let mut spec = sink("mqtt:out", rows(0..1).columns.schema());
    spec.options = options(&[("broker", &broker), ("qos", "1")]);
    let health = spec.host.health.clone();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    let mut socket = accepted.join().unwrap();
    await_drained(&mut *sink);
    sink.write(&rows(0..3)).unwrap();
    let mut packets: Vec<[u8; 2]> = Vec::new();
    for n in 0..3 {
        let (first, body) = packet(&mut socket);
        assert_eq!(first, 0x32, "PUBLISH with QoS 1");
        assert!(body.ends_with(format!("{{\"n\":{n}}}").as_bytes()), "{body:?}");
        packets.push([body[5], body[6]]);
    }
    let mut acknowledge = |packet: [u8; 2]| socket.write_all(&[0x40, 2, packet[0], packet[1]]).unwrap();
    // The first one is missing, whatever came of the others.
    acknowledge(packets[1]);
    acknowledge(packets[2]);
    for _ in 0..20 {
        assert!(!sink.drain().unwrap());
        thread::sleep(Duration::from_millis(2));
    }
    let told = health.report();
    assert_eq!((told.rows, told.waiting_rows), (0, 3), "they are sent, and not taken");
    acknowledge(packets[0]);
    await_drained(&mut *sink);
    flush_until(&mut *sink, &health, |health| (health.rows, health.waiting_rows) == (3, 0));
    // Another checkpoint waits for what came since.
    sink.write(&rows(3..4)).unwrap();
    assert!(!sink.drain().unwrap());
    let (_, body) = packet(&mut socket);
    socket.write_all(&[0x40, 2, body[5], body[6]]).unwrap();
    await_drained(&mut *sink);
    // A broker that goes away, for good.
    drop(socket);
    sink.write(&rows(4..6)).unwrap();
    flush_until(&mut *sink, &health, |health| health.condition == Condition::Retrying);
    let told = health.report();
    assert_eq!((told.rows, told.waiting_rows), (4, 2), "{told:?}");
}
