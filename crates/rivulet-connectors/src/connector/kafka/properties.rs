//! The properties of librdkafka that statements may set.
//!
//! What must hold: no such property loads code, runs a command, calls a function back or touches a file, except
//! certificates and keys, for which the rules of files apply. Properties that the connector bounds or decides itself
//! are not allowed either.

use rdkafka::ClientConfig;

use super::{ConnectorError, OptionDescription, OptionKind, Options};
use crate::files::Files;

/// Option: a property of the client library.
pub(super) const PROPERTIES: OptionDescription = OptionDescription {
    name: "properties.*",
    kind: OptionKind::Among(ALLOWED),
    default: None,
    help: "A property of librdkafka, as in `properties.security.protocol`, of those that are listed below. The library \
           says what they mean, in its CONFIGURATION.md.",
};

const PLAIN: OptionKind = OptionKind::Text;

/// The allowed properties, and the kinds of their values.
const ALLOWED: &[(&str, OptionKind)] = &[
    ("acks", PLAIN),
    ("allow.auto.create.topics", PLAIN),
    ("api.version.request", PLAIN),
    ("api.version.request.timeout.ms", PLAIN),
    ("auto.commit.interval.ms", PLAIN),
    ("auto.offset.reset", PLAIN),
    ("batch.num.messages", PLAIN),
    ("batch.size", PLAIN),
    ("broker.address.family", PLAIN),
    ("broker.address.ttl", PLAIN),
    ("broker.version.fallback", PLAIN),
    ("check.crcs", PLAIN),
    ("client.dns.lookup", PLAIN),
    ("client.id", PLAIN),
    ("client.rack", PLAIN),
    ("compression.codec", PLAIN),
    ("compression.level", PLAIN),
    ("compression.type", PLAIN),
    ("connections.max.idle.ms", PLAIN),
    ("delivery.timeout.ms", PLAIN),
    ("enable.idempotence", PLAIN),
    ("enable.ssl.certificate.verification", PLAIN),
    ("fetch.error.backoff.ms", PLAIN),
    ("fetch.max.bytes", PLAIN),
    ("fetch.message.max.bytes", PLAIN),
    ("fetch.min.bytes", PLAIN),
    ("fetch.wait.max.ms", PLAIN),
    ("group.instance.id", PLAIN),
    ("group.protocol", PLAIN),
    ("heartbeat.interval.ms", PLAIN),
    ("isolation.level", PLAIN),
    ("linger.ms", PLAIN),
    ("max.in.flight", PLAIN),
    ("max.in.flight.requests.per.connection", PLAIN),
    ("max.partition.fetch.bytes", PLAIN),
    ("max.poll.interval.ms", PLAIN),
    ("message.max.bytes", PLAIN),
    ("message.send.max.retries", PLAIN),
    ("message.timeout.ms", PLAIN),
    ("metadata.max.age.ms", PLAIN),
    ("partition.assignment.strategy", PLAIN),
    ("partitioner", PLAIN),
    ("queue.buffering.max.ms", PLAIN),
    ("receive.message.max.bytes", PLAIN),
    ("reconnect.backoff.max.ms", PLAIN),
    ("reconnect.backoff.ms", PLAIN),
    ("request.required.acks", PLAIN),
    ("request.timeout.ms", PLAIN),
    ("retries", PLAIN),
    ("retry.backoff.max.ms", PLAIN),
    ("retry.backoff.ms", PLAIN),
    ("sasl.mechanism", PLAIN),
    ("sasl.mechanisms", PLAIN),
    ("sasl.password", OptionKind::Secret),
    ("sasl.username", PLAIN),
    ("security.protocol", PLAIN),
    ("session.timeout.ms", PLAIN),
    ("socket.connection.setup.timeout.ms", PLAIN),
    ("socket.keepalive.enable", PLAIN),
    ("socket.max.fails", PLAIN),
    ("socket.nagle.disable", PLAIN),
    ("socket.timeout.ms", PLAIN),
    ("ssl.ca.location", OptionKind::File),
    ("ssl.ca.pem", PLAIN),
    ("ssl.certificate.location", OptionKind::File),
    ("ssl.certificate.pem", PLAIN),
    ("ssl.cipher.suites", PLAIN),
    ("ssl.crl.location", OptionKind::File),
    ("ssl.curves.list", PLAIN),
    ("ssl.endpoint.identification.algorithm", PLAIN),
    ("ssl.key.location", OptionKind::File),
    ("ssl.key.password", OptionKind::Secret),
    ("ssl.key.pem", OptionKind::Secret),
    ("ssl.keystore.location", OptionKind::File),
    ("ssl.keystore.password", OptionKind::Secret),
    ("ssl.sigalgs.list", PLAIN),
    ("sticky.partitioning.linger.ms", PLAIN),
    ("topic.metadata.propagation.max.ms", PLAIN),
    ("topic.metadata.refresh.interval.ms", PLAIN),
    ("transaction.timeout.ms", PLAIN),
    ("transactional.id", PLAIN),
];

/// Sets the properties that the options give.
pub(super) fn set(config: &mut ClientConfig, options: &Options, files: &Files) -> Result<(), ConnectorError> {
    for (name, value) in options.by_beginning(PROPERTIES.name) {
        match PROPERTIES.kind.of(Some(name)) {
            Some(OptionKind::File) => {
                let path = options.file(&full_name(name), value, files)?;
                config.set(name, path.to_string_lossy())
            }
            _ => config.set(name, value),
        };
    }
    Ok(())
}

/// Checks the files among them, which may be created later.
pub(super) fn check(options: &Options, files: &Files) -> Result<(), ConnectorError> {
    let mut given = options.by_beginning(PROPERTIES.name);
    given.try_for_each(|(name, value)| match PROPERTIES.kind.of(Some(name)) {
        Some(OptionKind::File) => options.check_file(&full_name(name), value, files),
        _ => Ok(()),
    })
}

/// The value of a property as an error may show it.
pub(super) fn shown<'v>(name: &str, value: &'v str) -> &'v str {
    match PROPERTIES.kind.of(Some(name)) {
        None | Some(OptionKind::Secret) => "***",
        Some(_) => value,
    }
}

/// The name of a property as in a statement.
pub(super) fn full_name(name: &str) -> String {
    format!("{}{name}", PROPERTIES.name.trim_end_matches('*'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::Direction;

    /// Names that load code, run commands, call back, or read and write files.
    const DANGEROUS: [&str; 20] = [
        "plugin.library.paths",
        "ssl.engine.location",
        "ssl.engine.id",
        "ssl.providers",
        "ssl.certificate.verify_cb",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "offset.store.path",
        "https.ca.location",
        "open_cb",
        "connect_cb",
        "interceptors",
        "debug",
        "bootstrap.servers",
        "metadata.broker.list",
        "queue.buffering.max.kbytes",
    ];

    fn check(name: &str, value: &str) -> Result<Options, ConnectorError> {
        super::super::CONNECTOR.check_options(Direction::Sink, &[(full_name(name), value.to_owned())])
    }

    #[test]
    fn what_is_dangerous_is_refused_by_name() {
        for name in DANGEROUS {
            for name in [name.to_owned(), name.to_uppercase()] {
                let error = check(&name, "x").unwrap_err().to_string();
                let full = full_name(&name.to_lowercase());
                assert!(error.starts_with(&format!("the option '{full}' of 'kafka:' is not allowed")), "{error}");
                assert!(error.contains("\nhint: "), "{error}");
            }
        }
        // A property with a path or a command in it is a file, or not allowed.
        let is_suspicious =
            |name: &str| ["location", "path", "file", "_cb", "cmd", "librar"].iter().any(|word| name.contains(word));
        for (name, kind) in ALLOWED {
            let is_known = *kind == OptionKind::File || ["socket.max.fails"].contains(name);
            assert!(!is_suspicious(name) || is_known, "{name}");
        }
        assert!(ALLOWED.is_sorted_by_key(|(name, _)| *name));
    }

    #[test]
    fn files_of_certificates_are_those_that_may_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let allowed = folder.path().join("allowed");
        std::fs::create_dir(&allowed).unwrap();
        for name in ["allowed/ca.pem", "ca.pem"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let files = Files::below(&[], &[], &allowed, None).unwrap();
        let mut config = ClientConfig::new();
        set(&mut config, &check("ssl.ca.location", "ca.pem").unwrap(), &files).unwrap();
        assert_eq!(config.get("ssl.ca.location"), allowed.canonicalize().unwrap().join("ca.pem").to_str());
        let outside = check("ssl.key.location", "../ca.pem").unwrap();
        let error = set(&mut config, &outside, &files).unwrap_err().to_string();
        assert!(error.contains("'properties.ssl.key.location'") && error.contains("outside"), "{error}");
    }
}
