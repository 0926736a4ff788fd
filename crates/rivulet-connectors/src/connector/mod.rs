//! Sources and sinks of big queries, by name: what stands before the colon of an address.
//!
//! A connector is a folder with a [`ConnectorDescription`]: checks, errors and the reference are made of it. It is opened for one
//! statement ([`open_source`], [`open_sink`]); from then on the host runs its partitions like operators.
//!
//! What must hold: sources and sinks never block for long and hold a bounded amount (what waits for a device does so in a thread of
//! its own, behind a bounded queue); nothing from outside makes them panic; what cannot be read is refused with a reason and
//! counted, what cannot be delivered is an error.
//!
//! - [`description`]: what connectors say about themselves;
//! - [`spec`]: what a statement asks for; [`options`]: its options, checked; [`error`]: what is wrong with it;
//! - [`mod@reference`]: all of them as a page;
//! - then one connector each.

pub mod description;
pub mod error;
pub(crate) mod nearest;
mod reference;
pub(crate) mod options;
pub mod spec;
mod given_format;
mod intake;
mod instances;
mod outgoing;
mod lines;
mod blackhole;
mod file;
mod standard;
mod message;
mod kafka;
mod http;
mod mqtt;

use std::borrow::Cow;

use arrow::datatypes::Schema;
use rivulet_dataflow::{Sink, Source};

use crate::files::Files;
use crate::generator::{hibench, nexmark, sensors};

pub use description::{
    ConnectorDescription, Direction, DirectionDescription, Guarantee, OptionDescription, OptionKind,
};
pub use error::ConnectorError;
pub use mqtt::MqttHost;
pub use reference::reference;
pub use spec::{FormatText, Host, Settled, SinkSpec, SourceSpec};
pub use standard::{is_reader_gone, output_failed};

use description::Instance;
use nearest::nearest;
use options::Options;

/// Every connector.
static CONNECTORS: [ConnectorDescription; 11] = [
    file::CONNECTOR,
    kafka::CONNECTOR,
    mqtt::CONNECTOR,
    http::HTTP,
    http::HTTPS,
    nexmark::CONNECTOR,
    hibench::CONNECTOR,
    sensors::CONNECTOR,
    standard::STDIN,
    standard::STDOUT,
    blackhole::CONNECTOR,
];

/// Under this key, the metadata of a schema that a source brings itself ([`declared_schema`]) has the name of the event time column.
pub const EVENT_TIME_KEY: &str = "event_time";

/// What every connector is: its options, formats and behaviour.
pub fn connectors() -> &'static [ConnectorDescription] {
    &CONNECTORS
}

/// Opens a source as about `partitions_wanted` partitions, at least one. A source that cannot be divided gives one.
///
/// # Errors
/// The connector is not known or is no source, an option or the format does not suit it, or the outside world refuses.
pub fn open_source(spec: &SourceSpec, partitions_wanted: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    let connector = find(&spec.connector, Direction::Source)?;
    let options = Options::check(connector, Direction::Source, &spec.options)?;
    check_format(connector, Direction::Source, spec.format.as_ref())?;
    let open = connector.open.source.ok_or_else(|| not_this_way(connector, Direction::Source))?;
    let partitions = open(spec, &options, partitions_wanted.max(1))?;
    debug_assert!(!partitions.is_empty(), "a source has at least one partition");
    Ok(partitions)
}

/// Opens the instance `instance` of `instances` parallel ones of a sink.
///
/// # Errors
/// As with [`open_source`]; and if the rows may take back others and the sink cannot.
///
/// # Panics
/// If there is no such instance.
pub fn open_sink(spec: &SinkSpec, instance: usize, instances: usize) -> Result<Box<dyn Sink>, ConnectorError> {
    assert!(instance < instances, "instance {instance} of {instances}");
    let connector = find(&spec.connector, Direction::Sink)?;
    let options = Options::check(connector, Direction::Sink, &spec.options)?;
    check_format(connector, Direction::Sink, spec.format.as_ref())?;
    let open = connector.open.sink.ok_or_else(|| not_this_way(connector, Direction::Sink))?;
    open(spec, &options, Instance { number: instance, of: instances })
}

/// Looks at the declaration of a source, without opening it.
///
/// # Errors
/// As with [`open_source`], as far as it can be known before.
pub fn check_source(spec: &SourceSpec) -> Result<(), ConnectorError> {
    let connector = find(&spec.connector, Direction::Source)?;
    let options = Options::check(connector, Direction::Source, &spec.options)?;
    check_format(connector, Direction::Source, spec.format.as_ref())?;
    check_format_options(spec.format.as_ref(), &spec.host.files)?;
    connector.open.check.source.map_or(Ok(()), |check| check(spec, &options))
}

/// Looks at the declaration of a sink, without opening it. What writes into it may bring the columns: the schema is empty then.
///
/// # Errors
/// As with [`open_sink`], as far as it can be known before.
pub fn check_sink(spec: &SinkSpec) -> Result<(), ConnectorError> {
    let connector = find(&spec.connector, Direction::Sink)?;
    let options = Options::check(connector, Direction::Sink, &spec.options)?;
    check_format(connector, Direction::Sink, spec.format.as_ref())?;
    check_format_options(spec.format.as_ref(), &spec.host.files)?;
    connector.open.check.sink.map_or(Ok(()), |check| check(spec, &options))
}

/// Up to where the results of a query are final whose newest checkpoint has what `spec` says ([`SinkSpec::checkpoints`]). Whoever else may still be at work
/// for this query is shut out before this is answered.
///
/// # Errors
/// As with [`open_sink`]; and if it cannot be said.
pub fn settled(spec: &SinkSpec) -> Result<Settled, ConnectorError> {
    let connector = find(&spec.connector, Direction::Sink)?;
    let options = Options::check(connector, Direction::Sink, &spec.options)?;
    // The others make final what they have prepared for, whichever checkpoint it is, when they are opened.
    if connector.name == kafka::CONNECTOR.name { kafka::settled(spec, &options) } else { Ok(Settled::Any) }
}

/// The one file that the result of a query replaces when the query ends, if the sink is such a file.
pub fn replaced_file(spec: &SinkSpec) -> Option<std::path::PathBuf> {
    let connector = find(&spec.connector, Direction::Sink).ok().filter(|one| one.name == file::CONNECTOR.name)?;
    let options = Options::check(connector, Direction::Sink, &spec.options).ok()?;
    file::replaced(&spec.address, &options, &spec.host.files)
}

/// The columns of a source that brings them itself, as generators do, so that they need not be declared. The event time is named in the
/// metadata ([`EVENT_TIME_KEY`]). `None` if the source needs a declaration, or the address is none of this connector or of `files`.
pub fn declared_schema(connector: &str, address: &str, files: &Files) -> Option<Schema> {
    let columns = find(connector, Direction::Source).ok()?.open.columns?;
    columns(address, files)
}

/// What may be shown of an option of a source or sink: `***` stands for what is secret.
pub fn shown_option<'t>(connector: &str, direction: Direction, name: &str, value: &'t str) -> Cow<'t, str> {
    let described = find(connector, direction).ok().and_then(|one| one.direction(direction));
    options::shown(described.map_or(&[][..], |one| one.options), name, value)
}

/// The connector with this name, if it goes in this direction.
fn find(name: &str, direction: Direction) -> Result<&'static ConnectorDescription, ConnectorError> {
    let lower = name.trim().to_ascii_lowercase();
    let Some(connector) = CONNECTORS.iter().find(|connector| connector.name == lower) else {
        let hint = match nearest(&lower, CONNECTORS.iter().map(|connector| connector.name)) {
            Some(near) => format!("did you mean '{near}:'?"),
            None => format!("{}s are {}", direction, names(direction)),
        };
        return Err(ConnectorError::UnknownConnector { name: options::shortened(name), hint });
    };
    match connector.direction(direction) {
        Some(_) => Ok(connector),
        None => Err(not_this_way(connector, direction)),
    }
}

fn not_this_way(connector: &'static ConnectorDescription, direction: Direction) -> ConnectorError {
    let hint = format!("{direction}s are {}", names(direction));
    ConnectorError::Direction { connector: connector.name, direction, hint }
}

/// The names of the connectors that go in this direction.
fn names(direction: Direction) -> String {
    let names = CONNECTORS.iter().filter(|connector| connector.direction(direction).is_some());
    names.map(|connector| format!("{}:", connector.name)).collect::<Vec<_>>().join(", ")
}

/// Whether the connector takes a format with this name; what the format says of its options and columns comes later.
fn check_format(
    connector: &'static ConnectorDescription,
    direction: Direction,
    format: Option<&FormatText>,
) -> Result<(), ConnectorError> {
    let Some((name, _)) = format else { return Ok(()) };
    let known = connector.direction(direction).map_or(&[][..], |one| one.formats);
    if known.contains(&crate::formats::canonical_name(name).as_str()) {
        return Ok(());
    }
    let hint = match known {
        [] => "its rows are not written in any format; leave it out".into(),
        _ => format!("it takes {}", known.join(", ")),
    };
    Err(ConnectorError::FormatUse { connector: connector.name, format: options::shortened(name), hint })
}

/// Whether the format has the options that are given, with such values.
fn check_format_options(format: Option<&FormatText>, files: &Files) -> Result<(), ConnectorError> {
    let Some((name, options)) = format else { return Ok(()) };
    // What files are written in may need no schema, and is known when they are opened.
    if options.is_empty() {
        return Ok(());
    }
    let options = options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    crate::formats::RowFormat::parse(name, options, files)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn spec(connector: &str, format: Option<&str>) -> SinkSpec {
        SinkSpec {
            connector: connector.into(),
            address: "x".into(),
            format: format.map(|name| (name.into(), Vec::new())),
            schema: Arc::new(Schema::empty()),
            changes: false,
            key: None,
            options: Vec::new(),
            host: Host::default(),
            checkpoints: None,
        }
    }

    #[test]
    fn descriptions_hold_together() {
        for connector in connectors() {
            assert_eq!(connector.source.is_some(), connector.open.source.is_some(), "{}", connector.name);
            assert_eq!(connector.sink.is_some(), connector.open.sink.is_some(), "{}", connector.name);
            for direction in [Direction::Source, Direction::Sink] {
                let Some(described) = connector.direction(direction) else { continue };
                let cases = described.guarantees.iter().map(|(case, _)| *case);
                assert!(cases.clone().filter(|case| case.is_empty()).count() <= 1, "{}: which is it?", connector.name);
                assert!(connector.name == "blackhole" || cases.count() > 0, "{} promises nothing", connector.name);
                // Defaults are parsed where they are missing.
                Options::check(connector, direction, &[]).unwrap();
                for option in described.options {
                    assert!(option.help.ends_with('.') && option.name == option.name.to_ascii_lowercase());
                }
            }
        }
    }

    #[test]
    fn options_of_a_format_are_checked_before_it_is_opened() {
        let error = |connector: &str, options: &[(&str, &str)]| {
            let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let spec = SourceSpec {
                connector: connector.into(),
                address: if connector == "file" { "x.csv".into() } else { String::new() },
                format: Some(("CSV".into(), options)),
                schema: Arc::new(Schema::empty()),
                columns: Vec::new(),
                event_time_column: None,
                options: Vec::new(),
                host: Host::default(),
                resume: None,
            };
            check_source(&spec).map_err(|error| error.to_string())
        };
        for connector in ["file", "stdin"] {
            let said = error(connector, &[("delimter", ";")]).unwrap_err();
            assert_eq!(said, "format CSV has no option 'delimter'\nhint: did you mean 'delimiter'?");
            assert!(error(connector, &[("header", "perhaps")]).unwrap_err().contains("true or false"));
        }
        assert_eq!(error("stdin", &[("header", "true"), ("delimiter", ";")]), Ok(()));
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let error = |spec: SinkSpec| open_sink(&spec, 0, 1).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error(spec("blackhol", None)), "there is no connector 'blackhol'\nhint: did you mean 'blackhole:'?");
        assert!(error(spec("carrier-pigeon", None)).contains("hint: sinks are "));
        let format = error(spec("blackhole", Some("JSON")));
        assert!(format.starts_with("'blackhole:' cannot use the format JSON\nhint: its rows"), "{format}");
    }
}
