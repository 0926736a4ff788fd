//! Preparation: from an application to the parts of its group. Errors of an application that its planner cannot know
//! are found here: connectors, formats, and limits of this server's configuration.
//!
//! There is no lock: an application is prepared before other code knows of it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;
use rivulet_connectors::connector::{ConnectorContext, ConnectorError, OutputRows, SinkSpec, publish_options};
use rivulet_connectors::feed::FeedLayout;
use rivulet_connectors::formats::{Format, FormatError, InputFormat, Times, several_inputs};
use rivulet_connectors::mqtt::PublishOptions;
use rivulet_dataflow::{Cut, Decoder};
use rivulet_operators::application::{self, Application, Durability, FormatSpec, Input, Output};
use rivulet_runtime::{GroupParts, InboxLimits, Overflow, TaskParts};
use xxhash_rust::xxh3::xxh3_64;

use super::addresses::SinkAddress;
use super::companion::Companion;
use super::languages::Languages;
use super::messaging::Messaging;
use super::outlet::Outlet;
use super::output::{Outputs, Target, TaskSink};
use super::permitted::Permitted;
use super::running::{InputShape, Prepared};
use super::sources::{self, Sources};
use super::taps::Taps;
use super::texts::format_error;
use super::topics::{InputTopics, OutputAddress, Topics, is_topic};
use crate::catalog::Catalog;
use crate::config::Config;
use crate::run::{CONNECTORS, format_text, option_text, placed_at};
use crate::service::{ErrorKind, ServiceError, Tenant};

/// What preparing applications needs.
pub(super) struct Preparation {
    pub(super) config: Arc<Config>,
    pub(super) languages: Languages,
    pub(super) companion: Option<Arc<dyn Companion>>,
    pub(super) messaging: Arc<Messaging>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) taps: Arc<Taps>,
    /// Distinguishes this server from others.
    pub(super) server_id: String,
    /// What statements may reach.
    pub(super) permitted: Arc<Permitted>,
}

impl Preparation {
    /// Prepares an application, and finds the errors that the planner cannot know: connectors and formats.
    pub(super) fn prepare(&self, tenant: &Tenant, application: Application) -> Result<Prepared, ServiceError> {
        self.check_durability(&application)?;
        let host = self.host_of(tenant, &application);
        let sink = |output: &Output, names: &[&str]| {
            // In the eyes of other servers and of what waits for them, an output is a query of its own.
            let name = output.name.as_deref().unwrap_or_default();
            let id = xxh3_64(format!("{tenant}\0{}\0{name}", application.name).as_bytes());
            let host = ConnectorContext { query: format!("output {id:016x}"), ..host.clone() };
            let address = sink_address(output, names, &host)?;
            refuse_replaced(output, &address).map(|()| address)
        };
        let name = tenant.named(&application.name);
        let topics = Topics::new(&application, &name, |input| self.is_logged(input), sink)?;
        self.permitted.check_topics(tenant, &topics)?;
        application.inputs.iter().try_for_each(|input| sources::check(input, &host))?;
        let is_checkpointed = self.config.checkpoint.is_some()
            && application.inputs.iter().any(|input| self.config.durability.of(input) != Durability::None);
        let mut inputs = Vec::with_capacity(application.inputs.len());
        for (input, topics) in application.inputs.iter().zip(&topics.inputs) {
            inputs.push(input_format(input, topics)?);
        }
        let keeps_topics = |(place, input): (usize, &InputFormat)| u32::from(!input.topic_columns.is_empty()) << place;
        let topic_inputs = inputs.iter().take(u32::BITS as usize).enumerate().map(keeps_topics).sum();
        let mut output_formats = Vec::with_capacity(application.outputs.len());
        for (output, address) in application.outputs.iter().zip(&topics.outputs) {
            let (format, times) = match address {
                OutputAddress::Topic(_) => format(&output.format)?,
                // The connector writes the rows, perhaps with values that messages cannot have; live results show them
                // as JSON.
                OutputAddress::Sink(_) => (Format::Json, Times::default()),
            };
            format.encoder_of(output.schema.clone(), &times).map_err(|error| format_error(&error, &output.format))?;
            output_formats.push((format, times));
        }
        let default = self.messaging.publish_options();
        let target = |(output, address): (&Output, &OutputAddress)| match address {
            OutputAddress::Topic(_) => published(output, default).map(Target::Topics),
            OutputAddress::Sink(address) => {
                let (name, spec) = (output.name.as_deref(), address.spec.clone());
                Ok(Target::Outlet(Arc::new(Outlet::new(&application.name, name, spec, is_checkpointed))))
            }
        };
        let targets = application.outputs.iter().zip(&topics.outputs).map(target).collect::<Result<Vec<_>, _>>()?;
        let outputs = Arc::new(Outputs {
            application: application.name.clone(),
            // Only a replay gives a result once more with its number. Without a log, a number may be given to another
            // result after a crash.
            server_of_ids: application
                .inputs
                .iter()
                .all(|input| self.is_logged(input))
                .then(|| format!("{}{}", self.server_id, host.restored)),
            result_is_json: output_formats
                .iter()
                .map(|(format, _)| matches!(format, Format::Json | Format::NestedJson))
                .collect(),
            has_bits: application.has_output_bits,
            rows: application.outputs.iter().map(|_| AtomicU64::new(0)).collect(),
            topics: topics.clone(),
            targets,
            publish_refused: default,
            taps: self.taps.clone(),
            catalog: self.catalog.clone(),
            last_refusal: Mutex::default(),
            seconds: Mutex::default(),
            inputs: application.inputs.iter().map(|input| input.name.clone()).collect(),
        });
        let overflow = application.inputs[0].overflow;
        let event_time = application.inputs[0].event_time.filter(|_| application.inputs.len() == 1);
        let (dataflow, output_schema) = (application.dataflow.clone(), application.outputs[0].schema.clone());
        let (row_schema, of_task) = (application.row_schema.clone(), outputs.clone());
        let batch_rows_max = self.config.batch_rows_max;
        // Measurements that compare with engines that share nothing do not share decoding either.
        let shares = self.companion.is_none() && batch_rows_max.is_none();
        let is_logged = self.is_logged(&application.inputs[0]);
        let shape = (shares && inputs.len() == 1).then(|| {
            let (inputs, row_schema) = (inputs.clone(), row_schema.clone());
            Arc::new(InputShape {
                signature: format!("{inputs:?} {is_logged}"),
                is_logged,
                topic_inputs,
                decoder: Box::new(move || decoder(&inputs, &row_schema).expect("one was made before")),
            })
        });
        let publisher = self.messaging.publishers_of_tasks();
        let make = move || {
            let made = "one was made before";
            let encoder =
                |(format, times): &(Format, Times)| format.encoder_of(output_schema.clone(), times).expect(made);
            let encoders = output_formats.iter().map(encoder).collect();
            TaskParts {
                decoder: decoder(&inputs, &row_schema).expect(made),
                chain: dataflow.chain(),
                sink: Box::new(TaskSink::new(of_task.clone(), publisher(), encoders)),
            }
        };
        let parts = GroupParts {
            name: tenant.named(&application.name).in_log(),
            parameters: application.parameter_schema.clone(),
            make: Box::new(make),
            limits: InboxLimits {
                rows_max: self.config.inbox_rows_max,
                bytes_max: self.config.inbox_bytes_max,
                overflow: match overflow {
                    application::Overflow::Block => Overflow::Block,
                    application::Overflow::DropOldest => Overflow::DropOldest,
                    application::Overflow::DropNewest => Overflow::DropNewest,
                },
            },
            topic_inputs,
            event_time_column: event_time,
            task_queries_max: None,
            batch_rows_max,
            equal_by: shares.then(|| application.deciding_parameters.clone()),
            cut: match application.inputs.iter().any(|input| self.is_logged(input)) {
                true => Cut::Never(
                    "its events are in the log, and after a restart each has to be told from those that it has seen",
                ),
                false => application.cut.clone(),
            },
            passes_on: false,
            is_checkpointed,
        };
        let parts = match &self.companion {
            Some(companion) => companion.regroup(&self.languages, &application, parts),
            None => parts,
        };
        let warnings = self.warnings_of(&application, &topics);
        let shown = self.languages.shown(application.kind, &application.bytes);
        Ok(Prepared { tenant: tenant.clone(), application, topics, outputs, shape, parts, shown, warnings })
    }

    /// What outputs that are not topics find in this process. The broker is not part of it, because they are behind its
    /// routes.
    fn host_of(&self, tenant: &Tenant, application: &Application) -> ConnectorContext {
        ConnectorContext {
            server: self.server_id.clone(),
            query: format!("application {}", tenant.named(&application.name).in_log()),
            ..self.permitted.host(tenant)
        }
    }

    /// Fails if this server cannot provide the durability that inputs declare.
    fn check_durability(&self, application: &Application) -> Result<(), ServiceError> {
        let has_log = self.config.checkpoint.is_some();
        let is_lost = |input: &&Input| has_log && !self.is_logged(input) && Sources::needs_log(input);
        if let Some(Input { name, address, .. }) = application.inputs.iter().find(is_lost) {
            let message = format!(
                "the input '{name}' has no durability 'log', and the senders of '{address}' forget a row that came"
            );
            return Err(ServiceError::invalid(message)
                .with_hint("write WITH (durability => 'log') after the input's FORMAT")
                .at_place(address.position));
        }
        let mut logged = application.inputs.iter().filter(|input| self.is_logged(input));
        if let Some(input) = logged.clone().find(|input| input.overflow != application::Overflow::Block) {
            let message = format!("the input '{}' has durability 'log', and its overflow drops events", input.name);
            return Err(ServiceError::invalid(message).with_hint(
                "nothing acknowledged is dropped: leave out overflow, or write WITH (durability => 'checkpoint') after the input's FORMAT",
            ));
        }
        let Some(input) = logged.next() else { return Ok(()) };
        if self.config.checkpoint.is_some() {
            return Ok(());
        }
        let message = format!(
            "the input '{}' has durability 'log', and this server makes no checkpoints: its log of events would only \
             grow, until nothing more is received",
            input.name
        );
        Err(ServiceError::new(ErrorKind::Conflict, message)
            .with_hint("set checkpoint.enabled to true, or write WITH (durability => 'none') after the input's FORMAT"))
    }

    /// Probable mistakes in an application, in words.
    fn warnings_of(&self, application: &Application, topics: &Topics) -> Vec<String> {
        let logged = || application.inputs.iter().filter(|input| self.is_logged(input));
        let of_inputs = logged().filter_map(|input| broker_forgets(&self.config, input));
        let outputs = topics.outputs.iter().filter(|_| logged().next().is_some());
        application.warnings.iter().cloned().chain(of_inputs).chain(outputs.filter_map(leaves_out)).collect()
    }

    /// Whether the events of an input go to the log.
    fn is_logged(&self, input: &Input) -> bool {
        self.config.durability.of(input) == Durability::Log
    }
}

/// A warning if the events of an input are in the log once received, but its broker keeps none while this server is
/// away.
fn broker_forgets(config: &Config, input: &Input) -> Option<String> {
    let broker = config.broker.as_ref().filter(|_| input.source.is_none())?;
    let (why, key) = match (&broker.client_id, broker.qos) {
        (None, _) => (
            "mqtt.broker.client_id is not set, so the external broker forgets this server with each connection",
            "mqtt.broker.client_id",
        ),
        (Some(_), 0) => {
            ("mqtt.broker.qos is 0, so the external broker sends nothing again", "mqtt.broker.qos to \"1\"")
        }
        (Some(_), _) => return None,
    };
    Some(format!(
        "the input '{}' has durability 'log', and {why}: what is published while the server is away or the connection is down does not come; set {key}",
        input.name
    ))
}

/// That the log does not keep the results for a receiver of a single query that is away. Its address may have a secret.
fn leaves_out(output: &OutputAddress) -> Option<String> {
    let OutputAddress::Sink(address) = output else { return None };
    let waiting_max = address.by_row?.waiting_max?;
    Some(format!(
        "each query has a receiver of its own behind '{}:': of one that takes nothing at most {waiting_max} wait, for \
         retry_for at most, and the oldest results beyond that are left out, also with durability 'log'",
        address.spec.connector
    ))
}

pub(super) fn format(spec: &FormatSpec) -> Result<(Format, Times), ServiceError> {
    let (name, options) = format_text(spec);
    let options = options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    Format::parse(&name, options).map_err(|error| format_error(&error, spec))
}

/// The options for publishing the results of an output. Those that it does not set are as in `default`.
fn published(output: &Output, default: PublishOptions) -> Result<PublishOptions, ServiceError> {
    publish_options(&options_of(output), default).map_err(|error| placed(&error, output))
}

fn options_of(output: &Output) -> Vec<(String, String)> {
    output.options.iter().map(|option| (option.name.clone(), option_text(&option.value))).collect()
}

/// A connector's error about an output, with the output's position.
fn placed(error: &ConnectorError, output: &Output) -> ServiceError {
    let at = |name: &str| output.options.iter().find(|option| option.name == name).map(|option| option.position);
    placed_at(error, output.address.position, Some(output.format.position), at)
}

/// A delivery that no output has: a checkpoint of an application does not cover just the rows that its sinks have.
const ONCE: &str = "exactly_once";

/// The address of an output that is not a topic, checked by its connector.
fn sink_address(output: &Output, names: &[&str], host: &ConnectorContext) -> Result<SinkAddress, ServiceError> {
    let Output { address, format, schema, .. } = output;
    let is_once =
        |name: &str, value: &str| name.eq_ignore_ascii_case("delivery") && value.trim().eq_ignore_ascii_case(ONCE);
    if let Some(option) = output.options.iter().find(|one| is_once(&one.name, &option_text(&one.value))) {
        return Err(ServiceError::invalid(format!("delivery => '{ONCE}' is for sinks of big queries"))
            .with_hint("leave it out: an output of an application delivers at least once")
            .at_place(option.position));
    }
    let by_row = CONNECTORS.by_row(&address.connector);
    let has_addresses = address.parameters().next().is_some();
    let spec = SinkSpec {
        connector: address.connector.clone(),
        address: address.template.clone(),
        format: (!format.name.is_empty()).then(|| format_text(format)),
        schema: schema.clone(),
        changes: false,
        key: None,
        options: options_of(output),
        host: host.clone(),
        checkpoints: None,
        output: by_row.map(|_| OutputRows { has_addresses }),
    };
    CONNECTORS.check_sink(&spec).map_err(|error| placed(&error, output))?;
    SinkAddress::new(address, names, by_row, spec)
}

/// Refuses a file that is complete only at the end, because an application of a server has no end.
fn refuse_replaced(Output { address, .. }: &Output, sink: &SinkAddress) -> Result<(), ServiceError> {
    if CONNECTORS.replaced_file(&sink.spec).is_none() {
        return Ok(());
    }
    let message = format!("'{address}' would be finished when its application ends");
    Err(ServiceError::invalid(message)
        .with_hint("write a folder, 'file:alarms/', or a file with WITH (append => true)")
        .at_place(address.position))
}

/// Checks the outputs of an application that are not topics, without opening them.
///
/// # Errors
/// One of them is invalid.
pub(crate) fn check_outputs(application: &Application, host: &ConnectorContext) -> Result<(), ServiceError> {
    let names: Vec<&str> = application.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let mut sinks = application.outputs.iter().filter(|output| !is_topic(output));
    sinks.try_for_each(|output| sink_address(output, &names, host).map(drop))
}

/// How the rows of an input are made from its events. A decoder for it can be made.
fn input_format(input: &Input, topics: &InputTopics) -> Result<InputFormat, ServiceError> {
    let (format, times) = format(&input.format)?;
    let rows = InputFormat {
        format,
        times,
        schema: input.declared.clone(),
        event_time_column: input.event_time,
        topic_columns: topics.columns(input)?,
    };
    rows.decoder().map_err(|error| format_error(&error, &input.format))?;
    Ok(rows)
}

/// An input of an application that is tried.
pub(crate) struct TrialInput {
    /// How its rows are made from its events.
    pub(crate) rows: InputFormat,
    /// The topics of all queries; `None` if each query names its own.
    pub(crate) filter: Option<String>,
    /// How the messages of its source get a substitute for a topic, if it has a source.
    pub(crate) source: Option<FeedLayout>,
}

/// The inputs of an application that is tried.
///
/// # Errors
/// An address or a format is invalid.
pub(crate) fn trial_inputs(
    application: &Application,
    host: &ConnectorContext,
) -> Result<Vec<TrialInput>, ServiceError> {
    let sink = |output: &Output, names: &[&str]| sink_address(output, names, host);
    let topics = Topics::new(application, &Tenant::of_operator().named(&application.name), |_| false, sink)?;
    let inputs = application.inputs.iter().zip(topics.inputs).map(|(input, topics)| {
        Ok(TrialInput { rows: input_format(input, &topics)?, filter: topics.filter, source: topics.source })
    });
    inputs.collect()
}

/// The decoder of an application's rows.
fn decoder(inputs: &[InputFormat], row_schema: &SchemaRef) -> Result<Box<dyn Decoder>, FormatError> {
    match inputs {
        [one] => one.decoder(),
        several => several_inputs(several.to_vec(), row_schema.clone()),
    }
}
