//! `mqtt:` topics, in both directions: through the connection that the process has already, as a server does, or
//! through a separate one.
//!
//! - [`host`]: the services of a process with a connection; [`link`]: a separate connection;
//! - [`topic`]: columns that come from a topic; [`inbox`]: messages that wait; [`source`]: rows from messages;
//! - [`sink`]: messages from rows.

mod connection;
mod inbox;
mod link;
mod sink;
mod source;
mod topic;

use std::sync::Arc;

use rivulet_dataflow::suggest::nearest;
use rivulet_dataflow::{Sink, Source};

use super::description::{ByRow, Check, Instance, Opening};
use super::given_format::format_of_pieces;
use super::waiting;
use super::{
    ConnectorContext, ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, OptionDescription,
    OptionKind, Options, SinkSpec, SourceSpec, certificates,
};
use crate::mqtt::template::level_problem;
use crate::mqtt::{BrokerAddress, ClientOptions, PublishOptions};

pub use connection::MqttConnection;
use inbox::{Overflow, Queue};
use link::Link;
use sink::{publish_of, qos};
use topic::NAME;

/// The formats of messages.
const FORMATS: &[&str] = &["JSON", "DEBEZIUM", "CSV", "AVRO", "PROTOBUF", "RAW", "TEXT", "SENML", "SENML_PIVOT"];

const BROKER: OptionDescription = OptionDescription {
    name: "broker",
    kind: OptionKind::Broker,
    default: None,
    help: "The broker, as `mqtt://user:password@host:port`, or `mqtts://` for TLS. On a server, without it, the server's own.",
};

const PASSWORD: OptionDescription = OptionDescription {
    name: "password",
    kind: OptionKind::Secret,
    default: None,
    help: "The password of the user in `broker`, where it does not stand there: `password => SECRET name`.",
};

/// The description of the connector.
pub(super) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Topics of MQTT.",
    address: "a topic, or as a source a filter (`home/+/temperature`, `home/#`); as a sink, `{column}` stands for the value of a column",
    source: Some(DirectionDescription {
        help: "A row a message, or several where the format has several. On a server messages come by the server's one connection, or from its \
               embedded broker, through the same routes as those of small queries; a query that is paused has no route. When the queue is \
               full the connection is not read, and everybody behind it waits, unless `overflow` says otherwise; a query that takes nothing for 5 s holds up nobody, and drops the newest messages. With `broker` there is a connection of its own, which \
               is made again when it is lost; what is sent meanwhile is not seen.",
        formats: FORMATS,
        guarantees: &[("", Guarantee::AtMostOnce)],
        options: &[
            BROKER,
            OptionDescription {
                name: "topic_column",
                kind: OptionKind::Text,
                default: None,
                help: "The declared column (TEXT) that is the topic of the message.",
            },
            OptionDescription {
                name: "level_columns",
                kind: OptionKind::Names,
                default: None,
                help: "The declared columns (TEXT) that are what the wildcards stand for, in their order, as in \
                       `level_columns => 'home, room'` for `home/+/+/temperature`. What `#` stands for is the rest of the topic, which may be \
                       empty.",
            },
            OptionDescription {
                name: "partitions",
                kind: OptionKind::Integer { min: 1, max: 64 },
                default: Some("1"),
                help: "In how many partitions messages are read, by their topic. Each has a watermark of its own, so with more than one a query \
                       waits for topics of all of them, or until they are idle.",
            },
            OptionDescription {
                name: "queue_bytes_max",
                kind: OptionKind::Bytes,
                default: Some("16 MiB"),
                help: "How much may wait to be processed.",
            },
            OptionDescription {
                name: "overflow",
                kind: OptionKind::Choice(&["block", "drop_oldest", "drop_newest"]),
                default: Some("block"),
                help: "What happens when the queue is full: the connection waits, with everybody behind it, which the log says, but for 5 s at most if nothing is \
                       taken meanwhile; then the new message is dropped. Or all that waits is dropped, or the new message. What is dropped is \
                       counted as refused (`overflow`).",
            },
            OptionDescription {
                name: "qos",
                kind: OptionKind::Integer { min: 0, max: 1 },
                default: Some("0"),
                help: "Quality of service of the subscription, with `broker`; a server's connection has its own.",
            },
            certificates::CA_FILE,
            certificates::CERTIFICATE_FILE,
            certificates::KEY_FILE,
            PASSWORD,
        ],
    }),
    sink: Some(DirectionDescription {
        help: "A message for each row, in order. Columns in the topic are not in the payload as well unless that is asked for. Rows of a result that \
               changes say in `op` whether they came (`+`) or were taken back (`-`), as FORMAT DEBEZIUM in its \
               own way. While too much waits for the broker, the query does.",
        formats: FORMATS,
        guarantees: &[("`qos => 1`", Guarantee::AtLeastOnce), ("`qos => 0`", Guarantee::None)],
        options: &[
            BROKER,
            OptionDescription {
                name: "qos",
                kind: OptionKind::Integer { min: 0, max: 1 },
                default: Some("0"),
                help: "Quality of service: 1 is acknowledged, and may come twice.",
            },
            OptionDescription {
                name: "retain",
                kind: OptionKind::Boolean,
                default: Some("false"),
                help: "Whether the broker keeps the last message of each topic for those who subscribe later.",
            },
            OptionDescription {
                name: "expiry",
                kind: OptionKind::Duration,
                default: None,
                help: "After how long with the broker a message is of no use: it goes to nobody any more, and is not retained any \
                       longer. Whole seconds; an external broker has to speak MQTT 5.",
            },
            OptionDescription {
                name: "keep_topic_columns",
                kind: OptionKind::Boolean,
                default: Some("false"),
                help: "Whether columns in the topic are in the payload too.",
            },
            OptionDescription {
                name: "on_bad_topic",
                kind: OptionKind::Choice(&["fail", "skip"]),
                default: Some("fail"),
                help: "What happens with a row whose values make no topic (empty, or with `/`, `+` or `#`): the query ends, or goes on without it.",
            },
            certificates::CA_FILE,
            certificates::CERTIFICATE_FILE,
            certificates::KEY_FILE,
            PASSWORD,
        ],
    }),
    example: "CREATE SOURCE readings (home TEXT, ts TIMESTAMP EVENT TIME, value DOUBLE)\n  \
              FROM 'mqtt:home/+/temperature' FORMAT JSON WITH (level_columns => 'home');\n\
              CREATE SINK means TO 'mqtt:home/{home}/mean' FORMAT JSON WITH (retain => true);",
    open: Opening {
        source: Some(open_source),
        sink: Some(open_sink),
        check: Check { source: Some(check_source), sink: Some(check_sink) },
        by_row: Some(BY_ROW),
        ..Opening::NONE
    },
};

fn check_source(spec: &SourceSpec, options: &Options) -> Result<(), ConnectorError> {
    let format = format_of_pieces(NAME, spec.format.as_ref(), "messages", &spec.host.files)?;
    topic::Layout::new(spec, options, spec.address.trim(), &format)?;
    certificates::check(options, &spec.host.files)?;
    check_broker(options, &spec.host)
}

fn check_sink(spec: &SinkSpec, options: &Options) -> Result<(), ConnectorError> {
    format_of_pieces(NAME, spec.format.as_ref(), "messages", &spec.host.files)?;
    // Where parameters make the topic of each row, no column does.
    let has_addresses = spec.output.is_some_and(|output| output.has_addresses);
    let columns = spec.schema.fields().iter().map(|field| field.name().as_str()).filter(|_| !has_addresses);
    sink::topic(&spec.address, &columns.collect::<Vec<_>>())?;
    certificates::check(options, &spec.host.files)?;
    publish_of(options)?;
    check_broker(options, &spec.host)
}

/// How topics are made from parameters, for a broker of the output's own.
const BY_ROW: ByRow = ByRow {
    value: push_value,
    check: sink::check_address,
    prepared_rows: |text| waiting::read(&[text.to_owned()], (0, 1)).map_or(0, |messages| messages.len()),
    waiting_max: None,
};

/// Appends a value as a part of a level.
fn push_value(value: &str, topic: &mut String) -> Result<(), &'static str> {
    topic.push_str(value);
    level_problem(value).map_or(Ok(()), Err)
}

/// Fails if the broker has no address, or may not be reached, as far as its name tells.
fn check_broker(options: &Options, host: &ConnectorContext) -> Result<(), ConnectorError> {
    let Some(broker) = broker_of(options)? else { return Ok(()) };
    host.reach.brokers.check_host(&broker.host).map_err(|error| {
        let problem = format!("is out of reach: {}", error.why);
        options.wrong(BROKER.name, problem, error.hint)
    })
}

fn open_source(spec: &SourceSpec, options: &Options, _wanted: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let filter = spec.address.trim();
    let layout = topic::Layout::new(
        spec,
        options,
        filter,
        &format_of_pieces(NAME, spec.format.as_ref(), "messages", &spec.host.files)?,
    )?;
    let host = host_of(&spec.host, &spec.address, options)?;
    let partitions = options.count("partitions").unwrap_or(1);
    let queue = Queue {
        bytes_max: options.count("queue_bytes_max").unwrap_or(usize::MAX),
        overflow: match options.text("overflow") {
            // A source that only inspects holds up no others behind the same connection.
            _ if spec.host.only_looks => Overflow::DropOldest,
            Some("drop_oldest") => Overflow::DropOldest,
            Some("drop_newest") => Overflow::DropNewest,
            _ => Overflow::Block,
        },
        query: spec.host.query.clone(),
        filter: filter.to_owned(),
        holds_up: spec.host.holds_up.clone(),
    };
    let opened = source::open(&host, filter, layout, partitions, queue, &spec.host.health)?;
    host.await_subscription(filter).map_err(|problem| refused(&spec.address, problem))?;
    Ok(opened)
}

fn open_sink(spec: &SinkSpec, options: &Options, instance: Instance) -> Result<Box<dyn Sink>, ConnectorError> {
    let rows =
        sink::Rows::new(spec, options, &format_of_pieces(NAME, spec.format.as_ref(), "messages", &spec.host.files)?)?;
    let host = host_of(&spec.host, &spec.address, options)?;
    let waits = spec.checkpoints.as_ref().map(|texts| waiting::read(texts, (instance.number, instance.of))).transpose();
    let sink = waits.and_then(|waits| sink::MqttSink::new(host, rows, waits, spec.host.health.clone()));
    Ok(Box::new(sink.map_err(|error| refused(&spec.address, error.0))?))
}

/// The connection of the process, or a separate one if a broker is named.
fn host_of(
    host: &ConnectorContext,
    address: &str,
    options: &Options,
) -> Result<Arc<dyn MqttConnection>, ConnectorError> {
    let Some(broker) = broker_of(options)? else {
        return host.mqtt.clone().ok_or_else(|| {
            options.wrong("broker", "is missing", "name it, as in WITH (broker => 'mqtt://localhost:1883')")
        });
    };
    let mut client = ClientOptions::new(broker);
    client.qos = qos(options);
    client.reach = host.reach.brokers.clone();
    client.tls = certificates::client_tls(options, &host.files)?;
    Ok(Arc::new(Link::open(client).map_err(|problem| refused(address, problem))?))
}

/// The broker that is named, if any.
fn broker_of(options: &Options) -> Result<Option<BrokerAddress>, ConnectorError> {
    let wrong = |error: crate::mqtt::AddressError| {
        let hint = format!("{}; write for example broker => 'mqtt://localhost:1883'", error.problem);
        options.wrong("broker", "is not the address of a broker", hint)
    };
    let broker = options.text("broker").map(|broker| broker.parse::<BrokerAddress>().map_err(wrong)).transpose()?;
    let Some(password) = options.text(PASSWORD.name) else { return Ok(broker) };
    let refused = |problem: &str| Err(options.wrong(PASSWORD.name, problem, "write broker => 'mqtt://user@host'"));
    match broker {
        Some(broker) if broker.password.is_some() => refused("is given twice, also in 'broker'"),
        Some(broker) if broker.user.is_some() => Ok(Some(BrokerAddress { password: Some(password.into()), ..broker })),
        Some(_) => refused("has no user in 'broker'"),
        None => refused("needs the option 'broker', with a user"),
    }
}

/// The options of an output of an application that is published by the connection that all share; and the one that
/// names another broker, whose output is a sink.
const OF_OUTPUTS: [&str; 4] = ["qos", "retain", "expiry", "broker"];

/// How messages of an output of an application with these options are published. Options that are not given are as in
/// `default`.
///
/// # Errors
/// There is no such option, or only sinks of big queries have it; or a value is invalid.
pub fn publish_options(given: &[(String, String)], default: PublishOptions) -> Result<PublishOptions, ConnectorError> {
    let is_given = |wanted: &str| given.iter().any(|(name, _)| name == wanted);
    if let Some((name, _)) = given.iter().find(|(name, _)| !OF_OUTPUTS.contains(&name.as_str())) {
        // The options of sinks are not those of outputs: none of them may be in the hint.
        let is_of_sinks = CONNECTOR.sink.iter().flat_map(|sink| sink.options).any(|option| option.name == *name);
        let problem = if is_of_sinks { "is one of sinks of big queries" } else { "is unknown" };
        let hint = match nearest(name, OF_OUTPUTS).filter(|_| !is_of_sinks) {
            Some(near) => format!("did you mean '{near}'?"),
            None => "outputs of applications have qos, retain and expiry; with broker, the options of sinks".to_owned(),
        };
        let (option, problem) = (name.clone(), problem.to_owned());
        return Err(ConnectorError::Option { connector: NAME, option, problem, hint });
    }
    let options = CONNECTOR.check_options(super::Direction::Sink, given)?;
    let own = publish_of(&options)?;
    Ok(PublishOptions {
        qos: if is_given("qos") { own.qos } else { default.qos },
        retain: if is_given("retain") { own.retain } else { default.retain },
        expiry_s: own.expiry_s,
    })
}

/// The error if the broker, or the network, refuses.
fn refused(address: &str, problem: String) -> ConnectorError {
    let (problem, hint) = match problem.split_once("\nhint: ") {
        Some((problem, hint)) => (problem.to_owned(), hint.to_owned()),
        None => (problem, "is the broker there, and may this user do that?".to_owned()),
    };
    ConnectorError::Open { connector: NAME, address: address.into(), problem, hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::Direction;

    #[test]
    fn hints_for_outputs_name_their_own_options() {
        let problem = |name: &str| {
            let given = [(name.to_owned(), "1".to_owned())];
            publish_options(&given, PublishOptions::default()).unwrap_err().to_string()
        };
        assert_eq!(problem("retian"), "the option 'retian' of 'mqtt:' is unknown\nhint: did you mean 'retain'?");
        let hint = "outputs of applications have qos, retain and expiry; with broker, the options of sinks";
        assert_eq!(problem("colour"), format!("the option 'colour' of 'mqtt:' is unknown\nhint: {hint}"));
        let of_sinks = format!("the option 'on_bad_topic' of 'mqtt:' is one of sinks of big queries\nhint: {hint}");
        assert_eq!(problem("on_bad_topic"), of_sinks);
    }

    #[test]
    fn a_password_stands_in_the_address_or_in_its_own_option() {
        let broker = |given: &[(&str, &str)]| {
            let given: Vec<(String, String)> =
                given.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let options = CONNECTOR.check_options(Direction::Sink, &given).unwrap();
            broker_of(&options).map_err(|error| error.to_string())
        };
        let address = broker(&[("broker", "mqtt://kim@h"), ("password", "rose")]).unwrap().unwrap();
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("kim"), Some("rose")));
        for given in [
            &[("broker", "mqtt://kim:lily@h"), ("password", "rose")][..],
            &[("broker", "mqtt://h"), ("password", "rose")],
            &[("password", "rose")],
        ] {
            let error = broker(given).unwrap_err();
            assert!(error.contains("'password'") && error.contains("hint: write broker"), "{error}");
            assert!(!error.contains("rose") && !error.contains("lily"), "{error}");
        }
    }
}
