//! The sink of a task: encodes result rows, addresses each by its slot's parameters, and hands them all over at once.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringBuilder, UInt64Builder};
use arrow::datatypes::{Field, Schema, UInt32Type};
use arrow::error::ArrowError;
use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, encode_row_as_json, json_escape};
use rivulet_connectors::mqtt::{PublishBatch, PublishError, PublishOptions, Publisher, Template};
use rivulet_dataflow::{Batch, GroupSink, QueryId, Reason, Refusal, Refusals, Refused, Seconds, SinkError, SlotTable};

use super::addresses::SinkAddress;
use super::outlet::Outlet;
use super::taps::{Taps, Watched};
use super::topics::{InputTopics, OutputAddress, Topics, write_topic};
use crate::catalog::Catalog;
use crate::service::{EndHealth, generated_name};

/// Where the rows of an application go; shared by the sinks of its tasks.
pub(super) struct Outputs {
    pub(super) application: String,
    /// The identity of the server in the ids of results, if results have ids. A receiver recognizes by them results
    /// that come again after a crash.
    pub(super) server_of_ids: Option<String>,
    /// For each output whether it writes JSON, so that live results are the same bytes.
    pub(super) result_is_json: Vec<bool>,
    /// Whether the last column of rows tells to which outputs they go.
    pub(super) has_bits: bool,
    /// The number of rows of each output.
    pub(super) rows: Vec<AtomicU64>,
    pub(super) topics: Topics,
    /// Where the results of each output go.
    pub(super) targets: Vec<Target>,
    /// How late rows and dead letters are published.
    pub(super) publish_refused: PublishOptions,
    pub(super) taps: Arc<Taps>,
    /// For the names of queries in dead letters.
    pub(super) catalog: Arc<Catalog>,
    /// The last refusal in words, for users who ask why a query gives its results.
    pub(super) last_refusal: Mutex<Option<String>>,
    /// Rows whose times are most likely seconds that were read as milliseconds, by input.
    pub(super) seconds: Mutex<Vec<Seconds>>,
    /// The names of the inputs.
    pub(super) inputs: Vec<String>,
}

/// Where the results of an output go.
pub(super) enum Target {
    /// To topics, with these options.
    Topics(PublishOptions),
    /// To a sink of another connector.
    Outlet(Arc<Outlet>),
}

/// The sink of one task.
pub(super) struct TaskSink {
    outputs: Arc<Outputs>,
    publisher: Arc<dyn Publisher>,
    /// One for each output.
    encoders: Vec<Box<dyn Encoder>>,
    rows: EncodedRows,
    messages: PublishBatch,
    /// Rows for outputs that are not topics, by output.
    for_outlets: Vec<(usize, Batch)>,
    /// Results that a reader watches, for when the messages leave. The sinks of a task in parts write side by side, and
    /// send in turn.
    watched: Vec<(QueryId, String)>,
    topic: String,
    /// Kept to reuse its memory.
    id: String,
    value: String,
    numbers: Vec<u64>,
}

/// Result rows of one output.
struct ResultRows<'a> {
    batch: &'a Batch,
    /// Their numbers, if they have any.
    numbers: Option<&'a [u64]>,
    slots: &'a SlotTable,
}

impl ResultRows<'_> {
    /// Writes the id of a query's result into `id`; nothing if results have no ids.
    fn write_id(&self, server: Option<&str>, query: QueryId, row: usize, id: &mut String) {
        id.clear();
        if let (Some(server), Some(numbers)) = (server, self.numbers) {
            // Writing to a string does not fail.
            let _ = write!(id, "{server}-{query}-{}", numbers[row]);
        }
    }
}

/// The buffers of a task's sink, and the watched results, while rows are made for an outlet.
struct Kept<'a> {
    watched: &'a mut Vec<(QueryId, String)>,
    address: &'a mut String,
    id: &'a mut String,
    value: &'a mut String,
}

impl TaskSink {
    /// A sink with an encoder for each output.
    pub(super) fn new(outputs: Arc<Outputs>, publisher: Arc<dyn Publisher>, encoders: Vec<Box<dyn Encoder>>) -> Self {
        Self {
            outputs,
            publisher,
            encoders,
            rows: EncodedRows::default(),
            messages: PublishBatch::default(),
            for_outlets: Vec::new(),
            watched: Vec::new(),
            topic: String::new(),
            id: String::new(),
            value: String::new(),
            numbers: Vec::new(),
        }
    }

    /// The text of a dead letter: everything that a user needs to find out what went wrong.
    fn dead_letter(&self, refusal: &Refusal, id: QueryId) -> String {
        let mut letter = format!("{{\"application\":\"{}\"", json_escape(&self.outputs.application));
        let _ = write!(
            letter,
            ",\"query\":\"{}\",\"query_id\":{id},\"reason\":\"{}\",\"detail\":\"{}\",\"arrival_ms\":{}",
            json_escape(&self.outputs.query_name(id)),
            refusal.reason.name(),
            json_escape(&refusal.detail),
            refusal.arrival_us / 1_000,
        );
        match &refusal.content {
            Refused::Payload(payload) => match std::str::from_utf8(payload) {
                Ok(text) => {
                    let _ = write!(letter, ",\"payload\":\"{}\"", json_escape(text));
                }
                Err(_) => {
                    let _ = write!(letter, ",\"payload_hex\":\"{}\"", hex::encode(payload));
                }
            },
            Refused::Row(row) => {
                letter.push_str(",\"row\":");
                letter.push_str(&encode_row_as_json(row, 0));
            }
        }
        letter.push('}');
        letter
    }
}

impl TaskSink {
    /// Publishes the rows of a batch, with their numbers if they have any.
    fn write_rows(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError> {
        let is_watching = self.outputs.taps.is_watching();
        if !self.outputs.has_bits {
            let outputs = 0..self.encoders.len();
            // A row is shown once, however many outputs it goes to.
            let rows = ResultRows { batch, numbers, slots };
            let written = outputs.map(|output| self.write_output(output, &rows, |_| is_watching && output == 0));
            return written.fold(Ok(()), Result::and);
        }
        let columns = batch.columns.num_columns() - 1;
        let bits = batch.column(columns).as_primitive::<UInt32Type>().clone();
        let failed = |error: ArrowError| SinkError(error.to_string());
        let shown = batch.columns.project(&(0..columns).collect::<Vec<_>>()).map_err(failed)?;
        let batch = batch.with_columns(shown);
        let mut result = Ok(());
        let mut numbers_to_output = std::mem::take(&mut self.numbers);
        for output in 0..self.encoders.len() {
            let bit = 1u32 << output;
            let goes = |bits: u32| bits & bit != 0;
            let to_output: Vec<u32> = bits.values().iter().copied().filter(|&bits| goes(bits)).collect();
            if to_output.is_empty() {
                continue;
            }
            let keep: BooleanArray = bits.values().iter().map(|&bits| Some(goes(bits))).collect();
            numbers_to_output.clear();
            if let Some(numbers) = numbers {
                let kept = numbers.iter().zip(bits.values()).filter(|&(_, &bits)| goes(bits));
                numbers_to_output.extend(kept.map(|(number, _)| number));
            }
            let kept = batch.filter(&keep).map_err(failed)?;
            let rows = ResultRows { batch: &kept, numbers: numbers.map(|_| &numbers_to_output[..]), slots };
            // A row is shown with the first of its outputs.
            let shows = |row: usize| is_watching && to_output[row] & (bit - 1) == 0;
            let written = self.write_output(output, &rows, shows);
            result = result.and(written);
        }
        self.numbers = numbers_to_output;
        result
    }

    /// Publishes the rows of an output. Live results also show the rows for which `shows` holds.
    fn write_output(
        &mut self,
        output: usize,
        results: &ResultRows<'_>,
        shows: impl Fn(usize) -> bool,
    ) -> Result<(), SinkError> {
        let &ResultRows { batch, slots, .. } = results;
        let Self { outputs, encoders, rows, messages, watched, topic, id, .. } = self;
        let (publish, template) = match (&outputs.targets[output], &outputs.topics.outputs[output]) {
            (Target::Topics(publish), OutputAddress::Topic(template)) => (*publish, template),
            (Target::Outlet(outlet), OutputAddress::Sink(address)) => {
                let mut kept = Kept { watched, address: topic, id, value: &mut self.value };
                let made = outputs.rows_for(outlet, address, results, shows, &mut kept)?;
                outputs.rows[output].fetch_add(made.rows() as u64, Ordering::Relaxed);
                if !made.is_empty() {
                    self.for_outlets.push((output, made));
                }
                return Ok(());
            }
            _ => unreachable!("both are made of the same address"),
        };
        rows.clear();
        encoders[output].encode(batch, rows);
        let mut failure = Ok(());
        let mut published = 0;
        for (row, &slot) in batch.slots.iter().enumerate() {
            // Each of the queries that share a slot has its own output.
            slots.for_each_query(slot, |query, slots, slot| {
                write_topic(template, slots, slot, topic);
                results.write_id(outputs.server_of_ids.as_deref(), query, row, id);
                // A row that cannot be published must not prevent the rows of other queries.
                if let Err(error) = messages.push_with_id(topic, id, rows.row(row), publish) {
                    failure = Err(sink_error(error));
                    return;
                }
                published += 1;
                if shows(row) && outputs.taps.is_watched(&Watched::Query(query)) {
                    let result = match outputs.result_is_json[output] {
                        true => String::from_utf8_lossy(rows.row(row)).into_owned(),
                        false => encode_row_as_json(batch, row),
                    };
                    watched.push((query, result));
                }
            });
        }
        outputs.rows[output].fetch_add(published, Ordering::Relaxed);
        failure
    }
}

impl Outputs {
    /// Makes a batch for an output that is not a topic: a row for each query that shares a slot. Behind the columns it
    /// has the row's query, its id, and its address.
    fn rows_for(
        &self,
        outlet: &Outlet,
        address: &SinkAddress,
        results: &ResultRows<'_>,
        shows: impl Fn(usize) -> bool,
        kept: &mut Kept<'_>,
    ) -> Result<Batch, SinkError> {
        let Kept { watched, address: text, id, value } = kept;
        let &ResultRows { batch, slots, .. } = results;
        let mut places = Vec::with_capacity(batch.rows());
        let mut queries = UInt64Builder::with_capacity(batch.rows());
        let (mut ids, mut addresses) = (StringBuilder::new(), StringBuilder::new());
        for (row, &slot) in batch.slots.iter().enumerate() {
            slots.for_each_query(slot, |query, slots, slot| {
                places.push(row as u32);
                if outlet.has_owners() {
                    queries.append_value(query);
                    results.write_id(self.server_of_ids.as_deref(), query, row, id);
                    ids.append_value(&**id);
                }
                if outlet.has_addresses() {
                    text.clear();
                    address.write(slots, slot, value, text);
                    addresses.append_value(&**text);
                }
                if shows(row) && self.taps.is_watched(&Watched::Query(query)) {
                    watched.push((query, encode_row_as_json(batch, row)));
                }
            });
        }
        let failed = |error: ArrowError| SinkError(error.to_string());
        let is_each_once = places.len() == batch.rows() && places.windows(2).all(|pair| pair[0] < pair[1]);
        let rows = if is_each_once { batch.clone() } else { batch.take(&places).map_err(failed)? };
        let mut columns = rows.columns.columns().to_vec();
        if outlet.has_owners() {
            columns.extend([Arc::new(queries.finish()) as ArrayRef, Arc::new(ids.finish())]);
        }
        if outlet.has_addresses() {
            columns.push(Arc::new(addresses.finish()));
        }
        let schema = outlet.schema.get_or_init(|| {
            let fields = rows.columns.schema_ref().fields();
            let own = ["$query", "$id", "$address"].into_iter().zip(&columns[fields.len()..]);
            let own = own.map(|(name, column)| Arc::new(Field::new(name, column.data_type().clone(), false)));
            Arc::new(Schema::new(fields.iter().cloned().chain(own).collect::<Vec<_>>()))
        });
        let columns = RecordBatch::try_new(schema.clone(), columns).map_err(failed)?;
        Ok(rows.with_columns(columns))
    }
}

impl Outputs {
    /// A query's name. It is read from the catalog, because the engine's state may not be locked here.
    fn query_name(&self, id: QueryId) -> String {
        match self.catalog.read_query(id, |stored| stored.name.to_owned()) {
            Ok(Some(name)) if !name.is_empty() => name,
            _ => generated_name(id),
        }
    }

    /// The problems of outputs that are no topics, but those of receivers of single queries.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let health = |outlet: &Arc<Outlet>| outlet.health(|query| self.query_name(query));
        let concerns_all = |outlet: &&Arc<Outlet>| outlet.concerns_all();
        self.outlets().filter(concerns_all).map(health).filter(|health| !health.is_well()).map(|health| health.text())
    }

    /// What these have left out.
    pub(super) fn left_out(&self) -> impl Iterator<Item = String> {
        let of_all = self.outlets().filter(|outlet| !outlet.health.has_left_out_of_queries());
        of_all.filter_map(|outlet| outlet.health(|query| self.query_name(query)).left_out())
    }

    /// How outputs get on that are no topics.
    pub(super) fn health(&self) -> impl Iterator<Item = EndHealth> {
        self.outlets().map(|outlet| outlet.health(|query| self.query_name(query)))
    }

    /// Whether any row of it may be a message of the server's broker.
    fn publishes(&self) -> bool {
        let may_refuse = |input: &InputTopics| input.late.is_some() || input.dead_letter.is_some();
        self.targets.iter().any(|target| matches!(target, Target::Topics(_)))
            || self.topics.inputs.iter().any(may_refuse)
    }

    /// The outputs that are not topics.
    pub(super) fn outlets(&self) -> impl Iterator<Item = &Arc<Outlet>> {
        self.targets.iter().filter_map(|target| match target {
            Target::Topics(_) => None,
            Target::Outlet(outlet) => Some(outlet),
        })
    }

    /// The topic for the content of a refusal: the topic for late rows or the dead letters of its input. If inputs had
    /// been joined already, it is that of the first input that has one.
    fn topic_of<'t>(
        &'t self,
        refusal: &Refusal,
        of_input: impl Fn(&'t InputTopics) -> Option<&'t Template>,
    ) -> Option<&'t Template> {
        let inputs = &self.topics.inputs;
        match refusal.input {
            Some(input) => of_input(inputs.get(usize::from(input))?),
            None => inputs.iter().find_map(of_input),
        }
    }
}

impl GroupSink for TaskSink {
    fn write(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError> {
        self.write_rows(batch, numbers, slots)
    }

    fn refused(&mut self, refusals: &Refusals, slots: &SlotTable) -> Result<(), SinkError> {
        let outputs = self.outputs.clone();
        for refusal in refusals.records() {
            let late =
                outputs.topic_of(refusal, |input| input.late.as_ref()).filter(|_| refusal.reason == Reason::Late);
            let dead_letter = outputs.topic_of(refusal, |input| input.dead_letter.as_ref());
            let mut written = Ok(());
            slots.for_each_query(refusal.slot, |query, slots, slot| {
                let (topic, text) = match (late, &refusal.content, dead_letter) {
                    (Some(topic), Refused::Row(row), _) => (topic, encode_row_as_json(row, 0)),
                    (_, _, Some(topic)) => (topic, self.dead_letter(refusal, query)),
                    _ => return,
                };
                write_topic(topic, slots, slot, &mut self.topic);
                if let Err(error) = self.messages.push(&self.topic, text.as_bytes(), outputs.publish_refused) {
                    written = Err(sink_error(error));
                }
            });
            written?;
        }
        if !refusals.seconds().is_empty() {
            let mut seconds = outputs.seconds.lock();
            for (input, found) in refusals.seconds().iter().enumerate().filter(|(_, found)| found.rows > 0) {
                if seconds.get(input).is_none_or(|seconds| seconds.rows == 0) {
                    let name = outputs.inputs.get(input).map_or("", String::as_str);
                    tracing::warn!(application = outputs.application, input = name, "{found}");
                }
                found.add_to(&mut seconds, input);
            }
        }
        if let Some(last) = refusals.records().last() {
            *self.outputs.last_refusal.lock() = Some(format!("{}: {}", last.reason.name(), last.detail));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        for (query, result) in self.watched.drain(..) {
            self.outputs.taps.send(&Watched::Query(query), || result);
        }
        if !self.messages.is_empty() {
            self.publisher.submit(&mut self.messages);
        }
        for (output, batch) in self.for_outlets.drain(..) {
            if let Target::Outlet(outlet) = &self.outputs.targets[output] {
                outlet.write(batch);
            }
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        (!self.outputs.publishes() || self.publisher.has_room())
            && self.outputs.outlets().all(|outlet| outlet.has_room())
    }
}

fn sink_error(error: PublishError) -> SinkError {
    SinkError(error.to_string())
}
