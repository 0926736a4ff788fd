//! `stdin:` lines of standard input as rows; `stdout:` rows as lines of standard output.

mod sink;
mod source;

use std::sync::atomic::{AtomicBool, Ordering};

use rivulet_dataflow::{Sink, Source};

use super::description::{Check, Instance, Opening};
use super::given_format::format_or_json;
use super::lines::{LINE_BYTES_MAX, LINE_FORMATS, MULTILINE, Reading};
use super::{
    ConnectorContext, ConnectorDescription, ConnectorError, DirectionDescription, Guarantee, OptionDescription,
    OptionKind, Options, SinkSpec, SourceSpec,
};

use sink::StandardSink;
pub use sink::{is_reader_gone, output_failed};
use source::StreamSource;

/// The description of standard input.
pub(super) const STDIN: ConnectorDescription = ConnectorDescription {
    name: "stdin",
    summary: "Lines of standard input.",
    address: "nothing, or `-`",
    source: Some(DirectionDescription {
        help: "One partition, and one source in a process. Input is read as fast as it is processed, and not faster.",
        formats: LINE_FORMATS,
        guarantees: &[("", Guarantee::AtMostOnce)],
        options: &[BOUNDED, MULTILINE, LINE_BYTES_MAX],
    }),
    sink: None,
    example: "CREATE SOURCE lines (line TEXT) FROM 'stdin:' FORMAT RAW;",
    open: Opening {
        source: Some(open_source),
        check: Check { source: Some(check_source), sink: None },
        ..Opening::NONE
    },
};

const BOUNDED: OptionDescription = OptionDescription {
    name: "bounded",
    kind: OptionKind::Boolean,
    default: Some("false"),
    help: "Whether what is piped in comes to an end soon, as a file does: then there is a final result, in order if ORDER BY says so. Without, \
           results come out as they come.",
};

/// The description of standard output.
pub(super) const STDOUT: ConnectorDescription = ConnectorDescription {
    name: "stdout",
    summary: "Lines of standard output.",
    address: "nothing, or `-`",
    source: None,
    sink: Some(DirectionDescription {
        help: "Whole batches at a time, at once. When the reader goes away, as `head` does, the query ends. A result that changes has a \
               first column `op`: `+` for a row that came, `-` for one that was taken back; FORMAT DEBEZIUM has its own `op`.",
        formats: LINE_FORMATS,
        guarantees: &[("", Guarantee::AtLeastOnce)],
        options: &[],
    }),
    example: "CREATE SINK screen TO 'stdout:' FORMAT CSV (header => true);",
    open: Opening { sink: Some(open_sink), check: Check { source: None, sink: Some(check_sink) }, ..Opening::NONE },
};

/// Whether a source reads standard input; no other source can then.
static STDIN_IS_TAKEN: AtomicBool = AtomicBool::new(false);

fn open_source(spec: &SourceSpec, options: &Options, _wanted: usize) -> Result<Vec<Box<dyn Source>>, ConnectorError> {
    check_address(STDIN.name, &spec.address)?;
    let reading = Reading::new(format_or_json(spec.format.as_ref(), &spec.host.files)?, spec, options)?;
    let intake = reading.intake()?;
    if STDIN_IS_TAKEN.swap(true, Ordering::AcqRel) {
        let hint = "read it in one source, and use that in several queries";
        return Err(ConnectorError::open(STDIN.name, &spec.address, "standard input is read already", hint));
    }
    Ok(vec![Box::new(StreamSource::new(std::io::stdin(), reading, intake, options.boolean(BOUNDED.name)))])
}

fn open_sink(spec: &SinkSpec, _options: &Options, instance: Instance) -> Result<Box<dyn Sink>, ConnectorError> {
    check_address(STDOUT.name, &spec.address)?;
    let format = format_or_json(spec.format.as_ref(), &spec.host.files)?;
    let (is_first, health) = (instance.number == 0, &spec.host.health);
    let sink = StandardSink::new(std::io::stdout(), &format, &spec.schema, spec.changes, is_first, health)?;
    Ok(Box::new(sink))
}

fn check_source(spec: &SourceSpec, _options: &Options) -> Result<(), ConnectorError> {
    check_process(STDIN.name, &spec.host, &spec.address)
}

fn check_sink(spec: &SinkSpec, _options: &Options) -> Result<(), ConnectorError> {
    check_process(STDOUT.name, &spec.host, &spec.address)
}

/// Refuses a server, which has no standard streams for queries.
fn check_process(connector: &'static str, host: &ConnectorContext, address: &str) -> Result<(), ConnectorError> {
    match host.has_standard_streams {
        true => Ok(()),
        false => {
            let problem = "is the terminal of a process, and a server has none";
            let hint = "run the script with `rivulet run`, or use a file, a topic or HTTP";
            Err(ConnectorError::address(connector, address, problem, hint))
        }
    }
}

fn check_address(connector: &'static str, address: &str) -> Result<(), ConnectorError> {
    match address {
        "" | "-" => Ok(()),
        _ => {
            let hint = format!("write '{connector}:'");
            Err(ConnectorError::address(
                connector,
                address,
                "has something after the colon, and standard streams have no address",
                hint,
            ))
        }
    }
}
