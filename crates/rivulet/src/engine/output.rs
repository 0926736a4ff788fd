//! The sink of a task: encodes result rows, addresses each by its slot's parameters, and hands them over in one piece.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{AsArray, BooleanArray};
use arrow::datatypes::UInt32Type;
use arrow::error::ArrowError;
use parking_lot::Mutex;
use rivulet_connectors::formats::{EncodedRows, Encoder, encode_row_as_json, json_escape};
use rivulet_connectors::mqtt::{PublishBatch, PublishError, PublishOptions, Publisher, Template};
use rivulet_dataflow::{
    Batch, GroupSink, QueryId, Reason, Refusal, Refusals, Refused, Seconds, SinkError, Slot, SlotTable,
};

use super::taps::{Taps, Watched};
use super::topics::{InputTopics, Topics};
use crate::catalog::Catalog;
use crate::service::generated_name;

/// Writes the topic of a slot into `topic`, replacing what was there.
pub(super) fn write_topic(template: &Template, slots: &SlotTable, slot: Slot, topic: &mut String) {
    topic.clear();
    template.write(topic, |parameter, out| slots.write_text(parameter, slot, out));
}

/// Where the rows of an application go; shared by the sinks of its tasks.
pub(super) struct Outputs {
    pub(super) application: String,
    /// What tells the server from others, where results are told apart for their receivers: those that come again after
    /// a crash are the same.
    pub(super) server_of_ids: Option<String>,
    /// For each output whether it writes JSON, so that live results are the same bytes.
    pub(super) result_is_json: Vec<bool>,
    /// Whether the last column of rows says to which outputs they go.
    pub(super) has_bits: bool,
    /// How many rows each output was given.
    pub(super) rows: Vec<AtomicU64>,
    pub(super) topics: Topics,
    pub(super) options: PublishOptions,
    pub(super) taps: Arc<Taps>,
    /// For the names of queries in dead letters.
    pub(super) catalog: Arc<Catalog>,
    /// The last refusal in words, for people who ask why.
    pub(super) last_refusal: Mutex<Option<String>>,
    /// Rows whose times are most likely seconds that were taken for milliseconds, by input.
    pub(super) seconds: Mutex<Vec<Seconds>>,
    /// The names of the inputs.
    pub(super) inputs: Vec<String>,
}

/// The sink of one task.
pub(super) struct TaskSink {
    outputs: Arc<Outputs>,
    publisher: Arc<dyn Publisher>,
    /// One for each output.
    encoders: Vec<Box<dyn Encoder>>,
    rows: EncodedRows,
    messages: PublishBatch,
    /// Results that somebody watches, for when the messages leave: of a task in parts the sinks write side by side, and
    /// send in turn.
    watched: Vec<(QueryId, String)>,
    topic: String,
    /// Kept for their memory.
    id: String,
    numbers: Vec<u64>,
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
            watched: Vec::new(),
            topic: String::new(),
            id: String::new(),
            numbers: Vec::new(),
        }
    }

    /// What a dead letter says: everything a person needs to find out what went wrong.
    fn dead_letter(&self, refusal: &Refusal, id: QueryId) -> String {
        let mut letter = format!("{{\"application\":\"{}\"", json_escape(&self.outputs.application));
        let _ = write!(
            letter,
            ",\"query\":\"{}\",\"query_id\":{id},\"reason\":\"{}\",\"detail\":\"{}\",\"arrival_ms\":{}",
            json_escape(&self.name(id)),
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
                    letter.push_str(",\"payload_hex\":\"");
                    payload.iter().for_each(|byte| {
                        let _ = write!(letter, "{byte:02x}");
                    });
                    letter.push('"');
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

    /// A query's name. From the catalog, because the engine's state may not be locked here.
    fn name(&self, id: QueryId) -> String {
        match self.outputs.catalog.read_query(id, |stored| stored.name.to_owned()) {
            Ok(Some(name)) if !name.is_empty() => name,
            _ => generated_name(id),
        }
    }
}

impl TaskSink {
    /// Publishes the rows of a batch, with their numbers if they have any.
    fn write_rows(&mut self, batch: &Batch, numbers: Option<&[u64]>, slots: &SlotTable) -> Result<(), SinkError> {
        let is_watching = self.outputs.taps.is_watching();
        if !self.outputs.has_bits {
            let outputs = 0..self.encoders.len();
            // A row shows once, however many outputs it goes to.
            let written =
                outputs.map(|output| self.write_output(output, batch, numbers, slots, |_| is_watching && output == 0));
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
            let of_output = numbers.map(|_| &numbers_to_output[..]);
            // A row shows with the first of its outputs.
            let shows = |row: usize| is_watching && to_output[row] & (bit - 1) == 0;
            let written = self.write_output(output, &batch.filter(&keep).map_err(failed)?, of_output, slots, shows);
            result = result.and(written);
        }
        self.numbers = numbers_to_output;
        result
    }

    /// Publishes the rows of a batch, all of one output. Live results show those too for which `shows` holds.
    fn write_output(
        &mut self,
        output: usize,
        batch: &Batch,
        numbers: Option<&[u64]>,
        slots: &SlotTable,
        shows: impl Fn(usize) -> bool,
    ) -> Result<(), SinkError> {
        let Self { outputs, encoders, rows, messages, watched, topic, id, .. } = self;
        let numbered = outputs.server_of_ids.as_deref().zip(numbers);
        rows.clear();
        encoders[output].encode(batch, rows);
        let mut failure = Ok(());
        let mut published = 0;
        for (row, &slot) in batch.slots.iter().enumerate() {
            // Of queries that share a slot each has its own output.
            slots.for_each_query(slot, |query, slots, slot| {
                write_topic(&outputs.topics.outputs[output], slots, slot, topic);
                id.clear();
                if let Some((server, numbers)) = numbered {
                    // Writing to a text does not fail.
                    let _ = write!(id, "{server}-{query}-{}", numbers[row]);
                }
                // A row that cannot be published must not cost the rows of other queries.
                if let Err(error) = messages.push_with_id(topic, id, rows.row(row), outputs.options) {
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
    /// Where the content of a refusal goes: to the topic for late rows or the dead letters of its input; if inputs had
    /// come together already, to the first input's that has one.
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
                if let Err(error) = self.messages.push(&self.topic, text.as_bytes(), outputs.options) {
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
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.publisher.has_room()
    }
}

fn sink_error(error: PublishError) -> SinkError {
    SinkError(error.to_string())
}
