//! Results that cannot be sent: what is saved meanwhile, what is not, and that nothing is lost.
//!
//! The broker is a minimal one that accepts results, and acknowledges them when the test says so.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet::config::{BrokerConfig, Config};
use rivulet::engine::Engine;
use rivulet_storage::Place;
use serde_json::{Value, json};
use socket2::SockRef;
use tempfile::TempDir;

use super::checkpoints::{checkpoints, on_demand, run};
use super::kill_mqtt::{connack, split, suback};
use super::server::{Publisher, wait};
use super::support::AsOperator;

/// What the broker and the test have in common.
#[derive(Default)]
struct Session {
    is_over: bool,
    is_subscribed: bool,
    /// Whether results are not acknowledged.
    holds: bool,
    /// Whether nothing is read.
    stalls: bool,
    /// The packet identifiers of results that are not.
    held: Vec<[u8; 2]>,
    /// Results by topic, in their order, those that came again included.
    results: BTreeMap<String, Vec<Value>>,
    /// Packets to be sent.
    out: Vec<u8>,
    sent: u16,
    acknowledged: usize,
}

struct Broker {
    address: SocketAddr,
    session: Arc<Mutex<Session>>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        // A receive buffer that the system may enlarge takes tens of megabytes from a broker that reads nothing.
        SockRef::from(&listener).set_recv_buffer_size(64 << 10).expect("a buffer");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a listener");
        let session = Arc::<Mutex<Session>>::default();
        let of_thread = session.clone();
        let thread = thread::spawn(move || {
            while !of_thread.lock().is_over {
                match listener.accept() {
                    // Whoever was connected may connect again.
                    Ok((socket, _)) => drop(serve(socket, &of_thread)),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Self { address, session, thread: Some(thread) }
    }

    /// Sends an event with QoS 1.
    fn send(&self, topic: &str, event: &Value) {
        let mut session = self.session.lock();
        session.sent += 1;
        let mut body = (topic.len() as u16).to_be_bytes().to_vec();
        body.extend_from_slice(topic.as_bytes());
        body.extend_from_slice(&session.sent.to_be_bytes());
        body.push(0);
        body.extend_from_slice(event.to_string().as_bytes());
        let (low, high) = ((body.len() % 128) as u8, u8::try_from(body.len() / 128).expect("it is short"));
        session.out.push(0x32);
        let length = if high > 0 { vec![low | 0x80, high] } else { vec![low] };
        session.out.extend(length);
        session.out.extend(body);
    }

    fn hold(&self, holds: bool) {
        self.session.lock().holds = holds;
    }

    fn stall(&self, stalls: bool) {
        self.session.lock().stalls = stalls;
    }

    fn results(&self, topic: &str) -> Vec<Value> {
        self.session.lock().results.get(topic).cloned().unwrap_or_default()
    }

    /// Waits until there are so many results.
    fn wait_for(&self, topic: &str, count: usize) -> Vec<Value> {
        wait(topic, || self.results(topic).len() >= count);
        self.results(topic)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.session.lock().is_over = true;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Serves one connection to its end.
fn serve(mut socket: TcpStream, session: &Mutex<Session>) -> std::io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(Duration::from_millis(2)))?;
    let (mut read, mut bytes) = (Vec::new(), [0; 16 << 10]);
    loop {
        let stalls = session.lock().stalls;
        match if stalls { Err(ErrorKind::WouldBlock.into()) } else { socket.read(&mut bytes) } {
            Ok(0) => return Ok(()),
            Ok(count) => read.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
        let mut session = session.lock();
        let session = &mut *session;
        if session.is_over {
            return Ok(());
        }
        let mut answer = Vec::new();
        while let Some((first, body, rest)) = split(&read) {
            match first >> 4 {
                1 => answer.extend_from_slice(&connack(false)),
                3 => {
                    let topic_end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                    let topic = String::from_utf8(body[2..topic_end].to_vec()).expect("a topic");
                    let (id, behind) = body[topic_end..].split_first_chunk::<2>().expect("results have QoS 1");
                    let payload = &behind[1 + usize::from(behind[0])..];
                    session.results.entry(topic).or_default().push(serde_json::from_slice(payload).expect("JSON"));
                    session.held.push(*id);
                }
                4 => session.acknowledged += 1,
                8 => {
                    answer.extend(suback(body));
                    session.is_subscribed = true;
                }
                10 => answer.extend_from_slice(&[0xb0, 4, body[0], body[1], 0, 0]),
                12 => answer.extend_from_slice(&[0xd0, 0]),
                14 => return Ok(()),
                other => panic!("a packet of type {other}"),
            }
            let behind = rest.to_vec();
            read = behind;
        }
        if session.is_subscribed {
            answer.append(&mut session.out);
        }
        if !session.holds {
            session.held.drain(..).for_each(|id| answer.extend([0x40, 2, id[0], id[1]]));
        }
        socket.write_all(&answer)?;
    }
}

fn configuration(folder: &Path, broker: &Broker) -> Config {
    let mut config = on_demand(folder);
    config.broker = Some(BrokerConfig {
        host: broker.address.ip().to_string(),
        port: broker.address.port(),
        tls: None,
        username: None,
        password: None,
        client_id: Some("rivulet".into()),
        version_5: true,
        message_bytes_max: 16 << 20,
        qos: 1,
    });
    config.embedded = None;
    config.sink_qos = 1;
    config
}

fn steps(name: &str, durability: &str, select: &str) -> String {
    format!(
        "APPLICATION {name} (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:{name}/{{id}}' FORMAT JSON \
         WITH (durability => '{durability}') OUTPUT 'mqtt:out/{name}' FORMAT JSON AS SELECT n, {select} AS step FROM numbers"
    )
}

#[test]
#[ignore = "slow"]
fn what_has_left_is_saved_and_what_has_not_comes_again() {
    let (folder, copy) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let broker = Broker::start();
    let engine = Engine::open(configuration(folder.path(), &broker)).expect("an engine");
    let send = |broker: &Broker, name: &str, n: i64| broker.send(&format!("{name}/a"), &json!({ "n": n }));
    for (name, durability) in [("logged", "log"), ("plain", "checkpoint")] {
        run(&engine, &format!("CREATE {}", steps(name, durability, "n - lag(n)")));
        run(&engine, &format!("CREATE QUERY {name} FROM APPLICATION {name} WITH (id => 'a')"));
        send(&broker, name, 1);
        broker.wait_for(&format!("out/{name}"), 1);
    }
    engine.checkpoint().expect("everything has left");

    broker.hold(true);
    for name in ["logged", "plain"] {
        send(&broker, name, 5);
        broker.wait_for(&format!("out/{name}"), 2);
    }
    let replacement = format!("CREATE OR REPLACE {}", steps("logged", "log", "10 * (n - lag(n))"));
    thread::scope(|scope| {
        let replaced = scope.spawn(|| engine.execute(&replacement).pop().expect("an answer"));
        let error = engine.checkpoint().expect_err("a result has not left");
        assert!(error.message.contains("have not left") && error.hint.is_some(), "{error:?}");
        let error = replaced.join().expect("it ends").expect_err("a result has not left");
        assert!(
            error.message.contains("'logged' stays as it was") && error.message.contains("have not left"),
            "{error:?}"
        );
    });
    assert!(engine.problems().iter().any(|problem| problem.contains("have not left")), "{:?}", engine.problems());
    let backup = engine.back_up().expect("the checkpoint before and the log will do");
    assert!(backup.notices()[0].contains("the checkpoint before, and the log"), "{:?}", backup.notices());
    let (file, data) = (copy.path().join("backup"), copy.path().join("data"));
    backup.write(&mut std::fs::File::create(&file).expect("a file")).expect("written");
    drop(backup);

    // What was held back goes on as if nothing had been tried.
    broker.hold(false);
    wait("a checkpoint", || engine.checkpoint().is_ok());
    run(&engine, &replacement);
    for name in ["logged", "plain"] {
        send(&broker, name, 8);
        broker.wait_for(&format!("out/{name}"), 3);
    }
    let found = |broker: &Broker, name: &str| -> Vec<Option<i64>> {
        broker.results(&format!("out/{name}")).iter().map(|row| row["step"].as_i64()).collect()
    };
    assert_eq!(found(&broker, "logged"), [None, Some(4), Some(30)]);
    assert_eq!(found(&broker, "plain"), [None, Some(4), Some(3)]);
    engine.shutdown();
    drop(engine);

    // A server that was killed while nothing could leave: the backup is one.
    let broker = Broker::start();
    rivulet::data_folder::archive::restore(&file, &data, &Place::Folder(data.join("checkpoints"))).expect("restored");
    let engine = Engine::open(configuration(copy.path(), &broker)).expect("an engine");
    assert_eq!(checkpoints(&engine).recovered.expect("something").problems, Vec::<String>::new());
    broker.wait_for("out/logged", 1);
    send(&broker, "logged", 8);
    send(&broker, "plain", 8);
    broker.wait_for("out/logged", 2);
    broker.wait_for("out/plain", 1);
    assert_eq!(found(&broker, "logged"), [Some(4), Some(3)], "the result that was on its way is computed once more");
    assert_eq!(found(&broker, "plain"), [Some(3)], "saved by the checkpoint that could not save the other");
}

/// Replaces an application while numbers come, and returns how many did.
fn replace_under_input(engine: &Engine, broker: &Broker, topic: &str, version: &str) -> i64 {
    const BEFORE: i64 = 20;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut next = 0;
            while next < BEFORE || !is_over.load(Ordering::Acquire) {
                broker.send(topic, &json!({ "n": next }));
                next += 1;
                thread::sleep(Duration::from_millis(1));
            }
            next
        });
        wait("numbers to come", || broker.session.lock().acknowledged as i64 >= BEFORE / 2);
        let replaced = engine.execute(&format!("CREATE OR REPLACE {version}")).pop().expect("an answer");
        is_over.store(true, Ordering::Release);
        replaced.expect("acknowledgements of its results come behind events, and those are read");
        sender.join().expect("it ends")
    })
}

#[test]
fn a_version_with_other_inputs_takes_over_while_events_come() {
    let folder = TempDir::new().expect("a folder");
    let broker = Broker::start();
    let engine = Engine::open(configuration(folder.path(), &broker)).expect("an engine");
    let before = steps("logged", "log", "n - lag(n)");
    run(&engine, &format!("CREATE {before}"));
    run(&engine, "CREATE QUERY logged FROM APPLICATION logged WITH (id => 'a')");
    replace_under_input(&engine, &broker, "logged/a", &before.replace("mqtt:logged/", "mqtt:there/"));
    broker.send("there/a", &json!({ "n": 1_000_000 }));
    wait("the new version", || broker.results("out/logged").last().is_some_and(|row| row["n"] == 1_000_000));
    let found = broker.results("out/logged");
    let (last, of_before) = found.split_last().expect("results");
    for (n, row) in of_before.iter().enumerate() {
        assert_eq!(row["n"], n, "each once, up to where the version before ended");
    }
    assert_eq!(last["step"], 1_000_001 - of_before.len(), "with the state of the version before");
}

#[test]
fn queries_that_are_equal_no_more_part_while_events_come() {
    const QUERIES: usize = 20;
    let folder = TempDir::new().expect("a folder");
    let broker = Broker::start();
    let engine = Engine::open(configuration(folder.path(), &broker)).expect("an engine");
    let version = |select: &str| {
        format!(
            "APPLICATION rooms (room TEXT, side TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:all' FORMAT JSON \
             WITH (durability => 'log') OUTPUT 'mqtt:out/{{room}}/{{side}}' FORMAT JSON \
             AS SELECT n, n - lag(n) AS step, $room AS room{select} FROM numbers"
        )
    };
    run(&engine, &format!("CREATE {}", version("")));
    // So many that they read the topic together, and of each room two that are equal but for their output.
    let topics = || (0..QUERIES).flat_map(|room| ["in", "out"].map(|side| (room, side)));
    for (room, side) in topics() {
        run(
            &engine,
            &format!("CREATE QUERY q{room}{side} FROM APPLICATION rooms WITH (room => '{room}', side => '{side}')"),
        );
    }
    let events = replace_under_input(&engine, &broker, "all", &version(", $side AS side"));
    for (room, side) in topics() {
        let results = broker.wait_for(&format!("out/{room}/{side}"), events as usize);
        for (n, row) in results.iter().enumerate() {
            assert_eq!((row["n"].as_u64(), row["step"].as_i64()), (Some(n as u64), (n > 0).then_some(1)));
            assert!(row.get("side").is_none_or(|of_row| of_row == side), "{row}");
        }
        assert_eq!(results.len(), events as usize);
    }
}

#[test]
#[ignore = "slow"]
fn a_log_at_its_limit_waits_for_results_to_leave_and_then_goes_on() {
    const EVENTS: usize = 400;
    let folder = TempDir::new().expect("a folder");
    let broker = Broker::start();
    let mut config = configuration(folder.path(), &broker);
    config.durability.log_bytes_max = 128 << 10;
    let engine = Engine::open(config).expect("an engine");
    run(&engine, &format!("CREATE {}", steps("logged", "log", "n - lag(n)")));
    run(&engine, "CREATE QUERY logged FROM APPLICATION logged WITH (id => 'a')");
    broker.hold(true);
    for n in 0..EVENTS {
        broker.send("logged/a", &json!({ "n": n, "filling": "x".repeat(700) }));
    }
    let waits = || engine.status().log.and_then(|log| log.problem);
    wait("the log to be full", || waits().is_some_and(|problem| problem.contains("it waits for a checkpoint")));
    // Until an event is processed there is nothing that a crash would lose.
    wait("results to be on their way", || engine.status().applications[0].results > 0);
    let error = engine.checkpoint().expect_err("results have not left, and a crash would lose them");
    assert!(error.message.contains("have not left"), "{error:?}");
    let error = engine.ready().expect_err("nothing is received");
    assert!(error.hint.expect("a hint").contains("rivulet status"), "{}", error.message);
    assert!(broker.session.lock().acknowledged < EVENTS);
    broker.hold(false);
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while broker.session.lock().acknowledged < EVENTS {
        assert!(std::time::Instant::now() < deadline, "{:?}", engine.problems());
        let _ = engine.checkpoint();
        thread::sleep(Duration::from_millis(200));
    }
    let results = broker.wait_for("out/logged", EVENTS);
    let found: Vec<u64> = results.iter().map(|row| row["n"].as_u64().expect("a number")).collect();
    assert_eq!(found, (0..EVENTS as u64).collect::<Vec<_>>());
}

#[test]
fn where_results_are_events_of_the_same_log_a_full_one_does_not_stop_them() {
    const EVENTS: usize = 150;
    let folder = TempDir::new().expect("a folder");
    let mut config = on_demand(folder.path());
    config.durability.log_bytes_max = 128 << 10;
    config.checkpoint.as_mut().expect("checkpoints are on by default").interval = Some(Duration::from_millis(200));
    let engine = Engine::open(config).expect("an engine");
    for (name, input, output) in [("first", "in", "between"), ("second", "between", "out")] {
        run(
            &engine,
            &format!(
                "CREATE APPLICATION {name} INPUT numbers (n BIGINT, filling TEXT) FROM 'mqtt:{input}' FORMAT JSON \
                 WITH (durability => 'log') OUTPUT 'mqtt:{output}' FORMAT JSON AS SELECT n, filling FROM numbers; \
                 CREATE QUERY {name} FROM APPLICATION {name}"
            ),
        );
    }
    let address = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(address);
    listener.subscribe("out");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut publisher = Publisher::connect(address);
            for n in 0..EVENTS {
                publisher.publish("in", &json!({ "n": n, "filling": "x".repeat(500) }).to_string());
            }
        });
        for n in 0..EVENTS {
            let (_, payload) = listener.next();
            let row: Value = serde_json::from_slice(&payload).expect("JSON");
            assert_eq!(row["n"], n, "each once, and in order");
        }
    });
    assert!(engine.status().log.expect("a log").next > 2 * EVENTS as u64);
}

#[test]
fn nobody_else_waits_while_a_replacement_waits_for_events_to_be_processed() {
    const EVENTS: usize = 2_000;
    let folder = TempDir::new().expect("a folder");
    let broker = Broker::start();
    let mut config = configuration(folder.path(), &broker);
    config.outbound_bytes_max = 1 << 10;
    let engine = Engine::open(config).expect("an engine");
    let version = |input: &str| {
        format!(
            "APPLICATION slow (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:{input}/{{id}}' FORMAT JSON \
             OUTPUT 'mqtt:out/slow' FORMAT JSON AS SELECT n, repeat('x', 10000) AS filling FROM numbers"
        )
    };
    run(&engine, &format!("CREATE {}", version("slow")));
    run(&engine, "CREATE QUERY slow FROM APPLICATION slow WITH (id => 'a')");
    run(&engine, &format!("CREATE {}", steps("other", "checkpoint", "n - lag(n)")));
    broker.send("slow/a", &json!({ "n": 0 }));
    broker.wait_for("out/slow", 1);
    broker.stall(true);
    // A batch is processed as a whole, so no batch may have all events.
    for n in 1..EVENTS {
        broker.send("slow/a", &json!({ "n": n }));
        if n % 50 == 0 {
            let arrived = || engine.status().total.events + engine.status().total.inbox_rows;
            wait("events to arrive", || arrived() > n as u64);
        }
    }
    let (mut waiting, mut since) = (0, std::time::Instant::now());
    wait("results that find no room", || {
        let now = engine.status().total.inbox_rows;
        if now != waiting {
            (waiting, since) = (now, std::time::Instant::now());
        }
        waiting > 0 && since.elapsed() > Duration::from_millis(500)
    });
    let replacement = format!("CREATE OR REPLACE {}", version("there"));
    thread::scope(|scope| {
        let replaced = scope.spawn(|| engine.execute(&replacement).pop().expect("an answer"));
        wait("the replacement to wait", || {
            let altered = engine.execute("ALTER QUERY slow SET (id => 'b')").pop().expect("an answer");
            altered.is_err_and(|error| error.message.contains("being replaced"))
        });
        run(&engine, "CREATE QUERY other FROM APPLICATION other WITH (id => 'a')");
        assert!(!replaced.is_finished(), "what waits finds no room yet");
        broker.stall(false);
        replaced.join().expect("it ends").expect("it takes over");
    });
    broker.send("there/a", &json!({ "n": EVENTS }));
    let results = broker.wait_for("out/slow", EVENTS + 1);
    let found: Vec<usize> = results.iter().map(|row| row["n"].as_u64().expect("a number") as usize).collect();
    assert_eq!(found, (0..=EVENTS).collect::<Vec<_>>(), "each once, and in order");
}
