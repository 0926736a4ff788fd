//! `link:` rows to and from other servers of Rivulet.
//!
//! [`sink`]: a stream to another server, which this one dials; [`spooled`]: the same with its rows on disk until they
//! are durable there; [`source`]: the streams that others send.

mod sink;
mod spooled;
mod source;

use std::io;
use std::path::Path;
use std::sync::Arc;

use rivulet_dataflow::Sink;
use rivulet_wire::{Compression, SendOptions};

use super::certificates;
use super::description::{Check, Instance, Opening};
use super::outgoing::only_appends;
use super::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, Messages, OptionDescription, OptionKind,
    Options, SinkSpec, SourceSpec,
};
use crate::links::{Delivery, Keep, Links, Prepared, Spool, SpoolOptions, Target, Token};
use source::NAME;

/// The least and the most bytes of a buffer. 1: each row by itself.
const BUFFER_BYTES: (i64, i64) = (1, 64 << 20);

/// The description of the connector.
pub(super) const CONNECTOR: ConnectorDescription = ConnectorDescription {
    name: NAME,
    summary: "Streams of rows between servers of Rivulet: a gateway sends, a server in the cloud receives.",
    address: "of a sink `HOST:PORT/STREAM`, of a source `STREAM`",
    source: Some(DirectionDescription {
        help: "Receives the streams of this name of all servers that send one, at the address `link.address` of the \
               configuration. Columns are found by their names. While rows wait to be processed, the senders are \
               pushed back, each by itself. A sender keeps rows until a checkpoint of the query covers them, and sends \
               them again after a crash, unless its sink has `delivery => 'none'`. With FORMAT RAW each row is a JSON \
               object in one TEXT column, with the columns of the stream as FORMAT JSON of sinks writes them; but a \
               float that is not finite is null. An input of an application takes these objects as its messages, and \
               the sender keeps a row until it is in the log of events. A row whose key no query has is counted, and \
               its sender forgets it: create queries before gateways send. A stream has one reader.",
        formats: &["RAW"],
        guarantees: &[("", Guarantee::ExactlyOnce), ("senders with `delivery => 'none'`", Guarantee::AtMostOnce)],
        options: &[],
    }),
    sink: Some(DirectionDescription {
        help: "Sends rows to another server, which reads them as `CREATE SOURCE ... FROM 'link:STREAM'`. This server \
               makes the connection, one for all its streams to the same server, and makes it again when it breaks: \
               rows that the other server has not received are sent again, once and in order. Rows wait on disk until \
               the other server has made them durable, for hours if it is away; the query goes on meanwhile. A query \
               that has come to its end waits for that too. One that is dropped leaves them five seconds.",
        formats: &[],
        guarantees: &[
            ("`delivery => 'exactly_once'`", Guarantee::ExactlyOnce),
            ("", Guarantee::AtLeastOnce),
            ("`delivery => 'none'`", Guarantee::None),
        ],
        options: &[
            OptionDescription {
                name: "delivery",
                kind: OptionKind::Choice(&["at_least_once", "exactly_once", "none"]),
                default: Some("at_least_once"),
                help: "With `at_least_once` rows are sent at once, and those after the last checkpoint come again after \
                       a crash of this server. With `exactly_once` rows are sent with the checkpoint that covers them, \
                       so they come later by up to `checkpoint.interval_s`. With `none` rows wait in memory: they are \
                       lost if this server ends, and while the other one is away the query waits.",
            },
            OptionDescription {
                name: "spool_bytes_max",
                kind: OptionKind::Bytes,
                default: Some("1 GiB"),
                help: "The most bytes of rows that wait on disk, at least 1 MiB, for each instance of the sink.",
            },
            OptionDescription {
                name: "when_full",
                kind: OptionKind::Choice(&["block", "drop_oldest"]),
                default: Some("block"),
                help: "What happens when so many bytes wait: the query waits, or the oldest rows are dropped and counted \
                       as left out.",
            },
            OptionDescription {
                name: "token",
                kind: OptionKind::Secret,
                default: None,
                help: "The token of a user of the other server, where that has users. Of a secret each connection \
                       takes the present value.",
            },
            OptionDescription {
                name: "tls",
                kind: OptionKind::Boolean,
                default: Some("false"),
                help: "Whether the connection is encrypted.",
            },
            certificates::CA_FILE,
            certificates::CERTIFICATE_FILE,
            certificates::KEY_FILE,
            OptionDescription {
                name: "buffer_bytes",
                kind: OptionKind::Integer { min: BUFFER_BYTES.0, max: BUFFER_BYTES.1 },
                default: Some("1048576"),
                help: "Rows are sent when so many bytes of them have gathered. With 1, each row is sent by itself.",
            },
            OptionDescription {
                name: "flush",
                kind: OptionKind::Duration,
                default: Some("10 ms"),
                help: "Rows are sent so long after the first of them at the latest.",
            },
            OptionDescription {
                name: "compression",
                kind: OptionKind::Choice(&["auto", "none", "lz4", "zstd"]),
                default: Some("auto"),
                help: "How buffers are compressed. `auto`: by Zstandard, where a sample says that it pays.",
            },
        ],
    }),
    example: "CREATE SINK up TO 'link:cloud.example:7117/readings' WITH (tls => true);",
    open: Opening {
        source: Some(source::open),
        sink: Some(open_sink),
        check: Check { source: Some(check_source), sink: Some(check_sink) },
        messages: Some(Messages { key: None, time: None, place: None, is_confirmed: true, needs_log: true }),
        ..Opening::NONE
    },
};

/// Whether a text can be the name of a stream.
fn is_stream(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && name.len() <= 249 && name.bytes().all(is_part)
}

fn check_source(spec: &SourceSpec, _options: &Options) -> Result<(), ConnectorError> {
    match is_stream(&spec.address) {
        true => source::decoder(spec).map(drop),
        false => {
            let hint = "write 'link:readings': the address of this server is in its configuration";
            Err(ConnectorError::address(NAME, &spec.address, "is no name of letters, digits, '.', '_' and '-'", hint))
        }
    }
}

/// The host, the port and the stream of a sink's address.
fn parse_address(address: &str) -> Result<(&str, u16, &str), ConnectorError> {
    let hint = "write 'link:host:port/stream', for example 'link:cloud.example:7117/readings'";
    let wrong = |problem: &str| ConnectorError::address(NAME, address, problem, hint);
    let (place, stream) = address.split_once('/').ok_or_else(|| wrong("names no stream"))?;
    let (host, port) = place.rsplit_once(':').ok_or_else(|| wrong("names no port"))?;
    let port = port
        .parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| wrong("has a port that is not a number from 1 to 65535"))?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match (host.is_empty(), is_stream(stream)) {
        (true, _) => Err(wrong("names no host")),
        (_, false) => Err(wrong("names a stream that is not of letters, digits, '.', '_' and '-'")),
        _ => Ok((host, port, stream)),
    }
}

fn check_sink(spec: &SinkSpec, options: &Options) -> Result<(), ConnectorError> {
    certificates::check(options, &spec.host.files)?;
    let (host, ..) = parse_address(&spec.address)?;
    if !options.boolean("tls") && ["ca_file", "certificate_file"].into_iter().any(|name| options.text(name).is_some()) {
        return Err(options.wrong("tls", "is false, and there are certificates", "write tls => true"));
    }
    if let Some(problem) = options.text("token").and_then(problem_of_token) {
        return Err(options.wrong("token", problem, "`rivulet token create USER > FILE` writes the token alone"));
    }
    spec.host.reach.brokers.check_host(host).map_err(|error| {
        ConnectorError::address(NAME, &spec.address, format!("is out of reach: {}", error.why), error.hint)
    })
}

/// Why a text cannot be a token.
fn problem_of_token(token: &str) -> Option<&'static str> {
    token.contains(char::is_whitespace).then_some("has a blank or a line break in it")
}

/// The token of a sink. Its secret is looked up with each connection, because it may have another value by then.
fn token(spec: &SinkSpec) -> Option<Token> {
    let (_, text) = spec.options.iter().find(|(name, _)| name.trim().eq_ignore_ascii_case("token"))?;
    let (name, secrets) = (text.clone(), spec.host.secrets.clone());
    let value = move || {
        let value = secrets.value_of(&name).ok_or("the secret of the token is gone")?;
        problem_of_token(&value).map_or(Ok(value), |problem| Err(format!("the token {problem}")))
    };
    Some(Token { name: text.clone(), value: Arc::new(value) })
}

fn open_sink(spec: &SinkSpec, options: &Options, instance: Instance) -> Result<Box<dyn Sink>, ConnectorError> {
    only_appends(NAME, spec, "make the result final, for example with a window")?;
    let (host, port, stream) = parse_address(&spec.address)?;
    let tls = options.boolean("tls").then(|| certificates::client_tls(options, &spec.host.files)).transpose()?;
    let links = match &spec.host.links {
        Some((links, _)) => links.clone(),
        None => Links::of_process().clone(),
    };
    let target = Target {
        scope: format!("{} {}", spec.host.server, spec.host.links.as_ref().map_or("", |(_, scope)| scope)),
        host: host.to_owned(),
        port,
        tls,
        token: token(spec),
        reach: spec.host.reach.brokers.clone(),
    };
    let send = SendOptions {
        buffer_bytes: options.count("buffer_bytes").unwrap_or_default(),
        flush_us: i64::try_from(options.duration("flush").unwrap_or_default().as_micros()).unwrap_or(i64::MAX),
        compression: match options.text("compression") {
            Some("none") => Compression::None,
            Some("lz4") => Compression::Lz4,
            Some("zstd") => Compression::Zstd,
            _ => Compression::Auto,
        },
    };
    // Parallel instances send streams of their own, which the other side knows by the same name.
    let name = |instance: usize| format!("{stream}#{}/{}/{instance}", spec.host.server, spec.host.query);
    let failed =
        |error: &dyn std::fmt::Display, hint: &str| ConnectorError::open(NAME, &spec.address, error.to_string(), hint);
    let delivery = match (options.text("delivery"), &spec.checkpoints) {
        (Some("none"), _) => {
            let outgoing = links.send(target, name(instance.number), spec.schema.clone(), Keep::InMemory(send));
            let outgoing = outgoing.map_err(|error| failed(&error, "look at the limits of the system"))?;
            return Ok(Box::new(sink::LinkSink::new(outgoing, spec.host.health.clone())));
        }
        (Some("exactly_once"), Some(_)) => Delivery::ExactlyOnce,
        (Some("exactly_once"), None) => {
            let problem = "is exactly_once, and no checkpoints are made";
            return Err(options.wrong("delivery", problem, "set checkpoint.enabled, or write 'at_least_once'"));
        }
        _ => Delivery::AtLeastOnce,
    };
    let Some(folder) = links.spool_of(&spec.host.server, &spec.host.query) else {
        let problem = "needs a data folder, which only a server has";
        return Err(options.wrong("delivery", problem, "write delivery => 'none', or create the sink on a server"));
    };
    let bytes_max = options.integer("spool_bytes_max").map_or(u64::MAX, i64::unsigned_abs).max(1 << 20);
    let drops_oldest = options.text("when_full") == Some("drop_oldest");
    let spooling = SpoolOptions { send, delivery, bytes_max, drops_oldest };
    let hint = "look at the limits of the system, and at the disk";
    let prepared = spec.checkpoints.iter().flatten().filter(|text| !text.is_empty());
    let prepared = prepared.map(|text| serde_json::from_str::<Vec<Prepared>>(text)).collect::<Result<Vec<_>, _>>();
    let prepared =
        prepared.map_err(|error| failed(&error, "drop the query and create it again to begin anew"))?.concat();
    // Spools of instances that an earlier start had.
    let older = older(&links, &folder).map_err(|error| failed(&error, hint))?;
    let older = older.filter(|number| *number >= instance.of && number % instance.of == instance.number);
    let mut spooled = Vec::new();
    for number in std::iter::once(instance.number).chain(older) {
        let spool = Spool::open(
            (&links.machine, &links.open),
            &folder.join(number.to_string()),
            &spec.schema,
            spooling,
            &prepared,
        );
        let opened =
            spool.and_then(|spool| links.send_spooled(target.clone(), name(number), spec.schema.clone(), spool));
        spooled.push(opened.map_err(|error| failed(&error, hint))?);
    }
    Ok(Box::new(spooled::SpooledSink::new(spooled, delivery, spec.host.health.clone())))
}

/// The numbers of the instances that have spools in a folder.
fn older(links: &Links, folder: &Path) -> io::Result<impl Iterator<Item = usize>> {
    let disk = &links.machine.disk;
    disk.make_folder(folder)?;
    let entries = disk.list(folder)?;
    Ok(entries.into_iter().filter_map(|(path, _)| path.file_name()?.to_str()?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_a_host_a_port_and_a_stream() {
        assert_eq!(parse_address("a.example:7117/readings"), Ok(("a.example", 7117, "readings")));
        assert_eq!(parse_address("[::1]:1/a.b_c-d"), Ok(("::1", 1, "a.b_c-d")));
        for wrong in ["", "a", "a:1", "a/x", ":1/x", "a:0/x", "a:70000/x", "a:1/", "a:1/x y", "a:1/x#1", "a:1/x/y"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
