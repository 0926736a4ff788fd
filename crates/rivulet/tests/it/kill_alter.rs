//! Queries of durable topics are altered while the server is killed at random moments: each event counts once, with the
//! values that its query had when the event came.
//!
//! Events and changes have one order: a change begins when all events before it are acknowledged. A change that a kill
//! interrupted was made or not; the next server says which. `RIVULET_KILLS` is the number of kills, and `RIVULET_SEED`
//! the seed of the random numbers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rivulet::api::types::QueryAltered;
use rivulet::http_client::{Client, ClientError};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kill::{DAY_MS, Device, WINDOW, WINDOW_BEGIN_MS, kills, random};
use crate::server::{Publisher, Server, free_port, wait};

/// No step of the test takes longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// More than share the decoding of a topic.
const QUERIES: usize = 24;

/// Topics that queries read; most read the first.
const TOPICS: u64 = 3;

/// Steps between two kills: events and changes.
const STEPS: u64 = 60;

const SCRIPT: &str = "CREATE APPLICATION totals (topic TEXT, low BIGINT, scale BIGINT, name TEXT)
    INPUT readings (ts TIMESTAMP EVENT TIME, n BIGINT) FROM 'mqtt:in/{topic}' FORMAT JSON
    WITH (idle_timeout => INTERVAL '1000 days', durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON
    AS SELECT count(*) AS events, sum(n * $scale) AS total FROM readings WHERE n > $low
    GROUP BY tumble(ts, INTERVAL '1 day')";

/// What a query is to have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Values {
    topic: u64,
    low: u64,
    scale: u64,
}

/// A query, and what it has counted.
#[derive(Clone, Debug, Default)]
struct Query {
    values: Values,
    events: u64,
    total: u64,
}

impl Query {
    fn take(&mut self, topic: u64, n: u64) {
        if self.values.topic == topic && n > self.values.low {
            self.events += 1;
            self.total += n * self.values.scale;
        }
    }

    /// Whether it begins anew with these values.
    fn alter(&mut self, values: Values) -> bool {
        let begins_anew = (values.topic, values.scale) != (self.values.topic, self.values.scale);
        if begins_anew {
            (self.events, self.total) = (0, 0);
        }
        self.values = values;
        begins_anew
    }
}

/// The server, and who uses it.
struct World<'f> {
    folder: &'f Path,
    server: Server,
    device: Device,
    killer: Option<JoinHandle<()>>,
}

impl World<'_> {
    /// Has the server be killed in so many milliseconds.
    fn kill_in(&mut self, ms: u64) {
        let id = self.server.id().to_string();
        self.killer = Some(thread::spawn(move || {
            thread::sleep(Duration::from_millis(ms));
            assert!(Command::new("kill").args(["-KILL", &id]).status().expect("it runs").success());
        }));
    }

    /// Starts the server again if it was killed.
    fn look(&mut self) {
        if self.killer.as_ref().is_some_and(JoinHandle::is_finished) {
            self.killer.take().expect("it was just there").join().expect("it has killed");
            self.server.wait_for_end();
            self.server = Server::start_at(self.folder, self.server.mqtt, 1);
        }
    }

    /// Waits until at most so many events are not acknowledged.
    fn settle(&mut self, unacknowledged_max: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.device.unacknowledged() > unacknowledged_max {
            self.device.receive();
            self.look();
            assert!(Instant::now() < deadline, "waited for acknowledgements");
        }
    }

    /// Tries until the server answers.
    fn ask<T>(&mut self, ask: impl Fn(&Client) -> Result<T, ClientError>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.look();
            match ask(&Client::new(&self.server.url()).expect("a client")) {
                Ok(answer) => return answer,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn values(&mut self, name: &str) -> Values {
        let shown: Value = self.ask(|client| client.get(&format!("/api/v1/queries/{name}"), &[]));
        let number = |value: &Value| match value {
            Value::String(text) => text.parse().expect("a number"),
            value => value.as_u64().expect("a number"),
        };
        let of = |parameter: &str| number(&shown["parameters"][parameter]);
        Values { topic: of("topic"), low: of("low"), scale: of("scale") }
    }

    /// Gives a query values. Whether the answer was that it has begun anew; `None` if a kill was quicker.
    fn alter(&mut self, name: &str, values: &Values) -> Option<bool> {
        self.settle(0);
        let body = json!({"parameters": {
            "topic": values.topic.to_string(), "low": values.low, "scale": values.scale
        }});
        let path = format!("/api/v1/queries/{name}");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let client = Client::new(&self.server.url()).expect("a client");
            match client.patch_json::<QueryAltered>(&path, &body) {
                Ok(altered) => return Some(!altered.state_reset.is_empty()),
                // It was killed, or replays.
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
            self.look();
            if self.values(name) == *values {
                return None;
            }
        }
    }
}

#[test]
fn each_event_counts_with_the_values_of_its_moment_however_often_the_server_is_killed() {
    let folder = TempDir::new().expect("a folder");
    let mqtt = free_port();
    let server = Server::start_at(folder.path(), mqtt, 1);
    server.sql_ok(SCRIPT);
    let mut seed = std::env::var("RIVULET_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_0094);
    println!("RIVULET_SEED={seed}");
    let mut queries = vec![Query { values: Values { scale: 1, ..Values::default() }, ..Query::default() }; QUERIES];
    for (number, _) in queries.iter().enumerate() {
        let values = format!("topic => '0', low => 0, scale => 1, name => 'q{number}'");
        server.sql_ok(&format!("CREATE QUERY q{number} FROM APPLICATION totals WITH ({values})"));
    }
    let device = Device::new("sensors".into(), mqtt);
    let mut world = World { folder: folder.path(), server, device, killer: None };
    let (mut sent, mut changes) = (0, 0);
    for _ in 0..kills(5) {
        world.kill_in(random(&mut seed) % 300);
        for _ in 0..STEPS {
            if !random(&mut seed).is_multiple_of(4) {
                let topic = if random(&mut seed).is_multiple_of(2) { 0 } else { random(&mut seed) % TOPICS };
                let n = random(&mut seed) % 1_000;
                sent += 1;
                world.settle(WINDOW);
                let payload = json!({"ts": WINDOW_BEGIN_MS + sent, "n": n}).to_string();
                world.device.publish_to(&format!("in/{topic}"), &payload);
                world.device.receive();
                queries.iter_mut().for_each(|query| query.take(topic, n));
                continue;
            }
            let number = random(&mut seed) as usize % QUERIES;
            let mut values = queries[number].values.clone();
            match random(&mut seed) % 4 {
                0 => values.topic = random(&mut seed) % TOPICS,
                1 => values.scale = 1 + random(&mut seed) % 3,
                _ => values.low = random(&mut seed) % 900,
            }
            if values == queries[number].values {
                continue;
            }
            changes += 1;
            let begins_anew = queries[number].alter(values.clone());
            let said = world.alter(&format!("q{number}"), &values);
            assert!(said.is_none_or(|said| said == begins_anew), "{values:?} begins anew: {begins_anew}");
        }
        // However few steps there were time for.
        wait("a kill", || {
            world.look();
            world.killer.is_none()
        });
    }
    world.settle(0);
    println!("{sent} events, {changes} changes");
    wait("the end of the replay", || world.server.status()["log"]["is_replaying"] == json!(false));
    for (number, query) in queries.iter().enumerate() {
        assert_eq!(world.values(&format!("q{number}")), query.values, "q{number}");
    }
    let mut listener = Publisher::connect(mqtt);
    listener.subscribe("out/+");
    for topic in 0..TOPICS {
        let last = json!({"ts": WINDOW_BEGIN_MS + DAY_MS, "n": 10_000}).to_string();
        world.device.publish_to(&format!("in/{topic}"), &last);
    }
    world.settle(0);
    let expected: BTreeMap<String, Value> = (0..)
        .zip(&queries)
        .filter(|(_, query)| query.events > 0)
        .map(|(number, query)| (format!("out/q{number}"), json!({"events": query.events, "total": query.total})))
        .collect();
    let mut found = BTreeMap::new();
    while found.len() < expected.len() {
        let (topic, payload) = listener.next();
        let result: Value = serde_json::from_slice(&payload).expect("JSON");
        assert_eq!(found.insert(topic.clone(), result), None, "{topic} has one result");
    }
    assert_eq!(found, expected);
}

/// Two applications, so that the one has a topic in the log that the other is about to read.
const MOVED: &str = "
    CREATE APPLICATION all_events (name TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/+' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:rest/{name}' FORMAT JSON AS SELECT count(*) AS events FROM readings GROUP BY count_window(1000000);
    CREATE APPLICATION moved (topic TEXT, name TEXT)
    INPUT readings (n BIGINT) FROM 'mqtt:in/{topic}' FORMAT JSON WITH (durability => 'log')
    OUTPUT 'mqtt:out/{name}' FORMAT JSON AS SELECT n FROM readings";

#[test]
fn an_event_that_comes_while_its_query_moves_counts_before_a_crash_as_behind_it() {
    let folder = TempDir::new().expect("a folder");
    let mqtt = free_port();
    let start = || {
        let server = Server::start_at(folder.path(), mqtt, 0);
        wait("the end of the replay", || server.status()["log"]["is_replaying"] != json!(true));
        server
    };
    let mut server = start();
    server.sql_ok(MOVED);
    server.sql_ok("CREATE QUERY rest FROM APPLICATION all_events WITH (name => 'rest')");
    server.sql_ok("CREATE QUERY moved FROM APPLICATION moved WITH (topic => 'a', name => 'moved')");
    let events = |server: &Server| server.status()["total"]["results"].as_u64().expect("a number");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut publisher, mut sent) = (Publisher::connect(mqtt), 0);
            while !is_over.load(Ordering::Relaxed) {
                for topic in ["in/a", "in/b"] {
                    publisher.publish(topic, &format!("{{\"n\": {sent}}}"));
                    sent += 1;
                }
                thread::sleep(Duration::from_micros(200));
            }
        });
        for change in 0..40 {
            let topic = if change % 2 == 0 { "b" } else { "a" };
            server.sql_ok(&format!("ALTER QUERY moved SET (topic => '{topic}')"));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let settled = |server: &Server| {
        let (mut before, mut since) = (events(server), Instant::now());
        wait("all that was sent to be processed", || {
            let now = events(server);
            if now != before {
                (before, since) = (now, Instant::now());
            }
            since.elapsed() > Duration::from_millis(500)
        });
        before
    };
    let live = settled(&server);
    wait("all of it to be on disk", || {
        let log = server.status()["log"].clone();
        log["durable"].as_u64().expect("a number") + 1 >= log["next"].as_u64().expect("a number")
    });
    server.kill_9();
    let server = start();
    assert_eq!(settled(&server), live, "all of it is replayed, and gives as much");
}
