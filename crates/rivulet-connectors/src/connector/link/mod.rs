//! `link:` rows to and from other servers of Rivulet.
//!
//! [`sink`]: a stream to another server, which this one dials; [`source`]: the streams that others send.

mod sink;
mod source;

use rivulet_dataflow::Sink;
use rivulet_wire::{Compression, SendOptions};

use super::certificates;
use super::description::{Check, Instance, Opening};
use super::outgoing::only_appends;
use super::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, OptionDescription, OptionKind, Options,
    SinkSpec, SourceSpec,
};
use crate::links::{Links, Target};
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
               pushed back, each by itself.",
        formats: &[],
        guarantees: &[("", Guarantee::AtMostOnce)],
        options: &[],
    }),
    sink: Some(DirectionDescription {
        help: "Sends rows to another server, which reads them as `CREATE SOURCE ... FROM 'link:STREAM'`. This server \
               makes the connection, one for all its streams to the same server, and makes it again when it breaks: \
               rows that the other server has not received are sent again, once and in order. While the other server is \
               away, or takes no more, the query waits. Rows that wait are lost if this server ends.",
        formats: &[],
        guarantees: &[("", Guarantee::None)],
        options: &[
            OptionDescription {
                name: "token",
                kind: OptionKind::Secret,
                default: None,
                help: "The token of a user of the other server, where that has users.",
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
                help: "Rows are sent when so many bytes of them have gathered, and no more than that wait to be sent. \
                       With 1, each row is sent by itself.",
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
    example: "CREATE SINK up TO 'link:cloud.example:7117/readings' WITH (tls => true, token => 'secret:cloud');",
    open: Opening {
        source: Some(source::open),
        sink: Some(open_sink),
        check: Check { source: Some(check_source), sink: Some(check_sink) },
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
        true => Ok(()),
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
    let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| wrong("has a port that is none"))?;
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
    spec.host.reach.brokers.check_host(host).map_err(|error| {
        ConnectorError::address(NAME, &spec.address, format!("is out of reach: {}", error.why), error.hint)
    })
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
        token: options.text("token").map(str::to_owned),
        reach: spec.host.reach.brokers.clone(),
    };
    let send = SendOptions {
        buffer_bytes: options.count("buffer_bytes").unwrap_or(1 << 20),
        flush_us: options
            .duration("flush")
            .map_or(10_000, |flush| i64::try_from(flush.as_micros()).unwrap_or(i64::MAX)),
        compression: match options.text("compression") {
            Some("none") => Compression::None,
            Some("lz4") => Compression::Lz4,
            Some("zstd") => Compression::Zstd,
            _ => Compression::Auto,
        },
    };
    // Parallel instances send streams of their own, which the other side knows by the same name.
    let name = format!("{stream}#{}/{}/{}", spec.host.server, spec.host.query, instance.number);
    let outgoing = links.send(target, name, spec.schema.clone(), send).map_err(|error| {
        ConnectorError::open(NAME, &spec.address, error.to_string(), "look at the limits of the system")
    })?;
    Ok(Box::new(sink::LinkSink::new(outgoing, spec.host.health.clone())))
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
