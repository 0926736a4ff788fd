//! What the generator can do: nanoseconds an event for readings and payloads alone, and events a second over loopback,
//! with the CPU time of the sending thread.
//!
//! ```text
//! cargo run --release -p rivulet-bench --example generator_throughput -- [queries]
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rivulet_bench::random::Random;
use rivulet_bench::streams::{Stream, StreamType};
use rivulet_bench::{GeneratorHandle, GeneratorOptions, Workload, WorkloadOptions};
use rivulet_connectors::mqtt::codec::{Qos, encode_v3};
use rmqtt_codec::types::{MQTT_LEVEL_311, Protocol, QoS};
use rmqtt_codec::v3;

fn main() -> Result<(), Box<dyn Error>> {
    let queries = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse())?;
    readings();
    lines(queries);
    over_loopback(queries)
}

/// Readings and payloads of each kind of stream.
fn readings() {
    const EVENTS: u32 = 2_000_000;
    let mut random = Random::new(1);
    for stream_type in StreamType::ALL {
        let mut streams: Vec<Stream> = (0..64).map(|_| Stream::new(stream_type, &mut random)).collect();
        let mut payload = Vec::with_capacity(256);
        let (start, mut bytes) = (Instant::now(), 0);
        for event in 0..EVENTS {
            payload.clear();
            let reading = streams[(event % 64) as usize].next(&mut random);
            reading.write_json(1_763_712_345_678_901 + i64::from(event), &mut payload);
            bytes += payload.len();
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(EVENTS);
        println!("{stream_type:?}: {ns:.1} ns an event, {:.0} bytes", bytes as f64 / f64::from(EVENTS));
    }
}

/// Lines for bulk submission.
fn lines(queries: u32) {
    let workload = Workload::new(WorkloadOptions { copies: 400, ..WorkloadOptions::default() });
    let Ok(workload) = workload else { return };
    let (start, mut out) = (Instant::now(), Vec::new());
    (0..queries.into()).for_each(|number| workload.write_query_line(number, &mut out));
    let ns = start.elapsed().as_nanos() as f64 / f64::from(queries);
    println!("query lines: {ns:.0} ns and {:.0} bytes each", out.len() as f64 / f64::from(queries));
}

/// As many events as the sender can send, to a client that drops them.
fn over_loopback(queries: u32) -> Result<(), Box<dyn Error>> {
    const DURATION: Duration = Duration::from_secs(3);
    let mut generator = GeneratorHandle::in_this_process(GeneratorOptions::broker(Qos::AtMostOnce))?;
    let start = Instant::now();
    let memory_bytes = generator.prepare(queries, WorkloadOptions::default())?;
    println!(
        "prepared {queries} queries in {:.2} s, {:.1} bytes each",
        start.elapsed().as_secs_f64(),
        memory_bytes as f64 / f64::from(queries)
    );

    let address = generator.address().ok_or("the generator listens")?;
    let mut socket = TcpStream::connect(address)?;
    let mut packets = Vec::new();
    let connect = v3::Connect { protocol: Protocol(MQTT_LEVEL_311), clean_session: true, ..v3::Connect::default() };
    encode_v3(connect.client_id("throughput").into(), &mut packets)?;
    let packet_id = 1.try_into()?;
    let topic_filters = vec![("#".into(), QoS::AtMostOnce)];
    encode_v3(v3::Packet::Subscribe { packet_id, topic_filters }, &mut packets)?;
    socket.write_all(&packets)?;
    let reader = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while matches!(socket.read(&mut buffer), Ok(read) if read > 0) {}
    });
    generator.wait_for_subscriptions(Duration::from_secs(10))?;

    for rate in [250_000.0, 500_000.0, 1_000_000.0, 20_000_000.0] {
        generator.start(rate / f64::from(queries), DURATION, 1.0)?;
        std::thread::sleep(DURATION);
        let report = generator.stop()?;
        let sent_per_s = report.events_sent as f64 / DURATION.as_secs_f64();
        let sender_cpu_s = report.sender_cpu_s.unwrap_or(f64::NAN);
        println!(
            "asked for {rate:.0}/s: sent {sent_per_s:.0}/s, {:.0} bytes an event, {:.0} ns of the sender's CPU an event \
             ({:.0}/s a core), lateness p50 {} us, p99 {} us, max {} us",
            report.bytes_sent as f64 / report.events_sent as f64,
            sender_cpu_s / report.events_sent as f64 * 1e9,
            report.events_sent as f64 / sender_cpu_s,
            report.lateness_us_p50,
            report.lateness_us_p99,
            report.lateness_us_max,
        );
    }
    drop(generator);
    reader.join().map_err(|_| "the reader failed")?;
    Ok(())
}
