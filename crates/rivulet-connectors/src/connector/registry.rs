//! The connectors by name: those of this crate, and those that the program adds.

use std::borrow::Cow;
use std::path::PathBuf;

use arrow::datatypes::Schema;
use rivulet_dataflow::suggest::nearest;
use rivulet_dataflow::{Sink, Source};

use super::description::Instance;
use super::health::Noted;
use super::options::{Options, shortened, shown};
use super::secrets::Secrets;
use super::{
    ByRow, ConnectorDescription, ConnectorError, Direction, FinalUpTo, FormatText, Messages, OWN, SinkSpec, SourceSpec,
};
use crate::files::Files;

/// The connectors that statements can name.
#[derive(Clone, Copy, Debug)]
pub struct Connectors {
    added: &'static [ConnectorDescription],
}

impl Connectors {
    /// The connectors of this crate.
    pub const OWN: Self = Self::with(&[]);

    /// The connectors of this crate, and these. No two may have the same name.
    pub const fn with(added: &'static [ConnectorDescription]) -> Self {
        Self { added }
    }

    /// The descriptions of all connectors.
    pub fn all(self) -> impl Iterator<Item = &'static ConnectorDescription> {
        OWN.iter().chain(self.added)
    }

    /// Opens a source as about `partitions_wanted` partitions, at least one. A source that cannot be divided gives one.
    ///
    /// # Errors
    /// The connector is unknown or is no source, an option or the format does not suit it, or the outside world
    /// refuses.
    pub fn open_source(
        self,
        spec: &SourceSpec,
        partitions_wanted: usize,
    ) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
        let (connector, options) = self.checked_source(spec)?;
        let open = connector.open.source.ok_or_else(|| self.not_this_way(connector, Direction::Source))?;
        let partitions = open(spec, &options, partitions_wanted.max(1))?;
        debug_assert!(!partitions.is_empty(), "a source has at least one partition");
        Ok(partitions)
    }

    /// Opens the instance `instance` of `instances` parallel ones of a sink.
    ///
    /// # Errors
    /// As with [`Connectors::open_source`]; and if rows may be retractions and the sink does not support that.
    ///
    /// # Panics
    /// If there is no such instance.
    pub fn open_sink(
        self,
        spec: &SinkSpec,
        instance: usize,
        instances: usize,
    ) -> Result<Box<dyn Sink>, ConnectorError> {
        assert!(instance < instances, "instance {instance} of {instances}");
        let (connector, options) = self.checked_sink(spec)?;
        let open = connector.open.sink.ok_or_else(|| self.not_this_way(connector, Direction::Sink))?;
        let sink = open(spec, &options, Instance { number: instance, of: instances })?;
        Ok(Box::new(Noted::new(sink, spec.host.health.clone())))
    }

    /// The number of rows in what a sink of a connector has prepared for a checkpoint, if its rows have addresses of
    /// their own; 0 otherwise.
    pub fn prepared_rows(self, connector: &str, prepared: &str) -> usize {
        let by_row = self.by_name(connector).and_then(|connector| connector.open.by_row);
        by_row.map_or(0, |by_row| (by_row.prepared_rows)(prepared))
    }

    /// Checks the declaration of a source, without opening it.
    ///
    /// # Errors
    /// As with [`Connectors::open_source`], as far as they can be known before.
    pub fn check_source(self, spec: &SourceSpec) -> Result<(), ConnectorError> {
        let (connector, options) = self.checked_source(spec)?;
        check_format_options(spec.format.as_ref(), &spec.host.files)?;
        connector.open.check.source.map_or(Ok(()), |check| check(spec, &options))
    }

    /// Checks the declaration of a sink, without opening it. If the query that writes into it brings the columns, the
    /// schema is empty.
    ///
    /// # Errors
    /// As with [`Connectors::open_sink`], as far as they can be known before.
    pub fn check_sink(self, spec: &SinkSpec) -> Result<(), ConnectorError> {
        let (connector, options) = self.checked_sink(spec)?;
        check_format_options(spec.format.as_ref(), &spec.host.files)?;
        connector.open.check.sink.map_or(Ok(()), |check| check(spec, &options))
    }

    /// Up to which checkpoint the results of a query are final, if its newest checkpoint has what `spec` says
    /// ([`SinkSpec::checkpoints`]). Any earlier run that may still work for this query is shut out before the answer.
    ///
    /// # Errors
    /// As with [`Connectors::open_sink`]; and if the answer cannot be found.
    pub fn final_up_to(self, spec: &SinkSpec) -> Result<FinalUpTo, ConnectorError> {
        let (connector, options) = self.checked_sink(spec)?;
        // Other sinks make final what they have prepared, for any checkpoint, when they are opened.
        connector.open.final_up_to.map_or(Ok(FinalUpTo::Any), |final_up_to| final_up_to(spec, &options))
    }

    /// Whether the sink may decide from where a query goes on ([`Connectors::final_up_to`]).
    pub fn may_decide_begin(self, spec: &SinkSpec) -> bool {
        self.checked_sink(spec).is_ok_and(|(connector, _)| connector.open.final_up_to.is_some())
    }

    /// What the messages of a source have beside their payload, if inputs of applications may read it.
    ///
    /// # Errors
    /// There is no such source, or inputs of applications may not read it.
    pub fn messages(self, connector: &str) -> Result<Messages, ConnectorError> {
        let connector = self.find(connector, Direction::Source)?;
        connector.open.messages.ok_or_else(|| {
            let has_messages = self.all().filter(|connector| connector.open.messages.is_some());
            let names: Vec<String> = has_messages.map(|connector| format!("{}:", connector.name)).collect();
            let hint = format!("they read mqtt:, {}; a big query can read it: CREATE SOURCE", names.join(", "));
            ConnectorError::NoInput { connector: connector.name, hint }
        })
    }

    /// The one file that the result of a query replaces when the query ends, if the sink is such a file.
    pub fn replaced_file(self, spec: &SinkSpec) -> Option<PathBuf> {
        let (connector, options) = self.checked_sink(spec).ok()?;
        connector.open.replaced.and_then(|replaced| replaced(spec, &options))
    }

    /// How this connector, as a sink, makes an address for each row, if it can.
    pub fn by_row(self, connector: &str) -> Option<ByRow> {
        self.by_name(connector)?.open.by_row
    }

    /// Why an open source of this connector, with these options, is bound to its process, in words that follow its
    /// name; `None` if its partitions may go on in another process, each from its position.
    pub fn bound(self, connector: &str, options: &[(String, String)]) -> Option<String> {
        let Some(binding) = self.by_name(connector).and_then(|connector| connector.open.bound_by) else {
            return Some(format!("reads {connector}:, which is bound to this server"));
        };
        let option = binding.iter().find(|option| options.iter().any(|(name, _)| name == *option))?;
        Some(format!("reads {connector}: with {option}, which binds it to this server"))
    }

    /// The path in an address (`file:rooms.csv`); `None` if it means no file or folder of this machine.
    pub fn path_of(self, address: &str) -> Option<&str> {
        let (name, path) = address.split_once(':')?;
        self.by_name(name).filter(|connector| connector.open.address_is_path).map(|_| path)
    }

    /// The columns of a source that brings them itself, as generators do, so that they need not be declared. The
    /// metadata names the event time ([`super::EVENT_TIME_KEY`]). `None` if the source needs a declaration, or the
    /// address is not one of this connector.
    ///
    /// # Errors
    /// The description of the columns cannot be read, or is none of `files`.
    pub fn declared_schema(
        self,
        connector: &str,
        address: &str,
        files: &Files,
    ) -> Result<Option<Schema>, ConnectorError> {
        let columns = self.find(connector, Direction::Source).ok().and_then(|one| one.open.columns);
        columns.map_or(Ok(None), |columns| columns(address, files))
    }

    /// The value of an option of a source or sink as it may be shown: `***` replaces what is secret.
    pub fn shown_option<'t>(self, connector: &str, direction: Direction, name: &str, value: &'t str) -> Cow<'t, str> {
        let described = self.find(connector, direction).ok().and_then(|one| one.direction(direction));
        shown(described.map_or(&[][..], |one| one.options), name, value)
    }

    /// The connector of a source, and its checked options; the format is one that it accepts.
    fn checked_source(self, spec: &SourceSpec) -> Result<(&'static ConnectorDescription, Options), ConnectorError> {
        self.checked(Direction::Source, &spec.connector, &spec.options, spec.format.as_ref(), &spec.host.secrets)
    }

    /// The same for a sink.
    fn checked_sink(self, spec: &SinkSpec) -> Result<(&'static ConnectorDescription, Options), ConnectorError> {
        self.checked(Direction::Sink, &spec.connector, &spec.options, spec.format.as_ref(), &spec.host.secrets)
    }

    fn checked(
        self,
        direction: Direction,
        name: &str,
        options: &[(String, String)],
        format: Option<&FormatText>,
        secrets: &Secrets,
    ) -> Result<(&'static ConnectorDescription, Options), ConnectorError> {
        let connector = self.find(name, direction)?;
        let described = connector.direction(direction).map_or(&[][..], |one| one.options);
        let options = secrets.put_into(connector.name, described, options)?;
        let options = connector.check_options(direction, &options)?;
        check_format(connector, direction, format)?;
        Ok((connector, options))
    }

    /// The connector with this name.
    fn by_name(self, name: &str) -> Option<&'static ConnectorDescription> {
        self.all().find(|connector| connector.name.eq_ignore_ascii_case(name.trim()))
    }

    /// The connector with this name, if it has this direction.
    fn find(self, name: &str, direction: Direction) -> Result<&'static ConnectorDescription, ConnectorError> {
        let Some(connector) = self.by_name(name) else {
            let hint = match nearest(&name.trim().to_ascii_lowercase(), self.all().map(|connector| connector.name)) {
                Some(near) => format!("did you mean '{near}:'?"),
                None => format!("{}s are {}", direction, self.names(direction)),
            };
            return Err(ConnectorError::UnknownConnector { name: shortened(name), hint });
        };
        match connector.direction(direction) {
            Some(_) => Ok(connector),
            None => Err(self.not_this_way(connector, direction)),
        }
    }

    fn not_this_way(self, connector: &'static ConnectorDescription, direction: Direction) -> ConnectorError {
        let hint = format!("{direction}s are {}", self.names(direction));
        ConnectorError::Direction { connector: connector.name, direction, hint }
    }

    /// The names of the connectors that have this direction.
    fn names(self, direction: Direction) -> String {
        let names = self.all().filter(|connector| connector.direction(direction).is_some());
        names.map(|connector| format!("{}:", connector.name)).collect::<Vec<_>>().join(", ")
    }
}

/// Checks that the connector accepts a format with this name; the format's options and columns are checked later.
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
        [] => "leave FORMAT out: rows are sent as they are".into(),
        _ => format!("it takes {}", known.join(", ")),
    };
    Err(ConnectorError::FormatUse { connector: connector.name, format: shortened(name), hint })
}

/// Checks that the format has the given options, with such values.
fn check_format_options(format: Option<&FormatText>, files: &Files) -> Result<(), ConnectorError> {
    let Some((name, options)) = format else { return Ok(()) };
    // The format of files may need no schema, and is known when they are opened.
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
    use crate::connector::ConnectorContext;

    fn spec(connector: &str, format: Option<&str>) -> SinkSpec {
        SinkSpec {
            connector: connector.into(),
            address: "x".into(),
            format: format.map(|name| (name.into(), Vec::new())),
            schema: Arc::new(Schema::empty()),
            changes: false,
            key: None,
            options: Vec::new(),
            host: ConnectorContext::default(),
            checkpoints: None,
            output: None,
        }
    }

    #[test]
    fn descriptions_hold_together() {
        for connector in Connectors::OWN.all() {
            assert_eq!(connector.source.is_some(), connector.open.source.is_some(), "{}", connector.name);
            assert_eq!(connector.sink.is_some(), connector.open.sink.is_some(), "{}", connector.name);
            for direction in [Direction::Source, Direction::Sink] {
                let Some(described) = connector.direction(direction) else { continue };
                let cases = described.guarantees.iter().map(|(case, _)| *case);
                assert!(cases.clone().filter(|case| case.is_empty()).count() <= 1, "{}: which is it?", connector.name);
                assert!(connector.name == "blackhole" || cases.count() > 0, "{} promises nothing", connector.name);
                // Defaults are parsed for options that are missing.
                connector.check_options(direction, &[]).unwrap();
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
                has_computed_time: false,
                options: Vec::new(),
                host: ConnectorContext::of_user(),
                resume: None,
            };
            Connectors::OWN.check_source(&spec).map_err(|error| error.to_string())
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
        let error = |spec: SinkSpec| Connectors::OWN.open_sink(&spec, 0, 1).map(|_| ()).unwrap_err().to_string();
        assert_eq!(error(spec("blackhol", None)), "there is no connector 'blackhol'\nhint: did you mean 'blackhole:'?");
        assert!(error(spec("carrier-pigeon", None)).contains("hint: sinks are "));
        let format = error(spec("blackhole", Some("JSON")));
        assert!(format.starts_with("'blackhole:' cannot use the format JSON\nhint: leave FORMAT out"), "{format}");
    }
}
