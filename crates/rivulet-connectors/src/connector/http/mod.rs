//! `http:` events that others post to us, and results that we post to others (webhooks); `https:` the latter encrypted.
//!
//! - [`listener`]: the small server that takes posts, [`source`]: rows from posts;
//! - [`receivers`]: requests that wait, for each receiver; [`delivery`]: the threads that post, repeatedly if
//!   necessary; [`sink`]: requests from rows; [`keys`]: by which a receiver recognises repeated requests; [`pending`]:
//!   what a checkpoint stores.

mod address;
mod delivery;
mod keys;
mod listener;
mod pending;
mod receivers;
mod sink;
mod source;

use std::fmt::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use rivulet_dataflow::{Sink, SinkError, Source};
use ureq::http::uri::{InvalidUri, Uri};
use ureq::http::{HeaderName, HeaderValue};

use super::description::{ByRow, Check, Instance, Opening};
use super::given_format::format_of_pieces;
use super::outgoing::only_appends;
use super::{
    ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, Messages, OptionDescription, OptionKind,
    Options, Secrets, SinkSpec, SourceSpec, certificates,
};
use crate::http_server::{Hosts, is_host_list};
use crate::reach::{KEY_OF_LISTENERS, check_port};
use crate::tls::{Certificates, Prepared};
use address::{not_to_post_to, parse_address, url_from};
use listener::{CONFIRM_MAX, Listener, ListenerOptions};
use pending::Prepared as PreparedRequests;

/// The formats of bodies that are read.
const FORMATS_READ: &[&str] = &["JSON", "DEBEZIUM", "CSV", "TEXT", "RAW", "AVRO", "PROTOBUF", "SENML", "SENML_PIVOT"];

/// The formats of bodies that are written. Several posts are on their way at a time, so they say no changes.
const FORMATS: &[&str] = &["JSON", "CSV", "TEXT", "RAW", "AVRO", "PROTOBUF", "SENML", "SENML_PIVOT"];

/// The description of HTTP, in both directions.
pub(super) const HTTP: ConnectorDescription = ConnectorDescription {
    name: "http",
    summary: "Events that others post here, and results that are posted to others (webhooks).",
    address: "`host:port/path`, with or without `//` before it. A source listens there, and a sink posts there",
    source: Some(DirectionDescription {
        help: "Takes POST requests whose body is one payload (a JSON object or an array of objects), or, by its content type \
               (`application/x-ndjson`, `text/csv`, `text/plain`), lines. Answers 202 when the events wait for the query, and 429 as long as \
               too many do; 413 to bodies that are too large. An input of an application with \
               `durability => 'log'` answers 200 when the events are in the log on disk, and 503 if that is not known \
               after 30 s: such a post may count twice if it is posted again. While its application stands still, \
               posts that were not read before are answered with 429, the first of them after 30 s, and are not taken. \
               A post whose sender breaks off before it is read is not taken either. An input with `key_field` answers 400, with what is \
               wrong, to a post with anything but JSON objects that have this field, and takes nothing of it. \
               A connection that is silent, or takes longer than \
               10 s for the head of a request or 30 s for each KiB of a body, is closed. Posts of web pages are answered with 403. One partition.",
        formats: FORMATS_READ,
        guarantees: &[("", Guarantee::AtMostOnce)],
        options: &[
            OptionDescription {
                name: "body_bytes_max",
                kind: OptionKind::Bytes,
                default: Some("4 MiB"),
                help: "The largest body.",
            },
            OptionDescription {
                name: "queue_bytes_max",
                kind: OptionKind::Bytes,
                default: Some("16 MiB"),
                help: "How much may wait to be processed before posts are answered with 429.",
            },
            OptionDescription {
                name: "lines",
                kind: OptionKind::Boolean,
                default: Some("false"),
                help: "Whether bodies are lines whatever their content type says.",
            },
            OptionDescription {
                name: "token",
                kind: OptionKind::Secret,
                default: None,
                help: "What posts have to say in `Authorization: Bearer ...`; others are answered with 401. An address that \
                       guesses is answered with 429, for longer and longer.",
            },
            OptionDescription {
                name: "hosts",
                kind: OptionKind::Text,
                default: None,
                help: "Names with commas between, or `*` for every name, that posts may be for: what they say in `Host`. \
                       Loopback names and the address listened at are always accepted; posts for others are answered with \
                       421. Without it, a source with a `token` accepts every name.",
            },
            OptionDescription {
                name: "certificate_file",
                kind: OptionKind::File,
                default: None,
                help: "The certificate of the source, in PEM, with its chain: posts are HTTPS then. It is read again when it changes.",
            },
            OptionDescription {
                name: "key_file",
                kind: OptionKind::File,
                default: None,
                help: "The private key of the certificate, in PEM.",
            },
            OptionDescription {
                name: "client_ca_file",
                kind: OptionKind::File,
                default: None,
                help: "Authorities in PEM: posts have to come with a certificate that one of them has signed.",
            },
        ],
    }),
    sink: Some(SINK),
    example: "CREATE SOURCE readings (device TEXT, value DOUBLE) FROM 'http:127.0.0.1:8090/readings';\n\
              -- A server posts to its own machine only if its configuration says so: hosts.allow = \"127.0.0.1\".\n\
              CREATE SINK alarms TO 'http://127.0.0.1:9000/hook' WITH (retry_for => '1 hour');",
    open: Opening {
        source: Some(open_source),
        sink: Some(open_sink),
        check: Check { source: Some(check_source), sink: Some(check_sink) },
        messages: Some(Messages { key: None, time: None, place: None, is_confirmed: true, needs_log: false }),
        by_row: Some(BY_ROW),
        ..Opening::NONE
    },
};

/// The description of HTTPS: webhooks.
pub(super) const HTTPS: ConnectorDescription = ConnectorDescription {
    name: "https",
    summary: "Results that are posted to others (webhooks), encrypted.",
    address: "`//host/path`",
    source: None,
    sink: Some(SINK),
    example: "CREATE SINK alarms TO 'https://example.org/hook' WITH (headers.authorization => 'Bearer 1234');",
    open: Opening {
        sink: Some(open_sink),
        check: Check { source: None, sink: Some(check_sink) },
        by_row: Some(BY_ROW),
        ..Opening::NONE
    },
};

const SINK: DirectionDescription = DirectionDescription {
    help: "A POST for each row, or for so many rows as an array (JSON) or as lines. What the receiver does not take (no answer, 408, 429, 5xx) \
           is posted again after a pause that doubles up to 30 seconds, or that `Retry-After` says; then the query ends with an error. Each \
           request has an `Idempotency-Key` of its own, the same however often it is posted, so that one that comes twice can be told; on a server that makes \
           checkpoints also after a crash, if requests are of one row each. Results \
           that change are not taken. An output of an application goes on: what is rejected, or not taken in time, is left out and \
           counted.",
    formats: FORMATS,
    guarantees: &[("", Guarantee::OncePerKey), ("`batch_rows` above 1", Guarantee::AtLeastOnce)],
    options: &[
        OptionDescription {
            name: "batch_rows",
            kind: OptionKind::Integer { min: 1, max: 10_000 },
            default: Some("1"),
            help: "How many rows are in a request at most.",
        },
        OptionDescription {
            name: "timeout",
            kind: OptionKind::Duration,
            default: Some("10 s"),
            help: "How long a request may take.",
        },
        OptionDescription {
            name: "retry_for",
            kind: OptionKind::Duration,
            default: None,
            help: "How long a request is tried before the query ends with an error. If nothing is said, a query of a server waits for \
                   its receiver, however long it is away, and asks again every 30 seconds at least; without checkpoints it is 5 \
                   minutes. Of an output of an application with parameters in its address, how long until a request is given up: 5 \
                   minutes.",
        },
        OptionDescription {
            name: "on_reject",
            kind: OptionKind::Choice(&["fail", "skip"]),
            default: Some("fail"),
            help: "What happens when the receiver says that a request is wrong (any other 3xx or 4xx): the query ends, or goes on without it.",
        },
        OptionDescription {
            name: "connections",
            kind: OptionKind::Integer { min: 1, max: 64 },
            default: None,
            help: "How many requests are on their way at a time; 1 if nothing is said. With more than one they do not arrive in \
                   order. Of an output of an application with parameters in its address, 32: one at a time for each address, and \
                   half of them for those that are slow. There, requests that take longer than 0.1 s do not count: up to \
                   four times as many are on their way then, of which one host has so many as this says.",
        },
        OptionDescription {
            name: "headers.*",
            kind: OptionKind::Secret,
            default: None,
            help: "A header of the requests, as in `headers.authorization`. Those that say where a request goes and where it \
                   ends are not given: `host`, `content-length`, `transfer-encoding`, `connection`, `keep-alive`, `te`, \
                   `trailer`, `upgrade`, `expect`, `proxy-connection`.",
        },
        certificates::CA_FILE,
        certificates::CERTIFICATE_FILE,
        certificates::KEY_FILE,
    ],
};

/// Headers that say where a request goes and where it ends: another value could split a request into two, or send it to
/// another host. Their help in [`SINK`] names them.
const FRAMING_HEADERS: [&str; 10] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-connection",
];

fn check_source(spec: &SourceSpec, options: &Options) -> Result<(), ConnectorError> {
    let (host, _) = parse_address(HTTP.name, &spec.address)?;
    if host.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        let hint = "write for example 'http:127.0.0.1:8090/events'";
        return Err(ConnectorError::address(HTTP.name, &spec.address, "names no port to listen at", hint));
    }
    if let Ok(address) = host.parse::<SocketAddr>() {
        check_listener(spec, address)?;
    }
    if options.text("hosts").is_some_and(|list| !is_host_list(list)) {
        let hint = "write names without scheme, port and path: hosts => 'gateway.example.org, gateway'";
        return Err(options.wrong("hosts", "is no list of names", hint));
    }
    certificates::check_server(options, &spec.host.files)?;
    format_of_pieces(HTTP.name, spec.format.as_ref(), "bodies", &spec.host.files).map(drop)
}

/// Fails if a source may not listen at an address.
fn check_listener(spec: &SourceSpec, address: SocketAddr) -> Result<(), ConnectorError> {
    let ip = address.ip();
    spec.host.reach.listeners.check(&ip.to_string(), ip).map_err(|error| {
        let hint = format!(
            "list {ip} in {KEY_OF_LISTENERS} in the server's configuration, and have the server read that again (SIGHUP)"
        );
        ConnectorError::address(HTTP.name, &spec.address, format!("may not be listened at: {}", error.why), hint)
    })
}

fn check_sink(spec: &SinkSpec, options: &Options) -> Result<(), ConnectorError> {
    let connector = connector_of(spec);
    headers_of(options)?;
    certificates::check(options, &spec.host.files)?;
    if !has_many_receivers(spec) {
        checked_url(spec)?;
    }
    format_of_pieces(connector, spec.format.as_ref(), "bodies", &spec.host.files).map(drop)
}

/// The name of the connector that a sink uses.
fn connector_of(spec: &SinkSpec) -> &'static str {
    if spec.connector.eq_ignore_ascii_case(HTTPS.name) { HTTPS.name } else { HTTP.name }
}

/// Whether each row has its own address.
fn has_many_receivers(spec: &SinkSpec) -> bool {
    spec.output.is_some_and(|output| output.has_addresses)
}

/// The number of requests on their way at a time, if each receiver has its own rows.
const SHARED_CONNECTIONS: usize = 32;

/// How long a request is tried where nothing can wait for its receiver.
const RETRY_FOR: Duration = Duration::from_secs(300);

/// How long a request is tried if nothing is said. One of many receivers must not keep what is for it for ever; rows of
/// a query on a server can wait, for they are a part of its checkpoints.
fn patience(spec: &SinkSpec) -> Duration {
    let waits = if spec.output.is_some() { !has_many_receivers(spec) } else { spec.checkpoints.is_some() };
    if waits { Duration::MAX } else { RETRY_FOR }
}

/// How addresses are made from parameters.
const BY_ROW: ByRow = ByRow {
    value: push_value,
    check: |spec| checked_url(spec).map(drop),
    prepared_rows: pending::rows,
    waiting_max: Some(receivers::WAITING_MAX),
};

/// Appends a value as a part of a URL: characters with a meaning in URLs are percent-encoded, as in `%2F`.
fn push_value(value: &str, url: &mut String) -> Result<(), &'static str> {
    match value {
        "" => return Err("it is empty"),
        "." | ".." => return Err("it would lead to another path"),
        _ => {}
    }
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    Ok(())
}

/// The URL of a sink's address. Fails if it is none, or leads to a host that may not be reached.
fn checked_url(spec: &SinkSpec) -> Result<String, ConnectorError> {
    let (scheme, url) = url_from(connector_of(spec), &spec.address)?;
    let wrong = |problem: String| not_to_post_to(scheme, &spec.address, &problem);
    let uri: Uri = url.parse().map_err(|error: InvalidUri| wrong(error.to_string()))?;
    let host = uri.host().filter(|host| !host.is_empty() && !host.contains('%'));
    let host = host.ok_or_else(|| wrong("it names no host".into()))?;
    check_port(&uri).map_err(wrong)?;
    spec.host.reach.posts.check_host(host).map_err(|error| {
        let problem = format!("is out of reach: {}", error.why);
        ConnectorError::address(connector_of(spec), &spec.address, problem, error.hint)
    })?;
    Ok(url)
}

/// Scheme, host and port of an address as they begin its URLs; `None` if they depend on the row.
fn origin_of(connector: &'static str, address: &str) -> Option<String> {
    let (_, url) = url_from(connector, address).ok()?;
    let host = url.find("://")? + 3;
    let end = url[host..].find(['/', '?']).map_or(url.len(), |length| host + length);
    (end > host && !url[..end].contains('{')).then(|| url[..end].to_owned())
}

fn headers_of(options: &Options) -> Result<Vec<(HeaderName, HeaderValue)>, ConnectorError> {
    let header = |(name, value): (&str, &str)| match (name.parse(), value.parse()) {
        (Ok(name), _) if FRAMING_HEADERS.contains(&HeaderName::as_str(&name)) => {
            let hint = "leave it out: it follows from the address of the sink and from what is sent";
            Err(options.wrong(&format!("headers.{name}"), "is a header that a statement may not give", hint))
        }
        (Ok(name), Ok(value)) => Ok((name, value)),
        _ => Err(options.wrong(&format!("headers.{name}"), "is no header", "names are words, values are ASCII")),
    };
    options.by_beginning("headers.*").map(header).collect()
}

fn open_source(spec: &SourceSpec, options: &Options, _wanted: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let (host, path) = parse_address(HTTP.name, &spec.address)?;
    let format = format_of_pieces(HTTP.name, spec.format.as_ref(), "bodies", &spec.host.files)?;
    let decoder = format.decoder(&spec.schema, &spec.columns, spec.event_time_column)?;
    let hint = "a source listens at an address of this machine that is free, for example 'http:127.0.0.1:8090/events'";
    let failed = |problem: String| ConnectorError::open(HTTP.name, &spec.address, problem, hint);
    let address: SocketAddr = host
        .to_socket_addrs()
        .map_err(|error| failed(error.to_string()))?
        .next()
        .ok_or_else(|| failed("the host has no address".into()))?;
    check_listener(spec, address)?;
    let (token, hosts) = (options.text("token"), options.text("hosts"));
    let tls = certificates::server_tls(options, &spec.host.files)?;
    let tls = Prepared::read(tls.as_ref()).map_err(|error| certificates::unusable(options, &error))?;
    let listener = Listener::start(ListenerOptions {
        address,
        certificates: Certificates::new("an HTTP source", tls),
        path: path.to_owned(),
        body_bytes_max: options.count("body_bytes_max").unwrap_or(usize::MAX).min(super::intake::PAYLOAD_BYTES_MAX),
        queue_bytes_max: options.count("queue_bytes_max").unwrap_or(usize::MAX),
        is_lines: options.boolean("lines"),
        token: token.map(str::to_owned),
        // A web page under a name that was made to resolve to this machine does not know the token.
        confirm_max: spec.host.confirms.then_some(CONFIRM_MAX),
        check: spec.host.check.clone(),
        hosts: (token.is_none() || hosts.is_some()).then(|| Hosts::new(hosts.unwrap_or_default(), address.ip())),
        server: listener::BOUNDS,
    });
    let listener = listener.map_err(|error| failed(error.to_string()))?;
    Ok(vec![Box::new(source::HttpSource::new(listener, decoder))])
}

fn open_sink(spec: &SinkSpec, options: &Options, instance: Instance) -> Result<Box<dyn Sink>, ConnectorError> {
    let connector = connector_of(spec);
    only_appends(
        connector,
        spec,
        "make the result final, for example with a window, or write it to a file as JSON, where each row says in 'op' whether it came \
         or was taken back",
    )?;
    let format = format_of_pieces(connector, spec.format.as_ref(), "bodies", &spec.host.files)?;
    let has_many_receivers = has_many_receivers(spec);
    let tls = certificates::client_tls(options, &spec.host.files)?;
    let secret_of = |name: &HeaderName| {
        let is_it = |option: &str| option.trim().to_ascii_lowercase().strip_prefix("headers.") == Some(name.as_str());
        spec.options
            .iter()
            .find(|(option, text)| is_it(option) && Secrets::is_named_by(text))
            .map(|(_, text)| text.clone())
    };
    let headers = headers_of(options)?.into_iter().map(|(name, value)| {
        let secret = secret_of(&name);
        (name, value, secret)
    });
    let delivery = delivery::DeliveryOptions {
        tls: tls.for_requests().map_err(|error| certificates::unusable(options, &error))?,
        headers: headers.collect(),
        secrets: spec.host.secrets.clone(),
        origin: origin_of(connector, &spec.address),
        content_type: sink::content_type(&format),
        timeout: options.duration("timeout").unwrap_or_default(),
        retry_for: options.duration("retry_for").unwrap_or_else(|| patience(spec)),
        // A sink that never ends cannot end with an error.
        skips_rejected: options.text("on_reject") == Some("skip") || spec.output.is_some(),
        connections: options.count("connections").unwrap_or(if has_many_receivers { SHARED_CONNECTIONS } else { 1 }),
        has_many_receivers,
        leaves_out: spec.output.is_some(),
        resumes: spec.checkpoints.is_some(),
        reach: spec.host.reach.posts.clone(),
        health: spec.host.health.clone(),
    };
    let batch_rows = options.count("batch_rows").unwrap_or(1);
    let hint = "drop the query and create it again to begin anew";
    let failed = |error: SinkError| ConnectorError::open(connector, &spec.address, error.0, hint);
    let prepared = spec.checkpoints.iter().flatten().map(|text| PreparedRequests::read(text));
    let prepared = prepared.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    // If rows do not come again, a row equal to one before a crash is a different row.
    let keeps_keys = spec.checkpoints.is_some() && spec.host.comes_again && spec.output.is_none();
    let keys = keeps_keys.then(|| {
        let query = format!("{}-{}", spec.host.server, spec.host.query);
        let noted = prepared.iter().find_map(|prepared| prepared.keys.clone());
        keys::Keys::open(&query, instance.number, noted, &spec.host.restored)
    });
    let url = match has_many_receivers {
        true => format!("{connector}:{}", spec.address),
        false => checked_url(spec)?,
    };
    let to = (connector, url.into());
    let checkpoints = (spec.checkpoints.is_some(), keys);
    let sink = sink::HttpSink::new(delivery, to, &format, &spec.schema, batch_rows, spec.output, checkpoints)?;
    // With as many instances as before each gets what it had, in front of the rows of the same keys that follow.
    prepared.iter().skip(instance.number).step_by(instance.of).for_each(|prepared| sink.resume(prepared));
    Ok(Box::new(sink))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_frame_a_request_are_refused_by_name() {
        let headers = |name: &str| {
            let given = [(format!("headers.{name}"), "1".to_owned())];
            let options = HTTP.check_options(super::super::Direction::Sink, &given).unwrap();
            headers_of(&options).map_err(|error| error.to_string())
        };
        for name in FRAMING_HEADERS {
            for name in [name.to_owned(), name.to_uppercase()] {
                let error = headers(&name).unwrap_err();
                assert!(error.contains(&name.to_lowercase()) && error.contains("may not give\nhint: "), "{error}");
            }
            assert!(SINK.options.iter().any(|option| option.help.contains(&format!("`{name}`"))), "{name}");
        }
        assert_eq!(headers("authorization").unwrap().len(), 1);
    }

    #[test]
    fn rows_that_can_wait_wait_for_their_receiver_without_end() {
        use crate::connector::{ConnectorContext, OutputRows};
        let spec = |output: Option<bool>, has_checkpoints: bool| SinkSpec {
            connector: "http".into(),
            address: "127.0.0.1:9/x".into(),
            format: None,
            schema: std::sync::Arc::new(arrow::datatypes::Schema::empty()),
            changes: false,
            key: None,
            options: Vec::new(),
            host: ConnectorContext::default(),
            checkpoints: has_checkpoints.then(Vec::new),
            output: output.map(|has_addresses| OutputRows { has_addresses }),
        };
        for (output, has_checkpoints, waits) in
            [(None, true, true), (None, false, false), (Some(false), false, true), (Some(true), true, false)]
        {
            let patience = patience(&spec(output, has_checkpoints));
            assert_eq!(patience == Duration::MAX, waits, "{output:?} {has_checkpoints}");
        }
    }

    #[test]
    fn a_port_that_is_none_is_refused_and_not_taken_for_none_given() {
        let port = |url: &str| check_port(&url.parse().expect("a URL"));
        for url in ["http://a/x", "http://a:9/x", "https://127.0.0.1:65535", "http://[::1]/x", "http://[::1]:80/x"] {
            assert_eq!(port(url), Ok(()), "{url}");
        }
        for (url, none) in
            [("http://a:65536/x", "65536"), ("http://a:99999999999", "99999999999"), ("http://a:-1/", "-1")]
        {
            assert_eq!(port(url), Err(format!("'{none}' is no port")), "{url}");
        }
        assert!(port("http://[::1]:70000/x").is_err() && port("http://a:abc/x").is_err());
    }

    #[test]
    fn headers_are_for_one_host() {
        let origin = |address| origin_of("http", address);
        assert_eq!(origin("//a:80/hooks/{id}").as_deref(), Some("http://a:80"));
        assert_eq!(origin("https://a?q=1").as_deref(), Some("https://a"));
        assert_eq!((origin("//{host}/x"), origin("{url}")), (None, None));
    }

    #[test]
    fn addresses() {
        let cut = |address| parse_address("http", address).unwrap();
        assert_eq!(cut("127.0.0.1:80/a/b?c"), ("127.0.0.1:80", "/a/b?c"));
        assert_eq!(cut("//host"), ("host", "/"));
        assert!(parse_address("http", "///x").is_err());
        assert!(parse_address("http", "a b/x").is_err());
    }
}
