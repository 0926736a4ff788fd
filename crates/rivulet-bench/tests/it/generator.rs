//! The generator as an engine meets it: over loopback, in both versions of MQTT, with an ordinary client too.

use std::collections::HashMap;
use std::io::{Write, stderr};
use std::process::{Command, Stdio};
use std::time::Duration;

use rivulet_bench::{
    BrokerOptions, GeneratorHandle, GeneratorOptions, HomesOptions, SimulatedHomes, Workload, WorkloadOptions,
};
use rivulet_connectors::mqtt::codec::{Qos, Version};

use crate::support::{Client, PATIENCE};

fn generator() -> GeneratorHandle {
    GeneratorHandle::in_this_process(GeneratorOptions::broker(Qos::AtMostOnce)).unwrap()
}

fn workload() -> Workload {
    Workload::new(WorkloadOptions::default()).unwrap()
}

#[test]
fn a_subscriber_receives_every_event_in_the_order_of_its_times() {
    for version in [Version::V3, Version::V5] {
        let mut generator = generator();
        generator.prepare(100, WorkloadOptions::default()).unwrap();
        let mut client = Client::subscribe(generator.address().unwrap(), version, &workload().input_filters());
        generator.wait_for_subscriptions(PATIENCE).unwrap();
        let start_us = generator.start(50.0, Duration::from_millis(400), 1.0).unwrap();
        let report = generator.finish(PATIENCE).unwrap();
        assert!(!report.is_running && report.queries == 100 && report.connections == 1, "{report:?}");
        // 100 queries at 50 a second for 0.4 s: 2000 with a deviation of 45.
        assert!((1700..2300).contains(&report.events_sent), "{report:?}");
        assert_eq!((report.events_unrouted, report.events_lost), (0, 0));
        assert!(report.lateness_us_max >= report.lateness_us_p99);

        let topics: HashMap<String, u64> =
            (0..100).map(|number| (workload().query(number).input_topic, number)).collect();
        let (mut received, mut last_ms) = (0, start_us as f64 / 1000.0 - 1.0);
        while received < report.events_sent {
            let message = client.message(PATIENCE).expect("every event arrives");
            assert!(topics.contains_key(&message.topic), "{}", message.topic);
            let ts = message.payload["ts"].as_f64().unwrap();
            assert!(ts >= last_ms, "{ts} after {last_ms}");
            last_ms = ts;
            received += 1;
        }
        assert!(last_ms <= start_us as f64 / 1000.0 + 500.0 + PATIENCE.as_millis() as f64);
        assert!(client.message(Duration::from_millis(100)).is_none());
    }
}

#[test]
fn at_qos_1_no_more_is_under_way_than_was_acknowledged() {
    let mut generator = GeneratorHandle::in_this_process(GeneratorOptions::broker(Qos::AtLeastOnce)).unwrap();
    generator.prepare(100, WorkloadOptions::default()).unwrap();
    let mut client = Client::subscribe_to_any(generator.address().unwrap(), &workload().input_filters());
    generator.wait_for_subscriptions(PATIENCE).unwrap();
    generator.start(2_000.0, Duration::from_millis(500), 1.0).unwrap();
    let mut received = Vec::new();
    while let Some(message) = client.message(Duration::from_millis(500)) {
        received.push(message.packet_id);
    }
    assert!(received.len() > 60_000 && received.len() <= 65_535, "{}", received.len());
    assert!(received.iter().zip(1..).all(|(id, expected)| *id == expected), "identifiers follow each other");
    client.acknowledge(&received);
    // 100 queries at 2,000 a second for half a second: 100,000 with a deviation of 316, fewer than can be under way
    // behind the first.
    let mut all = received.len() as u64;
    while client.message(Duration::from_millis(500)).is_some() {
        all += 1;
    }
    let report = generator.finish(PATIENCE).unwrap();
    assert_eq!((all, report.events_lost), (report.events_sent, 0));
}

#[test]
fn runs_are_repeatable_and_follow_each_other() {
    let events = |runs: usize| {
        let mut generator = generator();
        let address = generator.address().unwrap();
        let mut client = Client::subscribe(address, Version::V3, &["#".into()]);
        generator.prepare(10, WorkloadOptions { seed: 3, ..WorkloadOptions::default() }).unwrap();
        let mut events = Vec::new();
        for _ in 0..runs {
            generator.start(100.0, Duration::from_millis(100), 1.0).unwrap();
            let sent = generator.finish(PATIENCE).unwrap().events_sent;
            for _ in 0..sent {
                let mut message = client.message(PATIENCE).expect("every event arrives");
                message.payload.as_object_mut().unwrap().remove("ts");
                events.push((message.topic, message.payload.to_string()));
            }
        }
        events
    };
    let (once, twice) = (events(1), events(2));
    assert!(once.len() > 50, "{}", once.len());
    assert_eq!(once[..], twice[..once.len()]);
    assert!(twice.len() > once.len());
}

#[test]
fn results_are_acknowledged_counted_and_dropped() {
    let mut generator = generator();
    for (count, version) in [(1, Version::V3), (2, Version::V5)] {
        let mut client = Client::subscribe(generator.address().unwrap(), version, &["home/+/power".into()]);
        client.publish_acknowledged("home/1/ac");
        let report = generator.report().unwrap();
        assert_eq!((report.results_received, report.result_bytes), (count, 2 * count));
    }
}

#[test]
fn a_crowd_has_a_connection_for_each_query() {
    let mut generator = GeneratorHandle::in_this_process(GeneratorOptions::Crowd(([127, 0, 0, 1], 0).into())).unwrap();
    generator.prepare(40, WorkloadOptions::default()).unwrap();
    let mut clients: Vec<Client> = (0..40)
        .map(|number| {
            let topic = workload().query(number).input_topic;
            Client::subscribe_to_any(generator.address().unwrap(), &[topic])
        })
        .collect();
    generator.wait_for_subscriptions(PATIENCE).unwrap();
    generator.start(20.0, Duration::from_millis(200), 1.0).unwrap();
    let report = generator.finish(PATIENCE).unwrap();
    assert_eq!((report.connections, report.filters, report.events_lost), (40, 40, 0));
    let mut received = 0;
    for (number, client) in clients.iter_mut().enumerate() {
        while let Some(message) = client.message(Duration::from_millis(100)) {
            assert_eq!(message.topic, workload().query(number as u64).input_topic);
            received += 1;
        }
    }
    assert_eq!(received, report.events_sent);
    clients[0].publish_acknowledged("home/0/ac");
    assert_eq!(generator.report().unwrap().results_received, 1);
}

#[test]
fn events_without_a_subscriber_are_counted_and_commands_refused_with_a_hint() {
    let mut generator = generator();
    generator.prepare(10, WorkloadOptions::default()).unwrap();
    let error = generator.wait_for_subscriptions(Duration::from_millis(10)).unwrap_err().to_string();
    assert!(error.contains("nobody has subscribed") && error.contains("hint:"), "{error}");
    generator.start(100.0, Duration::from_millis(50), 1.0).unwrap();
    let report = generator.finish(PATIENCE).unwrap();
    assert!(report.events_sent == 0 && report.events_unrouted > 10, "{report:?}");

    assert!(generator.start(-1.0, Duration::from_secs(1), 1.0).unwrap_err().to_string().contains("hint:"));
    assert!(generator.prepare(u32::MAX, WorkloadOptions::default()).unwrap_err().to_string().contains("hint:"));
    let unknown = WorkloadOptions { applications: vec!["nothing".into()], ..WorkloadOptions::default() };
    assert!(generator.prepare(1, unknown).unwrap_err().to_string().contains("nothing"));
}

#[test]
fn what_is_no_mqtt_is_disconnected_and_others_go_on() {
    use std::io::{Read, Write};
    let mut generator = generator();
    let mut client = Client::subscribe(generator.address().unwrap(), Version::V3, &["#".into()]);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x10, 0xff, 0xff, 0xff, 0xff], &[0xc0, 0], &[0x10, 2, 0, 9]] {
        let mut socket = std::net::TcpStream::connect(generator.address().unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(garbage).unwrap();
        // Closed or reset, but not left open: a timeout would be WouldBlock.
        let end = socket.read(&mut [0; 16]);
        assert!(!matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "{end:?}");
    }
    client.publish_acknowledged("still/here");
    assert_eq!(generator.report().unwrap().connections, 1);
}

#[test]
fn homes_publish_to_a_broker_over_their_connections() {
    // The generator is the broker here, and counts what it receives.
    let mut broker = generator();
    let address = broker.address().unwrap().to_string();
    let options = HomesOptions {
        broker: BrokerOptions::new(address, 4, "home"),
        queries: 50,
        rate_per_query: 20.0,
        duration: Duration::from_secs(60),
        episode_factor: 20.0,
    };
    let homes = SimulatedHomes::start(&workload(), options).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    while homes.progress().events_sent < 100 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(broker.report().unwrap().connections, 4);
    let progress = homes.stop();
    assert!(progress.is_finished && progress.events_sent >= 100 && progress.events_lost == 0, "{progress:?}");
    while broker.report().unwrap().results_received < progress.events_sent && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(broker.report().unwrap().results_received, progress.events_sent);
}

#[test]
fn a_broker_that_is_not_there_is_an_error_with_a_hint() {
    let address = rivulet_testing_ports::free_address();
    let options = GeneratorOptions::Client(BrokerOptions::new(address.to_string(), 1, "generator"));
    let error = rivulet_bench::run_generator(options, &b""[..], Vec::new()).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("hint:"), "{error}");
}

/// Whether a program of Mosquitto is installed; without it there is nothing to test against.
fn is_installed(program: &str) -> bool {
    let installed = Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !installed {
        _ = writeln!(stderr(), "skipped: {program} is not installed");
    }
    installed
}

#[test]
fn mosquitto_sub_understands_the_generator() {
    if !is_installed("mosquitto_sub") {
        return;
    }
    for version in ["mqttv311", "mqttv5"] {
        let mut generator = generator();
        generator.prepare(20, WorkloadOptions::default()).unwrap();
        let port = generator.address().unwrap().port().to_string();
        let arguments = ["-h", "127.0.0.1", "-p", &port, "-V", version, "-q", "1", "-C", "100", "-W", "10", "-v"];
        let mut command = Command::new("mosquitto_sub");
        command.args(arguments).args(workload().input_filters().iter().flat_map(|filter| ["-t", filter.as_str()]));
        let subscriber = command.stdout(Stdio::piped()).spawn().unwrap();
        generator.wait_for_subscriptions(PATIENCE).unwrap();
        generator.start(50.0, Duration::from_secs(5), 1.0).unwrap();
        // It ends by itself: after a hundred messages, or ten seconds.
        let output = subscriber.wait_with_output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        assert_eq!(lines.lines().count(), 100, "{version}");
        for line in lines.lines() {
            let (topic, payload) = line.split_once(' ').unwrap();
            assert_eq!(topic.split('/').count(), 3, "{line}");
            assert!(serde_json::from_str::<serde_json::Value>(payload).unwrap()["ts"].is_number(), "{line}");
        }
    }
}

/// A process that ends with the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn as_a_client_it_publishes_through_a_real_broker() {
    if !is_installed("mosquitto") {
        return;
    }
    let address = rivulet_testing_ports::free_address();
    let mut command = Command::new("mosquitto");
    command.args(["-p", &address.port().to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let _mosquitto = Ended(command.spawn().unwrap());
    let deadline = std::time::Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(address).is_err() {
        assert!(std::time::Instant::now() < deadline, "the broker is up in time");
        std::thread::sleep(Duration::from_millis(20));
    }

    let broker = BrokerOptions::new(address.to_string(), 2, "generator");
    let mut generator = GeneratorHandle::in_this_process(GeneratorOptions::Client(broker)).unwrap();
    assert_eq!(generator.address(), None);
    generator.prepare(50, WorkloadOptions::default()).unwrap();
    generator.wait_for_subscriptions(PATIENCE).unwrap();
    let mut subscriber = Client::subscribe_to_any(address, &workload().input_filters());
    generator.start(20.0, Duration::from_millis(300), 1.0).unwrap();
    let report = generator.finish(PATIENCE).unwrap();
    assert!(report.events_sent > 100 && report.events_lost == 0 && report.connections == 2, "{report:?}");
    for _ in 0..report.events_sent {
        assert!(subscriber.message(PATIENCE).expect("every event arrives").payload["ts"].is_number());
    }
}
