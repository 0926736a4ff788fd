//! Memory has a bound, and silent queries leave it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet::catalog::Catalog;
use rivulet::engine::Engine;
use rivulet::service::{ErrorKind, QueryState, ServiceError, StatementResult, Tenant};
use rivulet_sql::ParamValue;
use rivulet_testing::TestGroup;
use tempfile::TempDir;

use super::engine::{configuration, open};
use super::server::Publisher;
use super::support::{AsOperator, WAIT_MAX};

const STEPS: &str = "CREATE APPLICATION steps (id TEXT) INPUT numbers (n BIGINT) FROM 'mqtt:in/{id}' FORMAT JSON \
                     OUTPUT 'mqtt:out/{id}' FORMAT JSON AS SELECT n - lag(n) AS step FROM numbers";

fn run(engine: &Engine, script: &str) -> Result<StatementResult, ServiceError> {
    engine.execute(script).pop().expect("an answer")
}

fn create(engine: &Engine, id: &str) -> Result<StatementResult, ServiceError> {
    run(engine, &format!("CREATE QUERY {id} FROM APPLICATION steps WITH (id => '{id}')"))
}

#[test]
fn queries_beyond_the_memory_bound_are_refused_and_nothing_else_is() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, STEPS).expect("an application");
    create(&engine, "a").expect("there is no bound");
    drop(engine);
    let mut config = configuration(folder.path());
    config.memory_bytes_max = Some(16 << 20);
    let engine = Engine::open(config).expect("what is in the catalog runs");
    assert_eq!(engine.status().queries_running, 1);
    let error = create(&engine, "b").expect_err("there is no memory");
    assert_eq!(error.kind, ErrorKind::LimitReached);
    assert!(error.message.contains("no memory for further queries"), "{error}");
    assert!(error.hint.expect("a hint").contains("memory.bytes_max"));
    assert_eq!(engine.status().queries_running, 1);
    let longer = format!("ALTER QUERY a SET (id => '{}')", "a".repeat(1000));
    let error = run(&engine, &longer).expect_err("there is no memory for longer values either");
    assert_eq!(error.kind, ErrorKind::LimitReached, "{error}");
    run(&engine, "ALTER QUERY a SET (id => 'c')").expect("these take no more");
    run(&engine, "PAUSE QUERY a").expect("what is there goes on");
    run(&engine, "DROP QUERY a").expect("and can go");
}

#[test]
fn tables_beyond_the_memory_bound_are_refused_and_those_that_are_there_stay() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("rooms.csv");
    let rows = |rooms: u32| (0..rooms).map(|room| format!("{room},floor {room}\n")).collect::<String>();
    std::fs::write(&file, rows(1_000)).expect("a file");
    let table =
        |name: &str| format!("CREATE TABLE {name} (room BIGINT, floor TEXT) FROM 'file:{}' FORMAT CSV", file.display());
    let engine = open(folder.path());
    run(&engine, &table("rooms")).expect("there is no bound");
    let bytes = engine.operator().table("rooms").expect("a table").bytes;
    drop(engine);
    let mut config = configuration(folder.path());
    config.memory_bytes_max = Some(16 << 20);
    let engine = Engine::open(config).expect("what is in the catalog runs");
    let rooms = || engine.operator().table("rooms").expect("a table");
    assert_eq!((rooms().rows, rooms().bytes, rooms().not_running), (1_000, bytes, None));
    std::fs::write(&file, rows(2_000)).expect("a file");
    for statement in [table("more").as_str(), "REFRESH TABLE rooms"] {
        let error = run(&engine, statement).expect_err("there is no memory");
        assert_eq!(error.kind, ErrorKind::LimitReached, "{error}");
        assert!(error.hint.expect("a hint").contains("memory.bytes_max"), "{statement}");
    }
    assert_eq!(rooms().rows, 1_000, "what was read before stays");
}

#[test]
fn a_big_query_that_has_used_up_the_memory_is_ended_and_the_others_go_on() {
    let folder = TempDir::new().expect("a folder");
    let engine = open(folder.path());
    run(&engine, STEPS).expect("an application");
    create(&engine, "a").expect("there is no bound");
    run(&engine, "CREATE SOURCE persons FROM 'nexmark:person' WITH (rate => 1000000)").expect("a source");
    run(&engine, "CREATE SOURCE few FROM 'nexmark:bid' WITH (rate => 50)").expect("a source");
    run(&engine, "CREATE SINK nowhere TO 'blackhole:'").expect("a sink");
    run(&engine, "CREATE QUERY large AS SELECT id, name, count(*) AS n FROM persons GROUP BY id, name INTO nowhere")
        .expect("it runs");
    run(&engine, "CREATE QUERY small AS SELECT auction FROM few INTO nowhere").expect("it runs");
    drop(engine);
    let mut config = configuration(folder.path());
    // There is more than that already; but small queries and those without state are not what uses it.
    config.memory_bytes_max = Some(16 << 20);
    let engine = Engine::open(config).expect("what is in the catalog runs");
    let big =
        |name: &str| engine.status().big_queries.into_iter().find(|query| query.name == name).expect("it is there");
    let deadline = Instant::now() + WAIT_MAX;
    while big("large").state != QueryState::Failed {
        assert!(Instant::now() < deadline, "{:?}", big("large"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let reason = big("large").reason.expect("a reason");
    assert!(reason.contains("memory.bytes_max, 16 MiB") && reason.contains("state_ttl"), "{reason}");
    assert_eq!((big("small").state, engine.status().queries_running), (QueryState::Running, 1));
    let refused = run(&engine, "CREATE QUERY another AS SELECT auction FROM few INTO nowhere").expect_err("no memory");
    assert_eq!(refused.kind, ErrorKind::LimitReached);
}

#[test]
fn what_does_not_answer_does_not_hold_up_the_bound_of_memory() {
    const HUNG: usize = 3;
    /// How long one attempt to ask a broker takes that never answers.
    const ATTEMPT: Duration = Duration::from_secs(15);
    let folder = TempDir::new().expect("a folder");
    // A broker that takes connections and never says anything.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let engine = open(folder.path());
    run(&engine, "CREATE SOURCE persons FROM 'nexmark:person' WITH (rate => 1000000)").expect("a source");
    run(&engine, "CREATE SINK nowhere TO 'blackhole:'").expect("a sink");
    run(&engine, &format!("CREATE SOURCE hangs (a TEXT) FROM 'kafka:{address}/t' FORMAT RAW")).expect("a source");
    run(&engine, "CREATE QUERY large AS SELECT id, name, count(*) AS n FROM persons GROUP BY id, name INTO nowhere")
        .expect("it runs");
    run(&engine, "PAUSE QUERY large").expect("it rests");
    drop(engine);
    let mut config = configuration(folder.path());
    let catalog = Catalog::open(&config.data_dir).expect("the catalog");
    for number in 0..HUNG {
        let text = format!("CREATE QUERY hung{number} AS SELECT a FROM hangs INTO nowhere");
        catalog.insert_statement(&Tenant::default(), &text).expect("a query from before");
    }
    drop(catalog);
    config.memory_bytes_max = Some(16 << 20);
    let engine = Engine::open(config).expect("what is in the catalog runs, or is tried again");
    // The first of them begins a second after the start, and all together go on for longer than is waited here.
    std::thread::sleep(Duration::from_secs(2));
    run(&engine, "RESUME QUERY large").expect("it goes on");
    let deadline = Instant::now() + ATTEMPT * (HUNG as u32 - 1);
    let state = || engine.status().big_queries.into_iter().find(|query| query.name == "large").map(|query| query.state);
    while state() != Some(QueryState::Failed) {
        assert!(Instant::now() < deadline, "the query with the most state is not ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    engine.shutdown();
}

#[test]
fn a_silent_query_waits_on_disk_and_goes_on_where_it_was() {
    let folder = TempDir::new().expect("a folder");
    let mut config = configuration(folder.path());
    config.spill_after = Some(Duration::from_millis(400));
    let engine = Engine::open(config).expect("an engine");
    run(&engine, STEPS).expect("an application");
    create(&engine, "a").expect("a query");
    create(&engine, "b").expect("a query");
    let broker = engine.embedded_broker_address().expect("a broker");
    let mut listener = Publisher::connect(broker);
    listener.subscribe("out/#");
    let mut publisher = Publisher::connect(broker);
    let mut step = |id: &str, n: i64| {
        publisher.publish(&format!("in/{id}"), &format!("{{\"n\": {n}}}"));
        String::from_utf8(listener.next().1).expect("text")
    };
    assert_eq!(step("a", 1), r#"{"step":null}"#);
    assert_eq!(step("b", 10), r#"{"step":null}"#);
    wait_for_spilled(&engine, 2);
    assert_eq!(step("a", 4), r#"{"step":3}"#);
    wait_for_spilled(&engine, 2);
    assert!(engine.metrics().contains("rivulet_spills_total{application=\"steps\"} 3"), "{}", engine.metrics());
    // Paused, resumed and dropped while it is on disk.
    run(&engine, "PAUSE QUERY b").expect("paused");
    run(&engine, "RESUME QUERY b").expect("resumed");
    assert_eq!(engine.query("b").expect("it is there").input_topic, "in/b");
    assert_eq!(step("b", 11), r#"{"step":1}"#);
    wait_for_spilled(&engine, 2);
    run(&engine, "DROP QUERY a").expect("dropped");
    assert_eq!(engine.status().total.queries_spilled, 1);
    assert_eq!(step("b", 13), r#"{"step":2}"#);
}

fn wait_for_spilled(engine: &Arc<Engine>, queries: u64) {
    let deadline = Instant::now() + WAIT_MAX;
    while engine.status().total.queries_spilled != queries {
        assert!(Instant::now() < deadline, "{:?}", engine.status());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a query has in memory once its window is full, and once it is spilled.
#[test]
fn spilled_queries_give_their_memory_back() {
    const QUERIES: u64 = 10_000;
    const AWAKE: usize = 100;
    let group = TestGroup::new(
        "CREATE APPLICATION averages (home TEXT) INPUT t (ts TIMESTAMP EVENT TIME, value DOUBLE) FORMAT JSON \
         WITH (idle_timeout => INTERVAL '30 days') OUTPUT FORMAT JSON \
         AS SELECT avg(value) AS mean, stddev(value) AS spread FROM t GROUP BY hop(ts, INTERVAL '1 second', INTERVAL '30 seconds')",
        1_000_000,
    )
    .spilling();
    let add = |query: u64| {
        let home = format!("home {query}");
        let text = |value| ParamValue::Text(value);
        group.add(query, &[("home", text(&home)), ("input", text("in")), ("output", text("out"))])
    };
    let slots: Vec<_> = (0..QUERIES).map(add).collect();
    let push_all = |slots: &[u32], second: i64| {
        for &slot in slots {
            group.push(slot, second * 1_000_000, &format!("{{\"ts\":{second}000,\"value\":{}}}", second % 7));
        }
        group.run();
    };
    (1..=30).for_each(|second| push_all(&slots, second));
    let full_bytes = group.memory_bytes() / QUERIES as usize;
    assert!(full_bytes > 600, "{full_bytes} bytes a query with full windows");
    group.spill(2, 0);
    push_all(&slots[..AWAKE], 31);
    assert_eq!(group.spill(2, 0), QUERIES as usize - AWAKE);
    let spilled_bytes = group.memory_bytes() / QUERIES as usize;
    assert!(spilled_bytes < 200, "{spilled_bytes} bytes a query, of {full_bytes}");
    // Everybody comes back, and their windows are what they would have been.
    push_all(&slots, 32);
    assert_eq!(group.spill_status().queries, 0);
    let results = group.results();
    let of = |query: u64| results[&query].last().expect("a result").as_str();
    assert!((AWAKE as u64..QUERIES).all(|query| of(query) == of(AWAKE as u64)), "{}", of(AWAKE as u64));
    eprintln!("{full_bytes} bytes a query with full windows, {spilled_bytes} with {AWAKE} of {QUERIES} awake");
}
