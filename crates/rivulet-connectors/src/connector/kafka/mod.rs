//! `kafka:` topics of Apache Kafka, in both directions.
//!
//! - [`properties`]: the properties of the client library that statements may set; [`client`]: a client with them;
//! - [`start`]: which consumer reads which partitions, from where to where; [`fetch`]: the thread that reads them;
//!   [`block`] and [`queue`]: the messages that wait then;
//! - [`metadata`]: columns that come from a message and not from its payload; [`source`]: rows from messages;
//! - [`key`]: the keys of messages; [`newest`]: the newest rows of a changing result; [`producer`] and
//!   [`sink`]: messages from rows;
//!   [`transaction`]: messages that become final with a checkpoint.

mod block;
mod client;
mod fetch;
mod key;
mod metadata;
mod newest;
mod properties;
mod producer;
mod queue;
mod sink;
mod source;
mod start;
mod transaction;

use std::sync::Arc;

use rdkafka::ClientConfig;
use rivulet_dataflow::{Sink, Source};

use super::description::{ByRow, Check, Instance, Opening};
use super::given_format::format_of_pieces;
use super::waiting;
use super::{
    ConnectorContext, ConnectorDescription, ConnectorError, DirectionDescription, FinalUpTo, Guarantee, MessagePlace,
    Messages, OptionDescription, OptionKind, Options, SinkSpec, SourceSpec,
};
use client::{NAME, Settings, config_problem};
use producer::OpenError;
use properties::PROPERTIES;
use transaction::Transactions;

/// The formats of messages.
const FORMATS: &[&str] = &["JSON", "DEBEZIUM", "CSV", "AVRO", "PROTOBUF", "RAW", "TEXT", "SENML", "SENML_PIVOT"];

/// The description of the connector.
pub(super) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Topics of Apache Kafka.",
    address: "`host:port/topic`; several brokers with commas between, as in `one:9092,two:9092/bids`",
    source: Some(DirectionDescription {
        help: "Each partition of the topic is one of the source, with a watermark of its own; with a group, whose member the query is, those that \
               others read are not waited for. One that is ours and has no messages is, unless the source has an `idle_timeout`. \
               Of a partition of which much waits to be processed, up to 4 MiB, nothing is read. Messages without a \
               value are refused, except tombstones of FORMAT DEBEZIUM, which are passed over.",
        formats: FORMATS,
        guarantees: &[("", Guarantee::ExactlyOnce)],
        options: &[
            OptionDescription {
                name: "group",
                kind: OptionKind::Text,
                default: None,
                help: "The consumer group. Its offsets are committed for what was handed to the query, and reading goes on from there. \
                       Without one, nothing is committed.",
            },
            OptionDescription {
                name: "start",
                kind: OptionKind::Text,
                default: Some("earliest"),
                help: "Where to begin: `earliest`, `latest`, or a time, as `2026-11-21T08:30:00Z` or in milliseconds since 1970. With a \
                       group, `earliest` or `latest` where it has no offset.",
            },
            OptionDescription {
                name: "bounded",
                kind: OptionKind::Boolean,
                default: Some("false"),
                help: "Whether to end with the last message that is there at the start.",
            },
            OptionDescription {
                name: "key_column",
                kind: OptionKind::Text,
                default: None,
                help: "The declared column (TEXT) that is the key of the message.",
            },
            OptionDescription {
                name: "partition_column",
                kind: OptionKind::Text,
                default: None,
                help: "The declared column (BIGINT) that is the number of the topic's partition.",
            },
            OptionDescription {
                name: "offset_column",
                kind: OptionKind::Text,
                default: None,
                help: "The declared column (BIGINT) that is the offset of the message.",
            },
            OptionDescription {
                name: "timestamp_column",
                kind: OptionKind::Text,
                default: None,
                help: "The declared column (TIMESTAMP) that is the time of the message. It may be the event time.",
            },
            PROPERTIES,
        ],
    }),
    sink: Some(DirectionDescription {
        help: "One message a row, in order for each key, written once even if a batch has to be sent again. A message that the broker does \
               not take in the end ends the query. A result that changes needs a key: the newest row of each key is written, and a \
               message without value when there is none any more. As FORMAT DEBEZIUM all of its changes are \
               written: `c` for a row that came, `d` for one that was taken back; where the result has no key, `key` \
               says by which columns they stay in order.",
        formats: FORMATS,
        guarantees: &[("`delivery => 'exactly_once'`", Guarantee::ExactlyOnce), ("", Guarantee::AtLeastOnce)],
        options: &[
            OptionDescription {
                name: "delivery",
                kind: OptionKind::Choice(&["at_least_once", "exactly_once"]),
                default: Some("at_least_once"),
                help: "With `at_least_once` rows can be read as soon as they are written, and those behind the last checkpoint come again after a \
                       crash. With `exactly_once` they are written in transactions that are committed with checkpoints: whoever reads with \
                       `isolation.level=read_committed` sees each row once, some seconds later. It needs a server that makes checkpoints. The \
                       transactional identifier, and a consumer group in which the number of the last checkpoint stands, are \
                       `rivulet-SERVER-QUERY`; `properties.transactional.id` changes both. A transaction that stays open for longer than \
                       `properties.transaction.timeout.ms`, 5 minutes, is aborted, and the query goes on from its last checkpoint. \
                       Give the topic, and the topics `__transaction_state` and `__consumer_offsets`, replicas on other brokers: a broker of \
                       Kafka 4 (seen with 4.3.1; KAFKA-20734) that ends just after a transaction was committed, and starts again, passes over \
                       partitions that have no other replica. Readers of such a partition wait, and no timeout ends that, until the next commit \
                       with rows for it; an abort that comes first, as behind a crash of the server, takes back these rows too. \
                       `kafka-transactions find-hanging` shows them; its `abort` would take them back.",
            },
            OptionDescription {
                name: "key",
                kind: OptionKind::Names,
                default: None,
                help: "The columns that are the key of the message: the text of one, a JSON object of several. Of a result that changes, also a single text is written as an object where it is null or begins with `{`, so that no two keys are alike.",
            },
            PROPERTIES,
        ],
    }),
    example: "CREATE SOURCE bids (auction BIGINT, price BIGINT, sent TIMESTAMP EVENT TIME)\n  \
              FROM 'kafka:localhost:9092/bids' FORMAT JSON WITH (group => 'rivulet', timestamp_column => 'sent');",
    open: Opening {
        source: Some(open_source),
        sink: Some(open_sink),
        check: Check { source: Some(check_source), sink: Some(check_sink) },
        final_up_to: Some(final_up_to),
        messages: Some(Messages {
            key: Some("key_column"),
            time: Some("timestamp_column"),
            place: Some(MessagePlace { partition: "partition_column", offset: "offset_column", go_on: start::go_on }),
            is_confirmed: false,
            needs_log: false,
        }),
        by_row: Some(BY_ROW),
        bound_by: Some(&["group"]),
        ..Opening::NONE
    },
};

fn check_source(spec: &SourceSpec, options: &Options) -> Result<(), ConnectorError> {
    check_reach(parse_address(&spec.address)?.0, &spec.address, &spec.host)?;
    start::Start::parse(options)?;
    properties::check(options, &spec.host.files)?;
    let format = format_of_pieces(CONNECTOR.name, spec.format.as_ref(), "messages", &spec.host.files)?;
    metadata::Layout::new(spec, options, &format).map(drop)
}

/// Fails if a broker may not be reached, as far as its name tells. Its address is checked when it is connected to.
fn check_reach(brokers: &str, address: &str, host: &ConnectorContext) -> Result<(), ConnectorError> {
    let is_port = |end: &str| end.bytes().all(|byte| byte.is_ascii_digit());
    let mut hosts = brokers.split(',').map(str::trim).map(|broker| match broker.rsplit_once(':') {
        Some((host, port)) if is_port(port) && (!host.contains(':') || host.starts_with('[')) => host,
        _ => broker,
    });
    hosts.try_for_each(|name| host.reach.brokers.check_host(name)).map_err(|error| {
        let problem = format!("is out of reach: {}", error.why);
        ConnectorError::address(CONNECTOR.name, address, problem, error.hint)
    })
}

/// How topics are made from parameters.
const BY_ROW: ByRow = ByRow { value: push_value, check: check_address, prepared_rows: |_| 0, waiting_max: None };

fn check_address(spec: &SinkSpec) -> Result<(), ConnectorError> {
    parse_address(&spec.address).map(drop)
}

/// Appends a value as a part of a topic.
fn push_value(value: &str, address: &mut String) -> Result<(), &'static str> {
    if value.is_empty() {
        return Err("it is empty");
    }
    address.push_str(value);
    match value.bytes().all(is_in_topics) {
        true => Ok(()),
        false => Err("topics are of letters, digits, '.', '_' and '-'"),
    }
}

/// The brokers and the topic of a sink; if each row has its own topic, a template of it.
fn address_of(spec: &SinkSpec) -> Result<(&str, &str), ConnectorError> {
    if spec.output.is_none_or(|output| !output.has_addresses) {
        return parse_address(&spec.address);
    }
    match spec.address.trim_start_matches("//").split_once('/') {
        Some((brokers, topic)) if !brokers.contains('{') && !brokers.is_empty() => Ok((brokers, topic)),
        _ => {
            let problem = "has no brokers that are the same for all queries";
            let hint = "parameters stand in the topic alone: 'kafka:host:port/alerts-{home}'";
            Err(ConnectorError::address(CONNECTOR.name, &spec.address, problem, hint))
        }
    }
}

fn check_sink(spec: &SinkSpec, options: &Options) -> Result<(), ConnectorError> {
    check_reach(address_of(spec)?.0, &spec.address, &spec.host)?;
    properties::check(options, &spec.host.files)?;
    format_of_pieces(CONNECTOR.name, spec.format.as_ref(), "messages", &spec.host.files).map(drop)
}

fn open_source(
    spec: &SourceSpec,
    options: &Options,
    partitions_wanted: usize,
) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let (brokers, topic) = parse_address(&spec.address)?;
    let format = format_of_pieces(CONNECTOR.name, spec.format.as_ref(), "messages", &spec.host.files)?;
    let layout = metadata::Layout::new(spec, options, &format)?;
    let mut config = ClientConfig::new();
    config
        .set("client.id", "rivulet")
        .set("enable.partition.eof", "true")
        .set("enable.auto.offset.store", "false")
        // The bytes that wait in the library, beside those in our queues: enough for a second at a million events.
        .set("queued.max.messages.kbytes", "16384")
        .set("fetch.message.max.bytes", "4194304");
    let settings = Settings::new(config, brokers, &spec.host.reach.brokers);
    let resumed = spec.resumed::<start::Resumed>(CONNECTOR.name)?;
    let failed = |problem| broker_problem(spec, problem);
    let resumed = resumed.as_deref().unwrap_or_default();
    // A member of the group would take partitions from the others, and commit messages that they have not read.
    let alone = spec.host.only_looks.then(|| options.without("group"));
    let options = alone.as_ref().unwrap_or(options);
    let plan = start::plan(topic, options, settings, partitions_wanted, resumed, &spec.host.files, &failed)?;
    let rows = Arc::new(source::Rows { topic: topic.to_owned(), layout, format });
    let mut sources: Vec<(i32, Box<dyn Source>)> = Vec::new();
    for reading in plan {
        let begins = reading.begins.clone();
        let (queues, shared) = fetch::start(reading, spec.host.health.clone());
        sources.extend(queues.into_iter().zip(begins).map(|(queue, begin)| {
            let partition = queue.partition;
            let source = source::KafkaSource::new(&rows, queue, &shared, &begin);
            (partition, Box::new(source) as Box<dyn Source>)
        }));
    }
    // In the order in which partitions are dealt to consumers, so that tasks and consumers share the work alike.
    let place = |partition| resumed.iter().position(|(resumed, ..)| *resumed == partition);
    sources.sort_by_key(|(partition, _)| (place(*partition).unwrap_or(usize::MAX), *partition));
    Ok(sources.into_iter().map(|(_, source)| source).collect())
}

fn open_sink(spec: &SinkSpec, options: &Options, instance: Instance) -> Result<Box<dyn Sink>, ConnectorError> {
    let (_, topic) = address_of(spec)?;
    let format = format_of_pieces(CONNECTOR.name, spec.format.as_ref(), "messages", &spec.host.files)?;
    let key = key::KeyEncoder::new(spec, options, format.has_changes())?;
    let failed = |error| sink_problem(spec, options, error);
    let (settings, transactions) = match (transactions(spec, options)?, &spec.checkpoints) {
        (None, _) => (producer(spec, options)?, None),
        (Some(place), Some(prepared)) => {
            let opened = Transactions::open(&place, instance.number, instance.of, prepared).map_err(failed)?;
            (place.settings, Some(opened))
        }
        (Some(_), None) => {
            let hint = "run the query on a server with checkpoint.enabled = true, or leave the option out";
            return Err(options.wrong("delivery", "is 'exactly_once', and nobody makes checkpoints here", hint));
        }
    };
    let (changes, health, output) = (spec.changes, &spec.host.health, spec.output);
    let prepared = spec.checkpoints.as_ref().filter(|_| transactions.is_none());
    let waiting = prepared.map(|texts| waiting::read(texts, (instance.number, instance.of))).transpose();
    let waiting = waiting.map_err(|error| failed(OpenError::Transaction(error.0)))?;
    let schema = &spec.schema;
    let opened =
        sink::KafkaSink::open(&settings, topic, &format, schema, changes, key, output, transactions, waiting, health);
    Ok(Box::new(opened.map_err(failed)?))
}

/// Up to which checkpoint the results of a query are final, if its newest checkpoint is that of `spec`.
fn final_up_to(spec: &SinkSpec, options: &Options) -> Result<FinalUpTo, ConnectorError> {
    let Some(place) = transactions(spec, options)? else { return Ok(FinalUpTo::Any) };
    let prepared = spec.checkpoints.as_deref().unwrap_or_default();
    transaction::final_up_to(&place, prepared).map_err(|error| sink_problem(spec, options, error))
}

/// The place of transactions, if they are requested.
fn transactions(spec: &SinkSpec, options: &Options) -> Result<Option<transaction::Place>, ConnectorError> {
    if options.text("delivery") != Some("exactly_once") {
        return Ok(None);
    }
    let mut settings = producer(spec, options)?;
    let config = &mut settings.config;
    let own = format!("rivulet-{}-{}", spec.host.server, spec.host.query);
    let id = config.get("transactional.id").map_or(own, str::to_owned);
    config.set("transactional.id", &id);
    if config.get("transaction.timeout.ms").is_none() {
        config.set("transaction.timeout.ms", transaction::TIMEOUT_MS);
    }
    let topic = parse_address(&spec.address)?.1.to_owned();
    Ok(Some(transaction::Place { settings, id, topic, health: spec.host.health.clone() }))
}

/// The settings of the producer.
fn producer(spec: &SinkSpec, options: &Options) -> Result<Settings, ConnectorError> {
    let mut config = ClientConfig::new();
    config
        .set("client.id", "rivulet")
        .set("enable.idempotence", "true")
        // The same as clients in Java, so that equal keys go to one partition whichever client writes them.
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "5")
        .set("queue.buffering.max.messages", sink::QUEUE_MESSAGES.to_string())
        .set("queue.buffering.max.kbytes", sink::QUEUE_KIB.to_string());
    let has_transactions = options.text("delivery") == Some("exactly_once");
    if spec.output.is_some() || (spec.checkpoints.is_some() && !has_transactions) {
        // A message waits for its broker without limit, and is a part of checkpoints meanwhile.
        config.set("message.timeout.ms", "0");
    }
    properties::set(&mut config, options, &spec.host.files)?;
    Ok(Settings::new(config, address_of(spec)?.0, &spec.host.reach.brokers))
}

/// The error for a sink that cannot be opened.
fn sink_problem(spec: &SinkSpec, options: &Options, error: OpenError) -> ConnectorError {
    let (problem, hint) = match error {
        OpenError::Format(error) => return ConnectorError::Format(error),
        OpenError::Kafka(error) => match config_problem(options, &error) {
            Some(problem) => return problem,
            None => (error.to_string(), None),
        },
        OpenError::Transaction(problem) => match problem.split_once("\nhint: ") {
            Some((problem, hint)) => (problem.to_owned(), Some(hint.to_owned())),
            None => (problem, None),
        },
    };
    let hint = hint.unwrap_or_else(|| "the address is 'kafka:host:port/topic'; is the broker there?".into());
    ConnectorError::Open { connector: CONNECTOR.name, address: spec.address.clone(), problem, hint }
}

/// The error with the broker's answer, or that there was none.
fn broker_problem(spec: &SourceSpec, problem: String) -> ConnectorError {
    let hint = "the address is 'kafka:host:port/topic'; does the broker run, and does it have the topic?";
    ConnectorError::open(CONNECTOR.name, &spec.address, problem, hint)
}

fn is_in_topics(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// Splits an address into brokers and topic.
fn parse_address(address: &str) -> Result<(&str, &str), ConnectorError> {
    let hint = "write 'kafka:host:port/topic', for example 'kafka:localhost:9092/bids'";
    let wrong = |problem: &str| ConnectorError::address(CONNECTOR.name, address, problem, hint);
    let (brokers, topic) =
        address.trim_start_matches("//").split_once('/').ok_or_else(|| wrong("does not say broker and topic"))?;
    let is_address = |broker: &str| match broker.trim().rsplit_once(':') {
        Some((host, port)) => !host.is_empty() && (port.ends_with(']') || port.parse::<u16>().is_ok()),
        None => !broker.trim().is_empty(),
    };
    if !brokers.split(',').all(is_address) {
        return Err(wrong("names a broker without a host, or a port that is not a number"));
    }
    if topic.is_empty() || topic.len() > 249 || !topic.bytes().all(is_in_topics) {
        return Err(wrong("has no topic of letters, digits, '.', '_' and '-'"));
    }
    Ok((brokers, topic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(parse_address("a:1,b:2/my.topic-1"), Ok(("a:1,b:2", "my.topic-1")));
        assert_eq!(parse_address("//localhost:9092/bids"), Ok(("localhost:9092", "bids")));
        for wrong in ["", "bids", "a:1/", "/bids", "a:1,/bids", "a:1/b/c", "a:1/b d", "a:70000/b", "a:1,:2/b"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn messages_that_can_wait_wait_for_their_broker_without_end() {
        use crate::connector::{ConnectorContext, Direction};
        for (given, has_checkpoints, waits) in [
            (vec![], true, true),
            (vec![], false, false),
            (vec![("delivery".to_owned(), "exactly_once".to_owned())], true, false),
        ] {
            let spec = SinkSpec {
                connector: "kafka".into(),
                address: "127.0.0.1:9/x".into(),
                format: None,
                schema: std::sync::Arc::new(arrow::datatypes::Schema::empty()),
                changes: false,
                key: None,
                options: Vec::new(),
                host: ConnectorContext::default(),
                checkpoints: has_checkpoints.then(Vec::new),
                output: None,
            };
            let options = CONNECTOR.check_options(Direction::Sink, &given).unwrap();
            let settings = producer(&spec, &options).unwrap();
            assert_eq!(settings.config.get("message.timeout.ms") == Some("0"), waits, "{given:?} {has_checkpoints}");
        }
    }
}
