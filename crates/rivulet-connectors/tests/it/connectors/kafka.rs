//! `kafka:` both ways, against a real broker: Apache Kafka, started from its published jars.

use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use rivulet_connectors::connector::{Condition, ConnectorContext, Connectors, FinalUpTo, SinkSpec};
use rivulet_dataflow::{Batch, Polled, Refusals, Sink, TransactionalSink, marked_as_array};
use rivulet_testing_ports::free_port;

use super::kafka_broker::Broker;
use super::reach::what_a_kafka_broker_tells_is_looked_at;
use super::support::{
    Drained, PATIENCE, batch, drain, fill, finish, flush_until, format, options, poll_all_until, sink, sink_error,
    source, source_error,
};

fn rows(range: std::ops::Range<i64>) -> Batch {
    let names: Vec<String> = range.clone().map(|n| format!("device {}", n % 10)).collect();
    batch(vec![
        ("device", Arc::new(StringArray::from(names)) as ArrayRef),
        ("n", Arc::new(Int64Array::from_iter_values(range))),
    ])
}

const COLUMNS: &str = "device TEXT, n BIGINT";

/// The name of a topic and what is tested with it.
type Part = (&'static str, fn(&str));

/// One test with one broker: it takes seconds to start. Each part has a topic of its own, and those that leave the
/// broker alone run side by side: most of their time they wait for it.
#[test]
fn against_a_broker() {
    let Some(mut broker) = Broker::start_or_skip() else { return };
    let topic = |name: &str| format!("kafka:{}/{name}", broker.address);
    let side_by_side: [Part; 10] = [
        ("numbers", of_one_topic),
        ("shared", groups_share_and_remember),
        ("totals", changes_are_upserts),
        ("changes", changes_are_written_as_debezium_does),
        ("arrays", arrays_are_repeated_fields),
        ("many", a_slow_reader_stops_the_fetching),
        ("errors", errors_surface),
        ("final", transactions_become_final_with_checkpoints),
        ("shut_out", a_later_run_shuts_out_the_one_before),
        ("told", what_a_kafka_broker_tells_is_looked_at),
    ];
    thread::scope(|scope| {
        for (name, part) in side_by_side {
            let address = topic(name);
            scope.spawn(move || part(&address));
        }
    });
    let (lost, restarted) = (topic("lost"), topic("restarted"));
    rows_wait_for_a_broker_that_is_away(&lost, &mut broker);
    a_broker_that_restarts_aborts_nothing(&restarted, &mut broker);
}

/// What is written first is read in several ways.
fn of_one_topic(address: &str) {
    written_is_read(address);
    metadata_are_columns(address);
    reading_begins_where_it_is_told(address);
}

fn written_is_read(address: &str) {
    let mut spec = sink(address, rows(0..1).columns.schema());
    spec.options = options(&[("key", "device"), ("properties.compression.type", "zstd")]);
    fill(&spec, &[rows(0..5000), rows(5000..20_000)]).unwrap();
    let told = spec.host.health.report();
    assert_eq!((told.rows, told.waiting_rows, told.condition), (20_000, 0, Condition::Ok));
    assert!(told.bytes > 20_000);
    let mut spec = source(address, COLUMNS);
    spec.options = options(&[("bounded", "true")]);
    let mut expected: Vec<String> = (0..20_000).map(|n| format!("device {}|{n}", n % 10)).collect();
    expected.sort();
    for partitions in [1, 2, 8] {
        assert_eq!(
            Connectors::OWN.open_source(&spec, partitions).unwrap().len(),
            3,
            "one for each partition of the topic"
        );
        let drained = drain(&spec, partitions).unwrap();
        assert_eq!(drained.refused, 0);
        // Equal keys meet in one partition, and stay in order there.
        let of_one: Vec<i64> =
            drained.rows.iter().filter_map(|row| row.strip_prefix("device 7|")).map(|n| n.parse().unwrap()).collect();
        assert!(of_one.len() == 2000 && of_one.is_sorted(), "{partitions} partitions");
        assert!(drained.sorted() == expected, "{partitions} partitions");
    }
}

fn metadata_are_columns(address: &str) {
    let mut spec = source(address, "at TIMESTAMP, n BIGINT, o BIGINT, k TEXT, p BIGINT, device TEXT");
    spec.columns = vec![0, 2, 3, 4, 5];
    spec.event_time_column = Some(0);
    spec.options = options(&[
        ("bounded", "true"),
        ("timestamp_column", "AT"),
        ("offset_column", "o"),
        ("key_column", "k"),
        ("partition_column", "p"),
    ]);
    let drained = drain(&spec, 3).unwrap();
    assert_eq!(drained.rows.len(), 20_000);
    let mut next = [0; 3];
    for row in &drained.rows {
        let fields: Vec<&str> = row.split('|').collect();
        assert!(fields[0].starts_with("20"), "{row}");
        assert_eq!(fields[2], fields[4], "the key is the device");
        let partition: usize = fields[3].parse().unwrap();
        assert_eq!(fields[1], next[partition].to_string(), "offsets ascend in their partition");
        next[partition] += 1;
    }
    spec.options = options(&[("offset_column", "device")]);
    assert!(source_error(&spec).contains("names 'device' of type Utf8\nhint: its type has to be Int64"));
    spec.options = options(&[("offset_column", "x")]);
    assert!(source_error(&spec).contains("names 'x', which is no column"));
}

fn reading_begins_where_it_is_told(address: &str) {
    let mut spec = source(address, COLUMNS);
    let mut count = |start: &str| {
        spec.options = options(&[("bounded", "true"), ("start", start)]);
        drain(&spec, 2).unwrap().rows.len()
    };
    assert_eq!(count("latest"), 0);
    assert_eq!(count("2020-01-01T00:00:00Z"), 20_000);
    assert_eq!(count("2100-01-01"), 0);
    spec.options = options(&[("start", "yesterday")]);
    assert!(source_error(&spec).contains("hint: it is earliest, latest or a time"));
    // From the end on: what comes later is read, whenever it is first polled.
    spec.options = options(&[("start", "latest")]);
    let mut sources = Connectors::OWN.open_source(&spec, 1).unwrap();
    fill(&sink(address, rows(0..1).columns.schema()), &[rows(7..8)]).unwrap();
    let mut drained = Drained::default();
    poll_all_until(&mut sources, &mut drained, |drained| !drained.rows.is_empty());
    assert_eq!(drained.rows, ["device 7|7"]);
}

fn groups_share_and_remember(address: &str) {
    let schema = rows(0..1).columns.schema();
    let mut to = sink(address, schema);
    to.options = options(&[("key", "device")]);
    fill(&to, &[rows(0..100)]).unwrap();
    let mut spec = source(address, COLUMNS);
    spec.options = options(&[("group", "readers"), ("bounded", "true")]);
    assert_eq!(drain(&spec, 2).unwrap().rows.len(), 100);
    // What was handed over was committed: eventually, for the consumer leaves behind our back.
    let deadline = Instant::now() + PATIENCE;
    while !drain(&spec, 1).unwrap().rows.is_empty() {
        assert!(Instant::now() < deadline, "the offsets of the group are not committed");
    }
    fill(&to, &[rows(100..150)]).unwrap();
    // Before a group has decided, each partition may be its own, and nobody stands aside.
    spec.options = options(&[("group", "undecided"), ("start", "latest")]);
    let mut undecided = Connectors::OWN.open_source(&spec, 2).unwrap();
    let refusals = &mut Refusals::new(0);
    assert!(undecided.iter_mut().all(|source| matches!(source.poll(1, 0, refusals), Ok(Polled::Nothing(_)))));
    drop(undecided);
    // Unbounded, two members share the partitions and go on where the group stopped.
    spec.options = options(&[("group", "readers")]);
    let mut sources = Connectors::OWN.open_source(&spec, 2).unwrap();
    sources.append(&mut Connectors::OWN.open_source(&spec, 2).unwrap());
    assert_eq!(sources.len(), 6, "each member has a source for each partition");
    let mut drained = Drained::default();
    poll_all_until(&mut sources, &mut drained, |drained| drained.rows.len() >= 50);
    // Each partition has one reader, and nobody waits for the others; once both have joined.
    let deadline = Instant::now() + PATIENCE;
    let refusals = &mut Refusals::new(0);
    let mut count_aside = || {
        let asked = sources.iter_mut().map(|source| source.poll(1, 0, refusals));
        asked.filter(|polled| matches!(polled, Ok(Polled::Aside(_)))).count()
    };
    while count_aside() != 3 {
        assert!(Instant::now() < deadline, "the partitions are not shared");
        thread::sleep(Duration::from_millis(20));
    }
    let mut numbers: Vec<i64> =
        drained.rows.iter().map(|row| row.split('|').next_back().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(100..150));
    // Whoever only looks reads all there is, and the members keep their partitions.
    spec.options = options(&[("group", "readers"), ("bounded", "true")]);
    spec.host.only_looks = true;
    assert_eq!(drain(&spec, 2).unwrap().rows.len(), 150);
    assert_eq!(count_aside(), 3);
}

fn changes_are_upserts(address: &str) {
    let mut spec = sink(address, rows(0..1).columns.schema());
    spec.changes = true;
    assert!(sink_error(&spec).contains("hint: the result needs a key"));
    spec.key = Some(vec![0]);
    // 0 comes, 1 comes, 0 is replaced by 10, 1 is taken back.
    let marks = |marks: &[bool]| Some(marks.to_vec().into());
    let devices = |rows: &[(&str, i64)]| {
        batch(vec![
            ("device", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0))) as ArrayRef),
            ("n", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)))),
        ])
    };
    let first = devices(&[("a", 0), ("b", 1)]);
    let second = devices(&[("a", 0), ("a", 10), ("b", 1)]).with_retracts(marks(&[true, false, true]));
    // A change whose halves come apart, with a flush between them: nobody sees that the key is gone.
    let old = devices(&[("a", 10)]).with_retracts(marks(&[true]));
    fill(&spec, &[first, second, old, devices(&[("a", 11)])]).unwrap();
    let mut spec = source(address, "device TEXT, n BIGINT, k TEXT");
    spec.options = options(&[("bounded", "true"), ("key_column", "k")]);
    let drained = drain(&spec, 1).unwrap();
    // The value of b that is gone is a message without value, which a source refuses.
    assert_eq!(drained.refused, 1);
    assert_eq!(drained.sorted(), ["a|0|a", "a|10|a", "a|11|a", "b|1|b"]);
    // To a format of changes that is a tombstone; these values are no changes.
    spec.format = Some(format("DEBEZIUM"));
    assert_eq!(drain(&spec, 1).unwrap().refused, 4);
}

fn changes_are_written_as_debezium_does(address: &str) {
    let mut spec = sink(address, rows(0..1).columns.schema());
    (spec.changes, spec.format) = (true, Some(format("DEBEZIUM")));
    assert!(sink_error(&spec).contains("hint: say by which columns the changes of a row stay in order"));
    spec.options = options(&[("key", "device")]);
    let marks = |batch: Batch, marks: &[bool]| batch.with_retracts(Some(marks.to_vec().into()));
    // Row 10 takes the place of row 0, in one batch and in two.
    let row = |n: i64| rows(n..n + 1);
    let both = Batch::concat(vec![row(1), row(11)]).unwrap();
    fill(&spec, &[rows(0..2), marks(row(0), &[true]), row(10), marks(both, &[true, false])]).unwrap();
    // The one row of a result without GROUP BY has a key too.
    (spec.key, spec.options) = (Some(Vec::new()), Vec::new());
    fill(&spec, &[row(25), marks(row(25), &[true])]).unwrap();
    let mut spec = source(address, "device TEXT, n BIGINT, k TEXT");
    spec.format = Some(format("DEBEZIUM"));
    spec.options = options(&[("bounded", "true"), ("key_column", "k")]);
    let drained = drain(&spec, 1).unwrap();
    assert_eq!(drained.refused, 0, "{:?}", drained.details);
    for (device, expected) in [
        ("device 0|", &["device 0|0|device 0", "-device 0|0|device 0", "device 0|10|device 0"][..]),
        ("device 1|", &["device 1|1|device 1", "-device 1|1|device 1", "device 1|11|device 1"]),
        ("device 5|", &["device 5|25|{}", "-device 5|25|{}"]),
    ] {
        let of_device: Vec<&String> = drained.rows.iter().filter(|row| row.contains(device)).collect();
        assert_eq!(of_device, expected);
    }
    let mut spec = source(address, "device TEXT, n BIGINT, k BIGINT");
    spec.format = Some(format("DEBEZIUM"));
    spec.options = options(&[("offset_column", "k")]);
    let error = source_error(&spec);
    assert!(error.contains("does not go with FORMAT DEBEZIUM") && error.contains("hint: a row comes"), "{error}");
}

fn arrays_are_repeated_fields(address: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pack.proto");
    std::fs::write(&path, "message Pack { repeated string tags = 1; repeated sint32 counts = 2; }").unwrap();
    let of_type = |name, data_type| Field::new(name, data_type, true);
    let field = |name, element| marked_as_array(of_type(name, DataType::Utf8), &of_type("element", element));
    let schema = Arc::new(Schema::new(vec![field("tags", DataType::Utf8), field("counts", DataType::Int64)]));
    let texts = |texts: [Option<&str>; 3]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let columns = vec![
        texts([Some(r#"["a","b"]"#), None, Some("[]")]),
        texts([Some("[1,-2]"), Some("[3]"), Some("[null,2147483648]")]),
    ];
    let columns = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let rows = Batch::new(vec![0; 3].into(), vec![0; 3].into(), vec![0; 3].into(), columns);
    let written = format(&format!("PROTOBUF schema_file={}", path.display()));
    let mut spec = sink(address, schema.clone());
    spec.format = Some(written.clone());
    fill(&spec, &[rows]).unwrap();
    let mut spec = source(address, "tags TEXT, counts TEXT");
    (spec.schema, spec.format, spec.options) = (schema, Some(written.clone()), options(&[("bounded", "true")]));
    let drained = drain(&spec, 1).unwrap();
    assert_eq!(drained.refused, 0, "{:?}", drained.details);
    assert_eq!(drained.sorted(), [r#"["a","b"]|[1,-2]"#, "[]|[2147483648]", "[]|[3]"]);
    spec.schema = Arc::new(Schema::new(vec![field("tags", DataType::Int64)]));
    spec.columns = vec![0];
    let error = source_error(&spec);
    assert!(error.contains("cannot read the field 'tags' as an array of Int64"), "{error}");
}

fn a_slow_reader_stops_the_fetching(address: &str) {
    let wide = |range: std::ops::Range<i64>| {
        let names = StringArray::from_iter_values(range.clone().map(|_| "x".repeat(200)));
        batch(vec![("device", Arc::new(names) as ArrayRef), ("n", Arc::new(Int64Array::from_iter_values(range)))])
    };
    let mut to = Connectors::OWN.open_sink(&sink(address, wide(0..1).columns.schema()), 0, 1).unwrap();
    const MESSAGES: i64 = 200_000;
    for start in (0..MESSAGES).step_by(10_000) {
        while !to.has_room() {
            thread::sleep(Duration::from_millis(1));
        }
        to.write(&wide(start..start + 10_000)).unwrap();
    }
    finish(&mut *to).unwrap();
    let mut spec = source(address, "n BIGINT");
    spec.options = options(&[("bounded", "true")]);
    let mut sources = Connectors::OWN.open_source(&spec, 1).unwrap();
    // Long enough to fetch all of it, if nothing stopped it; then all of it comes, once.
    thread::sleep(Duration::from_secs(2));
    let mut drained = Drained::default();
    poll_all_until(&mut sources, &mut drained, |drained| drained.rows.len() as i64 >= MESSAGES);
    let mut numbers: Vec<i64> = drained.rows.iter().map(|row| row.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..MESSAGES));
}

fn errors_surface(address: &str) {
    let schema = rows(0..1).columns.schema();
    // Larger than the broker takes.
    let large = batch(vec![
        ("device", Arc::new(StringArray::from(vec!["x".repeat(1_200_000)])) as ArrayRef),
        ("n", Arc::new(Int64Array::from(vec![1]))),
    ]);
    let mut spec = sink(address, schema);
    spec.options = options(&[("properties.message.max.bytes", "5000000")]);
    let error = fill(&spec, &[large]).unwrap_err();
    assert!(error.contains("cannot write to the topic 'errors'") && error.contains("too large"), "{error}");
    let mut spec = source(address, COLUMNS);
    spec.options = options(&[("properties.fetch.min.bytes", "many")]);
    assert!(source_error(&spec).contains("'properties.fetch.min.bytes' of 'kafka:' cannot be 'many'"));
    spec.options = options(&[("properties.no.such", "1")]);
    assert!(source_error(&spec).contains("properties.no.such"));
    spec = source(address, COLUMNS);
    spec.format = Some(format("CSV header=true"));
    assert!(source_error(&spec).contains("messages have none"));
}

/// A sink whose messages become final with checkpoints, of a query that goes on from what `prepared` says.
fn exactly_once(address: &str, prepared: &[String]) -> SinkSpec {
    SinkSpec {
        options: options(&[("delivery", "exactly_once")]),
        host: ConnectorContext { server: "one".into(), query: address.into(), ..ConnectorContext::of_user() },
        checkpoints: Some(prepared.to_vec()),
        ..sink(address, rows(0..1).columns.schema())
    }
}

fn instances(spec: &SinkSpec, count: usize) -> Vec<Box<dyn Sink>> {
    (0..count).map(|instance| Connectors::OWN.open_sink(spec, instance, count).unwrap()).collect()
}

/// Asks again and again.
fn await_some<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "no answer");
        thread::sleep(Duration::from_millis(2));
    }
}

fn transactional(sink: &mut Box<dyn Sink>) -> &mut dyn TransactionalSink {
    sink.transactional().unwrap()
}

fn prepare(sinks: &mut [Box<dyn Sink>]) -> Vec<String> {
    sinks.iter_mut().map(transactional).map(|sink| await_some(|| sink.prepare().unwrap())).collect()
}

fn commit(sinks: &mut [Box<dyn Sink>], epoch: u64) {
    let mut sinks: Vec<_> = sinks.iter_mut().map(transactional).collect();
    // Each is told before any is waited for, as the host does it.
    for sink in &mut sinks {
        let _ = sink.commit(epoch).unwrap();
    }
    sinks.iter_mut().for_each(|sink| await_some(|| sink.commit(epoch).unwrap().then_some(())));
}

/// The numbers that a reader of what was committed sees.
fn seen(address: &str) -> Vec<i64> {
    let mut spec = source(address, "n BIGINT");
    spec.options = options(&[("bounded", "true")]);
    let mut numbers: Vec<i64> = drain(&spec, 1).unwrap().rows.iter().map(|row| row.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

/// Sees exactly these numbers: the broker shows a reader what was committed a moment later, and never more than that.
fn await_rows(address: &str, expected: std::ops::Range<i64>) {
    let expected: Vec<i64> = expected.collect();
    let deadline = Instant::now() + 4 * PATIENCE;
    loop {
        let seen = seen(address);
        if seen == expected {
            return;
        }
        assert!(seen.len() < expected.len() && seen.iter().all(|number| expected.contains(number)), "{seen:?}");
        assert!(Instant::now() < deadline, "of {} rows {} are there", expected.len(), seen.len());
    }
}

fn transactions_become_final_with_checkpoints(address: &str) {
    let mut spec = exactly_once(address, &[]);
    let mut sinks = instances(&spec, 2);
    assert!(sinks.iter_mut().map(transactional).all(|sink| sink.waits_for_commit()));
    sinks[0].write(&rows(0..50)).unwrap();
    sinks[1].write(&rows(50..100)).unwrap();
    let first = prepare(&mut sinks);
    assert!(seen(address).is_empty(), "nothing before the checkpoint is durable");
    // A crash now: the checkpoint is there, its rows are not.
    spec.checkpoints = Some(first);
    assert_eq!(Connectors::OWN.final_up_to(&spec).unwrap(), FinalUpTo::Nothing);
    drop(sinks);
    let mut sinks = instances(&exactly_once(address, &[]), 2);
    sinks[1].write(&rows(0..100)).unwrap();
    spec.checkpoints = Some(prepare(&mut sinks));
    commit(&mut sinks, 5);
    await_rows(address, 0..100);
    assert!(matches!(Connectors::OWN.final_up_to(&spec), Ok(FinalUpTo::Epoch { number: 5, .. })));
    // One without rows becomes final too. By now the first ones are shut out; the query goes on with others.
    let mut sinks = instances(&spec, 1);
    spec.checkpoints = Some(prepare(&mut sinks));
    commit(&mut sinks, 6);
    assert!(matches!(Connectors::OWN.final_up_to(&spec), Ok(FinalUpTo::Epoch { number: 6, .. })));
    // Rows behind the last checkpoint do not come, and come once when they are written again.
    let mut sinks = instances(&spec, 3);
    sinks[2].write(&rows(100..200)).unwrap();
    prepare(&mut sinks);
    drop(sinks);
    let mut sinks = instances(&spec, 3);
    sinks.iter_mut().zip([100..150, 150..180, 180..200]).for_each(|(sink, part)| sink.write(&rows(part)).unwrap());
    // One instance comes to its end before the others.
    await_some(|| sinks[0].finish().unwrap().then_some(()));
    spec.checkpoints = Some(prepare(&mut sinks[1..]));
    commit(&mut sinks[1..], 8);
    await_rows(address, 0..200);
    sinks[1].write(&rows(200..201)).unwrap();
    for sink in &mut sinks[1..] {
        let _ = sink.finish().unwrap();
    }
    sinks[1..].iter_mut().for_each(|sink| await_some(|| sink.finish().unwrap().then_some(())));
    await_rows(address, 0..201);
    assert_eq!(Connectors::OWN.final_up_to(&spec).unwrap(), FinalUpTo::Ended, "though no checkpoint says so");
    // A query of the same name that begins anew is another one.
    let mut sinks = instances(&exactly_once(address, &[]), 1);
    spec.checkpoints = Some(prepare(&mut sinks));
    assert_eq!(Connectors::OWN.final_up_to(&spec).unwrap(), FinalUpTo::Nothing);
    spec.checkpoints = None;
    let error = sink_error(&spec);
    assert!(error.contains("nobody makes checkpoints here\nhint: run the query on a server"), "{error}");
    assert_eq!(Connectors::OWN.final_up_to(&sink(address, rows(0..1).columns.schema())).unwrap(), FinalUpTo::Any);
}

fn a_later_run_shuts_out_the_one_before(address: &str) {
    let mut before = instances(&exactly_once(address, &[]), 1);
    before[0].write(&rows(0..10)).unwrap();
    let prepared = prepare(&mut before);
    let mut after = instances(&exactly_once(address, &prepared), 1);
    // That the checkpoint was durable is told too late.
    let error = await_some(|| transactional(&mut before[0]).commit(1).err());
    assert!(error.0.contains("the transaction of checkpoint 1 was not committed"), "{error}");
    assert!(transactional(&mut before[0]).has_rolled_back());
    after[0].write(&rows(0..10)).unwrap();
    prepare(&mut after);
    commit(&mut after, 2);
    await_rows(address, 0..10);
}

/// A client asks a broker that was away again after half a second at most, and not after ten.
const SOON_AGAIN: (&str, &str) = ("properties.reconnect.backoff.max.ms", "500");

fn a_broker_that_restarts_aborts_nothing(address: &str, broker: &mut Broker) {
    let mut spec = exactly_once(address, &[]);
    // A broker that is killed just behind a commit may forget to tell partitions of it (see `delivery` in the
    // reference), and does so in some runs of this test. The next commit with rows for the same partitions does; with a
    // key the same devices make them the same partitions.
    spec.options.extend(options(&[("key", "device"), SOON_AGAIN]));
    let mut sinks = instances(&spec, 1);
    sinks[0].write(&rows(0..10)).unwrap();
    prepare(&mut sinks);
    broker.kill();
    assert!(!transactional(&mut sinks[0]).commit(1).unwrap());
    sinks[0].flush().unwrap();
    assert!(!transactional(&mut sinks[0]).commit(1).unwrap(), "nobody is there");
    broker.start_again();
    await_some(|| transactional(&mut sinks[0]).commit(1).unwrap().then_some(()));
    sinks[0].write(&rows(10..20)).unwrap();
    broker.kill();
    assert_eq!(transactional(&mut sinks[0]).prepare().unwrap(), None, "nobody has taken them");
    broker.start_again();
    prepare(&mut sinks);
    commit(&mut sinks, 2);
    await_rows(address, 0..20);
}

fn rows_wait_for_a_broker_that_is_away(address: &str, broker: &mut Broker) {
    let mut spec = sink(address, rows(0..1).columns.schema());
    spec.options = options(&[SOON_AGAIN]);
    let health = spec.host.health.clone();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(0..3)).unwrap();
    flush_until(&mut *sink, &health, |health| health.rows == 3);
    broker.kill();
    sink.write(&rows(3..5)).unwrap();
    flush_until(&mut *sink, &health, |health| health.condition == Condition::Retrying);
    assert_eq!((health.report().rows, health.report().waiting_rows), (3, 2));
    broker.start_again();
    flush_until(&mut *sink, &health, |health| health.rows == 5);
    assert_eq!((health.report().condition, health.report().waiting_rows), (Condition::Ok, 0));
}

#[test]
fn a_broker_at_a_dead_port_takes_no_rows() {
    let port = free_port();
    let spec = sink(&format!("kafka:127.0.0.1:{port}/x"), rows(0..1).columns.schema());
    let health = spec.host.health.clone();
    let mut sink = Connectors::OWN.open_sink(&spec, 0, 1).unwrap();
    sink.write(&rows(0..3)).unwrap();
    flush_until(&mut *sink, &health, |health| health.condition == Condition::Retrying);
    let told = health.report();
    assert_eq!((told.rows, told.waiting_rows), (0, 3));
    assert!(told.last_error.as_ref().is_some_and(|error| error.contains("refused")), "{told:?}");
}

#[test]
fn a_broker_that_is_not_there_is_told() {
    static PORT: LazyLock<u16> = LazyLock::new(free_port);
    let mut spec = source(&format!("kafka:127.0.0.1:{}/x", *PORT), COLUMNS);
    spec.options = options(&[("properties.socket.timeout.ms", "1000")]);
    let error = source_error(&spec);
    assert!(error.starts_with("cannot open 'kafka:127.0.0.1:") && error.contains("does the broker run"), "{error}");
    assert!(source_error(&source("kafka:x", COLUMNS)).contains("does not say broker and topic"));
}
