//! Messages from rows: a topic made from columns, and the other columns as payload.
//!
//! What must hold: a message is handed over for each row, in order; a row whose values make no valid topic ends the
//! query, or is left out and logged. When a checkpoint is complete, all messages before it have left, or are in it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use rivulet_dataflow::{Batch, Sink, SinkError, TransactionalSink};

use super::connection::MqttConnection;
use super::topic::no_topic;
use crate::connector::outgoing::Outgoing;
use crate::connector::waiting::{self, WaitingMessage};
use crate::connector::{ConnectorError, Health, Options, OutputRows, SinkSpec};
use crate::formats::RowFormat;
use crate::mqtt::template::level_problem;
use crate::mqtt::{Direction, PublishBatch, PublishError, PublishOptions, Publisher, Qos, Template};

pub(super) fn qos(options: &Options) -> Qos {
    if options.integer("qos") == Some(1) { Qos::AtLeastOnce } else { Qos::AtMostOnce }
}

/// How the messages of a sink are published.
pub(super) fn publish_of(options: &Options) -> Result<PublishOptions, ConnectorError> {
    let expiry_s = options.duration("expiry").map(|expiry| {
        let seconds = u32::try_from(expiry.as_secs()).ok().filter(|_| expiry.subsec_nanos() == 0);
        seconds
            .ok_or_else(|| options.wrong("expiry", "is no number of whole seconds", "write for example '30 seconds'"))
    });
    Ok(PublishOptions { qos: qos(options), retain: options.boolean("retain"), expiry_s: expiry_s.transpose()? })
}

/// The topic of rows with these columns; if they are not known yet, every name in the topic counts as a column.
pub(super) fn topic(address: &str, columns: &[&str]) -> Result<Template, ConnectorError> {
    let named = || address.split('{').skip(1).filter_map(|part| part.split_once('}').map(|(name, _)| name));
    let columns = if columns.is_empty() { named().collect() } else { columns.to_vec() };
    Template::parse(address.trim(), &columns, Direction::Output)
        .map_err(|error| no_topic(address, &error.to_string().replace("parameter", "column")))
}

/// Fails if the address of a row of an application's output is no topic.
pub(super) fn check_address(spec: &SinkSpec) -> Result<(), ConnectorError> {
    let whole = Template::parse("{topic}", &["topic"], Direction::Output);
    let topic = whole.and_then(|whole| whole.bind(|_| spec.address.as_str()));
    topic.map(drop).map_err(|error| no_topic(&spec.address, &error.to_string()))
}

/// Turns rows into messages.
pub(super) struct Rows {
    topic: Template,
    /// The indices of the columns in the topic; each once.
    topic_columns: Vec<usize>,
    /// The columns of the payload, and their schema.
    payload: Vec<usize>,
    payload_schema: SchemaRef,
    /// The column with the identities of rows, if they have any.
    ids: Option<usize>,
    outgoing: Outgoing,
    publish: PublishOptions,
    skips: bool,
    /// Rows that were left out.
    skipped: u64,
    /// The bytes of the payloads of the last batch.
    bytes: usize,
    /// Kept so that the memory is reused.
    text: String,
}

/// Rows count as stuck if they wait for this long and there is no connection.
const STANDS_AFTER: Duration = Duration::from_secs(1);

/// How long the end waits for messages on their way.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// The number of batches that are tracked one by one until they have left; later ones are counted with the last.
const ON_THEIR_WAY_MAX: usize = 1_024;

impl Rows {
    /// Prepares what `spec` asks for.
    pub(super) fn new(spec: &SinkSpec, options: &Options, format: &RowFormat) -> Result<Self, ConnectorError> {
        let fields = spec.schema.fields();
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        let topic = match spec.output {
            // It stands behind the columns of the sink, the query and the identity.
            Some(OutputRows { has_addresses: true }) => {
                topic("{address}", &[vec![""; names.len() + 2], vec!["address"]].concat())?
            }
            _ => topic(&spec.address, &names)?,
        };
        let mut topic_columns: Vec<usize> = topic.parameters().collect();
        topic_columns.sort_unstable();
        topic_columns.dedup();
        let keeps = options.boolean("keep_topic_columns");
        let payload: Vec<usize> =
            (0..names.len()).filter(|column| keeps || topic_columns.binary_search(column).is_err()).collect();
        if payload.is_empty() {
            let hint = "write a column that is not in the topic, or set it to true";
            return Err(options.wrong("keep_topic_columns", "is false, and no column is left for the payload", hint));
        }
        let payload_schema = Arc::new(spec.schema.project(&payload).expect("columns of the schema"));
        Ok(Self {
            topic,
            topic_columns,
            ids: spec.output.map(|_| names.len() + 1),
            outgoing: Outgoing::new(format, &payload_schema, spec.changes)?,
            payload,
            payload_schema,
            publish: publish_of(options)?,
            // A sink that never ends cannot end with an error.
            skips: options.text("on_bad_topic") == Some("skip") || spec.output.is_some(),
            skipped: 0,
            bytes: 0,
            text: String::new(),
        })
    }

    /// Appends a message for each row.
    fn write(&mut self, batch: &Batch, out: &mut PublishBatch, publisher: &dyn Publisher) -> Result<(), SinkError> {
        let failed = |error: arrow::error::ArrowError| SinkError(error.to_string());
        let options = FormatOptions::default();
        // By column of the rows; only columns in the topic have a formatter.
        let mut formatters: Vec<Option<ArrayFormatter<'_>>> = (0..batch.columns.num_columns()).map(|_| None).collect();
        for &column in &self.topic_columns {
            let array = batch.columns.column(column).as_ref();
            formatters[column] = Some(ArrayFormatter::try_new(array, &options).map_err(failed)?);
        }
        let columns = self.payload.iter().map(|&column| batch.columns.column(column).clone()).collect();
        let columns = RecordBatch::try_new(self.payload_schema.clone(), columns).map_err(failed)?;
        let encoded = self.outgoing.encode(&batch.clone().with_columns(columns))?;
        self.bytes = encoded.payload_bytes();
        let ids = self.ids.map(|column| batch.columns.column(column).as_string::<i32>());
        for (row, payload) in encoded.iter().enumerate() {
            self.text.clear();
            let mut problem = None;
            self.topic.write(&mut self.text, |column, text| {
                let begin = text.len();
                if let Some(formatter) =
                    formatters[column].as_ref().filter(|_| !batch.columns.column(column).is_null(row))
                {
                    // Writing to memory does not fail; a value that cannot be shown leaves no text, which is no valid
                    // level.
                    let _ = formatter.value(row).write(text);
                }
                let level = level_problem(&text[begin..]);
                problem = problem.or(level.map(|problem| (column, problem)));
            });
            if self.topic.is_whole_topic() {
                problem = None;
            }
            let pushed = match problem {
                Some((column, problem)) => {
                    let name = batch.columns.schema_ref().field(column).name();
                    Err(format!("the value of '{name}': {problem}"))
                }
                None => loop {
                    match out.push_with_id(&self.text, ids.map_or("", |ids| ids.value(row)), payload, self.publish) {
                        Ok(()) => break Ok(()),
                        Err(PublishError::BatchFull { .. }) if !out.is_empty() => publisher.submit(out),
                        Err(error) => break Err(error.to_string()),
                    }
                },
            };
            match pushed {
                Ok(()) => {}
                Err(_) if self.skips => {
                    self.skipped += 1;
                    // The first, the second, the fourth and so on are logged.
                    if self.skipped.is_power_of_two() {
                        let (topic, skipped) = (&self.text, self.skipped);
                        tracing::warn!(topic, skipped, "rows are left out whose values make no topic");
                    }
                }
                Err(problem) => {
                    let topic = &self.text;
                    return Err(SinkError(format!(
                        "a row makes the topic '{topic}', which is none: {problem}\n\
                         hint: leave such rows out with WHERE, or with on_bad_topic => 'skip'"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// Hands messages over to a connection.
pub(super) struct MqttSink {
    /// Whether checkpoints get the messages that wait while there is no connection.
    hands_over: bool,
    host: Arc<dyn MqttConnection>,
    publisher: Arc<dyn Publisher>,
    rows: Rows,
    /// Empty between writes, kept so that the memory is reused.
    batch: PublishBatch,
    /// All messages before this number must have left for the checkpoint that is being made.
    awaited: Option<u64>,
    health: Arc<Health>,
    on_their_way: VecDeque<OnTheirWay>,
    /// When the end stops waiting for messages on their way.
    finish_by: Option<Instant>,
}

/// Rows whose messages have yet to leave.
#[derive(Debug)]
struct OnTheirWay {
    /// The number of the message behind them.
    until: u64,
    rows: usize,
    bytes: usize,
    /// A copy of the messages, if checkpoints may get them.
    messages: Option<PublishBatch>,
}

impl MqttSink {
    /// A sink that first sends what `waits`, with the messages of a checkpoint; `None` if none are made.
    pub(super) fn new(
        host: Arc<dyn MqttConnection>,
        rows: Rows,
        waits: Option<Vec<WaitingMessage>>,
        health: Arc<Health>,
    ) -> Result<Self, SinkError> {
        let (publisher, batch) = (host.publisher(), PublishBatch::new());
        let (hands_over, on_their_way) = (waits.is_some() && host.may_be_away(), VecDeque::new());
        let mut sink =
            Self { hands_over, publisher, host, rows, batch, awaited: None, health, on_their_way, finish_by: None };
        for message in waits.unwrap_or_default() {
            let (topic, payload) = (message.topic.clone().unwrap_or_default(), message.payload().unwrap_or_default());
            let id = String::from_utf8(message.key().unwrap_or_default()).unwrap_or_default();
            let pushed = sink.batch.push_with_id(&topic, &id, &payload, sink.rows.publish);
            pushed.map_err(|error| SinkError(error.to_string()))?;
        }
        let (waiting, bytes) = (sink.batch.len(), sink.batch.queued_bytes());
        if waiting > 0 {
            sink.health.hand(waiting);
            sink.submit(waiting, bytes);
        }
        Ok(sink)
    }

    /// Hands over the messages of the batch, which are those of so many rows.
    fn submit(&mut self, rows: usize, bytes: usize) {
        let messages = self.hands_over.then(|| self.batch.clone());
        self.publisher.submit(&mut self.batch);
        let sent = OnTheirWay { until: self.publisher.next(), rows, bytes, messages };
        let is_full = self.on_their_way.len() >= ON_THEIR_WAY_MAX;
        match self.on_their_way.back_mut() {
            Some(last) if is_full => {
                (last.until, last.rows, last.bytes) = (sent.until, last.rows + sent.rows, last.bytes + bytes);
                if let (Some(all), Some(messages)) = (&mut last.messages, &sent.messages) {
                    all.append(messages);
                }
            }
            _ => self.on_their_way.push_back(sent),
        }
    }

    /// Whether rows have waited for a connection that is not there, and their messages are kept.
    fn is_away(&self) -> bool {
        let waits = || self.health.oldest().is_some_and(|oldest| oldest >= STANDS_AFTER);
        self.hands_over && waits() && self.host.problem().is_some()
    }

    /// The messages that have not left, as a checkpoint stores them.
    fn waiting(&self) -> String {
        let kept = self.on_their_way.iter().filter_map(|one| one.messages.as_ref());
        let messages = kept.flat_map(|batch| (0..batch.len()).filter_map(|index| batch.get(index)));
        let saved = messages.map(|one| {
            let id = Some(one.id().as_bytes()).filter(|id| !id.is_empty());
            WaitingMessage::new(Some(one.topic), id, Some(one.payload))
        });
        waiting::saved(saved.collect())
    }

    /// Counts the rows that have left since the last call, and reports why none do.
    fn look(&mut self) {
        if self.on_their_way.is_empty() {
            return;
        }
        let first_left = self.publisher.first_left();
        while let Some(gone) = self.on_their_way.pop_front_if(|one| one.until <= first_left) {
            self.health.take(gone.rows, gone.bytes);
        }
        // A short wait is normal: rows that were just written are on their way.
        if self.health.oldest().is_some_and(|oldest| oldest >= STANDS_AFTER)
            && let Some(problem) = self.host.problem()
        {
            self.health.stand(&problem, 1);
        }
    }
}

impl Sink for MqttSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let skipped = self.rows.skipped;
        let written = self.rows.write(batch, &mut self.batch, &*self.publisher);
        let (rows, bytes) = (batch.rows(), self.rows.bytes);
        self.health.hand(rows);
        let skipped = usize::try_from(self.rows.skipped - skipped).unwrap_or(usize::MAX);
        if skipped > 0 {
            self.health.leave_out(skipped, "their values make no topic");
        }
        self.submit(rows.saturating_sub(skipped), bytes);
        self.look();
        // The checkpoint that was being made was abandoned.
        self.awaited = None;
        written
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.look();
        Ok(())
    }

    /// Returns whether all messages have left; with QoS 1, whether the broker has acknowledged them.
    fn drain(&mut self) -> Result<bool, SinkError> {
        let awaited = *self.awaited.get_or_insert_with(|| self.publisher.next());
        self.look();
        if self.publisher.first_left() < awaited {
            return Ok(false);
        }
        self.awaited = None;
        Ok(true)
    }

    fn finish(&mut self) -> Result<bool, SinkError> {
        self.host.finish();
        let is_finished = self.host.is_finished().map_err(SinkError)?;
        self.look();
        // The connection of a server goes on after the query: messages still on their way then are reported as waiting.
        let finish_by = *self.finish_by.get_or_insert_with(|| Instant::now() + FINISH_MAX);
        Ok(is_finished && (self.on_their_way.is_empty() || Instant::now() >= finish_by))
    }

    fn has_room(&self) -> bool {
        self.publisher.has_room()
    }

    fn hands_over(&self) -> bool {
        self.is_away()
    }

    fn transactional(&mut self) -> Option<&mut dyn TransactionalSink> {
        if self.hands_over { Some(self) } else { None }
    }
}

/// Messages are final when they have left. A checkpoint waits for that, and gets them if there is no connection.
impl TransactionalSink for MqttSink {
    fn prepare(&mut self) -> Result<Option<String>, SinkError> {
        if self.drain()? {
            return Ok(Some(String::new()));
        }
        Ok(self.is_away().then(|| self.waiting()))
    }
}
